/* failing.c: programs that run out of memory, each for another reason: `failing NAME`.
 * tests/system/why_failures.t runs them with the flight recorder on and reads the file alone. A row is a
 * device and a function that allocates until it is refused; it ends with 4, or with 1 where nothing was
 * refused. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/zr.h"

#define MIB ((size_t)1 << 20)
enum { STEPS = 40, PER_STEP = 8 };

static zr_backend *backend;
static zr_arena *arena;
static void *kept[64];

static void *on(size_t bytes, zr_tag tag, uint64_t stream)
{
    void *out = NULL;
    zr_arena_alloc(arena, &(struct zr_request){.bytes = bytes, .tag = tag, .stream = stream}, &out);
    return out;
}

static void *take(size_t bytes, zr_tag tag)
{
    return on(bytes, tag, 0);
}

/* What a step needs and frees; false: refused. */
static bool step(size_t bytes)
{
    void *blocks[PER_STEP];
    unsigned count = 0;
    while (count < PER_STEP && (blocks[count] = take(bytes, ZR_TAG_ACTIVATION)))
        count++;
    bool all = count == PER_STEP;
    while (count > 0)
        zr_arena_free(arena, blocks[--count]);
    return all;
}

/* Parameters until there is no room. */
static void shortage(void)
{
    for (unsigned i = 0; take(8 * MIB, i % 2 ? ZR_TAG_PARAM : ZR_TAG_OPTIMIZER); i++)
        ;
}

/* Of every granule half stays. */
static void fragmentation(void)
{
    enum { COUNT = 64 }; /* as many as there is room for: a first refusal would have the file */
    for (unsigned i = 0; i < COUNT; i++)
        kept[i] = take(MIB, ZR_TAG_ACTIVATION);
    for (unsigned i = 0; i < COUNT; i += 2)
        zr_arena_free(arena, kept[i]);
    take(8 * MIB, ZR_TAG_GRAD);
}

/* Freed on a stream that a capture holds: nobody can wait for it. */
static void pending(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *stream = NULL;
    unsigned (*make)(void **, unsigned) = NULL, (*capture)(void *, int) = NULL,
                              (*retain)(void **, int) = NULL, (*current)(void *) = NULL;
    void *context = NULL;
    if (!driver)
        return;
    *(void **)&make = dlsym(driver, "cuStreamCreate");
    *(void **)&capture = dlsym(driver, "cuStreamBeginCapture_v2");
    *(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
    *(void **)&current = dlsym(driver, "cuCtxSetCurrent");
    if (retain(&context, 0) || current(context) || make(&stream, 1))
        return;
    void *block = on(40 * MIB, ZR_TAG_ACTIVATION, (uint64_t)(uintptr_t)stream);
    if (capture(stream, 2) == 0)
        zr_arena_free(arena, block);
    on(40 * MIB, ZR_TAG_GRAD, 0);
}

/* A pool of one stream keeps what it had for its entries. */
static void pool(void)
{
    zr_contiguous *checkpoints;
    zr_entry entry = 0;
    if (zr_contiguous_create(&checkpoints, &(struct zr_contiguous_options){.arena = arena,
                                                                           .tag = ZR_TAG_CHECKPOINT,
                                                                           .keep_bytes = 40 * MIB}) !=
            ZR_OK ||
        zr_contiguous_append(checkpoints, &(struct zr_entry_request){.bytes = 40 * MIB, .stream = 7}, &entry,
                             NULL) != ZR_OK)
        return;
    zr_contiguous_free(checkpoints, entry);
    take(40 * MIB, ZR_TAG_GRAD);
}

/* Each step forgets one block. */
static void leak(void)
{
    while (step(MIB) && take(MIB / 2, ZR_TAG_WORKSPACE))
        ;
}

static void limit(void)
{
    for (unsigned i = 0; i < STEPS && step((1 + i % 3) * MIB); i++)
        ;
    step(4 * MIB);
}

static void addresses(void)
{
    while (take(4 * MIB, ZR_TAG_PARAM))
        ;
}

/* A network card has registered the buffers; they are free, and stay where they are. */
static void unmovable(void)
{
    void *buffers[8];
    for (unsigned i = 0; i < 8; i++) {
        buffers[i] = take(6 * MIB, ZR_TAG_COMM);
        take(2 * MIB, ZR_TAG_PARAM);
        zr_arena_set_granule_class(arena, buffers[i], 6 * MIB, ZR_GRANULE_REGISTERED);
    }
    for (unsigned i = 0; i < 8; i++)
        zr_arena_free(arena, buffers[i]);
    take(20 * MIB, ZR_TAG_GRAD);
}

static void spike(void)
{
    for (unsigned i = 0; i < STEPS && step((1 + i % 2) * MIB); i++)
        ;
    take(56 * MIB, ZR_TAG_WORKSPACE);
    step(2 * MIB);
}

/* Fits alone; another holds the rest of the device. */
static void other(void)
{
    for (unsigned i = 0; i < STEPS && step((1 + i % 3) * MIB); i++)
        ;
    take(32 * MIB, ZR_TAG_PARAM);
}

/* Is the other one: holds, says so, and waits to be killed. */
static void holder(void)
{
    take(40 * MIB, ZR_TAG_PARAM);
    puts("holds");
    fflush(stdout);
    pause();
}

static const struct {
    const char *name;
    void (*run)(void);
    size_t device_mib, limit_mib, reserve_mib; /* device 0: the (emulated) GPU */
} programs[] = {
    {"shortage", shortage, 64, 0, 0},
    {"fragmentation", fragmentation, 64, 0, 0},
    {"pending", pending, 0, 0, 0},
    {"pool", pool, 64, 0, 0},
    {"leak", leak, 64, 0, 0},
    {"limit", limit, 1024, 24, 0},
    {"addresses", addresses, 512, 0, 64},
    {"unmovable", unmovable, 64, 0, 0},
    {"spike", spike, 64, 0, 0},
    {"other", other, 0, 0, 0},
    {"holder", holder, 0, 0, 0},
};

int main(int argc, char **argv)
{
    for (size_t i = 0; argc == 2 && i < sizeof programs / sizeof *programs; i++) {
        if (strcmp(programs[i].name, argv[1]) != 0)
            continue;
        size_t device = programs[i].device_mib * MIB;
        zr_result result =
            device ? zr_backend_sim_create(&backend, &(struct zr_sim_options){.capacity_bytes = device})
                   : zr_backend_cuda_create(&backend, NULL);
        if (result == ZR_OK)
            result = zr_arena_create(
                &arena, &(struct zr_arena_options){.backend = backend,
                                                   .name = argv[1],
                                                   .limit_bytes = programs[i].limit_mib * MIB,
                                                   .reserve_bytes = programs[i].reserve_mib * MIB});
        if (result == ZR_OK)
            programs[i].run();
        fprintf(stderr, "%s\n", zr_last_error());
        return result == ZR_OK && zr_last_error()[0] ? 4 : 1;
    }
    fprintf(stderr, "failing NAME\n");
    return 2;
}
