/* colouring_test.c: which block of whole granules gets which pages, beside brute force: as few as are wanted
 * at once, none twice at one time. What becomes of it in arenas is in colour_test.c. */
#include <stdlib.h>
#include <unistd.h>

#include "defrag/pack/colour.h"
#include "defrag/zr_defrag.h"
#include "tests/support/draws.h"
#include "tests/support/records.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"

enum { BLOCKS = 160, MOMENTS = 200 }; /* a few lives end some moments later */

static struct zr_colour_block blocks[BLOCKS];

static bool together(const struct zr_colour_block *a, const struct zr_colour_block *b)
{
    return a->lower < a->upper && a->lower < b->upper && b->lower < b->upper && b->lower < a->upper;
}

/* No block has a page twice, and none has one that another has at the same time; fixed ones may. */
static bool pages_are_apart(const struct zr_colouring *colouring)
{
    for (size_t i = colouring->fixed_count; i < colouring->blocks_count; i++)
        for (size_t k = 0; k < colouring->blocks_count; k++) {
            const struct zr_colour_block *a = &colouring->blocks[i], *b = &colouring->blocks[k];
            if (!together(a, b))
                continue;
            for (size_t x = 0; x < a->pages_count; x++)
                for (size_t y = 0; y < b->pages_count; y++)
                    if ((i != k || x != y) &&
                        colouring->pages[a->first + x] == colouring->pages[b->first + y])
                        return false;
        }
    return true;
}

static size_t most_at_once(const struct zr_colouring *colouring)
{
    size_t most = 0;
    for (uint32_t moment = 0; moment < MOMENTS + 12; moment++) {
        size_t now = 0;
        for (size_t i = colouring->fixed_count; i < colouring->blocks_count; i++)
            if (colouring->blocks[i].lower <= moment && moment < colouring->blocks[i].upper)
                now += colouring->blocks[i].pages_count;
        most = now > most ? now : most;
    }
    return most;
}

static void make_blocks(struct zr_colouring *colouring, size_t fixed_count, uint32_t fixed_pages)
{
    *colouring = (struct zr_colouring){.blocks = blocks,
                                       .blocks_count = BLOCKS,
                                       .fixed_count = fixed_count,
                                       .fixed_pages_count = fixed_pages,
                                       .addresses_max = 1 << 20};
    for (size_t i = 0; i < BLOCKS; i++) {
        struct zr_colour_block *block = &blocks[i];
        block->lower = (uint32_t)random_below(MOMENTS);
        block->upper = block->lower + (uint32_t)random_below(random_below(4) ? 12 : MOMENTS - block->lower);
        block->pages_count = (uint32_t)(1 + random_below(i < fixed_count ? 3 : random_below(3) ? 4 : 40));
        if (i < fixed_count)
            block->first = (uint32_t)random_below(fixed_pages - block->pages_count + 1);
    }
}

static void test_colouring(uint64_t seed)
{
    struct zr_scratch scratch = {.arena = host_arena};
    struct zr_colouring colouring;
    bool apart = true, least = true, bounded = true, shared = false;
    random_state = seed | 1;
    for (unsigned i = 0; i < 40; i++) {
        make_blocks(&colouring, 0, 0);
        bool made = zr_colour(&colouring, &scratch) == ZR_OK;
        least &= made && colouring.pages_count == most_at_once(&colouring);
        apart &= made && pages_are_apart(&colouring);
        make_blocks(&colouring, BLOCKS / 4, 30);
        made = zr_colour(&colouring, &scratch) == ZR_OK;
        size_t most = most_at_once(&colouring);
        bounded &= made && colouring.pages_count >= most && colouring.pages_count <= 30 + most;
        shared |= colouring.pages_count < 30 + most;
        apart &= made && pages_are_apart(&colouring);
        zr_scratch_end(&scratch);
    }
    tap_ok(least, "seed %llu: as many pages as are wanted at once", (unsigned long long)seed);
    tap_ok(apart, "and none wanted twice at one time");
    tap_ok(bounded && shared, "beside fixed blocks at most as many more, and theirs too while they are free");

    blocks[0] = (struct zr_colour_block){.lower = 5, .upper = 8, .pages_count = 1};
    blocks[1] = (struct zr_colour_block){.lower = 0, .upper = 5, .pages_count = 1};
    colouring.blocks_count = 2, colouring.fixed_count = colouring.fixed_pages_count = 1;
    tap_ok(zr_colour(&colouring, &scratch) == ZR_OK && colouring.pages_count == 1,
           "a fixed block's page serves another that goes when it comes");
    make_blocks(&colouring, 0, 0);
    zr_colour(&colouring, &scratch);
    colouring.addresses_max = colouring.addresses_count - 1;
    tap_result(zr_colour(&colouring, &scratch), ZR_ERR_UNAVAILABLE, "too many addresses are refused");
    zr_scratch_end(&scratch);
}

int main(void)
{
    if (records_begin() != ZR_OK) {
        tap_ok(false, "an arena for the test: %s", zr_last_error());
        return tap_done();
    }
    test_colouring(run_seed());
    tap_is(records_end(), 0, "all records are given back");
    return tap_done();
}
