/* token_files.c: see token_files.h. The records and paths of the files are in one reservation, of which only
 * what is used takes memory. */
#define _GNU_SOURCE
#include "zero/train/token_files.h"

#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/hash.h"
#include "alloc/base/slab.h"
#include "alloc/base/sort.h"
#include "zero/model/trainable.h"
#include "zero/train/tokenize/shards.h"

#define INDEX_MAGIC        "MMIDIDX\0" /* and a zero: nine bytes */
#define INDEX_HEADER_BYTES 34
/* A text has at most one control character in this many bytes. */
#define CONTROLS_SHARE 50
/* Advice for numbers without a header. */
#define RAW_TOKENS                                                                                           \
    "for numbers without a header (as nanoGPT's train.bin) give --data-type uint16, or uint32, and --vocab " \
    "V"
/* Samples for the checksum; the first and the last sample are at the ends. */
enum { SAMPLES = 8, SAMPLE_BYTES = 4096, PIECE_BYTES = 16384, PATH_ROOM = 4096 };
enum {
    PATHS_BYTES = 32 << 20,
    PAGES_BYTES = ZR_TOKEN_FILES_MAX * sizeof(struct zr_token_file) + PATHS_BYTES
};
static const uint64_t SCAN_BYTES = UINT64_C(1) << 30;

zr_result zr_token_files_open(struct zr_token_files *out)
{
    out->files = zr_pages_take(PAGES_BYTES);
    out->path_end = (char *)(out->files + ZR_TOKEN_FILES_MAX);
    return out->files ? ZR_OK : ZR_ERR_HOST_MEMORY;
}

void zr_token_files_share(struct zr_token_files *out, const struct zr_token_files *of)
{
    *out = *of;
    out->shares = true;
    memset(out->open_file, 0, sizeof out->open_file);
}

void zr_token_files_close(struct zr_token_files *files)
{
    for (size_t i = 0; i < ZR_TOKEN_FILES_OPEN; i++)
        if (files->open_file[i])
            zr_file_close(&files->open[i]);
    if (files->files && !files->shares)
        zr_pages_give(files->files, PAGES_BYTES);
    *files = (struct zr_token_files){.files = NULL};
}

/* ---- Little-endian numbers ----------------------------------------------------------------------------- */

static uint64_t number_at(const unsigned char *at, unsigned bytes)
{
    uint64_t number = 0;
    for (unsigned i = bytes; i-- > 0;)
        number = number << 8 | at[i];
    return number;
}

static int32_t int32_at(const unsigned char *at)
{
    return (int32_t)(uint32_t)number_at(at, 4);
}

/* ---- Formats ------------------------------------------------------------------------------------------- */

static zr_result check_version(const struct zr_token_file *file, int32_t magic, int32_t version)
{
    int known = magic == ZR_SHARD_WIDE_MAGIC ? 7 : 1;
    if ((magic != ZR_SHARD_MAGIC && magic != ZR_SHARD_WIDE_MAGIC) || version == known)
        return ZR_OK;
    return zr_fail(ZR_ERR_FORMAT,
                   "'%s' is a token shard of version %d, but zr-train reads version %d; make it again with "
                   "llm.c's data scripts",
                   file->path, (int)version, known);
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

static zr_result read_text(const struct zr_file *open, struct zr_token_file *file, uint64_t size_bytes)
{
    unsigned char piece[PIECE_BYTES];
    size_t count = size_bytes < sizeof piece ? (size_t)size_bytes : sizeof piece;
    zr_result result = zr_file_read_at(open, 0, piece, count);
    if (!result && size_bytes >= ZR_SHARD_HEADER_BYTES) {
        result = check_version(file, int32_at(piece), int32_at(piece + 4));
        if (!result && (int32_at(piece) == ZR_SHARD_MAGIC || int32_at(piece) == ZR_SHARD_WIDE_MAGIC))
            result = zr_fail(
                ZR_ERR_FORMAT,
                "'%s' is a token shard, not text; give its vocabulary, --vocab 50257 for GPT-2 and 128256 for "
                "Llama 3",
                file->path);
    }
    if (result)
        return result;
    file->token_bytes = 1;
    file->count = size_bytes;
    if (!is_binary(piece, count))
        return ZR_OK;
    if (count >= 2 && ((piece[0] == 0xff && piece[1] == 0xfe) || (piece[0] == 0xfe && piece[1] == 0xff)))
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' is text in UTF-16, which --vocab byte would read as two tokens per letter; convert it: "
            "iconv -f UTF-16 -t UTF-8",
            file->path);
    return zr_fail(ZR_ERR_FORMAT, "'%s' is not text but binary data; " RAW_TOKENS "; otherwise give a text",
                   file->path);
}

static zr_result read_shard(struct zr_token_file *file, const unsigned char *head, uint64_t size_bytes)
{
    int32_t magic = int32_at(head), count = int32_at(head + 8);
    zr_result result = check_version(file, magic, int32_at(head + 4));
    if (result)
        return result;
    file->token_bytes = magic == ZR_SHARD_MAGIC ? 2 : 4;
    file->lead_bytes = ZR_SHARD_HEADER_BYTES;
    file->count = (uint64_t)count;
    if (count >= 0 && ZR_SHARD_HEADER_BYTES + file->token_bytes * (uint64_t)count == size_bytes)
        return ZR_OK;
    return zr_fail(ZR_ERR_FORMAT,
                   "'%s' is damaged: its header counts %d tokens, but its size of %llu bytes holds %lld; get "
                   "the file again",
                   file->path, (int)count, (unsigned long long)size_bytes,
                   ((long long)size_bytes - ZR_SHARD_HEADER_BYTES) / (int)file->token_bytes);
}

static zr_result bad_index(const char *path, const char *problem)
{
    return zr_fail(ZR_ERR_FORMAT,
                   "'%s' is not an index that zr-train reads: %s; make it again with Megatron's "
                   "preprocess_data.py",
                   path, problem);
}

/* What an index says of its dataset. */
struct index {
    struct zr_file file;
    unsigned token_bytes;
    uint64_t sequences, documents;
};

static zr_result index_number(const struct index *index, uint64_t at_bytes, unsigned bytes, uint64_t *out)
{
    unsigned char raw[8];
    zr_result result = zr_file_read_at(&index->file, at_bytes, raw, bytes);
    *out = result ? 0 : number_at(raw, bytes);
    return result;
}

/* Reads the header, whose counts give the size of the file: the lengths of the sequences (4 bytes each),
 * their places in the data (8) and the documents (8); a byte per sequence may follow. */
static zr_result read_index_header(struct index *index, const char *path)
{
    static const unsigned char widths[] = {[1] = 1, [3] = 2, [4] = 4, [5] = 8, [8] = 2};
    unsigned char head[INDEX_HEADER_BYTES];
    uint64_t size_bytes = 0, lists, documents;
    zr_result result = zr_file_size(&index->file, &size_bytes);
    if (!result && size_bytes < sizeof head)
        return bad_index(path, "it is shorter than a header");
    if (!result)
        result = zr_file_read_at(&index->file, 0, head, sizeof head);
    if (result)
        return result;
    if (memcmp(head, INDEX_MAGIC, 9) != 0)
        return bad_index(path, memcmp(head, "TNTIDX", 6) == 0 ? "it is of the older kind (TNTIDX)"
                                                              : "it does not start with MMIDIDX");
    if (number_at(head + 9, 8) != 1)
        return bad_index(path, "its version is not 1");
    if (head[17] >= sizeof widths || !widths[head[17]])
        return bad_index(path, "its tokens are not whole numbers");
    index->token_bytes = widths[head[17]];
    index->sequences = number_at(head + 18, 8);
    index->documents = number_at(head + 26, 8);
    if (index->sequences == 0 || index->documents == 0 ||
        __builtin_mul_overflow(index->sequences, 12, &lists) ||
        __builtin_mul_overflow(index->documents, 8, &documents) ||
        __builtin_add_overflow(lists, documents, &lists) ||
        __builtin_add_overflow(lists, sizeof head, &lists) ||
        (size_bytes != lists && size_bytes != lists + index->sequences))
        return bad_index(path, "its counts do not match its size");
    return ZR_OK;
}

/* Checks that the data is the sequences in order, without gaps, as Megatron's own tools write it: where the
 * first sequence starts and the last one ends. */
static zr_result check_index_ends(const struct index *index, const char *path, uint64_t data_bytes)
{
    uint64_t places = INDEX_HEADER_BYTES + 4 * index->sequences, documents = places + 8 * index->sequences;
    uint64_t length, first_place, last_place, first_document, last_document, bytes;
    zr_result result = index_number(index, places - 4, 4, &length);
    if (!result)
        result = index_number(index, places, 8, &first_place);
    if (!result)
        result = index_number(index, documents - 8, 8, &last_place);
    if (!result)
        result = index_number(index, documents, 8, &first_document);
    if (!result)
        result = index_number(index, documents + 8 * (index->documents - 1), 8, &last_document);
    if (result)
        return result;
    if (first_place != 0 || first_document != 0 || last_document != index->sequences ||
        __builtin_mul_overflow(length, index->token_bytes, &bytes) ||
        __builtin_add_overflow(last_place, bytes, &bytes) || bytes != data_bytes)
        return bad_index(path, "its sequences are not the whole .bin file, in order");
    return ZR_OK;
}

static zr_result read_index(struct zr_token_file *file, const char *path, uint64_t data_bytes)
{
    struct index index;
    zr_result result = zr_file_open_regular(&index.file, path);
    if (result)
        return result;
    result = read_index_header(&index, path);
    if (!result)
        result = check_index_ends(&index, path, data_bytes);
    zr_file_close(&index.file);
    file->token_bytes = index.token_bytes;
    file->count = result ? 0 : data_bytes / index.token_bytes;
    return result;
}

static zr_result read_raw(const struct zr_token_files *files, struct zr_token_file *file, uint64_t size_bytes)
{
    static const unsigned char widths[] = {
        [ZR_TOKENS_UINT16] = 2, [ZR_TOKENS_UINT32] = 4, [ZR_TOKENS_INT64] = 8};
    file->token_bytes = widths[files->type];
    file->count = size_bytes / file->token_bytes;
    if (size_bytes % file->token_bytes == 0)
        return ZR_OK;
    return zr_fail(ZR_ERR_FORMAT, "'%s' has %llu bytes, not a multiple of --data-type's %u; give its type",
                   file->path, (unsigned long long)size_bytes, file->token_bytes);
}

static bool is_file(const char *path)
{
    enum zr_path_kind kind;
    return zr_path_kind_get(path, &kind) == ZR_OK && kind == ZR_PATH_FILE;
}

/* The name of NAME.bin's index, NAME.idx. False: it has another ending, or is too long. */
static bool index_of(const char *path, char out[PATH_ROOM])
{
    size_t length = strlen(path);
    if (length < 4 || length >= PATH_ROOM || strcmp(path + length - 4, ".bin") != 0)
        return false;
    snprintf(out, PATH_ROOM, "%.*s.idx", (int)length - 4, path);
    return true;
}

static bool is_shard_head(int32_t magic, uint64_t size_bytes)
{
    return size_bytes >= ZR_SHARD_HEADER_BYTES && (magic == ZR_SHARD_MAGIC || magic == ZR_SHARD_WIDE_MAGIC);
}

bool zr_token_files_has_tokens(const char *path)
{
    unsigned char head[4] = {0};
    char index[PATH_ROOM];
    struct zr_file file;
    uint64_t size_bytes = 0;
    size_t length = strlen(path);
    if (length > 4 && strcmp(path + length - 4, ".idx") == 0)
        return is_file(path);
    snprintf(index, sizeof index, "%s.idx", path);
    if (!is_file(path))
        return is_file(index);
    if (index_of(path, index) && is_file(index))
        return true;
    if (zr_file_open_regular(&file, path) != ZR_OK)
        return false;
    bool reads = zr_file_size(&file, &size_bytes) == ZR_OK && size_bytes >= sizeof head &&
                 zr_file_read_at(&file, 0, head, sizeof head) == ZR_OK;
    zr_file_close(&file);
    return reads && is_shard_head(int32_at(head), size_bytes);
}

/* Reads the tokens' place in a file that is not text. */
static zr_result read_tokens(const struct zr_token_files *files, const struct zr_file *open,
                             struct zr_token_file *file, uint64_t size_bytes)
{
    unsigned char head[12] = {0};
    char index[PATH_ROOM];
    size_t head_bytes = size_bytes < sizeof head ? (size_t)size_bytes : sizeof head;
    zr_result result = zr_file_read_at(open, 0, head, head_bytes);
    int32_t magic = int32_at(head);
    bool shard = is_shard_head(magic, size_bytes);
    if (result)
        return result;
    if (shard && files->type != ZR_TOKENS_AUTO)
        return zr_fail(ZR_ERR_FORMAT, "'%s' is a token shard with a header; leave --data-type out",
                       file->path);
    if (shard)
        result = read_shard(file, head, size_bytes);
    else if (files->type != ZR_TOKENS_AUTO)
        result = read_raw(files, file, size_bytes);
    else if (index_of(file->path, index) && is_file(index))
        result = read_index(file, index, size_bytes);
    else if (size_bytes < ZR_SHARD_HEADER_BYTES)
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' is too short for a token shard: it has %llu bytes, and the header alone %d; for text "
            "give --vocab byte",
            file->path, (unsigned long long)size_bytes, ZR_SHARD_HEADER_BYTES);
    else
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' is not a token shard: it starts with %d, not with %d; for text give --vocab byte, " RAW_TOKENS,
            file->path, (int)magic, ZR_SHARD_MAGIC);
    if (!result && file->token_bytes == 2 && files->vocabulary > UINT16_MAX + 1)
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' has two-byte tokens, which are below %d, but --vocab is %zu; give the --vocab that the "
            "tokens were made with, at most %d",
            file->path, UINT16_MAX + 1, files->vocabulary, UINT16_MAX + 1);
    return result;
}

/* Completes the record of a file whose path is set. */
static zr_result read_format(const struct zr_token_files *files, struct zr_token_file *file)
{
    struct zr_file open;
    uint64_t size_bytes = 0;
    zr_result result = zr_file_open_regular(&open, file->path);
    if (result)
        return result;
    result = zr_file_size(&open, &size_bytes);
    if (!result && size_bytes == 0)
        result =
            zr_fail(ZR_ERR_FORMAT, "'%s' is empty; give a text of at least some thousand bytes", file->path);
    if (!result)
        result =
            files->text ? read_text(&open, file, size_bytes) : read_tokens(files, &open, file, size_bytes);
    zr_file_close(&open);
    return result;
}

/* ---- Patterns ------------------------------------------------------------------------------------------ */

static zr_result add_path(struct zr_token_files *files, const char *path)
{
    size_t bytes = strlen(path) + 1, left = (size_t)((char *)files->files + PAGES_BYTES - files->path_end);
    if (files->files_count == ZR_TOKEN_FILES_MAX || bytes > left)
        return zr_fail(ZR_ERR_INVALID, "--data has more than %d files, or %d bytes of names; join some",
                       ZR_TOKEN_FILES_MAX, PATHS_BYTES);
    memcpy(files->path_end, path, bytes);
    files->files[files->files_count++] = (struct zr_token_file){.path = files->path_end};
    files->path_end += bytes;
    return ZR_OK;
}

/* Adds what matches from the first * or ? on. `pattern` has PATH_ROOM bytes and is changed. */
static zr_result expand(struct zr_token_files *files, char *pattern)
{
    char *wild = pattern + strcspn(pattern, "*?"), *name = wild, *rest = wild + strcspn(wild, "/"), next;
    char path[PATH_ROOM];
    struct zr_folder folder;
    struct zr_folder_entry entry;
    zr_result result;

    if (!*wild)
        return is_file(pattern) ? add_path(files, pattern) : ZR_OK;
    while (name > pattern && name[-1] != '/')
        name--;
    snprintf(path, sizeof path, "%.*s", (int)(name - pattern), name > pattern ? pattern : "");
    result = zr_folder_open(&folder, path[0] ? path : ".");
    if (result)
        return result;
    next = *rest;
    *rest = '\0';
    while ((result = zr_folder_next(&folder, &entry)) == ZR_OK && entry.name) {
        size_t length = strlen(entry.name);
        bool index = length > 4 && strcmp(entry.name + length - 4, ".idx") == 0;
        if (entry.name[0] == '.' || (index && !next) || !zr_pattern_matches(name, entry.name))
            continue;
        if (snprintf(path, sizeof path, "%.*s%s%s%s", (int)(name - pattern), pattern, entry.name,
                     next ? "/" : "", next ? rest + 1 : "") >= (int)sizeof path)
            continue;
        result = expand(files, path);
        if (result)
            break;
    }
    *rest = next;
    zr_folder_close(&folder);
    return result;
}

static bool before(const void *a, const void *b)
{
    return strcmp(((const struct zr_token_file *)a)->path, ((const struct zr_token_file *)b)->path) < 0;
}

/* Adds a path without wildcards: NAME, NAME.bin or NAME.idx of Megatron's two files, or any other file. */
static zr_result add_plain(struct zr_token_files *files, const char *path)
{
    char data[PATH_ROOM];
    enum zr_path_kind kind = ZR_PATH_NONE;
    size_t length = strlen(path);
    if (length + 5 <= sizeof data && length > 4 && strcmp(path + length - 4, ".idx") == 0 && !files->text) {
        snprintf(data, sizeof data, "%.*s.bin", (int)length - 4, path);
        return add_path(files, data);
    }
    snprintf(data, sizeof data, "%s.idx", path);
    if (length + 5 <= sizeof data && zr_path_kind_get(path, &kind) == ZR_OK && kind == ZR_PATH_NONE &&
        is_file(data)) {
        snprintf(data, sizeof data, "%s.bin", path);
        return add_path(files, data);
    }
    return add_path(files, path);
}

zr_result zr_token_files_add(struct zr_token_files *files, const char *pattern)
{
    char changed[PATH_ROOM];
    size_t first = files->files_count;
    enum zr_path_kind kind;
    zr_result result;
    if (!strpbrk(pattern, "*?") || (zr_path_kind_get(pattern, &kind) == ZR_OK && kind == ZR_PATH_FILE)) {
        result = add_plain(files, pattern);
    } else {
        snprintf(changed, sizeof changed, "%s", pattern);
        result = expand(files, changed);
        if (!result && files->files_count == first)
            result = zr_fail(ZR_ERR_IO, "--data: no file matches '%s'", pattern);
    }
    zr_sort_in_place(&(struct zr_sort_records){files->files + first, files->files_count - first,
                                               sizeof *files->files, before});
    for (size_t i = first; i < files->files_count && !result; i++) {
        struct zr_token_file *file = &files->files[i];
        result = read_format(files, file);
        file->first = files->count;
        files->count += file->count;
        files->bytes += file->count * file->token_bytes;
    }
    return result;
}

/* ---- Reading ------------------------------------------------------------------------------------------- */

/* The number of the file that has a token. */
static size_t file_at(const struct zr_token_files *files, uint64_t token)
{
    size_t low = 0, high = files->files_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (files->files[middle].first <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static zr_result open_file(struct zr_token_files *files, size_t number, const struct zr_file **out)
{
    size_t at = number % ZR_TOKEN_FILES_OPEN;
    *out = &files->open[at];
    if (files->open_file[at] == number + 1)
        return ZR_OK;
    if (files->open_file[at])
        zr_file_close(&files->open[at]);
    files->open_file[at] = 0;
    zr_result result = zr_file_open_regular(&files->open[at], files->files[number].path);
    if (!result)
        files->open_file[at] = number + 1;
    return result;
}

/* Whether every value of the file's tokens is in the vocabulary. */
static bool is_all_valid(const struct zr_token_files *files, const struct zr_token_file *file)
{
    return file->token_bytes < 4 && files->vocabulary >= (size_t)1 << 8 * file->token_bytes;
}

/* Reads tokens of one file, at most a piece of them. */
static zr_result read_piece(struct zr_token_files *files, size_t number, uint64_t first, size_t count,
                            int32_t *out)
{
    const struct zr_token_file *file = &files->files[number];
    const struct zr_file *open;
    unsigned char raw[PIECE_BYTES];
    unsigned bytes = file->token_bytes;
    zr_result result = open_file(files, number, &open);
    if (!result)
        result = zr_file_read_at(open, file->lead_bytes + bytes * first, raw, count * bytes);
    for (size_t i = 0; i < count && !result; i++) {
        uint64_t token = bytes == 1   ? raw[i]
                         : bytes == 2 ? number_at(raw + 2 * i, 2)
                                      : number_at(raw + bytes * i, bytes);
        if (token >= files->vocabulary)
            return zr_fail(
                ZR_ERR_FORMAT,
                "'%s': token %llu is %llu, beyond the vocabulary of %zu; give the --vocab that the "
                "tokens were made with, or get the file again",
                file->path, (unsigned long long)(first + i), (unsigned long long)token, files->vocabulary);
        out[i] = (int32_t)token;
    }
    return result;
}

zr_result zr_token_files_read(struct zr_token_files *files, uint64_t first, size_t count, int32_t *out)
{
    zr_result result = ZR_OK;
    while (count > 0 && !result) {
        size_t number = file_at(files, first);
        const struct zr_token_file *file = &files->files[number];
        uint64_t left = file->first + file->count - first;
        size_t now = PIECE_BYTES / file->token_bytes;
        now = now < count ? now : count;
        now = now < left ? now : (size_t)left;
        result = read_piece(files, number, first - file->first, now, out);
        first += now;
        out += now;
        count -= now;
    }
    return result;
}

void zr_token_files_prefetch(struct zr_token_files *files, uint64_t first, uint64_t count)
{
    while (count > 0) {
        size_t number = file_at(files, first);
        const struct zr_token_file *file = &files->files[number];
        const struct zr_file *open;
        uint64_t left = file->first + file->count - first, now = left < count ? left : count;
        if (open_file(files, number, &open) == ZR_OK)
            zr_file_prefetch(open, file->lead_bytes + file->token_bytes * (first - file->first),
                             file->token_bytes * now);
        first += now;
        count -= now;
    }
}

zr_result zr_token_files_scan(struct zr_token_files *files)
{
    int32_t tokens[PIECE_BYTES / 2];
    uint64_t stride = files->bytes / SCAN_BYTES + 1, piece = 0;
    zr_result result = ZR_OK;
    for (size_t i = 0; i < files->files_count && !result; i++) {
        const struct zr_token_file *file = &files->files[i];
        size_t count, room = PIECE_BYTES / (file->token_bytes < 2 ? 2 : file->token_bytes);
        for (uint64_t done = 0; done < file->count && !is_all_valid(files, file) && !result; done += count) {
            count = file->count - done < room ? (size_t)(file->count - done) : room;
            if (piece++ % stride == 0 || done + count == file->count)
                result = read_piece(files, i, done, count, tokens);
        }
    }
    return result;
}

zr_result zr_token_files_checksum(struct zr_token_files *files, uint64_t *out)
{
    unsigned char sample[SAMPLE_BYTES];
    size_t most = files->bytes < sizeof sample ? (size_t)files->bytes : sizeof sample, number = 0;
    uint64_t before_bytes = 0; /* of the files before `number` */
    zr_result result = ZR_OK;
    *out = ZR_HASH_START;
    for (unsigned i = 0; i < SAMPLES && !result; i++) {
        uint64_t at = (uint64_t)((unsigned __int128)(files->bytes - most) * i / (SAMPLES - 1)), bytes;
        const struct zr_file *open;
        while (at >= before_bytes + (bytes = files->files[number].count * files->files[number].token_bytes)) {
            before_bytes += bytes;
            number++;
        }
        size_t take = before_bytes + bytes - at < most ? (size_t)(before_bytes + bytes - at) : most;
        result = open_file(files, number, &open);
        if (!result)
            result = zr_file_read_at(open, files->files[number].lead_bytes + at - before_bytes, sample, take);
        if (!result)
            *out = zr_hash_more(*out, sample, take);
    }
    return result;
}
