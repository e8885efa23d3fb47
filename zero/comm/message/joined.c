/* joined.c: the run over a transport that this process is a rank of: its communicators. mpi_start.c and
 * tcp_start.c join and leave. */
#include "alloc/base/error.h"
#include "zero/comm/calls.h"
#include "zero/comm/mesh.h"
#include "zero/comm/message/message.h"
#include "zero/launch/control.h"

static struct {
    struct zr_message_world world; /* valid when joined */
    bool joined;
} run;

void zr_message_join(struct zr_transport *transport)
{
    zr_message_world_open(&run.world, transport);
    run.joined = true;
}

void zr_message_leave(void)
{
    zr_message_world_close(&run.world);
    run.joined = false;
}

bool zr_message_joined(void)
{
    return run.joined;
}

unsigned zr_message_host_ranks(void)
{
    return run.joined ? run.world.host_ranks : 0;
}

/* Starts the record of a communicator's operations, for ranks that wait for this rank. */
static void follow(zr_comm *comm)
{
    unsigned ranks[ZR_MAX_WORLD];
    for (unsigned p = 0; p < comm->world; p++)
        ranks[p] = p;
    pthread_mutex_lock(&run.world.lock);
    run.world.liveness.local = comm->local;
    pthread_mutex_unlock(&run.world.lock);
    zr_calls_open(comm, 1, ranks);
    zr_calls_name(comm, "world");
}

zr_result zr_comm_message_create(zr_comm **out, const struct zr_comm_options *options,
                                 struct zr_local_world *local, unsigned rank)
{
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "zr_comm_message_create() requires out");
    *out = NULL;
    if (!run.joined)
        return zr_fail(ZR_ERR_INVALID, "this process is not a rank of a run over messages");
    unsigned world = run.world.transport->world;
    run.world.settled = local ? atomic_load(&local->hosts) : 0;
    zr_result result =
        world == 1 ? zr_comm_null_create(out, options, rank, 1) : zr_message_create(out, options, &run.world);
    if (result == ZR_OK) {
        (*out)->local = local;
        (*out)->run_rank = rank;
    }
    if (result == ZR_OK && local)
        atomic_store(&local->hosts, 1 + run.world.host_ranks);
    if (result == ZR_OK && world > 1)
        follow(*out);
    return result;
}
