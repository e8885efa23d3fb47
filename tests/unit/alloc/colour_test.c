/* colour_test.c: pages at several addresses: plans with pages made by hand and at random on every backend,
 * where no two live blocks ever share memory, plans that are learned of generated blocks of whole granules,
 * which take no more than is live at once, and each failure on the way.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/core/arena_internal.h"
#include "alloc/base/fault.h"
#include "alloc/plan/follow.h"
#include "defrag/learn/learner.h"
#include "tests/support/cuda_support.h"
#include "tests/support/draws.h"
#include "tests/support/plans_support.h"
#include "tests/support/records.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"

enum kind { SIM, LATE_SIM, HOST, GPU, KINDS };

static const char *const kind_names[KINDS] = {"sim", "sim with streams", "host", "emulated GPU"};

enum { WORK_NS = 1000 };

static const struct zr_emulator *emulator;
static size_t granule;
static enum kind kind;
/* ---- Arenas -------------------------------------------------------------------------------------------- */

static size_t reserve_granules = 8192;

static bool begin(enum kind wanted, size_t limit_bytes)
{
    kind = wanted;
    granule = kind == HOST ? 64 * KIB : 2 * MIB;
    zr_result result = ZR_OK;
    if (kind == HOST)
        result = zr_backend_host_create(&backend, &(struct zr_host_options){.granule_bytes = granule});
    else if (kind == GPU)
        result = zr_backend_cuda_create(&backend, &(struct zr_cuda_options){.granule_bytes = granule});
    else
        result = zr_backend_sim_create(
            &backend,
            &(struct zr_sim_options){.granule_bytes = granule, .work_ns = kind == LATE_SIM ? WORK_NS : 0});
    if (result == ZR_OK)
        result =
            zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend,
                                                               .name = "coloured",
                                                               .reserve_bytes = reserve_granules * granule,
                                                               .limit_bytes = limit_bytes});
    return result == ZR_OK;
}

static bool end(void)
{
    bool good = zr_arena_check(arena) == ZR_OK;
    good &= zr_arena_destroy(arena, NULL) == ZR_OK && zr_backend_destroy(backend) == ZR_OK;
    if (kind == GPU)
        good &= emulator->state().used_bytes + emulator->state().mappings_count == 0;
    return good;
}

/* What streams have under way is over. */
static void let_pass(void)
{
    if (kind == LATE_SIM)
        zr_sim_clock_advance(backend, 10 * WORK_NS);
    zr_backend_synchronize(backend);
}

/* The memory under an address. */
static const struct zr_handle *handle_at(const char *address)
{
    return zr_range_mapping(arena->range, (size_t)(address - arena->base))->handle;
}

/* ---- By hand ------------------------------------------------------------------------------------------- */

/* Pages by address: the third block has the outer pages of the first two, side by side. */
static const uint32_t four_pages[] = {0, 1, 2, 3, 0, 3};
static struct zr_plan_step four[4];

static zr_result install_four(const uint32_t *pages, size_t pages_count)
{
    four[0] = step(2 * granule, 0, 2);
    four[1] = step(2 * granule, 2 * granule, 1);
    four[2] = step(2 * granule, 4 * granule, 1);
    four[3] = step(3 * granule - 5, 1 * granule, 1);
    static const struct zr_plan_sequence sequence = {.count = 4, .any_stream = true};
    struct zr_plan_sequence own = sequence;
    own.thread = zr_thread_number();
    return zr_arena_install_plan(arena, &(struct zr_plan){.steps = four,
                                                          .steps_count = 4,
                                                          .sequences = &own,
                                                          .sequences_count = 1,
                                                          .region_bytes = 6 * granule,
                                                          .pages = pages,
                                                          .pages_count = pages_count});
}

/* Once around: each block where it was planned, on the pages that it has there. */
static bool go_round(char **first)
{
    char *a = take(2 * granule), *b = take(2 * granule);
    bool good = a && b == a + 2 * granule;
    if (!good)
        return false;
    const struct zr_handle *outer[2] = {handle_at(a), handle_at(b + granule)};
    zr_arena_free(arena, b);
    zr_arena_free(arena, a);
    char *c = take(2 * granule);
    good &= c == a + 4 * granule && handle_at(c) == outer[0] && handle_at(c + granule) == outer[1];
    zr_arena_free(arena, c);
    char *d = take(3 * granule - 5);
    good &= d == a + granule;
    zr_arena_free(arena, d);
    *first = a;
    return good && zr_arena_check(arena) == ZR_OK;
}

static void test_by_hand(enum kind which)
{
    const char *name = kind_names[which];
    char *first = NULL;
    if (!begin(which, 0)) {
        tap_skip("%s: %s", name, zr_last_error());
        return;
    }
    zr_arena_free(arena, take(8 * granule)); /* so much may be held beside the plan */
    let_pass();
    zr_arena_trim(arena, 0, NULL);
    let_pass();
    zr_arena_trim(arena, 0, NULL);
    tap_result(install_four(four_pages, 4), ZR_OK, "%s: a plan with pages comes into force", name);
    tap_is(stats().reserved_bytes, 0, "and takes nothing yet");
    tap_ok(go_round(&first), "its blocks have the pages they were given");
    tap_ok(stats().reserved_bytes == 4 * granule && stats().mapped_bytes == 4 * granule &&
               counts().memory_bytes == 4 * granule && counts().region_bytes == 6 * granule,
           "six addresses take four pages");
    tap_is(stats().stranded_bytes, 0, "of which none is stranded");
    uint64_t before = stats().backend_calls_count;
    bool same = true;
    for (unsigned i = 0; i < 50; i++)
        same &= go_round(&first);
    tap_ok(same, "again and again");
    tap_is(stats().backend_calls_count - before, 0, "without a driver call");

    /* The first block stays: the third has one of its pages, at another address. */
    char *a = take(2 * granule);
    zr_arena_free(arena, take(2 * granule));
    char *c = take(2 * granule);
    tap_ok(c && (c < first || c >= first + 6 * granule) && counts().conflicts_count == 1,
           "%s: a page under a late block goes to nobody else", name);
    size_t released = 0;
    tap_result(zr_arena_trim(arena, 0, &released), ZR_OK, "a trim");
    tap_ok(released == 2 * granule && stats().reserved_bytes == 4 * granule,
           "takes the pages that no block has, at all their addresses");
    tap_result(zr_arena_check(arena), ZR_OK, "and the books are right");
    zr_arena_free(arena, a);
    zr_arena_free(arena, c);
    zr_arena_free(arena, take(3 * granule - 5));
    tap_ok(go_round(&first), "then the plan has them back");

    /* Another plan, while a block of this one lives. */
    for (unsigned i = 0; i < 2; i++) {
        zr_arena_trim(arena, 0, NULL); /* asks the streams; what they say counts the next time */
        let_pass();
    }
    zr_arena_trim(arena, 0, NULL);
    go_round(&first);
    a = take(2 * granule);
    tap_result(install_four(four_pages, 4), ZR_OK, "%s: a plan takes its place", name);
    tap_ok(stats().cached_bytes == 2 * granule && zr_arena_check(arena) == ZR_OK,
           "all but the pages of its block go to cache");
    char *again = NULL;
    tap_ok(go_round(&again) && again != a, "the new one is followed");
    tap_ok(stats().reserved_bytes == 6 * granule, "on pages of its own, and those from cache");
    tap_result(zr_arena_free(arena, a), ZR_OK, "the last block of the old one goes");
    tap_ok(stats().mapped_bytes == 4 * granule && stats().cached_bytes == 2 * granule,
           "and its pages with it, into cache");
    tap_result(zr_arena_install_plan(arena, NULL), ZR_OK, "no plan any more");
    tap_ok(stats().mapped_bytes == 0 && stats().cached_bytes == 6 * granule, "and no page is mapped");
    install_four(four_pages, 4);
    go_round(&first);
    take(2 * granule);
    tap_ok(end(), "%s: an arena ends over mapped pages", name);
}

static void test_refused(void)
{
    static const uint32_t twice[] = {0, 0, 2, 3, 0, 3}, beyond[] = {0, 1, 2, 4, 0, 3};
    begin(SIM, 0);
    install_four(four_pages, 4);
    char *before = take(2 * granule);
    zr_arena_free(arena, before);
    zr_arena_install_plan(arena, NULL);
    tap_result(install_four(twice, 4), ZR_ERR_INVALID, "a block with a page twice is refused");
    install_four(four_pages, 4);
    char *after = take(2 * granule);
    zr_arena_free(arena, after);
    zr_arena_install_plan(arena, NULL);
    tap_ok(before && after == before, "and its addresses are there for another");
    tap_result(install_four(beyond, 4), ZR_ERR_INVALID, "and a page beyond those there are");
    tap_result(install_four(NULL, 4), ZR_ERR_INVALID, "and pages nowhere");
    backend->can.aliases = false;
    tap_result(install_four(four_pages, 4), ZR_ERR_INVALID, "and any where the backend has no aliases");
    tap_ok(!zr_arena_plan_rules(arena).aliases, "which makers of plans are told");
    backend->can.aliases = true;
    tap_is(counts().plans_count, 2, "none of them was followed");
    tap_ok(end(), "the books are right");

    /* Three pages' worth of memory: the plan keeps to it, and the arena too. */
    begin(SIM, 3 * granule);
    install_four(four_pages, 4);
    char *a = take(2 * granule), *b = take(2 * granule);
    tap_ok(a && !b && counts().refused_count == 1, "pages come no more than the limit has");
    tap_ok(stats().reserved_bytes <= 3 * granule && zr_arena_check(arena) == ZR_OK,
           "and the books are right");
    zr_arena_free(arena, a);
    tap_ok(take(3 * granule) != NULL, "what the plan holds idle serves others when it must");
    tap_ok(end(), "to the end");
}

/* ---- Streams ------------------------------------------------------------------------------------------- */

static void test_streams(void)
{
    char *first = NULL;
    begin(LATE_SIM, 0);
    install_four(four_pages, 4);
    bool good = go_round(&first);
    char *a = take(2 * granule);
    zr_block_use(arena, a, 7);
    zr_arena_free(arena, take(2 * granule));
    zr_arena_free(arena, a);
    char *c = take(2 * granule);
    tap_ok(good && c && (c < first || c >= first + 6 * granule) && counts().conflicts_count == 1,
           "a page that another stream still uses goes to nobody");
    zr_arena_free(arena, c);
    zr_arena_free(arena, take(3 * granule - 5));
    let_pass();
    zr_arena_trim(arena, 0, NULL);
    tap_ok(go_round(&first), "until that stream has passed");
    void *other = NULL;
    zr_arena_alloc(arena, &(struct zr_request){.bytes = 2 * granule, .tag = ZR_TAG_GRAD, .stream = 7},
                   &other);
    tap_ok(other && ((char *)other < first || (char *)other >= first + 6 * granule),
           "a block of another stream is no step of this one");
    tap_ok(end(), "the books are right");
}

static void test_fork(void)
{
    char *first = NULL;
    begin(SIM, 0);
    install_four(four_pages, 4);
    char *a = take(2 * granule);
    pid_t child = fork();
    if (child == 0) {
        bool good = zr_arena_free(arena, a) == ZR_OK;
        good &= zr_arena_free(arena, take(2 * granule)) == ZR_OK;
        good &= zr_arena_free(arena, take(2 * granule)) == ZR_OK;
        good &= zr_arena_free(arena, take(3 * granule - 5)) == ZR_OK;
        _exit(good && go_round(&first) && counts().conflicts_count == 0 ? 0 : 1);
    }
    int status = 1;
    waitpid(child, &status, 0);
    tap_ok(child > 0 && status == 0, "a child goes on with the pages it was born with");
    tap_ok(end(), "and so does its parent");
}

/* ---- At random ----------------------------------------------------------------------------------------- */

enum { STEPS = 150, LIVE_MOST = 1024, FIXED = 4, PAGES_MOST = 8192 };

static struct zr_plan_step steps[STEPS];
static uint32_t pages[PAGES_MOST];
static size_t addresses_count, pages_count;

static bool is_small(size_t i)
{
    return steps[i].request.bytes < granule / 2;
}

static bool steps_meet(size_t i, size_t k)
{
    size_t after = i >= k ? i - k : STEPS + i - k, before = i >= k ? STEPS + k - i : k - i;
    return after < steps[k].alive_count || before < steps[i].alive_count;
}

/* Small blocks, first fit in the first granules, each of which is a page. */
static void place_small(size_t i)
{
    size_t at = 0;
    for (size_t k = 0; k < i; k++) {
        size_t end = steps[k].offset_bytes + ((steps[k].request.bytes + 255) & ~(size_t)255);
        if (is_small(k) && steps[k].offset_bytes != ZR_PLAN_NOWHERE && steps_meet(i, k) && at < end &&
            steps[k].offset_bytes < at + steps[i].request.bytes) {
            at = end;
            k = SIZE_MAX; /* from the first one on */
        }
    }
    steps[i].offset_bytes = at + steps[i].request.bytes <= FIXED * granule ? at : ZR_PLAN_NOWHERE;
}

/* A step that is placed and lives at the same time has the page: a small one, or a whole one before this. */
static bool page_is_taken(size_t i, uint32_t page)
{
    for (size_t k = 0; k < STEPS; k++) {
        if (steps[k].offset_bytes == ZR_PLAN_NOWHERE || (k >= i && !is_small(k)) || !steps_meet(i, k))
            continue;
        size_t end = (steps[k].offset_bytes + steps[k].request.bytes - 1) / granule;
        for (size_t at = steps[k].offset_bytes / granule; at <= end; at++)
            if (pages[at] == page)
                return true;
    }
    return false;
}

/* Whole blocks have addresses of their own, and there any pages that are free, from a random one on. */
static void place_whole(size_t i)
{
    size_t needed = (steps[i].request.bytes - 1) / granule + 1, found = 0;
    uint32_t page = (uint32_t)random_below(pages_count);
    for (size_t tried = 0; found < needed; tried++) {
        if (tried >= pages_count)
            page = (uint32_t)pages_count++;
        if (!page_is_taken(i, page))
            pages[addresses_count + found++] = page;
        page = (page + 1) % (uint32_t)pages_count;
    }
    steps[i].offset_bytes = addresses_count * granule;
    addresses_count += needed;
}

static zr_result install_random(void)
{
    addresses_count = pages_count = FIXED;
    for (uint32_t page = 0; page < FIXED; page++)
        pages[page] = page;
    for (size_t i = 0; i < STEPS; i++) {
        size_t bytes = random_below(3) == 0
                           ? 256 * (1 + random_below(granule / 1024))
                           : granule * (1 + random_below(5)) - random_below(2) * random_below(200);
        steps[i] = step(bytes, ZR_PLAN_NOWHERE, (uint32_t)(1 + random_below(random_below(10) ? 12 : STEPS)));
    }
    for (size_t i = 0; i < STEPS; i++)
        if (is_small(i))
            place_small(i);
    for (size_t i = 0; i < STEPS; i++)
        if (!is_small(i))
            place_whole(i);
    struct zr_plan_sequence sequence = {.count = STEPS, .any_stream = true, .thread = zr_thread_number()};
    return zr_arena_install_plan(arena, &(struct zr_plan){.steps = steps,
                                                          .steps_count = STEPS,
                                                          .sequences = &sequence,
                                                          .sequences_count = 1,
                                                          .region_bytes = addresses_count * granule,
                                                          .pages = pages,
                                                          .pages_count = pages_count});
}

static struct live_block {
    char *address;
    size_t bytes, due;
    unsigned char pattern;
} live[LIVE_MOST];
static size_t live_count;

static size_t first_granule(const struct live_block *block)
{
    return (size_t)(block->address - arena->base) / granule;
}

static size_t last_granule(const struct live_block *block)
{
    return (size_t)(block->address + block->bytes - 1 - arena->base) / granule;
}

/* No byte of memory is in both blocks, by address and by handle. */
static bool memory_is_apart(const struct live_block *a, const struct live_block *b)
{
    if (a->address < b->address + b->bytes && b->address < a->address + a->bytes)
        return false;
    for (size_t x = first_granule(a); x <= last_granule(a); x++)
        for (size_t y = first_granule(b); y <= last_granule(b); y++)
            if (x != y && handle_at(arena->base + x * granule) == handle_at(arena->base + y * granule) &&
                handle_at(arena->base + x * granule)->bytes == granule)
                return false;
    return true;
}

/* Where the memory can be seen every byte is filled; elsewhere the handles tell. True if no memory was had,
 * when that may be. */
static bool take_one(size_t bytes, size_t due, bool may_fail)
{
    struct live_block *block = &live[live_count];
    *block = (struct live_block){.address = take(bytes), .bytes = bytes, .due = due};
    if (!block->address)
        return may_fail;
    bool good = true;
    for (size_t i = 0; kind != HOST && i < live_count; i++)
        good &= memory_is_apart(block, &live[i]);
    block->pattern = (unsigned char)random_below(256);
    if (kind == HOST)
        memset(block->address, block->pattern, bytes);
    live_count++;
    return good;
}

static bool free_one(size_t number)
{
    const struct live_block *block = &live[number];
    bool good = true;
    if (kind == HOST)
        good = (unsigned char)block->address[0] == block->pattern &&
               memcmp(block->address, block->address + 1, block->bytes - 1) == 0;
    good &= zr_arena_free(arena, block->address) == ZR_OK;
    live[number] = live[--live_count];
    return good;
}

static bool depart(size_t *now, bool may_fail)
{
    switch (random_below(6)) {
    case 0:
        *now += random_below(STEPS); /* a part of the sequence is left out */
        return true;
    case 1:
        return zr_arena_trim(arena, 0, NULL) == ZR_OK;
    case 2:
        return live_count == 0 || free_one(random_below(live_count)); /* too early */
    case 3:
        return take_one(steps[random_below(STEPS)].request.bytes, *now + random_below(600), may_fail);
    default:
        return take_one(1 + random_below(3 * granule), *now + random_below(300), may_fail);
    }
}

static bool run_random(unsigned rounds, unsigned disorder, bool may_fail)
{
    bool good = true;
    size_t now = 0;
    for (unsigned r = 0; r < rounds * STEPS && good; r++, now++) {
        for (size_t i = live_count; i-- > 0;)
            if (live[i].due <= now && (disorder == 0 || random_below(1000) >= disorder))
                good &= free_one(i);
        if (disorder && random_below(1000) < disorder && live_count < LIVE_MOST - 2)
            good &= depart(&now, may_fail);
        size_t at = now % STEPS;
        if (live_count < LIVE_MOST - 2)
            good &= take_one(steps[at].request.bytes, now + steps[at].alive_count, may_fail);
        if (r % 50 == 0)
            good &= zr_arena_check(arena) == ZR_OK;
        if (r % 500 == 499 && disorder >= 100)
            good &= install_random() == ZR_OK; /* another one, while blocks of this one live */
    }
    while (live_count > 0)
        good &= free_one(live_count - 1);
    return good && zr_arena_check(arena) == ZR_OK;
}

static void test_random(enum kind which, uint64_t seed)
{
    static const unsigned disorders[] = {0, 5, 30, 100, 300};
    for (unsigned i = 0; i < sizeof disorders / sizeof *disorders; i++) {
        random_state = (seed + i) | 1;
        if (!begin(which, 0)) {
            tap_skip("%s: %s", kind_names[which], zr_last_error());
            return;
        }
        bool good = install_random() == ZR_OK && run_random(8, disorders[i], false);
        struct zr_follow_counts got = counts();
        if (disorders[i] == 0)
            good &= got.unplanned_count == 0 && got.conflicts_count == 0 && got.refused_count == 0 &&
                    stats().reserved_bytes >= pages_count * granule;
        good &= got.planned_count > 0;
        tap_ok(end() && good, "%s, seed %llu, %u in a thousand otherwise: no two live blocks share memory",
               kind_names[which], (unsigned long long)seed + i, disorders[i]);
        tap_note("planned %llu, unplanned allocations %llu, conflicts %llu, dynamic %llu",
                 (unsigned long long)got.planned_count, (unsigned long long)got.unplanned_count,
                 (unsigned long long)got.conflicts_count, (unsigned long long)got.unplaced_count);
    }
}

/* ---- Failures ------------------------------------------------------------------------------------------ */

/* Each call that installing and going through a plan makes fails in turn, the first of several too. */
static void test_failures(enum kind which, uint64_t seed, unsigned stride)
{
    static const enum zr_fault_site sites[] = {ZR_FAULT_CREATE, ZR_FAULT_MAP, ZR_FAULT_ACCESS,
                                               ZR_FAULT_METADATA};
    for (size_t s = 0; s < sizeof sites / sizeof *sites; s++) {
        unsigned failures = 0, wrong = 0;
        bool clean = false;
        for (uint64_t nth = 1; !clean && nth < 5000;
             nth += sites[s] == ZR_FAULT_METADATA ? 5 * stride : stride) {
            random_state = seed | 1;
            if (!begin(which, 0))
                break;
            zr_fault_set(sites[s], nth);
            zr_result result = install_random();
            live_count = 0;
            bool good = (result == ZR_OK || result == ZR_ERR_HOST_MEMORY) && run_random(1, 20, true);
            clean = zr_fault_set(sites[s], 0) < nth;
            failures += !clean;
            good &= install_random() == ZR_OK && run_random(1, 0, false);
            wrong += !good | !end();
        }
        tap_ok(clean && failures > 0 && wrong == 0, "%s, %s: each of %u failures leaves the books right",
               kind_names[which], zr_fault_site_name(sites[s]), failures);
    }
}

/* The emulated driver refuses maps, unmaps and accesses, one or several in a row, so that what was mapped
 * cannot be unmapped again either. */
static void test_driver_failures(uint64_t seed)
{
    static const char *const calls[] = {"cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuMemCreate"};
    unsigned runs = 0, wrong = 0;
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++)
        for (uint64_t nth = 1; nth < 400; nth += 13) {
            random_state = (seed + nth) | 1;
            if (!begin(GPU, 0))
                break;
            emulator->fail(&(struct zr_emulator_fault){
                .call = calls[c], .nth = nth, .count = 1 + nth % 3, .code = 2 /* out of memory */});
            live_count = 0;
            bool good = install_random() == ZR_OK && run_random(1, 60, true);
            emulator->fail(&(struct zr_emulator_fault){0});
            good &= zr_arena_check(arena) == ZR_OK && run_random(1, 0, false);
            wrong += !good | !end();
            runs++;
        }
    tap_ok(runs > 0 && wrong == 0, "%u runs with a driver that refuses: the books are right", runs);
}

/* ---- Learned ------------------------------------------------------------------------------------------- */

/* What is packed does not hang on the time that it takes. */
enum { LEARNED = 120, WORK = 5000000 };

struct event {
    uint32_t block;
    bool alloc;
};

/* Lifetimes of whole granules; the most of them that live at once. */
static size_t make_events(struct event *events, size_t *granules)
{
    uint32_t due[LEARNED];
    size_t count = 0, now = 0, most = 0, made = 0, moment = 0;
    for (; made < LEARNED || count < 2 * LEARNED; moment++) {
        for (uint32_t i = 0; i < made; i++)
            if (due[i] == moment) {
                events[count++] = (struct event){i, false};
                now -= granules[i];
            }
        if (made == LEARNED)
            continue;
        granules[made] = 1 + random_below(random_below(3) ? 6 : 40);
        due[made] = (uint32_t)(moment + 1 + random_below(random_below(4) ? 10 : 60));
        now += granules[made];
        most = now > most ? now : most;
        events[count++] = (struct event){(uint32_t)made++, true};
    }
    return most;
}

static bool play(const struct event *events, const size_t *granules)
{
    static char *at[LEARNED];
    bool good = true;
    for (size_t i = 0; i < 2 * LEARNED; i++) {
        size_t bytes = granules[events[i].block] * granule;
        char **address = &at[events[i].block];
        if (events[i].alloc) {
            good &= (*address = take(bytes)) != NULL;
            for (size_t done = 0; kind == HOST && *address && done < bytes; done += 4 * KIB)
                (*address)[done] = (char)(events[i].block + done / granule);
            continue;
        }
        for (size_t done = 0; kind == HOST && done < bytes; done += 4 * KIB)
            good &= (*address)[done] == (char)(events[i].block + done / granule);
        good &= zr_arena_free(arena, *address) == ZR_OK;
    }
    return good;
}

static bool begin_learner(zr_learner **out)
{
    if (zr_learner_create(out, &(struct zr_learner_options){.arena = arena, .work = WORK}) != ZR_OK)
        return false;
    zr_learner_hold(*out);
    return true;
}

static void test_learned(enum kind which, uint64_t seed)
{
    unsigned coloured = 0, wrong = 0, runs = 0;
    /* Many of them can be packed as well as coloured: on one backend until one cannot. */
    for (; runs < 8 || (which == SIM && (runs < 24 || (coloured == 0 && runs < 200))); runs++) {
        struct event events[2 * LEARNED];
        size_t granules[LEARNED], most;
        zr_learner *learner;
        random_state = (seed + runs) | 1;
        if (!begin(which, 0))
            break;
        most = make_events(events, granules);
        bool good = begin_learner(&learner);
        for (unsigned i = 0; i < 8; i++) {
            good &= play(events, granules);
            let_pass();
            good &= zr_learner_step(learner) == ZR_OK && zr_learner_wait(learner) == ZR_OK;
            if (i == 6)
                zr_arena_reset_peaks(arena);
            if (i < 6)
                continue;
            uint64_t before = stats().backend_calls_count;
            good &= play(events, granules) && stats().backend_calls_count == before;
        }
        good &= counts().memory_bytes == most * granule && counts().unplanned_count == 0 &&
                stats().peak_reserved_bytes <= (most + 1) * granule && zr_arena_check(arena) == ZR_OK;
        coloured += counts().region_bytes > counts().memory_bytes;
        if (!good && wrong++ == 0)
            tap_note("%zu granules at once, %zu planned in %zu addresses, peak %zu: %s", most,
                     counts().memory_bytes / granule, counts().region_bytes / granule,
                     stats().peak_reserved_bytes / granule, zr_last_error());
        zr_learner_destroy(learner);
        wrong += good && stats().mapped_bytes != stats().reserved_bytes - stats().cached_bytes;
        wrong += !end();
    }
    if (runs == 0)
        tap_skip("%s: %s", kind_names[which], zr_last_error());
    else
        tap_ok(wrong == 0 && (coloured > 0 || which != SIM),
               "%s, seed %llu: %u learned plans take what is live at most, %u of them with aliases",
               kind_names[which], (unsigned long long)seed, runs, coloured);
}

/* Where the addresses for a plan with pages are not to be had, one without them is followed. */
static void test_few_addresses(uint64_t seed)
{
    unsigned packed = 0, tried = 0;
    bool good = true;
    for (unsigned i = 0; i < 200 && packed == 0; i++) {
        struct event events[2 * LEARNED];
        size_t granules[LEARNED], most = 0, wanted = 0;
        random_state = (seed + i) | 1;
        for (unsigned run = 0; run < 2; run++) {
            zr_learner *learner;
            reserve_granules = run == 0 ? 8192 : wanted - 1;
            good &= begin(SIM, 0);
            if (run == 0)
                most = make_events(events, granules);
            good &= begin_learner(&learner);
            for (unsigned k = 0; k < 5 && good; k++)
                good &= (play(events, granules) || run == 1) && zr_learner_step(learner) == ZR_OK &&
                        zr_learner_wait(learner) == ZR_OK;
            wanted = counts().region_bytes / granule;
            packed += run == 1 && wanted > 0 && counts().memory_bytes == counts().region_bytes;
            zr_learner_destroy(learner);
            good &= end();
            tried += run;
            if (wanted <= most)
                break; /* it has no pages */
        }
    }
    reserve_granules = 8192;
    tap_ok(good && packed > 0, "without addresses for its pages a plan is packed: %u of %u", packed, tried);
}

int main(void)
{
    uint64_t seed = run_seed();
    if (records_begin() != ZR_OK) {
        printf("Bail out! %s\n", zr_last_error());
        return 1;
    }
    emulator = cuda_emulator();
    for (enum kind which = SIM; which < KINDS; which++)
        test_by_hand(which);
    test_refused();
    test_streams();
    test_fork();
    for (enum kind which = SIM; which < KINDS; which++)
        test_random(which, seed);
    test_failures(SIM, seed, 3);
    test_failures(HOST, seed, 11);
    if (emulator)
        test_driver_failures(seed);
    else
        tap_skip("driver failures: %s", zr_last_error());
    for (enum kind which = SIM; which < KINDS; which++)
        test_learned(which, seed);
    test_few_addresses(seed);
    tap_is(records_end(), 0, "all records are given back");
    return tap_done();
}
