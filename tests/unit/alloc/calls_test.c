/* calls_test.c: the driver calls that an arena, a pool and a replay say they made, beside those that were
 * made: counted by functions before the backend's own (counting.h), and by the emulated CUDA driver itself.
 */
#include <pthread.h>

#include "defrag/zr_defrag.h"
#include "tests/support/counting.h"
#include "tests/support/cuda/cuda_support.h"
#include "tests/support/random.h"
#include "tests/support/records.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"

#define GRANULE ((size_t)2 << 20)
enum { SLOTS = 48, ENTRIES = 8, ROUNDS = 40, STEPS = 25, BLOCKS = 40 };
enum kind { SIM, HOST, GPU, KINDS };
static const char *const names[KINDS] = {"sim", "host", "emulated GPU"};

static const struct zr_emulator *emulator; /* NULL: not this one */
static zr_backend *backend;
static zr_arena *arena;
static zr_contiguous *pool;
static uint64_t random_state, driver_before;

/* As the emulated driver counted them. */
static uint64_t driver_calls(void)
{
    static const char *const calls[] = {"cuMemCreate", "cuMemRelease",   "cuMemMap",
                                        "cuMemUnmap",  "cuMemSetAccess", "cuEventRecord"};
    uint64_t sum = 0;
    for (size_t i = 0; emulator && i < sizeof calls / sizeof *calls; i++)
        sum += emulator->calls(calls[i]);
    return sum;
}

static uint64_t told(void)
{
    struct zr_arena_stats stats;
    zr_arena_get_stats(arena, &stats);
    return stats.backend_calls_count;
}

/* Whether all counts are the same, and, where some are due, not 0. */
static void compare(enum kind kind, bool some, const char *what)
{
    uint64_t counted = atomic_load(&counting.calls), said = told();
    tap_ok(said == counted && (said > 0) == some, "%s: %s: %llu calls told, %llu counted", names[kind], what,
           (unsigned long long)said, (unsigned long long)counted);
    if (emulator)
        tap_is(driver_calls() - driver_before, said, "and by the driver");
}

static bool begin(enum kind kind, unsigned threads)
{
    zr_result result =
        kind == SIM ? zr_backend_sim_create(
                          &backend, &(struct zr_sim_options){.granule_bytes = GRANULE, .work_ns = 2000})
        : kind == HOST
            ? zr_backend_host_create(&backend, &(struct zr_host_options){.granule_bytes = 65536})
            : zr_backend_cuda_create(&backend, &(struct zr_cuda_options){.granule_bytes = GRANULE});
    if (result == ZR_OK) {
        if (kind != SIM)
            count_calls(backend);
        counting.calls = 0;
        driver_before = driver_calls();
        result = zr_arena_create(
            &arena, &(struct zr_arena_options){.backend = backend,
                                               .threads = threads,
                                               .reserve_bytes = 8192 * backend->can.granule_bytes});
    }
    tap_result(result, ZR_OK, "%s: an arena", names[kind]);
    return result == ZR_OK;
}

static void end(void)
{
    zr_arena_destroy(arena, NULL);
    tap_result(zr_backend_destroy(backend), ZR_OK, "the backend's end");
}

/* ---- What comes, at random ----------------------------------------------------------------------------- */

static void random_steps(void **blocks)
{
    size_t granule = backend->can.granule_bytes;
    for (unsigned i = 0; i < STEPS; i++) {
        uint64_t dice = xorshift64(&random_state), slot = dice % SLOTS;
        if (blocks[slot]) {
            zr_arena_free(arena, blocks[slot]);
            blocks[slot] = NULL;
            continue;
        }
        zr_arena_alloc(arena,
                       &(struct zr_request){.bytes = 1 + (dice >> 16) % (dice % 3 ? granule : 7 * granule),
                                            .tag = ZR_TAG_OTHER,
                                            .stream = dice >> 12 & 1},
                       &blocks[slot]);
        if (dice >> 60 < 3)
            zr_block_use(arena, blocks[slot], !(dice >> 12 & 1));
    }
}

static void pool_steps(zr_entry *entries)
{
    for (unsigned i = 0; i < ENTRIES; i++) {
        void *address;
        uint64_t dice = xorshift64(&random_state);
        if (entries[i])
            zr_contiguous_free(pool, entries[i]);
        entries[i] = 0;
        if (dice & 1)
            zr_contiguous_append(
                pool,
                &(struct zr_entry_request){.bytes = 1 + (dice >> 8) % (3 * backend->can.granule_bytes),
                                           .movable = true},
                &entries[i], &address);
    }
    zr_contiguous_compact(pool);
}

/* Dynamic blocks on two streams, trims, and a pool that is compacted. */
static void test_random(enum kind kind)
{
    void *blocks[SLOTS] = {NULL};
    zr_entry entries[ENTRIES] = {0};
    struct zr_contiguous_stats stats;
    unsigned wrong = 0;
    if (!begin(kind, 1))
        return;
    compare(kind, false, "a fresh arena");
    for (unsigned round = 0; round < ROUNDS; round++) {
        random_steps(blocks);
        if (round % 3 == 0)
            zr_arena_trim(arena, round % 2 * 4 * backend->can.granule_bytes, NULL);
        wrong += told() != counting.calls;
    }
    compare(kind, true, "blocks on two streams");
    tap_result(
        zr_contiguous_create(&pool, &(struct zr_contiguous_options){.arena = arena, .tag = ZR_TAG_GRAD}),
        ZR_OK, "a pool");
    uint64_t before = counting.calls;
    for (unsigned round = 0; round < ROUNDS; round++) {
        pool_steps(entries);
        wrong += told() != counting.calls;
    }
    zr_contiguous_trim(pool, 0, NULL);
    zr_contiguous_get_stats(pool, &stats);
    compare(kind, true, "and a pool");
    tap_ok(stats.backend_calls_count > 0 && stats.backend_calls_count <= counting.calls - before,
           "of which the pool has %llu", (unsigned long long)stats.backend_calls_count);
    tap_is(wrong, 0, "at each of %d moments", 2 * ROUNDS);
    zr_contiguous_destroy(pool, NULL);
    end();
}

/* ---- A step that is learned ---------------------------------------------------------------------------- */

static void step(size_t unit)
{
    void *blocks[BLOCKS], *scratch;
    for (unsigned i = 0; i < BLOCKS; i++) {
        zr_arena_alloc(arena, &(struct zr_request){.bytes = unit * (1 + i % 5), .tag = ZR_TAG_OTHER},
                       &blocks[i]);
        zr_arena_alloc(arena, &(struct zr_request){.bytes = unit * (2 + i % 3) / 2, .tag = ZR_TAG_OTHER},
                       &scratch);
        zr_arena_free(arena, scratch);
    }
    for (unsigned i = BLOCKS; i-- > 0;)
        zr_arena_free(arena, blocks[i]);
}

static void test_planned(enum kind kind)
{
    zr_learner *learner;
    if (!begin(kind, 1))
        return;
    size_t unit = backend->can.granule_bytes / 3 * 2;
    tap_result(zr_learner_create(&learner, &(struct zr_learner_options){.arena = arena, .work = 1000000}),
               ZR_OK, "a learner");
    for (unsigned i = 0; i < 12; i++) {
        step(unit);
        zr_learner_wait(learner);
    }
    compare(kind, true, "a step that was learned");
    uint64_t before = counting.calls, driver = driver_calls();
    for (unsigned i = 0; i < 4; i++)
        step(unit);
    tap_ok(counting.calls == before && driver_calls() == driver, "%s: which calls nothing from then on",
           names[kind]);
    step(unit * 2);
    zr_learner_wait(learner);
    compare(kind, true, "and another");
    zr_learner_destroy(learner);
    compare(kind, true, "without its plan");
    end();
}

/* ---- Threads ------------------------------------------------------------------------------------------- */

static void *thread_steps(void *argument)
{
    for (unsigned i = 0; i < ROUNDS; i++)
        step(*(size_t *)argument);
    return NULL;
}

static void test_threads(enum kind kind)
{
    pthread_t others[2];
    if (!begin(kind, 2))
        return;
    size_t units[2] = {backend->can.granule_bytes / 3, backend->can.granule_bytes / 2};
    for (unsigned i = 0; i < 2; i++)
        pthread_create(&others[i], NULL, thread_steps, &units[i]);
    for (unsigned i = 0; i < 2; i++)
        pthread_join(others[i], NULL);
    zr_arena_trim(arena, 0, NULL);
    compare(kind, true, "two threads on an arena for two");
    end();
}

/* ---- Replay -------------------------------------------------------------------------------------------- */

/* The linker puts these before the real ones: the replay's own backend is counted, and what was counted when
 * its last repeat began and when all had been measured. */
#define WRAPPED(result, name, ...)                                                                           \
    result __real_##name(__VA_ARGS__);                                                                       \
    result __wrap_##name(__VA_ARGS__);                                                                       \
    result __wrap_##name(__VA_ARGS__)
static uint64_t counted_before, counted_at_end;

WRAPPED(zr_result, zr_backend_sim_create, zr_backend **out, const struct zr_sim_options *options)
{
    zr_result result = __real_zr_backend_sim_create(out, options);
    if (result == ZR_OK) {
        count_calls(*out);
        counting.calls = 0;
    }
    return result;
}

WRAPPED(zr_result, zr_arena_reset_peaks, zr_arena *which)
{
    counted_before = counting.calls;
    return __real_zr_arena_reset_peaks(which);
}

WRAPPED(void, zr_learner_destroy, zr_learner *learner)
{
    counted_at_end = counting.calls;
    __real_zr_learner_destroy(learner);
}

static void test_replay(void)
{
    static struct zr_event events[4 * BLOCKS];
    size_t count = 0;
    uint64_t lower_bound = 0;
    for (uint32_t i = 0; i < 2 * BLOCKS; i++) {
        uint64_t bytes = GRANULE / 3 * (1 + xorshift64(&random_state) % 7);
        events[count++] =
            (struct zr_event){.kind = ZR_EVENT_ALLOC, .tag = ZR_TAG_OTHER, .block = i, .bytes = bytes};
        if (i % 2)
            events[count++] = (struct zr_event){.kind = ZR_EVENT_FREE, .tag = ZR_TAG_OTHER, .block = i};
        lower_bound += bytes;
    }
    for (uint32_t i = 0; i < 2 * BLOCKS; i += 2)
        events[count++] = (struct zr_event){.kind = ZR_EVENT_FREE, .tag = ZR_TAG_OTHER, .block = i};
    struct zr_sequence sequence = {.events = events,
                                   .events_count = count,
                                   .blocks_count = 2 * BLOCKS,
                                   .lower_bound_bytes = lower_bound,
                                   .host_arena = host_arena,
                                   .format = "made up"};
    for (unsigned repeat = 1; repeat <= 8; repeat++) {
        struct zr_replay_report report;
        tap_result(zr_replay(&sequence, &(struct zr_replay_options){.repeat = repeat}, &report), ZR_OK,
                   "replayed %u times", repeat);
        tap_is(report.driver_calls, counted_at_end, "as many driver calls as were counted");
        tap_is(report.driver_calls_last_repeat, counted_at_end - counted_before, "and in the last repeat");
        tap_ok(report.driver_calls > 0 && (repeat > 1 || report.driver_calls_last_repeat > 0),
               "which are some");
    }
}

int main(void)
{
    random_state = run_seed() * UINT64_C(0x9e3779b97f4a7c15) | 1;
    tap_result(records_begin(), ZR_OK, "memory for records");
    for (enum kind kind = 0; kind < KINDS; kind++) {
        if (kind == GPU && !(emulator = cuda_emulator())) {
            tap_skip("an emulated GPU: %s", zr_last_error());
            continue;
        }
        test_random(kind);
        test_planned(kind);
        test_threads(kind);
    }
    emulator = NULL;
    test_replay();
    tap_is(records_end(), 0, "nothing is left behind");
    return tap_done();
}
