/* mapping.h: one process's mapping of a segment. Private to alloc/keep/. */
#ifndef ZR_KEEP_MAPPING_H
#define ZR_KEEP_MAPPING_H

#include <sys/types.h>

#include "alloc/keep/segment.h"

struct zr_keep {
    struct zr_segment_shape shape; /* checked; the mapping's copy is another process's to damage */
    int fd;     /* a description of its own, which has the writer's lease and never leaves the process */
    int shared; /* another one, for other processes */
    int holder; /* writer: a connection to the holder; -1: none */
    uint64_t token, looked_ns; /* looked_ns: when the holder was last looked for */
    struct zr_segment_header *header;
    const char *data; /* reader: the data; NULL: the writer, whose data are the arena's */
    size_t mapped_bytes;
    pid_t owner; /* the process that opened it: a child may only close it */
    /* The writer's. */
    zr_backend *backend;
    zr_arena *arena;
    uint64_t generation;  /* that was begun; 0: none */
    uint8_t *written;     /* of each tensor: 1 + the place that this generation writes; 0: none */
    size_t written_bytes; /* of that array, in whole pages */
};

/* Opens the file of `fd`, which stays the caller's. */
zr_result zr_keep_map(zr_keep **out, int fd, enum zr_keep_access access);
/* ZR_ERR_INVALID, with a message that names `call`: the caller is not the process that writes the segment. */
zr_result zr_keep_check_writer(const zr_keep *keep, const char *call);
/* The entry of a tensor; NULL: there is none. */
struct zr_segment_entry *zr_keep_entry(const zr_keep *keep, uint32_t tensor);
/* Where the offset of the data lies in this process. */
char *zr_keep_at(const zr_keep *keep, uint64_t offset_bytes);

/* commit.c: clears what a dead writer has written and not committed. For a new writer. */
void zr_keep_recover(zr_keep *keep);

#endif
