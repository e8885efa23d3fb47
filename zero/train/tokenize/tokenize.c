/* tokenize.c: see tokenize.h. */
#define _GNU_SOURCE
#include "zero/train/tokenize/tokenize.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/os.h"
#include "zero/text/tokenizer.h"
#include "zero/train/rank/thread_pool.h"
#include "zero/train/report/number.h"
#include "zero/train/report/terminal.h"
#include "zero/train/settings/args.h"
#include "zero/train/tokenize/shards.h"

enum { BATCH_BYTES = 4 << 20, THREADS_MAX = 256, PATH_ROOM = ZR_SHARD_PATH_ROOM };
static const uint64_t SHOW_NS = UINT64_C(500000000);

/* ---- Settings ------------------------------------------------------------------------------------------ */

struct settings {
    const char *folder, *tokenizer, *eos; /* NULL: not given */
    char **paths;
    unsigned paths_count, threads;
    uint64_t shard_tokens;
    double validation_share;
    bool by_line, help;
};

/* Stores the value of one option. */
struct option {
    const char *name, *argument, *help;
    const char *(*store)(struct settings *settings, const char *value); /* the problem; NULL: none */
};

static const char *store_folder(struct settings *settings, const char *value)
{
    settings->folder = value;
    return NULL;
}

static const char *store_tokenizer(struct settings *settings, const char *value)
{
    settings->tokenizer = value;
    return NULL;
}

static const char *store_eos(struct settings *settings, const char *value)
{
    settings->eos = value;
    return NULL;
}

static const char *store_document(struct settings *settings, const char *value)
{
    settings->by_line = strcmp(value, "line") == 0;
    return settings->by_line || strcmp(value, "file") == 0 ? NULL : "must be file or line";
}

static const char *store_share(struct settings *settings, const char *value)
{
    char *end;
    settings->validation_share = strtod(value, &end);
    return *value && !*end && settings->validation_share >= 0 && settings->validation_share < 1
               ? NULL
               : "must be a number from 0 to below 1";
}

/* A whole number from 1 to max; 0: not one. */
static uint64_t count_of(const char *value, double max)
{
    char *end;
    double number = strtod(value, &end);
    return *value && !*end && number >= 1 && number <= max && number == floor(number) ? (uint64_t)number : 0;
}

static const char *store_shard(struct settings *settings, const char *value)
{
    settings->shard_tokens = count_of(value, INT32_MAX);
    return settings->shard_tokens ? NULL : "must be a whole number from 1 to 2147483647";
}

static const char *store_threads(struct settings *settings, const char *value)
{
    settings->threads = (unsigned)count_of(value, THREADS_MAX);
    return settings->threads ? NULL : "must be a whole number from 1 to 256";
}

static const char *store_help(struct settings *settings, const char *value)
{
    (void)value;
    settings->help = true;
    return NULL;
}

static const struct option options[] = {
    {"output", "DIR", "folder of the shards train_000000.bin, ..; -o for short", store_folder},
    {"tokenizer", "FILE", "tokenizer.json, or the folder of a model that has one", store_tokenizer},
    {"document-per", "file|line", "what a document is (default file); a .jsonl file has one per line",
     store_document},
    {"eos", "TEXT|N|none", "token after each document (default that of the tokenizer's folder)", store_eos},
    {"val-share", "F", "share of the documents that go to val_000000.bin, .. (default 0)", store_share},
    {"shard-tokens", "N", "maximum of tokens per shard (default 100000000)", store_shard},
    {"threads", "N", "threads (default cores)", store_threads},
    {"help", NULL, "print this", store_help}};
enum { OPTIONS_COUNT = sizeof options / sizeof *options };

static zr_result print_help(void)
{
    struct zr_file out = zr_file_borrow(STDOUT_FILENO, "standard output");
    struct zr_text text;
    char buffer[2048], left[64];
    zr_text_start(&text, &out, buffer, sizeof buffer);
    zr_text_print(&text,
                  "zr-train tokenize TEXT.. -o DIR --tokenizer FILE\n\n"
                  "Encodes texts in UTF-8 as token shards, which zr-train --data 'DIR/train_*.bin' reads.\n\n"
                  "Examples\n"
                  "  zr-train tokenize books/*.txt -o tokens --tokenizer models/llama\n"
                  "  zr-train tokenize web.jsonl -o tokens --tokenizer tokenizer.json --val-share 0.01\n\n"
                  "Options\n");
    for (size_t i = 0; i < OPTIONS_COUNT; i++) {
        snprintf(left, sizeof left, "--%s %s", options[i].name,
                 options[i].argument ? options[i].argument : "");
        zr_text_print(&text, "  %-28s  %s\n", left, options[i].help);
    }
    return zr_text_flush(&text);
}

static zr_result read_option(struct settings *settings, int argc, char **argv, int *at)
{
    const char *argument = argv[(*at)++];
    const char *name = strcmp(argument, "-o") == 0   ? "output"
                       : strcmp(argument, "-h") == 0 ? "help"
                                                     : argument + 2;
    size_t length = strcspn(name, "=");
    const struct option *option = NULL;
    for (size_t i = 0; i < OPTIONS_COUNT; i++)
        if (strlen(options[i].name) == length && memcmp(options[i].name, name, length) == 0)
            option = &options[i];
    if (!option)
        return zr_fail(ZR_ERR_INVALID, "unknown option %.100s; zr-train tokenize --help lists the options",
                       argument);
    const char *value = name[length]                     ? name + length + 1
                        : option->argument && *at < argc ? argv[(*at)++]
                                                         : NULL;
    if (option->argument && !value)
        return zr_fail(ZR_ERR_INVALID, "--%s needs a value: --%s %s", option->name, option->name,
                       option->argument);
    const char *problem = option->store(settings, value);
    return problem ? zr_fail(ZR_ERR_INVALID, "--%s '%.100s': %s", option->name, value, problem) : ZR_OK;
}

/* Texts are moved to the front of argv. */
static zr_result read_settings(struct settings *out, int argc, char **argv)
{
    zr_result result = ZR_OK;
    *out = (struct settings){.paths = argv, .shard_tokens = 100000000};
    for (int at = 1; at < argc && !result;)
        if (argv[at][0] == '-' && argv[at][1])
            result = read_option(out, argc, argv, &at);
        else
            argv[out->paths_count++] = argv[at++];
    if (result || out->help)
        return result;
    if (out->paths_count == 0)
        return zr_fail(ZR_ERR_INVALID, "zr-train tokenize requires a text: zr-train tokenize TEXT.. -o DIR");
    if (!out->folder || !out->tokenizer)
        return zr_fail(ZR_ERR_INVALID, "zr-train tokenize requires %s",
                       out->folder ? "--tokenizer FILE" : "-o DIR, the folder of the shards");
    return ZR_OK;
}

/* ---- A run --------------------------------------------------------------------------------------------- */

struct worker {
    struct zr_encoder *encoder;
    struct zr_growing tokens; /* of its documents of the batch */
};

/* The tokens of a document of the batch. */
struct encoded {
    unsigned worker;
    size_t at, count; /* in the worker's tokens */
};

struct run {
    struct settings settings;
    zr_backend *backend;
    zr_arena *arena;
    bool heap_started;
    zr_tokenizer *tokenizer;
    zr_thread_pool *pool;
    int32_t eos; /* ZR_NO_TOKEN: none */
    struct worker workers[THREADS_MAX];
    struct zr_documents documents;
    struct zr_growing encoded; /* of the batch: struct encoded */
    _Atomic size_t next;       /* document of the batch */
    _Atomic int result;        /* zr_result of the first document that failed */
    _Atomic bool failing;      /* a worker sets the message */
    char message[1200];
    uint64_t documents_count, validation_count, started_ns, shown_ns;
    struct zr_shards train, validation;
    struct zr_terminal terminal;
};

static struct run run;

/* Ends the process as the signal would, without a half shard. */
static void end_by_signal(int signal_number)
{
    zr_shards_clean_up(&run.train);
    zr_shards_clean_up(&run.validation);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void note_failure(const struct zr_document *document, zr_result result)
{
    if (atomic_exchange(&run.failing, true))
        return;
    if (document->line > 0)
        snprintf(run.message, sizeof run.message, "'%s' line %llu: %s", document->path,
                 (unsigned long long)document->line, zr_last_error());
    else
        snprintf(run.message, sizeof run.message, "'%s': %s", document->path, zr_last_error());
    atomic_store(&run.result, (int)result);
}

static zr_result encode_document(struct worker *worker, const struct zr_document *document)
{
    struct zr_growing *out = &worker->tokens;
    const char *text;
    char *owned = NULL;
    size_t bytes, before = out->used_bytes;
    zr_result result = zr_document_text(&run.documents, document, &text, &bytes, &owned);
    if (!result && bytes > 0)
        result = zr_encode(worker->encoder, text, bytes, ZR_ENCODE_WHOLE, out);
    zr_heap_free(owned);
    size_t count = (out->used_bytes - before) / sizeof(int32_t);
    const int32_t *tokens = (const int32_t *)(const void *)(out->data + before);
    if (!result && count > 0 && run.eos != ZR_NO_TOKEN && tokens[count - 1] != run.eos &&
        !zr_growing_add_token(out, run.eos))
        result = ZR_ERR_HOST_MEMORY;
    return result;
}

/* A thread's share of a batch: documents by turns. */
static void encode_share(void *argument, unsigned part, unsigned parts)
{
    const struct zr_document *list = (const struct zr_document *)(const void *)run.documents.list.data;
    struct encoded *encoded = (struct encoded *)(void *)run.encoded.data;
    size_t count = run.documents.list.used_bytes / sizeof *list, i;
    struct worker *worker = &run.workers[part];
    (void)argument;
    (void)parts;
    worker->tokens.used_bytes = 0;
    while ((i = atomic_fetch_add(&run.next, 1)) < count && !atomic_load(&run.failing)) {
        size_t at = worker->tokens.used_bytes / sizeof(int32_t);
        zr_result result = encode_document(worker, &list[i]);
        if (result)
            note_failure(&list[i], result);
        encoded[i] = (struct encoded){part, at, worker->tokens.used_bytes / sizeof(int32_t) - at};
    }
}

/* Whether the next document is for validation: an even share of them. */
static bool is_for_validation(void)
{
    double share = run.settings.validation_share;
    uint64_t before = (uint64_t)((double)run.documents_count * share);
    run.documents_count++;
    return (uint64_t)((double)run.documents_count * share) > before;
}

static zr_result write_batch(void)
{
    const struct encoded *encoded = (const struct encoded *)(const void *)run.encoded.data;
    size_t count = run.documents.list.used_bytes / sizeof(struct zr_document);
    zr_result result = ZR_OK;
    for (size_t i = 0; i < count && !result; i++) {
        const int32_t *tokens = (const int32_t *)(const void *)run.workers[encoded[i].worker].tokens.data;
        if (encoded[i].count == 0)
            continue;
        bool validates = is_for_validation();
        run.validation_count += validates;
        result =
            zr_shards_add(validates ? &run.validation : &run.train, tokens + encoded[i].at, encoded[i].count);
    }
    return result;
}

static void show_progress(bool ends)
{
    char line[160];
    uint64_t now_ns = zr_os_now_ns();
    double seconds = (double)(now_ns - run.started_ns) * 1e-9, mb = (double)run.documents.read_bytes * 1e-6;
    if (!run.terminal.live || (!ends && now_ns - run.shown_ns < SHOW_NS))
        return;
    run.shown_ns = now_ns;
    int length =
        snprintf(line, sizeof line, "\r%.1f MB, %llu documents, %.1f MB/s   %s", mb,
                 (unsigned long long)run.documents_count, mb / (seconds > 0 ? seconds : 1), ends ? "\n" : "");
    zr_show(STDERR_FILENO, line, (size_t)length);
}

static zr_result encode_batch(void)
{
    struct zr_parallel parallel = zr_thread_pool_parallel(run.pool);
    size_t count = run.documents.list.used_bytes / sizeof(struct zr_document);
    run.encoded.used_bytes = 0;
    if (!zr_growing_reserve(&run.encoded, count * sizeof(struct encoded)))
        return ZR_ERR_HOST_MEMORY;
    atomic_store(&run.next, 0);
    parallel.run(parallel.state, encode_share, NULL);
    if (atomic_load(&run.failing))
        return zr_fail((zr_result)atomic_load(&run.result), "%s", run.message);
    return write_batch();
}

/* Refuses a folder with shards, because a pattern would read them together with the new ones. */
static zr_result check_folder(const char *path)
{
    struct zr_folder folder;
    struct zr_folder_entry entry;
    zr_result result = zr_path_make_folder(path, true);
    if (!result)
        result = zr_folder_open(&folder, path);
    if (result)
        return result;
    while ((result = zr_folder_next(&folder, &entry)) == ZR_OK && entry.name) {
        size_t length = strlen(entry.name);
        if (length > 4 && strcmp(entry.name + length - 4, ".bin") == 0) {
            result = zr_fail(ZR_ERR_INVALID,
                             "-o '%.200s' has shards, such as %.60s; remove them, or give another folder",
                             path, entry.name);
            break;
        }
    }
    zr_folder_close(&folder);
    return result;
}

static zr_result find_eos(const char *path)
{
    const char *eos = run.settings.eos;
    char *end = NULL;
    unsigned long number = eos ? strtoul(eos, &end, 10) : 0;
    run.eos = ZR_NO_TOKEN;
    if (eos && strcmp(eos, "none") == 0)
        return ZR_OK;
    if (!eos) {
        zr_result result = zr_tokenizer_eos(run.tokenizer, path, &run.eos);
        if (!result && run.eos == ZR_NO_TOKEN)
            result = zr_fail(
                ZR_ERR_INVALID,
                "'%.200s' has no tokenizer_config.json or config.json that names eos_token; give --eos TEXT, "
                "or --eos none",
                path);
        return result;
    }
    run.eos = zr_tokenizer_find(run.tokenizer, eos);
    if (run.eos == ZR_NO_TOKEN && eos[0] >= '0' && eos[0] <= '9' && !*end &&
        number < zr_tokenizer_size(run.tokenizer))
        run.eos = (int32_t)number;
    return run.eos != ZR_NO_TOKEN
               ? ZR_OK
               : zr_fail(ZR_ERR_INVALID, "--eos '%.100s' is no token of the tokenizer", eos);
}

static zr_result open_run(void)
{
    const struct settings *settings = &run.settings;
    char path[PATH_ROOM];
    struct zr_machine machine;
    zr_os_machine(&machine);
    unsigned threads = settings->threads ? settings->threads : machine.cores_count;
    threads = threads < THREADS_MAX ? threads : THREADS_MAX;
    zr_result result = zr_backend_host_create(&run.backend, NULL);
    if (!result)
        result = zr_arena_create(&run.arena, &(struct zr_arena_options){.backend = run.backend,
                                                                        .name = "host",
                                                                        .reserve_bytes = (size_t)64 << 30});
    if (!result)
        result = zr_heap_start(run.arena);
    run.heap_started = result == ZR_OK;
    if (!result)
        result = zr_tokenizer_path(path, settings->tokenizer);
    if (!result)
        result = zr_tokenizer_open(&run.tokenizer, path);
    if (!result)
        result = find_eos(path);
    if (!result)
        result = zr_thread_pool_create(
            &run.pool, &(struct zr_thread_pool_options){.host_arena = run.arena, .threads = threads});
    for (unsigned i = 0; i < threads && !result; i++)
        result = zr_encoder_open(&run.workers[i].encoder, run.tokenizer);
    if (!result)
        result = check_folder(settings->folder);
    unsigned width = run.tokenizer && zr_tokenizer_size(run.tokenizer) > UINT16_MAX + 1 ? 4 : 2;
    run.train = (struct zr_shards){.folder = settings->folder,
                                   .name = "train",
                                   .token_bytes = width,
                                   .shard_tokens = settings->shard_tokens,
                                   .file = {.fd = -1}};
    run.validation = run.train;
    run.validation.name = "val";
    run.documents = (struct zr_documents){.paths = settings->paths,
                                          .paths_count = settings->paths_count,
                                          .by_line = settings->by_line,
                                          .batch_bytes = (size_t)BATCH_BYTES * threads,
                                          .file = {.fd = -1}};
    return result;
}

static zr_result close_run(void)
{
    size_t leaked = 0;
    zr_shards_clean_up(&run.train);
    zr_shards_clean_up(&run.validation);
    zr_file_close(&run.train.file);
    zr_file_close(&run.validation.file);
    zr_thread_pool_destroy(run.pool);
    zr_documents_close(&run.documents);
    for (unsigned i = 0; i < THREADS_MAX; i++) {
        zr_encoder_close(run.workers[i].encoder);
        zr_growing_end(&run.workers[i].tokens);
    }
    zr_growing_end(&run.encoded);
    zr_tokenizer_close(run.tokenizer);
    if (run.heap_started)
        zr_heap_stop(&leaked);
    if (run.arena)
        zr_arena_destroy(run.arena, NULL);
    if (run.backend)
        zr_backend_destroy(run.backend);
    return leaked ? zr_fail(ZR_ERR_CORRUPT, "left behind: %zu bytes of the heap", leaked) : ZR_OK;
}

static zr_result run_all(void)
{
    zr_result result = open_run();
    if (result)
        return result;
    signal(SIGINT, end_by_signal);
    signal(SIGTERM, end_by_signal);
    signal(SIGHUP, end_by_signal);
    run.started_ns = zr_os_now_ns();
    zr_terminal_find(&run.terminal, STDERR_FILENO);
    do {
        result = zr_documents_next(&run.documents);
        if (!result)
            result = encode_batch();
        show_progress(false);
    } while (!result && run.documents.list.used_bytes > 0);
    show_progress(true);
    if (!result && run.train.tokens_count == 0)
        result = zr_fail(ZR_ERR_FORMAT,
                         "the texts are empty, or all documents are for validation; give more text");
    if (!result && run.settings.validation_share > 0 && run.validation_count == 0)
        result =
            zr_fail(ZR_ERR_INVALID,
                    "--val-share %g of %llu documents is none; give more documents (--document-per line)",
                    run.settings.validation_share, (unsigned long long)run.documents_count);
    if (!result)
        result = zr_shards_finish(&run.train);
    return result ? result : zr_shards_finish(&run.validation);
}

static void say_end(void)
{
    char number[ZR_NUMBER_ROOM], validation[96] = "";
    double seconds = (double)(zr_os_now_ns() - run.started_ns) * 1e-9,
           mb = (double)run.documents.read_bytes * 1e-6;
    if (run.validation.tokens_count)
        snprintf(validation, sizeof validation, " and %s for validation",
                 zr_number_grouped(number, run.validation.tokens_count));
    char tokens[ZR_NUMBER_ROOM];
    zr_say("%s tokens%s of %llu documents, %.1f MB in %.1f s, %u-byte shards in '%s'; --vocab %zu",
           zr_number_grouped(tokens, run.train.tokens_count), validation,
           (unsigned long long)run.documents_count, mb, seconds, run.train.token_bytes, run.settings.folder,
           zr_tokenizer_size(run.tokenizer));
}

int zr_tokenize_main(int argc, char **argv)
{
    zr_result result = read_settings(&run.settings, argc, argv), closed;
    if (!result && run.settings.help)
        result = print_help();
    else if (!result) {
        result = run_all();
        if (!result)
            say_end();
        if (result)
            zr_say("%s", zr_last_error());
        closed = close_run();
        if (closed && !result)
            result = closed;
        return (int)zr_exit_of(result);
    }
    if (result)
        zr_say("%s", zr_last_error());
    return (int)zr_exit_of(result);
}
