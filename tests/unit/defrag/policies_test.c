/* policies_test.c: the policies of replay, each by cases worked out by hand from the rules it follows. A case
 * is a few allocations and frees, what is reserved at the peak, and how many driver calls that takes. */
#include <string.h>

#include "alloc/zr.h"
#include "defrag/replay/model.h"
#include "defrag/replay/model_blocks.h"
#include "tests/support/draws.h"
#include "tests/support/tap.h"

#define KIB UINT64_C(1024)
#define MIB (UINT64_C(1) << 20)

static zr_backend *host;
static zr_arena *arena;

/* ---- Cases --------------------------------------------------------------------------------------------- */

enum { STEPS = 12 };

/* Positive: a block of so many bytes, numbered from 0 in order. */
struct step {
    uint64_t bytes;  /* 0: a free */
    uint32_t block;  /* of a free */
    uint64_t stream; /* of an allocation */
};
#define A(bytes)                                                                                             \
    {                                                                                                        \
        (bytes), 0, 0                                                                                        \
    }
#define ON(stream_, bytes)                                                                                   \
    {                                                                                                        \
        (bytes), 0, (stream_)                                                                                \
    }
#define F(block)                                                                                             \
    {                                                                                                        \
        0, (block), 0                                                                                        \
    }
#define END                                                                                                  \
    {                                                                                                        \
        0, UINT32_MAX, 0                                                                                     \
    }

struct expected {
    uint64_t peak_bytes;
    uint64_t driver_calls; /* UINT64_MAX: whatever */
    uint64_t failed_at;    /* UINT64_MAX: nowhere */
};
#define ANY  UINT64_MAX
#define NONE UINT64_MAX

struct a_case {
    const char *words;
    struct step steps[STEPS];
    uint64_t capacity_bytes;
    struct expected want;
};

static size_t events_of(const struct step *steps, struct zr_event *events, uint32_t *blocks_count)
{
    size_t count = 0;
    *blocks_count = 0;
    for (; count < STEPS && !(steps[count].bytes == 0 && steps[count].block == UINT32_MAX); count++) {
        bool frees = steps[count].bytes == 0;
        events[count] = (struct zr_event){.kind = frees ? ZR_EVENT_FREE : ZR_EVENT_ALLOC,
                                          .tag = ZR_TAG_OTHER,
                                          .block = frees ? steps[count].block : (*blocks_count)++,
                                          .bytes = steps[count].bytes,
                                          .stream = steps[count].stream};
    }
    return count;
}

static void run_case(enum zr_policy policy, const struct a_case *one)
{
    struct zr_event events[STEPS];
    struct zr_sequence sequence = {.events = events, .host_arena = arena, .lower_bound_bytes = 1};
    struct zr_replay_report report;
    sequence.events_count = events_of(one->steps, events, &sequence.blocks_count);
    zr_result result = zr_replay(
        &sequence, &(struct zr_replay_options){.policy = policy, .capacity_bytes = one->capacity_bytes},
        &report);
    bool good = result == ZR_OK && report.peak_reserved_bytes == one->want.peak_bytes &&
                (one->want.driver_calls == ANY || report.driver_calls == one->want.driver_calls) &&
                report.failed_at == one->want.failed_at;
    if (!tap_ok(good, "%s: %s", zr_policy_name(policy), one->words))
        tap_note("%s; peak %.3f MiB, %llu calls, failed at %lld; want %.3f MiB, %lld calls, %lld",
                 zr_result_name(result), (double)report.peak_reserved_bytes / (double)MIB,
                 (unsigned long long)report.driver_calls, (long long)report.failed_at,
                 (double)one->want.peak_bytes / (double)MIB, (long long)one->want.driver_calls,
                 (long long)one->want.failed_at);
}

/* ---- PyTorch's caching allocator: the functions named are in its CUDACachingAllocator.cpp -------------- */

static const struct a_case caching[] = {
    {"a byte takes a small segment (get_allocation_size)", {A(1), END}, 0, {2 * MIB, 1, NONE}},
    {"two of 1 MiB share one: the small pool takes up to 1 MiB (kSmallSize)",
     {A(MIB), A(MIB), END},
     0,
     {2 * MIB, 1, NONE}},
    {"a byte more than 1 MiB goes to the large pool and takes 20 MiB (kLargeBuffer)",
     {A(MIB + 1), END},
     0,
     {20 * MIB, 1, NONE}},
    {"sizes are rounded to 512: three of 1 MiB less 511 bytes take two small segments (round_size)",
     {A(MIB - 511), A(MIB - 511), A(MIB - 511), END},
     0,
     {4 * MIB, 2, NONE}},
    {"two just below 10 MiB share 20 MiB (kMinLargeAlloc)",
     {A(10 * MIB - 512), A(10 * MIB - 512), END},
     0,
     {20 * MIB, 1, NONE}},
    {"10 MiB take 10 MiB", {A(10 * MIB), END}, 0, {10 * MIB, 1, NONE}},
    {"a byte more takes 12: large segments are multiples of 2 MiB (kRoundLarge)",
     {A(10 * MIB + 1), END},
     0,
     {12 * MIB, 1, NONE}},
    {"a rest of 1 MiB stays with its block in the large pool (should_split)",
     {A(20 * MIB), F(0), A(19 * MIB), A(MIB + 512), END},
     0,
     {40 * MIB, 2, NONE}},
    {"a rest of 512 bytes more is split off and used",
     {A(20 * MIB), F(0), A(19 * MIB - 512), A(MIB + 512), END},
     0,
     {20 * MIB, 1, NONE}},
    {"in the small pool a rest of 512 bytes is split off and used",
     {A(MIB), A(MIB - 512), A(512), END},
     0,
     {2 * MIB, 1, NONE}},
    {"what one stream freed another does not get (BlockComparatorSize)",
     {ON(1, 20 * MIB), F(0), ON(2, 20 * MIB), END},
     0,
     {40 * MIB, 2, NONE}},
    {"the same stream does", {ON(1, 20 * MIB), F(0), ON(1, 20 * MIB), END}, 0, {20 * MIB, 1, NONE}},
    {"the smallest that fits is used (get_free_block)",
     {A(30 * MIB), A(24 * MIB), F(0), F(1), A(22 * MIB), A(30 * MIB), END},
     0,
     {54 * MIB, 2, NONE}},
    {"the small pool's free space is not for large requests, nor the other way round (get_pool)",
     {A(20 * MIB), F(0), A(MIB), F(1), A(2 * MIB), A(4 * KIB), END},
     0,
     {22 * MIB, 2, NONE}},
    {"free neighbours join, on both sides (try_merge_blocks)",
     {A(6 * MIB), A(6 * MIB), A(6 * MIB), F(0), F(2), F(1), A(20 * MIB), END},
     0,
     {20 * MIB, 1, NONE}},
    {"a refusal frees cached segments, and the request is tried again (release_cached_blocks)",
     {A(20 * MIB), F(0), A(30 * MIB), END},
     40 * MIB,
     {30 * MIB, 4, NONE}},
    {"small segments too", {A(1), F(0), A(40 * MIB), END}, 40 * MIB, {40 * MIB, 4, NONE}},
    {"a segment with a live block in it is not freed (release_blocks)",
     {A(6 * MIB), A(6 * MIB), F(0), A(30 * MIB), END},
     40 * MIB,
     {20 * MIB, 3, 3}},
};

/* ---- PyTorch's expandable segments: likewise ----------------------------------------------------------- */

static const struct a_case expandable[] = {
    {"a byte maps one handle of 2 MiB: reserve, create, map, access (ExpandableSegment::map)",
     {A(1), END},
     0,
     {2 * MIB, 4, NONE}},
    {"the large pool has handles of 20 MiB", {A(3 * MIB), END}, 0, {20 * MIB, 4, NONE}},
    {"21 MiB map two: access is set once", {A(21 * MIB), END}, 0, {40 * MIB, 6, NONE}},
    {"it grows from the free end of what is mapped (try_allocate_expandable_block)",
     {A(15 * MIB), A(10 * MIB), A(15 * MIB), END},
     0,
     {40 * MIB, 7, NONE}},
    {"everything is split, so 1 MiB at the end is grown from (should_split)",
     {A(20 * MIB), F(0), A(19 * MIB), A(21 * MIB), END},
     0,
     {40 * MIB, 7, NONE}},
    {"a hole is preferred to the end, which counts with the addresses behind it (get_free_block)",
     {A(10 * MIB), A(10 * MIB), F(0), A(12 * MIB), A(8 * MIB), A(10 * MIB), END},
     0,
     {60 * MIB, 10, NONE}},
    {"each stream has segments of its own (find_expandable_block)",
     {ON(1, 3 * MIB), ON(2, 3 * MIB), END},
     0,
     {40 * MIB, 8, NONE}},
    {"each pool too", {A(3 * MIB), A(4 * KIB), END}, 0, {22 * MIB, 8, NONE}},
    {"a refusal unmaps whole free handles; empty segments go (unmap_block, release_expandable_segment)",
     {ON(1, 30 * MIB), F(0), ON(2, 30 * MIB), END},
     60 * MIB,
     {40 * MIB, 20, NONE}},
    {"the part of a free block that is no whole handle stays mapped",
     {A(15 * MIB), A(15 * MIB), F(0), ON(2, 20 * MIB), END},
     40 * MIB,
     {40 * MIB, 10, 3}},
    {"unmapped handles in the middle are mapped again first, at the lowest address",
     {A(40 * MIB), A(20 * MIB), F(0), ON(2, 20 * MIB), F(2), A(40 * MIB), END},
     60 * MIB,
     {60 * MIB, ANY, NONE}},
};

/* ---- Best fit in one growing range --------------------------------------------------------------------- */

static const struct a_case bestfit[] = {
    {"a byte takes a granule", {A(1), END}, 0, {2 * MIB, 3, NONE}},
    {"the rest of the last granule is used", {A(3 * MIB), A(MIB), END}, 0, {4 * MIB, 3, NONE}},
    {"the range grows from a free end", {A(3 * MIB), A(2 * MIB), A(MIB), END}, 0, {6 * MIB, 6, NONE}},
    {"sizes are rounded to 512 bytes", {A(2 * MIB - 512), A(1), A(1), END}, 0, {4 * MIB, 6, NONE}},
    {"the tightest hole is used, whatever the order",
     {A(8 * MIB), A(2 * MIB), A(4 * MIB), A(2 * MIB), F(0), F(2), A(4 * MIB), A(8 * MIB), END},
     0,
     {16 * MIB, 12, NONE}},
    {"holes join",
     {A(2 * MIB), A(2 * MIB), A(2 * MIB), A(2 * MIB), F(0), F(2), F(1), A(6 * MIB), END},
     0,
     {8 * MIB, 12, NONE}},
    {"streams share", {ON(1, 4 * MIB), F(0), ON(2, 4 * MIB), END}, 0, {4 * MIB, 3, NONE}},
    {"holes apart are lost to a larger block",
     {A(4 * MIB), A(2 * MIB), A(4 * MIB), F(0), F(2), A(8 * MIB), END},
     0,
     {14 * MIB, 12, NONE}},
    {"beyond the capacity there is no memory", {A(4 * MIB), A(4 * MIB), END}, 6 * MIB, {4 * MIB, 6, 1}},
};

/* ---- Our arena ----------------------------------------------------------------------------------------- */

static const struct a_case own[] = {
    {"a byte takes a granule", {A(1), END}, 0, {2 * MIB, ANY, NONE}},
    {"granules of holes apart serve a larger block: nothing is lost",
     {A(4 * MIB), A(2 * MIB), A(4 * MIB), F(0), F(2), A(8 * MIB), END},
     0,
     {10 * MIB, ANY, NONE}},
    {"within a capacity that best fit would exceed",
     {A(4 * MIB), A(2 * MIB), A(4 * MIB), F(0), F(2), A(8 * MIB), END},
     10 * MIB,
     {10 * MIB, ANY, NONE}},
    {"beyond the capacity there is no memory", {A(4 * MIB), A(4 * MIB), END}, 6 * MIB, {4 * MIB, ANY, 1}},
};

#define RUN(policy, cases)                                                                                   \
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)                                                \
    run_case(policy, &cases[i])

/* ---- Properties that hold for every model -------------------------------------------------------------- */

enum { SLOTS = 300, OPERATIONS = 60000 };

struct live {
    struct zr_model_block *block;
    uint64_t bytes, stream;
};

/* True if no two live blocks overlap and each has the bytes asked for. O(n²), so not often. */
static bool disjoint(const struct live *slots)
{
    for (unsigned i = 0; i < SLOTS; i++)
        for (unsigned j = 0; slots[i].block && j < i; j++) {
            const struct zr_model_block *a = slots[i].block, *b = slots[j].block;
            if (b && a->address < b->address + b->bytes && b->address < a->address + a->bytes)
                return false;
        }
    return true;
}

static uint64_t some_bytes(void)
{
    uint64_t dice = next_random();
    return dice % 3 == 0   ? 1 + (dice >> 8) % (40 * MIB)
           : dice % 3 == 1 ? 1 + (dice >> 8) % (2 * MIB)
                           : 1 + (dice >> 8) % 5000;
}

static void soak(const struct zr_model_ops *ops, const char *name, uint64_t capacity_bytes)
{
    static struct live slots[SLOTS];
    struct zr_model *model = NULL;
    uint64_t live_bytes = 0, failures = 0;
    bool good = true;
    memset(slots, 0, sizeof slots);
    tap_result(zr_model_begin(&model, ops,
                              &(struct zr_model_options){.host_arena = arena,
                                                         .capacity_bytes = capacity_bytes,
                                                         .granule_bytes = 2 * MIB}),
               ZR_OK, "%s: a model with %s", name, capacity_bytes ? "a capacity" : "no end");
    for (unsigned i = 0; i < OPERATIONS && good; i++) {
        struct live *slot = &slots[next_random() % SLOTS];
        if (slot->block) {
            live_bytes -= slot->bytes;
            good = ops->free(model, slot->block) == ZR_OK;
            slot->block = NULL;
        } else {
            void *handle = NULL;
            slot->bytes = some_bytes();
            slot->stream = next_random() % 3;
            zr_result result =
                ops->alloc(model, &(struct zr_event){.bytes = slot->bytes, .stream = slot->stream}, &handle);
            slot->block = result == ZR_OK ? handle : NULL;
            failures += result == ZR_ERR_MEMORY;
            live_bytes += result == ZR_OK ? slot->bytes : 0;
            good = result == ZR_OK ? slot->block->bytes >= slot->bytes && slot->block->allocated &&
                                         (ops == &zr_model_bestfit || slot->block->stream == slot->stream)
                                   : result == ZR_ERR_MEMORY && capacity_bytes;
        }
        good = good && model->reserved_bytes >= live_bytes &&
               model->peak_reserved_bytes >= model->reserved_bytes &&
               (!capacity_bytes || model->peak_reserved_bytes <= capacity_bytes);
        if (i % 500 == 0)
            good = good && disjoint(slots);
    }
    tap_ok(good, "%s: %d random calls, %llu refused: blocks never overlap, the books hold", name, OPERATIONS,
           (unsigned long long)failures);
    tap_ok(!capacity_bytes == !failures, "%s: refusals come from the capacity", name);
    zr_model_end(model);
}

int main(void)
{
    struct zr_arena_stats stats;
    if (zr_backend_host_create(&host, NULL) != ZR_OK ||
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = host}) != ZR_OK) {
        tap_ok(false, "an arena for the test: %s", zr_last_error());
        return tap_done();
    }
    RUN(ZR_POLICY_CACHING, caching);
    RUN(ZR_POLICY_EXPANDABLE, expandable);
    RUN(ZR_POLICY_BESTFIT, bestfit);
    RUN(ZR_POLICY_ZR, own);
    for (unsigned i = 0; i < 2; i++) {
        soak(&zr_model_caching, "caching", i ? 600 * MIB : 0);
        soak(&zr_model_expandable, "expandable", i ? 600 * MIB : 0);
        soak(&zr_model_bestfit, "bestfit", i ? 600 * MIB : 0);
    }
    zr_arena_get_stats(arena, &stats);
    tap_is(stats.live_bytes, 0, "every record went back to the arena");
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(host);
    return tap_done();
}
