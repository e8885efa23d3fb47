/* bench_families.c: what each policy reserves on generated sequences of six families, 34 of each. No test: it
 * prints means and extremes, and in how many sequences our arena is more than one granule above the best of
 * the others. Build: make build/tests/bench_families. With a number N the seeds are those of the Nth set of
 * 204 sequences; without one, of the first: a rule that is tuned to one set shows in another. */
#include <stdio.h>
#include <stdlib.h>

#include "defrag/zr_defrag.h"
#include "tests/random.h"

#define KIB UINT64_C(1024)
#define MIB (UINT64_C(1) << 20)

enum { SEEDS = 34, GRANULE_BYTES = 2 << 20, BLOCKS_MOST = 40000 };

/* ---- A sequence being made
 * ------------------------------------------------------------------------------------ */

static struct zr_event events[2 * BLOCKS_MOST];
static uint64_t bytes_of[BLOCKS_MOST];
static size_t events_count;
static uint32_t blocks_count;
static uint64_t live_bytes, lower_bound_bytes, random_state;

static uint64_t next_random(void)
{
    return xorshift64(&random_state);
}

static struct zr_event *add_event(void)
{
    if (events_count == 2 * BLOCKS_MOST)
        abort(); /* a family is too long */
    return &events[events_count++];
}

static uint32_t take(uint64_t bytes, uint64_t stream)
{
    *add_event() = (struct zr_event){
        .kind = ZR_EVENT_ALLOC, .tag = ZR_TAG_OTHER, .block = blocks_count, .bytes = bytes, .stream = stream};
    bytes_of[blocks_count] = bytes;
    live_bytes += bytes;
    if (live_bytes > lower_bound_bytes)
        lower_bound_bytes = live_bytes;
    return blocks_count++;
}

static void give(uint32_t block)
{
    *add_event() = (struct zr_event){
        .kind = ZR_EVENT_FREE, .tag = ZR_TAG_OTHER, .block = block, .bytes = bytes_of[block]};
    live_bytes -= bytes_of[block];
}

/* ---- Families
 * --------------------------------------------------------------------------------------------------- */

/* Random replacement among `slots`, sizes from a table, four streams. */
static void streams(void)
{
    static const uint64_t sizes[] = {786432, 2359296, 3145728, 196608, 3072, 1024, 12582912, 1536, 25165824};
    uint32_t slots[400];
    bool used[400] = {false};
    for (unsigned i = 0; i < 12000; i++) {
        size_t at = next_random() % 400;
        if (used[at])
            give(slots[at]);
        else
            slots[at] = take(sizes[next_random() % 9], next_random() % 4);
        used[at] = !used[at];
    }
}

/* Training steps whose sequences grow: activations kept forward, freed backward. */
static void growing(void)
{
    uint64_t layers = 12 + next_random() % 12;
    uint32_t kept[24][3];
    for (unsigned step = 0; step < 25; step++) {
        uint64_t length = 128 + step * (8 + next_random() % 16);
        for (uint64_t layer = 0; layer < layers; layer++) {
            kept[layer][0] = take(length * 16384, 0);
            kept[layer][1] = take(length * length * 32, 0);
            uint32_t scratch = take(length * 16384, 0);
            kept[layer][2] = take(length * 3072, 0);
            give(scratch);
        }
        for (uint64_t layer = layers; layer-- > 0;) {
            uint32_t gradient = take(length * 16384, 0);
            for (unsigned i = 0; i < 3; i++)
                give(kept[layer][i]);
            give(gradient);
        }
    }
}

/* Mixture of experts: how many tokens go where differs from step to step. */
static void experts(void)
{
    uint32_t held[256];
    for (unsigned i = 0; i < 64; i++)
        take(4 * MIB + i * 77, 0);
    for (unsigned step = 0; step < 30; step++) {
        unsigned count = 0;
        for (unsigned layer = 0; layer < 12; layer++) {
            uint64_t left = 4096;
            for (unsigned expert = 0; expert < 8; expert++) {
                uint64_t tokens = expert == 7 ? left : next_random() % (left / 2 + 1);
                left -= tokens;
                if (tokens == 0)
                    continue;
                held[count++] = take(tokens * 4096, 0);
                if (next_random() % 2) {
                    uint32_t inner = take(tokens * 16384, 0);
                    held[count++] = take(tokens * 4096, 0);
                    give(inner);
                }
            }
        }
        while (count > 0)
            give(held[--count]);
    }
}

/* A server: sizes over eighteen powers of two, a load that swells. */
static void server(void)
{
    uint32_t slots[600];
    bool used[600] = {false};
    for (unsigned i = 0; i < 15000; i++) {
        size_t at = next_random() % (200 + i / 20 % 400);
        if (used[at])
            give(slots[at]);
        else
            slots[at] = take((256 + next_random() % 256) << next_random() % 18, next_random() % 2);
        used[at] = !used[at];
    }
}

/* Against best fit: holes that are always a little too small, kept apart by small blocks that stay. */
static void against_bestfit(void)
{
    uint64_t bytes = MIB + next_random() % MIB;
    uint32_t large[150], small[150];
    for (unsigned round = 0; round < 12; round++) {
        for (unsigned i = 0; i < 150; i++) {
            large[i] = take(bytes, 0);
            small[i] = take(512 + next_random() % 4096, 0);
        }
        for (unsigned i = 0; i < 150; i++)
            give(large[i]);
        for (unsigned i = 0; i < 150; i++)
            if (next_random() % 3)
                give(small[i]);
        bytes += bytes / 8 + 512;
    }
}

/* Against stealing: small blocks that pin the granules between large ones. */
static void against_stealing(void)
{
    uint32_t large[150], wide[40], pins[2000];
    unsigned pins_count = 0;
    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 0; i < 150; i++) {
            large[i] = take(2 * MIB - next_random() % 8192, 0);
            if (pins_count < 1900 && next_random() % 2)
                pins[pins_count++] = take(4 * KIB + next_random() % (64 * KIB), 0);
        }
        for (unsigned i = 0; i < 150; i++)
            give(large[i]);
        for (unsigned i = 0; i < 40; i++)
            wide[i] = take((3 + next_random() % 6) * MIB + next_random() % MIB, 0);
        for (unsigned i = 0; i < 40; i++)
            give(wide[i]);
        for (unsigned i = 0; i < pins_count; i++)
            if (next_random() % 4 == 0) {
                give(pins[i]);
                pins[i] = pins[--pins_count];
            }
    }
}

static const struct {
    const char *name;
    void (*make)(void);
} families[] = {
    {"streams", streams},
    {"growing", growing},
    {"experts", experts},
    {"server", server},
    {"anti-bestfit", against_bestfit},
    {"anti-stealing", against_stealing},
};

/* ---- Measuring
 * -------------------------------------------------------------------------------------------------- */

struct total {
    double sum[ZR_POLICY_COUNT], most[ZR_POLICY_COUNT]; /* of ratios */
    unsigned above;                                     /* sequences with zr more than a granule above */
    double worst_granules;                              /* the largest difference */
};

static zr_result measure(zr_arena *arena, struct total *total)
{
    struct zr_sequence sequence = {.events = events,
                                   .events_count = events_count,
                                   .blocks_count = blocks_count,
                                   .lower_bound_bytes = lower_bound_bytes,
                                   .host_arena = arena};
    uint64_t own = 0, best = UINT64_MAX;
    for (unsigned i = 0; i < ZR_POLICY_COUNT; i++) {
        struct zr_replay_report report;
        zr_result result =
            zr_replay(&sequence, &(struct zr_replay_options){.policy = (enum zr_policy)i}, &report);
        if (result != ZR_OK)
            return result;
        double ratio = (double)report.peak_reserved_bytes / (double)lower_bound_bytes;
        total->sum[i] += ratio;
        total->most[i] = ratio > total->most[i] ? ratio : total->most[i];
        if (i == ZR_POLICY_ZR)
            own = report.peak_reserved_bytes;
        else if (report.peak_reserved_bytes < best)
            best = report.peak_reserved_bytes;
    }
    double granules = ((double)own - (double)best) / GRANULE_BYTES;
    total->above += granules > 1;
    total->worst_granules = granules > total->worst_granules ? granules : total->worst_granules;
    return ZR_OK;
}

int main(int argc, char **argv)
{
    uint64_t set = argc > 1 ? strtoull(argv[1], NULL, 0) : 0;
    zr_backend *host;
    zr_arena *arena;
    zr_result result = zr_backend_host_create(&host, NULL);
    if (result == ZR_OK)
        result = zr_arena_create(&arena, &(struct zr_arena_options){.backend = host});
    printf("%-14s %28s %42s\n%-14s", "", "mean ratio to the lower bound (largest)", "zr above the best other",
           "");
    for (unsigned i = 0; i < ZR_POLICY_COUNT; i++)
        printf(" %15s", zr_policy_name((enum zr_policy)i));
    printf("   by > 1 granule    worst\n");
    for (size_t family = 0; family < sizeof families / sizeof *families && result == ZR_OK; family++) {
        struct total total = {.worst_granules = -1e9};
        for (unsigned seed = 0; seed < SEEDS && result == ZR_OK; seed++) {
            random_state = UINT64_C(0x9e3779b97f4a7c15) * (seed + 1 + 100 * family + 1000 * set);
            events_count = blocks_count = 0;
            live_bytes = lower_bound_bytes = 0;
            families[family].make();
            unsigned above = total.above;
            result = measure(arena, &total);
            if (total.above > above)
                fprintf(stderr, "%s: sequence %u of set %llu\n", families[family].name, seed,
                        (unsigned long long)set);
        }
        printf("%-14s", families[family].name);
        for (unsigned i = 0; i < ZR_POLICY_COUNT; i++)
            printf(" %6.4f (%6.4f)", total.sum[i] / SEEDS, total.most[i]);
        printf("   %8u of %d %+8.0f\n", total.above, SEEDS, total.worst_granules);
        fflush(stdout);
    }
    if (result != ZR_OK) {
        fprintf(stderr, "%s\n", zr_last_error());
        return 1;
    }
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(host);
    return 0;
}
