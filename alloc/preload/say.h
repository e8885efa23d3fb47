/* say.h: lines on standard error, and zr run's --trace, for both preloaded libraries. Private to
 * alloc/preload/. */
#ifndef ZR_SAY_H
#define ZR_SAY_H

#include "alloc/zr.h"

/* Prints a line on standard error without stdio, because stdio allocates. Keeps errno. */
void zr_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Starts the trace that zr run requests by a variable PID:FILE. Process PID writes FILE, every other process
 * FILE.PID with its own number; `suffix` (may be "") follows FILE. ZR_ERR_INVALID: the variable is malformed.
 */
zr_result zr_trace_as_asked(zr_arena *arena, const char *variable, const char *suffix);

#endif
