/* lifetimes.h: what the packer asks of lifetimes besides the public contract. Private to defrag/. */
#ifndef ZR_LIFETIMES_H
#define ZR_LIFETIMES_H

#include "defrag/zr_defrag.h"

/* Buffers that one set may hold, and the sum of their bytes: sums and offsets then never overflow. */
#define ZR_LIFETIMES_MOST       ((size_t)1 << 30)
#define ZR_LIFETIMES_MOST_BYTES ((uint64_t)1 << 62)

/* Checks the set (lower <= upper, counts and sums as above) and computes lower_bound_bytes.
 * ZR_ERR_INVALID names the buffer. */
zr_result zr_lifetimes_measure(struct zr_lifetimes *lifetimes);

#endif
