/* timeline.c: keeps what the engine notes on the clock of a rehearsal; see timeline.h. */
#include "zero/timeline.h"

#include <stdio.h>
#include <string.h>

#include "alloc/base/sort.h"
#include "zero/comm/take.h"

const char *zr_timeline_kind_name(enum zr_timeline_kind kind)
{
    static const char *const names[ZR_TIMELINE_KINDS] = {"forward", "backward", "optimizer", "gather",
                                                         "reduce"};
    return names[kind];
}

void zr_timeline_start(struct zr_timeline *out, zr_arena *host_arena, double flops_per_second,
                       double bytes_per_second)
{
    zr_assert(flops_per_second > 0 && bytes_per_second > 0);
    *out = (struct zr_timeline){
        .host_arena = host_arena,
        .events_most = ZR_TIMELINE_EVENTS_MAX,
        .clock = {.flops_per_second = flops_per_second, .bytes_per_second = bytes_per_second}};
}

void zr_timeline_end(struct zr_timeline *timeline)
{
    zr_drop(timeline->host_arena, &timeline->events);
    timeline->events_count = timeline->events_room = 0;
}

double zr_timeline_now(const struct zr_timeline *timeline)
{
    return timeline ? zr_comm_clock_now(&timeline->clock) : 0;
}

/* ---- Steps --------------------------------------------------------------------------------------------- */

void zr_timeline_step_begin(struct zr_timeline *timeline)
{
    const struct zr_comm_clock *clock = &timeline->clock;

    timeline->running = true;
    timeline->step_begin_seconds = zr_comm_clock_now(clock);
    timeline->flops = clock->flops;
    timeline->comm_seconds = clock->busy_seconds;
    timeline->waited_seconds = clock->waited_seconds;
    timeline->sent_bytes = clock->sent_bytes;
    memset(timeline->phases, 0, sizeof timeline->phases);
    timeline->events_count = 0;
    timeline->micro_batch = 0;
}

static bool is_before(const void *left, const void *right)
{
    const struct zr_timeline_event *a = left, *b = right;
    return a->begin_seconds != b->begin_seconds ? a->begin_seconds < b->begin_seconds : a->order < b->order;
}

/* ---- Events -------------------------------------------------------------------------------------------- */

static zr_result make_room(struct zr_timeline *timeline)
{
    size_t room = timeline->events_room ? 2 * timeline->events_room : 256;
    struct zr_timeline_event *more;
    zr_result result = zr_take(timeline->host_arena, ZR_TAG_OTHER, room, sizeof *more, (void **)&more);
    if (result != ZR_OK)
        return result;
    if (timeline->events_count > 0)
        memcpy(more, timeline->events, timeline->events_count * sizeof *more);
    zr_drop(timeline->host_arena, &timeline->events);
    timeline->events = more;
    timeline->events_room = room;
    return ZR_OK;
}

static void count_event(struct zr_timeline *timeline, const struct zr_timeline_event *event)
{
    struct zr_timeline_phase *phase = &timeline->phases[event->kind];
    if (phase->count == 0 || event->begin_seconds < phase->begin_seconds)
        phase->begin_seconds = event->begin_seconds;
    if (phase->count == 0 || event->end_seconds > phase->end_seconds)
        phase->end_seconds = event->end_seconds;
    phase->busy_seconds += event->end_seconds - event->begin_seconds;
    phase->count++;
}

/* Appends an event that was counted, if there is room for one more. */
static void append(struct zr_timeline *timeline, struct zr_timeline_event event)
{
    if (timeline->events_count >= timeline->events_most)
        return;
    if (timeline->events_count == timeline->events_room && timeline->result == ZR_OK)
        timeline->result = make_room(timeline);
    event.order = (uint32_t)timeline->events_count;
    if (timeline->result == ZR_OK)
        timeline->events[timeline->events_count++] = event;
}

/* Times of the clock become those of the step. */
static void keep(struct zr_timeline *timeline, struct zr_timeline_event event)
{
    if (!timeline->running)
        return; /* an evaluation */
    event.micro_batch = timeline->micro_batch;
    event.begin_seconds -= timeline->step_begin_seconds;
    event.end_seconds -= timeline->step_begin_seconds;
    count_event(timeline, &event);
    append(timeline, event);
}

static struct zr_timeline_event event_of(enum zr_timeline_kind kind, struct zr_timeline_unit unit)
{
    struct zr_timeline_event event = {.kind = kind};
    snprintf(event.unit, sizeof event.unit, "%s", unit.name);
    return event;
}

/* The place of a unit in use, open_count if it is not. */
static unsigned find_open(const struct zr_timeline *timeline, unsigned unit)
{
    unsigned at = 0;
    while (at < timeline->open_count && timeline->open[at].unit != unit)
        at++;
    return at;
}

void zr_timeline_enter(struct zr_timeline *timeline, struct zr_timeline_unit unit)
{
    if (!timeline)
        return;
    zr_assert(timeline->open_count < ZR_TIMELINE_OPEN_MAX);
    timeline->open[timeline->open_count].unit = unit.index;
    timeline->open[timeline->open_count].backward = false;
    timeline->open[timeline->open_count++].begin_seconds = zr_timeline_now(timeline);
}

void zr_timeline_turn_backward(struct zr_timeline *timeline, struct zr_timeline_unit unit)
{
    unsigned at = timeline ? find_open(timeline, unit.index) : 0;
    if (timeline && at < timeline->open_count)
        timeline->open[at].backward = true;
}

void zr_timeline_leave(struct zr_timeline *timeline, struct zr_timeline_unit unit)
{
    if (!timeline)
        return;
    unsigned at = find_open(timeline, unit.index);
    zr_assert(at < timeline->open_count);
    struct zr_timeline_event event =
        event_of(timeline->open[at].backward ? ZR_TIMELINE_BACKWARD : ZR_TIMELINE_FORWARD, unit);
    event.begin_seconds = timeline->open[at].begin_seconds;
    event.end_seconds = zr_timeline_now(timeline);
    timeline->open[at] = timeline->open[--timeline->open_count];
    keep(timeline, event);
}

void zr_timeline_sent(struct zr_timeline *timeline, enum zr_timeline_kind kind, struct zr_timeline_unit unit)
{
    if (!timeline || timeline->clock.end_seconds == timeline->clock.begin_seconds)
        return; /* one rank alone sends nothing */
    struct zr_timeline_event event = event_of(kind, unit);
    event.begin_seconds = timeline->clock.begin_seconds;
    event.end_seconds = timeline->clock.end_seconds;
    keep(timeline, event);
}

void zr_timeline_optimizer(struct zr_timeline *timeline, double begin_seconds)
{
    if (!timeline)
        return;
    struct zr_timeline_event event = event_of(ZR_TIMELINE_OPTIMIZER, (struct zr_timeline_unit){0, ""});
    event.begin_seconds = begin_seconds;
    event.end_seconds = zr_timeline_now(timeline);
    keep(timeline, event);
}

/* ---- The end of a step --------------------------------------------------------------------------------- */

struct zr_timeline_mark zr_timeline_mark_now(const struct zr_timeline *timeline)
{
    const struct zr_comm_clock *clock = &timeline->clock;
    double now = zr_comm_clock_now(clock), behind = clock->end_seconds - now;
    struct zr_timeline_mark mark = {.seconds = now,
                                    .behind_seconds = behind > 0 ? behind : 0,
                                    .flops = clock->flops,
                                    .comm_seconds = clock->busy_seconds,
                                    .waited_seconds = clock->waited_seconds,
                                    .sent_bytes = clock->sent_bytes};
    memcpy(mark.phases, timeline->phases, sizeof mark.phases);
    return mark;
}

/* But for rounding: the clock is a sum of many terms. */
static bool alike(double a, double b, double scale)
{
    double difference = a > b ? a - b : b - a;
    return difference <= 1e-9 * scale;
}

bool zr_timeline_repeats(const struct zr_timeline_mark *a, const struct zr_timeline_mark *b,
                         const struct zr_timeline_mark *c)
{
    double length = c->seconds - b->seconds;
    return alike(b->seconds - a->seconds, length, length) &&
           alike(b->behind_seconds, c->behind_seconds, length + c->behind_seconds);
}

static struct zr_timeline_event moved(struct zr_timeline_event event, double seconds, unsigned micro_batches)
{
    event.begin_seconds += seconds;
    event.end_seconds += seconds;
    event.micro_batch += micro_batches;
    return event;
}

/* The events as if the micro-batch had been gone through so many times more. Where not all of a rehearsal are
 * kept, those of the micro-batch may be cut off: then there is no room for what follows them either. */
static void repeat_events(struct zr_timeline *timeline, const struct zr_timeline_repeat *repeat)
{
    struct zr_timeline_event *events = timeline->events;
    size_t count = timeline->events_count, first = 0, end;
    double length = repeat->end.seconds - repeat->begin.seconds;

    timeline->events = NULL;
    timeline->events_count = timeline->events_room = 0;
    for (; first < count && events[first].micro_batch < repeat->micro_batch; first++)
        append(timeline, events[first]);
    for (end = first; end < count && events[end].micro_batch == repeat->micro_batch;)
        end++;
    for (unsigned i = 0; i <= repeat->times && end > first; i++) {
        for (size_t at = first; at < end; at++)
            append(timeline, moved(events[at], i * length, i));
        if (timeline->events_count == timeline->events_most || timeline->result != ZR_OK)
            break;
    }
    for (size_t at = end; at < count; at++)
        append(timeline, moved(events[at], repeat->times * length, repeat->times));
    zr_drop(timeline->host_arena, &events);
}

/* The phases likewise. What was noted after the micro-batch, and the last time of what was noted in it, comes
 * as much later as the others take. */
static void repeat_phases(struct zr_timeline *timeline, const struct zr_timeline_repeat *repeat)
{
    double later = repeat->times * (repeat->end.seconds - repeat->begin.seconds);
    for (unsigned kind = 0; kind < ZR_TIMELINE_KINDS; kind++) {
        struct zr_timeline_phase *phase = &timeline->phases[kind];
        const struct zr_timeline_phase *begin = &repeat->begin.phases[kind], *end = &repeat->end.phases[kind];
        if (phase->count > begin->count)
            phase->end_seconds += later;
        if (end->count == 0 && phase->count > 0)
            phase->begin_seconds += later; /* the optimizer's */
        phase->count += repeat->times * (end->count - begin->count);
        phase->busy_seconds += repeat->times * (end->busy_seconds - begin->busy_seconds);
    }
}

zr_result zr_timeline_step_end(struct zr_timeline *timeline, const struct zr_timeline_repeat *repeat)
{
    const struct zr_comm_clock *clock = &timeline->clock;

    timeline->running = false;
    timeline->step_seconds = zr_comm_clock_now(clock) - timeline->step_begin_seconds;
    timeline->flops = clock->flops - timeline->flops;
    timeline->comm_seconds = clock->busy_seconds - timeline->comm_seconds;
    timeline->waited_seconds = clock->waited_seconds - timeline->waited_seconds;
    timeline->sent_bytes = clock->sent_bytes - timeline->sent_bytes;
    if (repeat && repeat->times > 0) {
        timeline->step_seconds += repeat->times * (repeat->end.seconds - repeat->begin.seconds);
        timeline->flops += repeat->times * (repeat->end.flops - repeat->begin.flops);
        timeline->comm_seconds += repeat->times * (repeat->end.comm_seconds - repeat->begin.comm_seconds);
        timeline->waited_seconds +=
            repeat->times * (repeat->end.waited_seconds - repeat->begin.waited_seconds);
        timeline->sent_bytes += repeat->times * (repeat->end.sent_bytes - repeat->begin.sent_bytes);
        repeat_phases(timeline, repeat);
        repeat_events(timeline, repeat);
    }
    timeline->left_out = 0;
    for (unsigned kind = 0; kind < ZR_TIMELINE_KINDS; kind++)
        timeline->left_out += timeline->phases[kind].count;
    timeline->left_out -= timeline->events_count;
    zr_sort_in_place(&(struct zr_sort_records){timeline->events, timeline->events_count,
                                               sizeof *timeline->events, is_before});
    return timeline->result;
}
