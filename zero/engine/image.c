/* image.c: see image.h. */
#include "zero/engine/image.h"

#include "zero/engine/engine.h"

/* Kind 0 are the values, kind s + 1 slot s. */
static size_t kind_bytes(const struct zr_engine *engine, size_t unit, unsigned kind)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    const bool frozen = zr_engine_is_frozen(engine, unit);
    if (kind == 0)
        return zr_unit_owned(&engine->units[unit]) * (frozen ? engine->parameter_bytes : sizeof(float));
    return frozen || kind > u->optimizer->slots_count
               ? 0
               : zr_layout_slot_bytes(&engine->layout, unit, kind - 1,
                                      engine->units[unit].tier->store.options.whole);
}

static char *kind_address(const struct zr_engine *engine, size_t unit, unsigned kind)
{
    const struct zr_owned *owned = &engine->units[unit].owned;
    return kind == 0 ? zr_owned_values(owned).at : owned->slots[kind - 1];
}

/* Calls `each` for the kinds of all units in the order of the image. */
static void walk(struct zr_image *image, struct zr_engine *engine,
                 void (*each)(struct zr_image *image, struct zr_engine *engine, size_t unit, unsigned kind))
{
    for (unsigned frozen = 0; frozen < 2; frozen++)
        for (unsigned kind = 0; kind <= ZR_SLOTS_MAX; kind++)
            for (size_t u = 0; u < engine->layout.units_count; u++)
                if (zr_engine_is_frozen(engine, u) == (frozen > 0))
                    each(image, engine, u, kind);
}

static void place(struct zr_image *image, struct zr_engine *engine, size_t unit, unsigned kind)
{
    image->at[unit][kind] = image->bytes;
    image->bytes += kind_bytes(engine, unit, kind);
    if (!zr_engine_is_frozen(engine, unit))
        image->trained_bytes = image->bytes;
}

zr_result zr_image_place(struct zr_image *out, struct zr_engine *engine)
{
    *out = (struct zr_image){.at = NULL};
    zr_result result = zr_take(engine->options.host_arena, ZR_TAG_OTHER, engine->layout.units_count,
                               sizeof *out->at, (void **)&out->at);
    if (result == ZR_OK)
        walk(out, engine, place);
    return result;
}

static void add_piece(struct zr_image *image, struct zr_engine *engine, size_t unit, unsigned kind)
{
    struct zr_image_piece *last = image->pieces_count ? &image->pieces[image->pieces_count - 1] : NULL;
    const size_t bytes = kind_bytes(engine, unit, kind);
    char *address = bytes > 0 ? kind_address(engine, unit, kind) : NULL;
    if (!address)
        return;
    if (last && last->address + last->bytes == address)
        last->bytes += bytes;
    else
        image->pieces[image->pieces_count++] = (struct zr_image_piece){address, image->at[unit][kind], bytes};
}

zr_result zr_image_find(struct zr_image *image, struct zr_engine *engine)
{
    if (engine->simulated)
        return ZR_OK;
    zr_result result =
        zr_take(engine->options.host_arena, ZR_TAG_OTHER, engine->layout.units_count * (1 + ZR_SLOTS_MAX),
                sizeof *image->pieces, (void **)&image->pieces);
    if (result == ZR_OK)
        walk(image, engine, add_piece);
    return result;
}

void zr_image_end(struct zr_image *image, struct zr_engine *engine)
{
    zr_drop(engine->options.host_arena, &image->pieces);
    zr_drop(engine->options.host_arena, &image->at);
}
