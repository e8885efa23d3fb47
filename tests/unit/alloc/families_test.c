/* families_test.c: on 238 generated sequences our arena is nowhere more than two granules above the best of
 * the other policies; and the sequences are what their families say. bench_families has the figures. */
#include "tests/support/families.h"
#include "tests/support/tap.h"

/* Granules that zr may take above the best of the other policies: one for its own ends, one for small blocks
 * that live apart. */
enum { ABOVE_MAX = 2 };

static unsigned bits_count(uint64_t bits)
{
    return (unsigned)__builtin_popcountll(bits);
}

/* Whether allocations come from as many threads and streams as the family has, and frees from its threads. */
static bool is_of_family(const struct zr_sequence *sequence, const struct family *family)
{
    uint64_t allocating = 0, freeing = 0, streams = 0;
    for (size_t i = 0; i < sequence->events_count; i++) {
        const struct zr_event *event = &sequence->events[i];
        if (event->thread >= 64 || event->stream >= 64)
            return false;
        uint64_t thread = UINT64_C(1) << event->thread;
        if (event->kind == ZR_EVENT_FREE) {
            freeing |= thread;
            continue;
        }
        allocating |= thread;
        streams |= UINT64_C(1) << event->stream;
    }
    return bits_count(allocating) == family->threads_count && freeing == allocating &&
           bits_count(streams) == family->streams_count;
}

/* Blocks that another thread frees than took them. */
static size_t strangers_count(const struct zr_sequence *sequence)
{
    static uint16_t taker[FAMILY_BLOCKS_MAX];
    size_t count = 0;
    for (size_t i = 0; i < sequence->events_count; i++) {
        const struct zr_event *event = &sequence->events[i];
        if (event->kind == ZR_EVENT_ALLOC)
            taker[event->block] = event->thread;
        else
            count += taker[event->block] != event->thread;
    }
    return count;
}

/* Returns the sequences on which best fit would not keep the rule: one that nothing breaks would say nothing.
 */
static unsigned test_family(size_t number, zr_arena *arena)
{
    static struct making making;
    const struct family *family = &families[number];
    unsigned astray = 0, above = 0, bestfit_above = 0;
    int64_t worst = INT64_MIN;
    size_t strangers = 0;
    for (unsigned seed = 0; seed < FAMILY_SEEDS; seed++) {
        struct family_peaks peaks;
        struct zr_sequence sequence = family_sequence(&making, number, seed, 0, arena);
        zr_result result = family_measure(&sequence, &peaks);
        if (result != ZR_OK) {
            tap_ok(false, "%s: sequence %u runs: %s", family->name, seed, zr_last_error());
            return 0;
        }
        astray += !is_of_family(&sequence, family);
        strangers += strangers_count(&sequence);
        int64_t granules = family_above(&peaks, ZR_POLICY_ZR);
        if (granules > ABOVE_MAX)
            tap_note("%s: sequence %u: %lld granules above the best of the others", family->name, seed,
                     (long long)granules);
        above += granules > ABOVE_MAX;
        worst = granules > worst ? granules : worst;
        bestfit_above += family_above(&peaks, ZR_POLICY_BESTFIT) > ABOVE_MAX;
    }
    tap_ok(astray == 0, "%s: each sequence has threads %u and streams %u", family->name,
           family->threads_count, family->streams_count);
    tap_ok((strangers > 0) == family->shared, "%s: %zu blocks are freed by another thread", family->name,
           strangers);
    tap_ok(above == 0, "%s: above the best of the others by %+lld granules at most, in %d sequences",
           family->name, (long long)worst, FAMILY_SEEDS);
    return bestfit_above;
}

int main(void)
{
    zr_backend *host = NULL;
    zr_arena *arena = NULL;
    unsigned bestfit_above = 0;
    tap_result(zr_backend_host_create(&host, NULL), ZR_OK, "a host backend");
    tap_result(zr_arena_create(&arena, &(struct zr_arena_options){.backend = host}), ZR_OK, "an arena on it");
    if (!arena)
        return tap_done();
    for (size_t i = 0; i < FAMILIES_COUNT; i++)
        bestfit_above += test_family(i, arena);
    tap_ok(bestfit_above > FAMILY_SEEDS, "best fit is more than a granule above in %u sequences",
           bestfit_above);
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(host);
    return tap_done();
}
