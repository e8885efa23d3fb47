/* speculate.h: the speculative update (SuperOffload): a thread updates a unit's masters, momentum and
 * variance as soon as its gradients are on the host, before the norm is known, assuming that nothing is
 * clipped or skipped. A log keeps the old values. If the assumption was wrong, the old values are restored
 * and the update is repeated with clipping or skipped. In both cases the bits are those of an engine that
 * waits for the norm. Private to engine/.
 *
 * For state in memory the log is a block of the host arena, tag offload: 4 bytes times 3 (AdamW) or 2 (SGD)
 * for each element that the rank updates. Units are logged from the last one on, the order of backward, up to
 * zr_offload.speculative_bytes; other units wait for the norm. Units shared by pipeline ranks also wait,
 * because their gradients are summed at the end of the step. On the simulated clock a unit takes the time of
 * its copy to the log at the host's bandwidth, concurrently with the caller; the update itself takes no time.
 */
#ifndef ZR_ENGINE_SPECULATE_H
#define ZR_ENGINE_SPECULATE_H

#include "zero/engine/engine.h"

/* State in an offload file needs no log. Up to the byte limit, units have two places in the file: the update
 * reads a unit from its current place and writes the other one, which becomes current when the norm confirms
 * the update. The new parameters are written immediately, because nothing reads them before the end of the
 * step; after a wrong update they are written again from the current place. Parameters that are kept in a
 * file wait for the norm in the arena (tag param; 2 or 4 bytes per element of this rank). State is read from
 * the beginning of the step on, in the order in which the last step's backward finished the units, as buffers
 * become free. If backward has another order, the rest of the step waits for the norm. */

zr_result zr_engine_speculation_open(struct zr_engine *engine);
void zr_engine_speculation_close(struct zr_engine *engine);
/* Wait for a unit's update, if any / for all updates of state in a file. */
zr_result zr_engine_speculation_await(struct zr_engine *engine, size_t unit);
zr_result zr_engine_speculation_await_filed(struct zr_engine *engine);
/* After a unit's reduction: starts its update if its gradients are complete and the unit is logged. */
zr_result zr_engine_speculation_begin(struct zr_engine *engine, size_t unit);
/* The norm is known. Waits for all updates. If `update` (NULL: the step is skipped) differs from the assumed
 * one, rolls them back and sets *rolled_back. */
zr_result zr_engine_speculation_settle(struct zr_engine *engine, const struct zr_engine_update *update,
                                       bool *rolled_back);
/* Confirms the update of a unit of state in a file; writes its parameters to their file, if any. */
zr_result zr_engine_speculation_publish(struct zr_engine *engine, size_t unit);
/* Whether a unit has been updated. */
bool zr_engine_speculation_holds(const struct zr_engine *engine, size_t unit);
void zr_engine_speculation_forget(struct zr_engine *engine, size_t unit);

#endif
