/* loop.h: what the training loop calls beside the trainer: --prove and --sample, and commands that do not
 * train. */
#ifndef ZR_TRAIN_LOOP_H
#define ZR_TRAIN_LOOP_H

#include "zero/train/rank/rank.h"
#include "alloc/base/system/file.h"
#include "zero/model/transformer.h"
#include "zero/text/tokenizer.h"

/* ---- --prove (prove.c) --------------------------------------------------------------------------------- */

/* Rank 0 trains the whole model on the same batches beside the run, and after each step the ranks compare the
 * loss, the gradient norm and every tensor by name. */

struct zr_prove;

/* Opens the dense trainer on rank 0 and the buffers of the other ranks, on the heap. Collective. *out is
 * NULL without --prove. ZR_ERR_MEMORY: the whole model does not fit beside the run. */
zr_result zr_prove_open(struct zr_prove **out, struct zr_rank *rank);
void zr_prove_close(struct zr_prove *prove);

/* Result of a step of the run, equal on every rank. */
struct zr_prove_step {
    uint64_t number;
    double loss, gradient_norm;
    double loss_scale; /* fp16 only; else 0 */
    bool skipped;      /* a gradient overflowed and nothing was updated */
};
/* Trains the dense step and compares. Collective. ZR_ERR_CORRUPT on every rank: the message names the
 * first tensor that differs, its layer and the rank. */
zr_result zr_prove_step(struct zr_prove *prove, const struct zr_prove_step *step);
/* Prints the largest relative differences so far on rank 0: "loss 1.2e-8, ...". */
void zr_prove_print(const struct zr_prove *prove);

/* ---- --sample (sample.c) ------------------------------------------------------------------------------- */

/* Generates text token by token: of the `top_k` likeliest tokens (Fan et al. 2018) the fewest likeliest whose
 * probabilities, at the temperature, reach `top_p` together (Holtzman et al. 2020), drawn by a counter-based
 * generator. The same logits and seed give the same text. */

struct zr_sample_options {
    zr_trainer *trainer; /* borrowed; its inputs are overwritten */
    zr_comm *comm; /* all ranks, which end the text together when a signal ends the run; NULL: none does */
    struct zr_shape shape;
    bool bytes;         /* tokens are bytes and shown as text; else token numbers are shown */
    const char *prompt; /* "": a newline (bytes), the tokenizer's start, or token 0. Without a tokenizer,
                         * tokens are numbers separated by spaces */
    const zr_tokenizer *tokenizer; /* of tokens: prompt and text are text; NULL: numbers */
    int32_t end;                   /* with a tokenizer: the token that ends the text; ZR_NO_TOKEN: none */
    const char *stop;  /* the text ends before this text, which is not empty; NULL: none. For bytes, and with
                        * a tokenizer */
    size_t count;      /* tokens to generate */
    float temperature; /* 0: always the likeliest token */
    size_t top_k;      /* 0: all */
    float top_p;       /* above 0; 1: all */
    uint64_t seed;
};

/* Prints prompt and text into `out`; control bytes except newline and tab, and invalid UTF-8, are shown as
 * \xHH. Every rank calls it with the same options, since the model's calls are collective. Tokens that the
 * tokenizer lacks are not drawn. ZR_ERR_HOST_MEMORY; ZR_ERR_FORMAT: the tokenizer does not encode the prompt,
 * or not as tokens of the model. ZR_ERR_CORRUPT: a logit is not a number. */
zr_result zr_sample_make(const struct zr_sample_options *options, struct zr_text *out);

/* The options of the run's settings, with the tokenizer on all ranks or none (prompts.c). Collective. Errors:
 * those of zr_texts_open(); without a tokenizer *out is usable. The caller closes *out in any case. */
zr_result zr_sample_open(struct zr_sample_options *out, struct zr_rank *rank);
void zr_sample_close(struct zr_sample_options *options);
/* Bytes of a text at most, the final zero included. */
size_t zr_sample_room(const struct zr_sample_options *options);

/* ---- Commands that do not train ------------------------------------------------------------------------ */

/* Both are collective, print on rank 0, and end early if a signal ends the run. */

/* zr-train sample: the text of --prompt and nothing else, or a line of JSON per line of --prompts
 * (prompts.c). ZR_ERR_FORMAT: a prompt is no text, or no tokens; texts of earlier prompts are printed. */
zr_result zr_prompts_run(struct zr_rank *rank);

/* zr-train eval: loss and perplexity of files (evaluate.c). A window has as many tokens as a sequence and
 * begins
 * --stride tokens after the one before it. A file's windows predict each of its tokens but the first once:
 * the first window all of its tokens, the others those that the one before does not predict. A text begins
 * with the tokens that its tokenizer puts in front. ZR_ERR_FORMAT, ZR_ERR_IO: the message names the file. */
zr_result zr_evaluate_run(struct zr_rank *rank);

#endif
