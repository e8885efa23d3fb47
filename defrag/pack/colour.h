/* colour.h: pages for blocks that take them whole: colouring of intervals, page by page. Private to defrag/.
 *
 * Where a page of memory may lie at several addresses, blocks need no common order of pages: as many pages do
 * as are wanted at once, which no packing beats. Each address has one page for good; a block has addresses in
 * a row. */
#ifndef ZR_COLOUR_H
#define ZR_COLOUR_H

#include "defrag/trace/scratch.h"

struct zr_colour_block {
    uint32_t lower, upper; /* alive in [lower, upper) */
    uint32_t pages_count;
    uint32_t first; /* the answer: its first address, in pages. Given for those that are fixed */
};

struct zr_colouring {
    struct zr_colour_block *blocks; /* fixed ones first */
    size_t blocks_count, fixed_count;
    /* The first pages are each under the address of their number, and several blocks may be on one at once:
     * those that are fixed there. The others may have them while none of these does. */
    uint32_t fixed_pages_count;
    size_t addresses_most; /* in pages */

    /* The answer. */
    uint32_t *pages; /* by address, from the scratch */
    size_t addresses_count, pages_count;
};

/* The pages are the fixed ones and at most as many as the other blocks have at once; the addresses as few as
 * come of using them again. Blocks of no page, or alive at no time, are left alone. ZR_ERR_UNAVAILABLE: more
 * addresses than allowed. ZR_ERR_HOST_MEMORY and others: the scratch's. */
zr_result zr_colour(struct zr_colouring *colouring, struct zr_scratch *scratch);

#endif
