/* options.h: the options of a run as servers and workers keep them, and where the elements of its tables are.
 * Private to zero/ps/. */
#ifndef ZR_PS_OPTIONS_H
#define ZR_PS_OPTIONS_H

#include "zero/engine/optimizer.h"
#include "zero/ps/zr_ps.h"

enum { ZR_PS_BLOCK = 256, ZR_PS_MESSAGE_MIN = 1 << 20 };

/* A table in the copy of the options. */
struct zr_ps_entry {
    struct zr_ps_table table;
    unsigned pushes; /* at least 1 */
    unsigned width;  /* of a sparse table; 0: dense */
    size_t rows_max; /* of a sparse table in a request */
};

struct zr_ps_setup {
    struct zr_ps_options options; /* `tables` and `secret` are not used */
    struct zr_ps_entry *entries;  /* [options.tables_count], of `arena` */
    const struct zr_optimizer *optimizer;
    size_t message_bytes; /* of a request's payload */
    uint64_t hash;        /* of everything that servers and workers must have in common; never 0 */
    zr_arena *arena;
    bool has_secret;
    unsigned char secret[ZR_PS_SECRET_BYTES];
};

/* Checks and copies the options. ZR_ERR_INVALID. */
zr_result zr_ps_setup_init(struct zr_ps_setup *out, const struct zr_ps_options *options, zr_arena *arena);
void zr_ps_setup_fini(struct zr_ps_setup *setup);

/* zr_ps_range() of options that were checked. */
struct zr_ps_part zr_ps_part_of(size_t elements, unsigned servers, unsigned table, unsigned server);

/* Steps that a pull may lack; and whether pushes wait until those of all workers are there. */
static inline unsigned zr_ps_ahead(const struct zr_ps_timing *timing)
{
    return timing->kind == ZR_PS_SSP ? timing->parameter : 0;
}
static inline bool zr_ps_groups(const struct zr_ps_timing *timing)
{
    return timing->kind == ZR_PS_SYNC || timing->kind == ZR_PS_SSP;
}
/* Whether the pushes of a worker's step are numbered, and a repeated one is ignored. */
static inline bool zr_ps_numbers(const struct zr_ps_options *options)
{
    return options->successors || zr_ps_groups(&options->timing);
}
/* Pushes of a table by a worker that may wait at a server. */
static inline unsigned zr_ps_waiting(const struct zr_ps_timing *timing, unsigned pushes)
{
    return zr_ps_ahead(timing) * pushes + 1;
}

#endif
