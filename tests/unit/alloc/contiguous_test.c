/* contiguous_test.c: contiguous pools on host memory and on sim: the two uses they are made for, moves by
 * mapping and by copies, random operations beside a model, threads, every failure in turn. (Forks:
 * fork_soak_test.c.) */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>

#include "alloc/base/fault.h"
#include "tests/support/contiguous_model.h"
#include "tests/support/seed.h"

/* ThreadSanitizer clears its shadow of every range that is released. */
#ifdef __SANITIZE_THREAD__
enum { EVERY_NTH = 31, THREAD_STEPS = 60 };
#else
enum { EVERY_NTH = 1, THREAD_STEPS = 600 };
#endif

#define KIB     ((size_t)1 << 10)
#define GRANULE (64 * KIB)

static struct made make(const struct zr_contiguous_options *options, size_t limit_bytes)
{
    struct made made;
    struct zr_contiguous_options with = *options;
    tap_result(zr_backend_host_create(&made.backend, &(struct zr_host_options){.granule_bytes = GRANULE}),
               ZR_OK, "a backend");
    tap_result(zr_arena_create(&made.arena, &(struct zr_arena_options){.backend = made.backend,
                                                                       .limit_bytes = limit_bytes}),
               ZR_OK, "an arena");
    with.arena = made.arena;
    tap_result(zr_contiguous_create(&made.pool, &with), ZR_OK, "a pool");
    return made;
}

static void end(struct made *made)
{
    tap_ok(unmake(made), "the end of the pool, a sound arena and the backend, with nothing leaked");
}

static zr_entry append(zr_contiguous *pool, size_t bytes, size_t alignment, bool movable)
{
    zr_entry entry;
    return zr_contiguous_append(
               pool, &(struct zr_entry_request){.bytes = bytes, .alignment = alignment, .movable = movable},
               &entry, NULL) == ZR_OK
               ? entry
               : 0;
}

static char *address_of(zr_contiguous *pool, zr_entry entry)
{
    void *address = NULL;
    if (zr_contiguous_borrow(pool, entry, &address) == ZR_OK)
        zr_contiguous_return(pool, entry, 0);
    return address;
}

static void fill(char *address, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        address[i] = (char)((i * 31 + (i >> 8) * 7 + seed * 13) & 0xff);
}

static bool filled(const char *address, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        if (address[i] != (char)((i * 31 + (i >> 8) * 7 + seed * 13) & 0xff))
            return false;
    return true;
}

/* ---- Streams that are late ----------------------------------------------------------------------------- */

static void test_late(void)
{
    struct made made;
    zr_entry entries[2];
    size_t released = 0;
    zr_backend_sim_create(&made.backend, &(struct zr_sim_options){.granule_bytes = GRANULE, .work_ns = 1000});
    zr_arena_create(&made.arena, &(struct zr_arena_options){.backend = made.backend});
    zr_contiguous_create(&made.pool, &(struct zr_contiguous_options){.arena = made.arena});
    for (unsigned i = 0; i < 2; i++)
        entries[i] = append(made.pool, 3 * GRANULE, 0, true);
    zr_contiguous_free(made.pool, entries[1]);
    zr_contiguous_trim(made.pool, 0, &released);
    tap_ok(released == 0 && stats_of(made.pool).pending_bytes == 3 * GRANULE, "what a stream uses stays");
    zr_sim_clock_advance(made.backend, 1000);
    zr_contiguous_trim(made.pool, 0, &released);
    tap_ok(released == 3 * GRANULE && stats_of(made.pool).pending_bytes == 0, "until a trim finds it passed");
    zr_contiguous_free(made.pool, entries[0]);
    end(&made);
}

/* ---- Activation checkpoints: pushed forward, popped backward ------------------------------------------- */

enum { LAYERS = 24 };

/* One step. Returns how often the waste was above one granule, or contents were wrong. */
static unsigned checkpoint_step(zr_contiguous *pool, unsigned seed)
{
    zr_entry entries[LAYERS];
    void *addresses[LAYERS];
    size_t bytes[LAYERS];
    unsigned wrong = 0;
    for (unsigned i = 0; i < LAYERS; i++) {
        bytes[i] = 100000 + i % 5 * 31777 + seed % 3 * 512;
        wrong += zr_contiguous_append(pool, &(struct zr_entry_request){.bytes = bytes[i]}, &entries[i],
                                      &addresses[i]) != ZR_OK;
        fill(addresses[i], bytes[i], i + seed);
        struct zr_contiguous_stats stats = stats_of(pool);
        wrong += stats.stranded_bytes >= GRANULE;
        wrong += stats.mapped_bytes - stats.idle_bytes - stats.live_bytes >= GRANULE;
    }
    for (unsigned i = LAYERS; i-- > 0;) {
        wrong += !filled(addresses[i], bytes[i], i + seed);
        wrong += zr_contiguous_free(pool, entries[i]) != ZR_OK;
        wrong += stats_of(pool).stranded_bytes >= GRANULE;
    }
    return wrong;
}

static void test_checkpoints(void)
{
    struct made made = make(&(struct zr_contiguous_options){.tag = ZR_TAG_CHECKPOINT}, 0);
    struct zr_arena_stats stats;
    tap_is(checkpoint_step(made.pool, 1), 0, "%d checkpoints: contents, and never a granule stranded",
           LAYERS);
    tap_is(stats_of(made.pool).mapped_bytes, 0, "all granules are back with the arena after the step");
    zr_arena_get_stats(made.arena, &stats);
    tap_ok(stats.peak_live_bytes == stats_of(made.pool).peak_live_bytes &&
               stats.peak_by_tag_bytes[ZR_TAG_CHECKPOINT] == stats.peak_live_bytes && stats.live_bytes == 0,
           "they count in the arena's peak and its tags");
    tap_ok(stats.peak_reserved_bytes - stats.peak_live_bytes < GRANULE,
           "the arena never held a granule more than the checkpoints");
    end(&made);

    made = make(&(struct zr_contiguous_options){.tag = ZR_TAG_CHECKPOINT, .keep_bytes = SIZE_MAX}, 0);
    unsigned wrong = checkpoint_step(made.pool, 1) + checkpoint_step(made.pool, 2);
    uint64_t calls = stats_of(made.pool).backend_calls_count;
    for (unsigned i = 0; i < 20; i++)
        wrong += checkpoint_step(made.pool, i);
    tap_is(wrong, 0, "with keep_bytes, 22 steps");
    tap_is(stats_of(made.pool).backend_calls_count - calls, 0, "and no backend call after the second");
    size_t held = stats_of(made.pool).mapped_bytes, released;
    tap_result(zr_contiguous_trim(made.pool, 3 * GRANULE, &released), ZR_OK, "a trim");
    tap_is(released, held - 3 * GRANULE, "down to what it shall keep");
    end(&made);
}

/* ---- Gradients: written where they are produced, reduced in buckets from there ------------------------- */

enum { GRADIENTS = 60 };

static size_t elements_of(unsigned gradient)
{
    return gradient % 4 == 0 ? 40000 + gradient * 4 : 4 * (1 + gradient * 37 % 900);
}

static void test_gradients(void)
{
    struct made made = make(&(struct zr_contiguous_options){.tag = ZR_TAG_GRAD}, 0);
    zr_entry entries[GRADIENTS];
    void *gradients[GRADIENTS];
    bool contiguous = true;
    unsigned wrong = 0;
    for (unsigned i = 0; i < GRADIENTS; i++) {
        struct zr_entry_request request = {.bytes = elements_of(i) * sizeof(float), .alignment = 16};
        wrong += zr_contiguous_append(made.pool, &request, &entries[i], &gradients[i]) != ZR_OK;
        memset(gradients[i], (int)i, request.bytes);
        contiguous &= i == 0 || (float *)gradients[i] == (float *)gradients[i - 1] + elements_of(i - 1);
        contiguous &= stats_of(made.pool).stranded_bytes < GRANULE;
    }
    tap_ok(contiguous, "gradients lie one behind the other, and never a granule is stranded");
    struct zr_block_info found;
    char *inside = (char *)gradients[3] + 5;
    tap_result(zr_arena_find(made.arena, inside, &found), ZR_OK, "an entry is found by any of its bytes");
    tap_ok(found.address == gradients[3] && found.bytes == elements_of(3) * sizeof(float) &&
               found.tag == ZR_TAG_GRAD,
           "as the block that it is");
    /* Freed as they are reduced, the first first: one partial granule at each end. */
    for (unsigned i = 0; i < GRADIENTS; i++) {
        const char *bytes = gradients[i];
        wrong += bytes[0] != (char)i || bytes[elements_of(i) * sizeof(float) - 1] != (char)i;
        wrong += zr_contiguous_free(made.pool, entries[i]) != ZR_OK;
        wrong += stats_of(made.pool).stranded_bytes >= 2 * GRANULE;
    }
    tap_result(zr_arena_find(made.arena, inside, &found), ZR_ERR_FOREIGN, "and not after its free");
    tap_is(wrong, 0, "freed from the front, a partial granule at each end is the most that is stranded");
    end(&made);
}

/* ---- Moves --------------------------------------------------------------------------------------------- */

static void test_remap(void)
{
    struct made made = make(&(struct zr_contiguous_options){.tag = ZR_TAG_OTHER}, 0);
    zr_entry low = append(made.pool, 4 * GRANULE, GRANULE, true);
    zr_entry big = append(made.pool, 3 * GRANULE + 1000, GRANULE, true);
    zr_entry tall = append(made.pool, 9 * GRANULE, GRANULE, true);
    char *was = address_of(made.pool, big);
    fill(was, 3 * GRANULE + 1000, 1);
    fill(address_of(made.pool, tall), 9 * GRANULE, 2);
    zr_contiguous_free(made.pool, low);
    tap_is(stats_of(made.pool).mapped_bytes, 13 * GRANULE, "the hole's granules went at once");
    tap_result(zr_contiguous_compact(made.pool), ZR_OK, "a compaction");
    struct zr_contiguous_stats stats = stats_of(made.pool);
    tap_is(was - address_of(made.pool, big), 4 * GRANULE, "the first entry moved down by the hole");
    tap_ok(filled(address_of(made.pool, big), 3 * GRANULE + 1000, 1) &&
               filled(address_of(made.pool, tall), 9 * GRANULE, 2),
           "the contents of both came along");
    tap_is(stats.copied_bytes, 1000, "nothing was copied but the partial granule");
    tap_is(stats.remapped_bytes, (3 + 9 + 9) * GRANULE,
           "the one that overlaps its new place went the way round");
    tap_ok(stats.mapped_bytes == 13 * GRANULE && stats.pending_bytes == 0, "no granule more than before");
    tap_result(zr_contiguous_check(made.pool), ZR_OK, "sound");
    zr_contiguous_free(made.pool, big);
    zr_contiguous_free(made.pool, tall);
    tap_is(stats_of(made.pool).mapped_bytes, 0, "all granules are back");
    end(&made);
}

static void test_slide(void)
{
    struct made made = make(&(struct zr_contiguous_options){.tag = ZR_TAG_OTHER}, 0);
    static const size_t holes[] = {256, 9 * KIB, 40 * KIB, 5 * GRANULE};
    for (unsigned i = 0; i < sizeof holes / sizeof *holes; i++) {
        zr_entry hole = append(made.pool, holes[i], 0, true);
        zr_entry entry = append(made.pool, 4 * GRANULE + 777, 0, true);
        char *was = address_of(made.pool, entry);
        fill(was, 4 * GRANULE + 777, i);
        zr_contiguous_free(made.pool, hole);
        tap_result(zr_contiguous_compact(made.pool), ZR_OK, "a compaction over a hole of %zu bytes",
                   holes[i]);
        char *is = address_of(made.pool, entry);
        tap_ok(was - is == (ptrdiff_t)holes[i] && filled(is, 4 * GRANULE + 777, i),
               "slid down, contents whole");
        tap_is(stats_of(made.pool).mapped_bytes, 5 * GRANULE, "in as many granules as it needs");
        tap_result(zr_contiguous_check(made.pool), ZR_OK, "sound");
        zr_contiguous_free(made.pool, entry);
    }
    end(&made);
}

static void test_pins(void)
{
    struct made made = make(&(struct zr_contiguous_options){.tag = ZR_TAG_OTHER}, 0);
    void *pinned, *fixed;
    zr_entry entries[6];
    for (unsigned i = 0; i < 6; i++)
        entries[i] = append(made.pool, 3 * GRANULE / 2, 0, true);
    zr_contiguous_append(made.pool, &(struct zr_entry_request){.bytes = 500}, &(zr_entry){0}, &fixed);
    zr_contiguous_borrow(made.pool, entries[3], &pinned);
    fill(pinned, 1000, 7);
    zr_contiguous_free(made.pool, entries[0]);
    zr_contiguous_free(made.pool, entries[2]);
    zr_contiguous_free(made.pool, entries[5]);
    char *was = address_of(made.pool, entries[4]);
    tap_result(zr_contiguous_compact(made.pool), ZR_OK, "a compaction around a borrowed entry");
    void *again;
    zr_contiguous_borrow(made.pool, entries[3], &again);
    tap_ok(again == pinned && filled(pinned, 1000, 7), "it did not move");
    zr_contiguous_return(made.pool, entries[3], 0);
    tap_ok(address_of(made.pool, entries[4]) == was, "the one behind it had nowhere to go");
    tap_result(zr_contiguous_free(made.pool, entries[3]), ZR_ERR_INVALID, "a borrowed entry is not freed");
    tap_is(stats_of(made.pool).borrowed_count, 1, "one is borrowed");
    tap_result(zr_contiguous_return(made.pool, entries[3], 0), ZR_OK, "returned");
    tap_result(zr_contiguous_return(made.pool, entries[3], 0), ZR_ERR_INVALID, "once only");
    tap_result(zr_contiguous_compact(made.pool), ZR_OK, "and now");
    tap_ok(address_of(made.pool, entries[3]) < (char *)pinned && address_of(made.pool, entries[4]) < was,
           "they close up");
    tap_ok(filled(address_of(made.pool, entries[3]), 1000, 7), "with their contents");
    struct zr_contiguous_stats stats = stats_of(made.pool);
    tap_ok(stats.mapped_bytes - stats.live_bytes < 3 * GRANULE, "but for the hole before the fixed one");
    size_t leaked;
    zr_contiguous_destroy(made.pool, &leaked);
    tap_is(leaked, stats.live_bytes, "what still lives is told at the end");
    zr_arena_destroy(made.arena, NULL);
    zr_backend_destroy(made.backend);
}

/* ---- The contract -------------------------------------------------------------------------------------- */

static void test_refusals(void)
{
    struct made made =
        make(&(struct zr_contiguous_options){.tag = ZR_TAG_OTHER, .reserve_bytes = 8 * GRANULE}, 6 * GRANULE);
    zr_contiguous *other;
    zr_entry entry, second;
    void *address;
    struct zr_entry_request request = {.bytes = 100, .movable = true};
    const struct {
        const char *words;
        struct zr_contiguous_options options;
    } pools[] = {
        {"a pool without an arena", {.tag = ZR_TAG_OTHER}},
        {"a reservation that overflows", {.arena = made.arena, .reserve_bytes = SIZE_MAX - 5}},
    };
    const struct {
        const char *words;
        struct zr_entry_request request;
        zr_result result;
    } appends[] = {
        {"a size that overflows", {.bytes = SIZE_MAX - 3}, ZR_ERR_INVALID},
        {"more than the reservation", {.bytes = 9 * GRANULE}, ZR_ERR_ADDRESSES},
        {"more than the arena's limit", {.bytes = 7 * GRANULE}, ZR_ERR_MEMORY},
    };
    tap_result(zr_arena_destroy(made.arena, NULL), ZR_ERR_INVALID, "no arena ends under a pool");
    tap_result(zr_contiguous_create(NULL, NULL), ZR_ERR_INVALID, "a pool with nowhere to go");
    tap_result(zr_contiguous_create(&other, NULL), ZR_ERR_INVALID, "a pool without options");
    for (unsigned i = 0; i < sizeof pools / sizeof *pools; i++)
        tap_result(zr_contiguous_create(&other, &pools[i].options), ZR_ERR_INVALID, "%s", pools[i].words);
    for (unsigned i = 0; i < sizeof appends / sizeof *appends; i++)
        tap_result(zr_contiguous_append(made.pool, &appends[i].request, &entry, NULL), appends[i].result,
                   "%s", appends[i].words);
    tap_ok(strstr(zr_last_error(), "limit") != NULL, "said so: %s", zr_last_error());
    tap_is(stats_of(made.pool).mapped_bytes, 0, "nothing was kept of the attempt");
    tap_result(zr_contiguous_append(made.pool, &request, NULL, NULL), ZR_ERR_INVALID,
               "an entry with nowhere to go");
    tap_result(zr_contiguous_append(made.pool, &request, &entry, &address), ZR_OK, "an entry");
    tap_ok(address == NULL, "a movable one has no address until it is borrowed");
    tap_result(zr_contiguous_borrow(made.pool, entry, NULL), ZR_ERR_INVALID, "a borrow with nowhere to go");
    tap_result(zr_contiguous_borrow(made.pool, 0, &address), ZR_ERR_FOREIGN, "no entry");
    tap_result(zr_contiguous_borrow(made.pool, entry + 1, &address), ZR_ERR_FOREIGN,
               "an entry that never was");
    tap_result(zr_contiguous_borrow(made.pool, entry + (UINT64_C(1) << 32), &address), ZR_ERR_FOREIGN,
               "nor is to come");
    tap_result(zr_contiguous_free(made.pool, 0), ZR_OK, "nothing is freed");
    tap_result(zr_contiguous_free(made.pool, entry), ZR_OK, "freed");
    tap_result(zr_contiguous_free(made.pool, entry), ZR_ERR_DOUBLE_FREE, "and again");
    tap_result(zr_contiguous_append(made.pool, &request, &second, NULL), ZR_OK, "another in its slot");
    tap_ok(second != entry, "has another handle");
    tap_result(zr_contiguous_free(made.pool, entry), ZR_ERR_DOUBLE_FREE, "the old handle still is no entry");
    tap_result(zr_contiguous_free(made.pool, second), ZR_OK, "freed");
    /* A queue runs through the addresses; compaction starts it over. */
    zr_entry window[3] = {0};
    unsigned moved = 0, wrong = 0;
    for (unsigned i = 0; i < 40; i++) {
        wrong += zr_contiguous_free(made.pool, window[i % 3]) != ZR_OK;
        zr_result result = zr_contiguous_append(
            made.pool, &(struct zr_entry_request){.bytes = GRANULE, .movable = true}, &window[i % 3], NULL);
        if (result == ZR_ERR_ADDRESSES) {
            moved++;
            wrong += zr_contiguous_compact(made.pool) != ZR_OK;
            window[i % 3] = append(made.pool, GRANULE, 0, true);
            wrong += window[i % 3] == 0;
        }
    }
    tap_ok(wrong == 0 && moved > 3, "a queue of entries goes on for ever with a compaction now and then (%u)",
           moved);
    for (unsigned i = 0; i < 3; i++)
        zr_contiguous_free(made.pool, window[i]);
    tap_ok(zr_contiguous_free(NULL, 1) == ZR_ERR_INVALID &&
               zr_contiguous_return(NULL, 1, 0) == ZR_ERR_INVALID &&
               zr_contiguous_compact(NULL) == ZR_ERR_INVALID &&
               zr_contiguous_trim(NULL, 0, NULL) == ZR_ERR_INVALID &&
               zr_contiguous_get_stats(NULL, NULL) == ZR_ERR_INVALID &&
               zr_contiguous_check(NULL) == ZR_ERR_INVALID && zr_contiguous_destroy(NULL, NULL) == ZR_OK,
           "calls without a pool");
    end(&made);
}

/* ---- Callbacks ----------------------------------------------------------------------------------------- */

struct registry {
    const char *granules[4096]; /* NULL: a free place */
    unsigned count, wrong;
};

static const char **place_of(struct registry *registry, const char *granule)
{
    for (unsigned i = 0; i < 4096; i++)
        if (registry->granules[i] == granule)
            return &registry->granules[i];
    return NULL;
}

static zr_result registered(void *argument, void *address, size_t bytes)
{
    struct registry *registry = argument;
    for (const char *at = address; at < (char *)address + bytes; at += GRANULE) {
        registry->wrong += place_of(registry, at) != NULL;
        *place_of(registry, NULL) = at;
        registry->count++;
    }
    return ZR_OK;
}

static void unregistered(void *argument, void *address, size_t bytes)
{
    struct registry *registry = argument;
    for (const char *at = address; at < (char *)address + bytes; at += GRANULE) {
        const char **place = place_of(registry, at);
        registry->wrong += place == NULL;
        registry->count--;
        if (place)
            *place = NULL;
    }
}

/* ---- Random operations beside the model ---------------------------------------------------------------- */

static void test_model(const char *name, zr_backend *backend, bool fills, uint64_t seed, unsigned steps,
                       size_t keep_granules)
{
    static const uint64_t streams[MODEL_STREAMS] = {0, 1, 2};
    static struct registry registry;
    struct made made = {.backend = backend};
    registry = (struct registry){.wrong = 0};
    zr_arena_create(&made.arena,
                    &(struct zr_arena_options){.backend = backend, .limit_bytes = 140 * GRANULE});
    zr_contiguous_create(
        &made.pool, &(struct zr_contiguous_options){.arena = made.arena,
                                                    .tag = ZR_TAG_CHECKPOINT,
                                                    .reserve_bytes = 1500 * GRANULE,
                                                    .keep_bytes = keep_granules * GRANULE,
                                                    .map_callback = {registered, unregistered, &registry}});
    model_run(name, &made, fills, streams, seed, steps);
    tap_ok(registry.wrong == 0 && registry.count * GRANULE == stats_of(made.pool).mapped_bytes,
           "%s: every granule was registered and unregistered as it came and went", name);
    end(&made);
    tap_is(registry.count, 0, "%s: nothing stays registered", name);
}

static void test_models(uint64_t seed, unsigned steps)
{
    const struct zr_sim_options with_streams = {
        .granule_bytes = GRANULE,
        .work_ns = 100000,
        .call_ns = {[ZR_BACKEND_MAP] = 2000, [ZR_BACKEND_COPY] = 5000}};
    zr_backend *backend;
    for (unsigned keep = 0; keep <= 20; keep += 20) {
        zr_backend_host_create(&backend, &(struct zr_host_options){.granule_bytes = GRANULE});
        test_model(keep ? "host, keeping granules" : "host", backend, true, seed + keep, steps, keep);
        zr_backend_sim_create(&backend, &with_streams);
        test_model(keep ? "sim, keeping granules" : "sim", backend, false, seed + keep, steps, keep);
    }
}

/* ---- Threads ------------------------------------------------------------------------------------------- */

enum { THREADS = 4 };

struct worker {
    zr_contiguous *pool;
    _Atomic unsigned *running;
    uint64_t random;
    unsigned number, steps, wrong;
};

static void *work(void *argument)
{
    struct worker *worker = argument;
    struct {
        zr_entry entry;
        size_t bytes;
        unsigned seed;
    } own[12] = {0};
    for (unsigned step = 0; step < worker->steps; step++) {
        worker->random = worker->random * UINT64_C(6364136223846793005) + 1442695040888963407u;
        unsigned i = (unsigned)(worker->random >> 33) % 12;
        void *address;
        if (!own[i].entry) {
            own[i].bytes = 100 + (worker->random >> 40) % (2 * GRANULE);
            own[i].seed = worker->number + step;
            own[i].entry = append(worker->pool, own[i].bytes, step % 5 ? 0 : GRANULE, true);
            if (!own[i].entry)
                continue;
            worker->wrong += zr_contiguous_borrow(worker->pool, own[i].entry, &address) != ZR_OK;
            fill(address, own[i].bytes, own[i].seed);
            worker->wrong += zr_contiguous_return(worker->pool, own[i].entry, 0) != ZR_OK;
        } else {
            worker->wrong += zr_contiguous_borrow(worker->pool, own[i].entry, &address) != ZR_OK;
            worker->wrong += !filled(address, own[i].bytes, own[i].seed);
            worker->wrong += zr_contiguous_return(worker->pool, own[i].entry, 0) != ZR_OK;
            worker->wrong += zr_contiguous_free(worker->pool, own[i].entry) != ZR_OK;
            own[i].entry = 0;
        }
    }
    for (unsigned i = 0; i < 12; i++)
        worker->wrong += zr_contiguous_free(worker->pool, own[i].entry) != ZR_OK;
    atomic_fetch_sub(worker->running, 1);
    return NULL;
}

static void test_threads(uint64_t seed)
{
    struct made made = make(&(struct zr_contiguous_options){.tag = ZR_TAG_OTHER}, 0);
    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    _Atomic unsigned running = THREADS;
    unsigned wrong = 0, rounds = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){made.pool, &running, seed + i, i * 1000, THREAD_STEPS, 0};
        pthread_create(&threads[i], NULL, work, &workers[i]);
    }
    while (atomic_load(&running) > 0) {
        void *block;
        wrong += zr_contiguous_compact(made.pool) != ZR_OK;
        wrong += zr_contiguous_check(made.pool) != ZR_OK || zr_arena_check(made.arena) != ZR_OK;
        wrong += zr_arena_alloc(made.arena, &(struct zr_request){.bytes = GRANULE * 3}, &block) != ZR_OK ||
                 zr_arena_free(made.arena, block) != ZR_OK;
        rounds++;
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        wrong += workers[i].wrong;
    }
    tap_is(wrong, 0, "%d threads beside %u compactions: contents and records", THREADS, rounds);
    tap_is(stats_of(made.pool).mapped_bytes, 0, "and nothing left");
    end(&made);
}

/* ---- Every failure in turn ----------------------------------------------------------------------------- */

#define LIFE_GRANULE (8 * KIB)

/* A short life with every kind of move. Counts what should not be, whatever fails. */
static void life(unsigned *failures, unsigned *wrong)
{
    struct made made = {0};
    zr_entry entries[16] = {0};
    size_t bytes[16];
    zr_result result =
        zr_backend_host_create(&made.backend, &(struct zr_host_options){.granule_bytes = LIFE_GRANULE});
    if (result == ZR_OK)
        result =
            zr_arena_create(&made.arena, &(struct zr_arena_options){.backend = made.backend,
                                                                    .reserve_bytes = 256 * LIFE_GRANULE});
    if (result == ZR_OK)
        result = zr_contiguous_create(&made.pool, &(struct zr_contiguous_options){.arena = made.arena});
    *failures += result != ZR_OK;
    for (unsigned step = 0; result == ZR_OK && step < 48; step++) {
        unsigned i = step * 7 % 16;
        void *address;
        if (!entries[i]) {
            bytes[i] = (i % 3 ? 300 + i * LIFE_GRANULE / 16 : (1 + i % 5) * LIFE_GRANULE) + step;
            entries[i] = append(made.pool, bytes[i], i % 3 ? 0 : LIFE_GRANULE, true);
            *failures += entries[i] == 0;
            if (entries[i])
                fill(address_of(made.pool, entries[i]), bytes[i], i);
        } else if (step % 3) {
            *failures += zr_contiguous_free(made.pool, entries[i]) != ZR_OK;
            entries[i] = 0;
        }
        if (step % 5 == 4)
            *failures += zr_contiguous_compact(made.pool) != ZR_OK;
        *wrong += zr_contiguous_check(made.pool) != ZR_OK || zr_arena_check(made.arena) != ZR_OK;
        for (unsigned k = 0; k < 16; k++)
            if (entries[k] &&
                (zr_contiguous_borrow(made.pool, entries[k], &address) != ZR_OK ||
                 !filled(address, bytes[k], k) || zr_contiguous_return(made.pool, entries[k], 0) != ZR_OK))
                ++*wrong;
    }
    *wrong += !unmake(&made);
}

static void test_faults(void)
{
    static const enum zr_fault_site sites[] = {ZR_FAULT_RESERVE, ZR_FAULT_CREATE, ZR_FAULT_MAP,
                                               ZR_FAULT_ACCESS, ZR_FAULT_METADATA};
    for (unsigned i = 0; i < sizeof sites / sizeof *sites; i++) {
        unsigned wrong = 0, failures = 0;
        uint64_t nth = 1, passes;
        for (;; nth += EVERY_NTH > 1 ? EVERY_NTH : run_stride(4)) {
            zr_fault_set(sites[i], nth);
            life(&failures, &wrong);
            passes = zr_fault_set(sites[i], 0);
            if (passes < nth)
                break;
        }
        tap_ok(wrong == 0 && failures > 0,
               "a failure at each of %llu passes of `%s` (%u told): entries intact",
               (unsigned long long)nth - 1, zr_fault_site_name(sites[i]), failures);
    }
}

int main(int count, char **arguments)
{
    uint64_t seed = run_seed();
    test_late();
    test_checkpoints();
    test_gradients();
    test_remap();
    test_slide();
    test_pins();
    test_refusals();
    test_models(seed, count > 1 ? (unsigned)atoi(arguments[1]) : 4000);
    test_threads(seed);
    test_faults();
    return tap_done();
}
