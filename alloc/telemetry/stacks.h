/* stacks.h: call stacks of allocations: raw addresses, each stack stored once, in a table of the process.
 * Private to alloc/.
 *
 * Frames of CPython stand in the place of its evaluator's (python.h), if zr_python_find() found one.
 *
 * Stacks are off at first. With ZR_CONF=stacks:N or zr_stacks_set(N) the stack of one allocation in N is
 * taken. A number names a stack until the process ends, also in children after fork(); 0: no stack. Any
 * thread may call, without locks, but no signal handler. Taking a stack calls neither malloc nor the loader.
 */
#ifndef ZR_STACKS_H
#define ZR_STACKS_H

#include "alloc/zr.h"

enum { ZR_STACK_FRAMES = 64 }; /* deeper frames are omitted */

struct zr_call_stack {
    const uint64_t *addresses; /* within the calls, innermost first, or Python frames; valid until the
                                  process ends */
    unsigned count;
};

/* Sets N; 0: no stacks. zr_arenas_set_stacks() calls this and updates the arenas. */
void zr_stacks_set(uint32_t every);
uint32_t zr_stacks_every(void);

/* Takes the caller's stack if this allocation is sampled. 0: not sampled, or the table is full. The caller
 * holds no lock for which the loader may wait. zr_call_stack_own() returns the number until the thread's next
 * call. */
uint32_t zr_call_stack_take(void);
/* Takes the caller's stack in any case. 0: the table is full. */
uint32_t zr_call_stack_take_now(void);
extern __thread uint32_t zr_call_stack_number __attribute__((tls_model("initial-exec")));
static inline uint32_t zr_call_stack_own(void)
{
    return zr_call_stack_number;
}

/* The stack with the number; an unknown number has no frames. */
struct zr_call_stack zr_call_stack_get(uint32_t number);

#endif
