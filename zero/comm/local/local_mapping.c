/* local_mapping.c: reads other ranks' memory directly. Used by local.c and local_ring.c; see the header. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/backend/backend.h"
#include "alloc/base/error.h"
#include "alloc/front/share.h"
#include "zero/comm/local/local_mapping.h"

/* Size of a mapping step, so that a growing file does not need a mapping per granule. */
#define STEP_BYTES ((size_t)64 << 20)
/* A quarter of a process's address space, for the mappings of all communicators. */
#define MAPPINGS_BYTES ((size_t)32 << 40)
/* Maximum bytes of a view of a window. */
#define VIEW_BYTES ((size_t)1 << 20)

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Number of addresses for one peer's file. Offsets in the file are never reused, so the file may grow beyond
 * the machine's memory; data beyond the mapping goes through the ring. */
static size_t mapping_bytes(const zr_backend *backend, unsigned world)
{
    struct zr_machine machine;
    zr_os_machine(&machine);
    if (machine.address_limit_bytes > 0) /* addresses are limited: map nothing */
        return 0;
    size_t bytes = smaller((size_t)(4 * machine.memory_bytes), MAPPINGS_BYTES / ZR_LOCAL_RINGS / world);
    return bytes / backend->can.granule_bytes * backend->can.granule_bytes;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Reserves addresses for every peer, or for none. */
static bool reserve_mappings(struct local_comm *comm)
{
    zr_result result = ZR_OK;
    for (unsigned p = 0; p < comm->base.world && result == ZR_OK; p++)
        if (p != comm->base.rank)
            result = zr_backend_reserve(comm->backend, comm->mapping_bytes, &comm->peers[p].mapping.range);
    for (unsigned p = 0; p < comm->base.world && result != ZR_OK; p++) {
        struct zr_local_mapping *mapping = &comm->peers[p].mapping;
        if (mapping->range)
            zr_backend_release(mapping->range);
        mapping->range = NULL;
    }
    return result == ZR_OK;
}

void zr_local_mappings_open(struct local_comm *comm)
{
    struct zr_segment segments[ZR_LOCAL_PLACES];
    size_t count = ZR_LOCAL_PLACES, lead_bytes;
    comm->own_fd = -1;
    comm->mapping_bytes = 0;
    if (comm->base.options.algorithm == ZR_COMM_RING || !comm->backend->can.host_visible ||
        !comm->backend->can.aliases || comm->base.local->threads ||
        zr_block_segments(comm->base.options.arena, comm->slots, false, segments, &count, &lead_bytes) !=
            ZR_OK)
        return;
    for (unsigned p = 0; p < comm->base.world; p++)
        if (p != comm->base.rank && comm->peers[p].mapping.fd < 0)
            return;
    comm->own_fd = segments[0].fd;
    comm->mapping_bytes = mapping_bytes(comm->backend, comm->base.world);
    if (comm->mapping_bytes > 0 && !reserve_mappings(comm))
        comm->mapping_bytes = 0;
}

void zr_local_mappings_close(struct local_comm *comm)
{
    for (unsigned p = 0; p < comm->base.world; p++) {
        struct zr_local_mapping *mapping = &comm->peers[p].mapping;
        if (mapping->mapped_bytes > 0)
            zr_backend_unmap(mapping->range, (struct zr_bounds){0, mapping->mapped_bytes});
        if (mapping->range)
            zr_backend_release(mapping->range);
        if (mapping->fd >= 0)
            close(mapping->fd);
        *mapping = ZR_LOCAL_UNMAPPED;
    }
}

/* The window of a rank of the run; NULL: it has none. */
static const struct zr_comm_window *window_of(const struct local_comm *comm, unsigned rank)
{
    const struct zr_comm_window *windows = comm->base.options.windows;
    return windows && windows[rank].bytes > 0 ? &windows[rank] : NULL;
}

/* Exposes memory of the window; false: it is elsewhere. */
static bool expose_window(struct local_comm *comm, const char *source, size_t bytes)
{
    const struct zr_comm_window *window = window_of(comm, comm->base.run_rank);
    struct zr_local_ring *ring = comm->ring;
    ring->in_window = window && source >= window->base && (size_t)(source - window->base) <= window->bytes &&
                      bytes <= window->bytes - (size_t)(source - window->base);
    if (ring->in_window)
        ring->lead_bytes = (uint64_t)(source - window->base);
    return ring->in_window;
}

bool zr_local_expose(struct local_comm *comm, const void *source, size_t bytes)
{
    struct zr_block_info block;
    struct zr_segment segments[ZR_LOCAL_PLACES];
    size_t count = ZR_LOCAL_PLACES, lead_bytes;
    if (comm->base.local->threads) {
        comm->ring->source = source;
        return true;
    }
    if (comm->mapping_bytes == 0)
        return false;
    if (bytes == 0 || expose_window(comm, source, bytes))
        return true;
    if (zr_arena_find(comm->base.options.arena, source, &block) != ZR_OK ||
        (size_t)((const char *)source - (char *)block.address) + bytes > block.reserved_bytes ||
        zr_block_segments(comm->base.options.arena, block.address, false, segments, &count, &lead_bytes) !=
            ZR_OK)
        return false;
    for (size_t i = 0; i < count; i++) {
        if (segments[i].fd != comm->own_fd ||
            segments[i].offset_bytes + segments[i].bytes > comm->mapping_bytes)
            return false;
        comm->ring->places[i] =
            (struct zr_local_place){.offset_bytes = segments[i].offset_bytes, .bytes = segments[i].bytes};
    }
    comm->ring->places_count = (uint32_t)count;
    comm->ring->lead_bytes = lead_bytes + (size_t)((const char *)source - (char *)block.address);
    return true;
}

/* ---- Reading ------------------------------------------------------------------------------------------- */

/* Maps the file at least up to `end`, or further if the file is longer. */
static zr_result map_up_to(struct local_comm *comm, unsigned peer, size_t end)
{
    struct zr_local_mapping *mapping = &comm->peers[peer].mapping;
    struct stat status;
    struct zr_handle *handle;
    size_t granule_bytes = comm->backend->can.granule_bytes, from = mapping->mapped_bytes;
    if (fstat(mapping->fd, &status) != 0 || (size_t)status.st_size < end)
        return zr_fail(ZR_ERR_PEER, "rank %u exposes memory beyond its file", comm->peers[peer].rank);
    size_t max_bytes = smaller((size_t)status.st_size / granule_bytes * granule_bytes, comm->mapping_bytes);
    size_t to = smaller((end + STEP_BYTES - 1) / STEP_BYTES * STEP_BYTES, max_bytes);
    zr_result result = zr_backend_import(
        comm->backend, &(struct zr_segment){.fd = mapping->fd, .offset_bytes = from, .bytes = to - from},
        &handle);
    if (result != ZR_OK)
        return result;
    result = zr_backend_map(mapping->range, from, handle);
    zr_backend_destroy_handle(comm->backend, handle); /* kept alive by its mapping */
    if (result != ZR_OK)
        return result;
    mapping->mapped_bytes = to;
    return zr_backend_set_access(mapping->range, (struct zr_bounds){from, to - from});
}

static zr_result map_window(struct local_comm *comm, unsigned peer, size_t offset, struct zr_local_view *out)
{
    const struct zr_comm_window *window = window_of(comm, comm->peers[peer].rank);
    struct zr_local_mapping *mapping = &comm->peers[peer].mapping;
    if (!window || offset >= window->bytes)
        return zr_fail(ZR_ERR_PEER, "rank %u exposes memory beyond its window", comm->peers[peer].rank);
    *out = (struct zr_local_view){.at = window->base + offset,
                                  .bytes = smaller(window->bytes - offset, VIEW_BYTES)};
    mapping->window_first = smaller(mapping->window_first, offset);
    mapping->window_end = larger(mapping->window_end, offset + out->bytes);
    return ZR_OK;
}

zr_result zr_local_map(struct local_comm *comm, unsigned peer, size_t offset, struct zr_local_view *out)
{
    const struct zr_local_ring *theirs = comm->peers[peer].ring;
    struct zr_local_mapping *mapping = &comm->peers[peer].mapping;
    size_t left = theirs->lead_bytes + offset;
    unsigned i = 0;
    if (comm->base.local->threads) {
        *out = (struct zr_local_view){.at = theirs->source + offset, .bytes = SIZE_MAX};
        return ZR_OK;
    }
    if (theirs->in_window)
        return map_window(comm, peer, left, out);
    while (i < theirs->places_count && left >= theirs->places[i].bytes)
        left -= theirs->places[i++].bytes;
    if (i == theirs->places_count)
        return zr_fail(ZR_ERR_PEER, "rank %u exposes less memory than rank %u has to read",
                       comm->peers[peer].rank, comm->base.run_rank);
    struct zr_local_place place = theirs->places[i];
    if (place.offset_bytes + place.bytes > mapping->mapped_bytes) {
        zr_result result = map_up_to(comm, peer, place.offset_bytes + place.bytes);
        if (result != ZR_OK)
            return result;
    }
    mapping->first = smaller(mapping->first, place.offset_bytes);
    mapping->end = larger(mapping->end, place.offset_bytes + place.bytes);
    *out = (struct zr_local_view){.at = mapping->range->address + place.offset_bytes + left,
                                  .bytes = place.bytes - left};
    return ZR_OK;
}

static void unmap_window(struct local_comm *comm, unsigned peer)
{
    const struct zr_comm_window *window = window_of(comm, comm->peers[peer].rank);
    struct zr_local_mapping *mapping = &comm->peers[peer].mapping;
    size_t granule_bytes = comm->backend->can.granule_bytes, /* whole pages */
        first = mapping->window_first / granule_bytes * granule_bytes;
    if (window && first < mapping->window_end)
        madvise((void *)(uintptr_t)(window->base + first), mapping->window_end - first, MADV_DONTNEED);
    mapping->window_first = SIZE_MAX;
    mapping->window_end = 0;
}

/* Removes page-table entries; the pages remain in the file. */
void zr_local_unmap(struct local_comm *comm)
{
    for (unsigned p = 0; p < comm->base.world; p++) {
        struct zr_local_mapping *mapping = &comm->peers[p].mapping;
        if (mapping->first < mapping->end)
            madvise(mapping->range->address + mapping->first, mapping->end - mapping->first, MADV_DONTNEED);
        mapping->first = SIZE_MAX;
        mapping->end = 0;
        unmap_window(comm, p);
    }
}
