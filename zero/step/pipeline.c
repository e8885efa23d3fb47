/* pipeline.c: see pipeline.h. */
#include "zero/step/pipeline.h"

#include <math.h>
#include <string.h>

#include "zero/comm/take.h"

const char *zr_pipeline_schedule_name(enum zr_pipeline_schedule schedule)
{
    static const char *const names[ZR_PIPELINE_SCHEDULES] = {
        [ZR_PIPELINE_1F1B] = "1f1b",   [ZR_PIPELINE_NAIVE] = "naive",        [ZR_PIPELINE_GPIPE] = "gpipe",
        [ZR_PIPELINE_VHALF] = "vhalf", [ZR_PIPELINE_ZB_H1] = "zb-h1",        [ZR_PIPELINE_ZB_V] = "zb-v",
        [ZR_PIPELINE_2BW] = "2bw",     [ZR_PIPELINE_PIPEDREAM] = "pipedream"};
    return names[schedule];
}

bool zr_pipeline_is_asynchronous(const struct zr_pipeline *pipeline)
{
    return pipeline->schedule == ZR_PIPELINE_2BW || pipeline->schedule == ZR_PIPELINE_PIPEDREAM;
}

unsigned zr_pipeline_stashed(const struct zr_pipeline *pipeline, unsigned ranks, unsigned rank)
{
    if (pipeline->schedule == ZR_PIPELINE_PIPEDREAM)
        return pipeline->vertical_sync ? ranks - 1 : ranks - 1 - rank;
    return pipeline->schedule == ZR_PIPELINE_2BW;
}

static void add(struct zr_pipeline_order *order, struct zr_pipeline_item item)
{
    order->items[order->count++] = item;
}

/* ---- Orders by formula --------------------------------------------------------------------------------- */

/* `ahead` forward, then alternately forward and backward, then the remaining backward. */
static void make_ahead(struct zr_pipeline_order *order, unsigned micro_batches, unsigned ahead)
{
    for (unsigned forward = 0, backward = 0; backward < micro_batches;) {
        if (forward < micro_batches && forward <= backward + ahead)
            add(order, (struct zr_pipeline_item){0, forward++, ZR_PIPELINE_FORWARD});
        else
            add(order, (struct zr_pipeline_item){0, backward++, ZR_PIPELINE_BACKWARD});
    }
}

/* A step in an endless order of that kind. */
static void make_endless(struct zr_pipeline_order *order, const struct zr_pipeline_request *request)
{
    unsigned ahead = request->ranks - 1 - request->rank, end = zr_pipeline_forward_end(request);
    for (unsigned forward = request->begun, backward = 0; backward < request->micro_batches;) {
        if (forward < end && forward <= backward + ahead)
            add(order, (struct zr_pipeline_item){0, forward++, ZR_PIPELINE_FORWARD});
        else
            add(order, (struct zr_pipeline_item){0, backward++, ZR_PIPELINE_BACKWARD});
    }
    order->held_max[0] = ahead + 1;
}

/* Item `at` of a rank's forward or backward: rounds of `ranks` micro-batches through one part after another.
 */
static struct zr_pipeline_item interleaved(const struct zr_pipeline_request *request, unsigned at,
                                           enum zr_pipeline_kind kind)
{
    unsigned ranks = request->ranks, parts = zr_pipeline_parts(request->pipeline), part = at / ranks % parts;
    return (struct zr_pipeline_item){.part = kind == ZR_PIPELINE_FORWARD ? part : parts - 1 - part,
                                     .micro_batch = at / (ranks * parts) * ranks + at % ranks,
                                     .kind = kind};
}

static void make_interleaved(struct zr_pipeline_order *order, const struct zr_pipeline_request *request)
{
    unsigned parts = zr_pipeline_parts(request->pipeline), total = parts * request->micro_batches,
             ahead = 2 * (request->ranks - 1 - request->rank) + (parts - 1) * request->ranks;
    for (unsigned forward = 0, backward = 0; backward < total;) {
        if (forward < total && forward <= backward + ahead)
            add(order, interleaved(request, forward++, ZR_PIPELINE_FORWARD));
        else
            add(order, interleaved(request, backward++, ZR_PIPELINE_BACKWARD));
    }
}

/* Zero bubble with one stage per rank: 1F1B, in which a rank delays weights by as many micro-batches as there
 * are ranks before it, so that every rank holds the same number of micro-batches. */
static void make_h1(struct zr_pipeline_order *order, const struct zr_pipeline_request *request)
{
    unsigned m = request->micro_batches, ahead = request->ranks - 1 - request->rank;
    for (unsigned forward = 0, backward = 0, weights = 0; weights < m;) {
        if (forward < m && forward <= backward + ahead && forward < weights + request->ranks)
            add(order, (struct zr_pipeline_item){0, forward++, ZR_PIPELINE_FORWARD});
        else if (backward < m && backward <= weights + request->rank)
            add(order, (struct zr_pipeline_item){0, backward++, ZR_PIPELINE_BACKWARD});
        else
            add(order, (struct zr_pipeline_item){0, weights++, ZR_PIPELINE_WEIGHTS});
    }
}

/* ---- Orders of two stages per rank in a V ---------------------------------------------------------------
 */

enum { V_PARTS = 2 };

/* State of the simulation of all ranks. */
struct v {
    const struct zr_pipeline_request *request;
    double seconds[ZR_PIPELINE_KINDS]; /* assumed time of an item */
    unsigned stages, max_held;         /* max_held: halves of micro-batches on a rank */
    double *ends;                      /* [ZR_PIPELINE_KINDS][stages][micro_batches]; INFINITY: not done */
    double *free;                      /* [ranks]: time from which the rank is idle */
    unsigned *next;                    /* [ZR_PIPELINE_KINDS][stages]: next micro-batch */
    struct zr_pipeline_order *order;
};

static double *end_of(const struct v *v, unsigned stage, unsigned micro_batch, enum zr_pipeline_kind kind)
{
    return &v->ends[((size_t)kind * v->stages + stage) * v->request->micro_batches + micro_batch];
}

static unsigned *next_of(const struct v *v, unsigned stage, enum zr_pipeline_kind kind)
{
    return &v->next[kind * v->stages + stage];
}

static unsigned held(const struct v *v, unsigned stage)
{
    return *next_of(v, stage, ZR_PIPELINE_FORWARD) - *next_of(v, stage, v->order->last);
}

/* Whether a rank may run forward of one more micro-batch in a stage. A place must remain for the second
 * stage, because micro-batches in the first stage could not finish otherwise. */
static bool may_hold_more(const struct v *v, unsigned stage)
{
    unsigned ranks = v->request->ranks, other = 2 * ranks - 1 - stage;
    unsigned here = held(v, stage), there = held(v, other);
    if (stage < ranks && there == 0)
        there = 1;
    if (stage + 1 == ranks)
        here++; /* the second stage runs directly after the first */
    return here + there < v->max_held;
}

/* Whether a stage's reader has begun the previous micro-batch. A stage does not run a micro-batch before, so
 * that at most one message is pending. */
static bool reader_has_begun(const struct v *v, unsigned stage, unsigned micro_batch,
                             enum zr_pipeline_kind kind)
{
    unsigned ranks = v->request->ranks, reader = kind == ZR_PIPELINE_BACKWARD ? stage - 1 : stage + 1;
    if (kind == ZR_PIPELINE_WEIGHTS || reader >= v->stages || (stage < ranks) != (reader < ranks))
        return true; /* there is no reader, or it is on the same rank */
    return *next_of(v, reader, kind) >= micro_batch;
}

/* Time at which the inputs of a stage's next item exist; INFINITY: they depend on unfinished items, or there
 * is no item. */
static double ready_of(const struct v *v, unsigned stage, enum zr_pipeline_kind kind)
{
    unsigned micro_batch = *next_of(v, stage, kind);
    if (micro_batch == v->request->micro_batches)
        return INFINITY;
    if (kind == ZR_PIPELINE_FORWARD)
        return stage == 0 ? 0 : *end_of(v, stage - 1, micro_batch, kind);
    if (kind == ZR_PIPELINE_WEIGHTS || stage + 1 == v->stages)
        return *end_of(v, stage, micro_batch, kind - 1);
    return *end_of(v, stage + 1, micro_batch, kind);
}

struct v_choice {
    double begin;
    unsigned rank, stage;
    enum zr_pipeline_kind kind;
};

/* Start time of a stage's next item; INFINITY: it cannot start yet. */
static double begin_of(const struct v *v, const struct v_choice *choice)
{
    double ready = ready_of(v, choice->stage, choice->kind), free = v->free[choice->rank];
    if (isinf(ready) || (choice->kind == ZR_PIPELINE_FORWARD && !may_hold_more(v, choice->stage)) ||
        !reader_has_begun(v, choice->stage, *next_of(v, choice->stage, choice->kind), choice->kind))
        return INFINITY;
    return ready > free ? ready : free;
}

/* Selects the item that can begin first on a rank. Ties: backward of the earlier stage, which frees the most
 * memory, then forward of the later stage; weights, in the order of their backward, only while the rank would
 * be idle. */
static struct v_choice choose(const struct v *v, unsigned rank)
{
    const enum zr_pipeline_kind F = ZR_PIPELINE_FORWARD, B = ZR_PIPELINE_BACKWARD, W = ZR_PIPELINE_WEIGHTS;
    unsigned up = 2 * v->request->ranks - 1 - rank;
    const struct v_choice choices[] = {
        {0, rank, rank, B},
        {0, rank, up, B},
        {0, rank, up, F},
        {0, rank, rank, F},
        {0, rank, v->order->last == W && ready_of(v, rank, W) < ready_of(v, up, W) ? rank : up, W}};
    struct v_choice best = {.begin = INFINITY};
    bool turns = rank + 1 == v->request->ranks && *next_of(v, rank, F) != *next_of(v, up, F);
    for (unsigned i = 0; i < sizeof choices / sizeof *choices; i++) {
        if (choices[i].kind > v->order->last || (turns && (choices[i].stage != up || choices[i].kind != F)))
            continue;
        double begin = begin_of(v, &choices[i]);
        if (begin < best.begin) {
            best = choices[i];
            best.begin = begin;
        }
    }
    return best;
}

static zr_result walk_v(struct v *v)
{
    size_t items = (v->order->last + 1) * (size_t)v->stages * v->request->micro_batches;
    for (size_t i = 0; i < items; i++) {
        struct v_choice best = {.begin = INFINITY};
        for (unsigned rank = 0; rank < v->request->ranks; rank++) {
            struct v_choice choice = choose(v, rank);
            if (choice.begin < best.begin)
                best = choice;
        }
        if (isinf(best.begin))
            return zr_fail(ZR_ERR_CORRUPT, "the ranks of a pipeline would wait for one another");
        unsigned micro_batch = (*next_of(v, best.stage, best.kind))++;
        v->free[best.rank] = best.begin + v->seconds[best.kind];
        *end_of(v, best.stage, micro_batch, best.kind) = v->free[best.rank];
        if (best.rank == v->request->rank)
            add(v->order, (struct zr_pipeline_item){best.stage >= v->request->ranks, micro_batch, best.kind});
    }
    return ZR_OK;
}

/* `v`: its seconds and max_held. */
static zr_result make_v(struct zr_pipeline_order *order, const struct zr_pipeline_request *request,
                        struct v v)
{
    v.request = request;
    v.stages = V_PARTS * request->ranks;
    v.order = order;
    size_t nexts = ZR_PIPELINE_KINDS * (size_t)v.stages, ends = nexts * request->micro_batches;
    zr_result result = zr_take(request->host_arena, ZR_TAG_OTHER, ends, sizeof *v.ends, (void **)&v.ends);
    if (result == ZR_OK)
        result = zr_take(request->host_arena, ZR_TAG_OTHER, request->ranks, sizeof *v.free, (void **)&v.free);
    if (result == ZR_OK)
        result = zr_take(request->host_arena, ZR_TAG_OTHER, nexts, sizeof *v.next, (void **)&v.next);
    if (result == ZR_OK) {
        for (size_t i = 0; i < ends; i++)
            v.ends[i] = INFINITY;
        memset(v.free, 0, request->ranks * sizeof *v.free);
        memset(v.next, 0, nexts * sizeof *v.next);
        result = walk_v(&v);
    }
    zr_drop(request->host_arena, &v.next);
    zr_drop(request->host_arena, &v.free);
    zr_drop(request->host_arena, &v.ends);
    return result;
}

/* ---- Orders -------------------------------------------------------------------------------------------- */

static zr_result check(const struct zr_pipeline_request *request)
{
    unsigned m = request->micro_batches, ranks = request->ranks;
    if (request->pipeline->schedule == ZR_PIPELINE_2BW && m < ranks)
        return zr_fail(ZR_ERR_INVALID,
                       "2bw updates after at least as many micro-batches as there are stages: %u, not %u",
                       ranks, m);
    if (request->pipeline->schedule == ZR_PIPELINE_PIPEDREAM && m != 1)
        return zr_fail(ZR_ERR_INVALID, "pipedream updates after every micro-batch: a step has 1, not %u", m);
    if (request->pipeline->schedule != ZR_PIPELINE_1F1B || zr_pipeline_parts(request->pipeline) == 1 ||
        m % ranks == 0)
        return ZR_OK;
    return zr_fail(
        ZR_ERR_INVALID,
        "%u stages per rank run micro-batches in rounds of %u, which do not divide %u micro-batches; the nearest "
        "that fit are %u",
        zr_pipeline_parts(request->pipeline), ranks, m, (m + ranks - 1) / ranks * ranks);
}

static void count_held(struct zr_pipeline_order *order)
{
    unsigned now[ZR_PIPELINE_PARTS_MAX] = {0};
    for (size_t i = 0; i < order->count; i++) {
        unsigned part = order->items[i].part;
        now[part] += (unsigned)zr_pipeline_holds(order, &order->items[i]);
        if (now[part] > order->held_max[part])
            order->held_max[part] = now[part];
    }
}

zr_result zr_pipeline_order_make(struct zr_pipeline_order *out, const struct zr_pipeline_request *request)
{
    unsigned parts = zr_pipeline_parts(request->pipeline), m = request->micro_batches;
    *out = (struct zr_pipeline_order){.host_arena = request->host_arena,
                                      .last = zr_pipeline_splits(request->pipeline) ? ZR_PIPELINE_WEIGHTS
                                                                                    : ZR_PIPELINE_BACKWARD};
    zr_result result = check(request);
    if (result == ZR_OK)
        result = zr_take(request->host_arena, ZR_TAG_OTHER,
                         (out->last + 1) * (size_t)parts * m +
                             (zr_pipeline_is_asynchronous(request->pipeline) ? request->ranks : 0),
                         sizeof *out->items, (void **)&out->items);
    if (result != ZR_OK)
        return result;
    switch (request->pipeline->schedule) {
    case ZR_PIPELINE_NAIVE:
        make_ahead(out, m, 0);
        break;
    case ZR_PIPELINE_GPIPE:
        make_ahead(out, m, m);
        break;
    case ZR_PIPELINE_VHALF:
        result = make_v(out, request, (struct v){.seconds = {1, 2}, .max_held = request->ranks + 1});
        break;
    case ZR_PIPELINE_ZB_H1:
        make_h1(out, request);
        break;
    case ZR_PIPELINE_ZB_V:
        result = make_v(out, request, (struct v){.seconds = {1, 1, 1}, .max_held = 2 * request->ranks});
        break;
    case ZR_PIPELINE_2BW:
    case ZR_PIPELINE_PIPEDREAM:
        make_endless(out, request);
        return ZR_OK;
    default:
        if (parts == 1)
            make_ahead(out, m, request->ranks - 1 - request->rank);
        else
            make_interleaved(out, request);
    }
    count_held(out);
    if (result != ZR_OK)
        zr_pipeline_order_end(out);
    return result;
}

void zr_pipeline_order_end(struct zr_pipeline_order *order)
{
    if (order->host_arena)
        zr_drop(order->host_arena, &order->items);
    order->count = 0;
}

/* ---- Simulation with times ----------------------------------------------------------------------------- */

struct walk {
    const struct zr_pipeline_request *request;
    const struct zr_pipeline_times *times;
    unsigned stages, parts;
    struct zr_pipeline_order *orders; /* [ranks] */
    size_t *at;                       /* [ranks]: number of items done */
    unsigned
        joined;   /* the first and the last rank wait for one another after so many micro-batches; 0: never */
    double *ends; /* [ZR_PIPELINE_KINDS][stages][micro_batches]: end of items; NAN: not done */
};

static double *walk_end(const struct walk *w, unsigned stage, unsigned micro_batch,
                        enum zr_pipeline_kind kind)
{
    return &w->ends[((size_t)kind * w->stages + stage) * w->request->micro_batches + micro_batch];
}

static unsigned stage_of(const struct walk *w, unsigned rank, unsigned part)
{
    unsigned ranks = w->request->ranks;
    if (zr_pipeline_is_v(w->request->pipeline))
        return part == 0 ? rank : 2 * ranks - 1 - rank;
    return part * ranks + rank;
}

static double hand_on(const struct walk *w, unsigned stage, unsigned from)
{
    const struct zr_pipeline *p = w->request->pipeline;
    bool local =
        zr_pipeline_rank_of(p, w->request->ranks, stage) == zr_pipeline_rank_of(p, w->request->ranks, from);
    return local ? 0 : w->times[stage < from ? stage : from].hand_on;
}

/* Arrival time of an item's input; NAN: not known yet. */
static double ready(const struct walk *w, unsigned stage, const struct zr_pipeline_item *item)
{
    unsigned from = item->kind == ZR_PIPELINE_FORWARD ? stage - 1 : stage + 1;
    if (item->kind == ZR_PIPELINE_FORWARD && stage == 0)
        return 0;
    if (item->kind == ZR_PIPELINE_WEIGHTS || from == w->stages)
        return *walk_end(w, stage, item->micro_batch, item->kind - 1);
    return *walk_end(w, from, item->micro_batch, item->kind) + hand_on(w, stage, from);
}

/* End of the step before a rank's next item on the rank that shares a tensor; 0: no such step. */
static double joined_end(const struct walk *w, unsigned rank)
{
    const struct zr_pipeline_item *last = &w->orders[rank].items[w->at[rank]] - 1;
    unsigned ranks = w->request->ranks;
    bool joins = w->joined > 0 && w->at[rank] > 0 && (rank == 0 || rank + 1 == ranks) &&
                 last->kind == ZR_PIPELINE_BACKWARD && (last->micro_batch + 1) % w->joined == 0;
    return joins ? *walk_end(w, rank == 0 ? ranks - 1 : 0, last->micro_batch, ZR_PIPELINE_BACKWARD) : 0;
}

/* Runs all items of a rank that can run; false: none. */
static bool advance(struct walk *w, unsigned rank, double *free, struct zr_pipeline_walk *out)
{
    const struct zr_pipeline_order *order = &w->orders[rank];
    bool moved = false;
    for (; w->at[rank] < order->count; w->at[rank]++, moved = true) {
        const struct zr_pipeline_item *item = &order->items[w->at[rank]];
        unsigned stage = stage_of(w, rank, item->part);
        double from = ready(w, stage, item), joined = joined_end(w, rank);
        double takes = w->times[stage].seconds[item->kind];
        if (isnan(from) || isnan(joined))
            return moved;
        from = joined > from ? joined : from;
        *free = (from > *free ? from : *free) + takes;
        *walk_end(w, stage, item->micro_batch, item->kind) = *free;
        out->rank_seconds[rank] += takes;
        out->busy_seconds += takes;
        out->mean.seconds[item->kind] += takes / ((double)w->stages * w->request->micro_batches);
        out->seconds = *free > out->seconds ? *free : out->seconds;
    }
    return moved;
}

static zr_result walk_all(struct walk *w, double *free, struct zr_pipeline_walk *out)
{
    bool moved = true, done = false;
    while (moved && !done) {
        moved = false;
        done = true;
        for (unsigned r = 0; r < w->request->ranks; r++) {
            moved |= advance(w, r, &free[r], out);
            done &= w->at[r] == w->orders[r].count;
        }
    }
    return done ? ZR_OK : zr_fail(ZR_ERR_CORRUPT, "the ranks of a pipeline would wait for one another");
}

static zr_result walk(struct zr_pipeline_walk *out, const struct zr_pipeline_request *request,
                      const struct zr_pipeline_times *times, unsigned joined)
{
    unsigned ranks = request->ranks, parts = zr_pipeline_parts(request->pipeline);
    struct walk w = {
        .request = request, .times = times, .stages = ranks * parts, .parts = parts, .joined = joined};
    size_t ends = ZR_PIPELINE_KINDS * (size_t)w.stages * request->micro_batches;
    double *free = NULL;
    zr_arena *host_arena = request->host_arena;
    memset(out, 0, sizeof *out);
    zr_result result = zr_take(host_arena, ZR_TAG_OTHER, ranks, sizeof *w.orders, (void **)&w.orders);
    if (result == ZR_OK)
        memset(w.orders, 0, ranks * sizeof *w.orders);
    if (result == ZR_OK)
        result = zr_take(host_arena, ZR_TAG_OTHER, ranks, sizeof *w.at, (void **)&w.at);
    if (result == ZR_OK)
        memset(w.at, 0, ranks * sizeof *w.at);
    if (result == ZR_OK)
        result = zr_take(host_arena, ZR_TAG_OTHER, ranks, sizeof *free, (void **)&free);
    if (result == ZR_OK)
        memset(free, 0, ranks * sizeof *free);
    if (result == ZR_OK)
        result = zr_take(host_arena, ZR_TAG_OTHER, ends, sizeof *w.ends, (void **)&w.ends);
    for (size_t i = 0; result == ZR_OK && i < ends; i++)
        w.ends[i] = NAN;
    for (unsigned r = 0; r < ranks && result == ZR_OK; r++) {
        struct zr_pipeline_request one = *request;
        one.rank = r;
        result = zr_pipeline_order_make(&w.orders[r], &one);
    }
    if (result == ZR_OK)
        result = walk_all(&w, free, out);
    for (unsigned r = 0; w.orders && r < ranks; r++)
        zr_pipeline_order_end(&w.orders[r]);
    zr_drop(host_arena, &w.ends);
    zr_drop(host_arena, &free);
    zr_drop(host_arena, &w.at);
    zr_drop(host_arena, &w.orders);
    return result;
}

/* The order of an asynchronous schedule is 1f1b's over many steps. The second half of twice as many steps is
 * without filling and draining. */
static zr_result walk_endless(struct zr_pipeline_walk *out, const struct zr_pipeline_request *request,
                              const struct zr_pipeline_times *times)
{
    const struct zr_pipeline endless = {.schedule = ZR_PIPELINE_1F1B};
    struct zr_pipeline_request many = *request;
    struct zr_pipeline_walk first;
    unsigned joined = request->shares ? request->micro_batches : 0;
    unsigned steps = (2 * request->ranks + request->micro_batches - 1) / request->micro_batches;
    many.pipeline = &endless;
    many.micro_batches = steps * request->micro_batches;
    zr_result result = walk(&first, &many, times, joined);
    many.micro_batches *= 2;
    if (result == ZR_OK)
        result = walk(out, &many, times, joined);
    out->seconds = (out->seconds - first.seconds) / steps;
    out->busy_seconds = (out->busy_seconds - first.busy_seconds) / steps;
    for (unsigned r = 0; r < request->ranks; r++)
        out->rank_seconds[r] = (out->rank_seconds[r] - first.rank_seconds[r]) / steps;
    return result;
}

zr_result zr_pipeline_walk(struct zr_pipeline_walk *out, const struct zr_pipeline_request *request,
                           const struct zr_pipeline_times *times)
{
    return zr_pipeline_is_asynchronous(request->pipeline) ? walk_endless(out, request, times)
                                                          : walk(out, request, times, 0);
}

double zr_pipeline_idle_share(const struct zr_pipeline *pipeline, unsigned ranks, unsigned micro_batches,
                              const struct zr_pipeline_times *times)
{
    static const struct zr_pipeline_times equal = {.seconds = {1, 1, 1}};
    const double *seconds = times ? times->seconds : equal.seconds, f = seconds[ZR_PIPELINE_FORWARD],
                 b = seconds[ZR_PIPELINE_BACKWARD], w = seconds[ZR_PIPELINE_WEIGHTS];
    double p = ranks, m = micro_batches, v = zr_pipeline_parts(pipeline);
    if (pipeline->schedule == ZR_PIPELINE_ZB_H1 && micro_batches >= ranks) {
        double idle = (p - 1) * (b + (f > w ? f - w : 0));
        return idle / (m * (f + b + w) + idle);
    }
    if (zr_pipeline_is_v(pipeline) || pipeline->schedule == ZR_PIPELINE_ZB_H1)
        return -1;
    if (zr_pipeline_is_asynchronous(pipeline))
        return 0;
    return pipeline->schedule == ZR_PIPELINE_NAIVE ? 1 - 1 / p : (p - 1) / (m * v + p - 1);
}
