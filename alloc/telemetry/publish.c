/* publish.c: the file of published figures (see serve.h). Uses registry.c and stats.c. */
#define _GNU_SOURCE
#include "alloc/telemetry/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/base/system/file.h"
#include "alloc/base/system/os.h"
#include "alloc/core/arena.h"
#include "alloc/core/registry.h"

void zr_publisher_name(struct zr_publisher *out, const char *folder)
{
    snprintf(out->path, sizeof out->path, "%s/%ld.live", folder, (long)getpid());
    unlink(out->path);
}

zr_result zr_publisher_start(struct zr_publisher *out)
{
    out->shown = NULL;
    int fd = zr_fault(ZR_FAULT_OPEN) ? -1 : zr_open(out->path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    if (fd < 0)
        return zr_fail(ZR_ERR_IO, "cannot make '%s' (error %d)", out->path, errno);
    /* Allocate the blocks first: touching a mapping on a full disk raises SIGBUS. */
    if (!zr_fault(ZR_FAULT_WRITE) && posix_fallocate(fd, 0, sizeof *out->shown) == 0)
        out->shown = mmap(NULL, sizeof *out->shown, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (!out->shown || out->shown == MAP_FAILED) {
        out->shown = NULL;
        unlink(out->path);
        return zr_fail(ZR_ERR_IO, "no space for '%s'", out->path);
    }
    madvise(out->shown, sizeof *out->shown, MADV_DONTFORK);
    out->shown->version = ZR_PUBLISHED_VERSION;
    out->shown->bytes = sizeof *out->shown;
    zr_process_self(&out->shown->process);
    snprintf(out->shown->program, sizeof out->shown->program, "%s", program_invocation_short_name);
    zr_publisher_refresh(out, ZR_REFRESH_COUNTERS);
    memcpy(out->shown->magic, ZR_PUBLISHED_MAGIC, sizeof out->shown->magic);
    return ZR_OK;
}

/* Adds the counters of one stripe. lock: arena->lock */
static void add_counters(struct zr_arena *arena, struct zr_arena_stats *sum)
{
    sum->live_bytes += arena->live_bytes;
    sum->requested_bytes += arena->requested_bytes;
    sum->mapped_bytes += arena->mapped_bytes + arena->lent_bytes;
    sum->cached_bytes += arena->granule_cache.bytes;
    sum->reserved_bytes += arena->reserved_bytes;
    sum->peak_requested_bytes += arena->peak_requested_bytes;
    sum->blocks_count += arena->blocks_count;
    sum->allocations_count += arena->allocations_count;
    sum->backend_calls_count += arena->backend_calls_count;
    sum->unmovable_bytes += arena->unmovable_bytes;
    const size_t *peaks = arena->at_peak ? arena->live_by_tag_bytes : arena->peak_by_tag_bytes;
    for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++) {
        sum->live_by_tag_bytes[tag] += arena->live_by_tag_bytes[tag];
        sum->peak_by_tag_bytes[tag] += peaks[tag];
    }
}

/* Reads the counters of all stripes. False: a stripe's lock is busy. The list of arenas is locked, so no
 * stripe is destroyed. */
static bool read_counters(struct zr_arena *arena, struct zr_arena_stats *out)
{
    unsigned count = atomic_load_explicit(&arena->stripes_count, memory_order_acquire);
    struct zr_arena_stats sum = {0};
    size_t own_peak_bytes = 0;
    for (unsigned i = 0; i <= count; i++) {
        struct zr_arena *stripe = i ? arena->stripes[i - 1] : arena;
        if (!zr_lock_try(&stripe->lock))
            return false;
        add_counters(stripe, &sum);
        if (i == 0)
            own_peak_bytes = arena->peak_live_bytes;
        zr_lock_release(&stripe->lock);
    }
    sum.pending_bytes = out->pending_bytes;
    sum.stranded_bytes = out->stranded_bytes;
    size_t known_bytes = count > 0 ? atomic_load(&arena->all_peak_live_bytes) : own_peak_bytes;
    sum.peak_live_bytes = known_bytes > own_peak_bytes ? known_bytes : own_peak_bytes;
    if (sum.live_bytes > sum.peak_live_bytes)
        sum.peak_live_bytes = sum.live_bytes;
    sum.peak_reserved_bytes = atomic_load(&arena->peak_reserved_bytes);
    *out = sum;
    return true;
}

/* Reads figures that need a walk over the extents, by their names for zr_ctl_get(). */
static void read_walked(struct zr_published_arena *shown)
{
    char name[64];
    uint64_t pending = 0, stranded = 0;
    snprintf(name, sizeof name, "arena.%u.pending_bytes", shown->number);
    if (zr_ctl_get(name, &pending) == ZR_OK)
        shown->stats.pending_bytes = (size_t)pending;
    snprintf(name, sizeof name, "arena.%u.stranded_bytes", shown->number);
    if (zr_ctl_get(name, &stranded) == ZR_OK)
        shown->stats.stranded_bytes = (size_t)stranded;
}

static void copy_ranges(const struct zr_arena *arena, struct zr_published_arena *out)
{
    out->ranges_count = 0;
    for (unsigned i = 0; i <= out->stripes_count && i < ZR_PUBLISHED_RANGES; i++) {
        const struct zr_arena *stripe = i ? arena->stripes[i - 1] : arena;
        out->ranges[i].address = (uintptr_t)stripe->base;
        out->ranges[i].bytes = stripe->range_bytes;
        out->ranges_count++;
    }
}

/* Reads the device's figures. The list of arenas is locked, so no arena is destroyed. */
static void read_device(struct zr_arena *arena, struct zr_published_arena *out)
{
    struct zr_backend_memory device = {0};
    bool known = zr_backend_memory_info(arena->backend, &device) == ZR_OK && device.total_bytes != SIZE_MAX;
    out->device_total_bytes = known ? device.total_bytes : 0;
    out->device_free_bytes = known ? device.free_bytes : 0;
    out->device_held_bytes = zr_backend_held_bytes(arena->backend);
}

static unsigned copy_arenas(struct zr_published *shown, enum zr_refresh what)
{
    unsigned count = 0;
    zr_arenas_acquire();
    for (struct zr_arena *arena = NULL; (arena = zr_arenas_next(arena)); count++) {
        if (count >= ZR_PUBLISHED_ARENAS)
            continue;
        struct zr_published_arena *slot = &shown->arenas[count];
        if (slot->number != arena->number || strcmp(slot->name, arena->name) != 0)
            *slot = (struct zr_published_arena){.number = arena->number};
        memcpy(slot->name, arena->name, sizeof slot->name);
        slot->stripes_count = atomic_load(&arena->stripes_count);
        slot->limit_bytes = arena->limit_bytes;
        slot->visible = arena->visible;
        slot->backend = (uintptr_t)arena->backend;
        slot->device = arena->backend->device;
        slot->device_before_bytes = arena->backend->before_bytes;
        copy_ranges(arena, slot);
        read_counters(arena, &slot->stats);
        if (what >= ZR_REFRESH_DEVICES)
            read_device(arena, slot);
    }
    zr_arenas_release();
    return count;
}

void zr_publisher_refresh(struct zr_publisher *publisher, enum zr_refresh what)
{
    struct zr_published *shown = publisher->shown;
    uint32_t sequence = atomic_load_explicit(&shown->sequence, memory_order_relaxed);
    atomic_store_explicit(&shown->sequence, sequence + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    shown->arenas_count = copy_arenas(shown, what);
    for (unsigned i = 0; what >= ZR_REFRESH_WALKED && i < shown->arenas_count && i < ZR_PUBLISHED_ARENAS; i++)
        read_walked(&shown->arenas[i]);
    shown->written_ns = zr_os_now_ns();
    atomic_store_explicit(&shown->sequence, sequence + 2, memory_order_release);
}

void zr_publisher_end(struct zr_publisher *publisher)
{
    if (publisher->shown)
        munmap(publisher->shown, sizeof *publisher->shown);
    publisher->shown = NULL;
}
