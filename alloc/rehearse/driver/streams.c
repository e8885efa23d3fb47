/* streams.c: the emulated driver's streams and events. See emulator.h. */
#include "alloc/rehearse/driver/inside.h"

#include <stdlib.h>

enum { EVENTS_MAX = 1 << 17 };

static struct zr_cu_stream_st *streams, *thread_streams;
static unsigned threads_count;
static uint64_t last_number;
static __thread unsigned own_thread; /* from 1 */
static struct zr_cu_event_st events[EVENTS_MAX], *free_event;
static size_t events_count, live_events_count;

void emu_streams_state(struct zr_emulator_state *out)
{
    for (const struct zr_cu_stream_st *each = streams; each; each = each->next)
        out->streams_count++;
    out->events_count = live_events_count;
}

/* ---- Which one ----------------------------------------------------------------------------------------- */

/* The calling thread's own default stream of the context, which waits for the NULL stream as blocking ones
 * do. */
static struct zr_cu_stream_st *stream_of_thread(struct zr_cu_context_st *context)
{
    struct zr_cu_stream_st *each = thread_streams;
    if (own_thread == 0)
        own_thread = ++threads_count;
    while (each && (each->thread != own_thread || each->context != context))
        each = each->next;
    if (each)
        return each;
    struct zr_cu_stream_st *made = emu_must(calloc(1, sizeof *made));
    *made = (struct zr_cu_stream_st){
        .next = thread_streams, .context = context, .thread = own_thread, .number = ++last_number};
    return thread_streams = made;
}

bool emu_no_stream(zr_cu_stream *stream, struct zr_cu_context_st *context)
{
    const struct zr_cu_stream_st *each = streams;
    if ((uintptr_t)*stream <= ZR_CU_STREAM_PER_THREAD) {
        *stream = (uintptr_t)*stream == ZR_CU_STREAM_PER_THREAD ? stream_of_thread(context) : NULL;
        return false;
    }
    while (each && each != *stream)
        each = each->next;
    return !each || each->context != context;
}

/* The NULL stream waits for all blocking streams, and they for it. */
uint64_t emu_stream_end(const struct zr_cu_context_st *context, const struct zr_cu_stream_st *stream)
{
    if (!stream)
        return context->null_last > context->blocking_last ? context->null_last : context->blocking_last;
    return stream->non_blocking || stream->last > context->null_last ? stream->last : context->null_last;
}

uint64_t emu_stream_number(const struct zr_cu_stream_st *stream)
{
    return stream ? stream->number : 0;
}

bool emu_stream_blocks(const struct zr_cu_stream_st *stream)
{
    return !stream || !stream->non_blocking;
}

struct emu_point emu_stream_point(const struct zr_cu_context_st *context,
                                  const struct zr_cu_stream_st *stream)
{
    return (struct emu_point){emu_stream_end(context, stream), emu_stream_number(stream),
                              emu_stream_blocks(stream)};
}

/* The threads' own come behind the program's. */
struct zr_cu_stream_st *emu_streams_next(struct zr_cu_stream_st *previous)
{
    struct zr_cu_stream_st *next = previous ? previous->next : streams;
    bool last_of_program = previous ? !next && previous->thread == 0 : !next;
    return last_of_program ? thread_streams : next;
}

static void end_of(struct zr_cu_stream_st **list, const struct zr_cu_context_st *context)
{
    while (*list) {
        struct zr_cu_stream_st *each = *list;
        if (each->context == context) {
            emu_capture_forget(each);
            *list = each->next;
            free(each);
        } else {
            list = &each->next;
        }
    }
}

void emu_streams_end(struct zr_cu_context_st *context)
{
    end_of(&streams, context);
    end_of(&thread_streams, context);
    for (size_t i = 0; i < events_count; i++)
        if (events[i].context == context) {
            events[i] = (struct zr_cu_event_st){.next = free_event};
            free_event = &events[i];
            live_events_count--;
        }
}

/* ---- Streams ------------------------------------------------------------------------------------------- */

/* Of any device's streams, whichever context is current. */
PUBLIC zr_cu_result cuStreamGetCtx(zr_cu_stream stream, zr_cu_context *context)
{
    zr_cu_result code = emu_enter(EMU_stream_context, EMU_CONTEXT);
    const struct zr_cu_stream_st *each = streams;
    bool default_one = (uintptr_t)stream <= ZR_CU_STREAM_PER_THREAD;
    while (each && each != stream)
        each = each->next;
    if (code == ZR_CU_SUCCESS && !default_one && !each)
        code = ZR_CU_INVALID_HANDLE;
    if (code == ZR_CU_SUCCESS)
        *context = default_one ? emu_current() : each->context;
    return emu_leave(code);
}

static zr_cu_result create(enum emu_call call, zr_cu_stream *out, unsigned flags, int priority)
{
    zr_cu_result code = emu_enter(call, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS && (!out || flags > ZR_CU_STREAM_NON_BLOCKING))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS) {
        struct zr_cu_stream_st *made = emu_must(calloc(1, sizeof *made));
        *made = (struct zr_cu_stream_st){.next = streams,
                                         .context = emu_current(),
                                         .number = ++last_number,
                                         .flags = flags,
                                         .priority = priority,
                                         .non_blocking = (flags & ZR_CU_STREAM_NON_BLOCKING) != 0};
        streams = made;
        *out = made;
    }
    return emu_leave(code);
}

PUBLIC zr_cu_result cuStreamCreate(zr_cu_stream *out, unsigned int flags)
{
    return create(EMU_stream_new, out, flags, 0);
}

struct zr_cu_stream_st *emu_stream_hidden(struct zr_cu_context_st *context)
{
    struct zr_cu_stream_st *made = emu_must(calloc(1, sizeof *made));
    *made = (struct zr_cu_stream_st){.context = context, .number = ++last_number, .non_blocking = true};
    return made;
}

/* Priorities change nothing here. */
PUBLIC zr_cu_result cuStreamCreateWithPriority(zr_cu_stream *out, unsigned int flags, int priority)
{
    return create(EMU_stream_new_priority, out, flags, priority);
}

PUBLIC zr_cu_result cuStreamDestroy_v2(zr_cu_stream stream)
{
    zr_cu_result code = emu_enter(EMU_stream_end, EMU_CONTEXT);
    struct zr_cu_stream_st **link = &streams;
    while (*link && *link != stream)
        link = &(*link)->next;
    if (code == ZR_CU_SUCCESS && !*link)
        code = ZR_CU_INVALID_HANDLE;
    if (code == ZR_CU_SUCCESS) {
        emu_capture_forget(stream);
        *link = stream->next;
        free(stream);
    }
    return emu_leave(code);
}

PUBLIC zr_cu_result cuStreamSynchronize(zr_cu_stream stream)
{
    zr_cu_result code = emu_enter(EMU_stream_synchronize, EMU_CONTEXT);
    struct zr_cu_context_st *context = emu_current();
    if (code == ZR_CU_SUCCESS && emu_no_stream(&stream, context))
        code = ZR_CU_INVALID_HANDLE;
    if (code == ZR_CU_SUCCESS)
        code = emu_capture_asked(context, stream, false);
    if (code == ZR_CU_SUCCESS)
        code = emu_wait_for(context, emu_stream_point(context, stream));
    return emu_leave(code);
}

PUBLIC zr_cu_result cuStreamQuery(zr_cu_stream stream)
{
    zr_cu_result code = emu_enter(EMU_stream_query, EMU_CONTEXT);
    struct zr_cu_context_st *context = emu_current();
    if (code == ZR_CU_SUCCESS && emu_no_stream(&stream, context))
        code = ZR_CU_INVALID_HANDLE;
    if (code == ZR_CU_SUCCESS)
        code = emu_capture_asked(context, stream, false);
    if (code == ZR_CU_SUCCESS && !emu_reached(context, emu_stream_point(context, stream)))
        code = ZR_CU_NOT_READY;
    return emu_leave(code);
}

PUBLIC zr_cu_result cuCtxSynchronize(void)
{
    zr_cu_result code = emu_enter(EMU_context_synchronize, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS)
        code = emu_capture_asked(emu_current(), NULL, true);
    return emu_leave(code == ZR_CU_SUCCESS ? emu_wait_until(emu_current(), emu_current()->last) : code);
}

/* ---- Events -------------------------------------------------------------------------------------------- */

static struct emu_point point_of(const struct zr_cu_event_st *event)
{
    return (struct emu_point){event->end, event->number, event->blocking};
}

static bool no_event(const struct zr_cu_event_st *event)
{
    return event < events || event >= events + events_count || !event->context;
}

PUBLIC zr_cu_result cuEventCreate(zr_cu_event *event, unsigned int flags)
{
    zr_cu_result code = emu_enter(EMU_event_create, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS && flags > 7)
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS && !free_event && events_count == EVENTS_MAX)
        code = ZR_CU_OUT_OF_MEMORY;
    if (code == ZR_CU_SUCCESS) {
        *event = free_event ? free_event : &events[events_count++];
        free_event = (*event)->next;
        **event = (struct zr_cu_event_st){.context = emu_current()};
        live_events_count++;
    }
    return emu_leave(code);
}

PUBLIC zr_cu_result cuEventRecord(zr_cu_event event, zr_cu_stream stream)
{
    zr_cu_result code = emu_enter(EMU_event_record, EMU_CONTEXT);
    struct zr_cu_context_st *context = emu_current();
    if (code == ZR_CU_SUCCESS &&
        (no_event(event) || event->context != context || emu_no_stream(&stream, context)))
        code = ZR_CU_INVALID_HANDLE;
    if (code == ZR_CU_SUCCESS && !emu_captured_record(event, context, stream, &code)) {
        event->captured = NULL;
        event->end = emu_stream_end(context, stream);
        event->time = event->end > context->clock ? event->end : context->clock;
        event->number = emu_stream_number(stream);
        event->blocking = emu_stream_blocks(stream);
    }
    return emu_leave(code);
}

/* For reuse in pools: what the stream is behind of. The oldest is forgotten. */
static void remember(struct zr_cu_stream_st *stream, uint64_t number, uint64_t end)
{
    unsigned i = 0;
    while (i < stream->awaited_count && stream->awaited[i].number != number)
        i++;
    if (i == EMU_AWAITED_MAX) {
        for (i = 1; i < EMU_AWAITED_MAX; i++)
            stream->awaited[i - 1] = stream->awaited[i];
        i = EMU_AWAITED_MAX - 1;
    } else if (i == stream->awaited_count) {
        stream->awaited_count++;
    } else if (stream->awaited[i].end > end) {
        return;
    }
    stream->awaited[i].number = number;
    stream->awaited[i].end = end;
}

/* The stream is the current context's, the event any's. */
PUBLIC zr_cu_result cuStreamWaitEvent(zr_cu_stream stream, zr_cu_event event, unsigned int flags)
{
    zr_cu_result code = emu_enter(EMU_stream_wait_event, EMU_CONTEXT);
    struct zr_cu_context_st *context = emu_current();
    if (code == ZR_CU_SUCCESS && flags > 1)
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS && (no_event(event) || emu_no_stream(&stream, context)))
        code = ZR_CU_INVALID_HANDLE;
    if (code == ZR_CU_SUCCESS && !emu_captured_wait(event, context, stream, &code)) {
        if (stream)
            remember(stream, event->number, event->end);
        emu_submit(context, stream,
                   (struct emu_work){.kind = EMU_WAIT,
                                     .awaits = event->context,
                                     .awaits_end = event->end,
                                     .awaits_number = event->number,
                                     .awaits_blocking = event->blocking});
    }
    return emu_leave(code);
}

PUBLIC zr_cu_result cuEventQuery(zr_cu_event event)
{
    zr_cu_result code = emu_enter(EMU_event_query, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS && no_event(event))
        code = ZR_CU_INVALID_HANDLE;
    if (code == ZR_CU_SUCCESS && event->captured)
        code = emu_capture_event_asked(event);
    if (code == ZR_CU_SUCCESS && !emu_reached(event->context, point_of(event)))
        code = ZR_CU_NOT_READY;
    return emu_leave(code);
}

PUBLIC zr_cu_result cuEventSynchronize(zr_cu_event event)
{
    zr_cu_result code = emu_enter(EMU_event_synchronize, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS && no_event(event))
        code = ZR_CU_INVALID_HANDLE;
    if (code == ZR_CU_SUCCESS && event->captured)
        code = emu_capture_event_asked(event);
    return emu_leave(code == ZR_CU_SUCCESS ? emu_wait_for(event->context, point_of(event)) : code);
}

PUBLIC zr_cu_result cuEventElapsedTime(float *milliseconds, zr_cu_event begin, zr_cu_event end);
/* A tick counts as a microsecond. */
PUBLIC zr_cu_result cuEventElapsedTime(float *milliseconds, zr_cu_event begin, zr_cu_event end)
{
    zr_cu_result code = emu_enter(EMU_event_query, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS && (no_event(begin) || no_event(end)))
        code = ZR_CU_INVALID_HANDLE;
    if (code == ZR_CU_SUCCESS &&
        !(emu_reached(begin->context, point_of(begin)) && emu_reached(end->context, point_of(end))))
        code = ZR_CU_NOT_READY;
    if (code == ZR_CU_SUCCESS)
        *milliseconds = end->time > begin->time ? (float)(end->time - begin->time) / 1000 : 0;
    return emu_leave(code);
}

PUBLIC zr_cu_result cuEventDestroy_v2(zr_cu_event event)
{
    zr_cu_result code = emu_enter(EMU_event_destroy, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS && no_event(event))
        code = ZR_CU_INVALID_HANDLE;
    if (code == ZR_CU_SUCCESS) {
        *event = (struct zr_cu_event_st){.next = free_event};
        free_event = event;
        live_events_count--;
    }
    return emu_leave(code);
}
