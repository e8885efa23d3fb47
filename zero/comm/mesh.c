/* mesh.c: the groups of a mesh; see mesh.h. */
#include "zero/comm/mesh.h"

#include <string.h>

#include "zero/comm/calls.h"
#include "zero/comm/take.h"

size_t zr_mesh_world_bucket_bytes(struct zr_mesh_shape shape, size_t bucket_bytes)
{
    return shape.tensor * shape.pipeline * zr_mesh_groups(shape) > 1 ? ZR_COMM_LINE_BYTES : bucket_bytes;
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

/* The least distance at which each rank of a row has a neighbour on another host; 1 if there is none. */
static unsigned distance_of(struct row row)
{
    unsigned each = zr_message_host_ranks();
    for (unsigned distance = 1; each > 0 && distance < row.count; distance++) {
        unsigned i = 0;
        while (i < row.count && (row.first + i * row.stride) / each !=
                                    (row.first + (i + distance) % row.count * row.stride) / each)
            i++;
        if (i == row.count)
            return distance;
    }
    return 1;
}

zr_result zr_mesh_open(struct zr_mesh *out, zr_comm *world, struct zr_mesh_shape shape, size_t bucket_bytes)
{
    unsigned rank = zr_comm_rank(world), shards = zr_mesh_shards(shape), ranks = zr_mesh_group_ranks(shape),
             layer = shards * shape.tensor; /* ranks of a pipeline rank */
    struct zr_mesh_place place = zr_mesh_place_of(shape, rank);
    const unsigned first = place.group * ranks;
    const struct row group = {first, 1, ranks}, outer = {rank - first, ranks, zr_mesh_groups(shape)},
                     data = {first + place.pipeline * layer + place.tensor, shape.tensor, shards},
                     tensor = {rank - place.tensor, 1, shape.tensor},
                     ring = {rank - place.context * shape.tensor, shape.tensor, shape.context},
                     pipeline = {first + (rank - first) % layer, layer, shape.pipeline};
    zr_result result = ZR_OK;
    *out = (struct zr_mesh){.world = world, .group = world};
    zr_assert(zr_comm_world(world) == zr_mesh_world(shape));
    if (zr_mesh_groups(shape) > 1) {
        out->group = NULL;
        result = open_group(&out->group, world, group,
                            shards == ranks ? bucket_bytes : zr_mesh_world_bucket_bytes(shape, bucket_bytes));
        if (result == ZR_OK && !shape.apart)
            result = open_group(&out->outer, world, outer, bucket_bytes);
        zr_calls_name(out->group, "group");
        zr_calls_name(out->outer, "outer");
    }
    if (shards == ranks)
        out->data = out->group;
    else if (result == ZR_OK)
        result = open_group(&out->data, world, data, bucket_bytes);
    if (result == ZR_OK && shape.tensor > 1)
        result = open_group(&out->tensor, world, tensor, bucket_bytes);
    if (result == ZR_OK && shape.context > 1)
        result = open_group(&out->ring, world, ring, bucket_bytes);
    if (result == ZR_OK && shape.pipeline > 1)
        result = open_group(&out->pipeline, world, pipeline, ZR_COMM_LINE_BYTES);
    if (result == ZR_OK && shape.saves)
        result = open_group(&out->saves, world, (struct row){0, 1, zr_comm_world(world)}, ZR_COMM_LINE_BYTES);
    if (result == ZR_OK && shape.backup && shards > 1) {
        result = open_group(&out->backup, world, data, bucket_bytes);
        out->backup_distance = distance_of(data);
    }
    if (out->data != out->group)
        zr_calls_name(out->data, "data");
    zr_calls_name(out->tensor, "tensor");
    zr_calls_name(out->ring, "ring");
    zr_calls_name(out->pipeline, "pipeline");
    zr_calls_name(out->backup, "backup");
    zr_calls_name(out->saves, "saves");
    if (result != ZR_OK)
        zr_mesh_close(out);
    return result;
}

zr_result zr_mesh_close(struct zr_mesh *mesh)
{
    zr_comm *const opened[] = {mesh->saves,    mesh->backup,
                               mesh->pipeline, mesh->ring,
                               mesh->tensor,   mesh->data == mesh->group ? NULL : mesh->data,
                               mesh->outer,    mesh->group == mesh->world ? NULL : mesh->group};
    zr_result result = ZR_OK;
    for (size_t i = 0; i < sizeof opened / sizeof *opened; i++) {
        zr_result closed = zr_comm_destroy(opened[i]);
        result = result == ZR_OK ? closed : result;
    }
    *mesh = (struct zr_mesh){.world = mesh->world, .group = mesh->world};
    return result;
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
        sum->by_kind[kind].busy_ns += more.by_kind[kind].busy_ns;
        sum->by_kind[kind].sent_bytes += more.by_kind[kind].sent_bytes;
        sum->by_kind[kind].received_bytes += more.by_kind[kind].received_bytes;
    }
}

void zr_mesh_counters_get(const struct zr_mesh *mesh, struct zr_comm_counters *out)
{
    memset(out, 0, sizeof *out);
    zr_comm_counters_add(mesh->world, out);
    if (mesh->group != mesh->world)
        zr_comm_counters_add(mesh->group, out);
    if (mesh->data != mesh->group)
        zr_comm_counters_add(mesh->data, out);
    zr_comm_counters_add(mesh->tensor, out);
    zr_comm_counters_add(mesh->ring, out);
    zr_comm_counters_add(mesh->pipeline, out);
}
