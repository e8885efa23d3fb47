/* plan.c: the options of a table, the layout of its memory and its plan; see table.h. */
#include <string.h>

#include "alloc/base/option.h"
#include "zero/table/table.h"

enum {
    BATCH_DEFAULT = 1 << 17,
    BLOCK_DEFAULT = 4096,
    BLOCK_MAX = 65536,
    ROW_ALIGN = 32,
    FILE_RECORD = 16,
    FILE_SPARE = 4, /* one free record for so many rows, beside those of rows in memory */
    SLOT_ARRAYS = 3
};

static zr_result check_options(const struct zr_table_options *options)
{
    const char *name = options->name;
    size_t length = name ? strnlen(name, ZR_TABLE_NAME_BYTES) : 0;
    if (length == 0 || length == ZR_TABLE_NAME_BYTES)
        return zr_fail(ZR_ERR_INVALID, "a table requires a name of 1 to %d bytes", ZR_TABLE_NAME_BYTES - 1);
    for (const char *at = name; *at; at++)
        if (!((*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z') || (*at >= '0' && *at <= '9') ||
              strchr("-_./", *at)))
            return zr_fail(ZR_ERR_INVALID, "table '%s': a name has letters, digits and -_./ only", name);
    if (options->width == 0 || options->width > ZR_TABLE_WIDTH_MAX)
        return zr_fail(ZR_ERR_INVALID, "table %s: width is %zu; give 1 to %d", name, options->width,
                       ZR_TABLE_WIDTH_MAX);
    if ((unsigned)options->optimizer >= ZR_TABLE_OPTIMIZERS_COUNT)
        return zr_fail(ZR_ERR_INVALID, "table %s: %d is not an optimizer; give one of %s", name,
                       (int)options->optimizer, ZR_TABLE_OPTIMIZER_NAMES);
    if (options->optimizer != ZR_TABLE_SGD && !(options->epsilon > 0))
        return zr_fail(ZR_ERR_INVALID, "table %s: epsilon is %g; give a positive one", name,
                       (double)options->epsilon);
    if (options->optimizer == ZR_TABLE_ADAM &&
        !(options->beta1 >= 0 && options->beta1 < 1 && options->beta2 >= 0 && options->beta2 < 1))
        return zr_fail(ZR_ERR_INVALID, "table %s: beta1 %g and beta2 %g must be at least 0 and below 1", name,
                       (double)options->beta1, (double)options->beta2);
    if (!(options->init_range >= 0) || !(options->initial_state >= 0))
        return zr_fail(ZR_ERR_INVALID, "table %s: init_range and initial_state must be at least 0", name);
    if (options->rows_limit == 0 || options->rows_limit > ZR_TABLE_ROWS_MAX)
        return zr_fail(ZR_ERR_INVALID, "table %s: rows_limit is %llu; give 1 to %d", name,
                       (unsigned long long)options->rows_limit, ZR_TABLE_ROWS_MAX);
    if ((unsigned)options->full > ZR_TABLE_DROP)
        return zr_fail(ZR_ERR_INVALID, "table %s: %d is not a value of enum zr_table_full", name,
                       (int)options->full);
    if (options->full == ZR_TABLE_DROP && options->rows_limit < ZR_TABLE_SLOTS_MIN)
        return zr_fail(ZR_ERR_INVALID, "table %s: a table that drops rows has a rows_limit of at least %d",
                       name, ZR_TABLE_SLOTS_MIN);
    if (options->batch_max > ZR_TABLE_BATCH_MAX)
        return zr_fail(ZR_ERR_INVALID, "table %s: batch_max is %zu; give at most %d", name,
                       options->batch_max, ZR_TABLE_BATCH_MAX);
    if (options->staleness > UINT16_MAX || options->permits_max > UINT32_MAX / 8)
        return zr_fail(ZR_ERR_INVALID,
                       "table %s: staleness is %u and permits_max %zu; give at most %d and %u", name,
                       options->staleness, options->permits_max, UINT16_MAX, UINT32_MAX / 8);
    size_t align = options->file.align_bytes;
    if (align & (align - 1) || align > BLOCK_MAX || (align > 0 && align < 512))
        return zr_fail(ZR_ERR_INVALID,
                       "table %s: file.align_bytes is %zu; give a power of two from 512 to %d", name, align,
                       BLOCK_MAX);
    if ((uintptr_t)options->memory % ZR_TABLE_ALIGN)
        return zr_fail(ZR_ERR_INVALID, "table %s: memory must be aligned to %d bytes", name, ZR_TABLE_ALIGN);
    return ZR_OK;
}

static size_t round_up(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

/* Appends an array to a block; sizes are far below an overflow (see the limits). */
static size_t append(size_t *bytes, uint64_t count, size_t item_bytes)
{
    size_t at = *bytes;
    *bytes = round_up(at + (size_t)count * item_bytes, ZR_TABLE_ALIGN);
    return at;
}

static uint64_t power_of_two(uint64_t at_least)
{
    uint64_t power = 64;
    while (power < at_least)
        power *= 2;
    return power;
}

static void fill_shape(struct zr_table_shape *shape, const struct zr_table_options *options)
{
    const uint32_t states[] = {0, (uint32_t)options->width, 1, 2 * (uint32_t)options->width};
    bool adaptive = options->optimizer != ZR_TABLE_SGD, adam = options->optimizer == ZR_TABLE_ADAM;
    memset(shape, 0, sizeof *shape);
    memcpy(shape->name, options->name, strlen(options->name));
    shape->width = options->width;
    shape->optimizer = options->optimizer;
    shape->full = options->full;
    shape->rows_limit = options->rows_limit;
    shape->seed = options->seed;
    shape->epsilon = adaptive ? options->epsilon : 0;
    shape->beta1 = adam ? options->beta1 : 0;
    shape->beta2 = adam ? options->beta2 : 0;
    shape->initial_state = adaptive && !adam ? options->initial_state : 0;
    shape->init_range = options->init_range;
    shape->states = states[options->optimizer];
    shape->row_bytes =
        round_up((shape->width + shape->states) * sizeof(float) + (adam ? sizeof(uint32_t) : 0), ROW_ALIGN);
}

/* Records of the process. */
static void lay_out_records(struct zr_table_layout *out, const struct zr_table_options *options)
{
    size_t bytes = 0, batch;
    append(&bytes, 1, sizeof(struct zr_table));
    out->batch_max = batch = options->batch_max ? options->batch_max : BATCH_DEFAULT;
    out->grouped_buckets = (size_t)power_of_two(2 * (uint64_t)batch);
    out->first = append(&bytes, batch, sizeof(uint32_t));
    out->following = append(&bytes, batch, sizeof(uint32_t));
    out->last = append(&bytes, batch, sizeof(uint32_t));
    out->numbers = append(&bytes, batch, sizeof(uint32_t));
    out->grouped = append(&bytes, out->grouped_buckets, sizeof(uint32_t));
    out->permits_max = options->staleness == 0 ? 0 : options->permits_max ? options->permits_max : 4 * batch;
    /* A permit has a bucket of its worker and shares one of all workers; half of the buckets stay empty. */
    out->permit_buckets = out->permits_max ? power_of_two(4 * out->permits_max) : 0;
    out->permits = append(&bytes, out->permit_buckets, sizeof(struct zr_table_permit));
    out->pieces = append(&bytes, ZR_TABLE_TENSORS, ZR_TABLE_PIECE_BYTES);
    out->sum = append(&bytes, 1, out->shape.row_bytes);
    out->plan.record_bytes = bytes;
}

/* Memory for so many slots. */
static void lay_out_memory(struct zr_table_layout *out, uint64_t slots_count)
{
    const struct zr_table_shape *shape = &out->shape;
    size_t bytes = ZR_TABLE_HEAD_BYTES;
    out->buckets_count = shape->rows_limit + shape->rows_limit / 2 + 1;
    out->redo = append(&bytes, 1, shape->row_bytes);
    out->ids = append(&bytes, shape->rows_limit, sizeof(uint64_t));
    out->versions = append(&bytes, shape->rows_limit, sizeof(uint64_t));
    out->places = append(&bytes, shape->rows_limit, sizeof(uint32_t));
    out->next = append(&bytes, shape->rows_limit, sizeof(uint32_t));
    out->prev = append(&bytes, shape->rows_limit, sizeof(uint32_t));
    out->index = append(&bytes, out->buckets_count, sizeof(uint64_t));
    out->free_slots = append(&bytes, slots_count, sizeof(uint32_t));
    out->records = append(&bytes, out->blocks_count > 0 ? slots_count : 0, sizeof(uint32_t));
    out->taken = append(&bytes, (uint64_t)out->blocks_count * out->block_records, sizeof(uint8_t));
    out->free_records = append(&bytes, out->blocks_count, sizeof(uint16_t));
    out->rows = append(&bytes, slots_count, shape->row_bytes);
    out->plan.memory_bytes = bytes;
    out->plan.slots_count = slots_count;
}

static size_t total(const struct zr_table_plan *plan)
{
    return plan->memory_bytes + plan->record_bytes + plan->staging_bytes;
}

zr_result zr_table_lay_out(struct zr_table_layout *out, const struct zr_table_options *options)
{
    memset(out, 0, sizeof *out);
    zr_result result = check_options(options);
    if (result != ZR_OK)
        return result;
    struct zr_table_shape *shape = &out->shape;
    struct zr_table_plan *plan = &out->plan;
    fill_shape(shape, options);
    plan->row_bytes = shape->row_bytes;
    lay_out_records(out, options);
    lay_out_memory(out, shape->rows_limit);
    if (options->memory_limit_bytes == 0 || total(plan) <= options->memory_limit_bytes) {
        shape->slots_count = plan->slots_count;
        return ZR_OK;
    }
    if (options->file.folder) {
        size_t align = options->file.align_bytes ? options->file.align_bytes : BLOCK_DEFAULT;
        size_t record_bytes = shape->row_bytes + FILE_RECORD;
        shape->block_bytes = record_bytes <= align ? align : round_up(record_bytes, align);
        plan->staging_bytes = ZR_TABLE_STAGING_BLOCKS * shape->block_bytes;
        out->block_records = (uint32_t)(shape->block_bytes / record_bytes);
        uint64_t records = shape->rows_limit + shape->rows_limit / FILE_SPARE;
        if (records > ZR_TABLE_ROWS_MAX)
            records = ZR_TABLE_ROWS_MAX;
        out->blocks_count = (uint32_t)((records + out->block_records - 1) / out->block_records);
        plan->file_bytes = out->blocks_count * shape->block_bytes;
    }
    lay_out_memory(out, 0);
    size_t fixed = total(plan) + SLOT_ARRAYS * ZR_TABLE_ALIGN;
    size_t each = shape->row_bytes + sizeof(uint32_t) * (out->blocks_count > 0 ? 2 : 1);
    uint64_t slots = options->memory_limit_bytes > fixed ? (options->memory_limit_bytes - fixed) / each : 0;
    if (slots < ZR_TABLE_SLOTS_MIN)
        return zr_fail(
            ZR_ERR_MEMORY,
            "table %s: memory_limit_bytes is %zu, and %d rows of %zu with their records need %zu; raise "
            "it, or lower rows_limit or batch_max",
            shape->name, options->memory_limit_bytes, ZR_TABLE_SLOTS_MIN, plan->row_bytes,
            fixed + ZR_TABLE_SLOTS_MIN * each);
    shape->slots_count = slots < shape->rows_limit ? slots : shape->rows_limit;
    lay_out_memory(out, shape->slots_count);
    return ZR_OK;
}

zr_result zr_table_plan(const struct zr_table_options *options, struct zr_table_plan *out)
{
    struct zr_table_layout layout;
    struct zr_table_options own;
    if (!options || !out)
        return zr_fail(ZR_ERR_INVALID, "zr_table_plan(): options or out is NULL");
    zr_result result = ZR_STRUCT_COPY(zr_table_options, memory, &own, options);
    if (result == ZR_OK)
        result = zr_table_lay_out(&layout, &own);
    if (result == ZR_OK)
        *out = layout.plan;
    return result;
}
