/* lifetimes.h: the packer's view of lifetimes. Private to defrag/. */
#ifndef ZR_LIFETIMES_H
#define ZR_LIFETIMES_H

#include "alloc/base/sort.h"
#include "defrag/trace/vector.h"
#include "defrag/zr_defrag.h"

/* Limits of one set: the number of buffers and the sum of their bytes. Sums and offsets then cannot overflow.
 */
#define ZR_LIFETIMES_MAX       ((size_t)1 << 30)
#define ZR_LIFETIMES_MAX_BYTES ((uint64_t)1 << 62)

/* Checks the set (lower <= upper, limits as above) and computes lower_bound_bytes. ZR_ERR_INVALID names the
 * buffer. */
zr_result zr_lifetimes_measure(struct zr_lifetimes *lifetimes);

/* Births and deaths, in order of time, of the buffers that have bytes and a lifetime. At equal times deaths
 * precede births, because lifetimes are half open. A buffer that is alive across the boundary of a period
 * dies before its birth. */
struct zr_lifetimes_sweep {
    struct zr_sort_pair *ends; /* value: the buffer's number * 2, + 1 for a birth */
    size_t count;
    uint64_t crossing_bytes; /* alive across the boundary */
    uint64_t peak_bytes;     /* the most that is alive at once */
    size_t least_at;         /* the fewest bytes are alive before this entry; a birth, if there are any */
};
zr_result zr_lifetimes_sweep(struct zr_lifetimes_sweep *out, const struct zr_lifetimes *lifetimes,
                             struct zr_scratch *scratch);

#endif
