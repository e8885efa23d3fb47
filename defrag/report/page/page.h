/* page.h: recordings as one HTML page that needs nothing but a browser: curves, an address x time map of
 * every block, figures, holders. Private to defrag/.
 *
 * The page carries its data as packed columns (page_columns.h); README.md says which. Each recording is gone
 * through twice; what is held meanwhile is what is live, and the columns wait in a file aside. */
#ifndef ZR_PAGE_H
#define ZR_PAGE_H

#include "defrag/report/moments.h"
#include "defrag/report/page/page_columns.h"

struct zr_html_page {
    struct zr_text text;
    struct zr_page_columns *spill; /* borrowed */
    unsigned files_count;
    char buffer[65536];
};

struct zr_page_source {
    const char *name; /* any bytes */
    struct zr_recording *recording;
    const struct zr_moments *moments; /* of that recording */
    /* Where it is not NULL: told now and then how many records of how many are done. */
    void (*progress)(void *state, uint64_t done_count, uint64_t all_count);
    void *progress_state;
};

/* The file is the caller's, and outlives the page. */
void zr_page_start(struct zr_html_page *page, struct zr_file *file, struct zr_page_columns *spill);
zr_result zr_page_add(struct zr_html_page *page, const struct zr_page_source *source, zr_arena *arena);
zr_result zr_page_finish(struct zr_html_page *page);

#endif
