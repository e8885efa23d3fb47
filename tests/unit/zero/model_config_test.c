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
    zr_result result = zr_model_config_check(
        &(struct zr_model_config){"model.safetensors", root, shape, has_head}, &dropout);
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
        {"{'n_inner': 64}", "n_inner 64;4 x 24;"},
        {"{'activation_function': 'gelu_pytorch_tanh'}", NULL},
        {"{'activation_function': 'gelu'}", "activation_function 'gelu';gelu_new;"},
        {"{'activation_function': 'relu'}", "activation_function 'relu';"},
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
        {"{'tie_word_embeddings': false}", "tie_word_embeddings false;"},
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
        {"{'hidden_size': 32}", "hidden_size 32;--hidden 32;"}, /* transformers takes these names too */
    };
    double dropout = 0;
    json_t *root = parse(gpt2);
    CHECK(gpt2, &gpt2_shape, false, rows);
    tap_result(zr_model_config_check(&(struct zr_model_config){"m", root, &gpt2_shape, false}, &dropout),
               ZR_OK, "as saved");
    tap_ok(dropout == 0.2, "the largest dropout is told");
    json_decref(root);
}

static void test_llama(void)
{
    static const struct row rows[] = {
        {"{}", NULL},
        {"{'hidden_size': 32, 'head_dim': null}", "--hidden 32;"},
        {"{'num_attention_heads': 6, 'head_dim': null}", "--heads 6;"},
        {"{'num_attention_heads': 0}", "head_dim;"},
        {"{'num_key_value_heads': 3}", "--kv-heads 3;"},
        {"{'num_key_value_heads': null}", "--kv-heads 3;"},
        {"#num_key_value_heads", "--kv-heads 3;"},
        {"{'intermediate_size': 48}", "--ffn 48;"},
        {"{'num_hidden_layers': 3}", "--layers 3;"},
        {"{'vocab_size': 61}", "--vocab 61;"},
        {"{'head_dim': 16}", "head_dim 16;no option;"}, /* whatever --hidden and --heads are */
        {"#head_dim", NULL},
        {"{'hidden_act': 'swish'}", NULL},
        {"{'hidden_act': 'gelu'}", "hidden_act 'gelu';silu;"},
        {"{'rms_norm_eps': 1e-5}", "rms_norm_eps 1e-05;--norm-epsilon 1e-05;"},
        {"#rms_norm_eps", NULL}, /* transformers' own is 1e-6 */
        {"{'attention_bias': true}", "attention_bias true;"},
        {"{'mlp_bias': true}", "mlp_bias true;"},
        {"{'max_position_embeddings': 8}", NULL},
        {"{'pretraining_tp': 2}", NULL},
        {"{'partial_rotary_factor': 1.0}", NULL},
        {"{'partial_rotary_factor': 0.5}", "partial_rotary_factor 0.5;"},
        {"{'sliding_window': 8}", "sliding_window 8;"},
        {"{'sliding_window': null}", NULL},
        {"{'tie_word_embeddings': true}", "tie_word_embeddings true;resume with --tie-embeddings;"},
        {"#tie_word_embeddings", NULL},
        {"{'attention_multiplier': 0.5}", "attention_multiplier 0.5;"},
        /* transformers 5 */
        {"{'rope_parameters': {'rope_theta': 1234567.0, 'rope_type': 'default'}}",
         "rope_parameters.rope_theta 1234567;--rope-theta 1234567;"},
        {"{'rope_parameters': {'rope_theta': 500, 'rope_type': 'llama3', 'factor': 8}}",
         "rope_parameters.rope_type 'llama3';"},
        {"{'rope_parameters': {'rope_theta': 500, 'rope_type': 'linear', 'factor': 2}}",
         "rope_type 'linear';"},
        {"{'rope_parameters': {'rope_theta': 500, 'rope_type': 'yarn'}}", "rope_type 'yarn';"},
        {"{'rope_parameters': {'rope_theta': 500, 'rope_type': 'dynamic'}}", "rope_type 'dynamic';"},
        {"{'rope_parameters': {'rope_theta': 500, 'factor': 2}}", "rope_parameters.factor 2;"},
        {"{'rope_parameters': {'rope_theta': 500, 'partial_rotary_factor': 0.5}}",
         "partial_rotary_factor 0.5;"},
        {"{'rope_parameters': {'full_attention': {'rope_theta': 500}}}", "rope_parameters.full_attention;"},
        {"{'rope_parameters': 3}", "rope_parameters 3;"},
        {"{'rope_theta': 10000}", "rope_theta 10000;--rope-theta 10000;"}, /* beside the other */
        /* transformers 4 */
        {"{'rope_parameters': null, 'rope_theta': 500, 'rope_scaling': null}", NULL},
        {"{'rope_parameters': null, 'rope_theta': 500, 'rope_scaling': {'rope_type': 'default'}}", NULL},
        {"{'rope_parameters': null, 'rope_theta': 500, 'rope_scaling': {'type': 'linear', 'factor': 2}}",
         "rope_scaling.type 'linear';"},
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

int main(void)
{
    test_gpt2();
    test_llama();
    return tap_done();
}
