/* follow_find_test.c: blocks of plans by address: random plans beside a model of which block each byte of the
 * region is in, frees of what is no block, and lookups by other threads while plans are followed and
 * replaced. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/os.h"
#include "tests/support/draws.h"
#include "tests/support/plans_support.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"

enum { STEPS = 300, ROUNDS = 3, LOOKS = 40, READERS = 2, PASSES = 200, PATIENCE_S = 120 };

static struct zr_plan_step steps[STEPS];
static char *blocks[STEPS];
static char *base; /* of the region */

static void begin(void)
{
    zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = 2 * MIB});
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .name = "find"});
}

static void end(void)
{
    tap_result(zr_arena_check(arena), ZR_OK, "the books are right at the end");
    tap_ok(zr_arena_destroy(arena, NULL) == ZR_OK && zr_backend_destroy(backend) == ZR_OK,
           "and nothing is left");
}

static size_t rounded(size_t bytes)
{
    return (bytes + 255) & ~(size_t)255;
}

/* First fit around the circle, by brute force; small blocks lie where large ones were and the other way
 * about. The first step is large and stays for a whole pass. */
static size_t make_plan(void)
{
    size_t height = 0;
    for (size_t i = 0; i < STEPS; i++) {
        size_t bytes = (random_below(3) ? 256 : 40 * KIB) * (1 + random_below(30)) - random_below(200);
        size_t alive = 1 + random_below(random_below(10) ? 20 : STEPS), at = 0;
        steps[i] = i ? step(bytes, 0, (uint32_t)alive) : step(3 * MIB, 0, STEPS);
        for (bool moved = i > 0; moved;) {
            moved = false;
            for (size_t k = 0; k < i; k++) {
                size_t end = steps[k].offset_bytes + rounded(steps[k].request.bytes);
                bool together = i - k < steps[k].alive_count || STEPS + k - i < steps[i].alive_count;
                if (together && at < end && steps[k].offset_bytes < at + rounded(bytes)) {
                    at = end;
                    moved = true;
                }
            }
        }
        steps[i].offset_bytes = at;
        if (at + rounded(steps[i].request.bytes) > height)
            height = at + rounded(steps[i].request.bytes);
    }
    return height;
}

static zr_result install(size_t height)
{
    struct zr_plan_sequence sequence = {.count = STEPS, .any = true};
    return zr_arena_install_plan(arena, &(struct zr_plan){.steps = steps,
                                                          .steps_count = STEPS,
                                                          .sequences = &sequence,
                                                          .sequences_count = 1,
                                                          .region_bytes = height});
}

/* Frees what is to be gone when the step comes; `all`: whatever lives. */
static bool free_due(size_t now, bool all)
{
    bool good = true;
    for (size_t i = 0; i < STEPS; i++)
        if (blocks[i] && (all || (now > i ? now - i : STEPS + now - i) == steps[i].alive_count)) {
            good &= zr_arena_free(arena, blocks[i]) == ZR_OK;
            blocks[i] = NULL;
        }
    return good;
}

/* The step whose block the byte of the region is in; STEPS: none. */
static size_t model_at(size_t offset)
{
    for (size_t i = 0; i < STEPS; i++)
        if (blocks[i] && offset - steps[i].offset_bytes < steps[i].request.bytes)
            return i;
    return STEPS;
}

/* Looks for random bytes and for ends of random blocks. Between a block's last byte and its rounded end both
 * answers are good. */
static bool finds_as_model(size_t height)
{
    bool good = true;
    for (unsigned i = 0; i < LOOKS; i++) {
        const struct zr_plan_step *own = &steps[random_below(STEPS)];
        size_t places[] = {random_below(height), own->offset_bytes,
                           own->offset_bytes + own->request.bytes - 1,
                           own->offset_bytes + rounded(own->request.bytes)};
        size_t at = places[random_below(4)], number = model_at(at);
        struct zr_block_info info;
        zr_result result = zr_arena_find(arena, base + at, &info);
        if (number < STEPS)
            good &= result == ZR_OK && info.address == blocks[number] &&
                    info.bytes == steps[number].request.bytes;
        else if (result == ZR_OK)
            good &= (size_t)(base + at - (char *)info.address) < info.reserved_bytes &&
                    (size_t)(base + at - (char *)info.address) >= info.bytes;
    }
    return good;
}

static void test_model(void)
{
    for (unsigned round = 0; round < ROUNDS; round++) {
        bool good = true, found = true, refused = true;
        begin();
        size_t height = make_plan();
        tap_result(install(height), ZR_OK, "a random plan");
        for (size_t i = 0; i < 3 * STEPS; i++) {
            good &= free_due(i % STEPS, false);
            blocks[i % STEPS] = take(steps[i % STEPS].request.bytes);
            if (i == 0)
                base = blocks[0];
            good &= blocks[i % STEPS] == base + steps[i % STEPS].offset_bytes;
            found &= finds_as_model(height);
            /* What no block begins with is refused, and the counters stay as they were. */
            size_t other = steps[random_below(STEPS)].offset_bytes, number = model_at(other);
            if (number == STEPS || blocks[number] != base + other)
                refused &= zr_arena_free(arena, base + other) != ZR_OK;
        }
        tap_ok(good, "is followed");
        tap_ok(found, "each byte is found in the block that holds it");
        tap_ok(refused, "and nothing else is freed");
        tap_is(counts().unplanned_count + counts().conflicts_count + counts().refused_count, 0,
               "all of it planned");
        free_due(0, true);
        end();
    }
}

/* ---- Pointers that are no block's ---------------------------------------------------------------------- */

static void test_refused(void)
{
    struct zr_block_info info;
    begin();
    size_t height = make_plan();
    tap_result(install(height), ZR_OK, "a plan");
    char *first = take(steps[0].request.bytes);
    size_t unused = 0;
    for (size_t i = 1; i < STEPS && unused == 0; i++)
        unused = steps[i].offset_bytes >= 3 * MIB ? steps[i].offset_bytes : 0;
    tap_result(zr_arena_free(arena, first + unused), ZR_ERR_FOREIGN, "a place that was not used yet");
    tap_result(zr_arena_find(arena, first + unused, &info), ZR_ERR_FOREIGN, "is not found either");
    tap_result(zr_arena_free(arena, first + 256), ZR_ERR_FOREIGN, "nor the inside of a block freed");
    tap_result(zr_arena_free(arena, first + 1), ZR_ERR_FOREIGN, "nor its second byte");
    tap_result(zr_arena_install_plan(arena, NULL), ZR_OK, "a plan goes while a block of it lives");
    tap_result(zr_arena_find(arena, first + 2 * MIB, &info), ZR_OK, "which is found");
    tap_ok(info.address == first, "by each of its bytes");
    tap_result(zr_arena_free(arena, first + 256), ZR_ERR_FOREIGN, "freed is only its first");
    tap_result(zr_arena_free(arena, first), ZR_OK, "as ever");
    tap_result(zr_arena_find(arena, first + 2 * MIB, &info), ZR_ERR_FOREIGN, "then nothing is there");
    tap_result(zr_arena_free(arena, first + unused), ZR_ERR_FOREIGN, "nor at places that were not used");
    zr_result again = zr_arena_free(arena, first);
    tap_ok(again == ZR_ERR_DOUBLE_FREE || again == ZR_ERR_FOREIGN, "a second free is refused");
    end();
}

/* ---- Readers ------------------------------------------------------------------------------------------- */

/* The block of the first step, while it lives: odd generations. */
static struct {
    _Atomic unsigned generation;
    _Atomic(char *) block;
    _Atomic bool over, sure; /* sure: somebody has found it */
} shown;

struct reader {
    pthread_t thread;
    uint64_t state, sure_count, wrong_count;
};

static void *read_on(void *argument)
{
    struct reader *own = argument;
    while (!atomic_load(&shown.over)) {
        unsigned generation = atomic_load(&shown.generation);
        char *block = atomic_load(&shown.block);
        struct zr_block_info info;
        if (!block)
            continue;
        char *byte = block + xorshift64(&own->state) % (6 * MIB);
        zr_result result = zr_arena_find(arena, byte, &info);
        bool holds = result == ZR_OK && (size_t)(byte - (char *)info.address) < info.reserved_bytes;
        bool sure = generation % 2 == 1 && atomic_load(&shown.generation) == generation &&
                    (size_t)(byte - block) < 3 * MIB;
        own->sure_count += sure;
        if (sure)
            atomic_store(&shown.sure, true);
        own->wrong_count += (result == ZR_OK && !holds) || (sure && (!holds || info.address != block));
    }
    return NULL;
}

/* The plan is followed, and replaced every few passes, now and then while its first block lives. */
static bool follow_and_replace(size_t height)
{
    bool good = true;
    uint64_t end_ns = zr_os_now_ns() + PATIENCE_S * UINT64_C(1000000000);
    for (unsigned pass = 0; pass < PASSES || (!atomic_load(&shown.sure) && zr_os_now_ns() < end_ns); pass++) {
        char *kept = take(steps[0].request.bytes);
        atomic_store(&shown.block, kept);
        atomic_fetch_add(&shown.generation, 1);
        for (size_t i = 1; i < STEPS; i++) {
            good &= free_due(i, false);
            blocks[i] = take(steps[i].request.bytes);
            good &= blocks[i] != NULL;
        }
        good &= free_due(0, true);
        if (pass % 4 == 3)
            good &= install(height) == ZR_OK;
        atomic_fetch_add(&shown.generation, 1);
        good &= zr_arena_free(arena, kept) == ZR_OK;
        if (pass % 8 == 1)
            good &= install(height) == ZR_OK;
    }
    return good;
}

static void test_readers(void)
{
    struct reader readers[READERS] = {{0}};
    uint64_t sure_count = 0, wrong_count = 0;
    begin();
    size_t height = make_plan();
    tap_result(install(height), ZR_OK, "a plan for readers");
    for (unsigned i = 0; i < READERS; i++) {
        readers[i].state = 77 + i;
        if (pthread_create(&readers[i].thread, NULL, read_on, &readers[i]) != 0)
            abort();
    }
    tap_ok(follow_and_replace(height), "is followed and replaced while others look");
    atomic_store(&shown.over, true);
    for (unsigned i = 0; i < READERS; i++) {
        pthread_join(readers[i].thread, NULL);
        sure_count += readers[i].sure_count;
        wrong_count += readers[i].wrong_count;
    }
    tap_ok(sure_count > 0, "who find a block that lives meanwhile (%llu times)",
           (unsigned long long)sure_count);
    tap_is(wrong_count, 0, "and never a wrong one");
    end();
}

int main(void)
{
    random_state = run_seed();
    tap_note("seed %llu", (unsigned long long)random_state);
    test_model();
    test_refused();
    test_readers();
    return tap_done();
}
