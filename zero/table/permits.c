/* permits.c: permits bound how many pulls of a row are without their push (staleness). A hash table with open
 * addressing has for each (id, worker), and for each id of all workers, the number of permits. */
#define _GNU_SOURCE /* pthread_cond_clockwait */
#include <time.h>

#include "zero/table/table.h"

static const uint32_t all_workers = ZR_TABLE_WORKERS_MAX;

static uint64_t home_of(const zr_table *table, const struct zr_table_permit *permit)
{
    return zr_table_mix(permit->id + permit->worker * UINT64_C(0x9e3779b97f4a7c15)) &
           (table->layout.permit_buckets - 1);
}

/* The bucket of (id, worker), or the empty one where it belongs. */
static struct zr_table_permit *find(const zr_table *table, uint64_t id, uint32_t worker)
{
    uint64_t at = home_of(table, &(struct zr_table_permit){.id = id, .worker = worker});
    struct zr_table_permit *permit;
    while ((permit = &table->permits[at])->count != 0 && (permit->id != id || permit->worker != worker))
        at = (at + 1) & (table->layout.permit_buckets - 1);
    return permit;
}

/* Empties a bucket and moves later ones back. */
static void empty(zr_table *table, struct zr_table_permit *permit)
{
    uint64_t mask = table->layout.permit_buckets - 1, hole = (uint64_t)(permit - table->permits);
    for (uint64_t at = (hole + 1) & mask; table->permits[at].count != 0; at = (at + 1) & mask) {
        uint64_t home = home_of(table, &table->permits[at]);
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            table->permits[hole] = table->permits[at];
            hole = at;
        }
    }
    table->permits[hole].count = 0;
}

static void add(zr_table *table, uint64_t id, uint32_t worker)
{
    struct zr_table_permit *permit = find(table, id, worker);
    *permit = (struct zr_table_permit){id, worker, permit->count + 1};
}

static void subtract(zr_table *table, uint64_t id, uint32_t worker, uint32_t count)
{
    struct zr_table_permit *permit = find(table, id, worker);
    zr_assert(permit->count >= count);
    if (permit->count == count)
        empty(table, permit);
    else
        permit->count -= count;
}

static bool are_free(const zr_table *table, const uint64_t *ids)
{
    const struct zr_table_group *group = &table->group;
    if (table->status.permits_count + group->count > table->layout.permits_max)
        return false;
    for (size_t i = 0; i < group->count; i++)
        if (find(table, ids[group->first[i]], all_workers)->count >= table->staleness)
            return false;
    return true;
}

zr_result zr_table_permits_take(zr_table *table, const struct zr_table_pull *pull)
{
    const struct zr_table_group *group = &table->group;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t ns = (uint64_t)until.tv_nsec + pull->wait_ns % 1000000000;
    until.tv_sec += (time_t)(pull->wait_ns / 1000000000 + ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    bool waits = pull->wait_ns > 0, good;
    for (;;) {
        zr_table_group_ids(table, pull->ids, pull->count);
        good = are_free(table, pull->ids);
        if (good || !waits)
            break;
        waits = pthread_cond_clockwait(&table->released, &table->lock, CLOCK_MONOTONIC, &until) == 0;
    }
    if (!good)
        return zr_fail(ZR_ERR_TIMEOUT,
                       "table %s: %u pulls of an id, or %llu permits, are without their push; push first, or "
                       "return the permits of dead workers (zr_table_release_worker())",
                       table->layout.shape.name, table->staleness,
                       (unsigned long long)table->layout.permits_max);
    for (size_t i = 0; i < group->count; i++) {
        add(table, pull->ids[group->first[i]], pull->worker);
        add(table, pull->ids[group->first[i]], all_workers);
    }
    table->status.permits_count += group->count;
    return ZR_OK;
}

void zr_table_permits_return(zr_table *table, const uint64_t *ids, unsigned worker)
{
    const struct zr_table_group *group = &table->group;
    for (size_t i = 0; i < group->count && worker < all_workers; i++) {
        uint64_t id = ids[group->first[i]];
        if (find(table, id, worker)->count == 0)
            continue;
        subtract(table, id, worker, 1);
        subtract(table, id, all_workers, 1);
        table->status.permits_count--;
    }
    pthread_cond_broadcast(&table->released);
}

/* In the memory of the group. */
static uint64_t *collected_ids(const zr_table *table)
{
    return (uint64_t *)(void *)table->group.buckets;
}

/* Empties buckets of a worker, at most batch_max; sets ids, and counts in group.first. A bucket that was
 * emptied is looked at again, because a later one may be there now. */
static size_t collect(zr_table *table, uint32_t worker)
{
    size_t found = 0;
    for (uint64_t at = 0; at < table->layout.permit_buckets && found < table->layout.batch_max;) {
        struct zr_table_permit *permit = &table->permits[at];
        if (permit->count == 0 || permit->worker != worker) {
            at++;
            continue;
        }
        collected_ids(table)[found] = permit->id;
        table->group.first[found++] = permit->count;
        empty(table, permit);
    }
    return found;
}

uint64_t zr_table_release_worker(zr_table *table, unsigned worker)
{
    uint64_t returned = 0;
    size_t found;
    if (!table || worker >= all_workers)
        return 0;
    pthread_mutex_lock(&table->lock);
    do {
        found = collect(table, worker);
        for (size_t i = 0; i < found; i++) {
            subtract(table, collected_ids(table)[i], all_workers, table->group.first[i]);
            returned += table->group.first[i];
        }
    } while (found > 0);
    table->status.permits_count -= returned;
    pthread_cond_broadcast(&table->released);
    pthread_mutex_unlock(&table->lock);
    return returned;
}
