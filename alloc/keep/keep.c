/* keep.c: opens and closes segments; the table of tensors and their arena. See zr_keep.h. Uses segment.c and
 * the arena. */
#define _GNU_SOURCE
#include "alloc/keep/mapping.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "alloc/backend/backend.h"
#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "alloc/base/slab.h"
#include "alloc/core/arena.h"
#include "alloc/front/front.h"
#include "alloc/keep/holder.h"

/* ---- Checks -------------------------------------------------------------------------------------------- */

zr_result zr_keep_check_writer(const zr_keep *keep, const char *call)
{
    if (!keep)
        return zr_fail(ZR_ERR_INVALID, "%s: the segment is NULL", call);
    if (!keep->arena)
        return zr_fail(ZR_ERR_INVALID, "%s: segment '%s' is open for reading; open it with ZR_KEEP_WRITE",
                       call, keep->shape.name);
    return keep->owner == getpid()
               ? ZR_OK
               : zr_fail(ZR_ERR_INVALID, "%s: process %d writes segment '%s', and a child of it cannot", call,
                         (int)keep->owner, keep->shape.name);
}

static uint64_t count_of(const zr_keep *keep)
{
    uint64_t count = atomic_load_explicit(&keep->header->tensors_count, memory_order_acquire);
    return count < keep->shape.tensors_max ? count : keep->shape.tensors_max;
}

struct zr_segment_entry *zr_keep_entry(const zr_keep *keep, uint32_t tensor)
{
    return tensor < count_of(keep) ? zr_segment_entries(keep->header) + tensor : NULL;
}

char *zr_keep_at(const zr_keep *keep, uint64_t offset_bytes)
{
    return (char *)(uintptr_t)keep->data + offset_bytes;
}

zr_result zr_keep_tensor_get(const zr_keep *keep, uint32_t tensor, struct zr_keep_tensor_info *out)
{
    const struct zr_segment_entry *entry = keep && out ? zr_keep_entry(keep, tensor) : NULL;
    if (!entry)
        return zr_fail(ZR_ERR_INVALID, "segment '%s' has no tensor %u", keep ? keep->shape.name : "NULL",
                       tensor);
    uint64_t all = keep->shape.bytes - keep->shape.data_bytes;
    struct zr_segment_entry own = {.bytes = entry->bytes,
                                   .offset_bytes = entry->offset_bytes,
                                   .stride_bytes = entry->stride_bytes,
                                   .places_count = entry->places_count,
                                   .tag = entry->tag};
    memcpy(own.name, entry->name, sizeof own.name);
    memcpy(out->coordinates, entry->coordinates, sizeof out->coordinates);
    bool good = (own.places_count == 1 || own.places_count == 2) && own.tag < ZR_TAG_COUNT && own.bytes > 0 &&
                own.bytes <= all && own.offset_bytes <= all - own.bytes && own.offset_bytes % 256 == 0 &&
                own.stride_bytes <= all && memchr(own.name, '\0', sizeof own.name) &&
                (own.places_count == 1 || (own.stride_bytes >= own.bytes && own.stride_bytes % 256 == 0 &&
                                           own.stride_bytes <= all - own.bytes - own.offset_bytes));
    if (!good)
        return zr_fail(ZR_ERR_CORRUPT, "entry %u of segment '%s' is damaged: drop the segment", tensor,
                       keep->shape.name);
    memcpy(out->name, own.name, sizeof out->name);
    out->bytes = (size_t)own.bytes;
    out->tag = (zr_tag)own.tag;
    out->mode = own.places_count == 1 ? ZR_KEEP_IN_PLACE : ZR_KEEP_TWO_PLACES;
    out->offset_bytes[0] = (size_t)(keep->shape.data_bytes + own.offset_bytes);
    out->offset_bytes[1] = out->offset_bytes[0] + (size_t)(own.places_count == 1 ? 0 : own.stride_bytes);
    return ZR_OK;
}

/* ---- The writer ---------------------------------------------------------------------------------------- */

/* What the arena allocates for a tensor: both places are one block. */
static struct zr_request request_of(const struct zr_keep_tensor_info *info)
{
    return (struct zr_request){.bytes = info->offset_bytes[1] - info->offset_bytes[0] + info->bytes,
                               .tag = info->tag};
}

/* Allocates the blocks of the tensors in the table where a dead writer had them. */
static zr_result claim(zr_keep *keep, uint32_t tensor)
{
    struct zr_keep_tensor_info info;
    void *block;
    zr_result result = zr_keep_tensor_get(keep, tensor, &info);
    if (result != ZR_OK)
        return result;
    struct zr_request request = request_of(&info);
    result = zr_arena_alloc_at(keep->arena, &request, info.offset_bytes[0] - (size_t)keep->shape.data_bytes,
                               &block);
    return result == ZR_OK
               ? zr_arena_set_granule_class(keep->arena, block, request.bytes, ZR_GRANULE_EXPORTED)
               : result;
}

static zr_result create_arena(zr_keep *keep)
{
    size_t bytes = (size_t)(keep->shape.bytes - keep->shape.data_bytes);
    const struct zr_file_part part = {.fd = keep->fd,
                                      .first_bytes = keep->shape.data_bytes,
                                      .bytes = bytes,
                                      .granule_bytes = (size_t)keep->shape.granule_bytes};
    zr_result result = zr_backend_file_create(&keep->backend, &part);
    if (result == ZR_OK)
        result = zr_arena_create(&keep->arena, &(struct zr_arena_options){.backend = keep->backend,
                                                                          .name = keep->shape.name,
                                                                          .reserve_bytes = bytes,
                                                                          .limit_bytes = bytes});
    if (result == ZR_OK)
        keep->data = keep->arena->base;
    return result;
}

static zr_result become_writer(zr_keep *keep)
{
    if (zr_segment_lease(keep->fd) != ZR_OK)
        return zr_fail(
            ZR_ERR_UNAVAILABLE,
            "process %d, or a child of it, still writes segment '%s': end it, or open the segment for reading",
            (int)atomic_load(&keep->header->writer_pid), keep->shape.name);
    keep->written_bytes = keep->shape.tensors_max;
    keep->written = zr_pages_take(keep->written_bytes);
    if (!keep->written)
        return ZR_ERR_HOST_MEMORY;
    zr_result result = create_arena(keep);
    for (uint32_t tensor = 0; result == ZR_OK && tensor < count_of(keep); tensor++)
        result = claim(keep, tensor);
    if (result != ZR_OK)
        return result;
    atomic_store(&keep->header->writer_pid, (int32_t)keep->owner);
    zr_segment_store(&keep->header->lease, atomic_load(&keep->header->lease) + 1);
    zr_keep_recover(keep);
    return ZR_OK;
}

/* ---- Open and close ------------------------------------------------------------------------------------ */

zr_result zr_keep_map(zr_keep **out, int fd, enum zr_keep_access access)
{
    bool writes = access == ZR_KEEP_WRITE;
    *out = NULL;
    zr_keep *keep = zr_pages_take(sizeof *keep);
    if (!keep)
        return ZR_ERR_HOST_MEMORY;
    keep->fd = keep->shared = keep->holder = -1;
    keep->owner = getpid();
    zr_result result = zr_segment_inspect(fd, &keep->shape);
    if (result == ZR_OK)
        result = zr_segment_reopen(fd, writes, &keep->fd);
    if (result == ZR_OK)
        result = zr_segment_reopen(fd, true, &keep->shared);
    if (result == ZR_OK) {
        keep->mapped_bytes = (size_t)(writes ? keep->shape.data_bytes : keep->shape.bytes);
        void *address = mmap(NULL, keep->mapped_bytes, writes ? PROT_READ | PROT_WRITE : PROT_READ,
                             MAP_SHARED, keep->fd, 0);
        keep->header = address == MAP_FAILED ? NULL : address;
        if (!keep->header)
            result =
                zr_fail(ZR_ERR_ADDRESSES, "the system refuses to map %zu bytes of segment '%s' (error %d)",
                        keep->mapped_bytes, keep->shape.name, errno);
    }
    if (result == ZR_OK && writes)
        result = become_writer(keep);
    else if (result == ZR_OK)
        keep->data = (const char *)keep->header + keep->shape.data_bytes;
    if (result != ZR_OK) {
        zr_keep_close(keep);
        return result;
    }
    *out = keep;
    return ZR_OK;
}

zr_result zr_keep_attach(zr_keep **out, int fd, enum zr_keep_access access)
{
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "zr_keep_attach: out is NULL");
    return zr_keep_map(out, fd, access);
}

zr_result zr_keep_create(zr_keep **out, const struct zr_keep_options *options)
{
    struct zr_keep_options own;
    struct zr_segment_shape shape;
    int fd = -1, holder = -1;
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "zr_keep_create: out is NULL");
    *out = NULL;
    zr_result result = ZR_STRUCT_COPY(zr_keep_options, holder, &own, options);
    if (result == ZR_OK)
        result = zr_segment_plan(&own, &shape);
    if (result == ZR_OK)
        result = own.holder == ZR_KEEP_HOLDER_NONE
                     ? zr_segment_make(&shape, &fd)
                     : zr_holding_create(&(struct zr_keep_name){own.name, own.token}, &shape, &fd, &holder);
    if (result == ZR_OK)
        result = zr_keep_map(out, fd, ZR_KEEP_WRITE);
    if (result == ZR_OK) {
        (*out)->holder = holder;
        (*out)->token = own.token;
    } else if (holder >= 0) {
        close(holder);
    }
    if (fd >= 0)
        close(fd);
    return result;
}

zr_result zr_keep_open(zr_keep **out, const struct zr_keep_name *name, enum zr_keep_access access)
{
    int fd = -1, holder = -1;
    if (!out || !name)
        return zr_fail(ZR_ERR_INVALID, "zr_keep_open: out or name is NULL");
    *out = NULL;
    zr_result result = zr_holding_open(name, access == ZR_KEEP_WRITE, &fd, &holder);
    if (result != ZR_OK)
        return result;
    result = zr_keep_map(out, fd, access);
    close(fd);
    if (result == ZR_OK) {
        (*out)->holder = holder;
        (*out)->token = name->token;
    } else if (holder >= 0) {
        close(holder);
    }
    return result;
}

zr_result zr_keep_drop(const struct zr_keep_name *name)
{
    return name ? zr_holding_drop(name) : zr_fail(ZR_ERR_INVALID, "zr_keep_drop: name is NULL");
}

void zr_keep_close(zr_keep *keep)
{
    if (!keep)
        return;
    if (keep->arena)
        zr_arena_destroy(keep->arena, NULL);
    if (keep->backend)
        zr_backend_destroy(keep->backend);
    if (keep->header)
        munmap(keep->header, keep->mapped_bytes);
    if (keep->fd >= 0)
        close(keep->fd);
    if (keep->shared >= 0)
        close(keep->shared);
    if (keep->holder >= 0)
        close(keep->holder);
    if (keep->written)
        zr_pages_give(keep->written, keep->written_bytes);
    zr_pages_give(keep, sizeof *keep);
}

/* ---- The segment --------------------------------------------------------------------------------------- */

int zr_keep_fd(const zr_keep *keep)
{
    return keep ? keep->shared : -1;
}

zr_arena *zr_keep_arena(zr_keep *keep)
{
    return keep ? keep->arena : NULL;
}

const void *zr_keep_data(const zr_keep *keep, size_t *bytes)
{
    *bytes = keep ? (size_t)(keep->shape.bytes - keep->shape.data_bytes) : 0;
    return keep ? keep->data : NULL;
}

zr_result zr_keep_get_info(const zr_keep *keep, struct zr_keep_info *out)
{
    if (!keep || !out)
        return zr_fail(ZR_ERR_INVALID, "zr_keep_get_info: the segment or out is NULL");
    const struct zr_segment_header *header = keep->header;
    *out =
        (struct zr_keep_info){.bytes = (size_t)keep->shape.bytes,
                              .generation = atomic_load_explicit(&header->committed, memory_order_acquire),
                              .begun_generation = atomic_load_explicit(&header->begun, memory_order_acquire),
                              .lease = atomic_load_explicit(&header->lease, memory_order_acquire),
                              .writer_pid = atomic_load(&header->writer_pid),
                              .tensors_count = (uint32_t)count_of(keep)};
    memcpy(out->name, keep->shape.name, sizeof out->name);
    return ZR_OK;
}

/* ---- Tensors ------------------------------------------------------------------------------------------- */

zr_result zr_keep_tensor_find(const zr_keep *keep, const char *name, uint32_t *tensor)
{
    if (!keep || !name || !tensor)
        return zr_fail(ZR_ERR_INVALID, "zr_keep_tensor_find: the segment, name or tensor is NULL");
    for (uint32_t i = 0; i < count_of(keep); i++)
        if (strncmp(zr_segment_entries(keep->header)[i].name, name, ZR_KEEP_TENSOR_NAME_BYTES) == 0) {
            *tensor = i;
            return ZR_OK;
        }
    return zr_fail(ZR_ERR_FOREIGN, "segment '%s' has no tensor '%s'", keep->shape.name, name);
}

static zr_result check_tensor(const zr_keep *keep, const struct zr_keep_tensor *options)
{
    uint32_t other;
    size_t length = options->name ? strnlen(options->name, ZR_KEEP_TENSOR_NAME_BYTES) : 0;
    if (length == 0 || length == ZR_KEEP_TENSOR_NAME_BYTES)
        return zr_fail(ZR_ERR_INVALID, "the name of a kept tensor must have 1 to %d bytes",
                       ZR_KEEP_TENSOR_NAME_BYTES - 1);
    if (options->bytes == 0 || options->bytes > keep->shape.bytes || (unsigned)options->tag >= ZR_TAG_COUNT ||
        (unsigned)options->mode > ZR_KEEP_IN_PLACE)
        return zr_fail(ZR_ERR_INVALID, "kept tensor '%s': bad bytes, tag or mode", options->name);
    if (zr_keep_tensor_find(keep, options->name, &other) == ZR_OK)
        return zr_fail(ZR_ERR_INVALID, "segment '%s' has a tensor '%s' already", keep->shape.name,
                       options->name);
    return count_of(keep) < keep->shape.tensors_max
               ? ZR_OK
               : zr_fail(ZR_ERR_MEMORY, "segment '%s' has %u tensors, its maximum: raise tensors_max",
                         keep->shape.name, keep->shape.tensors_max);
}

zr_result zr_keep_tensor_create(zr_keep *keep, const struct zr_keep_tensor *options, uint32_t *tensor)
{
    struct zr_keep_tensor own;
    void *block = NULL;
    if (!tensor)
        return zr_fail(ZR_ERR_INVALID, "zr_keep_tensor_create: tensor is NULL");
    zr_result result = zr_keep_check_writer(keep, "zr_keep_tensor_create");
    if (result == ZR_OK)
        result = ZR_STRUCT_COPY(zr_keep_tensor, mode, &own, options);
    if (result == ZR_OK)
        result = check_tensor(keep, &own);
    if (result != ZR_OK)
        return result;
    struct zr_segment_entry entry = {
        .bytes = own.bytes, .tag = (uint32_t)own.tag, .places_count = own.mode == ZR_KEEP_TWO_PLACES ? 2 : 1};
    entry.stride_bytes = entry.places_count == 2 ? (entry.bytes + 255) & ~UINT64_C(255) : 0;
    const struct zr_request request = {.bytes = (size_t)(entry.stride_bytes + entry.bytes), .tag = own.tag};
    result = zr_arena_alloc(keep->arena, &request, &block);
    if (result == ZR_OK)
        result = zr_arena_set_granule_class(keep->arena, block, request.bytes, ZR_GRANULE_EXPORTED);
    if (result != ZR_OK) {
        zr_arena_free(keep->arena, block);
        return result;
    }
    entry.offset_bytes = (uint64_t)((char *)block - keep->data);
    snprintf(entry.name, sizeof entry.name, "%s", own.name);
    memcpy(entry.coordinates, own.coordinates, sizeof entry.coordinates);
    /* A death before the count has changed leaves no tensor. */
    uint64_t count = count_of(keep);
    memcpy(zr_segment_entries(keep->header) + count, &entry, sizeof entry);
    zr_segment_store(&keep->header->tensors_count, count + 1);
    *tensor = (uint32_t)count;
    return ZR_OK;
}
