/* config.c: reads a --config file. jansson parses it; the table of keys below gives the meaning of each
 * key and the table in flags.c the range of values. Line numbers come from a second scan of the text,
 * which is valid JSON by then. */
#define _GNU_SOURCE
#include "zero/train/settings/config.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/slab.h"
#include "zero/engine/optimizer.h"
#include "zero/train/settings/flags.h"

enum { FILE_MAX_BYTES = 64 << 10, MEMORY_BYTES = 32 << 20, PATH_ROOM = 160 };

enum key_kind {
    KEY_OBJECT,
    KEY_FLAG,     /* a number; the value of option `equals` */
    KEY_ELEMENTS, /* a number of elements of option `equals`, which counts bytes; a string is a size in
                   * bytes */
    KEY_WORD,     /* a string, read by read_words() */
    KEY_BATCH,    /* train_batch_size */
    KEY_BETAS,    /* two numbers */
    KEY_RATIO,    /* cos_min_ratio */
    KEY_BOOL,     /* true or false, see read_precision() */
    KEY_ON,       /* true sets option `equals`, false omits it */
    KEY_OFF,      /* false sets option `equals`, true omits it */
    KEY_COUNT,    /* a whole number above 0 without effect */
    KEY_EITHER,   /* true or false without effect */
    KEY_FALSE,    /* unsupported: must be false */
    KEY_TRUE,     /* always on: must be true */
    KEY_NUMBER,   /* must be `number` */
    KEY_LATER,    /* unsupported, with any value */
    KEY_FOLDER,   /* a string, see read_tier() */
    KEY_TEXT,     /* a string, the value of option `equals` */
    KEY_LIST,     /* a list of strings, each a value of option `equals` */
};

struct config_key {
    const char *path;
    enum key_kind kind;
    const char *equals; /* option; for KEY_WORD its choices; else the text of the help */
    double number;
    const char *options; /* options for the choices; NULL: none */
};

#define PINNED    "true or false: host memory is not pinned"
#define PIPELINED "true or false: nvme always reads ahead"
#define OF_SLOTS  "a whole number: one buffer per gathered unit"

static const struct config_key keys[] = {
    {"train_batch_size", KEY_BATCH, "--batch x --accumulate x data ranks", 0, NULL},
    {"train_micro_batch_size_per_gpu", KEY_FLAG, "batch", 0, NULL},
    {"gradient_accumulation_steps", KEY_FLAG, "accumulate", 0, NULL},
    {"gradient_clipping", KEY_FLAG, "clip", 0, NULL},
    {"zero_optimization", KEY_OBJECT, NULL, 0, NULL},
    {"zero_optimization.stage", KEY_FLAG, "stage", 0, NULL},
    {"zero_optimization.reduce_bucket_size", KEY_ELEMENTS, "bucket-bytes", 0, NULL},
    {"zero_optimization.allgather_bucket_size", KEY_ELEMENTS, "bucket-bytes", 0, NULL},
    {"zero_optimization.overlap_comm", KEY_TRUE, NULL, 0, NULL},
    {"zero_optimization.reduce_scatter", KEY_TRUE, NULL, 0, NULL},
    {"zero_optimization.allgather_partitions", KEY_TRUE, NULL, 0, NULL},
    {"zero_optimization.contiguous_gradients", KEY_TRUE, NULL, 0, NULL},
    {"zero_optimization.offload_optimizer", KEY_OBJECT, NULL, 0, NULL},
    {"zero_optimization.offload_optimizer.device", KEY_WORD, "none|cpu|nvme", 0,
     "--offload-optimizer none|cpu|nvme:DIR"},
    {"zero_optimization.offload_optimizer.pin_memory", KEY_EITHER, PINNED, 0, NULL},
    {"zero_optimization.offload_optimizer.nvme_path", KEY_FOLDER, "DIR of --offload-optimizer nvme:DIR", 0,
     NULL},
    {"zero_optimization.offload_optimizer.buffer_count", KEY_FLAG, "offload-buffers", 0, NULL},
    {"zero_optimization.offload_optimizer.fast_init", KEY_FALSE, NULL, 0, NULL},
    {"zero_optimization.offload_optimizer.ratio", KEY_FLAG, "offload-ratio", 0, NULL},
    {"zero_optimization.offload_optimizer.pipeline_read", KEY_EITHER, PIPELINED, 0, NULL},
    {"zero_optimization.offload_optimizer.pipeline_write", KEY_EITHER, PIPELINED, 0, NULL},
    {"zero_optimization.offload_param", KEY_OBJECT, NULL, 0, NULL},
    {"zero_optimization.offload_param.device", KEY_WORD, "none|cpu|nvme", 0,
     "--offload-param none|cpu|nvme:DIR"},
    {"zero_optimization.offload_param.pin_memory", KEY_EITHER, PINNED, 0, NULL},
    {"zero_optimization.offload_param.nvme_path", KEY_FOLDER, "DIR of --offload-param nvme:DIR", 0, NULL},
    {"zero_optimization.offload_param.buffer_count", KEY_COUNT, OF_SLOTS, 0, NULL},
    {"zero_optimization.offload_param.buffer_size", KEY_COUNT, OF_SLOTS, 0, NULL},
    {"zero_optimization.offload_param.max_in_cpu", KEY_COUNT, OF_SLOTS, 0, NULL},
    {"zero_optimization.sub_group_size", KEY_COUNT, "a whole number: updates are per unit", 0, NULL},
    {"zero_optimization.round_robin_gradients", KEY_LATER, NULL, 0, NULL},
    {"zero_optimization.stage3_prefetch_bucket_size", KEY_LATER, NULL, 0, NULL},
    {"zero_optimization.stage3_param_persistence_threshold", KEY_LATER, NULL, 0, NULL},
    {"zero_optimization.stage3_max_live_parameters", KEY_LATER, NULL, 0, NULL},
    {"zero_optimization.stage3_max_reuse_distance", KEY_LATER, NULL, 0, NULL},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", KEY_LATER, NULL, 0, NULL},
    {"bf16", KEY_OBJECT, NULL, 0, NULL},
    {"bf16.enabled", KEY_BOOL, "--precision bf16", 0, NULL},
    {"fp16", KEY_OBJECT, NULL, 0, NULL},
    {"fp16.enabled", KEY_BOOL, "--precision fp16", 0, NULL},
    {"fp16.auto_cast", KEY_FALSE, NULL, 0, NULL},
    {"fp16.loss_scale", KEY_FLAG, "loss-scale", 0, NULL},
    {"fp16.initial_scale_power", KEY_FLAG, "loss-scale-power", 0, NULL},
    {"fp16.loss_scale_window", KEY_FLAG, "loss-scale-window", 0, NULL},
    {"fp16.hysteresis", KEY_FLAG, "loss-scale-hysteresis", 0, NULL},
    {"fp16.consecutive_hysteresis", KEY_FALSE, NULL, 0, NULL},
    {"fp16.min_loss_scale", KEY_FLAG, "min-loss-scale", 0, NULL},
    {"optimizer", KEY_OBJECT, NULL, 0, NULL},
    {"optimizer.type", KEY_WORD, "--optimizer, in letters of either case, as AdamW", 0, NULL},
    {"optimizer.params", KEY_OBJECT, NULL, 0, NULL},
    {"optimizer.params.lr", KEY_FLAG, "lr", 0, NULL},
    {"optimizer.params.betas", KEY_BETAS, "--beta1 and --beta2", 0, NULL},
    {"optimizer.params.eps", KEY_NUMBER, NULL, 1e-8, NULL},
    {"optimizer.params.weight_decay", KEY_FLAG, "weight-decay", 0, NULL},
    {"optimizer.params.momentum", KEY_FLAG, "momentum", 0, NULL},
    {"optimizer.params.dampening", KEY_NUMBER, NULL, 0, NULL},
    {"optimizer.params.nesterov", KEY_FALSE, NULL, 0, NULL},
    {"parameter_groups", KEY_LIST, "group", 0, NULL},
    {"frozen_parameters", KEY_LIST, "freeze", 0, NULL},
    {"lora", KEY_TEXT, "lora", 0, NULL},
    {"lora_alpha", KEY_FLAG, "lora-alpha", 0, NULL},
    {"scheduler", KEY_OBJECT, NULL, 0, NULL},
    {"scheduler.type", KEY_WORD, "WarmupLR|WarmupDecayLR|WarmupCosineLR", 0,
     "--schedule-lr constant|linear|cosine"},
    {"scheduler.params", KEY_OBJECT, NULL, 0, NULL},
    {"scheduler.params.warmup_min_lr", KEY_NUMBER, NULL, 0, NULL},
    {"scheduler.params.warmup_max_lr", KEY_FLAG, "lr", 0, NULL},
    {"scheduler.params.warmup_num_steps", KEY_FLAG, "warmup", 0, NULL},
    {"scheduler.params.warmup_type", KEY_WORD, "linear", 0, NULL},
    {"scheduler.params.warmup_min_ratio", KEY_NUMBER, NULL, 0, NULL},
    {"scheduler.params.total_num_steps", KEY_FLAG, "steps", 0, NULL},
    {"scheduler.params.cos_min_ratio", KEY_RATIO, "--min-lr over --lr", 0, NULL},
    {"activation_checkpointing", KEY_OBJECT, NULL, 0, NULL},
    {"activation_checkpointing.partition_activations", KEY_ON, "partition-activations", 0, NULL},
    {"activation_checkpointing.cpu_checkpointing", KEY_ON, "checkpoint-offload", 0, NULL},
    {"activation_checkpointing.contiguous_memory_optimization", KEY_OFF, "no-contiguous", 0, NULL},
    {"activation_checkpointing.synchronize_checkpoint_boundary", KEY_FALSE, NULL, 0, NULL},
    {"activation_checkpointing.profile", KEY_FALSE, NULL, 0, NULL},
    {"activation_checkpointing.number_checkpoints", KEY_COUNT, "a whole number: the pool grows as needed", 0,
     NULL},
    {"prescale_gradients", KEY_FALSE, NULL, 0, NULL},
    {"wall_clock_breakdown", KEY_FALSE, NULL, 0, NULL},
    {"dump_state", KEY_FALSE, NULL, 0, NULL},
    {"steps_per_print", KEY_LATER, NULL, 0, NULL},
};
enum { KEYS_COUNT = sizeof keys / sizeof *keys };

struct reader {
    const char *file, *text;
    json_t *root;
    struct zr_train_config *config;
    struct zr_config_rest *rest;
};

/* ---- Memory -------------------------------------------------------------------------------------------- */

/* Memory for jansson, whose allocation callback has no context argument, hence the static. Freed as a
 * whole. */
static struct {
    char *at;
    size_t left_bytes;
} memory;

static void *take(size_t bytes)
{
    size_t rounded = (bytes + 15) & ~(size_t)15;
    if (rounded < bytes || rounded > memory.left_bytes)
        return NULL;
    void *taken = memory.at;
    memory.at += rounded;
    memory.left_bytes -= rounded;
    return taken;
}

static void give(void *taken)
{
    (void)taken;
}

/* ---- Lines --------------------------------------------------------------------------------------------- */

static const char *skip_blanks(const char *at)
{
    return at + strspn(at, " \t\r\n:,");
}

static const char *skip_string(const char *at)
{
    for (at++; *at && *at != '"'; at++)
        at += at[0] == '\\' && at[1];
    return at + (*at == '"');
}

static const char *skip_value(const char *at)
{
    unsigned depth = 0;
    do {
        if (*at == '"') {
            at = skip_string(at);
            continue;
        }
        depth += *at == '{' || *at == '[';
        depth -= *at == '}' || *at == ']';
        at += *at != '\0';
    } while (*at && (depth > 0 || !strchr(",}] \t\r\n", *at)));
    return at;
}

/* Position of a key; if the key is written with escapes, position of its parent. */
static const char *find_key(const char *text, const char *path)
{
    const char *at = skip_blanks(text), *found = at;
    while (*path && *at == '{') {
        size_t length = strcspn(path, ".");
        bool match = false;
        for (at = skip_blanks(at + 1); *at == '"' && !match;) {
            const char *key = at;
            at = skip_blanks(skip_string(at));
            match = strncmp(key + 1, path, length) == 0 && key[1 + length] == '"';
            if (match)
                found = key;
            else
                at = skip_blanks(skip_value(at));
        }
        if (!match)
            break;
        path += length + (path[length] == '.');
    }
    return found;
}

/* Replaces control characters, so that a message is one line and sends no commands to a terminal. */
static void make_plain(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            *text = '?';
}

static zr_result refuse(const struct reader *reader, const char *path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static zr_result refuse(const struct reader *reader, const char *path, const char *format, ...)
{
    char message[600], name[PATH_ROOM];
    unsigned line = 1;
    va_list list;
    va_start(list, format);
    vsnprintf(message, sizeof message, format, list);
    va_end(list);
    for (const char *at = reader->text, *end = find_key(at, path); at < end; at++)
        line += *at == '\n';
    snprintf(name, sizeof name, "%s", path);
    make_plain(name);
    make_plain(message);
    return zr_fail(ZR_ERR_INVALID, "--config '%.200s' line %u: %.120s: %s", reader->file, line, name,
                   message);
}

/* ---- Values -------------------------------------------------------------------------------------------- */

static json_t *get(const struct reader *reader, const char *path)
{
    json_t *value = reader->root;
    char key[64];
    while (value && *path) {
        size_t length = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)length, path);
        value = json_object_get(value, key);
        path += length + (path[length] == '.');
    }
    return value;
}

static double number_of(const json_t *value)
{
    return json_is_integer(value) ? (double)json_integer_value(value) : json_real_value(value);
}

static zr_result store(const struct reader *reader, const char *path, const char *option, const char *value)
{
    if (zr_flag_store(option, reader->config, value) >= 0)
        return refuse(reader, path, "%s", zr_last_error());
    reader->config->filed[zr_flag_index(zr_flag_find(option))] = true;
    return ZR_OK;
}

static zr_result store_number(const struct reader *reader, const char *path, const char *option,
                              const json_t *value, unsigned factor)
{
    char number[64];
    double real;
    if (!json_is_number(value))
        return refuse(reader, path, "must be a number, as for --%s", option);
    real = number_of(value) * factor;
    if (real == floor(real) && fabs(real) < 9e15) /* 5e8 is a whole number too */
        snprintf(number, sizeof number, "%.0f", real);
    else
        snprintf(number, sizeof number, "%.9g", real);
    return store(reader, path, option, number);
}

static zr_result read_betas(const struct reader *reader, const char *path, const json_t *value)
{
    zr_result result;
    if (json_array_size(value) != 2)
        return refuse(reader, path, "must be two numbers, such as [0.9, 0.95]");
    result = store_number(reader, path, "beta1", json_array_get(value, 0), 1);
    return result == ZR_OK ? store_number(reader, path, "beta2", json_array_get(value, 1), 1) : result;
}

static zr_result read_batch(const struct reader *reader, const char *path, const json_t *value)
{
    double number = json_is_number(value) ? number_of(value) : 0;
    if (!(number >= 1) || number > 1e12 || number != floor(number))
        return refuse(reader, path, "must be a whole number of sequences from 1 to 1e12");
    reader->rest->train_batch = (uint64_t)number;
    return ZR_OK;
}

static bool is_on(const struct reader *reader, const char *path)
{
    return json_is_true(get(reader, path));
}

/* Bytes of an element in the communication buffers. */
static unsigned element_bytes(const struct reader *reader)
{
    return is_on(reader, "bf16.enabled") || is_on(reader, "fp16.enabled") ? 2 : 4;
}

/* Stores a size in elements in an option that counts bytes; the option's limits are printed in elements. A
 * string is a size in bytes and needs a unit, which distinguishes it from elements. */
static zr_result read_elements(const struct reader *reader, const struct config_key *key, const json_t *value)
{
    unsigned bytes = element_bytes(reader);
    const char *size = json_string_value(value);
    if (size && size[0] && !strchr("0123456789", size[strlen(size) - 1]))
        return store(reader, key->path, key->equals, size);
    if (!json_is_number(value))
        return refuse(
            reader, key->path,
            "must be a number of elements, or a string with a size in bytes and its unit, such as \"4MiB\"");
    bool whole = number_of(value) == floor(number_of(value));
    zr_result result = whole ? store_number(reader, key->path, key->equals, value, bytes) : ZR_ERR_INVALID;
    const struct zr_flag *flag = zr_flag_find(key->equals);
    if (result == ZR_OK)
        return result;
    return refuse(reader, key->path, "must be a whole number of elements from %.0f to %.0f (%u bytes each)",
                  flag->min / bytes, flag->max / bytes, bytes);
}

static zr_result read_list(const struct reader *reader, const struct config_key *key, const json_t *value)
{
    zr_result result = json_is_array(value)
                           ? ZR_OK
                           : refuse(reader, key->path, "must be a list of strings, as for --%s", key->equals);
    for (size_t i = 0; i < json_array_size(value) && result == ZR_OK; i++) {
        const char *text = json_string_value(json_array_get(value, i));
        result = text ? store(reader, key->path, key->equals, text)
                      : refuse(reader, key->path, "must be a list of strings, as for --%s", key->equals);
    }
    return result;
}

static zr_result read_value(const struct reader *reader, const struct config_key *key, const json_t *value)
{
    const char *path = key->path;
    const char *word = json_string_value(value);

    if (word && strcmp(word, "auto") == 0 && key->kind < KEY_LATER && key->kind != KEY_OBJECT)
        return refuse(reader, path, "auto is not supported; give the value, or leave the key out");
    switch (key->kind) {
    case KEY_FLAG:
        return store_number(reader, path, key->equals, value, 1);
    case KEY_ELEMENTS:
        return read_elements(reader, key, value);
    case KEY_TEXT:
        return word ? store(reader, path, key->equals, word)
                    : refuse(reader, path, "must be a string, as for --%s", key->equals);
    case KEY_LIST:
        return read_list(reader, key, value);
    case KEY_BATCH:
        return read_batch(reader, path, value);
    case KEY_BETAS:
        return read_betas(reader, path, value);
    case KEY_RATIO:
        reader->rest->least_ratio = json_is_number(value) ? number_of(value) : -1;
        if (!(reader->rest->least_ratio >= 0 && reader->rest->least_ratio <= 1))
            return refuse(reader, path, "must be a number from 0 to 1");
        return ZR_OK;
    case KEY_WORD:
        return word ? ZR_OK : refuse(reader, path, "must be a string: %s", key->equals);
    case KEY_BOOL:
        return json_is_boolean(value) ? ZR_OK : refuse(reader, path, "must be true or false");
    case KEY_ON:
    case KEY_OFF:
        if (!json_is_boolean(value))
            return refuse(reader, path, "must be true or false");
        return json_is_true(value) == (key->kind == KEY_ON) ? store(reader, path, key->equals, "") : ZR_OK;
    case KEY_EITHER:
        return json_is_boolean(value) ? ZR_OK : refuse(reader, path, "must be true or false");
    case KEY_COUNT:
        return json_is_integer(value) && json_integer_value(value) > 0
                   ? ZR_OK
                   : refuse(reader, path, "must be a whole number above 0");
    case KEY_FALSE:
        if (json_is_false(value))
            return ZR_OK;
        return refuse(reader, path, "is not supported by zr-train; give false, or leave the key out");
    case KEY_TRUE:
        if (json_is_true(value))
            return ZR_OK;
        return refuse(reader, path, "cannot be turned off; give true, or leave the key out");
    case KEY_NUMBER:
        if (json_is_number(value) && number_of(value) == key->number)
            return ZR_OK;
        return refuse(reader, path, "must be %g: other values are not supported", key->number);
    case KEY_FOLDER:
        return word ? ZR_OK : refuse(reader, path, "must be a string: a folder");
    default:
        return refuse(reader, path, "is not supported by zr-train; leave the key out");
    }
}

static zr_result walk(const struct reader *reader, const char *above, json_t *object)
{
    zr_result result = ZR_OK;
    for (void *at = json_object_iter(object); at && result == ZR_OK; at = json_object_iter_next(object, at)) {
        const struct config_key *key = NULL;
        json_t *value = json_object_iter_value(at);
        char path[PATH_ROOM];
        snprintf(path, sizeof path, "%s%s%s", above, above[0] ? "." : "", json_object_iter_key(at));
        for (size_t i = 0; i < KEYS_COUNT; i++)
            if (strcmp(keys[i].path, path) == 0 && !strchr(json_object_iter_key(at), '.'))
                key = &keys[i];
        if (!key)
            result = refuse(reader, path, "is not a known key (zr-train --help lists the keys)");
        else if (key->kind == KEY_OBJECT)
            result = json_is_object(value) ? walk(reader, path, value)
                                           : refuse(reader, path, "must be an object: {...}");
        else
            result = read_value(reader, key, value);
    }
    return result;
}

/* ---- Keys that depend on each other -------------------------------------------------------------------- */

/* Index of a string among the choices of its key; 0 if the file does not have the key. */
static zr_result read_word(const struct reader *reader, const char *path, size_t *out)
{
    const struct config_key *key = NULL;
    const char *word = json_string_value(get(reader, path));
    for (size_t i = 0; i < KEYS_COUNT; i++)
        if (strcmp(keys[i].path, path) == 0)
            key = &keys[i];
    *out = 0;
    for (const char *at = key->equals; word; at = at + strcspn(at, "|") + 1, ++*out) {
        size_t length = strcspn(at, "|");
        if (strlen(word) == length && memcmp(word, at, length) == 0)
            return ZR_OK;
        if (at[length] == '\0')
            return refuse(reader, path, "'%.60s' is not supported; give %s", word, key->equals);
    }
    return ZR_OK;
}

/* Checks two keys that map to one option. */
static zr_result check_equal(const struct reader *reader, const char *path, const char *other)
{
    const json_t *a = get(reader, path), *b = get(reader, other);
    if (!a || !b)
        return ZR_OK;
    if (json_is_string(a) || json_is_string(b)) /* sizes with units */
        return json_is_string(a) && json_is_string(b) &&
                       strcmp(json_string_value(a), json_string_value(b)) == 0
                   ? ZR_OK
                   : refuse(reader, path,
                            "and %s differ; zr-train has one option for both, so give equal values", other);
    if (number_of(a) == number_of(b))
        return ZR_OK;
    return refuse(reader, path, "is %g and %s is %g; zr-train has one option for both, so give equal values",
                  number_of(a), other, number_of(b));
}

/* Refuses keys that do not apply to the chosen type; `paths` ends with NULL. */
static zr_result check_absent(const struct reader *reader, const char *type, const char *const *paths)
{
    for (; *paths; paths++)
        if (get(reader, *paths))
            return refuse(reader, *paths, "does not apply to %s; leave it out", type);
    return ZR_OK;
}

static zr_result read_precision(const struct reader *reader)
{
    bool bf16 = is_on(reader, "bf16.enabled"), fp16 = is_on(reader, "fp16.enabled");
    if (bf16 && fp16)
        return refuse(reader, "fp16.enabled", "and bf16.enabled are both true; enable one");
    if (!bf16 && !fp16)
        return ZR_OK;
    return store(reader, bf16 ? "bf16.enabled" : "fp16.enabled", "precision", bf16 ? "bf16" : "fp16");
}

static zr_result read_optimizer(const struct reader *reader)
{
    static const struct {
        const char *key;
        enum zr_number_kind number;
    } taken[] = {{"optimizer.params.betas", ZR_NUMBER_BETA1},
                 {"optimizer.params.eps", ZR_NUMBER_EPSILON},
                 {"optimizer.params.momentum", ZR_NUMBER_MOMENTUM}};
    static const char *const of_sgd[] = {"optimizer.params.dampening", "optimizer.params.nesterov", NULL};
    const char *type = json_string_value(get(reader, "optimizer.type"));
    char name[32] = "";
    if (!get(reader, "optimizer"))
        return ZR_OK;
    if (!type)
        return refuse(reader, "optimizer", "has no type; give one of " ZR_OPTIMIZER_NAMES);
    for (size_t i = 0; type[i] && i + 1 < sizeof name; i++)
        name[i] = (char)(type[i] >= 'A' && type[i] <= 'Z' ? type[i] - 'A' + 'a' : type[i]);
    zr_result result = store(reader, "optimizer.type", "optimizer", name);
    if (result != ZR_OK)
        return result;
    const struct zr_optimizer *optimizer = zr_optimizer_of(reader->config->optimizer.kind);
    for (size_t i = 0; i < sizeof taken / sizeof *taken && result == ZR_OK; i++)
        if (!optimizer->numbers[taken[i].number].taken)
            result = check_absent(reader, type, (const char *const[]){taken[i].key, NULL});
    return result == ZR_OK && reader->config->optimizer.kind != ZR_OPTIMIZER_SGD
               ? check_absent(reader, type, of_sgd)
               : result;
}

static zr_result read_scheduler(const struct reader *reader)
{
    static const char *const names[] = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"};
    static const char *const kinds[] = {"constant", "linear", "cosine"};
    static const char *const cosine[] = {"scheduler.params.cos_min_ratio",
                                         "scheduler.params.warmup_min_ratio", NULL};
    static const char *const plain[] = {"scheduler.params.warmup_min_lr", "scheduler.params.warmup_max_lr",
                                        NULL};
    static const char *const total[] = {"scheduler.params.total_num_steps", NULL};
    size_t type, unused;
    zr_result result = read_word(reader, "scheduler.type", &type);
    if (result == ZR_OK)
        result = read_word(reader, "scheduler.params.warmup_type", &unused);
    if (result != ZR_OK || !get(reader, "scheduler"))
        return result;
    if (!get(reader, "scheduler.type"))
        return refuse(reader, "scheduler", "has no type; give %s, %s or %s", names[0], names[1], names[2]);
    if (!get(reader, "scheduler.params.warmup_type"))
        return refuse(
            reader, "scheduler.type",
            "defaults to a logarithmic warm-up, which is not supported; give \"warmup_type\": \"linear\" "
            "in its params");
    if (!get(reader, "scheduler.params.warmup_num_steps"))
        return refuse(reader, "scheduler.type", "requires \"warmup_num_steps\" in its params");
    if (type > 0 && !get(reader, total[0]))
        return refuse(reader, "scheduler.type", "requires \"total_num_steps\" in its params");
    result = check_absent(reader, names[type], type == 2 ? plain : cosine);
    if (result == ZR_OK && type == 0)
        result = check_absent(reader, names[type], total);
    if (result == ZR_OK)
        result = store(reader, "scheduler.type", "schedule-lr", kinds[type]);
    if (result == ZR_OK && type == 1)
        result = store(reader, "scheduler.type", "min-lr", "0");
    if (type == 2) {
        reader->config->filed[zr_flag_index(zr_flag_find("min-lr"))] = true;
        if (reader->rest->least_ratio < 0)
            reader->rest->least_ratio = 0.0001; /* published default */
    }
    return result;
}

/* Reads the tier of an object. `above`: the object with the device and nvme_path. */
static zr_result read_tier(const struct reader *reader, const char *above, const char *option)
{
    static const char *const tiers[] = {"none", "cpu"};
    char nvme[ZR_TRAIN_PATH_ROOM + 8], path[PATH_ROOM];
    size_t tier;
    snprintf(path, sizeof path, "%s.nvme_path", above);
    const char *folder = json_string_value(get(reader, path));
    snprintf(path, sizeof path, "%s.device", above);
    zr_result result = read_word(reader, path, &tier);
    if (result != ZR_OK || !get(reader, path))
        return result;
    if (tier < sizeof tiers / sizeof *tiers)
        return store(reader, path, option, tiers[tier]);
    if (!folder || strlen(folder) >= ZR_TRAIN_PATH_ROOM)
        return refuse(reader, path, "nvme requires nvme_path, a folder on the disk");
    snprintf(nvme, sizeof nvme, "nvme:%s", folder);
    return store(reader, path, option, nvme);
}

static zr_result read_root(const struct reader *reader)
{
    zr_result result = walk(reader, "", reader->root);
    if (result == ZR_OK)
        result = read_tier(reader, "zero_optimization.offload_optimizer", "offload-optimizer");
    if (result == ZR_OK)
        result = read_tier(reader, "zero_optimization.offload_param", "offload-param");
    if (result == ZR_OK)
        result = check_equal(reader, "zero_optimization.allgather_bucket_size",
                             "zero_optimization.reduce_bucket_size");
    if (result == ZR_OK)
        result = check_equal(reader, "scheduler.params.warmup_max_lr", "optimizer.params.lr");
    if (result == ZR_OK)
        result = read_precision(reader);
    if (result == ZR_OK)
        result = read_optimizer(reader);
    if (result == ZR_OK)
        result = read_scheduler(reader);
    reader->rest->has_batch = get(reader, "train_micro_batch_size_per_gpu") != NULL;
    reader->rest->has_accumulate = get(reader, "gradient_accumulation_steps") != NULL;
    return result;
}

/* ---- The file ------------------------------------------------------------------------------------------ */

static zr_result load(const char *path, char *text, size_t *bytes)
{
    struct zr_file file;
    zr_result result = zr_file_open(&file, path);
    if (result != ZR_OK)
        return result;
    result = zr_file_read(&file, text, FILE_MAX_BYTES + 1, bytes);
    zr_result closed = zr_file_close(&file);
    if (result == ZR_OK && *bytes > FILE_MAX_BYTES)
        return zr_fail(ZR_ERR_FORMAT, "--config '%.200s' line 1: longer than %d KiB; give a file of settings",
                       path, FILE_MAX_BYTES >> 10);
    return result ? result : closed;
}

zr_result zr_config_read(const char *path, struct zr_train_config *config, struct zr_config_rest *rest)
{
    size_t bytes = 0, all_bytes = MEMORY_BYTES + FILE_MAX_BYTES + 4096;
    char *text = zr_pages_take(all_bytes);
    struct reader reader = {.file = path, .text = text, .config = config, .rest = rest};
    json_error_t error = {0};
    zr_result result;

    *rest = (struct zr_config_rest){.least_ratio = -1};
    if (!text)
        return ZR_ERR_HOST_MEMORY;
    result = load(path, text, &bytes);
    if (result == ZR_OK) {
        text[bytes] = '\0';
        memory.at = text + FILE_MAX_BYTES + 4096;
        memory.left_bytes = MEMORY_BYTES;
        json_set_alloc_funcs(take, give);
        reader.root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
        make_plain(error.text);
        if (!reader.root)
            result = zr_fail(ZR_ERR_FORMAT, "--config '%.200s' line %d: not JSON: %.200s", path,
                             error.line > 0 ? error.line : 1, error.text);
        else if (!json_is_object(reader.root))
            result = zr_fail(ZR_ERR_FORMAT, "--config '%.200s' line 1: must be an object: {...}", path);
        else
            result = read_root(&reader);
        memory.left_bytes = 0; /* a later allocation, which has no owner, fails */
    }
    zr_pages_give(text, all_bytes);
    return result;
}

zr_result zr_config_resolve_batch(const struct zr_config_rest *rest, struct zr_train_config *config)
{
    uint64_t data_ranks = zr_train_data_ranks(config);
    uint64_t batch = config->shape.batch, accumulate = config->micro_batches;
    bool has_batch = rest->has_batch || zr_flag_given(config, "batch");
    bool has_accumulate = rest->has_accumulate || zr_flag_given(config, "accumulate");
    char number[32];

    if (rest->train_batch == 0 || data_ranks == 0) /* fewer ranks than the mesh: a later check refuses them */
        return ZR_OK;
    if (!has_batch)
        batch = rest->train_batch / (data_ranks * accumulate);
    else if (!has_accumulate)
        accumulate = rest->train_batch / (data_ranks * batch);
    if (batch * accumulate * data_ranks != rest->train_batch)
        return zr_fail(ZR_ERR_INVALID,
                       "--config '%.200s': train_batch_size is %" PRIu64 ", and %s%" PRIu64
                       " sequences x %s%" PRIu64 " micro-batches x %" PRIu64
                       " data ranks do not multiply to it; change one of them, or leave train_batch_size out",
                       config->config_file, rest->train_batch, has_batch ? "" : "any whole number near ",
                       batch, has_batch && !has_accumulate ? "any whole number near " : "", accumulate,
                       data_ranks);
    snprintf(number, sizeof number, "%" PRIu64, batch);
    if (zr_flag_store("batch", config, number) >= 0)
        return ZR_ERR_INVALID;
    snprintf(number, sizeof number, "%" PRIu64, accumulate);
    return zr_flag_store("accumulate", config, number) >= 0 ? ZR_ERR_INVALID : ZR_OK;
}

void zr_config_left_out(struct zr_text *text, const struct zr_train_config *config)
{
    static const struct {
        const char *key, *option;
    } rows[] = {
        {"optimizer.type", "optimizer"},
        {"optimizer.params.lr", "lr"},
        {"optimizer.params.betas", "beta1"},
        {"optimizer.params.betas", "beta2"},
        {"optimizer.params.weight_decay", "weight-decay"},
        {"optimizer.params.momentum", "momentum"},
        {"gradient_clipping", "clip"},
        {"scheduler", "schedule-lr"},
        {"scheduler", "warmup"},
        {"scheduler", "min-lr"},
    };
    const char *last = NULL;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct zr_flag *flag = zr_flag_find(rows[i].option);
        size_t at = zr_flag_index(flag);
        if (config->given[at] || config->filed[at] || zr_optimizer_ignores(config, flag->name) ||
            (config->rate_kind == ZR_RATE_CONSTANT && strcmp(flag->name, "min-lr") == 0))
            continue;
        bool more = last && strcmp(last, rows[i].key) == 0;
        if (!more)
            zr_text_print(text, "%s %s (here", last ? ")," : "", rows[i].key);
        zr_text_print(text, " --%s", flag->name);
        zr_flag_print(text, flag, config);
        last = rows[i].key;
    }
    if (last)
        zr_text_print(text, ")");
}

void zr_config_help(struct zr_text *text)
{
    zr_text_print(text,
                  "\n"
                  "Keys of --config FILE, named as in DeepSpeed; command-line options take precedence\n");
    for (size_t i = 0; i < KEYS_COUNT; i++) {
        const struct config_key *key = &keys[i];
        if (key->kind == KEY_OBJECT || key->kind == KEY_LATER)
            continue;
        zr_text_print(text, "  %-56s  ", key->path);
        if (key->kind == KEY_FLAG)
            zr_text_print(text, "--%s", key->equals);
        else if (key->kind == KEY_TEXT)
            zr_text_print(text, "a string: --%s", key->equals);
        else if (key->kind == KEY_LIST)
            zr_text_print(text, "a list of strings, each a --%s", key->equals);
        else if (key->kind == KEY_ELEMENTS)
            zr_text_print(text, "--%s, divided by the bytes of an element", key->equals);
        else if (key->kind == KEY_ON || key->kind == KEY_OFF)
            zr_text_print(text, "%s is --%s", key->kind == KEY_ON ? "true" : "false", key->equals);
        else if (key->kind == KEY_FALSE || key->kind == KEY_TRUE)
            zr_text_print(text, "%s only", key->kind == KEY_TRUE ? "true" : "false");
        else if (key->kind == KEY_NUMBER)
            zr_text_print(text, "%g only", key->number);
        else
            zr_text_print(text, "%s", key->equals);
        zr_text_print(text, "\n");
        if (key->options)
            zr_text_print(text, "  %-56s  %s\n", "", key->options);
    }
}
