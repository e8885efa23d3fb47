/* error.h: how the rooms of zr say what went wrong. Private to the project. */
#ifndef ZR_ERROR_H
#define ZR_ERROR_H

#include "alloc/base/compiler.h"
#include "alloc/zr.h"

/* Records the words for zr_last_error() of this thread and returns `result`, so that a failing function ends
 * in `return zr_fail(ZR_ERR_INVALID, "arena limit of %zu bytes is below one granule (%zu)", ...)`. Never
 * allocates; the text is cut at 1,023 bytes, and control characters in it become question marks. Does not
 * change errno. */
ZR_PRIVATE_API zr_result zr_fail(zr_result result, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* Prepares for the first failure, fork handlers included. Call it before registering fork handlers that
 * acquire locks under which zr_fail() may be called: the first registered handler runs last, and the lock of
 * the messages must be acquired last. */
void zr_error_prepare(void);

/* Cheap assertion, always on: records the condition and place, then calls the replaceable handler (default:
 * abort). It never allocates. */
typedef void (*zr_assert_handler)(const char *condition, const char *file, int line);
void zr_assert_handler_set(zr_assert_handler handler); /* NULL: the default */
ZR_PRIVATE_API void zr_assert_failed(const char *condition, const char *file, int line);
#define zr_assert(condition)                                                                                 \
    do {                                                                                                     \
        if (__builtin_expect(!(condition), 0))                                                               \
            zr_assert_failed(#condition, __FILE__, __LINE__);                                                \
    } while (0)

/* For clang's analyzer, which sees one file at a time: zr_fail() returns its first argument, and execution
 * does not continue after a failed assertion. */
#ifdef __clang_analyzer__
void zr_assert_failed(const char *condition, const char *file, int line) __attribute__((analyzer_noreturn));
#ifndef ZR_ERROR_C
#define zr_fail(result, ...) ((void)sizeof(zr_fail(result, __VA_ARGS__)), (result))
#endif
#endif

#endif
