/* python.h: the Python frames of the calling thread, read from CPython's memory. Private to alloc/.
 *
 * No function of Python's is called: a stack is taken inside malloc, where Python may be in any state. Every
 * read goes through the kernel (process_vm_readv), every object's type is compared, and loops are bounded, so
 * that a frame that is torn or of another layout ends the stack early.
 *
 * CPython 3.11 and 3.12 are read by a table of offsets, 3.13 and 3.14 by those that _PyRuntime publishes. Any
 * thread may call, without locks, but no signal handler. */
#ifndef ZR_PYTHON_H
#define ZR_PYTHON_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc/zr.h"

/* Addresses from here on are numbers of Python frames; no code has such an address. */
#define ZR_PYTHON_FRAME (UINT64_C(1) << 63)
enum { ZR_PYTHON_TEXT_BYTES = 256 };

/* The addresses of CPython's own symbols. */
struct zr_python_symbols {
    uintptr_t runtime, version, evaluator, code_type, text_type, bytes_type;
};

/* Finds CPython among the loaded libraries, once; a call that finds none may be repeated. The caller holds no
 * lock for which the loader may wait. ZR_ERR_UNAVAILABLE, with a message: there is one whose frames cannot be
 * read. */
zr_result zr_python_find(void);
/* The same with given symbols, for tests. */
zr_result zr_python_use(const struct zr_python_symbols *symbols);

/* Whether frames were given up, because none of the first walks could read one. */
bool zr_python_is_given_up(void);

/* The walk of a stack's Python frames, innermost first. */
struct zr_python_walk {
    uintptr_t frame; /* the next; 0: no more */
    unsigned left;   /* bounds the walk */
};

/* Begins the walk of the calling thread's frames. */
struct zr_python_walk zr_python_begin(void);
/* Whether the function that starts at the address is Python's evaluator, one call of which runs frames up to
 * its entry frame. */
bool zr_python_is_evaluator(uintptr_t function);
/* Appends the frames of one call of the evaluator, at most `room`. Returns their number. */
unsigned zr_python_frames(struct zr_python_walk *walk, uint64_t *out, unsigned room);
/* The text of a frame, "function (file:line)"; valid until the process ends. NULL: no such frame. */
const char *zr_python_text(uint64_t frame);

#endif
