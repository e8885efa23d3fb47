/* races.c: who read and wrote which bytes last, for what two threads do to the same bytes without waiting for
 * each other, of one launch or of two that are under way at the same time, and for shared memory that nobody
 * has written. Two bytes have a cell, which keeps the last
 * writer and two readers: a third one's race with a later writer may go unseen. Atomic operations race with
 * plain ones only. Blocks of a launch never wait for each other here, whatever they do by atomics.
 *
 * Cells belong to addresses, for good; what launches before have left there is older than this one's first
 * moment. See kernels.h. Compiled without sanitizers, since threads.c calls it on stacks of its own. */
#define _GNU_SOURCE
#include "tests/emulators/cuda/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE_BITS = 12, REGION_BITS = 30, PAGES = 1 << (REGION_BITS - PAGE_BITS), CELL_BYTES = 2 };
enum { ATOMIC_THREAD = 1 << 15 }; /* beside the number of the thread */

struct stamp {
    uint32_t barrier; /* when: 0 for never */
    uint16_t thread, warp_met;
};

struct cell {
    struct stamp write, read, other_read; /* the reads are of two threads */
};

struct region {
    struct region *next;
    uintptr_t number;
    struct cell *pages[PAGES];
};

static struct region *regions;
static uintptr_t last_page = UINTPTR_MAX;
static struct cell *last_cells;

/* The last launches. Two of a context come one behind the other where a stream or an event says so, and then
 * the later begins no sooner than the other ends: those that overlap may be in either order on a card. */
enum { LAUNCHES = 32 };
static struct launched {
    const struct zr_cu_context_st *context;
    uint32_t first; /* moment */
    uint64_t end;   /* by the context's clock */
    bool under_way; /* while the running one is */
    char kernel[64];
} launches[LAUNCHES];
static unsigned launches_count;             /* ever */
static const struct launched *other_launch; /* that of_another_launch() found */

uint32_t emu_race_begin(const struct emu_execution *e, uint32_t launch)
{
    uint32_t least = launch;
    for (unsigned i = 0; i < LAUNCHES; i++) {
        struct launched *each = &launches[i];
        each->under_way = each->context == e->context && each->end > e->start;
        if (each->under_way && each->first < least)
            least = each->first;
    }
    struct launched *own = &launches[launches_count++ % LAUNCHES];
    *own = (struct launched){.context = e->context, .first = launch, .end = e->end};
    snprintf(own->kernel, sizeof own->kernel, "%s", e->launch->kernel->name);
    return least;
}

/* Whether the moment is of a launch that the running one does not come behind. */
static bool of_another_launch(uint32_t moment)
{
    other_launch = NULL;
    for (unsigned i = 0; i < LAUNCHES; i++)
        if (launches[i].context && launches[i].first <= moment &&
            (!other_launch || launches[i].first > other_launch->first))
            other_launch = &launches[i];
    return other_launch && other_launch->under_way;
}

static void *zeros(size_t bytes)
{
    void *made =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED)
        abort();
    return made;
}

/* Cells for a page of addresses, of a large mapping: the kernel may back it with huge pages. */
static struct cell *new_cells(void)
{
    static struct cell *next, *end;
    enum { CELLS = (1 << PAGE_BITS) / CELL_BYTES, STOCK_BYTES = 32 << 20 };
    if (end - next < CELLS) {
        next = zeros(STOCK_BYTES);
        end = next + STOCK_BYTES / sizeof *next;
        madvise(next, STOCK_BYTES, MADV_HUGEPAGE);
    }
    next += CELLS;
    return next - CELLS;
}

static __attribute__((noinline)) void enter_page(uintptr_t page)
{
    struct region *each = regions;
    while (each && each->number != page >> (REGION_BITS - PAGE_BITS))
        each = each->next;
    if (!each) {
        each = zeros(sizeof *each);
        each->number = page >> (REGION_BITS - PAGE_BITS);
        each->next = regions;
        regions = each;
    }
    struct cell **cells = &each->pages[page % PAGES];
    if (!*cells)
        *cells = new_cells();
    last_page = page;
    last_cells = *cells;
}

static inline struct cell *cell_at(uintptr_t address)
{
    if (address >> PAGE_BITS != last_page)
        enter_page(address >> PAGE_BITS);
    return &last_cells[(address & ((1u << PAGE_BITS) - 1)) / CELL_BYTES];
}

/* Whether the moment is before all launches that are under way, or of this block and before its last barrier.
 */
static inline bool long_ago(const struct emu_moment *now, uint32_t moment)
{
    return moment < now->under_way || moment - now->block < now->barrier - now->block;
}

/* Whether nothing makes the running thread come behind what the stamp says of another. */
static inline bool unordered(const struct emu_moment *now, const struct stamp *then, bool atomic)
{
    if (long_ago(now, then->barrier))
        return false;
    unsigned thread = then->thread & ~ATOMIC_THREAD;
    if (atomic && then->thread & ATOMIC_THREAD)
        return false;
    if (then->barrier < now->launch)
        return then->barrier >= now->under_way && of_another_launch(then->barrier);
    if (then->barrier < now->block)
        return true;
    return thread != now->thread && (thread / 32 != now->thread / 32u || then->warp_met == now->warp_met);
}

/* What is said of a race with the thread that did `what` then. */
static const char *race_words(const struct emu_moment *now, const struct stamp *then, const char *what)
{
    static char words[160];
    if (then->barrier < now->launch)
        snprintf(words, sizeof words, "races with a %s of kernel %s: neither waits for the other", what,
                 other_launch->kernel);
    else
        snprintf(words, sizeof words, "races with a %s of %s block", what,
                 then->barrier < now->block ? "another" : "its");
    return words;
}

static inline __attribute__((always_inline)) const char *
check(const struct emu_moment *now, struct cell *cell, bool shared, unsigned access, uint16_t *other)
{
    bool atomic = access & ZR_DEVICE_ATOMIC, writes = access & ZR_DEVICE_WRITE || atomic;
    struct stamp own = {now->barrier, (uint16_t)(now->thread | (atomic ? ATOMIC_THREAD : 0)), now->warp_met};
    bool written = cell->write.barrier >= now->block;
    if (shared && !written && (!writes || atomic))
        return "reads shared memory that its block has not written";
    if ((!shared || written) && unordered(now, &cell->write, atomic)) {
        *other = cell->write.thread & (uint16_t)~ATOMIC_THREAD;
        return race_words(now, &cell->write, "write");
    }
    if (writes) {
        const struct stamp *reads[] = {&cell->read, &cell->other_read};
        for (unsigned i = 0; i < 2; i++)
            if ((!shared || reads[i]->barrier >= now->block) && unordered(now, reads[i], atomic)) {
                *other = reads[i]->thread & (uint16_t)~ATOMIC_THREAD;
                return race_words(now, reads[i], "read");
            }
        cell->write = own;
        return NULL;
    }
    if (cell->read.thread != own.thread)
        cell->other_read = cell->read;
    cell->read = own;
    return NULL;
}

/* `access` is a constant, and each has a loop of its own. */
static inline __attribute__((always_inline)) const char *check_all(const struct emu_moment *now, bool shared,
                                                                   uintptr_t address, size_t bytes,
                                                                   unsigned access, uint16_t *other)
{
    const uintptr_t in_page = (1u << PAGE_BITS) - 1;
    uintptr_t at = address & ~(uintptr_t)(CELL_BYTES - 1);
    struct cell *cell = NULL;
    for (; at < address + bytes; at += CELL_BYTES) {
        cell = cell && at & in_page ? cell + 1 : cell_at(at);
        const char *words = check(now, cell, shared, access, other);
        if (words)
            return words;
    }
    return NULL;
}

const char *emu_race(const struct emu_moment *now, const struct emu_reach *reach, uintptr_t address,
                     size_t bytes, unsigned access, uint16_t *other_thread)
{
    if (access & ZR_DEVICE_ATOMIC)
        return check_all(now, reach->shared, address, bytes, ZR_DEVICE_ATOMIC, other_thread);
    if (access & ZR_DEVICE_WRITE)
        return check_all(now, reach->shared, address, bytes, ZR_DEVICE_WRITE, other_thread);
    return check_all(now, reach->shared, address, bytes, ZR_DEVICE_READ, other_thread);
}
