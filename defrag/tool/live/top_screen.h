/* top_screen.h: `zr top` on a terminal. Private to defrag/tool/. */
#ifndef ZR_TOP_SCREEN_H
#define ZR_TOP_SCREEN_H

#include "defrag/tool/live/top_draw.h"

/* Shows the model until the user quits, the terminal closes or a signal arrives; after a signal, the process
 * dies of the same signal. Restores the terminal. ZR_ERR_UNAVAILABLE: the terminal is unusable. */
zr_result zr_top_screen(struct zr_top *top, struct zr_top_view *view);

#endif
