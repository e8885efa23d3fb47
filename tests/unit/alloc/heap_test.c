/* heap_test.c: the host heap, alloc/heap/heap.h: objects whole under threads, extents in the arena and given
 * back, the program's own malloc untouched. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/base/fault.h"
#include "alloc/heap/heap.h"
#include "alloc/base/system/os.h"
#include "tests/support/blocks.h"
#include "tests/support/random.h"
#include "tests/support/tap.h"
#include "tests/support/words.h"

static bool in_arena(const void *pointer)
{
    struct zr_block_info block;
    return zr_arena_find(arena, pointer, &block) == ZR_OK;
}

/* The heap ends with so many bytes in use, and the arena has all of it back. */
static void stop(size_t least, size_t most)
{
    size_t leaked = SIZE_MAX;
    tap_result(zr_heap_stop(&leaked), ZR_OK, "stop");
    tap_ok(leaked >= least && leaked <= most, "with %zu bytes in use", leaked);
    tap_is(stats().live_bytes, 0, "and the arena has everything back");
}

/* ---- One thread ---------------------------------------------------------------------------------------- */

static void test_not_running(void)
{
    tap_ok(zr_heap_alloc(10) == NULL && words_have("zr_heap_start"),
           "no object before the start, and words why");
    zr_heap_free(NULL);
    tap_result(zr_heap_stop(NULL), ZR_ERR_INVALID, "nothing to stop");
    tap_result(zr_heap_start(NULL), ZR_ERR_INVALID, "no arena to start on");
}

static bool takes_zeros(void)
{
    unsigned char *zeros = zr_heap_zalloc(1000, 999);
    size_t sum = 0;
    for (size_t i = 0; zeros && i < 999000; i++)
        sum += zeros[i];
    if (zeros)
        memset(zeros, 0xff, 999000);
    zr_heap_free(zeros);
    return zeros && sum == 0;
}

static void test_objects(void)
{
    tap_result(zr_heap_start(arena), ZR_OK, "start");
    tap_result(zr_heap_start(arena), ZR_ERR_INVALID, "one heap per process");
    tap_is(stats().live_bytes, 0, "a heap without objects takes nothing");
    char *text = zr_heap_alloc(9);
    tap_ok(text && in_arena(text), "an object lies in the arena");
    tap_is(stats().live_by_tag_bytes[ZR_TAG_OTHER], stats().live_bytes, "under the tag other");
    tap_ok(takes_zeros(), "a large cleared object is zeros");
    tap_ok(takes_zeros(), "also where old bytes lay");
    void *nothing = zr_heap_alloc(0), *other = zr_heap_alloc(0);
    tap_ok(nothing && other && nothing != other, "objects of no bytes are objects");
    zr_heap_free(nothing);
    zr_heap_free(other);
    for (size_t bytes = 1, bad = 0; bytes < 100000; bytes = bytes * 3 / 2 + 1) {
        void *object = zr_heap_alloc(bytes);
        bad += !object || (uintptr_t)object % (bytes < 16 ? 8 : 16) != 0;
        memset(object, 1, bytes);
        zr_heap_free(object);
        if (bad || bytes * 3 / 2 + 1 >= 100000)
            tap_ok(bad == 0, "objects up to %zu bytes are aligned like malloc's", bytes);
    }
    volatile size_t most = SIZE_MAX; /* the compiler would refuse these outright */
    tap_ok(zr_heap_zalloc(most / 2, 3) == NULL && words_have("overflow"), "a product that overflows");
    tap_ok(zr_heap_alloc(most - 7) == NULL && words_have("exceeds the address"),
           "a size that no machine has");
    zr_heap_free(text);
    stop(0, 0);
}

static void test_small_use(void)
{
    void *objects[200];
    zr_heap_start(arena);
    for (size_t i = 0; i < 200; i++)
        objects[i] = zr_heap_alloc(20 + i);
    tap_ok(stats().live_bytes <= 256 << 10, "200 small objects take %zu KiB", stats().live_bytes >> 10);
    for (size_t i = 0; i < 200; i += 2)
        zr_heap_free(objects[i]);
    void *large = zr_heap_alloc(700000);
    tap_ok(large && stats().live_bytes <= (256 << 10) + 720000, "an object of 700 kB takes its own size");
    stop(700000 + 100 * 20, 1100000);
}

static void test_failures(void)
{
    zr_heap_start(arena);
    void *held = zr_heap_alloc(100);
    tap_ok(zr_heap_alloc((size_t)1 << 40) == NULL, "more than the arena has");
    tap_ok(words_have("host heap"), "is refused in words");
    memset(held, 1, 100);
    for (unsigned site = ZR_FAULT_CREATE; site <= ZR_FAULT_METADATA; site++) {
        unsigned failures = 0;
        void *object = NULL;
        for (uint64_t nth = 1; nth < 500 && !object; nth++) {
            zr_arena_trim(arena, 0, NULL);
            zr_fault_set((enum zr_fault_site)site, nth);
            object = zr_heap_alloc(9 << 20);
            zr_fault_set((enum zr_fault_site)site, 0);
            failures += object == NULL;
        }
        tap_ok(object != NULL && failures > 0, "site %s failed %u times, then the object was had",
               zr_fault_site_name((enum zr_fault_site)site), failures);
        zr_heap_free(object);
    }
    zr_heap_free(held);
    stop(0, 0);
    tap_result(zr_arena_check(arena), ZR_OK, "and the arena's records are sound");
}

/* ---- Threads ------------------------------------------------------------------------------------------- */

enum { THREADS = 4, SLOTS = 150, STEPS = 40000, FORKS = 300 };

struct slot {
    unsigned char *object, mark;
    size_t bytes;
};

static bool slot_whole(const struct slot *slot)
{
    return !slot->object || (slot->object[0] == slot->mark && slot->object[slot->bytes / 2] == slot->mark &&
                             slot->object[slot->bytes - 1] == slot->mark);
}

static atomic_bool go_on; /* churn past its steps */

/* Allocates, resizes and frees at random; every object holds its slot's mark. */
static void *churn(void *argument)
{
    uint64_t state = (uintptr_t)argument;
    struct slot slots[SLOTS] = {0};
    uintptr_t bad = 0;
    for (unsigned i = 0; i < STEPS || go_on; i++) {
        uint64_t dice = splitmix64(&state);
        struct slot *slot = &slots[dice % SLOTS];
        unsigned action = dice >> 16 & 3;
        size_t bytes = 1 + (dice >> 32) % (action == 3 ? 200000 : 3000);
        bad += !slot_whole(slot);
        if (slot->object && action != 0) {
            zr_heap_free(slot->object);
            slot->object = NULL;
            continue;
        }
        zr_heap_free(slot->object);
        slot->object = zr_heap_alloc(bytes);
        if (!slot->object) {
            bad++;
            break;
        }
        slot->bytes = bytes;
        slot->mark = (unsigned char)(dice >> 24);
        memset(slot->object, slot->mark, bytes);
    }
    for (unsigned k = 0; k < SLOTS; k++) {
        bad += !slot_whole(&slots[k]);
        zr_heap_free(slots[k].object);
    }
    return (void *)bad;
}

static void churn_start(pthread_t *threads, unsigned count, uintptr_t seed)
{
    for (uintptr_t i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, churn, (void *)(i * 77 + seed));
}

/* How often an object was not what it should be. */
static uintptr_t churn_end(const pthread_t *threads, unsigned count)
{
    uintptr_t bad = 0;
    for (unsigned i = 0; i < count; i++) {
        void *result;
        pthread_join(threads[i], &result);
        bad += (uintptr_t)result;
    }
    return bad;
}

static void test_threads(void)
{
    for (unsigned round = 0; round < 3; round++) {
        pthread_t threads[THREADS];
        zr_heap_start(arena);
        churn_start(threads, THREADS, round * 1000 + 1);
        tap_is(churn_end(threads, THREADS), 0, "round %u: %d threads, objects whole", round, THREADS);
        size_t kept = stats().live_bytes;
        tap_ok(kept <= 1 << 20, "an empty heap keeps %zu KiB", kept >> 10);
        stop(0, 0);
    }
    tap_result(zr_arena_check(arena), ZR_OK, "the arena's records are sound");
}

/* Forks while others are inside the heap and the arena: the child must find every lock open. */
static void test_fork(void)
{
#if defined(__SANITIZE_THREAD__)
    tap_skip("ThreadSanitizer follows 64 locks at a time, and jemalloc takes more around a fork");
    return;
#endif
    pthread_t threads[2];
    unsigned good = 0;
    zr_heap_start(arena);
    alarm(300); /* a deadlock ends the test */
    go_on = true;
    churn_start(threads, 2, 5);
    for (unsigned i = 0; i < FORKS; i++) {
        int status = 1;
        pid_t child = fork();
        if (child == 0)
            _exit(zr_heap_alloc(64) ? 0 : 1); /* not written to: the memory is the parent's too */
        good += child > 0 && waitpid(child, &status, 0) == child && status == 0;
    }
    go_on = false;
    uintptr_t bad = churn_end(threads, 2);
    alarm(0);
    tap_ok(good == FORKS && bad == 0, "%d forks amid two busy threads", FORKS);
    zr_heap_stop(NULL);
}

/* ---- Beside the program's malloc ----------------------------------------------------------------------- */

static void test_neighbours(void)
{
    Dl_info info = {0};
    void *(*their_malloc)(size_t) = malloc;
    zr_heap_start(arena);
    void *theirs = malloc(100000), *ours = zr_heap_alloc(100000);
    tap_ok(theirs && !in_arena(theirs), "malloc's memory is not the heap's");
    tap_ok(ours && in_arena(ours), "and the heap's is the arena's");
    bool found = dladdr((void *)(uintptr_t)their_malloc, &info) != 0 && info.dli_fname;
    tap_ok(found && (strstr(info.dli_fname, "libc") || strstr(info.dli_fname, "san") ||
                     strstr(info.dli_fname, "valgrind")),
           "malloc is still the C library's: %s", found ? info.dli_fname : "unknown");
    tap_ok(dlsym(RTLD_DEFAULT, "mallocx") == NULL && dlsym(RTLD_DEFAULT, "zr_je_mallocx") == NULL,
           "no library can find jemalloc in this program");
    free(theirs);
    zr_heap_free(ours);
    zr_heap_stop(NULL);
}

/* The program again with jemalloc's variable set, as somebody has who uses jemalloc elsewhere: our copy must
 * not look at it. It complains on standard error about a setting that it does not know. */
static void test_environment(const char *self)
{
    char heard[256] = {0};
    int ends[2], status = 1;
    tap_ok(pipe(ends) == 0, "a pipe");
    pid_t child = fork();
    if (child == 0) {
        setenv("MALLOC_CONF", "no_such_setting:true,junk:true", 1);
        dup2(ends[1], 2);
        close(ends[0]);
        execl(self, self, "--one-object", (char *)NULL);
        _exit(99);
    }
    close(ends[1]);
    ssize_t got = read(ends[0], heard, sizeof heard - 1);
    close(ends[0]);
    waitpid(child, &status, 0);
    tap_ok(status == 0 && got == 0, "MALLOC_CONF is not for the embedded heap: %s",
           got > 0 ? heard : "silence");
}

/* A heap that meets `ulimit -v` so many bytes from here: which of its own reservations or jemalloc's meets it
 * depends on the number. 0 if the words name it and nothing is lost. */
static int meet_address_limit(size_t left_bytes)
{
    struct zr_resident resident = {0};
    void **last = NULL, *object;
    size_t heap_leaked = 1, arena_leaked = 1;
    zr_backend_host_create(&backend, NULL);
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend});
    if (zr_heap_start(arena) != ZR_OK || zr_os_resident(&resident) != ZR_OK)
        return 1;
    if (left_bytes % 2) /* else jemalloc's records of the heap's first extent meet the limit, too */
        zr_heap_free(zr_heap_alloc(100));
    zr_arena_free(arena, &resident); /* leaves words, which are not the heap's */
    struct rlimit limit = {resident.address_bytes + left_bytes, RLIM_INFINITY};
    setrlimit(RLIMIT_AS, &limit);
    for (size_t i = 0; (object = zr_heap_alloc(i % 3 ? 40000 : 9000)) != NULL; i++) {
        *(void **)object = last;
        last = object;
    }
    bool named = words_have("ulimit -v");
    limit.rlim_cur = RLIM_INFINITY;
    setrlimit(RLIMIT_AS, &limit);
    while (last) {
        object = last;
        last = *last;
        zr_heap_free(object);
    }
    bool ended = zr_heap_stop(&heap_leaked) == ZR_OK && zr_arena_destroy(arena, &arena_leaked) == ZR_OK;
    return named && ended && heap_leaked == 0 && arena_leaked == 0 ? 0 : 1;
}

/* Each in a program started anew: what meets the limit depends on where the system has laid its maps, too. */
static void test_address_limit(void)
{
    enum { LIMITS = 100, FIRST_BYTES = 300000, STEP_BYTES = 45001 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    tap_skip("no limit of addresses: a sanitizer reserves terabytes itself");
#else
    unsigned wrong = 0;
    for (size_t i = 0; i < LIMITS; i++) {
        int status = 1;
        char left[24];
        snprintf(left, sizeof left, "%zu", FIRST_BYTES + i * STEP_BYTES);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            execl("/proc/self/exe", "heap_test", "--address-limit", left, (char *)NULL);
            _exit(99);
        }
        waitpid(child, &status, 0);
        wrong += status != 0;
    }
    tap_is(wrong, 0, "at %d limits of addresses: words that name it, and every extent given back", LIMITS);
#endif
}

static int one_object(void)
{
    zr_backend_host_create(&backend, NULL);
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .limit_bytes = 16 << 20});
    if (zr_heap_start(arena) != ZR_OK)
        return 1;
    void *object = zr_heap_alloc(100);
    zr_heap_free(object);
    return object ? 0 : 1;
}

int main(int count, char **arguments)
{
    if (count > 1 && strcmp(arguments[1], "--one-object") == 0)
        return one_object();
    if (count > 2 && strcmp(arguments[1], "--address-limit") == 0)
        return meet_address_limit((size_t)atoll(arguments[2]));
    test_environment("/proc/self/exe");
    test_address_limit();
    tap_result(zr_backend_host_create(&backend, NULL), ZR_OK, "host backend");
    tap_result(
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .limit_bytes = 128 << 20}),
        ZR_OK, "arena");
    if (!arena)
        return tap_done();
    test_not_running();
    test_objects();
    test_small_use();
    test_failures();
    test_threads();
    test_fork();
    test_neighbours();
    size_t leaked = 1;
    tap_result(zr_arena_destroy(arena, &leaked), ZR_OK, "arena destroyed");
    tap_is(leaked, 0, "empty");
    tap_result(zr_backend_destroy(backend), ZR_OK, "backend destroyed");
    return tap_done();
}
