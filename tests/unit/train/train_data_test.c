/* train_data_test.c: the text of a run: odd files, hostile token shards, and windows that depend on nothing
 * but seed, step and place, and never cross the border to the held-out tail. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "tests/support/tap.h"
#include "zero/train/data.h"
#include "zero/train/division.h"

static char folder[] = "/tmp/zr-data-XXXXXX";
static char path[128];

static void write_file(const void *data, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (write(fd, data, bytes) != (ssize_t)bytes)
        abort();
    close(fd);
}

/* A text of which no two pieces are alike, without control characters. */
static unsigned char text_byte(uint64_t i)
{
    uint32_t x = (uint32_t)i * 2654435761u;
    x = (x ^ x >> 15) * 2246822519u;
    return (unsigned char)(x >> 13 ^ x >> 24) | 32;
}

static void write_text(size_t bytes)
{
    unsigned char *text = malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++)
        text[i] = text_byte(i);
    write_file(text, bytes);
    free(text);
}

static struct zr_data_options bytes_options(size_t sequence, size_t batch, unsigned data_ranks)
{
    return (struct zr_data_options){.sources = path,
                                    .bytes = true,
                                    .vocabulary = 256,
                                    .sequence = sequence,
                                    .batch = batch,
                                    .data_ranks = data_ranks,
                                    .seed = 7};
}

static void refused(const struct zr_data_options *options, zr_result want, const char *word, const char *what)
{
    struct zr_data data;
    zr_result got = zr_data_open(&data, options);
    bool good = got == want && strstr(zr_last_error(), word) && strstr(zr_last_error(), options->sources);
    if (!tap_ok(good && !data.files.files, "refused: %s", what))
        tap_note("%s: %s", zr_result_name(got), got ? zr_last_error() : "");
    if (!got)
        zr_data_close(&data);
}

/* ---- Odd files ----------------------------------------------------------------------------------------- */

static void test_odd_files(void)
{
    struct zr_data_options options = bytes_options(16, 4, 2);
    struct zr_data data;

    refused(&options, ZR_ERR_IO, "No such file", "no file");
    options.sources = folder;
    refused(&options, ZR_ERR_IO, "folder", "a folder");
    options.sources = "/dev/zero";
    refused(&options, ZR_ERR_FORMAT, "not a regular file", "a device");
    options.sources = path;
    write_file("", 0);
    refused(&options, ZR_ERR_FORMAT, "empty", "an empty file");
    write_file("x", 1);
    refused(&options, ZR_ERR_FORMAT, "too short", "one byte");
    write_text(145);
    refused(&options, ZR_ERR_FORMAT, "--batch", "a byte less than a batch and a window");
    write_text(146);
    tap_result(zr_data_open(&data, &options), ZR_OK, "one batch and one window are enough");
    tap_is(data.train_count, 129, "all but the window are for training");
    zr_data_close(&data);
    options.data_ranks = 200;
    refused(&options, ZR_ERR_FORMAT, "200 data ranks", "more ranks than the text has batches for");
    options.sequence = SIZE_MAX / 2;
    tap_result(zr_data_open(&data, &options), ZR_ERR_INVALID, "a batch that overflows");
    options.sequence = 0;
    tap_result(zr_data_open(&data, &options), ZR_ERR_INVALID, "sequences of nothing");
    options = bytes_options(16, 4, 2);
    zr_fault_set(ZR_FAULT_OPEN, 1);
    tap_result(zr_data_open(&data, &options), ZR_ERR_IO, "a fault while opening");
    zr_fault_set(ZR_FAULT_OPEN, 0);
}

/* ---- Token shards -------------------------------------------------------------------------------------- */

struct shard {
    int32_t header[256];
    uint16_t tokens[4000];
};

static struct zr_data_options shard_options(void)
{
    return (struct zr_data_options){
        .sources = path, .vocabulary = 50257, .sequence = 16, .batch = 4, .data_ranks = 1, .seed = 7};
}

static void make_shard(struct shard *shard)
{
    memset(shard, 0, sizeof *shard);
    shard->header[0] = 20240520;
    shard->header[1] = 1;
    shard->header[2] = 4000;
    for (int i = 0; i < 4000; i++)
        shard->tokens[i] = (uint16_t)(i * 31 % 50257);
}

static void test_shards(void)
{
    static struct shard shard;
    struct zr_data_options options = shard_options();
    struct zr_data data;
    int32_t tokens[64], targets[64];

    make_shard(&shard);
    write_file(&shard, sizeof shard);
    tap_result(zr_data_open(&data, &options), ZR_OK, "a good shard");
    tap_result(zr_data_scan(&data), ZR_OK, "all its tokens are in the vocabulary");
    tap_result(zr_data_train(&data, &(struct zr_data_place){.step = 1, .data_rank = 0}, tokens, targets),
               ZR_OK, "a batch");
    bool good = true;
    for (int i = 0; i < 64; i++)
        good &= targets[i] == (tokens[i] + 31) % 50257 && (i % 16 == 15 || tokens[i + 1] == targets[i]);
    tap_ok(good, "targets are the tokens one further on");
    zr_data_close(&data);

    static const struct {
        int at;
        int32_t value;
        const char *word, *what;
    } bad[] = {{0, 20240521, "not a token shard", "another magic"},
               {0, 0, "not a token shard", "no magic"},
               {1, 2, "version 2", "another version"},
               {0, 20240801, "version 7", "version 1 with the magic of version 7"},
               {2, 4001, "damaged", "a count above the size"},
               {2, 3999, "damaged", "a count below the size"},
               {2, -1, "damaged", "a negative count"},
               {2, INT32_MAX, "damaged", "a count beyond all files"},
               {2, 0, "damaged", "a count of zero"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        make_shard(&shard);
        shard.header[bad[i].at] = bad[i].value;
        write_file(&shard, sizeof shard);
        refused(&options, ZR_ERR_FORMAT, bad[i].word, bad[i].what);
    }
    make_shard(&shard);
    for (size_t bytes = 1; bytes < sizeof shard; bytes = bytes * 2 + 1) {
        write_file(&shard, bytes);
        refused(&options, ZR_ERR_FORMAT, bytes < 1024 ? "too short" : "damaged", "a shard that was cut");
    }
    shard.header[2] = 80;
    write_file(&shard, 1024 + 160);
    refused(&options, ZR_ERR_FORMAT, "too short", "a shard shorter than a batch");
    write_text(4000);
    refused(&options, ZR_ERR_FORMAT, "--vocab byte", "text taken for a shard");
    make_shard(&shard);
    write_file(&shard, sizeof shard);
    options = bytes_options(16, 4, 1);
    refused(&options, ZR_ERR_FORMAT, "--vocab 50257", "a shard taken for text");
    options = shard_options();
    options.vocabulary = 65536;
    tap_result(zr_data_open(&data, &options), ZR_OK, "as many tokens as two bytes count");
    zr_data_close(&data);
    options.vocabulary = 128256;
    refused(&options, ZR_ERR_FORMAT, "--vocab is 128256", "more tokens than two bytes count");
}

/* Files that are neither a text nor a shard that can be read. */
static void test_binary(void)
{
    static struct shard shard;
    struct zr_data_options text = bytes_options(16, 4, 1), tokens = shard_options();
    struct zr_data data;
    unsigned char utf16[2048] = {0xff, 0xfe};

    make_shard(&shard);
    shard.header[0] = 20240801;
    shard.header[1] = 7;
    write_file(&shard, sizeof shard);
    refused(&text, ZR_ERR_FORMAT, "128256", "llm.c's shard for Llama 3, as text");
    refused(&tokens, ZR_ERR_FORMAT, "holds 2000", "half as many tokens of four bytes");
    shard.header[0] = 20240520;
    write_file(&shard, sizeof shard);
    refused(&text, ZR_ERR_FORMAT, "version 7", "a shard of another version, as text");
    write_file(shard.tokens, sizeof shard.tokens);
    refused(&text, ZR_ERR_FORMAT, "nanoGPT", "raw tokens as text");
    refused(&tokens, ZR_ERR_FORMAT, "nanoGPT", "raw tokens as a shard");
    for (size_t i = 2; i < sizeof utf16; i += 2)
        utf16[i] = 'a';
    write_file(utf16, sizeof utf16);
    refused(&text, ZR_ERR_FORMAT, "UTF-16", "text in UTF-16");
    for (size_t i = 0; i < sizeof utf16; i++)
        utf16[i] = (unsigned char)(i % 64 == 0 ? 0 : 192 + i % 64); /* no UTF-8, with some zeros */
    write_file(utf16, sizeof utf16);
    tap_result(zr_data_open(&data, &text), ZR_OK, "text of another encoding, with a few zeros");
    zr_data_close(&data);
}

static void test_foreign_tokens(void)
{
    static struct shard shard;
    struct zr_data_options options = shard_options();
    struct zr_data data;
    int32_t tokens[64], targets[64];
    zr_result result = ZR_OK;

    make_shard(&shard);
    shard.tokens[3999] = 50257;
    write_file(&shard, sizeof shard);
    tap_result(zr_data_open(&data, &options), ZR_OK, "opening looks at the header");
    tap_result(zr_data_scan(&data), ZR_ERR_FORMAT, "the scan finds the token");
    tap_ok(strstr(zr_last_error(), "token 3999 is 50257"), "and names it");
    zr_data_close(&data);
    for (int i = 0; i < 4000; i += 2)
        shard.tokens[i] = 65535;
    write_file(&shard, sizeof shard);
    zr_data_open(&data, &options);
    result = zr_data_train(&data, &(struct zr_data_place){.step = 1, .data_rank = 0}, tokens, targets);
    tap_result(result, ZR_ERR_FORMAT, "so does a window, of a file that changed since");
    options.vocabulary = 1;
    zr_data_close(&data);
    zr_data_open(&data, &options);
    tap_result(zr_data_scan(&data), ZR_ERR_FORMAT, "a vocabulary of one");
    zr_data_close(&data);
}

/* ---- Windows ------------------------------------------------------------------------------------------- */

/* Where in the text a window of tokens stands, UINT64_MAX: nowhere. */
static uint64_t find_window(const int32_t *tokens, const int32_t *targets, size_t length, uint64_t bytes)
{
    for (uint64_t start = 0; start + length < bytes; start++) {
        size_t i = 0;
        while (i < length && tokens[i] == text_byte(start + i) && targets[i] == text_byte(start + i + 1))
            i++;
        if (i == length)
            return start;
    }
    return UINT64_MAX;
}

static void test_train_windows(void)
{
    enum { BYTES = 5000, LENGTH = 24, BATCH = 3, WORLD = 2 };
    struct zr_data_options options = bytes_options(LENGTH, BATCH, WORLD);
    struct zr_data data;
    int32_t tokens[BATCH * LENGTH], targets[BATCH * LENGTH];
    uint64_t least = UINT64_MAX, most = 0;
    bool found = true;

    write_text(BYTES);
    zr_data_open(&data, &options);
    tap_is(data.train_count, BYTES - BYTES / 20, "a twentieth is held out");
    for (uint64_t step = 1; step <= 400; step++) {
        zr_data_train(&data, &(struct zr_data_place){.step = step, .data_rank = (unsigned)(step % WORLD)},
                      tokens, targets);
        for (size_t row = 0; row < BATCH; row++) {
            uint64_t at = find_window(tokens + row * LENGTH, targets + row * LENGTH, LENGTH, BYTES);
            found &= at != UINT64_MAX;
            least = at < least ? at : least;
            most = at > most ? at : most;
        }
    }
    tap_ok(found, "1,200 windows are pieces of the text");
    tap_ok(most + LENGTH < data.train_count, "none reaches into the held-out tail (last start %llu)",
           (unsigned long long)most);
    tap_ok(least < 100 && most > data.train_count - 100, "and they come from everywhere");
    zr_data_close(&data);
}

/* Every start is possible, the last one too: with room for three windows each must come. */
static void test_narrow(void)
{
    struct zr_data_options options = bytes_options(7, 1, 1);
    struct zr_data data;
    int32_t tokens[7], targets[7];
    bool seen[3] = {false}, inside = true;

    write_text(18); /* 10 for training, 8 held out */
    tap_result(zr_data_open(&data, &options), ZR_OK, "a text of 18 bytes");
    for (uint64_t step = 1; step <= 100; step++) {
        zr_data_train(&data, &(struct zr_data_place){.step = step, .data_rank = 0}, tokens, targets);
        uint64_t at = find_window(tokens, targets, 7, 18);
        inside &= at < 3;
        if (at < 3)
            seen[at] = true;
    }
    tap_ok(inside && seen[0] && seen[1] && seen[2], "has three training windows, and all come");
    tap_is(data.validation_windows, 1, "and one held out");
    zr_data_close(&data);
    options = bytes_options(1, 1, 1);
    zr_data_open(&data, &options);
    zr_data_train(&data, &(struct zr_data_place){.step = 1, .data_rank = 0}, tokens, targets);
    tap_ok(find_window(tokens, targets, 1, 18) != UINT64_MAX, "sequences of one token");
    zr_data_close(&data);
}

static void test_determinism(void)
{
    enum { LENGTH = 32, GLOBAL = 4 };
    int32_t tokens[3][GLOBAL * LENGTH], targets[GLOBAL * LENGTH];
    struct zr_data data;
    struct zr_data_options options;

    write_text(20000);
    for (unsigned world = 1; world <= GLOBAL; world *= 2) {
        size_t batch = GLOBAL / world;
        options = bytes_options(LENGTH, batch, world);
        zr_data_open(&data, &options);
        for (unsigned rank = 0; rank < world; rank++)
            zr_data_train(&data, &(struct zr_data_place){.step = 12345678901, .data_rank = rank},
                          tokens[world / 2] + rank * batch * LENGTH, targets);
        zr_data_close(&data);
    }
    tap_ok(memcmp(tokens[0], tokens[1], sizeof tokens[0]) == 0 &&
               memcmp(tokens[0], tokens[2], sizeof tokens[0]) == 0,
           "1, 2 and 4 ranks with one global batch read the same text");
    options = bytes_options(LENGTH, GLOBAL, 1);
    zr_data_open(&data, &options);
    zr_data_train(&data, &(struct zr_data_place){.step = 12345678902, .data_rank = 0}, tokens[1], targets);
    tap_ok(memcmp(tokens[0], tokens[1], sizeof tokens[0]) != 0, "the next step reads another");
    zr_data_close(&data);
    options.seed = 8;
    zr_data_open(&data, &options);
    zr_data_train(&data, &(struct zr_data_place){.step = 12345678901, .data_rank = 0}, tokens[1], targets);
    tap_ok(memcmp(tokens[0], tokens[1], sizeof tokens[0]) != 0, "another seed reads another");
    zr_data_close(&data);
}

/* All rows of a step, by number: the starts of their windows. */
static void step_starts(struct zr_data_options options, enum zr_data_order order, uint64_t step,
                        uint64_t *starts)
{
    enum { LENGTH = 16, ROWS = 12, BYTES = 300 };
    int32_t tokens[ROWS * LENGTH], targets[ROWS * LENGTH];
    struct zr_data data;

    zr_data_open(&data, &options);
    zr_data_set_order(&data, order);
    for (unsigned m = 0; m < options.micro_batches; m++)
        for (unsigned r = 0; r < options.data_ranks; r++) {
            zr_data_train(&data, &(struct zr_data_place){.step = step, .data_rank = r, .micro_batch = m},
                          tokens, targets);
            for (size_t row = 0; row < options.batch; row++)
                *starts++ = find_window(tokens + row * LENGTH, targets + row * LENGTH, LENGTH, BYTES);
        }
    zr_data_close(&data);
}

/* The text is so short that a batch of some of these is more than what is not held out. */
static void test_orders(void)
{
    enum { ROWS = 12 };
    static const unsigned meshes[][3] = {{1, 12, 1}, {1, 1, 12}, {12, 1, 1}, {2, 3, 2}, {3, 2, 2}, {4, 3, 1}};
    uint64_t starts[3][ROWS];

    write_text(300);
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        struct zr_data_options options = bytes_options(16, meshes[i][1], meshes[i][0]);
        options.micro_batches = meshes[i][2];
        step_starts(options, ZR_DATA_ORDER_ROWS, 77, starts[i > 0]);
        tap_ok(memcmp(starts[0], starts[i > 0], sizeof *starts) == 0,
               "%u data ranks x %u rows x %u micro-batches: the windows of 12 rows", meshes[i][0],
               meshes[i][1], meshes[i][2]);
    }
    /* The older order: 6 steps of one micro-batch are 3 of two. */
    struct zr_data_options options = bytes_options(16, 3, 2);
    options.micro_batches = 1;
    step_starts(options, ZR_DATA_ORDER_BATCHES, 5, starts[0]);
    step_starts(options, ZR_DATA_ORDER_BATCHES, 6, starts[0] + ROWS / 2);
    step_starts(options, ZR_DATA_ORDER_ROWS, 5, starts[1]);
    step_starts(options, ZR_DATA_ORDER_ROWS, 6, starts[1] + ROWS / 2);
    options.micro_batches = 2;
    step_starts(options, ZR_DATA_ORDER_BATCHES, 3, starts[2]);
    tap_ok(memcmp(starts[0], starts[2], sizeof *starts) == 0,
           "the order of older checkpoints counts micro-batches");
    tap_ok(memcmp(starts[0], starts[1], sizeof *starts) == 0, "and is the same where a step has one");
    step_starts(options, ZR_DATA_ORDER_ROWS, 3, starts[2]);
    tap_ok(memcmp(starts[0], starts[2], sizeof *starts) != 0, "and another where it has two");
}

/* Whether every row of a step has weight on one data rank, and no rank has more than a round less than
 * another. */
static bool divides(struct zr_division division)
{
    enum { BATCH = 3 };
    const struct zr_data data = {.options = {.batch = BATCH, .data_ranks = division.data_ranks}};
    unsigned char seen[64 * BATCH] = {0};
    bool good = true;
    for (unsigned d = 0; d < division.data_ranks; d++) {
        unsigned weighted = zr_division_weighted(division, d), rounds = zr_division_rounds(division);
        good &= weighted <= rounds && weighted + 1 >= rounds;
        for (unsigned m = 0; m < weighted; m++)
            for (unsigned row = 0; row < BATCH; row++) {
                uint64_t at = zr_data_first_row(&data, &(struct zr_data_place){1, d, m}) + row;
                good = good && at < division.micro_batches * BATCH;
                seen[good ? at : 0]++;
            }
    }
    for (uint64_t row = 0; row < division.micro_batches * BATCH; row++)
        good &= seen[row] == 1;
    return good && zr_division_is_even(division) == (zr_division_weighted(division, 0) ==
                                                     zr_division_weighted(division, division.data_ranks - 1));
}

static void test_division(void)
{
    unsigned wrong = 0;
    for (uint64_t micro_batches = 1; micro_batches <= 64; micro_batches++)
        for (unsigned ranks = 1; ranks <= micro_batches; ranks++)
            wrong += !divides((struct zr_division){micro_batches, ranks});
    tap_is(wrong, 0, "data ranks divide up to 64 micro-batches so that each row of a step counts once");
}

static void test_checksum(void)
{
    struct zr_data_options options = bytes_options(16, 1, 1);
    struct zr_data data;
    uint64_t first, other[2];

    write_text(100000);
    zr_data_open(&data, &options);
    first = data.checksum;
    zr_data_close(&data);
    for (int end = 0; end < 2; end++) {
        write_text(100000);
        int fd = open(path, O_WRONLY);
        if (pwrite(fd, "\xff\xfe", 2, end ? 99998 : 0) != 2)
            abort();
        close(fd);
        zr_data_open(&data, &options);
        other[end] = data.checksum;
        zr_data_close(&data);
    }
    tap_ok(first != other[0] && first != other[1] && other[0] != other[1],
           "texts that differ have other checksums");
}

/* Collects the starts of all validation windows of a world; returns their number. */
static size_t validation_starts(unsigned world, size_t batch, size_t bytes, uint64_t *starts)
{
    enum { LENGTH = 40 };
    struct zr_data_options options = bytes_options(LENGTH, batch, world);
    struct zr_data data;
    int32_t tokens[8 * LENGTH], targets[8 * LENGTH];
    size_t total = 0, count;

    zr_data_open(&data, &options);
    for (uint64_t round = 0; round < zr_data_validation_rounds(&data); round++)
        for (unsigned rank = 0; rank < world; rank++) {
            if (zr_data_validation(&data, &(struct zr_data_place){.step = round, .data_rank = rank}, tokens,
                                   targets, &count))
                return 0;
            for (size_t row = 0; row < count; row++)
                starts[total++] = find_window(tokens + row * LENGTH, targets + row * LENGTH, LENGTH, bytes);
        }
    if (total != data.validation_windows)
        total = 0;
    for (size_t i = 0; i < total; i++)
        if (starts[i] < data.train_count || starts[i] + LENGTH >= data.tokens_count)
            total = 0;
    zr_data_close(&data);
    return total;
}

static void test_validation(void)
{
    static uint64_t starts[4][1024];
    size_t count[4];

    write_text(40000);
    count[0] = validation_starts(1, 1, 40000, starts[0]);
    count[1] = validation_starts(1, 8, 40000, starts[1]);
    count[2] = validation_starts(3, 4, 40000, starts[2]);
    count[3] = validation_starts(8, 7, 40000, starts[3]);
    tap_is(count[0], 1999 / 40, "as many windows as fit the tail of 2,000");
    for (int i = 1; i < 4; i++)
        tap_ok(count[i] == count[0] && memcmp(starts[i], starts[0], count[0] * sizeof **starts) == 0,
               "the same ones for another number of ranks and batch");
    bool apart = starts[0][0] == 38000 && starts[0][count[0] - 1] == 40000 - 41;
    for (size_t i = 1; i < count[0]; i++)
        apart &= starts[0][i] >= starts[0][i - 1] + 40;
    tap_ok(apart, "from the first place of the tail to its last, not overlapping");
}

/* ---- Several files ------------------------------------------------------------------------------------- */

/* Numbers from `first` on, of `bytes` each, after a header; with the last one `last`. */
static void write_numbers(const char *name, const void *head, size_t head_bytes, unsigned first,
                          unsigned count, unsigned bytes)
{
    unsigned char *text = calloc(head_bytes + (size_t)count * bytes, 1), *at = text + head_bytes;
    char *end = strrchr(path, '/') + 1;
    memcpy(text, head, head_bytes);
    for (unsigned i = 0; i < count; i++)
        for (unsigned b = 0; b < bytes; b++)
            at[i * bytes + b] = (unsigned char)((uint64_t)(first + i) >> 8 * b);
    strcpy(end, name);
    write_file(text, head_bytes + (size_t)count * bytes);
    free(text);
}

/* Megatron's index of `sequences` sequences of `length` tokens each, in one document per sequence; one byte
 * of it is changed if at >= 0. */
static size_t make_index(unsigned char *out, unsigned type, unsigned sequences, unsigned length,
                         unsigned bytes)
{
    unsigned char *at = out;
    memcpy(at, "MMIDIDX\0\0\1\0\0\0\0\0\0\0", 17);
    at[17] = (unsigned char)type;
    at += 18;
    uint64_t counts[2] = {sequences, sequences + 1};
    memcpy(at, counts, 16);
    at += 16;
    for (uint32_t i = 0; i < sequences; i++, at += 4)
        memcpy(at, &length, 4);
    for (uint64_t i = 0, place; i < sequences; i++, at += 8)
        memcpy(at, (place = i * length * bytes, &place), 8);
    for (uint64_t i = 0; i <= sequences; i++, at += 8)
        memcpy(at, &i, 8);
    return (size_t)(at - out);
}

static struct zr_data_options number_options(const char *sources)
{
    return (struct zr_data_options){
        .sources = sources, .vocabulary = 50257, .sequence = 10, .batch = 1, .data_ranks = 1, .seed = 7};
}

/* The formats hold the numbers from 1000 to 1999 each. */
static void test_formats(void)
{
    static unsigned char index[4096];
    int32_t head[256] = {20240801, 7, 1000}, tokens[1000];
    static const struct {
        const char *name, *given;
        unsigned bytes;
        enum zr_token_type type;
        unsigned index_type;
    } rows[] = {
        {"wide.bin", "wide.bin", 4, ZR_TOKENS_AUTO, 0},   {"raw2", "raw2", 2, ZR_TOKENS_UINT16, 0},
        {"raw4", "raw4", 4, ZR_TOKENS_UINT32, 0},         {"raw8", "raw8", 8, ZR_TOKENS_INT64, 0},
        {"mega2.bin", "mega2", 2, ZR_TOKENS_AUTO, 8},     {"mega4.bin", "mega4.bin", 4, ZR_TOKENS_AUTO, 4},
        {"mega8.bin", "mega8.idx", 8, ZR_TOKENS_AUTO, 5}, {"mega2b.bin", "mega2b.b*", 2, ZR_TOKENS_AUTO, 3}};
    struct zr_data data;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct zr_data_options options = number_options(path);
        options.type = rows[i].type;
        options.vocabulary = rows[i].bytes == 2 ? 2000 : 100000; /* the two-byte files have the largest */
        if (rows[i].index_type) {
            char name[16];
            snprintf(name, sizeof name, "%.*s.idx", (int)strcspn(rows[i].name, "."), rows[i].name);
            write_numbers(name, index, make_index(index, rows[i].index_type, 50, 20, rows[i].bytes), 0, 0, 1);
        }
        write_numbers(rows[i].name, head, i == 0 ? sizeof head : 0, 1000, 1000, rows[i].bytes);
        strcpy(strrchr(path, '/') + 1, rows[i].given);
        zr_result result = zr_data_open(&data, &options);
        bool good = !result && data.tokens_count == 1000 && zr_data_scan(&data) == ZR_OK &&
                    zr_token_files_read(&data.files, 0, 1000, tokens) == ZR_OK;
        for (int t = 0; t < 1000 && good; t++)
            good = tokens[t] == 1000 + t;
        if (!tap_ok(good, "%s, tokens of %u bytes", rows[i].given, rows[i].bytes))
            tap_note("%s", zr_last_error());
        zr_data_close(&data);
    }
    /* An index that does not describe its data. */
    static const struct {
        unsigned at;
        unsigned char value;
        const char *word;
    } bad[] = {{0, 'x', "MMIDIDX"},     {9, 2, "version"},      {17, 6, "whole numbers"},
               {17, 4, "whole .bin"},   {18, 51, "counts"},     {26, 255, "counts"},
               {230, 19, "whole .bin"}, {234, 2, "whole .bin"}, {634, 1, "whole .bin"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct zr_data_options options = number_options(path);
        size_t bytes = make_index(index, 8, 50, 20, 2);
        index[bad[i].at] = bad[i].value;
        write_numbers("mega2.idx", index, bytes, 0, 0, 1);
        strcpy(strrchr(path, '/') + 1, "mega2.bin");
        zr_result result = zr_data_open(&data, &options);
        tap_ok(result == ZR_ERR_FORMAT && strstr(zr_last_error(), bad[i].word) && !data.files.files,
               "an index with byte %u changed: %s", bad[i].at, bad[i].word);
    }
    struct zr_data_options options = number_options(path);
    options.type = ZR_TOKENS_UINT32;
    strcpy(strrchr(path, '/') + 1, "wide.bin");
    refused(&options, ZR_ERR_FORMAT, "leave --data-type out", "a header where none is said to be");
    write_numbers("raw4", head, 3, 0, 1000, 4);
    refused(&options, ZR_ERR_FORMAT, "multiple", "a part of a number");
}

/* ---- Epochs -------------------------------------------------------------------------------------------- */

enum { FILE_TOKENS = 401, EPOCH_WINDOWS = 3 * FILE_TOKENS / 10 };

/* Counts the windows that the rows of steps first .. last read; each must be in the training part, at a
 * multiple of its length. False: one is not. */
static bool count_windows(struct zr_data *data, uint64_t first, uint64_t last, unsigned *seen)
{
    int32_t tokens[64 * 10], targets[64 * 10];
    bool good = true;
    for (uint64_t step = first; step <= last; step++)
        for (unsigned m = 0; m < data->options.micro_batches; m++)
            for (unsigned r = 0; r < data->options.data_ranks; r++) {
                struct zr_data_place place = {.step = step, .data_rank = r, .micro_batch = m};
                good &= zr_data_train(data, &place, tokens, targets) == ZR_OK;
                for (size_t row = 0; row < data->options.batch; row++) {
                    uint64_t at = (uint64_t)tokens[row * 10];
                    const struct zr_data_source *source = data->sources;
                    while (at >= source->first + source->tokens_count)
                        source++;
                    good &= at >= source->first && at - source->first + 10 < source->train_count &&
                            (at - source->first) % 10 == 0 && targets[row * 10 + 9] == (int32_t)at + 10;
                    seen[at / 10]++;
                }
            }
    return good;
}

/* Three files, one after the other the numbers from 0 on, read in epochs: the shapes of ranks before and
 * after row `cut` read each window once per epoch. */
static void test_epochs(void)
{
    static const struct {
        unsigned ranks, batch, micro;
    } meshes[] = {{1, 1, 1}, {2, 3, 2}, {5, 1, 4}, {1, 7, 1}, {3, 2, 3}, {1, 64, 1}};
    enum { MESHES = sizeof meshes / sizeof *meshes };
    char sources[2][320];
    int32_t head[256] = {20240520, 1, FILE_TOKENS};
    struct zr_data data;

    for (unsigned i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "part-%u.bin", i);
        write_numbers(name, head, sizeof head, i * FILE_TOKENS, FILE_TOKENS, 2);
    }
    *strrchr(path, '/') = '\0';
    snprintf(sources[0], sizeof *sources, "%s/part-*.bin", path);
    snprintf(sources[1], sizeof *sources, "%.90s/part-0.bin\n%.90s/part-1.bin\n%.90s/*-2.*", path, path,
             path);
    path[strlen(path)] = '/';
    for (unsigned s = 0; s < 2; s++)
        for (unsigned i = 0; i < MESHES; i++) {
            unsigned j = (i + 1) % MESHES;
            unsigned seen[EPOCH_WINDOWS + 1] = {0},
                                          each[2] = {meshes[i].ranks * meshes[i].batch * meshes[i].micro,
                                                     meshes[j].ranks * meshes[j].batch * meshes[j].micro};
            struct zr_data_options options = number_options(sources[s]);
            options.order = ZR_DATA_ORDER_EPOCHS;
            options.data_ranks = meshes[i].ranks;
            options.batch = meshes[i].batch;
            options.micro_batches = meshes[i].micro;
            bool good = zr_data_open(&data, &options) == ZR_OK;
            uint64_t windows = data.windows, steps = windows / 2 / each[0], rows = steps * each[0];
            good = good && count_windows(&data, 1, steps, seen) && zr_data_rows_after(&data, steps) == rows;
            zr_data_close(&data);
            /* As many rows as end the second epoch or pass its end. */
            options.data_ranks = meshes[j].ranks;
            options.batch = meshes[j].batch;
            options.micro_batches = meshes[j].micro;
            good = good && zr_data_open(&data, &options) == ZR_OK;
            zr_data_resume(&data, steps, rows);
            uint64_t more = (2 * windows - rows) / each[1], end = zr_data_steps_of(&data, 2);
            good = good && zr_data_rows_after(&data, end) >= 2 * windows &&
                   zr_data_rows_after(&data, end - 1) < 2 * windows;
            good = good && count_windows(&data, steps + 1, steps + more, seen);
            unsigned most = 0, twice = 0, none = 0;
            for (unsigned w = 0; w < EPOCH_WINDOWS + 1; w++) {
                most = seen[w] > most ? seen[w] : most;
                twice += seen[w] == 2;
                none += seen[w] == 0;
            }
            rows += more * each[1]; /* at least the first epoch is whole */
            tap_ok(good && most == 2 && twice == rows - windows && none == EPOCH_WINDOWS + 1 - windows,
                   "%u sources, %u x %u x %u, resumed as %u x %u x %u: each of %llu windows once per epoch",
                   s ? 3 : 1, meshes[i].ranks, meshes[i].batch, meshes[i].micro, meshes[j].ranks,
                   meshes[j].batch, meshes[j].micro, (unsigned long long)windows);
            if (!good || most != 2)
                tap_note("%s most %u twice %u none %u", zr_last_error(), most, twice, none);
            zr_data_close(&data);
        }
}

/* The order of the windows changes from epoch to epoch. */
static void test_orders_of_epochs(void)
{
    struct zr_data_options options = bytes_options(16, 1, 1);
    struct zr_data data;
    int32_t first[16], second[16], targets[16];
    unsigned other = 0;
    write_text(1000);
    options.order = ZR_DATA_ORDER_EPOCHS;
    zr_data_open(&data, &options);
    for (uint64_t step = 1; step <= data.windows; step++) {
        zr_data_train(&data, &(struct zr_data_place){.step = step}, first, targets);
        zr_data_train(&data, &(struct zr_data_place){.step = step + data.windows}, second, targets);
        other += memcmp(first, second, sizeof first) != 0;
    }
    tap_ok(other > data.windows / 2, "%u of %llu windows are elsewhere in the second epoch", other,
           (unsigned long long)data.windows);
    zr_data_close(&data);
}

/* Sources with weights 3 and 1: of 65,536 rows a quarter is the second's, each of whose windows comes as
 * often as another. The same shares, about, in the order of random places. */
static void test_weights(void)
{
    static const enum zr_data_order orders[] = {ZR_DATA_ORDER_EPOCHS, ZR_DATA_ORDER_ROWS};
    char sources[300];
    struct zr_data data;
    *strrchr(path, '/') = '\0';
    snprintf(sources, sizeof sources, "%.99s/part-0.bin:weight=0.75\n%.99s/part-1.bin:weight=.25", path,
             path);
    path[strlen(path)] = '/';
    for (unsigned o = 0; o < 2; o++) {
        unsigned count[2 * FILE_TOKENS] = {0}, sum[2] = {0}, least = UINT32_MAX, most = 0;
        int32_t tokens[640], targets[640];
        struct zr_data_options options = number_options(sources);
        options.order = orders[o];
        options.batch = 64;
        bool good = zr_data_open(&data, &options) == ZR_OK;
        for (uint64_t step = 1; step <= 1024 && good; step++) {
            good = zr_data_train(&data, &(struct zr_data_place){.step = step}, tokens, targets) == ZR_OK;
            for (unsigned row = 0; row < 64; row++) {
                count[tokens[10 * row]]++;
                sum[tokens[10 * row] >= FILE_TOKENS]++;
            }
        }
        for (unsigned w = 0; w < data.sources[1].windows; w++) {
            unsigned n = count[FILE_TOKENS + 10 * w];
            least = n < least ? n : least;
            most = n > most ? n : most;
        }
        good &= o ? sum[1] > 15800 && sum[1] < 16950 : sum[1] == 16384 && most - least <= 1;
        tap_ok(good, "order %u: %u rows of weight 3/4, %u of 1/4, its windows %u to %u times", orders[o],
               sum[0], sum[1], least, most);
        zr_data_close(&data);
    }
    static const char *const bad[] = {":weight=1",    "x:weight=0",  "x:weight=-1",
                                      "x:weight=nan", "x:weight=1x", "x:weight="};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        tap_ok(zr_data_source_problem(bad[i]) != NULL, "no source: %s", bad[i]);
    strcat(strcpy(sources, path), "\n");
    strcpy(strrchr(sources, '/') + 1, "part-0.bin:weight=1\n");
    strcat(sources, path);
    strcpy(strrchr(sources, '/') + 1, "part-1.bin");
    struct zr_data_options options = number_options(sources);
    tap_result(zr_data_open(&data, &options), ZR_ERR_INVALID, "a weight for one of two sources");
    strcpy(strrchr(path, '/') + 1, "none-*");
    options.sources = path;
    refused(&options, ZR_ERR_IO, "no file matches", "a pattern that matches nothing");
}

/* The pages of a file that are in memory; false: the file system keeps them all. */
enum { BIG_PAGES = 16384, PAGE = 4096 };
static bool read_step(const char *sources, uint64_t step, int fd, void *map, unsigned char *resident)
{
    struct zr_data_options options = bytes_options(PAGE, 1, 1);
    int32_t tokens[PAGE], targets[PAGE];
    struct zr_data data;
    size_t kept = 0;
    options.sources = sources;
    if (zr_data_open(&data, &options) != ZR_OK)
        return false;
    posix_fadvise(fd, 0, (off_t)BIG_PAGES * PAGE, POSIX_FADV_DONTNEED);
    mincore(map, (size_t)BIG_PAGES * PAGE, resident);
    for (size_t i = 0; i < BIG_PAGES; i++)
        kept += resident[i] & 1;
    zr_data_train(&data, &(struct zr_data_place){.step = step}, tokens, targets);
    zr_data_close(&data);
    return kept == 0;
}

/* While a step computes, the system reads the windows of the next one. */
static void test_prefetch(void)
{
    static unsigned char both[2][BIG_PAGES];
    char file[] = "build/zr-data-XXXXXX";
    int fd = mkstemp(file);
    size_t bytes = (size_t)BIG_PAGES * PAGE, common = 0;
    char *text = malloc(bytes);
    memset(text, 'x', bytes);
    bool written = fd >= 0 && pwrite(fd, text, bytes, 0) == (ssize_t)bytes && fdatasync(fd) == 0;
    void *map = written ? mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    free(text);
    if (map == MAP_FAILED || !read_step(file, 2, fd, map, both[0]) || mincore(map, bytes, both[0]) != 0 ||
        !read_step(file, 1, fd, map, both[1])) {
        tap_skip("the file system of build/ does not drop pages");
    } else {
        for (int wait = 0; wait < 2000 && common == 0; wait++) {
            mincore(map, bytes, both[1]);
            for (size_t i = 0; i < BIG_PAGES; i++)
                common += both[0][i] & both[1][i] & 1;
            usleep(1000);
        }
        tap_ok(common > 0, "step 1 has the system read the window of step 2");
    }
    unlink(file);
    close(fd);
}

int main(void)
{
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/text", folder);
    test_odd_files();
    test_shards();
    test_binary();
    test_foreign_tokens();
    test_train_windows();
    test_narrow();
    test_determinism();
    test_orders();
    test_division();
    test_checksum();
    test_validation();
    test_formats();
    test_epochs();
    test_weights();
    test_orders_of_epochs();
    test_prefetch();
    snprintf(path, sizeof path, "rm -r %s", folder);
    if (system(path) != 0)
        return 1;
    return tap_done();
}
