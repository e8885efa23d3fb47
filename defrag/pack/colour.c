/* colour.c: colours by a sweep over time. Each new block gets addresses whose pages are all free: existing
 * addresses if possible, else new addresses of free pages, else new pages. A page is added only if too few
 * are free, so the number of pages is the largest number in use at once. Uses sort.c. */
#include "defrag/pack/colour.h"

#include "alloc/base/error.h"
#include "alloc/core/granules.h"
#include "alloc/base/sort.h"

struct sweep {
    const struct zr_colouring *of;
    uint32_t *table, *next; /* by address: its page; 1 + the next address of that page, 0: none */
    uint64_t *ready;        /* bit per address: its page is free */
    size_t addresses_count, addresses_max;

    uint32_t *heads; /* by page: 1 + its last address, 0: none */
    uint32_t *users; /* by page: number of blocks that use the page now */
    uint32_t *seen;  /* by page: 1 + the address at which the search last met the page */
    uint64_t *free;  /* bit per page */
    size_t pages_count;

    uint32_t *use_times; /* start times of the fixed blocks of each fixed page, in order, page after page */
    size_t *next_use,
        *uses_end; /* by fixed page: index of the next start time, and end of the page's start times */
};

/* ---- Pages --------------------------------------------------------------------------------------------- */

static void set_ready(struct sweep *sweep, uint32_t page, bool ready)
{
    zr_granules_set(sweep->free, page, page + 1, ready);
    for (uint32_t at = sweep->heads[page]; at > 0; at = sweep->next[at - 1])
        zr_granules_set(sweep->ready, at - 1, at, ready);
}

static void acquire_page(struct sweep *sweep, uint32_t page)
{
    if (sweep->users[page]++ == 0)
        set_ready(sweep, page, false);
}

static void release_page(struct sweep *sweep, uint32_t page)
{
    if (--sweep->users[page] == 0)
        set_ready(sweep, page, true);
}

/* Adds an address for the page. */
static void add_address(struct sweep *sweep, uint32_t page)
{
    size_t at = sweep->addresses_count++;
    sweep->table[at] = page;
    sweep->next[at] = sweep->heads[page];
    sweep->heads[page] = (uint32_t)at + 1;
    zr_granules_set(sweep->ready, at, at + 1, sweep->users[page] == 0);
}

/* Whether no fixed block uses the free page before `until`. */
static bool is_free_until(const struct sweep *sweep, uint32_t page, uint32_t until)
{
    return page >= sweep->of->fixed_pages_count || sweep->next_use[page] == sweep->uses_end[page] ||
           sweep->use_times[sweep->next_use[page]] >= until;
}

/* ---- Addresses ----------------------------------------------------------------------------------------- */

struct window {
    size_t first, end;
};

/* Finds the first consecutive addresses with enough different free pages for the block. If no window is long
 * enough, returns a shorter one at the end of the addresses. */
static struct window find_window(struct sweep *sweep, const struct zr_colour_block *block)
{
    struct window window = {0, 0};
    while (window.end < sweep->addresses_count && window.end - window.first < block->pages_count) {
        size_t at = zr_granules_next(sweep->ready, window.end, sweep->addresses_count, true);
        if (at > window.end)
            window.first = at;
        window.end = at;
        if (at == sweep->addresses_count)
            break;
        uint32_t page = sweep->table[at];
        window.end++;
        if (!is_free_until(sweep, page, block->upper))
            window.first = window.end;
        else if (sweep->seen[page] > window.first && sweep->seen[page] <= at)
            window.first = sweep->seen[page];
        sweep->seen[page] = (uint32_t)at + 1;
    }
    return window;
}

/* Adds addresses of free pages from [first, end) that are not in the window, until it is large enough. */
static void add_free(struct sweep *sweep, struct window *window, const struct zr_colour_block *block,
                     size_t first, size_t end)
{
    while (window->end - window->first < block->pages_count) {
        first = zr_granules_next(sweep->free, first, end, true);
        if (first == end)
            return;
        uint32_t page = (uint32_t)first++;
        if (!is_free_until(sweep, page, block->upper) ||
            (sweep->seen[page] > window->first && sweep->seen[page] <= window->end))
            continue;
        if (sweep->addresses_count == sweep->addresses_max)
            return;
        add_address(sweep, page);
        window->end = sweep->addresses_count;
        sweep->seen[page] = (uint32_t)window->end;
    }
}

static zr_result place(struct sweep *sweep, struct zr_colour_block *block)
{
    struct window window = find_window(sweep, block);
    size_t fixed = sweep->of->fixed_pages_count;
    if (window.end - window.first < block->pages_count) {
        add_free(sweep, &window, block, fixed, sweep->pages_count);
        add_free(sweep, &window, block, 0, fixed);
    }
    while (window.end - window.first < block->pages_count) {
        if (sweep->addresses_count == sweep->addresses_max)
            return zr_fail(ZR_ERR_UNAVAILABLE, "the colouring needs more than %zu addresses",
                           sweep->addresses_max);
        zr_granules_set(sweep->free, sweep->pages_count, sweep->pages_count + 1, true);
        add_address(sweep, (uint32_t)sweep->pages_count++);
        window.end = sweep->addresses_count;
    }
    block->first = (uint32_t)window.first;
    return ZR_OK;
}

/* ---- The sweep ----------------------------------------------------------------------------------------- */

static bool counts(const struct zr_colour_block *block)
{
    return block->pages_count > 0 && block->upper > block->lower;
}

static void acquire_pages(struct sweep *sweep, const struct zr_colour_block *block, bool fixed)
{
    for (size_t at = block->first; at < (size_t)block->first + block->pages_count; at++) {
        acquire_page(sweep, sweep->table[at]);
        if (fixed)
            sweep->next_use[sweep->table[at]]++;
    }
}

/* Sorts the blocks by one of their times. */
static struct zr_sort_pair *sort_blocks(const struct zr_colouring *of, bool upper, struct zr_scratch *scratch)
{
    struct zr_sort_pair *pairs = zr_scratch_take(scratch, of->blocks_count, sizeof *pairs);
    struct zr_sort_pair *spare = zr_scratch_take(scratch, of->blocks_count, sizeof *spare);
    if (!spare)
        return NULL;
    for (size_t i = 0; i < of->blocks_count; i++)
        pairs[i] = (struct zr_sort_pair){upper ? of->blocks[i].upper : of->blocks[i].lower, (uint32_t)i};
    zr_sort_pairs(pairs, spare, of->blocks_count);
    return pairs;
}

/* Lists the start times of the fixed blocks of each fixed page, in order. */
static zr_result list_use_times(struct sweep *sweep, const struct zr_sort_pair *by_lower,
                                struct zr_scratch *scratch)
{
    const struct zr_colouring *of = sweep->of;
    size_t sum = 0;
    sweep->next_use = zr_scratch_take(scratch, of->fixed_pages_count, sizeof *sweep->next_use);
    sweep->uses_end = zr_scratch_take(scratch, of->fixed_pages_count, sizeof *sweep->uses_end);
    if (!sweep->uses_end)
        return scratch->result;
    for (size_t i = 0; i < of->fixed_count; i++)
        for (size_t at = 0; counts(&of->blocks[i]) && at < of->blocks[i].pages_count; at++)
            sweep->uses_end[of->blocks[i].first + at]++;
    for (size_t page = 0; page < of->fixed_pages_count; page++) {
        sweep->next_use[page] = sum;
        sum += sweep->uses_end[page];
        sweep->uses_end[page] = sweep->next_use[page];
    }
    sweep->use_times = zr_scratch_take(scratch, sum, sizeof *sweep->use_times);
    if (!sweep->use_times)
        return scratch->result;
    for (size_t i = 0; i < of->blocks_count; i++) {
        const struct zr_colour_block *block = &of->blocks[by_lower[i].value];
        for (size_t at = 0; by_lower[i].value < of->fixed_count && counts(block) && at < block->pages_count;
             at++)
            sweep->use_times[sweep->uses_end[block->first + at]++] = block->lower;
    }
    return ZR_OK;
}

/* The max number of pages that unfixed blocks use at once. */
static uint64_t max_at_once(const struct zr_colouring *of, const struct zr_sort_pair *by_lower,
                            const struct zr_sort_pair *by_upper)
{
    uint64_t now = 0, max = 0;
    for (size_t i = 0, gone = 0; i < of->blocks_count; i++) {
        const struct zr_colour_block *block = &of->blocks[by_lower[i].value];
        for (; gone < of->blocks_count && by_upper[gone].key <= block->lower; gone++)
            if (by_upper[gone].value >= of->fixed_count && counts(&of->blocks[by_upper[gone].value]))
                now -= of->blocks[by_upper[gone].value].pages_count;
        if (by_lower[i].value >= of->fixed_count && counts(block))
            now += block->pages_count;
        max = now > max ? now : max;
    }
    return max;
}

static zr_result make_sweep(struct sweep *sweep, uint64_t pages_max, struct zr_scratch *scratch)
{
    const struct zr_colouring *of = sweep->of;
    uint64_t addresses_max = of->fixed_pages_count;
    for (size_t i = of->fixed_count; i < of->blocks_count; i++)
        addresses_max += counts(&of->blocks[i]) ? of->blocks[i].pages_count : 0;
    if (addresses_max > of->addresses_max)
        addresses_max = of->addresses_max;
    if (addresses_max >= UINT32_MAX || pages_max > addresses_max || of->fixed_pages_count > addresses_max)
        return zr_fail(ZR_ERR_UNAVAILABLE, "%llu pages cannot lie at %llu addresses",
                       (unsigned long long)pages_max, (unsigned long long)addresses_max);
    sweep->addresses_max = addresses_max;
    sweep->table = zr_scratch_take(scratch, addresses_max, sizeof *sweep->table);
    sweep->next = zr_scratch_take(scratch, addresses_max, sizeof *sweep->next);
    sweep->ready = zr_scratch_take(scratch, addresses_max / 64 + 1, sizeof *sweep->ready);
    sweep->heads = zr_scratch_take(scratch, pages_max, sizeof *sweep->heads);
    sweep->users = zr_scratch_take(scratch, pages_max, sizeof *sweep->users);
    sweep->seen = zr_scratch_take(scratch, pages_max, sizeof *sweep->seen);
    sweep->free = zr_scratch_take(scratch, pages_max / 64 + 1, sizeof *sweep->free);
    if (scratch->result != ZR_OK)
        return scratch->result;
    for (uint32_t page = 0; page < of->fixed_pages_count; page++) {
        zr_granules_set(sweep->free, page, page + 1, true);
        add_address(sweep, page);
    }
    sweep->pages_count = of->fixed_pages_count;
    return ZR_OK;
}

zr_result zr_colour(struct zr_colouring *colouring, struct zr_scratch *scratch)
{
    struct sweep sweep = {.of = colouring};
    const struct zr_sort_pair *by_lower = sort_blocks(colouring, false, scratch);
    const struct zr_sort_pair *by_upper = sort_blocks(colouring, true, scratch);
    if (!by_lower || !by_upper)
        return scratch->result;
    uint64_t pages_max = colouring->fixed_pages_count + max_at_once(colouring, by_lower, by_upper);
    zr_result result = make_sweep(&sweep, pages_max, scratch);
    if (result == ZR_OK)
        result = list_use_times(&sweep, by_lower, scratch);
    for (size_t i = 0, gone = 0; i < colouring->blocks_count && result == ZR_OK; i++) {
        struct zr_colour_block *block = &colouring->blocks[by_lower[i].value];
        for (; gone < colouring->blocks_count && by_upper[gone].key <= block->lower; gone++) {
            const struct zr_colour_block *old = &colouring->blocks[by_upper[gone].value];
            for (size_t at = 0; counts(old) && at < old->pages_count; at++)
                release_page(&sweep, sweep.table[old->first + at]);
        }
        if (!counts(block))
            continue;
        bool fixed = by_lower[i].value < colouring->fixed_count;
        if (!fixed)
            result = place(&sweep, block);
        if (result == ZR_OK)
            acquire_pages(&sweep, block, fixed);
    }
    colouring->pages = sweep.table;
    colouring->addresses_count = sweep.addresses_count;
    colouring->pages_count = sweep.pages_count;
    return result;
}
