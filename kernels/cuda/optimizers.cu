/* optimizers.cu: the optimizers, at the precision of their arguments. SGD, Adafactor and the elements of Muon
 * have the CPU's bits. */
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/element.h"

#include "kernels/block8.h"
#include "kernels/optimizers.h"
#include "kernels/state.h"

DEVICE struct zr_numbers floats_at(const float *at)
{
    struct zr_numbers numbers = {(void *)(uintptr_t)at, ZR_PRECISION_FP32};
    return numbers;
}

/* Numbers per thread and loop iteration: four if all arrays are aligned. */
DEVICE size_t update_width(const struct zr_update *u)
{
    uintptr_t floats = (uintptr_t)u->master | (uintptr_t)u->momentum | (uintptr_t)u->variance;
    return floats % sizeof(struct four) == 0 && fours_begin(&u->gradient) && fours_begin(&u->parameter) ? FOUR
                                                                                                        : 1;
}

DEVICE void put_parameters(const struct zr_update *u, size_t i, const struct four *x, size_t count)
{
    const struct zr_numbers master = floats_at(u->master);
    four_put(&master, i, x, count);
    if (u->parameter.at)
        four_put(&u->parameter, i, x, count);
}

KERNEL(weigh_gradients, struct zr_weigh_gradients, 1)
{
    double sum = 0;
    for (size_t u = 0; u < a.units; u++)
        for (size_t r = 0; r < a.ranks; r++)
            sum += a.squares[r * a.units + u];
    *a.weight = zr_weight_of(sqrt(sum), a.loss_scale, a.clip);
}

/* ---- AdamW and SGD ------------------------------------------------------------------------------------- */

KERNEL(update_adamw, struct zr_update_adamw, CUDA_THREADS)
{
    if (zr_update_skips(a.how.weight))
        return;
    const struct zr_adamw now = zr_adamw_now(&a.how);
    const struct formula_adamw how = formula_adamw_of(&now);
    const struct zr_update *u = &a.numbers;
    const struct zr_numbers master = floats_at(u->master), momentum = floats_at(u->momentum),
                            variance = floats_at(u->variance);
    const size_t width = update_width(u);
    EACH_PACK(i, count, u->n, width)
    {
        struct four g = four_get(&u->gradient, i, count), p = four_get(&master, i, count),
                    m = four_get(&momentum, i, count), v = four_get(&variance, i, count);
        EACH_OF_FOUR(j, count) p.at[j] = formula_adamw(&how, g.at[j], p.at[j], &m.at[j], &v.at[j]);
        four_put(&momentum, i, &m, count);
        four_put(&variance, i, &v, count);
        put_parameters(u, i, &p, count);
    }
}

KERNEL(update_sgd, struct zr_update_sgd, CUDA_THREADS)
{
    const struct zr_update *u = &a.numbers;
    if (zr_update_skips(a.how.weight))
        return;
    const float scale = zr_scale_now(a.how.gradient_scale, a.how.weight),
                rate = zr_rate_now(a.how.rate, a.how.rates);
    const struct zr_numbers master = floats_at(u->master), momentum = floats_at(u->momentum);
    const size_t width = update_width(u);
    EACH_PACK(i, count, u->n, width)
    {
        struct four g = four_get(&u->gradient, i, count), p = four_get(&master, i, count),
                    m = four_get(&momentum, i, count);
        EACH_OF_FOUR(j, count)
        {
            float gradient = g.at[j] * scale;
            m.at[j] = a.how.momentum_factor * m.at[j] + gradient + a.how.weight_decay * p.at[j];
            p.at[j] = p.at[j] - rate * m.at[j];
        }
        four_put(&momentum, i, &m, count);
        put_parameters(u, i, &p, count);
    }
}

/* ---- AdamW in eight bits ------------------------------------------------------------------------------- */

/* The two maps of a block, by all its threads: the momentum's and the variance's. */
DEVICE void make_maps(struct zr_block8_map *maps)
{
    for (unsigned i = threadIdx.x; i < ZR_BLOCK8_NUMBERS; i += CUDA_THREADS) {
        if (i < ZR_BLOCK8_NUMBERS / 2)
            zr_block8_map_set(&maps[0], i, ZR_BLOCK8_NUMBERS / 2);
        zr_block8_map_set(&maps[1], i, ZR_BLOCK8_NUMBERS);
    }
    if (threadIdx.x == 0) {
        maps[0].count = ZR_BLOCK8_NUMBERS / 2;
        maps[1].count = ZR_BLOCK8_NUMBERS;
    }
    __syncthreads();
}

/* A warp has a block, each lane two runs of four numbers, whose codes are one word. */
enum { BLOCK8_RUNS = ZR_BLOCK8_NUMBERS / (WARP * FOUR) };
#define EACH_RUN(r)                                                                                          \
    UNROLL                                                                                                   \
    for (unsigned r = 0; r < BLOCK8_RUNS; r++)

DEVICE unsigned run_begin(unsigned r)
{
    return (r * WARP + lane_of_thread()) * FOUR;
}

/* Numbers of a run in a block that has `count`. */
DEVICE unsigned run_count(unsigned r, unsigned count)
{
    const unsigned begin = run_begin(r), rest = count > begin ? count - begin : 0;
    return rest < FOUR ? rest : (unsigned)FOUR;
}

/* aligned: to four numbers */
DEVICE struct four run_get(const struct zr_numbers *numbers, size_t i, unsigned count, bool aligned)
{
    struct four result = {{0, 0, 0, 0}};
    if (aligned && count == FOUR)
        return four_get(numbers, i, FOUR);
    EACH_OF_FOUR(j, count) result.at[j] = number_get(numbers, i + j);
    return result;
}

DEVICE void run_put(const struct zr_numbers *numbers, size_t i, const struct four *x, unsigned count,
                    bool aligned)
{
    if (aligned && count == FOUR) {
        four_put(numbers, i, x, FOUR);
    } else {
        EACH_OF_FOUR(j, count) number_put(numbers, i + j, x->at[j]);
    }
}

DEVICE struct four codes_get(const struct zr_block8_map *map, const struct zr_block8 *block, unsigned r)
{
    const uint32_t codes = *(const uint32_t *)(const void *)(block->codes + run_begin(r));
    struct four result;
    EACH_OF_FOUR(j, FOUR) result.at[j] = zr_block8_number(map, block->scale, codes >> 8 * j & 0xff);
    return result;
}

DEVICE void block8_put(const struct zr_block8_map *map, const struct four *x, unsigned count,
                       struct zr_block8 *block)
{
    unsigned most = 0;
    EACH_RUN(r)
    EACH_OF_FOUR(j, run_count(r, count))
    {
        unsigned magnitude = bits_of_float(x[r].at[j]) & 0x7fffffff;
        most = magnitude > most ? magnitude : most;
    }
    for (int other = WARP / 2; other > 0; other /= 2) {
        unsigned theirs = __shfl_xor_sync(ALL_LANES, most, other);
        most = theirs > most ? theirs : most;
    }
    const float scale = zr_block8_scale(most);
    __syncwarp(ALL_LANES); /* all lanes have read the old scale */
    if (lane_of_thread() == 0)
        block->scale = scale;
    EACH_RUN(r)
    {
        uint32_t codes = 0;
        EACH_OF_FOUR(j, scale > 0 ? run_count(r, count) : 0)
        {
            const unsigned magnitude =
                zr_block8_search(map, float_of_bits(bits_of_float(x[r].at[j]) & 0x7fffffff) / scale);
            codes |= (uint32_t)zr_block8_code(magnitude, map->count, x[r].at[j]) << 8 * j;
        }
        *(uint32_t *)(void *)(block->codes + run_begin(r)) = codes;
    }
}

/* Blocks of n numbers, one by one, by the warps of the grid; count: the numbers of a block. */
#define EACH_BLOCK8(block, count, n)                                                                         \
    for (size_t block = (size_t)blockIdx.x * CUDA_WARPS + warp_of_thread(), count;                           \
         count = (n)-block * ZR_BLOCK8_NUMBERS < ZR_BLOCK8_NUMBERS ? (n)-block * ZR_BLOCK8_NUMBERS           \
                                                                   : ZR_BLOCK8_NUMBERS,                      \
                block * ZR_BLOCK8_NUMBERS < (n);                                                             \
         block += (size_t)gridDim.x * CUDA_WARPS)

KERNEL(update_adamw8, struct zr_update_adamw8, CUDA_THREADS)
{
    SHARED(struct zr_block8_map, maps, 2);
    if (zr_update_skips(a.how.weight))
        return;
    make_maps(maps);
    const struct zr_adamw now = zr_adamw_now(&a.how);
    const struct formula_adamw how = formula_adamw_of(&now);
    const struct zr_update *u = &a.numbers;
    const struct zr_numbers master = floats_at(u->master);
    const bool aligned = fours_begin(&master) && fours_begin(&u->gradient) && fours_begin(&u->parameter);
    EACH_BLOCK8(block, count, u->n)
    {
        struct zr_block8 *momentum = &a.momentum[block], *variance = &a.variance[block];
        struct four m[BLOCK8_RUNS], v[BLOCK8_RUNS];
        EACH_RUN(r)
        {
            const unsigned here = run_count(r, (unsigned)count);
            const size_t i = block * ZR_BLOCK8_NUMBERS + run_begin(r);
            struct four g = run_get(&u->gradient, i, here, aligned), p = run_get(&master, i, here, aligned);
            m[r] = codes_get(&maps[0], momentum, r);
            v[r] = codes_get(&maps[1], variance, r);
            EACH_OF_FOUR(j, here)
            p.at[j] = formula_adamw(&how, g.at[j], p.at[j], &m[r].at[j], &v[r].at[j]);
            run_put(&master, i, &p, here, aligned);
            if (u->parameter.at)
                run_put(&u->parameter, i, &p, here, aligned);
        }
        block8_put(&maps[0], m, (unsigned)count, momentum);
        block8_put(&maps[1], v, (unsigned)count, variance);
    }
}

KERNEL(block8_read, struct zr_block8_read, CUDA_THREADS)
{
    SHARED(struct zr_block8_map, maps, 2);
    make_maps(maps);
    const struct zr_numbers to = floats_at(a.to);
    EACH_BLOCK8(block, count, a.n)
    EACH_RUN(r)
    {
        struct four x = codes_get(&maps[!a.is_signed], &a.blocks[block], r);
        run_put(&to, block * ZR_BLOCK8_NUMBERS + run_begin(r), &x, run_count(r, (unsigned)count),
                fours_begin(&to));
    }
}

KERNEL(block8_write, struct zr_block8_write, CUDA_THREADS)
{
    SHARED(struct zr_block8_map, maps, 2);
    make_maps(maps);
    const struct zr_numbers from = floats_at(a.from);
    EACH_BLOCK8(block, count, a.n)
    {
        struct four x[BLOCK8_RUNS];
        EACH_RUN(r)
        x[r] = run_get(&from, block * ZR_BLOCK8_NUMBERS + run_begin(r), run_count(r, (unsigned)count),
                       fours_begin(&from));
        block8_put(&maps[!a.is_signed], x, (unsigned)count, &a.blocks[block]);
    }
}

/* ---- Adafactor ----------------------------------------------------------------------------------------- */

/* The numbers of a part in one row: elements of the matrix. */
struct row_of_part {
    size_t begin, end;
};

DEVICE struct row_of_part row_of_part(const struct zr_factor_sums *a, size_t row)
{
    struct row_of_part result = {row * a->columns, (row + 1) * a->columns};
    result.begin = result.begin > a->first ? result.begin : a->first;
    result.end = result.end < a->first + a->n ? result.end : a->first + a->n;
    return result;
}

DEVICE double squared_scale(const struct zr_factor_sums *a)
{
    double scale = (double)zr_scale_now(a->gradient_scale, a->weight);
    return scale * scale;
}

/* A warp sums a row as squares_of_blocks() does a block. */
KERNEL(factor_rows, struct zr_factor_sums, CUDA_THREADS)
{
    const size_t row = a.first / a.columns + (size_t)blockIdx.x * CUDA_WARPS + warp_of_thread();
    if (zr_update_skips(a.weight) || row * a.columns >= a.first + a.n)
        return;
    const struct row_of_part part = row_of_part(&a, row);
    double sum = 0;
    for (size_t i = part.begin + lane_of_thread(); i < part.end; i += WARP) {
        double x = (double)number_get(&a.gradient, i - a.first);
        sum += x * x;
    }
    for (int half = WARP / 2; half > 0; half /= 2)
        sum += __shfl_down_sync(ALL_LANES, sum, half);
    if (lane_of_thread() == 0)
        a.row_sums[row] += sum * squared_scale(&a);
}

enum { ROWS_AT_ONCE = 8 }; /* rows that a thread loads before it adds them */

/* A block has 32 columns; warp k sums the rows r with r % 8 == k. */
KERNEL(factor_columns, struct zr_factor_sums, CUDA_THREADS)
{
    enum { SUMS = ZR_FACTOR_COLUMN_SUMS };
    SHARED(double, sums, SUMS *WARP);
    const size_t column = (size_t)blockIdx.x * WARP + lane_of_thread(), part_end = a.first + a.n;
    const size_t begin = a.first / a.columns + (column < a.first % a.columns),
                 end = column < a.columns && column < part_end ? (part_end - column - 1) / a.columns + 1 : 0;
    size_t row = begin + (SUMS + warp_of_thread() - begin % SUMS) % SUMS;
    double sum = 0;
    if (zr_update_skips(a.weight))
        return;
    for (; row + (ROWS_AT_ONCE - 1) * SUMS < end; row += ROWS_AT_ONCE * SUMS) {
        float x[ROWS_AT_ONCE];
        UNROLL
        for (int k = 0; k < ROWS_AT_ONCE; k++)
            x[k] = number_get(&a.gradient, (row + (size_t)k * SUMS) * a.columns + column - a.first);
        UNROLL
        for (int k = 0; k < ROWS_AT_ONCE; k++)
            sum += (double)x[k] * (double)x[k];
    }
    for (; row < end; row += SUMS) {
        double x = (double)number_get(&a.gradient, row * a.columns + column - a.first);
        sum += x * x;
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (warp_of_thread() != 0 || column >= a.columns)
        return;
    for (unsigned k = 1; k < SUMS; k++)
        sum += sums[k * WARP + lane_of_thread()];
    a.column_sums[column] += sum * squared_scale(&a);
}

KERNEL(factor_move, struct zr_factor_moments, CUDA_THREADS)
{
    if (zr_update_skips(a.how.weight))
        return;
    const struct zr_adafactor how = zr_adafactor_now(&a.how);
    EACH(i, a.rows + a.columns)
    {
        const size_t column = i - a.rows;
        if (i < a.rows)
            a.row_factors[i] = zr_row_moved(&a, &how, i);
        else
            a.column_factors[column] = zr_column_moved(&a, &how, column);
    }
}

/* One block. */
KERNEL(factor_mean, struct zr_factor_moments, CUDA_THREADS)
{
    SHARED(double, sums, CUDA_THREADS);
    double sum = 0;
    if (zr_update_skips(a.how.weight))
        return;
    for (size_t i = threadIdx.x; i < a.rows; i += CUDA_THREADS)
        sum += (double)a.row_factors[i];
    sums[threadIdx.x] = sum;
    for (unsigned half = CUDA_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
        *a.row_mean = (float)(sums[0] / (double)a.rows);
}

/* Row and column of an element of a part. */
struct place {
    size_t row, column;
};

DEVICE struct place place_of(const struct zr_factors *f, size_t i)
{
    struct place place = {(f->first + i) / f->columns, (f->first + i) % f->columns};
    return place;
}

DEVICE void place_advance(struct place *place, size_t by, size_t columns)
{
    for (place->column += by; place->column >= columns; place->column -= columns)
        place->row++;
}

DEVICE float variance_at(const struct zr_factors *f, const struct place *place, float least)
{
    const float mean = *f->row_mean > least ? *f->row_mean : least;
    return f->row_factors[place->row] / mean * f->column_factors[place->column];
}

/* A warp sums a block as squares_of_blocks() does. */
KERNEL(factor_squares, struct cuda_factor_squares, CUDA_THREADS)
{
    const struct zr_update *u = &a.all.numbers;
    const struct zr_factors *f = &a.all.factors;
    const size_t block = (size_t)blockIdx.x * CUDA_WARPS + warp_of_thread();
    size_t i = a.first + block * CUDA_SQUARES_BLOCK, end = i + CUDA_SQUARES_BLOCK;
    double sum = 0;
    if (zr_update_skips(a.all.how.weight) || i >= u->n || block >= CUDA_SQUARES_BLOCKS)
        return;
    const struct zr_adafactor how = zr_adafactor_now(&a.all.how);
    struct place place = {0, 0};
    end = end < u->n ? end : u->n;
    i += lane_of_thread();
    if (!u->variance)
        place = place_of(f, i);
    for (; i < end; i += WARP) {
        float gradient = number_get(&u->gradient, i) * how.gradient_scale, variance;
        if (u->variance) {
            variance = formula_moved(u->variance[i], gradient, how.share, how.epsilon1);
            u->variance[i] = variance;
        } else {
            variance = variance_at(f, &place, how.epsilon1);
            place_advance(&place, WARP, f->columns);
        }
        double x = (double)formula_factored(gradient, variance, how.epsilon1);
        sum += x * x;
    }
    for (int half = WARP / 2; half > 0; half /= 2)
        sum += __shfl_down_sync(ALL_LANES, sum, half);
    if (lane_of_thread() == 0)
        a.partial[block] = sum;
}

KERNEL(update_factored, struct zr_update_factored, CUDA_THREADS)
{
    SHARED(struct zr_master_step, step, 1);
    const struct zr_update *u = &a.numbers;
    if (zr_update_skips(a.how.weight))
        return;
    const struct zr_adafactor how = zr_adafactor_now(&a.how);
    if (threadIdx.x == 0)
        *step = zr_factored_step_of(&how, &a);
    __syncthreads();
    const struct zr_numbers master = floats_at(u->master), momentum = floats_at(u->momentum);
    const size_t width = update_width(u);
    EACH_PACK(i, count, u->n, width)
    {
        struct four g = four_get(&u->gradient, i, count), p = four_get(&master, i, count), m = {{0}};
        struct place place = {0, 0};
        if (u->momentum)
            m = four_get(&momentum, i, count);
        if (!u->variance)
            place = place_of(&a.factors, i);
        EACH_OF_FOUR(j, count)
        {
            float variance = u->variance ? u->variance[i + j] : variance_at(&a.factors, &place, how.epsilon1);
            if (!u->variance)
                place_advance(&place, 1, a.factors.columns);
            float change =
                step->step * formula_factored(g.at[j] * how.gradient_scale, variance, how.epsilon1);
            if (u->momentum)
                m.at[j] = change =
                    formula_averaged(m.at[j], change, how.momentum_factor, 1.0f - how.momentum_factor);
            p.at[j] = p.at[j] * step->keep - change;
        }
        if (u->momentum)
            four_put(&momentum, i, &m, count);
        put_parameters(u, i, &p, count);
    }
}

/* ---- Muon ---------------------------------------------------------------------------------------------- */

KERNEL(muon_direction, struct zr_muon_direction, CUDA_THREADS)
{
    if (zr_update_skips(a.weight))
        return;
    const float scale = zr_scale_now(a.gradient_scale, a.weight);
    EACH(i, a.n)
    {
        float m = a.momentum[i];
        a.direction[i] = formula_muon(number_get(&a.gradient, i) * scale, a.momentum_factor, &m);
        a.momentum[i] = m;
    }
}

KERNEL(muon_normalize, struct cuda_muon, CUDA_THREADS)
{
    const float norm = zr_muon_norm(*a.squares);
    EACH(i, a.n)
    a.to[i] = a.from[i] / norm;
}

/* from: x x^T; to: its square, overwritten by the factor of x. */
KERNEL(muon_polynomial, struct cuda_muon, CUDA_THREADS)
{
    EACH(i, a.n)
    a.to[i] = zr_muon_polynomial(a.from[i], a.to[i], i % (a.side + 1) == 0);
}

KERNEL(apply_direction, struct zr_apply_direction, CUDA_THREADS)
{
    if (zr_update_skips(a.weight))
        return;
    const struct zr_master_step step = zr_direction_step_of(&a);
    EACH(i, a.numbers.n)
    {
        float p = a.numbers.master[i] * step.keep - step.step * a.direction[i];
        a.numbers.master[i] = p;
        if (a.numbers.parameter.at)
            number_put(&a.numbers.parameter, i, p);
    }
}

/* ---- LAMB ---------------------------------------------------------------------------------------------- */

/* A warp sums a block as squares_of_blocks() does. */
KERNEL(lamb_squares, struct cuda_lamb_squares, CUDA_THREADS)
{
    const struct zr_update *u = &a.all.numbers;
    const size_t block = (size_t)blockIdx.x * CUDA_WARPS + warp_of_thread();
    size_t i = a.first + block * CUDA_SQUARES_BLOCK, end = i + CUDA_SQUARES_BLOCK;
    double sum = 0;
    if (zr_update_skips(a.all.how.adam.weight) || i >= u->n || block >= CUDA_SQUARES_BLOCKS)
        return;
    const struct zr_adamw now = zr_adamw_now(&a.all.how.adam);
    const struct formula_adamw how = formula_adamw_of(&now);
    end = end < u->n ? end : u->n;
    for (i += lane_of_thread(); i < end; i += WARP) {
        float m = u->momentum[i], v = u->variance[i];
        formula_adamw_move(&how, number_get(&u->gradient, i), &m, &v);
        u->momentum[i] = m;
        u->variance[i] = v;
        double step = (double)formula_adamw_step(&how, u->master[i], m, v);
        sum += step * step;
    }
    for (int half = WARP / 2; half > 0; half /= 2)
        sum += __shfl_down_sync(ALL_LANES, sum, half);
    if (lane_of_thread() == 0)
        a.partial[block] = sum;
}

KERNEL(update_lamb, struct zr_update_lamb, CUDA_THREADS)
{
    SHARED(struct zr_adamw, now, 1);
    const struct zr_update *u = &a.numbers;
    if (zr_update_skips(a.how.adam.weight))
        return;
    if (threadIdx.x == 0)
        *now = zr_lamb_of(&a);
    __syncthreads();
    const struct formula_adamw how = formula_adamw_of(now);
    const struct zr_numbers master = floats_at(u->master), momentum = floats_at(u->momentum),
                            variance = floats_at(u->variance);
    const size_t width = update_width(u);
    EACH_PACK(i, count, u->n, width)
    {
        struct four p = four_get(&master, i, count), m = four_get(&momentum, i, count),
                    v = four_get(&variance, i, count);
        EACH_OF_FOUR(j, count)
        p.at[j] = num_fma(how.rate, formula_adamw_step(&how, p.at[j], m.at[j], v.at[j]), p.at[j]);
        put_parameters(u, i, &p, count);
    }
}

/* ---- The moving average -------------------------------------------------------------------------------- */

KERNEL(average, struct zr_average, CUDA_THREADS)
{
    if (zr_update_skips(a.weight))
        return;
    EACH(i, a.n)
    {
        const float master = a.master[i], average = a.average[i];
        a.average[i] = a.exchanges ? master : a.decay * average + (1.0f - a.decay) * master;
        if (a.exchanges)
            a.master[i] = average;
    }
}

/* ---- The outer step ------------------------------------------------------------------------------------ */

KERNEL(outer_step, struct zr_outer_step, CUDA_THREADS)
{
    EACH(i, a.n)
    {
        if (a.differs)
            a.gradient[i] = a.anchor[i] - a.master[i];
        else
            zr_outer_step_element(&a, i);
    }
}
