/* limits.h: tables of limits. Each limit is asked for its least, for one below it, for one beyond its most,
 * and then for its most: what is refused changes nothing, and what is granted comes back whole. */
#ifndef ZR_TEST_LIMITS_H
#define ZR_TEST_LIMITS_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "alloc/zr.h"
#include "tests/support/tap.h"

#define LIMIT_DOUBLES SIZE_MAX

struct limit {
    const char *name;
    /* Asks for so much, looks at what came, gives it back. ZR_ERR_CORRUPT: something else came. */
    zr_result (*ask)(const struct limit *limit, size_t value);
    size_t least, most;      /* granted */
    zr_result below, beyond; /* the results of a step below and a step beyond; ZR_OK: there is no limit */
    size_t step;             /* 0: 1; LIMIT_DOUBLES: half the least, twice the most */
    size_t with;             /* what else the question needs */
};

/* What the program under test holds now: a sum of its counters. */
static size_t limits_held(void);

static inline size_t descriptors_count(void)
{
    size_t count = 0;
    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* Pages of addresses, without taking memory. */
static inline size_t pages_count(void)
{
    char text[64] = "";
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    size_t pages = 0;
    if (fd >= 0)
        close(fd);
    for (ssize_t i = 0; i < got && text[i] >= '0' && text[i] <= '9'; i++)
        pages = pages * 10 + (size_t)(text[i] - '0');
    return pages;
}

/* A refusal is repeated: the first may take pages for its words and for records that stay. */
static inline void limit_ask(const struct limit *limit, const char *side, size_t value, zr_result want)
{
    size_t held = limits_held(), descriptors = descriptors_count(), pages = 0;
    zr_result got = ZR_OK;
    for (unsigned i = 0; i < (want == ZR_OK ? 1 : 2); i++) {
        pages = pages_count();
        got = limit->ask(limit, value);
    }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    pages = pages_count(); /* a sanitizer's own come and go */
#endif
    tap_result(got, want, "%s: %s, %zu", limit->name, side, value);
    size_t held_after = limits_held(), descriptors_after = descriptors_count();
    bool same =
        held_after == held && descriptors_after == descriptors && (want == ZR_OK || pages_count() == pages);
    if (!same)
        tap_ok(
            false,
            "%s: %s, %zu, leaves something: %zu held, was %zu; %zu descriptors, was %zu; %zu pages, was %zu",
            limit->name, side, value, held_after, held, descriptors_after, descriptors, pages_count(), pages);
}

static inline void limits_test(const struct limit *limits, size_t count)
{
    for (const struct limit *limit = limits; limit < limits + count; limit++) {
        size_t step = limit->step ? limit->step : 1;
        bool doubles = step == LIMIT_DOUBLES;
        limit_ask(limit, "the least", limit->least, ZR_OK);
        if (limit->below != ZR_OK)
            limit_ask(limit, "below it", doubles ? limit->least / 2 : limit->least - step, limit->below);
        if (limit->beyond != ZR_OK)
            limit_ask(limit, "beyond the most", doubles ? limit->most * 2 : limit->most + step,
                      limit->beyond);
        limit_ask(limit, "the most", limit->most, ZR_OK);
    }
}

#define LIMITS_TEST(limits) limits_test(limits, sizeof(limits) / sizeof *(limits))

#endif
