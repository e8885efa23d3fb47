/* whole.h: the list of a bundled model's whole tensors, for engines that store parts of them. */
#ifndef ZR_WHOLE_H
#define ZR_WHOLE_H

#include "zero/checkpoint/state.h"
#include "zero/model/transformer.h"

/* Do not move it. */
struct zr_whole {
    struct zr_transformer transformer;
    struct zr_state_parts parts;
    const struct zr_state_parts *given; /* for zr_state_write() and _read(): NULL where the engine has all */
};

/* `comm` has all ranks of the run. Records come from the engine's host arena until zr_whole_close(), which
 * follows a failure too. */
zr_result zr_whole_open(struct zr_whole *out, zr_engine *engine, const struct zr_shape *shape, zr_comm *comm);
void zr_whole_close(struct zr_whole *whole);

#endif
