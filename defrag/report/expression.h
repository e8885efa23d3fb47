/* expression.h: conditions on two sets of figures, for `zr diff --fail-if`. Private to defrag/.
 *
 *     EXPR   = COND {"," COND}                    true if any condition is
 *     COND   = FIGURE OP VALUE
 *     FIGURE = a name in zr_figures
 *     OP     = ">" | ">=" | "<" | "<=" | "==" | "!="     compares B's figure with the value
 *     VALUE  = NUMBER "x"                         A's figure times the number
 *            | "+" NUMBER "%"                     A's figure plus a percentage
 *            | "+" BYTES                          A's figure plus bytes
 *            | BYTES                              an absolute value
 *     BYTES  = NUMBER [KB | MB | GB | TB | KiB | MiB | GiB | TiB]
 * Blanks are ignored. */
#ifndef ZR_EXPRESSION_H
#define ZR_EXPRESSION_H

#include "defrag/report/moments.h"

/* One side of the comparison: a file, and its replay if there is one. */
struct zr_compared {
    const struct zr_recording *recording;
    const struct zr_moments *moments;
    const struct zr_replay_report *replay; /* NULL: none */
};

/* A named figure of one side. */
struct zr_figure {
    const char *name;
    bool is_bytes;
    double (*get)(const struct zr_compared *of);
    bool needs_maps, needs_pending, needs_replay;
};
extern const struct zr_figure zr_figures[]; /* ends with an entry without a name */

/* False: the file does not contain the figure. */
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
    const char *words; /* as written in the expression */
    int words_bytes;   /* length of `words` */
};

/* Reads the first condition of *at, and moves *at past it and its comma. ZR_ERR_INVALID, with the valid
 * alternatives. */
zr_result zr_condition_read(const char **at, struct zr_condition *out);
/* Whether the condition holds for B's figure `b`, given A's figure `a`. */
bool zr_condition_holds(const struct zr_condition *condition, double a, double b);

#endif
