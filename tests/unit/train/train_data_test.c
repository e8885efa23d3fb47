/* train_data_test.c: the text of a run: odd files, hostile token shards, and windows that depend on nothing
 * but seed, step and place, and never cross the border to the held-out tail. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "tests/support/tap.h"
#include "zero/train/data.h"

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
    return (struct zr_data_options){.path = path,
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
    bool good = got == want && strstr(zr_last_error(), word) && strstr(zr_last_error(), options->path);
    if (!tap_ok(good && data.file.fd == -1, "refused: %s", what))
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
    options.path = folder;
    refused(&options, ZR_ERR_IO, "folder", "a folder");
    options.path = "/dev/zero";
    refused(&options, ZR_ERR_FORMAT, "not a regular file", "a device");
    options.path = path;
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
        .path = path, .vocabulary = 50257, .sequence = 16, .batch = 4, .data_ranks = 1, .seed = 7};
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
               {0, 20240801, "four bytes", "tokens of four bytes"},
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
    refused(&text, ZR_ERR_FORMAT, "four bytes", "llm.c's shard for Llama 3, as text");
    refused(&tokens, ZR_ERR_FORMAT, "version 7", "the same as tokens");
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
    test_checksum();
    test_validation();
    unlink(path);
    rmdir(folder);
    return tap_done();
}
