/* local_mapping.h: the memory of the other ranks, seen from this one. Private to zero/comm/.
 *
 * What ranks share is the file that their granules are ranges of: each has the files of the others open, and
 * maps as much of them as it needs to read. What a rank lets others read is described by places in its file,
 * which it writes beside its counters. */
#ifndef ZR_LOCAL_MAPPING_H
#define ZR_LOCAL_MAPPING_H

#include "zero/comm/local/local_ring.h"

/* Takes the descriptors that came with the rings; afterwards this rank offers its memory, and reads that of
 * others, if all this can be had. Where it cannot, for want of descriptors or of addresses, zr_local_expose()
 * says no, which all ranks hear: everything goes through the rings. */
void zr_local_mappings_open(struct local_comm *comm);
void zr_local_mappings_close(struct local_comm *comm);

/* Describes [source, source + bytes) to the peers, until it is called again. False: it is not memory that
 * they could map, or in too many pieces. */
bool zr_local_expose(struct local_comm *comm, const void *source, size_t bytes);

/* Where the bytes from `offset` on of what `peer` has offered are to be read, and how many of them lie there
 * in a row. */
struct zr_local_view {
    const char *at;
    size_t bytes;
};
zr_result zr_local_map(struct local_comm *comm, unsigned peer, size_t offset, struct zr_local_view *out);
/* Lets go of what was looked at: the pages are the peers', and should not be counted as this process's. */
void zr_local_unmap(struct local_comm *comm);

#endif
