/* norm.c: the gradients of a step are complete: their norm and clipping, and the report of a gradient that is
 * not finite. In fp16 a step whose gradients overflowed is skipped. */
#include "zero/engine/actions.h"
#include "zero/engine/compression.h"
#include "zero/engine/gradients.h"
#include "zero/engine/momentum.h"
#include "zero/engine/served.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static zr_result wait_for_gradients(struct zr_engine *engine)
{
    for (size_t u = engine->layout.units_count; u-- > 0;) {
        struct zr_unit_state *state = &engine->units[u];
        if (state->steps == 0)
            continue;
        if (state->accumulated != state->steps)
            return zr_fail(ZR_ERR_INVALID, "unit %s has %u of %u gradients at the end of the step",
                           engine->layout.units[u].unit.name, state->accumulated, state->steps);
        zr_result result = zr_engine_end_reduction(engine, u);
        if (result == ZR_OK && zr_engine_is_shared(engine, u))
            result = state->path->share(engine, u);
        if (result != ZR_OK)
            return result;
    }
    return zr_engine_drop_parameters(engine);
}

zr_result zr_engine_bring_gradients(struct zr_engine *engine)
{
    zr_result result = engine->brought ? ZR_OK : wait_for_gradients(engine);
    if (result == ZR_OK && !engine->brought)
        result = zr_engine_drain(engine);
    engine->brought = result == ZR_OK;
    return result;
}

/* The pipeline ranks whose gradients count together. Those that share tensors need the same factor. */
static zr_comm *stages_of_norm(const struct zr_engine *engine)
{
    return engine->options.own_norm ? engine->options.sharing : engine->options.pipeline;
}

/* Location of a gradient that is not finite; unit UINT64_MAX: none. A packed sum has a NaN for each number of
 * a scale, and its senders have seen the one that made it so. */
struct bad_gradient {
    uint64_t unit, element, seen_by_sender;
};

/* Whether `a` is before `b`, in the order of backward. */
static bool is_before(const struct bad_gradient *a, const struct bad_gradient *b)
{
    if (a->unit == UINT64_MAX || b->unit == UINT64_MAX || a->unit != b->unit)
        return a->unit != UINT64_MAX && (b->unit == UINT64_MAX || a->unit > b->unit);
    return a->seen_by_sender > b->seen_by_sender || (b->seen_by_sender && a->element < b->element);
}

/* The first location, in the order of backward, over the ranks of a communicator. */
static zr_result first_of_ranks(zr_comm *comm, struct bad_gradient *bad)
{
    struct bad_gradient mine = *bad, all[ZR_MAX_WORLD];
    zr_result result = zr_comm_host_all_gather(comm, &mine, sizeof mine, all);
    unsigned first = 0;
    for (unsigned r = 1; r < zr_comm_world(comm) && result == ZR_OK; r++)
        if (is_before(&all[r], &all[first]))
            first = r;
    *bad = result == ZR_OK ? all[first] : mine;
    return result;
}

static zr_result find_bad_gradient(struct zr_engine *engine, struct bad_gradient *mine)
{
    zr_result result = ZR_OK;
    *mine = (struct bad_gradient){UINT64_MAX, 0, false};
    /* Backward runs from the last unit to the first. */
    for (size_t u = engine->layout.units_count; u-- > 0;) {
        struct zr_overlap range;
        struct zr_numbers gradients;
        size_t at, sent = zr_engine_packed_nonfinite(engine, u);
        if (engine->units[u].steps == 0)
            continue;
        if (sent < SIZE_MAX) {
            *mine = (struct bad_gradient){u, sent, true};
            break;
        }
        result = zr_gradient_do(engine->units[u].place->fetch, engine, u);
        gradients = zr_engine_counted_gradients(engine, u, &range);
        at = range.count;
        if (result == ZR_OK)
            result = zr_engine_find_nonfinite(engine, zr_engine_unit_compute(engine, u), range.count,
                                              gradients, &at);
        if (result != ZR_OK)
            return result;
        if (at < range.count) {
            *mine = (struct bad_gradient){u, range.offset + at, false};
            break;
        }
    }
    result = first_of_ranks(engine->options.comm, mine);
    return result == ZR_OK && engine->options.tensor ? first_of_ranks(engine->options.tensor, mine) : result;
}

/* The first gradient that is not finite over all ranks of the model, with the parameter's name. */
struct bad_element {
    bool found;
    char name[sizeof((struct zr_parameter *)0)->name];
    uint64_t element;
};

static zr_result find_bad_element(struct zr_engine *engine, struct bad_element *out)
{
    struct bad_element all[ZR_MAX_WORLD];
    struct bad_gradient bad;
    zr_comm *pipeline = stages_of_norm(engine);
    zr_result result = find_bad_gradient(engine, &bad);
    memset(out, 0, sizeof *out);
    if (result == ZR_OK && bad.unit != UINT64_MAX) {
        const struct zr_layout_parameter *p = zr_engine_parameter_at(engine, bad.unit, bad.element);
        out->found = true;
        out->element = p ? bad.element - p->offset : bad.element;
        snprintf(out->name, sizeof out->name, "%s", p ? p->parameter.name : "padding");
    }
    if (result == ZR_OK && pipeline)
        result = zr_comm_host_all_gather(pipeline, out, sizeof *out, all);
    for (unsigned r = 0; result == ZR_OK && pipeline && r < zr_comm_world(pipeline); r++)
        if (all[r].found) /* backward runs the last stage first */
            *out = all[r];
    return result;
}

zr_result zr_engine_report_bad_graph(struct zr_engine *engine)
{
    (void)engine;
    return zr_fail(ZR_ERR_CORRUPT,
                   "the norm of the gradients is not finite; nothing was updated; run without "
                   "--cuda-graph to find the gradient");
}

/* Sets the error message with the first gradient that is not finite. Collective: the norm is the same on all
 * ranks. */
zr_result zr_engine_report_bad_gradient(struct zr_engine *engine)
{
    struct bad_element bad;
    zr_result result = find_bad_element(engine, &bad);
    if (result != ZR_OK)
        return result;
    if (!bad.found)
        return zr_fail(ZR_ERR_CORRUPT, "the gradient norm overflowed, although every gradient is finite; "
                                       "lower the learning rate (--lr)");
    const char *name = bad.name;
    uint64_t element = bad.element;
    if (engine->options.precision == ZR_PRECISION_FP16 && engine->scaling.skipped_in_row > 1)
        return zr_fail(
            ZR_ERR_CORRUPT,
            "the gradient of %s is not finite (element %" PRIu64 "): %u steps in a row were "
            "skipped, the last with the smallest loss scale, %g; lower the learning rate (--lr) or train "
            "in bf16",
            name, element, engine->scaling.skipped_in_row, (double)engine->scaling.scale);
    return zr_fail(ZR_ERR_CORRUPT,
                   "the gradient of %s is not finite (element %" PRIu64 "); %s was%s updated; "
                   "lower the learning rate (--lr) or clip (--clip)",
                   name, element, engine->options.own_norm ? "its stage" : "nothing",
                   engine->options.own_norm ? " not" : "");
}

zr_result zr_engine_all_squares(struct zr_engine *engine)
{
    zr_result result = ZR_OK;
    if (zr_engine_is_served(engine)) /* each push has computed its squares */
        return ZR_OK;
    for (size_t u = 0; u < engine->layout.units_count && result == ZR_OK; u++)
        result = zr_gradient_do(engine->units[u].place->squares, engine, u);
    return result;
}

/* Sum of squares with its rounding error (compensated sum), so that the result does not depend on the
 * distribution of tensors over ranks. */
struct exact {
    double sum, rest;
};

static void add_exactly(struct exact *to, double number)
{
    double sum = to->sum + number, added = sum - to->sum;
    to->rest += (to->sum - (sum - added)) + (number - added);
    to->sum = sum;
}

/* Adds the sums of the ranks of a communicator; NULL does nothing. */
static zr_result add_over(zr_comm *comm, struct exact *number)
{
    struct exact parts[ZR_MAX_WORLD];
    if (!comm)
        return ZR_OK;
    zr_result result = zr_comm_host_all_gather(comm, number, sizeof *number, parts);
    *number = (struct exact){0};
    for (unsigned r = 0; r < zr_comm_world(comm); r++) {
        add_exactly(number, parts[r].sum);
        number->rest += parts[r].rest;
    }
    return result;
}

/* Squares of each rank's shard, in engine->squares: each rank's own, and then those of all. */
static zr_result exchange_squares(struct zr_engine *engine)
{
    size_t units = engine->layout.units_count;
    zr_result result = zr_engine_all_squares(engine);
    if (result == ZR_OK && !zr_engine_is_part(engine))
        result = zr_engine_squares_read(engine, engine->squares);
    return result == ZR_OK ? zr_comm_host_all_gather(engine->options.comm, engine->squares,
                                                     units * sizeof *engine->squares, engine->squares + units)
                           : result;
}

/* The same on rank 0, which has all gradients. */
static zr_result squares_of_root(struct zr_engine *engine)
{
    size_t units = engine->layout.units_count;
    zr_result result = ZR_OK;
    for (size_t i = 0; i < engine->world * units && engine->rank == 0 && result == ZR_OK; i++) {
        size_t unit = i % units, shard = engine->layout.units[unit].shard_elements;
        if (engine->units[unit].steps > 0)
            result = zr_engine_squares(engine, zr_engine_unit_compute(engine, unit), shard,
                                       zr_numbers_at(engine->units[unit].reduced, i / units * shard),
                                       &engine->squares[units + i]);
    }
    return result;
}

/* The norm of all gradients: squares in fixed blocks of each shard, added unit by unit, and within a unit
 * rank by rank; with tensor or pipeline parallelism over all engines. The bits are the same on every rank and
 * at every stage. */
static zr_result gradient_norm(struct zr_engine *engine, double *norm)
{
    size_t units = engine->layout.units_count;
    double *all = engine->squares + units, total = 0, totals[ZR_MAX_WORLD];
    struct exact exact = {0};
    zr_result result = engine->options.root_owns ? squares_of_root(engine) : exchange_squares(engine);
    for (size_t u = 0; u < units && result == ZR_OK; u++)
        for (unsigned r = 0; r < engine->world; r++) {
            total += all[r * units + u];
            add_exactly(&exact, all[r * units + u]);
        }
    if (result == ZR_OK && engine->options.root_owns) {
        result = zr_comm_host_all_gather(engine->options.comm, &total, sizeof total, totals);
        total = totals[0];
    }
    if (result == ZR_OK)
        result = add_over(engine->options.tensor, &exact);
    if (result == ZR_OK)
        result = add_over(stages_of_norm(engine), &exact);
    if (zr_engine_sends_momentum(engine))
        total /= engine->world;
    if (zr_engine_is_part(engine))
        total = isfinite(exact.sum) ? exact.sum + exact.rest : exact.sum;
    *norm = sqrt(total);
    return result;
}

/* Computes the gradients' norm, decides whether the step is skipped, and sets the factor of the update. */
zr_result zr_engine_norm(struct zr_engine *engine, struct zr_step_report *report, float *scale)
{
    const struct zr_optimizer_options *options = &engine->options.optimizer;
    double norm;
    zr_result result = gradient_norm(engine, &norm);
    if (result != ZR_OK)
        return result;
    report->gradient_norm = norm / (double)report->loss_scale;
    report->skipped = !isfinite(norm);
    if (report->skipped && engine->options.precision != ZR_PRECISION_FP16)
        return zr_engine_report_bad_gradient(engine);
    result = zr_engine_measure_squares(engine, report->loss_scale, report->skipped);
    if (result != ZR_OK)
        return result;
    if (!zr_engine_follow_scaling(engine, !report->skipped))
        return zr_engine_report_bad_gradient(engine);
    if (options->clip > 0 && !report->skipped && report->gradient_norm > options->clip)
        report->clip_scale = (float)(options->clip / report->gradient_norm);
    *scale = report->clip_scale / report->loss_scale;
    return ZR_OK;
}
