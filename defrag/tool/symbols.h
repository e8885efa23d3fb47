/* symbols.h: names for the addresses of a trace's stacks, from the files that the addresses lie in and what
 * debug information there is of them on this machine. Private to defrag/tool/. One thread. */
#ifndef ZR_SYMBOLS_H
#define ZR_SYMBOLS_H

#include "defrag/trace/recording.h"

struct zr_symbols; /* files opened so far */

/* NULL: there is no memory, and frames stay modules and offsets. */
struct zr_symbols *zr_symbols_make(void);
void zr_symbols_end(struct zr_symbols *symbols);
/* Valid until the end of the symbols. A file that has another build ID than the program's is not asked. */
struct zr_frame_namer zr_symbols_namer(struct zr_symbols *symbols);

#endif
