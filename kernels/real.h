/* real.h: logarithm, exponential, sine and cosine with the same bits on every CPU and GPU; libm's bits depend
 * on the processor. Uses correctly rounded IEEE operations only; includers must be compiled without
 * contraction of multiply-adds. ZR_REAL and ZR_REAL_TABLE are the specifiers of functions and coefficient
 * tables. */
#ifndef ZR_KERNELS_REAL_H
#define ZR_KERNELS_REAL_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifndef ZR_REAL
#define ZR_REAL       static inline
#define ZR_REAL_TABLE static const
#endif

/* log of a normal, positive x, with a relative error of about 1e-15. Infinity and NaN are returned unchanged;
 * zero and denormals give -infinity, negative numbers NaN. */
ZR_REAL double zr_real_log(double x)
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

/* e^x for |x| <= 700, with a relative error of about 1e-15: the series of e^(x / 1024), squared ten times. */
ZR_REAL double zr_real_exp(double x)
{
    double y = x / 1024, sum = 1.0;
    for (int i = 18; i >= 1; i--)
        sum = 1.0 + sum * y / i;
    for (int i = 0; i < 10; i++)
        sum *= sum;
    return sum;
}

/* Sine and cosine of an angle from 0 to 2^30, with an error of about 1e-9: the series of the angle modulo pi
 * / 2. */
ZR_REAL void zr_real_sine_cosine(double angle, double *sine, double *cosine)
{
    const double quarter = 0x1.921fb54442d18p+0, quarter_rest = 0x1.1a62633145c07p-54; /* pi / 2 */
    double turns = (double)(int64_t)(angle / quarter + 0.5);
    double x = (angle - turns * quarter) - turns * quarter_rest, z = x * x, s = 1.0, c = 1.0;
    for (int i = 10; i >= 1; i--) {
        s = 1.0 - s * z / ((2 * i) * (2 * i + 1));
        c = 1.0 - c * z / ((2 * i - 1) * (2 * i));
    }
    s *= x;
    switch ((int64_t)turns & 3) {
    case 0:
        *sine = s, *cosine = c;
        break;
    case 1:
        *sine = c, *cosine = -s;
        break;
    case 2:
        *sine = -s, *cosine = -c;
        break;
    default:
        *sine = -c, *cosine = s;
    }
}

#endif
