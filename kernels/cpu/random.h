/* random.h: normally distributed numbers by index. Private to kernels/cpu. */
#ifndef ZR_KERNELS_RANDOM_H
#define ZR_KERNELS_RANDOM_H

#include <stdint.h>

/* See kernels/normal.h. Thread-safe. */
double zr_random_normal(uint64_t seed, uint64_t index);

#endif
