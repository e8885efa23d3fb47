/* tap.h: TAP version 13 for the test programs, small enough to read at once. Not thread-safe: report from one
 * thread. A test program ends with `return tap_done();`, which fails when nothing ran or anything failed. */
#ifndef ZR_TAP_H
#define ZR_TAP_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

static int tap_count, tap_failed, tap_skipped;

static inline bool tap_report(bool good, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static inline bool tap_report(bool good, const char *file, int line, const char *format, ...)
{
    va_list list;
    if (tap_count == 0)
        puts("TAP version 13");
    tap_count++;
    tap_failed += !good;
    printf("%sok %d - ", good ? "" : "not ", tap_count);
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    putchar('\n');
    if (!good)
        printf("#   at %s:%d\n", file, line);
    fflush(stdout);
    return good;
}

/* One check; the rest says what is checked, printf-style. True when it held. */
#define tap_ok(condition, ...) tap_report((condition), __FILE__, __LINE__, __VA_ARGS__)

/* Two whole numbers that should be equal; both are shown when they are not. */
#define tap_is(got, want, ...)                                                                               \
    do {                                                                                                     \
        long long tap_got_ = (long long)(got), tap_want_ = (long long)(want);                                \
        if (!tap_report(tap_got_ == tap_want_, __FILE__, __LINE__, __VA_ARGS__))                             \
            printf("#   got %lld, want %lld\n", tap_got_, tap_want_);                                        \
    } while (0)

/* A call that should come to a given zr_result (needs alloc/zr.h). */
#define tap_result(call, want, ...)                                                                          \
    do {                                                                                                     \
        zr_result tap_got_ = (call);                                                                         \
        if (!tap_report(tap_got_ == (want), __FILE__, __LINE__, __VA_ARGS__))                                \
            printf("#   got %s (%s), want %s\n", zr_result_name(tap_got_), zr_last_error(),                  \
                   zr_result_name(want));                                                                    \
    } while (0)

/* A test that cannot run here, with the reason. */
#define tap_skip(...)                                                                                        \
    do {                                                                                                     \
        if (tap_count == 0)                                                                                  \
            puts("TAP version 13");                                                                          \
        printf("ok %d # SKIP ", ++tap_count);                                                                \
        printf(__VA_ARGS__);                                                                                 \
        putchar('\n');                                                                                       \
        tap_skipped++;                                                                                       \
    } while (0)

/* Words for whoever reads the log. */
#define tap_note(...)                                                                                        \
    do {                                                                                                     \
        printf("# ");                                                                                        \
        printf(__VA_ARGS__);                                                                                 \
        putchar('\n');                                                                                       \
        fflush(stdout); /* a child must not print it again */                                                \
    } while (0)

static inline int tap_done(void)
{
    printf("1..%d\n", tap_count);
    if (tap_failed)
        printf("# %d of %d failed\n", tap_failed, tap_count);
    if (tap_skipped)
        printf("# %d of %d skipped\n", tap_skipped, tap_count);
    return tap_failed != 0 || tap_count == 0;
}

#endif
