/* work.c: the emulated driver's streams, events, copies and fills. Work is kept until the context's clock has
 * reached its end, and carried out then: see emulator.h. */
#include "tests/emulators/cuda/emulator.h"

#include <stdlib.h>
#include <string.h>

#define PUBLIC      __attribute__((visibility("default")))
#define PIECE_BYTES ((size_t)64 << 10)

struct emu_work {
    struct emu_work *next;  /* of the context, by end */
    uint64_t end;           /* by the context's clock */
    zr_cu_address to, from; /* from: 0 for a fill or what was staged */
    size_t bytes;
    unsigned char value;
    unsigned char *staged; /* a copy of the program's bytes, owned */
};

struct zr_cu_stream_st {
    struct zr_cu_stream_st *next;
    struct zr_cu_context_st *context;
    uint64_t last, slowness;
    unsigned thread; /* whose default stream it is; 0: nobody's */
    bool non_blocking;
};

struct zr_cu_event_st {
    struct zr_cu_event_st *next;      /* free ones */
    struct zr_cu_context_st *context; /* NULL: free */
    uint64_t end;
};

enum { EVENTS_MOST = 1 << 17 };

static struct zr_cu_stream_st *streams, *thread_streams;
static unsigned threads_count;
static __thread unsigned own_thread; /* from 1 */
static struct zr_cu_event_st events[EVENTS_MOST], *free_event;
static size_t events_count, live_events_count;

void emu_work_state(struct zr_emulator_state *out)
{
    for (const struct zr_cu_stream_st *each = streams; each; each = each->next)
        out->streams_count++;
    out->events_count = live_events_count;
    for (int i = 0; i < emu.devices_count; i++)
        for (const struct emu_work *work = emu_context(i)->pending; work; work = work->next)
            out->pending_count++;
}

/* ---- Carrying out -------------------------------------------------------------------------------------- */

static void copy_now(zr_cu_address to, zr_cu_address from, size_t bytes)
{
    unsigned char *piece = malloc(PIECE_BYTES);
    for (size_t done = 0; piece && done < bytes;) {
        size_t part = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        emu_read(from + done, piece, part);
        emu_write(to + done, piece, part);
        done += part;
    }
    free(piece);
}

static void fill_now(zr_cu_address to, unsigned char value, size_t bytes)
{
    unsigned char *piece = malloc(PIECE_BYTES);
    if (!piece)
        abort();
    memset(piece, value, PIECE_BYTES);
    for (size_t done = 0; done < bytes;) {
        size_t part = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        emu_write(to + done, piece, part);
        done += part;
    }
    free(piece);
}

static void carry_out(struct zr_cu_context_st *context, const struct emu_work *work)
{
    if (emu_place(work->to, work->bytes, context->device, ZR_CU_ACCESS_READ_WRITE) != EMU_MAPPED ||
        (work->from && emu_place(work->from, work->bytes, context->device, ZR_CU_ACCESS_READ) != EMU_MAPPED))
        context->dead = ZR_CU_ILLEGAL_ADDRESS;
    else if (work->staged)
        emu_write(work->to, work->staged, work->bytes);
    else if (work->from)
        copy_now(work->to, work->from, work->bytes);
    else
        fill_now(work->to, work->value, work->bytes);
}

void emu_run(struct zr_cu_context_st *context)
{
    while (context->pending && (context->pending->end <= context->clock || context->dead)) {
        struct emu_work *work = context->pending;
        context->pending = work->next;
        if (!context->dead)
            carry_out(context, work);
        free(work->staged);
        free(work);
    }
}

static bool meets(zr_cu_address first, size_t first_bytes, zr_cu_address second, size_t second_bytes)
{
    return first < second + second_bytes && second < first + first_bytes;
}

void emu_unmapped(zr_cu_address address, size_t bytes)
{
    for (int i = 0; i < emu.devices_count; i++) {
        struct zr_cu_context_st *context = emu_context(i);
        for (const struct emu_work *work = context->pending; work; work = work->next)
            if (meets(work->to, work->bytes, address, bytes) ||
                (work->from && meets(work->from, work->bytes, address, bytes)))
                context->dead = ZR_CU_ILLEGAL_ADDRESS;
    }
}

static zr_cu_result wait_until(struct zr_cu_context_st *context, uint64_t end)
{
    if (context->clock < end)
        context->clock = end;
    emu_run(context);
    return context->dead;
}

/* ---- How long work takes ------------------------------------------------------------------------------- */

enum { SLOWNESS_MOST = 8 };

/* xorshift64* */
static uint64_t draw(uint64_t end)
{
    emu.random ^= emu.random >> 12;
    emu.random ^= emu.random << 25;
    emu.random ^= emu.random >> 27;
    return (emu.random * UINT64_C(0x2545f4914f6cdd1d) >> 32) % end;
}

/* Streams are slow or quick, and their work is long or short: what is submitted first may end last, but in
 * one stream. */
static uint64_t length_of_work(struct zr_cu_context_st *context, struct zr_cu_stream_st *stream)
{
    uint64_t *slowness = stream ? &stream->slowness : &context->null_slowness;
    if (emu.exact_ticks)
        return emu.work_ticks;
    if (*slowness == 0)
        *slowness = 1 + draw(SLOWNESS_MOST);
    return 1 + draw(2 * emu.work_ticks * *slowness);
}

/* ---- Submitting ---------------------------------------------------------------------------------------- */

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
    struct zr_cu_stream_st *made = calloc(1, sizeof *made);
    if (!made)
        abort();
    *made = (struct zr_cu_stream_st){.next = thread_streams, .context = context, .thread = own_thread};
    return thread_streams = made;
}

/* The handle may be the number of a default stream; *stream gets the record then, NULL for the NULL stream.
 */
static bool no_stream(zr_cu_stream *stream, struct zr_cu_context_st *context)
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

/* When work that is submitted to the stream now begins at the earliest: the NULL stream waits for all
 * blocking streams, and they for it. */
static uint64_t stream_end(const struct zr_cu_context_st *context, const struct zr_cu_stream_st *stream)
{
    if (!stream)
        return context->null_last > context->blocking_last ? context->null_last : context->blocking_last;
    return stream->non_blocking || stream->last > context->null_last ? stream->last : context->null_last;
}

static void submit(struct zr_cu_context_st *context, struct zr_cu_stream_st *stream, struct emu_work work)
{
    struct emu_work *made = malloc(sizeof *made);
    uint64_t start = stream_end(context, stream);
    if (!made)
        abort();
    *made = work;
    made->end = (start > context->clock ? start : context->clock) + length_of_work(context, stream);
    if (!stream)
        context->null_last = made->end;
    else
        stream->last = made->end;
    if (stream && !stream->non_blocking && made->end > context->blocking_last)
        context->blocking_last = made->end;
    if (made->end > context->last)
        context->last = made->end;
    struct emu_work **link = &context->pending;
    while (*link && (*link)->end <= made->end)
        link = &(*link)->next;
    made->next = *link;
    *link = made;
}

static zr_cu_result copy(zr_cu_address to, zr_cu_address from, size_t bytes, zr_cu_stream stream)
{
    struct zr_cu_context_st *context = emu_current();
    if (no_stream(&stream, context))
        return ZR_CU_INVALID_HANDLE;
    if (bytes == 0)
        return ZR_CU_SUCCESS;
    enum emu_place to_place = emu_place(to, bytes, context->device, ZR_CU_ACCESS_READ_WRITE);
    enum emu_place from_place = emu_place(from, bytes, context->device, ZR_CU_ACCESS_READ);
    if (to_place == EMU_NOWHERE || from_place == EMU_NOWHERE)
        return ZR_CU_INVALID_VALUE;
    void *to_host = (void *)(uintptr_t)to, *from_host = (void *)(uintptr_t)from;
    if (to_place == EMU_HOST) {
        /* To pageable memory: done when the call returns. */
        zr_cu_result code = wait_until(context, stream_end(context, stream));
        if (code != ZR_CU_SUCCESS)
            return code;
        if (from_place == EMU_HOST)
            memmove(to_host, from_host, bytes);
        else if (emu_place(from, bytes, context->device, ZR_CU_ACCESS_READ) == EMU_MAPPED)
            emu_read(from, to_host, bytes);
        return ZR_CU_SUCCESS;
    }
    struct emu_work work = {.to = to, .from = from, .bytes = bytes};
    if (from_place == EMU_HOST) {
        work.from = 0;
        work.staged = malloc(bytes);
        if (!work.staged)
            abort();
        memcpy(work.staged, from_host, bytes);
    }
    submit(context, stream, work);
    return ZR_CU_SUCCESS;
}

PUBLIC zr_cu_result cuMemcpyAsync(zr_cu_address to, zr_cu_address from, size_t bytes, zr_cu_stream stream)
{
    zr_cu_result code = emu_enter(EMU_copy, EMU_CONTEXT);
    return emu_leave(code == ZR_CU_SUCCESS ? copy(to, from, bytes, stream) : code);
}

static zr_cu_result fill(zr_cu_address to, unsigned char value, size_t bytes, zr_cu_stream stream)
{
    struct zr_cu_context_st *context = emu_current();
    if (no_stream(&stream, context))
        return ZR_CU_INVALID_HANDLE;
    if (emu_place(to, bytes, context->device, ZR_CU_ACCESS_READ_WRITE) != EMU_MAPPED)
        return ZR_CU_INVALID_VALUE;
    submit(context, stream, (struct emu_work){.to = to, .bytes = bytes, .value = value});
    return ZR_CU_SUCCESS;
}

PUBLIC zr_cu_result cuMemsetD8Async(zr_cu_address to, unsigned char value, size_t bytes, zr_cu_stream stream)
{
    zr_cu_result code = emu_enter(EMU_fill, EMU_CONTEXT);
    return emu_leave(code == ZR_CU_SUCCESS ? fill(to, value, bytes, stream) : code);
}

/* Unlike a fill, a kernel's addresses are looked at only while it runs. */
zr_cu_result emu_launch(zr_cu_stream stream, zr_cu_address address, size_t bytes, unsigned char value)
{
    zr_cu_result code = emu_enter(EMU_launch, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS && no_stream(&stream, emu_current()))
        code = ZR_CU_INVALID_HANDLE;
    if (code == ZR_CU_SUCCESS)
        submit(emu_current(), stream, (struct emu_work){.to = address, .bytes = bytes, .value = value});
    return emu_leave(code);
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

PUBLIC zr_cu_result cuStreamCreate(zr_cu_stream *stream, unsigned int flags)
{
    zr_cu_result code = emu_enter(EMU_stream_create, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS) {
        struct zr_cu_stream_st *made = calloc(1, sizeof *made);
        if (!made)
            abort();
        *made = (struct zr_cu_stream_st){.next = streams,
                                         .context = emu_current(),
                                         .non_blocking = (flags & ZR_CU_STREAM_NON_BLOCKING) != 0};
        streams = made;
        *stream = made;
    }
    return emu_leave(code);
}

PUBLIC zr_cu_result cuStreamDestroy_v2(zr_cu_stream stream)
{
    zr_cu_result code = emu_enter(EMU_stream_destroy, EMU_CONTEXT);
    struct zr_cu_stream_st **link = &streams;
    while (*link && *link != stream)
        link = &(*link)->next;
    if (code == ZR_CU_SUCCESS && !*link)
        code = ZR_CU_INVALID_HANDLE;
    if (code == ZR_CU_SUCCESS) {
        *link = stream->next;
        free(stream);
    }
    return emu_leave(code);
}

PUBLIC zr_cu_result cuStreamSynchronize(zr_cu_stream stream)
{
    zr_cu_result code = emu_enter(EMU_stream_synchronize, EMU_CONTEXT);
    struct zr_cu_context_st *context = emu_current();
    if (code == ZR_CU_SUCCESS && no_stream(&stream, context))
        code = ZR_CU_INVALID_HANDLE;
    return emu_leave(code == ZR_CU_SUCCESS ? wait_until(context, stream_end(context, stream)) : code);
}

PUBLIC zr_cu_result cuCtxSynchronize(void)
{
    zr_cu_result code = emu_enter(EMU_context_synchronize, EMU_CONTEXT);
    return emu_leave(code == ZR_CU_SUCCESS ? wait_until(emu_current(), emu_current()->last) : code);
}

/* ---- Events -------------------------------------------------------------------------------------------- */

static bool no_event(const struct zr_cu_event_st *event)
{
    return event < events || event >= events + events_count || !event->context;
}

PUBLIC zr_cu_result cuEventCreate(zr_cu_event *event, unsigned int flags)
{
    zr_cu_result code = emu_enter(EMU_event_create, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS && flags > 7)
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS && !free_event && events_count == EVENTS_MOST)
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
        (no_event(event) || event->context != context || no_stream(&stream, context)))
        code = ZR_CU_INVALID_HANDLE;
    if (code == ZR_CU_SUCCESS)
        event->end = stream_end(context, stream);
    return emu_leave(code);
}

PUBLIC zr_cu_result cuEventQuery(zr_cu_event event)
{
    zr_cu_result code = emu_enter(EMU_event_query, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS && no_event(event))
        code = ZR_CU_INVALID_HANDLE;
    if (code == ZR_CU_SUCCESS && event->context->clock < event->end)
        code = ZR_CU_NOT_READY;
    return emu_leave(code);
}

PUBLIC zr_cu_result cuEventSynchronize(zr_cu_event event)
{
    zr_cu_result code = emu_enter(EMU_event_synchronize, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS && no_event(event))
        code = ZR_CU_INVALID_HANDLE;
    return emu_leave(code == ZR_CU_SUCCESS ? wait_until(event->context, event->end) : code);
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
