/* status.h: agreement on a result. A failure of one rank, such as a full disk or a damaged file, must not
 * leave the others waiting, so all local work ends with zr_comm_all_status(). */
#ifndef ZR_COMM_STATUS_H
#define ZR_COMM_STATUS_H

#include "zero/comm/zr_comm.h"

/* Exchanges results. Returns the same on all ranks: ZR_OK, or the first failing rank's result and message,
 * prefixed with its number unless it is rank 0. Collective; allocates no memory. */
zr_result zr_comm_all_status(zr_comm *comm, zr_result mine);

#endif
