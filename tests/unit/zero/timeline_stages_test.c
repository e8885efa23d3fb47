/* timeline_stages_test.c: the step timeline of GPT-2 at stages 2 and 3 against a schedule worked out by hand
 * from --flops and --bandwidth alone: what is staged, gathered ahead, reduced and spread when, and who waits
 * for it. Stages 0 and 1, bounds and events: timeline_test.c. */
#include <math.h>

#include "tests/support/records.h"
#include "tests/support/tap.h"
#include "zero/plan/plan.h"
#include "zero/plan/timeline.h"

enum { LAYERS = 6, HIDDEN = 64, HEADS = 4, VOCABULARY = 192, SEQUENCE = 24, BATCH = 3, RANKS = 4 };
enum { WTE, WPE, BLOCK, LN_F = BLOCK + LAYERS, UNITS }; /* in order of use; the head is tied to wte */

/* ---- By hand ------------------------------------------------------------------------------------------
 *
 * One worker computes, one sends, in the order in which it is told to. Gradients pass a place that holds two
 * blocks and a sixteenth of one: who finds no room there waits for the oldest reduction, as for those of an
 * earlier micro-batch. At stage 3 two units may be gathered at a time. */
struct staged {
    unsigned unit, micro_batch;
    double end;
};

struct hands {
    double flops_per_second, bytes_per_second;
    double now, waited;  /* of the one who computes */
    double stream, busy; /* of the one who sends */
    double ready[UNITS]; /* when the parameters are there: spread (stage 2) or gathered (stage 3) */
    bool gathered[UNITS];
    struct staged staged[UNITS + 1];
    unsigned staged_count;
};

static const double rows = BATCH * SEQUENCE, c = HIDDEN;

/* Elements, up to whole shards of 64 on each of four ranks. */
static double size_of(unsigned unit)
{
    double elements = unit == WTE    ? VOCABULARY * c
                      : unit == WPE  ? SEQUENCE * c
                      : unit == LN_F ? 2 * c
                                     : 12 * c * c + 13 * c;
    return ceil(elements / (64 * RANKS)) * 64 * RANKS;
}

/* A block forward: products with matrices of 3, 1, 4 and 4 times c columns, scores and values. */
static double block_flops(void)
{
    return 2 * rows * c * 12 * c + 2 * 2 * rows * SEQUENCE * c;
}

static void compute(struct hands *hands, double flops)
{
    hands->now += flops / hands->flops_per_second;
}

static void wait(struct hands *hands, double end)
{
    if (end <= hands->now)
        return;
    hands->waited += end - hands->now;
    hands->now = end;
}

/* A collective sends three quarters of a unit, of 4 bytes each. */
static double send(struct hands *hands, unsigned unit)
{
    double seconds = size_of(unit) * 4 * (RANKS - 1) / RANKS / hands->bytes_per_second;
    hands->busy += seconds;
    return hands->stream = fmax(hands->now, hands->stream) + seconds;
}

/* ---- Parameters ---------------------------------------------------------------------------------------- */

static void fetch(struct hands *hands, unsigned stage, unsigned unit)
{
    if (stage < 3 || hands->gathered[unit])
        return;
    hands->gathered[unit] = true;
    hands->ready[unit] = send(hands, unit);
}

static void begin_use(struct hands *hands, unsigned stage, unsigned unit)
{
    fetch(hands, stage, unit);
    wait(hands, hands->ready[unit]);
}

static void end_use(struct hands *hands, unsigned unit)
{
    hands->gathered[unit] = false;
}

/* ---- Gradients ----------------------------------------------------------------------------------------- */

#define ROOM (2 * size_of(BLOCK) + size_of(BLOCK) / 16)

static void end_staged(struct hands *hands, unsigned at)
{
    wait(hands, hands->staged[at].end);
    hands->staged_count--;
    for (unsigned i = at; i < hands->staged_count; i++)
        hands->staged[i] = hands->staged[i + 1];
}

static double staged_elements(const struct hands *hands)
{
    double sum = 0;
    for (unsigned i = 0; i < hands->staged_count; i++)
        sum += size_of(hands->staged[i].unit);
    return sum;
}

static void stage_gradients(struct hands *hands, unsigned unit, unsigned micro_batch)
{
    for (unsigned i = 0; i < hands->staged_count; i++)
        if (hands->staged[i].unit == unit)
            end_staged(hands, i--);
    while (hands->staged_count > 0 &&
           (hands->staged[0].micro_batch < micro_batch || staged_elements(hands) + size_of(unit) > ROOM))
        end_staged(hands, 0);
}

static void reduce(struct hands *hands, unsigned unit, unsigned micro_batch)
{
    hands->staged[hands->staged_count++] = (struct staged){unit, micro_batch, send(hands, unit)};
}

/* ---- The passes ---------------------------------------------------------------------------------------- */

static void forward(struct hands *hands, unsigned stage)
{
    fetch(hands, stage, WTE);
    begin_use(hands, stage, WPE);
    begin_use(hands, stage, WTE);
    end_use(hands, WPE);
    end_use(hands, WTE);
    for (unsigned u = BLOCK; u < LN_F; u++) {
        fetch(hands, stage, u);
        fetch(hands, stage, u + 1 < LN_F ? u + 1 : WTE); /* ln_f is small: the head's is */
        begin_use(hands, stage, u);
        compute(hands, block_flops());
        end_use(hands, u);
    }
    begin_use(hands, stage, LN_F);
    end_use(hands, LN_F);
}

static void backward(struct hands *hands, unsigned stage, unsigned m)
{
    fetch(hands, stage, WTE);
    fetch(hands, stage, LN_F - 1);
    begin_use(hands, stage, WTE); /* the head: loss, and both gradients */
    stage_gradients(hands, WTE, m);
    compute(hands, 3 * 2 * rows * c * VOCABULARY);
    end_use(hands, WTE);
    reduce(hands, WTE, m);
    begin_use(hands, stage, LN_F);
    stage_gradients(hands, LN_F, m);
    end_use(hands, LN_F);
    reduce(hands, LN_F, m);
    for (unsigned u = LN_F; u-- > BLOCK;) {
        fetch(hands, stage, u);
        if (u > BLOCK)
            fetch(hands, stage, u - 1);
        begin_use(hands, stage, u);
        stage_gradients(hands, u, m);
        compute(hands, 2 * block_flops());
        end_use(hands, u);
        reduce(hands, u, m);
    }
    stage_gradients(hands, WTE, m); /* of the embeddings, which cost no products */
    stage_gradients(hands, WPE, m);
    reduce(hands, WPE, m);
    reduce(hands, WTE, m);
}

static void step_by_hand(struct hands *hands, unsigned stage, unsigned micro_batches)
{
    for (unsigned m = 0; m < micro_batches; m++) {
        forward(hands, stage);
        backward(hands, stage, m);
    }
    while (hands->staged_count > 0)
        end_staged(hands, 0);
    for (unsigned u = 0; u < UNITS && stage == 2; u++)
        hands->ready[u] = send(hands, u); /* the update, behind the next step's forward */
}

/* ---- Beside the rehearsal's ---------------------------------------------------------------------------- */

static bool close_to(double got, double want)
{
    return fabs(got - want) <= 1e-9 * fabs(want);
}

static void test_schedule(unsigned stage, unsigned micro_batches, double flops, double bandwidth)
{
    struct hands hands = {.flops_per_second = flops, .bytes_per_second = bandwidth};
    struct zr_timeline t;
    struct zr_byte_plan plan;
    step_by_hand(&hands, stage, micro_batches);
    struct hands first = hands;
    step_by_hand(&hands, stage, micro_batches);

    zr_timeline_start(&t, host_arena, flops, bandwidth);
    const struct zr_plan_request request = {.shape = {.layers = LAYERS,
                                                      .hidden = HIDDEN,
                                                      .heads = HEADS,
                                                      .vocabulary = VOCABULARY,
                                                      .vocabulary_padded = VOCABULARY,
                                                      .sequence = SEQUENCE,
                                                      .batch = BATCH},
                                            .stage = stage,
                                            .world = RANKS,
                                            .micro_batches = micro_batches,
                                            .threads = 1,
                                            .bucket_bytes = 1 << 20,
                                            .host_arena = host_arena,
                                            .timeline = &t};
    if (zr_plan_make(&plan, &request) != ZR_OK)
        tap_ok(false, "a rehearsal: %s", zr_last_error());
    double step = hands.now - first.now, waited = hands.waited - first.waited, busy = hands.busy - first.busy;
    tap_ok(close_to(t.step_seconds, step),
           "stage %u, %u micro-batches, %.0g operations and %.0g bytes a second: %.6f ms, by hand %.6f",
           stage, micro_batches, flops, bandwidth, 1e3 * t.step_seconds, 1e3 * step);
    tap_ok(close_to(t.comm_seconds, busy) && fabs(t.waited_seconds - waited) <= 1e-9 * step,
           "of which %.6f ms waiting, by hand %.6f; %.6f ms sending, by hand %.6f", 1e3 * t.waited_seconds,
           1e3 * waited, 1e3 * t.comm_seconds, 1e3 * busy);
    tap_ok((plan.tag_limits.by_tag_bytes[ZR_TAG_GATHERED] > 0) == (stage == 3),
           "by a model that the stage shards");
    zr_timeline_end(&t);
}

int main(void)
{
    tap_result(records_begin(), ZR_OK, "memory for records");
    for (unsigned stage = 2; stage <= 3; stage++)
        for (unsigned micro_batches = 1; micro_batches <= 3; micro_batches++)
            for (double bandwidth = 1e6; bandwidth < 1e11; bandwidth *= 4.5)
                test_schedule(stage, micro_batches, 1e9, bandwidth);
    test_schedule(2, 1, 312e12, 25e9);
    test_schedule(3, 1, 312e12, 25e9);
    tap_is(records_end(), 0, "nothing is left behind");
    return tap_done();
}
