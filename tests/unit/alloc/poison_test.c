/* poison_test.c: what AddressSanitizer or Valgrind is told of an arena's free space. Each scenario has a
 * process of its own: those that touch what is not theirs must be reported, those that do nothing wrong must
 * not. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/heap/heap.h"
#include "alloc/plan/plan.h"
#include "alloc/zr.h"
#include "tests/support/blocks.h"
#include "tests/support/tap.h"

#define GRANULE ((size_t)64 << 10)

static void start(void)
{
    zr_backend_host_create(&backend, &(struct zr_host_options){.granule_bytes = GRANULE});
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .limit_bytes = 64 * GRANULE});
}

static void touch(char *byte)
{
    char *volatile hidden = byte; /* from the compiler, which knows what an allocation is */
    *(volatile char *)hidden = 1;
}

static void freed(void)
{
    char *block = take(1000);
    take(1000);
    zr_arena_free(arena, block);
    touch(block + 10);
}

static void past_the_end(void)
{
    touch(take(1000) + 1001);
}

static void never_allocated(void)
{
    touch(take(1000) + 8192);
}

static void freed_and_partly_taken(void)
{
    char *block = take(40000);
    take(9000);
    zr_arena_free(arena, block);
    if (take(5000) == block)
        touch(block + 20000);
}

/* Taken again, the bytes are a caller's; what lies past the new request is not. */
static void taken_again(void)
{
    for (unsigned i = 1; i < 40; i++) {
        char *block = take(i * 777);
        memset(block, 1, i * 777);
        zr_arena_free(arena, block);
    }
}

/* Granules leave their holes, the arena ends, and its addresses serve the program. */
static void addresses_used_by_others(void)
{
    char *block[8];
    for (unsigned i = 0; i < 8; i++)
        block[i] = take(8 * GRANULE);
    for (unsigned i = 0; i < 8; i += 2)
        zr_arena_free(arena, block[i]);
    memset(take(32 * GRANULE), 1, 32 * GRANULE);
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
    char *first = mmap(block[0], 64 * GRANULE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (first == block[0])
        memset(first, 1, 64 * GRANULE);
}

/* A plan of three blocks has been followed three times: the blocks of the fourth, all where they are planned.
 */
static void take_planned(char **blocks)
{
    struct zr_plan_step steps[3];
    const struct zr_plan_sequence sequence = {.count = 3, .any = true};
    struct zr_executor_counts counts;
    for (unsigned i = 0; i < 3; i++)
        steps[i] = (struct zr_plan_step){.request = {.bytes = 1000, .alignment = 256, .tag = ZR_TAG_GRAD},
                                         .thread = zr_thread_number(),
                                         .offset_bytes = i * (size_t)1024,
                                         .alive_count = 3 - i};
    if (zr_arena_plan_rules(arena).canary_bytes + 1000 > 1024)
        abort();
    zr_arena_install_plan(arena, &(struct zr_plan){.steps = steps,
                                                   .steps_count = 3,
                                                   .sequences = &sequence,
                                                   .sequences_count = 1,
                                                   .region_bytes = GRANULE});
    for (unsigned round = 0; round < 4; round++)
        for (unsigned i = 0; i < 6; i++)
            if (i < 3)
                memset(blocks[i] = take(1000), 1, 1000);
            else if (round < 3 && zr_arena_free(arena, blocks[i - 3]) != ZR_OK)
                abort();
    zr_arena_executor_counts(arena, &counts);
    if (counts.planned_count != 12)
        _exit(125);
}

static void planned(void)
{
    char *blocks[3];
    take_planned(blocks);
}

static void planned_and_freed(void)
{
    char *blocks[3];
    take_planned(blocks);
    zr_arena_free(arena, blocks[1]);
    touch(blocks[1] + 10);
}

static void planned_past_the_end(void)
{
    char *blocks[3];
    take_planned(blocks);
    touch(blocks[1] + 1001);
    if (zr_arena_free(arena, blocks[1]) == ZR_ERR_CORRUPT) /* with canaries they tell */
        _exit(1);
}

/* An object that was freed beside one that was not. */
static char *freed_object(void)
{
    zr_heap_start(arena);
    char *object = zr_heap_alloc(100);
    zr_heap_alloc(100);
    zr_heap_free(object);
    return object;
}

static void heap_freed(void)
{
    touch(freed_object() + 10);
}

static void heap_freed_twice(void)
{
    zr_heap_free(freed_object());
}

static void heap_past_the_end(void)
{
    zr_heap_start(arena);
    touch((char *)zr_heap_alloc(100) + 100);
}

static void heap_never_allocated(void)
{
    zr_heap_start(arena);
    touch((char *)zr_heap_alloc(100) + 4 * 112);
}

/* Sizes from bytes to several granules come, grow, shrink and go. */
static void heap_in_use(void)
{
    enum { OBJECTS = 64 };
    static char *objects[OBJECTS];
    size_t leaked = 1;
    uint64_t random = 1;
    zr_heap_start(arena);
    for (unsigned i = 0; i < 4000; i++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
        unsigned at = (unsigned)(random >> 33) % OBJECTS;
        size_t bytes = 1 + (random >> 40) % ((size_t)1 << (4 + (random >> 60) % 12));
        bool zero = random >> 59 & 1;
        if (objects[at] && i % 3 == 0) {
            zr_heap_free(objects[at]);
            objects[at] = NULL;
        } else {
            zr_heap_free(objects[at]);
            char *object = zero ? zr_heap_zalloc(1, bytes) : zr_heap_alloc(bytes);
            if (zero && (object[0] || object[bytes - 1]))
                abort();
            objects[at] = memset(object, 1, bytes);
        }
    }
    for (unsigned i = 0; i < OBJECTS; i++)
        zr_heap_free(objects[i]);
    if (zr_heap_stop(&leaked) != ZR_OK || leaked != 0 || zr_arena_check(arena) != ZR_OK)
        abort();
    memset(take(32 * GRANULE), 1, 32 * GRANULE);
}

static const struct scenario {
    const char *name;
    void (*run)(void);
    bool reported;
} scenarios[] = {
    {"a block that was freed", freed, true},
    {"a byte past a block's end", past_the_end, true},
    {"mapped space that nobody took", never_allocated, true},
    {"the part of a freed block that was not taken again", freed_and_partly_taken, true},
    {"blocks taken again and again", taken_again, false},
    {"addresses that an arena had", addresses_used_by_others, false},
    {"planned blocks taken again and again", planned, false},
    {"a planned block that was freed", planned_and_freed, true},
    {"a byte past a planned block's end", planned_past_the_end, true},
    {"an object of the heap that was freed", heap_freed, true},
    {"a byte past an object's end", heap_past_the_end, true},
    {"an object freed twice", heap_freed_twice, true},
    {"a slab's object that nobody took", heap_never_allocated, true},
    {"objects that come, grow, shrink and go", heap_in_use, false},
};
enum { COUNT = sizeof scenarios / sizeof *scenarios };

/* This program again, under what reports: each scenario whose name has `part`, in a fork of its own, since
 * the start of Valgrind takes longer than any of them. False: it cannot be run. statuses[i] is 0 where
 * nothing was reported of scenario i. */
static bool run_apart(char *self, const char *part, const char *conf, int statuses[COUNT])
{
    int ends[2], status = 0;
    bool whole = true;
    if (pipe(ends) != 0)
        abort();
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        setenv("ZR_CONF", conf, 1);
        if (dup2(ends[1], STDOUT_FILENO) < 0 || !freopen("/dev/null", "w", stderr))
            _exit(126);
#if defined(__SANITIZE_ADDRESS__)
        execl(self, self, part, (char *)NULL);
#else
        execlp("valgrind", "valgrind", "-q", "--error-exitcode=9", self, part, (char *)NULL);
#endif
        _exit(127);
    }
    close(ends[1]);
    FILE *told = fdopen(ends[0], "r");
    for (unsigned i = 0; i < COUNT && whole; i++)
        if (strstr(scenarios[i].name, part))
            whole = told && fscanf(told, "%d", &statuses[i]) == 1;
    if (told)
        fclose(told);
    waitpid(child, &status, 0);
    return whole;
}

/* What run_apart() runs. Writes the status of each scenario. */
static int run_all(const char *part)
{
    for (unsigned i = 0; i < COUNT; i++) {
        int status = 0;
        if (!strstr(scenarios[i].name, part))
            continue;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            start();
            scenarios[i].run();
            exit(0);
        }
        waitpid(child, &status, 0);
        printf("%d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    }
    return 0;
}

static void check_apart(char *self, const char *part, const char *conf)
{
    int statuses[COUNT];
    if (!run_apart(self, part, conf, statuses)) {
        tap_ok(false, "with ZR_CONF '%s', every scenario ends", conf);
        return;
    }
    for (unsigned i = 0; i < COUNT; i++)
        if (strstr(scenarios[i].name, part))
            tap_ok(statuses[i] < 125 && (statuses[i] != 0) == scenarios[i].reported,
                   "with ZR_CONF '%s', %s: %s", conf, scenarios[i].name,
                   scenarios[i].reported ? "reported" : "not reported");
}

int main(int count, char **arguments)
{
    int statuses[COUNT] = {1};
    if (count > 1)
        return run_all(arguments[1]);
#if defined(__SANITIZE_THREAD__)
    tap_skip("poison: not under ThreadSanitizer");
    return tap_done();
#endif
    if (!run_apart(arguments[0], scenarios[0].name, "poison:off", statuses)) {
        tap_skip("poison: neither AddressSanitizer nor Valgrind here; type: apt-get install valgrind");
        return tap_done();
    }
    tap_is(statuses[0], 0, "poison:off keeps free space to ourselves");
    check_apart(arguments[0], "", "");
    check_apart(arguments[0], "planned", "check:3"); /* with canaries */
    return tap_done();
}
