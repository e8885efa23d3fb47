/* mesh.h: the ranks of a run as data x tensor ranks, tensor fastest: rank r of the world has tensor rank
 * r % tensor and data rank r / tensor. Ranks of one tensor group hold parts of the same tensors and see the
 * same batch; ranks of one data group hold the same parts and see different batches. */
#ifndef ZR_MESH_H
#define ZR_MESH_H

#include "zero/comm/zr_comm.h"

struct zr_mesh_shape {
    unsigned data, tensor; /* at least 1 each */
};

struct zr_mesh_place {
    unsigned data, tensor;
};
static inline struct zr_mesh_place zr_mesh_place_of(struct zr_mesh_shape shape, unsigned rank)
{
    return (struct zr_mesh_place){.data = rank / shape.tensor, .tensor = rank % shape.tensor};
}

/* This rank's communicators. */
struct zr_mesh {
    zr_comm *world;  /* borrowed */
    zr_comm *data;   /* the world itself where there is one tensor rank */
    zr_comm *tensor; /* NULL: one tensor rank */
};

/* One slot of the world's ring: the groups carry the data of a mesh, the world host messages. */
size_t zr_mesh_world_bucket_bytes(struct zr_mesh_shape shape, size_t bucket_bytes);

/* Makes the groups, with slots of bucket_bytes. Collective over the world, of data x tensor ranks; failures
 * are those of zr_comm_group(). */
zr_result zr_mesh_open(struct zr_mesh *out, zr_comm *world, struct zr_mesh_shape shape, size_t bucket_bytes);
/* Ends the groups; the world stays. A mesh of zeros is fine. */
zr_result zr_mesh_close(struct zr_mesh *mesh);

/* The counters of the world and of both groups, added up. */
void zr_mesh_counters_get(const struct zr_mesh *mesh, struct zr_comm_counters *out);

#endif
