/* learner_place.c: places the steps of a plan. Uses the packer and colour.c.
 *
 * First, all blocks of a sequence are packed into one address range. If the result is above the lower bound
 * and the backend has aliases, blocks of whole granules are coloured instead: they get as many pages as are
 * live at once. Only the other blocks are then packed; coloured blocks also use packed pages while those are
 * free. The plan without aliases needs fewer mappings, so it is kept unless the other plan takes less memory.
 */
#include "defrag/learn/learner.h"

#include "alloc/base/error.h"
#include "defrag/pack/colour.h"
#include "defrag/trace/lifetimes.h"

enum {
    MIN_BYTES = 256,         /* alignment of blocks */
    WASTE_DIVISOR = 256,     /* a block of whole granules may waste one part in 256 of its bytes */
    ADDRESSES_MAX = 1 << 22, /* of a sequence, in granules */
    ADDRESSES_FACTOR = 16,   /* addresses per page */
    TARGET_DIVISOR = 8,      /* one part in 8 of the work is for reaching the lower bound */
    BESIDE_DIVISOR = 32,     /* one part in 32 beside gaps, see place_sequence() */
};

static inline uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) & ~(unit - 1);
}

/* The placement of one sequence. */
struct sequence_place {
    struct zr_lifetimes *lifetimes;   /* of all blocks */
    const struct zr_plan_step *steps; /* indexed by the lifetimes' ids */
    struct zr_plan_rules rules;
    struct zr_pack_here here;
    uint64_t work;
    size_t plain_granules;    /* see struct zr_candidate */
    struct zr_lifetimes rest; /* blocks that are packed beside coloured blocks; ids: indices of buffers */
    struct zr_colouring colouring;
    size_t unit_granules; /* granules per page of the colouring */
};

/* ---- Packing ------------------------------------------------------------------------------------------- */

/* Packs to the lower bound in whole granules, with a part of the work. An eighth is enough if the bound can
 * be reached. */
static zr_result pack_to_target(struct sequence_place *place, struct zr_lifetimes *lifetimes,
                                struct zr_pack_report *report)
{
    zr_result result = zr_lifetimes_measure(lifetimes);
    if (result != ZR_OK)
        return result;
    const struct zr_pack_options options = {
        .work = zr_candidate_part(place->work, place->plain_granules > 0 ? BESIDE_DIVISOR : TARGET_DIVISOR),
        .capacity_bytes = round_up(lifetimes->lower_bound_bytes, place->rules.granule_bytes)};
    return zr_pack_in(lifetimes, &options, &place->here, report);
}

/* ---- Colouring ----------------------------------------------------------------------------------------- */

/* The result for a sequence with pages, in granules. */
struct coloured {
    uint64_t *offsets; /* by buffer, in bytes from the sequence's first address */
    uint32_t *pages;   /* by address, from 0 */
    size_t addresses_count, pages_count;
};

static size_t granules_of(const struct sequence_place *place, uint64_t bytes)
{
    return (size_t)(round_up(bytes, place->rules.granule_bytes) / place->rules.granule_bytes);
}

/* The number of granules of a block that fills whole granules; 0: the block does not. Its place begins with a
 * granule, so it needs no bytes for alignment. */
static size_t whole_granules(const struct sequence_place *place, size_t buffer)
{
    const struct zr_request *request = &place->steps[place->lifetimes->buffers[buffer].id].request;
    uint64_t bytes = request->bytes + place->rules.canary_bytes;
    size_t granules = granules_of(place, bytes);
    return granules * place->rules.granule_bytes - bytes <= bytes / WASTE_DIVISOR ? granules : 0;
}

/* Extracts the blocks that do not fill whole granules, and packs them. */
static zr_result pack_rest(struct sequence_place *place, struct zr_scratch *scratch)
{
    const struct zr_lifetimes *all = place->lifetimes;
    struct zr_lifetimes *rest = &place->rest;
    struct zr_pack_report report;
    rest->buffers = zr_scratch_take(scratch, all->count, sizeof *rest->buffers);
    if (!rest->buffers)
        return scratch->result;
    rest->period = all->period;
    for (size_t i = 0; i < all->count; i++)
        if (whole_granules(place, i) == 0) {
            rest->buffers[rest->count] = all->buffers[i];
            rest->buffers[rest->count++].id = i;
        }
    /* if the rest contains all blocks, they are packed already */
    if (rest->count == 0 || rest->count == all->count)
        return ZR_OK;
    zr_result result = pack_to_target(place, rest, &report);
    return result == ZR_OK ? zr_pack_round(rest, MIN_BYTES, &report.height_bytes) : result;
}

/* The largest page size that divides all blocks; one granule if some blocks are packed. */
static size_t unit_of(const struct sequence_place *place)
{
    size_t unit = 0;
    for (size_t i = 0; place->rest.count == 0 && i < place->lifetimes->count; i++)
        unit = zr_pack_common_divisor(whole_granules(place, i), unit);
    return unit ? unit : 1;
}

/* The colouring has no period: a block that is live across the boundary keeps its pages for the whole period.
 */
static struct zr_colour_block block_of(const struct sequence_place *place, const struct zr_buffer *buffer)
{
    bool crosses = buffer->upper > place->lifetimes->period;
    return (struct zr_colour_block){.lower = crosses ? 0 : (uint32_t)buffer->lower,
                                    .upper = (uint32_t)(crosses ? place->lifetimes->period : buffer->upper)};
}

/* Lists the packed blocks, fixed at their places, then the blocks of whole granules in their order. */
static void list_blocks(struct sequence_place *place)
{
    const struct zr_lifetimes *all = place->lifetimes;
    struct zr_colouring *colouring = &place->colouring;
    struct zr_colour_block *block = colouring->blocks;
    size_t granule = place->rules.granule_bytes;
    for (size_t i = 0; i < place->rest.count; i++, block++) {
        const struct zr_buffer *buffer = &place->rest.buffers[i];
        uint32_t first = (uint32_t)(buffer->offset_bytes / granule),
                 end = (uint32_t)granules_of(place, buffer->offset_bytes + buffer->bytes);
        *block = block_of(place, buffer);
        block->pages_count = end - first;
        block->first = first;
        if (end > colouring->fixed_pages_count)
            colouring->fixed_pages_count = end;
    }
    for (size_t i = 0; i < all->count; i++)
        if (whole_granules(place, i) > 0) {
            *block = block_of(place, &all->buffers[i]);
            block++->pages_count = (uint32_t)(whole_granules(place, i) / place->unit_granules);
        }
}

/* The limit of the sequence's addresses, in pages of the colouring. */
static size_t addresses_max(const struct sequence_place *place)
{
    size_t count = granules_of(place, place->lifetimes->lower_bound_bytes) * ADDRESSES_FACTOR;
    if (count > ADDRESSES_MAX)
        count = ADDRESSES_MAX;
    if (place->rules.mappings_max && count > place->rules.mappings_max)
        count = place->rules.mappings_max;
    return count / place->unit_granules;
}

/* Converts the colouring's pages to granules, in memory that outlives the call. */
static zr_result note_colours(const struct sequence_place *place, struct zr_scratch *lasting,
                              struct coloured *out)
{
    const struct zr_lifetimes *all = place->lifetimes;
    const struct zr_colouring *colouring = &place->colouring;
    size_t unit = place->unit_granules, granule = place->rules.granule_bytes;
    const struct zr_colour_block *block = colouring->blocks + place->rest.count;
    out->addresses_count = colouring->addresses_count * unit;
    out->pages_count = colouring->pages_count * unit;
    out->offsets = zr_scratch_take(lasting, all->count, sizeof *out->offsets);
    out->pages = zr_scratch_take(lasting, out->addresses_count, sizeof *out->pages);
    if (!out->pages)
        return lasting->result;
    for (size_t i = 0; i < all->count; i++)
        if (whole_granules(place, i) > 0)
            out->offsets[i] = (uint64_t)(block++)->first * unit * granule;
    for (size_t i = 0; i < place->rest.count; i++)
        out->offsets[place->rest.buffers[i].id] = place->rest.buffers[i].offset_bytes;
    for (size_t i = 0; i < out->addresses_count; i++)
        out->pages[i] = (uint32_t)(colouring->pages[i / unit] * unit + i % unit);
    return ZR_OK;
}

/* Leaves out->pages NULL if no block can be coloured. */
static zr_result colour_sequence(struct sequence_place *place, struct zr_scratch *lasting,
                                 struct coloured *out)
{
    struct zr_scratch scratch = {0};
    struct zr_colouring *colouring = &place->colouring;
    zr_result result = pack_rest(place, &scratch);
    *colouring =
        (struct zr_colouring){.blocks_count = place->lifetimes->count, .fixed_count = place->rest.count};
    colouring->blocks = zr_scratch_take(&scratch, colouring->blocks_count, sizeof *colouring->blocks);
    if (result == ZR_OK)
        result = scratch.result;
    if (result == ZR_OK && colouring->fixed_count < colouring->blocks_count) {
        place->unit_granules = unit_of(place);
        colouring->addresses_max = addresses_max(place);
        list_blocks(place);
        result = zr_colour(colouring, &scratch);
        if (result == ZR_OK)
            result = note_colours(place, lasting, out);
    }
    zr_scratch_end(&scratch);
    return result == ZR_ERR_UNAVAILABLE ? ZR_OK : result; /* too many addresses: keep the packing */
}

/* ---- Sequences ----------------------------------------------------------------------------------------- */

/* Places a sequence, by addresses only or with pages, and sets *granules to its size. Exact sizes pack better
 * than sizes rounded to the arena's grain, so rounding follows packing. */
static zr_result place_sequence(struct sequence_place *place, struct zr_scratch *lasting,
                                struct coloured *out, size_t *granules)
{
    struct zr_lifetimes *lifetimes = place->lifetimes;
    struct zr_pack_report report = {0};
    uint64_t left = place->work;
    struct coloured coloured = {0};
    struct zr_pack_here on = place->here; /* continues the packing with the work that the target left */
    on.placed = true;
    zr_result result = pack_to_target(place, lifetimes, &report);
    size_t target = granules_of(place, lifetimes->lower_bound_bytes);
    /* The blocks in gaps are small ones, which are easy to place, so the bound of the rest is hard to reach.
     * A search for the last granules would delay a plan that saves some already. */
    bool found =
        report.verdict == ZR_PACK_FOUND || granules_of(place, report.height_bytes) < place->plain_granules;
    if (result == ZR_OK && !found && place->rules.aliases &&
        granules_of(place, lifetimes->lower_bound_bytes) <= ADDRESSES_MAX) {
        result = colour_sequence(place, lasting, &coloured);
        left -= left / TARGET_DIVISOR; /* for the blocks packed beside the pages */
    }
    left -= left / TARGET_DIVISOR;
    if (result == ZR_OK && !found && (!coloured.pages || coloured.pages_count > target) && left > 0)
        result = zr_pack_in(lifetimes, &(struct zr_pack_options){.work = left}, &on, &report);
    if (result == ZR_OK)
        result = zr_pack_round(lifetimes, MIN_BYTES, &report.height_bytes);
    *granules = granules_of(place, report.height_bytes);
    if (result == ZR_OK && coloured.pages && coloured.pages_count < *granules) {
        *out = coloured;
        *granules = coloured.pages_count;
    }
    return result;
}

/* Gives each granule its own page, in a plan in which other sequences have aliases. */
static void identity(uint32_t *pages, size_t count, size_t first)
{
    for (size_t i = 0; i < count; i++)
        pages[i] = (uint32_t)(first + i);
}

/* Makes one table of pages for the region; no table if every sequence is packed. */
static zr_result join_pages(struct zr_candidate *candidate, const struct coloured *sequences,
                            const size_t *granules)
{
    size_t addresses = 0, first_page = 0;
    bool any = false;
    for (size_t l = 0; l < candidate->plan.sequences_count; l++) {
        /* NOLINTNEXTLINE(clang-analyzer-*): place_sequence() has set each */
        addresses += sequences[l].pages ? sequences[l].addresses_count : granules[l];
        any |= sequences[l].pages != NULL;
    }
    candidate->plan.pages = NULL;
    candidate->plan.pages_count = 0;
    if (!any)
        return ZR_OK;
    uint32_t *pages = zr_scratch_take(&candidate->scratch, addresses, sizeof *pages), *next = pages;
    if (!pages)
        return candidate->scratch.result;
    for (size_t l = 0; l < candidate->plan.sequences_count; l++) {
        size_t count = sequences[l].pages ? sequences[l].addresses_count : granules[l];
        identity(next, count, first_page);
        for (size_t i = 0; sequences[l].pages && i < count; i++)
            next[i] = (uint32_t)(first_page + sequences[l].pages[i]);
        next += count;
        first_page += granules[l];
    }
    candidate->plan.pages = pages;
    candidate->plan.pages_count = first_page;
    return ZR_OK;
}

static void size_blocks(struct zr_candidate *candidate, size_t sequence, struct zr_plan_rules rules)
{
    struct zr_lifetimes *lifetimes = &candidate->lifetimes[sequence];
    const struct zr_plan_step *steps = candidate->steps + candidate->sequences[sequence].first;
    for (size_t i = 0; i < lifetimes->count; i++)
        lifetimes->buffers[i].bytes = zr_step_memory_bytes(&steps[lifetimes->buffers[i].id], rules);
}

zr_result zr_candidate_measure(struct zr_candidate *candidate, struct zr_plan_rules rules,
                               uint64_t *least_bytes)
{
    *least_bytes = 0;
    for (size_t l = 0; l < candidate->plan.sequences_count; l++) {
        zr_result result = zr_lifetimes_measure(&candidate->lifetimes[l]);
        if (result != ZR_OK)
            return result;
        *least_bytes += round_up(candidate->lifetimes[l].lower_bound_bytes, rules.granule_bytes);
    }
    return ZR_OK;
}

zr_result zr_candidate_pack(struct zr_candidate *candidate, struct zr_plan_rules rules, uint64_t work)
{
    struct coloured coloured[ZR_PLAN_SEQUENCES] = {0};
    size_t granules[ZR_PLAN_SEQUENCES];
    uint64_t base_bytes = 0;
    size_t sequences_count = candidate->plan.sequences_count, granules_count = 0;
    for (size_t l = 0; l < sequences_count; l++) {
        struct zr_lifetimes *lifetimes = &candidate->lifetimes[l];
        struct sequence_place place = {.lifetimes = lifetimes,
                                       .steps = candidate->steps + candidate->sequences[l].first,
                                       .rules = rules,
                                       .here = candidate->here,
                                       .plain_granules = candidate->plain_granules,
                                       .work = zr_candidate_part(work, (unsigned)sequences_count)};
        size_blocks(candidate, l, rules);
        zr_result result = place_sequence(&place, &candidate->scratch, &coloured[l], &granules[l]);
        if (result == ZR_OK && candidate->here.cancelled && atomic_load(candidate->here.cancelled))
            result = zr_fail(ZR_ERR_UNAVAILABLE, "packing the plan was cancelled");
        if (result != ZR_OK)
            return result;
        for (size_t i = 0; i < lifetimes->count; i++) {
            struct zr_plan_step *step =
                &candidate->steps[candidate->sequences[l].first + lifetimes->buffers[i].id];
            uint64_t offset = coloured[l].pages ? coloured[l].offsets[i] : lifetimes->buffers[i].offset_bytes;
            step->offset_bytes = round_up(base_bytes + offset, step->request.alignment);
        }
        /* Sequences share no granule, because their relative order varies. */
        base_bytes +=
            (uint64_t)(coloured[l].pages ? coloured[l].addresses_count : granules[l]) * rules.granule_bytes;
        granules_count += granules[l];
    }
    candidate->plan.region_bytes = base_bytes ? base_bytes : rules.granule_bytes;
    candidate->memory_bytes = (granules_count ? granules_count : 1) * rules.granule_bytes;
    return join_pages(candidate, coloured, granules);
}
