/* page_stacks.h: numbers the stacks of a recording; stacks with equal frames have equal numbers. Private to
 * defrag/report/. */
#ifndef ZR_PAGE_STACKS_H
#define ZR_PAGE_STACKS_H

#include "defrag/report/page/page_columns.h"
#include "defrag/trace/recording.h"

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
