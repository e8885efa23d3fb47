/* normal.h: normally distributed numbers by global index, so that each rank can compute its own shard, on CPU
 * or GPU. A counter-based generator (two rounds of SplitMix64 over index and seed) yields a uniform number in
 * (0, 1), which the inverse normal distribution (Wichura's algorithm AS 241, accurate to 1e-15) transforms.
 * Uses neither fused operations nor libm, so the bits are the same on every machine. */
#ifndef ZR_KERNELS_NORMAL_H
#define ZR_KERNELS_NORMAL_H

#include "kernels/real.h"

ZR_REAL uint64_t zr_random_mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

ZR_REAL double zr_random_ratio(double x, const double *above, const double *below)
{
    double a = above[7], b = below[7];
    for (int i = 6; i >= 0; i--) {
        a = a * x + above[i];
        b = b * x + below[i];
    }
    return a / b;
}

/* Number `index` of the sequence of `seed`, with mean 0 and deviation 1. */
ZR_REAL double zr_real_normal(uint64_t seed, uint64_t index)
{
    /* AS 241's coefficients for the middle, the tails and the far tails. */
    ZR_REAL_TABLE double middle_above[] = {
        3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
        4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3};
    ZR_REAL_TABLE double middle_below[] = {1.0,
                                           4.2313330701600911252e1,
                                           6.8718700749205790830e2,
                                           5.3941960214247511077e3,
                                           2.1213794301586595867e4,
                                           3.9307895800092710610e4,
                                           2.8729085735721942674e4,
                                           5.2264952788528545610e3};
    ZR_REAL_TABLE double tail_above[] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                                         5.76949722146069140550e0,  3.64784832476320460504e0,
                                         1.27045825245236838258e0,  2.41780725177450611770e-1,
                                         2.27238449892691845833e-2, 7.74545014278341407640e-4};
    ZR_REAL_TABLE double tail_below[] = {1.0,
                                         2.05319162663775882187e0,
                                         1.67638483018380384940e0,
                                         6.89767334985100004550e-1,
                                         1.48103976427480074590e-1,
                                         1.51986665636164571966e-2,
                                         5.47593808499534494600e-4,
                                         1.05075007164441684324e-9};
    ZR_REAL_TABLE double far_above[] = {6.65790464350110377720e0,  5.46378491116411436990e0,
                                        1.78482653991729133580e0,  2.96560571828504891230e-1,
                                        2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                        2.71155556874348757815e-5, 2.01033439929228813265e-7};
    ZR_REAL_TABLE double far_below[] = {1.0,
                                        5.99832206555887937690e-1,
                                        1.36929880922735805310e-1,
                                        1.48753612908506148525e-2,
                                        7.86869131145613259100e-4,
                                        1.84631831751005468180e-5,
                                        1.42151175831644588870e-7,
                                        2.04426310338993978564e-15};
    uint64_t bits = zr_random_mix(zr_random_mix(seed + 0x9e3779b97f4a7c15) ^
                                  (index * 0x9e3779b97f4a7c15 + 0xd1b54a32d192ed03));
    double q = ((double)(int64_t)(bits >> 11) + 0.5) * 0x1p-53 - 0.5;
    if (fabs(q) <= 0.425)
        return q * zr_random_ratio(0.180625 - q * q, middle_above, middle_below);
    double r = sqrt(-zr_real_log(q < 0.0 ? 0.5 + q : 0.5 - q));
    double normal = r <= 5.0 ? zr_random_ratio(r - 1.6, tail_above, tail_below)
                             : zr_random_ratio(r - 5.0, far_above, far_below);
    return q < 0.0 ? -normal : normal;
}

#endif
