/* compress.c: --compress: what ranks send packed. See flags.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/system/file.h"
#include "zero/train/settings/flags.h"

static const char *const kind_names[ZR_COMPRESSED_KINDS] = {
    [ZR_COMPRESSED_PARAMETERS] = "parameters", [ZR_COMPRESSED_GRADIENTS] = "gradients"};
/* ZeRO++'s names (https://arxiv.org/abs/2306.10209). */
static const struct {
    const char *name, *means;
} aliases[] = {{"qwz", "parameters:int8"}, {"qgz", "gradients:int4"}};

static int wrong(const struct zr_flag *flag, const char *word)
{
    struct zr_text text;
    char names[128];
    zr_text_start(&text, NULL, names, sizeof names);
    for (unsigned packing = 0; packing < ZR_PACKINGS_COUNT; packing++)
        zr_text_print(&text, "%s%s", text.used_bytes ? ", " : "", zr_packing_name((enum zr_packing)packing));
    return zr_flag_wrong(flag, word,
                         "not KIND:METHOD; give parameters or gradients, and one of %.*s; or qwz, qgz, hpz",
                         (int)text.used_bytes, names);
}

/* Stores one KIND:METHOD, or a name of ZeRO++. */
static int store_one(const struct zr_flag *flag, struct zr_compression *out, const char *word)
{
    if (strcmp(word, "hpz") == 0) {
        out->secondary_shards = true;
        return -1;
    }
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        word = strcmp(word, aliases[i].name) == 0 ? aliases[i].means : word;
    const char *colon = strchr(word, ':');
    for (unsigned kind = 0; colon && kind < ZR_COMPRESSED_KINDS; kind++) {
        if (strlen(kind_names[kind]) != (size_t)(colon - word) ||
            memcmp(kind_names[kind], word, (size_t)(colon - word)) != 0)
            continue;
        for (unsigned packing = 0; packing < ZR_PACKINGS_COUNT; packing++)
            if (strcmp(colon + 1, zr_packing_name((enum zr_packing)packing)) == 0) {
                out->kinds[kind].on = true;
                out->kinds[kind].packing = (enum zr_packing)packing;
                if (packing == ZR_PACKING_ONEBIT) /* one algorithm for both */
                    out->kinds[ZR_COMPRESSED_PARAMETERS] = out->kinds[ZR_COMPRESSED_GRADIENTS] =
                        out->kinds[kind];
                return -1;
            }
    }
    return wrong(flag, word);
}

int zr_compress_store(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    char word[64];
    int code = -1;
    do {
        size_t length = strcspn(value, ",");
        if (length >= sizeof word)
            return wrong(flag, value);
        memcpy(word, value, length);
        word[length] = '\0';
        code = store_one(flag, &config->compression, word);
        value += length + (value[length] == ',');
    } while (code == -1 && *value);
    return code;
}

void zr_compress_print(struct zr_text *text, const struct zr_compression *compression)
{
    const char *before = " ";
    for (unsigned kind = 0; kind < ZR_COMPRESSED_KINDS; kind++) {
        if (!compression->kinds[kind].on ||
            (kind == ZR_COMPRESSED_PARAMETERS && zr_compression_is_onebit(compression)))
            continue;
        zr_text_print(text, "%s%s:%s", before, kind_names[kind],
                      zr_packing_name(compression->kinds[kind].packing));
        before = ",";
    }
    if (compression->secondary_shards)
        zr_text_print(text, "%shpz", before);
}

void zr_compress_read_file(struct zr_train_config *config)
{
    bool size_filed =
             config->filed[zr_flag_index(zr_flag_find("node-size"))] && !zr_flag_given(config, "node-size"),
         filed = !zr_flag_given(config, "compress");
    unsigned shards = zr_train_shards(config);
    if (filed && (shards == 1 || config->stage == 0))
        memset(&config->compression, 0, sizeof config->compression);
    if (size_filed && (config->node_ranks < 2 || config->node_ranks >= shards))
        config->node_ranks = 0;
    if (size_filed && filed && config->node_ranks > 0 && config->stage == 3)
        config->compression.secondary_shards = true;
    if (size_filed && !zr_train_compresses(config))
        config->node_ranks = 0;
}

/* Steps after which the variance is settled, 1 / (1 - beta2), rounded up. As a float beta2 is up to 2^-25
 * below the number that was given. */
static uint64_t settled_steps(const struct zr_train_config *config)
{
    double steps = 1 / (1 - (double)config->optimizer.beta2 + 0x1p-25);
    uint64_t whole = (uint64_t)steps;
    return whole + (steps > (double)whole);
}

void zr_compress_resolve(struct zr_train_config *config, bool given)
{
    if (zr_compression_is_onebit(&config->compression) && !given)
        config->compress_warmup = settled_steps(config);
}

/* What the sending of signs excludes, see zero/engine/onebit.h. */
static const char *onebit_conflict(const struct zr_train_config *config)
{
    const struct zr_compression *compression = &config->compression;
    static char words[160];
    if (!zr_compression_is_onebit(compression)) {
        for (unsigned kind = 0; kind < ZR_COMPRESSED_KINDS; kind++)
            if (compression->kinds[kind].on && compression->kinds[kind].packing == ZR_PACKING_ONEBIT)
                return "--compress onebit is for parameters and gradients together; give gradients:onebit only";
        return NULL;
    }
    if (config->stage != 1)
        return "--compress gradients:onebit requires --stage 1";
    if (config->optimizer.kind != ZR_OPTIMIZER_ADAMW || config->optimizer.average_decay > 0)
        return "--compress gradients:onebit requires --optimizer adamw without a moving average";
    if (zr_train_precision(config) == ZR_PRECISION_FP16)
        return "--compress gradients:onebit requires fp32 or bf16: a loss scale would change its errors";
    if (zr_train_has_host_tier(config) || config->shape.tensor > 1 || config->stages.ranks > 1)
        return "--compress gradients:onebit requires whole models whose state is on the device";
    if (config->compress_warmup < settled_steps(config)) {
        snprintf(words, sizeof words,
                 "--compress-warmup %" PRIu64 " ends before the variance is settled; give at least 1 / (1 - "
                 "beta2), %" PRIu64 " steps, or a smaller --beta2",
                 config->compress_warmup, settled_steps(config));
        return words;
    }
    return NULL;
}

const char *zr_compress_conflict(const struct zr_train_config *config)
{
    if (!zr_train_compresses(config))
        return config->node_ranks ? "--node-size requires --compress" : NULL;
    if (zr_train_shards(config) == 1)
        return "--compress requires several data ranks, which send parameters and gradients";
    if (config->stage == 0 || config->stage == ZR_STAGE_AUTO)
        return "--compress requires --stage 1, 2 or 3, where each rank updates a shard";
    unsigned shards = zr_train_shards(config), node = config->node_ranks;
    if (node > 0 && (shards % node != 0 || node >= shards))
        return "--node-size must divide the number of data ranks and be below it";
    if (config->compression.secondary_shards && (config->stage != 3 || node < 2))
        return "--compress hpz requires --stage 3 and --node-size N of 2 or more, as each node keeps the "
               "parameters once";
    if (config->cuda_graph && (node > 0 || zr_compression_is_onebit(&config->compression)))
        return "--cuda-graph cannot be combined with --node-size or --compress gradients:onebit, whose operations "
               "differ from step to step or between communicators";
    if (config->finds_strategy)
        return "--compress cannot be combined with --zero-r auto, which may choose stage 0; give --stage";
    if (config->prove)
        return "--compress changes losses and cannot be used with --prove; leave one of the two out";
    return onebit_conflict(config);
}
