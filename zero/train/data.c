/* data.c: see data.h. Tokens are read into the row of inputs; the text is not copied. */
#define _GNU_SOURCE
#include "zero/train/data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/error.h"
#include "zero/train/permutation.h"

/* Enough tokens for a validation loss to two decimals, within seconds. */
#define VALIDATION_TOKENS 16384
/* Sources with weights share blocks of this many rows: of each block a source has its share, at places that
 * change from block to block. */
#define SLOTS UINT64_C(65536)
/* Keys of permutations that must not be alike. */
#define SLOTS_KEY  UINT64_C(0x736c6f7473)
#define SOURCE_KEY UINT64_C(0x736f75726365)

/* ---- Sources ------------------------------------------------------------------------------------------- */

/* The weight of "PATTERN:weight=F", and the length of the pattern; 0: none, negative: not a weight. */
static double weight_of(const char *source, size_t *length)
{
    static const char key[] = ":weight=";
    const char *colon = strrchr(source, ':');
    char *end;
    *length = strlen(source);
    if (!colon || strncmp(colon, key, sizeof key - 1) != 0)
        return 0;
    *length = (size_t)(colon - source);
    const char *number = colon + sizeof key - 1;
    double weight = strtod(number, &end);
    return strchr("0123456789.", number[0]) && end != number && !*end && weight > 0 && weight <= 1e9 &&
                   !strpbrk(number, "xX")
               ? weight
               : -1;
}

const char *zr_data_source_problem(const char *source)
{
    size_t length;
    double weight = weight_of(source, &length);
    return weight < 0    ? "the weight must be a number above 0, at most 1e9"
           : length == 0 ? "empty, or only a weight"
                         : NULL;
}

static zr_result open_source(struct zr_data *data, const char *text)
{
    struct zr_data_source *source = &data->sources[data->sources_count];
    char pattern[4096];
    size_t length;
    const char *problem = zr_data_source_problem(text);
    if (problem)
        return zr_fail(ZR_ERR_INVALID, "--data '%s': %s", text, problem);
    if (data->sources_count == ZR_DATA_SOURCES_MAX)
        return zr_fail(ZR_ERR_INVALID, "--data is given more than %d times; use * in a pattern",
                       ZR_DATA_SOURCES_MAX);
    *source = (struct zr_data_source){.first = data->files.count, .weight = weight_of(text, &length)};
    snprintf(pattern, sizeof pattern, "%.*s", (int)length, text);
    zr_result result = zr_token_files_add(&data->files, pattern);
    source->tokens_count = data->files.count - source->first;
    data->tokens_count = data->files.count;
    data->sources_count++;
    if (!result && (source->weight > 0) != (data->sources[0].weight > 0))
        result =
            zr_fail(ZR_ERR_INVALID, "--data '%s' %s a weight, and another --data %s; give all of them one",
                    text, source->weight > 0 ? "has" : "lacks", source->weight > 0 ? "lacks it" : "has one");
    return result;
}

static zr_result open_sources(struct zr_data *data)
{
    char text[4096];
    zr_result result = zr_token_files_open(&data->files);
    for (const char *at = data->options.sources, *end; *at && !result; at = end + (*end == '\n')) {
        end = strchrnul(at, '\n');
        snprintf(text, sizeof text, "%.*s", (int)(end - at), at);
        result = open_source(data, text);
    }
    return result;
}

/* Divides the slots of a block by weight. */
static zr_result share_slots(struct zr_data *data)
{
    double sum = 0, below = 0;
    for (unsigned i = 0; i < data->sources_count; i++)
        sum += data->sources[i].weight;
    for (unsigned i = 0; i < data->sources_count && sum > 0; i++) {
        double first = round(below / sum * (double)SLOTS);
        below += data->sources[i].weight;
        data->sources[i].slots = (uint64_t)(round(below / sum * (double)SLOTS) - first);
        if (data->sources[i].slots == 0)
            return zr_fail(ZR_ERR_INVALID,
                           "--data: weight %g is less than a %dth of the sum; leave the source out",
                           data->sources[i].weight, (int)SLOTS);
    }
    return ZR_OK;
}

/* Divides the tokens of a source into training and validation. */
static void split_source(const struct zr_data *data, struct zr_data_source *source)
{
    const struct zr_data_options *options = &data->options;
    uint64_t window = (uint64_t)options->sequence + 1, tail = source->tokens_count / 20;
    uint64_t batch_tokens = (uint64_t)options->sequence * options->batch * options->data_ranks;
    if (tail < window ||
        (data->order == ZR_DATA_ORDER_BATCHES && source->tokens_count - tail <= batch_tokens))
        tail = window;
    source->train_count = source->tokens_count - tail;
    source->starts = source->train_count - options->sequence; /* so that a window ends within that part */
    source->windows = (source->train_count - 1) / options->sequence;
}

static void split(struct zr_data *data)
{
    uint64_t sequence = data->options.sequence, max_windows = VALIDATION_TOKENS / sequence, disjoint = 0,
             below = 0, given = 0;
    data->train_count = data->starts = data->windows = 0;
    for (unsigned i = 0; i < data->sources_count; i++) {
        struct zr_data_source *source = &data->sources[i];
        split_source(data, source);
        data->train_count += source->train_count;
        data->starts += source->starts;
        data->windows = !source->slots                    ? data->windows + source->windows
                        : source->windows > data->windows ? source->windows
                                                          : data->windows;
        disjoint += (source->tokens_count - source->train_count - 1) / sequence;
    }
    max_windows = max_windows < 8 ? 8 : max_windows;
    data->validation_windows = disjoint < max_windows ? disjoint : max_windows;
    for (unsigned i = 0; i < data->sources_count; i++) { /* by the sizes of the tails */
        struct zr_data_source *source = &data->sources[i];
        below += (source->tokens_count - source->train_count - 1) / sequence;
        uint64_t until = (uint64_t)((unsigned __int128)data->validation_windows * below / disjoint);
        source->validation_windows = until - given;
        given = until;
    }
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
            data->files.files[0].path, (unsigned long long)batch_tokens, unit, options->data_ranks,
            options->batch, options->sequence, (unsigned long long)window,
            (unsigned long long)data->tokens_count);
    for (unsigned i = 0; i < data->sources_count; i++)
        if (data->sources[i].tokens_count < 2 * window)
            return zr_fail(ZR_ERR_FORMAT,
                           "--data %u of %u has %llu %s, but two windows of --seq take %llu; leave it out",
                           i + 1, data->sources_count, (unsigned long long)data->sources[i].tokens_count,
                           unit, 2 * (unsigned long long)window);
    return ZR_OK;
}

zr_result zr_data_open(struct zr_data *out, const struct zr_data_options *options)
{
    zr_result result;

    *out = (struct zr_data){
        .options = *options,
        .files = {.text = options->bytes, .type = options->type, .vocabulary = options->vocabulary},
        .order = options->order ? options->order : ZR_DATA_ORDER_ROWS};
    out->options.micro_batches = options->micro_batches ? options->micro_batches : 1;
    if (options->step_micro_batches == 0)
        out->options.step_micro_batches = (uint64_t)options->data_ranks * out->options.micro_batches;
    if (options->sequence == 0 || options->batch == 0 || options->data_ranks == 0 ||
        options->vocabulary == 0 || (options->bytes && options->vocabulary < 256))
        return zr_fail(ZR_ERR_INVALID, "invalid data options: %zu x %zu tokens below %zu on %u data ranks",
                       options->batch, options->sequence, options->vocabulary, options->data_ranks);
    result = open_sources(out);
    if (!result)
        result = check_length(out);
    if (!result)
        result = share_slots(out);
    if (!result)
        result = zr_token_files_checksum(&out->files, &out->checksum);
    if (result)
        zr_data_close(out);
    else
        split(out);
    return result;
}

void zr_data_share(struct zr_data *out, const struct zr_data *of)
{
    *out = *of;
    zr_token_files_share(&out->files, &of->files);
}

void zr_data_close(struct zr_data *data)
{
    zr_token_files_close(&data->files);
}

void zr_data_set_order(struct zr_data *data, enum zr_data_order order)
{
    data->order = order;
    split(data);
}

zr_result zr_data_scan(struct zr_data *data)
{
    return data->options.bytes ? ZR_OK : zr_token_files_scan(&data->files);
}

/* ---- Windows ------------------------------------------------------------------------------------------- */

static uint64_t step_rows(const struct zr_data *data)
{
    return data->options.step_micro_batches * data->options.batch;
}

void zr_data_resume(struct zr_data *data, uint64_t step, uint64_t rows)
{
    data->steps_before = step;
    data->rows_before = rows;
}

uint64_t zr_data_steps_of(const struct zr_data *data, uint64_t epochs)
{
    uint64_t rows, per_step = step_rows(data), done = data->rows_before;
    if (__builtin_mul_overflow(epochs, data->windows, &rows))
        return UINT64_MAX;
    return data->steps_before + (rows > done ? (rows - done - 1) / per_step + 1 : 0);
}

uint64_t zr_data_rows_after(const struct zr_data *data, uint64_t step)
{
    return data->rows_before + (step - data->steps_before) * step_rows(data);
}

/* The source at a place, which becomes the place within the source. The sources' sizes are in a field of type
 * uint64_t at `offset`. */
static const struct zr_data_source *source_at(const struct zr_data *data, uint64_t *place, size_t offset)
{
    const struct zr_data_source *source = data->sources;
    uint64_t size;
    for (;; source++) {
        memcpy(&size, (const char *)source + offset, sizeof size);
        if (*place < size)
            return source;
        *place -= size;
    }
}
#define SIZE(field) offsetof(struct zr_data_source, field)

/* The first token of the window that a random number stands for. */
static uint64_t random_window(const struct zr_data *data, uint64_t random)
{
    const struct zr_data_source *source = NULL;
    uint64_t starts = data->starts, slot = zr_mix(random ^ SLOTS_KEY) % SLOTS, start;
    if (data->sources[0].slots) {
        source = source_at(data, &slot, SIZE(slots));
        starts = source->starts;
    }
    start = (uint64_t)(((unsigned __int128)random * starts) >> 64);
    source = source ? source : source_at(data, &start, SIZE(starts));
    return source->first + start;
}

/* Window `place` of all epochs over `count` windows: each epoch has an order of its own. */
static uint64_t window_of(uint64_t key, uint64_t count, uint64_t place)
{
    return zr_permute(&(struct zr_permutation){zr_mix(key ^ zr_mix(place / count)), count}, place % count);
}

/* The first token of the window of a row, numbered since the run began. */
static uint64_t epoch_window(const struct zr_data *data, uint64_t row)
{
    const struct zr_data_source *source;
    uint64_t key = zr_mix(data->options.seed), place = row;
    if (data->sources[0].slots) {
        place = window_of(key ^ SLOTS_KEY, SLOTS, row);
        source = source_at(data, &place, SIZE(slots));
        place = row / SLOTS * source->slots + place;
        place = window_of(key ^ (SOURCE_KEY + (uint64_t)(source - data->sources)), source->windows, place);
    } else {
        place = window_of(key, data->windows, row);
        source = source_at(data, &place, SIZE(windows));
    }
    return source->first + place * data->options.sequence;
}

uint64_t zr_data_first_row(const struct zr_data *data, const struct zr_data_place *place)
{
    const struct zr_data_options *options = &data->options;
    return ((uint64_t)place->micro_batch * options->data_ranks + place->data_rank) * options->batch;
}

/* The first token of the window of a row of a micro-batch. */
static uint64_t first_token(const struct zr_data *data, const struct zr_data_place *place, size_t row)
{
    const struct zr_data_options *options = &data->options;
    uint64_t step = place->step, number = zr_data_first_row(data, place) + row; /* of the row in the step */
    if (data->order == ZR_DATA_ORDER_BATCHES) {
        step = (step - 1) * options->micro_batches + place->micro_batch + 1;
        number = place->data_rank * options->batch + row;
    }
    if (data->order == ZR_DATA_ORDER_EPOCHS)
        return epoch_window(data, zr_data_rows_after(data, step - 1) + number);
    return random_window(data, zr_mix(zr_mix(zr_mix(options->seed) ^ step) ^ number));
}

/* Reads sequence + 1 tokens into both rows. */
static zr_result read_window(struct zr_data *data, uint64_t first, int32_t *tokens, int32_t *targets)
{
    size_t length = data->options.sequence;
    zr_result result = zr_token_files_read(&data->files, first, length, tokens);
    if (!result)
        result = zr_token_files_read(&data->files, first + length, 1, &targets[length - 1]);
    if (!result)
        memcpy(targets, tokens + 1, (length - 1) * sizeof *targets);
    return result;
}

zr_result zr_data_train(struct zr_data *data, const struct zr_data_place *place, int32_t *tokens,
                        int32_t *targets)
{
    const struct zr_data_options *options = &data->options;
    struct zr_data_place next = *place;
    zr_result result = ZR_OK;
    for (size_t row = 0; row < options->batch && !result; row++) {
        size_t at = row * options->sequence;
        result = read_window(data, first_token(data, place, row), tokens + at, targets + at);
    }
    next.micro_batch = (place->micro_batch + 1) % options->micro_batches;
    next.step += next.micro_batch == 0;
    for (size_t row = 0; row < options->batch && !result; row++)
        zr_token_files_prefetch(&data->files, first_token(data, &next, row), options->sequence + 1);
    return result;
}

uint64_t zr_data_validation_rounds(const struct zr_data *data)
{
    uint64_t per_round = (uint64_t)data->options.data_ranks * data->options.batch;
    return (data->validation_windows + per_round - 1) / per_round;
}

zr_result zr_data_validation(struct zr_data *data, const struct zr_data_place *place, int32_t *tokens,
                             int32_t *targets, size_t *count)
{
    const struct zr_data_options *options = &data->options;
    uint64_t first = (place->step * options->data_ranks + place->data_rank) * options->batch;

    *count = 0;
    for (size_t row = 0; row < options->batch && first + row < data->validation_windows; row++) {
        uint64_t index = first + row;
        const struct zr_data_source *source = source_at(data, &index, SIZE(validation_windows));
        uint64_t gaps = source->validation_windows > 1 ? source->validation_windows - 1 : 1,
                 spare = source->tokens_count - source->train_count - options->sequence - 1,
                 start = source->train_count + (uint64_t)((unsigned __int128)index * spare / gaps);
        size_t at = row * options->sequence;
        zr_result result = read_window(data, source->first + start, tokens + at, targets + at);
        if (result)
            return result;
        *count = row + 1;
    }
    return ZR_OK;
}
