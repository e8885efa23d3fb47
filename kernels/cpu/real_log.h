/* real_log.h: a natural logarithm with the same bits on every machine. libm picks its own by processor. */
#ifndef ZR_KERNELS_REAL_LOG_H
#define ZR_KERNELS_REAL_LOG_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* log of a normal, positive x, to about 1e-15 of its size; infinity and NaN come back as they are, and
 * anything else (zero, denormals, negative) gives -infinity or NaN. Only IEEE operations that round in one
 * way. */
static inline double zr_real_log(double x)
{
    uint64_t bits;
    if (!(x >= 0x1p-1022) || x > 0x1.fffffffffffffp1023)
        return x >= 0.0 ? (x > 1.0 ? x : -INFINITY) : NAN;
    memcpy(&bits, &x, sizeof bits);
    int64_t exponent = (int64_t)(bits >> 52) - 1023;
    bits = (bits & 0xfffffffffffff) | 0x3ff0000000000000;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        exponent++;
    }
    /* log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| <= 0.1716: the term s^23 / 23 is below 1e-18 */
    double s = (m - 1.0) / (m + 1.0), z = s * s, sum = 0.0;
    for (int i = 21; i >= 3; i -= 2)
        sum = (sum + 1.0 / i) * z;
    double e = (double)exponent;
    return e * 6.93147180369123816490e-01 + (2.0 * s + (2.0 * s * sum + e * 1.90821492927058770002e-10));
}

#endif
