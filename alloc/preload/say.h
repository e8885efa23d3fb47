/* say.h: what both preloaded libraries do with standard error and with zr run's --trace. Private to
 * alloc/preload/. */
#ifndef ZR_SAY_H
#define ZR_SAY_H

#include "alloc/zr.h"

/* One line on standard error, without stdio, which allocates. Keeps errno. */
void zr_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Starts the trace that a variable of zr run's asks for: PID:FILE. Process PID writes FILE, every other one
 * FILE.PID of its own; `suffix` (may be "") comes behind it. ZR_ERR_INVALID: the variable makes no sense. */
zr_result zr_trace_as_asked(zr_arena *arena, const char *variable, const char *suffix);

#endif
