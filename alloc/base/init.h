/* init.h: what zr does once per process, and the only place that looks at the environment. Private to alloc/.
 */
#ifndef ZR_INIT_H
#define ZR_INIT_H

#include <stdbool.h>

/* Reads ZR_CONF and ZR_FAULT once. Every entry that depends on them calls it; any thread. */
void zr_init(void);

/* The initialiser's gift to fault.c and option.c: the raw text, NULL if unset. Called by zr_init() alone. */
void zr_fault_read(const char *text);
void zr_option_read(const char *text);
void zr_group_read(const char *text);

/* Whether any fault site is counted: hot paths read it, relaxed, before they call zr_fault(). */
extern _Atomic bool zr_fault_watched;

#endif
