/* large.c: objects above ZR_SMALL_BYTES (see large.h). Uses the large arena and pages.c. */
#define _GNU_SOURCE
#include "alloc/preload/large.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "alloc/base/option.h"
#include "alloc/base/slab.h"
#include "alloc/front/keep.h"
#include "alloc/telemetry/recorder.h"
#include "alloc/preload/control.h"
#include "alloc/preload/pages.h"
#include "alloc/preload/preload.h"
#include "alloc/preload/measuring.h"

/* The smallest class is the first above ZR_SMALL_BYTES. */
enum { FIRST_SHIFT = 15, CLASSES_COUNT = 4 * (47 - FIRST_SHIFT) };
/* Freed blocks up to this total are kept, for at most KEEP_MS. */
#define KEEP_MIN_BYTES ((size_t)8 << 20)
enum { KEEP_MS = 1000 };
/* Below this a copy costs less than the calls that move pages. */
#define MOVE_MIN_BYTES ((size_t)128 << 10)
/* A reused block is cleared by memset up to this size, and by discarding its pages above. */
#define CLEAR_MAX_BYTES ((size_t)1 << 20)
#define HUGE_BYTES      ((size_t)2 << 20)
/* The unused tail of a reused block is discarded from this size on. */
#define TAIL_MIN_BYTES ((size_t)64 << 10)
/* Each moved block is a separate mapping, and the kernel allows 65,530 mappings by default. */
enum { MOVED_MAX = 16384 };

/* Bits of the mark of a block's first page; 0: no block begins there. */
enum {
    CLASS_BITS = 8,
    LIVE = 1 << 8,
    KEPT = 1 << 9,
    MOVED = 1 << 10, /* pages moved here from elsewhere form a separate mapping */
    INNER = 1 << 11  /* an aligned address within a block that begins before it */
};

struct kept {
    struct kept *older, *newer;   /* among all kept blocks */
    struct kept *next, *previous; /* in the class */
    struct zr_extent *block;
    uint64_t freed_ms;
    size_t used_bytes; /* bytes that may have pages */
    unsigned class;
};

static struct {
    uint16_t _Atomic *marks; /* one for each page of the range */
    /* The fields below: lock of the large arena, so that a block is kept and counted as freed at once. */
    struct zr_slab records;
    struct kept *oldest, *newest;
    struct kept *classes[CLASSES_COUNT];
    size_t kept_bytes;                         /* sum of used_bytes */
    size_t small_live_bytes, small_held_bytes; /* jemalloc's figures at the last sample */
    /* The limit beyond KEEP_MIN_BYTES, raised when bytes discarded in this round are requested again; and the
     * bytes discarded in this round. */
    size_t extra_keep_bytes, missed_bytes;
    uint64_t round_ms;
    unsigned long long moved_bytes, copied_bytes;
    unsigned moved_count; /* live blocks that are MOVED */
} large;

/* ---- Sizes and marks ----------------------------------------------------------------------------------- */

static unsigned class_of(size_t bytes)
{
    unsigned shift = 63 - (unsigned)__builtin_clzl(bytes - 1);
    return (shift - FIRST_SHIFT) * 4 + (unsigned)((bytes - 1 - ((size_t)1 << shift)) >> (shift - 2));
}

static size_t class_bytes(unsigned class)
{
    unsigned shift = FIRST_SHIFT + class / 4;
    return ((size_t)1 << shift) + ((size_t)(class % 4 + 1) << (shift - 2));
}

size_t zr_large_class_bytes(size_t bytes)
{
    return class_bytes(class_of(bytes));
}

static uint16_t _Atomic *mark_of(const void *address)
{
    return &large.marks[((uintptr_t)address - zr_preload.large.first) / ZR_PAGE_BYTES];
}

static uint16_t read_mark(const void *address)
{
    if ((uintptr_t)address % ZR_PAGE_BYTES != 0)
        return 0;
    return atomic_load_explicit(mark_of(address), memory_order_relaxed);
}

static void write_mark(const void *address, unsigned mark)
{
    atomic_store_explicit(mark_of(address), (uint16_t)mark, memory_order_relaxed);
}

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

zr_result zr_large_start(void)
{
    large.marks = zr_pages_take(zr_preload.large.bytes / ZR_PAGE_BYTES * sizeof *large.marks);
    zr_slab_init(&large.records, sizeof(struct kept), ZR_POOL_FAULTS);
    large.round_ms = now_ms();
    return large.marks ? ZR_OK : ZR_ERR_HOST_MEMORY;
}

void zr_large_free_marks(const void *address, size_t bytes)
{
    if (!zr_span_has(zr_preload.large, address))
        return;
    uintptr_t first = (uintptr_t)mark_of(address), end = first + bytes / ZR_PAGE_BYTES * sizeof *large.marks;
    first = (first + ZR_PAGE_BYTES - 1) & ~(ZR_PAGE_BYTES - 1);
    end &= ~(ZR_PAGE_BYTES - 1);
    if (end > first)
        munmap((void *)first, end - first);
}

/* ---- Kept blocks --------------------------------------------------------------------------------------- */

static void lock(void)
{
    zr_lock_acquire(&zr_preload.large_arena->lock);
}

static void unlock(void)
{
    zr_lock_release(&zr_preload.large_arena->lock);
}

static char *address_of(const struct zr_extent *block)
{
    return zr_preload.large_arena->base + block->offset_bytes;
}

/* lock: the arena's */
static void unlink_kept(struct kept *kept)
{
    *(kept->older ? &kept->older->newer : &large.oldest) = kept->newer;
    *(kept->newer ? &kept->newer->older : &large.newest) = kept->older;
    *(kept->previous ? &kept->previous->next : &large.classes[kept->class]) = kept->next;
    if (kept->next)
        kept->next->previous = kept->previous;
    large.kept_bytes -= kept->used_bytes;
}

/* lock: the arena's */
static void link_kept(struct kept *kept)
{
    kept->newer = kept->previous = NULL;
    kept->older = large.newest;
    *(large.newest ? &large.newest->newer : &large.oldest) = kept;
    large.newest = kept;
    kept->next = large.classes[kept->class];
    if (kept->next)
        kept->next->previous = kept;
    large.classes[kept->class] = kept;
    large.kept_bytes += kept->used_bytes;
}

/* lock: the arena's */
static void note(void)
{
    size_t live_bytes = zr_preload.large_arena->requested_bytes;
    if (unlikely(zr_measuring.on))
        zr_measuring_note(large.small_live_bytes + live_bytes,
                          large.small_held_bytes + live_bytes + large.kept_bytes,
                          live_bytes + large.kept_bytes);
}

void zr_large_note_small(size_t live_bytes, size_t held_bytes)
{
    lock();
    large.small_live_bytes = live_bytes;
    large.small_held_bytes = held_bytes;
    note();
    unlock();
}

/* Takes a kept block of the class or of the next larger class. NULL: none. lock: the arena's */
static struct zr_extent *take_kept(unsigned class, size_t alignment, unsigned *got)
{
    for (unsigned c = class; c <= class + 1 && c < CLASSES_COUNT; c++)
        for (struct kept *kept = large.classes[c]; kept; kept = kept->next) {
            if (((uintptr_t)address_of(kept->block) & (alignment - 1)) != 0)
                continue;
            struct zr_extent *block = kept->block;
            unlink_kept(kept);
            zr_slab_give(&large.records, kept);
            *got = c;
            return block;
        }
    return NULL;
}

/* The max number of bytes to keep now. Once a second (*round is true) the extra part shrinks. lock: the
 * arena's */
static size_t keep_max(uint64_t now, bool *round)
{
    *round = now - large.round_ms >= KEEP_MS;
    if (*round) {
        large.round_ms = now;
        large.extra_keep_bytes -= large.extra_keep_bytes / 4;
        large.missed_bytes = 0;
    }
    /* The extra part never exceeds an eighth of the live bytes. */
    size_t max_bytes = zr_preload.large_arena->requested_bytes / 8;
    large.extra_keep_bytes = large.extra_keep_bytes < max_bytes ? large.extra_keep_bytes : max_bytes;
    return KEEP_MIN_BYTES + large.extra_keep_bytes;
}

/* Unlinks the oldest kept block if it is too old or the limit is exceeded; NULL: none. lock: large.lock */
static struct kept *next_to_release(uint64_t now, size_t max_bytes)
{
    struct kept *kept = large.oldest;
    if (!kept || (large.kept_bytes <= max_bytes && now - kept->freed_ms < KEEP_MS))
        return NULL;
    unlink_kept(kept);
    return kept;
}

/* Returns a block without pages to the arena. */
static void return_block(struct zr_extent *block, bool moved)
{
    write_mark(address_of(block), 0);
    lock();
    large.moved_count -= moved;
    zr_block_release(zr_preload.large_arena, block);
    unlock();
}

/* Discards the kept block's pages and returns the block to the arena, so that free addresses hold no memory.
 * False: the system did not discard the pages. */
static bool release_block(struct zr_extent *block)
{
    bool moved = (read_mark(address_of(block)) & MOVED) != 0;
    if (!zr_pages_discard(address_of(block), block->bytes, moved))
        return false;
    return_block(block, moved);
    return true;
}

/* Releases kept blocks that are too old or exceed the limit. Returns their bytes. */
static size_t release_kept(size_t max_bytes, uint64_t now)
{
    size_t given = 0;
    struct kept *kept;
    lock();
    while ((kept = next_to_release(now, max_bytes))) {
        size_t bytes = kept->used_bytes;
        large.missed_bytes += bytes;
        unlock();
        bool gone = release_block(kept->block);
        given += gone ? bytes : 0;
        lock();
        if (gone) {
            zr_slab_give(&large.records, kept);
        } else {
            kept->freed_ms = now;
            link_kept(kept);
            break;
        }
    }
    note();
    unlock();
    return given;
}

size_t zr_large_trim(void)
{
    return release_kept(0, now_ms());
}

/* ---- Allocation ---------------------------------------------------------------------------------------- */

/* A request of `bytes`, which gets a block of at least `room_bytes`. */
struct wanted {
    size_t bytes, room_bytes, alignment;
};

/* A block of the arena, whose pages read as zeros. */
static char *take_fresh(struct wanted wanted, unsigned class)
{
    size_t bytes = class_bytes(class);
    /* Align to huge pages, unless gaps between blocks count against a limit. */
    bool huge = bytes >= HUGE_BYTES && zr_option_get(ZR_OPTION_LIMIT) == 0;
    struct zr_request request = {
        .bytes = wanted.bytes, .alignment = huge ? HUGE_BYTES : wanted.alignment, .tag = ZR_TAG_OTHER};
    void *block = NULL;
    if (bytes > zr_preload.large.bytes)
        return NULL; /* far beyond the machine's memory: no report of live blocks */
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, zr_measuring_first_large);
    uint8_t files = zr_recorder_files;
    zr_recorder_suppressed = true; /* no report yet: the request is repeated below */
    zr_result result = zr_arena_alloc_sized(zr_preload.large_arena, &request, bytes, &block);
    zr_recorder_suppressed = false;
    if (result != ZR_OK) {
        zr_large_trim();
        result = zr_arena_alloc_sized(zr_preload.large_arena, &request, bytes, &block);
    }
    if (files != zr_recorder_files)
        zr_preload_report();
    return result == ZR_OK ? block : NULL;
}

/* Allocates a block. Not *fresh: reused memory with stale contents. */
static char *take(struct wanted wanted, bool *fresh)
{
    unsigned class = class_of(wanted.room_bytes), got;
    char *address = NULL;
    lock();
    struct zr_extent *block = take_kept(class, wanted.alignment, &got);
    *fresh = !block;
    if (block) {
        address = address_of(block);
        zr_block_reuse(zr_preload.large_arena, block, wanted.bytes);
        note();
    } else {
        size_t missed = class_bytes(class) < large.missed_bytes ? class_bytes(class) : large.missed_bytes;
        large.missed_bytes -= missed;
        large.extra_keep_bytes += missed;
    }
    unlock();
    if (block) {
        write_mark(address, (read_mark(address) & MOVED) | LIVE | got);
    } else if ((address = take_fresh(wanted, class))) {
        write_mark(address, LIVE | class);
        lock();
        note();
        unlock();
    } else if (unlikely(zr_measuring.on)) {
        zr_measuring_failed(wanted.bytes);
    }
    return address;
}

/* Discards pages that the previous owner touched and that lie beyond the new owner's bytes. */
static void discard_tail(char *address, size_t bytes, unsigned class)
{
    size_t whole = (bytes + ZR_PAGE_BYTES - 1) & ~(ZR_PAGE_BYTES - 1);
    if (class_bytes(class) - whole >= TAIL_MIN_BYTES)
        zr_pages_discard(address + whole, class_bytes(class) - whole, false);
}

static void clear(char *address, size_t bytes, unsigned class)
{
    if (bytes <= CLEAR_MAX_BYTES ||
        !zr_pages_discard(address, class_bytes(class), (read_mark(address) & MOVED) != 0))
        memset(address, 0, bytes);
}

/* Allocates a block for the request. With `zero` its room reads as zeros. */
static char *alloc_block(struct wanted wanted, bool zero)
{
    bool fresh;
    char *address = take(wanted, &fresh);
    unsigned class = address ? read_mark(address) & 0xff : 0;
    if (address && !fresh)
        discard_tail(address, wanted.room_bytes, class);
    if (address && !fresh && zero)
        clear(address, wanted.room_bytes, class);
    return address;
}

/* Allocates a larger block and returns an aligned address within it. The bytes before are never touched. */
static void *alloc_aligned(size_t bytes, size_t alignment, bool zero)
{
    char *block = alloc_block((struct wanted){bytes, bytes + alignment, ZR_PAGE_BYTES}, zero);
    if (!block || ((uintptr_t)block & (alignment - 1)) == 0)
        return block;
    char *inner = (char *)(((uintptr_t)block + alignment - 1) & ~(uintptr_t)(alignment - 1));
    write_mark(inner, INNER | LIVE);
    return inner;
}

void *zr_large_alloc(size_t bytes, size_t alignment, bool zero)
{
    if (bytes > (size_t)1 << 46)
        return NULL;
    bytes = bytes ? bytes : 1;
    if (alignment > HUGE_BYTES)
        return alignment > (size_t)1 << 40 ? NULL : alloc_aligned(bytes, alignment, zero);
    return alloc_block((struct wanted){bytes, bytes > ZR_SMALL_BYTES ? bytes : ZR_SMALL_BYTES + 1,
                                       alignment < ZR_PAGE_BYTES ? ZR_PAGE_BYTES : alignment},
                       zero);
}

/* ---- Freeing ------------------------------------------------------------------------------------------- */

/* The start of the block that contains the inner address; NULL: no block. */
static char *block_of_inner(const char *inner)
{
    for (char *at = (char *)inner - ZR_PAGE_BYTES; (uintptr_t)at >= zr_preload.large.first;
         at -= ZR_PAGE_BYTES) {
        unsigned mark = read_mark(at);
        if (mark & LIVE && !(mark & INNER))
            return at + class_bytes(mark & 0xff) > inner ? at : NULL;
    }
    return NULL;
}

/* The mark of the block whose address or inner address is `pointer`; 0: none. */
static unsigned find_block(const void *pointer, char **block)
{
    unsigned mark = read_mark(pointer);
    *block = (char *)pointer;
    if (!(mark & INNER))
        return mark & LIVE ? mark : 0;
    *block = block_of_inner(pointer);
    return *block ? read_mark(*block) : 0;
}

size_t zr_large_bytes(const void *pointer)
{
    char *block;
    unsigned mark = find_block(pointer, &block);
    return mark ? class_bytes(mark & 0xff) - (size_t)((const char *)pointer - block) : 0;
}

const char *zr_large_reason(const void *pointer)
{
    return read_mark(pointer) & KEPT ? "freed twice" : "not the address of a block, or freed before";
}

/* Keeps a freed block, already marked KEPT, for reuse, or releases it. Not `whole`: only the requested bytes
 * may have pages. */
static void keep(char *address, unsigned class, bool whole)
{
    uint64_t now = now_ms();
    lock();
    struct zr_extent *block = zr_block_at(zr_preload.large_arena, address);
    zr_block_keep(zr_preload.large_arena, block);
    struct kept *kept = zr_slab_reserve(&large.records, 1) ? zr_slab_take(&large.records) : NULL;
    if (kept) {
        *kept = (struct kept){.block = block,
                              .freed_ms = now,
                              .used_bytes = whole ? block->bytes : zr_extent_requested_bytes(block),
                              .class = class};
        link_kept(kept);
    }
    bool round;
    size_t max_bytes = keep_max(now, &round);
    bool due = large.kept_bytes > max_bytes || (large.oldest && now - large.oldest->freed_ms >= KEEP_MS);
    note();
    unlock();
    if (!kept && !release_block(block))
        write_mark(address, class); /* no memory for a record and no discard: the block is lost */
    if (due)
        release_kept(max_bytes, now);
    /* jemalloc decays on its large allocations, which this file serves instead. */
    if (round)
        zr_control_try_decay();
}

bool zr_large_free(void *pointer)
{
    char *block;
    unsigned mark = find_block(pointer, &block);
    uint16_t expected = (uint16_t)mark;
    if (!mark ||
        !atomic_compare_exchange_strong(mark_of(block), &expected, (uint16_t)((mark & ~LIVE) | KEPT)))
        return false;
    if (block != pointer)
        write_mark(pointer, 0);
    keep(block, mark & 0xff, block != pointer);
    return true;
}

/* ---- Growing ------------------------------------------------------------------------------------------- */

/* Counts the block as freed, without keeping it for a request. */
static struct zr_extent *end_block(const char *address)
{
    lock();
    struct zr_extent *block = zr_block_at(zr_preload.large_arena, address);
    zr_block_keep(zr_preload.large_arena, block);
    note();
    unlock();
    return block;
}

/* Moves the pages of a block to the start of the new block and frees the old block, or leaves both. */
static enum zr_pages_moved move_pages(char *from, char *to)
{
    unsigned mark = read_mark(from), to_mark = read_mark(to);
    size_t bytes = class_bytes(mark & 0xff);
    if (bytes < MOVE_MIN_BYTES || large.moved_count >= MOVED_MAX)
        return ZR_PAGES_STAYED;
    enum zr_pages_moved moved =
        zr_pages_move(&(struct zr_pages_move){from, bytes, to, class_bytes(to_mark & 0xff)});
    if (moved != ZR_PAGES_MOVED)
        return moved;
    struct zr_extent *block = end_block(from);
    write_mark(to, to_mark | MOVED);
    write_mark(from, 0);
    lock();
    large.moved_count += (mark & MOVED) == 0;
    large.moved_bytes += bytes;
    unlock();
    if (zr_pages_restore(from, bytes)) /* else another mapping has the addresses, and the block is lost */
        return_block(block, false);
    return ZR_PAGES_MOVED;
}

/* Another mapping has the block's addresses: the block is never used again. */
static void abandon(char *block)
{
    write_mark(block, read_mark(block) & 0xff);
    end_block(block);
}

/* Counts the block as freed and allocated for `bytes`. */
static void resize_in_place(const char *address, size_t bytes)
{
    struct zr_arena *arena = zr_preload.large_arena;
    lock();
    struct zr_extent *block = zr_block_at(arena, address);
    zr_block_keep(arena, block);
    zr_block_reuse(arena, block, bytes);
    note();
    unlock();
}

void *zr_large_resize(void *pointer, size_t bytes)
{
    char *block;
    find_block(pointer, &block);
    size_t old_bytes = zr_large_bytes(pointer);
    if (bytes <= old_bytes && bytes > old_bytes / 2) {
        resize_in_place(block, bytes);
        return pointer;
    }
    bool fresh;
    char *to = bytes > (size_t)1 << 46 ? NULL : take((struct wanted){bytes, bytes, ZR_PAGE_BYTES}, &fresh);
    if (!to && bytes > old_bytes)
        return NULL;
    if (!to) {
        resize_in_place(block, bytes);
        return pointer;
    }
    if (!fresh)
        discard_tail(to, bytes, read_mark(to) & 0xff);
    if (bytes > old_bytes && block == pointer && fresh) {
        enum zr_pages_moved moved = move_pages(block, to);
        if (moved == ZR_PAGES_LOST)
            abandon(to);
        if (moved != ZR_PAGES_STAYED)
            return moved == ZR_PAGES_MOVED ? to : NULL;
    }
    size_t copied = old_bytes < bytes ? old_bytes : bytes;
    memcpy(to, pointer, copied);
    lock();
    large.copied_bytes += copied;
    unlock();
    zr_large_free(pointer);
    return to;
}

void zr_large_get_stats(struct zr_large_stats *out)
{
    const struct zr_arena *arena = zr_preload.large_arena;
    lock();
    *out = (struct zr_large_stats){.live_bytes = arena->requested_bytes,
                                   .peak_live_bytes = arena->peak_requested_bytes,
                                   .kept_bytes = large.kept_bytes,
                                   .blocks_count = arena->blocks_count,
                                   .moved_bytes = large.moved_bytes,
                                   .copied_bytes = large.copied_bytes};
    unlock();
}
