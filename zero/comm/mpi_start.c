/* mpi_start.c: a rank of an MPI run: loads the module (mpi/mpi.c), joins, and gives fabric.c its transport.
 * Also turns a process that nobody has started into an mpirun of itself. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/error.h"
#include "alloc/module.h"
#include "zero/comm/fabric.h"
#include "zero/comm/local.h"
#include "zero/comm/start.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_MEMORY = 4, MOST_ARGUMENTS = 512, PATH_ROOM = 4096 };

/* MPI belongs to the process: it can be joined once. */
static struct {
    struct zr_transport transport;
    bool joined, lent; /* lent: a communicator stands on it */
} mpi;

static zr_result join(const struct zr_start *start)
{
    void *symbol;
    zr_transport_opener opener;
    zr_result result = zr_module_load("libzr_comm_mpi.so", ZR_TRANSPORT_SYMBOL, &symbol);
    if (result != ZR_OK)
        return zr_fail(
            result,
            "--comm mpi: %s; it is built where mpicc is (libopenmpi-dev), and needs the same MPI to run",
            zr_last_error());
    memcpy(&opener, &symbol, sizeof(opener)); /* ISO C has no cast between the two kinds of pointer */
    if (opener(&mpi.transport) != 0)
        return zr_fail(ZR_ERR_UNAVAILABLE, "--comm mpi: %s", mpi.transport.why);
    mpi.joined = true;
    if (mpi.transport.version != ZR_TRANSPORT_VERSION)
        return zr_fail(ZR_ERR_UNAVAILABLE, "libzr_comm_mpi.so is of version %u, and this program wants %d",
                       mpi.transport.version, ZR_TRANSPORT_VERSION);
    if (mpi.transport.rank != start->rank || mpi.transport.world != start->world)
        return zr_fail(
            ZR_ERR_UNAVAILABLE,
            "%s says rank %u of %u, and MPI rank %u of %u: mpirun and libzr_comm_mpi.so are of two "
            "different MPIs",
            start->rank_name, start->rank, start->world, mpi.transport.rank, mpi.transport.world);
    return ZR_OK;
}

bool zr_mpi_joined(void)
{
    return mpi.joined;
}

zr_result zr_comm_mpi_create(zr_comm **out, const struct zr_comm_options *options,
                             struct zr_local_world *local, unsigned rank)
{
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "a communicator needs a place to go");
    *out = NULL;
    if (!mpi.joined)
        return zr_fail(ZR_ERR_INVALID, "this process is no rank of an MPI run");
    zr_result result = mpi.transport.world == 1 ? zr_comm_null_create(out, options, rank, 1)
                                                : zr_fabric_create(out, options, &mpi.transport);
    if (result == ZR_OK)
        (*out)->local = local;
    return result;
}

/* A rank that ends well says goodbye, and waits for the others' goodbyes. One that does not must not: the
 * others would wait for it, and mpirun ends them instead. */
int zr_mpi_run(const struct zr_launch_options *options, const struct zr_start *start)
{
    struct zr_local_control control = {0};
    int code = EXIT_USAGE;
    zr_result result = join(start);
    if (result != ZR_OK)
        zr_local_say("%s", zr_last_error());
    if (result == ZR_OK) {
        result = zr_local_control_make(&control, start->world);
        if (result != ZR_OK) {
            zr_local_say("rank %u: %s", start->rank, zr_last_error());
            code = EXIT_MEMORY;
        }
    }
    if (result == ZR_OK) {
        zr_local_follow_signals(control.local);
        code = options->rank_main(control.local, start->rank, options->argument);
        if (code == 0 && mpi.transport.close(&mpi.transport) != 0) {
            zr_local_say("rank %u: %s", start->rank, mpi.transport.why);
            code = EXIT_FAILED;
        }
        /* One that was never of the run has left nothing, and the files may be those of another run. */
        if (code != 0 && options->clean_up)
            options->clean_up(options->argument);
    }
    zr_local_control_end(&control);
    return code;
}

/* ---- mpirun ------------------------------------------------------------------------------------------ */

static bool on_path(const char *name)
{
    const char *path = getenv("PATH");
    char full[PATH_ROOM];
    while (path && *path) {
        size_t length = strcspn(path, ":");
        if ((size_t)snprintf(full, sizeof(full), "%.*s/%s", (int)length, path, name) < sizeof(full) &&
            access(full, X_OK) == 0)
            return true;
        path += length + (path[length] == ':');
    }
    return false;
}

/* More ranks than cores are fine here, and so is root: the settings are Open MPI's, and mean nothing to
 * others. */
int zr_mpi_become(char **argv, unsigned ranks)
{
    static const char *const before[] = {"env",
                                         "OMPI_ALLOW_RUN_AS_ROOT=1",
                                         "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                         "OMPI_MCA_rmaps_base_oversubscribe=1",
                                         "OMPI_MCA_hwloc_base_binding_policy=none",
                                         "OMPI_MCA_mpi_yield_when_idle=1",
                                         "mpirun",
                                         "-n"};
    const char *line[MOST_ARGUMENTS];
    char number[16];
    size_t count = sizeof(before) / sizeof(*before), given = 0;
    if (!on_path("mpirun")) {
        zr_local_say("--comm mpi: mpirun is not on PATH; install an MPI (openmpi-bin), or use --comm local");
        return EXIT_USAGE;
    }
    memcpy(line, before, sizeof(before));
    snprintf(number, sizeof(number), "%u", ranks);
    line[count++] = number;
    while (argv[given] && count + 1 < MOST_ARGUMENTS)
        line[count++] = argv[given++];
    line[count] = NULL;
    if (!argv[given])
        execvp(line[0], (char *const *)line);
    zr_local_say("--comm mpi: starting mpirun failed; type: mpirun -n %u %s ...", ranks, argv[0]);
    return EXIT_FAILED;
}
