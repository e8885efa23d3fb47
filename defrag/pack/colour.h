/* colour.h: assigns pages to blocks that use whole pages: interval colouring, page by page. Private to
 * defrag/.
 *
 * If a page may be mapped at several addresses, blocks need no common order of pages. The number of pages is
 * then the largest number in use at once, which is the optimum. Each address has one page permanently; a
 * block has consecutive addresses. */
#ifndef ZR_COLOUR_H
#define ZR_COLOUR_H

#include "defrag/trace/vector.h"

struct zr_colour_block {
    uint32_t lower, upper; /* alive in [lower, upper) */
    uint32_t pages_count;
    uint32_t first; /* the block's first address, in pages: the result, or the input for a fixed block */
};

struct zr_colouring {
    struct zr_colour_block *blocks; /* the fixed blocks first */
    size_t blocks_count, fixed_count;
    /* The first fixed_pages_count pages are mapped at the address equal to their number. Several fixed blocks
     * may share such a page. Other blocks may use it while no fixed block does. */
    uint32_t fixed_pages_count;
    size_t addresses_max; /* in pages */

    /* result */
    uint32_t *pages; /* by address, from the scratch */
    size_t addresses_count, pages_count;
};

/* Uses the fixed pages, and at most as many others as the other blocks use at once. Reuses addresses where
 * possible. Ignores blocks without pages or lifetime. ZR_ERR_UNAVAILABLE: more addresses than allowed.
 * ZR_ERR_HOST_MEMORY and others: errors of the scratch. */
zr_result zr_colour(struct zr_colouring *colouring, struct zr_scratch *scratch);

#endif
