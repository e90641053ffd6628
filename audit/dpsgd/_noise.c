/* Random numbers of lanes as a function of (key, stream, step, place): Philox4x32-10 (Salmon et al.
 * 2011, "Parallel random numbers: as easy as 1, 2, 3") and the transform of Box & Muller (1958).
 *
 * The same bits on every processor: integers, and floats that are only added, multiplied, rooted and
 * converted, in one order and without fused operations (-ffp-contract=off); noise.py has the same in
 * numpy. A group is 16 counters of 4 words; word j of counter k is number 16 j + k of the group.
 * The key is a lane's seed; the counter is (k, step, stream, 0).
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

/* Counters of a vector, and vectors whose rounds go side by side to fill the multipliers. */
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

/* The lower halves of x times k. */
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

/* Words of TOGETHER * LANE counters. Even and odd counters are apart, each in the lower half of 64
 * bits; what the upper halves hold is never looked at. */
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
    const word shifted = x + 0x20000000; /* the nearest quarter, and what is left of it */
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

/* Where word j of counter k lies among the numbers. */
INLINE int64_t at(int64_t k, int j) { return k / GROUP * NUMBERS + j * GROUP + k % GROUP; }

/* BLOCK counters: words, or normal numbers. */
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

static place of_lane(const uint64_t *seeds, int lane, uint32_t step, uint32_t stream) {
    const uint64_t seed = seeds[lane];
    return (place){{(uint32_t)seed, (uint32_t)(seed >> 32)}, {0, step, stream, 0}};
}

static PyObject *normals(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long seeds, scales, out;
    unsigned int stream, step;
    int lanes;
    long long size;
    if (!PyArg_ParseTuple(args, "KiIIKKL", &seeds, &lanes, &stream, &step, &scales, &out, &size))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    for (int lane = 0; lane < lanes; lane++) {
        const place p = of_lane((const uint64_t *)(uintptr_t)seeds, lane, step, stream);
        const float scale = ((const float *)(uintptr_t)scales)[lane];
        fill(&p, 1, scale, (char *)(uintptr_t)out + 4 * lane * size, size);
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *batches(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long seeds, below, out;
    unsigned int stream, step;
    int lanes;
    long long size;
    if (!PyArg_ParseTuple(args, "KiIIKKL", &seeds, &lanes, &stream, &step, &below, &out, &size))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    for (int lane = 0; lane < lanes; lane++) {
        place p = of_lane((const uint64_t *)(uintptr_t)seeds, lane, step, stream);
        uint8_t *taken = (uint8_t *)(uintptr_t)out + lane * size;
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
     "normals(seeds, lanes, stream, step, scales, out, size): [lanes, size] floats; addresses as "
     "ints."},
    {"batches", batches, METH_VARARGS,
     "batches(seeds, lanes, stream, step, below, out, size): [lanes, size] bytes, 1 where 64 bits "
     "are below."},
    {"words", words, METH_VARARGS,
     "words((key, key), (counter, counter, counter, counter), out, size): uint32."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "noise", NULL, -1, methods,
                                    NULL, NULL, NULL, NULL};

/* NAME is given when compiling: there is one extension for every width of vectors. */
#define INIT_OF(name) PyInit_##name
#define INIT(name) INIT_OF(name)

PyMODINIT_FUNC INIT(NAME)(void) { return PyModule_Create(&module); }
