/* update.c: first values of rows, and the optimizer's steps, which survive the death of the process; see
 * table.h. Each product and sum of floats is rounded by itself, in the order of the formulas in zr_table.h.
 */
#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/fault.h"
#include "zero/table/table.h"

void zr_table_die_if_asked(const zr_table *table)
{
    if (table->kept && zr_fault(ZR_FAULT_KEPT))
        kill(getpid(), SIGKILL);
}

void zr_table_store(const zr_table *table, _Atomic uint64_t *to, uint64_t value)
{
    zr_table_die_if_asked(table);
    atomic_store_explicit(to, value, memory_order_release);
}

void zr_table_set_place(zr_table *table, uint32_t row, uint32_t place)
{
    zr_table_die_if_asked(table);
    __atomic_store_n(&table->places[row], place, __ATOMIC_RELEASE);
}

void zr_table_first_values(const zr_table *table, uint64_t id, char *row)
{
    const struct zr_table_shape *shape = &table->layout.shape;
    uint64_t key = zr_table_mix(id + UINT64_C(0x9e3779b97f4a7c15)) ^ zr_table_mix(~shape->seed);
    float *values = (float *)(void *)row;
    memset(row, 0, shape->row_bytes);
    for (size_t i = 0; i < shape->width && shape->init_range != 0; i++) {
        /* 24 bits: every step of the sum is exact but the last product. */
        uint64_t bits = zr_table_mix(key + (i + 1) * UINT64_C(0x9e3779b97f4a7c15)) >> 40;
        values[i] = ((float)bits * 0x1p-23f - 1) * shape->init_range;
    }
    for (size_t i = 0; i < shape->states; i++)
        values[shape->width + i] = shape->initial_state;
}

/* beta^steps, by squaring. */
static double power(double beta, uint32_t steps)
{
    double result = 1;
    for (; steps > 0; steps /= 2, beta *= beta)
        if (steps % 2)
            result *= beta;
    return result;
}

static void step_adam(const struct zr_table_shape *shape, float *values, const struct zr_table_step *step)
{
    size_t width = shape->width;
    float *restrict momentum = values + width, *restrict variance = momentum + width;
    const float *restrict gradient = step->gradient;
    float beta1 = shape->beta1, beta2 = shape->beta2, epsilon = shape->epsilon, rate = step->rate;
    uint32_t steps;
    memcpy(&steps, variance + width, sizeof steps);
    steps += steps < UINT32_MAX;
    memcpy(variance + width, &steps, sizeof steps);
    float correction1 = (float)(1 / (1 - power(beta1, steps)));
    float correction2 = (float)(1 / (1 - power(beta2, steps)));
    for (size_t i = 0; i < width; i++) {
        momentum[i] = beta1 * momentum[i] + (1 - beta1) * gradient[i];
        variance[i] = beta2 * variance[i] + (1 - beta2) * gradient[i] * gradient[i];
        values[i] -= rate * (momentum[i] * correction1) / (sqrtf(variance[i] * correction2) + epsilon);
    }
}

static void step_adagrad(const struct zr_table_shape *shape, float *restrict values,
                         const struct zr_table_step *step)
{
    size_t width = shape->width;
    float *restrict sums = values + width;
    const float *restrict gradient = step->gradient;
    for (size_t i = 0; i < width; i++) {
        sums[i] += gradient[i] * gradient[i];
        values[i] -= step->rate * gradient[i] / (sqrtf(sums[i]) + shape->epsilon);
    }
}

static void step_adagrad_row(const struct zr_table_shape *shape, float *restrict values,
                             const struct zr_table_step *step)
{
    size_t width = shape->width;
    const float *restrict gradient = step->gradient;
    double squares = 0;
    for (size_t i = 0; i < width; i++)
        squares += (double)gradient[i] * (double)gradient[i];
    values[width] += (float)(squares / (double)width);
    float divisor = sqrtf(values[width]) + shape->epsilon;
    for (size_t i = 0; i < width; i++)
        values[i] -= step->rate * gradient[i] / divisor;
}

static void step_sgd(const struct zr_table_shape *shape, float *restrict values,
                     const struct zr_table_step *step)
{
    const float *restrict gradient = step->gradient;
    for (size_t i = 0; i < shape->width; i++)
        values[i] -= step->rate * gradient[i];
}

void zr_table_update(zr_table *table, const struct zr_table_step *step)
{
    static void (*const steps[ZR_TABLE_OPTIMIZERS_COUNT])(const struct zr_table_shape *, float *,
                                                          const struct zr_table_step *) = {
        [ZR_TABLE_SGD] = step_sgd,
        [ZR_TABLE_ADAGRAD] = step_adagrad,
        [ZR_TABLE_ADAGRAD_ROW] = step_adagrad_row,
        [ZR_TABLE_ADAM] = step_adam};
    const struct zr_table_shape *shape = &table->layout.shape;
    char *row = zr_table_row(table, step->row);
    zr_table_tier_release(table, step->row);
    if (!table->kept) {
        steps[shape->optimizer](shape, (float *)(void *)row, step);
        table->versions[step->row] = step->version;
        return;
    }
    memcpy(table->redo, row, shape->row_bytes);
    steps[shape->optimizer](shape, (float *)(void *)table->redo, step);
    zr_table_commit_row(table, step->row, step->version);
}

/* The row in the middle of its copy is what a process leaves that dies there. */
static void copy_redo(zr_table *table, uint32_t row)
{
    size_t bytes = table->layout.shape.row_bytes, half = bytes / 2;
    memcpy(zr_table_row(table, row), table->redo, half);
    zr_table_die_if_asked(table);
    memcpy(zr_table_row(table, row) + half, table->redo + half, bytes - half);
}

static void begin_redo(zr_table *table, uint64_t redo_row, uint64_t version)
{
    atomic_store_explicit(&table->head->redo_version, version, memory_order_release);
    zr_table_store(table, &table->head->redo_row, redo_row);
}

void zr_table_commit_row(zr_table *table, uint32_t row, uint64_t version)
{
    zr_table_tier_release(table, row);
    begin_redo(table, (uint64_t)row + 1, version);
    zr_table_redo(table);
}

void zr_table_begin_drop(zr_table *table, uint32_t row, uint64_t version)
{
    begin_redo(table, ((uint64_t)row + 1) | ZR_TABLE_REDO_DROP, version);
    table->versions[row] = version;
}

void zr_table_end_drop(zr_table *table)
{
    zr_table_store(table, &table->head->redo_row, 0);
}

void zr_table_redo(zr_table *table)
{
    struct zr_table_head *head = table->head;
    uint64_t redo_row = zr_table_load(&head->redo_row);
    if (redo_row == 0)
        return;
    uint32_t row = (uint32_t)(redo_row & ~ZR_TABLE_REDO_DROP) - 1;
    if (redo_row & ZR_TABLE_REDO_DROP)
        zr_table_set_place(table, row, ZR_TABLE_DROPPED);
    else
        copy_redo(table, row);
    table->versions[row] = zr_table_load(&head->redo_version);
    zr_table_store(table, &head->redo_row, 0);
}
