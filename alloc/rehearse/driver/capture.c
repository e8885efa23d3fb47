/* capture.c: streams whose work is recorded and not run, and what else may not be done meanwhile. What is
 * recorded becomes a graph, graphs.c. See emulator.h. */
#include "alloc/rehearse/driver/inside.h"

#include <stdlib.h>

struct emu_capture {
    struct emu_capture *next; /* of all that ever were: events point there */
    zr_cu_capture_mode mode;
    bool broken, ended;
    const void *thread; /* that began it */
    struct zr_cu_stream_st *origin;
    struct zr_cu_graph_st *graph;
};

static struct emu_capture *captures;
static __thread zr_cu_capture_mode own_mode = ZR_CU_CAPTURE_GLOBAL; /* its address tells threads apart */

static bool ongoing(const struct emu_capture *capture)
{
    return capture && !capture->ended;
}

static zr_cu_result break_off(struct emu_capture *capture, zr_cu_result code)
{
    capture->broken = true;
    return code;
}

/* ---- What is forbidden --------------------------------------------------------------------------------- */

/* Calls that a capture does not see, and whose effect a graph would miss: NVIDIA's documents name cudaMalloc.
 * Reserving, creating, mapping and opening memory is none: PyTorch's expandable segments do so in the mode of
 * cudaStreamBeginCapture's default (PyTorch #128068, #194767). */
static const bool unsafe_calls[EMU_CALLS_COUNT] = {
    [EMU_mem_alloc] = true,
    [EMU_mem_alloc_pitch] = true,
    [EMU_mem_free] = true,
    [EMU_alloc_managed] = true,
    [EMU_host_alloc] = true,
    [EMU_host_alloc_plain] = true,
    [EMU_host_free] = true,
    [EMU_host_register] = true,
    [EMU_host_unregister] = true,
    [EMU_release] = true,
    [EMU_unmap] = true,
    [EMU_address_free] = true,
    [EMU_copy_now] = true,
    [EMU_copy_to_device] = true,
    [EMU_copy_to_host] = true,
    [EMU_fill_now] = true,
    [EMU_event_query] = true,
    [EMU_event_synchronize] = true,
    [EMU_stream_query] = true,
    [EMU_stream_synchronize] = true,
    [EMU_context_synchronize] = true,
    [EMU_ipc_open] = true,
    [EMU_ipc_close] = true,
};

static bool prohibits(const struct emu_capture *capture)
{
    bool own = capture->thread == &own_mode;
    if (capture->ended || own_mode == ZR_CU_CAPTURE_RELAXED)
        return false;
    if (own)
        return capture->mode != ZR_CU_CAPTURE_RELAXED;
    return own_mode == ZR_CU_CAPTURE_GLOBAL && capture->mode == ZR_CU_CAPTURE_GLOBAL;
}

zr_cu_result emu_capture_check(enum emu_call call)
{
    zr_cu_result code = ZR_CU_SUCCESS;
    for (struct emu_capture *each = captures; each && unsafe_calls[call]; each = each->next)
        if (prohibits(each))
            code = break_off(each, ZR_CU_STREAM_CAPTURE_UNSUPPORTED);
    return code;
}

/* A capture that a call on the NULL stream, or on the whole context, would run into. */
static struct emu_capture *in_the_way(const struct zr_cu_context_st *context, bool whole)
{
    struct zr_cu_stream_st *each = NULL;
    while ((each = emu_streams_next(each)))
        if (each->context == context && ongoing(each->capture) && (whole || !each->non_blocking))
            return each->capture;
    return NULL;
}

zr_cu_result emu_capture_asked(struct zr_cu_context_st *context, struct zr_cu_stream_st *stream, bool whole)
{
    struct emu_capture *found = stream ? stream->capture : in_the_way(context, whole);
    if (!ongoing(found))
        return ZR_CU_SUCCESS;
    return break_off(found, stream || whole ? ZR_CU_STREAM_CAPTURE_UNSUPPORTED : ZR_CU_CAPTURE_IMPLICIT);
}

zr_cu_result emu_capture_event_asked(struct zr_cu_event_st *event)
{
    return event->captured ? break_off(event->captured, EMU_CAPTURED_EVENT) : ZR_CU_SUCCESS;
}

/* ---- Recording ----------------------------------------------------------------------------------------- */

/* Whether the call on the stream is the capture's business; *code: what it returns if it may not go on. */
static bool captured(struct zr_cu_context_st *context, struct zr_cu_stream_st *stream, zr_cu_result *code)
{
    struct emu_capture *found = stream ? stream->capture : in_the_way(context, false);
    *code = ZR_CU_SUCCESS;
    if (!ongoing(found))
        return false;
    if (!stream)
        *code = break_off(found, ZR_CU_CAPTURE_IMPLICIT);
    else if (found->broken)
        *code = ZR_CU_CAPTURE_INVALIDATED;
    return true;
}

static void worked(struct zr_cu_stream_st *stream)
{
    stream->captured_at = emu_graph_length(stream->capture->graph);
    stream->unjoined = stream != stream->capture->origin;
}

bool emu_captured(struct zr_cu_context_st *context, struct zr_cu_stream_st *stream,
                  const struct emu_work *work, zr_cu_result *code)
{
    bool is = captured(context, stream, code);
    if (is && *code == ZR_CU_SUCCESS) {
        emu_graph_append(stream->capture->graph, stream->number, work);
        worked(stream);
    }
    return is;
}

bool emu_captured_allocation(zr_cu_address *out, size_t bytes, struct zr_cu_context_st *context,
                             struct zr_cu_stream_st *stream, zr_cu_result *code)
{
    bool is = captured(context, stream, code);
    if (is && *code == ZR_CU_SUCCESS) {
        *code = emu_graph_allocate(stream->capture->graph, stream->number, out, bytes, context);
        worked(stream);
    }
    return is;
}

bool emu_captured_free(zr_cu_address address, struct zr_cu_context_st *context,
                       struct zr_cu_stream_st *stream, zr_cu_result *code)
{
    bool is = captured(context, stream, code);
    if (is && *code == ZR_CU_SUCCESS) {
        *code = emu_graph_free(stream->capture->graph, stream->number, address);
        worked(stream);
        if (*code != ZR_CU_SUCCESS)
            stream->capture->broken = true;
    }
    return is;
}

bool emu_captured_launch(struct zr_cu_context_st *context, struct zr_cu_stream_st *stream,
                         struct zr_cu_graph_st *graph, zr_cu_result *code)
{
    bool is = captured(context, stream, code);
    if (is && *code == ZR_CU_SUCCESS) {
        *code = emu_graph_append_all(stream->capture->graph, stream->number, graph);
        worked(stream);
    }
    return is;
}

bool emu_captured_record(struct zr_cu_event_st *event, struct zr_cu_context_st *context,
                         struct zr_cu_stream_st *stream, zr_cu_result *code)
{
    bool is = captured(context, stream, code);
    if (is && *code == ZR_CU_SUCCESS) {
        event->captured = stream->capture;
        event->captured_at = emu_graph_length(stream->capture->graph);
        event->number = emu_stream_number(stream);
    }
    return is;
}

/* Streams that wait for a captured event are captured too, until the one where the capture began has waited
 * for them. */
static zr_cu_result join(struct emu_capture *capture, struct zr_cu_stream_st *stream,
                         const struct zr_cu_event_st *event)
{
    struct zr_cu_stream_st *each = NULL;
    while ((each = emu_streams_next(each)))
        if (each->capture == capture && each->number == event->number && each != stream &&
            event->captured_at >= each->captured_at)
            each->unjoined = false;
    stream->capture = capture;
    emu_graph_wait(capture->graph, stream->number, event->number, event->captured_at);
    worked(stream);
    return ZR_CU_SUCCESS;
}

bool emu_captured_wait(struct zr_cu_event_st *event, struct zr_cu_context_st *context,
                       struct zr_cu_stream_st *stream, zr_cu_result *code)
{
    struct emu_capture *theirs = event->captured, *ours = stream ? stream->capture : NULL;
    if (captured(context, stream, code) && *code != ZR_CU_SUCCESS)
        return true;
    if (!theirs && !ongoing(ours))
        return false;
    if (!theirs) /* recorded outside, or never: then there is nothing to wait for */
        *code = event->end ? break_off(ours, EMU_CAPTURE_ISOLATION) : ZR_CU_SUCCESS;
    else if (theirs->ended)
        *code = ZR_CU_INVALID_VALUE;
    else if (theirs->broken)
        *code = ZR_CU_CAPTURE_INVALIDATED;
    else if (!stream)
        *code = break_off(theirs, ZR_CU_CAPTURE_IMPLICIT);
    else if (ongoing(ours) && ours != theirs)
        *code = break_off(ours, break_off(theirs, EMU_CAPTURE_MERGE));
    else
        *code = join(theirs, stream, event);
    return true;
}

/* ---- Beginning and end --------------------------------------------------------------------------------- */

static void begin(struct zr_cu_stream_st *stream, zr_cu_capture_mode mode)
{
    struct emu_capture *made = emu_must(calloc(1, sizeof *made));
    *made = (struct emu_capture){.next = captures,
                                 .mode = mode,
                                 .thread = &own_mode,
                                 .origin = stream,
                                 .graph = emu_graph_new(stream->number)};
    captures = stream->capture = made;
    stream->unjoined = false;
    stream->captured_at = 0;
}

PUBLIC zr_cu_result cuStreamBeginCapture_v2(zr_cu_stream stream, zr_cu_capture_mode mode)
{
    zr_cu_result code = emu_enter(EMU_capture_begin, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS && (unsigned)mode > ZR_CU_CAPTURE_RELAXED)
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS && emu_no_stream(&stream, emu_current()))
        code = ZR_CU_INVALID_HANDLE;
    if (code == ZR_CU_SUCCESS && !stream)
        code = ZR_CU_STREAM_CAPTURE_UNSUPPORTED;
    if (code == ZR_CU_SUCCESS && ongoing(stream->capture))
        code = EMU_ILLEGAL_STATE;
    if (code == ZR_CU_SUCCESS)
        begin(stream, mode);
    return emu_leave(code);
}

static void end(struct emu_capture *capture)
{
    struct zr_cu_stream_st *each = NULL;
    capture->ended = true;
    while ((each = emu_streams_next(each)))
        if (each->capture == capture)
            each->capture = NULL;
}

static bool all_joined(const struct emu_capture *capture)
{
    struct zr_cu_stream_st *each = NULL;
    while ((each = emu_streams_next(each)))
        if (each->capture == capture && each->unjoined)
            return false;
    return true;
}

static zr_cu_result end_capture(struct zr_cu_stream_st *stream, zr_cu_graph *out)
{
    struct emu_capture *capture = stream ? stream->capture : NULL;
    zr_cu_result code = ZR_CU_SUCCESS;
    if (!ongoing(capture))
        return EMU_ILLEGAL_STATE;
    if (capture->origin != stream)
        return break_off(capture, EMU_CAPTURE_UNMATCHED);
    if (capture->mode != ZR_CU_CAPTURE_RELAXED && capture->thread != &own_mode)
        return EMU_CAPTURE_WRONG_THREAD;
    if (capture->broken)
        code = ZR_CU_CAPTURE_INVALIDATED;
    else if (!all_joined(capture))
        code = EMU_CAPTURE_UNJOINED;
    end(capture);
    emu_graph_end_recording(capture->graph);
    if (code != ZR_CU_SUCCESS)
        emu_graph_drop(capture->graph);
    *out = code == ZR_CU_SUCCESS ? capture->graph : NULL;
    return code;
}

PUBLIC zr_cu_result cuStreamEndCapture(zr_cu_stream stream, zr_cu_graph *out)
{
    zr_cu_result code = emu_enter(EMU_capture_end, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS && !out)
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS && emu_no_stream(&stream, emu_current()))
        code = ZR_CU_INVALID_HANDLE;
    return emu_leave(code == ZR_CU_SUCCESS ? end_capture(stream, out) : code);
}

PUBLIC zr_cu_result cuStreamIsCapturing(zr_cu_stream stream, zr_cu_capture_status *out)
{
    zr_cu_result code = emu_enter(EMU_stream_capturing, EMU_CONTEXT);
    struct zr_cu_context_st *context = emu_current();
    if (code == ZR_CU_SUCCESS && !out)
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS && emu_no_stream(&stream, context))
        code = ZR_CU_INVALID_HANDLE;
    if (code == ZR_CU_SUCCESS && !stream && in_the_way(context, false))
        code = ZR_CU_CAPTURE_IMPLICIT; /* and the capture goes on */
    if (code == ZR_CU_SUCCESS)
        *out = !stream || !ongoing(stream->capture) ? ZR_CU_CAPTURE_NONE
               : stream->capture->broken            ? ZR_CU_CAPTURE_BROKEN
                                                    : ZR_CU_CAPTURE_ACTIVE;
    return emu_leave(code);
}

PUBLIC zr_cu_result cuThreadExchangeStreamCaptureMode(zr_cu_capture_mode *mode)
{
    zr_cu_result code = emu_enter(EMU_capture_mode, EMU_INIT);
    if (code == ZR_CU_SUCCESS && (!mode || (unsigned)*mode > ZR_CU_CAPTURE_RELAXED))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS) {
        zr_cu_capture_mode before = own_mode;
        own_mode = *mode;
        *mode = before;
    }
    return emu_leave(code);
}

void emu_capture_forget(struct zr_cu_stream_st *stream)
{
    struct emu_capture *capture = stream->capture;
    if (!ongoing(capture))
        return;
    capture->broken = true;
    if (capture->origin == stream) {
        end(capture);
        emu_graph_end_recording(capture->graph);
        emu_graph_drop(capture->graph);
    }
}
