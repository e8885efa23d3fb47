/* safetensors_read.c: opens a safetensors file, checks its header, and reads parts of its tensors. */
#include "zero/checkpoint/safetensors_read.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/heap/heap.h"
#include "alloc/base/sort.h"

static zr_result damaged(const struct zr_safetensors *file, const char *what)
{
    return zr_fail(ZR_ERR_FORMAT, "'%s' is not a valid safetensors file: %s; give a complete one", file->path,
                   what);
}

static bool get_whole(json_t *array, size_t index, uint64_t *out)
{
    json_t *value = json_array_get(array, index);
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

/* ---- The bytes of the tensors -------------------------------------------------------------------------- */

static zr_result fail_range(const struct zr_safetensors *file, const char *name)
{
    return zr_fail(ZR_ERR_FORMAT,
                   "'%s' is damaged: tensor %.100s extends beyond it (the file has %" PRIu64
                   " bytes); fetch it again",
                   file->path, name, file->bytes);
}

/* Bytes of an element of any type in the format; 0: unknown type. */
static unsigned kind_bytes(const char *name)
{
    static const struct {
        const char *names;
        unsigned bytes;
    } kinds[] = {{" BOOL U8 I8 F8_E4M3 F8_E5M2 ", 1},
                 {" U16 I16 F16 BF16 ", 2},
                 {" U32 I32 F32 ", 4},
                 {" U64 I64 F64 ", 8}};
    char word[16];
    if (!name || strchr(name, ' ') || strlen(name) + 3 > sizeof word)
        return 0;
    snprintf(word, sizeof word, " %s ", name);
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strstr(kinds[i].names, word))
            return kinds[i].bytes;
    return 0;
}

/* The range [from, to) of an entry's data: within the file, with the size of its shape. */
static bool read_extent(const struct zr_safetensors *file, json_t *entry, uint64_t *from, uint64_t *to)
{
    json_t *shape = json_object_get(entry, "shape"), *offsets = json_object_get(entry, "data_offsets");
    uint64_t bytes = kind_bytes(json_string_value(json_object_get(entry, "dtype"))), size;
    bool known = bytes > 0;

    for (size_t d = 0; d < json_array_size(shape); d++)
        if (!get_whole(shape, d, &size) || __builtin_mul_overflow(bytes, size, &bytes))
            return false;
    return json_array_size(offsets) == 2 && get_whole(offsets, 0, from) && get_whole(offsets, 1, to) &&
           *from <= *to && *to <= file->bytes - file->data_bytes && json_is_array(shape) &&
           (!known || *to - *from == bytes);
}

/* Lists the entries' ranges, except empty ones. The values of the pairs are unused. */
static zr_result list_extents(const struct zr_safetensors *file, struct zr_sort_pair *starts,
                              struct zr_sort_pair *ends, size_t *count)
{
    uint64_t from, to;
    *count = 0;
    for (void *at = json_object_iter(file->root); at; at = json_object_iter_next(file->root, at)) {
        const char *name = json_object_iter_key(at);
        if (strcmp(name, "__metadata__") == 0)
            continue;
        if (!read_extent(file, json_object_iter_value(at), &from, &to))
            return fail_range(file, name);
        if (from == to)
            continue;
        starts[*count] = (struct zr_sort_pair){.key = from};
        ends[(*count)++] = (struct zr_sort_pair){.key = to};
    }
    return ZR_OK;
}

/* The format requires every byte of data to belong to one tensor. So the first tensor starts at the start of
 * the data, each other tensor starts where another ends, and the last ends with the data. */
static zr_result check_extents(const struct zr_safetensors *file)
{
    size_t room = json_object_size(file->root) + 1, count = 0;
    struct zr_sort_pair *starts = zr_heap_zalloc(3 * room, sizeof *starts);

    if (!starts)
        return ZR_ERR_HOST_MEMORY;
    struct zr_sort_pair *ends = starts + room, *spare = ends + room;
    zr_result result = list_extents(file, starts, ends, &count);
    if (!result) {
        uint64_t next = 0;
        zr_sort_pairs(starts, spare, count);
        zr_sort_pairs(ends, spare, count);
        for (size_t i = 0; i < count && !result; next = ends[i++].key)
            if (starts[i].key != next)
                result = damaged(file, starts[i].key < next ? "two of its tensors overlap"
                                                            : "some of its bytes belong to no tensor");
        if (!result && next != file->bytes - file->data_bytes)
            result = damaged(file, "some of its bytes belong to no tensor");
    }
    zr_heap_free(starts);
    return result;
}

/* ---- The header ---------------------------------------------------------------------------------------- */

/* Identifies a file of another format by its first bytes; returns its description and a fix, or NULL. */
static const char *other_format(const unsigned char *head, size_t bytes)
{
    static const char pytorch[] =
        "a PyTorch file of torch before 1.6 or of protocol 0, which is no archive; load it with "
        "torch.load(), save it with torch.save()";
    static const struct {
        const char *begins;
        size_t bytes;
        const char *words;
    } formats[] = {
        {"\x80\x02", 2, pytorch}, /* pickles, the second and later protocols */
        {"\x80\x03", 2, pytorch},
        {"\x80\x04", 2, pytorch},
        {"\x80\x05", 2, pytorch},
        {"GGUF", 4,
         "a GGUF file of llama.cpp, not a safetensors file; give the model that it was made from, as "
         "safetensors"},
        {"ggml", 4,
         "a file of llama.cpp, not a safetensors file; give the model that it was made from, as "
         "safetensors"},
        {"\x89HDF", 4,
         "an HDF5 file (such as tf_model.h5), not a safetensors file; load it in transformers 4 with "
         "from_tf=True and save it with model.save_pretrained(DIR, safe_serialization=True)"},
        {"\x93NUMPY", 6, "a NumPy array, not a safetensors file; write it with the safetensors package"},
        {"version https://git-lfs", 23, "a pointer of Git LFS; fetch the file with git lfs pull"},
        {"<", 1, "an HTML or XML page, not a safetensors file; fetch the file itself, by its download link"},
        {"{", 1,
         "a JSON text, not a safetensors file; the index of a model in several files is called "
         "*.index.json"},
    };
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (bytes >= formats[i].bytes && memcmp(head, formats[i].begins, formats[i].bytes) == 0)
            return formats[i].words;
    return NULL;
}

/* Message for a file without a valid header. */
static zr_result no_header(const struct zr_safetensors *file, const char *what)
{
    unsigned char head[32];
    size_t bytes = file->bytes < sizeof head ? (size_t)file->bytes : sizeof head;
    zr_result result = zr_file_read_at(&file->file, 0, head, bytes);
    const char *words = result ? NULL : other_format(head, bytes);
    if (result)
        return result;
    return words ? zr_fail(ZR_ERR_FORMAT, "'%s' is %s", file->path, words) : damaged(file, what);
}

static zr_result read_header(struct zr_safetensors *file)
{
    json_error_t error;
    uint64_t header;
    char *text;
    zr_result result = zr_file_size(&file->file, &file->bytes);

    if (result)
        return result;
    if (file->bytes < 8)
        return damaged(file, "it is too short");
    result = zr_file_read_at(&file->file, 0, &header, 8);
    if (result)
        return result;
    if (header > file->bytes - 8 || header > ZR_SAFETENSORS_HEADER_MAX)
        return no_header(file, "its header length exceeds the file");
    text = zr_heap_alloc(header + 1);
    if (!text)
        return ZR_ERR_HOST_MEMORY;
    file->data_bytes = 8 + header;
    result = zr_file_read_at(&file->file, 8, text, header);
    if (!result && (header == 0 || text[0] != '{'))
        result = no_header(file, "it does not start with a header");
    if (!result) {
        json_set_alloc_funcs(zr_heap_alloc, zr_heap_free);
        file->root = json_loadb(text, header, JSON_REJECT_DUPLICATES, &error);
        if (!file->root)
            result = damaged(file, error.text);
    }
    zr_heap_free(text);
    return result ? result : check_extents(file);
}

zr_result zr_safetensors_open(struct zr_safetensors *out, const char *path)
{
    zr_result result;

    out->file = (struct zr_file){.fd = -1};
    out->root = NULL;
    if (strlen(path) >= sizeof out->path)
        return zr_fail(ZR_ERR_INVALID, "a path of %zu bytes is too long", strlen(path));
    memcpy(out->path, path, strlen(path) + 1);
    result = zr_file_open_regular(&out->file, path);
    if (!result)
        result = read_header(out);
    if (result)
        zr_safetensors_close(out);
    return result;
}

void zr_safetensors_close(struct zr_safetensors *file)
{
    json_decref(file->root);
    file->root = NULL;
    zr_file_close(&file->file);
}

/* ---- Tensors ------------------------------------------------------------------------------------------- */

static size_t element_bytes(enum zr_safetensors_kind kind)
{
    return kind == ZR_SAFETENSORS_F32 ? 4 : 2;
}

static bool read_kind(const char *name, enum zr_safetensors_kind *out)
{
    static const char *const names[] = {"F32", "BF16", "F16"};
    for (unsigned i = 0; name && i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0) {
            *out = (enum zr_safetensors_kind)i;
            return true;
        }
    return false;
}

zr_result zr_safetensors_describe(const struct zr_safetensors *file, const char *name, struct json_t *entry,
                                  struct zr_safetensors_tensor *out)
{
    json_t *shape = json_object_get(entry, "shape");
    uint64_t from, to, wanted;

    *out = (struct zr_safetensors_tensor){.dimensions = (unsigned)json_array_size(shape), .elements = 1};
    if (!read_kind(json_string_value(json_object_get(entry, "dtype")), &out->kind))
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s': tensor %.100s has another element type than F32, BF16 or F16; convert it first",
                       file->path, name);
    if (json_array_size(shape) < 1 || json_array_size(shape) > ZR_SAFETENSORS_DIMENSIONS)
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s': tensor %.100s is neither a vector nor a matrix, and bundled models have no others",
            file->path, name);
    for (unsigned d = 0; d < out->dimensions; d++)
        if (!get_whole(shape, d, &out->shape[d]) ||
            __builtin_mul_overflow(out->elements, out->shape[d], &out->elements))
            return damaged(file, "a tensor's shape is invalid");
    if (!read_extent(file, entry, &from, &to) ||
        __builtin_mul_overflow(out->elements, element_bytes(out->kind), &wanted) || to - from != wanted)
        return fail_range(file, name);
    out->at_bytes = file->data_bytes + from;
    return ZR_OK;
}

/* IEEE half precision, including subnormal numbers. */
static float of_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 1023;
    uint32_t bits;
    float value;

    if (exponent == 0) {
        value = (float)mantissa * 0x1p-24f;
        memcpy(&bits, &value, sizeof bits);
    } else {
        bits = (exponent == 31 ? 255u : exponent + 112) << 23 | mantissa << 13;
    }
    bits |= sign;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float of_bfloat(uint16_t narrow)
{
    uint32_t bits = (uint32_t)narrow << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

zr_result zr_safetensors_read(const struct zr_safetensors *file, const struct zr_safetensors_tensor *tensor,
                              const struct zr_safetensors_part *part, float *out)
{
    size_t each = element_bytes(tensor->kind), bytes = part->count * each;
    uint64_t from = tensor->at_bytes + part->first * each;
    /* Two-byte elements are read into the second half and widened from the front, so none is overwritten
     * before it is read. */
    char *narrow = (char *)out + (part->count * sizeof(float) - bytes);
    zr_result result = zr_file_read_at(&file->file, from, narrow, bytes);

    for (size_t i = 0; !result && tensor->kind != ZR_SAFETENSORS_F32 && i < part->count; i++) {
        uint16_t bits;
        memcpy(&bits, narrow + 2 * i, sizeof bits);
        out[i] = tensor->kind == ZR_SAFETENSORS_F16 ? of_half(bits) : of_bfloat(bits);
    }
    return result;
}
