/* dump.c: writes the rows of a table that changed since a version, and applies them to another; see
 * zr_table.h.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "zero/table/dump_file.h"

enum { PATH_BYTES = 4096 };

/* ---- Dump ---------------------------------------------------------------------------------------------- */

/* A whole table has no drops: it is applied to a table without rows. */
static bool is_dropped(const zr_table *table, const struct zr_table_dump_file *dump, uint32_t row)
{
    return dump->numbers.since > 0 && table->versions[row] > dump->numbers.since &&
           table->places[row] == ZR_TABLE_DROPPED;
}

struct sender {
    zr_table *table;
    struct zr_table_dump_file *dump;
};

static zr_result send_row(void *state, uint32_t row, const char *contents)
{
    const struct sender *sender = state;
    const struct zr_table_shape *shape = &sender->table->layout.shape;
    const char *states = contents + shape->width * sizeof(float),
               *steps_at = states + shape->states * sizeof(float);
    zr_result result =
        zr_table_dump_put(sender->dump, ZR_TABLE_IDS, &sender->table->ids[row], sizeof(uint64_t));
    if (result == ZR_OK)
        result = zr_table_dump_put(sender->dump, ZR_TABLE_VALUES, contents, shape->width * sizeof(float));
    if (result == ZR_OK)
        result = zr_table_dump_put(sender->dump, ZR_TABLE_STATE, states, shape->states * sizeof(float));
    if (result == ZR_OK && shape->optimizer == ZR_TABLE_ADAM) {
        uint32_t steps;
        memcpy(&steps, steps_at, sizeof steps);
        uint64_t wide = steps;
        result = zr_table_dump_put(sender->dump, ZR_TABLE_STEPS, &wide, sizeof wide);
    }
    return result;
}

/* Those rows of a reader's that changed. */
struct changed {
    zr_table *table;
    uint64_t since;
    const struct zr_table_reader *reader;
};

static zr_result take_changed(void *state, uint32_t row, const char *contents)
{
    const struct changed *changed = state;
    return zr_table_is_changed(changed->table, changed->since, row)
               ? changed->reader->take(changed->reader->state, row, contents)
               : ZR_OK;
}

/* Most rows of a whole table may be in the file, which then is read in its own order. */
zr_result zr_table_read_changed(zr_table *table, uint64_t since, const struct zr_table_reader *reader)
{
    uint32_t made = (uint32_t)zr_table_load(&table->head->made_count), in_file[ZR_TABLE_CHUNK];
    struct changed changed = {table, since, reader};
    size_t in_file_count = 0;
    zr_result result = ZR_OK;
    for (uint32_t row = 0; row < made && result == ZR_OK; row++) {
        if (!zr_table_is_changed(table, since, row))
            continue;
        if (zr_table_in_memory(table, row))
            result = reader->take(reader->state, row, zr_table_row(table, row));
        else if (since > 0)
            in_file[in_file_count++] = row;
        if (in_file_count == ZR_TABLE_CHUNK) {
            result = zr_table_tier_read(table, in_file, in_file_count, reader);
            in_file_count = 0;
        }
    }
    if (result == ZR_OK)
        result = zr_table_tier_read(table, in_file, in_file_count, reader);
    return result == ZR_OK && since == 0 && table->io
               ? zr_table_tier_read_all(table, &(struct zr_table_reader){take_changed, &changed})
               : result;
}

static zr_result send_rows(const struct sender *sender)
{
    zr_table *table = sender->table;
    uint32_t made = (uint32_t)zr_table_load(&table->head->made_count);
    zr_result result = ZR_OK;
    for (uint32_t row = 0; row < made && result == ZR_OK; row++)
        if (is_dropped(table, sender->dump, row))
            result =
                zr_table_dump_put(sender->dump, ZR_TABLE_DROPPED_IDS, &table->ids[row], sizeof(uint64_t));
    if (result == ZR_OK)
        result = zr_table_read_changed(table, sender->dump->numbers.since,
                                       &(struct zr_table_reader){send_row, (void *)sender});
    return result == ZR_OK ? zr_table_dump_flush(sender->dump) : result;
}

static zr_result check_dumpable(const zr_table *table, const struct zr_table_dump_file *dump)
{
    const struct zr_table_dump_numbers *numbers = &dump->numbers;
    zr_result result = zr_table_check_whole(table);
    if (result == ZR_OK && numbers->since > numbers->until)
        result = zr_fail(ZR_ERR_INVALID,
                         "table %s: a dump since version %" PRIu64 " is above its version %" PRIu64,
                         dump->shape->name, numbers->since, numbers->until);
    if (result == ZR_OK && numbers->since > 0 && numbers->since < zr_table_load(&table->head->dumpable_since))
        result = zr_fail(ZR_ERR_INVALID,
                         "table %s: drops since version %" PRIu64 " are forgotten, those since %" PRIu64
                         " are known; dump the whole table (since 0)",
                         dump->shape->name, numbers->since, zr_table_load(&table->head->dumpable_since));
    return result;
}

/* Writes the file under another name and renames it. */
static zr_result write_file(struct zr_table_dump_file *dump, zr_table *table, const char *path)
{
    char partial[PATH_BYTES];
    int length = snprintf(partial, sizeof partial, "%s.partial", path);
    if (length < 0 || (size_t)length >= sizeof partial)
        return zr_fail(ZR_ERR_INVALID, "zr_table_dump(): the path is longer than %d bytes", PATH_BYTES - 10);
    zr_result result = zr_file_create(&dump->file, partial, ZR_CREATE_REPLACE);
    if (result != ZR_OK)
        return result;
    result = zr_table_dump_write_header(dump);
    if (result == ZR_OK)
        result = send_rows(&(struct sender){table, dump});
    if (result == ZR_OK)
        result = zr_file_sync(&dump->file);
    zr_result closed = zr_file_close(&dump->file);
    result = result == ZR_OK ? closed : result;
    if (result == ZR_OK)
        result = zr_path_rename(&(struct zr_rename){partial, path});
    if (result == ZR_OK)
        return zr_path_sync_name(path);
    (void)zr_path_unlink(partial);
    return result;
}

zr_result zr_table_dump(zr_table *table, const struct zr_table_dump *what, uint64_t *out_until)
{
    if (!table || !what || !what->path)
        return zr_fail(ZR_ERR_INVALID, "zr_table_dump(): the table or path is NULL");
    pthread_mutex_lock(&table->lock);
    struct zr_table_dump_file dump = {
        .shape = &table->layout.shape,
        .numbers = {.since = what->since, .until = zr_table_load(&table->head->version)}};
    uint32_t made = (uint32_t)zr_table_load(&table->head->made_count);
    for (uint32_t row = 0; row < made; row++) {
        dump.numbers.rows_count += zr_table_is_changed(table, what->since, row);
        dump.numbers.dropped_count += is_dropped(table, &dump, row);
    }
    zr_result result = check_dumpable(table, &dump);
    zr_table_dump_lay_out(&dump, table);
    if (result == ZR_OK)
        result = write_file(&dump, table, what->path);
    pthread_mutex_unlock(&table->lock);
    if (result == ZR_OK && out_until)
        *out_until = dump.numbers.until;
    return result;
}

/* ---- Apply --------------------------------------------------------------------------------------------- */

/* Reads the next row of the file into table->sum. */
static zr_result receive_row(zr_table *table, struct zr_table_dump_file *dump)
{
    const struct zr_table_shape *shape = dump->shape;
    size_t values_bytes = shape->width * sizeof(float), states_bytes = shape->states * sizeof(float);
    uint64_t steps = 0;
    memset(table->sum, 0, shape->row_bytes);
    zr_result result = zr_table_dump_get(dump, ZR_TABLE_VALUES, table->sum, values_bytes);
    if (result == ZR_OK)
        result = zr_table_dump_get(dump, ZR_TABLE_STATE, table->sum + values_bytes, states_bytes);
    if (result != ZR_OK || shape->optimizer != ZR_TABLE_ADAM)
        return result;
    result = zr_table_dump_get(dump, ZR_TABLE_STEPS, &steps, sizeof steps);
    if (result == ZR_OK && steps > UINT32_MAX)
        result = zr_fail(ZR_ERR_FORMAT, "'%s' is damaged: a row has %" PRIu64 " steps; use another dump",
                         dump->file.name, steps);
    uint32_t narrow = (uint32_t)steps;
    memcpy(table->sum + values_bytes + states_bytes, &narrow, sizeof narrow);
    return result;
}

static bool is_served(const struct zr_table_apply *apply, uint64_t id)
{
    return apply->servers == 0 || zr_table_server(id, apply->servers) == apply->server;
}

static zr_result receive_chunk(zr_table *table, struct zr_table_dump_file *dump,
                               const struct zr_table_apply *apply, size_t count)
{
    uint64_t ids[ZR_TABLE_CHUNK], served[ZR_TABLE_CHUNK], version = zr_table_load(&table->head->version);
    uint32_t rows[ZR_TABLE_CHUNK];
    size_t served_count = 0, next = 0;
    zr_result result = zr_table_dump_get(dump, ZR_TABLE_IDS, ids, count * sizeof *ids);
    for (size_t i = 0; i < count && result == ZR_OK; i++)
        if (is_served(apply, ids[i]))
            served[served_count++] = ids[i];
    if (result == ZR_OK)
        result = zr_table_resolve(table, served, rows, served_count);
    if (result == ZR_OK)
        result = zr_table_bring(table, rows, served_count);
    for (size_t i = 0; i < count && result == ZR_OK; i++) {
        result = receive_row(table, dump);
        if (result != ZR_OK || !is_served(apply, ids[i]))
            continue;
        memcpy(table->redo, table->sum, dump->shape->row_bytes);
        zr_table_commit_row(table, rows[next++], version);
    }
    return result;
}

static zr_result receive_drops(zr_table *table, struct zr_table_dump_file *dump,
                               const struct zr_table_apply *apply)
{
    zr_result result = ZR_OK;
    for (uint64_t i = 0; i < dump->numbers.dropped_count && result == ZR_OK; i++) {
        uint64_t id = 0;
        result = zr_table_dump_get(dump, ZR_TABLE_DROPPED_IDS, &id, sizeof id);
        uint32_t row = result == ZR_OK && is_served(apply, id) ? zr_table_find(table, id) : ZR_TABLE_NONE;
        if (row != ZR_TABLE_NONE && zr_table_is_live(table, row))
            zr_table_drop_row(table, row, zr_table_load(&table->head->version));
    }
    return result;
}

static zr_result check_order(const zr_table *table, const struct zr_table_dump_file *dump)
{
    const struct zr_table_dump_numbers *numbers = &dump->numbers;
    uint64_t until = zr_table_load(&table->head->applied_until);
    if (numbers->since == 0 || (numbers->since <= until && numbers->until >= until))
        return ZR_OK;
    return zr_fail(ZR_ERR_INVALID,
                   "table %s has dumps until version %" PRIu64
                   " and cannot apply '%s', which has versions %" PRIu64 " to %" PRIu64
                   "; apply the dumps in order",
                   dump->shape->name, until, dump->file.name, numbers->since, numbers->until);
}

static zr_result receive(zr_table *table, struct zr_table_dump_file *dump, const struct zr_table_apply *apply)
{
    zr_result result = check_order(table, dump);
    if (result != ZR_OK)
        return result;
    zr_table_store(table, &table->head->version, zr_table_load(&table->head->version) + 1);
    result = receive_drops(table, dump, apply);
    for (uint64_t left = dump->numbers.rows_count, count; left > 0 && result == ZR_OK; left -= count) {
        count = left < ZR_TABLE_CHUNK ? left : ZR_TABLE_CHUNK;
        result = receive_chunk(table, dump, apply, (size_t)count);
    }
    if (result == ZR_OK)
        zr_table_store(table, &table->head->applied_until, dump->numbers.until);
    return result;
}

zr_result zr_table_apply(zr_table *table, const struct zr_table_apply *apply)
{
    struct zr_table_dump_file dump;
    if (!table || !apply || !apply->path)
        return zr_fail(ZR_ERR_INVALID, "zr_table_apply(): the table or path is NULL");
    if (apply->servers > 0 && apply->server >= apply->servers)
        return zr_fail(ZR_ERR_INVALID, "zr_table_apply(): server %u is not below %u servers", apply->server,
                       apply->servers);
    pthread_mutex_lock(&table->lock);
    zr_result result = zr_table_check_whole(table);
    if (result == ZR_OK)
        result = zr_table_dump_open(&dump, table, apply->path);
    if (result == ZR_OK) {
        result = receive(table, &dump, apply);
        zr_file_close(&dump.file);
    }
    pthread_mutex_unlock(&table->lock);
    return result;
}
