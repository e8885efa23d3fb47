/* documents.c: see tokenize.h. */
#define _GNU_SOURCE
#include "zero/train/tokenize/tokenize.h"

#include <jansson.h>

#include "alloc/base/error.h"
#include "zero/text/tokenizer.h"

enum { READ_BYTES = 1 << 20 };

static bool is_jsonl(const char *path)
{
    size_t length = strlen(path);
    return length >= 6 && strcmp(path + length - 6, ".jsonl") == 0;
}

/* Reads the next piece of the file behind `to`. */
static zr_result read_piece(struct zr_documents *documents, struct zr_growing *to)
{
    size_t got = 0;
    if (!zr_growing_reserve(to, READ_BYTES))
        return ZR_ERR_HOST_MEMORY;
    zr_result result = zr_file_read(&documents->file, to->data + to->used_bytes, READ_BYTES, &got);
    to->used_bytes += got;
    documents->read_bytes += got;
    documents->at_end = got < READ_BYTES;
    if (!result && to->used_bytes > ZR_ENCODE_BYTES_MAX)
        result = zr_fail(ZR_ERR_FORMAT, "'%s' has a document of more than 1 GiB; split it",
                         documents->paths[documents->path]);
    return result;
}

static bool add_document(struct zr_documents *documents, const char *text, size_t bytes, bool by_line)
{
    const char *path = documents->paths[documents->path];
    struct zr_document document = {.path = path,
                                   .line = by_line ? documents->line : 0,
                                   .at = documents->texts.used_bytes,
                                   .bytes = bytes,
                                   .json = is_jsonl(path)};
    return bytes == 0 || (zr_growing_add(&documents->texts, text, bytes) &&
                          zr_growing_add(&documents->list, &document, sizeof document));
}

/* Adds the whole lines of `pending`, and the last line at the end of the file; keeps the rest. */
static bool add_lines(struct zr_documents *documents)
{
    struct zr_growing *pending = &documents->pending;
    char *at = pending->data, *end = at + pending->used_bytes;
    while (at < end) {
        char *feed = memchr(at, '\n', (size_t)(end - at)), *stop = feed ? feed : end;
        if (!feed && !documents->at_end)
            break;
        documents->line++;
        size_t bytes = (size_t)(stop - at);
        if (!add_document(documents, at, bytes - (bytes > 0 && stop[-1] == '\r'), true))
            return false;
        at = feed ? feed + 1 : end;
    }
    pending->used_bytes = (size_t)(end - at);
    if (pending->used_bytes > 0)
        memmove(pending->data, at, pending->used_bytes);
    return true;
}

static zr_result read_file_part(struct zr_documents *documents)
{
    const char *path = documents->paths[documents->path];
    bool by_line = documents->by_line || is_jsonl(path);
    zr_result result = documents->file.fd < 0 ? zr_file_open(&documents->file, path) : ZR_OK;
    if (result)
        return result;
    do
        result = read_piece(documents, &documents->pending);
    while (!by_line && !documents->at_end && !result);
    if (result)
        return result;
    if (by_line ? !add_lines(documents)
                : !add_document(documents, documents->pending.data, documents->pending.used_bytes, false))
        return ZR_ERR_HOST_MEMORY;
    if (documents->at_end) {
        zr_file_close(&documents->file);
        documents->file.fd = -1;
        documents->pending.used_bytes = 0;
        documents->line = 0;
        documents->path++;
    }
    return ZR_OK;
}

zr_result zr_documents_next(struct zr_documents *documents)
{
    zr_result result = ZR_OK;
    documents->texts.used_bytes = documents->list.used_bytes = 0;
    while (documents->path < documents->paths_count && documents->texts.used_bytes < documents->batch_bytes &&
           !result)
        result = read_file_part(documents);
    return result;
}

void zr_documents_close(struct zr_documents *documents)
{
    if (documents->file.fd >= 0)
        zr_file_close(&documents->file);
    zr_growing_end(&documents->texts);
    zr_growing_end(&documents->list);
    zr_growing_end(&documents->pending);
}

static zr_result parse(const struct zr_document *document, const char **text, size_t *bytes, char **owned)
{
    json_error_t error;
    json_t *line = json_loadb(*text, document->bytes, JSON_ALLOW_NUL, &error);
    json_t *value = json_object_get(line, "text");
    zr_result result = ZR_OK;
    if (!json_is_string(value)) {
        result = zr_fail(ZR_ERR_FORMAT, "not a JSON object with a text in its key \"text\"");
    } else if (!(*owned = zr_heap_alloc(json_string_length(value) + 1))) {
        result = ZR_ERR_HOST_MEMORY;
    } else {
        *bytes = json_string_length(value);
        memcpy(*owned, json_string_value(value), *bytes + 1);
        *text = *owned;
    }
    json_decref(line);
    return result;
}

zr_result zr_document_text(const struct zr_documents *documents, const struct zr_document *document,
                           const char **text, size_t *bytes, char **owned)
{
    *text = documents->texts.data + document->at;
    *bytes = document->bytes;
    *owned = NULL;
    return document->json ? parse(document, text, bytes, owned) : ZR_OK;
}
