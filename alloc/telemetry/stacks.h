/* stacks.h: call stacks of those who allocate: raw addresses, each stack once, in a table of the process.
 * Private to alloc/.
 *
 * Off, as it is at first, nothing is taken. With ZR_CONF=stacks:N, or zr_stacks_set(N), one allocation in N
 * has its stack taken; 1: each. A number names a stack for the process's life, in children after fork too; 0
 * is none. Every call may come from any thread, without locks: taking a stack calls neither malloc nor the
 * loader. Not from a signal's handler. */
#ifndef ZR_STACKS_H
#define ZR_STACKS_H

#include "alloc/zr.h"

enum { ZR_STACK_FRAMES = 40 }; /* further ones are cut off */

struct zr_call_stack {
    const uint64_t *addresses; /* within the calls, the innermost first; valid for good */
    unsigned count;
};

/* One in so many; 0: none from now on. Arenas learn of it through zr_arenas_set_stacks(). */
void zr_stacks_set(uint32_t every);
uint32_t zr_stacks_every(void);

/* The caller's stack, where it is this allocation's turn; 0: it is not, or the table is full. With no lock
 * that the system's loader may wait for. zr_call_stack_own() has it until the thread's next. */
uint32_t zr_call_stack_take(void);
extern __thread uint32_t zr_call_stack_number __attribute__((tls_model("initial-exec")));
static inline uint32_t zr_call_stack_own(void)
{
    return zr_call_stack_number;
}

/* Of a number that was handed out; else of no frames. */
struct zr_call_stack zr_call_stack_get(uint32_t number);

#endif
