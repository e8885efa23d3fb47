/* timeline_test.c: the rehearsal's clock against schedules worked out by hand: what is computed, what is
 * sent, and which waits for which. */
#include <math.h>
#include <string.h>

#include "tests/records.h"
#include "tests/tap.h"
#include "zero/plan.h"
#include "zero/timeline.h"

enum { LAYERS = 5, HIDDEN = 64, HEADS = 4, VOCABULARY = 192, SEQUENCE = 24, BATCH = 3 };

/* A configuration, and what comes of it. */
struct run {
    unsigned world, stage, micro_batches, layers;
    enum zr_recompute recompute;
    enum zr_reduce_when reduce;
    double flops_per_second, bytes_per_second;
    struct zr_byte_plan plan;
    struct zr_timeline timeline;
};

static struct zr_gpt_shape shape_of(const struct run *run)
{
    return (struct zr_gpt_shape){.layers = run->layers ? run->layers : LAYERS,
                                 .hidden = HIDDEN,
                                 .heads = HEADS,
                                 .vocabulary = VOCABULARY,
                                 .vocabulary_padded = VOCABULARY,
                                 .sequence = SEQUENCE,
                                 .batch = BATCH,
                                 .recompute = run->recompute};
}

static void rehearse(struct run *run)
{
    zr_timeline_start(&run->timeline, host_arena, run->flops_per_second, run->bytes_per_second);
    zr_result result = zr_plan_make(&run->plan, &(struct zr_plan_request){.shape = shape_of(run),
                                                                          .stage = run->stage,
                                                                          .world = run->world,
                                                                          .micro_batches = run->micro_batches,
                                                                          .reduce = run->reduce,
                                                                          .threads = 1,
                                                                          .bucket_bytes = 1 << 20,
                                                                          .host_arena = host_arena,
                                                                          .timeline = &run->timeline});
    if (result != ZR_OK)
        tap_result(result, ZR_OK, "a rehearsal");
}

static bool close_to(double got, double want)
{
    return fabs(got - want) <= 1e-9 * fabs(want);
}

/* By hand: of a block forward and backward, and of the head, which does both at once. */
static const double rows = BATCH * SEQUENCE, c = HIDDEN;

static double block_flops(void)
{
    double qkv = 2 * rows * c * 3 * c, scores = 2 * rows * SEQUENCE * c, values = scores,
           project = 2 * rows * c * c, wide = 2 * rows * c * 4 * c, narrow = wide;
    return qkv + scores + values + project + wide + narrow;
}

static double head_flops(void)
{
    return 3 * 2 * rows * c * VOCABULARY;
}

/* ---- One rank ---------------------------------------------------------------------------------------- */

static void test_alone(void)
{
    struct run run = {.world = 1, .flops_per_second = 1e9, .bytes_per_second = 1};
    double want = 3 * LAYERS * block_flops() + head_flops();

    rehearse(&run);
    struct zr_gpt_shape shape = shape_of(&run);
    tap_ok(close_to(run.timeline.flops, want), "one rank: %.0f operations, by hand %.0f", run.timeline.flops,
           want);
    tap_ok(close_to(zr_gpt_flops(&shape), want), "which is the model's formula");
    double published = 72 * rows * LAYERS * c * c * (1 + SEQUENCE / (6 * c) + VOCABULARY / (12 * LAYERS * c));
    tap_ok(close_to(want, published), "and the published one");
    tap_ok(close_to(run.timeline.step_seconds, want / 1e9), "a step takes operations / speed");
    tap_ok(run.timeline.sent_bytes == 0 && run.timeline.waited_seconds == 0,
           "nothing is sent, or waited for");
    zr_timeline_end(&run.timeline);

    run.micro_batches = 3;
    rehearse(&run);
    tap_ok(close_to(run.timeline.step_seconds, 3 * want / 1e9), "three micro-batches: three times that");
    zr_timeline_end(&run.timeline);

    run.micro_batches = 1;
    run.recompute = ZR_RECOMPUTE_SELECTIVE;
    rehearse(&run);
    tap_ok(close_to(run.timeline.flops, want + LAYERS * 2 * rows * SEQUENCE * c),
           "selective recomputation: the scores of each block once more");
    zr_timeline_end(&run.timeline);

    run.recompute = ZR_RECOMPUTE_FULL;
    rehearse(&run);
    double again = LAYERS * (block_flops() - 2 * rows * c * 4 * c); /* nobody needs its last product */
    double scores = LAYERS * 2 * rows * SEQUENCE * c;               /* the probabilities are not kept */
    tap_ok(close_to(run.timeline.flops, want + again + scores), "full recomputation: each block but its end");
    zr_timeline_end(&run.timeline);
}

/* ---- Bounds ------------------------------------------------------------------------------------------ */

static void test_fast_links(unsigned stage, unsigned micro_batches)
{
    struct run run = {.world = 4,
                      .stage = stage,
                      .micro_batches = micro_batches,
                      .flops_per_second = 1e9,
                      .bytes_per_second = INFINITY};
    rehearse(&run);
    tap_ok(close_to(run.timeline.step_seconds, run.timeline.flops / 1e9) && run.timeline.sent_bytes > 0,
           "stage %u, %u micro-batches, links without end: a step takes operations / speed", stage,
           micro_batches);
    zr_timeline_end(&run.timeline);
}

static void test_slow_links(unsigned stage, unsigned micro_batches)
{
    struct run run = {.world = 4,
                      .stage = stage,
                      .micro_batches = micro_batches,
                      .flops_per_second = INFINITY,
                      .bytes_per_second = 1e6};
    rehearse(&run);
    double sent = 4.0 * (double)run.plan.sent_elements_per_step;
    tap_ok(close_to((double)run.timeline.sent_bytes, sent) &&
               close_to(run.timeline.step_seconds, sent / 1e6) &&
               close_to(run.timeline.waited_seconds, run.timeline.comm_seconds),
           "stage %u, %u micro-batches, no time to compute: %.3f s is the plan's bytes / bandwidth", stage,
           micro_batches, run.timeline.step_seconds);
    zr_timeline_end(&run.timeline);
}

/* Between the two, whatever the order: a step is what is computed and what is waited for. */
static void test_between(unsigned stage, unsigned micro_batches)
{
    struct run run = {.world = 4,
                      .stage = stage,
                      .micro_batches = micro_batches,
                      .flops_per_second = 1e9,
                      .bytes_per_second = 2e7};
    rehearse(&run);
    const struct zr_timeline *t = &run.timeline;
    double computing = t->flops / 1e9, stream = -1;
    unsigned overlaps = 0, sums = 0;

    for (size_t i = 0; i < t->events_count; i++) {
        const struct zr_timeline_event *event = &t->events[i];
        if (event->kind != ZR_TIMELINE_GATHER && event->kind != ZR_TIMELINE_REDUCE)
            continue;
        overlaps += event->begin_seconds < stream - 1e-12;
        stream = event->end_seconds;
        sums++;
    }
    tap_ok(close_to(t->step_seconds, computing + t->waited_seconds) && t->step_seconds >= t->comm_seconds &&
               t->waited_seconds > 0 && t->waited_seconds < t->comm_seconds,
           "stage %u, %u micro-batches: %.1f ms = %.1f computing + %.1f of %.1f waiting", stage,
           micro_batches, 1e3 * t->step_seconds, 1e3 * computing, 1e3 * t->waited_seconds,
           1e3 * t->comm_seconds);
    tap_ok(
        overlaps == 0 && sums > 0 &&
            close_to(t->phases[ZR_TIMELINE_GATHER].busy_seconds + t->phases[ZR_TIMELINE_REDUCE].busy_seconds,
                     t->comm_seconds),
        "its %u transfers go one after the other, and add up", sums);
    zr_timeline_end(&run.timeline);
}

/* Gathering twice what is gathered once: half as much again. */
static void test_stages(void)
{
    struct run two = {
        .world = 4, .stage = 2, .layers = 12, .flops_per_second = INFINITY, .bytes_per_second = 1e6};
    struct run three = two;
    three.stage = 3;
    rehearse(&two);
    rehearse(&three);
    tap_ok(three.plan.persistent_by_tag_bytes[ZR_TAG_PARAM] <
               two.plan.persistent_by_tag_bytes[ZR_TAG_PARAM] / 3,
           "a model that stage 3 shards wholly");
    /* The tied embedding travels more often at both; the blocks and vectors are what doubles. */
    double gathers = three.timeline.phases[ZR_TIMELINE_GATHER].busy_seconds,
           spreads = two.timeline.phases[ZR_TIMELINE_GATHER].busy_seconds;
    double wpe =
        3.0 * SEQUENCE * c / 1e6; /* gathered in forward alone: 3 / 4 of its elements, 4 bytes each */
    tap_ok(close_to(gathers, 2 * spreads - wpe), "stage 3 gathers for forward and backward: %.4f s, %.4f",
           gathers, 2 * spreads - wpe);
    tap_ok(close_to(three.timeline.phases[ZR_TIMELINE_REDUCE].busy_seconds,
                    two.timeline.phases[ZR_TIMELINE_REDUCE].busy_seconds),
           "and reduces as stage 2 does");
    zr_timeline_end(&three.timeline);
    zr_timeline_end(&two.timeline);
}

/* ---- A schedule by hand ------------------------------------------------------------------------------ */

/* Two workers: one computes, one sends. */
struct hands {
    double now, stream, flops_per_second, bytes_per_second;
};

static double send(struct hands *hands, double elements, double phases)
{
    double begin = hands->now > hands->stream ? hands->now : hands->stream;
    return hands->stream = begin + phases * elements * 4 / 2 / hands->bytes_per_second; /* of two ranks */
}

static void wait(struct hands *hands, double end)
{
    hands->now = end > hands->now ? end : hands->now;
}

/* Stage 1, or 0, of two ranks and two blocks, in the order of the program. `spread`: when the parameters of
 * the step before arrive. Returns the end of the step. */
static double step_by_hand(struct hands *hands, unsigned stage, double spread[5])
{
    const double wte = VOCABULARY * c, wpe = SEQUENCE * c, norm = 2 * c,
                 block = 50048; /* 12 c c + 13 c, up to two whole shards of 64 */
    const double f = block_flops() / hands->flops_per_second, h = head_flops() / hands->flops_per_second;
    double reduced[5], phases = stage == 0 ? 2 : 1;

    wait(hands, spread[0]); /* the embeddings */
    wait(hands, spread[1]);
    for (int l = 0; l < 2; l++) {
        wait(hands, spread[2 + l]);
        hands->now += f;
    }
    wait(hands, spread[4]); /* ln_f */
    hands->now += h;
    reduced[0] = send(hands, wte, 1); /* the head's part of two, aside */
    reduced[4] = send(hands, norm, phases);
    hands->now += 2 * f;
    reduced[3] = send(hands, block, phases);
    hands->now += 2 * f;
    reduced[2] = send(hands, block, phases);
    wait(hands, reduced[0]); /* its place is needed for the second part */
    reduced[1] = send(hands, wpe, phases);
    reduced[0] = send(hands, wte, 1);
    if (stage == 0)
        reduced[0] = send(hands, wte, 1); /* both parts, to all */
    for (int u = 0; u < 5; u++)
        wait(hands, reduced[u]);
    double sizes[5] = {wte, wpe, block, block, norm};
    for (int u = 0; u < 5 && stage == 1; u++)
        spread[u] = send(hands, sizes[u], 1);
    return hands->now;
}

static void test_schedule(unsigned stage, double bytes_per_second)
{
    struct run run = {.world = 2,
                      .stage = stage,
                      .layers = 2,
                      .flops_per_second = 1e9,
                      .bytes_per_second = bytes_per_second};
    struct hands hands = {.flops_per_second = 1e9, .bytes_per_second = bytes_per_second};
    double spread[5] = {0};
    double first = step_by_hand(&hands, stage, spread), second = step_by_hand(&hands, stage, spread);

    rehearse(&run);
    tap_ok(close_to(run.timeline.step_seconds, second - first),
           "stage %u at %.0g bytes a second: %.6f ms, by hand %.6f", stage, bytes_per_second,
           1e3 * run.timeline.step_seconds, 1e3 * (second - first));
    zr_timeline_end(&run.timeline);
}

/* ---- Events ------------------------------------------------------------------------------------------ */

static const struct zr_timeline_event *find(const struct zr_timeline *t, enum zr_timeline_kind kind,
                                            const char *unit, unsigned nth)
{
    for (size_t i = 0; i < t->events_count; i++)
        if (t->events[i].kind == kind && strcmp(t->events[i].unit, unit) == 0 && nth-- == 0)
            return &t->events[i];
    return NULL;
}

static void test_events(void)
{
    struct run run = {.world = 4, .stage = 3, .layers = 12, .flops_per_second = 1e9, .bytes_per_second = 1e9};
    rehearse(&run);
    const struct zr_timeline *t = &run.timeline;
    const struct zr_timeline_event *forward = find(t, ZR_TIMELINE_FORWARD, "h.3", 0),
                                   *backward = find(t, ZR_TIMELINE_BACKWARD, "h.3", 0),
                                   *ahead = find(t, ZR_TIMELINE_GATHER, "h.4", 0),
                                   *head = find(t, ZR_TIMELINE_BACKWARD, "wte", 0),
                                   *reduce = find(t, ZR_TIMELINE_REDUCE, "h.3", 0);
    bool all = forward && backward && ahead && head && reduce;

    tap_ok(all, "a block is computed, gathered and reduced");
    if (!all)
        return;
    tap_ok(close_to(forward->end_seconds - forward->begin_seconds, block_flops() / 1e9),
           "forward takes its time");
    tap_ok(close_to(backward->end_seconds - backward->begin_seconds, 2 * block_flops() / 1e9),
           "backward twice that");
    tap_ok(close_to(head->end_seconds - head->begin_seconds, head_flops() / 1e9), "the head both at once");
    tap_ok(close_to(ahead->begin_seconds, forward->begin_seconds),
           "the next block is gathered behind this one");
    tap_ok(close_to(reduce->begin_seconds, backward->end_seconds),
           "gradients are reduced when they are there");
    tap_ok(find(t, ZR_TIMELINE_GATHER, "h.3", 1) && !find(t, ZR_TIMELINE_GATHER, "h.3", 2),
           "a block is gathered twice");
    tap_is(t->phases[ZR_TIMELINE_FORWARD].count + t->phases[ZR_TIMELINE_BACKWARD].count +
               t->phases[ZR_TIMELINE_GATHER].count + t->phases[ZR_TIMELINE_REDUCE].count +
               t->phases[ZR_TIMELINE_OPTIMIZER].count,
           t->events_count, "the phases count every event");
    zr_timeline_end(&run.timeline);

    run.micro_batches = 1024;
    rehearse(&run);
    tap_ok(t->events_count == ZR_TIMELINE_EVENTS_MAX && t->left_out > 0,
           "of 1,024 micro-batches %zu events are kept, and %llu counted", t->events_count,
           (unsigned long long)t->left_out);
    zr_timeline_end(&run.timeline);
}

int main(void)
{
    tap_result(records_begin(), ZR_OK, "memory for records");
    tap_ok(host_arena != NULL, "an arena for them");
    test_alone();
    for (unsigned stage = 0; stage <= 3; stage++)
        for (unsigned micro_batches = 1; micro_batches <= 3; micro_batches += 2) {
            test_fast_links(stage, micro_batches);
            test_slow_links(stage, micro_batches);
            test_between(stage, micro_batches);
        }
    test_stages();
    for (unsigned stage = 0; stage <= 1; stage++)
        for (double bytes_per_second = 1e5; bytes_per_second < 1e11; bytes_per_second *= 10)
            test_schedule(stage, bytes_per_second);
    test_events();
    tap_is(records_end(), 0, "nothing is left behind");
    return tap_done();
}
