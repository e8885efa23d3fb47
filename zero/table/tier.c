/* tier.c: records in the file; see table.h. A row that moves to the file gets any free record, so rows that
 * move together share blocks, whatever their numbers. A row that changes in memory gives its record up.
 * Blocks are read and written as a whole, up to ZR_TABLE_STAGING_BLOCKS at a time. A record names its id and
 * version, so contents of another time are found. */
#include <inttypes.h>
#include <string.h>

#include "alloc/base/sort.h"
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
    return table->layout.block_records;
}

zr_result zr_table_tier_open(zr_table *table, const struct zr_table_options *options, bool exists)
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
                                                              .file_exists = exists,
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

/* ---- Free records -------------------------------------------------------------------------------------- */

void zr_table_tier_clear(zr_table *table)
{
    const struct zr_table_layout *layout = &table->layout;
    if (!table->records)
        return;
    memset(table->records, 0xff, (size_t)layout->shape.slots_count * sizeof *table->records);
    memset(table->taken, 0, (size_t)layout->blocks_count * per_block(table));
    for (uint32_t block = 0; block < layout->blocks_count; block++)
        table->free_records[block] = (uint16_t)per_block(table);
    table->all_free_records = (uint64_t)layout->blocks_count * per_block(table);
    table->next_block = 0;
}

void zr_table_tier_take(zr_table *table, uint32_t record)
{
    table->taken[record] = true;
    table->free_records[record / per_block(table)]--;
    table->all_free_records--;
}

static void give_up(zr_table *table, uint32_t record)
{
    table->taken[record] = false;
    table->free_records[record / per_block(table)]++;
    table->all_free_records++;
}

void zr_table_tier_release(zr_table *table, uint32_t row)
{
    uint32_t place = table->places[row];
    if (!table->records)
        return;
    if (place >= ZR_TABLE_FILE)
        give_up(table, place - ZR_TABLE_FILE);
    else if (table->records[place] != ZR_TABLE_NONE) {
        give_up(table, table->records[place]);
        table->records[place] = ZR_TABLE_NONE;
    }
}

/* The next block that has at least as many free records as blocks have on average. The search goes round the
 * file: blocks behind it have just been filled, and those before it have lost rows for the longest time. A
 * record is free, because there are at least as many as rows, and rows to be written have none. */
static uint32_t next_free_block(zr_table *table)
{
    uint64_t average = table->all_free_records / table->layout.blocks_count;
    zr_assert(table->all_free_records > 0);
    for (;;) {
        uint32_t block = table->next_block;
        table->next_block = block + 1 < table->layout.blocks_count ? block + 1 : 0;
        if (table->free_records[block] > 0 && table->free_records[block] >= average)
            return block;
    }
}

/* ---- Blocks -------------------------------------------------------------------------------------------- */

struct located {
    uint32_t record, row;
};

/* Rows whose records are in at most ZR_TABLE_STAGING_BLOCKS blocks, in the order of the blocks. */
struct blocks {
    const struct located *rows;
    size_t rows_count;
    uint32_t numbers[ZR_TABLE_STAGING_BLOCKS];
    bool others[ZR_TABLE_STAGING_BLOCKS]; /* of a write: the block has records of other rows */
    size_t count;
};

/* Of located rows, the first ones. */
static void next_blocks(const zr_table *table, struct blocks *blocks, size_t left)
{
    size_t i = 0;
    blocks->count = 0;
    for (; i < left; i++) {
        uint32_t number = blocks->rows[i].record / per_block(table);
        if (blocks->count > 0 && blocks->numbers[blocks->count - 1] == number)
            continue;
        if (blocks->count == ZR_TABLE_STAGING_BLOCKS)
            break;
        blocks->numbers[blocks->count++] = number;
    }
    blocks->rows_count = i;
}

/* Takes records for rows, the first ones of `count`. */
static void take_blocks(zr_table *table, struct blocks *blocks, struct located *rows, size_t count)
{
    size_t taken = 0;
    blocks->rows = rows;
    for (blocks->count = 0; blocks->count < ZR_TABLE_STAGING_BLOCKS && taken < count; blocks->count++) {
        uint32_t block = next_free_block(table), end = (block + 1) * per_block(table);
        blocks->numbers[blocks->count] = block;
        blocks->others[blocks->count] = table->free_records[block] < per_block(table);
        for (uint32_t record = block * per_block(table); record < end && taken < count; record++)
            if (!table->taken[record]) {
                zr_table_tier_take(table, record);
                rows[taken++].record = record;
            }
    }
    blocks->rows_count = taken;
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

/* Transfers the chosen blocks, all with NULL, neighbours in the file together. */
static zr_result transfer_all(zr_table *table, const struct blocks *blocks, const bool *chosen, bool write)
{
    zr_result result = ZR_OK;
    for (size_t first = 0, end; first < blocks->count && result == ZR_OK; first = end) {
        end = first + 1;
        if (chosen && !chosen[first])
            continue;
        while (end < blocks->count && blocks->numbers[end] == blocks->numbers[end - 1] + 1 &&
               (!chosen || chosen[end]))
            end++;
        result = transfer(table, blocks, (struct range){first, end}, write);
    }
    zr_result ended = zr_nvme_synchronize(table->io);
    return result == ZR_OK ? ended : result;
}

/* Calls back with each row and its record in the staging block. */
static zr_result each_record(zr_table *table, const struct blocks *blocks,
                             zr_result (*visit)(zr_table *table, uint32_t row, char *record,
                                                const void *state),
                             const void *state)
{
    zr_result result = ZR_OK;
    for (size_t i = 0, index = 0; i < blocks->rows_count && result == ZR_OK; i++) {
        uint32_t record = blocks->rows[i].record;
        while (blocks->numbers[index] != record / per_block(table))
            index++;
        result = visit(table, blocks->rows[i].row,
                       block_at(table, index) + record % per_block(table) * record_bytes(table), state);
    }
    return result;
}

/* ---- Writes and reads ---------------------------------------------------------------------------------- */

static zr_result fill_record(zr_table *table, uint32_t row, char *to, const void *state)
{
    (void)state;
    struct record record = {table->ids[row], table->versions[row]};
    memcpy(to, &record, sizeof record);
    memcpy(to + sizeof record, zr_table_row(table, row), table->layout.shape.row_bytes);
    return ZR_OK;
}

static zr_result write_blocks(zr_table *table, const struct blocks *blocks)
{
    memset(table->staging, 0, blocks->count * table->layout.shape.block_bytes);
    zr_result result = transfer_all(table, blocks, blocks->others, false);
    if (result == ZR_OK)
        result = each_record(table, blocks, fill_record, NULL);
    if (result == ZR_OK)
        result = transfer_all(table, blocks, NULL, true);
    for (size_t i = 0; i < blocks->rows_count; i++)
        if (result == ZR_OK)
            table->records[table->places[blocks->rows[i].row]] = blocks->rows[i].record;
        else
            give_up(table, blocks->rows[i].record);
    return result;
}

zr_result zr_table_tier_write(zr_table *table, const uint32_t *rows, size_t count)
{
    struct located located[ZR_TABLE_CHUNK];
    struct blocks blocks = {.rows_count = 0};
    zr_result result = ZR_OK;
    for (size_t i = 0; i < count; i++)
        located[i].row = rows[i];
    for (size_t at = 0; at < count && result == ZR_OK; at += blocks.rows_count) {
        take_blocks(table, &blocks, located + at, count - at);
        result = write_blocks(table, &blocks);
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

static bool is_before(const void *a, const void *b)
{
    return ((const struct located *)a)->record < ((const struct located *)b)->record;
}

zr_result zr_table_tier_read(zr_table *table, const uint32_t *rows, size_t count,
                             const struct zr_table_reader *reader)
{
    struct located located[ZR_TABLE_CHUNK];
    struct blocks blocks = {.rows = located};
    zr_result result = ZR_OK;
    for (size_t i = 0; i < count; i++)
        located[i] = (struct located){table->places[rows[i]] - ZR_TABLE_FILE, rows[i]};
    zr_sort_in_place(&(struct zr_sort_records){located, count, sizeof *located, is_before});
    for (size_t left = count; left > 0 && result == ZR_OK; left -= blocks.rows_count) {
        next_blocks(table, &blocks, left);
        result = transfer_all(table, &blocks, NULL, false);
        if (result == ZR_OK)
            result = each_record(table, &blocks, pass_record, reader);
        blocks.rows += blocks.rows_count;
    }
    return result;
}

/* The owner of a record may also be in memory, and is not passed then. */
static zr_result pass_owner(zr_table *table, uint32_t number, char *from,
                            const struct zr_table_reader *reader)
{
    struct record record;
    memcpy(&record, from, sizeof record);
    uint32_t row = zr_table_find(table, record.id);
    if (row != ZR_TABLE_NONE && zr_table_in_memory(table, row) &&
        table->records[table->places[row]] == number)
        return ZR_OK;
    if (row == ZR_TABLE_NONE || table->places[row] != ZR_TABLE_FILE + number)
        return zr_fail(ZR_ERR_CORRUPT,
                       "table %s: the file has id %" PRIu64
                       " in the place of another; another program has written it: load the last dump",
                       table->layout.shape.name, record.id);
    return pass_record(table, row, from, reader);
}

zr_result zr_table_tier_read_all(zr_table *table, const struct zr_table_reader *reader)
{
    struct blocks blocks;
    zr_result result = ZR_OK;
    for (uint32_t block = 0; block < table->layout.blocks_count && result == ZR_OK;) {
        for (blocks.count = 0; block < table->layout.blocks_count && blocks.count < ZR_TABLE_STAGING_BLOCKS;
             block++)
            if (table->free_records[block] < per_block(table))
                blocks.numbers[blocks.count++] = block;
        result = transfer_all(table, &blocks, NULL, false);
        for (size_t i = 0; i < blocks.count * per_block(table) && result == ZR_OK; i++) {
            size_t index = i / per_block(table), at = i % per_block(table);
            uint32_t number = blocks.numbers[index] * per_block(table) + (uint32_t)at;
            if (table->taken[number])
                result = pass_owner(table, number, block_at(table, index) + at * record_bytes(table), reader);
        }
    }
    return result;
}
