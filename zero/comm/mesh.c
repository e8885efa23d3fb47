/* mesh.c: the groups of a mesh; see mesh.h. */
#include "zero/comm/mesh.h"

#include <string.h>

#include "zero/comm/comm.h"
#include "zero/comm/take.h"

size_t zr_mesh_world_bucket_bytes(struct zr_mesh_shape shape, size_t bucket_bytes)
{
    return shape.tensor > 1 ? ZR_COMM_LINE_BYTES : bucket_bytes;
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
    result = zr_comm_group(out, world, ranks, row.count, bucket_bytes);
    zr_drop(world->options.host_arena, &ranks);
    return result;
}

zr_result zr_mesh_open(struct zr_mesh *out, zr_comm *world, struct zr_mesh_shape shape, size_t bucket_bytes)
{
    unsigned rank = zr_comm_rank(world);
    *out = (struct zr_mesh){.world = world};
    zr_assert(zr_comm_world(world) == shape.data * shape.tensor);
    if (shape.tensor == 1) {
        out->data = world;
        return ZR_OK;
    }
    struct zr_mesh_place place = zr_mesh_place_of(shape, rank);
    zr_result result =
        open_group(&out->data, world, (struct row){place.tensor, shape.tensor, shape.data}, bucket_bytes);
    if (result == ZR_OK)
        result = open_group(&out->tensor, world, (struct row){place.data * shape.tensor, 1, shape.tensor},
                            bucket_bytes);
    if (result != ZR_OK)
        zr_mesh_close(out);
    return result;
}

zr_result zr_mesh_close(struct zr_mesh *mesh)
{
    zr_result tensor = zr_comm_destroy(mesh->tensor),
              data = mesh->data == mesh->world ? ZR_OK : zr_comm_destroy(mesh->data);
    *mesh = (struct zr_mesh){.world = mesh->world};
    return tensor != ZR_OK ? tensor : data;
}

void zr_mesh_counters_get(const struct zr_mesh *mesh, struct zr_comm_counters *out)
{
    zr_comm *const groups[] = {mesh->tensor, mesh->data != mesh->world ? mesh->data : NULL};
    zr_comm_counters_get(mesh->world, out);
    for (unsigned i = 0; i < sizeof groups / sizeof *groups; i++) {
        struct zr_comm_counters more;
        if (!groups[i])
            continue;
        zr_comm_counters_get(groups[i], &more);
        out->sent_elements += more.sent_elements;
        out->received_bytes += more.received_bytes;
        out->operations_count += more.operations_count;
        out->busy_ns += more.busy_ns;
        out->exposed_ns += more.exposed_ns;
        for (unsigned kind = 0; kind < ZR_COMM_KIND_COUNT; kind++) {
            out->by_kind[kind].calls_count += more.by_kind[kind].calls_count;
            out->by_kind[kind].sent_bytes += more.by_kind[kind].sent_bytes;
            out->by_kind[kind].received_bytes += more.by_kind[kind].received_bytes;
        }
    }
}
