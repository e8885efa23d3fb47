/* sampling.c: samples of small objects (see sampling.h). Uses trace.c, stacks.c and slab.c. */
#define _GNU_SOURCE
#include "alloc/preload/sampling.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "alloc/base/slab.h"
#include "alloc/base/system/os.h"
#include "alloc/core/arena.h"
#include "alloc/preload/usage.h"
#include "alloc/telemetry/python.h"
#include "alloc/telemetry/stacks.h"
#include "alloc/telemetry/trace.h"

enum { BUCKETS = 1 << 14 };

struct sample {
    struct sample *next;
    void *object;
};

struct zr_sampling zr_sampling;
__thread int64_t zr_sampling_left __attribute__((tls_model("initial-exec")));

static struct {
    uint64_t mean_bytes;
    struct zr_lock lock; /* for all fields below */
    struct zr_trace *trace;
    struct zr_slab records;
    struct sample *buckets[BUCKETS];
} own;

/* ---- Points -------------------------------------------------------------------------------------------- */

/* -ln(u) of a uniform u in (0, 1), by the exponent and a series of the mantissa. */
static double draw_exponential(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t drawn = *state;
    drawn = (drawn ^ drawn >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    drawn = (drawn ^ drawn >> 27) * UINT64_C(0x94d049bb133111eb);
    drawn = (drawn ^ drawn >> 31) | 1;
    int zeros = __builtin_clzll(drawn);
    double mantissa = (double)(drawn << zeros) * 0x1p-63; /* in [1, 2) */
    double y = (mantissa - 1) / (mantissa + 1), square = y * y, power = y, ln = 0;
    for (int i = 1; i < 30; i += 2, power *= square)
        ln += 2 * power / i;
    return (zeros + 1) * 0.693147180559945309 - ln;
}

static int64_t draw_gap(void)
{
    static __thread uint64_t state __attribute__((tls_model("initial-exec")));
    static _Atomic uint64_t threads_count;
    if (state == 0)
        state = (atomic_fetch_add(&threads_count, 1) + 1) * UINT64_C(0xd1342543de82ef95);
    return (int64_t)((double)own.mean_bytes * draw_exponential(&state));
}

/* ---- Samples ------------------------------------------------------------------------------------------- */

static struct sample **bucket_of(const void *object)
{
    return &own.buckets[zr_sampling_hash(object) % BUCKETS];
}

/* lock: own.lock */
static void count(const void *object, int more)
{
    _Atomic uint8_t *filter = &zr_sampling.filter[zr_sampling_hash(object)];
    uint8_t old = atomic_load_explicit(filter, memory_order_relaxed);
    if (old < UINT8_MAX) /* a full entry stays full */
        atomic_store_explicit(filter, (uint8_t)(old + more), memory_order_relaxed);
}

/* Ends the object's sample, if it is one. lock: own.lock */
static void drop(void *object)
{
    for (struct sample **at = bucket_of(object); *at; at = &(*at)->next) {
        struct sample *sample = *at;
        if (sample->object != object)
            continue;
        *at = sample->next;
        zr_slab_give(&own.records, sample);
        count(object, -1);
        if (own.trace)
            zr_trace_write_free(own.trace, &(struct zr_block_info){.address = object, .tag = ZR_TAG_OTHER});
        return;
    }
}

void zr_sampling_drop(void *object)
{
    zr_lock_acquire(&own.lock);
    drop(object);
    zr_lock_release(&own.lock);
}

__attribute__((noinline)) void zr_sampling_take(void *object, size_t bytes)
{
    static __thread bool started __attribute__((tls_model("initial-exec")));
    int error = errno;
    int64_t left = started ? -1 : draw_gap() - (int64_t)bytes; /* a new thread's counter began at 0 */
    started = true;
    zr_sampling_left = left;
    if (left >= 0)
        return;
    zr_sampling_left = INT64_MAX; /* taking a stack may allocate */
    uint32_t stack = object ? zr_call_stack_take_now() : 0;
    zr_lock_acquire(&own.lock);
    if (object && zr_slab_reserve(&own.records, 1)) {
        drop(object); /* freed in a way that is not seen */
        struct sample *sample = zr_slab_take(&own.records), **bucket = bucket_of(object);
        *sample = (struct sample){*bucket, object};
        *bucket = sample;
        count(object, 1);
        struct zr_block_info info = {.address = object,
                                     .bytes = bytes,
                                     .reserved_bytes = (bytes + 15) & ~(size_t)15,
                                     .tag = ZR_TAG_OTHER};
        if (own.trace)
            zr_trace_write_sample(own.trace, &info, stack, own.mean_bytes);
    }
    zr_lock_release(&own.lock);
    zr_sampling_left = draw_gap();
    errno = error;
}

/* ---- Start, fork and end ------------------------------------------------------------------------------- */

void zr_sampling_start(const struct zr_arena *arena, const char *path)
{
    struct zr_trace_origin origin = {.name = "objects",
                                     .base = arena->base,
                                     .reserve_bytes = arena->range_bytes,
                                     .granule_bytes = arena->granule_bytes};
    own.mean_bytes = zr_option_get(ZR_OPTION_SMALL);
    zr_slab_init(&own.records, sizeof(struct sample), ZR_POOL_FAULTS);
    if (zr_trace_open(&own.trace, path, &origin) == ZR_OK)
        zr_sampling.on = true;
    else
        zr_say("%s: this process writes no trace of small objects", zr_last_error());
    if (zr_sampling.on && zr_stacks_every() == 0 && zr_python_find() != ZR_OK)
        zr_say("%s", zr_last_error());
}

void zr_sampling_after_fork_in_child(void)
{
    own.lock = (struct zr_lock){0};
    own.trace = NULL; /* the trace's memory is wiped on fork */
    zr_sampling.on = false;
}

void zr_sampling_end(void)
{
    if (!zr_sampling.on)
        return;
    zr_lock_acquire(&own.lock);
    struct zr_trace *trace = own.trace;
    own.trace = NULL;
    zr_lock_release(&own.lock);
    if (trace)
        zr_trace_close(trace);
}
