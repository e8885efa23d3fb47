/* compress.c: --compress: what ranks send packed. See flags.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/system/file.h"
#include "zero/train/settings/flags.h"

static const char *const kind_names[ZR_COMPRESSED_KINDS] = {
    [ZR_COMPRESSED_PARAMETERS] = "parameters", [ZR_COMPRESSED_GRADIENTS] = "gradients"};
/* ZeRO++'s names (https://arxiv.org/abs/2306.10209). */
static const struct {
    const char *name, *means;
} aliases[] = {{"qwz", "parameters:int8"}, {"qgz", "gradients:int4"}};

/* Methods of gradients, and the range of METHOD:PARAMETER. */
static const struct {
    const char *name, *parameter; /* parameter NULL: none */
    float min, max;
    bool whole; /* a whole number */
} methods[ZR_METHODS_COUNT] = {
    [ZR_METHOD_ONEBIT] = {"onebit", NULL, 0, 0, false},
    [ZR_METHOD_LOW_RANK] = {"powersgd", "RANK", 1, 1024, true},     /* https://arxiv.org/abs/1905.13727 */
    [ZR_METHOD_LARGEST] = {"topk", "SHARE", 1e-6f, 0.999f, false}}; /* https://arxiv.org/abs/1712.01887 */

static int wrong(const struct zr_flag *flag, const char *word)
{
    struct zr_text text;
    char names[160];
    zr_text_start(&text, NULL, names, sizeof names);
    for (unsigned packing = ZR_PACKING_ONEBIT + 1; packing < ZR_PACKINGS_COUNT; packing++)
        zr_text_print(&text, "%s%s", text.used_bytes ? ", " : "", zr_packing_name((enum zr_packing)packing));
    for (unsigned i = ZR_METHOD_ONEBIT; i < ZR_METHODS_COUNT; i++)
        zr_text_print(&text, "%s%s%s%s", i > ZR_METHOD_ONEBIT ? ", " : "; for gradients also ",
                      methods[i].name, methods[i].parameter ? ":" : "",
                      methods[i].parameter ? methods[i].parameter : "");
    return zr_flag_wrong(flag, word,
                         "not KIND:METHOD; give parameters or gradients, and one of %.*s; or qwz, qgz, hpz",
                         (int)text.used_bytes, names);
}

/* Stores METHOD or METHOD:PARAMETER of gradients; false: it is not one. */
static bool store_method(struct zr_compression *out, const char *word)
{
    size_t length = strcspn(word, ":");
    for (unsigned i = ZR_METHOD_ONEBIT; i < ZR_METHODS_COUNT; i++) {
        char *end = (char *)(uintptr_t)word + length;
        if (strlen(methods[i].name) != length || memcmp(methods[i].name, word, length) != 0)
            continue;
        float number = methods[i].parameter && *end ? strtof(end + 1, &end) : 0;
        if (*end || !(number >= methods[i].min && number <= methods[i].max) ||
            (methods[i].whole && number != (float)(unsigned)number))
            return false;
        memset(&out->kinds[ZR_COMPRESSED_GRADIENTS], 0, sizeof out->kinds[ZR_COMPRESSED_GRADIENTS]);
        out->kinds[ZR_COMPRESSED_GRADIENTS].on = true;
        out->kinds[ZR_COMPRESSED_GRADIENTS].method = (enum zr_compression_method)i;
        out->kinds[ZR_COMPRESSED_GRADIENTS].parameter = number;
        return true;
    }
    return false;
}

/* Stores one KIND:METHOD, or a name of ZeRO++, or a method of gradients. */
static int store_one(const struct zr_flag *flag, struct zr_compression *out, const char *word)
{
    if (strcmp(word, "hpz") == 0) {
        out->secondary_shards = true;
        return -1;
    }
    if (store_method(out, word))
        return -1;
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        word = strcmp(word, aliases[i].name) == 0 ? aliases[i].means : word;
    const char *colon = strchr(word, ':');
    for (unsigned kind = 0; colon && kind < ZR_COMPRESSED_KINDS; kind++) {
        if (strlen(kind_names[kind]) != (size_t)(colon - word) ||
            memcmp(kind_names[kind], word, (size_t)(colon - word)) != 0)
            continue;
        if (kind == ZR_COMPRESSED_GRADIENTS && store_method(out, colon + 1))
            return -1;
        for (unsigned packing = ZR_PACKING_ONEBIT + 1; packing < ZR_PACKINGS_COUNT; packing++)
            if (strcmp(colon + 1, zr_packing_name((enum zr_packing)packing)) == 0) {
                memset(&out->kinds[kind], 0, sizeof out->kinds[kind]);
                out->kinds[kind].on = true;
                out->kinds[kind].packing = (enum zr_packing)packing;
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
        unsigned method = compression->kinds[kind].method;
        if (!compression->kinds[kind].on)
            continue;
        zr_text_print(text, "%s%s:%s", before, kind_names[kind],
                      method ? methods[method].name : zr_packing_name(compression->kinds[kind].packing));
        if (methods[method].parameter)
            zr_text_print(text, ":%g", (double)compression->kinds[kind].parameter);
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
    if (filed && (shards == 1 ||
                  (config->stage == 0 && !zr_compression_is_by(&config->compression, ZR_METHOD_ONEBIT))))
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
    if (zr_compression_is_by(&config->compression, ZR_METHOD_ONEBIT) && !given)
        config->compress_warmup = settled_steps(config);
}

/* What the sending of signs excludes, see zero/engine/onebit.h. */
static const char *onebit_conflict(const struct zr_train_config *config)
{
    static char words[160];
    if (config->compression.kinds[ZR_COMPRESSED_PARAMETERS].on)
        return "--compress gradients:onebit sends signs of parameters, too; leave parameters out";
    if (config->stage > 1)
        return "--compress gradients:onebit requires --stage 0 or 1";
    if (config->optimizer.kind != ZR_OPTIMIZER_ADAMW || config->optimizer.average_decay > 0)
        return "--compress gradients:onebit requires --optimizer adamw without a moving average";
    if (config->compress_warmup < settled_steps(config)) {
        snprintf(words, sizeof words,
                 "--compress-warmup %" PRIu64 " ends before the variance is settled; give at least 1 / (1 - "
                 "beta2), %" PRIu64 " steps, or a smaller --beta2",
                 config->compress_warmup, settled_steps(config));
        return words;
    }
    return NULL;
}

/* What methods exclude that keep errors, see zero/engine/errors.h. */
static const char *errors_conflict(const struct zr_train_config *config)
{
    if (!zr_compression_keeps_errors(&config->compression))
        return NULL;
    if (zr_train_precision(config) == ZR_PRECISION_FP16)
        return "--compress with errors of gradients requires fp32 or bf16: a loss scale would change its errors";
    if (zr_train_has_host_tier(config) || config->shape.tensor > 1 || config->stages.ranks > 1)
        return "--compress with errors of gradients requires whole models whose state is on the device";
    return zr_compression_is_by(&config->compression, ZR_METHOD_ONEBIT) ? onebit_conflict(config) : NULL;
}

/* Whether the compression needs no owners of shards. */
static bool at_stage_0(const struct zr_compression *compression)
{
    return !compression->kinds[ZR_COMPRESSED_PARAMETERS].on && zr_compression_keeps_errors(compression);
}

const char *zr_compress_conflict(const struct zr_train_config *config)
{
    if (!zr_train_compresses(config))
        return config->node_ranks ? "--node-size requires --compress" : NULL;
    if (zr_train_shards(config) == 1)
        return "--compress requires several data ranks, which send parameters and gradients";
    if ((config->stage == 0 && !at_stage_0(&config->compression)) || config->stage == ZR_STAGE_AUTO)
        return "--compress requires --stage 1, 2 or 3, where each rank updates a shard; or gradients:onebit, "
               "powersgd or topk";
    unsigned shards = zr_train_shards(config), node = config->node_ranks;
    if (node > 0 && (shards % node != 0 || node >= shards))
        return "--node-size must divide the number of data ranks and be below it";
    if (config->compression.secondary_shards && (config->stage != 3 || node < 2))
        return "--compress hpz requires --stage 3 and --node-size N of 2 or more, as each node keeps the "
               "parameters once";
    if (config->backend == ZR_TRAIN_CUDA)
        return "--compress requires --backend host: a GPU's tensors cannot be packed yet";
    if (config->finds_strategy)
        return "--compress cannot be combined with --zero-r auto, which may choose stage 0; give --stage";
    if (config->prove)
        return "--compress changes losses and cannot be used with --prove; leave one of the two out";
    return errors_conflict(config);
}
