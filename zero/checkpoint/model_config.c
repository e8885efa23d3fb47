/* model_config.c: see model_file.h. Two lists hold all keys: rules[] has the keys that describe a model, with
 * the place of each in struct zr_shape, unused[] the keys without effect on training. */
#include "zero/checkpoint/model_file.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"

/* Values of model_type. */
enum {
    GPT2 = 1,
    LLAMA = 2,
    MISTRAL = 4,
    QWEN2 = 8,
    QWEN3 = 16,
    PHI3 = 32,
    GEMMA = 64,
    NEOX = 128,
    GEMMA3 = 256
};
enum {
    QWEN = QWEN2 | QWEN3,
    SILU = LLAMA | MISTRAL | QWEN | PHI3, /* a gate of silu */
    GEMMAS = GEMMA | GEMMA3,
    RMS = SILU | GEMMAS, /* root mean square norms */
    LLAMAS = RMS | NEOX, /* of the architecture LLaMA */
    ALL = GPT2 | LLAMAS
};
static const struct family {
    const char *type;
    unsigned of;
    enum zr_architecture architecture;
    bool tied; /* without the key */
    struct zr_variant variant;
} families[] = {
    {"gpt2", GPT2, ZR_ARCH_GPT2, true, {.positions = 0}},
    {"llama", LLAMA, ZR_ARCH_LLAMA, false, {.positions = 0}},
    {"mistral", MISTRAL, ZR_ARCH_LLAMA, false, {.positions = 0}},
    {"qwen2", QWEN2, ZR_ARCH_LLAMA, false, {.biases = ZR_BIASES_QKV}},
    {"qwen3", QWEN3, ZR_ARCH_LLAMA, false, {.head_norms = 1}},
    {"phi3", PHI3, ZR_ARCH_LLAMA, false, {.names = ZR_NAMES_PHI3}},
    {"gemma", GEMMA, ZR_ARCH_LLAMA, true, {.norms_add_one = 1, .scaled_tokens = 1, .activation = 1}},
    {"gemma3_text",
     GEMMA3,
     ZR_ARCH_LLAMA,
     true,
     {.norms_add_one = 1,
      .branch_norms = 1,
      .head_norms = 1,
      .scaled_tokens = 1,
      .activation = 1,
      .names = ZR_NAMES_GEMMA3}},
    {"gpt_neox",
     NEOX,
     ZR_ARCH_LLAMA,
     false,
     {.layer_norms = 1,
      .parallel = 1,
      .ungated = 1,
      .activation = ZR_GELU_ERF,
      .biases = ZR_BIASES_QKV | ZR_BIASES_OUT | ZR_BIASES_FFN,
      .names = ZR_NAMES_NEOX}}};
#define TYPES "gpt2, llama, mistral, qwen2, qwen3, phi3, gemma, gemma3_text or gpt_neox"

enum meaning {
    VALUES,  /* one of `values`, or refused for `reason` */
    DROPOUT, /* a rate of dropout */
    SIZE,    /* a whole number from 1 */
    PERHAPS, /* SIZE, or null, which is stored as 0 */
    REAL,    /* a number above 0 */
    CHOICE,  /* the index of one of `values`, or refused for `reason` */
    BITS,    /* true: adds the bits `absent` to a field of 64 bits */
    CLEARS,  /* false: removes the bits `absent` from a field of 64 bits */
    TIED,    /* whether the head is the embedding */
    ANGLES,  /* an object of angle_keys[], or null */
    IGNORED, /* without effect in these models, or read elsewhere */
};

struct rule {
    const char *key;
    unsigned of; /* of the types of models */
    enum meaning meaning;
    const char *values; /* accepted values, each between two spaces, strings in single quotes; the key may be
                           missing */
    const char *reason; /* the feature that zr lacks, and a fix */
    const char *option; /* option of zr-train with the same value; NULL: none */
    size_t at;          /* offset of the field in struct zr_shape */
    double
        absent; /* SIZE, PERHAPS, REAL: value of a missing key; BITS, CLEARS: the bits; BITS, -1: false adds
                   1 */
};
#define REQUIRED (-1.0) /* a missing key leaves the field as it is */
#define SAME     0.0    /* zero, which stands for another field's value */

#define FIXED(key, of, values, reason)                                                                       \
    {                                                                                                        \
        key, of, VALUES, values, reason, NULL, 0, 0                                                          \
    }
#define OPTION(key, of, meaning, option, field, absent)                                                      \
    {                                                                                                        \
        key, of, meaning, NULL, NULL, option, offsetof(struct zr_shape, field), absent                       \
    }
#define FIELD(key, of, meaning, field, absent) OPTION(key, of, meaning, NULL, variant.field, absent)
#define KNOWN(key, of, meaning)                                                                              \
    {                                                                                                        \
        key, of, meaning, NULL, NULL, NULL, 0, 0                                                             \
    }

static const char activations[] = " 'gelu_new' 'gelu' 'relu' ", /* in the order of enum zr_activation */
    tanh_names[] = " 'gelu_pytorch_tanh' 'gelu_fast' ";
static const char gemma_gate[] = "zr-train's Gemma computes gelu_pytorch_tanh; give a model with that";
static const char soft_caps[] = "zr-train has no soft caps of scores and logits; give a model without";
static const char heads_apart[] = "zr-train turns all of a head; give a model that does";

static const struct rule rules[] = {
    KNOWN("model_type", ALL, IGNORED),

    /* GPT-2, which also accepts LLaMA's names of sizes */
    OPTION("n_head", GPT2, SIZE, "--heads", heads, 12),
    OPTION("n_embd", GPT2, SIZE, "--hidden", hidden, REQUIRED),
    OPTION("n_layer", GPT2, SIZE, "--layers", layers, REQUIRED),
    FIELD("n_positions", GPT2, SIZE, positions, REQUIRED),
    FIELD("max_position_embeddings", GPT2, SIZE, positions, REQUIRED),
    OPTION("n_inner", GPT2, PERHAPS, NULL, ffn, SAME),
    OPTION("layer_norm_epsilon", GPT2, REAL, NULL, norm_epsilon, 1e-5),
    {"activation_function", GPT2, CHOICE, activations,
     "zr-train's GPT-2 computes gelu_new, gelu or relu; give a model with one of these", NULL,
     offsetof(struct zr_shape, variant.activation), 0},
    FIELD("scale_attn_weights", GPT2, BITS, unscaled, -1),
    FIELD("scale_attn_by_inverse_layer_idx", GPT2, BITS, scaled_by_layer, 1),
    FIELD("tie_word_embeddings", GPT2, BITS, untied, -1),
    FIXED("add_cross_attention", GPT2, " false null ",
          "zr-train has no cross-attention; give a model without"),
    KNOWN("attn_pdrop", GPT2, DROPOUT),
    KNOWN("embd_pdrop", GPT2 | PHI3, DROPOUT),
    KNOWN("resid_pdrop", GPT2 | PHI3, DROPOUT),

    /* LLaMA and models like it */
    FIXED("hidden_act", SILU, " 'silu' 'swish' ", "zr-train's LLaMA computes silu; give a model with that"),
    FIXED("hidden_act", GEMMA, " 'gelu_pytorch_tanh' 'gelu' 'gelu_new' 'gelu_fast' ", gemma_gate),
    FIXED("hidden_activation", GEMMAS, " null 'gelu_pytorch_tanh' 'gelu_new' 'gelu_fast' ", gemma_gate),
    {"hidden_act", NEOX, CHOICE, activations,
     "zr-train's GPT-NeoX computes gelu, gelu_new or relu; give a model with one of these", NULL,
     offsetof(struct zr_shape, variant.activation), 0},
    FIELD("attention_bias", LLAMA | QWEN3 | GEMMAS, BITS, biases, ZR_BIASES_QKV | ZR_BIASES_OUT),
    FIELD("attention_bias", NEOX, CLEARS, biases, ZR_BIASES_QKV | ZR_BIASES_OUT),
    FIELD("mlp_bias", LLAMA, BITS, biases, ZR_BIASES_FFN),
    FIELD("use_parallel_residual", NEOX, CLEARS, parallel, 1),
    FIXED("use_bidirectional_attention", GEMMAS, " false null ",
          "zr-train's attention is causal; give a model with that"),
    FIXED("partial_rotary_factor", RMS & ~PHI3, " 1 null ", heads_apart),
    FIELD("partial_rotary_factor", PHI3, REAL, rotary_share, SAME),
    FIELD("rotary_pct", NEOX, REAL, rotary_share, 0.25),
    FIELD("partial_rotary_factor", NEOX, REAL, rotary_share, REQUIRED), /* transformers 4 saves both names */
    FIELD("head_dim", SILU & ~QWEN3, PERHAPS, head_width, SAME),
    FIELD("head_dim", QWEN3, PERHAPS, head_width, 128),
    FIELD("head_dim", GEMMAS, PERHAPS, head_width, 256),
    FIELD("query_pre_attn_scalar", GEMMA3, REAL, score_width, 256),
    FIXED("attn_logit_softcapping", GEMMA3, " null ", soft_caps),
    FIXED("final_logit_softcapping", GEMMA3, " null ", soft_caps),
    FIELD("sliding_window", MISTRAL, PERHAPS, window, 4096),
    FIELD("sliding_window", GEMMA3, SIZE, window, 4096),
    FIELD("sliding_window", PHI3, PERHAPS, window, SAME),
    FIXED("sliding_window", LLAMA, " null ",
          "transformers ignores a window in a LLaMA; remove it from config.json"),
    FIXED("use_sliding_window", LLAMA, " false null ",
          "transformers ignores a window in a LLaMA; remove it from config.json"),
    KNOWN("use_sliding_window", QWEN, IGNORED), /* see read_windows() */
    KNOWN("sliding_window", QWEN, IGNORED),
    KNOWN("max_window_layers", QWEN, IGNORED),
    KNOWN("layer_types", QWEN | GEMMA3, IGNORED),
    KNOWN("sliding_window_pattern", GEMMA3, IGNORED),
    KNOWN("_sliding_window_pattern", GEMMA3, IGNORED),
    KNOWN("max_position_embeddings", LLAMAS, IGNORED), /* a limit for users of the model */
    KNOWN("original_max_position_embeddings", PHI3, IGNORED),
    KNOWN("attention_dropout", LLAMAS, DROPOUT),
    KNOWN("hidden_dropout", NEOX, DROPOUT),
    OPTION("num_attention_heads", GPT2, SIZE, "--heads", heads, REQUIRED),
    OPTION("num_attention_heads", SILU, SIZE, "--heads", heads, 32),
    OPTION("num_attention_heads", GEMMA, SIZE, "--heads", heads, 16),
    OPTION("num_attention_heads", GEMMA3, SIZE, "--heads", heads, 8),
    OPTION("num_attention_heads", NEOX, SIZE, "--heads", heads, 64),
    OPTION("num_key_value_heads", LLAMA | PHI3, PERHAPS, "--kv-heads", kv_heads, SAME),
    OPTION("num_key_value_heads", GEMMA, PERHAPS, "--kv-heads", kv_heads, 16),
    OPTION("num_key_value_heads", GEMMA3, PERHAPS, "--kv-heads", kv_heads, 4),
    OPTION("num_key_value_heads", MISTRAL, PERHAPS, "--kv-heads", kv_heads, 8),
    OPTION("num_key_value_heads", QWEN, PERHAPS, "--kv-heads", kv_heads, 32),
    OPTION("intermediate_size", LLAMAS, SIZE, "--ffn", ffn, REQUIRED),
    OPTION("rope_theta", RMS & ~GEMMA3, REAL, "--rope-theta", rope_theta, 10000),
    OPTION("rope_theta", GEMMA3, REAL, "--rope-theta", rope_theta, 1e6),
    FIELD("rope_local_base_freq", GEMMA3, REAL, window_theta, 10000),
    OPTION("rotary_emb_base", NEOX, REAL, "--rope-theta", rope_theta, 10000),
    OPTION("rope_theta", NEOX, REAL, "--rope-theta", rope_theta, REQUIRED),
    OPTION("rms_norm_eps", RMS & ~PHI3, REAL, "--norm-epsilon", norm_epsilon, 1e-6),
    OPTION("rms_norm_eps", PHI3, REAL, "--norm-epsilon", norm_epsilon, 1e-5),
    OPTION("layer_norm_eps", NEOX, REAL, "--norm-epsilon", norm_epsilon, 1e-5),
    OPTION("tie_word_embeddings", LLAMAS, TIED, "--tie-embeddings", tied, 0),
    OPTION("hidden_size", ALL, SIZE, "--hidden", hidden, REQUIRED),
    OPTION("num_hidden_layers", ALL, SIZE, "--layers", layers, REQUIRED),
    OPTION("vocab_size", ALL, SIZE, "--vocab", vocabulary, REQUIRED),
    FIELD("rope_parameters", LLAMAS, ANGLES, rotary, 0),
    FIELD("rope_scaling", LLAMAS, ANGLES, rotary, 0),

    /* Keys of other models, and keys of all models for unsupported changes */
    FIXED("quantization_config", ALL, " null ",
          "its weights are quantized; give the model that they were made from"),
    FIXED("auto_map", ALL, " null {} ", "the model is code of its own; give one of transformers' own code"),
    FIXED("pruned_heads", ALL, " {} null ", "zr-train has the same heads in every layer; give such a model"),
    FIXED("is_encoder_decoder", ALL, " false null ", "zr-train has decoders alone; give one"),
    FIXED("cross_attention_hidden_size", ALL, " null ",
          "zr-train has no cross-attention; give a model without"),
};

/* Kinds of scaled angles, and the keys of rope_parameters (transformers 5) and rope_scaling (4): a number
 * that a kind needs, takes, or ignores as transformers does. */
enum { PLAIN = 1, LINEAR = 2, DYNAMIC = 4, LLAMA3 = 8, YARN = 16, LONG = 32 };
static const struct {
    const char *type;
    unsigned of;
} angle_types[] = {{"default", PLAIN}, {"linear", LINEAR}, {"dynamic", DYNAMIC}, {"llama3", LLAMA3},
                   {"yarn", YARN},     {"longrope", LONG}, {"su", LONG}};
enum angle_key {
    FACTOR,
    ORIGINAL,
    LOW,
    HIGH,
    ATTENTION,
    FAST,
    SLOW,
    MSCALE,
    MSCALE_ALL,
    TRUNCATE,
    SHORT,
    LONGER,
    THETA,
    PARTIAL,
    ROPE_TYPE,
    TYPE,
    ANGLE_KEYS
};
static const struct {
    const char *key;
    unsigned needed, taken;
} angle_keys[ANGLE_KEYS] = {
    [FACTOR] = {"factor", LINEAR | DYNAMIC | LLAMA3 | YARN, 0},
    [ORIGINAL] = {"original_max_position_embeddings", 0, DYNAMIC | LLAMA3 | YARN | LONG},
    [LOW] = {"low_freq_factor", LLAMA3, 0},
    [HIGH] = {"high_freq_factor", LLAMA3, 0},
    [ATTENTION] = {"attention_factor", 0, YARN | LONG},
    [FAST] = {"beta_fast", 0, YARN},
    [SLOW] = {"beta_slow", 0, YARN},
    [MSCALE] = {"mscale", 0, YARN},
    [MSCALE_ALL] = {"mscale_all_dim", 0, YARN},
    [TRUNCATE] = {"truncate", 0, YARN},
    [SHORT] = {"short_factor", LONG, 0},
    [LONGER] = {"long_factor", LONG, 0},
    [THETA] = {"rope_theta", 0, ~0u},
    [PARTIAL] = {"partial_rotary_factor", 0, ~0u},
    [ROPE_TYPE] = {"rope_type", 0, ~0u},
    [TYPE] = {"type", 0, ~0u},
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

/* A pass over a file. */
struct reading {
    const struct zr_model_config *config;
    const struct family *family;
    struct zr_shape *shape;
    double dropout;
    unsigned problems;
    size_t used;
    char keys[600];   /* and values of the problems */
    char reason[200]; /* of the first one */
};

/* ---- Problems ------------------------------------------------------------------------------------------ */

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

/* Adds a problem. `value` NULL: the key is missing. */
static void refuse(struct reading *reading, struct key key, const json_t *value, const char *reason)
{
    char text[64] = "missing";
    size_t room = sizeof reading->keys - reading->used;
    if (value)
        print_value(value, text);
    if (reading->problems == 0)
        snprintf(reading->reason, sizeof reading->reason, "%s", reason);
    int length =
        snprintf(reading->keys + reading->used, room, "%s%s%s%.64s %s", reading->problems ? ", " : "",
                 key.inside, key.inside[0] ? "." : "", key.name, text);
    reading->used += length < (int)room ? (size_t)length : room - 1;
    reading->problems++;
}

static zr_result result_of(const struct reading *reading)
{
    if (reading->problems == 0)
        return ZR_OK;
    return zr_fail(ZR_ERR_FORMAT, "'%.300s': its config.json has %s; %s%s", reading->config->path,
                   reading->keys, reading->problems > 1 ? "each of these is refused, the first because " : "",
                   reading->reason);
}

static const struct rule *find_rule(const char *key, unsigned of)
{
    for (size_t i = 0; i < COUNT_OF(rules); i++)
        if (rules[i].of & of && strcmp(rules[i].key, key) == 0)
            return &rules[i];
    return NULL;
}

static bool is_unused(const char *key)
{
    for (size_t i = 0; i < COUNT_OF(unused); i++)
        if (strcmp(unused[i], key) == 0)
            return true;
    return false;
}

/* ---- Fields -------------------------------------------------------------------------------------------- */

static bool is_number(const struct rule *rule)
{
    return rule->meaning == SIZE || rule->meaning == PERHAPS || rule->meaning == REAL;
}

/* Whether a rule's field is a double. */
static bool is_real(const struct rule *rule)
{
    return rule->meaning == REAL;
}

static double field_of(const struct zr_shape *shape, const struct rule *rule)
{
    const char *at = (const char *)shape + rule->at;
    double real;
    uint64_t whole;
    if (rule->meaning == TIED)
        return shape->tied;
    memcpy(&real, at, sizeof real);
    memcpy(&whole, at, sizeof whole);
    if (rule->meaning == BITS || rule->meaning == CLEARS)
        whole &= rule->absent < 0 ? 1 : (uint64_t)rule->absent;
    return is_real(rule) ? real : (double)whole;
}
_Static_assert(sizeof(size_t) == sizeof(uint64_t), "sizes and fields of a variant are read alike");

static void set_field(struct zr_shape *shape, const struct rule *rule, double value)
{
    uint64_t whole = (uint64_t)value;
    if (is_real(rule))
        memcpy((char *)shape + rule->at, &value, sizeof value);
    else
        memcpy((char *)shape + rule->at, &whole, sizeof whole);
}

/* Index of a value in a list; -1: not in it. */
static int index_in(const char *values, const json_t *value)
{
    char text[64], word[72];
    int index = 0;
    print_value(value, text);
    snprintf(word, sizeof word, " %s ", text);
    const char *found = strchr(text, ' ') ? NULL : strstr(values, word);
    for (const char *at = values; found && at <= found; at++)
        index += at > values && *at == ' ';
    return found ? index : -1;
}

static const char another_name[] = "another name of the key has another value";

static void read_number(struct reading *reading, const struct rule *rule, const json_t *value)
{
    bool missing = !value || (json_is_null(value) && rule->meaning == PERHAPS);
    double number = json_number_value(value);
    bool fits = rule->meaning == REAL ? json_is_number(value) && isfinite(number) && number > 0
                                      : json_is_integer(value) && number >= 1 && number <= 4294967295.0;
    if (missing && rule->absent == REQUIRED)
        return;
    for (const struct rule *other = rules; other < rule && fits; other++)
        if (other->of & reading->family->of && other->at == rule->at && is_number(other) &&
            json_object_get(reading->config->root, other->key) && field_of(reading->shape, other) != number) {
            refuse(reading, (struct key){"", rule->key}, value, another_name);
            return;
        }
    if (!missing && !fits)
        refuse(reading, (struct key){"", rule->key}, value, "it is no such number; correct config.json");
    else /* null is "none", and a missing key has a default */
        set_field(reading->shape, rule, !missing ? number : value ? 0 : rule->absent);
}

static void read_bits(struct reading *reading, const struct rule *rule, const json_t *value)
{
    uint64_t *field = (uint64_t *)(void *)((char *)reading->shape + rule->at);
    bool inverse = rule->absent < 0;
    if (!json_is_boolean(value) && !json_is_null(value))
        refuse(reading, (struct key){"", rule->key}, value, "it is true or false; correct config.json");
    else if (rule->meaning == CLEARS)
        *field &= json_is_false(value) ? ~(uint64_t)rule->absent : UINT64_MAX;
    else if (json_is_boolean(value) && json_is_true(value) != inverse)
        *field |= inverse ? 1 : (uint64_t)rule->absent;
}

/* Whether a list names the attention of each layer as the shape has it. */
static bool has_windows(const struct zr_shape *shape, const json_t *types)
{
    bool same = json_array_size(types) == shape->layers;
    for (size_t i = 0; i < shape->layers && same; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        same =
            type && strcmp(type, zr_shape_has_window(shape, i) ? "sliding_attention" : "full_attention") == 0;
    }
    return same;
}

/* The first layer with a window, and which of the later ones are without: none, or each n-th. */
static void read_layer_types(struct reading *reading, const json_t *types)
{
    struct zr_variant *variant = &reading->shape->variant;
    size_t layers = reading->shape->layers, first = 0;
    const char *type;
    while (first < layers && (type = json_string_value(json_array_get(types, first))) &&
           strcmp(type, "full_attention") == 0)
        first++;
    variant->window_first = first;
    while (!has_windows(reading->shape, types) && variant->window_period <= layers)
        variant->window_period += variant->window_period ? 1 : 2;
    if (!has_windows(reading->shape, types))
        refuse(
            reading, (struct key){"", "layer_types"}, types,
            "zr-train has windows of use_sliding_window in all layers from one on, or in all but each n-th; give "
            "such a model");
}

/* Gemma 3's windows: in all layers but each n-th, or by a list. */
static void read_gemma_windows(struct reading *reading)
{
    static const char *const names[] = {"sliding_window_pattern", "_sliding_window_pattern"};
    const json_t *types = json_object_get(reading->config->root, "layer_types");
    uint64_t *period = &reading->shape->variant.window_period;
    bool listed = types && !json_is_null(types);
    *period = listed ? 0 : 6;
    for (int i = 0; i < 2; i++) {
        const json_t *pattern = json_object_get(reading->config->root, names[i]);
        if (pattern && (!json_is_integer(pattern) || json_integer_value(pattern) < 1))
            refuse(reading, (struct key){"", names[i]}, pattern, "it is no such number; correct config.json");
        else if (pattern && !listed)
            *period = (uint64_t)json_integer_value(pattern);
    }
    if (listed)
        read_layer_types(reading, types);
}

/* Qwen's windows. */
static void read_windows(struct reading *reading)
{
    const json_t *root = reading->config->root, *uses = json_object_get(root, "use_sliding_window"),
                 *window = json_object_get(root, "sliding_window"),
                 *first = json_object_get(root, "max_window_layers"),
                 *types = json_object_get(root, "layer_types");
    struct zr_variant *variant = &reading->shape->variant;
    bool fits = !window || json_is_null(window) || json_integer_value(window) > 0;
    if (reading->family->of & GEMMA3)
        read_gemma_windows(reading);
    if (!(reading->family->of & QWEN))
        return;
    if (uses && !json_is_boolean(uses) && !json_is_null(uses))
        refuse(reading, (struct key){"", "use_sliding_window"}, uses,
               "it is true or false; correct config.json");
    if (!fits && json_is_true(uses))
        refuse(reading, (struct key){"", "sliding_window"}, window,
               "it is no such number; correct config.json");
    if (json_is_true(uses) && !json_is_null(window))
        variant->window = window ? (uint64_t)json_integer_value(window) : 4096;
    if (variant->window && first && (!json_is_integer(first) || json_integer_value(first) < 0))
        refuse(reading, (struct key){"", "max_window_layers"}, first,
               "it is no such number; correct config.json");
    if (variant->window)
        variant->window_first = first ? (uint64_t)json_integer_value(first) : 28;
    if (types && !json_is_null(types))
        read_layer_types(reading, types);
}

/* The rates of zr-train's dropout are part of the shape; GPT-NeoX's hidden_dropout has other places. */
static void set_dropout(struct reading *reading, struct key key, const json_t *value)
{
    double rate = json_number_value(value);
    float *field = strcmp(key.name, "embd_pdrop") == 0       ? &reading->shape->embedding_dropout
                   : strcmp(key.name, "resid_pdrop") == 0    ? &reading->shape->residual_dropout
                   : strcmp(key.name, "hidden_dropout") == 0 ? NULL
                                                             : &reading->shape->attention_dropout;
    if (!(rate >= 0 && rate < 1))
        refuse(reading, key, value, "it is a rate from 0 to below 1; correct config.json");
    else if (field)
        *field = (float)rate;
    else
        reading->dropout = fmax(reading->dropout, rate);
}

static void read_key(struct reading *reading, const char *name, const json_t *value)
{
    const struct rule *rule = find_rule(name, reading->family->of);
    struct key key = {"", name};
    int index;
    if (!rule) {
        if (!is_unused(name))
            refuse(reading, key, value,
                   "zr-train does not know this key; if it changes no number in training, remove it from "
                   "config.json, else give a model without it");
        return;
    }
    switch (rule->meaning) {
    case VALUES:
        if (index_in(rule->values, value) < 0)
            refuse(reading, key, value, rule->reason);
        return;
    case CHOICE:
        index = index_in(tanh_names, value) >= 0 ? 0 : index_in(rule->values, value);
        if (index < 0)
            refuse(reading, key, value, rule->reason);
        else
            set_field(reading->shape, rule, index);
        return;
    case DROPOUT:
        if (!json_is_number(value) && !json_is_null(value))
            refuse(reading, key, value, "it is a rate; correct config.json");
        set_dropout(reading, key, value);
        return;
    case BITS:
    case CLEARS:
        read_bits(reading, rule, value);
        return;
    case TIED:
        if (!json_is_boolean(value))
            refuse(reading, key, value, "it is true or false; correct config.json");
        reading->shape->tied = json_is_true(value);
        return;
    default:
        return; /* numbers and angles are read in order of the rules */
    }
}

/* ---- Angles -------------------------------------------------------------------------------------------- */

/* YaRN (Peng et al., 2023), as transformers computes it: pairs that turn often keep their frequency. */
static void set_yarn(struct zr_rotary_scaling *out, const double value[ANGLE_KEYS], double width,
                     double theta)
{
    double turns[2] = {value[FAST] > 0 ? value[FAST] : 32, value[SLOW] > 0 ? value[SLOW] : 1}, ends[2];
    const double full = 6.283185307179586, factor = value[FACTOR];
    for (int i = 0; i < 2; i++) {
        ends[i] = width * log(value[ORIGINAL] / (turns[i] * full)) / (2 * log(theta));
        if (value[TRUNCATE] != 0)
            ends[i] = i == 0 ? floor(ends[i]) : ceil(ends[i]);
    }
    double low = fmax(ends[0], 0), high = ends[1] < width - 1 ? ends[1] : width - 1;
    high += low == high ? 0.001 : 0;
    double plain = factor <= 1 ? 1 : 0.1 * log(factor) + 1,
           first = factor <= 1 ? 1 : 0.1 * value[MSCALE] * log(factor) + 1,
           second = factor <= 1 ? 1 : 0.1 * value[MSCALE_ALL] * log(factor) + 1;
    out->by_pair = 1;
    out->offset = 1 + low / (high - low);
    out->slope = -1 / (high - low);
    out->scale = value[ATTENTION] > 0                         ? value[ATTENTION]
                 : value[MSCALE] > 0 && value[MSCALE_ALL] > 0 ? first / second
                                                              : plain;
}

/* Sets the frequencies. */
static void set_angles(struct reading *reading, unsigned type, const double value[ANGLE_KEYS])
{
    struct zr_shape *shape = reading->shape;
    struct zr_rotary_scaling *out = &shape->variant.rotary;
    double width = shape->heads ? (double)zr_shape_rotary(shape) : 1, limit = value[ORIGINAL],
           tokens = (double)shape->sequence;
    if (type == PLAIN)
        return;
    if (type == DYNAMIC) { /* another base, for sequences beyond the limit */
        if (tokens > limit && width > 2)
            shape->rope_theta *=
                pow(value[FACTOR] * tokens / limit - (value[FACTOR] - 1), width / (width - 2));
        return;
    }
    *out = (struct zr_rotary_scaling){.factor = type == LONG ? 1 : value[FACTOR], .scale = 1};
    if (type == LLAMA3) {
        double between = value[HIGH] - value[LOW];
        out->offset = -value[LOW] / between;
        out->slope = limit / (6.283185307179586 * between);
    } else if (type == YARN) {
        set_yarn(out, value, width, shape->rope_theta);
    } else if (type == LONG) {
        double factor =
            json_number_value(json_object_get(reading->config->root, "max_position_embeddings")) / limit;
        out->scale = value[ATTENTION] > 0 ? value[ATTENTION]
                     : factor > 1         ? sqrt(1 + log(factor) / log(limit))
                                          : 1;
    }
}

/* LongRoPE (Ding et al., 2024): divisors of the frequencies, of sequences beyond the limit or within. */
static void read_divisors(struct reading *reading, const char *inside, const json_t *object, double limit)
{
    struct zr_shape *shape = reading->shape;
    const char *name = angle_keys[(double)shape->sequence > limit ? LONGER : SHORT].key;
    const json_t *list = json_object_get(object, name);
    size_t pairs = shape->heads ? zr_shape_rotary(shape) / 2 : 0;
    bool fits = json_array_size(list) == pairs && pairs <= ZR_ROTARY_DIVISORS;
    for (size_t i = 0; i < pairs && fits; i++) {
        shape->variant.rotary.divisors[i] = (float)json_number_value(json_array_get(list, i));
        fits = shape->variant.rotary.divisors[i] > 0 && isfinite(shape->variant.rotary.divisors[i]);
    }
    if (!fits)
        refuse(
            reading, (struct key){inside, name}, list,
            "it is a list of numbers above 0, one for each of at most 64 pairs of a head's channels; correct "
            "config.json");
}

static unsigned angle_type(struct reading *reading, const char *inside, const json_t *object)
{
    unsigned found = 0;
    const char *key = json_object_get(object, "rope_type") ? "rope_type" : "type";
    const json_t *value = json_object_get(object, key);
    for (size_t i = 0; i < COUNT_OF(angle_types); i++)
        if (json_is_string(value) && strcmp(json_string_value(value), angle_types[i].type) == 0)
            found = angle_types[i].of;
    if (!value || json_is_null(value))
        return PLAIN;
    if (!found)
        refuse(
            reading, (struct key){inside, key}, value,
            "zr-train has default, linear, dynamic, llama3, yarn and longrope; give a model with one of these");
    return found;
}

/* Whether the value of a key fits; stores numbers, and truth values as 0 and 1. */
static bool read_angle(enum angle_key key, unsigned of, const json_t *value, double out[ANGLE_KEYS])
{
    if (key == ROPE_TYPE || key == TYPE || key == SHORT || key == LONGER)
        return true;
    if (json_is_null(value))
        return key != FACTOR && key != LOW && key != HIGH;
    out[key] = json_is_boolean(value) ? json_is_true(value) : json_number_value(value);
    if (key == TRUNCATE)
        return json_is_boolean(value);
    return json_is_number(value) && isfinite(out[key]) && out[key] > 0 &&
           (key != PARTIAL || out[key] == 1 || (out[key] < 1 && of & (PHI3 | NEOX))) &&
           (key != FACTOR || out[key] >= 1);
}

static void read_angles(struct reading *reading, const char *inside, json_t *object)
{
    double value[ANGLE_KEYS] = {[ORIGINAL] = 0, [TRUNCATE] = 1};
    unsigned before = reading->problems, type;
    if (!object || json_is_null(object))
        return;
    if (!json_is_object(object)) {
        refuse(reading, (struct key){"", inside}, object, "it is an object or null; correct config.json");
        return;
    }
    type = angle_type(reading, inside, object);
    for (void *at = json_object_iter(object); at && type; at = json_object_iter_next(object, at)) {
        const json_t *given = json_object_iter_value(at);
        struct key key = {inside, json_object_iter_key(at)};
        unsigned k = 0;
        while (k < ANGLE_KEYS && strcmp(angle_keys[k].key, key.name) != 0)
            k++;
        if (k == ANGLE_KEYS || !((angle_keys[k].needed | angle_keys[k].taken) & type))
            refuse(reading, key, given,
                   "zr-train does not know this key for this rope_type; give a model without it");
        else if (!read_angle((enum angle_key)k, reading->family->of, given, value))
            refuse(reading, key, given,
                   k == PARTIAL ? heads_apart : "it is no such number; correct config.json");
    }
    for (unsigned k = 0; k < ANGLE_KEYS && type; k++)
        if (angle_keys[k].needed & type && !json_object_get(object, angle_keys[k].key))
            refuse(reading, (struct key){inside, angle_keys[k].key}, NULL,
                   "this rope_type needs it; correct config.json");
    if (type == LLAMA3 && value[HIGH] <= value[LOW] && reading->problems == before)
        refuse(reading, (struct key){inside, "high_freq_factor"}, json_object_get(object, "high_freq_factor"),
               "it is at most low_freq_factor; correct config.json");
    const char *base = reading->family->of & NEOX ? "rotary_emb_base" : "rope_theta",
               *share = reading->family->of & NEOX ? "rotary_pct" : "partial_rotary_factor";
    const json_t *limit = json_object_get(reading->config->root, "max_position_embeddings"),
                 *first = json_object_get(reading->config->root, "original_max_position_embeddings"),
                 *beside = json_object_get(reading->config->root, base),
                 *part = json_object_get(reading->config->root, share);
    if (value[THETA] > 0 && json_is_number(beside) && json_number_value(beside) != value[THETA])
        refuse(reading, (struct key){"", base}, beside, "it is another one inside; correct config.json");
    if (value[PARTIAL] > 0 && json_is_number(part) && json_number_value(part) != value[PARTIAL])
        refuse(reading, (struct key){"", share}, part, "it is another one inside; correct config.json");
    if (value[ORIGINAL] == 0 && type == LONG && first && !(json_number_value(first) > 0))
        refuse(reading, (struct key){"", "original_max_position_embeddings"}, first,
               "it is no such number; correct config.json");
    if (value[ORIGINAL] == 0 && type == LONG)
        value[ORIGINAL] = json_number_value(first);
    if (value[ORIGINAL] == 0 || type == DYNAMIC)
        value[ORIGINAL] = json_number_value(limit);
    if (type & (DYNAMIC | LLAMA3 | YARN | LONG) && !(value[ORIGINAL] > 0))
        refuse(reading, (struct key){"", "max_position_embeddings"}, limit,
               "this rope_type needs it; correct config.json");
    if (value[THETA] > 0)
        reading->shape->rope_theta = value[THETA];
    if (value[PARTIAL] > 0)
        reading->shape->variant.rotary_share = value[PARTIAL];
    if (type == LONG && reading->problems == before)
        read_divisors(reading, inside, object, value[ORIGINAL]);
    if (reading->problems != before)
        return;
    const struct zr_rotary_scaling divided = reading->shape->variant.rotary;
    set_angles(reading, type, value);
    memcpy(reading->shape->variant.rotary.divisors, divided.divisors, sizeof divided.divisors);
    const struct zr_rotary_scaling *set = &reading->shape->variant.rotary;
    if (!isfinite((float)set->scale) || !isfinite(set->offset) || !isfinite(set->slope))
        refuse(reading, (struct key){"", inside}, object,
               "its numbers give angles that are not finite; correct config.json");
}

/* Gemma 3's rope_parameters of transformers 5: angles of layers with and without the window. */
static void read_angles_by_layer(struct reading *reading, json_t *both)
{
    static const char inside[] = "rope_parameters", window[] = "sliding_attention",
                      whole[] = "full_attention";
    struct zr_shape *shape = reading->shape;
    const char *key;
    json_t *value;
    double theta = shape->rope_theta;
    if (!json_is_object(both)) {
        refuse(reading, (struct key){"", inside}, both, "it is an object or null; correct config.json");
        return;
    }
    json_t *type = json_object_get(json_object_get(both, window), "rope_type");
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "default") != 0)) {
        refuse(reading, (struct key){window, "rope_type"}, type,
               "zr-train has scaled angles in layers without a window only; give such a model");
        return;
    }
    shape->rope_theta = shape->variant.window_theta;
    read_angles(reading, window, json_object_get(both, window));
    shape->variant.window_theta = shape->rope_theta;
    shape->rope_theta = theta;
    read_angles(reading, whole, json_object_get(both, whole));
    json_object_foreach(both, key, value) if (strcmp(key, window) != 0 && strcmp(key, whole) != 0)
        refuse(reading, (struct key){inside, key}, value, "it is no kind of layer; correct config.json");
}

/* Both names have the same meaning. */
static void read_both_angles(struct reading *reading)
{
    json_t *now = json_object_get(reading->config->root, "rope_parameters"),
           *before = json_object_get(reading->config->root, "rope_scaling");
    if (reading->family->architecture != ZR_ARCH_LLAMA)
        return;
    if (reading->family->of & GEMMA3 && now && !json_is_null(now))
        read_angles_by_layer(reading, now);
    else if (now && !json_is_null(now))
        read_angles(reading, "rope_parameters", now);
    else if (before)
        read_angles(reading, "rope_scaling", before);
    if (now && before && !json_is_null(now) && !json_is_null(before) && !json_equal(now, before))
        refuse(reading, (struct key){"", "rope_scaling"}, before, another_name);
}

/* ---- The file ------------------------------------------------------------------------------------------ */

static void read_numbers(struct reading *reading)
{
    const struct json_t *root = reading->config->root;
    for (size_t i = 0; i < COUNT_OF(rules); i++)
        if (rules[i].of & reading->family->of && is_number(&rules[i]))
            read_number(reading, &rules[i], json_object_get(root, rules[i].key));
    for (size_t i = 0; i < COUNT_OF(rules); i++) {
        const struct rule *rule = &rules[i];
        bool missing = rule->of & reading->family->of && rule->option && rule->absent == REQUIRED &&
                       field_of(reading->shape, rule) == 0;
        if (missing && !json_object_get(root, rule->key)) {
            refuse(reading, (struct key){"", rule->key}, NULL,
                   "the model's size is needed; correct config.json");
            set_field(reading->shape, rule, 1); /* once per field */
        }
    }
}

/* Zeros in place of values that are the plain form's, so that equal models have equal fields. */
static void normalize(struct zr_shape *shape)
{
    struct zr_variant *variant = &shape->variant;
    if (shape->architecture == ZR_ARCH_GPT2 && fabs(shape->norm_epsilon - 1e-5) < 1e-14)
        shape->norm_epsilon = 0;
    if (variant->positions == shape->sequence)
        variant->positions = 0;
    if ((variant->window >= shape->sequence && variant->window_theta == 0) ||
        variant->window_first >= shape->layers)
        variant->window = 0;
    if (variant->window == 0)
        variant->window_first = variant->window_period = 0, variant->window_theta = 0;
    if (variant->rotary_share == 1)
        variant->rotary_share = 0;
    if (shape->heads && fabs(variant->score_width - (double)zr_shape_head(shape)) < 1e-9)
        variant->score_width = 0;
    if (shape->heads && variant->head_width * shape->heads == shape->hidden)
        variant->head_width = 0;
}

/* The family of a file; NULL: none of these. */
static const struct family *find_family(const struct zr_model_config *config)
{
    const char *type = json_string_value(json_object_get(config->root, "model_type"));
    for (size_t i = 0; type && i < COUNT_OF(families); i++)
        if (strcmp(type, families[i].type) == 0)
            return &families[i];
    return NULL;
}

zr_result zr_model_config_read(const struct zr_model_config *config, struct zr_shape *shape, double *dropout)
{
    json_t *root = (json_t *)(uintptr_t)config->root; /* jansson's iterators take no const */
    const json_t *type = json_object_get(root, "model_type");
    struct reading reading = {.config = config, .shape = shape, .family = find_family(config)};

    *dropout = 0;
    if (!type)
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s': its config.json has no model_type; give the config.json that transformers "
                       "saved with the model",
                       config->path);
    if (!reading.family) {
        refuse(&reading, (struct key){"", "model_type"}, type, "give a model of " TYPES);
        return result_of(&reading);
    }
    shape->architecture = reading.family->architecture;
    shape->tied = reading.family->tied;
    uint64_t positions = shape->variant.positions;
    shape->variant = reading.family->variant;
    shape->variant.positions = positions;
    read_numbers(&reading);
    for (void *at = json_object_iter(root); at; at = json_object_iter_next(root, at))
        read_key(&reading, json_object_iter_key(at), json_object_iter_value(at));
    read_both_angles(&reading);
    read_windows(&reading);
    *dropout = reading.dropout;
    normalize(shape);
    zr_shape_complete(shape);
    return result_of(&reading);
}

/* ---- Comparison with a run ----------------------------------------------------------------------------- */

static bool is_close(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fabs(b);
}

/* Checks whether the head is tied. transformers 4 and 5 read a head from the files only if it is not tied. */
static zr_result check_tied(const struct zr_model_config *config, bool tied, const struct zr_shape *ours)
{
    const json_t *value = json_object_get(config->root, "tie_word_embeddings");
    if (!tied && !config->has_head)
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' is not whole: tie_word_embeddings is %s its config.json, and there is no lm_head.weight; "
            "fetch it again, or, if its head is the embedding, make tie_word_embeddings true",
            config->path, value ? "false in" : "missing in");
    if (tied == ours->tied)
        return ZR_OK;
    if (ours->architecture == ZR_ARCH_GPT2)
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s': its config.json has tie_word_embeddings %s, which no option sets; give --model "
                       "with the folder of the model",
                       config->path, tied ? "true" : "false");
    return zr_fail(ZR_ERR_FORMAT,
                   "'%s': its config.json has tie_word_embeddings %s, and this run has %s; resume %s "
                   "--tie-embeddings",
                   config->path,
                   tied    ? "true"
                   : value ? "false"
                           : "false (it is missing)",
                   tied ? "a head of its own" : "--tie-embeddings", tied ? "with" : "without");
}

/* The key that the file has for a rule's field, or the rule's; *value: its value, NULL if it is missing. */
static struct key key_of(const struct zr_model_config *config, const struct rule *rule, unsigned of,
                         const json_t **value)
{
    static const char *const objects[] = {"rope_parameters", "rope_scaling"};
    for (size_t i = 0; i < COUNT_OF(rules); i++) {
        *value = json_object_get(config->root, rules[i].key);
        bool names =
            &rules[i] == rule || (rules[i].at == rule->at && is_number(rule) && is_number(&rules[i]));
        if (rules[i].of & of && names && *value)
            return (struct key){"", rules[i].key};
    }
    for (size_t i = 0; i < COUNT_OF(objects); i++) {
        *value = json_object_get(json_object_get(config->root, objects[i]), rule->key);
        if (*value)
            return (struct key){objects[i], rule->key};
    }
    return (struct key){"", rule->key};
}

/* Message about a field that differs. */
static zr_result differs(const struct zr_model_config *config, const struct rule *rule, struct key key,
                         const json_t *value, const struct zr_shape *both[2])
{
    double theirs = field_of(both[0], rule), ours = field_of(both[1], rule);
    const char *inside = key.inside, *dot = inside[0] ? "." : "",
               *missing = value ? "" : " (the default of a missing key)";
    if (rule->at == offsetof(struct zr_shape, variant.positions))
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' is another model: its config.json has %s %zu, this run has %zu; give --model with the "
            "folder of the model, or resume with --seq %zu",
            config->path, key.name, zr_shape_positions(both[0]), zr_shape_positions(both[1]),
            zr_shape_positions(both[0]));
    if (rule->option)
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' is another model: its config.json has %s%s%s %.15g%s, this run has %s %.15g; resume "
            "with %s %.15g, or give --model with the folder of the model",
            config->path, inside, dot, key.name, theirs, missing, rule->option, ours, rule->option, theirs);
    char text[64] = "missing";
    if (value)
        print_value(value, text);
    return zr_fail(
        ZR_ERR_FORMAT,
        "'%s' is another model: its config.json has %s%s%s %s, which no option sets; give --model with "
        "the folder of the model",
        config->path, inside, dot, key.name, text);
}

static bool is_compared(const struct rule *rule)
{
    return (is_number(rule) || rule->meaning == CHOICE || rule->meaning == BITS || rule->meaning == CLEARS) &&
           rule->at != offsetof(struct zr_shape, variant.untied); /* see check_tied() */
}

static zr_result check_fields(const struct zr_model_config *config, const struct zr_shape *theirs,
                              const struct zr_shape *ours)
{
    const struct zr_shape *both[2] = {theirs, ours};
    unsigned of = find_family(config)->of;
    const json_t *value;
    for (size_t i = 0; i < COUNT_OF(rules); i++) {
        const struct rule *rule = &rules[i];
        if (rule->of & of && is_compared(rule) && !is_close(field_of(theirs, rule), field_of(ours, rule))) {
            struct key key = key_of(config, rule, of, &value);
            return differs(config, rule, key, value, both);
        }
    }
    char kinds[2][ZR_VARIANT_ROOM]; /* also of angles, and of what the type of a model means */
    zr_variant_print(&theirs->variant, kinds[0]);
    zr_variant_print(&ours->variant, kinds[1]);
    if (strcmp(kinds[0], kinds[1]) == 0 || theirs->variant.untied != ours->variant.untied)
        return ZR_OK;
    return zr_fail(
        ZR_ERR_FORMAT,
        "'%s' is another model: its config.json has %s, which no option sets; give --model with the "
        "folder of the model",
        config->path,
        theirs->variant.window != ours->variant.window     ? "use_sliding_window"
        : json_object_get(config->root, "rope_scaling")    ? "rope_scaling"
        : json_object_get(config->root, "rope_parameters") ? "rope_parameters"
                                                           : "model_type");
}

zr_result zr_model_config_check(const struct zr_model_config *config, const struct zr_shape *run,
                                double *dropout)
{
    struct zr_shape theirs = *run, ours = *run;
    const struct family *family = find_family(config);
    normalize(&ours);
    if (family && family->architecture != ours.architecture)
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s': its config.json has model_type '%s', and this run has --arch %s; resume with "
                       "--arch %s, or give --model with the folder of the model",
                       config->path, family->type, zr_architecture_name(ours.architecture),
                       zr_architecture_name(family->architecture));
    zr_result result = zr_model_config_read(config, &theirs, dropout);
    if (run->embedding_dropout == 0)
        *dropout = fmax(*dropout, (double)theirs.embedding_dropout);
    if (run->residual_dropout == 0)
        *dropout = fmax(*dropout, (double)theirs.residual_dropout);
    if (run->attention_dropout == 0)
        *dropout = fmax(*dropout, (double)theirs.attention_dropout);
    if (!result)
        result = check_fields(config, &theirs, &ours);
    return result ? result : check_tied(config, theirs.tied, &ours);
}
