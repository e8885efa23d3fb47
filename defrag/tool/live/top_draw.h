/* top_draw.h: draws the model of `zr top` as a grid of characters, for a terminal or as text, and shows it on
 * a terminal. Private to defrag/tool/. */
#ifndef ZR_TOP_DRAW_H
#define ZR_TOP_DRAW_H

#include <wchar.h>

#include "defrag/tool/live/top_model.h"

/* A larger terminal shows the grid in its upper left part. */
enum { ZR_TOP_COLUMNS_MAX = 512, ZR_TOP_ROWS_MAX = 200, ZR_TOP_COLUMNS_MIN = 40, ZR_TOP_ROWS_MIN = 10 };

/* Colours; the colour of a tag is ZR_TOP_TAGS + tag. */
enum { ZR_TOP_PLAIN = 0, ZR_TOP_PENDING, ZR_TOP_STRANDED, ZR_TOP_FREE, ZR_TOP_CACHED, ZR_TOP_TAGS };
enum { ZR_TOP_COLOURS = ZR_TOP_TAGS + ZR_TAG_COUNT };
enum { ZR_TOP_BOLD = 1, ZR_TOP_REVERSE = 2, ZR_TOP_DIM = 4 };

struct zr_top_cell {
    wchar_t letter; /* one column wide */
    uint8_t colour; /* of the background */
    uint8_t look;   /* ZR_TOP_BOLD .. */
};
struct zr_top_grid {
    unsigned columns, rows;
    struct zr_top_cell cells[ZR_TOP_ROWS_MAX][ZR_TOP_COLUMNS_MAX];
};

enum zr_top_order { ZR_TOP_BY_PID = 0, ZR_TOP_BY_RESERVED, ZR_TOP_BY_RATE, ZR_TOP_ORDERS };

/* The user's choices. */
struct zr_top_view {
    long pid;  /* process whose details are shown; 0: the first */
    int arena; /* arena of that process: an index, or ZR_TOP_ALL */
    enum zr_top_order order;
    bool help, paused, no_look;
    unsigned interval_ms;
};

/* Sorts the indices of processes by the view's order; processes that are gone come last. */
void zr_top_arrange(const struct zr_top *top, const struct zr_top_view *view,
                    unsigned indices[ZR_TOP_PROCESSES]);
/* The process whose details are shown; NULL: none. */
const struct zr_top_process *zr_top_chosen(const struct zr_top *top, const struct zr_top_view *view);

/* Draws into *out; the caller sets its columns and rows. */
void zr_top_draw(struct zr_top_grid *out, const struct zr_top *top, const struct zr_top_view *view);

/* Shows the model until the user quits, the terminal closes or a signal arrives; after a signal, the process
 * dies of the same signal. Restores the terminal. ZR_ERR_UNAVAILABLE: the terminal is unusable. */
zr_result zr_top_screen(struct zr_top *top, struct zr_top_view *view);

#endif
