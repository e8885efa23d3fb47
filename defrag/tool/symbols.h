/* symbols.h: names for the addresses in a trace's stacks, from the files that contain them and the debug
 * information on this machine. Private to defrag/tool/. One thread. */
#ifndef ZR_SYMBOLS_H
#define ZR_SYMBOLS_H

#include "defrag/trace/recording.h"

struct zr_symbols; /* the files opened so far */

/* NULL: out of memory; frames are then module and offset. */
struct zr_symbols *zr_symbols_make(void);
void zr_symbols_end(struct zr_symbols *symbols);
/* Valid as long as `symbols`. A file whose build ID differs from the traced program's is not used. */
struct zr_frame_namer zr_symbols_namer(struct zr_symbols *symbols);

#endif
