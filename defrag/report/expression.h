/* expression.h: conditions on two sets of figures, for `zr diff --fail-if`. Private to defrag/.
 *
 *     EXPR   = COND {"," COND}                    any of them
 *     COND   = FIGURE OP VALUE
 *     FIGURE = a name of the table below
 *     OP     = ">" | ">=" | "<" | "<=" | "==" | "!="     B's figure against ..
 *     VALUE  = NUMBER "x"                         .. A's so many times
 *            | "+" NUMBER "%"                     .. A's and so many per cent
 *            | "+" BYTES                          .. A's and so many bytes
 *            | BYTES                              .. that
 *     BYTES  = NUMBER [KB | MB | GB | TB | KiB | MiB | GiB | TiB]
 * Blanks count nowhere. */
#ifndef ZR_EXPRESSION_H
#define ZR_EXPRESSION_H

#include "defrag/report/moments.h"

/* What is compared: a file, and a replay of it where there is one. */
struct zr_compared {
    const struct zr_recording *recording;
    const struct zr_moments *moments;
    const struct zr_replay_report *replay; /* NULL: none */
};

/* A figure of it. */
struct zr_figure {
    const char *name;
    bool is_bytes;
    double (*get)(const struct zr_compared *of);
    bool needs_maps, needs_pending, needs_replay;
};
extern const struct zr_figure zr_figures[]; /* the last has no name */

/* False: the file does not say. */
static inline bool zr_figure_known(const struct zr_figure *figure, const struct zr_compared *of)
{
    return (!figure->needs_maps || of->recording->has_maps) &&
           (!figure->needs_pending || of->recording->has_pending) && (!figure->needs_replay || of->replay);
}

enum zr_condition_kind {
    ZR_CONDITION_TIMES = 0,
    ZR_CONDITION_PER_CENT,
    ZR_CONDITION_PLUS,
    ZR_CONDITION_PLAIN
};

struct zr_condition {
    const struct zr_figure *figure;
    char op[3];
    enum zr_condition_kind kind;
    double value;
    const char *words; /* as written, in the expression .. */
    int words_bytes;   /* .. so many bytes */
};

/* Reads the first condition of *at, and moves *at behind it and its comma. ZR_ERR_INVALID, with what would
 * do. */
zr_result zr_condition_read(const char **at, struct zr_condition *out);
/* Whether it holds of B's figure, A's being what it is relative to. */
bool zr_condition_holds(const struct zr_condition *condition, double a, double b);

#endif
