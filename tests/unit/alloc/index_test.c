/* index_test.c: the address index by itself, beside an array that is searched from end to end; readers while
 * blocks come and go; and records of freed blocks, which wait for readers only once there are any. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/core/arena.h"
#include "alloc/core/space.h"
#include "tests/support/random.h"
#include "tests/support/tap.h"

/* A little more than two of the index's regions, and places close to every kind of border in them. */
#define RANGE_BYTES (((size_t)1 << 30) + ((size_t)5 << 20))
enum { BLOCKS = 600, ROUNDS = 40000 };

static struct zr_extent blocks[BLOCKS];
static bool live[BLOCKS];

static size_t random_place(uint64_t *state)
{
    static const size_t near_bytes[] = {0, 16 << 10, 1 << 20, 64 << 20, 512 << 20, 1 << 30};
    size_t near = near_bytes[splitmix64(state) % 6], off = splitmix64(state) % 64 * ZR_UNIT_BYTES;
    if (splitmix64(state) % 4 == 0)
        return splitmix64(state) % (RANGE_BYTES / ZR_UNIT_BYTES) * ZR_UNIT_BYTES;
    return splitmix64(state) % 2 || off > near ? near + off : near - off;
}

static struct zr_extent *model_before(size_t offset)
{
    struct zr_extent *best = NULL;
    for (unsigned i = 0; i < BLOCKS; i++)
        if (live[i] && blocks[i].offset_bytes <= offset &&
            (!best || blocks[i].offset_bytes > best->offset_bytes))
            best = &blocks[i];
    return best;
}

static struct zr_extent *model_at(size_t offset)
{
    struct zr_extent *block = model_before(offset);
    return block && block->offset_bytes == offset ? block : NULL;
}

static void test_beside_a_model(uint64_t seed)
{
    struct zr_index index;
    uint64_t state = seed;
    unsigned bad_take = 0, bad_exact = 0, bad_before = 0, full = 0;
    size_t count = 0;
    tap_result(zr_index_init(&index, RANGE_BYTES), ZR_OK, "an index");
    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned i = (unsigned)(splitmix64(&state) % BLOCKS);
        size_t place = random_place(&state);
        bool freed = false;
        if (live[i]) {
            place = blocks[i].offset_bytes;
            bad_take += zr_index_take(&index, place, &freed) != &blocks[i];
            live[i] = false;
            count--;
            bad_take += zr_index_take(&index, place, &freed) != NULL || !freed;
        } else if (!model_at(place) && zr_index_reserve(&index)) {
            blocks[i] = (struct zr_extent){.offset_bytes = place, .bytes = ZR_UNIT_BYTES};
            zr_index_insert(&index, &blocks[i]);
            live[i] = true;
            full += ++count > BLOCKS / 3;
        }
        struct zr_extent copy;
        size_t look = random_place(&state);
        bad_exact += zr_index_exact(&index, look, &freed) != model_at(look);
        bad_before += zr_index_before(&index, look, &copy) != model_before(look);
    }
    tap_ok(full > ROUNDS / 4, "seed %llu: many blocks at once", (unsigned long long)seed);
    tap_is(bad_take, 0, "each is taken once, and then known as freed");
    tap_is(bad_exact, 0, "each is found by its first byte");
    tap_is(bad_before, 0, "the last block before any place is found");
    bool freed;
    tap_ok(!zr_index_take(&index, RANGE_BYTES * 4, &freed) && !freed, "nothing lies beyond the range");
    zr_index_end(&index);
    memset(live, 0, sizeof live);
}

/* Large blocks take no records; two in one of its stretches do, once. */
static void test_records(void)
{
    enum { LARGE = 200 };
    struct zr_index index;
    struct zr_extent copy;
    bool freed;
    unsigned bad = 0;
    tap_result(zr_index_init(&index, RANGE_BYTES), ZR_OK, "an index");
    for (unsigned turn = 0; turn < 3; turn++) {
        for (unsigned i = 0; i < LARGE; i++) {
            blocks[i] = (struct zr_extent){.offset_bytes = ((size_t)i << 20) + (i + turn) % 7 * 65536};
            bad += !zr_index_reserve(&index);
            zr_index_insert(&index, &blocks[i]);
        }
        for (unsigned i = 0; i < LARGE; i++)
            bad += zr_index_take(&index, blocks[i].offset_bytes, &freed) != &blocks[i];
    }
    tap_is(bad, 0, "large blocks come and go");
    tap_is(zr_slab_live_count(&index.nodes) + zr_slab_live_count(&index.leaves), 0, "in no node and no leaf");
    for (unsigned i = 0; i < 3; i++) {
        blocks[i] = (struct zr_extent){.offset_bytes = i * (size_t)512};
        bad += !zr_index_reserve(&index);
        zr_index_insert(&index, &blocks[i]);
    }
    tap_is(zr_slab_live_count(&index.nodes), 1, "small ones side by side share a node");
    tap_is(zr_slab_live_count(&index.leaves), 1, "and a leaf");
    bad += zr_index_take(&index, 512, &freed) != &blocks[1];
    tap_ok(!zr_index_exact(&index, 512, &freed) && freed &&
               zr_index_before(&index, 1023, &copy) == &blocks[0],
           "one is gone, and known as freed");
    zr_index_note(&index, 512, false);
    tap_ok(!zr_index_exact(&index, 512, &freed) && !freed, "until that is forgotten");
    zr_index_note(&index, 1024, true);
    tap_ok(zr_index_exact(&index, 1024, &freed) == &blocks[2] && bad == 0,
           "a live one cannot be noted as freed");
    zr_index_end(&index);
}

/* ---- Readers ------------------------------------------------------------------------------------------- */

/* What a slot still leads to may be another block by now, or none. */
static void test_stale(void)
{
    struct zr_index index;
    struct zr_extent copy;
    tap_result(zr_index_init(&index, RANGE_BYTES), ZR_OK, "an index");
    for (unsigned i = 0; i < 3; i++) {
        blocks[i] = (struct zr_extent){.offset_bytes = i * (size_t)512};
        zr_index_reserve(&index);
        zr_index_insert(&index, &blocks[i]);
    }
    blocks[2].offset_bytes = 256;
    tap_ok(zr_index_before(&index, 2000, &copy) == &blocks[1] && copy.offset_bytes == 512,
           "a block that begins elsewhere by now is passed over");
    zr_extent_unpublish(&blocks[1]);
    tap_ok(zr_index_before(&index, 2000, &copy) == &blocks[0], "and one that is none any more");
    zr_index_end(&index);
}

static struct zr_extent changing;
static atomic_bool over;
static atomic_uint reads_count;

static void *read_changing(void *argument)
{
    size_t *bad = argument;
    struct zr_extent copy;
    while (!atomic_load(&over))
        if (zr_extent_read(&changing, &copy)) {
            *bad += copy.bytes != copy.offset_bytes + 1 || copy.stream != copy.offset_bytes + 2;
            atomic_fetch_add(&reads_count, 1);
        }
    return NULL;
}

static void test_one_moment(void)
{
    enum { READS = 200000 };
    pthread_t reader;
    size_t bad = 0;
    changing = (struct zr_extent){.bytes = 1, .stream = 2};
    zr_extent_publish(&changing);
    pthread_create(&reader, NULL, read_changing, &bad);
    for (size_t i = 1; atomic_load(&reads_count) < READS; i++) {
        zr_extent_unpublish(&changing);
        changing.offset_bytes = i;
        changing.bytes = i + 1;
        changing.stream = i + 2;
        zr_extent_publish(&changing);
        for (volatile unsigned pause = 0; pause < 50; pause++)
            ;
    }
    atomic_store(&over, true);
    pthread_join(reader, NULL);
    atomic_store(&over, false);
    tap_is(bad, 0, "a copy is as the block was at one moment");
}

enum { KEPT = 64, TURNS = 30000 };

static zr_arena *arena;
static char *kept[KEPT];

static void *search(void *argument)
{
    size_t *bad = argument;
    uint64_t state = 5;
    while (!atomic_load(&over)) {
        struct zr_block_info info;
        unsigned i = (unsigned)(splitmix64(&state) % KEPT);
        *bad += zr_arena_find(arena, kept[i] + splitmix64(&state) % 3000, &info) != ZR_OK ||
                info.address != kept[i] || info.bytes != 3000;
        /* Of a block that comes and goes nothing, or all as it was at one moment. */
        char *any = kept[i] + splitmix64(&state) % 20000;
        if (zr_arena_find(arena, any, &info) == ZR_OK)
            *bad += (size_t)(any - (char *)info.address) >= info.reserved_bytes ||
                    info.reserved_bytes != zr_round_up(info.bytes, ZR_UNIT_BYTES);
    }
    return NULL;
}

static void *take(size_t bytes)
{
    void *out;
    return zr_arena_alloc(arena, &(struct zr_request){.bytes = bytes}, &out) == ZR_OK ? out : NULL;
}

/* Blocks of other sizes around the kept ones come and go; returns how many could not. */
static unsigned churn(unsigned turns, uint64_t seed)
{
    void *others[KEPT] = {NULL};
    uint64_t state = seed;
    unsigned bad = 0;
    for (unsigned turn = 0; turn < turns; turn++) {
        unsigned i = (unsigned)(splitmix64(&state) % KEPT);
        bad += zr_arena_free(arena, others[i]) != ZR_OK;
        others[i] = take(1 + splitmix64(&state) % 9000);
        bad += others[i] == NULL;
    }
    for (unsigned i = 0; i < KEPT; i++)
        bad += zr_arena_free(arena, others[i]) != ZR_OK;
    return bad;
}

static void test_readers(void)
{
    zr_backend *backend = NULL;
    pthread_t readers[2];
    size_t wrong[2] = {0, 0};
    tap_result(zr_backend_sim_create(&backend, NULL), ZR_OK, "a backend");
    tap_result(zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}), ZR_OK, "an arena");
    tap_is(churn(TURNS, 1), 0, "blocks come and go");
    size_t records = arena->extents.records_count;
    for (unsigned i = 0; i < KEPT; i++) {
        kept[i] = take(3000);
        zr_arena_free(arena, take(5000));
    }
    for (unsigned i = 0; i < 2; i++)
        pthread_create(&readers[i], NULL, search, &wrong[i]);
    unsigned bad = churn(TURNS, 2);
    atomic_store(&over, true);
    for (unsigned i = 0; i < 2; i++)
        pthread_join(readers[i], NULL);
    tap_is(bad, 0, "the same while others search");
    tap_is(wrong[0] + wrong[1], 0, "every search finds its block, and no other half changed");
    tap_is(arena->extents.records_count, records, "and no record waits for a reader");
    tap_result(zr_arena_check(arena), ZR_OK, "sound");
    for (unsigned i = 0; i < KEPT; i++)
        zr_arena_free(arena, kept[i]);
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
}

int main(int count, char **arguments)
{
    uint64_t seed = count > 1 ? strtoull(arguments[1], NULL, 0) : 20260;
    for (unsigned i = 0; i < 3; i++)
        test_beside_a_model(seed + i);
    test_records();
    test_stale();
    test_one_moment();
    test_readers();
    return tap_done();
}
