/* growth.h: which call sites hold more and more memory. Private to defrag/.
 *
 * The window is divided into intervals of equally many records. A site's floor in an interval is the least
 * that its blocks held there, and their least number. What a program uses in each step and frees again leaves
 * the floors as they are; memory that is kept raises both, and larger requests raise the bytes alone. A site
 * grows if its floors never fall and rise in most intervals, if no one rise makes up most of the growth
 * (state that is made once), and if the program frees as many blocks meanwhile: it runs, and does not load.
 * If the site's frames load weights or make an optimizer's state, these are blocks of forward and backward.
 *
 * A site is a stack, a tag and a stream; without stacks also sizes within a factor of two.
 *
 * Growth between two points compares floors, too: in the first and in the last sixteenth of the marks, or of
 * the records without the first sixteenth if the file has less than two marks.
 *
 * Phases: in a snapshot of PyTorch a phase ends where the next allocation has another role. A site is
 * temporary if its blocks are freed in the phase in which they come, in a program that has forward and
 * backward: activations live from the one to the other, gradients to the optimizer's. */
#ifndef ZR_GROWTH_H
#define ZR_GROWTH_H

#include "defrag/report/call_site.h"

enum { ZR_GROWTH_INTERVALS = 16 };

struct zr_site_floor {
    uint64_t bytes, blocks_count;
};

struct zr_site {
    uint64_t stream, live_bytes, blocks_count; /* now; only blocks that were allocated in the window */
    uint64_t most_bytes;                       /* the largest */
    uint32_t stack;
    uint8_t tag;
    uint8_t size_class; /* without a stack: the logarithm of the size; else 0 */
    bool grows;         /* zr_growth_find() */
    uint64_t grown_bytes;

    /* private: growth.c */
    uint8_t role, span;               /* span: the last one that is noted below */
    bool outlives;                    /* a block lived in two phases */
    uint64_t phase, frees_count;      /* phase: in which the oldest block came */
    struct zr_site_floor first, last; /* least, in the two spans that are compared */
    uint8_t interval;                 /* of the last record */
    uint32_t came[ZR_GROWTH_INTERVALS], went[ZR_GROWTH_INTERVALS];     /* allocations, frees */
    uint64_t floors[ZR_GROWTH_INTERVALS], counts[ZR_GROWTH_INTERVALS]; /* bytes, blocks */
};

enum { ZR_GROWTH_MARK_BYTES = 64 };

struct zr_growth {
    struct zr_recording *recording; /* borrowed */
    const struct zr_memory *memory; /* borrowed: the state before each record */
    uint64_t marks_count, marks_seen;
    char from[ZR_GROWTH_MARK_BYTES], to[ZR_GROWTH_MARK_BYTES]; /* the marks at the two points; "": none */
    uint64_t phase;                                            /* its number */
    uint8_t role;                                              /* of the phase */
    bool trains;                                               /* there was forward, and backward */
    struct zr_vector sites;                                    /* struct zr_site */
    struct zr_number_map numbers;
    uint64_t records_count, before_count, seen_count;
    uint64_t allocations_count, frees_count; /* in the window */
    uint64_t went[ZR_GROWTH_INTERVALS];      /* frees .. */
    uint64_t worked[ZR_GROWTH_INTERVALS];    /* .. of blocks of forward and backward */
    uint64_t mapped_bytes, unmapped_bytes;   /* in the window */
    uint64_t unmaps_count;
    uint64_t largest_bytes, second_bytes;   /* of blocks allocated in the window */
    uint64_t largest_address, largest_seen; /* the largest block, and when it was allocated */
    bool largest_lives;
};
/* `records_count` records will follow, `marks_count` of them marks. Allocates nothing, so it cannot fail. */
void zr_growth_init(struct zr_growth *out, struct zr_recording *recording, const struct zr_memory *memory,
                    uint64_t records_count, uint64_t marks_count);
void zr_growth_end(struct zr_growth *growth);
/* Notes a record; the memory applies the record afterwards. Returns the arena's error. */
zr_result zr_growth_take(struct zr_growth *growth, const struct zr_record *record);
/* After the last record: marks the sites that grow. */
void zr_growth_find(struct zr_growth *growth);
/* After zr_growth_find(): appends to `holders` (struct zr_holder) who holds more at the second point than at
 * the first, the largest growth first. Returns the arena's error. */
zr_result zr_growth_list(const struct zr_growth *growth, struct zr_vector *holders);
/* Appends to `holders` (struct zr_holder) who holds the live blocks, the largest first. Returns the arena's
 * error. */
zr_result zr_holders_find(struct zr_vector *holders, const struct zr_growth *growth);
/* The site of a block; NULL: none of its blocks was allocated in the window. */
const struct zr_site *zr_growth_site_of(const struct zr_growth *growth, const struct zr_range_record *block);

#endif
