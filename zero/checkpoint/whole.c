/* whole.c: see whole.h. */
#include "zero/checkpoint/whole.h"

#include <string.h>

#include "zero/engine/engine.h"

zr_result zr_whole_open(struct zr_whole *out, zr_engine *engine, const struct zr_shape *shape, zr_comm *comm)
{
    const struct zr_shape dense = zr_shape_dense(shape);
    memset(out, 0, sizeof *out);
    if (!zr_engine_is_part(engine) && shape->tiles <= 1)
        return ZR_OK;
    zr_result result = zr_transformer_open(&out->transformer, &dense, NULL, engine->options.host_arena);
    out->parts = (struct zr_state_parts){.whole = &out->transformer.model.list, .comm = comm};
    out->given = &out->parts;
    return result;
}

void zr_whole_close(struct zr_whole *whole)
{
    zr_transformer_close(&whole->transformer);
}
