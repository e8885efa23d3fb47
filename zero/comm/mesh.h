/* mesh.h: the ranks of a run: their mesh, their agreement, and their start by MPI. Private to zero/.
 *
 * The mesh is data x context x tensor x pipeline x groups; tensor varies fastest, then context, then data. A
 * tensor group holds parts of the same tensors and sees the same tokens. A ring of context ranks holds the
 * same parts and divides the tokens of each sequence. Rings see different batches; ZeRO shards and sums of
 * gradients run over all ranks of all rings with the same parts. A pipeline group holds different layers, and
 * the same batch passes through them. Groups train apart, each on a mesh of its own, and exchange
 * outer gradients every few steps (zero/engine/outer.h). */
#ifndef ZR_MESH_H
#define ZR_MESH_H

#include "zero/comm/zr_comm.h"

struct zr_mesh_shape {
    unsigned data, tensor, pipeline; /* at least 1 each */
    unsigned context;                /* 0: 1 */
    unsigned groups;                 /* 0: 1 */
    bool apart;                      /* groups exchange nothing: there is no outer communicator */
};
static inline unsigned zr_mesh_context(struct zr_mesh_shape shape)
{
    return shape.context > 1 ? shape.context : 1;
}
/* Ranks with the same parts, which ZeRO divides state among. */
static inline unsigned zr_mesh_shards(struct zr_mesh_shape shape)
{
    return shape.data * zr_mesh_context(shape);
}
static inline unsigned zr_mesh_groups(struct zr_mesh_shape shape)
{
    return shape.groups > 1 ? shape.groups : 1;
}
static inline unsigned zr_mesh_group_ranks(struct zr_mesh_shape shape)
{
    return zr_mesh_shards(shape) * shape.tensor * shape.pipeline;
}
static inline unsigned zr_mesh_world(struct zr_mesh_shape shape)
{
    return zr_mesh_group_ranks(shape) * zr_mesh_groups(shape);
}

struct zr_mesh_place {
    unsigned data, tensor, pipeline, context, group;
};
static inline struct zr_mesh_place zr_mesh_place_of(struct zr_mesh_shape shape, unsigned rank)
{
    unsigned shard = rank / shape.tensor % zr_mesh_shards(shape),
             in_group = rank % zr_mesh_group_ranks(shape);
    return (struct zr_mesh_place){.data = shard / zr_mesh_context(shape),
                                  .tensor = rank % shape.tensor,
                                  .pipeline = in_group / (shape.tensor * zr_mesh_shards(shape)),
                                  .context = shard % zr_mesh_context(shape),
                                  .group = rank / zr_mesh_group_ranks(shape)};
}
static inline unsigned zr_mesh_rank(struct zr_mesh_shape shape, struct zr_mesh_place place)
{
    unsigned shard = place.data * zr_mesh_context(shape) + place.context;
    return place.group * zr_mesh_group_ranks(shape) +
           (place.pipeline * zr_mesh_shards(shape) + shard) * shape.tensor + place.tensor;
}

/* Communicators of this rank. */
struct zr_mesh {
    zr_comm *world;  /* borrowed */
    zr_comm *group;  /* the rank's group; the world itself if there is one group */
    zr_comm *outer;  /* the ranks at the same place of all groups, in the order of groups; NULL: one group, or
                      * apart.  Not in zr_mesh_counters_get() */
    zr_comm *data;   /* the shards; the group itself if these are all of its ranks */
    zr_comm *tensor; /* NULL: one tensor rank */
    zr_comm *ring;   /* NULL: one context rank */
    zr_comm *pipeline; /* for host messages, and parent of the groups that carry data; NULL: one pipeline
                        * rank */
};

/* Slot size of the world's ring: the communicators below carry data, the world carries host messages. */
size_t zr_mesh_world_bucket_bytes(struct zr_mesh_shape shape, size_t bucket_bytes);

/* Creates the groups with slots of bucket_bytes. Collective over the world, whose size equals the mesh.
 * Errors: see zr_comm_group(). */
zr_result zr_mesh_open(struct zr_mesh *out, zr_comm *world, struct zr_mesh_shape shape, size_t bucket_bytes);
/* Destroys the groups, not the world. Accepts a zeroed mesh. */
zr_result zr_mesh_close(struct zr_mesh *mesh);

/* Adds a communicator's counters to *sum; NULL: no effect. */
void zr_comm_counters_add(zr_comm *comm, struct zr_comm_counters *sum);
/* Sum of the counters of the world and its groups. */
void zr_mesh_counters_get(const struct zr_mesh *mesh, struct zr_comm_counters *out);

/* ---- Agreement on a result (status.c) ------------------------------------------------------------------ */

/* A failure of one rank, such as a full disk or a damaged file, must not leave the others waiting, so all
 * local work ends with zr_comm_all_status(). */

/* Exchanges results. Returns the same on all ranks: ZR_OK, or the first failing rank's result and message,
 * prefixed with its number unless it is rank 0. Collective; allocates no memory. */
zr_result zr_comm_all_status(zr_comm *comm, zr_result mine);

/* ---- A rank of a run over messages (joined.c) ---------------------------------------------------------- */

struct zr_local_world;
struct zr_start;

/* Run a rank, or all ranks, for struct zr_start_run, and return the exit code: a rank that an MPI launcher
 * has started (mpi_start.c); over TCP (tcp_start.c) the ranks forked here, or one rank of those that meet at
 * options->rendezvous. A process can join a run once. */
int zr_mpi_run(const struct zr_launch_options *options, const struct zr_start *start);
int zr_tcp_run(const struct zr_launch_options *options, const struct zr_start *start);
/* Checks that ranks started in this way can meet over TCP: ZR_ERR_INVALID, with what is missing. */
zr_result zr_tcp_check(const struct zr_start *start, bool rendezvous);
/* Whether this process has joined a run / creates a communicator over it, one at a time. Collective. */
bool zr_message_joined(void);
/* Ranks of each host, after the creation; 0: hosts do not have equal numbers of consecutive ranks, or no run
 * over messages. */
unsigned zr_message_host_ranks(void);
zr_result zr_comm_message_create(zr_comm **out, const struct zr_comm_options *options,
                                 struct zr_local_world *local, unsigned rank);

#endif
