/* evaluate.c: zr-train eval: the loss of the tokens of files. Ranks take windows in turn, as they take rows
 * of a step. The end of a file's last window, if it is short, is filled with token 0, whose losses are not
 * counted: attention is causal, so they change no other. */
#define _GNU_SOURCE
#include "zero/train/loop.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/system/os.h"
#include "alloc/heap/heap.h"
#include "zero/train/report/log.h"
#include "zero/train/report/terminal.h"
#include "zero/train/settings/flags.h"
#include "zero/train/texts.h"

struct evaluation {
    struct zr_rank *rank;
    zr_tokenizer *tokenizer;   /* NULL: none */
    size_t rows;               /* windows of a rank in a round */
    int32_t *tokens, *targets; /* [rows][sequence] */
    int32_t *window;           /* [sequence + 1] */
    struct zr_evaluation sums; /* `nats`: those of this rank */
    bool ends;                 /* a signal ends the run; all ranks agree */
    struct zr_progress progress;
};

/* Tokens of one file: of a text, or the part of a list that the file has. */
struct tokens {
    const int32_t *text; /* NULL: in `files` */
    struct zr_token_files *files;
    uint64_t first, count;
};

static zr_result read_tokens(const struct tokens *from, uint64_t first, size_t count, int32_t *out)
{
    if (!from->text)
        return zr_token_files_read(from->files, from->first + first, count, out);
    memcpy(out, from->text + first, count * sizeof *out);
    return ZR_OK;
}

/* ---- Windows ------------------------------------------------------------------------------------------- */

/* A window's inputs are its tokens; the target of each is the next token. */
struct place {
    uint64_t first;         /* token */
    size_t counted, length; /* the targets from `counted` to `length` - 1 are counted */
};

static uint64_t windows_of(const struct evaluation *e, uint64_t tokens)
{
    uint64_t sequence = e->rank->config->shape.sequence, stride = e->rank->config->stride;
    return tokens < 2 ? 0 : tokens - 1 <= sequence ? 1 : (tokens - 2 - sequence) / stride + 2;
}

static struct place place_of(const struct evaluation *e, uint64_t tokens, uint64_t window)
{
    uint64_t sequence = e->rank->config->shape.sequence, stride = e->rank->config->stride,
             first = window * stride, left = tokens - 1 - first;
    return (struct place){.first = first,
                          .counted = window > 0 ? (size_t)(sequence - stride) : 0,
                          .length = (size_t)(left < sequence ? left : sequence)};
}

/* Fills a row of inputs and targets. */
static zr_result fill_row(const struct evaluation *e, const struct tokens *from, struct place place,
                          size_t row)
{
    size_t sequence = e->rank->config->shape.sequence, bytes = place.length * sizeof *e->window,
           rest = sequence * sizeof *e->window - bytes;
    int32_t *tokens = e->tokens + row * sequence, *targets = e->targets + row * sequence;
    zr_result result = read_tokens(from, place.first, place.length + 1, e->window);
    if (result != ZR_OK)
        return result;
    memcpy(tokens, e->window, bytes);
    memcpy(targets, e->window + 1, bytes);
    memset(tokens + place.length, 0, rest);
    memset(targets + place.length, 0, rest);
    return ZR_OK;
}

/* The losses of a row that are counted, as far as this rank has them. */
static double sum_row(const struct zr_batch *batch, struct place place, size_t row)
{
    const float *losses = zr_trainer_losses(batch->trainer);
    size_t own = zr_shape_own_sequence(batch->shape);
    double sum = 0;
    for (size_t target = place.counted; target < place.length && losses; target++) {
        size_t at = zr_batch_row(batch, target);
        sum += at == ZR_ROW_ELSEWHERE ? 0 : (double)losses[row * own + at];
    }
    return sum;
}

/* A round: as many windows as the data ranks have rows. *mean receives its loss, that of filled ends
 * included. */
static zr_result run_round(struct evaluation *e, const struct tokens *from, uint64_t round, double *mean)
{
    const struct zr_batch batch = zr_rank_batch(e->rank);
    uint64_t windows = windows_of(e, from->count), ranks = zr_train_data_ranks(e->rank->config),
             first = (round * ranks + zr_train_data_rank(e->rank->config, e->rank->place)) * e->rows;
    size_t count = 0;
    zr_result result = ZR_OK;
    for (; count < e->rows && first + count < windows && result == ZR_OK; count++)
        result = fill_row(e, from, place_of(e, from->count, first + count), count);
    if (result != ZR_OK)
        return result;
    /* A rank without a window takes part with the last one. */
    size_t rows = count ? count : 1;
    zr_batch_put(&batch, e->tokens, e->targets, rows);
    result = zr_trainer_evaluate(batch.trainer, rows * zr_shape_own_sequence(batch.shape), mean);
    for (size_t row = 0; row < count && result == ZR_OK; row++)
        e->sums.nats += sum_row(&batch, place_of(e, from->count, first + row), row);
    return result;
}

static void show_round(struct evaluation *e, uint64_t round, double mean, uint64_t ns)
{
    struct zr_arena_stats stats;
    bool has_losses = zr_trainer_losses(e->rank->state.trainer); /* not in all pipeline stages */
    zr_arena_get_stats(e->rank->arena, &stats);
    zr_progress_step(
        &e->progress,
        &(struct zr_step_line){.step = round + 1,
                               .loss = has_losses ? mean : NAN,
                               .tokens_per_second = (double)(zr_train_data_ranks(e->rank->config) * e->rows *
                                                             e->rank->config->shape.sequence) *
                                                    1e9 / (double)ns,
                               .reserved_bytes = stats.reserved_bytes});
}

/* Evaluates the tokens of one file. */
static zr_result run_tokens(struct evaluation *e, const struct tokens *from)
{
    uint64_t windows = windows_of(e, from->count), each = zr_train_data_ranks(e->rank->config) * e->rows,
             rounds = (windows + each - 1) / each;
    bool shows = zr_rank_logs(e->rank) && rounds > 1;
    zr_result result = ZR_OK;
    zr_progress_start(&e->progress, 0, rounds);
    e->progress.noun = "round";
    for (uint64_t round = 0; round < rounds && result == ZR_OK && !e->ends; round++) {
        enum zr_request_kind request;
        uint64_t begin_ns = zr_os_now_ns();
        double mean = 0;
        result = zr_local_request(e->rank->comm, &request);
        e->ends = request == ZR_REQUEST_SAVE_AND_END;
        if (result == ZR_OK && !e->ends)
            result = run_round(e, from, round, &mean);
        if (result == ZR_OK && shows && !e->ends)
            show_round(e, round, mean, zr_os_now_ns() - begin_ns);
    }
    zr_progress_break(&e->progress);
    e->sums.windows += windows;
    e->sums.tokens += from->count > 0 ? from->count - 1 : 0;
    return result;
}

/* ---- Files --------------------------------------------------------------------------------------------- */

static zr_result read_text(const char *path, char **out, size_t *bytes)
{
    struct zr_file file;
    uint64_t size_bytes = 0;
    *out = NULL;
    zr_result result = zr_file_open_regular(&file, path);
    if (result != ZR_OK)
        return result;
    result = zr_file_size(&file, &size_bytes);
    if (result == ZR_OK && size_bytes > ZR_ENCODE_BYTES_MAX)
        result =
            zr_fail(ZR_ERR_FORMAT, "'%s' has more than a GiB; write its tokens by zr-train tokenize", path);
    if (result == ZR_OK && !(*out = zr_heap_alloc(size_bytes + 1)))
        result = zr_fail(ZR_ERR_HOST_MEMORY, "no memory for the %llu bytes of '%s'",
                         (unsigned long long)size_bytes, path);
    if (result == ZR_OK)
        result = zr_file_read_at(&file, 0, *out, size_bytes);
    *bytes = size_bytes;
    zr_file_close(&file);
    return result;
}

/* The bytes of the predicted tokens of a text: all, if another token precedes it, else without the first. */
static zr_result count_bytes(struct evaluation *e, const int32_t *tokens, size_t before, size_t bytes)
{
    struct zr_growing first = {.data = NULL};
    zr_result result = before > 0 ? ZR_OK : zr_decode(e->tokenizer, tokens, 1, &first);
    e->sums.bytes += bytes > first.used_bytes ? bytes - first.used_bytes : 0;
    zr_growing_end(&first);
    return result;
}

/* Evaluates a text by the tokenizer. */
static zr_result run_text(struct evaluation *e, const char *path)
{
    struct zr_growing tokens = {.data = NULL};
    char *text, message[512];
    size_t bytes, before = 0;
    zr_result result = read_text(path, &text, &bytes);
    if (result == ZR_OK) {
        result = zr_text_tokens(
            &(struct zr_text_request){e->tokenizer, e->rank->config->shape.vocabulary, text, bytes}, &tokens,
            &before);
        snprintf(message, sizeof message, "%s", zr_last_error());
        result = result == ZR_OK ? ZR_OK : zr_fail(result, "'%s': %s", path, message);
    }
    zr_heap_free(text);
    const int32_t *numbers = (const int32_t *)(const void *)tokens.data;
    size_t count = tokens.used_bytes / sizeof *numbers;
    if (result == ZR_OK && count > 0)
        result = count_bytes(e, numbers, before, bytes);
    if (result == ZR_OK)
        result = run_tokens(e, &(struct tokens){.text = numbers, .count = count});
    zr_growing_end(&tokens);
    return result;
}

/* Evaluates files whose bytes or numbers are tokens. */
static zr_result run_files(struct evaluation *e, const char *pattern)
{
    const struct zr_train_config *config = e->rank->config;
    struct zr_token_files files = {
        .text = config->bytes, .type = config->data_type, .vocabulary = config->shape.vocabulary};
    zr_result result = zr_token_files_open(&files);
    if (result == ZR_OK)
        result = zr_token_files_add(&files, pattern);
    for (size_t i = 0; i < files.files_count && result == ZR_OK; i++) {
        const struct zr_token_file *file = &files.files[i];
        result = run_tokens(e, &(struct tokens){.files = &files, .first = file->first, .count = file->count});
        e->sums.bytes += file->count > 0 ? file->count - 1 : 0; /* of a text by bytes */
        e->sums.has_bytes &= config->bytes;
    }
    zr_token_files_close(&files);
    return result;
}

/* A file is a text if there is a tokenizer and the file has no tokens. */
static bool is_text(const struct evaluation *e, const char *path)
{
    return e->tokenizer && e->rank->config->data_type == ZR_TOKENS_AUTO && !strpbrk(path, "*?") &&
           !zr_token_files_has_tokens(path);
}

static zr_result run_all(struct evaluation *e)
{
    char path[ZR_TRAIN_PATH_ROOM];
    zr_result result = ZR_OK;
    for (const char *at = e->rank->config->data, *end; *at && result == ZR_OK && !e->ends;
         at = end + (*end == '\n')) {
        end = strchrnul(at, '\n');
        snprintf(path, sizeof path, "%.*s", (int)(end - at), at);
        result = (is_text(e, path) ? run_text : run_files)(e, path);
    }
    return result;
}

/* ---- Results ------------------------------------------------------------------------------------------- */

/* Adds the sums of all ranks, in rank order. Ranks of one tensor group have the same losses. */
static zr_result add_ranks(struct evaluation *e)
{
    double all[ZR_MAX_WORLD];
    struct zr_mesh_shape mesh = zr_train_mesh(e->rank->config);
    zr_result result = zr_comm_host_all_gather(e->rank->comm, &e->sums.nats, sizeof e->sums.nats, all);
    e->sums.nats = 0;
    for (unsigned r = 0; r < e->rank->config->world && result == ZR_OK; r++)
        e->sums.nats += zr_mesh_place_of(mesh, r).tensor == 0 ? all[r] : 0;
    return result;
}

static zr_result report(struct evaluation *e)
{
    const struct zr_train_config *config = e->rank->config;
    zr_result result = add_ranks(e);
    if (result == ZR_OK && e->sums.tokens == 0)
        result =
            zr_fail(ZR_ERR_FORMAT, "the files have no token that another one precedes; give longer ones");
    if (result != ZR_OK || !zr_rank_logs(e->rank))
        return result;
    result = zr_report_evaluation(config, &e->sums);
    return result == ZR_OK ? zr_report_json_evaluation(config, &e->sums) : result;
}

zr_result zr_evaluate_run(struct zr_rank *rank)
{
    const struct zr_shape *shape = &rank->config->shape;
    uint64_t begin_ns = zr_os_now_ns();
    int32_t end;
    struct evaluation e = {.rank = rank, .rows = shape->batch, .sums = {.has_bytes = true}};
    e.tokens = zr_heap_zalloc(2 * e.rows + 2, shape->sequence * sizeof *e.tokens);
    e.targets = e.tokens + e.rows * shape->sequence;
    e.window = e.targets + e.rows * shape->sequence;
    zr_result result = e.tokens ? zr_texts_open(&e.tokenizer, &end, rank->config, rank->comm)
                                : zr_fail(ZR_ERR_HOST_MEMORY, "no memory for %zu windows", e.rows);
    if (result == ZR_OK)
        result = run_all(&e);
    e.sums.seconds = (double)(zr_os_now_ns() - begin_ns) * 1e-9;
    if (result == ZR_OK && !e.ends)
        result = report(&e);
    zr_tokenizer_close(e.tokenizer);
    zr_heap_free(e.tokens);
    return result;
}
