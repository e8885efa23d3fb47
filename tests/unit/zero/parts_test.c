/* parts_test.c: tensors of which an engine stores a part: every element of the whole tensors belongs to one
 * rank of one part, and has the first value that it has in the whole. */
#include <stdlib.h>
#include <string.h>

#include "tests/support/zero/engine_rig.h"
#include "tests/support/tap.h"
#include "zero/engine/layout.h"

enum { PARAMETERS = 6, ROWS = 37, COLUMNS = 45, WIDTH = 19, BLOCK = 7, PARTS_MAX = 4 };

/* A matrix by columns, one by rows, a vector, a matrix and a vector of three blocks, and one that every part
 * has whole, which part 0 counts. */
static const size_t whole[PARAMETERS][2] = {{ROWS, COLUMNS},    {COLUMNS, ROWS}, {COLUMNS, 0},
                                            {WIDTH, 3 * BLOCK}, {3 * BLOCK, 0},  {WIDTH, 3}};
enum { ELEMENTS = 2 * ROWS * COLUMNS + COLUMNS + 3 * WIDTH * BLOCK + 3 * BLOCK + 3 * WIDTH };
static const struct zr_unit units[3] = {{"first", 1}, {"second", 1}, {"third", 1}};

static size_t share(size_t size, unsigned parts)
{
    return (size + parts - 1) / parts; /* the last part has padding where they do not divide */
}

static struct zr_parameter_list list_of(struct zr_parameter *p, unsigned part, unsigned parts)
{
    static const char *const names[PARAMETERS] = {"by columns", "by rows",          "vector",
                                                  "by blocks",  "vector of blocks", "of all"};
    const int dimension[PARAMETERS] = {1, 0, 0, 1, 0, -1};
    const unsigned blocks[PARAMETERS] = {0, 0, 1, 3, 3, 0};
    for (int i = 0; i < PARAMETERS; i++) {
        p[i] = (struct zr_parameter){
            .shape = {whole[i][0], whole[i][1]}, .unit = i / 2u, .group = 1, .init_deviation = 0.1f};
        snprintf(p[i].name, sizeof p[i].name, "%s", names[i]);
        if (dimension[i] < 0 || parts == 1)
            continue;
        unsigned count = blocks[i] > 0 ? blocks[i] : 1;
        size_t each = share(whole[i][dimension[i]] / count, parts);
        memcpy(p[i].part.whole, whole[i], sizeof whole[i]);
        p[i].part.blocks = blocks[i];
        p[i].shape[dimension[i]] = each * count;
        p[i].part.first[dimension[i]] = part * each;
    }
    return (struct zr_parameter_list){p, PARAMETERS, units, 3, 0};
}

/* How often each element is in a segment of a rank: the layout alone, for any number of ranks. */
static void test_cover(unsigned parts, unsigned world, zr_arena *arena)
{
    static unsigned char times[ELEMENTS];
    unsigned wrong = 0;
    memset(times, 0, sizeof times);
    for (unsigned part = 0; part < parts; part++) {
        struct zr_parameter p[PARAMETERS];
        struct zr_parameter_list list = list_of(p, part, parts);
        struct zr_layout layout;
        if (zr_layout_make(&layout, &(struct zr_layout_request){&list, world, ZR_PRECISION_FP32, arena, NULL,
                                                                NULL, 0, false}) != ZR_OK)
            return (void)tap_ok(false, "a layout");
        wrong += layout.elements != ELEMENTS;
        for (unsigned r = 0; r < world; r++)
            for (size_t i = 0; i < PARAMETERS; i++) {
                const struct zr_layout_parameter *of = &layout.parameters[i];
                size_t shard = layout.units[p[i].unit].shard_elements, at = r * shard;
                for (size_t k = 0; k < zr_layout_pieces(of, at, at + shard); k++) {
                    struct zr_tensor_piece piece = zr_layout_piece(of, at, at + shard, k);
                    wrong +=
                        piece.count > 0 && (piece.offset < at || piece.offset + piece.count > at + shard);
                    wrong += piece.count > 0 && zr_layout_whole_index(of, piece.offset - of->offset) !=
                                                    piece.global_index - of->global_index;
                    for (size_t e = 0; e < piece.count; e++)
                        if (i + 1 < PARAMETERS || part == 0)
                            times[piece.global_index + e]++;
                }
            }
        zr_layout_end(&layout);
    }
    for (size_t e = 0; e < ELEMENTS; e++)
        wrong += times[e] != 1;
    tap_ok(wrong == 0, "%u parts on %u ranks each have every element once", parts, world);
}

/* The values of a fresh engine, by global index; `sum` gets what the shards hold in all. */
static zr_result first_values(struct rig *rig, unsigned part, unsigned parts, float *out, double *sum)
{
    struct zr_parameter p[PARAMETERS];
    zr_engine *engine;
    zr_result result = zr_engine_create(
        &engine, &(struct zr_engine_options){.arena = rig->arena,
                                             .host_arena = rig->arena,
                                             .kernels = zr_kernels_cpu(zr_isa_best()),
                                             .context = &rig->context,
                                             .comm = rig->comm,
                                             .list = list_of(p, part, parts),
                                             .seed = 9,
                                             .optimizer = {.beta1 = 0.9f, .beta2 = 0.9f, .epsilon = 1e-8f}});
    for (size_t i = 0; result == ZR_OK && i < zr_engine_segments_count(engine); i++) {
        struct zr_shard_segment s;
        zr_engine_segment(engine, i, &s);
        memcpy(out + s.global_index, s.parameter, s.count * sizeof *out);
    }
    for (unsigned u = 0; u < 3 && result == ZR_OK; u++) {
        const void *base;
        result = zr_engine_gather(engine, u, &base);
        for (size_t i = 2 * u; result == ZR_OK && i < 2 * u + 2; i++)
            for (size_t e = 0; e < zr_parameter_elements(&p[i]); e++) {
                double value = (double)((const float *)base)[zr_engine_offset(engine, i) + e];
                *sum += i + 1 < PARAMETERS || part == 0 ? value : 0;
            }
        zr_engine_release(engine, u);
    }
    if (result == ZR_OK && parts > 1 && zr_engine_save(engine, "/nowhere") != ZR_ERR_INVALID)
        result = ZR_ERR_CORRUPT; /* a part alone is not to be saved */
    zr_engine_destroy(engine);
    return result;
}

static void test_values(struct rig *rig, unsigned parts)
{
    static float want[ELEMENTS], got[ELEMENTS];
    double want_sum = 0, sum = 0;
    zr_result result = first_values(rig, 0, 1, want, &want_sum);
    memset(got, 0, sizeof got);
    for (unsigned part = 0; part < parts && result == ZR_OK; part++)
        result = first_values(rig, part, parts, got, &sum);
    tap_result(result, ZR_OK, "engines of %u parts, which cannot be saved alone", parts);
    tap_ok(memcmp(got, want, sizeof want) == 0, "their values are those of the whole tensors");
    tap_ok(sum - want_sum < 1e-6 && want_sum - sum < 1e-6, "and what is stored beyond them is zero");
}

/* All parts in one list, one after the other: the same tensors. */
static void test_together(unsigned parts, unsigned world, zr_arena *arena)
{
    static unsigned char times[ELEMENTS];
    struct zr_parameter all[PARAMETERS * PARTS_MAX], p[PARAMETERS];
    struct zr_layout layout;
    size_t count = 0;
    unsigned wrong = 0;
    memset(times, 0, sizeof times);
    for (int i = 0; i < PARAMETERS; i++)
        for (unsigned part = 0; part < (i + 1 < PARAMETERS ? parts : 1); part++) {
            list_of(p, part, parts);
            all[count] = p[i];
            all[count++].part.continues = part > 0;
        }
    zr_result result = zr_layout_make(
        &layout, &(struct zr_layout_request){&(struct zr_parameter_list){all, count, units, 3, 0}, world,
                                             ZR_PRECISION_FP32, arena, NULL, NULL, 0, false});
    for (size_t i = 0; result == ZR_OK && i < count; i++) {
        const struct zr_layout_parameter *of = &layout.parameters[i];
        size_t end = layout.units[all[i].unit].padded_elements;
        for (size_t k = 0; k < zr_layout_pieces(of, 0, end); k++) {
            struct zr_tensor_piece piece = zr_layout_piece(of, 0, end, k);
            for (size_t e = 0; e < piece.count; e++)
                times[piece.global_index + e]++;
        }
    }
    for (size_t e = 0; e < ELEMENTS; e++)
        wrong += times[e] != 1;
    tap_ok(result == ZR_OK && layout.elements == ELEMENTS && wrong == 0,
           "%u parts in one list have every element once", parts);
    if (result == ZR_OK)
        zr_layout_end(&layout);
}

/* What continues nothing. */
static void test_beginnings(zr_arena *arena)
{
    for (unsigned at = 0; at < 4; at++) {
        struct zr_parameter p[PARAMETERS];
        struct zr_parameter_list list = list_of(p, 0, 2);
        struct zr_layout layout;
        p[at < 2 ? at : 1].part.continues =
            at < 3; /* the first, the second, one of another shape, two alike */
        if (at > 1)
            memcpy(p[1].name, p[0].name, sizeof p[1].name);
        tap_result(zr_layout_make(&layout, &(struct zr_layout_request){&list, 1, ZR_PRECISION_FP32, arena,
                                                                       NULL, NULL, 0, false}),
                   ZR_ERR_INVALID, "refused: %s", zr_last_error());
    }
}

static void test_refused(struct rig *rig)
{
    static const struct zr_tensor_part bad[] = {
        {.whole = {ROWS, COLUMNS}, .first = {ROWS, 0}},
        {.whole = {ROWS, COLUMNS}, .first = {0, COLUMNS}},
        {.whole = {ROWS, 0}, .first = {0, 0}},
        {.whole = {ROWS, COLUMNS + 1}, .blocks = 2},
        {.whole = {ROWS, 2 * COLUMNS}, .first = {0, COLUMNS}, .blocks = 2},
        {.whole = {SIZE_MAX / 2, SIZE_MAX / 2}}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct zr_parameter p[PARAMETERS];
        struct zr_parameter_list list = list_of(p, 0, 1);
        struct zr_layout layout;
        p[0].part = bad[i];
        tap_result(zr_layout_make(&layout, &(struct zr_layout_request){&list, 1, ZR_PRECISION_FP32,
                                                                       rig->arena, NULL, NULL, 0, false}),
                   ZR_ERR_INVALID, "refused: %s", zr_last_error());
    }
}

/* Units about the borders of a shard: each element is one rank's, and padding is less than a shard's
 * alignment of every rank. */
static void test_borders(unsigned world, enum zr_precision precision, zr_arena *arena)
{
    const size_t align = ZR_SHARD_ALIGN_BYTES / zr_precision_bytes(precision) * world;
    const size_t sizes[] = {1,     world - 1, world,         world + 1, align - 1,
                            align, align + 1, 2 * align - 1, 2 * align, 2 * align + 1};
    unsigned wrong = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct zr_parameter p = {.name = "one", .shape = {sizes[i], 0}};
        struct zr_parameter_list list = {&p, 1, units, 1, 0};
        struct zr_layout layout;
        if (sizes[i] == 0 ||
            zr_layout_make(&layout, &(struct zr_layout_request){&list, world, precision, arena, NULL, NULL, 0,
                                                                false}) != ZR_OK) {
            wrong += sizes[i] != 0;
            continue;
        }
        size_t shard = layout.units[0].shard_elements, covered = 0;
        for (unsigned r = 0; r < world; r++)
            for (size_t k = 0; k < zr_layout_pieces(&layout.parameters[0], r * shard, (r + 1) * shard); k++) {
                struct zr_tensor_piece piece =
                    zr_layout_piece(&layout.parameters[0], r * shard, (r + 1) * shard, k);
                wrong += piece.count > 0 &&
                         (piece.offset != covered || piece.offset + piece.count > (r + 1) * shard);
                covered += piece.count;
            }
        size_t padded = (sizes[i] + align - 1) / align * align;
        bool good = covered == sizes[i] && layout.elements == sizes[i] && shard * world == padded &&
                    layout.units[0].padded_elements == padded;
        if (!good)
            tap_note("%zu elements: %zu covered, shards of %zu", sizes[i], covered, shard);
        wrong += !good;
        zr_layout_end(&layout);
    }
    tap_is(wrong, 0, "%u ranks, %s: units at the borders of shards", world, zr_precision_name(precision));
}

int main(void)
{
    struct rig rig;
    tap_result(rig_open(&rig, &(struct rig_options){.isa = zr_isa_best(),
                                                    .bucket_bytes = 4096,
                                                    .reserve_bytes = 64 << 20,
                                                    .kernels = zr_kernels_cpu(zr_isa_best())}),
               ZR_OK, "memory");
    for (unsigned parts = 1; parts <= PARTS_MAX; parts++) {
        for (unsigned world = 1; world <= 5; world++)
            test_cover(parts, world, rig.arena);
        test_together(parts, parts, rig.arena);
        test_values(&rig, parts);
    }
    for (unsigned world = 1; world <= 256; world += world < 4 ? 1 : 63)
        for (enum zr_precision kind = 0; kind < ZR_PRECISION_COUNT; kind++)
            test_borders(world, kind, rig.arena);
    test_refused(&rig);
    test_beginnings(rig.arena);
    tap_is(rig_close(&rig), 0, "nothing is left behind");
    return tap_done();
}
