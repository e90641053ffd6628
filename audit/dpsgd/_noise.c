/* Random numbers of runs as a function of (key, stream, step, place): Philox4x32-10 (Salmon et al.
 * 2011, "Parallel random numbers: as easy as 1, 2, 3") and the transform of Box & Muller (1958).
 *
 * Every processor computes the same bits: the code uses integers, and floats that are only added,
 * multiplied, converted and passed to sqrt, in a fixed order and without fused operations
 * (-ffp-contract=off). noise.py computes the same bits in numpy. A group consists of 16 counters of
 * 4 words; word j of counter k is number 16 j + k of the group.
 * The key is a run's seed; the counter is (k, step, stream, 0).
 *
 * streams.py uses the normal numbers in float64, which are computed by inversion.
 *
 * Training steps without training records use each number as soon as it is drawn. Their sums have a
 * fixed order, too, so they also compute the same bits on every processor.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "_exponential.h"

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

/* Counters per vector, and how many vectors are interleaved to keep the multipliers busy. */
#if defined(__AVX512F__)
#define LANE 16
#define TOGETHER 2
#elif defined(__AVX2__)
#define LANE 8
#define TOGETHER 1
#else
#define LANE 4
#define TOGETHER 1
#endif
#define GROUP 16 /* counters */
#define NUMBERS (4 * GROUP)
#define BLOCK (LANE * TOGETHER > GROUP ? LANE * TOGETHER : GROUP) /* counters at once */

typedef float real __attribute__((vector_size(4 * LANE)));
typedef int32_t whole __attribute__((vector_size(4 * LANE)));
typedef uint32_t word __attribute__((vector_size(4 * LANE)));
typedef uint64_t wide __attribute__((vector_size(4 * LANE)));
#define INLINE static inline __attribute__((always_inline))

typedef struct {
    uint32_t key[2], counter[4]; /* counter[0] is that of the first number */
} place;

/* The lower 32 bits of each element of x, times k. */
INLINE wide multiply(wide x, uint32_t k) {
    const wide by = (wide){0} + k;
#if defined(__AVX512F__)
    return (wide)_mm512_mul_epu32((__m512i)x, (__m512i)by);
#elif defined(__AVX2__)
    return (wide)_mm256_mul_epu32((__m256i)x, (__m256i)by);
#else
    return (x & 0xFFFFFFFF) * by;
#endif
}

INLINE real root(real x) {
#if defined(__AVX512F__)
    return (real)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
    return (real)_mm256_sqrt_ps((__m256)x);
#else
    real y;
    for (int i = 0; i < LANE; i++) y[i] = sqrtf(x[i]);
    return y;
#endif
}

/* Words of TOGETHER * LANE counters. Even and odd counters are in separate vectors, each in the
 * lower half of 64 bits; the upper halves are never used. */
INLINE void philox(const place *p, uint32_t first, word out[4][TOGETHER]) {
    wide c[4][2 * TOGETHER], even = {0};
    for (int i = 0; i < LANE / 2; i++) even[i] = 2 * i;
    for (int v = 0; v < 2 * TOGETHER; v++) {
        c[0][v] = even + (p->counter[0] + first + v / 2 * LANE + v % 2);
        for (int j = 1; j < 4; j++) c[j][v] = (wide){0} + p->counter[j];
    }
    uint32_t low = p->key[0], high = p->key[1];
    for (int round = 0; round < 10; round++, low += 0x9E3779B9, high += 0xBB67AE85)
        for (int v = 0; v < 2 * TOGETHER; v++) {
            const wide a = multiply(c[0][v], 0xD2511F53), b = multiply(c[2][v], 0xCD9E8D57);
            c[0][v] = (b >> 32) ^ c[1][v] ^ ((wide){0} + low);
            c[2][v] = (a >> 32) ^ c[3][v] ^ ((wide){0} + high);
            c[1][v] = b;
            c[3][v] = a;
        }
    for (int j = 0; j < 4; j++)
        for (int v = 0; v < TOGETHER; v++)
            out[j][v] = (word)((c[j][2 * v] & 0xFFFFFFFF) | (c[j][2 * v + 1] << 32));
}

/* scale * sqrt(-2 ln u), u = (x / 2 + 1 / 2) / 2^31. */
INLINE real radius(word x, float scale) {
    const real u = (__builtin_convertvector((whole)(x >> 1), real) + 0.5f) * 0x1p-31f;
    /* u = 2^e m with m in [sqrt(1/2), sqrt(2)) */
    const whole bits = (whole)u;
    const whole e = (bits - 0x3F3504F3) >> 23;
    const real t = (real)(bits - (e << 23)) - 1.0f;
    real y = t * -7.634429838e-2f + 1.276155034e-1f;
    y = y * t - 1.316019507e-1f;
    y = y * t + 1.420176247e-1f;
    y = y * t - 1.662335648e-1f;
    y = y * t + 2.000122667e-1f;
    y = y * t - 2.500082106e-1f;
    y = y * t + 3.333333171e-1f;
    y = (y * t - 0.5f) * (t * t) + t;
    y = __builtin_convertvector(e, real) * 6.931471806e-1f + y;
    return root(y * -2.0f) * scale;
}

/* r cos and r sin of the angle x 2 pi / 2^32. */
INLINE void point(word x, real r, real *cosine, real *sine) {
    const word shifted = x + 0x20000000; /* split into the nearest quarter turn and the remainder */
    const whole quarter = (whole)(shifted >> 30);
    const whole rest = (whole)(shifted & 0x3FFFFFFF) - 0x20000000;
    const real a = __builtin_convertvector(rest, real) * 1.462918079e-9f; /* 2 pi / 2^32 */
    const real q = a * a;
    real s = q * -1.951729790e-4f + 8.332178136e-3f;
    s = s * q - 1.666665494e-1f;
    s = s * q * a + a;
    real c = q * 2.443315515e-5f - 1.388731624e-3f;
    c = c * q + 4.166664568e-2f;
    c = (c * q - 0.5f) * q + 1.0f;
    const whole swap = -(quarter & 1);
    const whole x_bits = ((whole)c & ~swap) | ((whole)s & swap);
    const whole y_bits = ((whole)s & ~swap) | ((whole)c & swap);
    *cosine = (real)(x_bits ^ (((quarter + 1) & 2) << 30)) * r;
    *sine = (real)(y_bits ^ ((quarter & 2) << 30)) * r;
}

/* Position of word j of counter k in the output. */
INLINE int64_t at(int64_t k, int j) { return k / GROUP * NUMBERS + j * GROUP + k % GROUP; }

/* The words or the normal numbers of BLOCK counters. */
INLINE void block(const place *p, uint32_t first, int is_normal, float scale, char *out) {
    for (int start = 0; start < BLOCK; start += LANE * TOGETHER) {
        word w[4][TOGETHER];
        philox(p, first + start, w);
        for (int v = 0; v < TOGETHER; v++) {
            const int64_t k = start + v * LANE;
            if (is_normal)
                for (int j = 0; j < 4; j += 2) {
                    real z[2];
                    point(w[j + 1][v], radius(w[j][v], scale), z, z + 1);
                    for (int i = 0; i < 2; i++) memcpy(out + 4 * at(k, j + i), z + i, sizeof *z);
                }
            else
                for (int j = 0; j < 4; j++) memcpy(out + 4 * at(k, j), &w[j][v], sizeof(word));
        }
    }
}

static void fill(const place *p, int is_normal, float scale, char *out, int64_t size) {
    const int64_t together = 4 * BLOCK;
    int64_t done = 0;
    for (; done + together <= size; done += together)
        block(p, (uint32_t)(done / 4), is_normal, scale, out + 4 * done);
    if (done < size) {
        char rest[16 * BLOCK];
        block(p, (uint32_t)(done / 4), is_normal, scale, rest);
        memcpy(out + 4 * done, rest, 4 * (size_t)(size - done));
    }
}

static place place_of(const uint64_t *seeds, int run, uint32_t step, uint32_t stream) {
    const uint64_t seed = seeds[run];
    return (place){{(uint32_t)seed, (uint32_t)(seed >> 32)}, {0, step, stream, 0}};
}

static PyObject *normals(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long seeds, scales, out;
    unsigned int stream, step;
    int runs;
    long long size;
    if (!PyArg_ParseTuple(args, "KiIIKKL", &seeds, &runs, &stream, &step, &scales, &out, &size))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    for (int run = 0; run < runs; run++) {
        const place p = place_of((const uint64_t *)(uintptr_t)seeds, run, step, stream);
        const float scale = ((const float *)(uintptr_t)scales)[run];
        fill(&p, 1, scale, (char *)(uintptr_t)out + 4 * run * size, size);
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* One parameter tensor of R runs, and the gradient left right^T of one record. */
typedef struct {
    uint64_t weights, left, right; /* addresses: [R, rows, columns], [R, rows], [R or 1, columns] */
    int64_t rows, columns, is_shared; /* whether all runs share `right` */
} parameter;

#define FLOATS(address) ((float *)(uintptr_t)(address))

INLINE real vector_at(const float *from) {
    real x;
    memcpy(&x, from, sizeof x);
    return x;
}

/* Partial sums of 16 interleaved parts, whatever the vector size, so that every processor rounds
 * equally. */
#define PARTS 16
typedef struct {
    real sums[PARTS / LANE];
} parts;

INLINE float total(const parts *p) {
    float sum = 0;
    for (int i = 0; i < PARTS; i++) sum += p->sums[i / LANE][i % LANE];
    return sum;
}

static float dot(const float *x, const float *y, int64_t size) {
    parts p = {{{0}}};
    int64_t i = 0;
    for (; i + PARTS <= size; i += PARTS)
        for (int v = 0; v < PARTS / LANE; v++)
            p.sums[v] += vector_at(x + i + v * LANE) * vector_at(y + i + v * LANE);
    float sum = total(&p);
    for (; i < size; i++) sum += x[i] * y[i];
    return sum;
}

/* p = noise + factor gradient, w += descent p. Adds left <p, gradient> to `product`; returns
 * <w, gradient> of the new w. */
INLINE float descend_span(const float *noise, const float *gradient, float *w, int64_t size,
                          float factor, float descent, double left, double *product) {
    parts products = {{{0}}}, outputs = {{{0}}};
    int64_t i = 0;
    for (; i + PARTS <= size; i += PARTS)
        for (int v = 0; v < PARTS / LANE; v++) {
            const int64_t k = i + v * LANE;
            const real g = vector_at(gradient + k), p = vector_at(noise + k) + g * factor;
            const real moved = vector_at(w + k) + p * descent;
            memcpy(w + k, &moved, sizeof moved);
            products.sums[v] += p * g;
            outputs.sums[v] += moved * g;
        }
    float sum = total(&products), output = total(&outputs);
    for (; i < size; i++) {
        const float p = noise[i] + gradient[i] * factor;
        w[i] += p * descent;
        sum += p * gradient[i];
        output += w[i] * gradient[i];
    }
    *product += left * (double)sum;
    return output;
}

#define SPAN (64 * NUMBERS) /* numbers drawn at once, which stay in the first-level cache */

/* One step of one run: every parameter is updated as soon as its noise is drawn. Returns
 * <p, gradient>, and p's first coordinate in `first`. If `outputs` is not NULL, it receives the
 * product of the new first parameter and its `right`. */
static float descend_run(place next, int run, float scale, float factor, float descent,
                         const parameter *parameters, int count, float *first, float *outputs) {
    float numbers[SPAN];
    int64_t at = SPAN, remaining = 0;
    double product = 0;
    for (int k = 0; k < count; k++) remaining += parameters[k].rows * parameters[k].columns;
    for (int k = 0; k < count; k++) {
        const parameter *p = parameters + k;
        float *w = FLOATS(p->weights) + run * p->rows * p->columns;
        const float *right = FLOATS(p->right) + (p->is_shared ? 0 : run * p->columns);
        for (int64_t row = 0; row < p->rows; row++) {
            const float left = FLOATS(p->left)[run * p->rows + row];
            float output = 0;
            for (int64_t column = 0, size; column < p->columns; column += size) {
                if (at == SPAN) {
                    fill(&next, 1, scale, (char *)numbers, remaining < SPAN ? remaining : SPAN);
                    next.counter[0] += SPAN / 4;
                    at = 0;
                }
                size = p->columns - column < SPAN - at ? p->columns - column : SPAN - at;
                if (k + row + column == 0) *first = numbers[0] + right[0] * (factor * left);
                output += descend_span(numbers + at, right + column, w, size, factor * left,
                                       descent, left, &product);
                w += size, at += size, remaining -= size;
            }
            if (outputs && k == 0) outputs[row] = output;
        }
    }
    return (float)product;
}

static PyObject *descend(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long seeds, scales, factors, descents, parameters, products, firsts;
    unsigned int stream, step;
    int runs, count;
    if (!PyArg_ParseTuple(args, "KiIIKKKKiKK", &seeds, &runs, &stream, &step, &scales, &factors,
                          &descents, &parameters, &count, &products, &firsts))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    for (int run = 0; run < runs; run++)
        FLOATS(products)[run] = descend_run(
            place_of((const uint64_t *)(uintptr_t)seeds, run, step, stream), run,
            FLOATS(scales)[run], FLOATS(factors)[run], FLOATS(descents)[run],
            (const parameter *)(uintptr_t)parameters, count, FLOATS(firsts) + run, NULL);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* A Linear layer of R runs. */
typedef struct {
    uint64_t weight, bias; /* addresses: [R, outputs, inputs], [R, outputs]; no bias if 0 */
    int64_t inputs, outputs, has_relu; /* whether ReLU follows */
} linear;

/* Memory for one run. Layer k has inputs[k] and the gradient deltas[k] of its outputs. */
typedef struct {
    const linear *layers;
    int count;
    int64_t label;
    float **inputs, **deltas;
    parameter *parameters;
    float *first; /* outputs of the first layer without its bias */
    float record_square; /* |x|^2 of the record */
} network;

INLINE float at_least(float x, float least) { return x < least ? least : x; }

DEFINE_EXPONENTIAL(float, uint32_t, at_least)

/* Replaces logits by the gradient of the cross-entropy: softmax, minus 1 at the label. */
static void cross_entropy(float *logits, int64_t classes, int64_t label) {
    float most = logits[0], sum = 0;
    for (int64_t i = 1; i < classes; i++) most = logits[i] > most ? logits[i] : most;
    for (int64_t i = 0; i < classes; i++) logits[i] = exponential(logits[i] - most);
    for (int64_t i = 0; i < classes; i++) sum += logits[i];
    for (int64_t i = 0; i < classes; i++) logits[i] /= sum;
    logits[label] -= 1.0f;
}

/* The outputs of a run's layers; the last layer's are in its `deltas`. */
static void run_forward(const network *net, int run) {
    for (int k = 0; k < net->count; k++) {
        const linear *l = net->layers + k;
        const int is_last = k == net->count - 1;
        const float *w = FLOATS(l->weight) + run * l->outputs * l->inputs;
        const float *bias = l->bias ? FLOATS(l->bias) + run * l->outputs : NULL;
        float *out = is_last ? net->deltas[k] : net->inputs[k + 1];
        for (int64_t i = 0; i < l->outputs; i++) {
            float z = k ? dot(w + i * l->inputs, net->inputs[k], l->inputs) : net->first[i];
            if (bias) z += bias[i];
            out[i] = l->has_relu && z < 0 ? 0 : z; /* NaN stays NaN */
        }
    }
}

/* The gradients of all outputs, from the logits' gradient; returns the squared norm of the record's
 * gradient. */
static float run_backward(const network *net, int run) {
    float norm = 0;
    for (int k = net->count - 1; k >= 0; k--) {
        const linear *l = net->layers + k;
        const float *delta = net->deltas[k], *in = net->inputs[k];
        const float square = k ? dot(in, in, l->inputs) : net->record_square;
        norm += dot(delta, delta, l->outputs) * (square + (l->bias != 0));
        if (k == 0) break;
        const float *w = FLOATS(l->weight) + run * l->outputs * l->inputs;
        float *back = net->deltas[k - 1];
        for (int64_t j = 0; j < l->inputs; j++) back[j] = delta[0] * w[j];
        for (int64_t i = 1; i < l->outputs; i++)
            for (int64_t j = 0; j < l->inputs; j++) back[j] += delta[i] * w[i * l->inputs + j];
        if (net->layers[k - 1].has_relu)
            for (int64_t j = 0; j < l->inputs; j++) back[j] = in[j] <= 0 ? 0 : back[j];
    }
    return norm;
}

/* One step of one run on one record, whose gradient is clipped to norm `clip`: returns its squared
 * norm, and see `descend_run`. */
static float train_step(const network *net, place next, int run, float clip, float scale,
                        float factor, float descent, float *product, float *first) {
    const linear *last = net->layers + net->count - 1;
    run_forward(net, run);
    cross_entropy(net->deltas[net->count - 1], last->outputs, net->label);
    const float norm = run_backward(net, run);
    float clipping = 1.0f / sqrtf(norm) * clip;
    clipping = clipping > 1 ? 1 : clipping; /* NaN stays NaN */
    int count = 0;
    for (int k = 0; k < net->count; k++) {
        const linear *l = net->layers + k;
        float *delta = net->deltas[k];
        net->parameters[count++] = (parameter){
            (uint64_t)(uintptr_t)(FLOATS(l->weight) + run * l->outputs * l->inputs),
            (uint64_t)(uintptr_t)delta, (uint64_t)(uintptr_t)net->inputs[k],
            l->outputs, l->inputs, 1};
        for (int64_t i = 0; i < l->outputs; i++) delta[i] *= clipping;
        if (l->bias) {
            static const float one = 1;
            net->parameters[count++] = (parameter){
                (uint64_t)(uintptr_t)(FLOATS(l->bias) + run * l->outputs),
                (uint64_t)(uintptr_t)&one, (uint64_t)(uintptr_t)delta, 1, l->outputs, 1};
        }
    }
    *product = descend_run(next, 0, scale, factor, descent, net->parameters, count, first,
                           net->first);
    return norm * (clipping * clipping);
}

/* The outputs of the first layer, without its bias, rounded as by `descend_run`, which begins a new
 * sum where it draws numbers. */
static void first_outputs(const network *net, int run) {
    const linear *l = net->layers;
    const float *w = FLOATS(l->weight) + run * l->outputs * l->inputs;
    int64_t at = 0;
    for (int64_t row = 0; row < l->outputs; row++) {
        net->first[row] = 0;
        for (int64_t column = 0, size; column < l->inputs; column += size) {
            const int64_t left = SPAN - at % SPAN;
            size = l->inputs - column < left ? l->inputs - column : left;
            net->first[row] += dot(w + at, net->inputs[0] + column, size);
            at += size;
        }
    }
}

/* Memory for a run, whose record is x; 0 on failure. `free_network` is called in either case. */
static int allocate(network *net, float *x) {
    const size_t count = (size_t)net->count;
    int ok = 1;
    net->inputs = calloc(count, sizeof *net->inputs);
    net->deltas = calloc(count, sizeof *net->deltas);
    net->parameters = calloc(2 * count, sizeof *net->parameters);
    net->first = calloc((size_t)net->layers[0].outputs, sizeof(float));
    if (!net->inputs || !net->deltas || !net->parameters || !net->first) return 0;
    for (size_t k = 0; k < count; k++) {
        ok &= !!(net->deltas[k] = calloc((size_t)net->layers[k].outputs, sizeof(float)));
        net->inputs[k] = k ? calloc((size_t)net->layers[k].inputs, sizeof(float)) : x;
        ok &= !!net->inputs[k];
    }
    return ok;
}

static void free_network(network *net) {
    for (int k = 0; net->inputs && net->deltas && k < net->count; k++) {
        if (k) free(net->inputs[k]);
        free(net->deltas[k]);
    }
    free(net->inputs);
    free(net->deltas);
    free(net->parameters);
    free(net->first);
}

static PyObject *train(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long layers, record, seeds, clips, scales, descents, factors, products, firsts,
        norms;
    long long label;
    unsigned int stream, step, steps;
    int count, runs;
    if (!PyArg_ParseTuple(args, "(KiKL)(KiIII)(KKKK)(KKK)", &layers, &count, &record, &label, &seeds,
                          &runs, &stream, &step, &steps, &clips, &scales, &descents, &factors,
                          &products, &firsts, &norms))
        return NULL;
    network net = {.layers = (const linear *)(uintptr_t)layers, .count = count, .label = label};
    int ok;
    Py_BEGIN_ALLOW_THREADS
    ok = allocate(&net, FLOATS(record));
    if (ok) net.record_square = dot(FLOATS(record), FLOATS(record), net.layers[0].inputs);
    for (int run = 0; ok && run < runs; run++) {
        first_outputs(&net, run);
        for (uint32_t i = 0; i < steps; i++) {
            const int64_t k = (int64_t)i * runs + run;
            FLOATS(norms)[k] = train_step(
                &net, place_of((const uint64_t *)(uintptr_t)seeds, run, step + i, stream), run,
                FLOATS(clips)[run], FLOATS(scales)[run], FLOATS(factors)[k], FLOATS(descents)[run],
                FLOATS(products) + k, FLOATS(firsts) + k);
        }
    }
    free_network(&net);
    Py_END_ALLOW_THREADS
    if (!ok) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *batches(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long seeds, below, out;
    unsigned int stream, step;
    int runs;
    long long size;
    if (!PyArg_ParseTuple(args, "KiIIKKL", &seeds, &runs, &stream, &step, &below, &out, &size))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    for (int run = 0; run < runs; run++) {
        place p = place_of((const uint64_t *)(uintptr_t)seeds, run, step, stream);
        uint8_t *taken = (uint8_t *)(uintptr_t)out + run * size;
        for (int64_t done = 0; done < size; done += NUMBERS / 2, p.counter[0] += GROUP) {
            uint32_t w[NUMBERS];
            fill(&p, 0, 0, (char *)w, NUMBERS);
            for (int i = 0; i < NUMBERS / 2 && done + i < size; i++) {
                const int high = i / GROUP * 2 * GROUP + i % GROUP;
                taken[done + i] = ((uint64_t)w[high] << 32 | w[high + GROUP]) < below;
            }
        }
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* The finaliser of SplitMix64, as in streams.py. */
INLINE uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
}

/* A ratio of polynomials, the highest coefficients first. */
INLINE double fraction(const double *above, const double *below, double x) {
    double p = above[0], q = below[0];
    for (int i = 1; i < 8; i++) {
        p = p * x + above[i];
        q = q * x + below[i];
    }
    return p / q;
}

/* Compiled for two instruction sets; the loader chooses one. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("default", "avx2")))
#else
#define CLONES
#endif

/* Normal numbers by inversion: algorithm AS 241 (Wichura 1988), accurate to 1e-15. Each word is the
 * key plus a multiple of a constant, mixed. Its lowest bit is the sign, and 53 other bits are the
 * mass of a tail. */
CLONES static void quantiles(uint64_t key, double *out, int64_t size) {
    static const double middle[2][8] = {
        {2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4,
         4.5921953931549871457e4, 1.3731693765509461125e4, 1.9715909503065514427e3,
         1.3314166789178437745e2, 3.3871328727963666080},
        {5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4,
         2.1213794301586595867e4, 5.3941960214247511077e3, 6.8718700749205790830e2,
         4.2313330701600911252e1, 1.0}};
    static const double outside[2][8] = {
        {7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1,
         1.27045825245236838258, 3.64784832476320460504, 5.76949722146069140550,
         4.63033784615654529590, 1.42343711074968357734},
        {1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2,
         1.48103976427480074590e-1, 6.89767334985100004550e-1, 1.67638483018380384940,
         2.05319162663775882187, 1.0}};
    static const double far[2][8] = {
        {2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3,
         2.65321895265761230930e-2, 2.96560571828504891230e-1, 1.78482653991729133580,
         5.46378491116411436990, 6.65790464350110377720},
        {2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5,
         7.86869131145613259100e-4, 1.48753612908506148525e-2, 1.36929880922735805310e-1,
         5.99832206555887937690e-1, 1.0}};
    double tail[NUMBERS], sign[NUMBERS];
    for (int64_t done = 0; done < size; done += NUMBERS, out += NUMBERS) {
        const int count = size - done < NUMBERS ? (int)(size - done) : NUMBERS;
        for (int i = 0; i < count; i++) {
            const uint64_t w = mix(key + (uint64_t)(done + i + 1) * 0x9E3779B97F4A7C15);
            tail[i] = ((double)(int64_t)(w >> 11) + 0.5) * 0x1p-54;
            sign[i] = 1.0 - 2.0 * (double)(int64_t)(w & 1);
        }
        for (int i = 0; i < count; i++) {
            const double q = 0.5 - tail[i];
            out[i] = sign[i] * q * fraction(middle[0], middle[1], 0.180625 - q * q);
        }
        int few[NUMBERS], n = 0; /* selected without a branch, which would be mispredicted */
        for (int i = 0; i < count; i++) {
            few[n] = i;
            n += tail[i] < 0.075;
        }
        for (int k = 0; k < n; k++) {
            const int i = few[k];
            const double r = sqrt(-log(tail[i]));
            out[i] = sign[i] * (r <= 5 ? fraction(outside[0], outside[1], r - 1.6)
                                       : fraction(far[0], far[1], r - 5));
        }
    }
}

static PyObject *normal_rows(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long keys, out;
    long long runs, size;
    if (!PyArg_ParseTuple(args, "KLKL", &keys, &runs, &out, &size)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t run = 0; run < runs; run++)
        quantiles(((const uint64_t *)(uintptr_t)keys)[run],
                  (double *)(uintptr_t)out + run * size, size);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *words(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long out;
    long long size;
    place p;
    if (!PyArg_ParseTuple(args, "(II)(IIII)KL", p.key, p.key + 1, p.counter, p.counter + 1,
                          p.counter + 2, p.counter + 3, &out, &size))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    fill(&p, 0, 0, (char *)(uintptr_t)out, size);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"normals", normals, METH_VARARGS,
     "normals(seeds, runs, stream, step, scales, out, size): [runs, size] floats; addresses as "
     "ints."},
    {"descend", descend, METH_VARARGS,
     "descend(seeds, runs, stream, step, scales, factors, descents, parameters, count, products, "
     "firsts): one step of R runs."},
    {"train", train, METH_VARARGS,
     "train((layers, count, record, label), (seeds, runs, stream, step, steps), (clips, scales, "
     "descents, factors), (products, firsts, norms)): steps of R runs of a network of Linear layers "
     "and ReLU on one record."},
    {"batches", batches, METH_VARARGS,
     "batches(seeds, runs, stream, step, below, out, size): [runs, size] bytes, 1 where 64 bits "
     "are below."},
    {"words", words, METH_VARARGS,
     "words((key, key), (counter, counter, counter, counter), out, size): uint32."},
    {"normal_rows", normal_rows, METH_VARARGS,
     "normal_rows(keys, runs, out, size): [runs, size] doubles; addresses as ints."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "noise", NULL, -1, methods,
                                    NULL, NULL, NULL, NULL};

/* The compiler command defines NAME: there is one extension per vector width. */
#define INIT_OF(name) PyInit_##name
#define INIT(name) INIT_OF(name)

PyMODINIT_FUNC INIT(NAME)(void) { return PyModule_Create(&module); }
