/* torch.c: PyTorch's entry points to the arenas. See torch.h. */
#define _GNU_SOURCE
#include "alloc/preload/cuda/torch.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/lock.h"
#include "alloc/core/arena.h"
#include "alloc/telemetry/report.h"

enum { POOLS_MAX = 256 };

struct pool {
    struct zr_torch_pool_id id;
    struct zr_cuda_device *device;
    zr_arena *arena; /* NULL: the entry is free */
    pid_t thread;    /* the thread whose allocations go to the pool; 0: none */
    bool released;
};

/* `lock` guards the pools. */
static struct zr_lock lock;
static struct pool pools[POOLS_MAX];
static double fractions[ZR_CUDA_DEVICES_MAX]; /* 0: no limit */

static bool is_device(int device)
{
    return device >= 0 && device < ZR_CUDA_DEVICES_MAX;
}

/* ---- Pools --------------------------------------------------------------------------------------------- */

/* The pool with the id; NULL: none. lock: held */
static struct pool *find_pool(const struct zr_cuda_device *device, struct zr_torch_pool_id id)
{
    for (size_t i = 0; i < POOLS_MAX; i++)
        if (pools[i].arena && pools[i].device == device && pools[i].id.first == id.first &&
            pools[i].id.second == id.second)
            return &pools[i];
    return NULL;
}

/* The arena of the pool that the thread, or the capture of the stream, allocates to; NULL: none. */
static zr_arena *arena_of_thread(const struct zr_cuda_device *device, zr_cu_stream stream)
{
    zr_arena *arena = NULL, *captured = NULL;
    pid_t thread = gettid();
    zr_lock_acquire(&lock);
    for (size_t i = 0; i < POOLS_MAX; i++) {
        if (!pools[i].arena || pools[i].device != device || pools[i].thread == 0)
            continue;
        captured = pools[i].arena;
        if (pools[i].thread == thread)
            arena = pools[i].arena;
    }
    zr_lock_release(&lock);
    return arena || !captured || !zr_cuda_stream_capturing(stream) ? arena : captured;
}

void zr_torch_device_end(struct zr_cuda_device *device)
{
    zr_lock_acquire(&lock);
    for (size_t i = 0; i < POOLS_MAX; i++)
        if (pools[i].arena && pools[i].device == device) {
            zr_arena_destroy(pools[i].arena, NULL);
            pools[i].arena = NULL;
        }
    zr_lock_release(&lock);
}

void zr_torch_begin_allocate_to_pool(int ordinal, struct zr_torch_pool_id id, void *filter)
{
    struct zr_cuda_call call;
    zr_arena *made = NULL;
    (void)filter;
    if (!is_device(ordinal) || zr_cuda_enter_device(&call, ordinal) != ZR_CU_SUCCESS)
        return;
    struct zr_cuda_device *device = call.device;
    zr_lock_acquire(&lock);
    bool exists = find_pool(device, id) != NULL;
    zr_lock_release(&lock);
    if (!exists && zr_cuda_device_open(device) == ZR_CU_SUCCESS &&
        zr_arena_create(
            &made, &(struct zr_arena_options){.backend = device->backend, .name = "torch pool"}) != ZR_OK)
        zr_cuda_log("a pool");
    zr_lock_acquire(&lock);
    struct pool *pool = find_pool(device, id);
    for (size_t i = 0; !pool && made && i < POOLS_MAX; i++)
        if (!pools[i].arena) {
            pool = &pools[i];
            *pool = (struct pool){.id = id, .device = device, .arena = made};
            made = NULL;
        }
    if (pool) {
        pool->thread = gettid();
        pool->released = false;
    }
    zr_lock_release(&lock);
    if (made)
        zr_arena_destroy(made, NULL);
    zr_cuda_leave(&call);
}

void zr_torch_end_allocate_to_pool(int ordinal, struct zr_torch_pool_id id)
{
    zr_lock_acquire(&lock);
    struct pool *pool = is_device(ordinal) ? find_pool(zr_cuda_device_at(ordinal), id) : NULL;
    if (pool)
        pool->thread = 0;
    zr_lock_release(&lock);
}

/* Destroys the arenas of released pools without live blocks. */
static void destroy_released(void)
{
    struct zr_arena_stats stats;
    zr_arena *unused[POOLS_MAX];
    size_t count = 0;
    zr_lock_acquire(&lock);
    for (size_t i = 0; i < POOLS_MAX; i++)
        if (pools[i].arena && pools[i].released && pools[i].thread == 0 &&
            zr_stats_of(pools[i].arena, &stats) == ZR_OK && stats.blocks_count == 0) {
            unused[count++] = pools[i].arena;
            pools[i].arena = NULL;
        }
    zr_lock_release(&lock);
    while (count > 0)
        zr_arena_destroy(unused[--count], NULL);
}

void zr_torch_release_pool(int ordinal, struct zr_torch_pool_id id)
{
    struct zr_cuda_call call;
    if (!is_device(ordinal))
        return;
    zr_lock_acquire(&lock);
    struct pool *pool = find_pool(zr_cuda_device_at(ordinal), id);
    if (pool)
        pool->released = true;
    zr_lock_release(&lock);
    zr_cuda_enter_no_context(&call);
    destroy_released();
    zr_cuda_leave(&call);
}

/* ---- Blocks -------------------------------------------------------------------------------------------- */

static bool exceeds_fraction(struct zr_cuda_device *device, size_t bytes)
{
    struct zr_arena_stats stats;
    size_t total = 0;
    double fraction = fractions[device - zr_cuda_device_at(0)];
    if (fraction <= 0 || ZR_CUDA_PASS(total_mem, &total, device->ordinal) != ZR_CU_SUCCESS ||
        zr_arena_get_stats(device->arena, &stats) != ZR_OK ||
        (double)stats.live_bytes + (double)bytes <= fraction * (double)total)
        return false;
    atomic_fetch_add_explicit(&device->refused_count, 1, memory_order_relaxed);
    zr_fail(ZR_ERR_MEMORY,
            "%zu bytes more than the %zu that are allocated on device %d exceed %.4g of its memory, the "
            "program's own limit; raise it with torch.cuda.set_per_process_memory_fraction()",
            bytes, stats.live_bytes, device->ordinal, fraction);
    return true;
}

static zr_cu_result allocate(size_t bytes, int ordinal, zr_cu_stream stream, zr_cu_address *out)
{
    struct zr_cuda_call call;
    zr_cu_result code = zr_cuda_enter_device(&call, ordinal);
    if (code != ZR_CU_SUCCESS) {
        zr_fail(ZR_ERR_UNAVAILABLE, "the CUDA driver gives no context of device %d: error %u", ordinal, code);
        return code;
    }
    struct zr_cuda_device *device = call.device;
    code = zr_cuda_device_open(device);
    if (code == ZR_CU_NOT_SUPPORTED) {
        code = ZR_CUDA_PASS(mem_alloc, out, bytes);
        if (code != ZR_CU_SUCCESS)
            zr_fail(ZR_ERR_MEMORY, "the CUDA driver refused %zu bytes on device %d: error %u", bytes, ordinal,
                    code);
    } else if (code == ZR_CU_SUCCESS && exceeds_fraction(device, bytes)) {
        code = ZR_CU_OUT_OF_MEMORY;
    } else if (code == ZR_CU_SUCCESS) {
        struct zr_cuda_request request = {.bytes = bytes, .context = call.context};
        request.arena = arena_of_thread(device, stream);
        request.any_stream = !zr_cuda_stream_number(device, stream, &request.stream);
        code = zr_cuda_block_new(device, &request, out);
        /* A graph uses the memory at each launch, also of blocks that are freed during the capture. */
        if (code == ZR_CU_SUCCESS && request.arena && zr_cuda_stream_capturing(stream))
            zr_arena_set_granule_class(request.arena, (void *)(uintptr_t)*out, bytes, ZR_GRANULE_FIXED);
    }
    zr_cuda_leave(&call);
    return code;
}

void *zr_torch_alloc(ssize_t bytes, int ordinal, zr_cu_stream stream)
{
    zr_cu_address address = 0;
    zr_cuda_note_stream(stream);
    if (bytes <= 0 || !is_device(ordinal))
        return NULL;
    zr_cu_result code = allocate((size_t)bytes, ordinal, stream, &address);
    if (code == ZR_CU_OUT_OF_MEMORY && zr_torch_collect())
        code = allocate((size_t)bytes, ordinal, stream, &address);
    if (code == ZR_CU_SUCCESS)
        return (void *)(uintptr_t)address;
    zr_torch_throw(code);
    return NULL;
}

/* Enters with the block's device current, so that a default stream's handle means that device's stream. */
static zr_cu_result enter_block_device(struct zr_cuda_call *call, const struct zr_cuda_block *block,
                                       zr_cu_stream stream)
{
    zr_cuda_note_stream(stream);
    return zr_cuda_enter_device(call, block->device->ordinal);
}

void zr_torch_free(void *address, ssize_t bytes, int ordinal, zr_cu_stream stream)
{
    struct zr_cuda_block block;
    struct zr_cuda_call call;
    (void)bytes;
    if (!address || zr_cuda_forked())
        return;
    bool ours = zr_cuda_blocks_find((uintptr_t)address, &block) && block.arena;
    if (ours && enter_block_device(&call, &block, stream) == ZR_CU_SUCCESS) {
        if (zr_cuda_blocks_take((uintptr_t)address, &block)) {
            zr_cuda_block_end(&block, block.everywhere, stream);
            if (block.arena != block.device->arena)
                destroy_released();
        }
        zr_cuda_leave(&call);
    } else if (!ours && is_device(ordinal) && zr_cuda_enter_device(&call, ordinal) == ZR_CU_SUCCESS) {
        ZR_CUDA_PASS(mem_free, (uintptr_t)address);
        zr_cuda_leave(&call);
    }
}

static void set_everywhere(struct zr_cuda_block *block, void *argument)
{
    (void)argument;
    block->everywhere = true;
}

void zr_torch_record_stream(void *address, zr_cu_stream stream)
{
    struct zr_cuda_block block;
    struct zr_cuda_call call;
    uint64_t number;
    if (!zr_cuda_blocks_find((uintptr_t)address, &block) || !block.arena ||
        enter_block_device(&call, &block, stream) != ZR_CU_SUCCESS)
        return;
    if (!zr_cuda_stream_number(block.device, stream, &number) ||
        zr_block_use(block.arena, (void *)block.address, number) != ZR_OK)
        zr_cuda_blocks_change(block.address, set_everywhere, NULL);
    zr_cuda_leave(&call);
}

void *zr_torch_base_alloc(void *pointer, size_t *bytes)
{
    struct zr_cuda_block block;
    if (!zr_cuda_blocks_find((uintptr_t)pointer, &block))
        return pointer;
    if (bytes)
        *bytes = block.bytes;
    return (void *)block.address;
}

/* ---- Settings ------------------------------------------------------------------------------------------ */

void zr_torch_memory_fraction(double fraction, int ordinal)
{
    if (is_device(ordinal))
        fractions[ordinal] = fraction > 0 && fraction < 1 ? fraction : 0;
}

/* Arenas are created at the first allocation. */
void zr_torch_init(int devices_count)
{
    (void)devices_count;
}

void zr_torch_reset(void)
{
    struct zr_cuda_call call;
    zr_cuda_enter_no_context(&call);
    for (int i = 0; i < ZR_CUDA_DEVICES_MAX; i++) {
        struct zr_cuda_device *device = zr_cuda_device_at(i);
        if (atomic_load_explicit(&device->ready, memory_order_acquire))
            zr_arena_trim(device->arena, 0, NULL);
    }
    zr_cuda_leave(&call);
}

/* ---- Figures ------------------------------------------------------------------------------------------- */

/* Calls `visit` for the arena of the device and those of its pools, none of which ends meanwhile. */
static void each_arena(const struct zr_cuda_device *device, void (*visit)(zr_arena *arena, void *argument),
                       void *argument)
{
    if (!atomic_load_explicit(&device->ready, memory_order_acquire))
        return;
    visit(device->arena, argument);
    zr_lock_acquire(&lock);
    for (size_t i = 0; i < POOLS_MAX; i++)
        if (pools[i].arena && pools[i].device == device)
            visit(pools[i].arena, argument);
    zr_lock_release(&lock);
}

struct figure {
    const char *name;
    uint64_t sum;
    zr_result result;
};

static void add_figure(zr_arena *arena, void *argument)
{
    struct figure *figure = argument;
    char name[64];
    uint64_t value = 0;
    snprintf(name, sizeof name, "arena.%u.%s", arena->number, figure->name);
    zr_result result = zr_ctl_get(name, &value);
    if (result != ZR_OK)
        figure->result = result;
    figure->sum += value;
}

static uint64_t live_of_tag(const struct zr_cuda_device *device, const char *tag, size_t length)
{
    struct zr_cuda_block block;
    uint64_t sum = 0;
    for (uintptr_t at = 0; zr_cuda_blocks_next(at, &block); at = block.address + block.bytes) {
        const char *name = zr_cuda_tag_name(block.tag);
        if (block.device == device && name && strlen(name) == length && memcmp(name, tag, length) == 0)
            sum += block.bytes;
    }
    return sum;
}

int zr_torch_stat(int ordinal, const char *name, uint64_t *out)
{
    static const char tag[] = "tag.", live[] = ".live_bytes";
    struct zr_cuda_call call;
    if (!is_device(ordinal) || !name || !out)
        return zr_fail(ZR_ERR_INVALID, "zr_torch_stat: requires a device below %d, a name and an address",
                       ZR_CUDA_DEVICES_MAX);
    struct zr_cuda_device *device = zr_cuda_device_at(ordinal);
    struct figure figure = {.name = name};
    size_t length = strlen(name), ends = sizeof tag + sizeof live - 2;
    zr_cuda_enter_no_context(&call);
    if (strcmp(name, "allocated_bytes") == 0)
        figure.sum = atomic_load_explicit(&device->allocated_bytes, memory_order_relaxed);
    else if (strcmp(name, "refused_count") == 0)
        figure.sum = atomic_load_explicit(&device->refused_count, memory_order_relaxed);
    else if (length > ends && memcmp(name, tag, sizeof tag - 1) == 0 &&
             strcmp(name + length - (sizeof live - 1), live) == 0)
        figure.sum = live_of_tag(device, name + sizeof tag - 1, length - ends);
    else
        each_arena(device, add_figure, &figure);
    zr_cuda_leave(&call);
    *out = figure.sum;
    return (int)figure.result;
}

static void reset_peaks(zr_arena *arena, void *argument)
{
    (void)argument;
    zr_arena_reset_peaks(arena);
}

void zr_torch_reset_peaks(int ordinal)
{
    struct zr_cuda_call call;
    if (!is_device(ordinal))
        return;
    zr_cuda_enter_no_context(&call);
    each_arena(zr_cuda_device_at(ordinal), reset_peaks, NULL);
    zr_cuda_leave(&call);
}

int zr_torch_tag(const char *name)
{
    return (int)zr_cuda_tag_set(name);
}

const char *zr_torch_error(void)
{
    return zr_last_error();
}
