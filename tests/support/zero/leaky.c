/* leaky.c: linked into a zr-train of the tests' own, makes one rank of it ask for more than its byte plan
 * has:
 *
 *   ZR_TEST_LEAK=free:TAG:RANK:STEP   from that step on blocks of the tag are never freed
 *   ZR_TEST_LEAK=once:TAG:RANK:STEP   one such block is not
 *   ZR_TEST_LEAK=more:TAG:RANK:STEP   from that step on (0: from the start) each of its requests is 256
 *                                     bytes larger
 *
 *   ZR_TEST_CALLS=FILE                where the trainer asks for its arena's statistics, "step calls" is
 * added: the driver calls so far, counted before the backend (of one rank alone)
 *
 *   ZR_TEST_REFUSE=RANK               its matrix library refuses every product
 *
 * The linker's --wrap puts these functions before the real ones; the trainer itself is the one that is
 * shipped. The rehearsal, which has an arena of its own, is left alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/core/arena.h"
#include "tests/support/counting.h"
#include "zero/train/rank/rank.h"

zr_result __real_zr_arena_alloc(zr_arena *arena, const struct zr_request *request, void **out);
zr_result __real_zr_arena_free(zr_arena *arena, void *block);
zr_result __real_zr_trace_mark(zr_arena *arena, const char *label);
int __real_zr_train_rank(struct zr_local_world *local, unsigned rank, void *argument);
zr_result __real_zr_arena_get_stats(zr_arena *arena, struct zr_arena_stats *out);
zr_result __wrap_zr_arena_get_stats(zr_arena *arena, struct zr_arena_stats *out);
zr_result __wrap_zr_arena_alloc(zr_arena *arena, const struct zr_request *request, void **out);
zr_result __wrap_zr_arena_free(zr_arena *arena, void *block);
zr_result __wrap_zr_trace_mark(zr_arena *arena, const char *label);
int __wrap_zr_train_rank(struct zr_local_world *local, unsigned rank, void *argument);
/* kernels/cpu/products/gemm.h, some names of which alloc/ has too. */
void zr_gemm_refuse(struct zr_kernel_context *context);
zr_result __real_zr_gemm_open(struct zr_kernel_context *context);
zr_result __wrap_zr_gemm_open(struct zr_kernel_context *context);

static struct {
    bool frees, once, more; /* which of the three; none: all is well */
    char tag[16];
    unsigned rank;
    unsigned long step;
} leak;
static unsigned long step; /* under way; 0: none yet */
static bool refuses;

static void read_leak(unsigned rank)
{
    const char *text = getenv("ZR_TEST_LEAK");
    char kind[8] = "";
    if (!text || sscanf(text, "%7[^:]:%15[^:]:%u:%lu", kind, leak.tag, &leak.rank, &leak.step) != 4 ||
        leak.rank != rank)
        return;
    leak.once = strcmp(kind, "once") == 0;
    leak.frees = leak.once || strcmp(kind, "free") == 0;
    leak.more = strcmp(kind, "more") == 0;
}

static bool leaks(const zr_arena *arena, zr_tag tag)
{
    return arena && strcmp(arena->name, "training") == 0 && step >= leak.step &&
           strcmp(zr_tag_name(tag), leak.tag) == 0;
}

zr_result __wrap_zr_arena_alloc(zr_arena *arena, const struct zr_request *request, void **out)
{
    struct zr_request larger = *request;
    larger.bytes += leak.more && leaks(arena, request->tag) ? 256 : 0;
    return __real_zr_arena_alloc(arena, &larger, out);
}

zr_result __wrap_zr_arena_free(zr_arena *arena, void *block)
{
    struct zr_block_info info;
    if (leak.frees && block && zr_arena_find(arena, block, &info) == ZR_OK && leaks(arena, info.tag)) {
        leak.frees = !leak.once;
        return ZR_OK;
    }
    return __real_zr_arena_free(arena, block);
}

zr_result __wrap_zr_arena_get_stats(zr_arena *arena, struct zr_arena_stats *out)
{
    const char *path = getenv("ZR_TEST_CALLS");
    FILE *file = path && arena && strcmp(arena->name, "training") == 0 ? fopen(path, "a") : NULL;
    if (file) {
        if (!counting.below)
            count_calls(arena->backend);
        fprintf(file, "%lu %llu\n", step, (unsigned long long)counting.calls);
        fclose(file);
    }
    return __real_zr_arena_get_stats(arena, out);
}

/* The trainer marks each step as it begins. */
zr_result __wrap_zr_trace_mark(zr_arena *arena, const char *label)
{
    if (strncmp(label, "step ", 5) == 0)
        step = strtoul(label + 5, NULL, 10);
    return __real_zr_trace_mark(arena, label);
}

int __wrap_zr_train_rank(struct zr_local_world *local, unsigned rank, void *argument)
{
    const char *refusing = getenv("ZR_TEST_REFUSE");
    read_leak(rank);
    refuses = refusing && strtoul(refusing, NULL, 10) == rank;
    return __real_zr_train_rank(local, rank, argument);
}

zr_result __wrap_zr_gemm_open(struct zr_kernel_context *context)
{
    zr_result result = __real_zr_gemm_open(context);
    if (result == ZR_OK && refuses)
        zr_gemm_refuse(context);
    return result;
}
