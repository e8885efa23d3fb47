/* model_config.c: see model_file.h. Two lists hold all keys: rules[] has the keys that are checked,
 * unused[] the keys without effect on training. Keys that an option of zr-train can correct are compared
 * last, so that a model that cannot be trained is refused for that reason. */
#include "zero/checkpoint/model_file.h"

#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"

enum { GPT2 = 1 << ZR_ARCH_GPT2, LLAMA = 1 << ZR_ARCH_LLAMA, BOTH = GPT2 | LLAMA };

enum meaning {
    VALUES,   /* one of `values`, or refused for `reason` */
    DROPOUT,  /* a rate; zr has no dropout */
    SIZE,     /* a whole number that must equal the value of `option` */
    REAL,     /* a number that must equal the value of `option` */
    KV_HEADS, /* SIZE; null and missing: as many as heads */
    FFN,      /* four times hidden, or null */
    HEAD_DIM, /* hidden / heads, or null */
    TIED,     /* whether the head is the embedding */
    ANGLES,   /* an object of rope_rules[], or null */
    CHECKED,  /* checked elsewhere */
};

struct rule {
    const char *key;
    unsigned of; /* architectures */
    enum meaning meaning;
    const char *values; /* VALUES: accepted values, each between two spaces, strings in single quotes; the key
                           may be missing */
    const char *reason; /* VALUES: the feature that zr lacks, and a fix */
    const char *option; /* SIZE, REAL: option of zr-train */
    size_t at;          /* SIZE, REAL: offset of the field of struct zr_shape */
    double absent;      /* SIZE, REAL: value of a missing key; 0: the tensors determine it */
};

#define FIXED(key, of, values, reason)                                                                       \
    {                                                                                                        \
        key, of, VALUES, values, reason, NULL, 0, 0                                                          \
    }
#define OPTION(key, of, meaning, option, field, absent)                                                      \
    {                                                                                                        \
        key, of, meaning, NULL, NULL, option, offsetof(struct zr_shape, field), absent                       \
    }
#define KNOWN(key, of, meaning)                                                                              \
    {                                                                                                        \
        key, of, meaning, NULL, NULL, NULL, 0, 0                                                             \
    }

static const struct rule rules[] = {
    KNOWN("model_type", BOTH, CHECKED),

    /* GPT-2, which also accepts LLaMA's names of sizes */
    OPTION("n_head", GPT2, SIZE, "--heads", heads, 12),
    OPTION("n_embd", GPT2, SIZE, "--hidden", hidden, 0),
    OPTION("n_layer", GPT2, SIZE, "--layers", layers, 0),
    OPTION("n_positions", GPT2, SIZE, "--seq", sequence, 0),
    OPTION("max_position_embeddings", GPT2, SIZE, "--seq", sequence, 0),
    KNOWN("n_inner", GPT2, FFN),
    FIXED("layer_norm_epsilon", GPT2, " 1e-05 ",
          "zr-train's GPT-2 has 1e-05 in its norms; give a model with that"),
    FIXED("activation_function", GPT2, " 'gelu_new' 'gelu_pytorch_tanh' 'gelu_fast' ",
          "zr-train's GPT-2 computes gelu_new, the tanh form; give a model with that"),
    FIXED("scale_attn_weights", GPT2, " true ",
          "zr-train divides scores by the root of a head's width; give a model that does"),
    FIXED("scale_attn_by_inverse_layer_idx", GPT2, " false null ",
          "zr-train scales every layer alike; give a model that does"),
    FIXED("add_cross_attention", GPT2, " false null ",
          "zr-train has no cross-attention; give a model without"),
    FIXED("tie_word_embeddings", GPT2, " true ",
          "the head of zr-train's GPT-2 is its embedding; give a model whose head is"),
    KNOWN("attn_pdrop", GPT2, DROPOUT),
    KNOWN("embd_pdrop", GPT2, DROPOUT),
    KNOWN("resid_pdrop", GPT2, DROPOUT),

    /* LLaMA */
    FIXED("hidden_act", LLAMA, " 'silu' 'swish' ", "zr-train's LLaMA computes silu; give a model with that"),
    FIXED("attention_bias", LLAMA, " false null ",
          "zr-train's LLaMA has no biases; give a model without them"),
    FIXED("mlp_bias", LLAMA, " false null ", "zr-train's LLaMA has no biases; give a model without them"),
    FIXED("partial_rotary_factor", LLAMA, " 1 null ", "zr-train turns all of a head; give a model that does"),
    KNOWN("rope_scaling", LLAMA, ANGLES),
    KNOWN("rope_parameters", LLAMA, ANGLES),
    KNOWN("head_dim", LLAMA, HEAD_DIM),
    KNOWN("attention_dropout", LLAMA, DROPOUT),
    OPTION("num_key_value_heads", LLAMA, KV_HEADS, "--kv-heads", kv_heads, 0),
    OPTION("intermediate_size", LLAMA, SIZE, "--ffn", ffn, 0),
    OPTION("rope_theta", LLAMA, REAL, "--rope-theta", rope_theta, 10000),
    OPTION("rms_norm_eps", LLAMA, REAL, "--norm-epsilon", norm_epsilon, 1e-6),
    KNOWN("tie_word_embeddings", LLAMA, TIED),

    OPTION("num_attention_heads", GPT2, SIZE, "--heads", heads, 0),
    OPTION("num_attention_heads", LLAMA, SIZE, "--heads", heads, 32),
    OPTION("hidden_size", BOTH, SIZE, "--hidden", hidden, 0),
    OPTION("num_hidden_layers", BOTH, SIZE, "--layers", layers, 0),
    OPTION("vocab_size", BOTH, SIZE, "--vocab", vocabulary, 0),

    /* Keys of other models, and keys of both models for unsupported changes */
    FIXED("quantization_config", BOTH, " null ",
          "its weights are quantized; give the model that they were made from"),
    FIXED("auto_map", BOTH, " null {} ", "the model is code of its own; give one of transformers' own code"),
    FIXED("pruned_heads", BOTH, " {} null ", "zr-train has the same heads in every layer; give such a model"),
    FIXED("is_encoder_decoder", BOTH, " false null ", "zr-train has decoders alone; give one"),
    FIXED("cross_attention_hidden_size", BOTH, " null ",
          "zr-train has no cross-attention; give a model without"),
    FIXED("sliding_window", BOTH, " null ",
          "zr-train attends to all tokens before; give a model without a window"),
    FIXED("use_sliding_window", BOTH, " false null ",
          "zr-train attends to all tokens before; give a model without a window"),
};

/* Keys of rope_parameters (transformers 5) and rope_scaling (4). */
#define DEFAULT_ANGLES " 'default' null "
static const char scaled_angles[] =
    "zr-train does not scale rotary angles; give a model whose rope_type is default";
static const struct rule rope_rules[] = {
    FIXED("rope_type", LLAMA, DEFAULT_ANGLES, scaled_angles),
    FIXED("type", LLAMA, DEFAULT_ANGLES, scaled_angles),
    FIXED("partial_rotary_factor", LLAMA, " 1 null ", "zr-train turns all of a head; give a model that does"),
    OPTION("rope_theta", LLAMA, REAL, "--rope-theta", rope_theta, 0),
};

/* Keys without effect on the loss and its gradients: how transformers finds, stores, runs and decodes the
 * model, heads other than the one that predicts tokens, and initial values. */
static const char *const unused[] = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_flash_attn_2_enabled",
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "chunk_size_feed_forward",
    "dtype",
    "gradient_checkpointing",
    "initializer_range",
    "is_decoder",
    "max_position_embeddings", /* in LLaMA a limit for users of the model */
    "max_sequence_length",
    "n_ctx",
    "name_or_path",
    "output_attentions",
    "output_hidden_states",
    "pretraining_tp", /* number of parts in which products are computed */
    "reorder_and_upcast_attn",
    "return_dict",
    "tf_legacy_loss",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",

    /* tokens */
    "bos_token_id",
    "decoder_start_token_id",
    "eos_token_id",
    "pad_token_id",
    "prefix",
    "sep_token_id",
    "tokenizer_class",

    /* other heads */
    "classifier_dropout",
    "finetuning_task",
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "tie_encoder_decoder",

    /* text generation */
    "bad_words_ids",
    "begin_suppress_tokens",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "length_penalty",
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_scores",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict_in_generate",
    "suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
};

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* ---- Messages ------------------------------------------------------------------------------------------ */

/* Prints a value in the form of messages and rule.values; "..." replaces long values. */
static void print_value(const json_t *value, char out[64])
{
    if (json_is_string(value))
        snprintf(out, 64, "'%.40s'", json_string_value(value));
    else if (json_is_number(value))
        snprintf(out, 64, "%.15g", json_number_value(value));
    else if (json_is_object(value))
        snprintf(out, 64, json_object_size(value) ? "{...}" : "{}");
    else if (json_is_array(value))
        snprintf(out, 64, json_array_size(value) ? "[...]" : "[]");
    else
        snprintf(out, 64, "%s", json_is_true(value) ? "true" : json_is_false(value) ? "false" : "null");
}

/* A key's place in the file: for a key inside rope_parameters, the name of that object and the key. */
struct key {
    const char *inside, *name; /* inside: "" or the object's key */
};

static zr_result refuse(const struct zr_model_config *config, struct key key, const json_t *value,
                        const char *reason)
{
    char text[64];
    print_value(value, text);
    return zr_fail(ZR_ERR_FORMAT, "'%s': its config.json has %s%s%.64s %s; %s", config->path, key.inside,
                   key.inside[0] ? "." : "", key.name, text, reason);
}

static const struct rule *find_rule(const struct rule *list, size_t count, const char *key, unsigned of)
{
    for (size_t i = 0; i < count; i++)
        if (list[i].of & of && strcmp(list[i].key, key) == 0)
            return &list[i];
    return NULL;
}

static bool is_unused(const char *key)
{
    for (size_t i = 0; i < COUNT_OF(unused); i++)
        if (strcmp(unused[i], key) == 0)
            return true;
    return false;
}

/* ---- Keys without an option ---------------------------------------------------------------------------- */

/* A size in the file; if the file has none, the run's size. */
static double size_of(const struct zr_model_config *config, const char *key, const char *other, size_t ours)
{
    const json_t *value = json_object_get(config->root, key);
    if (!value && other)
        value = json_object_get(config->root, other);
    return json_is_integer(value) ? json_number_value(value) : (double)ours;
}

static zr_result check_value(const struct zr_model_config *config, const struct rule *rule, struct key key,
                             const json_t *value)
{
    char text[64], word[72];
    print_value(value, text);
    snprintf(word, sizeof word, " %s ", text);
    bool fits = !strchr(text, ' ') && strstr(rule->values, word);
    return fits ? ZR_OK : refuse(config, key, value, rule->reason);
}

static zr_result check_width(const struct zr_model_config *config, enum meaning meaning, struct key key,
                             const json_t *value)
{
    bool head = meaning == HEAD_DIM;
    const struct zr_shape *shape = config->shape;
    double hidden = head ? size_of(config, "hidden_size", NULL, shape->hidden)
                         : size_of(config, "n_embd", "hidden_size", shape->hidden),
           heads = size_of(config, "num_attention_heads", NULL, shape->heads);
    char reason[200];

    if (json_is_null(value) ||
        (json_is_integer(value) && json_number_value(value) == (head ? hidden / heads : 4 * hidden)))
        return ZR_OK;
    if (head)
        snprintf(
            reason, sizeof reason,
            "zr-train's heads share the channels, %.15g / %.15g for each; no option changes that: give a "
            "model whose head_dim is hidden_size / num_attention_heads",
            hidden, heads);
    else
        snprintf(reason, sizeof reason,
                 "zr-train's GPT-2 has a feed-forward layer of 4 x %.15g; give a model with that", hidden);
    return refuse(config, key, value, reason);
}

/* Checks whether the head is tied. transformers 4 and 5 read a head from the files only if it is not tied. */
static zr_result check_tied(const struct zr_model_config *config)
{
    const json_t *value = json_object_get(config->root, "tie_word_embeddings");
    bool tied = json_is_true(value);
    if (value && !json_is_boolean(value))
        return refuse(config, (struct key){"", "tie_word_embeddings"}, value,
                      "it is true or false; correct config.json");
    if (!tied && !config->has_head)
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' is not whole: tie_word_embeddings is %s its config.json, and there is no lm_head.weight; "
            "fetch it again, or, if its head is the embedding, make tie_word_embeddings true",
            config->path, value ? "false in" : "missing in");
    if (tied == config->shape->tied)
        return ZR_OK;
    return zr_fail(ZR_ERR_FORMAT,
                   "'%s': its config.json has tie_word_embeddings %s, and this run has %s; resume %s "
                   "--tie-embeddings",
                   config->path,
                   tied    ? "true"
                   : value ? "false"
                           : "false (it is missing)",
                   tied ? "a head of its own" : "--tie-embeddings", tied ? "with" : "without");
}

static zr_result check_angles(const struct zr_model_config *config, const char *inside, json_t *object)
{
    zr_result result = ZR_OK;
    if (json_is_null(object))
        return ZR_OK;
    if (!json_is_object(object))
        return refuse(config, (struct key){"", inside}, object,
                      "it is an object or null; correct config.json");
    /* Check values first: a wrong rope_type explains more than an unknown key. */
    for (size_t i = 0; i < COUNT_OF(rope_rules) && !result; i++) {
        json_t *value = json_object_get(object, rope_rules[i].key);
        if (value && rope_rules[i].meaning == VALUES)
            result = check_value(config, &rope_rules[i], (struct key){inside, rope_rules[i].key}, value);
    }
    for (void *at = json_object_iter(object); at && !result; at = json_object_iter_next(object, at)) {
        const char *name = json_object_iter_key(at);
        if (!find_rule(rope_rules, COUNT_OF(rope_rules), name, LLAMA))
            result = refuse(config, (struct key){inside, name}, json_object_iter_value(at), scaled_angles);
    }
    return result;
}

static zr_result take_dropout(const struct zr_model_config *config, struct key key, const json_t *value,
                              double *dropout)
{
    double rate = json_number_value(value);
    if (!json_is_number(value) && !json_is_null(value))
        return refuse(config, key, value, "it is a rate; correct config.json");
    *dropout = rate > *dropout ? rate : *dropout;
    return ZR_OK;
}

static zr_result check_key(const struct zr_model_config *config, const char *name, json_t *value,
                           double *dropout)
{
    const struct rule *rule = find_rule(rules, COUNT_OF(rules), name, 1u << config->shape->architecture);
    struct key key = {"", name};
    if (!rule)
        return is_unused(name)
                   ? ZR_OK
                   : refuse(config, key, value,
                            "zr-train does not know this key; if it changes no number in training, remove it "
                            "from config.json, else give a model without it");
    switch (rule->meaning) {
    case VALUES:
        return check_value(config, rule, key, value);
    case DROPOUT:
        return take_dropout(config, key, value, dropout);
    case FFN:
    case HEAD_DIM:
        return check_width(config, rule->meaning, key, value);
    case ANGLES:
        return check_angles(config, name, value);
    default:
        return ZR_OK; /* see zr_model_config_check() */
    }
}

/* ---- Keys with an option ------------------------------------------------------------------------------- */

static double ours_of(const struct zr_model_config *config, const struct rule *rule)
{
    const char *field = (const char *)config->shape + rule->at;
    double real;
    size_t size;
    if (rule->meaning == REAL) {
        memcpy(&real, field, sizeof real);
        return real;
    }
    memcpy(&size, field, sizeof size);
    return (double)size;
}

static bool is_close(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fabs(b);
}

/* Compares a key's value with the run's. `value` NULL: the key is missing. */
static zr_result check_option(const struct zr_model_config *config, const struct rule *rule, struct key key,
                              const json_t *value)
{
    bool missing = !value || (json_is_null(value) && rule->meaning != SIZE);
    double theirs = missing ? rule->absent : json_number_value(value), ours = ours_of(config, rule);

    if (missing && rule->meaning == KV_HEADS)
        theirs = size_of(config, "num_attention_heads", NULL, config->shape->heads);
    else if (missing && theirs == 0)
        return ZR_OK;
    if (!missing && !(rule->meaning == REAL ? json_is_number(value) : json_is_integer(value)))
        return refuse(config, key, value, "it is no such number; correct config.json");
    if (is_close(theirs, ours))
        return ZR_OK;
    return zr_fail(ZR_ERR_FORMAT,
                   "'%s' is another model: its config.json has %s%s%s %.15g%s, this run has %s %.15g; resume "
                   "with %s %.15g",
                   config->path, key.inside, key.inside[0] ? "." : "", key.name, theirs,
                   missing ? " (the default of a missing key)" : "", rule->option, ours, rule->option,
                   theirs);
}

/* Checks the base of the rotary angles. The key is in rope_parameters (transformers 5), next to it (4), or
 * missing. */
static zr_result check_base(const struct zr_model_config *config, const struct rule *rule)
{
    static const char *const inside[] = {"rope_parameters", "rope_scaling"};
    const json_t *beside = json_object_get(config->root, rule->key);
    bool found = false;
    zr_result result = ZR_OK;
    for (size_t i = 0; i < COUNT_OF(inside) && !result; i++) {
        const json_t *value = json_object_get(json_object_get(config->root, inside[i]), rule->key);
        if (!value)
            continue;
        result = check_option(config, rule, (struct key){inside[i], rule->key}, value);
        found = true;
    }
    return result || (found && !beside) ? result
                                        : check_option(config, rule, (struct key){"", rule->key}, beside);
}

static zr_result check_options(const struct zr_model_config *config)
{
    unsigned of = 1u << config->shape->architecture;
    zr_result result = ZR_OK;
    for (size_t i = 0; i < COUNT_OF(rules) && !result; i++) {
        const struct rule *rule = &rules[i];
        struct key key = {"", rule->key};
        if (!(rule->of & of) || !rule->option)
            continue;
        result = strcmp(rule->key, "rope_theta") == 0
                     ? check_base(config, rule)
                     : check_option(config, rule, key, json_object_get(config->root, rule->key));
    }
    return result;
}

zr_result zr_model_config_check(const struct zr_model_config *config, double *dropout)
{
    json_t *root = (json_t *)(uintptr_t)config->root; /* jansson's iterators take no const */
    const char *type = json_string_value(json_object_get(root, "model_type")),
               *ours = zr_architecture_name(config->shape->architecture);
    zr_result result = ZR_OK;

    *dropout = 0;
    if (!type)
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s': its config.json has no model_type; give the config.json that transformers "
                       "saved with the model",
                       config->path);
    if (strcmp(type, ours) != 0)
        return zr_fail(
            ZR_ERR_FORMAT, "'%s': its config.json has model_type '%.32s', and this run has --arch %s; %s%s",
            config->path, type, ours,
            strcmp(type, "gpt2") == 0 || strcmp(type, "llama") == 0 ? "resume with --arch "
                                                                    : "give a model of gpt2 or llama",
            strcmp(type, "gpt2") == 0 || strcmp(type, "llama") == 0 ? type : "");
    for (void *at = json_object_iter(root); at && !result; at = json_object_iter_next(root, at))
        result = check_key(config, json_object_iter_key(at), json_object_iter_value(at), dropout);
    if (!result)
        result = check_options(config);
    if (!result && config->shape->architecture == ZR_ARCH_LLAMA)
        result = check_tied(config);
    return result;
}
