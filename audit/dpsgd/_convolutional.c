/* Sums of clipped per-record gradients of convolutional networks, and of the layers after the first
 * Linear layer of an MLP.
 *
 * A few records at a time go forward and backward through all layers, so that their activations
 * and gradients stay in the second-level cache. Each record's gradient is computed, clipped and
 * added to the sum before the next records are read. program.py defines the layouts (channels last,
 * padded to whole vectors); compiled.py calls this extension.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_exponential.h"

/* Floats per vector, and block sizes that fit the registers: 32 of 16 floats, or 16 of 8 floats. */
#ifdef __AVX512F__
#define LANE 16
#define POSITIONS 8
#define TAPS 8
#define RUN 4
#else
#define LANE 8
#define POSITIONS 6
#define TAPS 4
#define RUN 2
#endif
#define RECORDS 32 /* maximum number of records that go through the layers together */
#define FLUSH 64 /* records per partial sum; partial sums reduce rounding errors */

typedef float vector __attribute__((vector_size(4 * LANE)));
typedef int32_t mask __attribute__((vector_size(4 * LANE)));
#define INLINE static inline __attribute__((always_inline))

enum { AFFINE, RELU, MAX_POOL, PAD };

/* One row of the table. Fields that a kind of layer does not use are 0. Sizes are in floats. */
typedef struct {
    int32_t kind;
    int32_t in_size, out_size; /* of one record */
    /* AFFINE: out[p] = b + sum over `rows` spans of `run` inputs of W in[offset[p] + row * stride ...]. */
    int32_t is_linear; /* one position: the records take the place of positions */
    int32_t positions, rows, run, stride;
    int32_t outputs; /* padded */
    int32_t weight, bias; /* positions among the packed parameters; bias -1: none */
    int32_t offsets;
    /* MAX_POOL and PAD: sizes of the input and output pictures. */
    int32_t height, width, channels, out_height, out_width;
    int32_t kernel_height, kernel_width, stride_height, stride_width;
    int32_t top, left;
} layer;

/* Position of a parameter, whose columns are contiguous, among the packed ones, whose rows are. */
typedef struct {
    int32_t packed; /* its first packed number */
    int32_t rows, columns, sheets;
    int32_t row, sheet; /* strides */
    int32_t packed_column, packed_sheet;
} box;

INLINE vector load(const float *p) {
    vector v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store(float *p, vector v) { memcpy(p, &v, sizeof v); }

/* Hides how an address was computed, so that the compiler does not recompute it for each use. */
INLINE const float *at(const float *p, int64_t offset) {
    p += offset;
    __asm__("" : "+r"(p));
    return p;
}

INLINE mask places(void) {
    mask place;
    for (int i = 0; i < LANE; i++) place[i] = i;
    return place;
}

INLINE vector choose(mask which, vector yes, vector no) {
    return (vector)((which & (mask)yes) | (~which & (mask)no));
}

/* Sum of a vector's elements, by pairwise addition of halves. */
INLINE float sum_of(vector v) {
    for (int half = LANE / 2; half; half /= 2) v += __builtin_shuffle(v, places() ^ half);
    return v[0];
}

INLINE float largest_of(vector v) {
    for (int half = LANE / 2; half; half /= 2) {
        const vector other = __builtin_shuffle(v, places() ^ half);
        v = choose(other > v, other, v);
    }
    return v[0];
}

INLINE vector at_least(vector x, float least) {
    const vector limit = (vector){0} + least;
    return choose(x < limit, limit, x);
}

DEFINE_EXPONENTIAL(vector, mask, at_least)

/* out[p] = bias + W^T in[p] for P positions and V vectors of outputs. */
INLINE void forward_block(const int P, const int V, const layer *l, const float *in,
                          const int32_t *offsets, const float *w, const float *bias, float *out) {
    vector acc[POSITIONS][2];
    for (int p = 0; p < P; p++)
        for (int v = 0; v < V; v++) acc[p][v] = bias ? load(bias + v * LANE) : (vector){0};
    for (int row = 0; row < l->rows; row++) {
        const float *from[POSITIONS];
        for (int p = 0; p < P; p++) from[p] = at(in + (int64_t)row * l->stride, offsets[p]);
        for (int t = 0; t < l->run; t++, w += l->outputs) {
            vector weight[2];
            for (int v = 0; v < V; v++) weight[v] = load(w + v * LANE);
            for (int p = 0; p < P; p++)
                for (int v = 0; v < V; v++) acc[p][v] += weight[v] * from[p][t];
        }
    }
    for (int p = 0; p < P; p++)
        for (int v = 0; v < V; v++) store(out + (int64_t)p * l->outputs + v * LANE, acc[p][v]);
}

static void forward(const layer *l, int positions, const float *in, const int32_t *offsets,
                    const float *w, const float *bias, float *out) {
    for (int o = 0; o < l->outputs; o += 2 * LANE) {
        const float *b = bias ? bias + o : NULL;
        const int wide = o + LANE < l->outputs;
        int p = 0;
#define BLOCK(P, V)                                                                              \
    for (; p + P <= positions; p += P)                                                           \
        forward_block(P, V, l, in, offsets + p, w + o, b, out + (int64_t)p * l->outputs + o);
        if (wide) {
            BLOCK(POSITIONS, 2) BLOCK(4, 2) BLOCK(1, 2)
        } else {
            BLOCK(POSITIONS, 1) BLOCK(4, 1) BLOCK(1, 1)
        }
#undef BLOCK
    }
}

/* g[t] = sum over positions of in[p][t] * delta[p] for T taps and V vectors of outputs. The sum is
 * added to g or replaces it. */
INLINE void gradient_block(const int T, const int V, const layer *l, int positions, const float *in,
                           const int32_t *offsets, const float *delta, float *g, int is_added) {
    vector acc[TAPS][2];
    for (int t = 0; t < T; t++)
        for (int v = 0; v < V; v++)
            acc[t][v] = is_added ? load(g + (int64_t)t * l->outputs + v * LANE) : (vector){0};
    for (int p = 0; p < positions; p++) {
        const float *from = at(in, offsets[p]);
        vector d[2];
        for (int v = 0; v < V; v++) d[v] = load(delta + (int64_t)p * l->outputs + v * LANE);
        for (int t = 0; t < T; t++)
            for (int v = 0; v < V; v++) acc[t][v] += d[v] * from[t];
    }
    for (int t = 0; t < T; t++)
        for (int v = 0; v < V; v++) store(g + (int64_t)t * l->outputs + v * LANE, acc[t][v]);
}

static void gradient(const layer *l, int positions, const float *in, const int32_t *offsets,
                     const float *delta, float *g, int is_added) {
    for (int row = 0; row < l->rows; row++)
        for (int o = 0; o < l->outputs; o += 2 * LANE) {
            const float *from = in + (int64_t)row * l->stride;
            float *to = g + (int64_t)row * l->run * l->outputs + o;
            const int wide = o + LANE < l->outputs;
            int t = 0;
#define BLOCK(T, V)                                                                              \
    for (; t + T <= l->run; t += T)                                                              \
        gradient_block(T, V, l, positions, from + t, offsets, delta + o,                         \
                       to + (int64_t)t * l->outputs, is_added);
            if (wide) {
                BLOCK(TAPS, 2) BLOCK(1, 2)
            } else {
                BLOCK(TAPS, 1) BLOCK(1, 1)
            }
#undef BLOCK
        }
}

/* back[p] += W delta[p] for P positions and U vectors of a span. */
INLINE void backward_block(const int P, const int U, const layer *l, const float *delta,
                           const int32_t *offsets, const float *w, float *back) {
    const int64_t taps = (int64_t)l->rows * l->run;
    vector acc[4][RUN];
    for (int p = 0; p < P; p++)
        for (int u = 0; u < U; u++) acc[p][u] = (vector){0};
    for (int o = 0; o < l->outputs; o++, w += taps) {
        vector weight[RUN];
        for (int u = 0; u < U; u++) weight[u] = load(w + u * LANE);
        for (int p = 0; p < P; p++)
            for (int u = 0; u < U; u++) acc[p][u] += weight[u] * delta[(int64_t)p * l->outputs + o];
    }
    for (int p = 0; p < P; p++)
        for (int u = 0; u < U; u++) {
            float *to = back + offsets[p] + u * LANE;
            store(to, load(to) + acc[p][u]);
        }
}

static void backward(const layer *l, int positions, const float *delta, const int32_t *offsets,
                     const float *w, float *back) {
    for (int row = 0; row < l->rows; row++) {
        const float *from = w + (int64_t)row * l->run;
        float *to = back + (int64_t)row * l->stride;
        int t = 0;
#define BLOCK(P, U)                                                                              \
    for (; p + P <= positions; p += P)                                                           \
        backward_block(P, U, l, delta + (int64_t)p * l->outputs, offsets + p, from + t, to + t);
        for (; t + RUN * LANE <= l->run; t += RUN * LANE) {
            int p = 0;
            BLOCK(4, RUN) BLOCK(1, RUN)
        }
        for (; t < l->run; t += LANE) {
            int p = 0;
            BLOCK(4, 1) BLOCK(1, 1)
        }
#undef BLOCK
    }
}

static float squared(const float *x, int64_t size) {
    vector acc = {0};
    for (int64_t i = 0; i < size; i += LANE) acc += load(x + i) * load(x + i);
    return sum_of(acc);
}

/* to += factor * from */
static void accumulate(float *to, const float *from, float factor, int64_t size) {
    for (int64_t i = 0; i < size; i += LANE) store(to + i, load(to + i) + load(from + i) * factor);
}

static void sum_rows(float *to, const float *from, int rows, int64_t size) {
    for (int64_t i = 0; i < size; i += LANE) {
        vector acc = {0};
        for (int row = 0; row < rows; row++) acc += load(from + row * size + i);
        store(to + i, acc);
    }
}

static void relu(float *x, int64_t size) {
    const vector zero = {0};
    for (int64_t i = 0; i < size; i += LANE) {
        const vector v = load(x + i);
        /* NaN stays NaN. */
        store(x + i, (vector)((mask)v & ~(v < zero)));
    }
}

static void relu_backward(float *delta, const float *y, int64_t size) {
    const vector zero = {0};
    for (int64_t i = 0; i < size; i += LANE)
        store(delta + i, (vector)((mask)load(delta + i) & (load(y + i) > zero)));
}

/* Ties go to the first element, as in torch. */
INLINE void max_pool_of(const int kernel_height, const int kernel_width, const layer l,
                        const float *in, float *out, int32_t *index) {
    for (int y = 0; y < l.out_height; y++)
        for (int x = 0; x < l.out_width; x++)
            for (int c = 0; c < l.channels; c += LANE) {
                const int row = y * l.stride_height, column = x * l.stride_width;
                const float *from = in + ((int64_t)row * l.width + column) * l.channels + c;
                vector best = load(from);
                mask which = {0};
                for (int i = 0, tap = 0; i < kernel_height; i++)
                    for (int j = 0; j < kernel_width; j++, tap++) {
                        const vector v = load(from + ((int64_t)i * l.width + j) * l.channels);
                        const mask more = (v > best) | (v != v);
                        best = (vector)(((mask)v & more) | ((mask)best & ~more));
                        which = (more & tap) | (which & ~more);
                    }
                store(out, best);
                memcpy(index, &which, sizeof which);
                out += LANE, index += LANE;
            }
}

INLINE void max_pool_backward_of(const int kernel_height, const int kernel_width, const layer l,
                                 const float *delta, const int32_t *index, float *back) {
    for (int y = 0; y < l.out_height; y++)
        for (int x = 0; x < l.out_width; x++)
            for (int c = 0; c < l.channels; c += LANE) {
                const int row = y * l.stride_height, column = x * l.stride_width;
                float *to = back + ((int64_t)row * l.width + column) * l.channels + c;
                const mask d = (mask)load(delta);
                mask which;
                memcpy(&which, index, sizeof which);
                for (int i = 0, tap = 0; i < kernel_height; i++)
                    for (int j = 0; j < kernel_width; j++, tap++) {
                        float *p = to + ((int64_t)i * l.width + j) * l.channels;
                        store(p, load(p) + (vector)(d & (which == tap)));
                    }
                delta += LANE, index += LANE;
            }
}

/* The most common kernel size is unrolled. */
static void max_pool(const layer *l, const float *in, float *out, int32_t *index) {
    if (l->kernel_height == 2 && l->kernel_width == 2)
        max_pool_of(2, 2, *l, in, out, index);
    else
        max_pool_of(l->kernel_height, l->kernel_width, *l, in, out, index);
}

static void max_pool_backward(const layer *l, const float *delta, const int32_t *index,
                              float *back) {
    if (l->kernel_height == 2 && l->kernel_width == 2)
        max_pool_backward_of(2, 2, *l, delta, index, back);
    else
        max_pool_backward_of(l->kernel_height, l->kernel_width, *l, delta, index, back);
}

/* Copies a picture into the middle of a larger one, or back. */
static void pad(const layer *l, const float *in, float *out, int is_backward) {
    const int64_t row = (int64_t)l->width * l->channels;
    for (int y = 0; y < l->height; y++) {
        const int64_t inner = y * row;
        const int64_t outer =
            ((int64_t)(y + l->top) * l->out_width + l->left) * l->channels;
        if (is_backward)
            memcpy(out + inner, in + outer, row * sizeof(float));
        else
            memcpy(out + outer, in + inner, row * sizeof(float));
    }
}

/* Replaces logits by the gradient of the cross-entropy with respect to them. */
static void cross_entropy(float *logits, int classes, int padded, int64_t label) {
    const vector zero = {0};
    vector top = zero - INFINITY, sum = zero;
    for (int i = 0; i < padded; i += LANE) {
        const vector v = load(logits + i);
        top = choose((v > top) & (places() + i < classes), v, top);
    }
    const float largest = largest_of(top);
    for (int i = 0; i < padded; i += LANE) {
        vector e = exponential(load(logits + i) - largest);
        e = choose(places() + i < classes, e, zero);
        store(logits + i, e);
        sum += e;
    }
    const float share = 1 / sum_of(sum);
    for (int i = 0; i < padded; i += LANE) {
        const vector target = choose(places() + i == (int32_t)label, zero + 1.0f, zero);
        store(logits + i, load(logits + i) * share - target);
    }
}

typedef struct {
    const layer *layers;
    int count, classes, together; /* records */
    const box *boxes; /* one per parameter */
    int box_count;
    int64_t parameters; /* number of packed numbers */
    const int32_t *offsets;
    float **activation, **delta; /* [count + 1]; delta[l] is the gradient of the input of l */
    int32_t **index;
    float *gradients; /* [together, parameters], of convolutions */
    float *sums, *total;
    float *theta, *transposed; /* one run's packed parameters, and weights with outputs first */
    float *first; /* the records; or the outputs of a preceding Linear layer of this width, */
    int width;    /* [records, runs, width], overwritten by their clipped gradients */
    const float *squares; /* per record: that layer's |gradient|^2 / |gradient of its output|^2 */
} network;

static const float *input(const network *net, int l, int record, const int64_t *which) {
    const int64_t size = net->layers[l].in_size;
    const int is_record = l == 0 && !net->width;
    return is_record ? net->first + which[record] * size : net->activation[l] + record * size;
}

static void run_forward(const network *net, int records, const int64_t *which) {
    for (int i = 0; i < net->count; i++) {
        const layer *l = net->layers + i;
        const int32_t *offsets = net->offsets + l->offsets;
        const float *bias = l->bias < 0 ? NULL : net->theta + l->bias;
        float *out = net->activation[i + 1];
        if (l->kind == RELU) {
            relu(out, (int64_t)records * l->out_size);
        } else if (l->kind == AFFINE && l->is_linear) {
            forward(l, records, net->activation[i], offsets, net->theta + l->weight, bias, out);
        } else {
            for (int r = 0; r < records; r++, out += l->out_size) {
                const float *in = input(net, i, r, which);
                if (l->kind == AFFINE)
                    forward(l, l->positions, in, offsets, net->theta + l->weight, bias, out);
                else if (l->kind == MAX_POOL)
                    max_pool(l, in, out, net->index[i] + (int64_t)r * l->out_size);
                else
                    pad(l, in, out, 0);
            }
        }
    }
}

/* Writes the gradients of convolutions to net->gradients and all squared norms to `norms`. */
static void run_backward(const network *net, int records, const int64_t *which, float *norms) {
    for (int i = net->count - 1; i >= 0; i--) {
        const layer *l = net->layers + i;
        const int32_t *offsets = net->offsets + l->offsets;
        float *delta = net->delta[i + 1], *back = net->delta[i];
        if (l->kind == RELU) {
            relu_backward(delta, net->activation[i + 1], (int64_t)records * l->out_size);
            continue;
        }
        if (back && l->kind != PAD)
            memset(back, 0, (size_t)records * l->in_size * sizeof(float));
        if (l->kind == AFFINE && l->is_linear && back)
            backward(l, records, delta, offsets, net->transposed + l->weight, back);
        for (int r = 0; r < records; r++, delta += l->out_size) {
            const float *in = input(net, i, r, which);
            float *to = back ? back + (int64_t)r * l->in_size : NULL;
            if (l->kind == MAX_POOL && to) {
                max_pool_backward(l, delta, net->index[i] + (int64_t)r * l->out_size, to);
            } else if (l->kind == PAD && to) {
                pad(l, delta, to, 1);
            } else if (l->kind == AFFINE && l->is_linear) {
                norms[r] += squared(delta, l->outputs) * (squared(in, l->in_size) + (l->bias >= 0));
            } else if (l->kind == AFFINE) {
                float *own = net->gradients + (int64_t)r * net->parameters;
                const int64_t size = (int64_t)l->rows * l->run * l->outputs;
                gradient(l, l->positions, in, offsets, delta, own + l->weight, 0);
                norms[r] += squared(own + l->weight, size);
                if (l->bias >= 0) {
                    sum_rows(own + l->bias, delta, l->positions, l->outputs);
                    norms[r] += squared(own + l->bias, l->outputs);
                }
                if (to) backward(l, l->positions, delta, offsets, net->transposed + l->weight, to);
            }
        }
    }
}

static void add_clipped(const network *net, int records, const float *factors) {
    for (int i = 0; i < net->count; i++) {
        const layer *l = net->layers + i;
        if (l->kind != AFFINE) continue;
        float *delta = net->delta[i + 1];
        if (l->is_linear) {
            for (int r = 0; r < records; r++) {
                float *own = delta + (int64_t)r * l->outputs;
                for (int o = 0; o < l->outputs; o += LANE)
                    store(own + o, load(own + o) * factors[r]);
                if (l->bias >= 0) accumulate(net->sums + l->bias, own, 1, l->outputs);
            }
            gradient(l, records, net->activation[i], net->offsets + l->offsets, delta,
                     net->sums + l->weight, 1);
            continue;
        }
        for (int r = 0; r < records; r++) {
            const float *own = net->gradients + (int64_t)r * net->parameters;
            const int64_t size = (int64_t)l->rows * l->run * l->outputs;
            accumulate(net->sums + l->weight, own + l->weight, factors[r], size);
            if (l->bias >= 0)
                accumulate(net->sums + l->bias, own + l->bias, factors[r], l->outputs);
        }
    }
}

/* Selects elements of a (indices below LANE) and of b (the others). */
INLINE vector pick(vector a, vector b, mask which) {
#ifdef __AVX512F__
    return (vector)_mm512_permutex2var_ps((__m512)a, (__m512i)which, (__m512)b);
#else
    const __m256 x = _mm256_permutevar8x32_ps((__m256)a, (__m256i)which);
    const __m256 y = _mm256_permutevar8x32_ps((__m256)b, (__m256i)which);
    return (vector)_mm256_blendv_ps(x, y, (__m256)(which << 28));
#endif
}

/* Swaps the off-diagonal squares of size `side` inside squares of twice that size. */
INLINE void exchange(vector *v, const int side) {
    const mask is_right = (places() & side) != 0;
    const mask upper = places() ^ (is_right & (side + LANE));
    const mask lower = places() ^ ((is_right & LANE) | (~is_right & side));
    for (int i = 0; i < LANE; i++)
        if (!(i & side)) {
            const vector x = v[i], y = v[i + side];
            v[i] = pick(x, y, upper);
            v[i + side] = pick(x, y, lower);
        }
}

/* to[column][row] = from[row][column] for at most LANE rows and columns. */
INLINE void transpose_block(float *to, int64_t to_step, const float *from, int64_t from_step,
                            int rows, int columns) {
    if (rows < LANE || columns < LANE) {
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < columns; j++) to[j * to_step + i] = from[i * from_step + j];
        return;
    }
    vector v[LANE];
    for (int i = 0; i < LANE; i++) v[i] = load(from + i * from_step);
#if LANE == 16
    exchange(v, 8);
#endif
    exchange(v, 4);
    exchange(v, 2);
    exchange(v, 1);
    for (int i = 0; i < LANE; i++) store(to + i * to_step, v[i]);
}

static void transpose(float *to, int64_t to_step, const float *from, int64_t from_step, int rows,
                      int columns) {
    for (int i = 0; i < rows; i += LANE)
        for (int j = 0; j < columns; j += LANE)
            transpose_block(to + j * to_step + i, to_step, from + i * from_step + j, from_step,
                            rows - i < LANE ? rows - i : LANE,
                            columns - j < LANE ? columns - j : LANE);
}

/* Packs the parameters of one run, each [runs, ...], or unpacks them. */
static void move(const network *net, int run, float *const *parameters, float *packed,
                 int is_back) {
    for (int i = 0; i < net->box_count; i++) {
        const box *b = net->boxes + i;
        float *plain = parameters[i] + (int64_t)run * b->rows * b->columns * b->sheets;
        for (int j = 0; j < b->sheets; j++) {
            float *p = plain + (int64_t)j * b->sheet;
            float *q = packed + b->packed + (int64_t)j * b->packed_sheet;
            if (is_back)
                transpose(p, b->row, q, b->packed_column, b->columns, b->rows);
            else
                transpose(q, b->packed_column, p, b->row, b->rows, b->columns);
        }
    }
}

/* Writes one run's sum to `out`, [runs, ...] for each parameter, and returns its squared norm. */
static float clipped_sum(const network *net, int run, int runs, int64_t size, const int64_t *labels,
                         const uint8_t *taken, float *const *theta, float clip,
                         float *const *out) {
    const int64_t in_size = net->layers[0].in_size;
    float *outputs[RECORDS];
    int64_t which[RECORDS], next = 0;
    int unflushed = 0;
    float *sums = net->sums;
    float *total = size > FLUSH ? net->total : NULL; /* no partial sums for few records */
    move(net, run, theta, net->theta, 0);
    for (int i = 0; i < net->count; i++) {
        const layer *l = net->layers + i;
        if (l->kind == AFFINE)
            transpose(net->transposed + l->weight, l->rows * l->run, net->theta + l->weight,
                      l->outputs, l->rows * l->run, l->outputs);
    }
    memset(sums, 0, net->parameters * sizeof(float));
    if (total) memset(total, 0, net->parameters * sizeof(float));
    while (next < size) {
        int records = 0;
        for (; next < size && records < net->together; next++)
            if (!taken || taken[next]) which[records++] = next;
        if (!records) break;
        for (int r = 0; net->width && r < records; r++) {
            outputs[r] = net->first + (which[r] * runs + run) * net->width;
            memcpy(net->activation[0] + r * in_size, outputs[r], net->width * sizeof(float));
        }
        run_forward(net, records, which);
        float *delta = net->delta[net->count], norms[RECORDS] = {0}, factors[RECORDS];
        const int padded = net->layers[net->count - 1].out_size;
        memcpy(delta, net->activation[net->count], (size_t)records * padded * sizeof(float));
        for (int r = 0; r < records; r++)
            cross_entropy(delta + r * padded, net->classes, padded, labels[which[r]]);
        run_backward(net, records, which, norms);
        for (int r = 0; net->width && r < records; r++)
            norms[r] += squared(net->delta[0] + r * in_size, in_size) * net->squares[which[r]];
        for (int r = 0; r < records; r++) {
            const float factor = clip / sqrtf(norms[r]);
            factors[r] = factor > 1 ? 1 : factor; /* NaN stays NaN */
            for (int i = 0; i < net->width; i++)
                outputs[r][i] = net->delta[0][r * in_size + i] * factors[r];
        }
        add_clipped(net, records, factors);
        unflushed += records;
        if (total && unflushed >= FLUSH) {
            accumulate(total, sums, 1, net->parameters);
            memset(sums, 0, net->parameters * sizeof(float));
            unflushed = 0;
        }
    }
    if (total)
        accumulate(total, sums, 1, net->parameters);
    else
        total = sums;
    move(net, run, out, total, 1);
    return squared(total, net->parameters);
}

/* Memory for `floats` floats, aligned to the vector size; NULL on failure. */
static float *room(int64_t floats) {
    void *p = NULL;
    return posix_memalign(&p, 64, (size_t)(floats + LANE) * sizeof(float)) ? NULL : p;
}

static int sums_of_runs(network *net, int runs, int64_t size, const int64_t *labels,
                        const uint8_t *taken, float *const *theta, const float *clips,
                        float *const *totals, float *squares) {
    const int n = net->count;
    float **buffers = calloc(4 * (size_t)(n + 1), sizeof *buffers);
    if (!buffers) return -1;
    net->activation = buffers;
    net->delta = buffers + n + 1;
    net->index = (int32_t **)(buffers + 2 * (n + 1));
    int ok = 1;
    if (net->width) {
        const int64_t floats = (int64_t)net->together * net->layers[0].in_size;
        ok &= (net->activation[0] = room(floats)) && (net->delta[0] = room(floats));
        if (ok) memset(net->activation[0], 0, floats * sizeof(float));
    }
    for (int i = 0; i < n; i++) {
        const layer *l = net->layers + i;
        if (l->kind == RELU) { /* forward and backward in place */
            net->activation[i + 1] = net->activation[i];
            net->delta[i + 1] = net->delta[i];
            continue;
        }
        const int64_t floats = (int64_t)net->together * l->out_size;
        ok &= (net->activation[i + 1] = room(floats)) && (net->delta[i + 1] = room(floats));
        if (ok && l->kind == PAD) memset(net->activation[i + 1], 0, floats * sizeof(float));
        if (l->kind == MAX_POOL) ok &= !!(net->index[i] = (int32_t *)room(floats));
    }
    net->gradients = room(net->together * net->parameters);
    net->sums = room(net->parameters);
    net->total = room(net->parameters);
    net->theta = room(net->parameters);
    net->transposed = room(net->parameters);
    ok &= net->gradients && net->sums && net->total && net->theta && net->transposed;
    /* The padding of vectors stays 0. */
    if (ok) memset(net->theta, 0, net->parameters * sizeof(float));
    for (int run = 0; ok && run < runs; run++)
        squares[run] = clipped_sum(net, run, runs, size, labels, taken ? taken + run * size : NULL,
                                   theta, clips[run], totals);
    for (int i = 0; i < n; i++) {
        if (net->layers[i].kind == RELU) continue;
        free(net->activation[i + 1]);
        free(net->delta[i + 1]);
        free(net->index[i]);
    }
    free(net->activation[0]);
    free(net->delta[0]);
    free(net->gradients);
    free(net->sums);
    free(net->total);
    free(net->theta);
    free(net->transposed);
    free(buffers);
    return ok ? 0 : -1;
}

static PyObject *clipped_sums(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long layers, offsets, records, labels, taken, theta, clips, totals, squares;
    unsigned long long boxes, input_squares;
    long long size, parameters;
    int count, classes, together, width, runs, box_count;
    if (!PyArg_ParseTuple(args, "(KiKii)(KKLK)(iK)(KiL)(iKKKK)", &layers, &count, &offsets, &classes,
                          &together, &records, &labels, &size, &taken, &width, &input_squares,
                          &boxes, &box_count, &parameters, &runs, &theta, &clips, &totals,
                          &squares))
        return NULL;
    network net = {.layers = (const layer *)(uintptr_t)layers,
                   .count = count,
                   .classes = classes,
                   .together = together,
                   .boxes = (const box *)(uintptr_t)boxes,
                   .box_count = box_count,
                   .parameters = parameters,
                   .offsets = (const int32_t *)(uintptr_t)offsets,
                   .first = (float *)(uintptr_t)records,
                   .width = width,
                   .squares = (const float *)(uintptr_t)input_squares};
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = sums_of_runs(&net, runs, size, (const int64_t *)(uintptr_t)labels,
                 (const uint8_t *)(uintptr_t)taken, (float *const *)(uintptr_t)theta,
                 (const float *)(uintptr_t)clips, (float *const *)(uintptr_t)totals,
                 (float *)(uintptr_t)squares);
    Py_END_ALLOW_THREADS
    if (status) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"clipped_sums", clipped_sums, METH_VARARGS,
     "clipped_sums((layers, count, offsets, classes, together), (records, labels, size, taken), "
     "(width, squares), (boxes, box_count, parameters), (runs, theta, clips, totals, squares)): "
     "addresses as ints."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "convolutional", NULL, -1, methods,
                                    NULL, NULL, NULL, NULL};

/* The compiler command defines NAME: there is one extension per vector width. */
#define INIT_OF(name) PyInit_##name
#define INIT(name) INIT_OF(name)

PyMODINIT_FUNC INIT(NAME)(void) {
    PyObject *made = PyModule_Create(&module);
    if (made && PyModule_AddIntConstant(made, "RECORDS", RECORDS) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    return made;
}
