/* state_store.c: the calls of a state store, and the store of memory. */
#include "zero/engine/state_store.h"

#include <string.h>

#include "zero/comm/take.h"

size_t zr_state_store_at(const struct zr_state_store *store, size_t unit)
{
    const struct zr_layout_unit *u = &store->options.layout->units[unit];
    return store->options.whole ? u->pool_offset : u->shard_offset;
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

static void memory_close(struct zr_state_store *store)
{
    zr_drop(store->options.arena, &store->variance);
    zr_drop(store->options.arena, &store->momentum);
    zr_drop(store->options.arena, &store->master);
}

static zr_result memory_open(struct zr_state_store *store)
{
    const struct zr_state_store_options *o = &store->options;
    zr_result result = ZR_OK;
    if (o->master)
        result = zr_take(o->arena, ZR_TAG_MASTER, store->elements, sizeof(float), (void **)&store->master);
    if (result == ZR_OK)
        result =
            zr_take(o->arena, ZR_TAG_OPTIMIZER, store->elements, sizeof(float), (void **)&store->momentum);
    if (result == ZR_OK && o->variance)
        result =
            zr_take(o->arena, ZR_TAG_OPTIMIZER, store->elements, sizeof(float), (void **)&store->variance);
    return result;
}

static zr_result memory_take(struct zr_state_store *store, size_t unit, struct zr_state_view *out)
{
    size_t at = zr_state_store_at(store, unit);
    *out = (struct zr_state_view){.master = store->master ? store->master + at : NULL,
                                  .momentum = store->momentum + at,
                                  .variance = store->variance ? store->variance + at : NULL};
    return ZR_OK;
}

const struct zr_state_store_table zr_state_store_memory = {
    .name = "memory", .random = true, .open = memory_open, .take = memory_take, .close = memory_close};

/* ---- Calls --------------------------------------------------------------------------------------------- */

zr_result zr_state_store_open(struct zr_state_store *out, const struct zr_state_store_table *table,
                              const struct zr_state_store_options *options)
{
    memset(out, 0, sizeof *out);
    out->table = table;
    out->options = *options;
    out->elements = options->whole ? options->layout->pool_elements : options->layout->shards_elements;
    zr_result result = table->open(out);
    if (result != ZR_OK)
        zr_state_store_close(out);
    return result;
}

void zr_state_store_close(struct zr_state_store *store)
{
    if (store->table)
        store->table->close(store);
    memset(store, 0, sizeof *store);
}

zr_result zr_state_store_begin(struct zr_state_store *store)
{
    return store->table->begin ? store->table->begin(store) : ZR_OK;
}

zr_result zr_state_store_take(struct zr_state_store *store, size_t unit, struct zr_state_view *out)
{
    return store->table->take(store, unit, out);
}

zr_result zr_state_store_give(struct zr_state_store *store, size_t unit, bool changed)
{
    return store->table->give ? store->table->give(store, unit, changed) : ZR_OK;
}

zr_result zr_state_store_end(struct zr_state_store *store)
{
    return store->table->end ? store->table->end(store) : ZR_OK;
}
