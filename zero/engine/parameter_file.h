/* parameter_file.h: parameter shards in an offload file (offload.parameters_file), for the units of
 * zr_engine_hosts_parameters(). Private to engine/.
 *
 * Memory has one slot of the size of the largest shard for each unit that may be gathered at a time. A gather
 * takes a slot and starts to read; the communicator waits for the read before it starts the gather, so the
 * caller is not blocked. The slot is free when the gather has ended. The update writes a shard to a slot and
 * the slot to the file, overlapping with the update of the next unit. Slots are used round-robin. One thread
 * uses the file, except for the waits of gathers. */
#ifndef ZR_ENGINE_PARAMETER_FILE_H
#define ZR_ENGINE_PARAMETER_FILE_H

#include "zero/engine/engine.h"

/* Opens the file and allocates slots; does nothing without units in the file. */
zr_result zr_engine_parameter_file_open(struct zr_engine *engine);
/* No gather may be in progress. */
void zr_engine_parameter_file_close(struct zr_engine *engine);

/* These functions do nothing for units that are not in the file. Starts to read a shard after its pending
 * write; *out is the source of the gather and the event that the gather waits for. */
struct zr_parameter_source {
    void *shard;
    const struct zr_comm_before *before;
};
zr_result zr_engine_parameter_read(struct zr_engine *engine, size_t unit, struct zr_parameter_source *out);
/* Waits until the shard has been read / frees its slot after the gather. */
zr_result zr_engine_parameter_await(struct zr_engine *engine, size_t unit);
void zr_engine_parameter_let_go(struct zr_engine *engine, size_t unit);
/* Acquires a slot for a new shard / starts to write the slot to the file. */
zr_result zr_engine_parameter_slot(struct zr_engine *engine, size_t unit, void **out);
zr_result zr_engine_parameter_write(struct zr_engine *engine, size_t unit);
/* Copies the shard `from` into a slot and starts to write it. */
zr_result zr_engine_parameter_put(struct zr_engine *engine, size_t unit, const void *from);

#endif
