/* bench_moves.c: what it costs to move granules on the host backend instead of copying them: medians and
 * ratios. Build: make build/tests/bench_moves; the argument is the amount in MiB.
 *
 * With --check, the amount and two ratios (10 and 100 where they are left out, the project's bars) it judges:
 * exit code 0 where the median of TRIES measurements meets each, 1 where one does not, 77 where this machine
 * makes no huge pages, without which there is nothing to compare. */
#include <stdio.h>

#include "tests/support/host_moves.h"

/* Times less than a warm copy. */
struct bars {
    double singles, run;
};

/* A machine that does other things as well slows moves and copies at different times. */
enum { TRIES = 5, UNJUDGED = 77 };

static void print(const struct moves *moves)
{
    const struct {
        const char *words;
        double ns;
    } rows[] = {
        {"warm copy, granule by granule", moves->copy_ns},
        {"moved, one handle per granule", moves->singles_ns},
        {"  and touched there", moves->singles_touch_ns},
        {"moved in one run", moves->run_ns},
        {"  and touched there", moves->run_touch_ns},
    };
    printf("%zu granules of %zu KiB, medians of %d\n%-32s %14s %12s %16s\n", moves->granules_count,
           moves->granule_bytes >> 10, MOVES_ROUNDS, "", "us per granule", "ms in all", "less than copy");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        printf("%-32s %14.2f %12.3f %14.1f x\n", rows[i].words,
               rows[i].ns / 1e3 / (double)moves->granules_count, rows[i].ns / 1e6,
               moves->copy_ns / rows[i].ns);
}

static bool measure(struct moves *out, size_t bytes)
{
    if (moves_measure(out, bytes) == ZR_OK)
        return true;
    fprintf(stderr, "%s\n", zr_last_error());
    return false;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Each bar by the median of the tries: what slows one side now and then is the machine's. */
static int check(size_t bytes, struct bars bars)
{
    double singles[TRIES], run[TRIES];
    for (unsigned i = 0; i < TRIES; i++) {
        struct moves moves;
        if (!measure(&moves, bytes))
            return 1;
        if (moves.huge_bytes < 2 * moves.bytes) {
            printf("%zu of %zu MiB in huge pages: nothing to compare\n", moves.huge_bytes >> 20,
                   2 * moves.bytes >> 20);
            return UNJUDGED;
        }
        singles[i] = moves.copy_ns / moves.singles_ns;
        run[i] = moves.copy_ns / moves.run_ns;
    }
    qsort(singles, TRIES, sizeof *singles, by_value);
    qsort(run, TRIES, sizeof *run, by_value);
    bool good = singles[TRIES / 2] >= bars.singles && run[TRIES / 2] >= bars.run;
    printf("%s by the median of %d tries, %zu MiB: moved granule by granule %.1f x less than a warm copy "
           "(the bar "
           "is %.0f), in one run %.1f x (%.0f)\n",
           good ? "good" : "too slow", TRIES, bytes >> 20, singles[TRIES / 2], bars.singles, run[TRIES / 2],
           bars.run);
    return good ? 0 : 1;
}

int main(int count, char **arguments)
{
    struct moves moves;
    bool checks = count > 1 && strcmp(arguments[1], "--check") == 0;
    char **rest = arguments + 1 + checks, **end = arguments + count;
    size_t bytes = (rest < end ? (size_t)atoi(rest[0]) : 512) << 20;
    struct bars bars = {.singles = rest + 1 < end ? atof(rest[1]) : 10,
                        .run = rest + 2 < end ? atof(rest[2]) : 100};
    if (checks)
        return check(bytes, bars);
    if (!measure(&moves, bytes))
        return 1;
    print(&moves);
    return 0;
}
