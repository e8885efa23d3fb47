/* memory.c: the driver's calls for device memory: allocation, free, free bytes, attributes of pointers. See
 * cuda.h. */
#include "alloc/preload/cuda/cuda.h"

#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/system/lock.h"
#include "alloc/base/option.h"
#include "alloc/base/slab.h"
#include "alloc/core/arena.h"
#include "alloc/core/core.h"

/* cuMemAlloc promises 256 bytes, but some programs rely on its real alignment. */
enum { ALIGNMENT = 512 };

/* ---- Deferred frees ------------------------------------------------------------------------------------ */

/* A free waits for all work on the device, or for one stream. */
struct wait_scope {
    bool everywhere;
    zr_cu_stream stream;
};

struct deferred {
    struct deferred *next;
    struct zr_cuda_block block;
    struct wait_scope wait_scope;
};

/* Frees deferred by a capture or by an error of the driver. deferred_lock guards the list and its records. */
static struct zr_lock deferred_lock;
static struct zr_slab deferred_records;
static struct deferred *_Atomic deferred;

/* Defers a free. A later free runs in another thread or context, where a default stream's handle means
 * another stream, so the free then waits for all work. */
static bool defer(const struct zr_cuda_block *block, struct wait_scope wait_scope)
{
    wait_scope.everywhere |= (uintptr_t)wait_scope.stream <= ZR_CU_STREAM_PER_THREAD;
    zr_lock_acquire(&deferred_lock);
    if (deferred_records.record_bytes == 0)
        zr_slab_init(&deferred_records, sizeof(struct deferred), ZR_POOL_NO_FAULTS);
    bool reserved = zr_slab_reserve(&deferred_records, 1);
    if (reserved) {
        struct deferred *own = zr_slab_take(&deferred_records);
        own->block = *block;
        own->wait_scope = wait_scope;
        own->next = atomic_load_explicit(&deferred, memory_order_relaxed);
        atomic_store_explicit(&deferred, own, memory_order_relaxed);
    }
    zr_lock_release(&deferred_lock);
    return reserved;
}

/* Frees a block of an arena. False: the wait is impossible now. */
static bool try_free(const struct zr_cuda_block *block, struct wait_scope wait_scope)
{
    void *address = (void *)block->address;
    if (wait_scope.everywhere ? !zr_cuda_follow_all(block->device, block->arena, address)
                              : !zr_cuda_follow(block->device, block->arena, address, wait_scope.stream))
        return false;
    if (zr_arena_free(block->arena, address) != ZR_OK)
        zr_cuda_log("a free");
    return true;
}

/* Tries each deferred free again. */
static void free_deferred(void)
{
    if (!atomic_load_explicit(&deferred, memory_order_relaxed))
        return;
    zr_lock_acquire(&deferred_lock);
    struct deferred *list = atomic_exchange(&deferred, NULL);
    zr_lock_release(&deferred_lock);
    while (list) {
        struct deferred *each = list;
        list = each->next;
        bool done = try_free(&each->block, each->wait_scope);
        zr_lock_acquire(&deferred_lock);
        if (done) {
            zr_slab_give(&deferred_records, each);
        } else {
            each->next = atomic_load_explicit(&deferred, memory_order_relaxed);
            atomic_store_explicit(&deferred, each, memory_order_relaxed);
        }
        zr_lock_release(&deferred_lock);
    }
}

void zr_cuda_deferred_forget(struct zr_cuda_device *device)
{
    struct deferred *kept = NULL;
    zr_lock_acquire(&deferred_lock);
    struct deferred *list = atomic_exchange(&deferred, NULL);
    while (list) {
        struct deferred *each = list;
        list = each->next;
        if (each->block.device == device) {
            zr_slab_give(&deferred_records, each);
        } else {
            each->next = kept;
            kept = each;
        }
    }
    atomic_store(&deferred, kept);
    zr_lock_release(&deferred_lock);
}

/* ---- Blocks -------------------------------------------------------------------------------------------- */

zr_cu_result zr_cuda_block_new(struct zr_cuda_device *device, const struct zr_cuda_request *request,
                               zr_cu_address *out)
{
    void *address = NULL;
    zr_arena *arena = request->arena ? request->arena : device->arena;
    uint8_t tag = zr_cuda_tag();
    struct zr_request wanted = {.bytes = request->bytes,
                                .alignment = ALIGNMENT,
                                .tag = zr_cuda_tag_of_arena(tag),
                                .stream = request->stream};
    if (!zr_cuda_blocks_reserve())
        return ZR_CU_OUT_OF_MEMORY;
    free_deferred();
    if (request->any_stream)
        wanted.stream = zr_cuda_many_streams() ? (uintptr_t)device->idle : 0;
    zr_thread_waits_to_grow = request->waits;
    zr_result result = zr_arena_alloc(arena, &wanted, &address);
    if (zr_cuda_code(result) == ZR_CU_OUT_OF_MEMORY) {
        zr_arena_trim(arena, 0, NULL);
        if (arena != device->arena)
            zr_arena_trim(device->arena, 0, NULL);
        result = zr_arena_alloc(arena, &wanted, &address);
    }
    zr_thread_waits_to_grow = false;
    if (result != ZR_OK) {
        zr_cuda_blocks_unreserve();
        zr_cuda_log("an allocation");
        atomic_fetch_add_explicit(&device->refused_count, 1, memory_order_relaxed);
        zr_cuda_figures_refused(device, request->bytes);
        return zr_cuda_code(result);
    }
    zr_cuda_blocks_put(&(struct zr_cuda_block){.address = (uintptr_t)address,
                                               .bytes = request->bytes,
                                               .context = request->context,
                                               .device = device,
                                               .arena = arena,
                                               .stream = wanted.stream,
                                               .tag = tag,
                                               .pool = request->pool});
    if (request->pool)
        zr_cuda_pool_count(request->pool, request->bytes, true);
    zr_cuda_figures_note(device);
    *out = (uintptr_t)address;
    return ZR_CU_SUCCESS;
}

void zr_cuda_block_end(const struct zr_cuda_block *block, bool everywhere, zr_cu_stream stream)
{
    free_deferred();
    if (block->pool)
        zr_cuda_pool_count(block->pool, block->bytes, false);
    struct wait_scope wait_scope = {everywhere, stream};
    if (!try_free(block, wait_scope) && !defer(block, wait_scope))
        zr_say("%zu freed bytes stay allocated: the system refused memory for a record", block->bytes);
    zr_cuda_figures_note(block->device);
}

/* ---- Allocation ---------------------------------------------------------------------------------------- */

/* Allocates from the arena. ZR_CU_NOT_SUPPORTED: the driver must allocate. */
static zr_cu_result allocate(size_t bytes, zr_cu_address *out)
{
    struct zr_cuda_call call;
    zr_cu_result code = zr_cuda_enter(&call);
    if (code != ZR_CU_SUCCESS)
        return code;
    code = zr_cuda_device_open(call.device);
    if (code == ZR_CU_SUCCESS)
        code =
            zr_cuda_block_new(call.device,
                              &(struct zr_cuda_request){
                                  .bytes = bytes, .context = call.context, .any_stream = true, .waits = true},
                              out);
    zr_cuda_leave(&call);
    return code;
}

zr_cu_result cuMemAlloc_v2(zr_cu_address *out, size_t bytes)
{
    zr_cu_result code = out && bytes > 0 ? allocate(bytes, out) : (zr_cu_result)ZR_CU_NOT_SUPPORTED;
    return code == ZR_CU_NOT_SUPPORTED ? ZR_CUDA_PASS(mem_alloc, out, bytes) : code;
}

zr_cu_result cuMemAllocPitch_v2(zr_cu_address *out, size_t *pitch, size_t width, size_t height,
                                unsigned int element_bytes)
{
    size_t row, bytes;
    bool fine = out && pitch && width > 0 && height > 0 &&
                (element_bytes == 4 || element_bytes == 8 || element_bytes == 16) &&
                !__builtin_add_overflow(width, (size_t)ALIGNMENT - 1, &row) &&
                !__builtin_mul_overflow(row & ~(size_t)(ALIGNMENT - 1), height, &bytes);
    zr_cu_result code = fine ? allocate(bytes, out) : (zr_cu_result)ZR_CU_NOT_SUPPORTED;
    if (code == ZR_CU_NOT_SUPPORTED)
        return ZR_CUDA_PASS(mem_alloc_pitch, out, pitch, width, height, element_bytes);
    if (code == ZR_CU_SUCCESS)
        *pitch = row & ~(size_t)(ALIGNMENT - 1);
    return code;
}

/* An address within a block is invalid, as for the driver. */
zr_cu_result cuMemFree_v2(zr_cu_address address)
{
    struct zr_cuda_block block;
    struct zr_cuda_call call;
    if (!address || zr_cuda_forked() || !zr_cuda_blocks_find(address, &block))
        return ZR_CUDA_PASS(mem_free, address);
    zr_cu_result code = zr_cuda_enter(&call);
    if (code != ZR_CU_SUCCESS)
        return code;
    if (zr_cuda_blocks_take(address, &block))
        zr_cuda_block_end(&block, true, NULL);
    else
        code = ZR_CU_INVALID_VALUE;
    zr_cuda_leave(&call);
    return code;
}

/* ---- Stream-ordered allocation ------------------------------------------------------------------------- */

/* Allocates from a pool's arena. ZR_CU_NOT_SUPPORTED: the driver must allocate; during a capture the
 * allocation becomes a node of the graph with the driver's memory. */
static zr_cu_result allocate_async(struct zr_cuda_pool *pool, size_t bytes, zr_cu_stream stream,
                                   zr_cu_address *out)
{
    struct zr_cuda_call call;
    zr_cuda_note_stream(stream);
    zr_cu_result code = zr_cuda_enter(&call);
    if (code != ZR_CU_SUCCESS)
        return code;
    if (!pool)
        pool = zr_cuda_pool_current((int)(call.device - zr_cuda_device_at(0)));
    code = ZR_CU_NOT_SUPPORTED;
    struct zr_cuda_device *device = pool ? zr_cuda_device_at(zr_cuda_pool_device(pool)) : NULL;
    if (device && !zr_cuda_stream_capturing(stream))
        code = zr_cuda_device_open(device);
    if (code == ZR_CU_SUCCESS) {
        struct zr_cuda_request request = {.bytes = bytes, .context = call.context, .pool = pool};
        request.any_stream = !zr_cuda_stream_number(device, stream, &request.stream);
        code = zr_cuda_block_new(device, &request, out);
    }
    zr_cuda_leave(&call);
    return code;
}

/* Replaces the default stream by the per-thread default stream, for calls of the per-thread form. */
static zr_cu_stream own_default(zr_cu_stream stream)
{
    return stream ? stream : (zr_cu_stream)ZR_CU_STREAM_PER_THREAD;
}

zr_cu_result cuMemAllocAsync(zr_cu_address *out, size_t bytes, zr_cu_stream stream)
{
    zr_cu_result code = ZR_CU_NOT_SUPPORTED;
    if (out && bytes > 0 && !zr_cuda_forked())
        code = allocate_async(NULL, bytes, stream, out);
    return code == ZR_CU_NOT_SUPPORTED ? ZR_CUDA_PASS(alloc_async, out, bytes, stream) : code;
}

zr_cu_result cuMemAllocAsync_ptsz(zr_cu_address *out, size_t bytes, zr_cu_stream stream)
{
    zr_cu_result code = ZR_CU_NOT_SUPPORTED;
    if (out && bytes > 0 && !zr_cuda_forked())
        code = allocate_async(NULL, bytes, own_default(stream), out);
    return code == ZR_CU_NOT_SUPPORTED ? ZR_CUDA_PASS(alloc_async_ptsz, out, bytes, stream) : code;
}

zr_cu_result cuMemAllocFromPoolAsync(zr_cu_address *out, size_t bytes, zr_cu_pool handle, zr_cu_stream stream)
{
    zr_cu_result code = ZR_CU_NOT_SUPPORTED;
    struct zr_cuda_pool *pool = out && bytes > 0 ? zr_cuda_pool_of(handle) : NULL;
    if (pool)
        code = allocate_async(pool, bytes, stream, out);
    return code == ZR_CU_NOT_SUPPORTED ? ZR_CUDA_PASS(alloc_from_pool, out, bytes, handle, stream) : code;
}

zr_cu_result cuMemAllocFromPoolAsync_ptsz(zr_cu_address *out, size_t bytes, zr_cu_pool handle,
                                          zr_cu_stream stream)
{
    zr_cu_result code = ZR_CU_NOT_SUPPORTED;
    struct zr_cuda_pool *pool = out && bytes > 0 ? zr_cuda_pool_of(handle) : NULL;
    if (pool)
        code = allocate_async(pool, bytes, own_default(stream), out);
    return code == ZR_CU_NOT_SUPPORTED ? ZR_CUDA_PASS(alloc_from_pool_ptsz, out, bytes, handle, stream)
                                       : code;
}

/* Frees an arena's block. ZR_CU_NOT_SUPPORTED: the driver must free the memory. */
static zr_cu_result free_async(zr_cu_address address, zr_cu_stream stream)
{
    struct zr_cuda_block block;
    struct zr_cuda_call call;
    if (!address || zr_cuda_forked() || !zr_cuda_blocks_find(address, &block))
        return ZR_CU_NOT_SUPPORTED;
    zr_cuda_note_stream(stream);
    zr_cu_result code = zr_cuda_enter(&call);
    if (code != ZR_CU_SUCCESS)
        return code;
    if (zr_cuda_stream_capturing(stream))
        code = ZR_CU_NOT_SUPPORTED;
    else if (zr_cuda_blocks_take(address, &block))
        zr_cuda_block_end(&block, false, stream);
    else
        code = ZR_CU_INVALID_VALUE;
    zr_cuda_leave(&call);
    return code;
}

zr_cu_result cuMemFreeAsync(zr_cu_address address, zr_cu_stream stream)
{
    zr_cu_result code = free_async(address, stream);
    return code == ZR_CU_NOT_SUPPORTED ? ZR_CUDA_PASS(free_async, address, stream) : code;
}

zr_cu_result cuMemFreeAsync_ptsz(zr_cu_address address, zr_cu_stream stream)
{
    zr_cu_result code = free_async(address, own_default(stream));
    return code == ZR_CU_NOT_SUPPORTED ? ZR_CUDA_PASS(free_async_ptsz, address, stream) : code;
}

/* ---- Free and total memory ----------------------------------------------------------------------------- */

static size_t min_of(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Counts the arena's idle memory as free, and reduces both figures to the limit. */
static void add_idle_bytes(size_t *free_bytes, size_t *total_bytes)
{
    struct zr_cuda_call call;
    struct zr_arena_stats stats = {0};
    size_t limit = (size_t)zr_option_get(ZR_OPTION_LIMIT);
    if (zr_cuda_enter(&call) != ZR_CU_SUCCESS)
        return;
    if (atomic_load_explicit(&call.device->ready, memory_order_acquire)) {
        free_deferred();
        zr_arena_get_stats(call.device->arena, &stats);
    }
    *free_bytes = min_of(*free_bytes + (stats.reserved_bytes - stats.live_bytes), *total_bytes);
    if (limit > 0 && !atomic_load(&call.device->passed_on)) {
        *total_bytes = min_of(*total_bytes, limit);
        *free_bytes = min_of(*free_bytes, *total_bytes - min_of(stats.live_bytes, *total_bytes));
    }
    zr_cuda_leave(&call);
}

zr_cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    size_t own_free = 0, own_total = 0;
    zr_cu_result code = ZR_CUDA_PASS(mem_info, &own_free, &own_total);
    if (code != ZR_CU_SUCCESS)
        return code;
    add_idle_bytes(&own_free, &own_total);
    if (free_bytes)
        *free_bytes = own_free;
    if (total_bytes)
        *total_bytes = own_total;
    return code;
}

zr_cu_result cuDeviceTotalMem_v2(size_t *bytes, zr_cu_device device)
{
    size_t limit = (size_t)zr_option_get(ZR_OPTION_LIMIT);
    zr_cu_result code = ZR_CUDA_PASS(total_mem, bytes, device);
    if (code == ZR_CU_SUCCESS && bytes && limit > 0)
        *bytes = min_of(*bytes, limit);
    return code;
}

/* ---- Attributes of pointers ---------------------------------------------------------------------------- */

zr_cu_result cuMemGetAddressRange_v2(zr_cu_address *base, size_t *bytes, zr_cu_address address)
{
    struct zr_cuda_block block;
    zr_cu_context context = NULL;
    if (zr_cuda_forked() || !zr_cuda_blocks_find(address, &block))
        return ZR_CUDA_PASS(address_range, base, bytes, address);
    zr_cu_result code = ZR_CUDA_PASS(context_get, &context);
    if (code != ZR_CU_SUCCESS || !context)
        return code != ZR_CU_SUCCESS ? code : (zr_cu_result)ZR_CU_INVALID_CONTEXT;
    if (base)
        *base = block.address;
    if (bytes)
        *bytes = block.bytes;
    return ZR_CU_SUCCESS;
}

/* Tests, or with `want` sets, the context flag by which synchronous copies of all memory have finished when
 * they return. The driver keeps this per pointer, but only for memory of its own cuMemAlloc. */
static zr_cu_result synchronous_copies(const struct zr_cuda_block *block, bool want)
{
    const struct zr_cuda_driver *driver = block->device->driver;
    zr_cu_context popped;
    unsigned flags = 0;
    zr_cu_result code = driver->context_push(block->context);
    if (code != ZR_CU_SUCCESS)
        return code;
    code = ZR_CUDA_PASS(context_get_flags, &flags);
    if (code == ZR_CU_SUCCESS && !(flags & ZR_CU_CONTEXT_SYNC_MEMOPS))
        code = want ? ZR_CUDA_PASS(context_set_flags, flags | ZR_CU_CONTEXT_SYNC_MEMOPS)
                    : (zr_cu_result)ZR_CU_NOT_FOUND;
    driver->context_pop(&popped);
    return code;
}

/* Answers attributes for which the driver reports granules instead of the block. False: the driver's answer
 * is right. */
static bool answer_attribute(const struct zr_cuda_block *block, zr_cu_pointer_attribute which,
                             zr_cu_address address, void *out)
{
    switch (which) {
    case ZR_CU_POINTER_CONTEXT:
        *(zr_cu_context *)out = block->context;
        return true;
    case ZR_CU_POINTER_MEMORY_TYPE:
        *(unsigned *)out = 2;
        return true;
    case ZR_CU_POINTER_DEVICE_POINTER:
        *(zr_cu_address *)out = address;
        return true;
    case ZR_CU_POINTER_SYNC_MEMOPS:
        *(int *)out = synchronous_copies(block, false) == ZR_CU_SUCCESS;
        return true;
    case ZR_CU_POINTER_BUFFER_ID:
    case ZR_CU_POINTER_MEMORY_ID:
        /* The driver counts from 1, so these numbers are not the driver's. */
        *(unsigned long long *)out = (UINT64_C(1) << 62) + block->id;
        return true;
    case ZR_CU_POINTER_DEVICE_ORDINAL:
        *(int *)out = block->device->ordinal;
        return true;
    case ZR_CU_POINTER_IPC_CAPABLE:
        /* The driver writes a 0 of the attribute's size. */
        if (ZR_CUDA_PASS(pointer_attribute, out, which, address) != ZR_CU_SUCCESS)
            return false;
        *(unsigned char *)out = block->arena && !block->pool;
        return true;
    case ZR_CU_POINTER_RANGE_START:
    case ZR_CU_POINTER_MAPPING_START:
        *(zr_cu_address *)out = block->address;
        return true;
    case ZR_CU_POINTER_RANGE_BYTES:
    case ZR_CU_POINTER_MAPPING_BYTES:
        *(size_t *)out = block->bytes;
        return true;
    case ZR_CU_POINTER_POOL:
        if (block->pool)
            *(zr_cu_pool *)out = zr_cuda_pool_handle(block->pool);
        return block->pool != NULL;
    case ZR_CU_POINTER_HANDLE_TYPES:
        *(unsigned long long *)out = 0;
        return true;
    default:
        return false;
    }
}

zr_cu_result cuPointerGetAttribute(void *value, zr_cu_pointer_attribute which, zr_cu_address address)
{
    struct zr_cuda_block block;
    bool ours = value && !zr_cuda_forked() && zr_cuda_blocks_find(address, &block);
    return ours && answer_attribute(&block, which, address, value)
               ? ZR_CU_SUCCESS
               : ZR_CUDA_PASS(pointer_attribute, value, which, address);
}

zr_cu_result cuPointerGetAttributes(unsigned int count, zr_cu_pointer_attribute *which, void **values,
                                    zr_cu_address address)
{
    struct zr_cuda_block block;
    zr_cu_result code = ZR_CUDA_PASS(pointer_attributes, count, which, values, address);
    if (code != ZR_CU_SUCCESS || zr_cuda_forked() || !zr_cuda_blocks_find(address, &block))
        return code;
    for (unsigned i = 0; i < count; i++)
        if (values[i])
            answer_attribute(&block, which[i], address, values[i]);
    return code;
}

/* Sets the granule class of a block's bytes from the address on (bytes 0: to the block's end), so that memory
 * used by others is not moved. */
static void fix_granules(zr_cu_address address, size_t bytes, enum zr_granule_class granule_class)
{
    struct zr_cuda_block block;
    struct zr_cuda_call call;
    if (zr_cuda_forked() || !zr_cuda_blocks_find(address, &block) || !block.arena)
        return;
    zr_cuda_enter_no_context(&call);
    /* The block is live unless another thread frees it concurrently, which is the program's error. */
    size_t rest = block.bytes - (size_t)(address - block.address);
    if (zr_arena_set_granule_class(block.arena, (void *)(uintptr_t)address,
                                   bytes && bytes < rest ? bytes : rest, granule_class) != ZR_OK)
        zr_cuda_log("memory that must not move");
    zr_cuda_leave(&call);
}

/* A program that sets an attribute may register the memory with a network card, so the granules get fixed. */
zr_cu_result cuPointerSetAttribute(const void *value, zr_cu_pointer_attribute which, zr_cu_address address)
{
    struct zr_cuda_block block;
    fix_granules(address, 0, ZR_GRANULE_REGISTERED);
    if (which != ZR_CU_POINTER_SYNC_MEMOPS || !value || zr_cuda_forked() ||
        !zr_cuda_blocks_find(address, &block))
        return ZR_CUDA_PASS(pointer_set, value, which, address);
    if (*(const int *)value == 0) /* other memory of the context may need the flag */
        return ZR_CU_SUCCESS;
    zr_cu_result code = synchronous_copies(&block, true);
    return code == ZR_CU_NOT_SUPPORTED ? ZR_CUDA_PASS(pointer_set, value, which, address) : code;
}

/* ---- Memory that devices or other processes use -------------------------------------------------------- */

/* Fails, as for memory of cuMemAlloc: the program would take one granule's handle for the whole block. */
zr_cu_result cuMemRetainAllocationHandle(zr_cu_memory *out, void *address)
{
    struct zr_cuda_block block;
    if (!zr_cuda_forked() && zr_cuda_blocks_find((uintptr_t)address, &block))
        return ZR_CU_INVALID_VALUE;
    return ZR_CUDA_PASS(retain_handle, out, address);
}

zr_cu_result cuMemGetHandleForAddressRange(void *out, zr_cu_address address, size_t bytes, int type,
                                           unsigned long long flags)
{
    if (out)
        fix_granules(address, bytes, ZR_GRANULE_REGISTERED);
    return ZR_CUDA_PASS(handle_for_range, out, address, bytes, type, flags);
}
