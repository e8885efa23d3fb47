/* fuzz_test.c: every file format that is read here, mutated again and again: bits, numbers at the edges,
 * words of the formats, parts cut, doubled, moved and spliced. A mutant that brings a new answer (the result
 * and its words) joins those that are mutated, so that mutations build on one another without looking at the
 * program.
 *
 *   fuzz_test [SECONDS [TARGET]]        for each format; without it a fixed number of runs
 *   fuzz_test --corpus FOLDER           writes the good files there, for other fuzzers (make fuzz), and the
 *                                       words of the formats to FOLDER.words
 *
 * A failing input is kept in /tmp/zr-fuzz-FORMAT, and its seed is printed. */
#define _GNU_SOURCE
#include <stdio.h>
#include <time.h>

#include "alloc/base/system/file.h"
#include "tests/support/draws.h"
#include "tests/support/fuzz/fuzz_model_inputs.h"
#include "tests/support/fuzz/fuzz_targets.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"

enum { CORPUS_MAX = 512, ANSWERS = 1 << 12 };
#ifdef __OPTIMIZE__
enum { RUNS = 2000 };
#else
enum { RUNS = 1500 };
#endif

static struct fuzz_input *corpus; /* CORPUS_MAX of them */
static size_t corpus_count;
static const char *const *words; /* of the format */
static size_t words_count;
static bool answered[ANSWERS];

static size_t below(size_t limit)
{
    return limit ? next_random() % limit : 0;
}

/* ---- Mutations ----------------------------------------------------------------------------------------- */

static void replace(struct fuzz_input *input, size_t at, size_t old_bytes, const void *with, size_t bytes)
{
    static unsigned char copy[FUZZ_MAX];
    if (old_bytes > input->bytes - at || bytes > FUZZ_MAX - (input->bytes - old_bytes))
        return;
    memcpy(copy, with, bytes);
    memmove(input->data + at + bytes, input->data + at + old_bytes, input->bytes - at - old_bytes);
    memcpy(input->data + at, copy, bytes);
    input->bytes += bytes - old_bytes;
}

static uint64_t some_edge(void)
{
    static const uint64_t edges[] = {
        0,          1,         0x7f,        0x80,       0xff,          0x7fff,
        0xffff,     INT32_MAX, 0x80000000u, UINT32_MAX, 1ull << 32,    1ull << 40,
        1ull << 54, INT64_MAX, 1ull << 63,  UINT64_MAX, UINT64_MAX - 1};
    return edges[below(sizeof edges / sizeof *edges)];
}

/* A number at an edge, over one to eight bytes. */
static void edge_number(struct fuzz_input *input, size_t at)
{
    uint64_t value = some_edge();
    size_t bytes = (size_t)1 << below(4);
    if (bytes <= input->bytes - at)
        memcpy(input->data + at, &value, bytes);
}

/* The decimal number around a place becomes another, or none; with a 1 before it, one beyond 64 bits. */
static void edge_decimal(struct fuzz_input *input, size_t at)
{
    static const char before[][4] = {"", "", "-", "00", "0x", "1"};
    char edge[32] = "";
    size_t end;
    while (at < input->bytes && (input->data[at] < '0' || input->data[at] > '9'))
        at++;
    for (end = at; end < input->bytes && input->data[end] >= '0' && input->data[end] <= '9'; end++)
        ;
    if (below(8) > 0)
        snprintf(edge, sizeof edge, "%s%llu", before[below(6)], (unsigned long long)some_edge());
    if (end > at)
        replace(input, at, end - at, edge, strlen(edge));
}

static void put_part_of_other(struct fuzz_input *input, size_t at)
{
    const struct fuzz_input *other = &corpus[below(corpus_count)];
    size_t from = below(other->bytes), bytes = below(other->bytes - from) + 1;
    if (other->bytes > 0)
        replace(input, at, next_random() % 2 ? 0 : below(input->bytes - at), other->data + from, bytes);
}

static void mutate_once(struct fuzz_input *input)
{
    size_t at = below(input->bytes), length = below(input->bytes - at);
    const char *word = words[below(words_count)];
    unsigned char byte = (unsigned char)next_random();
    if (input->bytes == 0)
        fuzz_put(input, word, strlen(word));
    switch (next_random() % 12) {
    case 0:
    case 1:
        input->data[at] ^= (unsigned char)(1u << below(8));
        break;
    case 2:
        input->data[at] = byte;
        break;
    case 3:
        edge_number(input, at);
        break;
    case 4:
    case 5:
        edge_decimal(input, at);
        break;
    case 6:
        replace(input, at, next_random() % 2 ? 0 : strlen(word), word, strlen(word));
        break;
    case 7: /* cut */
        replace(input, at, length < 64 ? length : below(64), "", 0);
        break;
    case 8: /* double */
        replace(input, at, 0, input->data + at, length < 200 ? length : below(200));
        break;
    case 9: /* move */
        memmove(input->data + below(input->bytes - length), input->data + at, length);
        break;
    case 10:
        put_part_of_other(input, at);
        break;
    default: /* the end, or a byte more */
        if (next_random() % 4 == 0)
            input->bytes = at;
        else
            replace(input, at, 0, &byte, 1);
    }
}

/* ---- Running ------------------------------------------------------------------------------------------- */

/* Which of the answers this is: the result and its words, without numbers and what the file is quoted for. */
static unsigned answer_of(zr_result result, size_t bytes)
{
    uint64_t hash = 14695981039346656037u ^ (unsigned)result;
    bool quoted = false;
    for (const char *at = result == ZR_OK ? "" : zr_last_error(); *at; at++) {
        quoted ^= *at == '"' || *at == '\'' || *at == '`';
        if (!quoted && (*at < '0' || (*at > '9' && *at < 'a') || *at > 'f'))
            hash = (hash ^ (unsigned char)*at) * 1099511628211u;
    }
    if (result == ZR_OK) /* accepted files of many lengths are worth keeping */
        hash = (hash ^ bytes / 8) * 1099511628211u;
    return (unsigned)(hash >> 20) % ANSWERS;
}

/* The file of an input; of some readers with a byte more before it. */
static bool write_input(const char *path, const unsigned char *first, const struct fuzz_input *input)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool good = fd >= 0 && (!first || write(fd, first, 1) == 1) &&
                write(fd, input->data, input->bytes) == (ssize_t)input->bytes;
    return fd >= 0 && close(fd) == 0 && good;
}

/* One run; the first that goes wrong is kept. */
static void run_one(const struct fuzz_target *target, const struct fuzz_input *input, zr_result *result,
                    unsigned *wrong)
{
    char path[128];
    unsigned open_count = fuzz_open_count();
    bool good = target->run(input->data, input->bytes, result);
    /* A device's driver, once loaded, keeps what it has opened: that target compares by itself. */
    if ((good && (target->run == fuzz_service_device || fuzz_open_count() == open_count)) || (*wrong)++ > 0)
        return;
    snprintf(path, sizeof path, "/tmp/zr-fuzz-%s", target->name);
    tap_note("%zu bytes%s%s: %s", input->bytes,
             write_input(path, NULL, input) ? " kept in " : " not kept in ", path, zr_last_error());
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* How much longer a run of a target takes than one of the others. */
static unsigned slowness(const struct fuzz_target *target)
{
    return target->run == fuzz_service_device                  ? 8
           : target->run == fuzz_tcp || target->run == fuzz_ps ? 32
                                                               : 1;
}

static void fuzz(const struct fuzz_target *target, uint64_t seed, double seconds)
{
    static struct fuzz_input input;
    unsigned wrong = 0, good = 0, accepted = 0, answers = 0;
    uint64_t runs = 0;
    size_t firsts = corpus_count;
    double end = seconds_now() + seconds;
    zr_result result = ZR_OK;
    memset(answered, 0, sizeof answered);
    random_state = seed | 1;
    for (size_t i = 0; i < firsts; i++) {
        run_one(target, &corpus[i], &result, &wrong);
        good += result == ZR_OK;
    }
    tap_is(good, firsts, "%s: good files to start from", target->name);
    for (; seconds > 0 ? runs % 64 || seconds_now() < end : runs < RUNS / slowness(target); runs++) {
        input = corpus[next_random() % 4 ? below(corpus_count) : below(firsts)];
        for (size_t count = below(4) + 1; count > 0; count--)
            mutate_once(&input);
        run_one(target, &input, &result, &wrong);
        accepted += result == ZR_OK;
        unsigned answer = answer_of(result, input.bytes);
        if (answered[answer])
            continue;
        answered[answer] = true;
        answers++;
        if (corpus_count < CORPUS_MAX)
            corpus[corpus_count++] = input;
    }
    tap_is(wrong, 0, "%s: %llu hostile files, %u answers, %u accepted: no contradiction, no leak",
           target->name, (unsigned long long)runs, answers, accepted);
}

/* ---- The good files ------------------------------------------------------------------------------------ */

static const struct {
    bool (*run)(const unsigned char *data, size_t bytes, zr_result *result);
    const char *text;
} texts[] = {
    {fuzz_trace, fuzz_rmm},
    {fuzz_trace, fuzz_minimalloc},
    {fuzz_recording, fuzz_rmm},
    {fuzz_recording, fuzz_minimalloc},
    {fuzz_lifetimes_file, fuzz_minimalloc},
    {fuzz_lifetimes_file, fuzz_lifetimes},
    {fuzz_setting, fuzz_settings},
    {fuzz_text_file, fuzz_some_text},
    {fuzz_options, fuzz_some_options},
    {fuzz_environment, fuzz_torchrun},
    {fuzz_environment, fuzz_slurm},
    {fuzz_environment, fuzz_mpirun},
    {fuzz_machine, fuzz_machine_text},
    {fuzz_service, fuzz_two_clients},
    {fuzz_service, fuzz_a_tool},
    {fuzz_service, fuzz_two_runs},
    {fuzz_service, fuzz_two_shards},
    {fuzz_service_device, fuzz_two_pieces},
    {fuzz_tcp, fuzz_messages},
    {fuzz_handshake, fuzz_shake},
    {fuzz_ps, fuzz_two_workers},
    {fuzz_config, fuzz_adamw_config},
    {fuzz_config, fuzz_sgd_config},
    {fuzz_tokenizer, fuzz_bytes_tokenizer},
    {fuzz_tokenizer, fuzz_characters_tokenizer},
    {fuzz_tokenizer, fuzz_unigram_tokenizer},
};

static bool start_model_corpus(const struct fuzz_target *target, const char *folder)
{
    bool good = true;
    if (target->run == fuzz_checkpoint)
        good = fuzz_saved_checkpoint(&corpus[corpus_count++], folder, 1) &&
               fuzz_saved_checkpoint(&corpus[corpus_count++], folder, 2);
    if (target->run == fuzz_state)
        good = fuzz_saved_state(&corpus[corpus_count++], folder, 1) &&
               fuzz_saved_state(&corpus[corpus_count++], folder, 2);
    if (target->run == fuzz_torch)
        for (unsigned wide = 0; wide < 2; wide++)
            fuzz_torch_model(&corpus[corpus_count++], wide);
    if (target->run == fuzz_safetensors || target->run == fuzz_gpt) {
        good = fuzz_saved_model(&corpus[corpus_count++], folder);
        fuzz_foreign_model(&corpus[corpus_count++],
                           &(struct fuzz_gpt_style){"transformer.", "F16", false, true});
        fuzz_foreign_model(&corpus[corpus_count++], &(struct fuzz_gpt_style){"", "BF16", true, true});
        fuzz_foreign_model(&corpus[corpus_count++], &(struct fuzz_gpt_style){"", "BF16", false, false});
    }
    return good;
}

/* The corpus of a target anew; false where one cannot be made. */
static bool start_corpus(const struct fuzz_target *target, const char *folder)
{
    char trace_path[64];
    snprintf(trace_path, sizeof trace_path, "%s/trace.zrt", folder);
    words = target->words;
    for (words_count = 0; words[words_count]; words_count++)
        ;
    corpus_count = 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (target->run == texts[i].run) {
            corpus[corpus_count].bytes = 0;
            fuzz_put(&corpus[corpus_count++], texts[i].text, strlen(texts[i].text));
        }
    if (target->run == fuzz_trace || target->run == fuzz_recording) {
        fuzz_snapshot(&corpus[corpus_count++], 4);
        fuzz_snapshot(&corpus[corpus_count++], 2);
    }
    if (target->run == fuzz_compressed)
        for (int gzip = 0; gzip < 2; gzip++)
            fuzz_compressed_log(&corpus[corpus_count++], gzip);
    if (target->run == fuzz_tokens)
        fuzz_shard(&corpus[corpus_count++]);
    if (target->run == fuzz_index)
        for (unsigned wide = 0; wide < 2; wide++)
            fuzz_indexed(&corpus[corpus_count++], wide);
    if (target->run == fuzz_log) {
        corpus[corpus_count].bytes = 0;
        return fuzz_take(&corpus[corpus_count++], folder, "log");
    }
    if (target->run == fuzz_zrt || target->run == fuzz_trace || target->run == fuzz_recording)
        return fuzz_killed_trace(&corpus[corpus_count++], trace_path);
    return start_model_corpus(target, folder);
}

/* The words of all formats as a dictionary of libFuzzer's. */
static int write_dictionary(const char *path)
{
    FILE *file = fopen(path, "we");
    if (!file)
        return 1;
    for (unsigned t = 0; t < FUZZ_TARGETS; t++)
        for (const char *const *word = fuzz_targets[t].words; *word; word++) {
            fputs(**word ? "\"" : "# \"", file);
            for (const char *at = *word; *at; at++)
                fprintf(file, "\\x%02x", (unsigned char)*at);
            fputs("\"\n", file);
        }
    return fclose(file) != 0;
}

/* Files named target-number, the target's number as their first byte. */
static int write_corpus(const char *folder, const char *scratch)
{
    for (unsigned t = 0; t < FUZZ_TARGETS; t++) {
        if (!start_corpus(&fuzz_targets[t], scratch))
            return 1;
        for (size_t i = 0; i < corpus_count; i++) {
            char path[512];
            unsigned char first = (unsigned char)t;
            snprintf(path, sizeof path, "%s/%s-%zu", folder, fuzz_targets[t].name, i);
            if (!write_input(path, &first, &corpus[i]))
                return 1;
        }
    }
    char dictionary[512];
    snprintf(dictionary, sizeof dictionary, "%s.words", folder);
    return write_dictionary(dictionary);
}

/* ---- What was wrong once ------------------------------------------------------------------------------- */

/* A good file with one change, and what it comes to. */
struct known {
    const char *target;
    unsigned good_file;
    const char *from, *to; /* the first of its kind */
    const char *words;     /* of the refusal; NULL: it is accepted */
    const char *name;
};

static const struct known known[] = {
    {"safetensors", 0, "[0,24]", "[0,16]", "extends beyond it", "less than its shape has"},
    {"safetensors", 0, "[24,40]", "[16,32]", "two of its tensors overlap", "two tensors of the same bytes"},
    {"safetensors", 0, "wpe.weight\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[24,40]",
     "wpe.weight\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[24,32]", "belong to no tensor",
     "bytes that nobody owns"},
    {"safetensors", 1, "[1,1,2,2]", "[1,1,2,4]", "extends beyond it", "a mask of another shape"},
    {"safetensors", 1, "\"BOOL\"", "\"F4_2\"", NULL, "a kind of number that is not known"},
    {"torch", 0, "ctorch\nFloat", "ctorch\nShort", "another type", "a storage of two types"},
    {"torch", 0, "tQK\2", "tQK\3", "beyond its storage", "a tensor beyond its storage"},
    {"torch", 1, "0X\3", "1X\3", "missing", "a storage that is missing"},
    {"gpt", 0, "\"wpe.weight\"", "\"\\u001b[2Jpe.weight\"", "?[2Jpe.weight",
     "a command to the terminal as a name"},
    {"gpt", 0, "\"wpe.weight\"", "\"\\u009bpe.weight\"", "??pe.weight", "and one in UTF-8"},
    {"gpt", 0, "[24,40]", "[0,16]", "two of its tensors overlap", "parameters that share their bytes"},
    {"checkpoint", 0, "\"kv_heads\": ", "\"kv_heads\": 1", "--kv-heads", "a manifest of another model"},
    {"checkpoint", 0, "\"loss_scale\":\"47800000", "\"loss_scale\":\"7f800000", "loss scale",
     "a state with a loss scale without end"},
    {"state", 0, "\"loss_scale\":\"47800000", "\"loss_scale\":\"7f800000", "loss scale",
     "a loss scale without end"},
    {"environment", 0, "LOCAL_WORLD_SIZE=4", "LOCAL_WORLD_SIZE=1", "LOCAL_RANK=1",
     "a rank beyond those of its machine"},
    {"log", 0, "{\"step\": 10", "{\"step\": 18446744073709551626", NULL,
     "a step beyond all numbers is a later one"},
};

/* The targets compare what is accepted, and look whether what is refused has changed anything. */
static void test_known(const char *scratch)
{
    static struct fuzz_input input;
    for (unsigned i = 0; i < sizeof known / sizeof *known; i++) {
        const struct known *one = &known[i];
        const struct fuzz_target *target = fuzz_targets;
        zr_result result = ZR_OK;
        while (strcmp(target->name, one->target) != 0)
            target++;
        bool good = start_corpus(target, scratch);
        input = corpus[one->good_file];
        unsigned char *at = memmem(input.data, input.bytes, one->from, strlen(one->from));
        if (at)
            replace(&input, (size_t)(at - input.data), strlen(one->from), one->to, strlen(one->to));
        if (input.bytes > 8 && (target->run == fuzz_safetensors || target->run == fuzz_gpt))
            input.data[0] = (unsigned char)(input.data[0] + strlen(one->to) - strlen(one->from));
        good = good && at && target->run(input.data, input.bytes, &result) &&
               (one->words ? result != ZR_OK && strstr(zr_last_error(), one->words) : result == ZR_OK);
        if (!tap_ok(good, "%s: %s", one->target, one->name))
            tap_note("%s%s: %s", at ? "" : "not found: ", zr_result_name(result), zr_last_error());
    }
}

static void remove_scratch(const char *scratch)
{
    char path[128];
    for (unsigned world = 1; world <= 2; world++) {
        snprintf(path, sizeof path, "%s/saved-%u/step-00000007", scratch, world);
        zr_path_remove_folder(path);
        snprintf(path, sizeof path, "%s/saved-%u", scratch, world);
        zr_path_remove_folder(path);
    }
    zr_path_remove_folder(scratch);
}

int main(int count, char **arguments)
{
    uint64_t seed = run_seed();
    char scratch[] = "/tmp/zr-fuzz-test-XXXXXX";
    corpus = calloc(CORPUS_MAX, sizeof *corpus);
    if (!corpus || !mkdtemp(scratch) || !fuzz_save_all(scratch) || !fuzz_start()) {
        tap_ok(false, "a folder and an arena: %s", zr_last_error());
        return tap_done();
    }
    if (count == 3 && strcmp(arguments[1], "--corpus") == 0) {
        int code = write_corpus(arguments[2], scratch);
        fuzz_end();
        remove_scratch(scratch);
        return code;
    }
    for (unsigned t = 0; t < FUZZ_TARGETS; t++) {
        if (count == 3 && strcmp(arguments[2], fuzz_targets[t].name) != 0)
            continue;
        if (!start_corpus(&fuzz_targets[t], scratch))
            tap_ok(false, "%s: a good file cannot be made", fuzz_targets[t].name);
        fuzz(&fuzz_targets[t], seed + t, count >= 2 ? strtod(arguments[1], NULL) : 0);
    }
    if (count == 1)
        test_known(scratch);
    tap_is(fuzz_live_bytes(), 0, "every record went back to the arena");
    tap_is(fuzz_heap_live_bytes, 0, "and to the heap");
    fuzz_end();
    free(corpus);
    remove_scratch(scratch);
    return tap_done();
}
