/* whole.h: the list of a bundled model's whole tensors, for engines that have parts of them. */
#ifndef ZR_WHOLE_H
#define ZR_WHOLE_H

#include "zero/checkpoint/state.h"
#include "zero/model/transformer.h"

/* Must not be moved. */
struct zr_whole {
    struct zr_transformer transformer;
    struct zr_state_parts parts;
    const struct zr_state_parts *given; /* argument of zr_state_write() and zr_state_read(): NULL if the
                                         * engine has whole tensors */
};

/* `comm` has all ranks of the run. Records are in the engine's host arena until zr_whole_close(), which is
 * also required after a failure. */
zr_result zr_whole_open(struct zr_whole *out, zr_engine *engine, const struct zr_shape *shape, zr_comm *comm);
void zr_whole_close(struct zr_whole *whole);

#endif
