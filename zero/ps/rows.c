/* rows.c: the sparse tables of a server (zero/table), in kept memory if the server has some. See store.h. */
#include <stdio.h>

#include "zero/ps/store.h"

/* Opens a table: that of a killed server if `open`, else an empty one. */
static zr_result open_table(struct zr_ps_store *store, unsigned table, bool open)
{
    const struct zr_ps_table *t = &store->setup->entries[table].table;
    struct zr_table_options options = *t->rows;
    struct zr_table_plan plan;
    char file[ZR_PS_ADDRESS_BYTES], name[sizeof "ps.rows." + 16];
    options.arena = store->arena;
    options.name = options.name ? options.name : t->name;
    options.staleness = 0;
    options.memory = NULL;
    options.batch_max = store->setup->entries[table].rows_max; /* of a worker; a group has those of all */
    if (zr_ps_groups(&store->setup->options.timing))
        options.batch_max *= store->setup->options.workers;
    if (options.batch_max > ZR_TABLE_BATCH_MAX)
        options.batch_max = ZR_TABLE_BATCH_MAX;
    if (options.file.name) {
        snprintf(file, sizeof file, "%s.%u", options.file.name, store->server);
        options.file.name = file;
    }
    zr_result result = ZR_OK;
    if (store->memory && store->memory->take) {
        snprintf(name, sizeof name, "ps.rows.%u", table);
        result = zr_table_plan(&options, &plan);
        if (result == ZR_OK)
            result = store->memory->take(store->memory->state,
                                         &(struct zr_kept_request){name, ZR_TAG_PARAM, plan.memory_bytes},
                                         &options.memory);
    }
    if (result != ZR_OK)
        return result;
    return open ? zr_table_open(&store->slices[table].rows, &options)
                : zr_table_create(&store->slices[table].rows, &options);
}

zr_result zr_ps_rows_open(struct zr_ps_store *store)
{
    bool open = atomic_load(&store->kept->layout) != 0;
    zr_result result = ZR_OK;
    for (unsigned t = 0; t < store->setup->options.tables_count && result == ZR_OK; t++)
        if (store->setup->entries[t].width > 0)
            result = open_table(store, t, open);
    return result;
}

void zr_ps_rows_close(struct zr_ps_store *store)
{
    for (unsigned t = 0; store->slices && t < store->setup->options.tables_count; t++)
        zr_table_close(store->slices[t].rows);
}
