/* data.c: each window is one pread into the row of targets, which serves as a buffer; the text is not
 * copied. */
#define _GNU_SOURCE
#include "zero/train/data.h"

#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/hash.h"

#define SHARD_MAGIC        20240520
#define WIDE_SHARD_MAGIC   20240801
#define SHARD_HEADER_BYTES 1024
#define SHARD_VOCABULARY   65536 /* values of two bytes */
/* A text has at most one control character in this many bytes. */
#define CONTROLS_SHARE 50
/* Advice for tokens without a header, as in nanoGPT's train.bin. */
#define RAW_TOKENS                                                                                            \
    "for raw tokens of two bytes (as in nanoGPT's train.bin) put llm.c's header before them, 256 numbers of " \
    "four bytes: 20240520, 1, the count of tokens, and zeros, and give --vocab V"
/* Enough tokens for a validation loss to two decimals, within seconds. */
#define VALIDATION_TOKENS 16384
/* Samples for the checksum; the first and the last sample are at the ends of the file. */
enum { SAMPLES = 8, SAMPLE_BYTES = 4096 };

/* ---- Opening ------------------------------------------------------------------------------------------- */

static int32_t little_int32(const unsigned char *at)
{
    return (int32_t)((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
}

/* Checks for shards of llm.c's scripts that are not supported, by magic number and version. */
static zr_result check_version(const struct zr_data *data, int32_t magic, int32_t version)
{
    const char *path = data->options.path;
    if (magic == WIDE_SHARD_MAGIC)
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' is a token shard of llm.c with tokens of four bytes, as for Llama 3 (version %d), but "
            "zr-train reads two-byte tokens (version 1); make it again with a vocabulary of at most "
            "65,536",
            path, (int)version);
    if (magic == SHARD_MAGIC && version != 1)
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' is a token shard of version %d, but zr-train reads version 1; make it again with "
            "llm.c's data scripts",
            path, (int)version);
    return ZR_OK;
}

/* Whether the bytes are not text: UTF-8 and similar encodings have almost no control characters except
 * white space. */
static bool is_binary(const unsigned char *bytes, size_t count)
{
    size_t controls = 0;
    for (size_t i = 0; i < count; i++)
        controls += bytes[i] < 32 && !(bytes[i] >= '\b' && bytes[i] <= '\r') && bytes[i] != 27;
    return controls * CONTROLS_SHARE > count;
}

static zr_result check_text(const struct zr_data *data, uint64_t size_bytes)
{
    unsigned char piece[16384];
    size_t count = size_bytes < sizeof piece ? (size_t)size_bytes : sizeof piece;
    zr_result result = zr_file_read_at(&data->file, 0, piece, count);
    if (result || !is_binary(piece, count))
        return result;
    if (count >= 2 && ((piece[0] == 0xff && piece[1] == 0xfe) || (piece[0] == 0xfe && piece[1] == 0xff)))
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' is text in UTF-16, which --vocab byte would read as two tokens per letter; convert it: "
            "iconv -f UTF-16 -t UTF-8",
            data->options.path);
    return zr_fail(ZR_ERR_FORMAT, "'%s' is not text but binary data; " RAW_TOKENS "; otherwise give a text",
                   data->options.path);
}

static zr_result read_text(struct zr_data *data, uint64_t size_bytes)
{
    unsigned char head[8];
    zr_result result;
    if (size_bytes >= SHARD_HEADER_BYTES) {
        result = zr_file_read_at(&data->file, 0, head, sizeof head);
        if (!result)
            result = check_version(data, little_int32(head), little_int32(head + 4));
        if (result)
            return result;
        if (little_int32(head) == SHARD_MAGIC)
            return zr_fail(ZR_ERR_FORMAT,
                           "'%s' is a token shard, not text; give its vocabulary, --vocab 50257 for GPT-2",
                           data->options.path);
    }
    result = check_text(data, size_bytes);
    if (result)
        return result;
    data->token_bytes = 1;
    data->lead_bytes = 0;
    data->tokens_count = size_bytes;
    return ZR_OK;
}

static zr_result read_shard_header(struct zr_data *data, uint64_t size_bytes)
{
    const char *path = data->options.path;
    unsigned char head[12];

    if (size_bytes < SHARD_HEADER_BYTES)
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' is too short for a token shard: it has %llu bytes, and the header alone %d; for text "
            "give --vocab byte",
            path, (unsigned long long)size_bytes, SHARD_HEADER_BYTES);
    zr_result result = zr_file_read_at(&data->file, 0, head, sizeof head);
    if (result)
        return result;
    int32_t magic = little_int32(head), version = little_int32(head + 4), count = little_int32(head + 8);
    result = check_version(data, magic, version);
    if (result)
        return result;
    if (magic != SHARD_MAGIC)
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' is not a token shard: it starts with %d, not with %d; for text give --vocab byte, " RAW_TOKENS,
            path, (int)magic, SHARD_MAGIC);
    uint64_t wanted = count < 0 ? 0 : SHARD_HEADER_BYTES + 2 * (uint64_t)count;
    if (count < 0 || wanted != size_bytes)
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' is damaged: its header counts %d tokens, but its size of %llu bytes holds %lld; get "
            "the file again",
            path, (int)count, (unsigned long long)size_bytes,
            ((long long)size_bytes - SHARD_HEADER_BYTES) / 2);
    if (data->options.vocabulary > SHARD_VOCABULARY)
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' has two-byte tokens, which are below %d, but --vocab is %zu; give the --vocab that the "
            "shard was made with, at most %d",
            path, SHARD_VOCABULARY, data->options.vocabulary, SHARD_VOCABULARY);
    data->token_bytes = 2;
    data->lead_bytes = SHARD_HEADER_BYTES;
    data->tokens_count = (uint64_t)count;
    return ZR_OK;
}

/* Divides the tokens into training and validation. */
static void split(struct zr_data *data)
{
    const struct zr_data_options *options = &data->options;
    uint64_t window = (uint64_t)options->sequence + 1, tail = data->tokens_count / 20;
    uint64_t batch_tokens = (uint64_t)options->sequence * options->batch * options->data_ranks;

    if (tail < window || (data->order == ZR_DATA_ORDER_BATCHES && data->tokens_count - tail <= batch_tokens))
        tail = window;
    data->train_count = data->tokens_count - tail;

    uint64_t max_windows = VALIDATION_TOKENS / options->sequence, disjoint = (tail - 1) / options->sequence;
    max_windows = max_windows < 8 ? 8 : max_windows;
    data->validation_windows = disjoint < max_windows ? disjoint : max_windows;
}

static zr_result check_length(const struct zr_data *data)
{
    const struct zr_data_options *options = &data->options;
    const char *unit = options->bytes ? "bytes" : "tokens";
    uint64_t window = (uint64_t)options->sequence + 1, batch_tokens, wanted;

    if (__builtin_mul_overflow((uint64_t)options->sequence, (uint64_t)options->batch, &batch_tokens) ||
        __builtin_mul_overflow(batch_tokens, (uint64_t)options->data_ranks, &batch_tokens) ||
        __builtin_add_overflow(batch_tokens, window + 1, &wanted))
        return zr_fail(ZR_ERR_INVALID, "a batch of %zu x %zu tokens on %u data ranks exceeds any file",
                       options->batch, options->sequence, options->data_ranks);
    if (data->tokens_count < wanted)
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' is too short: a batch takes %llu %s (%u data ranks x --batch %zu x --seq %zu) and "
            "validation %llu, but it has %llu; give more text, or lower --batch or --seq",
            options->path, (unsigned long long)batch_tokens, unit, options->data_ranks, options->batch,
            options->sequence, (unsigned long long)window, (unsigned long long)data->tokens_count);
    return ZR_OK;
}

/* FNV-1a of evenly spaced samples. */
static zr_result sum_samples(struct zr_data *data)
{
    unsigned char sample[SAMPLE_BYTES];
    uint64_t bytes = data->tokens_count * data->token_bytes;
    size_t take = bytes < sizeof sample ? (size_t)bytes : sizeof sample;
    zr_result result = ZR_OK;

    data->checksum = ZR_HASH_START;
    for (unsigned i = 0; i < SAMPLES && result == ZR_OK; i++) {
        uint64_t at = (uint64_t)((unsigned __int128)(bytes - take) * i / (SAMPLES - 1));
        result = zr_file_read_at(&data->file, data->lead_bytes + at, sample, take);
        if (result == ZR_OK)
            data->checksum = zr_hash_more(data->checksum, sample, take);
    }
    return result;
}

zr_result zr_data_open(struct zr_data *out, const struct zr_data_options *options)
{
    uint64_t size_bytes = 0;
    zr_result result;

    *out = (struct zr_data){.options = *options, .file = {.fd = -1}, .order = ZR_DATA_ORDER_LATEST};
    if (options->sequence == 0 || options->batch == 0 || options->data_ranks == 0 ||
        options->vocabulary == 0 || (options->bytes && options->vocabulary < 256))
        return zr_fail(ZR_ERR_INVALID, "invalid data options: %zu x %zu tokens below %zu on %u data ranks",
                       options->batch, options->sequence, options->vocabulary, options->data_ranks);
    result = zr_file_open_regular(&out->file, options->path);
    if (result)
        return result;
    result = zr_file_size(&out->file, &size_bytes);
    if (result)
        goto unwind;
    if (size_bytes == 0) {
        result = zr_fail(ZR_ERR_FORMAT, "'%s' is empty; give a text of at least some thousand bytes",
                         options->path);
        goto unwind;
    }
    result = options->bytes ? read_text(out, size_bytes) : read_shard_header(out, size_bytes);
    if (!result)
        result = check_length(out);
    if (!result)
        result = sum_samples(out);
    if (!result) {
        split(out);
        return ZR_OK;
    }
unwind:
    zr_data_close(out);
    return result;
}

void zr_data_close(struct zr_data *data)
{
    zr_file_close(&data->file);
    data->file.fd = -1;
}

void zr_data_set_order(struct zr_data *data, enum zr_data_order order)
{
    data->order = order;
    split(data);
}

static zr_result bad_token(const struct zr_data *data, uint64_t index, unsigned token)
{
    return zr_fail(
        ZR_ERR_FORMAT,
        "'%s': token %llu is %u, beyond the vocabulary of %zu; give the --vocab that the shard was "
        "made with, or get the file again",
        data->options.path, (unsigned long long)index, token, data->options.vocabulary);
}

zr_result zr_data_scan(const struct zr_data *data)
{
    unsigned char piece[16384];
    uint64_t done = 0;

    if (data->token_bytes == 1 || data->options.vocabulary > UINT16_MAX)
        return ZR_OK;
    while (done < data->tokens_count) {
        uint64_t left = data->tokens_count - done;
        size_t count = left < sizeof piece / 2 ? (size_t)left : sizeof piece / 2;
        zr_result result = zr_file_read_at(&data->file, data->lead_bytes + 2 * done, piece, 2 * count);
        if (result)
            return result;
        for (size_t i = 0; i < count; i++) {
            unsigned token = piece[2 * i] | (unsigned)piece[2 * i + 1] << 8;
            if (token >= data->options.vocabulary)
                return bad_token(data, done + i, token);
        }
        done += count;
    }
    return ZR_OK;
}

/* ---- Windows ------------------------------------------------------------------------------------------- */

/* Token i of raw memory. */
static int32_t raw_token(const void *raw, size_t token_bytes, size_t i)
{
    const unsigned char *at = (const unsigned char *)raw + token_bytes * i;
    return token_bytes == 1 ? at[0] : (int32_t)(at[0] | (unsigned)at[1] << 8);
}

/* Reads sequence + 1 tokens from `start` on. The raw tokens are read into the row of targets, where they
 * always fit (sequence + 1 tokens of two bytes take at most four times sequence), and are converted to
 * both rows. */
static zr_result read_window(const struct zr_data *data, uint64_t start, int32_t *tokens, int32_t *targets)
{
    size_t length = data->options.sequence, token_bytes = data->token_bytes;
    int32_t last;
    zr_result result = zr_file_read_at(&data->file, data->lead_bytes + token_bytes * start, targets,
                                       token_bytes * (length + 1));
    if (result)
        return result;
    for (size_t i = 0; i < length; i++)
        tokens[i] = raw_token(targets, token_bytes, i);
    last = raw_token(targets, token_bytes, length);
    memcpy(targets, tokens + 1, (length - 1) * sizeof *targets);
    targets[length - 1] = last;
    if (data->options.vocabulary <= UINT16_MAX)
        for (size_t i = 0; i <= length; i++) {
            int32_t token = i < length ? tokens[i] : last;
            if ((size_t)token >= data->options.vocabulary)
                return bad_token(data, start + i, (unsigned)token);
        }
    return ZR_OK;
}

/* The finalizer of splitmix64: every bit of the result depends on every bit of x. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

zr_result zr_data_train(const struct zr_data *data, const struct zr_data_place *place, int32_t *tokens,
                        int32_t *targets)
{
    const struct zr_data_options *options = &data->options;
    uint64_t starts_count =
        data->train_count - options->sequence; /* so that a window ends within the training part */
    uint64_t step = place->step,
             block = (uint64_t)place->micro_batch * options->data_ranks + place->data_rank;

    if (data->order == ZR_DATA_ORDER_BATCHES) {
        step = (step - 1) * options->micro_batches + place->micro_batch + 1;
        block = place->data_rank;
    }
    for (size_t row = 0; row < options->batch; row++) {
        uint64_t random = mix(mix(mix(options->seed) ^ step) ^ (block * options->batch + row));
        uint64_t start = (uint64_t)(((unsigned __int128)random * starts_count) >> 64);
        size_t at = row * options->sequence;
        zr_result result = read_window(data, start, tokens + at, targets + at);
        if (result)
            return result;
    }
    return ZR_OK;
}

uint64_t zr_data_validation_rounds(const struct zr_data *data)
{
    uint64_t per_round = (uint64_t)data->options.data_ranks * data->options.batch;
    return (data->validation_windows + per_round - 1) / per_round;
}

zr_result zr_data_validation(const struct zr_data *data, const struct zr_data_place *place, int32_t *tokens,
                             int32_t *targets, size_t *count)
{
    const struct zr_data_options *options = &data->options;
    uint64_t windows = data->validation_windows;
    uint64_t first = (place->step * options->data_ranks + place->data_rank) * options->batch;
    uint64_t spare = data->tokens_count - data->train_count - options->sequence - 1;

    *count = 0;
    for (size_t row = 0; row < options->batch && first + row < windows; row++) {
        uint64_t index = first + row, gaps = windows > 1 ? windows - 1 : 1;
        uint64_t start = data->train_count + (uint64_t)((unsigned __int128)index * spare / gaps);
        size_t at = row * options->sequence;
        zr_result result = read_window(data, start, tokens + at, targets + at);
        if (result)
            return result;
        *count = row + 1;
    }
    return ZR_OK;
}
