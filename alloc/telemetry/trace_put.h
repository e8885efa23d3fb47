/* trace_put.h: writes numbers and call stacks into a trace: see trace_format.h. Private to alloc/telemetry/.
 * Locks are those of trace.h. */
#ifndef ZR_TRACE_PUT_H
#define ZR_TRACE_PUT_H

#include "alloc/telemetry/trace.h"
#include "alloc/telemetry/trace_format.h"

/* Writes at most 10 bytes; returns the end. */
static inline unsigned char *zrt_put_varint(unsigned char *at, uint64_t value)
{
    while (value >= 0x80) {
        *at++ = (unsigned char)(value | 0x80);
        value >>= 7;
    }
    *at++ = (unsigned char)value;
    return at;
}

static inline uint64_t zrt_zigzag(uint64_t to, uint64_t from)
{
    int64_t difference = (int64_t)(to - from);
    return ((uint64_t)difference << 1) ^ (difference < 0 ? UINT64_MAX : 0);
}

/* `bytes` is at most ZRT_EXTENSION_BYTES. */
void zr_trace_write_extension(struct zr_trace *trace, enum zrt_extension kind, const void *data,
                              size_t bytes);

/* ---- Call stacks, and the modules that their addresses lie in ----------------------------------------- */

struct zr_trace_stacks; /* the stacks and modules that the trace already has */

/* Writes that the next alloc or refused event has the stack, and before it the stack, if the trace lacks it.
 * Creates *stacks at the first stack; without memory for it, the event has no stack. */
void zr_trace_stacks_write(struct zr_trace_stacks **stacks, struct zr_trace *trace, uint32_t number);
void zr_trace_stacks_end(struct zr_trace_stacks *stacks);

#endif
