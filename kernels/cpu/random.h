/* random.h: normal numbers by index. Private to kernels/cpu. */
#ifndef ZR_KERNELS_RANDOM_H
#define ZR_KERNELS_RANDOM_H

#include <stdint.h>

/* The normal number (mean 0, deviation 1) with this index in the stream of this seed; any thread, any order.
 */
double zr_random_normal(uint64_t seed, uint64_t index);

#endif
