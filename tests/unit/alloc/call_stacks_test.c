/* call_stacks_test.c: the table of call stacks, under threads, forks and until it is full; and what a trace
 * says of them. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <unwind.h>

#include "alloc/base/option.h"
#include "alloc/telemetry/stacks.h"
#include "alloc/telemetry/trace.h"
#include "defrag/trace/formats/zrt.h"
#include "tests/support/tap.h"

static char scratch[] = "/tmp/zr-stacks-XXXXXX";

enum { DEPTH = 12, PATHS = 1 << DEPTH, THREADS = 4, MORE = 17 };

/* ---- A stack for each number --------------------------------------------------------------------------- */

static uint32_t one(unsigned bits, unsigned left);

static __attribute__((noinline)) uint32_t other(unsigned bits, unsigned left)
{
    uint32_t number = left == 0  ? zr_call_stack_take()
                      : bits & 1 ? one(bits >> 1, left - 1)
                                 : other(bits >> 1, left - 1);
    __asm__ volatile("" : "+r"(number)); /* no call is the last thing done */
    return number;
}

static __attribute__((noinline)) uint32_t one(unsigned bits, unsigned left)
{
    uint32_t number = left == 0  ? zr_call_stack_take()
                      : bits & 1 ? one(bits >> 1, left - 1)
                                 : other(bits >> 1, left - 1);
    __asm__ volatile("" : "+r"(number));
    return number;
}

static void *take_all(void *out)
{
    uint32_t *numbers = out;
    for (unsigned i = 0; i < PATHS; i++)
        numbers[i] = one(i, DEPTH);
    return NULL;
}

static bool seen_once(const uint32_t *numbers)
{
    static unsigned char seen[ZRT_STACKS_MAX + 1];
    memset(seen, 0, sizeof seen);
    for (unsigned i = 0; i < PATHS; i++)
        if (numbers[i] == 0 || numbers[i] > ZRT_STACKS_MAX || seen[numbers[i]]++)
            return false;
    return true;
}

static void test_table(void)
{
    static uint32_t numbers[THREADS][PATHS];
    pthread_t threads[THREADS];
    int status = 1;
    tap_is(one(0, 1), 0, "off, no stack is taken");
    tap_is(zr_call_stack_get(1).count, 0, "and there is none");
    zr_stacks_set(1);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, take_all, numbers[i]);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    tap_ok(seen_once(numbers[0]), "%d stacks have numbers of their own", PATHS);
    bool agree = true;
    for (unsigned i = 1; i < THREADS; i++)
        agree = agree && memcmp(numbers[0], numbers[i], sizeof numbers[0]) == 0;
    tap_ok(agree, "the same ones in %d threads at once", THREADS);
    struct zr_call_stack first = zr_call_stack_get(numbers[0][0]);
    uint64_t at = first.count ? first.addresses[0] : 0, begin = (uintptr_t)one, end = (uintptr_t)other;
    tap_ok((at > begin && at < begin + 4096) || (at > end && at < end + 4096),
           "the innermost frame is who asked");
    tap_ok(first.count > DEPTH && first.count <= ZR_STACK_FRAMES, "of %u frames", first.count);
    uint32_t here = one(5, 3);
    pid_t child = fork();
    if (child == 0)
        _exit(one(5, 3) == 0 || zr_call_stack_get(here).count == 0 ||
              zr_call_stack_get(numbers[0][0]).count != first.count);
    waitpid(child, &status, 0);
    tap_is(status, 0, "a child has the parent's stacks, and takes its own");
}

static void test_sampling(void)
{
    unsigned taken = 0;
    zr_stacks_set(10);
    for (unsigned i = 0; i < 20000; i++)
        taken += one(7, 3) > 0;
    tap_ok(taken > 1600 && taken < 2400, "one in ten: %u of 20000", taken);
    zr_stacks_set(0);
    tap_is(one(7, 3), 0, "none again");
    tap_is(zr_call_stack_own(), 0, "and the thread's last is none");
    zr_stacks_set(1);
}

static void test_full(void)
{
    uint32_t known[2] = {0, 0};
    unsigned none = 0;
    zr_stacks_set(1);
    for (volatile unsigned turn = 0; turn < 2; turn++) { /* one place in the code */
        known[turn] = one(3, DEPTH);
        for (unsigned i = 0; turn == 0 && i < 1u << MORE; i++)
            none += one(i, MORE) == 0;
    }
    tap_ok(none > 0 && none < 1u << MORE, "the table is full at some time");
    tap_ok(known[0] > 0 && known[0] == known[1], "what is in it is still found");
    tap_is(one(1, 20), 0, "and nothing else is");
    tap_is(zr_call_stack_get(UINT32_MAX).count, 0, "a number that was never handed out has no frames");
}

/* ---- In a trace ---------------------------------------------------------------------------------------- */

static zr_arena *arena;

static __attribute__((noinline)) void *allocate_here(size_t bytes)
{
    void *block = NULL;
    zr_arena_alloc(arena, &(struct zr_request){.bytes = bytes, .tag = ZR_TAG_PARAM}, &block);
    __asm__ volatile("" : "+r"(block));
    return block;
}

static __attribute__((noinline)) void *allocate_there(size_t bytes)
{
    void *block = NULL;
    zr_arena_alloc(arena, &(struct zr_request){.bytes = bytes, .tag = ZR_TAG_GRAD}, &block);
    __asm__ volatile("" : "+r"(block));
    return block;
}

/* What a trace says: whether each stack comes before who has it and lies in modules, and the stacks by size
 * of block. */
struct said {
    bool good;
    unsigned definitions, modules, build_ids;
    uint32_t by_kib[64]; /* UINT32_MAX: refused */
    bool in_here[ZRT_STACKS_MAX + 1];
};

static void read_trace(const char *path, struct said *out)
{
    static struct zrt_reader reader;
    static struct zrt_event event;
    static struct {
        uint64_t address, end;
    } modules[256];
    static bool known[ZRT_STACKS_MAX + 1];
    bool more = true;
    memset(known, 0, sizeof known);
    *out = (struct said){.good = zrt_open(&reader, path) == ZR_OK && reader.header.version == 2};
    while (out->good && zrt_next(&reader, &event, &more) == ZR_OK && more) {
        if (event.kind == ZRT_EXTENSION && event.extension == ZRT_MODULE && out->modules < 256) {
            modules[out->modules].address = event.module.address;
            modules[out->modules++].end = event.module.address + event.module.bytes;
            out->build_ids += event.module.build_id_bytes > 0 && event.module.path[0] == '/';
        }
        if (event.kind == ZRT_EXTENSION && event.extension == ZRT_STACK) {
            out->definitions++;
            out->good &= !known[event.stack];
            known[event.stack] = true;
            for (unsigned i = 0; i < event.frames_count; i++) {
                bool inside = false;
                for (unsigned k = 0; k < out->modules; k++)
                    inside |= event.frames[i] >= modules[k].address && event.frames[i] < modules[k].end;
                out->good &= inside;
                const void *function =
                    _Unwind_FindEnclosingFunction((void *)(uintptr_t)(event.frames[i] - 1));
                out->in_here[event.stack] |= (uintptr_t)function == (uintptr_t)allocate_here;
            }
        }
        if (event.kind == ZRT_ALLOC || event.kind == ZRT_REFUSED) {
            out->good &= event.stack == 0 || known[event.stack];
            out->by_kib[event.kind == ZRT_ALLOC ? event.bytes >> 10 & 63 : 0] = event.stack;
        }
    }
    out->good &= !more;
    zrt_close(&reader);
}

static void test_trace(void)
{
    static struct said said;
    zr_backend *backend;
    char live[300], whole[300], late[300];
    snprintf(live, sizeof live, "%s/live.zrt", scratch);
    snprintf(whole, sizeof whole, "%s/whole.zrt", scratch);
    snprintf(late, sizeof late, "%s/late.zrt", scratch);
    zr_stacks_set(0);
    zr_backend_sim_create(&backend, &(struct zr_sim_options){.capacity_bytes = 8 << 20});
    tap_result(zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .name = "stacks"}),
               ZR_OK, "an arena");
    allocate_here(1 << 10);
    zr_arenas_set_stacks(1);
    void *second = allocate_here(2 << 10);
    zr_trace_start(arena, whole);
    allocate_here(3 << 10);
    for (unsigned i = 0; i < 3; i++)
        zr_arena_free(arena, allocate_there(4 << 10));
    allocate_there(64 << 20); /* refused */
    zr_arenas_set_stacks(0);
    allocate_here(5 << 10);
    zr_trace_stop(arena);
    read_trace(whole, &said);
    tap_ok(said.good, "a trace with stacks is whole");
    tap_is(said.by_kib[1], 0, "a block from before has none");
    tap_ok(said.in_here[said.by_kib[2]], "one that was live at the trace's start has its own");
    tap_ok(said.in_here[said.by_kib[3]] && said.by_kib[3] != said.by_kib[2], "one of the trace, too");
    tap_ok(said.by_kib[4] > 0 && !said.in_here[said.by_kib[4]], "of who it was");
    tap_ok(said.by_kib[0] > 0 && said.by_kib[0] != said.by_kib[4], "a refused one has a stack");
    tap_is(said.by_kib[5], 0, "once they are off, there is none");
    tap_is(said.definitions, 4, "each stack is written once");
    tap_ok(said.modules > 0 && said.build_ids > 0, "%u modules, %u of them with a build ID", said.modules,
           said.build_ids);
    zr_arena_free(arena, second);
    zr_arenas_set_stacks(1);
    tap_result(zr_trace_snapshot(0, late), ZR_OK, "a snapshot");
    read_trace(late, &said);
    tap_ok(said.good && said.definitions == 0 && said.modules == 0,
           "stacks of before the switch are forgotten");
    zr_stacks_set(0);
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
    unlink(whole);
    unlink(late);
}

int main(void)
{
    if (!mkdtemp(scratch))
        return 1;
    test_table();
    test_sampling();
    test_trace();
    test_full();
    rmdir(scratch);
    return tap_done();
}
