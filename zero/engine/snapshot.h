/* snapshot.h: a copy of the state that a rank updates, for a save that another thread writes while the next
 * steps compute (zr_engine_options.snapshots). Private to zero/. */
#ifndef ZR_ENGINE_SNAPSHOT_H
#define ZR_ENGINE_SNAPSHOT_H

#include "zero/engine/engine.h"

/* Takes the memory, tag optimizer / releases it. Both do nothing without options.snapshots. */
zr_result zr_snapshot_open(struct zr_engine *engine);
void zr_snapshot_close(struct zr_engine *engine);

/* Copies the state between two steps. *out: an engine with the state's copy and the numbers of now, owned by
 * `engine` and valid until the next snapshot. It can be saved by any one thread, which uses `comm` in place
 * of options.comm; nothing else may be done with it. Local. ZR_ERR_INVALID: within a step, or an engine
 * without snapshots. */
zr_result zr_engine_snapshot(struct zr_engine *engine, zr_comm *comm, struct zr_engine **out);

#endif
