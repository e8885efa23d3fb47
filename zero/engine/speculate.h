/* speculate.h: the speculative update (SuperOffload): a thread of its own updates a unit's masters, momentum
 * and variance as soon as its gradients are on the host, before the norm is known, as if nothing had to be
 * clipped or skipped. The old values are in a log. If the norm says otherwise they come back from it, and the
 * update is made again with the factor, or not at all; else the parameters follow. Either way the bits are
 * those of an engine that waits for the norm. Private to engine/.
 *
 * Of state in memory the log has an arena's block of its own, tag offload on the host: of each unit in it 4
 * bytes for each element that the rank updates, times 3 (AdamW) or 2 (SGD). Units that are offloaded come
 * into it from the last on, as backward goes, as long as zr_offload.speculative_bytes allow; the others wait
 * for the norm. So do units that ranks of a pipeline share, whose gradients are added up at the end of a
 * step. By the clock of a rehearsal a unit takes the time of its copy to the log, at the host's bandwidth,
 * behind what the caller computes; the update itself takes none, here or elsewhere. */
#ifndef ZR_ENGINE_SPECULATE_H
#define ZR_ENGINE_SPECULATE_H

#include "zero/engine/engine.h"

/* Of state in an offload file there is no log. Units lie in the file twice, as long as the bytes allow: the
 * update reads a unit from its current place and writes it to the other, which becomes the current one when
 * the norm allows it. Its parameters are written at once; nothing reads them before the step's end, and where
 * the update was wrong they are written again from the current place. Parameters that belong in a file wait
 * for the norm in the arena, 2 or 4 bytes for each of this rank's (tag param). The state of the first units
 * is read from the step's beginning on, in the order in which the last step's backward ended them, that of
 * others as buffers get free; where backward has another order, the rest of the step waits for the norm. */

zr_result zr_engine_speculation_open(struct zr_engine *engine);
void zr_engine_speculation_close(struct zr_engine *engine);
/* Waits for a unit's update, if one is under way / for all of state in a file: who reads gradients again. */
zr_result zr_engine_speculation_await(struct zr_engine *engine, size_t unit);
zr_result zr_engine_speculation_await_filed(struct zr_engine *engine);
/* A unit's reduction has ended: if its gradients are the step's and it is in the log, its update begins. */
zr_result zr_engine_speculation_begin(struct zr_engine *engine, size_t unit);
/* The step's update is found, NULL: there is none. What was begun ends, and stays if it was the same; else it
 * is rolled back, and *rolled_back is true. */
zr_result zr_engine_speculation_settle(struct zr_engine *engine, const struct zr_engine_update *update,
                                       bool *rolled_back);
/* The update of a unit of state in a file stays: its parameters go to their file, if that is where they
 * belong. */
zr_result zr_engine_speculation_publish(struct zr_engine *engine, size_t unit);
/* Whether a unit has its update. */
bool zr_engine_speculation_holds(const struct zr_engine *engine, size_t unit);
void zr_engine_speculation_forget(struct zr_engine *engine, size_t unit);

#endif
