/* table.c: creates tables, and continues those of earlier processes; see table.h. */
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "alloc/base/option.h"
#include "zero/comm/take.h"
#include "zero/table/table.h"

/* ---- Memory -------------------------------------------------------------------------------------------- */

static void point_into_records(zr_table *table, char *base)
{
    const struct zr_table_layout *layout = &table->layout;
    table->group = (struct zr_table_group){.first = (uint32_t *)(void *)(base + layout->first),
                                           .following = (uint32_t *)(void *)(base + layout->following),
                                           .last = (uint32_t *)(void *)(base + layout->last),
                                           .buckets = (uint32_t *)(void *)(base + layout->grouped)};
    table->numbers = (uint32_t *)(void *)(base + layout->numbers);
    table->permits = (struct zr_table_permit *)(void *)(base + layout->permits);
    memset(table->permits, 0, (size_t)layout->permit_buckets * sizeof *table->permits);
    table->pieces = base + layout->pieces;
    table->sum = base + layout->sum;
}

static void point_into_memory(zr_table *table, char *base)
{
    const struct zr_table_layout *layout = &table->layout;
    table->head = (struct zr_table_head *)(void *)base;
    table->redo = base + layout->redo;
    table->ids = (uint64_t *)(void *)(base + layout->ids);
    table->versions = (uint64_t *)(void *)(base + layout->versions);
    table->places = (uint32_t *)(void *)(base + layout->places);
    table->next = (uint32_t *)(void *)(base + layout->next);
    table->prev = (uint32_t *)(void *)(base + layout->prev);
    table->index = (uint64_t *)(void *)(base + layout->index);
    table->free_slots = (uint32_t *)(void *)(base + layout->free_slots);
    if (layout->blocks_count > 0) {
        table->records = (uint32_t *)(void *)(base + layout->records);
        table->taken = (uint8_t *)(base + layout->taken);
        table->free_records = (uint16_t *)(void *)(base + layout->free_records);
    }
    table->rows = base + layout->rows;
}

/* Records and memory; the table has a lock from here on. */
static zr_result take_memory(zr_table **out, const struct zr_table_options *options,
                             const struct zr_table_layout *layout)
{
    void *records = NULL;
    zr_result result = zr_take(options->arena, ZR_TAG_OTHER, layout->plan.record_bytes, 1, &records);
    if (result != ZR_OK)
        return result;
    zr_table *table = records;
    memset(table, 0, sizeof *table);
    table->layout = *layout;
    table->arena = options->arena;
    table->kept = options->memory != NULL;
    table->staleness = options->staleness;
    point_into_records(table, records);
    if (!options->memory)
        result = zr_take(options->arena, ZR_TAG_PARAM, layout->plan.memory_bytes, 1, &table->own_memory);
    if (result != ZR_OK) {
        zr_drop(options->arena, &records);
        return result;
    }
    point_into_memory(table, options->memory ? options->memory : table->own_memory);
    pthread_mutex_init(&table->lock, NULL);
    pthread_cond_init(&table->released, NULL);
    *out = table;
    return ZR_OK;
}

void zr_table_close(zr_table *table)
{
    if (!table)
        return;
    zr_arena *arena = table->arena;
    zr_table_tier_close(table);
    pthread_cond_destroy(&table->released);
    pthread_mutex_destroy(&table->lock);
    zr_drop(arena, &table->own_memory);
    zr_drop(arena, &table);
}

static void set_uses(zr_table *table)
{
    const struct zr_table_shape *shape = &table->layout.shape;
    table->may_lose = shape->full == ZR_TABLE_DROP && shape->block_bytes == 0;
    table->tracks_use = table->may_lose || shape->slots_count < shape->rows_limit;
}

/* ---- An empty table ------------------------------------------------------------------------------------ */

static void empty_lists(zr_table *table)
{
    for (unsigned i = 0; i < ZR_TABLE_LISTS; i++)
        table->head->lists[i] = (struct zr_table_list){ZR_TABLE_NONE, ZR_TABLE_NONE};
    memset(table->index, 0, (size_t)table->layout.buckets_count * sizeof *table->index);
}

static void fill_free_slots(zr_table *table)
{
    uint32_t slots = (uint32_t)table->layout.shape.slots_count;
    for (uint32_t i = 0; i < slots; i++)
        table->free_slots[i] = slots - 1 - i;
    table->free_slots_count = slots;
}

typedef zr_result filler(zr_table *table);

static zr_result fill_empty(zr_table *table)
{
    struct zr_table_head *head = table->head;
    zr_table_store(table, &head->magic, 0);
    memset((char *)head + sizeof head->magic, 0, sizeof *head - sizeof head->magic);
    head->shape = table->layout.shape;
    empty_lists(table);
    zr_table_tier_clear(table);
    fill_free_slots(table);
    zr_table_store(table, &head->magic, ZR_TABLE_MAGIC);
    return ZR_OK;
}

/* ---- The table of an earlier process ------------------------------------------------------------------- */

static zr_result check_shape(const zr_table *table)
{
#define FIELD(name)                                                                                          \
    {                                                                                                        \
#name, offsetof(struct zr_table_shape, name), sizeof((struct zr_table_shape *)0)->name               \
    }
    static const struct {
        const char *name;
        size_t at, bytes;
    } fields[] = {FIELD(name),       FIELD(width),       FIELD(optimizer),   FIELD(full),
                  FIELD(rows_limit), FIELD(slots_count), FIELD(block_bytes), FIELD(seed),
                  FIELD(epsilon),    FIELD(beta1),       FIELD(beta2),       FIELD(initial_state),
                  FIELD(init_range), FIELD(states),      FIELD(row_bytes)};
#undef FIELD
    const char *there = (const char *)&table->head->shape, *asked = (const char *)&table->layout.shape;
    if (zr_table_load(&table->head->magic) != ZR_TABLE_MAGIC)
        return zr_fail(ZR_ERR_FORMAT, "table %s: the memory has no table of this version; create one",
                       table->layout.shape.name);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (memcmp(there + fields[i].at, asked + fields[i].at, fields[i].bytes) != 0)
            return zr_fail(ZR_ERR_INVALID,
                           "table %s: the table in the memory has another %s; open it with the options that "
                           "created it",
                           table->layout.shape.name, fields[i].name);
    return ZR_OK;
}

static zr_result fail_damaged(const zr_table *table, const char *what, uint64_t number)
{
    return zr_fail(ZR_ERR_FORMAT,
                   "table %s: the memory is damaged (%s %" PRIu64 "); create the table again and "
                   "load its last dump",
                   table->layout.shape.name, what, number);
}

/* Of an update the row is in memory. */
static bool is_redoable(const zr_table *table, uint64_t redo, uint64_t made)
{
    uint64_t row = redo & ~ZR_TABLE_REDO_DROP;
    if (redo == 0)
        return true;
    if (row == 0 || row > made)
        return false;
    uint32_t place = table->places[row - 1];
    return redo & ZR_TABLE_REDO_DROP ? place != ZR_TABLE_FREE : place < table->layout.shape.slots_count;
}

static zr_result check_head(const zr_table *table)
{
    const struct zr_table_head *head = table->head;
    uint64_t made = zr_table_load(&head->made_count), redo = zr_table_load(&head->redo_row),
             version = zr_table_load(&head->version);
    if (made > table->layout.shape.rows_limit)
        return fail_damaged(table, "rows", made);
    if (!is_redoable(table, redo, made))
        return fail_damaged(table, "last row", redo);
    if (zr_table_load(&head->begun_sequence) < zr_table_load(&head->sequence) ||
        zr_table_load(&head->dumpable_since) > version || zr_table_load(&head->push_version) > version + 2)
        return fail_damaged(table, "version", version);
    return ZR_OK;
}

/* Whether a slot or record that no row before has had. */
static bool is_place(const zr_table *table, uint32_t place)
{
    const struct zr_table_layout *layout = &table->layout;
    if (place < ZR_TABLE_FILE)
        return place < layout->shape.slots_count && table->free_slots[place] == place;
    uint64_t record = place - ZR_TABLE_FILE;
    return record < (uint64_t)layout->blocks_count * layout->block_records && !table->taken[record];
}

/* Index, the list of unused rows, and counts. A free slot is marked by its own number in free_slots. */
static zr_result index_rows(zr_table *table)
{
    uint32_t made = (uint32_t)zr_table_load(&table->head->made_count),
             slots = (uint32_t)table->layout.shape.slots_count;
    struct zr_table_status *status = &table->status;
    for (uint32_t slot = 0; slot < slots; slot++)
        table->free_slots[slot] = slot;
    for (uint32_t row = 0; row < made; row++) {
        uint32_t place = table->places[row];
        if (place == ZR_TABLE_FREE) {
            zr_table_list_add(table, ZR_TABLE_UNUSED, row);
            continue;
        }
        if (zr_table_find(table, table->ids[row]) != ZR_TABLE_NONE)
            return fail_damaged(table, "two rows of id", table->ids[row]);
        if (place != ZR_TABLE_DROPPED && !is_place(table, place))
            return fail_damaged(table, "place of row", row);
        zr_table_index_add(table, row);
        status->rows_count += place != ZR_TABLE_DROPPED;
        if (place == ZR_TABLE_DROPPED)
            status->dropped_count++;
        else if (place >= ZR_TABLE_FILE)
            zr_table_tier_take(table, place - ZR_TABLE_FILE);
        else {
            table->free_slots[place] = ZR_TABLE_NONE;
            status->slots_used_count++;
        }
    }
    for (uint32_t slot = 0; slot < slots; slot++)
        if (table->free_slots[slot] == slot)
            table->free_slots[table->free_slots_count++] = slot;
    return ZR_OK;
}

static bool belongs(const zr_table *table, enum zr_table_list_kind kind, uint32_t row)
{
    return kind == ZR_TABLE_USED ? zr_table_in_memory(table, row) : table->places[row] == ZR_TABLE_DROPPED;
}

/* Rebuilds a list from its first row of an earlier process, in the same order; rows that the old list has
 * lost follow. A row that waits for its turn has itself as the one before it. */
static void order_list(zr_table *table, enum zr_table_list_kind kind, uint32_t first)
{
    struct zr_table_list *list = &table->head->lists[kind];
    uint32_t made = (uint32_t)zr_table_load(&table->head->made_count), row = first, scanned = 0;
    for (uint32_t i = 0; i < made; i++)
        if (belongs(table, kind, i))
            table->prev[i] = i;
    while (row != ZR_TABLE_NONE || scanned < made) {
        if (row >= made || !belongs(table, kind, row) || table->prev[row] != row) {
            row = scanned < made ? scanned++ : ZR_TABLE_NONE;
            if (row == ZR_TABLE_NONE || !belongs(table, kind, row) || table->prev[row] != row) {
                row = ZR_TABLE_NONE;
                continue;
            }
        }
        uint32_t next = table->next[row];
        if (list->last == ZR_TABLE_NONE)
            list->first = row;
        else
            table->next[list->last] = row;
        table->prev[row] = list->last;
        table->next[row] = ZR_TABLE_NONE;
        list->last = row;
        row = next;
    }
}

static zr_result fill_again(zr_table *table)
{
    zr_result result = check_shape(table);
    if (result == ZR_OK)
        result = check_head(table);
    if (result != ZR_OK)
        return result;
    uint32_t used = table->head->lists[ZR_TABLE_USED].first;
    uint32_t dropped = table->head->lists[ZR_TABLE_DROPS].first;
    zr_table_redo(table);
    zr_table_tier_clear(table);
    empty_lists(table);
    result = index_rows(table);
    if (result != ZR_OK)
        return result;
    if (table->tracks_use)
        order_list(table, ZR_TABLE_USED, used);
    order_list(table, ZR_TABLE_DROPS, dropped);
    return ZR_OK;
}

/* ---- Opening ------------------------------------------------------------------------------------------- */

static zr_result open_table(zr_table **out, const struct zr_table_options *given, filler *fill)
{
    struct zr_table_options options;
    struct zr_table_layout layout;
    zr_table *table = NULL;
    if (!out || !given)
        return zr_fail(ZR_ERR_INVALID, "a table requires options and a place for its handle");
    *out = NULL;
    zr_result result = ZR_STRUCT_COPY(zr_table_options, memory, &options, given);
    if (result == ZR_OK)
        result = zr_table_lay_out(&layout, &options);
    if (result == ZR_OK && !options.arena)
        result = zr_fail(ZR_ERR_INVALID, "table %s requires an arena of host memory", layout.shape.name);
    if (result == ZR_OK && fill == fill_again && !options.memory)
        result = zr_fail(ZR_ERR_INVALID, "table %s: zr_table_open() requires options.memory with a table",
                         layout.shape.name);
    if (result == ZR_OK && fill == fill_again && layout.plan.file_bytes > 0 && !options.file.name)
        result =
            zr_fail(ZR_ERR_INVALID, "table %s: zr_table_open() requires the name of the file with its rows",
                    layout.shape.name);
    if (result == ZR_OK)
        result = take_memory(&table, &options, &layout);
    if (result != ZR_OK)
        return result;
    set_uses(table);
    result = zr_table_tier_open(table, &options, fill == fill_again);
    if (result == ZR_OK)
        result = fill(table);
    if (result != ZR_OK) {
        zr_table_close(table);
        return result;
    }
    *out = table;
    return ZR_OK;
}

zr_result zr_table_create(zr_table **out, const struct zr_table_options *options)
{
    return open_table(out, options, fill_empty);
}

zr_result zr_table_open(zr_table **out, const struct zr_table_options *options)
{
    return open_table(out, options, fill_again);
}

/* ---- The whole table ----------------------------------------------------------------------------------- */

unsigned zr_table_server(uint64_t id, unsigned servers)
{
    /* Another hash than that of the index, whose buckets would fill unevenly. */
    return servers == 0 ? 0 : (unsigned)(zr_table_mix(id ^ UINT64_C(0xd6e8feb86659fd93)) % servers);
}

zr_result zr_table_drop(zr_table *table, uint64_t version, uint64_t *out_count)
{
    uint64_t dropped = 0;
    if (!table)
        return zr_fail(ZR_ERR_INVALID, "zr_table_drop(): the table is NULL");
    pthread_mutex_lock(&table->lock);
    zr_result result = zr_table_check_whole(table);
    if (result == ZR_OK) {
        zr_table_store(table, &table->head->version, zr_table_load(&table->head->version) + 1);
        uint64_t made = zr_table_load(&table->head->made_count), own = zr_table_load(&table->head->version);
        for (uint32_t row = 0; row < made; row++)
            if (zr_table_is_live(table, row) && table->versions[row] < version &&
                table->versions[row] < own) {
                zr_table_drop_row(table, row, own);
                dropped++;
            }
    }
    pthread_mutex_unlock(&table->lock);
    if (out_count)
        *out_count = dropped;
    return result;
}

void zr_table_get_status(zr_table *table, struct zr_table_status *out)
{
    if (!table || !out)
        return;
    pthread_mutex_lock(&table->lock);
    const struct zr_table_head *head = table->head;
    uint64_t begun = zr_table_load(&head->begun_sequence);
    *out = table->status;
    out->version = zr_table_load(&head->version);
    out->sequence = zr_table_load(&head->sequence);
    out->interrupted_sequence = begun > out->sequence ? begun : 0;
    out->dumpable_since = zr_table_load(&head->dumpable_since);
    out->applied_until = zr_table_load(&head->applied_until);
    zr_table_tier_report(table, out);
    pthread_mutex_unlock(&table->lock);
}
