/* families.h: sequences of seven families, made from seeds, and how far our arena is above the best of the
 * other policies on each. For bench_families.c, which prints it, and families_test.c, which holds it to a
 * granule. */
#ifndef ZR_TEST_FAMILIES_H
#define ZR_TEST_FAMILIES_H

#include <stdbool.h>
#include <stdlib.h>

#include "defrag/zr_defrag.h"
#include "tests/support/random.h"

#define KIB UINT64_C(1024)
#define MIB (UINT64_C(1) << 20)

enum { FAMILY_SEEDS = 34, FAMILY_GRANULE_BYTES = 2 << 20, FAMILY_BLOCKS_MAX = 40000 };

/* ---- A sequence being made ----------------------------------------------------------------------------- */

struct making {
    struct zr_event events[2 * FAMILY_BLOCKS_MAX];
    uint64_t bytes_of[FAMILY_BLOCKS_MAX];
    size_t events_count;
    uint32_t blocks_count;
    uint64_t live_bytes, lower_bound_bytes, random_state;
    uint16_t thread; /* that speaks */
};

static inline uint64_t draw(struct making *m)
{
    return xorshift64(&m->random_state);
}

static inline struct zr_event *add_event(struct making *m)
{
    if (m->events_count == 2 * FAMILY_BLOCKS_MAX)
        abort(); /* a family is too long */
    return &m->events[m->events_count++];
}

static inline uint32_t take(struct making *m, uint64_t bytes, uint64_t stream)
{
    *add_event(m) = (struct zr_event){.kind = ZR_EVENT_ALLOC,
                                      .tag = ZR_TAG_OTHER,
                                      .thread = m->thread,
                                      .block = m->blocks_count,
                                      .bytes = bytes,
                                      .stream = stream};
    m->bytes_of[m->blocks_count] = bytes;
    m->live_bytes += bytes;
    if (m->live_bytes > m->lower_bound_bytes)
        m->lower_bound_bytes = m->live_bytes;
    return m->blocks_count++;
}

static inline void give(struct making *m, uint32_t block)
{
    *add_event(m) = (struct zr_event){.kind = ZR_EVENT_FREE,
                                      .tag = ZR_TAG_OTHER,
                                      .thread = m->thread,
                                      .block = block,
                                      .bytes = m->bytes_of[block]};
    m->live_bytes -= m->bytes_of[block];
}

/* ---- Families ------------------------------------------------------------------------------------------ */

/* Random replacement among 400 places, sizes from a table, four streams. Four threads have a hundred places
 * each, and every eighth time one thread frees or fills what is another's. */
static inline void family_streams(struct making *m)
{
    static const uint64_t sizes[] = {786432, 2359296, 3145728, 196608, 3072, 1024, 12582912, 1536, 25165824};
    uint32_t slots[400];
    bool used[400] = {false};
    for (unsigned i = 0; i < 12000; i++) {
        size_t at = draw(m) % 400;
        m->thread = (uint16_t)((draw(m) % 8 ? at : draw(m)) % 4);
        if (used[at])
            give(m, slots[at]);
        else
            slots[at] = take(m, sizes[draw(m) % 9], draw(m) % 4);
        used[at] = !used[at];
    }
}

/* Training steps whose sequences grow: activations kept forward, freed backward. */
static inline void family_growing(struct making *m)
{
    uint64_t layers = 12 + draw(m) % 12;
    uint32_t kept[24][3];
    for (unsigned step = 0; step < 25; step++) {
        uint64_t length = 128 + step * (8 + draw(m) % 16);
        for (uint64_t layer = 0; layer < layers; layer++) {
            kept[layer][0] = take(m, length * 16384, 0);
            kept[layer][1] = take(m, length * length * 32, 0);
            uint32_t scratch = take(m, length * 16384, 0);
            kept[layer][2] = take(m, length * 3072, 0);
            give(m, scratch);
        }
        for (uint64_t layer = layers; layer-- > 0;) {
            uint32_t gradient = take(m, length * 16384, 0);
            for (unsigned i = 0; i < 3; i++)
                give(m, kept[layer][i]);
            give(m, gradient);
        }
    }
}

/* Mixture of experts: how many tokens go where differs from step to step. */
static inline void family_experts(struct making *m)
{
    uint32_t held[256];
    for (unsigned i = 0; i < 64; i++)
        take(m, 4 * MIB + i * 77, 0);
    for (unsigned step = 0; step < 30; step++) {
        unsigned count = 0;
        for (unsigned layer = 0; layer < 12; layer++) {
            uint64_t left = 4096;
            for (unsigned expert = 0; expert < 8; expert++) {
                uint64_t tokens = expert == 7 ? left : draw(m) % (left / 2 + 1);
                left -= tokens;
                if (tokens == 0)
                    continue;
                held[count++] = take(m, tokens * 4096, 0);
                if (draw(m) % 2) {
                    uint32_t inner = take(m, tokens * 16384, 0);
                    held[count++] = take(m, tokens * 4096, 0);
                    give(m, inner);
                }
            }
        }
        while (count > 0)
            give(m, held[--count]);
    }
}

/* A server: sizes over eighteen powers of two, a load that swells, two streams, and eight workers of which
 * any frees what any has taken. */
static inline void family_server(struct making *m)
{
    uint32_t slots[600];
    bool used[600] = {false};
    for (unsigned i = 0; i < 15000; i++) {
        size_t at = draw(m) % (200 + i / 20 % 400);
        m->thread = (uint16_t)(draw(m) % 8);
        if (used[at])
            give(m, slots[at]);
        else
            slots[at] = take(m, (256 + draw(m) % 256) << draw(m) % 18, draw(m) % 2);
        used[at] = !used[at];
    }
}

/* Against best fit: holes that are always a little too small, kept apart by small blocks that stay. */
static inline void family_against_bestfit(struct making *m)
{
    uint64_t bytes = MIB + draw(m) % MIB;
    uint32_t large[150], small[150];
    for (unsigned round = 0; round < 12; round++) {
        for (unsigned i = 0; i < 150; i++) {
            large[i] = take(m, bytes, 0);
            small[i] = take(m, 512 + draw(m) % 4096, 0);
        }
        for (unsigned i = 0; i < 150; i++)
            give(m, large[i]);
        for (unsigned i = 0; i < 150; i++)
            if (draw(m) % 3)
                give(m, small[i]);
        bytes += bytes / 8 + 512;
    }
}

/* Against stealing: small blocks that pin the granules between large ones. */
static inline void family_against_stealing(struct making *m)
{
    uint32_t large[150], wide[40], pins[2000];
    unsigned pins_count = 0;
    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 0; i < 150; i++) {
            large[i] = take(m, 2 * MIB - draw(m) % 8192, 0);
            if (pins_count < 1900 && draw(m) % 2)
                pins[pins_count++] = take(m, 4 * KIB + draw(m) % (64 * KIB), 0);
        }
        for (unsigned i = 0; i < 150; i++)
            give(m, large[i]);
        for (unsigned i = 0; i < 40; i++)
            wide[i] = take(m, (3 + draw(m) % 6) * MIB + draw(m) % MIB, 0);
        for (unsigned i = 0; i < 40; i++)
            give(m, wide[i]);
        for (unsigned i = 0; i < pins_count; i++)
            if (draw(m) % 4 == 0) {
                give(m, pins[i]);
                pins[i] = pins[--pins_count];
            }
    }
}

enum { TURNS_THREADS = 4, TURNS_STEP_MAX = 300 };

/* One thread's step: sizes from a table, and after how many more allocations of the step each is freed. */
struct turns_lane {
    uint64_t bytes[TURNS_STEP_MAX];
    unsigned end[TURNS_STEP_MAX]; /* freed before this allocation of the step; its length: at its end */
    uint32_t block[TURNS_STEP_MAX];
    bool live[TURNS_STEP_MAX];
    unsigned length, at;
};

static inline void turns_begin(struct making *m, struct turns_lane *sequence)
{
    static const uint64_t sizes[] = {786432, 2359296, 3145728, 196608, 3072, 1024, 12582912, 1536, 25165824};
    *sequence = (struct turns_lane){.length = (unsigned)(60 + draw(m) % (TURNS_STEP_MAX - 60))};
    for (unsigned i = 0; i < sequence->length; i++) {
        sequence->bytes[i] = sizes[draw(m) % 9];
        sequence->end[i] = i + 1 + (unsigned)(draw(m) % 60);
        if (sequence->end[i] > sequence->length)
            sequence->end[i] = sequence->length;
    }
}

static inline void turns_go_on(struct making *m, struct turns_lane *sequence, uint64_t stream)
{
    if (sequence->at == sequence->length)
        sequence->at = 0;
    sequence->block[sequence->at] = take(m, sequence->bytes[sequence->at], stream);
    sequence->live[sequence->at++] = true;
    for (unsigned i = 0; i < sequence->at; i++)
        if (sequence->live[i] && sequence->end[i] == sequence->at) {
            give(m, sequence->block[i]);
            sequence->live[i] = false;
        }
}

/* Four threads, each on a stream of its own, repeat steps of their own and take turns of 1 to 64 allocations.
 */
static inline void family_turns(struct making *m)
{
    struct turns_lane sequences[TURNS_THREADS];
    for (unsigned i = 0; i < TURNS_THREADS; i++)
        turns_begin(m, &sequences[i]);
    for (unsigned i = 0; i < 150; i++) {
        m->thread = (uint16_t)(draw(m) % TURNS_THREADS);
        for (uint64_t left = 1 + draw(m) % 64; left > 0; left--)
            turns_go_on(m, &sequences[m->thread], m->thread);
    }
}

struct family {
    const char *name;
    void (*make)(struct making *m);
    unsigned threads_count, streams_count;
    bool shared; /* threads free what others have taken */
};

static const struct family families[] = {
    {"streams", family_streams, 4, 4, true},
    {"growing", family_growing, 1, 1, false},
    {"experts", family_experts, 1, 1, false},
    {"server", family_server, 8, 2, true},
    {"anti-bestfit", family_against_bestfit, 1, 1, false},
    {"anti-stealing", family_against_stealing, 1, 1, false},
    {"turns", family_turns, TURNS_THREADS, TURNS_THREADS, false},
};
enum { FAMILIES_COUNT = sizeof families / sizeof *families };

/* Makes sequence `seed` of a family of the given set; its events are the maker's until the next one. */
static inline struct zr_sequence family_sequence(struct making *m, size_t family, uint64_t seed, uint64_t set,
                                                 zr_arena *host_arena)
{
    m->random_state = UINT64_C(0x9e3779b97f4a7c15) * (seed + 1 + 100 * family + 1000 * set);
    m->events_count = 0;
    m->blocks_count = 0;
    m->live_bytes = m->lower_bound_bytes = 0;
    m->thread = 0;
    families[family].make(m);
    return (struct zr_sequence){.events = m->events,
                                .events_count = m->events_count,
                                .blocks_count = m->blocks_count,
                                .lower_bound_bytes = m->lower_bound_bytes,
                                .host_arena = host_arena};
}

/* ---- Measuring ----------------------------------------------------------------------------------------- */

/* What each policy reserved at most, in granules. */
struct family_peaks {
    uint64_t granules[ZR_POLICY_COUNT];
};

static inline zr_result family_measure(const struct zr_sequence *sequence, struct family_peaks *out)
{
    zr_result result = ZR_OK;
    for (unsigned i = 0; i < ZR_POLICY_COUNT && result == ZR_OK; i++) {
        struct zr_replay_report report = {0};
        result = zr_replay(
            sequence,
            &(struct zr_replay_options){.policy = (enum zr_policy)i, .granule_bytes = FAMILY_GRANULE_BYTES},
            &report);
        if (result == ZR_OK && report.failed_at != UINT64_MAX)
            result = ZR_ERR_MEMORY; /* what did not run to its end has no peak to compare */
        out->granules[i] = (report.peak_reserved_bytes + FAMILY_GRANULE_BYTES - 1) / FAMILY_GRANULE_BYTES;
    }
    return result;
}

/* How far a policy is above the best of the others, in granules; below it: negative. */
static inline int64_t family_above(const struct family_peaks *peaks, enum zr_policy policy)
{
    uint64_t best = UINT64_MAX;
    for (unsigned i = 0; i < ZR_POLICY_COUNT; i++)
        if (i != (unsigned)policy && peaks->granules[i] < best)
            best = peaks->granules[i];
    return (int64_t)peaks->granules[policy] - (int64_t)best;
}

#endif
