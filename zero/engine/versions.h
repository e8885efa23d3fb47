/* versions.h: earlier versions of the parameters, for asynchronous pipelines. The newest version is in the
 * parameters' own place, where updates, saves and evaluations find it. Before an update changes it, a copy
 * replaces the oldest of the stashed versions, whose last reader has run. Only whole parameters on the device
 * have versions, so a rank's copy needs no communication. */
#ifndef ZR_ENGINE_VERSIONS_H
#define ZR_ENGINE_VERSIONS_H

#include "zero/engine/engine.h"

/* Allocates options.stashed_versions pools, tag param; zr_engine_destroy() frees them. */
zr_result zr_engine_versions_open(struct zr_engine *engine);
/* ZR_ACTION_STASH: replaces the oldest version by the newest. Waits for gathers of new parameters. */
zr_result zr_engine_versions_stash(struct zr_engine *engine);
/* Between steps, with a drained pipeline: makes all versions the newest. */
zr_result zr_engine_versions_restart(struct zr_engine *engine);
/* A unit's parameters in the oldest version; `newest`: those that zr_engine_gather() has returned. The same
 * without stashed versions. Valid until the next ZR_ACTION_STASH. */
const void *zr_engine_versions_oldest(const struct zr_engine *engine, const void *newest);

#endif
