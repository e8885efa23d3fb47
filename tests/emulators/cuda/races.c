/* races.c: who read and wrote which bytes last, for what two threads do to the same bytes without waiting for
 * each other, and for shared memory that nobody has written. Two bytes have a cell, which keeps the last
 * writer and two readers: a third one's race with a later writer may go unseen. Atomic operations race with
 * plain ones only. Blocks of a launch never wait for each other here, whatever they do by atomics.
 *
 * Cells belong to addresses, for good; what launches before have left there is older than this one's first
 * moment. See kernels.h. Compiled without sanitizers, since threads.c calls it on stacks of its own. */
#define _GNU_SOURCE
#include "tests/emulators/cuda/kernels.h"

#include <stdlib.h>
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

static void *zeros(size_t bytes)
{
    void *made =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED)
        abort();
    return made;
}

static struct cell *cell_at(uintptr_t address)
{
    uintptr_t page = address >> PAGE_BITS;
    if (page != last_page) {
        struct region *each = regions;
        while (each && each->number != address >> REGION_BITS)
            each = each->next;
        if (!each) {
            each = zeros(sizeof *each);
            each->number = address >> REGION_BITS;
            each->next = regions;
            regions = each;
        }
        struct cell **cells = &each->pages[page % PAGES];
        if (!*cells)
            *cells = zeros((sizeof **cells << PAGE_BITS) / CELL_BYTES);
        last_page = page;
        last_cells = *cells;
    }
    return &last_cells[(address & ((1u << PAGE_BITS) - 1)) / CELL_BYTES];
}

/* Whether nothing makes the running thread come behind what the stamp says of another. */
static bool unordered(const struct emu_moment *now, const struct stamp *then, bool atomic)
{
    unsigned thread = then->thread & ~ATOMIC_THREAD;
    if (then->barrier < now->launch || (atomic && then->thread & ATOMIC_THREAD))
        return false;
    if (then->barrier < now->block)
        return true;
    if (then->barrier < now->barrier || thread == now->thread)
        return false;
    return thread / 32 != now->thread / 32u || then->warp_met == now->warp_met;
}

static const char *check(const struct emu_moment *now, struct cell *cell, bool shared, unsigned access,
                         uint16_t *other)
{
    bool atomic = access & ZR_DEVICE_ATOMIC, writes = access & ZR_DEVICE_WRITE || atomic;
    struct stamp own = {now->barrier, (uint16_t)(now->thread | (atomic ? ATOMIC_THREAD : 0)), now->warp_met};
    bool written = cell->write.barrier >= now->block;
    if (shared && !written && (!writes || atomic))
        return "reads shared memory that its block has not written";
    if ((!shared || written) && unordered(now, &cell->write, atomic)) {
        *other = cell->write.thread & (uint16_t)~ATOMIC_THREAD;
        return cell->write.barrier < now->block ? "races with a write of another block"
               : writes                         ? "races with another write of its block"
                                                : "races with a write of its block";
    }
    if (writes) {
        const struct stamp *reads[] = {&cell->read, &cell->other_read};
        for (unsigned i = 0; i < 2; i++)
            if ((!shared || reads[i]->barrier >= now->block) && unordered(now, reads[i], atomic)) {
                *other = reads[i]->thread & (uint16_t)~ATOMIC_THREAD;
                return reads[i]->barrier < now->block ? "races with a read of another block"
                                                      : "races with a read of its block";
            }
        cell->write = own;
        return NULL;
    }
    if (cell->read.thread != own.thread)
        cell->other_read = cell->read;
    cell->read = own;
    return NULL;
}

const char *emu_race(const struct emu_moment *now, const struct emu_reach *reach, uintptr_t address,
                     size_t bytes, unsigned access, uint16_t *other_thread)
{
    const char *words = NULL;
    for (uintptr_t at = address & ~(uintptr_t)(CELL_BYTES - 1); at < address + bytes && !words;
         at += CELL_BYTES)
        words = check(now, cell_at(at), reach->shared, access, other_thread);
    return words;
}
