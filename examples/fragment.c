/* fragment.c: a program that runs out of GPU memory although much of it is free, and two ways to run it. The
 * program does not use zr, and loads the CUDA driver at run time; `make demo-fragmentation` runs it on an
 * emulated driver.
 *
 *     fragment            allocates from a caching allocator, as frameworks have: it keeps segments with
 *                         sizes that are powers of two, cuts blocks from them, and runs out of memory
 *     fragment --direct   calls the driver's cuMemAlloc for each block, as frameworks do with
 *                         PYTORCH_NO_CUDA_MEMORY_CACHING=1; under `zr run --cuda` these blocks are in zr's
 *                         arena, and `zr map` draws its --trace */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long address;
enum {
    MIB = 1 << 20,
    STEPS = 60,
    PER_STEP = 24,
    BLOCKS_MAX = 4096,
    SEGMENTS_MAX = 256,
    COLUMNS = 64,
    ROWS = 6
};

static unsigned (*init)(unsigned), (*retain)(void **, int), (*make_current)(void *);
static unsigned (*mem_alloc)(address *, size_t), (*mem_free)(address), (*mem_info)(size_t *, size_t *);

struct block {
    address at;
    size_t bytes;
};
static struct block blocks[BLOCKS_MAX]; /* live */
static size_t blocks_count, live_bytes;
static struct block segments[SEGMENTS_MAX];
static size_t segments_count;
static int direct;

/* ---- A caching allocator ------------------------------------------------------------------------------- */

/* The first address from `at` on where `bytes` bytes overlap no block. */
static address behind_blocks(address at, size_t bytes)
{
    for (size_t i = 0; i < blocks_count; i++)
        if (blocks[i].at < at + bytes && at < blocks[i].at + blocks[i].bytes) {
            at = blocks[i].at + blocks[i].bytes;
            i = (size_t)-1; /* start again: an earlier block may overlap the new range */
        }
    return at;
}

static address cut(size_t bytes)
{
    for (size_t i = 0; i < segments_count; i++) {
        address at = behind_blocks(segments[i].at, bytes);
        if (at + bytes <= segments[i].at + segments[i].bytes)
            return at;
    }
    return 0;
}

/* Returns segments without live blocks to the driver, as frameworks do when memory is short. */
static void release_segments(void)
{
    for (size_t i = 0; i < segments_count;)
        if (behind_blocks(segments[i].at, segments[i].bytes) == segments[i].at) {
            mem_free(segments[i].at);
            segments[i] = segments[--segments_count];
        } else {
            i++;
        }
}

static address take(size_t bytes)
{
    address at = direct ? 0 : cut(bytes);
    size_t segment_bytes = 64 * MIB;
    while (segment_bytes < bytes)
        segment_bytes *= 2;
    if (direct)
        return mem_alloc(&at, bytes) == 0 ? at : 0;
    if (at)
        return at;
    if (mem_alloc(&at, segment_bytes) != 0) {
        release_segments();
        if (mem_alloc(&at, segment_bytes) != 0)
            return 0;
    }
    segments[segments_count++] = (struct block){at, segment_bytes};
    return at;
}

/* ---- The picture --------------------------------------------------------------------------------------- */

static size_t live_between(address start, address end)
{
    size_t bytes = 0;
    for (size_t i = 0; i < blocks_count; i++) {
        address from = blocks[i].at > start ? blocks[i].at : start;
        address to = blocks[i].at + blocks[i].bytes < end ? blocks[i].at + blocks[i].bytes : end;
        bytes += to > from ? to - from : 0;
    }
    return bytes;
}

static int by_address(const void *a, const void *b)
{
    address first = ((const struct block *)a)->at, second = ((const struct block *)b)->at;
    return (first > second) - (first < second);
}

/* Draws the segments one after the other: # live, + partly live, . free. */
static void draw_map(void)
{
    size_t held = 0;
    for (size_t i = 0; i < segments_count; i++)
        held += segments[i].bytes;
    qsort(segments, segments_count, sizeof *segments, by_address);
    size_t cell = held / (COLUMNS * ROWS) + 1;
    for (int i = 0; held && i < COLUMNS * ROWS; i++) {
        size_t first = i * cell, live = 0, before = 0;
        for (size_t k = 0; k < segments_count; before += segments[k++].bytes) {
            size_t from = first > before ? first - before : 0;
            size_t to = first + cell > before ? first + cell - before : 0;
            to = to < segments[k].bytes ? to : segments[k].bytes;
            live += to > from ? live_between(segments[k].at + from, segments[k].at + to) : 0;
        }
        putchar(live == 0 ? '.' : live * 10 < cell * 9 ? '+' : '#');
        if (i % COLUMNS == COLUMNS - 1)
            putchar('\n');
    }
    if (held)
        printf("# live  + partly  . free, in %zu segments of the allocator, %zu MiB\n", segments_count,
               held / MIB);
}

/* ---- The program --------------------------------------------------------------------------------------- */

static unsigned draw(unsigned end)
{
    static unsigned seed = 7;
    seed = seed * 1103515245u + 12345u;
    return (seed >> 8) % end;
}

static void drop(size_t i)
{
    if (direct)
        mem_free(blocks[i].at);
    live_bytes -= blocks[i].bytes;
    blocks[i] = blocks[--blocks_count];
}

/* A step allocates blocks whose sizes depend on its sequence length, keeps a few for some steps, and frees
 * the others. */
static int step(int number)
{
    size_t first = blocks_count, length = 1 + draw(6);
    for (int i = 0; i < PER_STEP; i++) {
        size_t bytes = (2 + draw(4)) * length * MIB;
        address at = take(bytes);
        if (!at) {
            size_t held = 0, free_bytes = 0, total = 0;
            for (size_t k = 0; k < segments_count; k++)
                held += segments[k].bytes;
            mem_info(&free_bytes, &total);
            printf(
                "step %d: no room for %zu MiB: %zu MiB live of %zu, and %zu MiB free in the allocator's segments\n",
                number, bytes / MIB, live_bytes / MIB, total / MIB,
                (held ? held - live_bytes : free_bytes) / MIB);
            return 0;
        }
        blocks[blocks_count++] = (struct block){at, bytes};
        live_bytes += bytes;
    }
    for (size_t i = blocks_count; i > first; i--)
        if (i % 12 != 0)
            drop(i - 1);
    while (live_bytes > (size_t)420 * MIB)
        drop(draw((unsigned)blocks_count));
    return 1;
}

int main(int argc, char **argv)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
    if (!library) {
        fprintf(stderr,
                "fragment: %s; without a GPU: LD_LIBRARY_PATH=build/tests/emulator, after make "
                "demo-fragmentation has built that\n",
                dlerror());
        return 1;
    }
    *(void **)&init = dlsym(library, "cuInit");
    *(void **)&retain = dlsym(library, "cuDevicePrimaryCtxRetain");
    *(void **)&make_current = dlsym(library, "cuCtxSetCurrent");
    *(void **)&mem_alloc = dlsym(library, "cuMemAlloc_v2");
    *(void **)&mem_free = dlsym(library, "cuMemFree_v2");
    *(void **)&mem_info = dlsym(library, "cuMemGetInfo_v2");
    direct = argc > 1 && strcmp(argv[1], "--direct") == 0;
    if (init(0) != 0 || retain(&context, 0) != 0 || make_current(context) != 0) {
        fprintf(stderr, "fragment: no GPU\n");
        return 1;
    }
    int fine = 1;
    for (int i = 1; fine && i <= STEPS; i++)
        fine = step(i);
    if (fine)
        printf("all %d steps\n", STEPS);
    draw_map();
    return fine ? 0 : 4;
}
