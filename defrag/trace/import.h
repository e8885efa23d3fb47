/* import.h: writes any recording as a .zrt trace, which every program of zr reads. Private to defrag/.
 *
 * Figures, maps, pools, streams, pending frees and refusals are kept; stacks are not. The recording is played
 * three times (for the addresses, the length, and the trace), so that the output can be a pipe; nothing is
 * held in between. */
#ifndef ZR_IMPORT_H
#define ZR_IMPORT_H

#include "alloc/base/system/file.h"
#include "defrag/trace/recording.h"

/* The text keeps the first error of writing. ZR_ERR_FORMAT: as zr_recording_play(), or addresses are 2^62
 * bytes or more apart. */
zr_result zr_recording_import(struct zr_recording *recording, struct zr_text *text);

#endif
