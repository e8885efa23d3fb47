/* compiler.h: what the compiler is told beside the language. Private to the project. */
#ifndef ZR_COMPILER_H
#define ZR_COMPILER_H

/* A branch that is nearly always, or nearly never, taken. */
#define likely(condition)   __builtin_expect(!!(condition), 1)
#define unlikely(condition) __builtin_expect(!!(condition), 0)

/* What a preloaded library exports under a name that is not zr's. */
#define ZR_EXPORT __attribute__((visibility("default")))

/* What the libraries share beneath their public headers. libzr.so holds alloc/ and defrag/ and is the only
 * copy of them in a process: its index, its options and its last messages are one. libzr_zero.so uses it and
 * needs a few functions that are not public. These are declared ZR_PRIVATE_API: libzr.so exports them under a
 * symbol version of exactly this release (ZR_PRIVATE_VERSION), so that the loader refuses two libraries of
 * different releases. A function of alloc/ that zero/ or kernels/ begins to use gets the mark too; the link
 * of libzr_zero.so fails without it. */
#if defined(__GNUC__)
#define ZR_PRIVATE_API __attribute__((visibility("default")))
#else
#define ZR_PRIVATE_API
#endif

#endif
