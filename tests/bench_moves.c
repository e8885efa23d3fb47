/* bench_moves.c: what it costs to move granules on the host backend instead of copying them. No test: it
 * prints medians and ratios. Build: make build/tests/bench_moves; the argument is the amount in MiB. */
#include <stdio.h>

#include "tests/host_moves.h"

int main(int count, char **arguments)
{
    struct moves moves;
    size_t bytes = (count > 1 ? (size_t)atoi(arguments[1]) : 512) << 20;
    if (moves_measure(&moves, bytes) != ZR_OK) {
        fprintf(stderr, "%s\n", zr_last_error());
        return 1;
    }
    const struct {
        const char *words;
        double ns;
    } rows[] = {
        {"warm copy, granule by granule", moves.copy_ns}, {"moved, one handle per granule", moves.singles_ns},
        {"  and touched there", moves.singles_touch_ns},  {"moved in one run", moves.run_ns},
        {"  and touched there", moves.run_touch_ns},
    };
    printf("%zu granules of %zu KiB, medians of %d\n%-32s %14s %12s %16s\n", moves.granules_count,
           moves.granule_bytes >> 10, MOVES_ROUNDS, "", "us per granule", "ms in all", "less than copy");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        printf("%-32s %14.2f %12.3f %14.1f x\n", rows[i].words,
               rows[i].ns / 1e3 / (double)moves.granules_count, rows[i].ns / 1e6, moves.copy_ns / rows[i].ns);
    return 0;
}
