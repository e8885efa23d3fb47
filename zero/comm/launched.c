/* launched.c: ranks of any launcher: the launch, a rank's communicator, and requests of signals. Uses
 * zero/launch/, local.c, mpi_start.c and tcp_start.c. */
#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "zero/comm/comm.h"
#include "zero/comm/mesh.h"
#include "zero/launch/control.h"
#include "zero/launch/start.h"

enum { EXIT_USAGE = 2 };

_Static_assert((int)ZR_CARRIER_MPI == ZR_START_OVER_MPI && (int)ZR_CARRIER_TCP == ZR_START_OVER_TCP,
               "one order");

int zr_launch(const struct zr_launch_options *options, enum zr_comm_carrier carrier, char **argv)
{
    struct zr_start start;
    struct zr_launch_options launch;
    zr_result result = ZR_STRUCT_COPY(zr_launch_options, save_within_ns, &launch, options);
    if (result == ZR_OK && (!launch.rank_main || (unsigned)carrier > ZR_CARRIER_TCP ||
                            (carrier == ZR_CARRIER_MPI && (!argv || !argv[0]))))
        result = zr_fail(ZR_ERR_INVALID,
                         "zr_launch() requires rank_main, a valid carrier, and main()'s argv for mpirun");
    if (result == ZR_OK)
        result = zr_start_read(&start);
    if (result == ZR_OK)
        result = zr_start_check(&start, (enum zr_start_carrier)carrier, launch.world, &launch.world);
    if (result == ZR_OK && carrier == ZR_CARRIER_TCP)
        result = zr_tcp_check(&start, launch.rendezvous != NULL);
    const bool forks = result == ZR_OK && carrier == ZR_CARRIER_LOCAL && start.kind == ZR_START_FORK;
    if (result == ZR_OK && launch.threads && !forks)
        result =
            zr_fail(ZR_ERR_INVALID, "threads require ranks that are started here, with the local transport");
    if (result == ZR_OK && launch.max_restarts > 0 && carrier != ZR_CARRIER_TCP && !forks)
        result =
            zr_fail(ZR_ERR_INVALID, "max_restarts requires ranks over TCP, or ranks that are forked here "
                                    "with the local transport");
    if (result != ZR_OK) {
        zr_local_log("%s", zr_last_error());
        return EXIT_USAGE;
    }
    return zr_start_launch(&(struct zr_start_run){.start = &start,
                                                  .join_mpi = carrier == ZR_CARRIER_MPI ? zr_mpi_run : NULL,
                                                  .run_tcp = carrier == ZR_CARRIER_TCP ? zr_tcp_run : NULL,
                                                  .options = &launch,
                                                  .argv = argv});
}

zr_result zr_comm_create(zr_comm **out, const struct zr_comm_options *options, struct zr_local_world *local,
                         unsigned rank)
{
    if (zr_message_joined() && local && local->world > 1)
        return zr_comm_message_create(out, options, local, rank);
    return zr_comm_local_create(out, options, local, rank);
}

/* Returns the strongest request that any rank has received, so that a signal during this call takes effect at
 * the same step on all ranks. */
zr_result zr_local_request(zr_comm *comm, enum zr_request_kind *out)
{
    uint32_t mine, all[ZR_MAX_WORLD];
    if (!comm || !out)
        return zr_fail(ZR_ERR_INVALID, "zr_local_request() requires a communicator and out");
    *out = ZR_REQUEST_NONE;
    if (!comm->local)
        return ZR_OK;
    mine = zr_local_own_request(comm->local);
    zr_result result = zr_comm_host_all_gather(comm, &mine, sizeof(mine), all);
    for (unsigned p = 0; p < comm->world && result == ZR_OK; p++)
        if (all[p] > (uint32_t)*out)
            *out = (enum zr_request_kind)all[p];
    return result;
}
