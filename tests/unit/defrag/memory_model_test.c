/* memory_model_test.c: the model of memory beside a naive one, on random records; what it refuses. */
#include <string.h>

#include "defrag/report/memory.h"
#include "tests/support/draws.h"
#include "tests/support/records.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"

/* Addresses are small enough to look at each one: granules in the lower half, segments in the upper. */
enum { PLACES = 512, HALF = 256, UNIT = 8, BLOCKS = 64, ROUNDS = 60, RECORDS = 400 };

struct naive {
    int mapped[PLACES]; /* 0: not; 1: granules; above: the segment's number */
    int block[PLACES];  /* the number + 1 of the block that lies here */
    struct {
        uint64_t address, bytes, requested_bytes;
        bool live, pending;
    } blocks[BLOCKS];
    int segments_count;
};

static struct naive naive;
static struct zr_memory memory;

static bool is_free(uint64_t low, uint64_t high)
{
    for (uint64_t i = low; i < high; i++)
        if (naive.block[i])
            return false;
    return true;
}

static void fill(int *places, uint64_t low, uint64_t bytes, int value)
{
    for (uint64_t i = low; i < low + bytes; i++)
        places[i] = value;
}

/* ---- Random records, each done to both ----------------------------------------------------------------- */

static zr_result do_block(void)
{
    size_t number = random_below(BLOCKS);
    struct zr_record record = {.tag = (uint8_t)random_below(ZR_TAG_COUNT)};
    if (naive.blocks[number].live) {
        bool ask = !naive.blocks[number].pending && random_below(2);
        record.kind = ask ? ZR_RECORD_FREE_ASKED : ZR_RECORD_FREE;
        record.address = naive.blocks[number].address;
        naive.blocks[number].pending = ask;
        naive.blocks[number].live = ask;
        if (!ask)
            fill(naive.block, record.address, naive.blocks[number].bytes, 0);
        return zr_memory_apply(&memory, &record);
    }
    record.address = random_below(PLACES - 40);
    record.bytes = 1 + random_below(20);
    record.reserved_bytes = record.bytes + random_below(20);
    uint64_t end = record.address + record.reserved_bytes;
    if (!is_free(record.address, end)) {
        zr_result result = zr_memory_apply(&memory, &record);
        return result == ZR_ERR_FORMAT ? ZR_OK : ZR_ERR_CORRUPT;
    }
    naive.blocks[number].address = record.address;
    naive.blocks[number].bytes = record.reserved_bytes;
    naive.blocks[number].requested_bytes = record.bytes;
    naive.blocks[number].live = true;
    naive.blocks[number].pending = false;
    fill(naive.block, record.address, record.reserved_bytes, (int)number + 1);
    return zr_memory_apply(&memory, &record);
}

static zr_result do_granules(void)
{
    bool map = random_below(2);
    uint64_t first = random_below(HALF / UNIT - 4) * UNIT, bytes = (1 + random_below(4)) * UNIT;
    struct zr_record record = {
        .kind = map ? ZR_RECORD_MAP : ZR_RECORD_UNMAP, .address = first, .bytes = bytes, .unit_bytes = UNIT};
    fill(naive.mapped, first, bytes, map);
    return zr_memory_apply(&memory, &record);
}

static zr_result do_segment(void)
{
    uint64_t first = HALF + random_below(HALF - 40), bytes = 1 + random_below(40), end = first;
    struct zr_record record = {.kind = ZR_RECORD_MAP, .address = first, .bytes = bytes};
    if (naive.mapped[first]) { /* the whole of the one that is there goes */
        int own = naive.mapped[first];
        while (first > HALF && naive.mapped[first - 1] == own)
            first--;
        while (end < PLACES && naive.mapped[end] == own)
            end++;
        record = (struct zr_record){.kind = ZR_RECORD_UNMAP, .address = first, .bytes = end - first};
        fill(naive.mapped, first, end - first, 0);
        return zr_memory_apply(&memory, &record);
    }
    for (uint64_t i = first; i < first + bytes; i++)
        if (naive.mapped[i])
            return ZR_OK;
    fill(naive.mapped, first, bytes, 2 + naive.segments_count++);
    return zr_memory_apply(&memory, &record);
}

/* ---- Comparing ----------------------------------------------------------------------------------------- */

static uint64_t naive_releasable(void)
{
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < HALF; i += UNIT)
        bytes += naive.mapped[i] && is_free(i, i + UNIT) ? UNIT : 0;
    for (uint64_t i = HALF, end; i < PLACES; i = end) {
        for (end = i + 1; end < PLACES && naive.mapped[end] == naive.mapped[i];)
            end++;
        bytes += naive.mapped[i] && is_free(i, end) ? end - i : 0;
    }
    return bytes;
}

static bool same_figures(void)
{
    struct zr_memory_figures figures;
    uint64_t live = 0, requested = 0, pending = 0, reserved = 0, tags = 0;
    zr_memory_get_figures(&memory, &figures);
    for (unsigned i = 0; i < BLOCKS; i++) {
        pending += naive.blocks[i].live && naive.blocks[i].pending ? naive.blocks[i].bytes : 0;
        live += naive.blocks[i].live && !naive.blocks[i].pending ? naive.blocks[i].bytes : 0;
        requested += naive.blocks[i].live && !naive.blocks[i].pending ? naive.blocks[i].requested_bytes : 0;
    }
    for (unsigned i = 0; i < PLACES; i++)
        reserved += naive.mapped[i] != 0;
    for (unsigned i = 0; i < ZR_TAG_COUNT; i++)
        tags += figures.live_by_tag_bytes[i];
    uint64_t releasable = naive_releasable(), used = live + pending + releasable;
    return figures.live_bytes == live && figures.requested_bytes == requested &&
           figures.internal_bytes == live - requested && figures.pending_bytes == pending &&
           figures.reserved_bytes == reserved && figures.releasable_bytes == releasable && tags == live &&
           figures.stranded_bytes == (reserved > used ? reserved - used : 0);
}

/* The walk names each place that is mapped or in a block once, as what it is, and no other. */
static bool same_walk(void)
{
    struct zr_memory_walk walk = zr_memory_walk_of(&memory);
    struct zr_memory_piece piece;
    uint64_t at = 0;
    while (zr_memory_next(&walk, &piece)) {
        for (; at < piece.address; at++)
            if (naive.mapped[at] || naive.block[at])
                return false;
        for (; at < piece.address + piece.bytes; at++) {
            if (at >= PLACES || (naive.block[at] != 0) != (piece.block != NULL) ||
                (!piece.block && !naive.mapped[at]) || (piece.mapped && piece.mapped->address > at))
                return false;
        }
        if (at != piece.address + piece.bytes || piece.bytes == 0)
            return false;
    }
    for (; at < PLACES; at++)
        if (naive.mapped[at] || naive.block[at])
            return false;
    return true;
}

static void test_model(void)
{
    struct zr_recording recording = {.path = "random", .has_addresses = true, .has_maps = true};
    unsigned failed = 0, figures = 0, walks = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        memset(&naive, 0, sizeof naive);
        zr_memory_init(&memory, &recording, host_arena);
        for (unsigned i = 0; i < RECORDS; i++) {
            size_t which = random_below(8);
            failed += (which < 5 ? do_block() : which < 7 ? do_granules() : do_segment()) != ZR_OK;
            figures += !same_figures();
            walks += !same_walk();
        }
        zr_memory_end(&memory);
    }
    tap_is(failed, 0, "records are taken, and blocks that overlap are refused");
    tap_is(figures, 0, "after each record the figures are those of the naive model");
    tap_is(walks, 0, "and the walk goes through the same free extents and blocks");
}

static void test_refusals(void)
{
    struct zr_recording recording = {.path = "made", .has_addresses = true, .has_maps = true};
    const struct {
        struct zr_record record;
        const char *words;
    } cases[] = {
        {{.kind = ZR_RECORD_FREE, .address = 101}, "a free inside a block"},
        {{.kind = ZR_RECORD_FREE, .address = 7}, "a free of nothing"},
        {{.kind = ZR_RECORD_ALLOC, .address = 100, .bytes = 1}, "an allocation on a block"},
        {{.kind = ZR_RECORD_ALLOC, .address = 99, .bytes = 2}, "one that reaches into a block"},
        {{.kind = ZR_RECORD_ALLOC, .address = 1, .bytes = UINT64_MAX}, "one beyond the addresses"},
        {{.kind = ZR_RECORD_ALLOC, .address = UINT64_MAX - 4095, .bytes = 8192}, "one that leaves them"},
        {{.kind = ZR_RECORD_ALLOC, .address = UINT64_MAX, .bytes = 1}, "one at the last address"},
        {{.kind = ZR_RECORD_ALLOC, .address = 200, .bytes = (UINT64_C(1) << 62) + 1},
         "one of too many bytes"},
        {{.kind = ZR_RECORD_MAP, .address = 5, .bytes = 0}, "a map of nothing"},
        {{.kind = ZR_RECORD_MAP, .address = UINT64_MAX, .bytes = 2}, "a map beyond the addresses"},
    };
    zr_memory_init(&memory, &recording, host_arena);
    tap_result(
        zr_memory_apply(&memory, &(struct zr_record){.kind = ZR_RECORD_ALLOC, .address = 100, .bytes = 50}),
        ZR_OK, "a block");
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        tap_result(zr_memory_apply(&memory, &cases[i].record), ZR_ERR_FORMAT, "%s is refused",
                   cases[i].words);
    tap_is(memory.live_bytes, 50, "and nothing of them is counted");
    zr_memory_end(&memory);
}

int main(void)
{
    random_state = run_seed();
    tap_result(records_begin(), ZR_OK, "an arena for records");
    test_model();
    test_refusals();
    tap_is(records_end(), 0, "nothing leaks");
    return tap_done();
}
