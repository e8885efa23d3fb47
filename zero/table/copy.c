/* copy.c: the rows of a table as a stream, which makes an empty table a copy; see zr_table.h. */
#include <string.h>

#include "zero/table/table.h"

struct copy_head {
    uint64_t rows_count, version, sequence;
    struct zr_table_shape shape;
};

struct copier {
    zr_table *table;
    const struct zr_table_stream *stream;
};

static zr_result move(const struct copier *copier, void *data, size_t bytes)
{
    return copier->stream->move(copier->stream->state, data, bytes);
}

static zr_result send_row(void *state, uint32_t row, const char *contents)
{
    const struct copier *copier = state;
    zr_table *table = copier->table;
    memcpy(table->sum, contents, table->layout.shape.row_bytes);
    zr_result result = move(copier, &table->ids[row], sizeof table->ids[row]);
    return result == ZR_OK ? move(copier, table->sum, table->layout.shape.row_bytes) : result;
}

static zr_result send(const struct copier *copier)
{
    zr_table *table = copier->table;
    uint32_t made = (uint32_t)zr_table_load(&table->head->made_count);
    struct copy_head head;
    memset(&head, 0, sizeof head);
    head.version = zr_table_load(&table->head->version);
    head.sequence = zr_table_load(&table->head->sequence);
    head.shape = table->layout.shape;
    for (uint32_t row = 0; row < made; row++)
        head.rows_count += zr_table_is_changed(table, 0, row);
    zr_result result = move(copier, &head, sizeof head);
    return result == ZR_OK
               ? zr_table_read_changed(table, 0, &(struct zr_table_reader){send_row, (void *)copier})
               : result;
}

static zr_result receive_row(const struct copier *copier, uint64_t version)
{
    zr_table *table = copier->table;
    uint64_t id = 0;
    uint32_t row;
    zr_result result = move(copier, &id, sizeof id);
    if (result == ZR_OK)
        result = move(copier, table->sum, table->layout.shape.row_bytes);
    if (result == ZR_OK)
        result = zr_table_resolve(table, &id, &row, 1);
    if (result == ZR_OK)
        result = zr_table_bring(table, &row, 1);
    if (result != ZR_OK)
        return result;
    memcpy(table->redo, table->sum, table->layout.shape.row_bytes);
    zr_table_commit_row(table, row, version);
    return ZR_OK;
}

static zr_result receive(const struct copier *copier)
{
    zr_table *table = copier->table;
    struct zr_table_head *to = table->head;
    struct copy_head head;
    if (zr_table_load(&to->made_count) > 0 || zr_table_load(&to->version) > 0)
        return zr_fail(ZR_ERR_INVALID, "table %s: a copy is received by an empty table only",
                       table->layout.shape.name);
    zr_result result = move(copier, &head, sizeof head);
    if (result == ZR_OK && memcmp(&head.shape, &table->layout.shape, sizeof head.shape) != 0)
        result = zr_fail(ZR_ERR_FORMAT, "table %s: the copy is of a table with other options",
                         table->layout.shape.name);
    if (result != ZR_OK)
        return result;
    zr_table_store(table, &to->version, head.version);
    zr_table_store(table, &to->dumpable_since, head.version);
    for (uint64_t i = 0; i < head.rows_count && result == ZR_OK; i++)
        result = receive_row(copier, head.version);
    if (result == ZR_OK) {
        zr_table_store(table, &to->begun_sequence, head.sequence);
        zr_table_store(table, &to->sequence, head.sequence);
    }
    return result;
}

static zr_result copy(zr_table *table, const struct zr_table_stream *stream,
                      zr_result (*run)(const struct copier *copier))
{
    if (!table || !stream || !stream->move)
        return zr_fail(ZR_ERR_INVALID, "a copy of a table requires a table and a stream");
    pthread_mutex_lock(&table->lock);
    zr_result result = zr_table_check_whole(table);
    if (result == ZR_OK)
        result = run(&(struct copier){table, stream});
    pthread_mutex_unlock(&table->lock);
    return result;
}

zr_result zr_table_send(zr_table *table, const struct zr_table_stream *stream)
{
    return copy(table, stream, send);
}

zr_result zr_table_receive(zr_table *table, const struct zr_table_stream *stream)
{
    return copy(table, stream, receive);
}
