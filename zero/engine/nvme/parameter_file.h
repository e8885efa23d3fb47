/* parameter_file.h: shards of parameters that lie in an offload file of their own until they are used.
 * Private to engine/.
 *
 * Of an engine with offload.parameters_file: the units that zr_engine_hosts_parameters() names. In memory are
 * slots of the largest shard, as many as units may be gathered at a time. A gather takes a slot and starts to
 * read; what carries the gather out waits for that before it starts, so that the caller computes behind
 * both; the slot is free when the gather has ended. The update writes a shard into a slot and the slot into
 * the file, behind the update of the next unit. Slots are taken by turns. One thread uses it, but for the
 * waits of gathers. */
#ifndef ZR_ENGINE_PARAMETER_FILE_H
#define ZR_ENGINE_PARAMETER_FILE_H

#include "zero/engine/engine.h"

/* The file and its slots; nothing where no unit is in it. */
zr_result zr_engine_parameter_file_open(struct zr_engine *engine);
/* When no gather is under way. */
void zr_engine_parameter_file_close(struct zr_engine *engine);

/* Of a unit that is not in the file these do nothing. Starts to read a shard, behind what was written of it;
 * *out is what the gather reads, and waits for. */
struct zr_parameter_source {
    void *shard;
    const struct zr_comm_before *before;
};
zr_result zr_engine_parameter_read(struct zr_engine *engine, size_t unit, struct zr_parameter_source *out);
/* Waits until it is read. Its slot stays until the gather has ended: */
zr_result zr_engine_parameter_await(struct zr_engine *engine, size_t unit);
void zr_engine_parameter_let_go(struct zr_engine *engine, size_t unit);
/* A slot for a shard that is about to change / has. */
zr_result zr_engine_parameter_slot(struct zr_engine *engine, size_t unit, void **out);
zr_result zr_engine_parameter_write(struct zr_engine *engine, size_t unit);
/* Both, of one that `from` has. */
zr_result zr_engine_parameter_put(struct zr_engine *engine, size_t unit, const void *from);

#endif
