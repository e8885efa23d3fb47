/* bench_families.c: what each policy reserves on generated sequences, 34 of each family: means and extremes,
 * and in how many our arena is more than one granule above the best of the others. Build: make
 * build/tests/bench_families. With a number N the seeds are those of the Nth set; without one, of the first:
 * a rule that is tuned to one set shows in another. With --family NAME only that one. With --check the exit
 * code is 1 if our arena is above in any sequence; families_test holds the first set to that. */
#include <stdio.h>
#include <string.h>

#include "tests/support/families.h"

struct total {
    double sum[ZR_POLICY_COUNT], most[ZR_POLICY_COUNT]; /* of ratios */
    unsigned above;                                     /* sequences with zr more than a granule above */
    int64_t worst_granules;                             /* the largest difference */
};

static zr_result run_family(size_t family, uint64_t set, zr_arena *arena, struct total *total)
{
    static struct making making;
    zr_result result = ZR_OK;
    for (unsigned seed = 0; seed < FAMILY_SEEDS; seed++) {
        if (getenv("SEQ") && atoi(getenv("SEQ")) != (int)seed)
            continue;
        struct family_peaks peaks;
        struct zr_sequence sequence = family_sequence(&making, family, seed, set, arena);
        result = family_measure(&sequence, &peaks);
        if (result != ZR_OK)
            break;
        for (unsigned i = 0; i < ZR_POLICY_COUNT; i++) {
            double ratio =
                (double)peaks.granules[i] * FAMILY_GRANULE_BYTES / (double)sequence.lower_bound_bytes;
            total->sum[i] += ratio;
            total->most[i] = ratio > total->most[i] ? ratio : total->most[i];
        }
        int64_t granules = family_above(&peaks, ZR_POLICY_ZR);
        total->worst_granules = granules > total->worst_granules ? granules : total->worst_granules;
        if (granules <= 1)
            continue;
        total->above++;
        fprintf(stderr, "%s: sequence %u of set %llu: %lld granules above\n", families[family].name, seed,
                (unsigned long long)set, (long long)granules);
    }
    return result;
}

static zr_result run_families(const char *only, uint64_t set, zr_arena *arena, unsigned *above)
{
    zr_result result = ZR_OK;
    printf("%-14s %28s %42s\n%-14s", "", "mean ratio to the lower bound (largest)", "zr above the best other",
           "");
    for (unsigned i = 0; i < ZR_POLICY_COUNT; i++)
        printf(" %15s", zr_policy_name((enum zr_policy)i));
    printf("   by > 1 granule    worst\n");
    for (size_t family = 0; family < FAMILIES_COUNT && result == ZR_OK; family++) {
        struct total total = {.worst_granules = INT64_MIN};
        if (only && strcmp(only, families[family].name) != 0)
            continue;
        result = run_family(family, set, arena, &total);
        printf("%-14s", families[family].name);
        for (unsigned i = 0; i < ZR_POLICY_COUNT; i++)
            printf(" %6.4f (%6.4f)", total.sum[i] / FAMILY_SEEDS, total.most[i]);
        printf("   %8u of %d %+8lld\n", total.above, FAMILY_SEEDS, (long long)total.worst_granules);
        fflush(stdout);
        *above += total.above;
    }
    return result;
}

int main(int count, char **arguments)
{
    bool check = false;
    const char *only = NULL;
    uint64_t set = 0;
    for (int i = 1; i < count; i++)
        if (strcmp(arguments[i], "--check") == 0)
            check = true;
        else if (strcmp(arguments[i], "--family") == 0 && i + 1 < count)
            only = arguments[++i];
        else
            set = strtoull(arguments[i], NULL, 0);
    zr_backend *host = NULL;
    zr_arena *arena = NULL;
    unsigned above = 0;
    zr_result result = zr_backend_host_create(&host, NULL);
    if (result == ZR_OK)
        result = zr_arena_create(&arena, &(struct zr_arena_options){.backend = host});
    if (result == ZR_OK)
        result = run_families(only, set, arena, &above);
    if (result != ZR_OK)
        fprintf(stderr, "%s\n", zr_last_error());
    if (arena)
        zr_arena_destroy(arena, NULL);
    if (host)
        zr_backend_destroy(host);
    return result != ZR_OK || (check && above > 0);
}
