/* report_test.c: what an arena says when it has no memory: what is missing, how much is free and in how large
 * a piece, whose blocks pin it, and what would help, which is then tried. By hand, and at random beside a
 * model that knows blocks and mappings from outside. */
#include <stdlib.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/base/option.h"
#include "tests/support/arena_support.h"
#include "tests/support/draws.h"
#include "tests/support/seed.h"

struct rig {
    zr_backend *backend;
    zr_arena *arena;
};

static struct rig make_rig(const struct setting *setting, size_t reserve_bytes)
{
    struct rig rig = {.backend = backend_of(setting)};
    const struct zr_arena_options options = {.backend = rig.backend,
                                             .name = "tried",
                                             .limit_bytes = setting->limit_bytes,
                                             .reserve_bytes = reserve_bytes};
    if (zr_arena_create(&rig.arena, &options) != ZR_OK)
        tap_ok(false, "an arena: %s", zr_last_error());
    return rig;
}

static void end_rig(struct rig *rig)
{
    zr_arena_destroy(rig->arena, NULL);
    if (zr_backend_destroy(rig->backend) != ZR_OK)
        tap_ok(false, "the backend ends: %s", zr_last_error());
}

static zr_result take(zr_arena *arena, size_t bytes, zr_tag tag, void **out)
{
    return zr_arena_alloc(arena, &(struct zr_request){.bytes = bytes, .tag = tag}, out);
}

/* ---- Reading a report ---------------------------------------------------------------------------------- */

static char said[1024];

/* Asks for what must fail, and keeps the words. */
static void refuse(zr_arena *arena, size_t bytes, zr_result want, const char *what)
{
    void *block;
    tap_result(take(arena, bytes, ZR_TAG_COMM, &block), want, "%s", what);
    snprintf(said, sizeof said, "%s", zr_last_error());
    tap_note("%s", said);
}

/* What follows the mark in the text, "" if it is not there. */
static const char *after(const char *text, const char *mark)
{
    const char *at = strstr(text, mark);
    return at ? at + strlen(mark) : "";
}

static const char *help_said(void)
{
    return after(said, "What would help: ");
}

static bool helps(const char *words)
{
    return strstr(help_said(), words) != NULL;
}

/* "64.0 KiB" and "64.0 KiB (65536 bytes)"; -1 if there is no amount. */
static double rounded_bytes(const char *text)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double number, unit_bytes = 1;
    char unit[8];
    if (sscanf(text, "%lf %5[a-zA-Z]", &number, unit) != 2)
        return -1;
    for (unsigned i = 0; i < sizeof units / sizeof *units; i++, unit_bytes *= 1024)
        if (strcmp(unit, units[i]) == 0)
            return number * unit_bytes;
    return -1;
}

/* Two places behind the point of a number that is 1 or more. */
static bool is_about(const char *text, size_t bytes)
{
    double told = rounded_bytes(text), difference = told - (double)bytes;
    return told >= 0 && difference <= (double)bytes / 199 && -difference <= (double)bytes / 199;
}

/* "256 B", "64.0 KiB (65536 bytes)"; SIZE_MAX if the text says no whole number of bytes. */
static size_t exact_bytes(const char *text)
{
    const char *bracket = strchr(text, '(');
    const char *whole =
        bracket && strspn(text, "0123456789. KMGTiB") == (size_t)(bracket - text) ? bracket + 1 : text;
    char *end;
    unsigned long long bytes = strtoull(whole, &end, 10);
    const char *unit = whole != text ? " bytes" : bytes > 0 ? " B" : "";
    bool exact = end > whole && strncmp(end, unit, strlen(unit)) == 0;
    return exact ? (size_t)bytes : SIZE_MAX;
}

static size_t largest_said(void)
{
    return exact_bytes(after(said, "the largest free run "));
}

/* The kind of failure in the words behind the request's tag. */
static bool is_called(const char *kind)
{
    char mark[64];
    snprintf(mark, sizeof mark, " for comm: %s. ", kind);
    return *after(said, mark) != '\0';
}

/* The bytes that blocks of the tag are said to pin, as words; "" if none are. */
static const char *pins_said(zr_tag tag)
{
    static char pins[1024];
    char mark[32];
    snprintf(pins, sizeof pins, "%s", after(said, "in granules shared with blocks of "));
    *strstr(strcat(pins, ". Cause:"), ". Cause:") = '\0';
    snprintf(mark, sizeof mark, "%s (", zr_tag_name(tag));
    return after(pins, mark);
}

/* The granule that the help names, 0 if it names none. */
static size_t granule_said(void)
{
    unsigned long long number;
    char unit;
    if (sscanf(after(help_said(), "ZR_CONF=granule:"), "%llu%c", &number, &unit) != 2)
        return 0;
    return (size_t)number << (unit == 'k' ? 10 : unit == 'm' ? 20 : unit == 'g' ? 30 : 0);
}

/* ---- Shortage ------------------------------------------------------------------------------------------ */

static void test_shortage(void)
{
    struct setting setting = {"sim", false, GRANULE, 7 * GRANULE, 0, false};
    struct rig rig = make_rig(&setting, 0);
    void *grads, *params, *hole;
    take(rig.arena, 3 * GRANULE, ZR_TAG_GRAD, &grads);
    take(rig.arena, 2 * GRANULE, ZR_TAG_PARAM, &params);
    take(rig.arena, 2 * GRANULE, ZR_TAG_OTHER, &hole);
    refuse(rig.arena, 256, ZR_ERR_MEMORY, "a full arena");
    tap_ok(is_called("shortage"), "that is shortage");
    tap_is(largest_said(), 0, "with no free run");
    tap_ok(is_about(after(said, "shortage. "), 7 * GRANULE), "all that is live");
    tap_ok(is_about(after(said, " live ("), 3 * GRANULE) && strstr(said, " of it grad)"), "most of it grad");
    tap_ok(!strstr(said, "shared with"), "nothing is pinned where nothing is free");
    tap_ok(helps("a larger limit") && !helps("granule"), "a larger limit would help, and no other granule");
    zr_arena_free(rig.arena, hole);
    refuse(rig.arena, 2 * GRANULE + 256, ZR_ERR_MEMORY, "one unit more than is free");
    tap_ok(is_called("shortage"), "that is shortage, too");
    tap_is(exact_bytes(after(said, "has no ")), 2 * GRANULE + 256, "of what was asked for, to the byte");
    tap_is(largest_said(), 2 * GRANULE, "beside the largest free run, to the byte");
    tap_ok(!strstr(said, "shared with"), "whole granules are shared with no block");
    end_rig(&rig);
    setting.limit_bytes = 100 * GRANULE;
    rig = make_rig(&setting, 0);
    zr_fault_set(ZR_FAULT_CREATE, 1);
    refuse(rig.arena, GRANULE, ZR_ERR_MEMORY, "a machine that has none, far below the limit");
    zr_fault_set(ZR_FAULT_CREATE, 0);
    tap_ok(is_called("shortage") && !helps("larger limit") && helps("the setting that the cause names") &&
               strstr(said, "Cause: the sim backend has no 65536 bytes left"),
           "no limit would help; the cause says who refused");
    end_rig(&rig);
}

/* ---- Fragmentation ------------------------------------------------------------------------------------- */

/* Fills an arena of four granules of 64 KiB with pieces and frees every other. */
static struct rig fragmented(size_t granule_bytes, size_t piece_bytes)
{
    struct setting setting = {"sim", false, granule_bytes, 4 * GRANULE, 0, false};
    struct rig rig = make_rig(&setting, 0);
    size_t count = 4 * GRANULE / piece_bytes;
    void **pieces = calloc(count, sizeof *pieces);
    for (size_t i = 0; i < count; i++)
        take(rig.arena, piece_bytes, i % 4 == 1 ? ZR_TAG_PARAM : ZR_TAG_GRAD, &pieces[i]);
    for (size_t i = 0; i < count; i += 2)
        zr_arena_free(rig.arena, pieces[i]);
    free(pieces);
    return rig;
}

static void test_fragmentation(void)
{
    void *block;
    struct zr_arena_stats stats;
    struct rig rig = fragmented(GRANULE, GRANULE / 2);
    zr_arena_get_stats(rig.arena, &stats);
    tap_is(stats.stranded_bytes, 2 * GRANULE, "half of every granule is stranded");
    refuse(rig.arena, GRANULE, ZR_ERR_MEMORY, "a whole granule where half of each is free");
    tap_ok(is_called("fragmentation"), "that is fragmentation");
    tap_is(largest_said(), GRANULE / 2, "the largest free run is half a granule");
    tap_ok(strstr(said, " in 4 holes,") && is_about(after(said, "param), "), 2 * GRANULE), "of 4 such holes");
    tap_ok(is_about(pins_said(ZR_TAG_GRAD), GRANULE) && is_about(pins_said(ZR_TAG_PARAM), GRANULE),
           "grad and param pin half of them each");
    tap_ok(*pins_said(ZR_TAG_OTHER) == '\0', "and nobody else any");
    tap_ok(helps("a smaller granule"), "a smaller granule would help");
    size_t granule_bytes = granule_said();
    tap_ok(granule_bytes > 0 && granule_bytes < GRANULE, "namely one of %zu", granule_bytes);
    refuse(rig.arena, 2 * GRANULE, ZR_ERR_MEMORY, "as much as is free");
    tap_ok(is_called("fragmentation"), "is fragmentation");
    refuse(rig.arena, 2 * GRANULE + 1, ZR_ERR_MEMORY, "a byte more");
    tap_ok(is_called("shortage") && granule_said() == 0, "is shortage, and a matter of no granule");
    end_rig(&rig);
    rig = fragmented(granule_bytes, GRANULE / 2);
    tap_result(take(rig.arena, GRANULE, ZR_TAG_COMM, &block), ZR_OK, "as it does");
    end_rig(&rig);
    rig = fragmented(GRANULE, 1024);
    refuse(rig.arena, GRANULE, ZR_ERR_MEMORY, "a whole granule between blocks of a KiB");
    tap_ok(is_called("fragmentation") && largest_said() == 1024, "is fragmentation into runs of a KiB");
    tap_ok(granule_said() == 0 && !helps("smaller granule") && helps("long-lived blocks first"),
           "for which no granule is small enough");
    end_rig(&rig);
    rig = fragmented(4 * GRANULE, GRANULE / 4);
    refuse(rig.arena, GRANULE, ZR_ERR_MEMORY, "runs of a sixteenth of a granule");
    tap_is(granule_said(), GRANULE / 4, "are worth a smaller granule");
    end_rig(&rig);
    rig = fragmented(4 * GRANULE, GRANULE / 8);
    refuse(rig.arena, GRANULE, ZR_ERR_MEMORY, "shorter ones");
    tap_is(granule_said(), 0, "are not");
    end_rig(&rig);
}

/* Blocks of half a run each, of which every other is freed: the granules are whole, but move as one with what
 * is live. */
static void test_long_runs(unsigned freed)
{
    struct setting setting = {"sim", false, GRANULE, 1024 * GRANULE, 0, false};
    struct rig rig = make_rig(&setting, 0);
    struct zr_arena_stats stats;
    void *block, *halves[512];
    take(rig.arena, 1024 * GRANULE, ZR_TAG_OTHER, &block);
    zr_arena_get_stats(rig.arena, &stats);
    tap_ok(stats.backend_calls_count < 1024, "a long block lies on runs of granules");
    zr_arena_free(rig.arena, block);
    for (unsigned i = 0; i < 512; i++)
        take(rig.arena, 2 * GRANULE, ZR_TAG_GATHERED, &halves[i]);
    for (unsigned i = freed; i < 512; i += 2)
        zr_arena_free(rig.arena, halves[i]);
    refuse(rig.arena, 3 * GRANULE, ZR_ERR_MEMORY, "more than half a run");
    tap_ok(is_called("fragmentation"), "is fragmentation");
    tap_is(largest_said(), 2 * GRANULE, "the largest free run is half a run");
    tap_ok(is_about(pins_said(ZR_TAG_GATHERED), 512 * GRANULE), "the other half of each pins it");
    tap_is(granule_said(), 0, "and a smaller granule would not help: runs are as long as they are");
    end_rig(&rig);
}

/* ---- Addresses and mappings ---------------------------------------------------------------------------- */

static void test_addresses(void)
{
    struct setting setting = {"sim", false, GRANULE, 0, 0, false};
    struct rig rig = make_rig(&setting, 16 * GRANULE);
    void *blocks[64];
    unsigned count = 0;
    while (count < 64 && take(rig.arena, GRANULE, ZR_TAG_GRAD, &blocks[count]) == ZR_OK)
        count++;
    tap_is(count, 16, "every address is taken");
    refuse(rig.arena, GRANULE, ZR_ERR_ADDRESSES, "no address is left");
    tap_ok(is_called("shortage of addresses") && helps("reserve_bytes") && !helps("granule"),
           "a shortage of addresses, of which more can be reserved");
    for (unsigned i = 0; i < count; i += 2)
        zr_arena_free(rig.arena, blocks[i]);
    refuse(rig.arena, 9 * GRANULE, ZR_ERR_ADDRESSES, "more than the addresses that are free");
    tap_ok(is_called("shortage of addresses"), "is their shortage");
    tap_is(largest_said(), GRANULE, "whatever the largest run");
    refuse(rig.arena, 8 * GRANULE, ZR_ERR_ADDRESSES, "as many as are free, not in a row");
    tap_ok(is_called("fragmentation of addresses") && helps("reserve_bytes") && !helps("granule"),
           "are fragmented, and no granule mends that");
    end_rig(&rig);
}

enum { BUDGET = 16, TURNS = 2 * BUDGET };

/* Two arenas take granules by turns, so that none continues its neighbour, until `most` are taken or one is
 * refused; each is two blocks then, of which every other is freed. Returns the granules. */
static unsigned take_turns(zr_arena *const arenas[2], unsigned most, size_t half_bytes)
{
    void *halves[2 * TURNS];
    unsigned count = 0;
    while (count < most && take(arenas[count % 2], half_bytes, ZR_TAG_MASTER, &halves[2 * count]) == ZR_OK &&
           take(arenas[count % 2], half_bytes, ZR_TAG_MASTER, &halves[2 * count + 1]) == ZR_OK)
        count++;
    for (unsigned i = 0; i < count; i++)
        zr_arena_free(arenas[i % 2], halves[2 * i]);
    return count;
}

static struct rig make_two(size_t granule_bytes, zr_arena *arenas[2])
{
    struct setting setting = {"host", true, granule_bytes, 0, 0, true};
    struct rig rig = make_rig(&setting, 1024 * GRANULE);
    arenas[0] = rig.arena;
    if (zr_arena_create(&arenas[1], &(struct zr_arena_options){.backend = rig.backend,
                                                               .reserve_bytes = 1024 * GRANULE}) != ZR_OK)
        tap_ok(false, "a second arena: %s", zr_last_error());
    return rig;
}

static void test_mappings(void)
{
    char conf[32];
    void *block;
    zr_arena *arenas[2];
    snprintf(conf, sizeof conf, "vma_budget:%d", BUDGET);
    zr_option_set(conf);
    struct rig rig = make_two(GRANULE, arenas);
    unsigned count = take_turns(arenas, TURNS, GRANULE / 2);
    tap_is(count, BUDGET, "granules apart from each other, up to the budget of mappings");
    refuse(rig.arena, GRANULE, ZR_ERR_ADDRESSES, "a granule more, while several are idle in halves");
    tap_ok(strstr(said, "Cause: the budget of 16 mappings is used up"), "the budget is the cause");
    tap_ok(is_called("shortage of mappings"), "a shortage of mappings, no fragmentation");
    tap_is(largest_said(), GRANULE / 2, "the largest free run is half a granule");
    tap_ok(is_about(pins_said(ZR_TAG_MASTER), BUDGET / 2 * (GRANULE / 2)), "master pins the half of each");
    tap_ok(!helps("smaller granule") && helps("a larger granule") &&
               helps("the setting that the cause names"),
           "a larger granule or budget would help, a smaller one would not");
    size_t granule_bytes = granule_said();
    zr_arena_destroy(arenas[1], NULL);
    end_rig(&rig);
    tap_ok(granule_bytes > GRANULE, "namely one of %zu", granule_bytes);
    rig = make_two(granule_bytes, arenas);
    tap_is(take_turns(arenas, BUDGET, GRANULE / 2), BUDGET, "with which the same blocks");
    tap_result(take(rig.arena, GRANULE, ZR_TAG_COMM, &block), ZR_OK, "leave mappings for the next");
    zr_arena_destroy(arenas[1], NULL);
    end_rig(&rig);
    snprintf(conf, sizeof conf, "vma_budget:%d", BUDGET + 1);
    zr_option_set(conf);
    rig = make_two(GRANULE, arenas);
    take_turns(arenas, BUDGET, GRANULE / 2);
    tap_result(take(rig.arena, GRANULE, ZR_TAG_COMM, &block), ZR_OK, "as a larger budget does");
    zr_arena_destroy(arenas[1], NULL);
    end_rig(&rig);
    zr_option_set(NULL);
}

/* The system refuses to map what was unmapped elsewhere: that is in cache then, idle and in no hole. */
static void test_refused_mapping(void)
{
    struct setting setting = {"sim", false, GRANULE, 6 * GRANULE, 0, false};
    struct rig rig = make_rig(&setting, 0);
    struct zr_arena_stats stats;
    void *keep, *half, *holes[3];
    for (unsigned i = 0; i < 3; i++)
        take(rig.arena, GRANULE, ZR_TAG_GRAD, &holes[i]);
    take(rig.arena, 2 * GRANULE, ZR_TAG_GRAD, &keep);
    take(rig.arena, GRANULE / 2, ZR_TAG_GRAD, &half);
    take(rig.arena, GRANULE / 2, ZR_TAG_PARAM, &keep);
    zr_arena_free(rig.arena, holes[0]);
    zr_arena_free(rig.arena, holes[2]);
    zr_fault_set(ZR_FAULT_MAP, 1);
    refuse(rig.arena, 2 * GRANULE, ZR_ERR_ADDRESSES, "the system refuses a mapping");
    zr_fault_set(ZR_FAULT_MAP, 0);
    tap_ok(is_called("shortage of mappings") && !helps("smaller") && !helps("limit"), "that are short");
    zr_arena_get_stats(rig.arena, &stats);
    tap_ok(stats.cached_bytes == 2 * GRANULE && is_about(after(said, "holes and "), stats.cached_bytes) &&
               *after(said, " in cache, ") != '\0',
           "%zu bytes are in cache", stats.cached_bytes);
    zr_arena_free(rig.arena, half);
    refuse(rig.arena, 2 * GRANULE + GRANULE / 2, ZR_ERR_MEMORY, "as much as the cache and half a granule");
    tap_ok(is_called("fragmentation") && strstr(said, " in cache, "), "is fragmentation");
    tap_is(granule_said(), GRANULE / 2, "that granules of a half would mend");
    end_rig(&rig);
}

/* ---- At random, beside a model ------------------------------------------------------------------------- */

enum { UNIT = 256, GRANULES_MAX = 24, BLOCKS_MAX = 1024, UNITS = 65536 / UNIT };

/* A granule's units: nobody's, or of a block with a tag, from 1 on. */
struct page {
    char *address;
    unsigned char units[UNITS];
};

struct model {
    struct page pages[GRANULES_MAX]; /* by address */
    size_t pages_count;
    void *blocks[BLOCKS_MAX];
    size_t blocks_count;
};

static zr_result note_mapped(void *argument, void *address, size_t bytes)
{
    struct model *model = argument;
    for (char *at = address; at < (char *)address + bytes; at += GRANULE) {
        size_t i = model->pages_count++;
        for (; i > 0 && model->pages[i - 1].address > at; i--)
            model->pages[i] = model->pages[i - 1];
        model->pages[i].address = at;
    }
    return ZR_OK;
}

static void note_unmapping(void *argument, void *address, size_t bytes)
{
    struct model *model = argument;
    size_t kept = 0;
    for (size_t i = 0; i < model->pages_count; i++)
        if (model->pages[i].address < (char *)address || model->pages[i].address >= (char *)address + bytes)
            model->pages[kept++] = model->pages[i];
    model->pages_count = kept;
}

/* Writes each block's tag over its units. */
static void paint(struct model *model, zr_arena *arena)
{
    struct zr_block_info info;
    for (size_t p = 0; p < model->pages_count; p++)
        memset(model->pages[p].units, 0, sizeof model->pages[p].units);
    for (size_t i = 0; i < model->blocks_count; i++) {
        zr_arena_find(arena, model->blocks[i], &info);
        for (size_t p = 0; p < model->pages_count; p++)
            for (size_t unit = 0; unit < UNITS; unit++) {
                char *at = model->pages[p].address + unit * UNIT;
                if (at >= (char *)info.address && at < (char *)info.address + info.reserved_bytes)
                    model->pages[p].units[unit] = (unsigned char)(info.tag + 1);
            }
    }
}

struct truth {
    size_t free_bytes, largest_bytes, pinned_bytes[ZR_TAG_COUNT];
};

/* What the blocks at both ends of a free run on one page pin; two share it. */
static void share(const struct page *page, size_t first, size_t end, struct truth *out)
{
    unsigned left = first > 0 ? page->units[first - 1] : 0, right = end < UNITS ? page->units[end] : 0;
    size_t bytes = (end - first) * UNIT / (left && right ? 2 : 1);
    if (left)
        out->pinned_bytes[left - 1] += bytes;
    if (right)
        out->pinned_bytes[right - 1] += bytes;
}

static void measure(const struct model *model, struct truth *out)
{
    size_t run = 0;
    memset(out, 0, sizeof *out);
    for (size_t p = 0; p < model->pages_count; p++) {
        const struct page *page = &model->pages[p];
        if (p > 0 && page->address != model->pages[p - 1].address + GRANULE)
            run = 0;
        for (size_t unit = 0, end; unit < UNITS; unit = end) {
            for (end = unit; end < UNITS && page->units[end] == 0; end++)
                ;
            if (end > unit)
                share(page, unit, end, out);
            out->free_bytes += (end - unit) * UNIT;
            run += (end - unit) * UNIT;
            out->largest_bytes = run > out->largest_bytes ? run : out->largest_bytes;
            if (end < UNITS) {
                run = 0;
                end++;
            }
        }
    }
}

/* Blocks until there is no room for the next; then many of them go. */
static void fill(struct model *model, zr_arena *arena)
{
    static const zr_tag tags[] = {ZR_TAG_PARAM, ZR_TAG_GRAD, ZR_TAG_OPTIMIZER};
    while (model->blocks_count < BLOCKS_MAX) {
        size_t bytes = UNIT + random_below(random_below(4) ? GRANULE / 4 : 2 * GRANULE);
        if (take(arena, bytes, tags[random_below(3)], &model->blocks[model->blocks_count]) != ZR_OK)
            break;
        model->blocks_count++;
    }
    size_t most = 1 + random_below(3), kept = 0;
    for (size_t i = 0; i < model->blocks_count; i++)
        if (random_below(4) < most)
            zr_arena_free(arena, model->blocks[i]);
        else
            model->blocks[kept++] = model->blocks[i];
    model->blocks_count = kept;
}

/* The free bytes in whole granules of a size that divides a page. */
static size_t whole_bytes(const struct model *model, size_t granule_bytes)
{
    static const unsigned char none[UNITS];
    size_t bytes = 0, step = granule_bytes / UNIT;
    for (size_t p = 0; p < model->pages_count; p++)
        for (size_t unit = 0; unit < UNITS; unit += step)
            bytes += memcmp(&model->pages[p].units[unit], none, step) == 0 ? granule_bytes : 0;
    return bytes;
}

/* The largest of four halvings of which as many are free as the request takes, 0 if there is none. */
static size_t granule_that_does(const struct model *model, size_t cached_bytes, size_t asked_bytes)
{
    for (size_t granule = GRANULE / 2; granule >= GRANULE / 16; granule /= 2)
        if (whole_bytes(model, granule) + cached_bytes >= (asked_bytes + granule - 1) / granule * granule)
            return granule;
    return 0;
}

/* What is wrong with the words, NULL if nothing is. */
static const char *judge(const struct model *model, const struct truth *truth, size_t cached_bytes,
                         size_t asked_bytes)
{
    bool fragmented = truth->free_bytes + cached_bytes >= (asked_bytes + UNIT - 1) / UNIT * UNIT;
    if (!is_called(fragmented ? "fragmentation" : "shortage"))
        return "the kind";
    if (exact_bytes(after(said, "has no ")) != asked_bytes)
        return "what was asked for";
    if (largest_said() != truth->largest_bytes)
        return "the largest free run";
    if (!is_about(after(after(said, " of it "), "), "), truth->free_bytes))
        return "what is free";
    for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++) {
        const char *pins = pins_said((zr_tag)tag);
        if (truth->pinned_bytes[tag] ? !is_about(pins, truth->pinned_bytes[tag]) : *pins != '\0')
            return zr_tag_name((zr_tag)tag);
    }
    if (granule_said() != (fragmented ? granule_that_does(model, cached_bytes, asked_bytes) : 0))
        return "the granule that would help";
    return NULL;
}

static void test_random(void)
{
    unsigned fragmented = 0, short_of = 0, wrong = 0, finer = 0;
    for (unsigned round = 0; round < 60; round++) {
        struct setting setting = {"sim", false, GRANULE, GRANULES_MAX * GRANULE, 0, false};
        struct rig rig = make_rig(&setting, 0);
        struct model model = {.pages_count = 0};
        struct truth truth;
        struct zr_arena_stats stats;
        void *block;
        zr_arena_add_map_callback(rig.arena, &(struct zr_map_callback){note_mapped, note_unmapping, &model});
        fill(&model, rig.arena);
        size_t bytes = random_below(16 * GRANULE) + 1;
        while (model.blocks_count < BLOCKS_MAX && take(rig.arena, bytes, ZR_TAG_COMM, &block) == ZR_OK) {
            model.blocks[model.blocks_count++] = block;
            bytes = random_below(16 * GRANULE) + 1;
        }
        snprintf(said, sizeof said, "%s", zr_last_error());
        zr_arena_get_stats(rig.arena, &stats);
        paint(&model, rig.arena);
        measure(&model, &truth);
        const char *what = judge(&model, &truth, stats.cached_bytes, bytes);
        if (what) {
            wrong++;
            tap_note("round %u: wrong in %s: %zu free, the largest run %zu: %s", round, what,
                     truth.free_bytes, truth.largest_bytes, said);
        }
        fragmented += strstr(said, ": fragmentation. ") != NULL;
        finer += granule_said() != 0;
        short_of += strstr(said, ": shortage. ") != NULL;
        end_rig(&rig);
    }
    tap_ok(finer >= 5 && finer < fragmented, "%u times a smaller granule would help, not always", finer);
    tap_ok(fragmented >= 10 && short_of >= 10, "%u times fragmentation, %u times shortage", fragmented,
           short_of);
    tap_is(wrong, 0, "and every report tells what the model has");
}

int main(void)
{
    random_state = run_seed();
    test_shortage();
    test_fragmentation();
    test_long_runs(0); /* the low half of each */
    test_long_runs(1);
    test_addresses();
    test_mappings();
    test_refused_mapping();
    test_random();
    return tap_done();
}
