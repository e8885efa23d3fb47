/* cuda_work_test.c: the rules of the CUDA driver that zr leans on where contexts, streams and events are
 * used, and bytes filled and copied. Sources and verdicts: tests/support/cuda_rules.h. */
#define _GNU_SOURCE
#include <pthread.h>

#include "tests/support/cuda_rules.h"

/* ---- The driver and its devices ------------------------------------------------------------------------ */

static zr_cu_result initialised_with_flags(const struct world *w)
{
    return w->cu->init(1);
}

static zr_cu_result initialised_twice(const struct world *w)
{
    ONE_MAPPED;
    MUST(w->cu->init(0));
    return fill_at(w, 0, 1);
}

static zr_cu_result unknown_code(const struct world *w)
{
    const char *name = "left as it was", *text = name;
    zr_cu_result code = w->cu->error_text((zr_cu_result)12345, &text);
    zr_cu_result same = w->cu->error_name((zr_cu_result)12345, &name);
    return name || text || code != same ? VERDICT_BROKEN : code;
}

static zr_cu_result ordinal_past_the_end(const struct world *w)
{
    zr_cu_device device;
    return w->cu->device_get(&device, w->devices_count);
}

static zr_cu_result ordinal_below_the_first(const struct world *w)
{
    zr_cu_device device;
    return w->cu->device_get(&device, -1);
}

static zr_cu_result attribute_of_no_device(const struct world *w)
{
    int value;
    return w->cu->device_attribute(&value, ZR_CU_ATTRIBUTE_VIRTUAL_MEMORY, w->devices_count);
}

static zr_cu_result unknown_attribute(const struct world *w)
{
    int value;
    return w->cu->device_attribute(&value, (zr_cu_attribute)100000, 0);
}

static zr_cu_result no_such_peer(const struct world *w)
{
    int can;
    return w->cu->can_access_peer(&can, 0, w->devices_count);
}

static zr_cu_result no_such_accessor(const struct world *w)
{
    int can;
    return w->cu->can_access_peer(&can, w->devices_count, 0);
}

static zr_cu_result context_of_no_device(const struct world *w)
{
    zr_cu_context context;
    return w->cu->context_retain(&context, w->devices_count);
}

static zr_cu_result release_of_no_device(const struct world *w)
{
    return w->cu->context_release(w->devices_count);
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
    ONE_MAPPED;
    MUST(w->cu->context_pop(&popped));
    return fill_at(w, 0, 1);
}

static zr_cu_result pop_of_nothing(const struct world *w)
{
    zr_cu_context popped;
    MUST(w->cu->context_pop(&popped));
    return w->cu->context_pop(&popped);
}

static zr_cu_result push_of_nothing(const struct world *w)
{
    return w->cu->context_push(NULL);
}

static zr_cu_result push_after_release(const struct world *w)
{
    zr_cu_context other;
    MUST(w->cu->context_retain(&other, 1));
    MUST(w->cu->context_release(1));
    return w->cu->context_push(other);
}

static zr_cu_result wait_without_a_context(const struct world *w)
{
    zr_cu_context popped;
    MUST(w->cu->context_pop(&popped));
    return w->cu->context_synchronize();
}

static zr_cu_result event_without_a_context(const struct world *w)
{
    zr_cu_context popped;
    zr_cu_event event;
    MUST(w->cu->context_pop(&popped));
    return w->cu->event_create(&event, ZR_CU_EVENT_DISABLE_TIMING);
}

static zr_cu_result memory_info_without_a_context(const struct world *w)
{
    zr_cu_context popped;
    size_t free_bytes, total_bytes;
    MUST(w->cu->context_pop(&popped));
    return w->cu->memory_info(&free_bytes, &total_bytes);
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
    zr_cu_result made = peer_stream(w, &stream, &other);
    if (made != ZR_CU_SUCCESS)
        return made;
    MUST(w->cu->event_create(&event, ZR_CU_EVENT_DISABLE_TIMING));
    return w->cu->event_record(event, stream);
}

static zr_cu_result wait_for_a_foreign_stream(const struct world *w)
{
    zr_cu_stream stream;
    zr_cu_context other;
    zr_cu_result made = peer_stream(w, &stream, &other);
    return made == ZR_CU_SUCCESS ? w->cu->stream_synchronize(stream) : made;
}

static zr_cu_result fill_on_a_foreign_stream(const struct world *w)
{
    zr_cu_stream stream;
    zr_cu_context other;
    ONE_MAPPED;
    zr_cu_result made = peer_stream(w, &stream, &other);
    return made == ZR_CU_SUCCESS ? w->cu->fill(w->base, 1, w->g, stream) : made;
}

static zr_cu_result copy_on_a_foreign_stream(const struct world *w)
{
    zr_cu_stream stream;
    zr_cu_context other;
    ONE_MAPPED;
    zr_cu_result made = peer_stream(w, &stream, &other);
    return made == ZR_CU_SUCCESS ? w->cu->copy(w->base, w->base + w->g / 2, 16, stream) : made;
}

static zr_cu_result kernel_on_a_foreign_stream(const struct world *w)
{
    zr_cu_stream stream;
    zr_cu_context other;
    ONE_MAPPED;
    zr_cu_result made = peer_stream(w, &stream, &other);
    return made == ZR_CU_SUCCESS ? w->emulator->launch(stream, w->base, w->g, 1) : made;
}

static zr_cu_result destroyed_stream(const struct world *w, zr_cu_stream *stream)
{
    zr_cu_result (*stream_create)(zr_cu_stream *, unsigned int) = dlsym(w->library, "cuStreamCreate");
    zr_cu_result (*stream_destroy)(zr_cu_stream) = dlsym(w->library, "cuStreamDestroy_v2");
    MUST(stream_create(stream, 0));
    return stream_destroy(*stream);
}

static zr_cu_result wait_for_a_destroyed_stream(const struct world *w)
{
    zr_cu_stream stream;
    MUST(destroyed_stream(w, &stream));
    return w->cu->stream_synchronize(stream);
}

static zr_cu_result context_of_a_destroyed_stream(const struct world *w)
{
    zr_cu_stream stream;
    zr_cu_context context;
    MUST(destroyed_stream(w, &stream));
    return w->cu->stream_context(stream, &context);
}

static zr_cu_result stream_destroyed_twice(const struct world *w)
{
    zr_cu_result (*stream_destroy)(zr_cu_stream) = dlsym(w->library, "cuStreamDestroy_v2");
    zr_cu_stream stream;
    MUST(destroyed_stream(w, &stream));
    return stream_destroy(stream);
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

static zr_cu_result legacy_is_the_null_stream(const struct world *w)
{
    return work_and_event(w, numbered(1), NULL);
}

static zr_cu_result null_stream_waits_for_the_threads(const struct world *w)
{
    return work_and_event(w, numbered(ZR_CU_STREAM_PER_THREAD), NULL);
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

/* Of two streams that get work at once now the one is ready first, now the other. */
static zr_cu_result lengths_differ(const struct world *w)
{
    zr_cu_result (*stream_create)(zr_cu_stream *, unsigned int) = dlsym(w->library, "cuStreamCreate");
    zr_cu_event events[2];
    unsigned ahead[2] = {0};
    ONE_MAPPED;
    w->emulator->random_ticks(1);
    for (unsigned i = 0; i < 2; i++)
        MUST(w->cu->event_create(&events[i], ZR_CU_EVENT_DISABLE_TIMING));
    for (unsigned round = 0; round < 64; round++) {
        zr_cu_result codes[2];
        for (unsigned i = 0; i < 2; i++) {
            zr_cu_stream stream;
            MUST(stream_create(&stream, ZR_CU_STREAM_NON_BLOCKING));
            MUST(w->emulator->launch(stream, w->base, w->g, 9));
            MUST(w->cu->event_record(events[i], stream));
        }
        do
            for (unsigned i = 0; i < 2; i++)
                codes[i] = w->cu->event_query(events[i]);
        while (codes[0] != ZR_CU_SUCCESS && codes[1] != ZR_CU_SUCCESS);
        for (unsigned i = 0; i < 2; i++)
            ahead[i] += codes[i] == ZR_CU_SUCCESS && codes[!i] != ZR_CU_SUCCESS;
    }
    return ahead[0] > 8 && ahead[1] > 8 ? ZR_CU_SUCCESS : VERDICT_BROKEN;
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

static zr_cu_result event_of_pending_work(const struct world *w)
{
    zr_cu_event event;
    ONE_MAPPED;
    w->emulator->work_ticks(1000000);
    MUST(w->emulator->launch(NULL, w->base, w->g, 9));
    MUST(w->cu->event_create(&event, ZR_CU_EVENT_DISABLE_TIMING));
    MUST(w->cu->event_record(event, NULL));
    return w->cu->event_query(event);
}

static zr_cu_result pending_event_destroyed(const struct world *w)
{
    zr_cu_event event;
    MUST(w->cu->event_create(&event, ZR_CU_EVENT_DISABLE_TIMING));
    MUST(w->cu->event_record(event, NULL));
    return w->cu->event_destroy(event);
}

static zr_cu_result unknown_event_flags(const struct world *w)
{
    zr_cu_event event;
    return w->cu->event_create(&event, 8);
}

static zr_cu_result destroyed_event(const struct world *w, zr_cu_event *event)
{
    MUST(w->cu->event_create(event, ZR_CU_EVENT_DISABLE_TIMING));
    MUST(w->cu->event_record(*event, NULL));
    return w->cu->event_destroy(*event);
}

static zr_cu_result record_of_a_destroyed_event(const struct world *w)
{
    zr_cu_event event;
    MUST(destroyed_event(w, &event));
    return w->cu->event_record(event, NULL);
}

static zr_cu_result query_of_a_destroyed_event(const struct world *w)
{
    zr_cu_event event;
    MUST(destroyed_event(w, &event));
    return w->cu->event_query(event);
}

static zr_cu_result wait_for_a_destroyed_event(const struct world *w)
{
    zr_cu_event event;
    MUST(destroyed_event(w, &event));
    return w->cu->event_synchronize(event);
}

static zr_cu_result event_destroyed_twice(const struct world *w)
{
    zr_cu_event event;
    MUST(destroyed_event(w, &event));
    return w->cu->event_destroy(event);
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

static zr_cu_result copy_to_a_hole(const struct world *w)
{
    ONE_MAPPED;
    return copied(w, w->base + w->g, w->base, 16);
}

static zr_cu_result copy_from_a_hole(const struct world *w)
{
    ONE_MAPPED;
    return copied(w, w->base, w->base + w->g, 16);
}

static zr_cu_result copy_into_a_hole(const struct world *w)
{
    ONE_MAPPED;
    return copied(w, w->base + w->g - 8, w->base, 16);
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

static zr_cu_result copy_from_nowhere(const struct world *w)
{
    ONE_MAPPED;
    return copied(w, w->base, 0, 16);
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

static zr_cu_result after_a_kernel_in_a_hole(const struct world *w)
{
    size_t free_bytes, total_bytes;
    if (kernel_in_a_hole(w) != ZR_CU_ILLEGAL_ADDRESS)
        return VERDICT_BROKEN;
    return w->cu->memory_info(&free_bytes, &total_bytes);
}

/* ---- The table ----------------------------------------------------------------------------------------- */

static const struct rule rules[] = {
    {"initialising takes no flags", "INITIALIZE cuInit", initialised_with_flags, ZR_CU_INVALID_VALUE, 0},
    {"and a second time changes nothing", "INITIALIZE cuInit", initialised_twice, ZR_CU_SUCCESS, 0},
    {"an unknown code has no name", "ERROR cuGetErrorName and cuGetErrorString", unknown_code,
     ZR_CU_INVALID_VALUE, 0},
    {"ordinals end", "DEVICE cuDeviceGet", ordinal_past_the_end, ZR_CU_INVALID_DEVICE, 0},
    {"and begin at 0", "DEVICE cuDeviceGet", ordinal_below_the_first, ZR_CU_INVALID_DEVICE, 0},
    {"attributes are of a device", "DEVICE cuDeviceGetAttribute", attribute_of_no_device,
     ZR_CU_INVALID_DEVICE, 0},
    {"and known", "DEVICE cuDeviceGetAttribute", unknown_attribute, ZR_CU_INVALID_VALUE, 0},
    {"a peer is a device", "PEER__ACCESS cuDeviceCanAccessPeer", no_such_peer, ZR_CU_INVALID_DEVICE, 0},
    {"and so is what reaches it", "PEER__ACCESS cuDeviceCanAccessPeer", no_such_accessor,
     ZR_CU_INVALID_DEVICE, 0},
    {"a context is retained of a device", "PRIMARY__CTX cuDevicePrimaryCtxRetain", context_of_no_device,
     ZR_CU_INVALID_DEVICE, 0},
    {"and released of one", "PRIMARY__CTX cuDevicePrimaryCtxRelease", release_of_no_device,
     ZR_CU_INVALID_DEVICE, 0},
    {"as often as it was retained", "PRIMARY__CTX cuDevicePrimaryCtxRelease", released_more_than_retained,
     ZR_CU_INVALID_CONTEXT, 0},
    {"a fill needs a current context", "MEM cuMemsetD8Async", without_a_context, ZR_CU_INVALID_CONTEXT, 0},
    {"so does a wait", "CTX cuCtxSynchronize", wait_without_a_context, ZR_CU_INVALID_CONTEXT, 0},
    {"and a new event", "EVENT cuEventCreate", event_without_a_context, ZR_CU_INVALID_CONTEXT, 0},
    {"and the question for memory", "MEM cuMemGetInfo", memory_info_without_a_context, ZR_CU_INVALID_CONTEXT,
     0},
    {"a push needs a context", "CTX cuCtxPushCurrent", push_of_nothing, ZR_CU_INVALID_CONTEXT, 0},
    {"that is retained", "CTX cuCtxPushCurrent; PRIMARY__CTX cuDevicePrimaryCtxRelease", push_after_release,
     ZR_CU_INVALID_CONTEXT, EMULATOR_ONLY},
    {"a pop needs a push", "CTX cuCtxPopCurrent", pop_of_nothing, ZR_CU_INVALID_CONTEXT, 0},
    {"event and stream are of one context", "EVENT cuEventRecord", foreign_stream, ZR_CU_INVALID_HANDLE, 0},
    {"and of the current one", "EVENT cuEventRecord", foreign_event, ZR_CU_INVALID_HANDLE, 0},
    {"a stream tells its context, whichever is current", "STREAM cuStreamGetCtx", context_of_a_stream,
     ZR_CU_SUCCESS, 0},
    {"1 and 2 are default streams of the current context", "STREAM cuStreamGetCtx", context_of_numbers,
     ZR_CU_SUCCESS, 0},
    {"that take fills and copies and can be waited for", "TYPES CU_STREAM_LEGACY and CU_STREAM_PER_THREAD",
     calls_on_numbers, ZR_CU_SUCCESS, 0},
    {"1 is the NULL stream", "runtime API, Stream synchronization behavior", legacy_is_the_null_stream,
     ZR_CU_NOT_READY, EMULATOR_ONLY},
    {"2 is a blocking stream", "runtime API, Stream synchronization behavior",
     null_stream_waits_for_the_threads, ZR_CU_NOT_READY, EMULATOR_ONLY},
    {"of its thread alone", "runtime API, Stream synchronization behavior", number_in_another_thread,
     ZR_CU_SUCCESS, EMULATOR_ONLY},
    {"streams wait for no other's work", "guide, Streams", lengths_differ, ZR_CU_SUCCESS, EMULATOR_ONLY},
    {"a wait is for the current context's streams (unstated)", "taken for a rule", wait_for_a_foreign_stream,
     ZR_CU_INVALID_HANDLE, 0},
    {"a fill goes to one of them (unstated)", "taken for a rule", fill_on_a_foreign_stream,
     ZR_CU_INVALID_HANDLE, 0},
    {"and a copy (guide, Stream and Event Behavior, is lenient)", "taken for a rule",
     copy_on_a_foreign_stream, ZR_CU_INVALID_HANDLE, 0},
    {"and a kernel", "guide, Stream and Event Behavior", kernel_on_a_foreign_stream, ZR_CU_INVALID_HANDLE,
     EMULATOR_ONLY},
    {"a destroyed stream: no wait", "runtime API, cudaStreamDestroy: undefined", wait_for_a_destroyed_stream,
     ZR_CU_INVALID_HANDLE, EMULATOR_ONLY},
    {"a destroyed stream: no context", "runtime API, cudaStreamDestroy: undefined",
     context_of_a_destroyed_stream, ZR_CU_INVALID_HANDLE, EMULATOR_ONLY},
    {"a destroyed stream: not again", "runtime API, cudaStreamDestroy: undefined", stream_destroyed_twice,
     ZR_CU_INVALID_HANDLE, EMULATOR_ONLY},
    {"events have the flags that are stated", "EVENT cuEventCreate", unknown_event_flags, ZR_CU_INVALID_VALUE,
     0},
    {"an event that was not recorded is complete", "EVENT cuEventRecord", fresh_event, ZR_CU_SUCCESS, 0},
    {"an event waits for its work", "EVENT cuEventQuery", event_of_pending_work, ZR_CU_NOT_READY,
     EMULATOR_ONLY},
    {"a pending event may be destroyed", "EVENT cuEventDestroy", pending_event_destroyed, ZR_CU_SUCCESS, 0},
    {"a destroyed event: no record", "runtime API, cudaEventDestroy: undefined", record_of_a_destroyed_event,
     ZR_CU_INVALID_HANDLE, EMULATOR_ONLY},
    {"a destroyed event: no query", "runtime API, cudaEventDestroy: undefined", query_of_a_destroyed_event,
     ZR_CU_INVALID_HANDLE, EMULATOR_ONLY},
    {"a destroyed event: no wait", "runtime API, cudaEventDestroy: undefined", wait_for_a_destroyed_event,
     ZR_CU_INVALID_HANDLE, EMULATOR_ONLY},
    {"a destroyed event: not again", "runtime API, cudaEventDestroy: undefined", event_destroyed_twice,
     ZR_CU_INVALID_HANDLE, EMULATOR_ONLY},
    {"another device's event may be asked and waited for", "guide, Stream and Event Behavior",
     event_asked_from_another_device, ZR_CU_SUCCESS, 0},
    {"the driver does not survive fork()", "PyTorch #17357, triton #10443", after_fork, ZR_CU_NOT_INITIALIZED,
     0},
    {"a copy goes to what is mapped", "MEM cuMemcpyAsync", copy_to_a_hole, ZR_CU_INVALID_VALUE, 0},
    {"and comes from there", "MEM cuMemcpyAsync", copy_from_a_hole, ZR_CU_INVALID_VALUE, 0},
    {"all of it", "MEM cuMemcpyAsync", copy_into_a_hole, ZR_CU_INVALID_VALUE, 0},
    {"and may write there", "VA cuMemSetAccess", copy_to_read_only, ZR_CU_INVALID_VALUE, 0},
    {"NULL is nowhere", "MEM cuMemcpyAsync", copy_from_nowhere, ZR_CU_INVALID_VALUE, EMULATOR_ONLY},
    {"a fill ends where the mapping does", "MEM cuMemsetD8Async", fill_past_the_end, ZR_CU_INVALID_VALUE, 0},
    {"a kernel outside ends its context", "TYPES CUDA_ERROR_ILLEGAL_ADDRESS", kernel_in_a_hole,
     ZR_CU_ILLEGAL_ADDRESS, EMULATOR_ONLY},
    {"for all that follows", "TYPES CUDA_ERROR_ILLEGAL_ADDRESS", after_a_kernel_in_a_hole,
     ZR_CU_ILLEGAL_ADDRESS, EMULATOR_ONLY},
};

int main(void)
{
    return rules_run(rules, sizeof rules / sizeof *rules);
}
