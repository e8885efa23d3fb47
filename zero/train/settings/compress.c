/* compress.c: --compress: what ranks send packed. See flags.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"
#include "zero/engine/meter.h"
#include "zero/engine/warmup.h"
#include "zero/train/settings/flags.h"

/* Names of ZeRO++ (https://arxiv.org/abs/2306.10209) and SDP4Bit (https://arxiv.org/abs/2410.15526). */
static const struct {
    const char *name, *means;
} aliases[] = {{"qwz", "parameters:int8"},
               {"qgz", "gradients:int4"},
               {"sdp4bit", "parameters:difference:int4"},
               {"sdp4bit", "gradients:int8:int4_rotated"}};
static const char difference[] = "difference:", activations[] = "activations", outer[] = "outer:";

/* Of --compress-tolerance. A check sends the gradients of one unit once more, plainly, so with U units checks
 * add 1 / (CHECK_STEPS x U) of a plain run's gradients. */
enum { CHECK_STEPS = 100 };
/* Methods of gradients (https://arxiv.org/abs/1905.13727, https://arxiv.org/abs/1712.01887), and the range of
 * METHOD:PARAMETER. An optional parameter that is left out is 0. */
static const struct {
    const char *name, *parameter; /* parameter NULL: none */
    float min, max;
    bool whole, optional; /* whole: a whole number */
} methods[ZR_METHODS_COUNT] = {
    [ZR_METHOD_ONEBIT] = {"onebit", NULL, 0, 0, false, true},
    [ZR_METHOD_LOW_RANK] = {"powersgd", "RANK", 1, 1024, true, true}, /* https://arxiv.org/abs/1905.13727 */
    [ZR_METHOD_LARGEST] = {"topk", "SHARE", 1e-6f, 0.999f, false,
                           false},                             /* https://arxiv.org/abs/1712.01887 */
    [ZR_METHOD_ZERONE] = {"zerone", NULL, 0, 0, false, true}}; /* https://arxiv.org/abs/2202.06009 */

static int wrong(const struct zr_flag *flag, const char *word)
{
    struct zr_text text;
    char names[160];
    zr_text_start(&text, NULL, names, sizeof names);
    for (unsigned packing = ZR_PACKING_ONEBIT + 1; packing < ZR_PACKINGS_COUNT; packing++)
        zr_text_print(&text, "%s%s", text.used_bytes ? ", " : "", zr_packing_name((enum zr_packing)packing));
    for (unsigned i = ZR_METHOD_ONEBIT; i < ZR_METHODS_COUNT; i++)
        zr_text_print(&text, methods[i].optional && methods[i].parameter ? "%s%s[%s%s]" : "%s%s%s%s",
                      i > ZR_METHOD_ONEBIT ? ", " : "; for gradients also ", methods[i].name,
                      methods[i].parameter ? ":" : "", methods[i].parameter ? methods[i].parameter : "");
    return zr_flag_wrong(
        flag, word,
        "not KIND:METHOD; give parameters, gradients, activations or outer, and one of %.*s; or qwz, qgz, hpz, sdp4bit",
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
        const bool given = methods[i].parameter && *end;
        float number = given ? strtof(end + 1, &end) : 0;
        if (*end ||
            ((given || !methods[i].optional) && !(number >= methods[i].min && number <= methods[i].max)) ||
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

/* Finds the packing that a word, up to its colon, names; false: none. */
static bool find_packing(const char *word, enum zr_packing *out)
{
    size_t length = strcspn(word, ":");
    for (unsigned packing = ZR_PACKING_ONEBIT + 1; packing < ZR_PACKINGS_COUNT; packing++) {
        const char *name = zr_packing_name((enum zr_packing)packing);
        if (strlen(name) == length && memcmp(name, word, length) == 0) {
            *out = (enum zr_packing)packing;
            return true;
        }
    }
    return false;
}

/* Finds PACKING, or PACKING:PACKING; the second one is ZR_PACKING_ONEBIT if it is not there. */
static bool find_packings(const char *word, enum zr_packing out[2])
{
    const char *second = strchr(word, ':');
    out[1] = ZR_PACKING_ONEBIT;
    return find_packing(word, &out[0]) &&
           (!second || (!strchr(second + 1, ':') && find_packing(second + 1, &out[1])));
}

/* Stores a method, or packings, of parameters or gradients; false: it is neither. */
static bool store_kind(struct zr_compression *out, unsigned kind, const char *word)
{
    enum zr_packing packings[2];
    bool differs = kind == ZR_COMPRESSED_PARAMETERS && strncmp(word, difference, sizeof difference - 1) == 0;
    if (kind == ZR_COMPRESSED_GRADIENTS && store_method(out, word))
        return true;
    if (!find_packings(differs ? word + sizeof difference - 1 : word, packings) ||
        (kind == ZR_COMPRESSED_PARAMETERS && packings[1] != ZR_PACKING_ONEBIT))
        return false;
    memset(&out->kinds[kind], 0, sizeof out->kinds[kind]);
    out->kinds[kind].on = true;
    out->kinds[kind].packing = packings[0];
    out->kinds[kind].between = packings[1];
    out->kinds[kind].differences = differs;
    return true;
}

/* Stores KIND:METHOD; false: it is none. */
static bool store_pair(struct zr_compression *out, const char *word)
{
    const char *colon = strchr(word, ':');
    if (!colon)
        return false;
    if (strlen(activations) == (size_t)(colon - word) &&
        memcmp(activations, word, (size_t)(colon - word)) == 0) {
        bool found = find_packings(colon + 1, out->activations);
        if (out->activations[1] == ZR_PACKING_ONEBIT)
            out->activations[1] = out->activations[0];
        return found;
    }
    for (unsigned kind = 0; kind < ZR_COMPRESSED_KINDS; kind++) {
        const char *name = zr_compressed_kind_name((enum zr_compressed_kind)kind);
        if (strlen(name) == (size_t)(colon - word) && memcmp(name, word, (size_t)(colon - word)) == 0)
            return store_kind(out, kind, colon + 1);
    }
    return false;
}

/* Stores one KIND:METHOD, or a name for some of them, or a method of gradients. */
static int store_one(const struct zr_flag *flag, struct zr_compression *out, const char *word)
{
    bool found = false;
    if (strcmp(word, "hpz") == 0) {
        out->secondary_shards = true;
        return -1;
    }
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (strcmp(word, aliases[i].name) == 0)
            found = store_pair(out, aliases[i].means);
    return found || store_method(out, word) || store_pair(out, word) ? -1 : wrong(flag, word);
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
        if (strncmp(word, outer, sizeof outer - 1) == 0 && !strchr(word + sizeof outer - 1, ':'))
            code = find_packing(word + sizeof outer - 1, &config->outer.packing) ? -1 : wrong(flag, word);
        else
            code = store_one(flag, &config->compression, word);
        value += length + (value[length] == ',');
    } while (code == -1 && *value);
    return code;
}

void zr_compress_print(struct zr_text *text, const struct zr_train_config *config)
{
    const struct zr_compression *compression = &config->compression;
    const char *before = " ";
    for (unsigned kind = 0; kind < ZR_COMPRESSED_KINDS; kind++) {
        unsigned method = compression->kinds[kind].method;
        if (!compression->kinds[kind].on)
            continue;
        zr_text_print(text, "%s%s:%s%s", before, zr_compressed_kind_name((enum zr_compressed_kind)kind),
                      compression->kinds[kind].differences ? difference : "",
                      method ? methods[method].name : zr_packing_name(compression->kinds[kind].packing));
        if (compression->kinds[kind].between != ZR_PACKING_ONEBIT)
            zr_text_print(text, ":%s", zr_packing_name(compression->kinds[kind].between));
        if (compression->kinds[kind].parameter > 0)
            zr_text_print(text, ":%g", (double)compression->kinds[kind].parameter);
        before = ",";
    }
    if (compression->activations[0] != ZR_PACKING_ONEBIT) {
        zr_text_print(text, "%s%s:%s:%s", before, activations, zr_packing_name(compression->activations[0]),
                      zr_packing_name(compression->activations[1]));
        before = ",";
    }
    if (compression->secondary_shards) {
        zr_text_print(text, "%shpz", before);
        before = ",";
    }
    if (config->outer.packing != ZR_PACKING_ONEBIT)
        zr_text_print(text, "%s%s%s", before, outer, zr_packing_name(config->outer.packing));
}

/* Whether what is sent within a node differs from what is sent between nodes. */
static bool has_nodes(const struct zr_compression *compression)
{
    return compression->secondary_shards || zr_compression_is_by(compression, ZR_METHOD_PACKED);
}

void zr_compress_read_file(struct zr_train_config *config)
{
    bool size_filed =
             config->filed[zr_flag_index(zr_flag_find("node-size"))] && !zr_flag_given(config, "node-size"),
         filed = !zr_flag_given(config, "compress");
    unsigned shards = zr_train_shards(config);
    if (filed && (shards == 1 || (config->stage == 0 && !zr_compression_sends_signs(&config->compression))))
        memset(&config->compression, 0, sizeof config->compression);
    if (size_filed && (config->node_ranks < 2 || config->node_ranks >= shards))
        config->node_ranks = 0;
    if (size_filed && filed && config->node_ranks > 0 && config->stage == 3)
        config->compression.secondary_shards = true;
    if (size_filed && !has_nodes(&config->compression))
        config->node_ranks = 0;
}

void zr_compress_resolve(struct zr_train_config *config)
{
    if (zr_compression_sends_signs(&config->compression) && !zr_flag_set(config, "compress-warmup"))
        config->compress_warmup = zr_warmup_window(config->optimizer.beta2);
    if (!zr_flag_set(config, "zerone-local"))
        config->zerone_local = config->compress_warmup > 0 ? config->compress_warmup : 1;
    if (config->compress_tolerance > 0 && !zr_flag_set(config, "compress-check"))
        config->compress_check = CHECK_STEPS;
}

/* Ranks that the launcher has started on this host, if there are others; 0: none, or unknown. */
static unsigned ranks_of_host(const struct zr_train_config *config)
{
    const struct zr_start *start = &config->start;
    unsigned here =
        start->local_world == 0 && start->nodes > 0 ? config->world / start->nodes : start->local_world;
    return zr_train_spans_hosts(config) && here < config->world ? here : 0;
}

/* Data ranks of this host: ranks of a stage are consecutive, and so are those of a tensor group. 0: hosts are
 * no nodes. */
static unsigned data_ranks_of_host(const struct zr_train_config *config)
{
    unsigned here = ranks_of_host(config), tensor = zr_train_mesh(config).tensor,
             shards = zr_train_shards(config);
    return here == 0                                           ? 0
           : here % (shards * tensor) == 0                     ? shards
           : tensor % here == 0                                ? 1
           : here % tensor == 0 && shards * tensor % here == 0 ? here / tensor
                                                               : 0;
}

void zr_compress_take_hosts(struct zr_train_config *config)
{
    config->nodes_are_hosts =
        config->node_ranks == 0 && ranks_of_host(config) > 0 && has_nodes(&config->compression);
    if (config->nodes_are_hosts)
        config->node_ranks = data_ranks_of_host(config);
    if (config->nodes_are_hosts && config->node_ranks == zr_train_shards(config))
        config->node_ranks = 0; /* one host has all data ranks */
}

zr_result zr_compress_check_hosts(const struct zr_train_config *config, unsigned host_ranks)
{
    return !config->nodes_are_hosts || host_ranks == ranks_of_host(config)
               ? ZR_OK
               : zr_fail(
                     ZR_ERR_INVALID,
                     "--compress takes hosts as nodes, but they do not have %u consecutive ranks each; start "
                     "equal numbers of ranks in the order of hosts (mpirun --map-by slot), or give --node-size",
                     ranks_of_host(config));
}

const char *zr_compress_conflict(const struct zr_train_config *config)
{
    const uint64_t window = zr_warmup_window(config->optimizer.beta2);
    const unsigned shards = zr_train_shards(config), node = config->node_ranks;
    if (config->nodes_are_hosts && data_ranks_of_host(config) == 0)
        return "--compress takes hosts as nodes, but the ranks of this host do not divide the data ranks into equal "
               "nodes; start equal numbers of ranks on all hosts, or give --node-size";
    if (node > 0 && (shards % node != 0 || node >= shards))
        return "--node-size must divide the number of data ranks and be below it";
    if (zr_compression_is_by(&config->compression, ZR_METHOD_ONEBIT) && config->compress_warmup < window) {
        zr_fail(ZR_ERR_INVALID,
                "--compress-warmup %" PRIu64
                " ends before the variance is settled; give auto or at least 1 / (1 - "
                "beta2), %" PRIu64 " steps, or a smaller --beta2",
                config->compress_warmup, window);
        return zr_last_error();
    }
    return NULL;
}
