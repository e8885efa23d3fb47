/* state_store.c: functions of a state store, and the memory store. */
#include "zero/engine/state_store.h"

#include <string.h>

#include "zero/comm/take.h"
#include "zero/engine/kept.h"

/* Elements of all units before `unit`, in any store; `unit` may be the number of units. */
static size_t elements_before(const struct zr_state_store_options *options, size_t unit)
{
    const struct zr_layout *layout = options->layout;
    if (unit == layout->units_count)
        return options->whole ? layout->pool_elements : layout->shards_elements;
    return options->whole ? layout->units[unit].pool_offset : layout->units[unit].shard_offset;
}

size_t zr_state_store_elements(const struct zr_state_store *store, size_t unit)
{
    const struct zr_state_store_options *o = &store->options;
    bool stays = unit >= o->stay.first && unit < o->stay.end;
    return stays == o->staying ? elements_before(o, unit + 1) - elements_before(o, unit) : 0;
}

/* Offset of a unit in the store, in elements. */
static size_t offset_of(const struct zr_state_store *store, size_t unit)
{
    const struct zr_state_store_options *o = &store->options;
    size_t at = elements_before(o, unit), first = elements_before(o, o->stay.first),
           stay = elements_before(o, o->stay.end) - first;
    if (o->staying)
        return at - first;
    return unit < o->stay.end ? at : at - stay;
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

static void memory_close(struct zr_state_store *store)
{
    for (unsigned s = ZR_SLOTS_MAX; s-- > 0;)
        zr_kept_pool_drop(store->options.kept, store->options.arena, &store->slots[s]);
    zr_drop(store->options.host_arena, &store->slots_at);
    zr_kept_pool_drop(store->options.kept, store->options.arena, &store->master);
}

/* The place of each unit's blocks in the slots. */
static zr_result place_slots(struct zr_state_store *store)
{
    const struct zr_layout *layout = store->options.layout;
    zr_result result = zr_take(store->options.host_arena, ZR_TAG_OTHER, layout->units_count + 1,
                               sizeof *store->slots_at, (void **)&store->slots_at);
    if (result != ZR_OK)
        return result;
    memset(store->slots_at[0], 0, sizeof *store->slots_at);
    for (size_t u = 0; u < layout->units_count; u++) {
        const struct zr_optimizer *optimizer = layout->units[u].optimizer;
        memcpy(store->slots_at[u + 1], store->slots_at[u], sizeof *store->slots_at);
        for (unsigned s = 0; s < optimizer->slots_count && zr_state_store_elements(store, u) > 0; s++)
            store->slots_at[u + 1][s] += zr_layout_slot_bytes(layout, u, s, store->options.whole);
    }
    return ZR_OK;
}

static zr_result memory_open(struct zr_state_store *store)
{
    const struct zr_state_store_options *o = &store->options;
    zr_result result = ZR_OK;
    if (o->master)
        result = zr_kept_pool_take(
            o->kept,
            &(struct zr_kept_pool){o->arena, "masters", ZR_TAG_MASTER, store->elements, sizeof(float)},
            &store->master);
    if (result == ZR_OK)
        result = place_slots(store);
    for (unsigned s = 0; s < ZR_SLOTS_MAX && result == ZR_OK; s++)
        result = zr_kept_pool_take(
            o->kept,
            &(struct zr_kept_pool){o->arena, o->layout->units[0].optimizer->slots[s].name, ZR_TAG_OPTIMIZER,
                                   store->slots_at[o->layout->units_count][s], 1},
            &store->slots[s]);
    return result;
}

static zr_result memory_take(struct zr_state_store *store, size_t unit, struct zr_state_view *out)
{
    size_t at = offset_of(store, unit);
    *out = (struct zr_state_view){.master = NULL};
    if (zr_state_store_elements(store, unit) == 0)
        return ZR_OK;
    out->master = store->master ? store->master + at : NULL;
    for (unsigned s = 0; s < store->options.layout->units[unit].optimizer->slots_count; s++)
        out->slots[s] = store->slots[s] + store->slots_at[unit][s];
    return ZR_OK;
}

const struct zr_state_store_table zr_state_store_memory = {.name = "memory",
                                                           .random = true,
                                                           .open = memory_open,
                                                           .take = memory_take,
                                                           .close = memory_close,
                                                           .wait_by_clock = zr_comm_clock_wait_until};

/* ---- Interface ----------------------------------------------------------------------------------------- */

zr_result zr_state_store_open(struct zr_state_store *out, const struct zr_state_store_options *options)
{
    memset(out, 0, sizeof *out);
    out->table = options->servers && options->servers->on ? &zr_state_store_served
                 : options->file                          ? &zr_state_store_nvme
                                                          : &zr_state_store_memory;
    out->options = *options;
    size_t stay = elements_before(options, options->stay.end) - elements_before(options, options->stay.first);
    out->elements = options->staying ? stay : elements_before(options, options->layout->units_count) - stay;
    zr_result result = out->table->open(out);
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
