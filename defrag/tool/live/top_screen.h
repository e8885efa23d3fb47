/* top_screen.h: `zr top` on a terminal. Private to defrag/tool/. */
#ifndef ZR_TOP_SCREEN_H
#define ZR_TOP_SCREEN_H

#include "defrag/tool/live/top_draw.h"

/* Shows the model until the user ends it, or the terminal or a signal does, of which the process dies then;
 * the terminal is as it was. ZR_ERR_UNAVAILABLE: the terminal cannot be used. */
zr_result zr_top_screen(struct zr_top *top, struct zr_top_view *view);

#endif
