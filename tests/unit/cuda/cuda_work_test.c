/* cuda_work_test.c: the rules of the CUDA driver that zr leans on where contexts, streams and events are
 * used, and bytes filled and copied. Sources and verdicts: tests/support/cuda/cuda_rules.h. */
#define _GNU_SOURCE
#include <pthread.h>

#include "tests/support/cuda/cuda_rules.h"

/* ---- The driver and its devices ------------------------------------------------------------------------ */

static zr_cu_result unknown_code(const struct world *w)
{
    const char *name = "left as it was", *text = name;
    zr_cu_result code = w->cu->error_text((zr_cu_result)12345, &text);
    zr_cu_result same = w->cu->error_name((zr_cu_result)12345, &name);
    return name || text || code != same ? VERDICT_BROKEN : code;
}

static zr_cu_result unknown_attribute(const struct world *w)
{
    int value;
    return w->cu->device_attribute(&value, (zr_cu_attribute)100000, 0);
}

/* prepare() has retained it once. */
static zr_cu_result released_more_than_retained(const struct world *w)
{
    zr_cu_context popped;
    MUST(w->cu->address_free(w->base, RANGE_GRANULES * w->g));
    MUST(w->cu->context_pop(&popped));
    MUST(w->cu->context_release(0));
    return w->cu->context_release(0);
}

/* ---- Contexts, streams, events ------------------------------------------------------------------------- */

static zr_cu_result without_a_context(const struct world *w)
{
    zr_cu_context popped;
    zr_cu_event event;
    size_t free_bytes, total_bytes;
    ONE_MAPPED;
    MUST(w->cu->context_pop(&popped));
    return ALL_REFUSED(fill_at(w, 0, 1), w->cu->context_synchronize(),
                       w->cu->event_create(&event, ZR_CU_EVENT_DISABLE_TIMING),
                       w->cu->memory_info(&free_bytes, &total_bytes));
}

static zr_cu_result pop_of_nothing(const struct world *w)
{
    zr_cu_context popped;
    MUST(w->cu->context_pop(&popped));
    return w->cu->context_pop(&popped);
}

static zr_cu_result push_after_release(const struct world *w)
{
    zr_cu_context other;
    MUST(w->cu->context_retain(&other, 1));
    MUST(w->cu->context_release(1));
    return w->cu->context_push(other);
}

/* A stream of another device's context, which *other gets; that of the first device is current again. */
static zr_cu_result peer_stream(const struct world *w, zr_cu_stream *stream, zr_cu_context *other)
{
    zr_cu_result (*stream_create)(zr_cu_stream *, unsigned int) = dlsym(w->library, "cuStreamCreate");
    zr_cu_context popped;
    if (w->devices_count < 2)
        return VERDICT_SKIPPED;
    MUST(w->cu->context_retain(other, 1));
    MUST(w->cu->context_push(*other));
    MUST(stream_create(stream, 0));
    MUST(w->cu->context_pop(&popped));
    return ZR_CU_SUCCESS;
}

/* The stream of one device's context while another's is current. */
static zr_cu_result foreign_stream(const struct world *w)
{
    zr_cu_stream stream;
    zr_cu_context other;
    zr_cu_event event;
    ONE_MAPPED;
    zr_cu_result made = peer_stream(w, &stream, &other);
    if (made != ZR_CU_SUCCESS)
        return made;
    MUST(w->cu->event_create(&event, ZR_CU_EVENT_DISABLE_TIMING));
    return ALL_REFUSED(w->cu->event_record(event, stream), w->cu->stream_synchronize(stream),
                       w->cu->fill(w->base, 1, w->g, stream),
                       w->cu->copy(w->base, w->base + w->g / 2, 16, stream));
}

static zr_cu_result destroyed_stream(const struct world *w)
{
    zr_cu_result (*stream_create)(zr_cu_stream *, unsigned int) = dlsym(w->library, "cuStreamCreate");
    zr_cu_result (*stream_destroy)(zr_cu_stream) = dlsym(w->library, "cuStreamDestroy_v2");
    zr_cu_context context;
    zr_cu_stream stream;
    MUST(stream_create(&stream, 0));
    MUST(stream_destroy(stream));
    return ALL_REFUSED(w->cu->stream_synchronize(stream), w->cu->stream_context(stream, &context));
}

static zr_cu_result context_of_a_stream(const struct world *w)
{
    zr_cu_stream stream;
    zr_cu_context other, found = NULL, own = NULL;
    zr_cu_result made = peer_stream(w, &stream, &other);
    if (made != ZR_CU_SUCCESS)
        return made;
    MUST(w->cu->stream_context(stream, &found));
    MUST(w->cu->stream_context(NULL, &own));
    return found == other && own && own != other ? ZR_CU_SUCCESS : ZR_CU_INVALID_CONTEXT;
}

/* ---- Default streams by their numbers ------------------------------------------------------------------ */

static zr_cu_stream numbered(uintptr_t number)
{
    return (zr_cu_stream)number;
}

static zr_cu_result context_of_numbers(const struct world *w)
{
    zr_cu_context context[2];
    for (unsigned i = 0; i < 2; i++)
        MUST(w->cu->stream_context(numbered(1 + i), &context[i]));
    return context[0] == w->context && context[1] == w->context ? ZR_CU_SUCCESS : VERDICT_BROKEN;
}

/* An event of one stream after work in another: whether it waits for it. */
static zr_cu_result work_and_event(const struct world *w, zr_cu_stream work, zr_cu_stream stream)
{
    zr_cu_event event;
    ONE_MAPPED;
    w->emulator->work_ticks(1000000);
    MUST(w->emulator->launch(work, w->base, w->g, 9));
    MUST(w->cu->event_create(&event, ZR_CU_EVENT_DISABLE_TIMING));
    MUST(w->cu->event_record(event, stream));
    return w->cu->event_query(event);
}

static zr_cu_result calls_on_numbers(const struct world *w)
{
    ONE_MAPPED;
    for (uintptr_t i = 1; i <= ZR_CU_STREAM_PER_THREAD; i++) {
        MUST(w->cu->fill(w->base, 1, w->g, numbered(i)));
        MUST(w->cu->copy(w->base, w->base + w->g / 2, 16, numbered(i)));
        MUST(w->cu->stream_synchronize(numbered(i)));
    }
    return ZR_CU_SUCCESS;
}

/* The NULL stream's other name, and a blocking stream, which it waits for. */
static zr_cu_result null_stream_waits(const struct world *w)
{
    zr_cu_result legacy = work_and_event(w, numbered(1), NULL);
    MUST(w->cu->context_synchronize());
    MUST(w->cu->unmap(w->base, w->g));
    zr_cu_result own = work_and_event(w, numbered(ZR_CU_STREAM_PER_THREAD), NULL);
    return legacy == own ? own : VERDICT_BROKEN;
}

struct other_thread {
    const struct world *w;
    zr_cu_result code;
};

static void *event_in_other_thread(void *argument)
{
    struct other_thread *other = argument;
    const struct zr_cuda_driver *cu = other->w->cu;
    zr_cu_event event;
    bool good = cu->context_push(other->w->context) == ZR_CU_SUCCESS &&
                cu->event_create(&event, ZR_CU_EVENT_DISABLE_TIMING) == ZR_CU_SUCCESS &&
                cu->event_record(event, numbered(ZR_CU_STREAM_PER_THREAD)) == ZR_CU_SUCCESS;
    other->code = good ? cu->event_query(event) : VERDICT_BROKEN;
    return NULL;
}

/* The same number in another thread is another stream: an event there does not wait for work in this one's.
 */
static zr_cu_result number_in_another_thread(const struct world *w)
{
    zr_cu_stream own = numbered(ZR_CU_STREAM_PER_THREAD);
    struct other_thread other = {.w = w};
    pthread_t thread;
    if (work_and_event(w, own, own) != ZR_CU_NOT_READY ||
        pthread_create(&thread, NULL, event_in_other_thread, &other) != 0)
        return VERDICT_BROKEN;
    pthread_join(thread, NULL);
    return other.code;
}

static zr_cu_result foreign_event(const struct world *w)
{
    zr_cu_context other;
    zr_cu_event event;
    if (w->devices_count < 2)
        return VERDICT_SKIPPED;
    MUST(w->cu->event_create(&event, ZR_CU_EVENT_DISABLE_TIMING));
    MUST(w->cu->context_retain(&other, 1));
    MUST(w->cu->context_push(other));
    return w->cu->event_record(event, NULL);
}

static zr_cu_result fresh_event(const struct world *w)
{
    zr_cu_event event;
    MUST(w->cu->event_create(&event, ZR_CU_EVENT_DISABLE_TIMING));
    return w->cu->event_query(event);
}

static zr_cu_result pending_event_destroyed(const struct world *w)
{
    zr_cu_event event;
    MUST(w->cu->event_create(&event, ZR_CU_EVENT_DISABLE_TIMING));
    MUST(w->cu->event_record(event, NULL));
    return w->cu->event_destroy(event);
}

static zr_cu_result destroyed_event(const struct world *w)
{
    zr_cu_event event;
    MUST(w->cu->event_create(&event, ZR_CU_EVENT_DISABLE_TIMING));
    MUST(w->cu->event_record(event, NULL));
    MUST(w->cu->event_destroy(event));
    return ALL_REFUSED(w->cu->event_record(event, NULL), w->cu->event_query(event),
                       w->cu->event_synchronize(event), w->cu->event_destroy(event));
}

/* Recording is for the event's own context, asking and waiting for any. */
static zr_cu_result event_asked_from_another_device(const struct world *w)
{
    zr_cu_context other;
    zr_cu_event event;
    if (w->devices_count < 2)
        return VERDICT_SKIPPED;
    MUST(w->cu->event_create(&event, ZR_CU_EVENT_DISABLE_TIMING));
    MUST(w->cu->event_record(event, NULL));
    MUST(w->cu->context_retain(&other, 1));
    MUST(w->cu->context_push(other));
    MUST(w->cu->event_synchronize(event));
    return w->cu->event_query(event);
}

static zr_cu_result after_fork(const struct world *w)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        int count;
        _exit((int)w->cu->device_count(&count));
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? (zr_cu_result)WEXITSTATUS(status) : VERDICT_BROKEN;
}

/* ---- Bytes --------------------------------------------------------------------------------------------- */

static zr_cu_result copied(const struct world *w, zr_cu_address to, zr_cu_address from, size_t bytes)
{
    zr_cu_result code = w->cu->copy(to, from, bytes, NULL);
    return code == ZR_CU_SUCCESS ? w->cu->context_synchronize() : code;
}

/* To what is not mapped, from there, and partly there. */
static zr_cu_result copy_outside(const struct world *w)
{
    zr_cu_address hole = w->base + w->g;
    ONE_MAPPED;
    return ALL_REFUSED(copied(w, hole, w->base, 16), copied(w, w->base, hole, 16),
                       copied(w, hole - 8, w->base, 16));
}

static zr_cu_result copy_to_read_only(const struct world *w)
{
    zr_cu_access access = {{ZR_CU_LOCATION_DEVICE, 0}, ZR_CU_ACCESS_READ};
    ONE_MAPPED;
    MUST(map_at(w, 1, 1, memory_of(w, 1)));
    MUST(w->cu->set_access(w->base + w->g, w->g, &access, 1));
    MUST(copied(w, w->base, w->base + w->g, 16));
    return copied(w, w->base + w->g, w->base, 16);
}

static zr_cu_result fill_past_the_end(const struct world *w)
{
    ONE_MAPPED;
    zr_cu_result code = w->cu->fill(w->base, 1, w->g + 1, NULL);
    return code == ZR_CU_SUCCESS ? w->cu->context_synchronize() : code;
}

/* A kernel is not refused: it is found out while it runs. */
static zr_cu_result kernel_in_a_hole(const struct world *w)
{
    ONE_MAPPED;
    MUST(w->emulator->launch(NULL, w->base + w->g, w->g, 9));
    return w->cu->context_synchronize();
}

/* ---- The table ----------------------------------------------------------------------------------------- */

static const struct rule rules[] = {
    {"an unknown code has no name", "ERROR cuGetErrorName and cuGetErrorString", unknown_code,
     ZR_CU_INVALID_VALUE, 0},
    {"attributes are known", "DEVICE cuDeviceGetAttribute", unknown_attribute, ZR_CU_INVALID_VALUE, 0},
    {"a context is released as often as it was retained", "PRIMARY__CTX cuDevicePrimaryCtxRelease",
     released_more_than_retained, ZR_CU_INVALID_CONTEXT, 0},
    {"fill, wait, event and the question for memory need a context", "MEM, CTX and EVENT", without_a_context,
     ZR_CU_INVALID_CONTEXT, 0},
    {"a push needs a context that is retained",
     "CTX cuCtxPushCurrent; PRIMARY__CTX cuDevicePrimaryCtxRelease", push_after_release,
     ZR_CU_INVALID_CONTEXT, EMULATOR_ONLY},
    {"a pop needs a push", "CTX cuCtxPopCurrent", pop_of_nothing, ZR_CU_INVALID_CONTEXT, 0},
    {"event, wait, fill and copy are for the current context's streams (some unstated)",
     "EVENT cuEventRecord", foreign_stream, ZR_CU_INVALID_HANDLE, 0},
    {"an event is of the current context", "EVENT cuEventRecord", foreign_event, ZR_CU_INVALID_HANDLE, 0},
    {"a stream tells its context, whichever is current", "STREAM cuStreamGetCtx", context_of_a_stream,
     ZR_CU_SUCCESS, 0},
    {"1 and 2 are default streams of the current context", "STREAM cuStreamGetCtx", context_of_numbers,
     ZR_CU_SUCCESS, 0},
    {"that take fills and copies and can be waited for", "TYPES CU_STREAM_LEGACY and CU_STREAM_PER_THREAD",
     calls_on_numbers, ZR_CU_SUCCESS, 0},
    {"the NULL stream is 1 and waits for 2", "runtime API, Stream synchronization behavior",
     null_stream_waits, ZR_CU_NOT_READY, EMULATOR_ONLY},
    {"2 is a stream of its thread alone", "runtime API, Stream synchronization behavior",
     number_in_another_thread, ZR_CU_SUCCESS, EMULATOR_ONLY},
    {"a destroyed stream has no use", "runtime API, cudaStreamDestroy: undefined", destroyed_stream,
     ZR_CU_INVALID_HANDLE, EMULATOR_ONLY},
    {"an event that was not recorded is complete", "EVENT cuEventRecord", fresh_event, ZR_CU_SUCCESS, 0},
    {"a pending event may be destroyed", "EVENT cuEventDestroy", pending_event_destroyed, ZR_CU_SUCCESS, 0},
    {"a destroyed event has no use", "runtime API, cudaEventDestroy: undefined", destroyed_event,
     ZR_CU_INVALID_HANDLE, EMULATOR_ONLY},
    {"another device's event may be asked and waited for", "guide, Stream and Event Behavior",
     event_asked_from_another_device, ZR_CU_SUCCESS, 0},
    {"the driver does not survive fork()", "PyTorch #17357, triton #10443", after_fork, ZR_CU_NOT_INITIALIZED,
     0},
    {"a copy goes from what is mapped to what is, all of it", "MEM cuMemcpyAsync", copy_outside,
     ZR_CU_INVALID_VALUE, 0},
    {"and may write there", "VA cuMemSetAccess", copy_to_read_only, ZR_CU_INVALID_VALUE, 0},
    {"a fill ends where the mapping does", "MEM cuMemsetD8Async", fill_past_the_end, ZR_CU_INVALID_VALUE, 0},
    {"a kernel outside ends its context", "TYPES CUDA_ERROR_ILLEGAL_ADDRESS", kernel_in_a_hole,
     ZR_CU_ILLEGAL_ADDRESS, EMULATOR_ONLY},
};

int main(void)
{
    return rules_run(rules, sizeof rules / sizeof *rules);
}
