/* index.c: rows by their ids, by open addressing with linear probing, and lists of rows in arrays; see
 * table.h.
 *
 * A bucket is 32 bits of the id's hash and 1 + the row, or 0. At most two thirds of the buckets are used. A
 * removal moves later entries back, so there are no marks of removed ones. */
#include "zero/table/table.h"

static uint64_t home_of(const zr_table *table, uint64_t hash)
{
    return (uint64_t)((unsigned __int128)hash * table->layout.buckets_count >> 64);
}

static uint64_t after(const zr_table *table, uint64_t bucket)
{
    return bucket + 1 < table->layout.buckets_count ? bucket + 1 : 0;
}

static uint32_t row_in(uint64_t entry)
{
    return (uint32_t)entry - 1;
}

static uint64_t entry_of(uint64_t hash, uint32_t row)
{
    return hash << 32 | (row + 1);
}

uint32_t zr_table_find(const zr_table *table, uint64_t id)
{
    uint64_t hash = zr_table_mix(id), entry;
    for (uint64_t at = home_of(table, hash); (entry = table->index[at]) != 0; at = after(table, at))
        if ((uint32_t)(entry >> 32) == (uint32_t)hash && table->ids[row_in(entry)] == id)
            return row_in(entry);
    return ZR_TABLE_NONE;
}

void zr_table_prefetch(const zr_table *table, const uint64_t *ids, size_t count)
{
    enum { AHEAD = 16 };
    for (size_t i = 0; i < count + AHEAD; i++) {
        if (i < count)
            __builtin_prefetch(&table->index[home_of(table, zr_table_mix(ids[i]))]);
        if (i < AHEAD)
            continue;
        uint64_t hash = zr_table_mix(ids[i - AHEAD]), at = home_of(table, hash), entry = table->index[at];
        while (entry != 0 && (uint32_t)(entry >> 32) != (uint32_t)hash) {
            at = after(table, at);
            entry = table->index[at];
        }
        if (entry == 0)
            continue;
        __builtin_prefetch(&table->ids[row_in(entry)]);
        __builtin_prefetch(&table->places[row_in(entry)]);
    }
}

void zr_table_index_add(zr_table *table, uint32_t row)
{
    uint64_t hash = zr_table_mix(table->ids[row]), at = home_of(table, hash);
    while (table->index[at] != 0)
        at = after(table, at);
    table->index[at] = entry_of(hash, row);
}

void zr_table_index_remove(zr_table *table, uint32_t row)
{
    uint64_t hole = home_of(table, zr_table_mix(table->ids[row])), count = table->layout.buckets_count;
    while (row_in(table->index[hole]) != row)
        hole = after(table, hole);
    for (uint64_t at = after(table, hole); table->index[at] != 0; at = after(table, at)) {
        /* An entry may move back to the hole if its home is not behind the hole. */
        uint64_t home = home_of(table, zr_table_mix(table->ids[row_in(table->index[at])]));
        if ((at + count - home) % count >= (at + count - hole) % count) {
            table->index[hole] = table->index[at];
            hole = at;
        }
    }
    table->index[hole] = 0;
}

/* ---- Lists --------------------------------------------------------------------------------------------- */

void zr_table_list_add(zr_table *table, enum zr_table_list_kind kind, uint32_t row)
{
    struct zr_table_list *list = &table->head->lists[kind];
    table->next[row] = list->first;
    table->prev[row] = ZR_TABLE_NONE;
    if (list->first != ZR_TABLE_NONE)
        table->prev[list->first] = row;
    else
        list->last = row;
    list->first = row;
}

void zr_table_list_remove(zr_table *table, enum zr_table_list_kind kind, uint32_t row)
{
    struct zr_table_list *list = &table->head->lists[kind];
    uint32_t next = table->next[row], prev = table->prev[row];
    if (next != ZR_TABLE_NONE)
        table->prev[next] = prev;
    else
        list->last = prev;
    if (prev != ZR_TABLE_NONE)
        table->next[prev] = next;
    else
        list->first = next;
}
