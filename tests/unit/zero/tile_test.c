/* tile_test.c: a model in tiles beside the same one in one piece: losses and gradients are as near as another
 * order of sums allows. */
#include "tests/support/tap.h"
#include "tests/support/zero/trainer_rig.h"

enum { STEPS = 6, V = 29, VP = 32 };

static const struct {
    const char *words;
    struct zr_shape shape;
    unsigned tiles[3]; /* 0 ends them */
} models[] = {
    {"GPT-2", {.layers = 2, .hidden = 24, .heads = 4, .sequence = 7, .batch = 2}, {2, 3, 24}},
    {"GPT-2, all recomputed",
     {.layers = 3, .hidden = 16, .heads = 2, .sequence = 5, .batch = 1, .recompute = ZR_RECOMPUTE_FULL},
     {4}},
    {"LLaMA, heads of its own for keys and values",
     {.layers = 2,
      .hidden = 16,
      .heads = 4,
      .kv_heads = 2,
      .ffn = 20,
      .sequence = 7,
      .batch = 2,
      .architecture = ZR_ARCH_LLAMA},
     {2, 4}},
    {"LLaMA, norms of heads, a window from layer 1 on",
     {.layers = 2,
      .hidden = 16,
      .heads = 4,
      .kv_heads = 2,
      .ffn = 20,
      .sequence = 7,
      .batch = 2,
      .architecture = ZR_ARCH_LLAMA,
      .variant = {.head_norms = 1, .window = 3, .window_first = 1}},
     {2, 4}},
    {"GPT-NeoX, scaled embeddings, all recomputed",
     {.layers = 2,
      .hidden = 16,
      .heads = 4,
      .ffn = 20,
      .sequence = 7,
      .batch = 2,
      .architecture = ZR_ARCH_LLAMA,
      .recompute = ZR_RECOMPUTE_FULL,
      .variant = {.layer_norms = 1, .parallel = 1, .ungated = 1, .biases = 7, .scaled_tokens = 1}},
     {2, 4}},
    {"LLaMA, one layer recomputed",
     {.layers = 2,
      .hidden = 24,
      .heads = 4,
      .kv_heads = 1,
      .ffn = 33,
      .sequence = 5,
      .batch = 1,
      .tied = true,
      .architecture = ZR_ARCH_LLAMA,
      .recompute = ZR_RECOMPUTE_FULL,
      .recompute_layers = 1},
     {3}},
    {"GPT-2, logits of two chunks, and of one",
     {.layers = 1,
      .hidden = 8,
      .heads = 1,
      .vocabulary = 65500,
      .vocabulary_padded = 65536,
      .sequence = 130,
      .batch = 2},
     {2}},
};

struct numbers {
    double loss[STEPS], norm[STEPS];
    uint64_t elements;
    unsigned steps;
};

static void run(struct zr_shape shape, unsigned tiles, const char *words, struct numbers *out)
{
    struct rig rig;
    bool large = shape.vocabulary > 0; /* one step says it */
    shape.vocabulary = large ? shape.vocabulary : V;
    shape.vocabulary_padded = large ? shape.vocabulary_padded : VP;
    shape.tiles = tiles;
    zr_result result = rig_open(&rig, &shape);
    out->elements = zr_engine_elements(rig.state.engine);
    out->steps = large ? 1 : STEPS;
    for (unsigned step = 0; step < out->steps && result == ZR_OK; step++)
        result = rig_train(&rig, step, &out->loss[step], &out->norm[step]);
    tap_result(result, ZR_OK, "%s: %u steps of %u tiles", words, out->steps, tiles);
    tap_is(rig_close(&rig), 0, "nothing is left behind");
}

static void test_model(size_t index)
{
    struct numbers whole, tiled;
    run(models[index].shape, 1, models[index].words, &whole);
    for (unsigned i = 0; i < 3 && models[index].tiles[i]; i++) {
        double loss = 0, norm = 0;
        run(models[index].shape, models[index].tiles[i], models[index].words, &tiled);
        for (unsigned s = 0; s < whole.steps; s++) {
            loss = fmax(loss, fabs(tiled.loss[s] / whole.loss[s] - 1));
            norm = fmax(norm, fabs(tiled.norm[s] / whole.norm[s] - 1));
        }
        tap_is(tiled.elements, whole.elements, "as many elements");
        tap_ok(loss < 1e-6 && norm < 2e-6, "losses within 1e-6 (%.1e), norms within 2e-6 (%.1e)", loss, norm);
    }
}

static void test_refused(void)
{
    static const struct {
        unsigned tiles, tensor;
        size_t kv_heads;
        const char *words;
    } bad[] = {{5, 1, 4, "--tile 4"},
               {16, 1, 1, "--tile 8"},
               {UINT32_MAX, 1, 4, "--tile 32"},
               {32, 2, 4, "--tile 16"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct zr_shape shape = {.layers = 1,
                                 .hidden = 32,
                                 .heads = 4,
                                 .kv_heads = bad[i].kv_heads,
                                 .ffn = 64,
                                 .vocabulary = V,
                                 .vocabulary_padded = VP,
                                 .sequence = 4,
                                 .batch = 1,
                                 .architecture = ZR_ARCH_LLAMA,
                                 .tensor = bad[i].tensor,
                                 .tiles = bad[i].tiles};
        zr_shape_complete(&shape);
        zr_result result = zr_shape_check(&shape);
        tap_ok(result == ZR_ERR_INVALID && strstr(zr_last_error(), bad[i].words), "refused: %s",
               zr_last_error());
    }
}

int main(void)
{
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        test_model(i);
    test_refused();
    return tap_done();
}
