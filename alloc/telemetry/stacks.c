/* stacks.c: the table of call stacks (see stacks.h). Uses slab.c, python.c and the compiler's unwinder.
 *
 * The table has no lock, so that a child after fork() finds it consistent, and a cancelled thread leaves no
 * lock held. A thread that adds a stack reserves words, writes them, and then sets the slot by compare and
 * exchange. A thread that loses this race wastes its words. */
#include "alloc/telemetry/stacks.h"

#include <stdatomic.h>
#include <string.h>
#include <unwind.h>

#include "alloc/base/option.h"
#include "alloc/base/slab.h"
#include "alloc/telemetry/python.h"
#include "alloc/telemetry/trace_format.h"

enum { SLOTS = 1 << 17, WORDS = 1 << 20 };
_Static_assert(ZR_STACK_FRAMES <= ZRT_FRAMES_MAX, "a stack fits into an event");

struct table {
    _Atomic uint64_t slots[SLOTS];                    /* hash of 32 bits << 32 | number; 0: none */
    _Atomic uint32_t first_words[ZRT_STACKS_MAX + 1]; /* by number: the stack's first word */
    uint64_t words[WORDS];                            /* count, addresses */
    _Atomic uint32_t words_count, numbers_count;
};

static struct table *_Atomic shared_table;
static _Atomic uint32_t every; /* 0: no stacks; before every_set the option's value applies */
static _Atomic bool every_set;
static _Atomic uint64_t calls_count;

__thread uint32_t zr_call_stack_number __attribute__((tls_model("initial-exec")));
/* The value while the thread unwinds, because the unwinder may allocate and call zr_call_stack_take(). */
#define BUSY UINT32_MAX

void zr_stacks_set(uint32_t one_in)
{
    if (one_in > 0)
        zr_python_find();
    atomic_store(&every, one_in);
    atomic_store(&every_set, true);
}

uint32_t zr_stacks_every(void)
{
    return atomic_load_explicit(&every_set, memory_order_relaxed)
               ? atomic_load_explicit(&every, memory_order_relaxed)
               : (uint32_t)zr_option_get(ZR_OPTION_STACKS);
}

/* Whether the allocation is sampled. Samples are pseudo-random: with a fixed stride a loop could always show
 * the same one of its allocations. A program of one thread has the same samples in every run. */
static bool is_due(uint32_t one_in)
{
    if (one_in <= 1)
        return one_in == 1;
    uint64_t mixed = atomic_fetch_add_explicit(&calls_count, 1, memory_order_relaxed);
    mixed = (mixed ^ mixed >> 31) * UINT64_C(0x9e3779b97f4a7c15);
    mixed = (mixed ^ mixed >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
    return (mixed >> 32) % one_in == 0;
}

static struct table *table_get(void)
{
    struct table *table = atomic_load_explicit(&shared_table, memory_order_acquire), *none = NULL;
    if (table)
        return table;
    table = zr_pages_take(sizeof *table);
    if (table && !atomic_compare_exchange_strong(&shared_table, &none, table)) {
        zr_pages_give(table, sizeof *table);
        table = none;
    }
    return table;
}

/* ---- Unwinding ----------------------------------------------------------------------------------------- */

struct walk {
    uint64_t addresses[ZR_STACK_FRAMES];
    unsigned count;
    struct zr_python_walk python;
    bool inside; /* the first frame, of zr_call_stack_take_now(), was skipped */
};

/* The Python frames that one call of the evaluator runs stand in the place of its own frame. */
static void add_python(struct walk *walk)
{
    walk->count +=
        zr_python_frames(&walk->python, walk->addresses + walk->count, ZR_STACK_FRAMES - walk->count);
}

static _Unwind_Reason_Code step(struct _Unwind_Context *context, void *argument)
{
    struct walk *walk = argument;
    int before = 0;
    uint64_t address = _Unwind_GetIPInfo(context, &before);
    /* zr_call_stack_take() has a frame where the compiler keeps its call apart from a jump. */
    bool own = !walk->inside ||
               (walk->count == 0 && _Unwind_GetRegionStart(context) == (uintptr_t)zr_call_stack_take);
    walk->inside = true;
    if (own)
        return _URC_NO_REASON;
    if (address == 0 || walk->count == ZR_STACK_FRAMES)
        return _URC_END_OF_STACK;
    if (walk->python.frame && zr_python_is_evaluator(_Unwind_GetRegionStart(context))) {
        add_python(walk);
        return _URC_NO_REASON;
    }
    walk->addresses[walk->count++] =
        before ? address : address - 1; /* a return address may follow the call's function */
    return _URC_NO_REASON;
}

/* ---- The table ----------------------------------------------------------------------------------------- */

static uint64_t hash_of(const struct walk *walk)
{
    uint64_t hash = walk->count;
    for (unsigned i = 0; i < walk->count; i++) {
        hash = (hash ^ walk->addresses[i]) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
    }
    return hash;
}

/* Adds a stack and returns its number; 0: the table is full. */
static uint32_t add_stack(struct table *table, const struct walk *walk)
{
    uint32_t first_word = atomic_fetch_add(&table->words_count, walk->count + 1);
    uint32_t number =
        first_word <= WORDS - ZR_STACK_FRAMES - 1 ? atomic_fetch_add(&table->numbers_count, 1) + 1 : 0;
    if (number == 0 || number > ZRT_STACKS_MAX) {
        /* The table stays full; resetting the count keeps it from wrapping around. */
        atomic_store(&table->words_count, WORDS);
        return 0;
    }
    table->words[first_word] = walk->count;
    memcpy(&table->words[first_word + 1], walk->addresses, walk->count * sizeof *walk->addresses);
    atomic_store_explicit(&table->first_words[number], first_word, memory_order_release);
    return number;
}

static bool is_same(const struct table *table, uint32_t number, const struct walk *walk)
{
    uint32_t first_word = atomic_load_explicit(&table->first_words[number], memory_order_acquire);
    return table->words[first_word] == walk->count &&
           memcmp(&table->words[first_word + 1], walk->addresses, walk->count * sizeof *walk->addresses) == 0;
}

static uint32_t number_of(struct table *table, const struct walk *walk)
{
    uint64_t hash = hash_of(walk);
    uint32_t added = 0;
    for (size_t at = hash % SLOTS;; at = (at + 1) % SLOTS) {
        uint64_t found = atomic_load_explicit(&table->slots[at], memory_order_acquire);
        if (found == 0) {
            added = added ? added : add_stack(table, walk);
            if (added == 0)
                return 0;
            if (atomic_compare_exchange_strong(&table->slots[at], &found, hash >> 32 << 32 | added))
                return added;
        }
        if (found >> 32 == hash >> 32 && is_same(table, (uint32_t)found, walk))
            return (uint32_t)found;
    }
}

__attribute__((noinline)) uint32_t zr_call_stack_take_now(void)
{
    struct walk walk;
    if (zr_call_stack_number == BUSY)
        return 0;
    zr_call_stack_number = 0;
    struct table *table = table_get();
    if (!table)
        return 0;
    zr_call_stack_number = BUSY;
    walk.count = 0;
    walk.inside = false;
    walk.python = zr_python_begin();
    _Unwind_Backtrace(step, &walk);
    while (walk.python.frame && walk.count < ZR_STACK_FRAMES)
        add_python(&walk); /* calls of the evaluator that were not recognized */
    zr_call_stack_number = number_of(table, &walk);
    return zr_call_stack_number;
}

uint32_t zr_call_stack_take(void)
{
    if (zr_call_stack_number == BUSY)
        return 0;
    if (is_due(zr_stacks_every()))
        return zr_call_stack_take_now();
    zr_call_stack_number = 0;
    return 0;
}

struct zr_call_stack zr_call_stack_get(uint32_t number)
{
    const struct table *table = atomic_load_explicit(&shared_table, memory_order_acquire);
    if (!table || number == 0 || number > ZRT_STACKS_MAX || number > atomic_load(&table->numbers_count))
        return (struct zr_call_stack){0};
    uint32_t first_word = atomic_load_explicit(&table->first_words[number], memory_order_acquire);
    return (struct zr_call_stack){&table->words[first_word + 1], (unsigned)table->words[first_word]};
}
