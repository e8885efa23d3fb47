/* parameter_tier.h: where a unit's parameters are between uses, as operations: on the device with or without
 * an offloaded optimizer, on the host, or in an offload file. placement.c chooses a unit's tier once. Private
 * to engine/. */
#ifndef ZR_ENGINE_PARAMETER_TIER_H
#define ZR_ENGINE_PARAMETER_TIER_H

#include "zero/engine/engine.h"

/* A range of a rank's part of a unit, whose parameters an update writes. */
struct zr_window {
    size_t from, count;       /* elements, relative to owned.from */
    struct zr_numbers values; /* parameters from element `from` on; NULL: the masters or a copy of them */
    void *slot;               /* slot of a shard in an offload file; NULL: not in a file */
    bool stale;               /* `values` are reused memory: padding must be zeroed */
};

/* Source of a gather, and the event that the gather waits for. */
struct zr_parameter_source {
    void *shard;
    const struct zr_comm_before *before;
};

struct zr_parameter_tier {
    bool on_host; /* a gather copies from the host, so that its bytes count as moved */
    bool in_file; /* not in the pool of a tier */
    /* This rank's shard; from a file, starts to read it. */
    zr_result (*get)(struct zr_engine *engine, size_t unit, struct zr_parameter_source *out);
    /* Opens the window that begins at out->from, which is 0 or the end of the previous window, and extends to
     * the end of `owned` or less; NULL: the parameters are the masters / brings its new parameters to their
     * place; NULL: they are there. */
    zr_result (*open)(struct zr_engine *engine, size_t unit, const struct zr_owned *owned,
                      struct zr_window *out);
    zr_result (*close)(struct zr_engine *engine, size_t unit, const struct zr_owned *owned,
                       const struct zr_window *window);
    /* Starts to copy a whole shard of new parameters from host memory. */
    zr_result (*put)(struct zr_engine *engine, size_t unit, const void *from);
    /* Between steps, of a frozen unit: this rank's shard in memory / the end of its use; `changed`: it is
     * written. NULL: it is in memory. */
    zr_result (*take)(struct zr_engine *engine, size_t unit, void **out);
    zr_result (*give)(struct zr_engine *engine, size_t unit, bool changed);
    /* After a speculative update of state in a file: writes the parameters that the norm confirms, which are
     * at `from`; NULL: they are in place / writes the old parameters again; NULL: they are in place. */
    zr_result (*confirm)(struct zr_engine *engine, size_t unit, const void *from);
    zr_result (*restore)(struct zr_engine *engine, size_t unit);
};

/* In device memory where the update writes them, as the masters or beside them; fp32 beside fp32 masters, as
 * a copy; in device memory, copied from the update on the host; as shards in host memory; as shards in an
 * offload file (parameter_file.c). */
extern const struct zr_parameter_tier zr_parameters_masters, zr_parameters_in_place, zr_parameters_copied,
    zr_parameters_uploaded, zr_parameters_hosted, zr_parameters_filed;

/* ---- parameter_file.c ----------------------------------------------------------------------------------
 *
 * Memory has one slot of the size of the largest shard for each unit that may be gathered at a time. A gather
 * takes a slot and starts to read; the communicator waits for the read before it starts the gather, so the
 * caller is not blocked. The slot is free when the gather has ended. The update writes a shard to a slot and
 * the slot to the file, overlapping with the update of the next unit. Slots are used round-robin. One thread
 * uses the file, except for the waits of gathers. */

/* Opens the file and allocates slots; does nothing without units in the file. */
zr_result zr_engine_parameter_file_open(struct zr_engine *engine);
/* No gather may be in progress. */
void zr_engine_parameter_file_close(struct zr_engine *engine);

/* Waits until a shard has been read / frees its slot after the gather. Both do nothing for units that are not
 * in the file. */
zr_result zr_engine_parameter_await(struct zr_engine *engine, size_t unit);
void zr_engine_parameter_let_go(struct zr_engine *engine, size_t unit);

#endif
