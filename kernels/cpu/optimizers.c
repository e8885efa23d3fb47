/* optimizers.c: the optimizers. Work is divided over the context's threads; sums are combined in a fixed
 * order. */
#include "kernels/optimizers.h"
#include "alloc/base/error.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/products/gemm.h"
#include "kernels/sizes.h"
#include "kernels/state.h"

#include <math.h>
#include <string.h>

/* A loop supports one two-byte precision: the parameter's, or the gradient's if there is no parameter. */
static const struct zr_loops *update_loops(const struct zr_kernel_context *context,
                                           const struct zr_update *update)
{
    return zr_loops_of[context->isa]
                      [update->parameter.at != NULL && update->gradient.precision == ZR_PRECISION_FP32
                           ? update->parameter.precision
                           : update->gradient.precision];
}

zr_result zr_cpu_weigh_gradients(struct zr_kernel_context *context, const struct zr_weigh_gradients *args)
{
    double sum = 0;
    (void)context;
    for (size_t u = 0; u < args->units; u++)
        for (size_t r = 0; r < args->ranks; r++)
            sum += args->squares[r * args->units + u];
    *args->weight = zr_weight_of(sqrt(sum), args->loss_scale, args->clip);
    return ZR_OK;
}

/* ---- AdamW and SGD ------------------------------------------------------------------------------------- */

zr_result zr_cpu_update_adamw(struct zr_kernel_context *context, const struct zr_update_adamw *args)
{
    struct zr_update_adamw own = *args;
    if (zr_update_skips(args->how.weight))
        return ZR_OK;
    own.how = zr_adamw_now(&args->how);
    return zr_loop_run(context, update_loops(context, &args->numbers)->update_adamw, &own, args->numbers.n,
                       ZR_GRAIN);
}

zr_result zr_cpu_update_sgd(struct zr_kernel_context *context, const struct zr_update_sgd *args)
{
    struct zr_update_sgd own = *args;
    if (zr_update_skips(args->how.weight))
        return ZR_OK;
    own.how.gradient_scale = zr_scale_now(args->how.gradient_scale, args->how.weight);
    own.how.rate = zr_rate_now(args->how.rate, args->how.rates);
    return zr_loop_run(context, update_loops(context, &args->numbers)->update_sgd, &own, args->numbers.n,
                       ZR_GRAIN);
}

/* ---- AdamW in eight bits ------------------------------------------------------------------------------- */

_Static_assert(sizeof(struct zr_block8) == 260, "checkpoints and plans count on the size of a block");

zr_result zr_cpu_update_adamw8(struct zr_kernel_context *context, const struct zr_update_adamw8 *args)
{
    struct zr_update_adamw8 own = *args;
    struct zr_block8_index momentum, variance;
    if (zr_update_skips(args->how.weight))
        return ZR_OK;
    own.how = zr_adamw_now(&args->how);
    zr_block8_index_make(&momentum, true);
    zr_block8_index_make(&variance, false);
    return zr_loop_run(context, update_loops(context, &args->numbers)->update_adamw8,
                       &(struct zr_adamw8_work){&own, &momentum, &variance}, args->numbers.n, ZR_GRAIN);
}

/* One of the two has its array in `floats`. */
struct block_copies {
    struct zr_block8_index index;
    struct zr_block8 *blocks;
    float *floats;
};

static void read_blocks(const void *args, size_t from, size_t to)
{
    const struct block_copies *c = args;
    for (size_t i = from; i < to; i += ZR_BLOCK8_NUMBERS)
        zr_block8_get(&c->index, &c->blocks[i / ZR_BLOCK8_NUMBERS],
                      to - i < ZR_BLOCK8_NUMBERS ? to - i : ZR_BLOCK8_NUMBERS, c->floats + i);
}

static void write_blocks(const void *args, size_t from, size_t to)
{
    const struct block_copies *c = args;
    for (size_t i = from; i < to; i += ZR_BLOCK8_NUMBERS)
        zr_block8_put(&c->index, to - i < ZR_BLOCK8_NUMBERS ? to - i : ZR_BLOCK8_NUMBERS, c->floats + i,
                      &c->blocks[i / ZR_BLOCK8_NUMBERS]);
}

zr_result zr_cpu_block8_read(struct zr_kernel_context *context, const struct zr_block8_read *args)
{
    struct block_copies copies = {.blocks = (struct zr_block8 *)args->blocks, .floats = args->to};
    zr_block8_index_make(&copies.index, args->is_signed);
    return zr_loop_run(context, read_blocks, &copies, args->n, ZR_GRAIN);
}

zr_result zr_cpu_block8_write(struct zr_kernel_context *context, const struct zr_block8_write *args)
{
    struct block_copies copies = {.blocks = args->blocks, .floats = (float *)args->from};
    zr_block8_index_make(&copies.index, args->is_signed);
    return zr_loop_run(context, write_blocks, &copies, args->n, ZR_GRAIN);
}

/* ---- Adafactor ----------------------------------------------------------------------------------------- */

struct row_sums {
    const struct zr_factor_sums *args;
    const struct zr_loops *loops;
};

/* Rows are counted from the first that the part has numbers of. */
static void sum_rows(const void *args, size_t from, size_t to)
{
    const struct zr_factor_sums *a = ((const struct row_sums *)args)->args;
    const struct zr_loops *loops = ((const struct row_sums *)args)->loops;
    const double scale = (double)a->gradient_scale * (double)a->gradient_scale;
    for (size_t row = a->first / a->columns + from; row < a->first / a->columns + to; row++) {
        size_t begin = row * a->columns, end = begin + a->columns;
        begin = begin > a->first ? begin : a->first;
        end = end < a->first + a->n ? end : a->first + a->n;
        const char *x = (const char *)a->gradient.at + (begin - a->first) * loops->element_bytes;
        a->row_sums[row] += loops->sum_of_squares(end - begin, x) * scale;
    }
}

zr_result zr_cpu_factor_sums(struct zr_kernel_context *context, const struct zr_factor_sums *args)
{
    const struct zr_loops *loops = zr_loops_of[context->isa][args->gradient.precision];
    struct zr_factor_sums own = *args;
    if (zr_update_skips(args->weight) || args->n == 0)
        return ZR_OK;
    own.gradient_scale = zr_scale_now(args->gradient_scale, args->weight);
    size_t rows = (args->first + args->n - 1) / args->columns - args->first / args->columns + 1;
    zr_result result = zr_loop_run(context, sum_rows, &(struct row_sums){&own, loops}, rows, 1);
    return result == ZR_OK
               ? zr_loop_run(context, loops->factor_columns, &own, args->columns, ZR_LINE_ELEMENTS)
               : result;
}

static void move_rows(const void *args, size_t from, size_t to)
{
    const struct zr_factor_moments *a = args;
    for (size_t i = from; i < to; i++)
        a->row_factors[i] = zr_row_moved(a, &a->how, i);
}

static void move_columns(const void *args, size_t from, size_t to)
{
    const struct zr_factor_moments *a = args;
    for (size_t i = from; i < to; i++)
        a->column_factors[i] = zr_column_moved(a, &a->how, i);
}

static void average_rows(const void *args, size_t from, size_t to)
{
    const struct zr_factor_moments *a = args;
    double sums[ZR_FACTOR_MEAN_SUMS] = {0};
    (void)from, (void)to;
    for (size_t i = 0; i < a->rows; i++)
        sums[i % ZR_FACTOR_MEAN_SUMS] += (double)a->row_factors[i];
    for (size_t half = ZR_FACTOR_MEAN_SUMS / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++)
            sums[i] += sums[i + half];
    *a->row_mean = (float)(sums[0] / (double)a->rows);
}

zr_result zr_cpu_factor_moments(struct zr_kernel_context *context, const struct zr_factor_moments *args)
{
    struct zr_factor_moments own = *args;
    if (zr_update_skips(args->how.weight))
        return ZR_OK;
    own.how = zr_adafactor_now(&args->how);
    zr_result result = zr_loop_run(context, move_rows, &own, args->rows, ZR_GRAIN);
    if (result == ZR_OK)
        result = zr_loop_run(context, move_columns, &own, args->columns, ZR_GRAIN);
    return result == ZR_OK ? zr_loop_run(context, average_rows, &own, 1, 1) : result;
}

struct quotient_squares {
    const struct zr_loops *loops, *floats;
    struct zr_quotients quotients;
};

static double square_quotients(const void *args, size_t from, size_t to)
{
    const struct quotient_squares *q = args;
    float quotients[ZR_SQUARES_BLOCK];
    q->loops->factor_quotients(&q->quotients, from, to, quotients);
    return q->floats->sum_of_squares(to - from, quotients);
}

zr_result zr_cpu_factor_norm(struct zr_kernel_context *context, const struct zr_factor_norm *args)
{
    const struct zr_update *u = &args->numbers;
    if (zr_update_skips(args->how.weight))
        return ZR_OK;
    const struct quotient_squares work = {update_loops(context, u),
                                          zr_loops_of[context->isa][ZR_PRECISION_FP32],
                                          {zr_adafactor_now(&args->how), &args->factors, u, true}};
    zr_result result =
        zr_cpu_sum_blocks(context, &(struct zr_block_sums){square_quotients, &work, u->n, &args->squares[0]});
    return result == ZR_OK && args->how.relative
               ? zr_cpu_sum_of_squares(
                     context,
                     &(struct zr_sum_of_squares){u->n, {u->master, ZR_PRECISION_FP32}, &args->squares[1]})
               : result;
}

zr_result zr_cpu_update_factored(struct zr_kernel_context *context, const struct zr_update_factored *args)
{
    const struct zr_adafactor how = zr_adafactor_now(&args->how);
    if (zr_update_skips(args->how.weight))
        return ZR_OK;
    const struct zr_factored_work work = {{how, &args->factors, &args->numbers, false},
                                          zr_factored_step_of(&how, args)};
    return zr_loop_run(context, update_loops(context, &args->numbers)->update_factored, &work,
                       args->numbers.n, ZR_GRAIN);
}

/* ---- Muon ---------------------------------------------------------------------------------------------- */

zr_result zr_cpu_muon_direction(struct zr_kernel_context *context, const struct zr_muon_direction *args)
{
    struct zr_muon_direction own = *args;
    if (zr_update_skips(args->weight))
        return ZR_OK;
    own.gradient_scale = zr_scale_now(args->gradient_scale, args->weight);
    return zr_loop_run(context, zr_loops_of[context->isa][args->gradient.precision]->muon_direction, &own,
                       args->n, ZR_GRAIN);
}

zr_result zr_cpu_apply_direction(struct zr_kernel_context *context, const struct zr_apply_direction *args)
{
    if (zr_update_skips(args->weight))
        return ZR_OK;
    return zr_loop_run(context, update_loops(context, &args->numbers)->apply_direction, args, args->numbers.n,
                       ZR_GRAIN);
}

struct normalized {
    const float *from;
    float *to, norm;
};

static void normalize_elements(const void *args, size_t from, size_t to)
{
    const struct normalized *a = args;
    for (size_t i = from; i < to; i++)
        a->to[i] = a->from[i] / a->norm;
}

/* The two squares of an iteration; the second becomes the factor of x. */
struct polynomial {
    const float *gram;
    float *square;
    size_t side;
};

static void add_powers(const void *args, size_t from, size_t to)
{
    const struct polynomial *a = args;
    for (size_t row = from; row < to; row++)
        for (size_t i = row * a->side; i < (row + 1) * a->side; i++)
            a->square[i] = zr_muon_polynomial(a->gram[i], a->square[i], i == row * (a->side + 1));
}

/* to = (a I + b A + c A^2) from; of a tall matrix from (a I + b A + c A^2). */
static zr_result iterate(struct zr_kernel_context *context, const struct zr_orthogonalize *args,
                         const struct polynomial *p, const float *from, float *to)
{
    const bool tall = args->rows > args->columns;
    const size_t side = p->side, length = tall ? args->rows : args->columns;
    zr_result result = zr_gemm(context, &(struct zr_gemm){.m = side,
                                                          .n = side,
                                                          .k = length,
                                                          .a_turned = tall,
                                                          .b_turned = !tall,
                                                          .a = from,
                                                          .b = from,
                                                          .c = (float *)p->gram});
    if (result == ZR_OK)
        result = zr_gemm(
            context,
            &(struct zr_gemm){.m = side, .n = side, .k = side, .a = p->gram, .b = p->gram, .c = p->square});
    if (result == ZR_OK)
        result = zr_loop_run(context, add_powers, p, side, 1);
    return result == ZR_OK ? zr_gemm(context, &(struct zr_gemm){.m = args->rows,
                                                                .n = args->columns,
                                                                .k = side,
                                                                .a = tall ? from : p->square,
                                                                .b = tall ? p->square : from,
                                                                .c = to})
                           : result;
}

zr_result zr_cpu_orthogonalize(struct zr_kernel_context *context, const struct zr_orthogonalize *args)
{
    const struct zr_orthogonalize_layout at = zr_orthogonalize_layout(args);
    const size_t n = args->rows * args->columns;
    char *workspace = args->workspace;
    double squares = 0;
    if (context->library == NULL)
        return zr_fail(ZR_ERR_INVALID, "a kernel was called with a context that is not open");
    if (args->workspace_bytes < at.bytes)
        return zr_fail(ZR_ERR_INVALID,
                       "orthogonalize() needs %zu bytes of workspace and has %zu; see orthogonalize_bytes()",
                       at.bytes, args->workspace_bytes);
    float *from = (float *)(workspace + at.x), *to = args->x;
    const struct polynomial polynomial = {(float *)(workspace + at.gram), (float *)(workspace + at.square),
                                          at.side};
    zr_result result = zr_cpu_sum_of_squares(
        context, &(struct zr_sum_of_squares){n, {args->x, ZR_PRECISION_FP32}, &squares});
    if (result == ZR_OK)
        result = zr_loop_run(context, normalize_elements,
                             &(struct normalized){args->x, from, zr_muon_norm(squares)}, n, ZR_GRAIN);
    for (unsigned i = 0; i < ZR_MUON_ITERATIONS && result == ZR_OK; i++) {
        float *const before = from;
        result = iterate(context, args, &polynomial, from, to);
        from = to;
        to = before;
    }
    return result; /* the number of iterations is odd, so the last one wrote to x */
}

/* ---- LAMB ---------------------------------------------------------------------------------------------- */

struct lamb_squares {
    const struct zr_loops *loops, *floats;
    struct zr_update_adamw update;
};

static double square_steps(const void *args, size_t from, size_t to)
{
    const struct lamb_squares *q = args;
    float steps[ZR_SQUARES_BLOCK];
    q->loops->lamb_steps(&q->update, from, to, steps);
    return q->floats->sum_of_squares(to - from, steps);
}

zr_result zr_cpu_lamb_norms(struct zr_kernel_context *context, const struct zr_lamb_norms *args)
{
    const struct zr_update *u = &args->numbers;
    if (zr_update_skips(args->how.adam.weight))
        return ZR_OK;
    const struct lamb_squares work = {update_loops(context, u),
                                      zr_loops_of[context->isa][ZR_PRECISION_FP32],
                                      {zr_adamw_now(&args->how.adam), *u}};
    zr_result result =
        zr_cpu_sum_blocks(context, &(struct zr_block_sums){square_steps, &work, u->n, &args->squares[0]});
    return result == ZR_OK
               ? zr_cpu_sum_of_squares(
                     context,
                     &(struct zr_sum_of_squares){u->n, {u->master, ZR_PRECISION_FP32}, &args->squares[1]})
               : result;
}

zr_result zr_cpu_update_lamb(struct zr_kernel_context *context, const struct zr_update_lamb *args)
{
    if (zr_update_skips(args->how.adam.weight))
        return ZR_OK;
    return zr_loop_run(context, update_loops(context, &args->numbers)->update_lamb,
                       &(struct zr_update_adamw){zr_lamb_of(args), args->numbers}, args->numbers.n, ZR_GRAIN);
}

/* ---- The moving average -------------------------------------------------------------------------------- */

static void average(const void *args, size_t from, size_t to)
{
    const struct zr_average *a = args;
    const float share = 1.0f - a->decay;
    for (size_t i = from; i < to; i++)
        a->average[i] = a->decay * a->average[i] + share * a->master[i];
}

static void exchange(const void *args, size_t from, size_t to)
{
    const struct zr_average *a = args;
    for (size_t i = from; i < to; i++) {
        float master = a->master[i];
        a->master[i] = a->average[i];
        a->average[i] = master;
    }
}

zr_result zr_cpu_average(struct zr_kernel_context *context, const struct zr_average *args)
{
    if (zr_update_skips(args->weight))
        return ZR_OK;
    return zr_loop_run(context, args->exchanges ? exchange : average, args, args->n, ZR_GRAIN);
}

/* ---- The outer step ------------------------------------------------------------------------------------ */

static void differ(const void *args, size_t from, size_t to)
{
    const struct zr_outer_step *o = args;
    for (size_t i = from; i < to; i++)
        o->gradient[i] = o->anchor[i] - o->master[i];
}

static void outer_step(const void *args, size_t from, size_t to)
{
    const struct zr_outer_step *o = args;
    for (size_t i = from; i < to; i++)
        zr_outer_step_element(o, i);
}

zr_result zr_cpu_outer_step(struct zr_kernel_context *context, const struct zr_outer_step *args)
{
    return zr_loop_run(context, args->differs ? differ : outer_step, args, args->n, ZR_GRAIN);
}
