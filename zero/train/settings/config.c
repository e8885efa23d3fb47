/* config.c: reads a --config file. The table of keys gives the meaning of each key and the table in flags.c
 * the range of values. Keys whose meaning depends on others are read after the others, so that the order in
 * the file does not matter. */
#define _GNU_SOURCE
#include "zero/train/settings/config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "zero/engine/optimizer.h"
#include "zero/train/report/terminal.h"
#include "zero/train/settings/flags.h"
#include "zero/train/settings/json_file.h"

enum key_kind {
    KEY_OBJECT,
    KEY_FLAG,     /* a number; the value of option `equals` */
    KEY_ELEMENTS, /* a number of elements of option `equals`, which counts bytes; a string is a size in
                   * bytes */
    KEY_WORD,     /* a string, one of `equals`; see read_word() */
    KEY_BATCH,    /* train_batch_size */
    KEY_BETAS,    /* two numbers */
    KEY_HELD,     /* a number, true or false, see those who read it */
    KEY_BOOL,     /* true or false, see read_precision() and read_optimizer() */
    KEY_ON,       /* true sets option `equals`, false omits it */
    KEY_SETS,     /* true sets option `equals` to the first of `options`, false omits it */
    KEY_OFF,      /* false sets option `equals`, true omits it */
    KEY_CPU,      /* true is option `equals` cpu */
    KEY_FALSE,    /* unsupported: must be false, 0, or an object that is not enabled */
    KEY_TRUE,     /* always on: must be true */
    KEY_NUMBER,   /* must be `number` */
    KEY_PASSED,   /* changes no number: passed over with any value */
    KEY_LATER,    /* unsupported, with any value; `equals`: what to do instead, NULL: leave it out */
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

#define ZERO      "zero_optimization."
#define OPTIMIZER "zero_optimization.offload_optimizer."
#define PARAMETER "zero_optimization.offload_param."
#define RATES     "scheduler.params."

static const struct config_key keys[] = {
    {"train_batch_size", KEY_BATCH, "--batch x --accumulate x data ranks", 0, NULL},
    {"train_micro_batch_size_per_gpu", KEY_FLAG, "batch", 0, NULL},
    {"gradient_accumulation_steps", KEY_FLAG, "accumulate", 0, NULL},
    {"gradient_clipping", KEY_FLAG, "clip", 0, NULL},
    {"zero_optimization", KEY_OBJECT, NULL, 0, NULL},
    {ZERO "stage", KEY_FLAG, "stage", 0, NULL},
    {ZERO "reduce_bucket_size", KEY_ELEMENTS, "bucket-bytes", 0, NULL},
    {ZERO "allgather_bucket_size", KEY_ELEMENTS, "bucket-bytes", 0, NULL},
    {ZERO "offload_optimizer", KEY_OBJECT, NULL, 0, NULL},
    {OPTIMIZER "device", KEY_WORD, "none|cpu|nvme", 0, "--offload-optimizer none|cpu|nvme:DIR"},
    {OPTIMIZER "nvme_path", KEY_FOLDER, "DIR of --offload-optimizer nvme:DIR", 0, NULL},
    {OPTIMIZER "buffer_count", KEY_FLAG, "offload-buffers", 0, NULL},
    {OPTIMIZER "ratio", KEY_FLAG, "offload-ratio", 0, NULL},
    {OPTIMIZER "pin_memory", KEY_PASSED, NULL, 0, NULL},
    {OPTIMIZER "fast_init", KEY_PASSED, NULL, 0, NULL},
    {OPTIMIZER "pipeline", KEY_PASSED, NULL, 0, NULL},
    {OPTIMIZER "pipeline_read", KEY_PASSED, NULL, 0, NULL},
    {OPTIMIZER "pipeline_write", KEY_PASSED, NULL, 0, NULL},
    {ZERO "offload_param", KEY_OBJECT, NULL, 0, NULL},
    {PARAMETER "device", KEY_WORD, "none|cpu|nvme", 0, "--offload-param none|cpu|nvme:DIR"},
    {PARAMETER "nvme_path", KEY_FOLDER, "DIR of --offload-param nvme:DIR", 0, NULL},
    {PARAMETER "pin_memory", KEY_PASSED, NULL, 0, NULL},
    {PARAMETER "buffer_count", KEY_PASSED, NULL, 0, NULL},
    {PARAMETER "buffer_size", KEY_PASSED, NULL, 0, NULL},
    {PARAMETER "max_in_cpu", KEY_PASSED, NULL, 0, NULL},
    {ZERO "cpu_offload", KEY_CPU, "offload-optimizer", 0, NULL},
    {ZERO "cpu_offload_params", KEY_CPU, "offload-param", 0, NULL},
    {ZERO "cpu_offload_use_pin_memory", KEY_PASSED, NULL, 0, NULL},
    {ZERO "zero_quantized_weights", KEY_SETS, "compress", 0, "parameters:int8"},
    {ZERO "zero_quantized_nontrainable_weights", KEY_FALSE, NULL, 0, NULL},
    {ZERO "zero_quantized_gradients", KEY_SETS, "compress", 0, "gradients:int4"},
    {ZERO "overlap_comm", KEY_PASSED, NULL, 0, NULL},
    {ZERO "reduce_scatter", KEY_PASSED, NULL, 0, NULL},
    {ZERO "allgather_partitions", KEY_PASSED, NULL, 0, NULL},
    {ZERO "contiguous_gradients", KEY_PASSED, NULL, 0, NULL},
    {ZERO "use_multi_rank_bucket_allreduce", KEY_PASSED, NULL, 0, NULL},
    {ZERO "round_robin_gradients", KEY_PASSED, NULL, 0, NULL},
    {ZERO "sub_group_size", KEY_PASSED, NULL, 0, NULL},
    {ZERO "load_from_fp32_weights", KEY_PASSED, NULL, 0, NULL},
    {ZERO "elastic_checkpoint", KEY_PASSED, NULL, 0, NULL},
    {ZERO "ignore_unused_parameters", KEY_PASSED, NULL, 0, NULL},
    {ZERO "legacy_stage1", KEY_PASSED, NULL, 0, NULL},
    {ZERO "memory_efficient_linear", KEY_PASSED, NULL, 0, NULL},
    {ZERO "log_trace_cache_warnings", KEY_PASSED, NULL, 0, NULL},
    {ZERO "zero_hpz_partition_size", KEY_FLAG, "node-size", 0, "and --compress hpz"},
    {ZERO "mics_shard_size", KEY_PASSED, NULL, 0, NULL},
    {ZERO "mics_hierarchical_params_gather", KEY_PASSED, NULL, 0, NULL},
    {ZERO "param_persistence_threshold", KEY_PASSED, NULL, 0, NULL},
    {ZERO "model_persistence_threshold", KEY_PASSED, NULL, 0, NULL},
    {ZERO "max_live_parameters", KEY_PASSED, NULL, 0, NULL},
    {ZERO "max_reuse_distance", KEY_PASSED, NULL, 0, NULL},
    {ZERO "prefetch_bucket_size", KEY_PASSED, NULL, 0, NULL},
    {ZERO "gather_16bit_weights_on_model_save", KEY_PASSED, NULL, 0, NULL},
    {ZERO "stage3_prefetch_bucket_size", KEY_PASSED, NULL, 0, NULL},
    {ZERO "stage3_param_persistence_threshold", KEY_PASSED, NULL, 0, NULL},
    {ZERO "stage3_model_persistence_threshold", KEY_PASSED, NULL, 0, NULL},
    {ZERO "stage3_max_live_parameters", KEY_PASSED, NULL, 0, NULL},
    {ZERO "stage3_max_reuse_distance", KEY_PASSED, NULL, 0, NULL},
    {ZERO "stage3_gather_16bit_weights_on_model_save", KEY_PASSED, NULL, 0, NULL},
    {ZERO "stage3_gather_fp16_weights_on_model_save", KEY_PASSED, NULL, 0, NULL},
    {"bf16", KEY_OBJECT, NULL, 0, NULL},
    {"bf16.enabled", KEY_BOOL, "--precision bf16", 0, NULL},
    {"bf16.immediate_grad_update", KEY_PASSED, NULL, 0, NULL},
    {"bf16.check_grad_overflow", KEY_PASSED, NULL, 0, NULL},
    {"bf16.auto_cast", KEY_PASSED, NULL, 0, NULL},
    {"bfloat16", KEY_OBJECT, NULL, 0, NULL},
    {"bfloat16.enabled", KEY_BOOL, "--precision bf16", 0, NULL},
    {"fp16", KEY_OBJECT, NULL, 0, NULL},
    {"fp16.enabled", KEY_BOOL, "--precision fp16", 0, NULL},
    {"fp16.auto_cast", KEY_PASSED, NULL, 0, NULL},
    {"fp16.loss_scale", KEY_FLAG, "loss-scale", 0, NULL},
    {"fp16.initial_scale_power", KEY_FLAG, "loss-scale-power", 0, NULL},
    {"fp16.loss_scale_window", KEY_FLAG, "loss-scale-window", 0, NULL},
    {"fp16.hysteresis", KEY_FLAG, "loss-scale-hysteresis", 0, NULL},
    {"fp16.consecutive_hysteresis", KEY_FALSE, NULL, 0, NULL},
    {"fp16.min_loss_scale", KEY_FLAG, "min-loss-scale", 0, NULL},
    {"fp16.fp16_master_weights_and_grads", KEY_FALSE, NULL, 0, NULL},
    {"amp", KEY_FALSE, NULL, 0, NULL},
    {"data_types", KEY_OBJECT, NULL, 0, NULL},
    {"data_types.grad_accum_dtype", KEY_WORD, "fp32", 0, NULL},
    {"optimizer", KEY_OBJECT, NULL, 0, NULL},
    {"optimizer.type", KEY_WORD, "--optimizer, as AdamW", 0,
     "with --compress OneBitAdam|OneBitLamb|ZeroOneAdam"},
    {"optimizer.legacy_fusion", KEY_PASSED, NULL, 0, NULL},
    {"optimizer.params", KEY_OBJECT, NULL, 0, NULL},
    {"optimizer.params.lr", KEY_FLAG, "lr", 0, NULL},
    {"optimizer.params.betas", KEY_BETAS, "--beta1 and --beta2", 0, NULL},
    {"optimizer.params.eps", KEY_FLAG, "eps", 0, NULL},
    {"optimizer.params.weight_decay", KEY_FLAG, "weight-decay", 0, NULL},
    {"optimizer.params.momentum", KEY_FLAG, "momentum", 0, NULL},
    {"optimizer.params.max_coeff", KEY_FLAG, "trust-max", 0, NULL},
    {"optimizer.params.min_coeff", KEY_FLAG, "trust-min", 0, NULL},
    {"optimizer.params.eps_inside_sqrt", KEY_FALSE, NULL, 0, NULL},
    {"optimizer.params.adam_w_mode", KEY_BOOL, "true; false if weight_decay is 0", 0, NULL},
    {"optimizer.params.bias_correction", KEY_TRUE, NULL, 0, NULL},
    {"optimizer.params.amsgrad", KEY_FALSE, NULL, 0, NULL},
    {"optimizer.params.dampening", KEY_NUMBER, NULL, 0, NULL},
    {"optimizer.params.nesterov", KEY_FALSE, NULL, 0, NULL},
    {"optimizer.params.max_grad_norm", KEY_LATER, "give gradient_clipping instead, as DeepSpeed asks", 0,
     NULL},
    {"optimizer.params.freeze_step", KEY_FLAG, "compress-warmup", 0, NULL},
    {"optimizer.params.var_freeze_step", KEY_FLAG, "compress-warmup", 0, NULL},
    {"optimizer.params.var_update_scaler", KEY_FLAG, "zerone-variance", 0, NULL},
    {"optimizer.params.local_step_scaler", KEY_FLAG, "zerone-local", 0, NULL},
    {"optimizer.params.local_step_clipper", KEY_FLAG, "zerone-interval", 0, NULL},
    {"optimizer.params.coeff_beta", KEY_FLAG, "trust-average", 0, NULL},
    {"optimizer.params.factor_max", KEY_NUMBER, NULL, 4, NULL},
    {"optimizer.params.factor_min", KEY_NUMBER, NULL, 0.5, NULL},
    {"optimizer.params.factor_threshold", KEY_NUMBER, NULL, 0.1, NULL},
    {"optimizer.params.cuda_aware", KEY_PASSED, NULL, 0, NULL},
    {"optimizer.params.comm_backend_name", KEY_PASSED, NULL, 0, NULL},
    {"optimizer.params.torch_adam", KEY_PASSED, NULL, 0, NULL},
    {"optimizer.params.fused", KEY_PASSED, NULL, 0, NULL},
    {"optimizer.params.set_grad_none", KEY_PASSED, NULL, 0, NULL},
    {"parameter_groups", KEY_LIST, "group", 0, NULL},
    {"frozen_parameters", KEY_LIST, "freeze", 0, NULL},
    {"lora", KEY_TEXT, "lora", 0, NULL},
    {"lora_alpha", KEY_FLAG, "lora-alpha", 0, NULL},
    {"scheduler", KEY_OBJECT, NULL, 0, NULL},
    {"scheduler.type", KEY_WORD, "WarmupLR|WarmupDecayLR|WarmupCosineLR|OneCycle", 0,
     "--schedule-lr constant|linear|cosine|linear"},
    {"scheduler.params", KEY_OBJECT, NULL, 0, NULL},
    {RATES "warmup_min_lr", KEY_HELD, "--warmup-lr; of WarmupDecayLR also --min-lr", 0, NULL},
    {RATES "warmup_max_lr", KEY_HELD, "--lr", 0, NULL},
    {RATES "warmup_num_steps", KEY_HELD, "--warmup", 0, NULL},
    {RATES "warmup_type", KEY_WORD, "log|linear", 0, "--warmup-type log|linear"},
    {RATES "warmup_min_ratio", KEY_HELD, "--warmup-lr over --lr", 0, NULL},
    {RATES "total_num_steps", KEY_HELD, "--steps", 0, NULL},
    {RATES "cos_min_ratio", KEY_HELD, "--min-lr over --lr", 0, NULL},
    {RATES "last_batch_iteration", KEY_NUMBER, NULL, -1, NULL},
    {RATES "cycle_min_lr", KEY_HELD, "--warmup-lr and --min-lr", 0, NULL},
    {RATES "cycle_max_lr", KEY_HELD, "--lr", 0, NULL},
    {RATES "cycle_first_step_size", KEY_HELD, "--warmup", 0, NULL},
    {RATES "cycle_second_step_size", KEY_HELD, "--steps without --warmup", 0, NULL},
    {RATES "cycle_first_stair_count", KEY_FALSE, NULL, 0, NULL},
    {RATES "cycle_second_stair_count", KEY_FALSE, NULL, 0, NULL},
    {RATES "decay_lr_rate", KEY_FALSE, NULL, 0, NULL},
    {RATES "decay_step_size", KEY_PASSED, NULL, 0, NULL},
    {RATES "cycle_momentum", KEY_FALSE, NULL, 0, NULL},
    {RATES "cycle_min_mom", KEY_PASSED, NULL, 0, NULL},
    {RATES "cycle_max_mom", KEY_PASSED, NULL, 0, NULL},
    {RATES "decay_mom_rate", KEY_PASSED, NULL, 0, NULL},
    {"activation_checkpointing", KEY_OBJECT, NULL, 0, NULL},
    {"activation_checkpointing.partition_activations", KEY_ON, "partition-activations", 0, NULL},
    {"activation_checkpointing.cpu_checkpointing", KEY_ON, "checkpoint-offload", 0, NULL},
    {"activation_checkpointing.contiguous_memory_optimization", KEY_OFF, "no-contiguous", 0, NULL},
    {"activation_checkpointing.synchronize_checkpoint_boundary", KEY_PASSED, NULL, 0, NULL},
    {"activation_checkpointing.profile", KEY_PASSED, NULL, 0, NULL},
    {"activation_checkpointing.number_checkpoints", KEY_PASSED, NULL, 0, NULL},
    {"prescale_gradients", KEY_FALSE, NULL, 0, NULL},
    {"gradient_predivide_factor", KEY_NUMBER, NULL, 1, NULL},
    {"communication_data_type", KEY_LATER, NULL, 0, NULL},
    {"sparse_attention", KEY_FALSE, NULL, 0, NULL},
    {"compression_training", KEY_FALSE, NULL, 0, NULL},
    {"quantize_training", KEY_FALSE, NULL, 0, NULL},
    {"curriculum_learning", KEY_FALSE, NULL, 0, NULL},
    {"data_efficiency", KEY_FALSE, NULL, 0, NULL},
    {"progressive_layer_drop", KEY_FALSE, NULL, 0, NULL},
    {"eigenvalue", KEY_FALSE, NULL, 0, NULL},
    {"elasticity", KEY_FALSE, NULL, 0, NULL},
    {"hybrid_engine", KEY_FALSE, NULL, 0, NULL},
    {"sparse_gradients", KEY_PASSED, NULL, 0, NULL},
    {"disable_allgather", KEY_PASSED, NULL, 0, NULL},
    {"zero_allow_untested_optimizer", KEY_PASSED, NULL, 0, NULL},
    {"zero_force_ds_cpu_optimizer", KEY_PASSED, NULL, 0, NULL},
    {"steps_per_print", KEY_PASSED, NULL, 0, NULL},
    {"wall_clock_breakdown", KEY_PASSED, NULL, 0, NULL},
    {"memory_breakdown", KEY_PASSED, NULL, 0, NULL},
    {"dump_state", KEY_PASSED, NULL, 0, NULL},
    {"dataloader_drop_last", KEY_PASSED, NULL, 0, NULL},
    {"checkpoint", KEY_PASSED, NULL, 0, NULL},
    {"aio", KEY_PASSED, NULL, 0, NULL},
    {"autotuning", KEY_PASSED, NULL, 0, NULL},
    {"flops_profiler", KEY_PASSED, NULL, 0, NULL},
    {"comms_logger", KEY_PASSED, NULL, 0, NULL},
    {"tensorboard", KEY_PASSED, NULL, 0, NULL},
    {"wandb", KEY_PASSED, NULL, 0, NULL},
    {"comet", KEY_PASSED, NULL, 0, NULL},
    {"csv_monitor", KEY_PASSED, NULL, 0, NULL},
    {"nebula", KEY_PASSED, NULL, 0, NULL},
};
enum { KEYS_COUNT = sizeof keys / sizeof *keys };

/* DeepSpeed's defaults of keys that a file omits, by zr-train's options. Those of schedules are in
 * read_scheduler(). */
static const struct {
    const char *option, *value;
    bool by_row; /* an optimizer that DeepSpeed lacks has the default of its row */
} defaults[] = {{"optimizer", "adamw", false},     {"lr", "0.001", true}, {"beta1", "0.9", true},
                {"beta2", "0.999", true},          {"eps", "1e-8", true}, {"momentum", "0", true},
                {"weight-decay", "0", false},      {"clip", "0", false},  {"warmup", "0", false},
                {"schedule-lr", "constant", false}};

struct reader {
    struct zr_json_file file;
    struct zr_train_config *config;
    struct zr_config_rest *rest;
    struct zr_text passed, reduced;
};
#define refuse(reader, ...) zr_json_file_refuse(&(reader)->file, __VA_ARGS__)

static json_t *get(const struct reader *reader, const char *path)
{
    return zr_json_file_get(&reader->file, path);
}

/* ---- Values -------------------------------------------------------------------------------------------- */

static bool is_auto(const json_t *value)
{
    const char *word = json_string_value(value);
    return word && strcmp(word, "auto") == 0;
}

static void pass_over(struct reader *reader, const char *path)
{
    char name[ZR_JSON_PATH_ROOM];
    snprintf(name, sizeof name, "%s", path);
    zr_make_plain(name);
    zr_text_print(&reader->passed, "%s %s", reader->passed.used_bytes ? "," : "", name);
}

static zr_result store(struct reader *reader, const char *path, const char *option, const char *value)
{
    if (zr_flag_store(option, reader->config, value) >= 0)
        return refuse(reader, path, "%s", zr_last_error());
    reader->config->filed[zr_flag_index(zr_flag_find(option))] = true;
    return ZR_OK;
}

/* Stores a value unless the file has one, or leaves it to the option. */
static void assume(struct reader *reader, const char *option, const char *value)
{
    size_t at = zr_flag_index(zr_flag_find(option));
    if (reader->config->filed[at] || reader->config->given[at] || reader->rest->automatic[at] ||
        zr_optimizer_ignores(reader->config, option))
        return;
    zr_flag_store(option, reader->config, value);
    reader->config->filed[at] = reader->rest->assumed[at] = true;
}

static zr_result store_real(struct reader *reader, const char *path, const char *option, double real)
{
    char number[64];
    if (real == floor(real) && fabs(real) < 9e15) /* 5e8 is a whole number too */
        snprintf(number, sizeof number, "%.0f", real);
    else
        snprintf(number, sizeof number, "%.9g", real);
    return store(reader, path, option, number);
}

/* Stores a number, or leaves it to the option. */
static zr_result store_number(struct reader *reader, const char *path, const char *option,
                              const json_t *value)
{
    double real;
    if (is_auto(value)) {
        reader->rest->automatic[zr_flag_index(zr_flag_find(option))] = true;
        return ZR_OK;
    }
    if (!zr_json_number(value, &real))
        return refuse(reader, path, "must be a number, as for --%s", option);
    return store_real(reader, path, option, real);
}

static zr_result read_betas(struct reader *reader, const char *path, const json_t *value)
{
    zr_result result;
    if (!is_auto(value) && json_array_size(value) != 2)
        return refuse(reader, path, "must be two numbers, such as [0.9, 0.95]");
    result = store_number(reader, path, "beta1", is_auto(value) ? value : json_array_get(value, 0));
    return result == ZR_OK
               ? store_number(reader, path, "beta2", is_auto(value) ? value : json_array_get(value, 1))
               : result;
}

static zr_result read_batch(struct reader *reader, const char *path, const json_t *value)
{
    double number;
    if (is_auto(value))
        return ZR_OK;
    if (!zr_json_number(value, &number) || !(number >= 1) || number > 1e12 || number != floor(number))
        return refuse(reader, path, "must be a whole number of sequences from 1 to 1e12");
    reader->rest->train_batch = (uint64_t)number;
    return ZR_OK;
}

static bool is_on(const struct reader *reader, const char *path)
{
    return json_is_true(get(reader, path));
}

static bool is_bf16(const struct reader *reader)
{
    return is_on(reader, "bf16.enabled") || is_on(reader, "bfloat16.enabled");
}

/* Stores a size in elements in an option that counts bytes; the option's limits are printed in elements. A
 * string is a size in bytes and needs a unit, which distinguishes it from elements. */
static zr_result read_elements(struct reader *reader, const struct config_key *key, const json_t *value)
{
    unsigned bytes = is_bf16(reader) || is_on(reader, "fp16.enabled") ? 2 : 4;
    const struct zr_flag *flag = zr_flag_find(key->equals);
    const char *size = json_string_value(value);
    double elements;
    if (is_auto(value))
        return ZR_OK;
    if (strcmp(key->path, ZERO "allgather_bucket_size") == 0 && get(reader, ZERO "reduce_bucket_size")) {
        pass_over(reader, key->path); /* one option has both */
        return ZR_OK;
    }
    if (!zr_json_number(value, &elements)) {
        if (size && size[0] && !strchr("0123456789", size[strlen(size) - 1]))
            return store(reader, key->path, key->equals, size);
        return refuse(
            reader, key->path,
            "must be a number of elements, or a string with a size in bytes and its unit, such as \"4MiB\"");
    }
    if (elements != floor(elements) || elements * bytes < flag->min)
        return refuse(reader, key->path,
                      "must be a whole number of elements of at least %.0f (%u bytes each)",
                      flag->min / bytes, bytes);
    if (elements * bytes > flag->max) {
        zr_text_print(&reader->reduced, "%s %s %.0f (here %.0f)", reader->reduced.used_bytes ? "," : "",
                      key->path, elements, flag->max / bytes);
        elements = flag->max / bytes;
    }
    return store_real(reader, key->path, key->equals, elements * bytes);
}

static zr_result read_list(struct reader *reader, const struct config_key *key, const json_t *value)
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

/* Whether a feature is turned off: false, 0, or an object that is not enabled. */
static bool is_off(const json_t *value)
{
    double number;
    const json_t *enabled = json_object_get(value, "enabled");
    return json_is_false(value) || (json_is_object(value) && (!enabled || json_is_false(enabled))) ||
           (json_is_number(value) && zr_json_number(value, &number) && number == 0);
}

static zr_result read_switch(struct reader *reader, const struct config_key *key, const json_t *value)
{
    bool on = json_is_true(value);
    if (is_auto(value))
        return ZR_OK;
    if (!json_is_boolean(value))
        return refuse(reader, key->path, "must be true or false");
    if (key->kind == KEY_CPU)
        return store(reader, key->path, key->equals, on ? "cpu" : "none");
    if (key->kind == KEY_SETS)
        return on ? store(reader, key->path, key->equals, key->options) : ZR_OK;
    return key->kind != KEY_BOOL && on == (key->kind == KEY_ON) ? store(reader, key->path, key->equals, "")
                                                                : ZR_OK;
}

static zr_result read_value(struct reader *reader, const struct config_key *key, const json_t *value)
{
    const char *path = key->path;
    const char *word = json_string_value(value);
    double number;

    switch (key->kind) {
    case KEY_FLAG:
        return store_number(reader, path, key->equals, value);
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
    case KEY_WORD:
        return word ? ZR_OK
                    : refuse(reader, path, "must be a string%s%s", key->equals ? ": " : "",
                             key->equals ? key->equals : "");
    case KEY_HELD:
        return is_auto(value) || zr_json_number(value, &number) ? ZR_OK
                                                                : refuse(reader, path, "must be a number");
    case KEY_BOOL:
    case KEY_ON:
    case KEY_OFF:
    case KEY_SETS:
    case KEY_CPU:
        return read_switch(reader, key, value);
    case KEY_FALSE:
        return is_off(value)
                   ? ZR_OK
                   : refuse(reader, path, "is not supported by zr-train; give false, or leave the key out");
    case KEY_TRUE:
        return json_is_true(value)
                   ? ZR_OK
                   : refuse(reader, path, "cannot be turned off; give true, or leave the key out");
    case KEY_NUMBER:
        return is_auto(value) || (zr_json_number(value, &number) && number == key->number)
                   ? ZR_OK
                   : refuse(reader, path, "must be %g: other values are not supported", key->number);
    case KEY_PASSED:
        pass_over(reader, path);
        return ZR_OK;
    case KEY_FOLDER:
        return word ? ZR_OK : refuse(reader, path, "must be a string: a folder");
    default:
        return refuse(reader, path, "is not supported by zr-train; %s",
                      key->equals ? key->equals : "leave the key out");
    }
}

/* Whether a key is a comment, as "_comment" or "//". */
static bool is_comment(const char *key)
{
    return strchr("_/#", key[0]) || strncmp(key, "comment", 7) == 0;
}

/* Reads all keys of an object, also after a problem. */
static void walk(struct reader *reader, const char *above, json_t *object)
{
    for (void *at = json_object_iter(object); at; at = json_object_iter_next(object, at)) {
        const struct config_key *key = NULL;
        json_t *value = json_object_iter_value(at);
        const char *name = json_object_iter_key(at);
        char path[ZR_JSON_PATH_ROOM];
        snprintf(path, sizeof path, "%s%s%s", above, above[0] ? "." : "", name);
        for (size_t i = 0; i < KEYS_COUNT; i++)
            if (strcmp(keys[i].path, path) == 0 && !strchr(name, '.'))
                key = &keys[i];
        if (!key && is_comment(name))
            pass_over(reader, path);
        else if (!key)
            refuse(reader, path, "is not a known key (zr-train --help lists the keys)");
        else if (json_is_null(value))
            continue;
        else if (key->kind != KEY_OBJECT)
            read_value(reader, key, value);
        else if (json_is_object(value))
            walk(reader, path, value);
        else
            refuse(reader, path, "must be an object: {...}");
    }
}

/* ---- Keys that depend on each other -------------------------------------------------------------------- */

/* Index of a string among the choices of its key; 0 if the file does not have the key. */
static zr_result read_word(struct reader *reader, const char *path, size_t *out)
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

/* Refuses keys that do not apply to the chosen type; `paths` ends with NULL. */
static void check_absent(struct reader *reader, const char *type, const char *const *paths)
{
    for (; *paths; paths++)
        if (get(reader, *paths))
            refuse(reader, *paths, "does not apply to %s; leave it out", type);
}

static void read_precision(struct reader *reader)
{
    bool bf16 = is_bf16(reader), fp16 = is_on(reader, "fp16.enabled");
    if (bf16 && fp16)
        refuse(reader, "fp16.enabled", "and bf16.enabled are both true; enable one");
    else if (bf16 || fp16)
        store(reader, bf16 ? "bf16.enabled" : "fp16.enabled", "precision", bf16 ? "bf16" : "fp16");
}

static bool is_optimizer(const char *name)
{
    for (unsigned kind = 0; kind < ZR_OPTIMIZERS_COUNT; kind++)
        if (strcmp(zr_optimizer_of(kind)->name, name) == 0)
            return true;
    return false;
}

static void read_optimizer(struct reader *reader)
{
    static const struct {
        const char *key;
        enum zr_number_kind number;
    } numbers[] = {{"optimizer.params.betas", ZR_NUMBER_BETA1},
                   {"optimizer.params.eps", ZR_NUMBER_EPSILON},
                   {"optimizer.params.momentum", ZR_NUMBER_MOMENTUM},
                   {"optimizer.params.max_coeff", ZR_NUMBER_TRUST_MAX},
                   {"optimizer.params.min_coeff", ZR_NUMBER_TRUST_MIN}};
    static const char *const of_adam[] = {"optimizer.params.adam_w_mode", NULL};
    static const char *const of_signs[] = {"optimizer.params.cuda_aware",
                                           "optimizer.params.comm_backend_name", NULL};
    /* Optimizers that send signs: their keys, the options, and DeepSpeed's defaults. */
    static const struct {
        const char *name, *compress, *keys[5], *options[4], *fallbacks[4];
    } signs[] = {
        {"onebitadam", "gradients:onebit", {"optimizer.params.freeze_step"}, {"compress-warmup"}, {"100000"}},
        {"onebitlamb", "gradients:onebit", {"optimizer.params.freeze_step"}, {"compress-warmup"}, {"100000"}},
        {"zerooneadam",
         "gradients:zerone",
         {"optimizer.params.var_freeze_step", "optimizer.params.var_update_scaler",
          "optimizer.params.local_step_scaler", "optimizer.params.local_step_clipper"},
         {"compress-warmup", "zerone-variance", "zerone-local", "zerone-interval"},
         {"100000", "16", "32678", "16"}}};
    static const char *const of_onebit_lamb[] = {"optimizer.params.coeff_beta", "optimizer.params.factor_max",
                                                 "optimizer.params.factor_min",
                                                 "optimizer.params.factor_threshold", NULL};
    static const char *const of_sgd[] = {"optimizer.params.dampening", "optimizer.params.nesterov", NULL};
    const char *type = json_string_value(get(reader, "optimizer.type"));
    char name[32] = "";
    double decay = 0;
    if (!json_is_object(get(reader, "optimizer")))
        return;
    if (!type) {
        if (!get(reader, "optimizer.type"))
            refuse(reader, "optimizer", "has no type; give Adam or one of " ZR_OPTIMIZER_NAMES);
        return;
    }
    for (size_t i = 0; type[i] && i + 1 < sizeof name; i++)
        name[i] = (char)(type[i] >= 'A' && type[i] <= 'Z' ? type[i] - 'A' + 'a' : type[i]);
    bool by_signs = false, adam = strcmp(name, "adam") == 0, lamb = strcmp(name, "onebitlamb") == 0;
    const char *compress = "";
    for (unsigned i = 0; i < sizeof signs / sizeof *signs; i++)
        if (strcmp(name, signs[i].name) == 0)
            compress = signs[i].compress;
    by_signs = compress[0];
    adam |= by_signs && !lamb;
    if (!adam && !lamb && !is_optimizer(name)) {
        refuse(reader, "optimizer.type", "'%.60s' is not supported; give Adam or one of " ZR_OPTIMIZER_NAMES,
               type);
        return;
    }
    store(reader, "optimizer.type", "optimizer", adam ? "adamw" : lamb ? "lamb" : name);
    if (!lamb)
        check_absent(reader, type, of_onebit_lamb);
    if (!by_signs)
        check_absent(reader, type, of_signs);
    for (unsigned i = 0; i < sizeof signs / sizeof *signs; i++) {
        bool repeated = i > 0 && strcmp(signs[i].compress, signs[i - 1].compress) == 0;
        bool given = strcmp(name, signs[i].name) == 0 &&
                     store(reader, "optimizer.type", "compress", signs[i].compress) == ZR_OK;
        if (strcmp(compress, signs[i].compress) != 0 && !repeated)
            check_absent(reader, type, signs[i].keys);
        for (unsigned k = 0; given && signs[i].keys[k]; k++)
            if (!get(reader, signs[i].keys[k]))
                assume(reader, signs[i].options[k], signs[i].fallbacks[k]);
    }
    const struct zr_optimizer *optimizer = zr_optimizer_of(reader->config->optimizer.kind);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!optimizer->numbers[numbers[i].number].taken)
            check_absent(reader, type, (const char *const[]){numbers[i].key, NULL});
    if (reader->config->optimizer.kind != ZR_OPTIMIZER_SGD)
        check_absent(reader, type, of_sgd);
    if (reader->config->optimizer.kind != ZR_OPTIMIZER_ADAMW)
        check_absent(reader, type, of_adam);
    /* DeepSpeed's Adam decays as AdamW unless adam_w_mode is false; AdamW ignores the key. */
    json_t *adamw = get(reader, "optimizer.params.adam_w_mode"),
           *weight_decay = get(reader, "optimizer.params.weight_decay");
    if (json_is_false(adamw) && adam && weight_decay && (!zr_json_number(weight_decay, &decay) || decay != 0))
        refuse(
            reader, "optimizer.params.adam_w_mode",
            "adds the decay to the gradient if false, which is not supported; give true, or weight_decay 0");
}

/* Stores a number of the schedule in an option. `fallback`: DeepSpeed's default; NULL: none. */
static void read_rate(struct reader *reader, const char *name, const char *option, const char *fallback)
{
    char path[ZR_JSON_PATH_ROOM];
    size_t at = zr_flag_index(zr_flag_find(option));
    snprintf(path, sizeof path, RATES "%s", name);
    if (get(reader, path)) {
        store_number(reader, path, option, get(reader, path));
    } else if (fallback) {
        reader->config->filed[at] = false; /* also in place of optimizer.params.lr */
        assume(reader, option, fallback);
    }
}

/* A ratio of learning rates; the default if the file omits it. */
static double ratio_of(struct reader *reader, const char *path, double fallback)
{
    json_t *value = get(reader, path);
    double ratio = fallback;
    if (!value || is_auto(value) || !zr_json_number(value, &ratio))
        return fallback;
    if (ratio >= 0 && ratio <= 1)
        return ratio;
    refuse(reader, path, "must be a number from 0 to 1");
    return fallback;
}

/* OneCycle: up in the first steps, down in the second ones, at whose end the run ends. */
static void read_cycle(struct reader *reader)
{
    double first = 2000, second;
    json_t *value = get(reader, RATES "cycle_second_step_size");
    zr_json_number(get(reader, RATES "cycle_first_step_size"), &first);
    if (!value || !zr_json_number(value, &second))
        second = first;
    if (!get(reader, RATES "cycle_momentum"))
        refuse(reader, "scheduler.type", "changes betas too unless \"cycle_momentum\" is false; give that");
    if (!get(reader, RATES "cycle_min_lr") || !get(reader, RATES "cycle_max_lr"))
        refuse(reader, "scheduler.type", "requires \"cycle_min_lr\" and \"cycle_max_lr\" in its params");
    read_rate(reader, "cycle_min_lr", "warmup-lr", NULL);
    read_rate(reader, "cycle_min_lr", "min-lr", NULL);
    read_rate(reader, "cycle_max_lr", "lr", NULL);
    read_rate(reader, "cycle_first_step_size", "warmup", "2000");
    store_real(reader, RATES "cycle_second_step_size", "steps", first + second);
    store(reader, "scheduler.type", "warmup-type", "linear");
}

enum schedule { SCHEDULE_WARMUP, SCHEDULE_DECAY, SCHEDULE_COSINE, SCHEDULE_CYCLE };

/* Keys that only some schedules take. */
static const struct {
    const char *path;
    unsigned schedules; /* bits of enum schedule */
} schedule_keys[] = {
    {RATES "warmup_min_lr", 1 << SCHEDULE_WARMUP | 1 << SCHEDULE_DECAY},
    {RATES "warmup_max_lr", 1 << SCHEDULE_WARMUP | 1 << SCHEDULE_DECAY},
    {RATES "warmup_num_steps", 7},
    {RATES "warmup_type", 7},
    {RATES "total_num_steps", 1 << SCHEDULE_DECAY | 1 << SCHEDULE_COSINE},
    {RATES "warmup_min_ratio", 1 << SCHEDULE_COSINE},
    {RATES "cos_min_ratio", 1 << SCHEDULE_COSINE},
    {RATES "cycle_min_lr", 1 << SCHEDULE_CYCLE},
    {RATES "cycle_max_lr", 1 << SCHEDULE_CYCLE},
    {RATES "cycle_first_step_size", 1 << SCHEDULE_CYCLE},
    {RATES "cycle_second_step_size", 1 << SCHEDULE_CYCLE},
};

static void read_scheduler(struct reader *reader)
{
    static const char *const names[] = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle"};
    static const char *const kinds[] = {"constant", "linear", "cosine", "linear"};
    size_t type, warmup_type;
    if (!json_is_object(get(reader, "scheduler")))
        return;
    if (!get(reader, "scheduler.type")) {
        refuse(reader, "scheduler", "has no type; give %s, %s, %s or %s", names[0], names[1], names[2],
               names[3]);
        return;
    }
    if (read_word(reader, "scheduler.type", &type) != ZR_OK ||
        read_word(reader, RATES "warmup_type", &warmup_type) != ZR_OK)
        return;
    for (size_t i = 0; i < sizeof schedule_keys / sizeof *schedule_keys; i++)
        if (!(schedule_keys[i].schedules & 1U << type) && get(reader, schedule_keys[i].path))
            refuse(reader, schedule_keys[i].path, "does not apply to %s; leave it out", names[type]);
    store(reader, "scheduler.type", "schedule-lr", kinds[type]);
    if (type == SCHEDULE_CYCLE) {
        read_cycle(reader);
        return;
    }
    if (type != SCHEDULE_WARMUP && !get(reader, RATES "total_num_steps"))
        refuse(reader, "scheduler.type", "requires \"total_num_steps\" in its params");
    read_rate(reader, "warmup_num_steps", "warmup", "1000");
    read_rate(reader, "total_num_steps", "steps", NULL);
    if (!is_auto(get(reader, RATES "warmup_type")))
        store(reader, "scheduler.type", "warmup-type", warmup_type == 0 ? "log" : "linear");
    if (type == SCHEDULE_COSINE) {
        reader->rest->start_ratio = ratio_of(reader, RATES "warmup_min_ratio", 0);
        reader->rest->least_ratio = ratio_of(reader, RATES "cos_min_ratio", 0.0001);
        return;
    }
    read_rate(reader, "warmup_max_lr", "lr", "0.001");
    read_rate(reader, "warmup_min_lr", "warmup-lr", "0");
    if (type == SCHEDULE_DECAY && is_auto(get(reader, RATES "warmup_min_lr")))
        assume(reader, "min-lr", "0"); /* as transformers resolves "auto" */
    else if (type == SCHEDULE_DECAY)
        read_rate(reader, "warmup_min_lr", "min-lr", "0");
}

/* Reads the tier of an object. `above`: the object with the device and nvme_path. */
static void read_tier(struct reader *reader, const char *above, const char *option)
{
    static const char *const tiers[] = {"none", "cpu"};
    char nvme[ZR_TRAIN_PATH_ROOM + 8], path[ZR_JSON_PATH_ROOM];
    size_t tier;
    snprintf(path, sizeof path, "%s.nvme_path", above);
    const char *folder = json_string_value(get(reader, path));
    snprintf(path, sizeof path, "%s.device", above);
    if (read_word(reader, path, &tier) != ZR_OK || !json_is_string(get(reader, path)))
        return;
    if (tier < sizeof tiers / sizeof *tiers) {
        store(reader, path, option, tiers[tier]);
    } else if (!folder || strlen(folder) >= ZR_TRAIN_PATH_ROOM) {
        refuse(reader, path, "nvme requires nvme_path, a folder on the disk");
    } else {
        snprintf(nvme, sizeof nvme, "nvme:%s", folder);
        store(reader, path, option, nvme);
    }
}

static bool is_given(const struct reader *reader, const char *path)
{
    return get(reader, path) && !is_auto(get(reader, path));
}

zr_result zr_config_read(const char *path, struct zr_train_config *config, struct zr_config_rest *rest)
{
    struct reader reader = {.config = config, .rest = rest};
    size_t unused;
    *rest = (struct zr_config_rest){.least_ratio = -1, .start_ratio = -1};
    zr_text_start(&reader.passed, NULL, rest->passed, sizeof rest->passed);
    zr_text_start(&reader.reduced, NULL, rest->reduced, sizeof rest->reduced);
    zr_result result = zr_json_file_open(&reader.file, "--config", path);
    if (result == ZR_OK) {
        walk(&reader, "", reader.file.root);
        read_tier(&reader, ZERO "offload_optimizer", "offload-optimizer");
        read_tier(&reader, ZERO "offload_param", "offload-param");
        read_word(&reader, "data_types.grad_accum_dtype", &unused);
        read_precision(&reader);
        read_optimizer(&reader);
        read_scheduler(&reader);
        rest->has_batch = is_given(&reader, "train_micro_batch_size_per_gpu");
        rest->has_accumulate = is_given(&reader, "gradient_accumulation_steps");
        rest->problems_count = reader.file.problems_count;
        snprintf(rest->problems, sizeof rest->problems, "%s", reader.file.problems.buffer);
        result = zr_json_file_result(&reader.file);
    }
    zr_json_file_close(&reader.file);
    return result;
}

/* ---- After the command line ---------------------------------------------------------------------------- */

static zr_result resolve_batch(const struct zr_config_rest *rest, struct zr_train_config *config)
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

void zr_config_assume(struct zr_config_rest *rest, struct zr_train_config *config)
{
    struct reader reader = {.config = config, .rest = rest};
    enum zr_optimizer_kind kind = config->optimizer.kind;
    bool own = kind != ZR_OPTIMIZER_ADAMW && kind != ZR_OPTIMIZER_SGD && kind != ZR_OPTIMIZER_LAMB;
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
        if (!own || !defaults[i].by_row)
            assume(&reader, defaults[i].option, defaults[i].value);
}

zr_result zr_config_resolve(struct zr_config_rest *rest, struct zr_train_config *config)
{
    size_t used = strlen(rest->passed);
    if (rest->least_ratio >= 0 && !zr_flag_given(config, "min-lr"))
        config->min_rate = (float)(rest->least_ratio * (double)config->rate);
    if (rest->start_ratio >= 0 && !zr_flag_given(config, "warmup-lr"))
        config->start_rate = (float)(rest->start_ratio * (double)config->rate);
    if (config->config_file[0] && config->checkpoints.partition && config->shape.tensor < 2 &&
        !zr_flag_given(config, "partition-activations")) {
        config->checkpoints.partition = false; /* one rank has each checkpoint already */
        snprintf(rest->passed + used, sizeof rest->passed - used,
                 "%s activation_checkpointing.partition_activations", used ? "," : "");
    }
    zr_compress_read_file(config);
    return resolve_batch(rest, config);
}

/* Prints the values of options that the command line does not give. */
static void say_options(const struct zr_train_config *config, const bool *which, const char *what)
{
    char message[1024];
    struct zr_text text;
    zr_text_start(&text, NULL, message, sizeof message);
    for (size_t i = 0; i < zr_flags_count; i++)
        if (which[i] && !config->given[i]) {
            zr_text_print(&text, " --%s", zr_flags[i].name);
            zr_flag_print(&text, &zr_flags[i], config);
        }
    if (text.used_bytes)
        zr_say("--config: %s:%s", what, message);
}

void zr_config_say(const struct zr_config_rest *rest, const struct zr_train_config *config)
{
    if (rest->passed[0])
        zr_say("--config: passed over, since they change no result:%s", rest->passed);
    if (rest->reduced[0])
        zr_say("--config: reduced to zr-train's largest size:%s", rest->reduced);
    say_options(config, rest->automatic, "\"auto\" is here");
    say_options(config, rest->assumed, "what the file omits has DeepSpeed's default");
}

/* ---- Help ---------------------------------------------------------------------------------------------- */

void zr_config_help(struct zr_text *text)
{
    zr_text_print(
        text, "\nKeys of --config FILE, as in DeepSpeed; options take precedence; -: no result changes\n");
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
        else if (key->kind == KEY_SETS)
            zr_text_print(text, "true is --%s %s", key->equals, key->options);
        else if (key->kind == KEY_CPU)
            zr_text_print(text, "true is --%s cpu", key->equals);
        else if (key->kind == KEY_FALSE || key->kind == KEY_TRUE)
            zr_text_print(text, "%s", key->kind == KEY_TRUE ? "true only" : "false, 0 or not enabled only");
        else if (key->kind == KEY_NUMBER)
            zr_text_print(text, "%g only", key->number);
        else if (key->kind == KEY_PASSED)
            zr_text_print(text, "-");
        else
            zr_text_print(text, "%s", key->equals);
        zr_text_print(text, "\n");
        if (key->options && key->kind != KEY_SETS)
            zr_text_print(text, "  %-56s  %s\n", "", key->options);
    }
}
