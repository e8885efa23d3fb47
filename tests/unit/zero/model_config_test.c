/* model_config_test.c: config.json's keys, each of them understood, without effect, or refused by its name
 * with the way out. A row changes some keys of a file that fits. */
#include <jansson.h>
#include <string.h>

#include "alloc/base/error.h"
#include "tests/support/tap.h"
#include "zero/checkpoint/model_file.h"

/* As transformers saves them; keys of no effect included. */
static const char
    gpt2[] =
        "{'model_type': 'gpt2', 'architectures': ['GPT2LMHeadModel'], 'n_embd': 24, 'n_head': 3, 'n_layer': 2,"
        " 'n_positions': 16, 'n_inner': null, 'vocab_size': 60, 'activation_function': 'gelu_new',"
        " 'layer_norm_epsilon': 1e-5, 'scale_attn_weights': true, 'scale_attn_by_inverse_layer_idx': false,"
        " 'reorder_and_upcast_attn': false, 'resid_pdrop': 0.1, 'embd_pdrop': 0.2, 'attn_pdrop': 0.1,"
        " 'bos_token_id': 59, 'initializer_range': 0.02, 'summary_type': 'cls_index', 'torch_dtype': 'float32',"
        " 'task_specific_params': {'text-generation': {'do_sample': true}}, 'use_cache': true,"
        " 'transformers_version': '4.57.6'}",
    llama[] = "{'model_type': 'llama', 'architectures': ['LlamaForCausalLM'], 'hidden_size': 24,"
              " 'num_attention_heads': 3, 'num_key_value_heads': 1, 'num_hidden_layers': 2, 'head_dim': 8,"
              " 'intermediate_size': 40, 'vocab_size': 60, 'hidden_act': 'silu', 'rms_norm_eps': 1e-6,"
              " 'rope_parameters': {'rope_theta': 500.0, 'rope_type': 'default'}, 'attention_bias': false,"
              " 'mlp_bias': false, 'attention_dropout': 0.0, 'max_position_embeddings': 2048,"
              " 'pretraining_tp': 1, 'tie_word_embeddings': false, 'dtype': 'float32'}";

static const struct zr_shape gpt2_shape = {.architecture = ZR_ARCH_GPT2,
                                           .layers = 2,
                                           .hidden = 24,
                                           .heads = 3,
                                           .kv_heads = 3,
                                           .ffn = 96,
                                           .vocabulary = 60,
                                           .vocabulary_padded = 64,
                                           .sequence = 16,
                                           .tied = true},
                             llama_shape = {.architecture = ZR_ARCH_LLAMA,
                                            .layers = 2,
                                            .hidden = 24,
                                            .heads = 3,
                                            .kv_heads = 1,
                                            .ffn = 40,
                                            .vocabulary = 60,
                                            .vocabulary_padded = 64,
                                            .sequence = 16,
                                            .rope_theta = 500,
                                            .norm_epsilon = 1e-6};

/* JSON with single quotes. */
static json_t *parse(const char *text)
{
    char quoted[2048];
    size_t i = 0;
    for (; text[i] && i + 1 < sizeof quoted; i++)
        quoted[i] = text[i] == '\'' ? '"' : text[i];
    quoted[i] = '\0';
    return json_loads(quoted, 0, NULL);
}

/* `words`: what the message has to name, each before a ';'; NULL: accepted. */
struct row {
    const char *changes; /* "#key" alone: the key is missing */
    const char *words;
};

static bool names_all(const char *message, const char *words)
{
    char word[64];
    for (const char *end; (end = strchr(words, ';')); words = end + 1) {
        snprintf(word, sizeof word, "%.*s", (int)(end - words), words);
        if (!strstr(message, word))
            return false;
    }
    return true;
}

static void check_row(const char *base, const struct zr_shape *shape, bool has_head, const struct row *row)
{
    json_t *root = parse(base), *changes = row->changes[0] == '#' ? NULL : parse(row->changes);
    double dropout;
    if (changes)
        json_object_update(root, changes);
    else
        json_object_del(root, row->changes + 1);
    zr_result result = zr_model_config_check(&(struct zr_model_config){"model.safetensors", root, has_head},
                                             shape, &dropout);
    bool good = row->words ? result == ZR_ERR_FORMAT && names_all(zr_last_error(), row->words) &&
                                 strstr(zr_last_error(), "model.safetensors")
                           : result == ZR_OK;
    if (!tap_ok(good && (changes || row->changes[0] == '#'), "%s: %s: %s",
                zr_architecture_name(shape->architecture), row->changes,
                row->words ? row->words : "accepted"))
        tap_note("%s", result ? zr_last_error() : "accepted");
    json_decref(changes);
    json_decref(root);
}

#define CHECK(base, shape, has_head, rows)                                                                   \
    for (size_t i = 0; i < sizeof(rows) / sizeof *(rows); i++)                                               \
    check_row(base, shape, has_head, &(rows)[i])

static void test_gpt2(void)
{
    static const struct row rows[] = {
        {"{}", NULL},
        {"{'n_embd': 32}", "n_embd 32;--hidden 32;"},
        {"{'n_head': 4}", "n_head 4;--heads 4;"},
        {"{'n_head': '3'}", "n_head '3';"},
        {"{'n_head': 3.5}", "n_head 3.5;"},
        {"#n_head", "n_head 12;--heads 12;"},
        {"{'n_layer': 3}", "--layers 3;"},
        {"{'n_positions': 32}", "n_positions 32;--seq 32;"},
        {"{'vocab_size': 64}", "vocab_size 64;--vocab 64;"}, /* those of padding are no tokens */
        {"{'n_inner': 96}", NULL},
        {"{'n_inner': 64}", "n_inner 64;--model;"},
        {"{'activation_function': 'gelu_pytorch_tanh'}", NULL},
        {"{'activation_function': 'gelu'}", "activation_function 'gelu';--model;"},
        {"{'activation_function': 'silu'}", "activation_function 'silu';gelu_new;"},
        {"{'activation_function': 'gelu_new gelu'}", "activation_function;"},
        {"#activation_function", NULL},
        {"{'layer_norm_epsilon': 1e-6}", "layer_norm_epsilon 1e-06;"},
        {"{'layer_norm_epsilon': 1.0001e-5}", "layer_norm_epsilon;"},
        {"#layer_norm_epsilon", NULL},
        {"{'scale_attn_weights': false}", "scale_attn_weights false;"},
        {"{'scale_attn_by_inverse_layer_idx': true}", "scale_attn_by_inverse_layer_idx true;"},
        {"{'scale_attn_by_inverse_layer_idx': 'false'}", "scale_attn_by_inverse_layer_idx 'false';"},
        {"{'reorder_and_upcast_attn': true}", NULL}, /* the same products in another order */
        {"{'add_cross_attention': true}", "add_cross_attention;"},
        {"{'tie_word_embeddings': true}", NULL},
        {"{'tie_word_embeddings': false}", "tie_word_embeddings;lm_head.weight;"},
        {"{'quantization_config': {'quant_method': 'gptq'}}", "quantization_config;quantized;"},
        {"{'quantization_config': null}", NULL},
        {"{'pruned_heads': {'0': [1]}}", "pruned_heads;"},
        {"{'resid_pdrop': 'much'}", "resid_pdrop;"},
        {"{'model_type': 'llama'}", "model_type 'llama';--arch llama;"},
        {"{'model_type': 'gpt_neo'}", "model_type 'gpt_neo';"},
        {"#model_type", "model_type;"},
        {"{'rope_theta': 500.0}", "rope_theta;remove it;"}, /* of a LLaMA */
        {"{'text_config': {'n_head': 3}}", "text_config;"},
        {"{'no_such_key': 1}", "no_such_key 1;remove it;"},
        {"{'hidden_size': 32}", "hidden_size 32;another name;"}, /* transformers takes these names too */
    };
    double dropout = 0;
    json_t *root = parse(gpt2);
    CHECK(gpt2, &gpt2_shape, false, rows);
    tap_result(zr_model_config_check(&(struct zr_model_config){"m", root, false}, &gpt2_shape, &dropout),
               ZR_OK, "as saved");
    tap_ok((float)dropout == 0.2f, "the largest dropout that the run lacks is told");
    struct zr_shape read = gpt2_shape;
    tap_result(zr_model_config_read(&(struct zr_model_config){"m", root, false}, &read, &dropout), ZR_OK,
               "as a shape");
    tap_ok(read.embedding_dropout == 0.2f && read.residual_dropout == 0.1f &&
               read.attention_dropout == 0.1f && dropout == 0,
           "with the dropout of embeddings, residuals and attention");
    json_decref(root);
}

static void test_llama(void)
{
    static const struct row rows[] = {
        {"{}", NULL},
        {"{'hidden_size': 32, 'head_dim': null}", "--hidden 32;"},
        {"{'num_attention_heads': 6, 'head_dim': null}", "--heads 6;"},
        {"{'num_attention_heads': 0}", "num_attention_heads 0;"},
        {"{'num_key_value_heads': 3}", "--kv-heads 3;"},
        {"{'num_key_value_heads': null}", "--kv-heads 3;"},
        {"#num_key_value_heads", "--kv-heads 3;"},
        {"{'intermediate_size': 48}", "--ffn 48;"},
        {"{'num_hidden_layers': 3}", "--layers 3;"},
        {"{'vocab_size': 61}", "--vocab 61;"},
        {"{'head_dim': 16}", "head_dim 16;--model;"},
        {"#head_dim", NULL},
        {"{'rope_scaling': {'type': 'linear', 'factor': 2.0}}", "rope_scaling;another name;"},
        {"{'rope_parameters': {'type': 'yarn', 'factor': 2.0, 'rope_theta': 1.0}}",
         "rope_parameters;not finite;"},
        {"{'hidden_act': 'swish'}", NULL},
        {"{'hidden_act': 'gelu'}", "hidden_act 'gelu';silu;"},
        {"{'rms_norm_eps': 1e-5}", "rms_norm_eps 1e-05;--norm-epsilon 1e-05;"},
        {"#rms_norm_eps", NULL}, /* transformers' own is 1e-6 */
        {"{'attention_bias': true}", "attention_bias true;--model;"},
        {"{'mlp_bias': true}", "mlp_bias true;--model;"},
        {"{'max_position_embeddings': 8}", NULL},
        {"{'pretraining_tp': 2}", NULL},
        {"{'partial_rotary_factor': 1.0}", NULL},
        {"{'partial_rotary_factor': 0.5}", "partial_rotary_factor 0.5;"},
        {"{'sliding_window': 8}", "sliding_window 8;"},
        {"{'sliding_window': null}", NULL},
        {"{'tie_word_embeddings': true}", "tie_word_embeddings true;resume with --tie-embeddings;"},
        {"#tie_word_embeddings", NULL},
        {"{'attention_multiplier': 0.5}", "attention_multiplier 0.5;"},
        {"{'logit_scale': 2, 'embedding_multiplier': 12, 'hidden_act': 'relu'}", /* all in one message */
         "logit_scale 2;embedding_multiplier 12;hidden_act 'relu';"},
        /* transformers 5 */
        {"{'rope_parameters': {'rope_theta': 1234567.0, 'rope_type': 'default'}}",
         "rope_parameters.rope_theta 1234567;--rope-theta 1234567;"},
        {"{'rope_parameters': {'rope_theta': 500, 'rope_type': 'llama3', 'factor': 8}}",
         "rope_parameters.low_freq_factor missing;rope_parameters.high_freq_factor missing;"},
        {"{'rope_parameters': {'rope_theta': 500, 'rope_type': 'linear', 'factor': 2}}",
         "rope_parameters;--model;"},
        {"{'rope_parameters': {'rope_theta': 500, 'rope_type': 'yarn'}}", "rope_parameters.factor missing;"},
        {"{'rope_parameters': {'rope_theta': 500, 'rope_type': 'dynamic'}}",
         "rope_parameters.factor missing;"},
        {"{'rope_parameters': {'rope_theta': 500, 'factor': 2}}", "rope_parameters.factor 2;"},
        {"{'rope_parameters': {'rope_theta': 500, 'partial_rotary_factor': 0.5}}",
         "partial_rotary_factor 0.5;"},
        {"{'rope_parameters': {'full_attention': {'rope_theta': 500}}}", "rope_parameters.full_attention;"},
        {"{'rope_parameters': 3}", "rope_parameters 3;"},
        {"{'rope_theta': 10000}", "rope_theta 10000;another one;"}, /* beside the other */
        /* transformers 4 */
        {"{'rope_parameters': null, 'rope_theta': 500, 'rope_scaling': null}", NULL},
        {"{'rope_parameters': null, 'rope_theta': 500, 'rope_scaling': {'rope_type': 'default'}}", NULL},
        {"{'rope_parameters': null, 'rope_theta': 500, 'rope_scaling': {'type': 'linear', 'factor': 2}}",
         "rope_scaling;--model;"},
        {"{'rope_parameters': null, 'rope_theta': 10000}", "rope_theta 10000;--rope-theta 10000;"},
        {"#rope_parameters", "rope_theta 10000;missing key;--rope-theta 10000;"},
        {"{'rope_parameters': null, 'rope_theta': '500'}", "rope_theta '500';"},
    };
    static const struct row headless[] = {
        {"{}", "not whole;tie_word_embeddings;lm_head.weight;"},
        {"#tie_word_embeddings", "not whole;tie_word_embeddings;"},
        {"{'tie_word_embeddings': true}", "resume with --tie-embeddings;"},
    };
    static const struct row tied[] = {
        {"{}", "resume without --tie-embeddings;"},
        {"{'tie_word_embeddings': true}", NULL},
        {"{'tie_word_embeddings': 1}", "tie_word_embeddings 1;"},
    };
    struct zr_shape shape = llama_shape;
    CHECK(llama, &shape, true, rows);
    CHECK(llama, &shape, false, headless);
    shape.tied = true;
    CHECK(llama, &shape, true, tied);
}

/* A model of each family, and what it has beyond its architecture. */
static const struct {
    const char *text, *variant;
    size_t heads, kv_heads, ffn;
    double theta;
} families[] = {
    {"{'model_type': 'gpt2', 'n_embd': 24, 'n_head': 3, 'n_layer': 2, 'n_positions': 1024, 'vocab_size': 60,"
     " 'n_inner': 40, 'activation_function': 'relu', 'scale_attn_weights': false,"
     " 'scale_attn_by_inverse_layer_idx': true, 'tie_word_embeddings': false}",
     "positions 1024, activation 2, untied 1, unscaled 1, scaled by layer 1", 3, 3, 40, 0},
    {"{'model_type': 'llama', 'hidden_size': 24, 'num_attention_heads': 4, 'num_hidden_layers': 2,"
     " 'intermediate_size': 40, 'vocab_size': 60, 'attention_bias': true, 'mlp_bias': true,"
     " 'max_position_embeddings': 131072, 'rope_scaling': {'factor': 8.0, 'low_freq_factor': 1.0,"
     " 'high_freq_factor': 4.0, 'original_max_position_embeddings': 8192, 'rope_type': 'llama3'},"
     " 'rope_theta': 500000.0}",
     "biases 7, angle factor 8, offset -0.333333333333333, slope 434.599097936269, scale 1", 4, 4, 40, 5e5},
    {"{'model_type': 'mistral', 'hidden_size': 24, 'num_attention_heads': 16, 'num_hidden_layers': 2,"
     " 'intermediate_size': 40, 'vocab_size': 60, 'head_dim': 128, 'sliding_window': 12,"
     " 'rope_theta': 1000000.0}",
     "head width 128, window 12", 16, 8, 40, 1e6},
    {"{'model_type': 'qwen2', 'hidden_size': 24, 'num_attention_heads': 2, 'num_key_value_heads': 1,"
     " 'num_hidden_layers': 2, 'intermediate_size': 40, 'vocab_size': 60, 'use_sliding_window': false,"
     " 'sliding_window': 131072, 'max_window_layers': 28, 'rope_theta': 1000000.0, 'rope_scaling':"
     " {'type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 32768}}",
     "biases 1, angle factor 4, offset 2, slope -0.5, scale 1.13862943611199, by pair 1", 2, 1, 40, 1e6},
    {"{'model_type': 'qwen3', 'hidden_size': 24, 'num_attention_heads': 2, 'num_key_value_heads': 1,"
     " 'num_hidden_layers': 2, 'intermediate_size': 40, 'vocab_size': 60, 'attention_bias': false,"
     " 'layer_types': ['full_attention', 'full_attention'], 'sliding_window': null,"
     " 'rope_parameters': {'rope_type': 'linear', 'factor': 2, 'rope_theta': 5000}}",
     "head width 128, head norms 1, angle factor 2, scale 1", 2, 1, 40, 5000},
    {"{'model_type': 'qwen2', 'hidden_size': 24, 'num_attention_heads': 2, 'num_key_value_heads': 1,"
     " 'num_hidden_layers': 2, 'intermediate_size': 40, 'vocab_size': 60, 'use_sliding_window': true,"
     " 'sliding_window': 8, 'max_window_layers': 1, 'layer_types': ['full_attention', 'sliding_attention']}",
     "window 8, from layer 1, biases 1", 2, 1, 40, 1e4},
    {"{'model_type': 'phi3', 'hidden_size': 24, 'num_attention_heads': 3, 'num_hidden_layers': 2,"
     " 'intermediate_size': 40, 'vocab_size': 60, 'sliding_window': 7, 'partial_rotary_factor': 0.5,"
     " 'original_max_position_embeddings': 8, 'max_position_embeddings': 64, 'rope_scaling':"
     " {'type': 'longrope', 'short_factor': [1, 1], 'long_factor': [2, 3.5]}, 'resid_pdrop': 0.0}",
     "window 7, rotary share 0.5, names 2, angle factor 1, scale 1.4142135623731, divisors 6", 3, 3, 40, 1e4},
    {"{'model_type': 'gemma', 'hidden_size': 24, 'num_attention_heads': 2, 'num_key_value_heads': 1,"
     " 'num_hidden_layers': 2, 'intermediate_size': 40, 'vocab_size': 60, 'head_dim': 16,"
     " 'hidden_act': 'gelu', 'hidden_activation': null, 'rms_norm_eps': 1e-6, 'attention_bias': false}",
     "head width 16, norms add one 1, scaled tokens 1, activation 1", 2, 1, 40, 1e4},
    {"{'model_type': 'gemma3_text', 'hidden_size': 24, 'num_attention_heads': 2, 'num_key_value_heads': 1,"
     " 'num_hidden_layers': 2, 'intermediate_size': 40, 'vocab_size': 60, 'head_dim': 16, 'sliding_window': 5,"
     " 'layer_types': ['sliding_attention', 'full_attention'], 'query_pre_attn_scalar': 9,"
     " 'hidden_activation': 'gelu_pytorch_tanh', 'attn_logit_softcapping': null, 'rope_parameters':"
     " {'full_attention': {'rope_type': 'linear', 'factor': 8, 'rope_theta': 700},"
     " 'sliding_attention': {'rope_type': 'default', 'rope_theta': 90}}}",
     "head width 16, window 5, but each 2, head norms 1, norms add one 1, branch norms 1, scaled tokens 1, "
     "activation 1, window theta 90, score width 9, names 3, angle factor 8, scale 1",
     2, 1, 40, 700},
    {"{'model_type': 'gemma3_text', 'hidden_size': 24, 'num_attention_heads': 2, 'num_key_value_heads': 2,"
     " 'num_hidden_layers': 2, 'intermediate_size': 40, 'vocab_size': 60, 'head_dim': 256,"
     " '_sliding_window_pattern': 6, 'rope_local_base_freq': 90.0, 'rope_theta': 700.0,"
     " 'final_logit_softcapping': null, 'use_bidirectional_attention': false}",
     "head width 256, window 4096, but each 6, head norms 1, norms add one 1, branch norms 1, "
     "scaled tokens 1, activation 1, window theta 90, names 3",
     2, 2, 40, 700},
    {"{'model_type': 'gpt_neox', 'hidden_size': 24, 'num_attention_heads': 3, 'num_hidden_layers': 2,"
     " 'intermediate_size': 40, 'vocab_size': 60, 'hidden_act': 'gelu_new', 'rotary_pct': 0.5,"
     " 'partial_rotary_factor': 0.5, 'rope_theta': 500, 'rotary_emb_base': 500, 'layer_norm_eps': 1e-5, 'use_parallel_residual': false,"
     " 'attention_bias': false, 'hidden_dropout': 0.0, 'attention_dropout': 0.0}",
     "biases 4, layer norms 1, ungated 1, rotary share 0.5, names 1", 3, 3, 40, 500},
    {"{'model_type': 'gpt_neox', 'hidden_size': 24, 'num_attention_heads': 3, 'num_hidden_layers': 2,"
     " 'intermediate_size': 40, 'vocab_size': 60}",
     "biases 7, layer norms 1, parallel 1, ungated 1, activation 1, rotary share 0.25, names 1", 3, 3, 40,
     1e4},
};

static zr_result read_text(const json_t *root, struct zr_shape *shape)
{
    double dropout;
    *shape = (struct zr_shape){.sequence = 16};
    return zr_model_config_read(&(struct zr_model_config){"m", root, false}, shape, &dropout);
}

/* The file with a key's value or name changed is refused, and the message has the key. */
static bool refuses_change(const json_t *root, const char *key, bool renames)
{
    char name[64];
    struct zr_shape shape;
    json_t *changed = json_deep_copy(root);
    snprintf(name, sizeof name, "%s%s", key, renames ? "_2" : "");
    json_object_set_new(changed, name, json_pack("[i]", 1));
    zr_result result = read_text(changed, &shape);
    bool refused = result == ZR_ERR_FORMAT && strstr(zr_last_error(), name);
    json_decref(changed);
    return refused;
}

static void test_families(void)
{
    unsigned refused = 0, changes = 0;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        static const char *const ignored[] = {"sliding_window", "max_window_layers",
                                              "max_position_embeddings"};
        json_t *root = parse(families[i].text);
        char variant[ZR_VARIANT_ROOM] = "";
        struct zr_shape shape;
        const char *key;
        json_t *value;
        tap_result(read_text(root, &shape), ZR_OK, "a %s",
                   json_string_value(json_object_get(root, "model_type")));
        zr_variant_print(&shape.variant, variant);
        if (!tap_ok(strcmp(variant, families[i].variant) == 0, "%s", families[i].variant))
            tap_note("%s", variant);
        tap_ok(shape.layers == 2 && shape.hidden == 24 && shape.vocabulary == 60 &&
                   shape.heads == families[i].heads && shape.kv_heads == families[i].kv_heads &&
                   shape.ffn == families[i].ffn && shape.rope_theta == families[i].theta,
               "its sizes");
        json_object_foreach(root, key, value)
        {
            bool has_effect = true;
            for (size_t k = 0; k < 3; k++)
                has_effect &= strcmp(key, ignored[k]) != 0 || (k < 2 && shape.variant.window);
            for (int renames = !has_effect; renames < 2; renames++, changes++)
                if (refuses_change(root, key, renames))
                    refused++;
                else
                    tap_note("%s of family %zu", key, i);
        }
        json_object_del(root, i == 0 ? "n_embd" : "hidden_size");
        tap_ok(read_text(root, &shape) == ZR_ERR_FORMAT && strstr(zr_last_error(), "missing"),
               "a size that is missing is refused");
        json_decref(root);
    }
    tap_ok(changes > 80 && refused == changes, "%u of %u changed files are refused by the key", refused,
           changes);
}

int main(void)
{
    test_families();
    test_gpt2();
    test_llama();
    return tap_done();
}
