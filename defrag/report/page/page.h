/* page.h: writes recordings as one self-contained HTML page: curves, an address x time map of every block,
 * figures, the largest holders. Private to defrag/.
 *
 * The page contains its data as packed columns (page_columns.h). Each recording is played twice. Live blocks
 * are kept in memory, and packed columns in a swap file. */
#ifndef ZR_PAGE_H
#define ZR_PAGE_H

#include "defrag/report/moments.h"
#include "defrag/report/page/page_columns.h"

struct zr_html_page {
    struct zr_text text;
    struct zr_page_columns *swap; /* borrowed */
    unsigned files_count;
    char buffer[65536];
};

struct zr_page_source {
    const char *name; /* any bytes */
    struct zr_recording *recording;
    const struct zr_moments *moments; /* of that recording */
    /* If not NULL: called periodically with the number of processed records and of all records. */
    void (*progress)(void *state, uint64_t done_count, uint64_t all_count);
    void *progress_state;
};

/* The caller owns the file, which outlives the page. */
void zr_page_start(struct zr_html_page *page, struct zr_file *file, struct zr_page_columns *swap);
zr_result zr_page_add(struct zr_html_page *page, const struct zr_page_source *source, zr_arena *arena);
zr_result zr_page_finish(struct zr_html_page *page);

#endif
