/* cuda_caching.c: a program that allocates as PyTorch's caching allocator does: segments of 2 and 20 MiB and
 * larger ones from the driver, by the runtime's way to it (cudart_calls.h), blocks of them for the default
 * stream, and work that is given hundreds of pieces ahead of the device. The sequences change their length,
 * for which the cache goes back, and a scratch buffer comes and goes in each step without a cache.
 * tests/system/preload_cuda.t compares it with and without a library preloaded.
 *
 *   cuda_caching [STREAMS]
 *
 * STREAMS non-blocking streams exist besides, one of which works. All is done twice. Prints the most MiB of
 * the device in use at one time, the microseconds by the emulated clock and those of the second half, and how
 * often an event was recorded and asked for. */
#include <stdio.h>
#include <stdlib.h>

#include "alloc/rehearse/driver/emulator.h"
#include "tests/support/cuda/cudart_calls.h"

enum { MIB = 1 << 20, SMALL = MIB, MIDDLE = 10 * MIB, LAYERS = 12, STREAMS_MAX = 64, WORK_TICKS = 20 };

static struct cudart cudart;
static const struct zr_emulator *emulator;
static zr_cu_stream side; /* NULL: none */
static size_t peak_bytes;

static void must(int good, const char *what)
{
    if (good)
        return;
    printf("failed: %s\n", what);
    exit(1);
}

#define MUST(condition) must(condition, #condition)

/* ---- Segments ------------------------------------------------------------------------------------------ */

struct block {
    struct block *next, *previous; /* in the segment, by address */
    struct block *following;       /* of all */
    zr_cu_address address;
    size_t bytes;
    int small, used, gone;
};

static struct block *blocks;

static struct block *new_block(struct block value)
{
    struct block *made = malloc(sizeof *made);
    MUST(made != NULL);
    *made = value;
    made->following = blocks;
    return blocks = made;
}

static zr_cu_address allocate(size_t bytes)
{
    zr_cu_address address;
    MUST(cudart.allocate(&address, bytes) == 0);
    size_t used = emulator->state().used_bytes;
    peak_bytes = used > peak_bytes ? used : peak_bytes;
    return address;
}

static struct block *new_segment(size_t bytes)
{
    int small = bytes <= SMALL;
    size_t whole = small            ? 2 * MIB
                   : bytes < MIDDLE ? 20 * MIB
                                    : (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
    return new_block((struct block){.address = allocate(whole), .bytes = whole, .small = small});
}

/* The best fit of the blocks for its size. */
static struct block *take(size_t bytes)
{
    struct block *best = NULL;
    bytes = (bytes + 511) / 512 * 512;
    for (struct block *each = blocks; each; each = each->following)
        if (!each->used && !each->gone && each->small == (bytes <= SMALL) && each->bytes >= bytes &&
            (!best || each->bytes < best->bytes))
            best = each;
    if (!best)
        best = new_segment(bytes);
    if (best->bytes - bytes >= (best->small ? 512 : MIB)) {
        struct block *rest = new_block((struct block){.next = best->next,
                                                      .previous = best,
                                                      .address = best->address + bytes,
                                                      .bytes = best->bytes - bytes,
                                                      .small = best->small});
        if (rest->next)
            rest->next->previous = rest;
        best->next = rest;
        best->bytes = bytes;
    }
    best->used = 1;
    return best;
}

static void merge(struct block *first, struct block *second)
{
    if (!first || !second || first->used || second->used)
        return;
    first->bytes += second->bytes;
    first->next = second->next;
    if (first->next)
        first->next->previous = first;
    second->gone = 1;
}

static void give(struct block *block)
{
    struct block *previous = block->previous;
    block->used = 0;
    merge(block, block->next);
    merge(previous, block);
}

static void empty_cache(void)
{
    for (struct block *each = blocks; each; each = each->following)
        if (!each->used && !each->gone && !each->next && !each->previous) {
            MUST(cudart.free(each->address) == 0);
            each->gone = 1;
        }
}

/* ---- Training ------------------------------------------------------------------------------------------ */

static void work(const struct block *on, int pieces)
{
    for (int i = 0; i < pieces; i++)
        MUST(cudart.fill(on->address, 1, 4096, NULL) == 0);
}

static void step(size_t length, const struct block *weights)
{
    struct block *kept[LAYERS][3];
    zr_cu_address scratch = allocate(16 * MIB * length);
    for (int layer = 0; layer < LAYERS; layer++) {
        static const size_t sizes[3] = {SMALL / 4, 3 * MIB, 12 * MIB};
        for (int i = 0; i < 3; i++) {
            kept[layer][i] = take(sizes[i] * length);
            work(kept[layer][i], 3);
        }
        MUST(!side || cudart.fill(weights->address + 8192, 7, 4096, side) == 0);
    }
    MUST(cudart.fill(scratch, 2, 4096, NULL) == 0 && cudart.free(scratch) == 0);
    for (int layer = LAYERS; layer-- > 0;) {
        struct block *gradient = take(5 * MIB * length);
        work(gradient, 6);
        for (int i = 0; i < 3; i++)
            give(kept[layer][i]);
        give(gradient);
    }
}

int main(int argc, char **argv)
{
    static const size_t lengths[] = {1, 2, 1, 3};
    zr_cu_context context;
    zr_cu_stream streams[STREAMS_MAX];
    int streams_count = argc > 1 ? atoi(argv[1]) : 0;
    unsigned char got[2] = {0};
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    MUST(library && cudart_start(&cudart, library, false) && streams_count <= STREAMS_MAX);
    emulator = dlsym(library, "zr_emulator");
    MUST(cudart.init(0) == 0 && cudart.retain(&context, 0) == 0 && cudart.set_current(context) == 0);
    emulator->work_ticks(WORK_TICKS);
    for (int i = 0; i < streams_count; i++)
        MUST(cudart.stream_new(&streams[i], ZR_CU_STREAM_NON_BLOCKING) == 0);
    side = streams_count > 0 ? streams[0] : NULL;
    const struct block *weights = take(50 * MIB);
    MUST(cudart.fill(weights->address, 42, 4096, NULL) == 0);
    uint64_t ticks = 0, first_ticks = 0;
    for (int epoch = 0; epoch < 2; epoch++) {
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            for (int n = 0; n < 4; n++)
                step(lengths[i], weights);
            empty_cache();
        }
        MUST(cudart.synchronize() == 0);
        first_ticks = ticks;
        ticks = emulator->ticks();
    }
    MUST(cudart.copy_to_host(got, weights->address, 1) == 0 && got[0] == 42);
    printf("%zu MiB %llu us %llu us %llu recorded %llu asked\n", peak_bytes / MIB, (unsigned long long)ticks,
           (unsigned long long)(ticks - first_ticks), (unsigned long long)emulator->calls("cuEventRecord"),
           (unsigned long long)emulator->calls("cuEventQuery"));
    return 0;
}
