/* compression.h: which of an engine's operations send packed numbers (zero/compress/), those operations, and
 * the copy of sharded parameters that each node keeps. Private to engine/.
 *
 * Gradients in two hops. Rank m L + l is rank l of node m, of M nodes of L ranks. In the first hop rank l of
 * a node adds its node's gradients for rank l of each node, in the second one those of all nodes for itself:
 * a rank sends (L - 1) M + (M - 1) packed shards, of which M - 1 leave the node. The second hop runs within
 * the first one, in the thread of the node's communicator, whose stream waits for it on a GPU.
 *
 * Secondary shards. The gather of a unit over all ranks copies this rank's part of the whole unit when the
 * unit is complete, in the thread or the stream that gathers. Later gathers of the unit wait for that gather,
 * because the unit is dropped in between. Before parameters change, all parts become invalid. */
#ifndef ZR_ENGINE_COMPRESSION_H
#define ZR_ENGINE_COMPRESSION_H

#include "zero/engine/engine.h"

/* Operations of a unit. */
struct zr_unit_compression {
    struct zr_engine *engine;
    struct zr_compressed gather, sum, second; /* second: the hop between nodes */
    struct zr_largest_sum largest;
    zr_ticket second_ticket;
    struct zr_comm_work hop;  /* runs the second hop */
    struct zr_comm_work keep; /* copies to `secondary` */
    const char *whole;        /* gathered block of `keep` */
    void *secondary;          /* this rank's part of the node's copy; NULL: none */
    size_t secondary_bytes;
    bool has_no_errors; /* they were added to a sum in full precision */
    size_t nonfinite;   /* first infinity or NaN of this rank's gradients in this step; SIZE_MAX: none */
    bool has_secondary; /* a gather since the last update has written it, or will */
};

/* Whether a kind, or some kind, is sent packed. */
bool zr_engine_packs_kind(const struct zr_engine *engine, enum zr_compressed_kind kind);
bool zr_engine_packs(const struct zr_engine *engine);
/* Whether the device tier has masters separate from the parameters: in two bytes, and if parameters arrive
 * packed. */
bool zr_engine_keeps_exact_masters(const struct zr_engine *engine);

/* After placement: creates the nodes' communicators and allocates staging and secondary shards. Does nothing
 * if nothing is packed or kept by nodes. Collective. */
zr_result zr_engine_compression_open(struct zr_engine *engine);
/* After all operations have ended. */
void zr_engine_compression_close(struct zr_engine *engine);

/* Gather a unit's shards of parameters / sum the ranks' gradients to this rank's shard, or in place on all
 * ranks, by the engine's method or as they are; the ticket is the unit's parameter_ticket or reduce_ticket.
 */
zr_result zr_engine_gather_shards(struct zr_engine *engine, size_t unit, const struct zr_all_gather *gather);
/* Whether parameters are no rounded masters, but what all ranks have received of differences / whether this
 * step sends a difference / adds the packed difference of the owners' masters to a unit's parameters on all
 * ranks. */
bool zr_engine_keeps_replicas(const struct zr_engine *engine);
bool zr_engine_sends_differences(const struct zr_engine *engine);
zr_result zr_engine_send_difference(struct zr_engine *engine, size_t unit);
zr_result zr_engine_sum_shards(struct zr_engine *engine, size_t unit, const struct zr_reduce_scatter *sum);
/* The first element of this rank's gradients that is not finite, and made a packed sum so; SIZE_MAX: none. */
size_t zr_engine_packed_nonfinite(const struct zr_engine *engine, size_t unit);
zr_result zr_engine_sum_whole(struct zr_engine *engine, size_t unit, const struct zr_all_reduce *sum);
/* Wait for these operations. */
zr_result zr_engine_await_shards(struct zr_engine *engine, size_t unit);
zr_result zr_engine_await_sum(struct zr_engine *engine, size_t unit);

/* Whether a unit's secondary shards are valid / gathers them within the node, to the unit's gathered block.
 */
bool zr_engine_has_secondary(const struct zr_engine *engine, size_t unit);
zr_result zr_engine_gather_secondary(struct zr_engine *engine, size_t unit);
/* Before parameters change. */
void zr_engine_forget_secondary(struct zr_engine *engine);

/* Adds the counters of the nodes' communicators. */
void zr_engine_count_nodes(const struct zr_engine *engine, struct zr_comm_counters *sum);

#endif
