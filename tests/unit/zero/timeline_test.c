/* timeline_test.c: the rehearsal's clock against schedules worked out by hand: what is computed, what is
 * sent, and which waits for which. Many micro-batches, and delayed updates: timeline_repeats_test.c. */
#include <string.h>

#include "tests/support/zero/timeline_runs.h"
#include "zero/step/trainer.h"

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

/* ---- One rank ------------------------------------------------------------------------------------------ */

static void test_alone(void)
{
    struct run run = {.world = 1, .flops_per_second = 1e9, .bytes_per_second = 1};
    double want = 3 * LAYERS * block_flops() + head_flops();

    rehearse(&run);
    struct zr_shape shape = shape_of(&run);
    tap_ok(close_to(run.timeline.flops, want), "one rank: %.0f operations, by hand %.0f", run.timeline.flops,
           want);
    tap_ok(close_to(zr_shape_flops(&shape), want), "which is the model's formula");
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

/* ---- Bounds -------------------------------------------------------------------------------------------- */

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
        if (event->kind != ZR_ACTION_GATHER && event->kind != ZR_ACTION_REDUCE)
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
    tap_ok(overlaps == 0 && sums > 0 &&
               close_to(t->phases[ZR_ACTION_GATHER].busy_seconds + t->phases[ZR_ACTION_REDUCE].busy_seconds,
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
    double gathers = three.timeline.phases[ZR_ACTION_GATHER].busy_seconds,
           spreads = two.timeline.phases[ZR_ACTION_GATHER].busy_seconds;
    double wpe =
        3.0 * SEQUENCE * c / 1e6; /* gathered in forward alone: 3 / 4 of its elements, 4 bytes each */
    tap_ok(close_to(gathers, 2 * spreads - wpe), "stage 3 gathers for forward and backward: %.4f s, %.4f",
           gathers, 2 * spreads - wpe);
    tap_ok(close_to(three.timeline.phases[ZR_ACTION_REDUCE].busy_seconds,
                    two.timeline.phases[ZR_ACTION_REDUCE].busy_seconds),
           "and reduces as stage 2 does");
    zr_timeline_end(&three.timeline);
    zr_timeline_end(&two.timeline);
}

/* ---- A schedule by hand -------------------------------------------------------------------------------- */

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

/* ---- Events -------------------------------------------------------------------------------------------- */

static const struct zr_timeline_event *find(const struct zr_timeline *t, enum zr_action_kind kind,
                                            const char *unit, unsigned nth)
{
    for (size_t i = 0; i < t->events_count; i++)
        if (t->events[i].kind == kind && strcmp(t->events[i].name, unit) == 0 && nth-- == 0)
            return &t->events[i];
    return NULL;
}

static void test_events(void)
{
    struct run run = {.world = 4, .stage = 3, .layers = 12, .flops_per_second = 1e9, .bytes_per_second = 1e9};
    rehearse(&run);
    const struct zr_timeline *t = &run.timeline;
    const struct zr_timeline_event *forward = find(t, ZR_ACTION_FORWARD, "h.3", 0),
                                   *backward = find(t, ZR_ACTION_BACKWARD, "h.3", 0),
                                   *ahead = find(t, ZR_ACTION_GATHER, "h.4", 0),
                                   *head = find(t, ZR_ACTION_BACKWARD, "head", 0),
                                   *reduce = find(t, ZR_ACTION_REDUCE, "h.3", 0);
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
    tap_ok(find(t, ZR_ACTION_GATHER, "h.3", 1) && !find(t, ZR_ACTION_GATHER, "h.3", 2),
           "a block is gathered twice");
    tap_is(t->phases[ZR_ACTION_FORWARD].count + t->phases[ZR_ACTION_BACKWARD].count +
               t->phases[ZR_ACTION_GATHER].count + t->phases[ZR_ACTION_REDUCE].count +
               t->phases[ZR_ACTION_UPDATE].count,
           t->events_count, "the phases count every event");
    zr_timeline_end(&run.timeline);

    run.micro_batches = 1024;
    rehearse(&run);
    tap_ok(t->events_count == ZR_TIMELINE_EVENTS_MAX && t->left_out > 0,
           "of 1,024 micro-batches %zu events are kept, and %llu counted", t->events_count,
           (unsigned long long)t->left_out);
    zr_timeline_end(&run.timeline);
}

/* ---- Stages 2 and 3 on paper -------------------------------------------------------------------------
 *
 * Three modules a, b, c with a unit of 4,096 elements each on four ranks, and a loss that takes no time.
 * Forward through one takes 3 s and backward 5 s; a gather or a reduction of one takes T. Before a unit
 * computes the next one is asked for; a reduction starts when its gradients are made. c stays gathered from
 * forward to backward. Two units' gradients are staged at a time, so those of a wait for c's reduction.
 *
 * Stage 3, T = 2, from the beginning of the step:
 *
 *   computing   |wait a|  a   |  b   |  c   |   c    |   b    |   a    |wait a|
 *               0      2      5      8      11       16       21       26     28
 *   gathers     a 0-2, b 2-4, c 5-7, b 8-10, a 18-20 (behind c's reduction)
 *   reductions  c 16-18, b 21-23, a 26-28
 *
 * T = 6: gathers a 0-6, b 6-12, c 12-18, b 18-24, then c's reduction 26-32, a 32-38, b's reduction 38-44 and
 * a's 44-50; computing a 6-9, b 12-15, c 18-21, c 21-26, b 26-31, a 38-43.
 *
 * Stage 2, T = 2, a step that begins when the update before has just been done, and its parameters spread:
 *
 *   computing   |wait a|  a   |  b   |  c   |   c    |   b    |   a    |wait a|
 *               0      2      5      8      11       16       21       26     28
 *   reductions  c 16-18, b 21-23, a 26-28
 *   spreads     a 28-30, b 30-32, c 32-34, behind the next step's forward
 *
 * T = 6: computing a 6-9, b 12-15, c 18-21, c 21-26, b 26-31, a 32-37 (one second is a wait for room);
 * reductions c 26-32, b 32-38, a 38-44; spreads a 44-50, b 50-56, c 56-62. */
struct written {
    enum zr_action_kind kind;
    char unit[8];
    unsigned nth;
    double begin_seconds, end_seconds;
};

struct paper {
    unsigned stage;
    double transfer_seconds, step_seconds, waited_seconds;
    struct written events[16];
};

static const struct paper papers[] = {
    {3,
     2,
     28,
     4,
     {{ZR_ACTION_GATHER, "a", 0, 0, 2},
      {ZR_ACTION_GATHER, "b", 0, 2, 4},
      {ZR_ACTION_GATHER, "c", 0, 5, 7},
      {ZR_ACTION_GATHER, "b", 1, 8, 10},
      {ZR_ACTION_GATHER, "a", 1, 18, 20},
      {ZR_ACTION_FORWARD, "a", 0, 2, 5},
      {ZR_ACTION_FORWARD, "b", 0, 5, 8},
      {ZR_ACTION_FORWARD, "c", 0, 8, 11},
      {ZR_ACTION_BACKWARD, "loss", 0, 11, 11},
      {ZR_ACTION_BACKWARD, "c", 0, 11, 16},
      {ZR_ACTION_BACKWARD, "b", 0, 16, 21},
      {ZR_ACTION_BACKWARD, "a", 0, 21, 26},
      {ZR_ACTION_REDUCE, "c", 0, 16, 18},
      {ZR_ACTION_REDUCE, "b", 0, 21, 23},
      {ZR_ACTION_REDUCE, "a", 0, 26, 28},
      {ZR_ACTION_UPDATE, "", 0, 28, 28}}},
    {3,
     6,
     50,
     26,
     {{ZR_ACTION_GATHER, "a", 0, 0, 6},
      {ZR_ACTION_GATHER, "b", 0, 6, 12},
      {ZR_ACTION_GATHER, "c", 0, 12, 18},
      {ZR_ACTION_GATHER, "b", 1, 18, 24},
      {ZR_ACTION_GATHER, "a", 1, 32, 38},
      {ZR_ACTION_FORWARD, "a", 0, 6, 9},
      {ZR_ACTION_FORWARD, "b", 0, 12, 15},
      {ZR_ACTION_FORWARD, "c", 0, 18, 21},
      {ZR_ACTION_BACKWARD, "loss", 0, 21, 21},
      {ZR_ACTION_BACKWARD, "c", 0, 21, 26},
      {ZR_ACTION_BACKWARD, "b", 0, 26, 31},
      {ZR_ACTION_BACKWARD, "a", 0, 38, 43},
      {ZR_ACTION_REDUCE, "c", 0, 26, 32},
      {ZR_ACTION_REDUCE, "b", 0, 38, 44},
      {ZR_ACTION_REDUCE, "a", 0, 44, 50},
      {ZR_ACTION_UPDATE, "", 0, 50, 50}}},
    {2,
     2,
     28,
     4,
     {{ZR_ACTION_FORWARD, "a", 0, 2, 5},
      {ZR_ACTION_FORWARD, "b", 0, 5, 8},
      {ZR_ACTION_FORWARD, "c", 0, 8, 11},
      {ZR_ACTION_BACKWARD, "loss", 0, 11, 11},
      {ZR_ACTION_BACKWARD, "c", 0, 11, 16},
      {ZR_ACTION_BACKWARD, "b", 0, 16, 21},
      {ZR_ACTION_BACKWARD, "a", 0, 21, 26},
      {ZR_ACTION_REDUCE, "c", 0, 16, 18},
      {ZR_ACTION_REDUCE, "b", 0, 21, 23},
      {ZR_ACTION_REDUCE, "a", 0, 26, 28},
      {ZR_ACTION_UPDATE, "", 0, 28, 28},
      {ZR_ACTION_GATHER, "a", 0, 28, 30},
      {ZR_ACTION_GATHER, "b", 0, 30, 32},
      {ZR_ACTION_GATHER, "c", 0, 32, 34}}},
    {2,
     6,
     44,
     20,
     {{ZR_ACTION_FORWARD, "a", 0, 6, 9},
      {ZR_ACTION_FORWARD, "b", 0, 12, 15},
      {ZR_ACTION_FORWARD, "c", 0, 18, 21},
      {ZR_ACTION_BACKWARD, "loss", 0, 21, 21},
      {ZR_ACTION_BACKWARD, "c", 0, 21, 26},
      {ZR_ACTION_BACKWARD, "b", 0, 26, 31},
      {ZR_ACTION_BACKWARD, "a", 0, 32, 37},
      {ZR_ACTION_REDUCE, "c", 0, 26, 32},
      {ZR_ACTION_REDUCE, "b", 0, 32, 38},
      {ZR_ACTION_REDUCE, "a", 0, 38, 44},
      {ZR_ACTION_UPDATE, "", 0, 44, 44},
      {ZR_ACTION_GATHER, "a", 0, 44, 50},
      {ZR_ACTION_GATHER, "b", 0, 50, 56},
      {ZR_ACTION_GATHER, "c", 0, 56, 62}}},
};

enum { PAPER_UNITS = 3, PAPER_ELEMENTS = 4096, PAPER_RANKS = 4 };

static zr_result three_seconds(struct zr_module_pass *pass)
{
    *pass->context->flops += 3;
    return ZR_OK;
}

static zr_result five_seconds(struct zr_module_pass *pass)
{
    *pass->context->flops += 5;
    return ZR_OK;
}

static zr_result no_time(struct zr_module_pass *pass)
{
    (void)pass;
    return ZR_OK;
}

static const struct zr_module_type paper_type = {
    .output_columns = 1, .output_tag = ZR_TAG_ACTIVATION, .forward = three_seconds, .backward = five_seconds};
static const struct zr_module_type loss_type = {.name = "loss", .forward = no_time, .backward = no_time};

static void listen(void *state, const struct zr_action *action, bool done)
{
    zr_timeline_action(state, action, done);
}

static zr_result load_nothing(void *state, unsigned micro_batch)
{
    (void)state;
    (void)micro_batch;
    return ZR_OK;
}

static zr_result rate_zero(void *state, double loss, float *rate)
{
    (void)state;
    *rate = (float)(0 * loss);
    return ZR_OK;
}

static zr_result paper_step(zr_trainer *trainer, struct zr_timeline *t)
{
    struct zr_step_report report;
    t->model = trainer->model;
    trainer->observe = listen;
    trainer->observe_state = t;
    zr_timeline_step_begin(t);
    zr_result result =
        zr_trainer_step(trainer, &(struct zr_step_calls){.load = load_nothing, .update = rate_zero}, &report);
    return result == ZR_OK ? zr_timeline_step_end(t, NULL) : result;
}

/* Two steps: the second begins as every later one does. */
static zr_result paper_run(const struct paper *paper, struct zr_timeline *t, zr_arena *arena)
{
    struct zr_parameter parameters[PAPER_UNITS] = {{.name = ""}};
    struct zr_unit units[PAPER_UNITS] = {{.name = ""}};
    struct zr_kernel_context context = {.flops = &t->clock.flops};
    struct zr_module modules[PAPER_UNITS + 1];
    zr_trainer *trainer = NULL;
    zr_comm *comm = NULL;
    for (unsigned u = 0; u < PAPER_UNITS; u++) {
        parameters[u] =
            (struct zr_parameter){.name = {(char)('a' + u)}, .unit = u, .shape = {PAPER_ELEMENTS}};
        units[u] = (struct zr_unit){.name = {(char)('a' + u)}, .gradient_uses = 1};
        modules[u] = (struct zr_module){.type = &paper_type, .units = {u}, .units_count = 1};
    }
    modules[PAPER_UNITS] = (struct zr_module){.type = &loss_type};
    const struct zr_model model = {.list = {parameters, PAPER_UNITS, units, PAPER_UNITS},
                                   .modules = modules,
                                   .modules_count = PAPER_UNITS + 1,
                                   .rows = 1};
    zr_result result = zr_comm_null_create(
        &comm,
        &(struct zr_comm_options){
            .arena = arena, .host_arena = host_arena, .kernels = zr_kernels_null(), .bucket_bytes = 4096},
        0, PAPER_RANKS);
    if (result != ZR_OK)
        return result;
    zr_comm_null_set_clock(comm, &t->clock);
    result = zr_trainer_create(
        &trainer,
        &(struct zr_trainer_options){.engine = &(struct zr_engine_options){.arena = arena,
                                                                           .host_arena = host_arena,
                                                                           .kernels = zr_kernels_null(),
                                                                           .context = &context,
                                                                           .comm = comm,
                                                                           .stage = paper->stage},
                                     .model = &model});
    for (unsigned step = 0; step < 2 && result == ZR_OK; step++)
        result = paper_step(trainer, t);
    zr_trainer_destroy(trainer);
    zr_result closed = zr_comm_destroy(comm);
    return result == ZR_OK ? closed : result;
}

static void test_paper(const struct paper *paper)
{
    struct zr_timeline t;
    zr_backend *backend = NULL;
    zr_arena *arena = NULL;
    size_t leaked = SIZE_MAX, written = 0;
    double sent = PAPER_ELEMENTS * 4.0 * (PAPER_RANKS - 1) / PAPER_RANKS;

    zr_timeline_start(&t, host_arena, 1, sent / paper->transfer_seconds);
    zr_result result = zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = 0});
    if (result == ZR_OK)
        result = zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .name = "paper"});
    if (result == ZR_OK)
        result = paper_run(paper, &t, arena);
    tap_result(result, ZR_OK, "stage %u, transfers of %.0f s: two steps", paper->stage,
               paper->transfer_seconds);
    tap_ok(close_to(t.step_seconds, paper->step_seconds) && close_to(t.waited_seconds, paper->waited_seconds),
           "the second takes %.2f s, %.2f of them waiting; on paper %.0f and %.0f", t.step_seconds,
           t.waited_seconds, paper->step_seconds, paper->waited_seconds);
    for (size_t i = 0; i < 16 && paper->events[i].end_seconds > 0; i++, written++) {
        const struct written *want = &paper->events[i];
        const struct zr_timeline_event *got = find(&t, want->kind, want->unit, want->nth);
        tap_ok(got && fabs(got->begin_seconds - want->begin_seconds) < 1e-9 &&
                   fabs(got->end_seconds - want->end_seconds) < 1e-9,
               "%s %s %u: %.2f to %.2f s, on paper %.0f to %.0f", zr_action_kind_name(want->kind), want->unit,
               want->nth, got ? got->begin_seconds : NAN, got ? got->end_seconds : NAN, want->begin_seconds,
               want->end_seconds);
    }
    tap_is(t.events_count, written, "and there is nothing else");
    zr_timeline_end(&t);
    zr_arena_destroy(arena, &leaked);
    tap_is(leaked, 0, "nothing is left behind");
    zr_backend_destroy(backend);
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
    for (size_t i = 0; i < sizeof papers / sizeof *papers; i++)
        test_paper(&papers[i]);
    test_events();
    tap_is(records_end(), 0, "nothing is left behind");
    return tap_done();
}
