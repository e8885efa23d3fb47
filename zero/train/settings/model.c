/* model.c: --model: the shape of a run from a config.json. See args.h. */
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "zero/checkpoint/model_file.h"
#include "zero/train/memory_limit.h"
#include "zero/train/report/terminal.h"
#include "zero/train/settings/flags.h"
#include "zero/train/settings/json_file.h"

/* Options whose values a config.json has. */
static const char *const options[] = {"layers",   "hidden", "heads",      "arch",         "vocab",
                                      "kv-heads", "ffn",    "rope-theta", "norm-epsilon", "tie-embeddings"};

static zr_result join(char out[ZR_TRAIN_PATH_ROOM], const char *folder, const char *name)
{
    int length = snprintf(out, ZR_TRAIN_PATH_ROOM, "%s/%s", folder, name);
    return length < ZR_TRAIN_PATH_ROOM
               ? ZR_OK
               : zr_fail(ZR_ERR_INVALID, "--model '%.200s': the path is too long", folder);
}

/* Refuses options that contradict the model's shape, by name. */
static zr_result check_options(const struct zr_train_config *config, const struct zr_train_config *theirs)
{
    char wrong[600];
    struct zr_text text;
    zr_text_start(&text, NULL, wrong, sizeof wrong - 1);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        const struct zr_flag *flag = zr_flag_find(options[i]);
        const char *a = (const char *)config + flag->offset, *b = (const char *)theirs + flag->offset;
        if (!zr_flag_given(config, options[i]) || memcmp(a, b, flag->room_bytes) == 0)
            continue;
        zr_text_print(&text, "%s --%s", flag->kind == ZR_FLAG_SWITCH ? " no" : "", options[i]);
        zr_flag_print(&text, flag, theirs);
    }
    wrong[text.used_bytes] = '\0';
    return text.used_bytes == 0
               ? ZR_OK
               : zr_fail(ZR_ERR_INVALID,
                         "--model '%.200s' contradicts options: its config.json has%s; leave them out",
                         config->model, wrong);
}

/* Refuses sizes that no run can have, before anything of these sizes is made. */
static zr_result check_ranges(const struct zr_train_config *theirs)
{
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        const struct zr_flag *flag = zr_flag_find(options[i]);
        size_t size;
        memcpy(&size, (const char *)theirs + flag->offset,
               flag->room_bytes < sizeof size ? flag->room_bytes : sizeof size);
        if ((flag->kind == ZR_FLAG_COUNT || flag->kind == ZR_FLAG_VOCAB) && (double)size > flag->max)
            return zr_fail(ZR_ERR_FORMAT,
                           "--model '%.200s': its config.json has a size of %zu where --%s is at most %.0f; "
                           "correct config.json",
                           theirs->model, size, flag->name, flag->max);
    }
    return ZR_OK;
}

/* The folder's parameters become those of --resume; a folder with none gives the shape alone. */
static zr_result find_parameters(struct zr_train_config *config)
{
    static const char *const names[] = {"model.safetensors.index.json", "model.safetensors",
                                        "pytorch_model.bin.index.json", "pytorch_model.bin"};
    zr_result result = ZR_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names && !config->resume[0] && !result; i++) {
        enum zr_path_kind kind;
        char path[ZR_TRAIN_PATH_ROOM];
        result = join(path, config->model, names[i]);
        if (!result && zr_path_kind_get(path, &kind) == ZR_OK && kind == ZR_PATH_FILE)
            memcpy(config->resume, path, sizeof path);
    }
    return result;
}

static zr_result read_shape(struct zr_train_config *config, const json_t *root)
{
    struct zr_train_config theirs = *config;
    const struct zr_model_config file = {config->model, root, false};
    struct zr_shape *shape = &theirs.shape;
    double dropout;
    theirs.bytes = false;
    shape->layers = shape->hidden = shape->heads = shape->vocabulary = shape->ffn = shape->kv_heads = 0;
    shape->variant = (struct zr_variant){.positions = 0};
    if (!zr_flag_given(config, "seq")) { /* at most the model's positions */
        struct zr_shape any = *shape;
        json_int_t limit = json_integer_value(json_object_get(root, "n_positions"));
        if (limit > 0 && (size_t)limit < any.sequence)
            shape->sequence = (size_t)limit;
    }
    zr_result result = zr_model_config_read(&file, shape, &dropout);
    if (!result)
        result = check_ranges(&theirs);
    if (!result)
        result = check_options(config, &theirs);
    if (!result) {
        if (zr_flag_given(config, "dropout")) /* resolve() sets both rates */
            shape->residual_dropout = config->shape.residual_dropout;
        if (zr_flag_given(config, "attention-dropout"))
            shape->attention_dropout = config->shape.attention_dropout;
        config->shape = *shape;
        config->bytes = false;
    }
    return result;
}

/* The tokenizer of --model becomes that of --tokenizer, if there is one. */
static zr_result find_tokenizer(struct zr_train_config *config)
{
    enum zr_path_kind kind;
    char path[ZR_TRAIN_PATH_ROOM];
    zr_result result = config->tokenizer[0] ? ZR_OK : join(path, config->model, "tokenizer.json");
    if (!result && !config->tokenizer[0] && zr_path_kind_get(path, &kind) == ZR_OK && kind == ZR_PATH_FILE)
        memcpy(config->tokenizer, path, sizeof path);
    return result;
}

int zr_train_read_model(struct zr_train_config *config)
{
    char path[ZR_TRAIN_PATH_ROOM];
    struct zr_json_file file = {.text = NULL};
    if (!config->model[0])
        return -1;
    if (config->parameters > 0 || (config->finds_max && config->find_max == ZR_LIMIT_LAYERS)) {
        zr_say("--model has the model's sizes; leave --params and --find-max layers out");
        return ZR_EXIT_USAGE;
    }
    zr_result result = join(path, config->model, "config.json");
    if (!result)
        result = zr_json_file_open(&file, "--model", path);
    if (!result)
        result = read_shape(config, file.root);
    zr_json_file_close(&file);
    if (!result && !config->dry_run && !config->prove)
        result = find_parameters(config);
    if (!result)
        result = find_tokenizer(config);
    if (result)
        zr_say("%s", zr_last_error());
    return result ? (int)zr_exit_of(result) : -1;
}
