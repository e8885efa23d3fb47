/* shadow_test.c: random operations on eight threads and several streams, beside a shadow that knows what
 * every block is and holds: sizes from a byte to several granules, alignments, tags, searches, trims, bad
 * calls, frees by other threads. Between rounds everybody stops, and the arena's counters, the backend's and
 * the shadow's must be one. On the host the contents are read and written directly; on the (emulated) GPU by
 * work that is carried out late, which shows memory that changes its owner too early.
 *
 * The arguments are the numbers of operations on the host and on the GPU; tests/long/long_shadow.t runs a
 * million, and under every tool. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/backend/backend.h"
#include "tests/support/cuda/cuda_support.h"
#include "tests/support/random.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"

#define GRANULE ((size_t)64 << 10)
enum { THREADS = 8, ROUNDS = 8, OWN = 48, SHARED = 128, STREAMS = 5, USES = 3, PART = 64 };

/* One live block. Whoever took it out of the shared slots, or allocated it, owns this record and the block.
 */
struct held {
    char *address;
    size_t bytes, reserved_bytes;
    zr_tag tag;
    uint64_t stream;
    uint64_t uses[USES]; /* streams that write parts between the block's ends */
    unsigned uses_count;
    uint64_t pattern;
};

/* What is live, as differences: a block may be counted in by one thread and out by another. */
struct counts {
    int64_t blocks, requested_bytes, live_bytes;
    int64_t by_tag[ZR_TAG_COUNT];
    uint64_t allocations, refusals, frees_of_others, finds, trims, bad_calls, uses, early_frees;
};

struct world;

/* How contents are written and looked at; false: a wrong byte, or a failure. */
struct medium {
    const char *name;
    bool (*write)(struct world *world, const struct held *held);
    bool (*verify)(struct world *world, const struct held *held);
};

struct world {
    const struct medium *medium;
    zr_backend *backend;
    zr_arena *arena;
    const struct zr_emulator *emulator; /* NULL on the host */
    size_t limit_bytes;
    unsigned steps; /* of each thread and round */
    uint64_t streams[STREAMS];
    pthread_barrier_t barrier;
    _Atomic(struct held *) shared[SHARED];
    _Atomic unsigned wrong;
    _Atomic uint64_t latest; /* a recent address, for searches that find what they may */
};

struct worker {
    struct world *world;
    uint64_t random;
    struct held *own[OWN];
    struct counts counts;
};

static void wrong(struct world *world, const char *what, const struct held *held)
{
    if (atomic_fetch_add(&world->wrong, 1) < 5)
        fprintf(stderr, "# %s: block %p of %zu bytes, stream %llu: %s\n", what, (void *)held->address,
                held->bytes, (unsigned long long)held->stream, zr_last_error());
}

/* ---- Contents ------------------------------------------------------------------------------------------ */

/* The byte at a place of a block: its pattern, turned by the place. */
static unsigned char byte_at(uint64_t pattern, size_t at)
{
    return (unsigned char)((pattern >> (at / PART % 8 * 8)) + at / PART);
}

/* Host: a byte of each 64, and both ends. */
static bool host_write(struct world *world, const struct held *held)
{
    (void)world;
    for (size_t at = 0; at < held->bytes; at += PART)
        held->address[at] = (char)byte_at(held->pattern, at);
    held->address[held->bytes - 1] = (char)byte_at(held->pattern, held->bytes - 1);
    return true;
}

static bool host_verify(struct world *world, const struct held *held)
{
    const unsigned char *bytes = (const unsigned char *)held->address;
    (void)world;
    for (size_t at = 0; at < held->bytes; at += PART)
        if (bytes[at] != byte_at(held->pattern, at))
            return false;
    return bytes[held->bytes - 1] == byte_at(held->pattern, held->bytes - 1);
}

/* GPU: the two ends by the block's stream, what lies between by those that use it, too; fills go on while
 * the program does. */
static size_t part_of(const struct held *held)
{
    return held->bytes < PART ? held->bytes : PART;
}

static unsigned char *part_of_use(const struct held *held, unsigned use)
{
    return (unsigned char *)held->address + held->bytes / (USES + 1) * (use + 1);
}

static bool cuda_write(struct world *world, const struct held *held)
{
    size_t part = part_of(held);
    struct zr_fill fills[2 + USES] = {
        {held->address, byte_at(held->pattern, 0), part, held->stream},
        {held->address + held->bytes - part, byte_at(held->pattern, 0), part, held->stream}};
    for (unsigned use = 0; use < held->uses_count; use++)
        fills[2 + use] =
            (struct zr_fill){part_of_use(held, use), byte_at(held->pattern, PART), PART, held->uses[use]};
    for (unsigned i = 0; i < 2 + held->uses_count; i++)
        if (zr_backend_fill(world->backend, &fills[i]) != ZR_OK)
            return false;
    return true;
}

static bool passed(struct world *world, uint64_t stream)
{
    struct zr_stream_point point;
    return zr_backend_event_record(world->backend, stream, &point) == ZR_OK &&
           zr_backend_event_wait(world->backend, &point) == ZR_OK;
}

static bool cuda_verify(struct world *world, const struct held *held)
{
    unsigned char got[2 + USES][PART];
    size_t part = part_of(held);
    struct zr_copy copies[2 + USES] = {{got[0], held->address, part, held->stream},
                                       {got[1], held->address + held->bytes - part, part, held->stream}};
    unsigned count = 2 + held->uses_count;
    for (unsigned use = 0; use < held->uses_count; use++)
        copies[2 + use] = (struct zr_copy){got[2 + use], part_of_use(held, use), PART, held->uses[use]};
    for (unsigned i = 0; i < count; i++)
        if (zr_backend_copy(world->backend, &copies[i]) != ZR_OK)
            return false;
    for (unsigned use = 0; use < held->uses_count; use++)
        if (!passed(world, held->uses[use]))
            return false;
    if (!passed(world, held->stream))
        return false;
    for (unsigned i = 0; i < count; i++)
        for (size_t at = 0; at < copies[i].bytes; at++)
            if (got[i][at] != byte_at(held->pattern, i >= 2 ? PART : 0))
                return false;
    return true;
}

static const struct medium host_medium = {"host", host_write, host_verify};
static const struct medium cuda_medium = {"emulated GPU", cuda_write, cuda_verify};

/* ---- One thread's steps -------------------------------------------------------------------------------- */

static size_t random_bytes(uint64_t *random)
{
    uint64_t dice = splitmix64(random);
    if (dice % 8 < 2)
        return 1 + (dice >> 8) % PART;
    if (dice % 8 < 5)
        return 1 + (dice >> 8) % 4096;
    if (dice % 8 < 7)
        return 1 + (dice >> 8) % GRANULE;
    return 1 + (dice >> 8) % (5 * GRANULE);
}

static void count(struct counts *counts, const struct held *held, int sign)
{
    counts->blocks += sign;
    counts->requested_bytes += sign * (int64_t)held->bytes;
    counts->live_bytes += sign * (int64_t)held->reserved_bytes;
    counts->by_tag[held->tag] += sign * (int64_t)held->reserved_bytes;
}

/* Other streams will use the block: once its own is done with what the memory was used for before. */
static void add_uses(struct worker *worker, struct held *held, uint64_t dice)
{
    struct world *world = worker->world;
    for (unsigned i = 0; i < 1 + dice / STREAMS % USES; i++) {
        uint64_t stream = world->streams[(dice + i) % STREAMS];
        if (stream == 0 || stream == held->stream)
            continue;
        held->uses[held->uses_count++] = stream;
        worker->counts.uses++;
        if (zr_block_use(world->arena, held->address, stream) != ZR_OK || !passed(world, held->stream))
            wrong(world, "no other stream", held);
    }
}

/* NULL when there is no memory. */
static struct held *allocate(struct worker *worker)
{
    struct world *world = worker->world;
    uint64_t dice = splitmix64(&worker->random);
    struct held made = {.bytes = random_bytes(&worker->random),
                        .tag = (zr_tag)(dice % ZR_TAG_COUNT),
                        .stream = world->streams[(dice >> 8) % STREAMS],
                        .pattern = splitmix64(&worker->random)};
    struct zr_request request = {.bytes = made.bytes, .tag = made.tag, .stream = made.stream};
    struct zr_block_info info;
    void *block;
    if (dice >> 16 & 7)
        request.alignment = 0;
    else
        request.alignment = (size_t)1 << (dice >> 24) % 17;
    zr_result result = zr_arena_alloc(world->arena, &request, &block);
    if (result != ZR_OK) {
        worker->counts.refusals++;
        if (result != ZR_ERR_MEMORY || block != NULL)
            wrong(world, "refused", &made);
        return NULL;
    }
    made.address = block;
    if (zr_arena_find(world->arena, block, &info) != ZR_OK || info.address != block ||
        info.bytes != made.bytes || info.tag != made.tag || info.stream != made.stream ||
        info.reserved_bytes < info.bytes)
        wrong(world, "not found as allocated", &made);
    if (request.alignment && (uintptr_t)block % request.alignment != 0)
        wrong(world, "not aligned", &made);
    made.reserved_bytes = info.reserved_bytes;
    if (dice >> 60 < 4 && made.bytes >= 8 * PART)
        add_uses(worker, &made, dice >> 40 & 0xfffff);
    struct held *held = malloc(sizeof *held);
    if (!held)
        abort();
    *held = made;
    if (!world->medium->write(world, held))
        wrong(world, "cannot be written", held);
    count(&worker->counts, held, 1);
    worker->counts.allocations++;
    atomic_store_explicit(&world->latest, (uintptr_t)block, memory_order_relaxed);
    return held;
}

static void release(struct worker *worker, struct held *held)
{
    struct world *world = worker->world;
    /* Work may still be under way when a block is freed: the arena has to wait for it, not the program. */
    bool early = splitmix64(&worker->random) % 4 == 0;
    if (early) {
        held->pattern = ~held->pattern;
        worker->counts.early_frees++;
        if (!world->medium->write(world, held))
            wrong(world, "cannot be written", held);
    } else if (!world->medium->verify(world, held)) {
        wrong(world, "changed", held);
    }
    if (zr_arena_free(world->arena, held->address) != ZR_OK)
        wrong(world, "not freed", held);
    count(&worker->counts, held, -1);
    free(held);
}

static void step_find(struct worker *worker, const struct held *held)
{
    struct world *world = worker->world;
    struct zr_block_info info;
    char *inside = held->address + splitmix64(&worker->random) % held->bytes;
    worker->counts.finds++;
    if (zr_arena_find(world->arena, inside, &info) != ZR_OK || info.address != held->address ||
        info.bytes != held->bytes || info.tag != held->tag)
        wrong(world, "not found by an address inside", held);
    /* Elsewhere other threads come and go: whatever is found must hold the address. */
    char *other = (char *)(uintptr_t)atomic_load_explicit(&world->latest, memory_order_relaxed) +
                  splitmix64(&worker->random) % (4 * GRANULE);
    if (zr_arena_find(world->arena, other, &info) == ZR_OK &&
        (other < (char *)info.address || other >= (char *)info.address + info.reserved_bytes))
        wrong(world, "a search found another place", held);
}

/* Calls that must be refused, and change nothing. */
static void step_bad(struct worker *worker, const struct held *held)
{
    struct world *world = worker->world;
    static const struct zr_request requests[] = {{.bytes = 0},
                                                 {.bytes = SIZE_MAX},
                                                 {.bytes = 100, .alignment = 48},
                                                 {.bytes = 100, .alignment = 2 * GRANULE},
                                                 {.bytes = 100, .tag = ZR_TAG_COUNT}};
    uint64_t dice = splitmix64(&worker->random);
    void *block = (void *)held;
    worker->counts.bad_calls++;
    if (zr_arena_alloc(world->arena, &requests[dice % 5], &block) != ZR_ERR_INVALID || block)
        wrong(world, "a bad request was taken", held);
    if (held->bytes > 1 &&
        zr_arena_free(world->arena, held->address + 1 + (dice >> 8) % (held->bytes - 1)) != ZR_ERR_FOREIGN)
        wrong(world, "freed by an address inside", held);
    if (zr_block_use(world->arena, &world->wrong, held->stream) != ZR_ERR_FOREIGN)
        wrong(world, "a stream uses what is no block", held);
    if (zr_arena_free(world->arena, &world->wrong) != ZR_ERR_FOREIGN ||
        zr_arena_free(world->arena, NULL) != ZR_OK)
        wrong(world, "foreign or NULL", held);
}

static void step_trim(struct worker *worker)
{
    struct world *world = worker->world;
    struct zr_arena_stats stats;
    size_t released;
    worker->counts.trims++;
    zr_result result = zr_arena_trim(world->arena, splitmix64(&worker->random) % (64 * GRANULE), &released);
    zr_arena_get_stats(world->arena, &stats);
    if (result != ZR_OK || stats.requested_bytes > stats.live_bytes ||
        stats.live_bytes > stats.mapped_bytes ||
        stats.mapped_bytes + stats.cached_bytes != stats.reserved_bytes ||
        stats.reserved_bytes > world->limit_bytes || stats.peak_live_bytes < stats.live_bytes)
        wrong(world, "numbers that contradict each other",
              worker->own[0] ? worker->own[0] : &(struct held){0});
}

static void step(struct worker *worker)
{
    struct world *world = worker->world;
    uint64_t dice = splitmix64(&worker->random);
    struct held **own = &worker->own[(dice >> 32) % OWN];
    if (dice % 1024 == 0) {
        step_trim(worker);
    } else if (dice % 100 < 15) {
        *own = atomic_exchange(&world->shared[(dice >> 16) % SHARED], *own);
        if (*own && dice >> 60 & 1) {
            release(worker, *own);
            *own = NULL;
            worker->counts.frees_of_others++;
        }
    } else if (!*own) {
        *own = allocate(worker);
    } else if (dice % 100 < 30) {
        step_find(worker, *own);
    } else if (dice % 100 < 32) {
        step_bad(worker, *own);
    } else if (dice % 100 < 45) {
        if (!world->medium->verify(world, *own))
            wrong(world, "changed", *own);
    } else {
        release(worker, *own);
        *own = NULL;
    }
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned i = 0; i < worker->world->steps; i++)
            step(worker);
        pthread_barrier_wait(&worker->world->barrier); /* everybody has stopped */
        pthread_barrier_wait(&worker->world->barrier); /* the counters have been read */
    }
    return NULL;
}

/* ---- The counters -----------------------------------------------------------------------------------------
 */

static int by_address(const void *a, const void *b)
{
    const struct held *x = *(struct held *const *)a, *y = *(struct held *const *)b;
    return (x->address > y->address) - (x->address < y->address);
}

/* All that is live, in address order; returns the number. */
static size_t gather(struct world *world, struct worker *workers, struct held **all)
{
    size_t found = 0;
    for (unsigned i = 0; i < THREADS; i++)
        for (unsigned k = 0; k < OWN; k++)
            if (workers[i].own[k])
                all[found++] = workers[i].own[k];
    for (unsigned i = 0; i < SHARED; i++) {
        struct held *held = atomic_load(&world->shared[i]);
        if (held)
            all[found++] = held;
    }
    qsort(all, found, sizeof(struct held *), by_address);
    return found;
}

static struct counts sum_of(const struct worker *workers)
{
    struct counts sum = {0};
    for (unsigned i = 0; i < THREADS; i++) {
        const struct counts *one = &workers[i].counts;
        sum.blocks += one->blocks;
        sum.requested_bytes += one->requested_bytes;
        sum.live_bytes += one->live_bytes;
        for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++)
            sum.by_tag[tag] += one->by_tag[tag];
        sum.allocations += one->allocations;
        sum.refusals += one->refusals;
        sum.frees_of_others += one->frees_of_others;
        sum.finds += one->finds;
        sum.trims += one->trims;
        sum.bad_calls += one->bad_calls;
        sum.uses += one->uses;
        sum.early_frees += one->early_frees;
    }
    return sum;
}

/* With every thread standing still. False, with words, where the counters differ. */
static bool books_agree(struct world *world, struct worker *workers)
{
    static struct held *all[THREADS * OWN + SHARED];
    struct counts sum = sum_of(workers);
    struct zr_arena_stats stats;
    struct zr_block_info info;
    size_t found = gather(world, workers, all);
    bool good = zr_arena_check(world->arena) == ZR_OK;
    if (!good)
        tap_note("%s", zr_last_error());
    zr_arena_get_stats(world->arena, &stats);
    good &= stats.blocks_count == found && (int64_t)found == sum.blocks &&
            (int64_t)stats.requested_bytes == sum.requested_bytes &&
            (int64_t)stats.live_bytes == sum.live_bytes && stats.allocations_count == sum.allocations &&
            stats.mapped_bytes + stats.cached_bytes == stats.reserved_bytes &&
            stats.reserved_bytes == world->backend->held_bytes &&
            stats.reserved_bytes <= world->limit_bytes &&
            (!world->emulator || world->emulator->state().used_bytes == stats.reserved_bytes);
    for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++)
        good &= (int64_t)stats.live_by_tag_bytes[tag] == sum.by_tag[tag];
    if (!good)
        tap_note("blocks %zu of %zu, requested %zu of %lld, live %zu of %lld, reserved %zu, held %zu",
                 stats.blocks_count, found, stats.requested_bytes, (long long)sum.requested_bytes,
                 stats.live_bytes, (long long)sum.live_bytes, stats.reserved_bytes,
                 world->backend->held_bytes);
    for (size_t i = 0; i < found; i++) {
        bool apart = i == 0 || all[i - 1]->address + all[i - 1]->reserved_bytes <= all[i]->address;
        bool right = zr_arena_find(world->arena, all[i]->address, &info) == ZR_OK &&
                     info.address == all[i]->address && info.reserved_bytes == all[i]->reserved_bytes;
        if (!apart || !right)
            tap_note("block %zu at %p: %s", i, (void *)all[i]->address, apart ? "not found" : "overlaps");
        good &= apart && right;
    }
    return good;
}

static void run_rounds(struct world *world, struct worker *workers)
{
    pthread_t threads[THREADS];
    unsigned agreed = 0;
    for (unsigned i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, &workers[i]);
    for (unsigned round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&world->barrier);
        agreed += books_agree(world, workers);
        pthread_barrier_wait(&world->barrier);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    tap_is(atomic_load(&world->wrong), 0, "%s: %d threads, %u operations: contents, results and searches",
           world->medium->name, THREADS, world->steps * THREADS * ROUNDS);
    tap_is(agreed, ROUNDS, "%s: the books of arena, backend and shadow are one, %d times",
           world->medium->name, ROUNDS);
}

/* Runs a world whose medium, backend and streams are set. */
static void run_world(struct world *world, uint64_t seed, unsigned operations)
{
    static struct worker workers[THREADS];
    const char *name = world->medium->name;
    size_t leaked = 1;
    struct counts sum;
    world->limit_bytes = 110 * GRANULE;
    world->steps = operations / (THREADS * ROUNDS) + 1;
    pthread_barrier_init(&world->barrier, NULL, THREADS + 1);
    tap_result(zr_arena_create(&world->arena, &(struct zr_arena_options){.backend = world->backend,
                                                                         .limit_bytes = world->limit_bytes}),
               ZR_OK, "%s: an arena", name);
    memset(workers, 0, sizeof workers);
    for (unsigned i = 0; i < THREADS; i++)
        workers[i] = (struct worker){.world = world, .random = seed * THREADS + i};
    run_rounds(world, workers);
    sum = sum_of(workers);
    tap_note(
        "%llu allocations, %llu refused, %llu freed by others, %llu freed with work under way, %llu uses "
        "by other streams, %llu searches, %llu trims, %llu bad calls",
        (unsigned long long)sum.allocations, (unsigned long long)sum.refusals,
        (unsigned long long)sum.frees_of_others, (unsigned long long)sum.early_frees,
        (unsigned long long)sum.uses, (unsigned long long)sum.finds, (unsigned long long)sum.trims,
        (unsigned long long)sum.bad_calls);
    tap_ok(sum.allocations > sum.refusals && sum.frees_of_others > 0 && sum.trims > 0 && sum.bad_calls > 0,
           "%s: there was something of everything", name);
    for (unsigned i = 0; i < THREADS; i++)
        for (unsigned k = 0; k < OWN; k++)
            if (workers[i].own[k])
                release(&workers[i], workers[i].own[k]);
    for (unsigned i = 0; i < SHARED; i++)
        if (world->shared[i])
            release(&workers[0], world->shared[i]);
    tap_is(sum_of(workers).blocks, 0, "%s: all is freed", name);
    tap_is(atomic_load(&world->wrong), 0, "%s: and was what it should be", name);
    tap_result(zr_arena_destroy(world->arena, &leaked), ZR_OK, "%s: the end of the arena", name);
    tap_is(leaked, 0, "%s: nothing leaked", name);
    tap_is(world->backend->held_bytes, 0, "%s: nor is anything held", name);
    tap_result(zr_backend_destroy(world->backend), ZR_OK, "%s: the end of the backend", name);
    pthread_barrier_destroy(&world->barrier);
}

static void test_host(uint64_t seed, unsigned operations)
{
    static struct world world;
    world.medium = &host_medium;
    for (unsigned i = 0; i < STREAMS; i++)
        world.streams[i] = i;
    tap_result(zr_backend_host_create(&world.backend, &(struct zr_host_options){.granule_bytes = GRANULE}),
               ZR_OK, "a host backend");
    run_world(&world, seed, operations);
}

/* ---- The emulated GPU ---------------------------------------------------------------------------------- */

enum { WORK_TICKS = 50 }; /* driver calls of all threads that work takes */

/* Streams of the device's primary context, which wait for no other; the first is the default stream. */
static bool make_streams(struct world *world, const struct zr_cuda_driver *driver)
{
    zr_cu_result (*create)(zr_cu_stream *, unsigned int) = NULL;
    void *library = dlopen(cuda_emulator_path(), RTLD_NOW | RTLD_LOCAL);
    zr_cu_context context, popped;
    bool good = library != NULL;
    if (good)
        create = (zr_cu_result(*)(zr_cu_stream *, unsigned int))dlsym(library, "cuStreamCreate");
    driver->context_retain(&context, 0);
    driver->context_push(context);
    for (unsigned i = 1; i < STREAMS && good && create; i++) {
        zr_cu_stream stream = NULL;
        good = create(&stream, ZR_CU_STREAM_NON_BLOCKING) == 0;
        world->streams[i] = (uint64_t)(uintptr_t)stream;
    }
    driver->context_pop(&popped);
    driver->context_release(0);
    return good && create;
}

static void test_cuda(uint64_t seed, unsigned operations)
{
    static struct world world;
    const struct zr_cuda_driver *driver = NULL;
    setenv("ZR_EMULATOR_GRANULARITY", "65536", 1);
    world.medium = &cuda_medium;
    world.emulator = cuda_emulator();
    if (!world.emulator) {
        tap_skip("streams of an emulated GPU: %s", zr_last_error());
        return;
    }
    tap_result(zr_backend_cuda_create(&world.backend, NULL), ZR_OK, "an emulated GPU");
    zr_cuda_driver_get(&driver);
    tap_ok(make_streams(&world, driver), "with %d streams", STREAMS);
    world.emulator->work_ticks(WORK_TICKS);
    run_world(&world, seed, operations);
    tap_is(world.emulator->state().used_bytes + world.emulator->state().mappings_count, 0,
           "the driver has everything back");
}

int main(int count_of, char **arguments)
{
    uint64_t seed = run_seed();
    unsigned on_host = count_of > 1 ? (unsigned)atoi(arguments[1]) : 60000;
    unsigned on_gpu = count_of > 2 ? (unsigned)atoi(arguments[2]) : on_host;
    test_host(seed, on_host);
    test_cuda(seed, on_gpu);
    return tap_done();
}
