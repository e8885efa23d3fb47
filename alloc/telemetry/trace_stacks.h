/* trace_stacks.h: call stacks in a trace, and the modules that their addresses lie in. Private to
 * alloc/telemetry/. The locks of trace.h. */
#ifndef ZR_TRACE_STACKS_H
#define ZR_TRACE_STACKS_H

#include "alloc/telemetry/trace_put.h"

struct zr_trace_stacks; /* what of both has been written */

/* Writes the stack, unless it has been, and that the next alloc or refused event has it. Makes *stacks at the
 * first one; where there is no memory for that, the event has no stack. */
void zr_trace_stacks_write(struct zr_trace_stacks **stacks, struct zr_trace *trace, uint32_t number);
void zr_trace_stacks_end(struct zr_trace_stacks *stacks);

#endif
