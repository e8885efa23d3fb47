/* colour_test.c: pages at several addresses: plans with pages made by hand and at random on every backend,
 * where no two live blocks ever share memory, plans that are learned of generated blocks of whole granules,
 * which take no more than is live at once, and each failure onthe way. */
#include "defrag/learn/learner.h"
#include "tests/support/cuda/cuda_support.h"
#include "tests/support/zero/plan_runs.h"
#include "tests/support/seed.h"

enum kind { SIM, LATE_SIM, HOST, GPU, KINDS };

static const char *const kind_names[KINDS] = {"sim", "sim with streams", "host", "emulated GPU"};

enum { WORK_NS = 1000 };

static const struct zr_emulator *emulator;
static size_t granule;
static enum kind kind;

/* ---- Arenas -------------------------------------------------------------------------------------------- */

static size_t reserve_granules = 8192;

static bool begin(size_t limit_bytes)
{
    fills = kind == HOST;
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

/* The arena gives back what it can: a trim asks the streams, and what they say counts the next time. */
static void give_back(void)
{
    for (unsigned i = 0; i < 3; i++) {
        let_pass();
        zr_arena_trim(arena, 0, NULL);
    }
}

static bool begin_run(void)
{
    return begin(0);
}

static bool end_run(void)
{
    return end();
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
    return install(&(struct zr_plan){.steps = four,
                                     .steps_count = 4,
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

static void test_by_hand(void)
{
    const char *name = kind_names[kind];
    char *first = NULL;
    if (!begin(0)) {
        tap_skip("%s: %s", name, zr_last_error());
        return;
    }
    zr_arena_free(arena, take(8 * granule)); /* so much may be held beside the plan */
    give_back();
    tap_result(install_four(four_pages, 4), ZR_OK, "%s: a plan with pages comes into force", name);
    tap_is(stats().reserved_bytes, 0, "and takes nothing yet");
    tap_ok(go_round(&first), "its blocks have the pages they were given");
    tap_ok(stats().reserved_bytes == 4 * granule && stats().mapped_bytes == 4 * granule &&
               counts().memory_bytes == 4 * granule && counts().region_bytes == 6 * granule &&
               stats().stranded_bytes == 0,
           "six addresses take four pages, of which none is stranded");
    uint64_t before = stats().backend_calls_count;
    bool same = true;
    for (unsigned i = 0; i < 50; i++)
        same &= go_round(&first);
    tap_ok(same && stats().backend_calls_count == before, "again and again, without a driver call");

    /* The first block stays: the third has one of its pages, at another address. */
    char *a = take(2 * granule);
    zr_arena_free(arena, take(2 * granule));
    char *c = take(2 * granule);
    tap_ok(c && (c < first || c >= first + 6 * granule) && counts().conflicts_count == 1,
           "%s: a page under an overdue block goes to no other block", name);
    size_t released = 0;
    tap_ok(zr_arena_trim(arena, 0, &released) == ZR_OK && released == 2 * granule &&
               stats().reserved_bytes == 4 * granule && zr_arena_check(arena) == ZR_OK,
           "a trim takes the pages that no block has, at all their addresses");
    zr_arena_free(arena, a);
    zr_arena_free(arena, c);
    zr_arena_free(arena, take(3 * granule - 5));
    tap_ok(go_round(&first), "then the plan has them back");

    /* Another plan, while a block of this one lives. */
    give_back();
    go_round(&first);
    a = take(2 * granule);
    tap_ok(install_four(four_pages, 4) == ZR_OK && stats().cached_bytes == 2 * granule &&
               zr_arena_check(arena) == ZR_OK,
           "%s: a plan takes its place: all but the pages of its block go to cache", name);
    char *again = NULL;
    tap_ok(go_round(&again) && again != a && stats().reserved_bytes == 6 * granule,
           "the new one is followed, on pages of its own and those from cache");
    tap_ok(zr_arena_free(arena, a) == ZR_OK && stats().mapped_bytes == 4 * granule &&
               stats().cached_bytes == 2 * granule,
           "the last block of the old one goes, and its pages with it, into cache");
    tap_ok(zr_arena_install_plan(arena, NULL) == ZR_OK && stats().mapped_bytes == 0 &&
               stats().cached_bytes == 6 * granule,
           "no plan any more, and no page is mapped");
    install_four(four_pages, 4);
    go_round(&first);
    take(2 * granule);
    tap_ok(end(), "%s: an arena ends over mapped pages", name);
}

static void test_refused(void)
{
    static const uint32_t twice[] = {0, 0, 2, 3, 0, 3}, beyond[] = {0, 1, 2, 4, 0, 3};
    begin(0);
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
    begin(3 * granule);
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
    begin(0);
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
    give_back();
    tap_ok(go_round(&first), "until that stream has passed");
    char *other = take_on(2 * granule, 7);
    tap_ok(other && (other < first || other >= first + 6 * granule),
           "a block of another stream is no step of this one");
    tap_ok(end(), "the books are right");
}

/* ---- At random ----------------------------------------------------------------------------------------- */

enum { FIXED = 4, PAGES_MAX = 8192 };

static uint32_t pages[PAGES_MAX];
static size_t addresses_count, pages_count;

static bool is_small(size_t i)
{
    return steps[i].request.bytes < granule / 2;
}

/* In the first granules, each of which is a page. */
static void place_small(size_t i)
{
    size_t at = first_fit(i);
    if (at + steps[i].request.bytes <= FIXED * granule)
        steps[i].offset_bytes = at;
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
    return install(&(struct zr_plan){.steps = steps,
                                     .steps_count = STEPS,
                                     .region_bytes = addresses_count * granule,
                                     .pages = pages,
                                     .pages_count = pages_count});
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
            if (!begin(0))
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
enum { WORK = 5000000 };

/* Granules of a page: what all blocks have multiples of. */
static size_t page_granules = 1;

/* Blocks of whole granules, all of which are gone at the end. */
static void make_blocks(void)
{
    for (size_t i = 0; i < STEPS; i++) {
        size_t bytes = (1 + random_below(random_below(3) ? 6 : 40)) * page_granules * granule;
        size_t alive = 1 + random_below(random_below(4) ? 10 : 60);
        steps[i] = step(bytes, ZR_PLAN_NOWHERE, (uint32_t)(alive < STEPS - i ? alive : STEPS - i));
    }
}

/* The most that live at once. */
static size_t most_bytes(void)
{
    size_t most = 0;
    for (size_t now = 0; now < STEPS; now++) {
        size_t alive = 0;
        for (size_t i = 0; i <= now; i++)
            alive += now - i < steps[i].alive_count ? steps[i].request.bytes : 0;
        most = alive > most ? alive : most;
    }
    return most;
}

static zr_learner *begin_learner(void)
{
    zr_learner *learner = NULL;
    zr_learner_create(&learner, &(struct zr_learner_options){.arena = arena, .work = WORK});
    if (learner)
        zr_learner_hold(learner);
    return learner;
}

static bool learn(zr_learner *learner, unsigned times, bool may_fail)
{
    bool good = true;
    for (unsigned i = 0; i < times; i++) {
        good &= run_random(1, 0, may_fail);
        let_pass();
        good &= zr_learner_wait(learner) == ZR_OK;
    }
    return good;
}

static void test_learned(uint64_t seed)
{
    unsigned coloured = 0, wrong = 0, runs = 0;
    /* Many of them can be packed as well as coloured: on one backend until one cannot. */
    for (; runs < 4 || (kind == SIM && (runs < 10 || (coloured == 0 && runs < 200))); runs++) {
        random_state = (seed + runs) | 1;
        if (!begin(0))
            break;
        make_blocks();
        zr_learner *learner = begin_learner();
        size_t most = most_bytes();
        bool good = learn(learner, 7, false);
        zr_arena_reset_peaks(arena);
        for (unsigned i = 0; i < 2; i++) {
            uint64_t before = stats().backend_calls_count;
            good &= run_random(1, 0, false) && stats().backend_calls_count == before;
            good &= learn(learner, 1, false);
        }
        good &= counts().memory_bytes == most && counts().unplanned_count == 0 &&
                stats().peak_reserved_bytes <= most + granule;
        coloured += counts().region_bytes > counts().memory_bytes;
        if (!good && wrong++ == 0)
            tap_note("%zu bytes at once, %zu planned in %zu addresses, peak %zu: %s", most,
                     counts().memory_bytes, counts().region_bytes, stats().peak_reserved_bytes,
                     zr_last_error());
        zr_learner_destroy(learner);
        wrong += good && stats().mapped_bytes != stats().reserved_bytes - stats().cached_bytes;
        wrong += !end();
    }
    if (runs == 0)
        tap_skip("%s: %s", kind_names[kind], zr_last_error());
    else
        tap_ok(wrong == 0 && (coloured > 0 || kind != SIM),
               "%s, seed %llu: %u learned plans take what is live at most, %u of them with aliases",
               kind_names[kind], (unsigned long long)seed, runs, coloured);
}

/* Where the addresses for a plan with pages are not to be had, one without them is followed. */
static void test_few_addresses(uint64_t seed)
{
    unsigned packed = 0, tried = 0;
    bool good = true;
    for (unsigned i = 0; i < 200 && packed == 0; i++) {
        size_t wanted = 0;
        random_state = (seed + i) | 1;
        for (unsigned run = 0; run < 2; run++) {
            reserve_granules = run == 0 ? 8192 : wanted / granule - 1;
            good &= begin(0);
            if (run == 0)
                make_blocks();
            zr_learner *learner = begin_learner();
            good &= learn(learner, 5, run == 1);
            wanted = counts().region_bytes;
            packed += run == 1 && wanted > 0 && counts().memory_bytes == wanted;
            zr_learner_destroy(learner);
            good &= end();
            tried += run;
            if (wanted <= most_bytes())
                break; /* it has no pages */
        }
    }
    reserve_granules = 8192;
    tap_ok(good && packed > 0, "without addresses for its pages a plan is packed: %u of %u", packed, tried);
}

int main(void)
{
    uint64_t seed = run_seed();
    emulator = cuda_emulator();
    for (kind = SIM; kind < KINDS; kind++) {
        test_by_hand();
        test_random(kind_names[kind], seed, 8);
        test_learned(seed);
    }
    kind = SIM;
    page_granules = 3;
    test_learned(seed);
    page_granules = 1;
    kind = LATE_SIM;
    test_streams();
    kind = HOST;
    test_failures("host", seed, 11);
    kind = GPU;
    if (emulator)
        test_driver_failures(seed);
    else
        tap_skip("driver failures: %s", zr_last_error());
    kind = SIM;
    test_failures("sim", seed, 3);
    test_refused();
    test_few_addresses(seed);
    return tap_done();
}
