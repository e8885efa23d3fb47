/* stress_test.c: several threads on one arena, blocks freed by threads that did not allocate them, searches
 * without a lock beside allocations and frees, trims in between. Run it under ThreadSanitizer too. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/base/os.h"
#include "alloc/zr.h"
#include "tests/support/random.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"

#define GRANULE ((size_t)64 << 10)
enum { THREADS = 8, SHARED = 256, PATIENCE_S = 120 };

/* The first words of every block; the rest is filled with the low byte of the check. */
struct content {
    size_t bytes;
    uint64_t check;
};

struct field {
    zr_arena *arena;
    unsigned steps;
    _Atomic(struct content *) exchange[SHARED];
    _Atomic unsigned wrong, finished;
    _Atomic bool found; /* by the searching thread; until then the others go on */
};

struct worker {
    struct field *field;
    uint64_t random;
};

static void check_and_free(struct field *field, struct content *block)
{
    struct zr_block_info info;
    size_t bytes = block->bytes;
    unsigned char fill = (unsigned char)block->check;
    const unsigned char *byte = (const unsigned char *)block;
    bool good = zr_arena_find(field->arena, byte + bytes - 1, &info) == ZR_OK && info.address == block &&
                info.bytes == bytes && info.stream == block->check;
    for (size_t i = sizeof *block; good && i < bytes; i += 61)
        good = byte[i] == fill;
    if (!good)
        atomic_fetch_add(&field->wrong, 1);
    if (zr_arena_free(field->arena, block) != ZR_OK)
        atomic_fetch_add(&field->wrong, 1);
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    struct field *field = worker->field;
    uint64_t end_ns = zr_os_now_ns() + PATIENCE_S * UINT64_C(1000000000);
    for (unsigned step = 0; step < field->steps || (!atomic_load(&field->found) && zr_os_now_ns() < end_ns);
         step++) {
        uint64_t dice = splitmix64(&worker->random);
        size_t bytes = sizeof(struct content) + (dice % 8 ? dice >> 8 & 2047 : dice >> 8 & (8 * GRANULE - 1));
        void *memory;
        zr_result result = zr_arena_alloc(
            field->arena,
            &(struct zr_request){.bytes = bytes, .tag = (zr_tag)(dice % ZR_TAG_COUNT), .stream = dice},
            &memory);
        if (result != ZR_OK) {
            atomic_fetch_add(&field->wrong, result != ZR_ERR_MEMORY);
            memory = NULL;
        } else {
            memset(memory, (unsigned char)dice, bytes);
            *(struct content *)memory = (struct content){bytes, dice};
        }
        struct content *old = atomic_exchange(&field->exchange[dice >> 40 & (SHARED - 1)], memory);
        if (old)
            check_and_free(field, old);
        if (dice % 2048 == 5)
            zr_arena_trim(field->arena, 16 * GRANULE, NULL);
    }
    atomic_fetch_add(&field->finished, 1);
    return NULL;
}

/* Looks everywhere, all the time. Whatever it finds must hold the address. */
static void *look(void *argument)
{
    struct worker *worker = argument;
    struct field *field = worker->field;
    char *first = NULL;
    unsigned found = 0;
    while (atomic_load(&field->finished) < THREADS) {
        struct zr_block_info info;
        if (!first) {
            first = (char *)atomic_load(&field->exchange[0]);
            sched_yield();
            continue;
        }
        char *at =
            first + (ptrdiff_t)(splitmix64(&worker->random) % (256 * GRANULE)) - (ptrdiff_t)(64 * GRANULE);
        if (zr_arena_find(field->arena, at, &info) != ZR_OK)
            continue;
        found++;
        atomic_store(&field->found, true);
        if (at < (char *)info.address || at >= (char *)info.address + info.reserved_bytes)
            atomic_fetch_add(&field->wrong, 1);
    }
    return (void *)(uintptr_t)found;
}

static void test_threads(uint64_t seed, unsigned steps)
{
    static struct field field;
    struct worker workers[THREADS + 1];
    pthread_t threads[THREADS + 1];
    zr_backend *backend;
    void *found;
    memset(&field, 0, sizeof field);
    field.steps = steps;
    tap_result(zr_backend_host_create(&backend, &(struct zr_host_options){.granule_bytes = GRANULE}), ZR_OK,
               "a backend");
    tap_result(zr_arena_create(&field.arena,
                               &(struct zr_arena_options){.backend = backend, .limit_bytes = 900 * GRANULE}),
               ZR_OK, "an arena");
    for (unsigned i = 0; i <= THREADS; i++) {
        workers[i] = (struct worker){&field, seed + i};
        pthread_create(&threads[i], NULL, i < THREADS ? work : look, &workers[i]);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    pthread_join(threads[THREADS], &found);
    tap_is(atomic_load(&field.wrong), 0, "%d threads, %u steps each: contents, searches and frees are right",
           THREADS, steps);
    tap_ok((uintptr_t)found > 0, "the searching thread found something (%llu times)",
           (unsigned long long)(uintptr_t)found);
    tap_result(zr_arena_check(field.arena), ZR_OK, "sound: %s", zr_last_error());
    for (unsigned i = 0; i < SHARED; i++)
        if (field.exchange[i])
            check_and_free(&field, field.exchange[i]);
    size_t leaked;
    zr_arena_destroy(field.arena, &leaked);
    tap_is(leaked, 0, "nothing leaked");
    tap_result(zr_backend_destroy(backend), ZR_OK, "the end");
}

/* Forks again and again while other threads allocate: the child must find no lock taken. */
static void *allocate_until(void *argument)
{
    struct field *field = argument;
    while (!atomic_load(&field->finished)) {
        void *block;
        if (zr_arena_alloc(field->arena, &(struct zr_request){.bytes = 70000}, &block) == ZR_OK)
            zr_arena_free(field->arena, block);
        zr_arena_trim(field->arena, 0, NULL);
    }
    return NULL;
}

static void test_fork(void)
{
    static struct field field;
    pthread_t threads[3];
    zr_backend *backend;
    unsigned bad = 0;
    zr_backend_host_create(&backend, &(struct zr_host_options){.granule_bytes = GRANULE});
    zr_arena_create(&field.arena, &(struct zr_arena_options){.backend = backend});
    for (unsigned i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, allocate_until, &field);
    for (unsigned i = 0; i < 30; i++) {
        int status = 0;
        pid_t child = fork();
        if (child == 0) {
            void *block;
            alarm(120); /* a deadlock */
            bool good = zr_arena_alloc(field.arena, &(struct zr_request){.bytes = 100000}, &block) == ZR_OK &&
                        zr_arena_free(field.arena, block) == ZR_OK && zr_arena_check(field.arena) == ZR_OK;
            _exit(good ? 0 : 1);
        }
        waitpid(child, &status, 0);
        bad += status != 0;
    }
    atomic_store(&field.finished, 1);
    for (unsigned i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    tap_is(bad, 0, "30 children, forked while 3 threads allocate and trim, allocate too");
    zr_arena_destroy(field.arena, NULL);
    zr_backend_destroy(backend);
}

int main(int count, char **arguments)
{
    uint64_t seed = run_seed();
    test_threads(seed, count > 1 ? (unsigned)atoi(arguments[1]) : 15000);
#if defined(__SANITIZE_THREAD__)
    tap_skip("fork beside threads: ThreadSanitizer does not follow it");
    (void)test_fork;
#else
    test_fork();
#endif
    return tap_done();
}
