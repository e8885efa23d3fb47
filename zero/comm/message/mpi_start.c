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
#include "zero/comm/message/message.h"
#include "zero/comm/mesh.h"
#include "zero/launch/control.h"
#include "zero/launch/start.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_MEMORY = 4, EXIT_SIGNAL = 128 };

static struct zr_transport transport; /* one per process, like MPI itself */

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
    if (opener(&transport) != 0)
        return zr_fail(ZR_ERR_UNAVAILABLE, "--comm mpi: %s", transport.why);
    if (transport.version != ZR_TRANSPORT_VERSION)
        return zr_fail(ZR_ERR_UNAVAILABLE, "libzr_comm_mpi.so has version %u, but this program requires %d",
                       transport.version, ZR_TRANSPORT_VERSION);
    if (transport.rank != start->rank || transport.world != start->world)
        return zr_fail(
            ZR_ERR_UNAVAILABLE,
            "%s means rank %u of %u, but MPI says rank %u of %u: mpirun and libzr_comm_mpi.so belong to "
            "different MPIs",
            start->rank_name, start->rank, start->world, transport.rank, transport.world);
    zr_message_join(&transport);
    return ZR_OK;
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
        zr_message_leave();
        if (code == 0 && transport.close(&transport) != 0) {
            zr_local_log("rank %u: %s", start->rank, transport.why);
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
