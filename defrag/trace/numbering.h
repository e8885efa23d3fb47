/* numbering.h: numbers the blocks and threads of records, and so makes a sequence of a recording. Private to
 * defrag/. */
#ifndef ZR_NUMBERING_H
#define ZR_NUMBERING_H

#include "defrag/trace/recording.h"

struct zr_numbering {
    struct zr_vector events; /* struct zr_event */
    size_t preface_count;
    uint32_t blocks_count;
    uint64_t live_bytes, peak_bytes; /* requested */

    /* private */
    const char *path;             /* borrowed; for messages */
    struct zr_number_map blocks;  /* by address: the index of the allocation among the events, or FREED */
    struct zr_number_map threads; /* by the file's number */
};

/* Allocates nothing, so it cannot fail. */
void zr_numbering_init(struct zr_numbering *out, const char *path, zr_arena *arena);
void zr_numbering_end(struct zr_numbering *numbering);
/* Adds the event of an allocation, a free or a mark; other records are no events. ZR_ERR_FORMAT: an address
 * is allocated while live or freed while not live; sums beyond 64 bits; too many threads. */
zr_result zr_numbering_take(struct zr_numbering *numbering, const struct zr_record *record);
/* The events so far, borrowed until the next take or the end. */
struct zr_sequence zr_numbering_sequence(const struct zr_numbering *numbering);

#endif
