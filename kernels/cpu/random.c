/* random.c: normal numbers (kernels/normal.h), compiled once for all instruction sets. */
#include "kernels/cpu/random.h"
#include "kernels/normal.h"

double zr_random_normal(uint64_t seed, uint64_t index)
{
    return zr_real_normal(seed, index);
}
