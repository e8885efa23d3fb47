/* mpi_start.h: a rank of an MPI run. Private to zero/. */
#ifndef ZR_MPI_START_H
#define ZR_MPI_START_H

#include "zero/comm/zr_comm.h"
#include "zero/launch/start.h"

/* Runs a rank that an MPI launcher has started, for struct zr_start_run, and returns its exit code. A
 * process can join MPI once. */
int zr_mpi_run(const struct zr_launch_options *options, const struct zr_start *start);
/* Whether this process has joined an MPI run / creates a communicator over it, one at a time. Collective. */
bool zr_mpi_joined(void);
zr_result zr_comm_mpi_create(zr_comm **out, const struct zr_comm_options *options,
                             struct zr_local_world *local, unsigned rank);

#endif
