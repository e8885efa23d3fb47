/* rows.c: rows come and go, and are in memory when they are used; see table.h. */
#include <inttypes.h>
#include <string.h>

#include "alloc/base/sort.h"
#include "zero/table/table.h"

enum { EVICTED_MIN = ZR_TABLE_CHUNK / 2 }; /* rows that move to the file together */

zr_result zr_table_check_whole(const zr_table *table)
{
    uint64_t begun = zr_table_load(&table->head->begun_sequence);
    if (begun <= zr_table_load(&table->head->sequence))
        return ZR_OK;
    return zr_fail(ZR_ERR_INVALID,
                   "table %s: push %" PRIu64 " ended early; repeat it with the same ids and gradients, or "
                   "without ids to give up its remainder",
                   table->layout.shape.name, begun);
}

static void use(zr_table *table, uint32_t row)
{
    if (!table->tracks_use || table->head->lists[ZR_TABLE_USED].first == row)
        return;
    zr_table_list_remove(table, ZR_TABLE_USED, row);
    zr_table_list_add(table, ZR_TABLE_USED, row);
}

/* The values are in the next free slot, and in a record of the file or in none. */
static void settle(zr_table *table, uint32_t row, uint32_t record)
{
    uint32_t slot = table->free_slots[--table->free_slots_count];
    if (table->records)
        table->records[slot] = record;
    zr_table_set_place(table, row, slot);
    if (table->tracks_use)
        zr_table_list_add(table, ZR_TABLE_USED, row);
    table->status.slots_used_count++;
}

/* The row leaves its slot for another place. */
static void leave(zr_table *table, uint32_t row, uint32_t place)
{
    uint32_t slot = table->places[row];
    if (table->tracks_use)
        zr_table_list_remove(table, ZR_TABLE_USED, row);
    zr_table_set_place(table, row, place);
    table->free_slots[table->free_slots_count++] = slot;
    table->status.slots_used_count--;
}

/* ---- Going --------------------------------------------------------------------------------------------- */

static void move_to(zr_table *table, uint32_t row, uint32_t place)
{
    zr_table_tier_release(table, row);
    if (zr_table_in_memory(table, row))
        leave(table, row, place);
    else
        zr_table_set_place(table, row, place);
}

void zr_table_drop_row(zr_table *table, uint32_t row, uint64_t version)
{
    table->status.rows_count--;
    if (table->versions[row] == 0) { /* a copy does not have it */
        zr_table_index_remove(table, row);
        move_to(table, row, ZR_TABLE_FREE);
        zr_table_list_add(table, ZR_TABLE_UNUSED, row);
        return;
    }
    zr_table_begin_drop(table, row, version);
    move_to(table, row, ZR_TABLE_DROPPED);
    zr_table_end_drop(table);
    zr_table_list_add(table, ZR_TABLE_DROPS, row);
    table->status.dropped_count++;
}

/* The version of rows that are dropped for others: that before the rows of a push, or a new one. */
static uint64_t lost_version(zr_table *table)
{
    struct zr_table_head *head = table->head;
    if (zr_table_load(&head->begun_sequence) > zr_table_load(&head->sequence))
        return zr_table_load(&head->push_version) - 1;
    zr_table_store(table, &head->version, zr_table_load(&head->version) + 1);
    return zr_table_load(&head->version);
}

static void lose_least_used(zr_table *table)
{
    zr_table_drop_row(table, table->head->lists[ZR_TABLE_USED].last, lost_version(table));
    table->status.lost_count++;
}

static bool is_before(const void *a, const void *b)
{
    return *(const uint32_t *)a < *(const uint32_t *)b;
}

static size_t sort_different(uint32_t *rows, size_t count)
{
    size_t different = 0;
    zr_sort_in_place(&(struct zr_sort_records){rows, count, sizeof *rows, is_before});
    for (size_t i = 0; i < count; i++)
        if (i == 0 || rows[i] != rows[i - 1])
            rows[different++] = rows[i];
    return different;
}

static zr_result move_to_file(zr_table *table, size_t count)
{
    uint32_t rows[ZR_TABLE_CHUNK], changed[ZR_TABLE_CHUNK], row = table->head->lists[ZR_TABLE_USED].last;
    size_t changed_count = 0;
    for (size_t i = 0; i < count; i++, row = table->prev[row]) {
        rows[i] = row;
        if (table->records[table->places[row]] == ZR_TABLE_NONE)
            changed[changed_count++] = row;
    }
    zr_result result = zr_table_tier_write(table, changed, changed_count);
    for (size_t i = 0; i < count && result == ZR_OK; i++)
        leave(table, rows[i], ZR_TABLE_FILE + table->records[table->places[rows[i]]]);
    table->status.stored_count += result == ZR_OK ? changed_count : 0;
    return result;
}

static zr_result fail_rows_limit(const zr_table *table)
{
    const struct zr_table_shape *shape = &table->layout.shape;
    return zr_fail(ZR_ERR_MEMORY,
                   "table %s: rows_limit of %" PRIu64 " rows is reached; raise it, or drop old rows "
                   "(zr_table_drop())",
                   shape->name, shape->rows_limit);
}

/* Makes room for rows, at most ZR_TABLE_CHUNK, beside those used since. */
static zr_result reserve_slots(zr_table *table, size_t count)
{
    if (likely(table->free_slots_count >= count))
        return ZR_OK;
    size_t missing = count - table->free_slots_count;
    if (table->io)
        return move_to_file(table, missing > EVICTED_MIN ? missing : EVICTED_MIN);
    if (table->layout.shape.full != ZR_TABLE_DROP && !table->tracks_use)
        return fail_rows_limit(table);
    if (table->layout.shape.full != ZR_TABLE_DROP)
        return zr_fail(ZR_ERR_MEMORY,
                       "table %s: all %" PRIu64
                       " rows of its memory are used; raise memory_limit_bytes, give it "
                       "a file, or let it drop rows (ZR_TABLE_DROP)",
                       table->layout.shape.name, table->layout.shape.slots_count);
    while (missing-- > 0)
        lose_least_used(table);
    return ZR_OK;
}

/* ---- Coming -------------------------------------------------------------------------------------------- */

/* Forgets the oldest drop. */
static void forget_drop(zr_table *table)
{
    uint32_t row = table->head->lists[ZR_TABLE_DROPS].last;
    if (table->versions[row] > zr_table_load(&table->head->dumpable_since))
        zr_table_store(table, &table->head->dumpable_since, table->versions[row]);
    zr_table_index_remove(table, row);
    zr_table_list_remove(table, ZR_TABLE_DROPS, row);
    zr_table_set_place(table, row, ZR_TABLE_FREE);
    zr_table_list_add(table, ZR_TABLE_UNUSED, row);
    table->status.dropped_count--;
}

/* Makes sure that one number is free. */
static zr_result reserve_number(zr_table *table)
{
    const struct zr_table_shape *shape = &table->layout.shape;
    struct zr_table_list *lists = table->head->lists;
    if (lists[ZR_TABLE_UNUSED].first != ZR_TABLE_NONE ||
        zr_table_load(&table->head->made_count) < shape->rows_limit)
        return ZR_OK;
    if (lists[ZR_TABLE_DROPS].last == ZR_TABLE_NONE) {
        if (table->io || shape->full != ZR_TABLE_DROP)
            return fail_rows_limit(table);
        lose_least_used(table);
    }
    if (lists[ZR_TABLE_UNUSED].first == ZR_TABLE_NONE)
        forget_drop(table);
    return ZR_OK;
}

static char *next_slot(const zr_table *table)
{
    uint32_t slot = table->free_slots[table->free_slots_count - 1];
    return table->rows + (size_t)slot * table->layout.shape.row_bytes;
}

static zr_result make(zr_table *table, uint64_t id, uint32_t dropped, uint32_t *out)
{
    struct zr_table_head *head = table->head;
    zr_result result = reserve_slots(table, 1);
    if (result == ZR_OK && dropped == ZR_TABLE_NONE)
        result = reserve_number(table);
    if (result != ZR_OK)
        return result;
    uint32_t row = dropped;
    uint64_t made_count = zr_table_load(&head->made_count);
    bool is_new = false;
    if (dropped != ZR_TABLE_NONE) { /* keeps its version, so that dumps have it */
        zr_table_list_remove(table, ZR_TABLE_DROPS, row);
        table->status.dropped_count--;
    } else {
        row = head->lists[ZR_TABLE_UNUSED].first;
        is_new = row == ZR_TABLE_NONE;
        if (is_new)
            row = (uint32_t)made_count;
        else
            zr_table_list_remove(table, ZR_TABLE_UNUSED, row);
        table->ids[row] = id;
        table->versions[row] = 0;
        zr_table_index_add(table, row);
    }
    zr_table_first_values(table, id, next_slot(table));
    settle(table, row, ZR_TABLE_NONE);
    if (is_new)
        zr_table_store(table, &head->made_count, made_count + 1);
    table->status.rows_count++;
    table->status.made_count++;
    *out = row;
    return ZR_OK;
}

zr_result zr_table_resolve(zr_table *table, const uint64_t *ids, uint32_t *rows, size_t count)
{
    zr_result result = ZR_OK;
    zr_assert(count <= ZR_TABLE_CHUNK);
    zr_table_prefetch(table, ids, count);
    for (size_t i = 0; i < count && result == ZR_OK; i++) {
        uint32_t row = rows[i] = zr_table_find(table, ids[i]);
        if (unlikely(row == ZR_TABLE_NONE || table->places[row] == ZR_TABLE_DROPPED))
            result = make(table, ids[i], row, &rows[i]);
        else if (zr_table_in_memory(table, row))
            use(table, row);
    }
    return result;
}

/* ---- From the file ------------------------------------------------------------------------------------- */

static zr_result take_row(void *state, uint32_t row, const char *contents)
{
    zr_table *table = state;
    memcpy(next_slot(table), contents, table->layout.shape.row_bytes);
    settle(table, row, table->places[row] - ZR_TABLE_FILE);
    table->status.loaded_count++;
    return ZR_OK;
}

zr_result zr_table_bring(zr_table *table, const uint32_t *rows, size_t count)
{
    uint32_t missing[ZR_TABLE_CHUNK];
    size_t missing_count = 0;
    zr_assert(count <= ZR_TABLE_CHUNK);
    for (size_t i = 0; i < count; i++)
        if (zr_table_in_memory(table, rows[i]))
            use(table, rows[i]);
        else
            missing[missing_count++] = rows[i];
    if (missing_count == 0)
        return ZR_OK;
    missing_count = sort_different(missing, missing_count);
    zr_result result = reserve_slots(table, missing_count);
    if (result == ZR_OK)
        result =
            zr_table_tier_read(table, missing, missing_count, &(struct zr_table_reader){take_row, table});
    return result;
}
