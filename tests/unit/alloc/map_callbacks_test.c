/* map_callbacks_test.c: who watches an arena's maps hears of each granule when it comes and when it goes, on
 * every backend, with threads, with drivers that refuse and watches that do. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/core/arena.h"
#include "alloc/front/stripes.h"
#include "alloc/plan/plan.h"
#include "alloc/pool/contiguous.h"
#include "alloc/base/fault.h"
#include "tests/support/child.h"
#include "tests/support/cuda/cuda_support.h"
#include "tests/support/tap.h"

#define GRANULE ((size_t)2 << 20)

static const struct zr_emulator *emulator; /* NULL on a card, or without CUDA */

/* What a communication library would have registered: granules of up to eight ranges. */
enum { RANGES = 8, GRANULES = 4096 };

struct registry {
    char *ranges[RANGES];
    bool known[RANGES][GRANULES];
    size_t count;
    unsigned calls, goings, wrong;
    unsigned refuse_nth; /* of the calls; 0: none */
};

/* The range that the address is in: one begins where none is within reach. */
static bool *granule_of(struct registry *registry, char *address)
{
    for (unsigned i = 0; i < RANGES; i++) {
        if (!registry->ranges[i])
            registry->ranges[i] = address - GRANULES / 2 * GRANULE;
        size_t at = (size_t)(address - registry->ranges[i]);
        if (at < GRANULES * GRANULE)
            return &registry->known[i][at / GRANULE];
    }
    return NULL;
}

static void change(struct registry *registry, void *address, size_t bytes, bool to)
{
    registry->wrong += (uintptr_t)address % GRANULE != 0 || bytes % GRANULE != 0 || bytes == 0;
    for (size_t done = 0; done < bytes; done += GRANULE) {
        bool *known = granule_of(registry, (char *)address + done);
        if (!known || *known == to) {
            registry->wrong++;
            continue;
        }
        *known = to;
        registry->count += to ? 1 : (size_t)-1;
    }
}

static zr_result came(void *argument, void *address, size_t bytes)
{
    struct registry *registry = argument;
    if (++registry->calls == registry->refuse_nth)
        return ZR_ERR_TIMEOUT;
    change(registry, address, bytes, true);
    return ZR_OK;
}

static void goes(void *argument, void *address, size_t bytes)
{
    struct registry *registry = argument;
    registry->goings++;
    change(registry, address, bytes, false);
}

static struct zr_map_callback watch_of(struct registry *registry)
{
    return (struct zr_map_callback){came, goes, registry};
}

static size_t mapped(zr_arena *arena)
{
    struct zr_arena_stats stats;
    zr_arena_get_stats(arena, &stats);
    return stats.mapped_bytes;
}

static void *take(zr_arena *arena, size_t bytes)
{
    void *block;
    return zr_arena_alloc(arena, &(struct zr_request){.bytes = bytes}, &block) == ZR_OK ? block : NULL;
}

/* ---- Random operations --------------------------------------------------------------------------------- */

enum { BLOCKS = 64 };

/* Blocks come and go, some are refused; at the end all are gone. Returns how many were refused. */
static unsigned live(zr_arena *arena, uint64_t random, unsigned steps)
{
    void *blocks[BLOCKS] = {NULL};
    unsigned refused = 0;
    for (unsigned i = 0; i < steps; i++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
        unsigned place = (unsigned)(random >> 33) % BLOCKS;
        size_t bytes = (size_t)1 << (10 + (random >> 40) % 14);
        if (blocks[place]) {
            zr_arena_free(arena, blocks[place]);
            blocks[place] = NULL;
        } else {
            blocks[place] = take(arena, bytes + (random >> 50));
            refused += !blocks[place];
        }
        if (i % 97 == 0)
            zr_arena_trim(arena, (random >> 45) % 8 * GRANULE, NULL);
    }
    for (unsigned i = 0; i < BLOCKS; i++)
        zr_arena_free(arena, blocks[i]);
    return refused;
}

static void test_backend(const char *name, zr_backend *backend)
{
    static struct registry all, late;
    zr_arena *arena;
    struct zr_map_callback first = watch_of(&all), second = watch_of(&late);
    all = late = (struct registry){.wrong = 0};
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend,
                                                       .reserve_bytes = 1200 * GRANULE,
                                                       .limit_bytes = 40 * GRANULE});
    tap_result(zr_arena_add_map_callback(arena, &first), ZR_OK, "%s: a watch", name);
    live(arena, 1, 3000);
    tap_ok(all.wrong == 0 && all.calls > 20 && all.count * GRANULE == mapped(arena),
           "%s: %u calls for granules that came, %u for some that went, and %zu are there", name, all.calls,
           all.goings, all.count);
    void *block = take(arena, 5 * GRANULE);
    unsigned calls = all.calls;
    zr_arena_trim(arena, 0, NULL);
    tap_ok(take(arena, 9 * GRANULE) && all.calls <= calls + 1, "%s: nine granules in a row are one call",
           name);
    tap_result(zr_arena_add_map_callback(arena, &second), ZR_OK, "%s: one that comes later", name);
    tap_is(late.count * GRANULE, mapped(arena), "%s: hears of what is there", name);
    live(arena, 2, 1000);
    tap_ok(late.wrong == 0 && all.wrong == 0 && late.count == all.count, "%s: and of what comes", name);
    tap_result(zr_arena_remove_map_callback(arena, &second), ZR_OK, "%s: and leaves", name);
    tap_is(late.count, 0, "%s: told that everything goes", name);
    tap_result(zr_arena_remove_map_callback(arena, &second), ZR_ERR_INVALID, "%s: twice: %s", name,
               zr_last_error());
    tap_result(zr_arena_add_map_callback(arena, &second), ZR_OK, "%s: comes again", name);
    tap_result(zr_arena_remove_map_callback(arena, &first), ZR_OK, "%s: the one before it leaves", name);
    live(arena, 3, 1000);
    tap_ok(late.wrong == 0 && late.count * GRANULE == mapped(arena), "%s: and it still hears", name);
    tap_result(zr_arena_check(arena), ZR_OK, "%s: sound", name);
    tap_ok(block && mapped(arena) > 0, "%s: blocks are live when the arena ends", name);
    tap_result(zr_arena_destroy(arena, NULL), ZR_OK, "%s: its end", name);
    tap_ok(all.count + late.count == 0 && all.wrong == 0 && late.wrong == 0, "%s: is told", name);
}

/* ---- Refusals ------------------------------------------------------------------------------------------ */

/* Each call of each of two watches is refused in turn; each time all is as before the request. */
static void test_refusals(const char *name, zr_backend *backend)
{
    static struct registry one, other;
    unsigned wrong = 0, refused = 0;
    for (unsigned nth = 1; nth <= 60; nth++) {
        zr_arena *arena;
        struct zr_map_callback map_callbacks[2] = {watch_of(&one), watch_of(&other)};
        memset(&one, 0, sizeof one);
        memset(&other, 0, sizeof other);
        (nth % 2 ? &one : &other)->refuse_nth = (nth + 1) / 2;
        zr_arena_create(&arena,
                        &(struct zr_arena_options){.backend = backend, .reserve_bytes = 1200 * GRANULE});
        zr_arena_add_map_callback(arena, &map_callbacks[0]);
        zr_arena_add_map_callback(arena, &map_callbacks[1]);
        refused += live(arena, 3, 400);
        wrong += one.wrong + other.wrong + (one.count != other.count) +
                 (one.count * GRANULE != mapped(arena)) + (zr_arena_check(arena) != ZR_OK);
        zr_arena_destroy(arena, NULL);
        wrong += one.count + other.count;
        wrong += backend->held_bytes > 0;
    }
    tap_ok(refused > 40, "%s: %u requests failed for a watch that refused their memory", name, refused);
    tap_is(wrong, 0, "%s: what it refused is gone, and nobody knows of it", name);
}

static void test_reasons(void)
{
    static struct registry registry;
    zr_backend *backend;
    zr_arena *arena;
    void *block = &block;
    struct zr_map_callback watch = watch_of(&registry);
    zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = GRANULE});
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend});
    void *wall = take(arena, GRANULE);
    tap_result(zr_arena_add_map_callback(NULL, &watch), ZR_ERR_INVALID, "a watch of nothing");
    tap_result(zr_arena_add_map_callback(arena, NULL), ZR_ERR_INVALID, "nobody to tell");
    registry.refuse_nth = 1;
    tap_result(zr_arena_add_map_callback(arena, &watch), ZR_ERR_TIMEOUT, "it refuses what is there: %s",
               zr_last_error());
    tap_result(zr_arena_remove_map_callback(arena, &watch), ZR_ERR_INVALID, "so it does not watch");
    registry.refuse_nth = 3;
    tap_result(zr_arena_add_map_callback(arena, &watch), ZR_OK, "now it does");
    size_t before = mapped(arena);
    zr_result result =
        zr_arena_alloc(arena, &(struct zr_request){.bytes = 3 * GRANULE, .tag = ZR_TAG_COMM}, &block);
    tap_result(result, ZR_ERR_TIMEOUT, "a request fails with the watch's result: %s", zr_last_error());
    tap_ok(block == NULL && strstr(zr_last_error(), "rejected 6291456 bytes") != NULL, "in words");
    tap_ok(mapped(arena) == before && registry.count == 1, "and nothing is mapped for it");
    tap_ok(take(arena, 3 * GRANULE) != NULL, "the next one is served");
    /* Two pieces of memory for one request, since a granule between them is there: the second is refused. */
    void *low = take(arena, 2 * GRANULE), *between = take(arena, GRANULE), *high = take(arena, 2 * GRANULE);
    zr_arena_free(arena, low);
    zr_arena_free(arena, high);
    zr_arena_trim(arena, 0, NULL);
    zr_arena_free(arena, between);
    before = mapped(arena);
    size_t known = registry.count;
    unsigned goings = registry.goings;
    registry.refuse_nth = registry.calls + 2;
    tap_ok(!take(arena, 5 * GRANULE) && registry.goings == goings + 1 && registry.wrong == 0,
           "of two pieces the second is refused: the first goes, once");
    tap_ok(mapped(arena) == before && registry.count == known, "and all is as it was");
    zr_arena_free(arena, wall);
    zr_arena_destroy(arena, NULL);
    tap_ok(registry.count == 0 && registry.wrong == 0, "told of the end");
    zr_backend_destroy(backend);
}

/* Memory of a stripe comes and goes as the head's does. */
static void test_siblings(void)
{
    static struct registry registry;
    zr_backend *backend;
    zr_arena *arena;
    struct zr_map_callback watch = watch_of(&registry);
    zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = GRANULE});
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .threads = 2});
    zr_arena_add_stripe(arena, 1);
    tap_ok(take(arena, 2 * GRANULE) && take(arena->stripes[0], 3 * GRANULE), "a block from each of two");
    tap_result(zr_arena_add_map_callback(arena, &watch), ZR_OK, "watched together");
    tap_is(registry.count, 5, "are told of");
    tap_result(zr_arena_remove_map_callback(arena, &watch), ZR_OK, "and no longer");
    tap_ok(registry.count == 0 && registry.wrong == 0, "go, for who watched");
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
}

/* ---- A driver that refuses ----------------------------------------------------------------------------- */

/* Each pass of each fault site fails in turn: what is told comes in pairs all the same. */
static void test_faults(void)
{
    static const enum zr_fault_site sites[] = {ZR_FAULT_CREATE, ZR_FAULT_MAP, ZR_FAULT_ACCESS,
                                               ZR_FAULT_METADATA};
    static struct registry registry;
    unsigned wrong = 0, refused = 0;
    for (unsigned site = 0; site < sizeof sites / sizeof *sites; site++)
        for (unsigned nth = 1; nth <= 40; nth++) {
            zr_backend *backend;
            zr_arena *arena;
            struct zr_map_callback watch = watch_of(&registry);
            memset(&registry, 0, sizeof registry);
            zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = GRANULE});
            zr_arena_create(&arena,
                            &(struct zr_arena_options){.backend = backend, .reserve_bytes = 1200 * GRANULE});
            zr_arena_add_map_callback(arena, &watch);
            zr_fault_set(sites[site], nth);
            refused += live(arena, 4, 300);
            zr_fault_set(sites[site], 0);
            wrong += registry.wrong + (registry.count * GRANULE != mapped(arena)) +
                     (zr_arena_check(arena) != ZR_OK);
            zr_arena_destroy(arena, NULL);
            wrong += registry.wrong + registry.count;
            zr_backend_destroy(backend);
        }
    tap_ok(refused > 60, "%u requests failed for a driver that refused", refused);
    tap_is(wrong, 0, "what they had mapped half way was told to nobody");
}

/* The emulated driver refuses unmaps too, once, and for good. */
static void test_driver(void)
{
    static const char *const calls[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap"};
    static struct registry registry;
    unsigned wrong = 0, again = 0;
    for (unsigned call = 0; call < 4; call++)
        for (unsigned nth = 1; nth <= 24; nth++) {
            zr_backend *backend;
            zr_arena *arena;
            struct zr_map_callback watch = watch_of(&registry);
            memset(&registry, 0, sizeof registry);
            if (zr_backend_cuda_create(&backend, &(struct zr_cuda_options){.granule_bytes = GRANULE}) !=
                ZR_OK)
                return;
            zr_arena_create(&arena,
                            &(struct zr_arena_options){.backend = backend, .reserve_bytes = 1200 * GRANULE});
            zr_arena_add_map_callback(arena, &watch);
            unsigned unmaps = (unsigned)emulator->calls("cuMemUnmap");
            emulator->fail(&(struct zr_emulator_fault){
                .call = calls[call], .nth = nth, .count = 1 + nth % 3, .code = ZR_CU_OUT_OF_MEMORY});
            live(arena, 5, 500);
            emulator->fail(&(struct zr_emulator_fault){0});
            unmaps = (unsigned)emulator->calls("cuMemUnmap") - unmaps;
            again += call == 3 && unmaps >= nth;
            wrong += registry.wrong + (zr_arena_check(arena) != ZR_OK);
            zr_arena_destroy(arena, NULL);
            wrong += registry.wrong + registry.count;
            zr_backend_destroy(backend);
        }
    tap_ok(again > 10, "a driver that keeps what it should unmap, %u times", again);
    tap_is(wrong, 0, "what it keeps is notified anew, and everything in pairs");
}

static const struct zr_backend_ops *below;
static unsigned unmaps, refused_from, refused_count;

static zr_result refuse_unmaps(zr_backend *backend, char *address, size_t bytes)
{
    return ++unmaps - refused_from < refused_count ? zr_fail(ZR_ERR_ADDRESSES, "no unmap")
                                                   : below->unmap(backend, address, bytes);
}

/* The same of a pool: entries come, go and move, and unmaps are refused up to three times in a row. */
static void test_pool(void)
{
    enum { ENTRIES = 12 };
    static struct registry registry;
    unsigned wrong = 0, again = 0;
    for (refused_from = 1; refused_from <= 40; refused_from++) {
        zr_backend *backend;
        zr_arena *arena;
        zr_contiguous *pool;
        zr_entry entries[ENTRIES] = {0};
        memset(&registry, 0, sizeof registry);
        zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = GRANULE});
        struct zr_backend_ops ops = *(below = backend->ops);
        ops.unmap = refuse_unmaps;
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend});
        zr_contiguous_create(&pool, &(struct zr_contiguous_options){.arena = arena,
                                                                    .reserve_bytes = 1200 * GRANULE,
                                                                    .map_callback = watch_of(&registry)});
        backend->ops = &ops;
        unmaps = 0;
        refused_count = 1 + refused_from % 3;
        for (unsigned i = 0; i < 10 * ENTRIES; i++) {
            zr_entry *entry = &entries[i * 7 % ENTRIES];
            struct zr_entry_request request = {.bytes = (1 + i % 4) * GRANULE - i % 3 * 1000,
                                               .alignment = i % 2 ? GRANULE : 256,
                                               .movable = true};
            if (*entry)
                *entry = zr_contiguous_free(pool, *entry) == ZR_OK ? 0 : 1;
            else
                zr_contiguous_append(pool, &request, entry, NULL);
            if (i % 5 == 4)
                zr_contiguous_compact(pool);
            wrong += registry.wrong + (registry.count * GRANULE != pool->mapped_bytes) +
                     (zr_contiguous_check(pool) != ZR_OK);
        }
        again += unmaps >= refused_from;
        backend->ops = below;
        wrong += zr_contiguous_destroy(pool, NULL) != ZR_OK;
        wrong += registry.wrong + registry.count;
        wrong += zr_arena_destroy(arena, NULL) != ZR_OK || zr_backend_destroy(backend) != ZR_OK;
    }
    tap_ok(again > 30, "a driver that keeps what a pool unmaps, %u times", again);
    tap_is(wrong, 0, "it is notified anew, and all goes at the end");
}

/* Pages of a plan, each at two addresses. */
static void test_pages(void)
{
    static struct registry registry;
    const uint32_t pages[] = {0, 1, 0, 1};
    struct zr_plan_step steps[2];
    const struct zr_plan_sequence sequence = {.count = 2, .any_stream = true, .thread = zr_thread_number()};
    const struct zr_map_callback watch = watch_of(&registry);
    zr_backend *backend;
    zr_arena *arena;
    for (size_t i = 0; i < 2; i++)
        steps[i] = (struct zr_plan_step){.request = {.bytes = 2 * GRANULE, .alignment = 256},
                                         .thread = zr_thread_number(),
                                         .offset_bytes = i * 2 * GRANULE,
                                         .alive_count = 1};
    zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = GRANULE});
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .reserve_bytes = 1200 * GRANULE});
    zr_arena_add_map_callback(arena, &watch);
    struct zr_plan plan = {.steps = steps,
                           .steps_count = 2,
                           .sequences = &sequence,
                           .sequences_count = 1,
                           .region_bytes = 4 * GRANULE,
                           .pages = pages,
                           .pages_count = 2};
    tap_result(zr_arena_install_plan(arena, &plan), ZR_OK, "a plan on pages");
    for (unsigned i = 0; i < 2; i++)
        zr_arena_free(arena, take(arena, 2 * GRANULE));
    tap_ok(registry.count == 4 && mapped(arena) == 2 * GRANULE, "is told of both addresses of each");
    struct zr_backend_ops ops = *(below = backend->ops);
    ops.unmap = refuse_unmaps;
    backend->ops = &ops;
    unmaps = 0;
    refused_from = 1;
    refused_count = 1;
    zr_arena_trim(arena, 0, NULL);
    tap_ok(unmaps > 0 && registry.wrong == 0 &&
               registry.count * GRANULE == mapped(arena) + arena->alias_bytes,
           "and of what a driver keeps");
    backend->ops = below;
    zr_arena_trim(arena, 0, NULL);
    tap_ok(registry.wrong == 0 && registry.count == 0 && mapped(arena) == 0, "until it goes");
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
}

/* ---- Threads ------------------------------------------------------------------------------------------- */

struct worker {
    pthread_t thread;
    zr_arena *arena;
    uint64_t seed;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the registry that several members tell */

static zr_result came_locked(void *argument, void *address, size_t bytes)
{
    pthread_mutex_lock(&lock);
    zr_result result = came(argument, address, bytes);
    pthread_mutex_unlock(&lock);
    return result;
}

static void goes_locked(void *argument, void *address, size_t bytes)
{
    pthread_mutex_lock(&lock);
    goes(argument, address, bytes);
    pthread_mutex_unlock(&lock);
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    live(worker->arena, worker->seed, 6000);
    return NULL;
}

static void test_threads(void)
{
    enum { THREADS = 4 };
    static struct registry registry, passing;
    struct worker workers[THREADS];
    zr_backend *backend;
    zr_arena *arena;
    struct zr_map_callback watch = {came_locked, goes_locked, &registry}, visitor = watch;
    visitor.argument = &passing;
    zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = GRANULE});
    zr_arena_create(&arena, &(struct zr_arena_options){
                                .backend = backend, .reserve_bytes = 1200 * GRANULE, .threads = THREADS});
    zr_arena_add_map_callback(arena, &watch);
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.arena = arena, .seed = i + 10};
        pthread_create(&workers[i].thread, NULL, work, &workers[i]);
    }
    unsigned wrong = 0;
    for (unsigned i = 0; i < 200; i++) {
        wrong += zr_arena_add_map_callback(arena, &visitor) != ZR_OK;
        wrong += zr_arena_remove_map_callback(arena, &visitor) != ZR_OK || passing.count != 0;
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(workers[i].thread, NULL);
    tap_ok(wrong == 0 && passing.wrong == 0, "watches come and go while four threads allocate");
    tap_ok(registry.wrong == 0 && registry.count * GRANULE == mapped(arena), "one that stays hears of all");
    zr_arena_destroy(arena, NULL);
    tap_ok(registry.count == 0 && registry.wrong == 0, "to the end");
    zr_backend_destroy(backend);
}

/* ---- What a watch may ask ------------------------------------------------------------------------------ */

struct question {
    zr_arena *arena;
    zr_contiguous *pool;
    char *known; /* of the entry or block that is there */
    unsigned asked, wrong;
};

static zr_result ask(void *argument, void *address, size_t bytes)
{
    struct question *question = argument;
    struct zr_block_info info;
    (void)bytes;
    question->asked++;
    question->wrong += zr_arena_find(question->arena, address, &info) != ZR_ERR_FOREIGN;
    if (question->known)
        question->wrong += zr_arena_find(question->arena, question->known + 1, &info) != ZR_OK ||
                           info.address != question->known;
    return ZR_OK;
}

/* In a child, where an alarm ends a thread that waits for itself. */
static int ask_within(void)
{
    struct question of_pool = {0}, of_arena = {0};
    zr_backend *backend;
    zr_entry entry;
    zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = GRANULE});
    zr_arena_create(&of_arena.arena, &(struct zr_arena_options){.backend = backend});
    zr_arena_add_map_callback(of_arena.arena,
                              &(struct zr_map_callback){.mapped = ask, .argument = &of_arena});
    for (unsigned i = 0; i < 3; i++)
        of_arena.known = take(of_arena.arena, GRANULE);
    of_pool.arena = of_arena.arena;
    zr_contiguous_create(&of_pool.pool, &(struct zr_contiguous_options){
                                            .arena = of_arena.arena,
                                            .reserve_bytes = 8 * GRANULE,
                                            .map_callback = {.mapped = ask, .argument = &of_pool}});
    for (unsigned i = 0; i < 3; i++) {
        void *address = NULL;
        zr_contiguous_append(of_pool.pool, &(struct zr_entry_request){.bytes = GRANULE}, &entry, &address);
        of_pool.known = address;
    }
    return of_arena.asked == 3 && of_pool.asked == 3 && of_arena.wrong + of_pool.wrong == 0 ? 0 : 1;
}

int main(void)
{
    zr_backend *backend;
    emulator = cuda_on_card() ? NULL : cuda_emulator();
    zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = GRANULE});
    test_backend("sim", backend);
    test_refusals("sim", backend);
    zr_backend_destroy(backend);
    zr_backend_sim_create(
        &backend, &(struct zr_sim_options){.granule_bytes = GRANULE,
                                           .work_ns = 1,
                                           .call_ns = {[ZR_BACKEND_MAP] = 1, [ZR_BACKEND_UNMAP] = 1}});
    test_backend("streams", backend);
    zr_backend_destroy(backend);
    zr_backend_host_create(&backend, &(struct zr_host_options){.granule_bytes = GRANULE});
    test_backend("host", backend);
    test_refusals("host", backend);
    zr_backend_destroy(backend);
    if (zr_backend_cuda_create(&backend, &(struct zr_cuda_options){.granule_bytes = GRANULE}) == ZR_OK) {
        test_backend("cuda", backend);
        test_refusals("cuda", backend);
        zr_backend_destroy(backend);
    } else {
        tap_skip("the cuda backend: %s", zr_last_error());
    }
    test_reasons();
    test_siblings();
    test_faults();
    test_pool();
    test_pages();
    if (emulator)
        test_driver();
    else
        tap_skip("a driver that refuses: this needs the emulated one");
    test_threads();
    tap_is(in_child_within(ask_within, 120), 0, "a watch asks for blocks and entries of those who tell it");
    return tap_done();
}
