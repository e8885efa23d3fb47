/* mesh.c: the groups of a mesh; see mesh.h. */
#include "zero/comm/mesh.h"

#include <string.h>

#include "zero/comm/calls.h"
#include "zero/comm/take.h"

size_t zr_mesh_world_bucket_bytes(struct zr_mesh_shape shape, size_t bucket_bytes)
{
    return shape.tensor * shape.pipeline > 1 ? ZR_COMM_LINE_BYTES : bucket_bytes;
}

/* `count` ranks from `first` on, `stride` apart. */
struct row {
    unsigned first, stride, count;
};

static zr_result open_group(zr_comm **out, zr_comm *world, struct row row, size_t bucket_bytes)
{
    unsigned *ranks;
    zr_result result =
        zr_take(world->options.host_arena, ZR_TAG_OTHER, row.count, sizeof *ranks, (void **)&ranks);
    if (result != ZR_OK)
        return result;
    for (unsigned i = 0; i < row.count; i++)
        ranks[i] = row.first + i * row.stride;
    result = zr_comm_split(out, world, ranks, row.count, bucket_bytes);
    zr_drop(world->options.host_arena, &ranks);
    return result;
}

zr_result zr_mesh_open(struct zr_mesh *out, zr_comm *world, struct zr_mesh_shape shape, size_t bucket_bytes)
{
    unsigned rank = zr_comm_rank(world), shards = zr_mesh_shards(shape),
             layer = shards * shape.tensor; /* ranks of a pipeline rank */
    struct zr_mesh_place place = zr_mesh_place_of(shape, rank);
    const struct row data = {place.pipeline * layer + place.tensor, shape.tensor, shards},
                     tensor = {rank - place.tensor, 1, shape.tensor},
                     ring = {rank - place.context * shape.tensor, shape.tensor, shape.context},
                     pipeline = {rank % layer, layer, shape.pipeline};
    zr_result result = ZR_OK;
    *out = (struct zr_mesh){.world = world};
    zr_assert(zr_comm_world(world) == zr_mesh_world(shape));
    if (shards == zr_mesh_world(shape))
        out->data = world;
    else
        result = open_group(&out->data, world, data, bucket_bytes);
    if (result == ZR_OK && shape.tensor > 1)
        result = open_group(&out->tensor, world, tensor, bucket_bytes);
    if (result == ZR_OK && shape.context > 1)
        result = open_group(&out->ring, world, ring, bucket_bytes);
    if (result == ZR_OK && shape.pipeline > 1)
        result = open_group(&out->pipeline, world, pipeline, ZR_COMM_LINE_BYTES);
    if (out->data != world)
        zr_calls_name(out->data, "data");
    zr_calls_name(out->tensor, "tensor");
    zr_calls_name(out->ring, "ring");
    zr_calls_name(out->pipeline, "pipeline");
    if (result != ZR_OK)
        zr_mesh_close(out);
    return result;
}

zr_result zr_mesh_close(struct zr_mesh *mesh)
{
    zr_result pipeline = zr_comm_destroy(mesh->pipeline), ring = zr_comm_destroy(mesh->ring),
              tensor = zr_comm_destroy(mesh->tensor),
              data = mesh->data == mesh->world ? ZR_OK : zr_comm_destroy(mesh->data);
    *mesh = (struct zr_mesh){.world = mesh->world};
    return pipeline != ZR_OK ? pipeline : ring != ZR_OK ? ring : tensor != ZR_OK ? tensor : data;
}

void zr_comm_counters_add(zr_comm *comm, struct zr_comm_counters *sum)
{
    struct zr_comm_counters more;
    if (!comm)
        return;
    zr_comm_counters_get(comm, &more);
    sum->sent_elements += more.sent_elements;
    sum->sent_bytes += more.sent_bytes;
    sum->received_bytes += more.received_bytes;
    sum->operations_count += more.operations_count;
    sum->busy_ns += more.busy_ns;
    sum->exposed_ns += more.exposed_ns;
    for (unsigned kind = 0; kind < ZR_COMM_KIND_COUNT; kind++) {
        sum->by_kind[kind].calls_count += more.by_kind[kind].calls_count;
        sum->by_kind[kind].sent_bytes += more.by_kind[kind].sent_bytes;
        sum->by_kind[kind].received_bytes += more.by_kind[kind].received_bytes;
    }
}

void zr_mesh_counters_get(const struct zr_mesh *mesh, struct zr_comm_counters *out)
{
    memset(out, 0, sizeof *out);
    zr_comm_counters_add(mesh->world, out);
    if (mesh->data != mesh->world)
        zr_comm_counters_add(mesh->data, out);
    zr_comm_counters_add(mesh->tensor, out);
    zr_comm_counters_add(mesh->ring, out);
    zr_comm_counters_add(mesh->pipeline, out);
}
