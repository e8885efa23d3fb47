/* safetensors_read.c: opens a safetensors file, checks its header, and reads parts of its tensors. */
#include "zero/train/safetensors_read.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "alloc/error.h"
#include "alloc/heap.h"

static zr_result damaged(const struct zr_safetensors *file, const char *what)
{
    return zr_fail(ZR_ERR_FORMAT, "'%s' is no good safetensors file: %s; give one that is whole", file->path,
                   what);
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
        return damaged(file, "its header would be longer than it is");
    text = zr_heap_alloc(header + 1);
    if (!text)
        return ZR_ERR_HOST_MEMORY;
    file->data_bytes = 8 + header;
    result = zr_file_read_at(&file->file, 8, text, header);
    if (!result && (header == 0 || text[0] != '{'))
        result = damaged(file, "it does not begin with a header");
    if (!result) {
        json_set_alloc_funcs(zr_heap_alloc, zr_heap_free);
        file->root = json_loadb(text, header, JSON_REJECT_DUPLICATES, &error);
        if (!file->root)
            result = damaged(file, error.text);
    }
    zr_heap_free(text);
    return result;
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

/* ---- Tensors ----------------------------------------------------------------------------------------- */

static size_t element_bytes(enum zr_safetensors_kind kind)
{
    return kind == ZR_SAFETENSORS_F32 ? 4 : 2;
}

static bool get_whole(json_t *array, size_t index, uint64_t *out)
{
    json_t *value = json_array_get(array, index);
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
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
    json_t *shape = json_object_get(entry, "shape"), *offsets = json_object_get(entry, "data_offsets");
    uint64_t from, to, wanted;

    *out = (struct zr_safetensors_tensor){.dimensions = (unsigned)json_array_size(shape), .elements = 1};
    if (!read_kind(json_string_value(json_object_get(entry, "dtype")), &out->kind))
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s': tensor %.100s is made of other numbers than F32, BF16 or F16; convert it first",
                       file->path, name);
    if (json_array_size(shape) < 1 || json_array_size(shape) > ZR_SAFETENSORS_DIMENSIONS)
        return zr_fail(ZR_ERR_FORMAT, "'%s': tensor %.100s is neither a vector nor a matrix; give a GPT-2",
                       file->path, name);
    for (unsigned d = 0; d < out->dimensions; d++)
        if (!get_whole(shape, d, &out->shape[d]) ||
            __builtin_mul_overflow(out->elements, out->shape[d], &out->elements))
            return damaged(file, "a tensor's shape makes no sense");
    if (json_array_size(offsets) != 2 || !get_whole(offsets, 0, &from) || !get_whole(offsets, 1, &to) ||
        to < from || to > file->bytes - file->data_bytes ||
        __builtin_mul_overflow(out->elements, element_bytes(out->kind), &wanted) || to - from != wanted)
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s' is damaged: tensor %.100s does not lie in it (the file has %" PRIu64
                       " bytes); fetch it again",
                       file->path, name, file->bytes);
    out->at_bytes = file->data_bytes + from;
    return ZR_OK;
}

/* IEEE half precision, subnormal numbers included. */
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
    /* Two bytes each come into the second half and are widened from the front: none is written over unread.
     */
    char *narrow = (char *)out + (part->count * sizeof(float) - bytes);
    zr_result result = zr_file_read_at(&file->file, from, narrow, bytes);

    for (size_t i = 0; !result && tensor->kind != ZR_SAFETENSORS_F32 && i < part->count; i++) {
        uint16_t bits;
        memcpy(&bits, narrow + 2 * i, sizeof bits);
        out[i] = tensor->kind == ZR_SAFETENSORS_F16 ? of_half(bits) : of_bfloat(bits);
    }
    return result;
}
