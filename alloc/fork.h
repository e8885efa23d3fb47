/* fork.h: what zr does around fork(), so that a child finds no lock held by a thread it does not have.
 * Private to alloc/. */
#ifndef ZR_FORK_H
#define ZR_FORK_H

/* Wires the handlers, once per process. Whoever makes the first backend calls it. */
void zr_fork_prepare(void);

#endif
