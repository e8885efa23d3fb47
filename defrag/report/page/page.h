/* page.h: writes recordings as one self-contained HTML page: curves, an address x time map of every block,
 * figures, the largest holders. Private to defrag/.
 *
 * The page contains its data as packed columns (page_columns.h). Each recording is played twice. Live blocks
 * are kept in memory, and packed columns in a swap file. */
#ifndef ZR_PAGE_H
#define ZR_PAGE_H

#include "defrag/report/moments.h"
#include "defrag/report/page/page_columns.h"
#include "defrag/trace/recording.h"

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

/* The contents of the page's own files in this folder, zero-terminated. */
extern const char zr_page_css[], zr_page_html[], zr_page_data_js[], zr_page_draw_js[], zr_page_map_js[],
    zr_page_js[];

/* ---- Stacks -------------------------------------------------------------------------------------------- */

/* Numbers the stacks of a recording; stacks with equal frames have equal numbers. Private to defrag/report/.
 */

enum { ZR_PAGE_FRAMES_MAX = 64 }; /* of a stack: the innermost ones */

struct zr_page_stacks {
    struct zr_recording *recording; /* borrowed */
    struct zr_column *frames;       /* for each frame: the length, the text */
    struct zr_column *stacks;       /* for each stack: the number of frames, the frames */

    /* private */
    struct zr_number_map by_stack, by_frame, by_frames; /* by_frame and by_frames: by hash */
    uint32_t frames_count, stacks_count;
};

void zr_page_stacks_init(struct zr_page_stacks *stacks, struct zr_recording *recording, zr_arena *arena);
void zr_page_stacks_end(struct zr_page_stacks *stacks);
/* The number of a record's stack: 0 for no stack, else from 1 in order of first appearance. */
zr_result zr_page_stack_number(struct zr_page_stacks *stacks, uint32_t stack, uint32_t *number);

#endif
