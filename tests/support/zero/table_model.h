/* table_model.h: an embedding table as plain arrays, to compare with zero/table, and the tables' arena. */
#ifndef ZR_TEST_TABLE_MODEL_H
#define ZR_TEST_TABLE_MODEL_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/draws.h"
#include "tests/support/tap.h"
#include "zero/table/zr_table.h"

enum { MODEL_WIDTH_MAX = 8 };

struct model_row {
    bool pushed;     /* has other values than its first ones */
    uint64_t change; /* the table's version */
    unsigned steps;
    float values[MODEL_WIDTH_MAX], one[MODEL_WIDTH_MAX], two[MODEL_WIDTH_MAX];
};
struct model {
    const struct zr_table_options *options;
    struct model_row *rows; /* [ids_count] */
    size_t ids_count;
    zr_table *fresh; /* without pushes: gives first values */
};

/* The id of a number: two of three are far apart, as hashes are. */
static inline uint64_t model_id(size_t number)
{
    return number % 3 ? number * UINT64_C(0x9e3779b97f4a7c15) : number;
}

static inline zr_arena *table_arena(void)
{
    struct zr_host_options host = {.struct_bytes = sizeof host, .private_memory = true};
    struct zr_arena_options options = {.struct_bytes = sizeof options};
    zr_arena *arena = NULL;
    if (zr_backend_host_create(&options.backend, &host) != ZR_OK ||
        zr_arena_create(&arena, &options) != ZR_OK)
        exit(2);
    return arena;
}

static inline struct zr_table_options table_options(zr_arena *arena)
{
    return (struct zr_table_options){.struct_bytes = sizeof(struct zr_table_options),
                                     .arena = arena,
                                     .name = "users",
                                     .width = 5,
                                     .epsilon = 1e-6f,
                                     .beta1 = 0.9f,
                                     .beta2 = 0.99f,
                                     .initial_state = 0.125f,
                                     .init_range = 0.5f,
                                     .seed = 7,
                                     .rows_limit = 8000,
                                     .batch_max = 2048};
}

/* Options of a table with a file and memory for `slots` rows, at least ZR_TABLE_SLOTS_MIN. */
static inline struct zr_table_options table_with_file(struct zr_table_options options, const char *folder,
                                                      uint64_t slots)
{
    struct zr_table_plan plan;
    size_t too_little = 0;
    options.file = (struct zr_table_file){.folder = folder, .force = true};
    for (size_t step = 1 << 30; step > 0; step /= 2) {
        options.memory_limit_bytes = too_little + step;
        if (zr_table_plan(&options, &plan) != ZR_OK || plan.slots_count < slots)
            too_little += step;
    }
    options.memory_limit_bytes = too_little + 1;
    return options;
}

static inline zr_table *table_make(const struct zr_table_options *options)
{
    zr_table *table = NULL;
    if (zr_table_create(&table, options) != ZR_OK)
        tap_note("%s", zr_last_error());
    return table;
}

static inline struct zr_table_pull pull_of(const uint64_t *ids, size_t count, float *rows)
{
    return (struct zr_table_pull){.ids = ids, .count = count, .rows = rows};
}

static inline zr_result table_pull(zr_table *table, const uint64_t *ids, size_t count, float *rows)
{
    struct zr_table_pull pull = pull_of(ids, count, rows);
    return zr_table_pull(table, &pull);
}

static inline zr_result table_peek(zr_table *table, const uint64_t *ids, size_t count, float *rows)
{
    struct zr_table_pull pull = pull_of(ids, count, rows);
    pull.peek = true;
    return zr_table_pull(table, &pull);
}

/* The next push, at rate 0.1. */
static inline zr_result table_push(zr_table *table, const uint64_t *ids, size_t count, const float *gradients)
{
    return zr_table_push(
        table, &(struct zr_table_push){.ids = ids, .count = count, .gradients = gradients, .rate = 0.1f},
        NULL);
}

static inline void model_init(struct model *model, const struct zr_table_options *options, size_t ids_count)
{
    struct zr_table_options fresh = *options;
    fresh.memory_limit_bytes = 0;
    fresh.memory = NULL;
    *model = (struct model){options, calloc(ids_count, sizeof *model->rows), ids_count, table_make(&fresh)};
}

static inline void model_fini(struct model *model)
{
    zr_table_close(model->fresh);
    free(model->rows);
}

static inline void model_first(const struct model *model, size_t number, float *out)
{
    uint64_t id = model_id(number);
    if (table_peek(model->fresh, &id, 1, out) != ZR_OK)
        exit(2);
}

/* One step of a row, as the formulas of zr_table.h have it. */
static inline void model_step(const struct model *model, size_t number, const float *gradient, float rate)
{
    const struct zr_table_options *o = model->options;
    struct model_row *row = &model->rows[number];
    double squares = 0;
    if (!row->pushed) {
        *row = (struct model_row){.pushed = true};
        model_first(model, number, row->values);
        for (size_t i = 0; i < o->width; i++)
            row->one[i] = o->initial_state;
        if (o->optimizer == ZR_TABLE_ADAM)
            memset(row->one, 0, sizeof row->one);
    }
    row->steps++;
    float power1 = 1, power2 = 1;
    if (o->optimizer == ZR_TABLE_ADAM) {
        power1 = (float)(1 / (1 - pow(o->beta1, row->steps)));
        power2 = (float)(1 / (1 - pow(o->beta2, row->steps)));
    }
    for (size_t i = 0; i < o->width; i++)
        squares += (double)gradient[i] * gradient[i];
    row->one[0] += o->optimizer == ZR_TABLE_ADAGRAD_ROW ? (float)(squares / (double)o->width) : 0;
    for (size_t i = 0; i < o->width; i++) {
        float g = gradient[i], *one = &row->one[i], *two = &row->two[i];
        switch (o->optimizer) {
        case ZR_TABLE_SGD:
            row->values[i] -= rate * g;
            break;
        case ZR_TABLE_ADAGRAD:
            *one += g * g;
            row->values[i] -= rate * g / (sqrtf(*one) + o->epsilon);
            break;
        case ZR_TABLE_ADAGRAD_ROW:
            row->values[i] -= rate * g / (sqrtf(row->one[0]) + o->epsilon);
            break;
        default:
            *one = o->beta1 * *one + (1 - o->beta1) * g;
            *two = o->beta2 * *two + (1 - o->beta2) * g * g;
            row->values[i] -= rate * (*one * power1) / (sqrtf(*two * power2) + o->epsilon);
        }
    }
}

/* A batch of numbers drawn by a law that prefers small ones, and their ids. */
struct model_batch {
    size_t count, *numbers;
    uint64_t *ids;
    float *floats; /* gradients or rows */
};

static inline struct model_batch batch_make(size_t count, size_t width)
{
    return (struct model_batch){count, calloc(count, sizeof(size_t)), calloc(count, sizeof(uint64_t)),
                                calloc(count * width, sizeof(float))};
}

static inline void batch_free(struct model_batch *batch)
{
    free(batch->numbers);
    free(batch->ids);
    free(batch->floats);
}

static inline void batch_draw(struct model_batch *batch, size_t ids_count, size_t width)
{
    size_t few = random_below(2) ? ids_count : ids_count / 16;
    for (size_t i = 0; i < batch->count; i++) {
        batch->numbers[i] = random_below(few);
        batch->ids[i] = model_id(batch->numbers[i]);
    }
    for (size_t i = 0; i < batch->count * width; i++)
        batch->floats[i] = (float)random_below(2001) * 0x1p-10f - 0.95f;
}

/* Applies a batch: gradients of equal ids are added in order, then each id makes a step. */
static inline void model_push(struct model *model, const struct model_batch *batch, float rate,
                              uint64_t version)
{
    size_t width = model->options->width;
    for (size_t i = 0; i < batch->count; i++) {
        struct model_row *row = &model->rows[batch->numbers[i]];
        float sum[MODEL_WIDTH_MAX];
        if (row->change == version)
            continue;
        memcpy(sum, batch->floats + i * width, width * sizeof *sum);
        for (size_t j = i + 1; j < batch->count; j++)
            for (size_t k = 0; k < width && batch->ids[j] == batch->ids[i]; k++)
                sum[k] += batch->floats[j * width + k];
        model_step(model, batch->numbers[i], sum, rate);
        row->change = version;
    }
}

/* Whether pulled rows are the model's, bit for bit. */
static inline bool model_agrees(const struct model *model, const struct model_batch *batch, const float *rows)
{
    size_t width = model->options->width;
    for (size_t i = 0; i < batch->count; i++) {
        float first[MODEL_WIDTH_MAX];
        const struct model_row *row = &model->rows[batch->numbers[i]];
        if (!row->pushed)
            model_first(model, batch->numbers[i], first);
        if (memcmp(rows + i * width, row->pushed ? row->values : first, width * sizeof(float)) != 0) {
            tap_note("id %llu, number %zu", (unsigned long long)batch->ids[i], batch->numbers[i]);
            return false;
        }
    }
    return true;
}

/* Values of all ids, without making rows. The caller frees them. */
static inline float *table_values(zr_table *table, size_t ids_count, size_t width)
{
    enum { AT_ONCE = 250 };
    float *rows = calloc(ids_count * width, sizeof *rows);
    uint64_t ids[AT_ONCE];
    for (size_t i = 0, count; i < ids_count; i += count) {
        count = ids_count - i < AT_ONCE ? ids_count - i : AT_ONCE;
        for (size_t j = 0; j < count; j++)
            ids[j] = model_id(i + j);
        if (table_peek(table, ids, count, rows + i * width) != ZR_OK) {
            tap_note("%s", zr_last_error());
            rows[0] = NAN;
            break;
        }
    }
    return rows;
}

static inline bool tables_agree(zr_table *one, zr_table *other, size_t ids_count, size_t width)
{
    float *a = table_values(one, ids_count, width), *b = table_values(other, ids_count, width);
    bool same = memcmp(a, b, ids_count * width * sizeof *a) == 0 && !isnan(a[0]);
    free(a);
    free(b);
    return same;
}

static inline struct zr_table_status table_status(zr_table *table)
{
    struct zr_table_status status = {0};
    zr_table_get_status(table, &status);
    return status;
}

#endif
