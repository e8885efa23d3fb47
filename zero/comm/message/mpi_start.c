/* mpi_start.c: a rank of an MPI run: loads the module (mpi/mpi.c), joins, and passes the transport to
 * message.c. launch/mpirun.c runs mpirun. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/os.h"
#include "zero/comm/calls.h"
#include "zero/comm/message/message.h"
#include "zero/comm/mesh.h"
#include "zero/launch/control.h"
#include "zero/launch/start.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_MEMORY = 4, EXIT_SIGNAL = 128 };

static struct {
    struct zr_transport transport;
    struct zr_message_world world; /* valid when joined */
    bool joined;
} mpi;

static zr_result join(const struct zr_start *start)
{
    void *symbol;
    zr_transport_opener opener;
    zr_result result = zr_module_load("libzr_comm_mpi.so", ZR_TRANSPORT_SYMBOL, &symbol);
    if (result != ZR_OK)
        return zr_fail(
            result,
            "--comm mpi: %s; the module is built if mpicc is installed (libopenmpi-dev), and requires "
            "the same MPI at run time",
            zr_last_error());
    memcpy(&opener, &symbol, sizeof(opener)); /* ISO C does not allow this cast */
    if (opener(&mpi.transport) != 0)
        return zr_fail(ZR_ERR_UNAVAILABLE, "--comm mpi: %s", mpi.transport.why);
    if (mpi.transport.version != ZR_TRANSPORT_VERSION)
        return zr_fail(ZR_ERR_UNAVAILABLE, "libzr_comm_mpi.so has version %u, but this program requires %d",
                       mpi.transport.version, ZR_TRANSPORT_VERSION);
    if (mpi.transport.rank != start->rank || mpi.transport.world != start->world)
        return zr_fail(
            ZR_ERR_UNAVAILABLE,
            "%s means rank %u of %u, but MPI says rank %u of %u: mpirun and libzr_comm_mpi.so belong to "
            "different MPIs",
            start->rank_name, start->rank, start->world, mpi.transport.rank, mpi.transport.world);
    zr_message_world_open(&mpi.world, &mpi.transport);
    mpi.joined = true;
    return ZR_OK;
}

bool zr_mpi_joined(void)
{
    return mpi.joined;
}

unsigned zr_mpi_host_ranks(void)
{
    return mpi.joined ? mpi.world.host_ranks : 0;
}

/* Starts the record of a communicator's operations, for ranks that wait for this rank. */
static void follow(zr_comm *comm)
{
    unsigned ranks[ZR_MAX_WORLD];
    for (unsigned p = 0; p < comm->world; p++)
        ranks[p] = p;
    pthread_mutex_lock(&mpi.world.lock);
    mpi.world.liveness.local = comm->local;
    pthread_mutex_unlock(&mpi.world.lock);
    zr_calls_open(comm, 1, ranks);
    zr_calls_name(comm, "world");
}

zr_result zr_comm_mpi_create(zr_comm **out, const struct zr_comm_options *options,
                             struct zr_local_world *local, unsigned rank)
{
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "zr_comm_mpi_create() requires out");
    *out = NULL;
    if (!mpi.joined)
        return zr_fail(ZR_ERR_INVALID, "this process is not a rank of an MPI run");
    zr_result result = mpi.transport.world == 1 ? zr_comm_null_create(out, options, rank, 1)
                                                : zr_message_create(out, options, &mpi.world);
    if (result == ZR_OK) {
        (*out)->local = local;
        (*out)->run_rank = rank;
    }
    if (result == ZR_OK && mpi.transport.world > 1)
        follow(*out);
    return result;
}

/* A rank that succeeds leaves the run and waits for the others to leave. A failed rank does not leave,
 * because the others would wait for it; mpirun ends them instead. */
int zr_mpi_run(const struct zr_launch_options *options, const struct zr_start *start)
{
    struct zr_local_control control = {0};
    int code = EXIT_USAGE;
    zr_local_hold_mpirun_signals();
    zr_result result = join(start);
    if (result != ZR_OK)
        zr_local_log("%s", zr_last_error());
    if (result == ZR_OK) {
        result = zr_local_control_make(&control, start->world);
        if (result != ZR_OK) {
            zr_local_log("rank %u: %s", start->rank, zr_last_error());
            code = EXIT_MEMORY;
        }
    }
    if (result == ZR_OK) {
        zr_local_follow_mpirun(control.local);
        code = options->rank_main(control.local, start->rank, options->argument);
        zr_message_world_close(&mpi.world);
        if (code == 0 && mpi.transport.close(&mpi.transport) != 0) {
            zr_local_log("rank %u: %s", start->rank, mpi.transport.why);
            code = EXIT_FAILED;
        }
        /* A process that never joined the run has created no files; existing ones may belong to another
         * run. */
        if (code != 0 && options->clean_up)
            options->clean_up(options->argument);
        if (code == 0 && atomic_load(&control.local->followed) && !start->under_zr)
            code = EXIT_SIGNAL + zr_local_end_signal(control.local);
    }
    zr_local_control_end(&control);
    return code;
}
