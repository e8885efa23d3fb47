/* page.h: writes recordings as one self-contained HTML page: the reason of a failure, curves by category, an
 * address x time map of every block, figures, the largest holders, a flame graph. Private to defrag/.
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
    const char *reasons; /* members of a JSON object, each after a comma, as zr why has them; "": none */
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
    zr_page_flame_js[], zr_page_js[];

/* ---- Stacks -------------------------------------------------------------------------------------------- */

/* Numbers the stacks of a recording; stacks with equal frames have equal numbers. Private to defrag/report/.
 */

enum { ZR_PAGE_FRAMES_MAX = 512 }; /* of a stack: the innermost ones */

struct zr_page_stacks {
    struct zr_recording *recording; /* borrowed */
    struct zr_column *frames;       /* for each frame: the length, the text */
    struct zr_column
        *stacks; /* for each stack: the number of frames, of the allocator's among them, the frames */

    /* private */
    struct zr_number_map by_stack, by_frame, by_frames; /* by_frame and by_frames: by hash */
    struct zr_vector tags; /* uint8_t by number: what the frames tell (call_site.h) */
    uint32_t frames_count, stacks_count;
};

/* Allocates nothing, so it cannot fail. */
void zr_page_stacks_init(struct zr_page_stacks *stacks, struct zr_recording *recording, zr_arena *arena);
void zr_page_stacks_end(struct zr_page_stacks *stacks);
/* The number of a record's stack: 0 for no stack, else from 1 in order of first appearance. */
zr_result zr_page_stack_number(struct zr_page_stacks *stacks, uint32_t stack, uint32_t *number);
/* The tag that stands for the role of a numbered stack; ZR_TAG_OTHER: unknown. */
zr_tag zr_page_stack_tag(const struct zr_page_stacks *stacks, uint32_t number);
/* The category of a tag: the role's name for a recording without tags, else the tag's. */
const char *zr_page_tag_name(const struct zr_recording *recording, zr_tag tag);

#endif
