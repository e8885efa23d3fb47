/* timeline.c: records a rehearsal on its simulated clock; see timeline.h. */
#include "zero/plan/timeline.h"

#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/sort.h"
#include "zero/comm/take.h"
#include "zero/engine/engine.h"
#include "zero/model/activations.h"

void zr_timeline_end(struct zr_timeline *timeline)
{
    zr_drop(timeline->host_arena, &timeline->events);
    timeline->events_count = timeline->events_capacity = 0;
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
    timeline->host_waited_seconds = clock->host_waited_seconds;
    timeline->nvme_waited_seconds = clock->nvme_waited_seconds;
    timeline->sent_bytes = clock->sent_bytes;
    memset(timeline->phases, 0, sizeof timeline->phases);
    memset(timeline->part_seconds, 0, sizeof timeline->part_seconds);
    timeline->events_count = 0;
    timeline->micro_batch = 0;
}

static bool is_before(const void *left, const void *right)
{
    const struct zr_timeline_event *a = left, *b = right;
    return a->begin_seconds != b->begin_seconds ? a->begin_seconds < b->begin_seconds : a->order < b->order;
}

/* ---- Events -------------------------------------------------------------------------------------------- */

static zr_result grow_events(struct zr_timeline *timeline)
{
    size_t capacity = timeline->events_capacity ? 2 * timeline->events_capacity : 256;
    struct zr_timeline_event *more;
    zr_result result = zr_take(timeline->host_arena, ZR_TAG_OTHER, capacity, sizeof *more, (void **)&more);
    if (result != ZR_OK)
        return result;
    if (timeline->events_count > 0)
        memcpy(more, timeline->events, timeline->events_count * sizeof *more);
    zr_drop(timeline->host_arena, &timeline->events);
    timeline->events = more;
    timeline->events_capacity = capacity;
    return ZR_OK;
}

static void count_event(struct zr_timeline *timeline, const struct zr_timeline_event *event)
{
    zr_assert((size_t)event->kind < ZR_TIMELINE_KINDS);
    struct zr_timeline_phase *phase = &timeline->phases[event->kind];
    if (phase->count == 0 || event->begin_seconds < phase->begin_seconds)
        phase->begin_seconds = event->begin_seconds;
    if (phase->count == 0 || event->end_seconds > phase->end_seconds)
        phase->end_seconds = event->end_seconds;
    phase->busy_seconds += event->end_seconds - event->begin_seconds;
    phase->count++;
}

/* Appends an event that was counted, if there is space. */
static void append(struct zr_timeline *timeline, struct zr_timeline_event event)
{
    if (timeline->events_count >= timeline->events_max)
        return;
    if (timeline->events_count == timeline->events_capacity && timeline->result == ZR_OK)
        timeline->result = grow_events(timeline);
    event.order = (uint32_t)timeline->events_count;
    if (timeline->result == ZR_OK)
        timeline->events[timeline->events_count++] = event;
}

/* Converts times of the clock to times of the step. */
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

static void note(struct zr_timeline *timeline, struct zr_timeline_event event, const char *name)
{
    snprintf(event.name, sizeof event.name, "%s", name);
    keep(timeline, event);
}

/* The communicator received an operation on a unit's parameters or gradients. */
static void note_operation(void *state, unsigned label)
{
    struct zr_timeline *timeline = state;
    bool gradients = label % 2 == ZR_LABEL_GRADIENTS;
    if (timeline->running && label < ZR_COMM_LABEL_MESSAGE) /* of a unit */
        note(timeline,
             (struct zr_timeline_event){.kind = gradients ? ZR_ACTION_REDUCE : ZR_ACTION_GATHER,
                                        .begin_seconds = timeline->clock.begin_seconds,
                                        .end_seconds = timeline->clock.end_seconds},
             timeline->model->list.units[label / 2].name);
}

/* The module's name; for a module with parts, the name of the part's unit. */
static const char *name_of(const struct zr_model *model, const struct zr_action *action)
{
    const struct zr_module *module = &model->modules[action->index];
    return zr_module_parts(module) > 1 ? model->list.units[zr_module_part_unit(module, action->part, 0)].name
                                       : zr_model_module_name(model, action->index);
}

static enum zr_pipeline_kind item_of(enum zr_action_kind kind)
{
    return kind == ZR_ACTION_FORWARD   ? ZR_PIPELINE_FORWARD
           : kind == ZR_ACTION_WEIGHTS ? ZR_PIPELINE_WEIGHTS
                                       : ZR_PIPELINE_BACKWARD;
}

void zr_timeline_action(struct zr_timeline *timeline, const struct zr_action *action, bool done)
{
    bool update = action->kind == ZR_ACTION_COUNT,
         passes = action->kind == ZR_ACTION_FORWARD || action->kind == ZR_ACTION_RECOMPUTE ||
                  action->kind == ZR_ACTION_BACKWARD || action->kind == ZR_ACTION_WEIGHTS;
    timeline->micro_batch = action->micro_batch;
    if (!done && (passes || action->kind == ZR_ACTION_BEGIN)) {
        timeline->action_flops = timeline->clock.flops;
        timeline->action_begin_seconds = zr_comm_clock_now(&timeline->clock);
    }
    if (!done || (!update && !passes))
        return;
    double now = zr_comm_clock_now(&timeline->clock);
    if (timeline->cut && !update)
        timeline->part_seconds[zr_cut_part_of(timeline->cut, action->index)][item_of(action->kind)] +=
            now - timeline->action_begin_seconds;
    double computing = (timeline->clock.flops - timeline->action_flops) / timeline->clock.flops_per_second;
    note(timeline,
         (struct zr_timeline_event){.kind = update ? ZR_ACTION_UPDATE : action->kind,
                                    .begin_seconds = now - computing,
                                    .end_seconds = now},
         update ? "" : name_of(timeline->model, action));
}

void zr_timeline_start(struct zr_timeline *out, zr_arena *host_arena, double flops_per_second,
                       double bytes_per_second)
{
    zr_assert(flops_per_second > 0 && bytes_per_second > 0);
    *out = (struct zr_timeline){.host_arena = host_arena,
                                .events_max = ZR_TIMELINE_EVENTS_MAX,
                                .clock = {.flops_per_second = flops_per_second,
                                          .bytes_per_second = bytes_per_second,
                                          .submitted = note_operation,
                                          .state = out}};
}

/* ---- The end of a step --------------------------------------------------------------------------------- */

struct zr_timeline_mark zr_timeline_mark_now(const struct zr_timeline *timeline)
{
    const struct zr_comm_clock *clock = &timeline->clock;
    double now = zr_comm_clock_now(clock), behind = clock->idle_seconds - now,
           disk_behind = zr_comm_clock_disk_idle(clock) - now,
           update_behind = clock->update_idle_seconds - now;
    struct zr_timeline_mark mark = {.seconds = now,
                                    .behind_seconds = behind > 0 ? behind : 0,
                                    .disk_behind_seconds = disk_behind > 0 ? disk_behind : 0,
                                    .update_behind_seconds = update_behind > 0 ? update_behind : 0,
                                    .flops = clock->flops,
                                    .comm_seconds = clock->busy_seconds,
                                    .waited_seconds = clock->waited_seconds,
                                    .host_waited_seconds = clock->host_waited_seconds,
                                    .nvme_waited_seconds = clock->nvme_waited_seconds,
                                    .sent_bytes = clock->sent_bytes};
    memcpy(mark.phases, timeline->phases, sizeof mark.phases);
    return mark;
}

/* Equal up to rounding: the clock is a sum of many terms. */
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
           alike(b->behind_seconds, c->behind_seconds, length + c->behind_seconds) &&
           alike(b->disk_behind_seconds, c->disk_behind_seconds, length + c->disk_behind_seconds) &&
           alike(b->update_behind_seconds, c->update_behind_seconds, length + c->update_behind_seconds);
}

static struct zr_timeline_event moved(struct zr_timeline_event event, double seconds, unsigned micro_batches)
{
    event.begin_seconds += seconds;
    event.end_seconds += seconds;
    event.micro_batch += micro_batches;
    return event;
}

/* Repeats a micro-batch's events. If the list is full, events of the micro-batch may be missing; then the
 * list has no space for later events either. */
static void repeat_events(struct zr_timeline *timeline, const struct zr_timeline_repeat *repeat)
{
    struct zr_timeline_event *events = timeline->events;
    size_t count = timeline->events_count, first = 0, end;
    double length = repeat->end.seconds - repeat->begin.seconds;

    timeline->events = NULL;
    timeline->events_count = timeline->events_capacity = 0;
    for (; first < count && events[first].micro_batch < repeat->micro_batch; first++)
        append(timeline, events[first]);
    for (end = first; end < count && events[end].micro_batch == repeat->micro_batch;)
        end++;
    for (unsigned i = 0; i <= repeat->times && end > first; i++) {
        for (size_t at = first; at < end; at++)
            append(timeline, moved(events[at], i * length, i));
        if (timeline->events_count == timeline->events_max || timeline->result != ZR_OK)
            break;
    }
    for (size_t at = end; at < count; at++)
        append(timeline, moved(events[at], repeat->times * length, repeat->times));
    zr_drop(timeline->host_arena, &events);
}

/* Repeats the phases. Times after the micro-batch, and the end times within it, move by the duration of
 * the repetitions. */
static void repeat_phases(struct zr_timeline *timeline, const struct zr_timeline_repeat *repeat)
{
    double later = repeat->times * (repeat->end.seconds - repeat->begin.seconds);
    for (unsigned kind = 0; kind < ZR_TIMELINE_KINDS; kind++) {
        struct zr_timeline_phase *phase = &timeline->phases[kind];
        const struct zr_timeline_phase *begin = &repeat->begin.phases[kind], *end = &repeat->end.phases[kind];
        if (phase->count > begin->count)
            phase->end_seconds += later;
        if (end->count == 0 && phase->count > 0)
            phase->begin_seconds += later; /* the optimizer's phase */
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
    timeline->host_waited_seconds = clock->host_waited_seconds - timeline->host_waited_seconds;
    timeline->nvme_waited_seconds = clock->nvme_waited_seconds - timeline->nvme_waited_seconds;
    timeline->sent_bytes = clock->sent_bytes - timeline->sent_bytes;
    if (repeat && repeat->times > 0) {
        timeline->step_seconds += repeat->times * (repeat->end.seconds - repeat->begin.seconds);
        timeline->flops += repeat->times * (repeat->end.flops - repeat->begin.flops);
        timeline->comm_seconds += repeat->times * (repeat->end.comm_seconds - repeat->begin.comm_seconds);
        timeline->waited_seconds +=
            repeat->times * (repeat->end.waited_seconds - repeat->begin.waited_seconds);
        timeline->host_waited_seconds +=
            repeat->times * (repeat->end.host_waited_seconds - repeat->begin.host_waited_seconds);
        timeline->nvme_waited_seconds +=
            repeat->times * (repeat->end.nvme_waited_seconds - repeat->begin.nvme_waited_seconds);
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
