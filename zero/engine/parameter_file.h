/* parameter_file.h: the tier zr_parameters_filed: parameter shards in an offload file
 * (offload.parameters_file). Private to engine/.
 *
 * Memory has one slot of the size of the largest shard for each unit that may be gathered at a time. A gather
 * takes a slot and starts to read; the communicator waits for the read before it starts the gather, so the
 * caller is not blocked. The slot is free when the gather has ended. The update writes a shard to a slot and
 * the slot to the file, overlapping with the update of the next unit. Slots are used round-robin. One thread
 * uses the file, except for the waits of gathers. */
#ifndef ZR_ENGINE_PARAMETER_FILE_H
#define ZR_ENGINE_PARAMETER_FILE_H

#include "zero/engine/parameter_tier.h"

/* Opens the file and allocates slots; does nothing without units in the file. */
zr_result zr_engine_parameter_file_open(struct zr_engine *engine);
/* No gather may be in progress. */
void zr_engine_parameter_file_close(struct zr_engine *engine);

/* Waits until a shard has been read / frees its slot after the gather. Both do nothing for units that are not
 * in the file. */
zr_result zr_engine_parameter_await(struct zr_engine *engine, size_t unit);
void zr_engine_parameter_let_go(struct zr_engine *engine, size_t unit);

#endif
