/* phases.h: what a program holds between its marks, by what call stacks match. Private to defrag/.
 *
 * A phase is all that follows marks of one label, up to the next mark of any label. Its figures are the most
 * that was live and reserved, and at that most the live bytes of each category. A category is the first
 * pattern that matches a frame of a block's stack, "name (file:line)"; the rest has none.
 *
 * PyTorch's allocator returns cached segments in a run of events. Where the next map or refusal has their
 * stack, an allocation has returned them to try again: a retry. Else the program has emptied the cache: a
 * flush. */
#ifndef ZR_PHASES_H
#define ZR_PHASES_H

#include <regex.h>

#include "defrag/report/memory.h"

enum { ZR_PHASE_CATEGORIES = 16, ZR_PHASE_LABEL_BYTES = 64 };

struct zr_phase {
    char label[ZR_PHASE_LABEL_BYTES]; /* "": before the first mark */
    uint64_t marks_count, allocations_count, retries_count, flushes_count;
    uint64_t most_live_bytes, most_reserved_bytes;
    uint64_t by_bytes[ZR_PHASE_CATEGORIES + 1]; /* of the categories at most_live_bytes; the last: the rest */
};

struct zr_phases {
    struct zr_vector list; /* struct zr_phase, in order of their first mark */

    /* private */
    struct zr_recording *recording;  /* borrowed */
    const struct zr_memory *memory;  /* borrowed: the state before each record */
    const regex_t *patterns;         /* borrowed */
    unsigned patterns_count;         /* at most ZR_PHASE_CATEGORIES */
    struct zr_number_map labels;     /* by hash: the phase */
    struct zr_number_map categories; /* by stack */
    uint64_t by_bytes[ZR_PHASE_CATEGORIES + 1];
    size_t now;
    uint32_t unmap_stack;
    bool unmapping;
};
/* Returns the arena's error; the caller ends *out in any case. */
zr_result zr_phases_init(struct zr_phases *out, struct zr_recording *recording,
                         const struct zr_memory *memory, const regex_t *patterns, unsigned patterns_count);
void zr_phases_end(struct zr_phases *phases);
/* Notes a record; the memory applies the record afterwards. Returns the arena's error. */
zr_result zr_phases_take(struct zr_phases *phases, const struct zr_record *record);
/* After the last record. */
void zr_phases_finish(struct zr_phases *phases);

#endif
