/* ranks.h: which recording of several equal ranks differs from the others, and from where on. Private to
 * defrag/.
 *
 * A curve has the most live bytes between two marks, and in each sixteenth of the records. Ranks are compared
 * by marks if each has at least two, else by sixteenths, up to the end of the shortest. A rank's distance at
 * a point is that from the median of all. The odd rank has the largest distance; it parts from the others at
 * the first point where its distance exceeds that of every other rank at any point. Of two ranks the larger
 * is the odd one. */
#ifndef ZR_RANKS_H
#define ZR_RANKS_H

#include "defrag/report/memory.h"

enum { ZR_CURVE_PARTS = 16, ZR_CURVE_LABEL_BYTES = 64 };

struct zr_curve_point {
    uint64_t most_bytes;
    char label[ZR_CURVE_LABEL_BYTES]; /* of the mark before; "": none */
};

struct zr_curve {
    struct zr_vector points; /* struct zr_curve_point: after each mark */
    uint64_t parts[ZR_CURVE_PARTS];
    uint64_t records_count, seen_count;
};
/* `records_count` records will follow. Allocates nothing, so it cannot fail. */
void zr_curve_init(struct zr_curve *out, uint64_t records_count, zr_arena *arena);
void zr_curve_end(struct zr_curve *curve);
/* Notes a record; `memory` is the state before it. Returns the arena's error. */
zr_result zr_curve_take(struct zr_curve *curve, const struct zr_record *record,
                        const struct zr_memory *memory);

struct zr_odd_rank {
    size_t rank, point; /* point: where it parts; by marks, or a sixteenth */
    bool by_marks;
    const char *label;                   /* by marks: of the point; lives as long as the curves */
    uint64_t most_bytes, others_bytes;   /* there, of the rank and the median .. */
    uint64_t largest_bytes, usual_bytes; /* .. and where the distance is largest */
};
/* False: there are less than two curves, or no point differs. Returns the arena's error in *result. */
bool zr_ranks_compare(const struct zr_vector *curves, struct zr_odd_rank *out, zr_result *result);

#endif
