/* local_mapping.h: access to the memory of other ranks. Private to zero/comm/.
 *
 * The granules of a rank are ranges of a file, which the rank shares. Each rank has the files of the others
 * open and maps the ranges that it reads. A rank describes the memory it exposes as places in its file, next
 * to its counters. */
#ifndef ZR_LOCAL_MAPPING_H
#define ZR_LOCAL_MAPPING_H

#include "zero/comm/local/local_ring.h"

/* Takes the descriptors that came with the rings and enables direct reads if enough descriptors and
 * addresses are available. Otherwise zr_local_expose() returns false, which all ranks see, and data goes
 * through the rings. */
void zr_local_mappings_open(struct local_comm *comm);
void zr_local_mappings_close(struct local_comm *comm);

/* Exposes [source, source + bytes) to the peers until the next call. False: the memory cannot be mapped by
 * peers or consists of too many pieces. */
bool zr_local_expose(struct local_comm *comm, const void *source, size_t bytes);

/* The data at `offset` of the memory that `peer` exposes: its address, and how many bytes are contiguous. */
struct zr_local_view {
    const char *at;
    size_t bytes;
};
zr_result zr_local_map(struct local_comm *comm, unsigned peer, size_t offset, struct zr_local_view *out);
/* Unmaps the ranges that were read, so that the peers' pages do not count as this process's. */
void zr_local_unmap(struct local_comm *comm);

#endif
