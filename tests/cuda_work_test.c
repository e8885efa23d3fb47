/* cuda_work_test.c: the rules of the CUDA driver that zr leans on where contexts, streams and events are
 * used, and bytes filled and copied. Sources and verdicts: tests/cuda_rules.h. */
#define _GNU_SOURCE
#include "tests/cuda_rules.h"

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

/* ---- The table ----------------------------------------------------------------------------------------- */

static const struct rule rules[] = {
    {"a fill needs a current context", "MEM cuMemsetD8Async", without_a_context, ZR_CU_INVALID_CONTEXT, 0},
    {"a pop needs a push", "CTX cuCtxPopCurrent", pop_of_nothing, ZR_CU_INVALID_CONTEXT, 0},
    {"event and stream are of one context", "EVENT cuEventRecord", foreign_stream, ZR_CU_INVALID_HANDLE, 0},
    {"and of the current one", "EVENT cuEventRecord", foreign_event, ZR_CU_INVALID_HANDLE, 0},
    {"a stream tells its context, whichever is current", "STREAM cuStreamGetCtx", context_of_a_stream,
     ZR_CU_SUCCESS, 0},
    {"an event that was not recorded is complete", "EVENT cuEventRecord", fresh_event, ZR_CU_SUCCESS, 0},
    {"an event waits for its work", "EVENT cuEventQuery", event_of_pending_work, ZR_CU_NOT_READY,
     EMULATOR_ONLY},
    {"a pending event may be destroyed", "EVENT cuEventDestroy", pending_event_destroyed, ZR_CU_SUCCESS, 0},
    {"the driver does not survive fork()", "PyTorch #17357, triton #10443", after_fork, ZR_CU_NOT_INITIALIZED,
     0},
};

int main(void)
{
    return rules_run(rules, sizeof rules / sizeof *rules);
}
