/* low_rank.c: see low_rank.h. */
#include "zero/engine/low_rank.h"

#include <math.h>
#include <string.h>

#include "zero/engine/errors.h"

/* Elements of P Q^T that are computed at a time, or a row of it. */
enum { BLOCK_ELEMENTS = 65536 };
/* A column whose norm shrinks by more is rounding errors of the columns before it. */
static const double dependent = 1e-5;

/* Parts of a sum: P is all-reduced, then Q. */
enum { DONE, ADDING_P, ADDING_Q };

/* A unit's sum. */
struct zr_low_rank_unit {
    size_t p_at, p_count, q_at, q_count; /* places in the pools, and numbers without padding */
    struct zr_low_rank_sum sum;
    unsigned part;
};

/* ---- Matrices ------------------------------------------------------------------------------------------ */

/* A tensor of a unit, its numbers of V, P and Q. */
struct tensor {
    size_t rows, columns, rank; /* rank 0: sent as it is */
    size_t offset, elements;    /* in the unit */
    float *v, *p, *q;
};

static size_t rank_of(const struct zr_engine *engine, const struct zr_layout_parameter *p)
{
    size_t rows = p->parameter.shape[0], columns = p->parameter.shape[1],
           rank = (size_t)engine->options.compression.kinds[ZR_COMPRESSED_GRADIENTS].parameter;
    if (rank == 0)
        rank = ((rows < columns ? rows : columns) + 7) / 8;
    return rank < rows && rank < columns && rank * (rows + columns) < rows * columns ? rank : 0;
}

static size_t p_numbers(const struct tensor *t)
{
    return t->rank > 0 ? t->rows * t->rank : t->elements;
}

static size_t q_numbers(const struct tensor *t)
{
    return t->columns * t->rank;
}

/* The tensor after `t` in its unit, the first one for zeros; `index` counts them. False: there are no more.
 */
static bool next(const struct zr_engine *engine, size_t unit, size_t *index, struct tensor *t)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    const struct zr_low_rank *low = &engine->compression.low_rank;
    float *p = t->v ? t->p + p_numbers(t) : low->p + low->units[unit].p_at,
          *q = t->v ? t->q + q_numbers(t) : low->q + low->units[unit].q_at;
    if (*index >= u->parameters_count)
        return false;
    const struct zr_layout_parameter *parameter = &engine->layout.parameters[u->first_parameter + (*index)++];
    *t = (struct tensor){.rows = parameter->parameter.shape[0],
                         .columns = parameter->parameter.shape[1],
                         .rank = rank_of(engine, parameter),
                         .offset = parameter->offset,
                         .elements = parameter->elements,
                         .v = zr_engine_errors(engine, unit) + parameter->offset,
                         .p = p,
                         .q = q};
    return true;
}

/* Numbers of a block that all ranks divide. */
static size_t padded(const struct zr_engine *engine, size_t count)
{
    return (count + engine->world - 1) / engine->world * engine->world;
}

/* ---- Open and close ------------------------------------------------------------------------------------ */

static zr_result randomize(struct zr_engine *engine, size_t index, size_t count, float *to)
{
    return engine->options.kernels->init_normal(
        &engine->compression.low_rank.context,
        &(struct zr_init_normal){
            .n = count, .seed = engine->options.seed, .first_index = index, .deviation = 1, .x = to});
}

zr_result zr_engine_low_rank_open(struct zr_engine *engine)
{
    const struct zr_engine_options *o = &engine->options;
    struct zr_low_rank *low = &engine->compression.low_rank;
    size_t p = 0, q = 0, columns = 0;
    if (!zr_engine_sends_by(engine, ZR_METHOD_LOW_RANK))
        return ZR_OK;
    low->context = *o->context;
    low->context.precision = ZR_PRECISION_FP32;
    low->context.fp8 = false;
    low->context.flops = NULL;
    low->last[0] = low->last[1] = ZR_NO_UNIT;
    zr_result result = zr_take(o->host_arena, ZR_TAG_OTHER, engine->layout.units_count, sizeof *low->units,
                               (void **)&low->units);
    if (result != ZR_OK)
        return result;
    memset(low->units, 0, engine->layout.units_count * sizeof *low->units);
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        const struct zr_layout_unit *unit = &engine->layout.units[u];
        struct zr_low_rank_unit *own = &low->units[u];
        own->p_at = p;
        own->q_at = q;
        for (size_t i = 0; i < unit->parameters_count && !zr_engine_is_frozen(engine, u); i++) {
            const struct zr_layout_parameter *at = &engine->layout.parameters[unit->first_parameter + i];
            size_t rank = rank_of(engine, at);
            own->p_count += rank > 0 ? rank * at->parameter.shape[0] : at->elements;
            own->q_count += rank * at->parameter.shape[1];
            columns = rank > 0 && at->parameter.shape[1] > columns ? at->parameter.shape[1] : columns;
        }
        p += padded(engine, own->p_count);
        q += padded(engine, own->q_count);
    }
    low->block_elements = columns > BLOCK_ELEMENTS ? columns : BLOCK_ELEMENTS;
    result = zr_take(o->arena, ZR_TAG_COMM, p, sizeof *low->p, (void **)&low->p);
    if (result == ZR_OK)
        result = zr_take(o->arena, ZR_TAG_COMM, q, sizeof *low->q, (void **)&low->q);
    if (result == ZR_OK)
        result =
            zr_take(o->arena, ZR_TAG_COMM, low->block_elements, sizeof *low->block, (void **)&low->block);
    if (result == ZR_OK)
        result = o->kernels->clear(&low->context, &(struct zr_clear){p * sizeof *low->p, low->p});
    return result == ZR_OK ? randomize(engine, 0, q, low->q) : result;
}

void zr_engine_low_rank_close(struct zr_engine *engine)
{
    struct zr_low_rank *low = &engine->compression.low_rank;
    zr_drop(engine->options.arena, &low->block);
    zr_drop(engine->options.arena, &low->q);
    zr_drop(engine->options.arena, &low->p);
    zr_drop(engine->options.host_arena, &low->units);
}

float *zr_engine_low_rank_factors(const struct zr_engine *engine, size_t unit, size_t *count)
{
    const struct zr_low_rank *low = &engine->compression.low_rank;
    *count = low->units ? low->units[unit].q_count : 0;
    return *count > 0 ? low->q + low->units[unit].q_at : NULL;
}

/* ---- Columns of P -------------------------------------------------------------------------------------- */

static double dot(const struct tensor *t, size_t a, size_t b)
{
    double sum = 0;
    for (size_t row = 0; row < t->rows; row++)
        sum += (double)t->p[row * t->rank + a] * (double)t->p[row * t->rank + b];
    return sum;
}

/* Modified Gram-Schmidt, twice, because one pass leaves the rounding errors of nearly dependent columns. A
 * NaN stays one. */
static void orthogonalize(const struct tensor *t)
{
    for (size_t c = 0; c < t->rank; c++) {
        double before = sqrt(dot(t, c, c));
        for (size_t i = 0; i < 2 * c; i++) {
            double share = dot(t, i % c, c);
            for (size_t row = 0; row < t->rows; row++)
                t->p[row * t->rank + c] -= (float)(share * (double)t->p[row * t->rank + i % c]);
        }
        double norm = sqrt(dot(t, c, c)), scale = norm <= dependent * before ? 0 : 1 / norm;
        for (size_t row = 0; row < t->rows; row++)
            t->p[row * t->rank + c] = (float)(scale * (double)t->p[row * t->rank + c]);
    }
}

/* Random numbers for columns of Q that are zero. */
static zr_result refill(struct zr_engine *engine, const struct tensor *t)
{
    const struct zr_low_rank *low = &engine->compression.low_rank;
    zr_result result = ZR_OK;
    for (size_t c = 0; c < t->rank && result == ZR_OK; c++) {
        bool zero = true;
        for (size_t i = 0; i < t->columns && zero; i++)
            zero = t->q[i * t->rank + c] == 0;
        if (!zero)
            continue;
        result = randomize(engine, (size_t)(t->q - low->q) + c * t->columns, t->columns, low->block);
        for (size_t i = 0; i < t->columns && result == ZR_OK; i++)
            t->q[i * t->rank + c] = low->block[i];
    }
    return result;
}

/* ---- Parts of a sum ------------------------------------------------------------------------------------ */

static zr_result add(struct zr_engine *engine, size_t n, const void *from, enum zr_precision precision,
                     float scale, struct zr_numbers to)
{
    return engine->options.kernels->sum(&engine->compression.low_rank.context,
                                        &(struct zr_sum){.n = n,
                                                         .from = &from,
                                                         .count = 1,
                                                         .precision = precision,
                                                         .scale = scale,
                                                         .accumulate = true,
                                                         .to = to});
}

static zr_result all_reduce(struct zr_engine *engine, size_t unit, float *numbers, size_t count)
{
    return zr_comm_all_reduce(engine->options.comm,
                              &(struct zr_all_reduce){.buffer = numbers,
                                                      .shard_elements = padded(engine, count) / engine->world,
                                                      .scale = 1.0f / (float)engine->world,
                                                      .type = ZR_COMM_FP32,
                                                      .label = ZR_ENGINE_LABEL(unit, ZR_LABEL_GRADIENTS)},
                              &engine->units[unit].reduce_ticket);
}

static zr_result send_p(struct zr_engine *engine, size_t unit)
{
    const struct zr_kernels *kernels = engine->options.kernels;
    struct zr_low_rank *low = &engine->compression.low_rank;
    const struct zr_low_rank_unit *own = &low->units[unit];
    struct tensor t = {.v = NULL};
    zr_result result =
        add(engine, engine->layout.units[unit].padded_elements, own->sum.source, engine->options.precision, 1,
            (struct zr_numbers){zr_engine_errors(engine, unit), ZR_PRECISION_FP32});
    for (size_t i = 0; result == ZR_OK && next(engine, unit, &i, &t);) {
        if (t.rank > 0) {
            result = kernels->linear_forward(
                &low->context,
                &(struct zr_linear_forward){
                    .shape = {.rows = t.rows, .in = t.columns, .out = t.rank}, .x = t.v, .w = t.q, .y = t.p});
            continue;
        }
        result = kernels->convert(
            &low->context,
            &(struct zr_convert){t.elements, {t.v, ZR_PRECISION_FP32}, {t.p, ZR_PRECISION_FP32}});
        if (result == ZR_OK)
            result = kernels->clear(&low->context, &(struct zr_clear){t.elements * sizeof *t.v, t.v});
    }
    return result == ZR_OK ? all_reduce(engine, unit, low->p + own->p_at, own->p_count) : result;
}

static zr_result send_q(struct zr_engine *engine, size_t unit)
{
    struct zr_low_rank *low = &engine->compression.low_rank;
    const struct zr_low_rank_unit *own = &low->units[unit];
    struct tensor t = {.v = NULL};
    zr_result result = ZR_OK;
    for (size_t i = 0; result == ZR_OK && next(engine, unit, &i, &t);) {
        if (t.rank == 0)
            continue;
        if (!engine->simulated)
            orthogonalize(&t);
        result = engine->options.kernels->linear_backward(
            &low->context,
            &(struct zr_linear_backward){.shape = {.rows = t.rows, .in = t.columns, .out = t.rank},
                                         .x = t.v,
                                         .w = t.q,
                                         .dy = t.p,
                                         .dw = t.q});
    }
    return result == ZR_OK ? all_reduce(engine, unit, low->q + own->q_at, own->q_count) : result;
}

/* Writes or adds what of `count` numbers from element `at` of the unit belongs to the sum. */
static zr_result put(struct zr_engine *engine, const struct zr_low_rank_sum *sum, size_t at, size_t count,
                     const float *numbers)
{
    size_t first = at > sum->from ? at : sum->from,
           end = at + count < sum->from + sum->count ? at + count : sum->from + sum->count;
    if (first >= end)
        return ZR_OK;
    const struct zr_numbers to = zr_numbers_at(sum->to, first - sum->from);
    numbers += first - at;
    if (sum->accumulate)
        return add(engine, end - first, numbers, ZR_PRECISION_FP32, 1, to);
    return engine->options.kernels->convert(
        &engine->compression.low_rank.context,
        &(struct zr_convert){end - first, {(void *)(uintptr_t)numbers, ZR_PRECISION_FP32}, to});
}

/* The sum of a matrix, and its error. Blocks of rows are the same for every part of the unit. */
static zr_result put_matrix(struct zr_engine *engine, const struct zr_low_rank_sum *sum,
                            const struct tensor *t)
{
    struct zr_low_rank *low = &engine->compression.low_rank;
    const size_t rows = low->block_elements / t->columns;
    zr_result result = ZR_OK;
    for (size_t row = 0; row < t->rows && result == ZR_OK; row += rows) {
        size_t count = t->rows - row < rows ? t->rows - row : rows, at = row * t->columns,
               elements = count * t->columns;
        result = engine->options.kernels->linear_forward(
            &low->context, &(struct zr_linear_forward){
                               .shape = {.rows = count, .in = t->rank, .out = t->columns, .turned = true},
                               .x = t->p + row * t->rank,
                               .w = t->q,
                               .y = low->block});
        if (result == ZR_OK)
            result = add(engine, elements, low->block, ZR_PRECISION_FP32, -1,
                         (struct zr_numbers){t->v + at, ZR_PRECISION_FP32});
        if (result == ZR_OK)
            result = put(engine, sum, t->offset + at, elements, low->block);
    }
    return result == ZR_OK && !engine->simulated ? refill(engine, t) : result;
}

static zr_result finish(struct zr_engine *engine, size_t unit)
{
    struct zr_low_rank *low = &engine->compression.low_rank;
    const struct zr_low_rank_sum *sum = &low->units[unit].sum;
    struct tensor t = {.v = NULL};
    zr_result result = ZR_OK;
    if (!sum->accumulate) /* padding too */
        result = engine->options.kernels->clear(
            &low->context,
            &(struct zr_clear){sum->count * zr_precision_bytes(sum->to.precision), sum->to.at});
    for (size_t i = 0; result == ZR_OK && next(engine, unit, &i, &t);)
        result = t.rank > 0 ? put_matrix(engine, sum, &t) : put(engine, sum, t.offset, t.elements, t.p);
    return result;
}

/* Waits for a unit's operation and begins its next part. */
static zr_result advance(struct zr_engine *engine, size_t unit)
{
    struct zr_low_rank_unit *own = &engine->compression.low_rank.units[unit];
    zr_result result = zr_comm_wait(engine->options.comm, engine->units[unit].reduce_ticket);
    if (result != ZR_OK)
        return result;
    engine->units[unit].reduce_ticket = 0;
    if (own->part == ADDING_P) {
        own->part = ADDING_Q;
        return send_q(engine, unit);
    }
    own->part = DONE;
    return finish(engine, unit);
}

zr_result zr_engine_low_rank_begin(struct zr_engine *engine, size_t unit, const struct zr_low_rank_sum *sum)
{
    struct zr_low_rank *low = &engine->compression.low_rank;
    low->units[unit].sum = *sum;
    zr_result result = send_p(engine, unit);
    low->units[unit].part = ADDING_P;
    for (unsigned i = 0; i < 2 && result == ZR_OK; i++)
        if (low->last[i] != ZR_NO_UNIT && low->last[i] != unit && low->units[low->last[i]].part != DONE)
            result = advance(engine, low->last[i]);
    if (low->last[1] != unit) {
        low->last[0] = low->last[1];
        low->last[1] = (unsigned)unit;
    }
    return result;
}

zr_result zr_engine_low_rank_end(struct zr_engine *engine, size_t unit)
{
    zr_result result = ZR_OK;
    const struct zr_low_rank *low = &engine->compression.low_rank;
    while (result == ZR_OK && low->units && low->units[unit].part != DONE)
        result = advance(engine, unit);
    return result;
}
