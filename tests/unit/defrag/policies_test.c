/* policies_test.c: the policies that replay compares ours with, each by cases worked out by hand from the
 * rules it follows. A case is a few allocations and frees, what is reserved at the peak, and how many driver
 * calls that takes. Then the two models of PyTorch's allocator call by call beside the answers of PyTorch's
 * own, in torch_answers.txt, which tests/support/allocator_check.py makes.
 *
 *   policies_test FILE   compares FILE with the models and prints a line for each sequence, without TAP:
 *                        NAME, PyTorch's peak, the model's, the number of the first call that differs or -1
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/zr.h"
#include "defrag/replay/model.h"
#include "defrag/replay/model_blocks.h"
#include "defrag/trace/recording.h"
#include "tests/support/draws.h"
#include "tests/support/records.h"
#include "tests/support/tap.h"

#define MIB (UINT64_C(1) << 20)
#define ANY UINT64_MAX

/* ---- Cases --------------------------------------------------------------------------------------------- */

struct a_case {
    const char *words;
    const char
        *steps; /* "20M+512" and "4K" allocate, "s2:1M" on stream 2; "f0" frees what was allocated first */
    uint64_t capacity_mib, peak_mib;
    uint64_t driver_calls; /* ANY: whatever */
    uint64_t failed_at;    /* 0: nowhere */
};

/* One step, up to where *rest is. */
static struct zr_event event_of(const char *at, char **rest, uint32_t *blocks_count)
{
    struct zr_event event = {.kind = *at == 'f' ? ZR_EVENT_FREE : ZR_EVENT_ALLOC, .tag = ZR_TAG_OTHER};
    if (*at == 'f') {
        event.block = (uint32_t)strtoul(at + 1, rest, 10);
        return event;
    }
    if (*at == 's') {
        event.stream = strtoull(at + 1, rest, 10);
        at = *rest + 1;
    }
    event.block = (*blocks_count)++;
    event.bytes = strtoull(at, rest, 10);
    if (isalpha(**rest))
        event.bytes *= *(*rest)++ == 'M' ? MIB : 1024;
    if (**rest == '+' || **rest == '-')
        event.bytes += (uint64_t)strtoll(*rest, rest, 10);
    return event;
}

static void run_case(enum zr_policy policy, const struct a_case *one)
{
    struct zr_event events[12];
    struct zr_sequence sequence = {.events = events, .host_arena = host_arena, .lower_bound_bytes = 1};
    struct zr_replay_options options = {.policy = policy, .capacity_bytes = one->capacity_mib * MIB};
    struct zr_replay_report report;
    char *rest;
    for (const char *at = one->steps; *at; at = rest + (*rest == ' '))
        events[sequence.events_count++] = event_of(at, &rest, &sequence.blocks_count);
    zr_result result = zr_replay(&sequence, &options, &report);
    bool good = result == ZR_OK && report.peak_reserved_bytes == one->peak_mib * MIB &&
                (one->driver_calls == ANY || report.driver_calls == one->driver_calls) &&
                report.failed_at == (one->failed_at ? one->failed_at : UINT64_MAX);
    if (!tap_ok(good, "%s: %s", zr_policy_name(policy), one->words))
        tap_note("%s; peak %.3f MiB, %llu calls, failed at %lld", zr_result_name(result),
                 (double)report.peak_reserved_bytes / (double)MIB, (unsigned long long)report.driver_calls,
                 (long long)report.failed_at);
}

/* ---- PyTorch's caching allocator: the functions named are in its CUDACachingAllocator.cpp -------------- */

static const struct a_case caching[] = {
    {"a byte takes a small segment (get_allocation_size)", "1", 0, 2, 1, 0},
    {"two of 1 MiB share one: the small pool takes up to 1 MiB (kSmallSize)", "1M 1M", 0, 2, 1, 0},
    {"a byte more than 1 MiB goes to the large pool and takes 20 MiB (kLargeBuffer)", "1M+1", 0, 20, 1, 0},
    {"sizes are rounded to 512: three of 1 MiB less 511 bytes take two small segments (round_size)",
     "1M-511 1M-511 1M-511", 0, 4, 2, 0},
    {"two just below 10 MiB share 20 MiB (kMinLargeAlloc)", "10M-512 10M-512", 0, 20, 1, 0},
    {"10 MiB take 10 MiB", "10M", 0, 10, 1, 0},
    {"a byte more takes 12: large segments are multiples of 2 MiB (kRoundLarge)", "10M+1", 0, 12, 1, 0},
    {"a rest of 1 MiB stays with its block in the large pool (should_split)", "20M f0 19M 1M+512", 0, 40, 2,
     0},
    {"and does not join what is freed behind it", "30M f0 20M 10M f1 19M f2 11M", 0, 42, 2, 0},
    {"a rest of 512 bytes more is split off and used", "20M f0 19M-512 1M+512", 0, 20, 1, 0},
    {"in the small pool a rest of 512 bytes is split off and used", "1M 1M-512 512", 0, 2, 1, 0},
    {"what one stream freed another does not get (BlockComparatorSize)", "s1:20M f0 s2:20M", 0, 40, 2, 0},
    {"the same stream does", "s1:20M f0 s1:20M", 0, 20, 1, 0},
    {"the smallest that fits is used (get_free_block)", "30M 24M f0 f1 22M 30M", 0, 54, 2, 0},
    {"the small pool's free space is not for large requests, nor the other way round (get_pool)",
     "20M f0 1M f1 2M 4K", 0, 22, 2, 0},
    {"free neighbours join, on both sides (try_merge_blocks)", "6M 6M 6M f0 f2 f1 20M", 0, 20, 1, 0},
    {"a refusal frees cached segments, and the request is tried again (release_cached_blocks)", "20M f0 30M",
     40, 30, 4, 0},
    {"small segments too", "1 f0 40M", 40, 40, 4, 0},
    {"a segment with a live block in it is not freed (release_blocks)", "6M 6M f0 30M", 40, 20, 3, 3},
};

/* ---- PyTorch's expandable segments: likewise ----------------------------------------------------------- */

static const struct a_case expandable[] = {
    {"a byte maps one handle of 2 MiB: reserve, create, map, access (ExpandableSegment::map)", "1", 0, 2, 4,
     0},
    {"the large pool has handles of 20 MiB", "3M", 0, 20, 4, 0},
    {"21 MiB map two: access is set once", "21M", 0, 40, 6, 0},
    {"it grows from the free end of what is mapped (try_allocate_expandable_block)", "15M 10M 15M", 0, 40, 7,
     0},
    {"everything is split, so 1 MiB at the end is grown from (should_split)", "20M f0 19M 21M", 0, 40, 7, 0},
    {"a hole is preferred to the end, which counts with the addresses behind it (get_free_block)",
     "10M 10M f0 12M 8M 10M", 0, 60, 10, 0},
    {"each stream has segments of its own (find_expandable_block)", "s1:3M s2:3M", 0, 40, 8, 0},
    {"each pool too", "3M 4K", 0, 22, 8, 0},
    {"a refusal unmaps whole free handles; empty segments go (unmap_block, release_expandable_segment)",
     "s1:30M f0 s2:30M", 60, 40, 20, 0},
    {"the part of a free block that is no whole handle stays mapped", "15M 15M f0 s2:20M", 40, 40, 10, 3},
    {"unmapped handles in the middle are mapped again first, at the lowest address",
     "40M 20M f0 s2:20M f2 40M", 60, 60, ANY, 0},
};

/* ---- Best fit in one growing range --------------------------------------------------------------------- */

static const struct a_case bestfit[] = {
    {"a byte takes a granule", "1", 0, 2, 3, 0},
    {"the rest of the last granule is used", "3M 1M", 0, 4, 3, 0},
    {"the range grows from a free end", "3M 2M 1M", 0, 6, 6, 0},
    {"sizes are rounded to 512 bytes", "2M-512 1 1", 0, 4, 6, 0},
    {"the tightest hole is used, whatever the order", "8M 2M 4M 2M f0 f2 4M 8M", 0, 16, 12, 0},
    {"holes join", "2M 2M 2M 2M f0 f2 f1 6M", 0, 8, 12, 0},
    {"streams share", "s1:4M f0 s2:4M", 0, 4, 3, 0},
    {"holes apart are lost to a larger block", "4M 2M 4M f0 f2 8M", 0, 14, 12, 0},
    {"beyond the capacity there is no memory", "4M 4M", 6, 4, 6, 1},
};

#define RUN(policy, cases)                                                                                   \
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)                                                \
    run_case(policy, &cases[i])

/* ---- Answers of PyTorch's allocator -------------------------------------------------------------------- */

/* A line of the file: NAME SETTINGS CAPACITY_MIB STEP=RESERVED/ALLOCATED[!] .. [calls=CALLS]. RESERVED is in
 * MiB, ALLOCATED in units of 512 bytes, both after the step; "!" means that there was no memory. */
struct answers {
    uint64_t peak_bytes, model_peak_bytes;
    long differs_at; /* -1: nowhere */
};

enum { ANSWERS_BLOCKS_MAX = 100000 };

static void *given[ANSWERS_BLOCKS_MAX];

/* The model's part of a step. Returns whether there was memory. */
static bool take_step(struct zr_policy_model *model, const struct zr_event *event, uint64_t *live_bytes)
{
    void **block = &given[event->block % ANSWERS_BLOCKS_MAX];
    bool freed = event->kind == ZR_EVENT_FREE;
    if (freed && *block) {
        *live_bytes -= ((struct zr_model_block *)*block)->bytes;
        model->ops->free(model, *block);
    }
    *block = NULL;
    if (!freed && model->ops->alloc(model, event, block) != ZR_OK)
        return false;
    *live_bytes += *block ? ((struct zr_model_block *)*block)->bytes : 0;
    return true;
}

static struct answers compare(struct zr_policy_model *model, char *steps)
{
    struct answers answers = {.differs_at = -1};
    uint32_t blocks_count = 0;
    uint64_t live_bytes = 0;
    char *rest, *at;
    long count = 0;
    memset(given, 0, sizeof given);
    for (char *step = strtok_r(steps, " \n", &rest); step; step = strtok_r(NULL, " \n", &rest), count++) {
        uint64_t reserved_bytes = model->reserved_bytes, allocated_bytes = live_bytes;
        bool same = strncmp(step, "calls=", 6) != 0 || strtoull(step + 6, NULL, 10) == model->driver_calls;
        if (*step != 'c') {
            struct zr_event event = event_of(step, &at, &blocks_count);
            bool found = take_step(model, &event, &live_bytes);
            reserved_bytes = strtoull(at + 1, &at, 10) * MIB;
            allocated_bytes = strtoull(at + 1, &at, 10) * 512;
            same = found == (*at != '!');
        }
        if (reserved_bytes > answers.peak_bytes)
            answers.peak_bytes = reserved_bytes;
        if (answers.differs_at < 0 &&
            (!same || reserved_bytes != model->reserved_bytes || allocated_bytes != live_bytes))
            answers.differs_at = count;
    }
    answers.model_peak_bytes = model->peak_reserved_bytes;
    return answers;
}

/* A line that begins with "settings": SETTINGS MAX_SPLIT THRESHOLD DIVISIONS,.. */
static void check_settings(const char *words, char *rest)
{
    struct zr_torch_settings settings = {0};
    zr_torch_settings_read(words, &settings);
    bool good = strtoull(rest, &rest, 10) == settings.max_split_bytes &&
                strtod(rest, &rest) == settings.garbage_collection_threshold;
    for (unsigned i = 0; i < ZR_TORCH_DIVISIONS; i++)
        good = good && strtoul(rest + 1, &rest, 10) == settings.divisions[i];
    tap_ok(good, "the settings in %s", words);
}

static void check_sequence(const char *name, const char *words, char *rest, bool prints)
{
    struct zr_torch_settings settings = {0};
    struct zr_replay_options replay = {0};
    struct zr_policy_model *model = NULL;
    zr_torch_settings_read(words, &settings);
    zr_torch_settings_apply(&settings, &replay);
    struct zr_model_options options = {.host_arena = host_arena,
                                       .capacity_bytes = strtoull(rest, &rest, 10) * MIB,
                                       .granule_bytes = 2 * MIB,
                                       .max_split_bytes = replay.max_split_bytes,
                                       .garbage_collection_threshold = replay.garbage_collection_threshold};
    memcpy(options.roundup_divisions, replay.roundup_divisions, sizeof options.roundup_divisions);
    bool grows = strstr(words, "expandable_segments:True");
    if (zr_model_begin(&model, grows ? &zr_model_expandable : &zr_model_caching, &options) != ZR_OK) {
        tap_ok(false, "%s: %s", name, zr_last_error());
        return;
    }
    struct answers answers = compare(model, rest);
    zr_model_end(model);
    if (prints)
        printf("%s %llu %llu %ld\n", name, (unsigned long long)answers.peak_bytes,
               (unsigned long long)answers.model_peak_bytes, answers.differs_at);
    else if (!tap_ok(answers.differs_at < 0, "%s, as PyTorch: %s", words, name))
        tap_note("call %ld differs; peak %llu, in the model %llu", answers.differs_at,
                 (unsigned long long)answers.peak_bytes, (unsigned long long)answers.model_peak_bytes);
}

static void check_answers(const char *path, bool prints)
{
    char *line = NULL, *rest;
    size_t room = 0;
    FILE *file = fopen(path, "re");
    if (!file) {
        tap_ok(false, "%s can be opened", path);
        return;
    }
    while (getline(&line, &room, file) > 0) {
        const char *name = strtok_r(line, " \n", &rest), *words = strtok_r(NULL, " ", &rest);
        if (!words || *name == '#')
            continue;
        if (strcmp(name, "settings") == 0)
            check_settings(words, rest);
        else
            check_sequence(name, words, rest, prints);
    }
    free(line);
    fclose(file);
}

/* ---- Properties that hold for every model -------------------------------------------------------------- */

enum { SLOTS = 300, OPERATIONS = 60000 };

/* True if no two live blocks overlap. O(n²), so not often. */
static bool disjoint(struct zr_model_block *const *slots)
{
    for (unsigned i = 0; i < SLOTS; i++)
        for (unsigned j = 0; slots[i] && j < i; j++)
            if (slots[j] && slots[i]->address < slots[j]->address + slots[j]->bytes &&
                slots[j]->address < slots[i]->address + slots[i]->bytes)
                return false;
    return true;
}

static void soak(const struct zr_model_ops *ops, const char *name, uint64_t capacity_bytes)
{
    struct zr_model_block *slots[SLOTS] = {NULL};
    struct zr_model_options options = {
        .host_arena = host_arena, .capacity_bytes = capacity_bytes, .granule_bytes = 2 * MIB};
    struct zr_policy_model *model = NULL;
    uint64_t live_bytes = 0, failures = 0;
    bool good = zr_model_begin(&model, ops, &options) == ZR_OK;
    for (unsigned i = 0; i < OPERATIONS && good; i++) {
        struct zr_model_block **slot = &slots[random_below(SLOTS)];
        const uint64_t most[] = {40 * MIB, 2 * MIB, 5000};
        struct zr_event event = {.bytes = 1 + random_below(most[i % 3]), .stream = random_below(3)};
        void *handle = NULL;
        live_bytes -= *slot ? (*slot)->bytes : 0;
        zr_result result = *slot ? ops->free(model, *slot) : ops->alloc(model, &event, &handle);
        failures += result == ZR_ERR_MEMORY;
        good = result == ZR_OK || (result == ZR_ERR_MEMORY && !*slot && !handle);
        if (handle) {
            const struct zr_model_block *block = handle;
            live_bytes += block->bytes;
            good = good && block->bytes >= event.bytes && block->allocated &&
                   (ops == &zr_model_bestfit || block->stream == event.stream);
        }
        *slot = handle;
        good = good && model->reserved_bytes >= live_bytes &&
               model->peak_reserved_bytes >= model->reserved_bytes &&
               (!capacity_bytes || model->peak_reserved_bytes <= capacity_bytes) &&
               (i % 500 != 0 || disjoint(slots));
    }
    tap_ok(good, "%s: %d random calls, %llu refused: blocks never overlap, the books hold", name, OPERATIONS,
           (unsigned long long)failures);
    tap_ok(!capacity_bytes == !failures, "%s: refusals come from the capacity", name);
    if (model)
        zr_model_end(model);
}

int main(int argc, char **argv)
{
    if (records_begin() != ZR_OK) {
        tap_ok(false, "an arena for the test: %s", zr_last_error());
        return tap_done();
    }
    if (argc > 1) {
        check_answers(argv[1], true);
        return tap_failed;
    }
    char none[] = "0 0 0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0"; /* with these PyTorch does not start */
    check_settings("max_split_size_mb:-1,garbage_collection_threshold:nan", none);
    check_settings("garbage_collection_threshold:-0.5", none);
    check_answers("tests/unit/defrag/torch_answers.txt", false);
    RUN(ZR_POLICY_CACHING, caching);
    RUN(ZR_POLICY_EXPANDABLE, expandable);
    RUN(ZR_POLICY_BESTFIT, bestfit);
    for (uint64_t capacity_bytes = 0; capacity_bytes <= 600 * MIB; capacity_bytes += 600 * MIB) {
        soak(&zr_model_caching, "caching", capacity_bytes);
        soak(&zr_model_expandable, "expandable", capacity_bytes);
        soak(&zr_model_bestfit, "bestfit", capacity_bytes);
    }
    tap_is(records_end(), 0, "every record went back to the arena");
    return tap_done();
}
