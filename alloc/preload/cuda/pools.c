/* pools.c: memory pools that an arena serves: pools for device memory that are not exportable, and the
 * devices' default pools. Each is also a pool of the driver, which gives the program its handle and remains
 * empty except for memory nodes of graphs. See cuda.h. */
#include "alloc/preload/cuda/cuda.h"

#include <string.h>

#include "alloc/base/system/lock.h"
#include "alloc/base/slab.h"

struct zr_cuda_pool {
    struct zr_cuda_pool *next;
    zr_cu_pool handle; /* NULL: the pool is destroyed, but has live blocks */
    int device;
    size_t blocks_count, used_bytes, peak_used_bytes;
};

/* `lock` guards all of these. */
static struct zr_lock lock;
static struct zr_slab records;
static struct zr_cuda_pool *pools;

void zr_cuda_pools_forked(void)
{
    memset(&lock, 0, sizeof lock);
    pools = NULL;
}

/* ---- Finding ------------------------------------------------------------------------------------------- */

/* lock: held */
static struct zr_cuda_pool *find_pool(zr_cu_pool handle)
{
    struct zr_cuda_pool *each = pools;
    while (each && each->handle != handle)
        each = each->next;
    return each;
}

static struct zr_cuda_pool *find_or_add(zr_cu_pool handle, int device)
{
    struct zr_cuda_pool *made = NULL;
    zr_lock_acquire(&lock);
    if (records.record_bytes == 0)
        zr_slab_init(&records, sizeof *made, ZR_POOL_FAULTS);
    made = find_pool(handle);
    if (!made && zr_slab_reserve(&records, 1)) {
        made = zr_slab_take(&records);
        *made = (struct zr_cuda_pool){.next = pools, .handle = handle, .device = device};
        pools = made;
    }
    zr_lock_release(&lock);
    return made;
}

struct zr_cuda_pool *zr_cuda_pool_of(zr_cu_pool handle)
{
    zr_cu_pool known = NULL;
    if (!handle || zr_cuda_forked())
        return NULL;
    zr_lock_acquire(&lock);
    struct zr_cuda_pool *found = find_pool(handle);
    zr_lock_release(&lock);
    for (int i = 0; !found && i < ZR_CUDA_DEVICES_MAX; i++) {
        if (ZR_CUDA_PASS(pool_default, &known, i) != ZR_CU_SUCCESS)
            break;
        if (known == handle)
            found = find_or_add(handle, i);
    }
    return found;
}

struct zr_cuda_pool *zr_cuda_pool_current(int ordinal)
{
    zr_cu_pool handle = NULL;
    return ZR_CUDA_PASS(pool_current, &handle, ordinal) == ZR_CU_SUCCESS ? zr_cuda_pool_of(handle) : NULL;
}

int zr_cuda_pool_device(const struct zr_cuda_pool *pool)
{
    return pool->device;
}

zr_cu_pool zr_cuda_pool_handle(const struct zr_cuda_pool *pool)
{
    return pool->handle;
}

/* lock: held */
static void destroy_if_unused(struct zr_cuda_pool *pool)
{
    struct zr_cuda_pool **link = &pools;
    if (pool->handle || pool->blocks_count > 0)
        return;
    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    zr_slab_give(&records, pool);
}

void zr_cuda_pool_count(struct zr_cuda_pool *pool, size_t bytes, bool in)
{
    zr_lock_acquire(&lock);
    pool->blocks_count += in ? 1 : (size_t)-1;
    pool->used_bytes += in ? bytes : -bytes;
    if (pool->used_bytes > pool->peak_used_bytes)
        pool->peak_used_bytes = pool->used_bytes;
    destroy_if_unused(pool);
    zr_lock_release(&lock);
}

/* ---- The calls ----------------------------------------------------------------------------------------- */

/* Whether an arena can serve the pool. The driver serves pools with a maximum, a usage or exportable handles.
 */
static bool is_plain(const zr_cu_pool_properties *properties)
{
    return properties->exported_as == ZR_CU_HANDLE_NONE && properties->max_bytes == 0 &&
           properties->usage == 0 && properties->location.type == ZR_CU_LOCATION_DEVICE &&
           properties->location.id >= 0 && properties->location.id < ZR_CUDA_DEVICES_MAX;
}

zr_cu_result cuMemPoolCreate(zr_cu_pool *out, const zr_cu_pool_properties *properties)
{
    zr_cu_result code = ZR_CUDA_PASS(pool_create, out, properties);
    if (code == ZR_CU_SUCCESS && !zr_cuda_forked() && is_plain(properties)) {
        zr_cuda_note_used();
        find_or_add(*out,
                    properties->location.id); /* if no record is available, the driver serves the pool */
    }
    return code;
}

zr_cu_result cuMemPoolDestroy(zr_cu_pool handle)
{
    zr_cu_result code = ZR_CUDA_PASS(pool_destroy, handle);
    if (code != ZR_CU_SUCCESS || !handle || zr_cuda_forked())
        return code;
    zr_lock_acquire(&lock);
    struct zr_cuda_pool *pool = find_pool(handle);
    if (pool) {
        pool->handle = NULL;
        destroy_if_unused(pool);
    }
    zr_lock_release(&lock);
    return code;
}

zr_cu_result cuMemPoolTrimTo(zr_cu_pool handle, size_t keep_bytes)
{
    struct zr_cuda_call call;
    struct zr_cuda_pool *pool = zr_cuda_pool_of(handle);
    if (pool) {
        struct zr_cuda_device *device = zr_cuda_device_at(pool->device);
        zr_cuda_enter_no_context(&call);
        if (atomic_load_explicit(&device->ready, memory_order_acquire))
            zr_arena_trim(device->arena, keep_bytes > pool->used_bytes ? keep_bytes - pool->used_bytes : 0,
                          NULL);
        zr_cuda_leave(&call);
    }
    return ZR_CUDA_PASS(pool_trim, handle, keep_bytes);
}

/* Adds the arena's bytes to the driver's, which are memory nodes of graphs. */
zr_cu_result cuMemPoolGetAttribute(zr_cu_pool handle, zr_cu_pool_attribute which, void *value)
{
    struct zr_cuda_pool *pool = zr_cuda_pool_of(handle);
    zr_cu_result code = ZR_CUDA_PASS(pool_get, handle, which, value);
    if (code != ZR_CU_SUCCESS || !pool || !value)
        return code;
    zr_lock_acquire(&lock);
    if (which == ZR_CU_POOL_USED_NOW || which == ZR_CU_POOL_RESERVED_NOW)
        *(uint64_t *)value += pool->used_bytes;
    if (which == ZR_CU_POOL_USED_HIGH || which == ZR_CU_POOL_RESERVED_HIGH)
        *(uint64_t *)value += pool->peak_used_bytes;
    zr_lock_release(&lock);
    return code;
}

zr_cu_result cuMemPoolSetAttribute(zr_cu_pool handle, zr_cu_pool_attribute which, void *value)
{
    struct zr_cuda_pool *pool = zr_cuda_pool_of(handle);
    zr_cu_result code = ZR_CUDA_PASS(pool_set, handle, which, value);
    if (code == ZR_CU_SUCCESS && pool &&
        (which == ZR_CU_POOL_USED_HIGH || which == ZR_CU_POOL_RESERVED_HIGH)) {
        zr_lock_acquire(&lock);
        pool->peak_used_bytes = pool->used_bytes;
        zr_lock_release(&lock);
    }
    return code;
}

/* Every device that can reach the memory has access already; the driver tells which devices can. */
zr_cu_result cuMemPoolSetAccess(zr_cu_pool handle, const zr_cu_access *access, size_t count)
{
    return ZR_CUDA_PASS(pool_set_access, handle, access, count);
}

/* Blocks belong to no exportable pool: the driver refuses their addresses, as for its own memory. */
zr_cu_result cuMemPoolExportPointer(void *out, zr_cu_address address)
{
    return ZR_CUDA_PASS(pool_export_pointer, out, address);
}
