/* prompts.c: zr-train sample: the prompts of the command line, of a file or of standard input, and their
 * texts. */
#include "zero/train/loop.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/heap/heap.h"
#include "zero/train/settings/args.h"
#include "zero/train/texts.h"

zr_result zr_sample_open(struct zr_sample_options *out, struct zr_rank *rank)
{
    const struct zr_train_config *config = rank->config;
    zr_tokenizer *tokenizer;
    int32_t end;
    zr_result result = zr_texts_open(&tokenizer, &end, config, rank->comm);
    *out = (struct zr_sample_options){.tokenizer = tokenizer,
                                      .end = end,
                                      .comm = rank->comm,
                                      .trainer = rank->state.trainer,
                                      .shape = rank->state.transformer.shape,
                                      .bytes = config->bytes,
                                      .prompt = config->prompt,
                                      .stop = config->stop[0] && (tokenizer || config->bytes) ? config->stop
                                                                                              : NULL,
                                      .count = config->sample,
                                      .temperature = config->temperature,
                                      .top_k = config->top_k,
                                      .top_p = config->top_p,
                                      .seed = config->seed};
    return result;
}

void zr_sample_close(struct zr_sample_options *options)
{
    zr_tokenizer_close((zr_tokenizer *)options->tokenizer);
    options->tokenizer = NULL;
}

size_t zr_sample_room(const struct zr_sample_options *options)
{
    enum { TOKEN_TEXT = 512, NUMBER = 12, NORMALIZED = 16 }; /* of a token; of a byte of the prompt */
    return 4096 + (options->tokenizer ? TOKEN_TEXT : NUMBER) * options->count +
           NORMALIZED * strlen(options->prompt);
}

/* ---- Lines of prompts ---------------------------------------------------------------------------------- */

/* What rank 0 has read of the prompts, for the other ranks. */
struct piece {
    zr_result result;
    size_t bytes; /* 0: the end */
    char data[16384];
};

static zr_result read_piece(const struct zr_train_config *config, struct zr_file *file, struct piece *out)
{
    bool input = strcmp(config->prompts, "-") == 0;
    if (file->fd < 0 && input)
        *file = zr_file_borrow(STDIN_FILENO, "standard input");
    else if (file->fd < 0)
        out->result = zr_file_open(file, config->prompts);
    if (out->result == ZR_OK)
        out->result = zr_file_read(file, out->data, sizeof out->data, &out->bytes);
    return out->result;
}

/* Reads the prompts on rank 0, because standard input has one reader, and gives them to all ranks. */
static zr_result read_prompts(const struct zr_rank *rank, struct zr_growing *out)
{
    unsigned world = zr_comm_world(rank->comm);
    struct piece *pieces = zr_heap_zalloc(world + 1, sizeof *pieces), *mine = pieces + world;
    struct zr_file file = {.fd = -1};
    zr_result result = pieces ? ZR_OK : ZR_ERR_HOST_MEMORY;
    bool ends = false;
    while (result == ZR_OK && !ends) {
        zr_result read = rank->rank == 0 ? read_piece(rank->config, &file, mine) : ZR_OK;
        result = zr_comm_host_all_gather(rank->comm, mine, sizeof *mine, pieces);
        ends = pieces[0].bytes == 0;
        if (result == ZR_OK && pieces[0].result != ZR_OK)
            result = read != ZR_OK ? read : zr_fail(pieces[0].result, "rank 0 cannot read --prompts");
        if (result == ZR_OK && !zr_growing_add(out, pieces[0].data, pieces[0].bytes))
            result = zr_fail(ZR_ERR_HOST_MEMORY, "no memory for the prompts of %s", rank->config->prompts);
    }
    if (rank->rank == 0 && strcmp(rank->config->prompts, "-") != 0)
        zr_file_close(&file);
    zr_heap_free(pieces);
    return result;
}

/* ---- Texts --------------------------------------------------------------------------------------------- */

/* Prints a text as it is, or a line of JSON with its prompt. */
static zr_result print_text(const struct zr_sample_options *options, const struct zr_text *text, bool lines)
{
    char buffer[4096];
    struct zr_file file = zr_file_borrow(STDOUT_FILENO, "standard output");
    struct zr_text out;
    zr_text_start(&out, &file, buffer, sizeof buffer);
    if (lines) {
        zr_text_print(&out, "{\"prompt\": ");
        zr_text_json_string(&out, options->prompt, strlen(options->prompt));
        zr_text_print(&out, ", \"text\": ");
        zr_text_json_string(&out, text->buffer, text->used_bytes);
        zr_text_print(&out, "}\n");
    } else {
        zr_text_put(&out, text->buffer, text->used_bytes);
        zr_text_put(&out, "\n", 1);
    }
    return zr_text_flush(&out);
}

static zr_result answer(struct zr_rank *rank, const struct zr_sample_options *options, bool lines)
{
    size_t size = zr_sample_room(options);
    char *buffer = zr_heap_alloc(size);
    struct zr_text text;
    if (!buffer)
        return ZR_ERR_HOST_MEMORY;
    zr_text_start(&text, NULL, buffer, size);
    zr_result result = zr_sample_make(options, &text);
    if (result == ZR_OK && zr_rank_logs(rank))
        result = print_text(options, &text, lines);
    zr_heap_free(buffer);
    return result;
}

/* Puts the line into the message of a failure. */
static zr_result name_line(zr_result result, size_t number)
{
    char message[512];
    snprintf(message, sizeof message, "%s", zr_last_error());
    return zr_fail(result, "line %zu of --prompts: %s", number, message);
}

static zr_result check_line(const struct zr_sample_options *options, const struct zr_train_config *config,
                            size_t bytes)
{
    if (strlen(options->prompt) != bytes)
        return zr_fail(ZR_ERR_FORMAT, "it has a zero byte");
    return options->tokenizer || options->bytes || zr_prompt_is_tokens(config, options->prompt)
               ? ZR_OK
               : zr_fail(ZR_ERR_FORMAT, "without --tokenizer FILE it must be token numbers below --vocab");
}

/* Each line has the text that it has alone. */
static zr_result answer_lines(struct zr_rank *rank, struct zr_sample_options *options)
{
    struct zr_growing text = {.data = NULL};
    zr_result result = read_prompts(rank, &text);
    size_t number = 0;
    if (result == ZR_OK && !zr_growing_add(&text, "", 1)) /* room behind a last line without a line feed */
        result = ZR_ERR_HOST_MEMORY;
    char *at = text.data, *end = at + (text.used_bytes ? text.used_bytes - 1 : 0);
    while (result == ZR_OK && at < end) {
        enum zr_request_kind request;
        result = zr_local_request(rank->comm, &request);
        if (result != ZR_OK || request == ZR_REQUEST_SAVE_AND_END)
            break;
        char *feed = memchr(at, '\n', (size_t)(end - at)), *until = feed ? feed : end;
        char *next = until + 1;
        until -= until > at && until[-1] == '\r';
        *until = '\0';
        options->prompt = at;
        result = check_line(options, rank->config, (size_t)(until - at));
        if (result == ZR_OK)
            result = answer(rank, options, true);
        number++;
        if (result == ZR_ERR_FORMAT)
            result = name_line(result, number);
        at = next;
    }
    zr_growing_end(&text);
    return result;
}

zr_result zr_prompts_run(struct zr_rank *rank)
{
    struct zr_sample_options options;
    zr_result result = zr_sample_open(&options, rank);
    if (result == ZR_OK)
        result = rank->config->prompts[0] ? answer_lines(rank, &options) : answer(rank, &options, false);
    zr_sample_close(&options);
    return result;
}
