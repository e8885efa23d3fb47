/* args.c: reads the command line by the table in flags.c. It runs before the fork, so it keeps no memory.
 */
#define _GNU_SOURCE
#include "zero/train/settings/args.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/system/os.h"
#include "zero/comm/zr_comm.h"
#include "zero/train/settings/config.h"
#include "zero/train/settings/flags.h"
#include "zero/train/limit.h"
#include "zero/train/settings/shape.h"
#include "zero/train/settings/stages.h"
#include "zero/train/report/terminal.h"

enum zr_exit zr_exit_of(zr_result result)
{
    switch (result) {
    case ZR_OK:
        return ZR_EXIT_OK;
    case ZR_ERR_INVALID:
    case ZR_ERR_UNAVAILABLE:
        return ZR_EXIT_USAGE;
    case ZR_ERR_IO:
    case ZR_ERR_FORMAT:
    case ZR_ERR_CORRUPT:
        return ZR_EXIT_INPUT;
    case ZR_ERR_MEMORY:
    case ZR_ERR_HOST_MEMORY:
    case ZR_ERR_ADDRESSES:
    case ZR_ERR_TAG_LIMIT:
        return ZR_EXIT_MEMORY;
    default:
        return ZR_EXIT_FAILED;
    }
}

/* ---- Values -------------------------------------------------------------------------------------------- */

static bool read_count(const char *text, uint64_t *out)
{
    char *end;
    if (text[0] < '0' || text[0] > '9')
        return false;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0';
}

/* -1, or more digits than a number here can have. */
static bool is_beyond(const char *text)
{
    text += text[0] == '-';
    return text[0] && text[strspn(text, "0123456789")] == '\0';
}

bool zr_args_read_bytes(const char *text, uint64_t *out)
{
    static const struct {
        const char *name;
        uint64_t bytes;
    } units[] = {
        {"", 1},
        {"B", 1},
        {"KB", 1000},
        {"MB", 1000000},
        {"GB", 1000000000},
        {"TB", 1000000000000},
        {"KiB", UINT64_C(1) << 10},
        {"MiB", UINT64_C(1) << 20},
        {"GiB", UINT64_C(1) << 30},
        {"TiB", UINT64_C(1) << 40},
    };
    char *end;
    uint64_t part = 0, scale = 1; /* behind the point: part / scale */
    if (text[0] < '0' || text[0] > '9')
        return false;
    errno = 0;
    uint64_t number = strtoull(text, &end, 10);
    if (errno != 0)
        return false;
    if (end[0] == '.' && end[1] >= '0' && end[1] <= '9')
        for (end++; *end >= '0' && *end <= '9' && scale < 1000000000; end++, scale *= 10)
            part = part * 10 + (uint64_t)(*end - '0');
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        unsigned __int128 bytes = (unsigned __int128)part * units[i].bytes;
        if (strcmp(end, units[i].name) == 0)
            return bytes % scale == 0 && !__builtin_mul_overflow(number, units[i].bytes, out) &&
                   !__builtin_add_overflow(*out, (uint64_t)(bytes / scale), out);
    }
    return false;
}

static bool read_real(const char *text, double *out)
{
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    /* strtod alone would take blanks, "nan", "inf" and hexadecimal too */
    return strchr("0123456789.-+", text[0]) && text[0] && end != text && *end == '\0' && isfinite(*out) &&
           !strpbrk(text, "xX");
}

/* The place of `text` in "none|selective|full", -1: it is not there. */
static int choice_index(const char *choices, const char *text)
{
    size_t length = strlen(text);
    for (int index = 0; choices && length > 0; index++) {
        const char *end = strchrnul(choices, '|');
        if ((size_t)(end - choices) == length && memcmp(choices, text, length) == 0)
            return index;
        choices = *end ? end + 1 : NULL;
    }
    return -1;
}

/* ---- Storing one option -------------------------------------------------------------------------------- */

/* What is wrong with an option and how to go on, as the last error's words; always 2. */
static int wrong(const struct zr_flag *flag, const char *value, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int wrong(const struct zr_flag *flag, const char *value, const char *format, ...)
{
    char words[512];
    va_list list;
    va_start(list, format);
    vsnprintf(words, sizeof words, format, list);
    va_end(list);
    zr_fail(ZR_ERR_INVALID, "--%s%s%.200s: %s", flag->name, value ? " " : "", value ? value : "", words);
    return ZR_EXIT_USAGE;
}

static void store_whole(const struct zr_flag *flag, struct zr_train_config *config, uint64_t value)
{
    char *field = (char *)config + flag->offset;
    uint32_t narrow = (uint32_t)value;
    if (flag->room_bytes == sizeof value)
        memcpy(field, &value, sizeof value);
    else if (flag->room_bytes == sizeof narrow)
        memcpy(field, &narrow, sizeof narrow);
    else
        *(bool *)field = value != 0;
}

static int store_count(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    bool bytes = flag->kind == ZR_FLAG_BYTES;
    uint64_t number;
    bool read = bytes ? zr_args_read_bytes(value, &number) : read_count(value, &number);
    if (!read && !is_beyond(value))
        return wrong(flag, value, "is no %s; give %s from %.0f to %.0f",
                     bytes ? "number of bytes" : "whole number",
                     bytes ? "plain bytes or KiB, MiB, GiB," : "a whole number", flag->least, flag->most);
    if (!read || (double)number < flag->least || (double)number > flag->most)
        return wrong(flag, value, "is out of range; give %.0f to %.0f", flag->least, flag->most);
    store_whole(flag, config, number);
    return -1;
}

static int store_choice(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    int index = choice_index(flag->choices, value);
    char kind[16]; /* of "nvme:DIR" */
    snprintf(kind, sizeof kind, "%.*s", (int)strcspn(value, ":"), value);
    if (index < 0 && choice_index(flag->later, kind) >= 0)
        return wrong(flag, value, "is not in this version of zr-train; choose from %s", flag->choices);
    if (index < 0)
        return wrong(flag, value, "is none of the choices; choose from %s", flag->choices);
    store_whole(flag, config, (uint64_t)index);
    return -1;
}

/* Where the folder of nvme:DIR is stored. */
static char *folder_of(const struct zr_flag *flag, struct zr_train_config *config)
{
    return flag->offset == offsetof(struct zr_train_config, offload_parameters) ? config->parameters_folder
                                                                                : config->offload_folder;
}

static int store_tier(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    static const char nvme[] = "nvme:";
    char *folder = folder_of(flag, config);
    if (strncmp(value, nvme, sizeof nvme - 1) != 0) {
        folder[0] = '\0';
        return strcmp(value, "nvme") == 0 ? wrong(flag, value, "needs a folder on the disk: nvme:DIR")
               : choice_index("none|cpu", value) < 0
                   ? wrong(flag, value, "is none of the choices; choose from %s", flag->choices)
                   : store_choice(flag, config, value);
    }
    value += sizeof nvme - 1;
    if (!value[0] || strlen(value) >= ZR_TRAIN_PATH_ROOM)
        return wrong(flag, nvme, "needs a folder, of at most %d bytes", ZR_TRAIN_PATH_ROOM - 1);
    snprintf(folder, ZR_TRAIN_PATH_ROOM, "%s", value);
    store_whole(flag, config, ZR_TIER_NVME);
    return -1;
}

static int store_recompute(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    uint64_t layers = 0;
    static const char full[] = "full:";
    bool some = strncmp(value, full, sizeof full - 1) == 0;
    int index = some ? ZR_RECOMPUTE_FULL : choice_index(flag->choices, value);
    if (index < 0)
        return wrong(flag, value, "is none of the choices; choose from %s, or full:N", flag->choices);
    if (some && (!read_count(value + sizeof full - 1, &layers) || layers == 0 || layers > 65536))
        return wrong(flag, value, "recomputes the first N layers; give full:1 to full:65536");
    config->shape.recompute = (enum zr_recompute)index;
    config->shape.recompute_layers = (unsigned)layers;
    return -1;
}

static int store_real(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    double number;
    if (!read_real(value, &number))
        return wrong(flag, value, "is no number; give one from %g to %g", flag->least, flag->most);
    if (number < flag->least || number > flag->most)
        return wrong(flag, value, "is out of range; give %g to %g", flag->least, flag->most);
    float narrow = (float)number;
    if (number != 0 && narrow == 0) /* 0 may turn off what was asked for: --clip, --lr */
        return wrong(flag, value, "is too small to be told from 0; give 0, or a larger number");
    if (flag->room_bytes == sizeof number)
        memcpy((char *)config + flag->offset, &number, sizeof number);
    else
        memcpy((char *)config + flag->offset, &narrow, sizeof narrow);
    return -1;
}

static int store_ratio(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    const double automatic = ZR_RATIO_AUTO;
    if (strcmp(value, "auto") != 0)
        return store_real(flag, config, value);
    memcpy((char *)config + flag->offset, &automatic, sizeof automatic);
    return -1;
}

static int store_vocab(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    config->bytes = strcmp(value, "byte") == 0;
    if (config->bytes) {
        config->shape.vocabulary = 256;
        return -1;
    }
    uint64_t number;
    if (!read_count(value, &number))
        return wrong(flag, value, "is no vocabulary; give byte for text, or the number of tokens of a shard");
    return store_count(flag, config, value);
}

static int store_text(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    size_t length = strlen(value);
    if (length == 0 && strcmp(flag->name, "prompt") != 0)
        return wrong(flag, NULL, "is empty; give %s, or leave the option out", flag->argument);
    if (length >= flag->room_bytes)
        return wrong(flag, NULL, "is longer than %zu bytes; shorten it", flag->room_bytes - 1);
    memcpy((char *)config + flag->offset, value, length + 1);
    return -1;
}

/* What --help and its like end with: a full disk is no success. */
static int shown(zr_result result)
{
    if (result != ZR_OK)
        zr_say("%s", zr_last_error());
    return (int)zr_exit_of(result);
}

/* -1: go on, else the exit code. */
static int store(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    switch (flag->kind) {
    case ZR_FLAG_TEXT:
        return store_text(flag, config, value);
    case ZR_FLAG_COUNT:
    case ZR_FLAG_BYTES:
        return store_count(flag, config, value);
    case ZR_FLAG_REAL:
        return store_real(flag, config, value);
    case ZR_FLAG_CHOICE:
        return store_choice(flag, config, value);
    case ZR_FLAG_TIER:
        return store_tier(flag, config, value);
    case ZR_FLAG_VOCAB:
        return store_vocab(flag, config, value);
    case ZR_FLAG_RATIO:
        return store_ratio(flag, config, value);
    case ZR_FLAG_RECOMPUTE:
        return store_recompute(flag, config, value);
    case ZR_FLAG_SWITCH:
        store_whole(flag, config, 1);
        return -1;
    case ZR_FLAG_HELP:
        return shown(zr_help_print());
    case ZR_FLAG_VERSION:
        return shown(zr_version_print());
    }
    return ZR_EXIT_USAGE;
}

const struct zr_flag *zr_flag_find(const char *name)
{
    if (strcmp(name, "micro-batches") == 0) /* another name of it */
        name = "accumulate";
    for (size_t i = 0; i < zr_flags_count; i++)
        if (strcmp(zr_flags[i].name, name) == 0)
            return &zr_flags[i];
    return NULL;
}

size_t zr_flag_index(const struct zr_flag *flag)
{
    return (size_t)(flag - zr_flags);
}

int zr_flag_store(const char *name, struct zr_train_config *config, const char *value)
{
    const struct zr_flag *flag = zr_flag_find(name);
    if (flag)
        return store(flag, config, value);
    zr_fail(ZR_ERR_INVALID, "--%s: is no option", name);
    return ZR_EXIT_USAGE;
}

/* ---- The command line ---------------------------------------------------------------------------------- */

/* Letters to insert, remove, replace or swap to make `a` of `b`; names longer than 31 are as far as they
 * come. */
static unsigned distance(const char *a, const char *b)
{
    size_t rows = strlen(a), columns = strlen(b);
    unsigned table[33][33];
    if (rows > 32 || columns > 32)
        return 33;
    for (size_t i = 0; i <= rows; i++)
        for (size_t j = 0; j <= columns; j++) {
            unsigned best = (unsigned)(i == 0 ? j : i);
            if (i > 0 && j > 0) {
                best = table[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
                best = table[i - 1][j] + 1 < best ? table[i - 1][j] + 1 : best;
                best = table[i][j - 1] + 1 < best ? table[i][j - 1] + 1 : best;
            }
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                table[i - 2][j - 2] + 1 < best)
                best = table[i - 2][j - 2] + 1;
            table[i][j] = best;
        }
    return table[rows][columns];
}

static int unknown(const char *name)
{
    const char *nearest = NULL;
    size_t length = strlen(name);
    unsigned best = length / 3 + 2;

    for (size_t i = 0; zr_flags_later[i]; i++)
        if (strcmp(zr_flags_later[i], name) == 0) {
            zr_say(
                "--%s is not in this version of zr-train; leave it out (zr-train --help lists what is there)",
                name);
            return ZR_EXIT_USAGE;
        }
    for (size_t i = 0; i < zr_flags_count; i++) {
        const char *known = zr_flags[i].name;
        bool starts = length >= 3 && strncmp(known, name, length) == 0;
        unsigned far = starts ? 0 : distance(name, known);
        if (far < best) {
            best = far;
            nearest = known;
        }
    }
    if (nearest)
        zr_say("--%.100s is no option of zr-train; did you mean --%s?", name, nearest);
    else
        zr_say("--%.100s is no option of zr-train; zr-train --help lists them", name);
    return ZR_EXIT_USAGE;
}

static int said(int code)
{
    if (code == ZR_EXIT_USAGE)
        zr_say("%s", zr_last_error());
    return code;
}

/* Splits "--name=value", finds the option and its value. */
static int find_and_store(struct zr_train_config *config, int argc, char **argv, int *at)
{
    char name[128];
    const char *argument = argv[(*at)++], *equals = strchr(argument, '='), *value;

    if (strcmp(argument, "-h") == 0)
        argument = "--help";
    if (argument[0] != '-' || argument[1] != '-' || argument[2] == '\0') {
        zr_say("'%.200s' is no option; options look like --steps 100 (zr-train --help lists them)", argument);
        return ZR_EXIT_USAGE;
    }
    size_t length = equals ? (size_t)(equals - argument) - 2 : strlen(argument) - 2;
    snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name - 1), argument + 2);

    const struct zr_flag *flag = zr_flag_find(name);
    if (!flag)
        return unknown(name);
    bool takes = flag->argument || flag->choices;
    value = equals ? equals + 1 : NULL;
    if (!takes && value)
        return said(wrong(flag, NULL, "takes no value; write --%s alone", name));
    if (takes && !value) {
        /* another option where the value should be was forgotten, not meant: "--save --steps 3" */
        if (*at >= argc || strncmp(argv[*at], "--", 2) == 0)
            return said(wrong(flag, NULL, "needs a value: --%s %s", name,
                              flag->argument ? flag->argument : flag->choices));
        value = argv[(*at)++];
    }
    config->given[zr_flag_index(flag)] = true;
    return said(store(flag, config, value));
}

static int read_arguments(struct zr_train_config *config, int argc, char **argv)
{
    int code = -1;
    for (int at = 1; at < argc && code < 0;)
        code = find_and_store(config, argc, argv, &at);
    return code;
}

static int store_defaults(struct zr_train_config *config)
{
    int code = -1;
    for (size_t i = 0; i < zr_flags_count && code < 0; i++)
        if (zr_flags[i].fallback)
            code = store(&zr_flags[i], config, zr_flags[i].fallback);
    return code;
}

/* ---- What must fit together ---------------------------------------------------------------------------- */

/* With a token shard the prompt is numbers of tokens, blanks or commas between. */
static bool prompt_is_tokens(const struct zr_train_config *config)
{
    for (const char *at = config->prompt; *(at += strspn(at, " ,"));) {
        char *end;
        errno = 0;
        if (*at < '0' || *at > '9' || strtoull(at, &end, 10) >= config->shape.vocabulary || errno != 0)
            return false;
        at = end;
    }
    return true;
}

bool zr_flag_given(const struct zr_train_config *config, const char *name)
{
    const struct zr_flag *flag = zr_flag_find(name);
    return flag && config->given[zr_flag_index(flag)];
}

static bool scales_loss(const struct zr_train_config *config)
{
    static const char *const names[] = {"loss-scale", "loss-scale-power", "loss-scale-window",
                                        "loss-scale-hysteresis", "min-loss-scale"};
    bool given = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        given |= zr_flag_given(config, names[i]);
    return given;
}

bool zr_pipeline_flag_given(const struct zr_train_config *config)
{
    return zr_flag_given(config, "schedule") || zr_flag_given(config, "interleave") ||
           zr_flag_given(config, "pipeline-cut");
}

/* --zero-r auto has still to choose it. */
static bool is_left_open(const struct zr_train_config *config, const char *name)
{
    return config->picks_all && !zr_flag_given(config, name);
}

/* Words for an option of a pipeline that has no meaning; NULL: there is none. */
static const char *beside_pipeline(const struct zr_train_config *config)
{
    const struct zr_stages *stages = &config->stages;
    if (stages->ranks == 1 && !is_left_open(config, "pp") && zr_pipeline_flag_given(config))
        return "--schedule, --interleave and --pipeline-cut: are of a pipeline; give --pp 2 or more, or leave "
               "them out";
    if (stages->schedule == ZR_PIPELINE_VHALF && stages->interleave > 0 && stages->interleave != 2)
        return "--interleave: --schedule vhalf has 2 stages on each rank; give 2, or leave it out";
    if (stages->schedule != ZR_PIPELINE_VHALF && stages->schedule != ZR_PIPELINE_1F1B &&
        stages->interleave > 1)
        return "--interleave: is of --schedule 1f1b; leave one of the two out";
    return NULL;
}

/* Words for a part of the optimizer that is to be offloaded. */
static const char *ratio_words(const struct zr_train_config *config)
{
    bool automatic = config->offload_ratio < 0;
    if (!automatic && config->offload_ratio >= 1)
        return NULL;
    if (!config->offload_optimizer)
        return "--offload-ratio: is of --offload-optimizer; give that too, or leave it out";
    if (config->delayed_update || config->speculative_bytes)
        return "--offload-ratio: a delayed or speculative update is of all of the optimizer; leave one of the two out";
    if (automatic && !config->memory_limit_bytes)
        return "--offload-ratio auto: keeps what fits under --memory-limit; give that too, or a number";
    if (automatic && (config->finds_max || config->picks_all || config->stage == ZR_STAGE_AUTO))
        return "--offload-ratio auto: is of one model and stage; give a number beside --find-max, --zero-r auto and "
               "--stage auto";
    return NULL;
}

const char *zr_train_offload_words(const struct zr_train_config *config)
{
    if (ratio_words(config))
        return ratio_words(config);
    if (config->delayed_update && !config->offload_optimizer)
        return "--delayed-update: the host updates behind the device; give --offload-optimizer cpu too, or leave it "
               "out";
    if (config->speculative_bytes && config->offload_optimizer != ZR_TIER_CPU)
        return "--speculative-update: the host updates state that it has in memory; give --offload-optimizer cpu too, or "
               "leave it out";
    if (config->speculative_bytes && config->delayed_update)
        return "--speculative-update: a delayed update begins when the norm is known, and there is nothing to speculate "
               "on; leave one of the two out";
    if (config->speculative_bytes && config->offload_parameters == ZR_TIER_NVME)
        return "--speculative-update: parameters in a file are not written twice; give --offload-param cpu, or leave one "
               "of the two out";
    if (config->delayed_update && config->prove)
        return "--delayed-update: other losses than one rank's are what it is for, and --prove compares them; leave one "
               "of the two out";
    bool several = zr_train_mesh(config).data > 1, automatic = config->stage == ZR_STAGE_AUTO;
    if (config->offload_parameters && !config->offload_optimizer)
        return "--offload-param: new parameters come from the optimizer, which is on the device; give "
               "--offload-optimizer cpu too";
    if (config->offload_parameters && config->stage != 3 && !automatic)
        return "--offload-param: parameters that every rank keeps whole stay where they are used; take --stage 3";
    if (config->offload_optimizer && config->stage == 0 && several)
        return "--offload-optimizer: at stage 0 every rank updates all parameters, and the host would have all of it "
               "for each; take --stage 1";
    if (config->offload_optimizer && config->reduce == ZR_REDUCE_ONCE && several)
        return "--offload-optimizer: gradients leave as they are reduced, and --reduce once keeps them whole until "
               "the end of a step; take --reduce each";
    return NULL;
}

/* Words for an option of activation checkpoints that has no meaning; NULL: there is none. */
static const char *beside_checkpoints(const struct zr_train_config *config)
{
    bool one_tensor = config->shape.tensor < 2 && !is_left_open(config, "tp");
    if (config->shape.sequence_parallel && one_tensor)
        return "--sequence-parallel: divides rows over the ranks of --tp; give --tp 2 or more, or leave it out";
    if (config->checkpoints.partition && !config->force && (one_tensor || config->shape.sequence_parallel))
        return config->shape.sequence_parallel
                   ? "--partition-activations: --sequence-parallel has divided checkpoints already, so it would "
                     "save nothing; leave one of the two out, or add --force"
                   : "--partition-activations: with --tp 1 no other rank has a copy of a checkpoint, so it would "
                     "save nothing; give --tp 2 or more, leave it out, or add --force";
    if (config->force && !config->checkpoints.partition && !zr_train_has_file(config))
        return "--force: does what would save nothing, which is --partition-activations without --tp or with "
               "--sequence-parallel, or --offload-optimizer nvme:DIR (or --offload-param nvme:DIR) in a folder that "
               "is memory; give one of them too, or leave it out";
    if (config->growing_buffers && zr_flag_given(config, "bucket-bytes"))
        return "--bucket-bytes: --no-constant-buffers has buffers as large as what passes through them; leave "
               "one of the two out";
    if (config->host_bytes_per_second > 0 &&
        ((!zr_train_has_host_tier(config) && !is_left_open(config, "checkpoint-offload")) ||
         (config->flops_per_second <= 0 && !config->picks_all)))
        return "--host-bandwidth: is of copies that --checkpoint-offload and --offload-optimizer make, in the timeline "
               "of --flops and --bandwidth; give these too, or leave it out";
    if (config->shape.recompute_layers > config->shape.layers)
        return "--recompute full:N: the model has fewer layers; give at most --layers, or full for all of them";
    return NULL;
}

/* Words for an option that what else was asked for leaves without a meaning; NULL: there is none. */
/* What a card cannot have yet. */
static const char *beside_device(const struct zr_train_config *config)
{
    if (config->backend != ZR_TRAIN_CUDA)
        return zr_flag_given(config, "device")
                   ? "--device: is of --backend cuda; give that too, or leave it out"
                   : NULL;
    if (config->comm != ZR_CARRIER_LOCAL)
        return "--backend cuda: its ranks share a card of one machine so far; leave out --comm";
    if (zr_shape_tensor(&config->shape) > 1 || config->stages.ranks > 1)
        return "--backend cuda: has no --tp and no --pp yet; take --stage 1 to 3, or --backend host";
    if (zr_train_has_host_tier(config) || config->offload_parameters != ZR_TIER_NONE)
        return "--backend cuda: offloads nothing yet; leave out --offload-optimizer, --offload-param and "
               "--checkpoint-offload, or take --backend host";
    if (config->picks_all)
        return "--zero-r auto: picks for --backend host alone; give a stage";
    if (config->prove)
        return "--prove: compares on --backend host alone";
    return NULL;
}

static const char *without_meaning(const struct zr_train_config *config)
{
    bool adamw = config->optimizer.kind == ZR_OPTIMIZER_ADAMW;
    if (config->shape.architecture == ZR_ARCH_GPT2 &&
        (zr_flag_given(config, "kv-heads") || zr_flag_given(config, "ffn") ||
         zr_flag_given(config, "rope-theta") || zr_flag_given(config, "norm-epsilon") ||
         zr_flag_given(config, "tie-embeddings")))
        return "--kv-heads, --ffn, --rope-theta, --norm-epsilon and --tie-embeddings: are of --arch llama";
    const char *pipeline = beside_pipeline(config);
    if (pipeline)
        return pipeline;
    if (beside_device(config))
        return beside_device(config);
    const char *checkpoints = beside_checkpoints(config);
    if (checkpoints)
        return checkpoints;
    if (!is_left_open(config, "stage") && zr_train_offload_words(config))
        return zr_train_offload_words(config);
    if (config->host_limit_bytes && !zr_train_has_host_tier(config) &&
        !is_left_open(config, "checkpoint-offload"))
        return "--host-limit: is of what is offloaded; give --offload-optimizer cpu or --checkpoint-offload too";
    if ((config->nvme_limit_bytes || config->nvme_bytes_per_second > 0 || config->nvme_depth) &&
        !zr_train_has_file(config))
        return "--nvme-limit, --nvme-depth and --nvme-bandwidth: are of --offload-optimizer nvme:DIR and of "
               "--offload-param nvme:DIR; give one of them too";
    if (config->nvme_bytes_per_second > 0 && config->flops_per_second <= 0 && !config->picks_all)
        return "--nvme-bandwidth: is for the timeline of --flops and --bandwidth; give these too, or leave it out";
    if (config->prove && config->offload_optimizer == ZR_TIER_NVME)
        return "--prove: compares state in its place, which a file's has none of; take --offload-optimizer cpu";
    if (config->tolerance > 0 && !config->prove)
        return "--tolerance: is of --prove; give that too, or leave it out";
    if (config->prove && (config->dry_run || config->resume[0]))
        return "--prove: compares a run from its first step; leave out --dry-run and --resume";
    if (config->save_every && !config->save[0])
        return "--save-every: needs --save DIR, where the checkpoints go";
    if (config->keep && !config->save[0])
        return "--keep: needs --save DIR, where the checkpoints go";
    if (config->precision != ZR_PRECISION_FP16 && scales_loss(config))
        return "--loss-scale and its like: are of --precision fp16; fp32 and bf16 need no scale";
    if (config->precision == ZR_PRECISION_FP16 && !config->loss_scaling.constant &&
        config->loss_scaling.least > config->loss_scaling.initial)
        return "--min-loss-scale: is above the scale to begin with, of --loss-scale-power; give a smaller "
               "one";
    if (adamw && zr_flag_given(config, "momentum"))
        return "--momentum: is of --optimizer sgd; AdamW's is --beta1";
    if (!adamw && (zr_flag_given(config, "beta1") || zr_flag_given(config, "beta2")))
        return "--beta1 and --beta2: are of --optimizer adamw; SGD has --momentum";
    if (config->rate_kind == ZR_RATE_CONSTANT && zr_flag_given(config, "min-lr"))
        return "--min-lr: --schedule-lr constant stays at --lr; take cosine or linear, or leave it out";
    if (!config->sample && (config->prompt[0] || zr_flag_given(config, "temperature")))
        return "--prompt and --temperature: need --sample N, the tokens of text to make";
    return NULL;
}

/* Words for what --find-max would leave out of account; NULL: there is none. */
static const char *beside_find_max(const struct zr_train_config *config, const struct zr_config_rest *rest)
{
    if (!config->finds_max)
        return NULL;
    if (!config->memory_limit_bytes)
        return "--find-max: needs --memory-limit BYTES, under which it looks for the largest";
    if (config->find_max == ZR_LIMIT_LAYERS && zr_flag_given(config, "layers"))
        return "--find-max layers: looks for the number that --layers gives; leave --layers out";
    if (config->find_max == ZR_LIMIT_LAYERS)
        return NULL;
    if (zr_flag_given(config, "batch"))
        return "--find-max batch: looks for the number that --batch gives; leave --batch out";
    if (rest->train_batch)
        return "--find-max batch: train_batch_size of the file of --config says what is looked for; leave it "
               "out there";
    if (rest->has_batch)
        return "--find-max batch: train_micro_batch_size_per_gpu of the file of --config says what is looked "
               "for; leave it out there";
    return NULL;
}

/* The communication buffers never take more than was asked for: where that is too little, it is refused. */
static int check_bucket(struct zr_train_config *config)
{
    struct zr_mesh_shape mesh = zr_train_mesh(config);
    unsigned most = mesh.data > mesh.tensor ? mesh.data : mesh.tensor; /* ranks of one communicator */
    size_t least = (size_t)(most - 1) * ZR_COMM_LINE_BYTES;

    config->bucket_bytes -= config->bucket_bytes % ZR_COMM_LINE_BYTES;
    if (config->bucket_bytes >= least || config->bucket_bytes == ZR_TRAIN_BUCKET_BYTES)
        return -1;
    zr_say("--bucket-bytes %zu: is too little for %u ranks; a slot has %d bytes for each other one, so give "
           "%zu at least",
           config->bucket_bytes, most, ZR_COMM_LINE_BYTES, least);
    return ZR_EXIT_USAGE;
}

/* Whether --tp and --pp divide the ranks, in words where they do not. */
static bool divides_ranks(const struct zr_train_config *config)
{
    unsigned tensor = (unsigned)zr_shape_tensor(&config->shape), pipeline = config->stages.ranks,
             each = tensor * pipeline, below = tensor;
    if (config->ranks % each == 0)
        return true;
    while (config->ranks % below != 0)
        below--;
    if (pipeline > 1)
        zr_say("--pp %u%s: %u ranks make no whole mesh; give --%s %u", pipeline,
               tensor > 1 ? " and --tp" : "", config->ranks,
               config->dry_run && config->world_size ? "world-size" : "ranks",
               (config->ranks / each + 1) * each);
    else
        zr_say("--tp %u: does not divide %u ranks; give --tp %u, or --%s %u", tensor, config->ranks, below,
               config->dry_run && config->world_size ? "world-size" : "ranks",
               (config->ranks / tensor + 1) * tensor);
    return false;
}

static int together(const struct zr_train_config *config)
{
    const struct zr_shape *shape = &config->shape;
    const char *words = NULL;

    if (config->parameters > 0 && (zr_flag_given(config, "layers") || zr_flag_given(config, "hidden") ||
                                   zr_flag_given(config, "heads"))) {
        zr_say("--params: chooses the shape; leave out --layers, --hidden and --heads, or give them alone");
        return ZR_EXIT_USAGE;
    }
    if (config->finds_max && config->find_max == ZR_LIMIT_LAYERS && config->parameters > 0) {
        zr_say("--find-max layers: --params chooses the layers; give --hidden and --heads in its place");
        return ZR_EXIT_USAGE;
    }
    if (shape->hidden % shape->heads != 0) {
        size_t below = shape->hidden - shape->hidden % shape->heads;
        zr_say("--heads %zu: does not divide --hidden %zu; heads share the channels equally, so try --hidden "
               "%zu",
               shape->heads, shape->hidden, below ? below : shape->heads);
        return ZR_EXIT_USAGE;
    }
    if (!divides_ranks(config))
        return ZR_EXIT_USAGE;
    if ((config->flops_per_second > 0) != (config->bytes_per_second > 0))
        words = "--flops and --bandwidth: a step timeline needs both; give the two, or none";
    else if (config->world_size && !config->dry_run)
        words =
            "--world-size: is for the byte plan of --dry-run; use --ranks to say how many processes train";
    else if (config->backend == ZR_TRAIN_SIM && !config->dry_run)
        words = "--backend sim: has no memory to train in; use it with --dry-run, or --backend host";
    else if (!config->data[0] && !config->dry_run)
        words = "--data FILE: is missing; give a text to train on, or --dry-run for the byte plan alone "
                "(zr-train "
                "--help has examples)";
    else if (!config->bytes && !prompt_is_tokens(config))
        words = "--prompt: with a token shard it is numbers below --vocab, such as '464 2068 7586'";
    else if (config->reduce == ZR_REDUCE_ONCE && config->stage > 1 && config->stage != ZR_STAGE_AUTO)
        words = "--reduce once: needs the whole gradients that stages 0 and 1 keep; take --stage 1, or "
                "--reduce each";
    else if (config->min_rate > config->rate)
        words = "--min-lr: is above --lr; the rate falls from --lr to --min-lr";
    else if (config->warmup > config->steps)
        words = "--warmup: is longer than --steps; the rate would never get to --lr";
    else if (strcmp(config->log, "-") == 0 || strcmp(config->trace, "-") == 0 ||
             strcmp(config->export, "-") == 0)
        words = "--log, --trace and --export: need a file; only --json writes to standard output (-)";
    else
        words = without_meaning(config);
    if (words) {
        zr_say("%s", words);
        return ZR_EXIT_USAGE;
    }
    if (zr_train_check_stages(config) != ZR_OK) {
        zr_say("%s", zr_last_error());
        return ZR_EXIT_USAGE;
    }
    return -1;
}

static void resolve_loss_scaling(struct zr_train_config *config)
{
    config->loss_scaling.constant = config->loss_scale > 0;
    config->loss_scaling.initial =
        config->loss_scale > 0 ? config->loss_scale : ldexpf(1, (int)config->loss_scale_power);
}

/* The groups' rates come from the table of options. */
static void resolve_optimizer(struct zr_optimizer_options *optimizer)
{
    optimizer->epsilon = 1e-8f;
    optimizer->groups_count = ZR_TRANSFORMER_GROUPS_COUNT;
    optimizer->groups[ZR_GROUP_MATRICES].rate_factor = 1;
    optimizer->groups[ZR_GROUP_MATRICES].decay_factor = 1;
    optimizer->groups[ZR_GROUP_EMBEDDINGS].decay_factor = 1;
}

/* How many ranks there are: what the command line says, or the launcher that has started this process. */
static int count_ranks(struct zr_train_config *config)
{
    if (!config->dry_run &&
        (zr_start_read(&config->start) != ZR_OK ||
         zr_start_check(&config->start, config->comm == ZR_CARRIER_MPI,
                        zr_flag_given(config, "ranks") ? config->ranks : 0, &config->ranks) != ZR_OK)) {
        zr_say("%s", zr_last_error());
        return ZR_EXIT_USAGE;
    }
    config->ranks_here = config->start.local_world ? config->start.local_world : config->ranks;
    return -1;
}

/* What --zero-r stands for. All of them recompute fully, with checkpoints in their pool and buffers of
 * constant size. */
static const struct zero_r {
    const char *name;
    unsigned stage;
    bool partition, offload;
} zero_r[] = {{"C1", 1, false, false},
              {"C2", 1, true, false},
              {"C3", 2, false, false},
              {"C4", 2, true, false},
              {"C5", 2, true, true}};

/* Words for an option that a preset contradicts; NULL: there is none. */
static const char *contradicts(const struct zr_train_config *config, const struct zero_r *preset)
{
    if (zr_flag_given(config, "stage") && config->stage != preset->stage)
        return "another --stage";
    if (zr_flag_given(config, "recompute") &&
        (config->shape.recompute != ZR_RECOMPUTE_FULL || config->shape.recompute_layers > 0))
        return "another --recompute than full";
    if (config->checkpoints.partition && !preset->partition)
        return "--partition-activations";
    if (config->checkpoint_offload && !preset->offload)
        return "--checkpoint-offload";
    if (config->checkpoints.scattered)
        return "--no-contiguous";
    return config->growing_buffers ? "--no-constant-buffers" : NULL;
}

static int apply_zero_r(struct zr_train_config *config)
{
    if (!zr_flag_given(config, "zero-r"))
        return -1;
    if (config->zero_r == sizeof zero_r / sizeof *zero_r) {
        config->picks_all = true;
        if (config->memory_limit_bytes > 0)
            return -1;
        zr_say("--zero-r auto: picks what is fastest of all that fits; give --memory-limit BYTES");
        return ZR_EXIT_USAGE;
    }
    const struct zero_r *preset = &zero_r[config->zero_r];
    const char *words = contradicts(config, preset);
    if (words) {
        zr_say(
            "--zero-r %s: is stage %u with --recompute full%s%s, and %s contradicts it; leave one of them out",
            preset->name, preset->stage, preset->partition ? " --partition-activations" : "",
            preset->offload ? " --checkpoint-offload" : "", words);
        return ZR_EXIT_USAGE;
    }
    config->stage = preset->stage;
    config->shape.recompute = ZR_RECOMPUTE_FULL;
    config->shape.recompute_layers = 0;
    config->checkpoints.partition = preset->partition;
    config->checkpoint_offload = preset->offload;
    return -1;
}

/* Works out what was left to the program. */
static void resolve(struct zr_train_config *config)
{
    struct zr_shape *shape = &config->shape;

    shape->vocabulary_padded = (shape->vocabulary + 63) / 64 * 64;
    if (config->parameters > 0)
        zr_shape_choose(shape, config->parameters);
    zr_shape_complete(shape);
    if (config->dry_run && config->world_size)
        config->ranks = config->world_size;
    if (config->min_rate < 0)
        config->min_rate = config->rate / 10;
    if (config->warmup == UINT64_MAX)
        config->warmup = config->steps / 10 < 100 ? config->steps / 10 : 100;
    if (config->threads == 0) {
        struct zr_machine machine;
        zr_os_machine(&machine);
        config->threads = machine.cores_count / config->ranks_here;
    }
    if (config->threads == 0)
        config->threads = 1;
    config->checkpoints.no_ring = config->growing_buffers;
    if (config->growing_buffers)
        config->bucket_bytes = SIZE_MAX / 8; /* as large as the largest unit */
    if (config->stages.ranks > 1)
        zr_stages_cut_equally(&config->stages, shape->layers);
    resolve_optimizer(&config->optimizer);
    resolve_loss_scaling(config);
}

static void start(struct zr_train_config *out, int argc, char **argv)
{
    memset(out, 0, sizeof *out);
    out->program = argc > 0 && argv[0][0] ? argv[0] : "zr-train";
    out->min_rate = -1;
    out->warmup = UINT64_MAX;
    store_defaults(out);
}

/* The file's settings take the place of the defaults, and the command line is read again over them. */
static int read_config_file(struct zr_train_config *out, struct zr_config_rest *rest, int argc, char **argv)
{
    char path[ZR_TRAIN_PATH_ROOM];
    zr_result result;

    memcpy(path, out->config_file, sizeof path);
    start(out, argc, argv);
    result = zr_config_read(path, out, rest);
    if (result != ZR_OK) {
        zr_say("%s", zr_last_error());
        return (int)zr_exit_of(result);
    }
    return read_arguments(out, argc, argv);
}

static void say_left_out(const struct zr_train_config *config)
{
    struct zr_text text;
    char words[1024];
    zr_text_start(&text, NULL, words, sizeof words - 1);
    zr_config_left_out(&text, config);
    words[text.used_bytes] = '\0';
    if (text.used_bytes)
        zr_say("--config: the file leaves out what DeepSpeed has other values for:%s", words);
}

int zr_args_parse(struct zr_train_config *out, int argc, char **argv)
{
    struct zr_config_rest rest = {.least_ratio = -1};
    int code;

    start(out, argc, argv);
    code = read_arguments(out, argc, argv);
    if (code < 0 && out->config_file[0])
        code = read_config_file(out, &rest, argc, argv);
    if (code >= 0)
        return code;
    out->finds_max = zr_flag_given(out, "find-max");
    out->dry_run |= out->finds_max;
    code = count_ranks(out);
    if (code >= 0)
        return code;
    const char *words = beside_find_max(out, &rest);
    if (words) {
        zr_say("%s", words);
        return ZR_EXIT_USAGE;
    }
    if (zr_config_resolve_batch(&rest, out) != ZR_OK) {
        zr_say("%s", zr_last_error());
        return ZR_EXIT_USAGE;
    }
    if (rest.least_ratio >= 0 && !zr_flag_given(out, "min-lr"))
        out->min_rate = (float)(rest.least_ratio * (double)out->rate);
    code = apply_zero_r(out);
    if (code >= 0)
        return code;
    resolve(out);
    code = together(out);
    if (code < 0)
        code = check_bucket(out);
    if (code < 0 && out->config_file[0] && zr_train_leads(out))
        say_left_out(out);
    return code;
}

/* ---- Back to a command line ---------------------------------------------------------------------------- */

/* In single quotes where a shell would make something else of it. */
static void print_quoted(struct zr_text *text, const char *value)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,+=@%";
    if (value[0] && strspn(value, plain) == strlen(value)) {
        zr_text_print(text, " %s", value);
        return;
    }
    zr_text_put(text, " '", 2);
    for (; *value; value++)
        zr_text_put(text, *value == '\'' ? "'\\''" : value, *value == '\'' ? 4 : 1);
    zr_text_put(text, "'", 1);
}

static uint64_t whole_field(const struct zr_flag *flag, const struct zr_train_config *config)
{
    const char *field = (const char *)config + flag->offset;
    uint64_t wide;
    uint32_t narrow;
    if (flag->room_bytes == sizeof wide) {
        memcpy(&wide, field, sizeof wide);
        return wide;
    }
    if (flag->room_bytes == sizeof narrow) {
        memcpy(&narrow, field, sizeof narrow);
        return narrow;
    }
    return *(const bool *)field;
}

/* With as few digits as make the same float when it is read again. */
static void print_float(struct zr_text *text, float value)
{
    char number[32];
    int digits = 6;
    do
        snprintf(number, sizeof number, "%.*g", digits, (double)value);
    while (strtof(number, NULL) != value && ++digits <= 9);
    zr_text_print(text, " %s", number);
}

void zr_flag_print(struct zr_text *text, const struct zr_flag *flag, const struct zr_train_config *config)
{
    const char *choice = flag->choices;
    float real;
    double wide;

    if (flag->kind == ZR_FLAG_RECOMPUTE) {
        for (unsigned left = config->shape.recompute; left > 0; left--)
            choice = strchr(choice, '|') + 1;
        zr_text_print(text, " %.*s", (int)strcspn(choice, "|"), choice);
        if (config->shape.recompute_layers)
            zr_text_print(text, ":%u", config->shape.recompute_layers);
    } else if (flag->kind == ZR_FLAG_TEXT) {
        print_quoted(text, (const char *)config + flag->offset);
    } else if (flag->kind == ZR_FLAG_RATIO && config->offload_ratio < 0) {
        zr_text_print(text, " auto");
    } else if (flag->kind == ZR_FLAG_RATIO ||
               (flag->kind == ZR_FLAG_REAL && flag->room_bytes == sizeof wide)) {
        memcpy(&wide, (const char *)config + flag->offset, sizeof wide);
        zr_text_print(text, " %.15g", wide);
    } else if (flag->kind == ZR_FLAG_REAL) {
        memcpy(&real, (const char *)config + flag->offset, sizeof real);
        print_float(text, real);
    } else if (flag->kind == ZR_FLAG_VOCAB && config->bytes) {
        zr_text_print(text, " byte");
    } else if (flag->kind == ZR_FLAG_TIER && whole_field(flag, config) == ZR_TIER_NVME) {
        char folder[ZR_TRAIN_PATH_ROOM + 8];
        snprintf(folder, sizeof folder, "nvme:%s", folder_of(flag, (struct zr_train_config *)config));
        print_quoted(text, folder);
    } else if (flag->kind == ZR_FLAG_CHOICE || flag->kind == ZR_FLAG_TIER) {
        for (uint64_t left = whole_field(flag, config); left > 0; left--)
            choice = strchr(choice, '|') + 1;
        zr_text_print(text, " %.*s", (int)strcspn(choice, "|"), choice);
    } else if (flag->kind != ZR_FLAG_SWITCH) {
        zr_text_print(text, " %llu", (unsigned long long)whole_field(flag, config));
    }
}

void zr_args_print(struct zr_text *text, const struct zr_train_config *config,
                   const struct zr_args_change *changes, size_t changes_count)
{
    zr_text_print(text, "%s", config->program ? config->program : "zr-train");
    for (size_t i = 0; i < zr_flags_count; i++) {
        const struct zr_flag *flag = &zr_flags[i];
        const struct zr_args_change *change = NULL;
        for (size_t c = 0; c < changes_count; c++)
            if (strcmp(changes[c].name, flag->name) == 0)
                change = &changes[c];
        bool once = strcmp(flag->name, "json") == 0 || strcmp(flag->name, "trace") == 0;
        if (change ? !change->value : !config->given[i] || once)
            continue;
        zr_text_print(text, " --%s", flag->name);
        if (change)
            print_quoted(text, change->value);
        else
            zr_flag_print(text, flag, config);
    }
}
