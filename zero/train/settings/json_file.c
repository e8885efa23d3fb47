/* json_file.c: see json_file.h. jansson parses the file; line numbers come from a second scan of the text,
 * which is valid JSON by then. */
#define _GNU_SOURCE
#include "zero/train/settings/json_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/slab.h"

enum {
    FILE_MAX_BYTES = 64 << 10,
    TEXT_BYTES = FILE_MAX_BYTES + 4096,
    PROBLEMS_BYTES = 64 << 10,
    MEMORY_BYTES = 32 << 20,
    PAGES_BYTES = TEXT_BYTES + PROBLEMS_BYTES + MEMORY_BYTES
};

/* ---- Memory -------------------------------------------------------------------------------------------- */

/* Memory for jansson, whose allocation callback has no context argument, hence the static. Freed as a
 * whole. */
static struct {
    char *at;
    size_t left_bytes;
} memory;

static void *take(size_t bytes)
{
    size_t rounded = (bytes + 15) & ~(size_t)15;
    if (rounded < bytes || rounded > memory.left_bytes)
        return NULL;
    void *taken = memory.at;
    memory.at += rounded;
    memory.left_bytes -= rounded;
    return taken;
}

static void give(void *taken)
{
    (void)taken;
}

/* ---- Lines --------------------------------------------------------------------------------------------- */

static const char *skip_blanks(const char *at)
{
    return at + strspn(at, " \t\r\n:,");
}

static const char *skip_string(const char *at)
{
    for (at++; *at && *at != '"'; at++)
        at += at[0] == '\\' && at[1];
    return at + (*at == '"');
}

static const char *skip_value(const char *at)
{
    unsigned depth = 0;
    do {
        if (*at == '"') {
            at = skip_string(at);
            continue;
        }
        depth += *at == '{' || *at == '[';
        depth -= *at == '}' || *at == ']';
        at += *at != '\0';
    } while (*at && (depth > 0 || !strchr(",}] \t\r\n", *at)));
    return at;
}

/* Position of a key; if the key is written with escapes, position of its parent. */
static const char *find_key(const char *text, const char *path)
{
    const char *at = skip_blanks(text), *found = at;
    while (*path && *at == '{') {
        size_t length = strcspn(path, ".");
        bool match = false;
        for (at = skip_blanks(at + 1); *at == '"' && !match;) {
            const char *key = at;
            at = skip_blanks(skip_string(at));
            match = strncmp(key + 1, path, length) == 0 && key[1 + length] == '"';
            if (match)
                found = key;
            else
                at = skip_blanks(skip_value(at));
        }
        if (!match)
            break;
        path += length + (path[length] == '.');
    }
    return found;
}

/* ---- Problems ------------------------------------------------------------------------------------------ */

zr_result zr_json_file_refuse(struct zr_json_file *file, const char *path, const char *format, ...)
{
    char message[600], name[ZR_JSON_PATH_ROOM], place[ZR_JSON_PATH_ROOM + 32];
    unsigned line = 1;
    va_list list;
    va_start(list, format);
    vsnprintf(message, sizeof message, format, list);
    va_end(list);
    for (const char *at = file->text, *end = find_key(at, path); at < end; at++)
        line += *at == '\n';
    snprintf(name, sizeof name, "%s", path);
    zr_make_plain(name);
    zr_make_plain(message);
    snprintf(place, sizeof place, "  line %u: %.120s: ", line, name);
    if (!strstr(file->problems.buffer, place)) { /* one problem per key */
        file->problems_count++;
        zr_text_print(&file->problems, "%s%s\n", place, message);
    }
    return ZR_ERR_INVALID;
}

zr_result zr_json_file_result(const struct zr_json_file *file)
{
    const char *first = file->problems.buffer;
    if (file->problems_count == 0)
        return ZR_OK;
    return zr_fail(ZR_ERR_INVALID, "%s '%.200s' %.*s", file->option, file->name,
                   (int)strcspn(first, "\n") - 2, first + 2);
}

/* ---- Values -------------------------------------------------------------------------------------------- */

json_t *zr_json_file_get(const struct zr_json_file *file, const char *path)
{
    json_t *value = file->root;
    char key[64];
    while (value && *path) {
        size_t length = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)length, path);
        value = json_object_get(value, key);
        path += length + (path[length] == '.');
    }
    return json_is_null(value) ? NULL : value;
}

bool zr_json_number(const json_t *value, double *out)
{
    const char *text = json_string_value(value);
    char *end = NULL;
    double number = 0;
    if (!text && !json_is_number(value))
        return false;
    if (text)
        number = strtod(text, &end);
    else
        number = json_is_integer(value) ? (double)json_integer_value(value) : json_real_value(value);
    if (text && (!text[0] || !strchr("0123456789.-+", text[0]) || end == text || *end || !isfinite(number) ||
                 strpbrk(text, "xX")))
        return false;
    *out = number;
    return true;
}

/* ---- The file ------------------------------------------------------------------------------------------ */

static zr_result load(const struct zr_json_file *out, char *text, size_t *bytes)
{
    struct zr_file file;
    zr_result result = zr_file_open(&file, out->name);
    if (result != ZR_OK)
        return result;
    result = zr_file_read(&file, text, FILE_MAX_BYTES + 1, bytes);
    zr_result closed = zr_file_close(&file);
    if (result == ZR_OK && *bytes > FILE_MAX_BYTES)
        return zr_fail(ZR_ERR_FORMAT, "%s '%.200s' line 1: longer than %d KiB; give a file of settings",
                       out->option, out->name, FILE_MAX_BYTES >> 10);
    return result ? result : closed;
}

zr_result zr_json_file_open(struct zr_json_file *out, const char *option, const char *name)
{
    json_error_t error = {0};
    size_t bytes = 0;
    *out = (struct zr_json_file){.option = option, .name = name, .text = zr_pages_take(PAGES_BYTES)};
    if (!out->text)
        return ZR_ERR_HOST_MEMORY;
    zr_text_start(&out->problems, NULL, out->text + TEXT_BYTES, PROBLEMS_BYTES);
    zr_result result = load(out, out->text, &bytes);
    if (result != ZR_OK)
        return result;
    out->text[bytes] = '\0';
    memory.at = out->text + TEXT_BYTES + PROBLEMS_BYTES;
    memory.left_bytes = MEMORY_BYTES;
    json_set_alloc_funcs(take, give);
    out->root = json_loadb(out->text, bytes, JSON_REJECT_DUPLICATES, &error);
    zr_make_plain(error.text);
    if (!out->root)
        return zr_fail(ZR_ERR_FORMAT, "%s '%.200s' line %d: not JSON: %.200s", option, name,
                       error.line > 0 ? error.line : 1, error.text);
    if (!json_is_object(out->root))
        return zr_fail(ZR_ERR_FORMAT, "%s '%.200s' line 1: must be an object: {...}", option, name);
    return ZR_OK;
}

void zr_json_file_close(struct zr_json_file *file)
{
    memory.left_bytes = 0; /* a later allocation, which has no owner, fails */
    if (file->text)
        zr_pages_give(file->text, PAGES_BYTES);
    file->text = NULL;
}
