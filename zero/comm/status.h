/* status.h: one answer for all ranks. What one rank alone cannot do, a disk that is full, a file that is
 * damaged, must not leave the others waiting: whatever ranks do by themselves ends in an agreement. */
#ifndef ZR_COMM_STATUS_H
#define ZR_COMM_STATUS_H

#include "zero/comm/zr_comm.h"

/* Tells all ranks how each fared. The same answer everywhere: ZR_OK, or the first failing rank's result and
 * words, which begin with its number unless it is rank 0. Collective; takes no memory. */
zr_result zr_comm_all_status(zr_comm *comm, zr_result mine);

#endif
