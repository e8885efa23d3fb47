/* mesh.h: the ranks of a run as data x tensor x pipeline ranks, tensor fastest, then data. Ranks of one
 * tensor group hold parts of the same tensors and see the same batch; ranks of one data group hold the same
 * parts and see different batches; ranks of one pipeline group hold different layers, and the same batch goes
 * through them. */
#ifndef ZR_MESH_H
#define ZR_MESH_H

#include "zero/comm/zr_comm.h"

struct zr_mesh_shape {
    unsigned data, tensor, pipeline; /* at least 1 each */
};
static inline unsigned zr_mesh_world(struct zr_mesh_shape shape)
{
    return shape.data * shape.tensor * shape.pipeline;
}

struct zr_mesh_place {
    unsigned data, tensor, pipeline;
};
static inline struct zr_mesh_place zr_mesh_place_of(struct zr_mesh_shape shape, unsigned rank)
{
    return (struct zr_mesh_place){.data = rank / shape.tensor % shape.data,
                                  .tensor = rank % shape.tensor,
                                  .pipeline = rank / (shape.tensor * shape.data)};
}
static inline unsigned zr_mesh_rank(struct zr_mesh_shape shape, struct zr_mesh_place place)
{
    return (place.pipeline * shape.data + place.data) * shape.tensor + place.tensor;
}

/* This rank's communicators. */
struct zr_mesh {
    zr_comm *world;    /* borrowed */
    zr_comm *data;     /* the world itself where it has data ranks alone */
    zr_comm *tensor;   /* NULL: one tensor rank */
    zr_comm *pipeline; /* for host messages, and groups of it for data; NULL: one pipeline rank */
};

/* One slot of the world's ring: the groups carry the data of a mesh, the world host messages. */
size_t zr_mesh_world_bucket_bytes(struct zr_mesh_shape shape, size_t bucket_bytes);

/* Makes the groups, with slots of bucket_bytes. Collective over the world, of as many ranks as the mesh;
 * failures are those of zr_comm_group(). */
zr_result zr_mesh_open(struct zr_mesh *out, zr_comm *world, struct zr_mesh_shape shape, size_t bucket_bytes);
/* Ends the groups; the world stays. A mesh of zeros is fine. */
zr_result zr_mesh_close(struct zr_mesh *mesh);

/* Adds a communicator's counters to *sum; of NULL nothing. */
void zr_comm_counters_add(zr_comm *comm, struct zr_comm_counters *sum);
/* The counters of the world and of its groups, added up. */
void zr_mesh_counters_get(const struct zr_mesh *mesh, struct zr_comm_counters *out);

#endif
