/* timeline_repeats_test.c: the rehearsal's clock, and the byte plan, over many micro-batches: few are gone
 * through, and one of them stands for those that are left out. And a delayed update, which computes on the
 * host beside all micro-batches of the next step, with or without a disk. */
#include <string.h>

#include "tests/support/zero/timeline_runs.h"

/* ---- Many micro-batches -------------------------------------------------------------------------------- */

static const struct zr_timeline_event *by_order(const struct zr_timeline *t, uint32_t order)
{
    for (size_t i = 0; i < t->events_count; i++)
        if (t->events[i].order == order)
            return &t->events[i];
    return NULL;
}

/* In the order in which the engine noted them: what begins at the same time may change places by rounding. */
static bool same_events(const struct zr_timeline *a, const struct zr_timeline *b)
{
    bool same = a->events_count == b->events_count && a->left_out == b->left_out;
    for (uint32_t i = 0; same && i < a->events_count; i++) {
        const struct zr_timeline_event *x = by_order(a, i), *y = by_order(b, i);
        same = x && y && x->kind == y->kind && x->micro_batch == y->micro_batch &&
               strcmp(x->name, y->name) == 0 &&
               fabs(x->begin_seconds - y->begin_seconds) <= 1e-9 * a->step_seconds &&
               fabs(x->end_seconds - y->end_seconds) <= 1e-9 * a->step_seconds;
    }
    return same;
}

static bool same_phases(const struct zr_timeline *a, const struct zr_timeline *b)
{
    bool same = true;
    for (unsigned kind = 0; kind < ZR_TIMELINE_KINDS; kind++) {
        const struct zr_timeline_phase *x = &a->phases[kind], *y = &b->phases[kind];
        same &= x->count == y->count && close_to(x->busy_seconds, y->busy_seconds) &&
                fabs(x->begin_seconds - y->begin_seconds) <= 1e-9 * a->step_seconds &&
                fabs(x->end_seconds - y->end_seconds) <= 1e-9 * a->step_seconds;
    }
    return same;
}

/* Going through all of them, and through some that stand for the others. */
static void test_repeated(unsigned stage, unsigned micro_batches, enum zr_reduce_when reduce)
{
    unsigned differ = 0, plans = 0;
    for (double bytes_per_second = 1e5; bytes_per_second < 1e11; bytes_per_second *= 10) {
        struct run walked = {.world = 3,
                             .stage = stage,
                             .layers = 3,
                             .micro_batches = micro_batches,
                             .reduce = reduce,
                             .walks_all = true,
                             .flops_per_second = 1e9,
                             .bytes_per_second = bytes_per_second};
        struct run short_cut = walked;
        short_cut.walks_all = false;
        rehearse(&walked);
        rehearse(&short_cut);
        const struct zr_timeline *a = &walked.timeline, *b = &short_cut.timeline;
        differ += !close_to(a->step_seconds, b->step_seconds) || !close_to(a->flops, b->flops) ||
                  !close_to(a->comm_seconds, b->comm_seconds) ||
                  fabs(a->waited_seconds - b->waited_seconds) > 1e-9 * a->step_seconds ||
                  a->sent_bytes != b->sent_bytes || !same_phases(a, b) || !same_events(a, b);
        plans += walked.plan.sent_elements_per_step != short_cut.plan.sent_elements_per_step;
        zr_timeline_end(&walked.timeline);
        zr_timeline_end(&short_cut.timeline);
    }
    tap_is(differ, 0, "stage %u, %u micro-batches%s: walked and multiplied give one timeline", stage,
           micro_batches, reduce == ZR_REDUCE_ONCE ? " reduced once" : "");
    tap_is(plans, 0, "and as many elements sent");
}

/* Of a model with more events than are kept, wherever the rehearsal comes to an end of them: within the
 * micro-batch that stands for others, before it, behind it, or among its copies. */
static void test_cut_off(unsigned stage, unsigned micro_batches)
{
    unsigned differ = 0, runs = 0;
    struct run walked = {.world = 3,
                         .stage = stage,
                         .layers = 3,
                         .micro_batches = micro_batches,
                         .walks_all = true,
                         .flops_per_second = 1e9,
                         .bytes_per_second = 1e7};
    rehearse(&walked);
    size_t all = walked.timeline.events_count;
    zr_timeline_end(&walked.timeline);
    for (size_t most = 1; most <= all + 1; most += 1 + most / 9) {
        struct run short_cut;
        walked.events_max = most;
        short_cut = walked;
        short_cut.walks_all = false;
        rehearse(&walked);
        rehearse(&short_cut);
        differ += !close_to(walked.timeline.step_seconds, short_cut.timeline.step_seconds) ||
                  walked.timeline.left_out != (most < all ? all - most : 0) ||
                  !same_phases(&walked.timeline, &short_cut.timeline) ||
                  !same_events(&walked.timeline, &short_cut.timeline);
        runs++;
        zr_timeline_end(&walked.timeline);
        zr_timeline_end(&short_cut.timeline);
    }
    tap_is(differ, 0, "stage %u, %u micro-batches, 1 to %zu events kept (%u runs): one timeline", stage,
           micro_batches, all, runs);
}

/* A network so deep that some of its micro-batches have more events than are kept. */
static void test_deep(void)
{
    struct run walked = {.world = 3,
                         .stage = 2,
                         .layers = 6000,
                         .micro_batches = 9,
                         .walks_all = true,
                         .flops_per_second = 1e9,
                         .bytes_per_second = 1e7};
    struct run short_cut = walked;
    short_cut.walks_all = false;
    rehearse(&walked);
    rehearse(&short_cut);
    tap_ok(walked.timeline.left_out > 0 &&
               close_to(walked.timeline.step_seconds, short_cut.timeline.step_seconds) &&
               walked.timeline.left_out == short_cut.timeline.left_out &&
               same_phases(&walked.timeline, &short_cut.timeline),
           "6,000 layers, 9 micro-batches: %.3f s walked, %.3f multiplied", walked.timeline.step_seconds,
           short_cut.timeline.step_seconds);
    zr_timeline_end(&walked.timeline);
    zr_timeline_end(&short_cut.timeline);
}

/* The byte plan itself, without a clock. */
static void test_repeated_plan(unsigned stage, enum zr_precision precision, unsigned micro_batches)
{
    struct run run = {.world = 3, .stage = stage};
    struct zr_byte_plan walked, short_cut;
    struct zr_plan_request request = {.shape = shape_of(&run),
                                      .stage = stage,
                                      .world = 3,
                                      .precision = precision,
                                      .micro_batches = micro_batches,
                                      .threads = 1,
                                      .bucket_bytes = 1 << 20,
                                      .host_arena = host_arena};
    zr_result result = zr_plan_make(&short_cut, &request);
    request.walks_all = true;
    if (result == ZR_OK)
        result = zr_plan_make(&walked, &request);
    tap_ok(result == ZR_OK && memcmp(&walked, &short_cut, sizeof walked) == 0,
           "stage %u, %s, %u micro-batches: walked and multiplied give one plan of %zu bytes, %llu elements "
           "sent",
           stage, zr_precision_name(precision), micro_batches, short_cut.peak_reserved_bytes,
           (unsigned long long)short_cut.sent_elements_per_step);
}

/* What is rehearsed does not grow with the number of micro-batches, and what comes of it does. */
static void test_very_many(unsigned stage)
{
    enum { MANY = 1 << 30 };
    struct run few = {
        .world = 3, .stage = stage, .micro_batches = 16, .flops_per_second = 1e9, .bytes_per_second = 1e7};
    struct run many = few;
    many.micro_batches = MANY;
    rehearse(&few);
    rehearse(&many);
    double each = (many.timeline.step_seconds - few.timeline.step_seconds) / (MANY - 16);
    tap_ok(close_to(many.timeline.flops / MANY, few.timeline.flops / 16) &&
               each * 15 < few.timeline.step_seconds && each * 17 > few.timeline.step_seconds &&
               many.timeline.events_count == ZR_TIMELINE_EVENTS_MAX,
           "stage %u, a billion micro-batches: %.0f s, each of them %.3f ms", stage,
           many.timeline.step_seconds, 1e3 * each);
    zr_timeline_end(&few.timeline);
    zr_timeline_end(&many.timeline);
}

/* ---- A delayed update ---------------------------------------------------------------------------------- */

/* A delayed update, whose thread takes `seconds` for all elements, on a disk that takes `disk_seconds`; what
 * a step takes with forward and backward in no time. */
static double step_behind_update(const char *folder, unsigned micro_batches, double seconds,
                                 double disk_seconds)
{
    enum { DEEP = 40, ALIGN = 4096 };
    struct run run = {.layers = DEEP};
    struct zr_plan_request request = {.shape = shape_of(&run),
                                      .world = 1,
                                      .micro_batches = micro_batches,
                                      .threads = 1,
                                      .bucket_bytes = 1 << 20,
                                      .offloads_optimizer = true,
                                      .delays_update = true,
                                      .offload_file = {.folder = folder, .align_bytes = ALIGN},
                                      .host_arena = host_arena};
    zr_result result = zr_plan_make(&run.plan, &request);
    zr_timeline_start(&run.timeline, host_arena, 1e18, 1e18);
    run.timeline.clock.updates_per_second = (double)run.plan.elements / seconds;
    run.timeline.clock.nvme_bytes_per_second = (double)run.plan.nvme_moved_bytes_per_step / disk_seconds;
    request.timeline = &run.timeline;
    if (result == ZR_OK)
        result = zr_plan_make(&run.plan, &request);
    double waited = folder ? run.timeline.nvme_waited_seconds : run.timeline.waited_seconds;
    tap_ok(result == ZR_OK && waited > 0.999 * run.timeline.step_seconds,
           "%s, %u micro-batches: a step waits for its update, %.3f s", folder ? "on a disk" : "on the host",
           micro_batches, waited);
    zr_timeline_end(&run.timeline);
    return waited;
}

/* The longer of disk and computing, and the shorter one of a unit or two of the 40 that are alike. */
static void test_late(unsigned micro_batches)
{
    double disk = step_behind_update("/", micro_batches, 1e-6, 3),
           computing = step_behind_update("/", micro_batches, 3, 1e-6),
           both = step_behind_update("/", micro_batches, 3, 3),
           less = step_behind_update("/", micro_batches, 1, 3),
           more = step_behind_update("/", micro_batches, 3, 1);
    tap_ok(disk > 2.8 && disk < 3.01 && computing > 2.999 && computing < 3.2,
           "of the disk %.3f s, of computing %.3f s", disk, computing);
    tap_ok(both > 2.999 && both < 3.4 && less > 2.8 && less < 3.2 && more > 2.999 && more < 3.2,
           "each behind the other: %.3f s, of less computing %.3f s, of more %.3f s", both, less, more);
    double alone = step_behind_update(NULL, micro_batches, 3, 1);
    tap_ok(alone > 2.999 && alone < 3.001, "without a disk %.3f s", alone);
}

int main(void)
{
    tap_result(records_begin(), ZR_OK, "memory for records");
    for (unsigned stage = 0; stage <= 3; stage++) {
        for (unsigned micro_batches = 5; micro_batches <= 9; micro_batches += 4)
            test_repeated(stage, micro_batches, ZR_REDUCE_EACH);
        if (stage < 2)
            test_repeated(stage, 5, ZR_REDUCE_ONCE);
        for (unsigned at = 0; at < 6; at++)
            test_repeated_plan(stage, (enum zr_precision)(at % 3), at < 3 ? 5 : 8);
        test_very_many(stage);
        test_cut_off(stage, 7);
    }
    test_deep();
    test_late(1);
    test_late(9);
    tap_is(records_end(), 0, "nothing is left behind");
    return tap_done();
}
