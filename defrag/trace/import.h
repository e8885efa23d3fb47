/* import.h: any recording as a .zrt trace, which every program of ours reads. Private to defrag/.
 *
 * Figures, maps, pools, streams, pending frees and refusals come through; stacks do not, for a .zrt has none.
 * The recording is played three times (where blocks lie, how long the trace gets, the trace), so that it can
 * go to a pipe; nothing is held meanwhile. */
#ifndef ZR_IMPORT_H
#define ZR_IMPORT_H

#include "alloc/base/system/file.h"
#include "defrag/trace/recording.h"

/* The text keeps the first failure to write. ZR_ERR_FORMAT: as zr_recording_play(); or addresses are 2^62
 * bytes and more apart. */
zr_result zr_recording_import(struct zr_recording *recording, struct zr_text *text);

#endif
