/* lifetimes.h: what the packer asks of lifetimes besides the public contract. Private to defrag/. */
#ifndef ZR_LIFETIMES_H
#define ZR_LIFETIMES_H

#include "alloc/base/sort.h"
#include "defrag/trace/scratch.h"
#include "defrag/zr_defrag.h"

/* Buffers that one set may hold, and the sum of their bytes: sums and offsets then never overflow. */
#define ZR_LIFETIMES_MOST       ((size_t)1 << 30)
#define ZR_LIFETIMES_MOST_BYTES ((uint64_t)1 << 62)

/* Checks the set (lower <= upper, counts and sums as above) and computes lower_bound_bytes.
 * ZR_ERR_INVALID names the buffer. */
zr_result zr_lifetimes_measure(struct zr_lifetimes *lifetimes);

/* Births and deaths of the buffers that have bytes and a lifetime, in order of time; at one moment deaths
 * come first: lifetimes are half open. A buffer alive across the boundary of a period dies before it is born.
 */
struct zr_lifetimes_sweep {
    struct zr_sort_pair *ends; /* values: the buffer's number * 2, of a birth + 1 */
    size_t count;
    uint64_t crossing_bytes; /* alive across the boundary */
    uint64_t peak_bytes;     /* the most that is alive */
    size_t least_at;         /* before this one the fewest bytes are alive; a birth, where there are any */
};
zr_result zr_lifetimes_sweep(struct zr_lifetimes_sweep *out, const struct zr_lifetimes *lifetimes,
                             struct zr_scratch *scratch);

#endif
