/* tier.c: records in the file; see table.h. Row n has record n, in blocks that are read and written as a
 * whole, up to ZR_TABLE_STAGING_BLOCKS at a time. A record names its id and version, so contents of another
 * time are found. */
#include <inttypes.h>
#include <string.h>

#include "zero/comm/take.h"
#include "zero/table/table.h"

enum { DEPTH = 32 };

struct record {
    uint64_t id, version;
};

static size_t record_bytes(const zr_table *table)
{
    return sizeof(struct record) + table->layout.shape.row_bytes;
}

static uint32_t per_block(const zr_table *table)
{
    return (uint32_t)(table->layout.shape.block_bytes / record_bytes(table));
}

zr_result zr_table_tier_open(zr_table *table, const struct zr_table_options *options)
{
    const struct zr_table_plan *plan = &table->layout.plan;
    if (plan->file_bytes == 0)
        return ZR_OK;
    size_t align = options->file.align_bytes ? options->file.align_bytes : 4096;
    struct zr_request request = {.bytes = plan->staging_bytes, .alignment = align, .tag = ZR_TAG_OFFLOAD};
    void *block = NULL;
    zr_result result =
        zr_name_call(zr_arena_alloc(table->arena, &request, &block), __func__, "table->staging");
    table->staging = block;
    if (result != ZR_OK)
        return result;
    struct zr_nvme_buffer buffer = {table->staging, plan->staging_bytes};
    return zr_nvme_open(&table->io, &(struct zr_nvme_options){.folder = {.path = options->file.folder,
                                                                         .force = options->file.force},
                                                              .file_name = options->file.name,
                                                              .file_bytes = plan->file_bytes,
                                                              .host_arena = table->arena,
                                                              .buffers = &buffer,
                                                              .buffers_count = 1,
                                                              .depth = DEPTH,
                                                              .piece_bytes = plan->staging_bytes});
}

void zr_table_tier_close(zr_table *table)
{
    (void)zr_nvme_close(table->io); /* rows in the file end with the table, or are in whole records */
    table->io = NULL;
    zr_drop(table->arena, &table->staging);
}

void zr_table_tier_report(const zr_table *table, struct zr_table_status *out)
{
    struct zr_nvme_report report;
    if (!table->io)
        return;
    zr_nvme_get_report(table->io, &report);
    out->file_bytes = report.file_bytes;
    out->file_read_bytes = report.read_bytes;
    out->file_written_bytes = report.written_bytes;
    out->file_wait_ns = report.waited_ns + report.waited_behind_ns;
}

/* A range of rows whose records are in at most ZR_TABLE_STAGING_BLOCKS blocks. */
struct blocks {
    const uint32_t *rows;
    size_t rows_count;
    uint32_t numbers[ZR_TABLE_STAGING_BLOCKS];
    size_t count;
};

static void next_blocks(const zr_table *table, struct blocks *blocks, size_t left)
{
    size_t i = 0;
    blocks->count = 0;
    for (; i < left; i++) {
        uint32_t number = blocks->rows[i] / per_block(table);
        if (blocks->count > 0 && blocks->numbers[blocks->count - 1] == number)
            continue;
        if (blocks->count == ZR_TABLE_STAGING_BLOCKS)
            break;
        blocks->numbers[blocks->count++] = number;
    }
    blocks->rows_count = i;
}

static char *block_at(const zr_table *table, size_t index)
{
    return table->staging + index * table->layout.shape.block_bytes;
}

struct range {
    size_t first, end;
};

/* Starts a transfer of the staging blocks [first, end). */
static zr_result transfer(zr_table *table, const struct blocks *blocks, struct range range, bool write)
{
    size_t bytes = table->layout.shape.block_bytes;
    zr_nvme_event event;
    struct zr_nvme_extent extent = {.offset_bytes = blocks->numbers[range.first] * (uint64_t)bytes,
                                    .memory = block_at(table, range.first),
                                    .bytes = (range.end - range.first) * bytes};
    return write ? zr_nvme_write(table->io, &extent, &event) : zr_nvme_read(table->io, &extent, &event);
}

typedef bool chooser(const zr_table *table, uint32_t number);

/* Transfers the chosen blocks, all with NULL, neighbours in the file together. */
static zr_result transfer_all(zr_table *table, const struct blocks *blocks, chooser *choose, bool write)
{
    zr_result result = ZR_OK;
    for (size_t first = 0, end; first < blocks->count && result == ZR_OK; first = end) {
        end = first + 1;
        if (choose && !choose(table, blocks->numbers[first]))
            continue;
        while (end < blocks->count && blocks->numbers[end] == blocks->numbers[end - 1] + 1 &&
               (!choose || choose(table, blocks->numbers[end])))
            end++;
        result = transfer(table, blocks, (struct range){first, end}, write);
    }
    zr_result ended = zr_nvme_synchronize(table->io);
    return result == ZR_OK ? ended : result;
}

/* Whether the file has a row of the block that is not in memory, or that will not be written again. */
static bool has_others(const zr_table *table, uint32_t number)
{
    uint64_t made = zr_table_load(&table->head->made_count);
    uint64_t first = (uint64_t)number * per_block(table), end = first + per_block(table);
    for (uint64_t row = first; row < end && row < made; row++)
        if (table->places[row] == ZR_TABLE_FILE ||
            (zr_table_in_memory(table, (uint32_t)row) && table->clean[table->places[row]]))
            return true;
    return false;
}

/* Calls back with each row of the range and its record in the staging block. */
static zr_result each_record(zr_table *table, const struct blocks *blocks,
                             zr_result (*visit)(zr_table *table, uint32_t row, char *record,
                                                const void *state),
                             const void *state)
{
    zr_result result = ZR_OK;
    for (size_t i = 0, index = 0; i < blocks->rows_count && result == ZR_OK; i++) {
        uint32_t row = blocks->rows[i];
        while (blocks->numbers[index] != row / per_block(table))
            index++;
        result =
            visit(table, row, block_at(table, index) + row % per_block(table) * record_bytes(table), state);
    }
    return result;
}

static zr_result fill_record(zr_table *table, uint32_t row, char *to, const void *state)
{
    (void)state;
    struct record record = {table->ids[row], table->versions[row]};
    memcpy(to, &record, sizeof record);
    memcpy(to + sizeof record, zr_table_row(table, row), table->layout.shape.row_bytes);
    return ZR_OK;
}

static zr_result write_range(zr_table *table, const struct blocks *blocks)
{
    memset(table->staging, 0, blocks->count * table->layout.shape.block_bytes);
    zr_result result = transfer_all(table, blocks, has_others, false);
    if (result == ZR_OK)
        result = each_record(table, blocks, fill_record, NULL);
    if (result == ZR_OK)
        result = transfer_all(table, blocks, NULL, true);
    return result;
}

zr_result zr_table_tier_write(zr_table *table, const uint32_t *rows, size_t count)
{
    zr_result result = ZR_OK;
    struct blocks blocks = {.rows = rows};
    for (size_t left = count; left > 0 && result == ZR_OK; left -= blocks.rows_count) {
        next_blocks(table, &blocks, left);
        result = write_range(table, &blocks);
        blocks.rows += blocks.rows_count;
    }
    return result;
}

static zr_result pass_record(zr_table *table, uint32_t row, char *from, const void *state)
{
    const struct zr_table_reader *reader = state;
    struct record record;
    memcpy(&record, from, sizeof record);
    if (record.id != table->ids[row] || record.version != table->versions[row])
        return zr_fail(ZR_ERR_CORRUPT,
                       "table %s: the file has id %" PRIu64 " of version %" PRIu64 " instead of id %" PRIu64
                       " of version %" PRIu64 "; another program has written it: load the last dump",
                       table->layout.shape.name, record.id, record.version, table->ids[row],
                       table->versions[row]);
    return reader->take(reader->state, row, from + sizeof record);
}

zr_result zr_table_tier_read(zr_table *table, const uint32_t *rows, size_t count,
                             const struct zr_table_reader *reader)
{
    zr_result result = ZR_OK;
    struct blocks blocks = {.rows = rows};
    for (size_t left = count; left > 0 && result == ZR_OK; left -= blocks.rows_count) {
        next_blocks(table, &blocks, left);
        result = transfer_all(table, &blocks, NULL, false);
        if (result == ZR_OK)
            result = each_record(table, &blocks, pass_record, reader);
        blocks.rows += blocks.rows_count;
    }
    return result;
}
