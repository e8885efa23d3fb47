/* pools.c: the emulated driver's memory pools: cuMemAllocAsync, what freed memory waits for before it serves
 * again, and when it goes back to the device. Each device has a default pool; programs create others. Pools
 * that other processes open are not supported, and the device says so. See emulator.h. */
#include "alloc/rehearse/driver/inside.h"

#include <stdlib.h>
#include <string.h>

enum { UNIT_BYTES = 512 };

/* Part of a block of the pool's. Free ones serve their stream at once, others when its end has come. */
struct piece {
    struct piece *next; /* by address within a block, blocks one behind the other */
    struct emu_block *block;
    zr_cu_address address;
    size_t bytes;
    bool used;
    struct zr_cu_context_st *context; /* of the free: its stream's number, and when */
    uint64_t number, end;
};

struct zr_cu_pool_st {
    struct zr_cu_pool_st *next;
    struct piece *pieces;
    int device;
    bool is_default, dying; /* dying: destroyed with memory still out */
    int reuse[ZR_CU_POOL_REUSE_INTERNAL + 1];
    uint64_t threshold, reserved, reserved_high, used, used_high;
    size_t max_bytes; /* 0: no limit */
    uint8_t access[EMU_DEVICES_MAX];
};

static struct zr_cu_pool_st *pools;
static struct zr_cu_pool_st *currents[EMU_DEVICES_MAX];

static struct zr_cu_pool_st *add_pool(int device)
{
    struct zr_cu_pool_st *made = emu_must(calloc(1, sizeof *made));
    made->next = pools;
    made->device = device;
    made->access[device] = ZR_CU_ACCESS_READ_WRITE;
    for (unsigned i = ZR_CU_POOL_REUSE_FOLLOW_EVENT; i <= ZR_CU_POOL_REUSE_INTERNAL; i++)
        made->reuse[i] = 1;
    return pools = made;
}

static struct zr_cu_pool_st *default_of(int device)
{
    struct zr_cu_pool_st *each = pools;
    while (each && !(each->is_default && each->device == device))
        each = each->next;
    if (!each) {
        each = add_pool(device);
        each->is_default = true;
    }
    return each;
}

static struct zr_cu_pool_st *current_of(int device)
{
    return currents[device] ? currents[device] : default_of(device);
}

static bool no_pool(const struct zr_cu_pool_st *pool)
{
    const struct zr_cu_pool_st *each = pools;
    while (each && each != pool)
        each = each->next;
    return !each || each->dying;
}

void emu_pools_state(struct zr_emulator_state *out)
{
    for (const struct zr_cu_pool_st *each = pools; each; each = each->next)
        out->pool_bytes += each->reserved;
}

unsigned emu_pool_access(const struct emu_allocation *allocation, int device)
{
    return allocation->pool ? allocation->pool->access[device] : ZR_CU_ACCESS_READ_WRITE;
}

/* ---- Pieces -------------------------------------------------------------------------------------------- */

static bool passed(const struct piece *piece)
{
    return piece->context->clock >= piece->end;
}

/* Whether one free may stand for both: the same stream's, of which the later counts, or two that have passed.
 */
static bool alike(const struct piece *a, const struct piece *b)
{
    return (a->context == b->context && a->number == b->number) || (passed(a) && passed(b));
}

static void join(struct zr_cu_pool_st *pool)
{
    for (struct piece *each = pool->pieces; each; each = each->next)
        while (each->next && each->next->block == each->block && !each->used && !each->next->used &&
               alike(each, each->next)) {
            struct piece *gone = each->next;
            if (gone->end > each->end || !passed(gone)) {
                each->context = gone->context;
                each->number = gone->number;
                each->end = gone->end;
            }
            each->bytes += gone->bytes;
            each->next = gone->next;
            free(gone);
        }
}

/* Whole blocks without pending work go back, until the pool holds so much or less. */
static void shrink(struct zr_cu_pool_st *pool, uint64_t keep_bytes)
{
    join(pool);
    for (struct piece **link = &pool->pieces; *link;) {
        struct piece *piece = *link;
        if (piece->used || piece->bytes != piece->block->bytes || !passed(piece) ||
            pool->reserved < piece->bytes || pool->reserved - piece->bytes < keep_bytes) {
            link = &piece->next;
            continue;
        }
        pool->reserved -= piece->bytes;
        emu_block_destroy(piece->block);
        *link = piece->next;
        free(piece);
    }
}

static void bury(struct zr_cu_pool_st *pool)
{
    struct zr_cu_pool_st **link = &pools;
    shrink(pool, 0);
    if (pool->pieces)
        return;
    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    free(pool);
}

void emu_pools_settle(int device)
{
    for (struct zr_cu_pool_st *each = pools, *next; each; each = next) {
        next = each->next;
        if (each->device != device)
            continue;
        if (each->dying)
            bury(each);
        else if (each->reserved > each->threshold)
            shrink(each, each->threshold);
    }
}

/* Whether the stream has waited for an event behind the free. */
static bool follows(const struct zr_cu_stream_st *stream, const struct piece *piece)
{
    for (unsigned i = 0; stream && i < stream->awaited_count; i++)
        if (stream->awaited[i].number == piece->number && stream->awaited[i].end >= piece->end)
            return true;
    return false;
}

static bool serves(const struct zr_cu_pool_st *pool, const struct piece *piece,
                   const struct zr_cu_context_st *context, const struct zr_cu_stream_st *stream, bool any)
{
    if (piece->used)
        return false;
    return any || piece->end == 0 ||
           (piece->context == context && piece->number == emu_stream_number(stream)) ||
           (pool->reuse[ZR_CU_POOL_REUSE_OPPORTUNISTIC] && passed(piece)) ||
           (pool->reuse[ZR_CU_POOL_REUSE_FOLLOW_EVENT] && follows(stream, piece));
}

/* The smallest that does. */
static struct piece *best(struct zr_cu_pool_st *pool, size_t bytes, const struct zr_cu_context_st *context,
                          const struct zr_cu_stream_st *stream, bool any)
{
    struct piece *found = NULL;
    for (struct piece *each = pool->pieces; each; each = each->next)
        if (each->bytes >= bytes && (!found || each->bytes < found->bytes) &&
            serves(pool, each, context, stream, any))
            found = each;
    return found;
}

static struct piece *grow(struct zr_cu_pool_st *pool, size_t bytes, struct zr_cu_context_st *context)
{
    if (pool->max_bytes && bytes > pool->max_bytes - pool->reserved)
        return NULL;
    struct emu_block *block = emu_block_create(pool->device, bytes);
    if (!block)
        return NULL;
    struct piece *made = emu_must(calloc(1, sizeof *made));
    *made = (struct piece){.next = pool->pieces,
                           .block = block,
                           .address = block->address,
                           .bytes = block->bytes,
                           .context = context};
    pool->pieces = made;
    pool->reserved += block->bytes;
    if (pool->reserved > pool->reserved_high)
        pool->reserved_high = pool->reserved;
    return made;
}

static void cut(struct piece *piece, size_t bytes)
{
    if (piece->bytes == bytes)
        return;
    struct piece *rest = emu_must(malloc(sizeof *rest));
    *rest = *piece;
    rest->address += bytes;
    rest->bytes -= bytes;
    piece->bytes = bytes;
    piece->next = rest;
}

/* In the order of what costs least: what serves now, new memory, what the stream has to wait for, and new
 * memory after all pools of the device gave up theirs. */
static struct piece *find(struct zr_cu_pool_st *pool, size_t bytes, struct zr_cu_context_st *context,
                          struct zr_cu_stream_st *stream)
{
    join(pool);
    struct piece *found = best(pool, bytes, context, stream, false);
    if (!found)
        found = grow(pool, bytes, context);
    if (!found && pool->reuse[ZR_CU_POOL_REUSE_INTERNAL]) {
        found = best(pool, bytes, context, stream, true);
        if (found)
            emu_submit(context, stream,
                       (struct emu_work){.kind = EMU_WAIT,
                                         .awaits = found->context,
                                         .awaits_end = found->end,
                                         .awaits_number = found->number,
                                         .awaits_blocking = true});
    }
    if (found)
        return found;
    for (struct zr_cu_pool_st *each = pools; each; each = each->next)
        if (each->device == pool->device)
            shrink(each, 0);
    return grow(pool, bytes, context);
}

/* ---- Allocations --------------------------------------------------------------------------------------- */

static zr_cu_result allocate(zr_cu_address *out, size_t bytes, struct zr_cu_pool_st *pool,
                             zr_cu_stream stream)
{
    struct zr_cu_context_st *context = emu_current();
    zr_cu_result code;
    if (emu_no_stream(&stream, context))
        return ZR_CU_INVALID_HANDLE;
    if (!out || bytes == 0)
        return ZR_CU_INVALID_VALUE;
    if (emu_captured_allocation(out, bytes, context, stream, &code))
        return code;
    if (bytes > SIZE_MAX - UNIT_BYTES)
        return ZR_CU_OUT_OF_MEMORY;
    size_t rounded = (bytes + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES;
    struct piece *piece = find(pool, rounded, context, stream);
    if (!piece)
        return ZR_CU_OUT_OF_MEMORY;
    cut(piece, rounded);
    piece->used = true;
    pool->used += rounded;
    if (pool->used > pool->used_high)
        pool->used_high = pool->used;
    *out = piece->address;
    emu_allocation_add((struct emu_allocation){.address = piece->address,
                                               .bytes = bytes,
                                               .kind = EMU_POOLED,
                                               .block = piece->block,
                                               .context = context,
                                               .pool = pool,
                                               .ready = emu_stream_end(context, stream)});
    return ZR_CU_SUCCESS;
}

PUBLIC zr_cu_result cuMemAllocAsync(zr_cu_address *out, size_t bytes, zr_cu_stream stream)
{
    zr_cu_result code = emu_enter(EMU_alloc_async, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS)
        code = allocate(out, bytes, current_of(emu_current()->device), stream);
    return emu_leave(code);
}

PUBLIC zr_cu_result cuMemAllocFromPoolAsync(zr_cu_address *out, size_t bytes, zr_cu_pool pool,
                                            zr_cu_stream stream)
{
    zr_cu_result code = emu_enter(EMU_alloc_from_pool, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS)
        code = no_pool(pool) ? ZR_CU_INVALID_VALUE : allocate(out, bytes, pool, stream);
    return emu_leave(code);
}

void emu_pool_give(struct emu_allocation *allocation, struct zr_cu_context_st *context, uint64_t number,
                   uint64_t end)
{
    struct zr_cu_pool_st *pool = allocation->pool;
    struct piece *piece = pool->pieces;
    while (piece->address != allocation->address || !piece->used)
        piece = piece->next;
    piece->used = false;
    piece->context = context;
    piece->number = number;
    piece->end = end;
    pool->used -= piece->bytes;
    if (pool->dying)
        bury(pool);
}

static zr_cu_result free_in_order(zr_cu_address address, zr_cu_stream stream)
{
    struct zr_cu_context_st *context = emu_current();
    struct emu_allocation *found = emu_allocation_at(address);
    zr_cu_result code;
    if (emu_no_stream(&stream, context))
        return ZR_CU_INVALID_HANDLE;
    if (emu_captured_free(address, context, stream, &code))
        return code;
    if (!found || found->address != address || (found->kind != EMU_POOLED && found->kind != EMU_GRAPH))
        return ZR_CU_INVALID_VALUE;
    uint64_t end = emu_stream_end(context, stream);
    emu_unmapped_after(address, found->bytes, context, end);
    emu_allocation_freed(found);
    if (found->kind == EMU_GRAPH)
        emu_graph_memory_give(found);
    else
        emu_pool_give(found, context, emu_stream_number(stream), end);
    emu_allocation_remove(found);
    return ZR_CU_SUCCESS;
}

PUBLIC zr_cu_result cuMemFreeAsync(zr_cu_address address, zr_cu_stream stream)
{
    zr_cu_result code = emu_enter(EMU_free_async, EMU_CONTEXT);
    return emu_leave(code == ZR_CU_SUCCESS ? free_in_order(address, stream) : code);
}

/* ---- Pools --------------------------------------------------------------------------------------------- */

static zr_cu_result create(zr_cu_pool *out, const zr_cu_pool_properties *properties)
{
    if (!out || !properties || properties->type != ZR_CU_ALLOCATION_PINNED || properties->windows_only)
        return ZR_CU_INVALID_VALUE;
    if (properties->exported_as != ZR_CU_HANDLE_NONE || properties->location.type != ZR_CU_LOCATION_DEVICE)
        return ZR_CU_NOT_SUPPORTED;
    if (emu_no_device(properties->location.id))
        return ZR_CU_INVALID_DEVICE;
    *out = add_pool(properties->location.id);
    (*out)->max_bytes = properties->max_bytes;
    return ZR_CU_SUCCESS;
}

PUBLIC zr_cu_result cuMemPoolCreate(zr_cu_pool *out, const zr_cu_pool_properties *properties)
{
    zr_cu_result code = emu_enter(EMU_pool_create, EMU_INIT);
    return emu_leave(code == ZR_CU_SUCCESS ? create(out, properties) : code);
}

PUBLIC zr_cu_result cuMemPoolDestroy(zr_cu_pool pool)
{
    zr_cu_result code = emu_enter(EMU_pool_destroy, EMU_INIT);
    if (code == ZR_CU_SUCCESS && (no_pool(pool) || pool->is_default))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS) {
        if (currents[pool->device] == pool)
            currents[pool->device] = NULL;
        pool->dying = true;
        bury(pool);
    }
    return emu_leave(code);
}

PUBLIC zr_cu_result cuMemPoolTrimTo(zr_cu_pool pool, size_t keep_bytes)
{
    zr_cu_result code = emu_enter(EMU_pool_trim, EMU_INIT);
    if (code == ZR_CU_SUCCESS && no_pool(pool))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS)
        shrink(pool, keep_bytes);
    return emu_leave(code);
}

/* The number that the attribute stands for; NULL: it is one of reuse, an int. */
static uint64_t *number_of(struct zr_cu_pool_st *pool, zr_cu_pool_attribute which)
{
    switch (which) {
    case ZR_CU_POOL_RELEASE_THRESHOLD:
        return &pool->threshold;
    case ZR_CU_POOL_RESERVED_NOW:
        return &pool->reserved;
    case ZR_CU_POOL_RESERVED_HIGH:
        return &pool->reserved_high;
    case ZR_CU_POOL_USED_NOW:
        return &pool->used;
    case ZR_CU_POOL_USED_HIGH:
        return &pool->used_high;
    default:
        return NULL;
    }
}

static bool no_attribute(zr_cu_pool_attribute which)
{
    return which < ZR_CU_POOL_REUSE_FOLLOW_EVENT || which > ZR_CU_POOL_USED_HIGH;
}

PUBLIC zr_cu_result cuMemPoolGetAttribute(zr_cu_pool pool, zr_cu_pool_attribute which, void *value)
{
    zr_cu_result code = emu_enter(EMU_pool_get, EMU_INIT);
    if (code == ZR_CU_SUCCESS && (no_pool(pool) || no_attribute(which) || !value))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS) {
        const uint64_t *number = number_of(pool, which);
        if (number)
            *(uint64_t *)value = *number;
        else
            *(int *)value = pool->reuse[which];
    }
    return emu_leave(code);
}

/* High marks can be set to 0, and to what is only. */
static zr_cu_result set(struct zr_cu_pool_st *pool, zr_cu_pool_attribute which, const void *value)
{
    switch (which) {
    case ZR_CU_POOL_RELEASE_THRESHOLD:
        pool->threshold = *(const uint64_t *)value;
        return ZR_CU_SUCCESS;
    case ZR_CU_POOL_RESERVED_HIGH:
    case ZR_CU_POOL_USED_HIGH:
        if (*(const uint64_t *)value != 0)
            return ZR_CU_INVALID_VALUE;
        *number_of(pool, which) = *number_of(pool, which - 1);
        return ZR_CU_SUCCESS;
    case ZR_CU_POOL_RESERVED_NOW:
    case ZR_CU_POOL_USED_NOW:
        return ZR_CU_INVALID_VALUE;
    default:
        pool->reuse[which] = *(const int *)value != 0;
        return ZR_CU_SUCCESS;
    }
}

PUBLIC zr_cu_result cuMemPoolSetAttribute(zr_cu_pool pool, zr_cu_pool_attribute which, void *value)
{
    zr_cu_result code = emu_enter(EMU_pool_set, EMU_INIT);
    if (code == ZR_CU_SUCCESS && (no_pool(pool) || no_attribute(which) || !value))
        code = ZR_CU_INVALID_VALUE;
    return emu_leave(code == ZR_CU_SUCCESS ? set(pool, which, value) : code);
}

static zr_cu_result check_access(const struct zr_cu_pool_st *pool, const zr_cu_access *access)
{
    if (access->location.type != ZR_CU_LOCATION_DEVICE ||
        (access->flags != ZR_CU_ACCESS_NONE && access->flags != ZR_CU_ACCESS_READ &&
         access->flags != ZR_CU_ACCESS_READ_WRITE))
        return ZR_CU_INVALID_VALUE;
    if (emu_no_device(access->location.id) || !emu_peers(access->location.id, pool->device))
        return ZR_CU_INVALID_DEVICE;
    /* The device's own cannot be taken away. */
    return access->location.id == pool->device && access->flags != ZR_CU_ACCESS_READ_WRITE
               ? ZR_CU_INVALID_VALUE
               : ZR_CU_SUCCESS;
}

PUBLIC zr_cu_result cuMemPoolSetAccess(zr_cu_pool pool, const zr_cu_access *access, size_t count)
{
    zr_cu_result code = emu_enter(EMU_pool_set_access, EMU_INIT);
    if (code == ZR_CU_SUCCESS && (no_pool(pool) || !access))
        code = ZR_CU_INVALID_VALUE;
    for (size_t i = 0; code == ZR_CU_SUCCESS && i < count; i++)
        code = check_access(pool, &access[i]);
    for (size_t i = 0; code == ZR_CU_SUCCESS && i < count; i++)
        pool->access[access[i].location.id] = (uint8_t)access[i].flags;
    return emu_leave(code);
}

PUBLIC zr_cu_result cuMemPoolGetAccess(zr_cu_access_flags *out, zr_cu_pool pool, zr_cu_location *location)
{
    zr_cu_result code = emu_enter(EMU_pool_get_access, EMU_INIT);
    if (code == ZR_CU_SUCCESS &&
        (!out || no_pool(pool) || !location || location->type != ZR_CU_LOCATION_DEVICE))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS && emu_no_device(location->id))
        code = ZR_CU_INVALID_DEVICE;
    if (code == ZR_CU_SUCCESS)
        *out = pool->access[location->id];
    return emu_leave(code);
}

/* No pool was created for export, so none can be exported. */
PUBLIC zr_cu_result cuMemPoolExportToShareableHandle(void *out, zr_cu_pool pool, zr_cu_handle_type type,
                                                     unsigned long long flags)
{
    zr_cu_result code = emu_enter(EMU_pool_export, EMU_INIT);
    (void)out, (void)pool, (void)type, (void)flags;
    return emu_leave(code == ZR_CU_SUCCESS ? ZR_CU_INVALID_VALUE : code);
}

PUBLIC zr_cu_result cuMemPoolExportPointer(void *out, zr_cu_address address)
{
    zr_cu_result code = emu_enter(EMU_pool_export_pointer, EMU_INIT);
    (void)out, (void)address;
    return emu_leave(code == ZR_CU_SUCCESS ? ZR_CU_INVALID_VALUE : code);
}

/* ---- Pools of devices ---------------------------------------------------------------------------------- */

static zr_cu_result check_device(zr_cu_result code, const void *out, zr_cu_device device)
{
    if (code == ZR_CU_SUCCESS && emu_no_device(device))
        return ZR_CU_INVALID_DEVICE;
    return code == ZR_CU_SUCCESS && !out ? ZR_CU_INVALID_VALUE : code;
}

PUBLIC zr_cu_result cuDeviceGetDefaultMemPool(zr_cu_pool *out, zr_cu_device device)
{
    zr_cu_result code = check_device(emu_enter(EMU_pool_default, EMU_INIT), out, device);
    if (code == ZR_CU_SUCCESS)
        *out = default_of(device);
    return emu_leave(code);
}

PUBLIC zr_cu_result cuDeviceGetMemPool(zr_cu_pool *out, zr_cu_device device)
{
    zr_cu_result code = check_device(emu_enter(EMU_pool_current, EMU_INIT), out, device);
    if (code == ZR_CU_SUCCESS)
        *out = current_of(device);
    return emu_leave(code);
}

PUBLIC zr_cu_result cuDeviceSetMemPool(zr_cu_device device, zr_cu_pool pool)
{
    zr_cu_result code = check_device(emu_enter(EMU_pool_make_current, EMU_INIT), pool, device);
    if (code == ZR_CU_SUCCESS && (no_pool(pool) || pool->device != device))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS)
        currents[device] = pool;
    return emu_leave(code);
}
