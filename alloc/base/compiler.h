/* compiler.h: what the compiler is told beside the language. Private to the project. */
#ifndef ZR_COMPILER_H
#define ZR_COMPILER_H

/* A branch that is nearly always, or nearly never, taken. */
#define likely(condition)   __builtin_expect(!!(condition), 1)
#define unlikely(condition) __builtin_expect(!!(condition), 0)

/* What a preloaded library exports under a name that is not zr's. */
#define ZR_EXPORT __attribute__((visibility("default")))

#endif
