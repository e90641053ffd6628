/* e^x for x <= 0, with relative error 2e-7 and at least 1e-38; NaN stays NaN.
 *
 * A macro defines the function, because the same expressions serve single floats and vectors of them.
 * `integer` has as many bits as `real`, and at_least(x, least) is the larger one, or NaN if x is.
 */
#include <stdint.h>
#include <string.h>

#define DEFINE_EXPONENTIAL(real, integer, at_least)                                                \
    INLINE real exponential(real x) {                                                              \
        x = at_least(x, -87.0f);                                                                   \
        /* x = n log 2 + r: adding 1.5 * 2^23 rounds to an integer, which is in the lowest bits. */ \
        const real shifted = x * 1.44269504f + 12582912.0f;                                        \
        const real n = shifted - 12582912.0f;                                                      \
        const real r = x - n * 0.693359375f + n * 2.12194440e-4f;                                  \
        real p = r * (1.0f / 5040) + 1.0f / 720;                                                   \
        p = p * r + 1.0f / 120;                                                                    \
        p = p * r + 1.0f / 24;                                                                     \
        p = p * r + 1.0f / 6;                                                                      \
        p = p * r + 0.5f;                                                                          \
        p = p * r + 1.0f;                                                                          \
        p = p * r + 1.0f;                                                                          \
        integer bits;                                                                              \
        memcpy(&bits, &shifted, sizeof bits);                                                      \
        bits = (bits << 23) + 0x3F800000; /* the bits of 2^n */                                    \
        real power;                                                                                \
        memcpy(&power, &bits, sizeof power);                                                       \
        return p * power;                                                                          \
    }
