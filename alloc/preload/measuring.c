/* measuring.c: the figures of this process (see measuring.h). Uses usage.c, alloc/telemetry/trace.c, and
 * large.c for the counters. */
#define _GNU_SOURCE
#include "alloc/preload/measuring.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "alloc/telemetry/trace.h"
#include "alloc/preload/control.h"
#include "alloc/preload/large.h"
#include "alloc/preload/preload.h"
#include "alloc/preload/usage.h"

struct zr_measuring zr_measuring;

/* Size limit of a trace in the record's folder: about nine million events. */
#define TRACE_MAX_BYTES ((size_t)64 << 20)
#define SAMPLE_NS       UINT64_C(10000000)
/* Sampling takes at most 1/SAMPLE_SHARE of the time, because a sample takes longer with more processors. */
enum { SAMPLE_SHARE = 100 };

static struct {
    struct zr_usage *record;  /* NULL: none */
    const char *trace_wanted; /* value of ZR_TRACE; NULL: none */
    _Atomic bool is_tracing;  /* the trace is open and below its size limit */
    _Atomic uint64_t sample_next_ns;
} own;

static uint64_t now_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- Small objects ------------------------------------------------------------------------------------- */

void zr_measuring_tick(bool grown)
{
    if (!own.record || !zr_preload_ready())
        return;
    uint64_t now = now_ns(CLOCK_MONOTONIC_COARSE);
    if (grown || now >= atomic_load_explicit(&own.sample_next_ns, memory_order_relaxed)) {
        atomic_store_explicit(&zr_measuring.sample_due, true, memory_order_relaxed);
        /* Makes the next malloc call zr_object_alloc(), which takes the sample. */
        atomic_store_explicit(&zr_preload.small_end, 0, memory_order_relaxed);
    }
}

void zr_measuring_sample(void)
{
    struct zr_control_figures figures;
    atomic_store_explicit(&zr_measuring.sample_due, false, memory_order_relaxed);
    zr_small_open();
    int error = errno;
    uint64_t start = now_ns(CLOCK_MONOTONIC);
    if (!own.record || !zr_control_try_figures(&figures))
        return; /* the next tick requests a sample again */
    zr_large_note_small(figures.live_bytes, figures.held_bytes);
    uint64_t end = now_ns(CLOCK_MONOTONIC), pause = (end - start) * SAMPLE_SHARE;
    atomic_store(&own.sample_next_ns, end + (pause > SAMPLE_NS ? pause : SAMPLE_NS));
    errno = error;
}

void zr_measuring_refused(size_t bytes)
{
    if (!own.record)
        return;
    zr_measuring_tick(false);
    if (atomic_load(&zr_measuring.sample_due))
        zr_measuring_sample();
    zr_usage_failure(own.record, ZR_USAGE_HOST, bytes);
}

/* ---- The trace ----------------------------------------------------------------------------------------- */

/* zr run sets ZR_TRACE=PID:FILE: process PID writes FILE, every other process FILE.PID with its own number.
 */
bool zr_measuring_trace_path(const char *suffix, char *out, size_t capacity_bytes)
{
    char *file;
    long writer = own.trace_wanted ? strtol(own.trace_wanted, &file, 10) : 0;
    if (writer == 0 || *file++ != ':')
        return false;
    int length = writer == (long)getpid()
                     ? snprintf(out, capacity_bytes, "%s%s", file, suffix)
                     : snprintf(out, capacity_bytes, "%s%s.%ld", file, suffix, (long)getpid());
    return length > 0 && (size_t)length < capacity_bytes;
}

/* Without ZR_TRACE the trace is in the record's folder. */
static zr_result choose_path(char *out, size_t capacity_bytes)
{
    bool good = own.trace_wanted ? zr_measuring_trace_path("", out, capacity_bytes)
                                 : own.record && zr_usage_trace_path(own.record, out, capacity_bytes);
    return good ? ZR_OK : zr_fail(ZR_ERR_INVALID, "ZR_TRACE=%s: must be PID:FILE", own.trace_wanted);
}

void zr_measuring_first_large(void)
{
    char path[4096];
    if (!zr_measuring.on)
        return;
    zr_result result = choose_path(path, sizeof path);
    atomic_store(&own.is_tracing, true);
    if (result == ZR_OK)
        result = zr_trace_start_up_to(zr_preload.large_arena, path, own.trace_wanted ? 0 : TRACE_MAX_BYTES,
                                      &own.is_tracing);
    if (result != ZR_OK) {
        atomic_store(&own.is_tracing, false);
        zr_say("%s: this process writes no trace", zr_last_error());
    } else if (own.record) {
        own.record->traced = true;
    }
}

void zr_measuring_failed(size_t bytes)
{
    if (own.record)
        zr_usage_failure(own.record, ZR_USAGE_HOST, bytes);
}

void zr_measuring_note(size_t live_bytes, size_t held_bytes, size_t large_held_bytes)
{
    if (!own.record)
        return;
    zr_usage_note(own.record, ZR_USAGE_HOST, live_bytes, held_bytes);
    _Atomic uint64_t *peak = &own.record->memory[ZR_USAGE_HOST].traced_peak_bytes;
    if (atomic_load_explicit(&own.is_tracing, memory_order_relaxed) &&
        large_held_bytes > atomic_load_explicit(peak, memory_order_relaxed))
        atomic_store_explicit(peak, large_held_bytes, memory_order_relaxed);
}

/* ---- Start, fork and end ------------------------------------------------------------------------------- */

void zr_measuring_start(void)
{
    const char *reason;
    own.trace_wanted = zr_preload.passive ? NULL : secure_getenv("ZR_TRACE");
    own.record = zr_usage_open(&reason);
    if (reason)
        zr_say("ZR_RECORD=%s: %s: the figures of zr run exclude this process", secure_getenv("ZR_RECORD"),
               reason);
    zr_measuring.on = own.record || own.trace_wanted;
    if (own.record)
        own.record->memory[ZR_USAGE_HOST].limit_bytes = zr_option_get(ZR_OPTION_LIMIT);
    zr_preload.counted = own.record && zr_option_get(ZR_OPTION_LIMIT) > 0;
}

void zr_measuring_after_fork_in_child(void)
{
    if (atomic_exchange(&own.is_tracing, false))
        zr_trace_stop(zr_preload.large_arena); /* a child writes no trace */
    own.record = own.record ? zr_usage_in_child(own.record) : NULL;
    zr_measuring.on = own.record != NULL;
}

void zr_measuring_end(void)
{
    if (!zr_measuring.on)
        return;
    zr_measuring_sample();
    if (zr_preload.large_arena)
        zr_trace_stop(zr_preload.large_arena);
    if (own.record && own.record->traced && !own.trace_wanted)
        zr_usage_keep_best_trace(own.record);
    if (own.record)
        zr_usage_end(own.record);
}
