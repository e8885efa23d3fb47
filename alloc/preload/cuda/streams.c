/* streams.c: the program's streams and contexts, for which a free waits. See cuda.h.
 *
 * A destroyed stream that an arena has used, or that has pending work, is parked instead of destroyed,
 * because a later free may record an event in it. A parked stream serves the next request for a stream of its
 * kind. */
#include "alloc/preload/cuda/cuda.h"

#include <limits.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/system/lock.h"

struct stream {
    zr_cu_stream stream;
    zr_cu_context context;
    unsigned flags;
    int priority; /* INT_MIN: none was requested */
    bool known;   /* an arena may record events in it */
    bool parked;  /* destroyed by the program */
};

struct context {
    zr_cu_context context;
    zr_cu_device device;
};

/* The legacy default stream's own handle, which is the same for programs of both default streams. */
#define LEGACY ((zr_cu_stream)1)

/* `lock` guards all of these. */
static struct zr_lock lock;
static struct stream streams[ZR_CUDA_STREAMS_MAX];
static size_t streams_count;
static bool streams_lost; /* more streams exist than records */
static struct context contexts[ZR_CUDA_CONTEXTS_MAX];
static size_t contexts_count;

void zr_cuda_streams_forked(void)
{
    memset(&lock, 0, sizeof lock);
    streams_count = contexts_count = 0;
}

/* ---- Capture ------------------------------------------------------------------------------------------- */

bool zr_cuda_stream_capturing(zr_cu_stream stream)
{
    zr_cu_capture_status status = ZR_CU_CAPTURE_NONE;
    zr_cu_result code = ZR_CUDA_PASS(stream_capturing, stream ? stream : LEGACY, &status);
    return code == ZR_CU_CAPTURE_IMPLICIT || (code == ZR_CU_SUCCESS && status != ZR_CU_CAPTURE_NONE);
}

/* Iterates over the context's streams from index *number on. `known`: marks a stream as used by an arena.
 * False: no more streams. */
static bool next_stream(zr_cu_context context, size_t *number, bool known, struct stream *out)
{
    bool found = false;
    zr_lock_acquire(&lock);
    for (; !found && *number < streams_count; ++*number)
        if (streams[*number].context == context) {
            *out = streams[*number];
            /* An arena needs no events of blocking streams: the default stream waits for those. */
            streams[*number].known |= known && out->flags & ZR_CU_STREAM_NON_BLOCKING;
            found = true;
        }
    zr_lock_release(&lock);
    return found;
}

bool zr_cuda_capturing(zr_cu_context context)
{
    struct stream each;
    bool capturing = zr_cuda_stream_capturing(LEGACY); /* includes blocking streams */
    for (size_t i = 0; !capturing && next_stream(context, &i, false, &each);)
        capturing = each.flags & ZR_CU_STREAM_NON_BLOCKING && zr_cuda_stream_capturing(each.stream);
    return capturing;
}

/* ---- Waiting for the work before a free ---------------------------------------------------------------- */

bool zr_cuda_wait_is_over(zr_cu_result code)
{
    static _Atomic bool said;
    if (code == ZR_CU_SUCCESS || code == ZR_CU_DEINITIALIZED || zr_cuda_context_dead(code))
        return true;
    if (code != ZR_CU_STREAM_CAPTURE_UNSUPPORTED && !atomic_exchange(&said, true))
        zr_say("the driver cannot synchronize a stream: error %u; freed memory stays allocated until it can",
               code);
    return false;
}

/* Makes the block's reuse wait for the stream, or synchronizes if no event can be recorded. The primary
 * context is current; it may have work of a destroyed stream. */
static bool wait_for_stream(struct zr_cuda_device *device, zr_arena *arena, void *block, zr_cu_stream stream)
{
    if (zr_block_use(arena, block, (uintptr_t)stream) == ZR_OK)
        return true;
    zr_cu_result code = device->driver->stream_synchronize(stream);
    if (code == ZR_CU_INVALID_HANDLE)
        code = device->driver->context_synchronize();
    return zr_cuda_wait_is_over(code);
}

/* Skips an idle non-blocking stream or an idle `gather`. Not for the default stream: its event also waits for
 * blocking streams, which may have work while the default stream is idle. */
static bool wait_unless_idle(struct zr_cuda_device *device, zr_arena *arena, void *block, zr_cu_stream stream)
{
    return (zr_cuda_real.stream_query && zr_cuda_real.stream_query(stream) == ZR_CU_SUCCESS) ||
           wait_for_stream(device, arena, block, stream);
}

static size_t contexts_of(const struct zr_cuda_device *device, zr_cu_context out[ZR_CUDA_CONTEXTS_MAX])
{
    size_t count = 0;
    zr_lock_acquire(&lock);
    for (size_t i = 0; i < contexts_count; i++)
        if (contexts[i].device == device->ordinal)
            out[count++] = contexts[i].context;
    zr_lock_release(&lock);
    return count;
}

/* Synchronizes a context. False: a stream is being captured there, or the driver refuses. */
static bool synchronize_context(struct zr_cuda_device *device, zr_cu_context context)
{
    zr_cu_context popped;
    zr_cu_result code = device->driver->context_push(context);
    if (code != ZR_CU_SUCCESS)
        return code == ZR_CU_INVALID_CONTEXT || zr_cuda_wait_is_over(code);
    bool capturing = zr_cuda_capturing(context);
    if (!capturing)
        code = device->driver->context_synchronize();
    device->driver->context_pop(&popped);
    return !capturing && zr_cuda_wait_is_over(code);
}

/* Makes the block's reuse wait for the streams of the primary context, which is current. */
static bool follow_primary(struct zr_cuda_device *device, zr_arena *arena, void *block)
{
    struct stream each;
    zr_cu_stream gather = atomic_load(&device->gather);
    if (zr_cuda_stream_capturing(LEGACY) || /* includes blocking streams */
        (streams_lost && !zr_cuda_wait_is_over(device->driver->context_synchronize())))
        return false;
    if (!zr_cuda_many_streams() && zr_cuda_imports_per_thread_forms())
        zr_cuda_set_many_streams();
    if (!zr_cuda_many_streams())
        return true;
    bool followed = wait_for_stream(device, arena, block, NULL);
    for (size_t i = 0; followed && next_stream(device->primary, &i, true, &each);)
        if (each.flags & ZR_CU_STREAM_NON_BLOCKING)
            followed =
                !zr_cuda_stream_capturing(each.stream) && wait_unless_idle(device, arena, block, each.stream);
    return followed && (!gather || wait_unless_idle(device, arena, block, gather));
}

bool zr_cuda_follow_all(struct zr_cuda_device *device, zr_arena *arena, void *block)
{
    zr_cu_context others[ZR_CUDA_CONTEXTS_MAX], popped;
    size_t count = zr_cuda_many_streams() ? contexts_of(device, others) : 0;
    for (size_t i = 0; i < count; i++)
        if (!synchronize_context(device, others[i]))
            return false;
    zr_cu_result code = device->driver->context_push(device->primary);
    if (code != ZR_CU_SUCCESS)
        return zr_cuda_wait_is_over(code);
    bool followed = follow_primary(device, arena, block);
    device->driver->context_pop(&popped);
    return followed;
}

bool zr_cuda_stream_number(struct zr_cuda_device *device, zr_cu_stream stream, uint64_t *out)
{
    zr_cu_context home = NULL;
    if ((uintptr_t)stream == ZR_CU_STREAM_PER_THREAD ||
        device->driver->stream_context(stream, &home) != ZR_CU_SUCCESS || home != device->primary)
        return false;
    *out = stream == LEGACY ? 0 : (uintptr_t)stream;
    zr_lock_acquire(&lock);
    for (size_t i = 0; *out && i < streams_count; i++)
        streams[i].known |= streams[i].stream == stream;
    zr_lock_release(&lock);
    return true;
}

/* Creates `gather`, the library's stream that waits for streams in which the arena cannot record events. */
static zr_cu_stream get_gather_stream(struct zr_cuda_device *device)
{
    zr_cu_context popped;
    zr_cu_stream made = NULL, there = atomic_load(&device->gather);
    if (there || device->driver->context_push(device->primary) != ZR_CU_SUCCESS)
        return there;
    if (zr_cuda_real.stream_new(&made, ZR_CU_STREAM_NON_BLOCKING) != ZR_CU_SUCCESS)
        made = NULL;
    else if (!atomic_compare_exchange_strong(&device->gather, &there, made))
        zr_cuda_real.stream_end(made);
    device->driver->context_pop(&popped);
    return there ? there : made;
}

/* Makes `gather` wait for the stream's present work; the stream's context is current. */
static bool gather_stream(struct zr_cuda_device *device, zr_cu_stream gather, zr_cu_stream stream)
{
    zr_cu_event event = NULL;
    zr_cu_context popped;
    bool done = false;
    if (!zr_cuda_real.stream_wait_event ||
        device->driver->event_create(&event, ZR_CU_EVENT_DISABLE_TIMING) != ZR_CU_SUCCESS)
        return false;
    if (device->driver->event_record(event, stream) == ZR_CU_SUCCESS &&
        device->driver->context_push(device->primary) == ZR_CU_SUCCESS) {
        done = zr_cuda_real.stream_wait_event(gather, event, 0) == ZR_CU_SUCCESS;
        device->driver->context_pop(&popped);
    }
    device->driver->event_destroy(event);
    return done;
}

/* Calls wait_for_stream() with the primary context current. */
static bool wait_in_primary(struct zr_cuda_device *device, zr_arena *arena, void *block, zr_cu_stream stream)
{
    zr_cu_context popped;
    zr_cu_result code = device->driver->context_push(device->primary);
    if (code != ZR_CU_SUCCESS)
        return zr_cuda_wait_is_over(code);
    bool followed = wait_for_stream(device, arena, block, stream);
    device->driver->context_pop(&popped);
    return followed;
}

bool zr_cuda_follow(struct zr_cuda_device *device, zr_arena *arena, void *block, zr_cu_stream stream)
{
    uint64_t number;
    if (zr_cuda_stream_number(device, stream, &number))
        return wait_in_primary(device, arena, block, (zr_cu_stream)(uintptr_t)number);
    zr_cu_stream gather = get_gather_stream(device);
    if (gather && gather_stream(device, gather, stream))
        return wait_in_primary(device, arena, block, gather);
    zr_cu_result code = device->driver->stream_synchronize(stream);
    if (code == ZR_CU_INVALID_HANDLE) /* a destroyed stream may have work in any context */
        return synchronize_context(device, device->primary) && zr_cuda_follow_all(device, arena, block);
    return zr_cuda_wait_is_over(code);
}

/* ---- Streams ------------------------------------------------------------------------------------------- */

/* Reuses an idle parked stream with the same context, flags and priority. */
static bool reuse_parked(zr_cu_context context, unsigned flags, int priority, zr_cu_stream *out)
{
    bool found = false;
    zr_lock_acquire(&lock);
    for (size_t i = 0; !found && i < streams_count; i++) {
        struct stream *each = &streams[i];
        found = each->parked && each->context == context && each->flags == flags &&
                each->priority == priority && zr_cuda_real.stream_query(each->stream) == ZR_CU_SUCCESS;
        if (found) {
            each->parked = false;
            *out = each->stream;
        }
    }
    zr_lock_release(&lock);
    return found;
}

static void add_stream(struct stream made)
{
    zr_lock_acquire(&lock);
    if (streams_count < ZR_CUDA_STREAMS_MAX)
        streams[streams_count++] = made;
    else
        streams_lost = true;
    zr_lock_release(&lock);
}

static zr_cu_result create(zr_cu_stream *out, unsigned flags, int priority)
{
    zr_cu_context context = NULL;
    zr_cu_result code = ZR_CUDA_PASS(context_get, &context);
    if (code == ZR_CU_SUCCESS && context && out && zr_cuda_real.stream_query &&
        reuse_parked(context, flags, priority, out))
        return ZR_CU_SUCCESS;
    code = priority == INT_MIN ? ZR_CUDA_PASS(stream_new, out, flags)
                               : ZR_CUDA_PASS(stream_new_priority, out, flags, priority);
    if (code != ZR_CU_SUCCESS)
        return code;
    zr_cuda_note_used();
    add_stream((struct stream){.stream = *out, .context = context, .flags = flags, .priority = priority});
    zr_cuda_set_many_streams();
    return code;
}

zr_cu_result cuStreamCreate(zr_cu_stream *out, unsigned int flags)
{
    return create(out, flags, INT_MIN);
}

zr_cu_result cuStreamCreateWithPriority(zr_cu_stream *out, unsigned int flags, int priority)
{
    return create(out, flags, priority);
}

/* Parks a destroyed stream if it is known or busy. False: the record is removed, and the driver must destroy
 * it. */
static bool park_stream(zr_cu_stream stream, bool busy, zr_cu_result *code)
{
    bool kept = false;
    zr_lock_acquire(&lock);
    for (size_t i = 0; i < streams_count; i++) {
        if (streams[i].stream != stream)
            continue;
        kept =
            streams[i].known || streams[i].parked || (busy && streams[i].flags & ZR_CU_STREAM_NON_BLOCKING);
        *code = streams[i].parked ? ZR_CU_INVALID_HANDLE : ZR_CU_SUCCESS;
        streams[i].parked = true;
        if (!kept)
            streams[i] = streams[--streams_count];
        break;
    }
    zr_lock_release(&lock);
    return kept;
}

zr_cu_result cuStreamDestroy_v2(zr_cu_stream stream)
{
    zr_cu_result code = ZR_CU_SUCCESS;
    if (zr_cuda_forked() || !zr_cuda_find_driver() || (uintptr_t)stream <= ZR_CU_STREAM_PER_THREAD)
        return ZR_CUDA_PASS(stream_end, stream);
    if (zr_cuda_stream_capturing(stream)) /* destroying it, or querying it, breaks the capture */
        return ZR_CUDA_PASS(stream_end, stream);
    bool busy = ZR_CUDA_PASS(stream_query, stream) == ZR_CU_NOT_READY;
    return park_stream(stream, busy, &code) ? code : ZR_CUDA_PASS(stream_end, stream);
}

void zr_cuda_streams_forget(zr_cu_context context)
{
    zr_lock_acquire(&lock);
    for (size_t i = 0; i < streams_count;)
        if (streams[i].context == context)
            streams[i] = streams[--streams_count];
        else
            i++;
    zr_lock_release(&lock);
}

/* ---- Contexts ------------------------------------------------------------------------------------------ */

static zr_cu_result note_context(zr_cu_result code, const zr_cu_context *out, zr_cu_device device)
{
    if (code != ZR_CU_SUCCESS || device < 0 || device >= ZR_CUDA_DEVICES_MAX)
        return code;
    zr_cuda_note_used();
    zr_lock_acquire(&lock);
    bool has_space = contexts_count < ZR_CUDA_CONTEXTS_MAX;
    if (has_space)
        contexts[contexts_count++] = (struct context){*out, device};
    zr_lock_release(&lock);
    if (!has_space)
        zr_cuda_device_disable(device, "this process has more CUDA contexts than zr supports");
    zr_cuda_set_many_streams();
    return code;
}

zr_cu_result cuCtxCreate_v2(zr_cu_context *out, unsigned int flags, zr_cu_device device)
{
    return note_context(ZR_CUDA_PASS(context_new, out, flags, device), out, device);
}

zr_cu_result cuCtxCreate_v3(zr_cu_context *out, void *affinity, int count, unsigned int flags,
                            zr_cu_device device)
{
    return note_context(ZR_CUDA_PASS(context_new_v3, out, affinity, count, flags, device), out, device);
}

zr_cu_result cuCtxCreate_v4(zr_cu_context *out, void *parameters, unsigned int flags, zr_cu_device device)
{
    return note_context(ZR_CUDA_PASS(context_new_v4, out, parameters, flags, device), out, device);
}

bool zr_cuda_context_known(zr_cu_context context)
{
    bool known = false;
    zr_lock_acquire(&lock);
    for (size_t i = 0; i < contexts_count; i++)
        known |= contexts[i].context == context;
    zr_lock_release(&lock);
    return known;
}

void zr_cuda_context_forget(zr_cu_context context)
{
    zr_lock_acquire(&lock);
    for (size_t i = 0; i < contexts_count; i++)
        if (contexts[i].context == context)
            contexts[i] = contexts[--contexts_count];
    zr_lock_release(&lock);
}
