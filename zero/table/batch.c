/* batch.c: pulls and pushes; see zr_table.h. A batch is processed in chunks whose rows are in memory
 * together. */
#include <inttypes.h>
#include <string.h>

#include "zero/table/table.h"

enum { ROWS_AHEAD = 8, LINE_BYTES = 64 };

static uint64_t load(const _Atomic uint64_t *from)
{
    return atomic_load_explicit(from, memory_order_relaxed);
}

static size_t chunk_of(size_t left)
{
    return left < ZR_TABLE_CHUNK ? left : ZR_TABLE_CHUNK;
}

void zr_table_group_ids(zr_table *table, const uint64_t *ids, size_t count)
{
    struct zr_table_group *group = &table->group;
    size_t buckets_count = 64;
    while (buckets_count < 2 * count)
        buckets_count *= 2;
    memset(group->buckets, 0xff, buckets_count * sizeof *group->buckets);
    group->count = 0;
    for (size_t i = 0; i < count; i++) {
        size_t at = (size_t)zr_table_mix(ids[i]) & (buckets_count - 1);
        uint32_t known;
        while ((known = group->buckets[at]) != ZR_TABLE_NONE && ids[group->first[known]] != ids[i])
            at = (at + 1) & (buckets_count - 1);
        if (known == ZR_TABLE_NONE) {
            known = group->buckets[at] = (uint32_t)group->count++;
            group->first[known] = (uint32_t)i;
        } else
            group->following[group->last[known]] = (uint32_t)i;
        group->last[known] = (uint32_t)i;
        group->following[i] = ZR_TABLE_NONE;
    }
}

static void prefetch(const void *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += LINE_BYTES)
        __builtin_prefetch((const char *)at + i);
}

static void prefetch_row(const zr_table *table, uint32_t row)
{
    prefetch(zr_table_row(table, row), table->layout.shape.row_bytes);
}

static zr_result check_batch(const zr_table *table, size_t count, const char *call)
{
    if (count <= table->layout.batch_max)
        return ZR_OK;
    return zr_fail(ZR_ERR_INVALID, "%s(): %zu ids are above the batch_max of %zu of table %s", call, count,
                   table->layout.batch_max, table->layout.shape.name);
}

/* ---- Pull ---------------------------------------------------------------------------------------------- */

/* Rows of a chunk; those of ids without a row are first values, and are not made. */
static zr_result peek_chunk(zr_table *table, const uint64_t *ids, float *rows, size_t count)
{
    size_t width = table->layout.shape.width, live = 0;
    uint32_t found[ZR_TABLE_CHUNK], present[ZR_TABLE_CHUNK];
    zr_table_prefetch(table, ids, count);
    for (size_t i = 0; i < count; i++) {
        found[i] = zr_table_find(table, ids[i]);
        if (found[i] != ZR_TABLE_NONE && !zr_table_is_live(table, found[i]))
            found[i] = ZR_TABLE_NONE;
        if (found[i] != ZR_TABLE_NONE)
            present[live++] = found[i];
    }
    zr_result result = zr_table_bring(table, present, live);
    for (size_t i = 0; i < count && result == ZR_OK; i++) {
        if (found[i] == ZR_TABLE_NONE)
            zr_table_first_values(table, ids[i], table->sum);
        memcpy(rows + i * width, found[i] == ZR_TABLE_NONE ? table->sum : zr_table_row(table, found[i]),
               width * sizeof *rows);
    }
    return result;
}

static zr_result pull_chunk(zr_table *table, const uint64_t *ids, float *rows, size_t count)
{
    size_t width = table->layout.shape.width;
    uint32_t found[ZR_TABLE_CHUNK];
    zr_result result = zr_table_resolve(table, ids, found, count);
    if (result == ZR_OK)
        result = zr_table_bring(table, found, count);
    for (size_t i = 0; i < count && result == ZR_OK; i++) {
        if (i + ROWS_AHEAD < count)
            prefetch_row(table, found[i + ROWS_AHEAD]);
        memcpy(rows + i * width, zr_table_row(table, found[i]), width * sizeof *rows);
    }
    return result;
}

zr_result zr_table_pull(zr_table *table, const struct zr_table_pull *pull)
{
    if (!table || !pull || (pull->count > 0 && (!pull->ids || !pull->rows)))
        return zr_fail(ZR_ERR_INVALID, "zr_table_pull(): the table, ids or rows are NULL");
    zr_result result = check_batch(table, pull->count, __func__);
    if (result == ZR_OK && pull->worker >= ZR_TABLE_WORKERS_MAX)
        result = zr_fail(ZR_ERR_INVALID, "zr_table_pull(): worker %u is above %d", pull->worker,
                         ZR_TABLE_WORKERS_MAX - 1);
    if (result != ZR_OK)
        return result;
    bool permits = table->staleness > 0 && !pull->peek;
    pthread_mutex_lock(&table->lock);
    if (permits)
        result = zr_table_permits_take(table, pull);
    bool taken = permits && result == ZR_OK;
    if (result == ZR_OK)
        result = zr_table_check_whole(table);
    for (size_t at = 0; at < pull->count && result == ZR_OK; at += ZR_TABLE_CHUNK)
        result = (pull->peek ? peek_chunk : pull_chunk)(
            table, pull->ids + at, pull->rows + at * table->layout.shape.width, chunk_of(pull->count - at));
    if (result == ZR_OK)
        table->status.pulled_count += pull->count;
    else if (taken)
        zr_table_permits_return(table, pull->ids, pull->worker);
    pthread_mutex_unlock(&table->lock);
    return result;
}

/* ---- Push ---------------------------------------------------------------------------------------------- */

/* Rows of a chunk of the group's ids. */
static zr_result resolve_group(zr_table *table, const uint64_t *ids, size_t at, size_t count)
{
    uint64_t different[ZR_TABLE_CHUNK];
    for (size_t i = 0; i < count; i++)
        different[i] = ids[table->group.first[at + i]];
    return zr_table_resolve(table, different, table->numbers + at, count);
}

/* The sum of the gradients of a group's id, in the order of the batch. */
static const float *sum_of(const zr_table *table, const struct zr_table_push *push, size_t index)
{
    size_t width = table->layout.shape.width;
    uint32_t place = table->group.first[index];
    const float *first = push->gradients + place * width;
    if (table->group.following[place] == ZR_TABLE_NONE)
        return first;
    float *restrict sum = (float *)(void *)table->sum;
    memcpy(sum, first, width * sizeof *sum);
    uint32_t next = table->group.following[place];
    while ((place = next) != ZR_TABLE_NONE) {
        const float *restrict gradient = push->gradients + place * width;
        next = table->group.following[place];
        if (next != ZR_TABLE_NONE)
            prefetch(push->gradients + next * width, width * sizeof *sum);
        for (size_t i = 0; i < width; i++)
            sum[i] += gradient[i];
    }
    return sum;
}

static zr_result push_chunk(zr_table *table, const struct zr_table_push *push, size_t at, size_t count)
{
    const uint32_t *rows = table->numbers + at;
    uint64_t version = load(&table->head->push_version);
    zr_result result = ZR_OK;
    if (table->may_lose)
        result = resolve_group(table, push->ids, at, count);
    if (result == ZR_OK)
        result = zr_table_bring(table, rows, count);
    for (size_t i = 0; i < count && result == ZR_OK; i++) {
        if (i + ROWS_AHEAD < count) {
            prefetch_row(table, rows[i + ROWS_AHEAD]);
            prefetch(push->gradients + table->group.first[at + i + ROWS_AHEAD] * table->layout.shape.width,
                     table->layout.shape.width * sizeof(float));
        }
        if (table->versions[rows[i]] != version) /* else an interrupted push has reached the row */
            zr_table_update(
                table, &(struct zr_table_step){rows[i], sum_of(table, push, at + i), push->rate, version});
    }
    return result;
}

/* Makes the rows of the group before any of them is updated, so that a refusal leaves the table as it is. */
static zr_result make_rows(zr_table *table, const struct zr_table_push *push)
{
    zr_result result = ZR_OK;
    for (size_t at = 0; at < table->group.count && result == ZR_OK; at += ZR_TABLE_CHUNK)
        result = resolve_group(table, push->ids, at, chunk_of(table->group.count - at));
    return result;
}

static zr_result push_group(zr_table *table, const struct zr_table_push *push, uint64_t sequence)
{
    struct zr_table_head *head = table->head;
    zr_result result = table->may_lose ? ZR_OK : make_rows(table, push);
    if (result != ZR_OK)
        return result;
    if (load(&head->begun_sequence) <= load(&head->sequence)) {
        /* The version before that of the rows is for drops in between. */
        zr_table_store(table, &head->push_version, load(&head->version) + 2);
        zr_table_store(table, &head->begun_sequence, sequence);
    }
    for (size_t at = 0; at < table->group.count && result == ZR_OK; at += ZR_TABLE_CHUNK)
        result = push_chunk(table, push, at, chunk_of(table->group.count - at));
    if (result != ZR_OK)
        return result;
    zr_table_store(table, &head->version, load(&head->push_version));
    zr_table_store(table, &head->sequence, sequence);
    table->status.pushed_count += table->group.count;
    return ZR_OK;
}

zr_result zr_table_push(zr_table *table, const struct zr_table_push *push, bool *out_applied)
{
    if (!table || !push || (push->count > 0 && (!push->ids || !push->gradients)))
        return zr_fail(ZR_ERR_INVALID, "zr_table_push(): the table, ids or gradients are NULL");
    zr_result result = check_batch(table, push->count, __func__);
    if (result != ZR_OK)
        return result;
    pthread_mutex_lock(&table->lock);
    uint64_t done = load(&table->head->sequence), begun = load(&table->head->begun_sequence);
    uint64_t sequence = push->sequence ? push->sequence : done + 1;
    bool applied = sequence > done;
    if (applied && begun > done && push->sequence != begun)
        result = zr_table_check_whole(table);
    else if (applied) {
        zr_table_group_ids(table, push->ids, push->count);
        result = push_group(table, push, sequence);
        if (result == ZR_OK && table->staleness > 0)
            zr_table_permits_return(table, push->ids, push->worker);
    }
    pthread_mutex_unlock(&table->lock);
    if (out_applied)
        *out_applied = applied && result == ZR_OK;
    return result;
}
