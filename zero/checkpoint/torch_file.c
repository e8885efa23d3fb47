/* torch_file.c: see safetensors_read.h. The archive is a zip file whose entries are stored, as torch.save()
 * writes it: NAME/data.pkl and NAME/data/KEY for each storage. Formats: PKWARE's APPNOTE.TXT 4.3; PyTorch's
 * torch/serialization.py and torch/_utils.py. Everything in the file is untrusted until checked. */
#include "zero/checkpoint/safetensors_read.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/heap/heap.h"
#include "defrag/trace/formats/pickle.h"

/* ---- The archive --------------------------------------------------------------------------------------- */

enum {
    END_BYTES = 22,          /* of the record at the end, without a comment */
    END_SEARCHED = 1 << 16,  /* a comment has at most 65,535 bytes */
    ENTRY_BYTES = 46,        /* of an entry of the directory, without names */
    LOCAL_BYTES = 30,        /* of the header before an entry's data, likewise */
    DIRECTORY_MAX = 64 << 20 /* bytes */
};
#define IN_ZIP64 UINT32_MAX /* the number is in a record of 64 bits */

struct archive {
    struct zr_safetensors *file;
    unsigned char *directory; /* zr_heap */
    uint64_t directory_at, directory_bytes;
    json_t *storages; /* name in the archive, without its first part -> [offset, bytes], and the index of the
                         type once a tensor has named it */
};

static zr_result damaged(const struct archive *archive, const char *what)
{
    return zr_fail(ZR_ERR_FORMAT, "'%s' is not a valid PyTorch file: %s; give a complete one",
                   archive->file->path, what);
}

static uint64_t number_at(const unsigned char *bytes, unsigned count)
{
    uint64_t number = 0;
    for (unsigned i = 0; i < count; i++)
        number |= (uint64_t)bytes[i] << (8 * i);
    return number;
}

static bool is_record(const unsigned char *bytes, char third, char fourth)
{
    return bytes[0] == 'P' && bytes[1] == 'K' && bytes[2] == (unsigned char)third &&
           bytes[3] == (unsigned char)fourth;
}

/* Replaces the directory's place by that of the records of 64 bits, whose locator is before `end_at`. */
static zr_result read_zip64(struct archive *archive, uint64_t end_at)
{
    unsigned char locator[20], end[56];
    uint64_t bytes = archive->file->bytes;
    if (end_at < sizeof locator)
        return damaged(archive, "its end is missing");
    zr_result result =
        zr_file_read_at(&archive->file->file, end_at - sizeof locator, locator, sizeof locator);
    uint64_t at = number_at(locator + 8, 8);
    if (result == ZR_OK && (!is_record(locator, 6, 7) || at > bytes - sizeof end))
        return damaged(archive, "its end is missing");
    if (result == ZR_OK)
        result = zr_file_read_at(&archive->file->file, at, end, sizeof end);
    if (result == ZR_OK && !is_record(end, 6, 6))
        return damaged(archive, "its end is missing");
    archive->directory_bytes = number_at(end + 40, 8);
    archive->directory_at = number_at(end + 48, 8);
    return result;
}

static zr_result read_end(struct archive *archive)
{
    uint64_t bytes = archive->file->bytes, room = bytes < END_SEARCHED ? bytes : END_SEARCHED;
    unsigned char *tail = zr_heap_alloc(room ? room : 1);
    size_t at = (size_t)room;
    zr_result result = tail ? ZR_OK : ZR_ERR_HOST_MEMORY;
    if (result == ZR_OK && bytes >= END_BYTES + sizeof(uint64_t) * 7)
        result = zr_file_read_at(&archive->file->file, bytes - room, tail, (size_t)room);
    else if (result == ZR_OK)
        result = damaged(archive, "it is too short");
    while (result == ZR_OK && at > 0 && !(at + END_BYTES <= room && is_record(tail + at, 5, 6)))
        at--;
    if (result == ZR_OK && !is_record(tail + at, 5, 6))
        result = damaged(archive, "its end is missing");
    if (result == ZR_OK) {
        archive->directory_bytes = number_at(tail + at + 12, 4);
        archive->directory_at = number_at(tail + at + 16, 4);
        if (archive->directory_at == IN_ZIP64 || archive->directory_bytes == IN_ZIP64 ||
            number_at(tail + at + 10, 2) == UINT16_MAX)
            result = read_zip64(archive, bytes - room + at);
    }
    zr_heap_free(tail);
    if (result == ZR_OK && (archive->directory_bytes > DIRECTORY_MAX || archive->directory_at > bytes ||
                            archive->directory_bytes > bytes - archive->directory_at))
        return damaged(archive, "its directory is beyond the end");
    return result;
}

/* Sizes and offset of an entry; those of 64 bits are in its extra field, in this order. */
static bool read_wide(const unsigned char *entry, uint64_t out[3])
{
    size_t name = (size_t)number_at(entry + 28, 2), extra = (size_t)number_at(entry + 30, 2);
    const unsigned char *at = entry + ENTRY_BYTES + name, *end = at + extra;
    out[0] = number_at(entry + 24, 4); /* size */
    out[1] = number_at(entry + 20, 4); /* stored size */
    out[2] = number_at(entry + 42, 4); /* offset of the header */
    for (size_t bytes; end - at >= 4; at += 4 + bytes) {
        bytes = (size_t)number_at(at + 2, 2);
        if (bytes > (size_t)(end - at) - 4)
            return false;
        size_t used = 4;
        for (unsigned i = 0; i < 3 && number_at(at, 2) == 1; i++)
            if (out[i] == IN_ZIP64) {
                if (used + 8 > bytes + 4)
                    return false;
                out[i] = number_at(at + used, 8);
                used += 8;
            }
    }
    return true;
}

/* Adds an entry: its place is after the header, whose names may have other lengths than in the directory. */
static zr_result add_entry(struct archive *archive, const unsigned char *entry)
{
    size_t length = (size_t)number_at(entry + 28, 2);
    uint64_t size[3], bytes = archive->file->bytes;
    unsigned char local[LOCAL_BYTES];
    char name[256];
    if (!read_wide(entry, size))
        return damaged(archive, "an entry is incomplete");
    if (number_at(entry + 10, 2) != 0 || size[0] != size[1] || number_at(entry + 8, 2) & 1)
        return damaged(archive, "an entry is compressed or encrypted, which torch.save() does not do");
    if (length >= sizeof name || size[2] > bytes - LOCAL_BYTES)
        return damaged(archive, "an entry is beyond the end");
    memcpy(name, entry + ENTRY_BYTES, length);
    name[length] = '\0';
    zr_result result = zr_file_read_at(&archive->file->file, size[2], local, sizeof local);
    if (result != ZR_OK)
        return result;
    uint64_t at = size[2] + LOCAL_BYTES + number_at(local + 26, 2) + number_at(local + 28, 2);
    if (!is_record(local, 3, 4) || at > bytes || size[0] > bytes - at)
        return damaged(archive, "an entry is beyond the end");
    const char *slash = strchr(name, '/'), *own = slash ? slash + 1 : name;
    if (json_object_get(archive->storages, own))
        return damaged(archive, "an entry is there twice");
    json_t *place = json_pack("[I, I]", (json_int_t)at, (json_int_t)size[0]);
    return json_object_set_new(archive->storages, own, place) == 0
               ? ZR_OK
               : damaged(archive, "the name of an entry is not UTF-8");
}

static zr_result read_directory(struct archive *archive)
{
    zr_result result = read_end(archive);
    if (result != ZR_OK)
        return result;
    archive->directory = zr_heap_alloc(archive->directory_bytes + 1);
    archive->storages = json_object();
    if (!archive->directory || !archive->storages)
        return ZR_ERR_HOST_MEMORY;
    result = zr_file_read_at(&archive->file->file, archive->directory_at, archive->directory,
                             (size_t)archive->directory_bytes);
    for (uint64_t at = 0, entry; result == ZR_OK && at < archive->directory_bytes; at += entry) {
        const unsigned char *now = archive->directory + at;
        uint64_t left = archive->directory_bytes - at;
        if (left < ENTRY_BYTES || !is_record(now, 1, 2))
            return damaged(archive, "an entry is incomplete");
        entry = ENTRY_BYTES + number_at(now + 28, 2) + number_at(now + 30, 2) + number_at(now + 32, 2);
        if (entry > left)
            return damaged(archive, "an entry is incomplete");
        result = add_entry(archive, now);
    }
    return result;
}

static bool find_entry(const struct archive *archive, const char *name, struct zr_pickle_part *out)
{
    json_t *place = json_object_get(archive->storages, name);
    if (place)
        *out = (struct zr_pickle_part){(uint64_t)json_integer_value(json_array_get(place, 0)),
                                       (uint64_t)json_integer_value(json_array_get(place, 1))};
    return place != NULL;
}

/* ---- Tensors ------------------------------------------------------------------------------------------- */

/* Storages of torch, with the names and sizes of their types in safetensors. */
static const struct {
    const char *function, *type;
    unsigned bytes;
} storages[] = {{"torch FloatStorage", "F32", 4},     {"torch HalfStorage", "F16", 2},
                {"torch BFloat16Storage", "BF16", 2}, {"torch DoubleStorage", "F64", 8},
                {"torch LongStorage", "I64", 8},      {"torch IntStorage", "I32", 4},
                {"torch ShortStorage", "I16", 2},     {"torch CharStorage", "I8", 1},
                {"torch ByteStorage", "U8", 1},       {"torch BoolStorage", "BOOL", 1}};
enum { DIMENSIONS_MAX = 8, ARGUMENTS_MAX = 7 };

struct tensors {
    struct archive *archive;
    struct zr_pickle *pickle;
    const char *name; /* of the tensor, for messages */
};

static zr_result refuse(const struct tensors *tensors, const char *what)
{
    return zr_fail(ZR_ERR_FORMAT, "'%s': tensor %.100s %s", tensors->archive->file->path, tensors->name,
                   what);
}

/* The items of a tuple, up to `most`; returns their number. */
static unsigned items_of(struct zr_pickle *pickle, struct zr_pickle_value tuple, struct zr_pickle_value *out,
                         unsigned most)
{
    unsigned count = 0;
    if (tuple.kind != ZR_PICKLE_TUPLE || zr_pickle_count(pickle, tuple) > most)
        return 0;
    struct zr_pickle_cursor cursor = zr_pickle_cursor_of(pickle, tuple);
    while (count < most && zr_pickle_next(pickle, &cursor, &out[count]))
        count++;
    return count;
}

/* Arguments of a call of `function`; 0: another value. */
static unsigned arguments_of(struct zr_pickle *pickle, struct zr_pickle_value value, const char *function,
                             struct zr_pickle_value out[ARGUMENTS_MAX])
{
    struct zr_pickle_value call[2];
    return items_of(pickle, value, call, 2) == 2 && zr_pickle_text_is(pickle, call[0], function)
               ? items_of(pickle, call[1], out, ARGUMENTS_MAX)
               : 0;
}

/* The place and type of the storage ("storage", type, key, location, elements). */
static zr_result read_storage(const struct tensors *tensors, struct zr_pickle_value value,
                              struct zr_pickle_part *place, unsigned *type)
{
    struct zr_pickle_value part[5];
    char name[128];
    if (items_of(tensors->pickle, value, part, 5) != 5 ||
        !zr_pickle_text_is(tensors->pickle, part[0], "storage") || part[1].kind != ZR_PICKLE_TEXT ||
        part[2].kind != ZR_PICKLE_TEXT)
        return refuse(tensors, "has no storage of torch");
    *type = 0;
    while (*type < sizeof storages / sizeof *storages &&
           !zr_pickle_text_is(tensors->pickle, part[1], storages[*type].function))
        ++*type;
    if (*type == sizeof storages / sizeof *storages)
        return refuse(tensors, "has numbers of an unknown type; convert it first");
    snprintf(name, sizeof name, "data/%s", zr_pickle_text(tensors->pickle, part[2]));
    if (!find_entry(tensors->archive, name, place))
        return refuse(tensors, "has a storage that is missing");
    json_t *types = json_object_get(tensors->archive->storages, name), *before = json_array_get(types, 2);
    if (before)
        return json_integer_value(before) == *type
                   ? ZR_OK
                   : refuse(tensors, "has a storage that is of another type in another tensor");
    return json_array_append_new(types, json_integer(*type)) == 0 ? ZR_OK : ZR_ERR_HOST_MEMORY;
}

static bool read_whole(const struct zr_pickle_value *value, uint64_t *out)
{
    *out = (uint64_t)value->integer;
    return value->kind == ZR_PICKLE_INTEGER && value->integer >= 0;
}

/* Entry of a tensor as in the header of safetensors: (storage, offset, sizes, strides, ..). */
static zr_result read_tensor(const struct tensors *tensors, const struct zr_pickle_value *argument,
                             json_t *root)
{
    struct zr_pickle_value size[DIMENSIONS_MAX], stride[DIMENSIONS_MAX];
    struct zr_pickle_part place;
    unsigned type = 0, count = items_of(tensors->pickle, argument[2], size, DIMENSIONS_MAX),
             strides = items_of(tensors->pickle, argument[3], stride, DIMENSIONS_MAX);
    uint64_t offset, elements = 1, dimension, step, from = 0, bytes;
    zr_result result = read_storage(tensors, argument[0], &place, &type);
    if (result != ZR_OK)
        return result;
    if (argument[2].kind == ZR_PICKLE_TUPLE && zr_pickle_count(tensors->pickle, argument[2]) > DIMENSIONS_MAX)
        return refuse(tensors, "has more than 8 dimensions");
    if (!read_whole(&argument[1], &offset) || count != strides)
        return refuse(tensors, "has an invalid shape");
    bool empty = false; /* then strides have no meaning */
    for (unsigned d = 0; d < count; d++)
        empty |= size[d].kind == ZR_PICKLE_INTEGER && size[d].integer == 0;
    json_t *shape = json_array();
    for (unsigned d = count; d-- > 0 && result == ZR_OK;) {
        if (!read_whole(&size[d], &dimension) || !read_whole(&stride[d], &step))
            result = refuse(tensors, "has an invalid shape");
        else if (dimension > 1 && step != elements && !empty)
            result = refuse(tensors, "is a view with other strides; save a copy of it: tensor.contiguous()");
        else if (__builtin_mul_overflow(elements, dimension, &elements))
            result = refuse(tensors, "has an invalid shape");
    }
    for (unsigned d = 0; d < count && result == ZR_OK; d++)
        if (json_array_append_new(shape, json_integer((json_int_t)size[d].integer)) != 0)
            result = ZR_ERR_HOST_MEMORY;
    if (result == ZR_OK && (__builtin_mul_overflow(elements, storages[type].bytes, &bytes) ||
                            __builtin_mul_overflow(offset, storages[type].bytes, &from) ||
                            from > place.bytes || bytes > place.bytes - from))
        result = refuse(tensors, "extends beyond its storage");
    if (result != ZR_OK) {
        json_decref(shape);
        return result;
    }
    json_int_t begin = (json_int_t)place.at_bytes + (json_int_t)from, stored = (json_int_t)bytes;
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", storages[type].type, "shape", shape,
                              "data_offsets", begin, begin + stored);
    return json_object_set_new(root, tensors->name, entry) == 0
               ? ZR_OK
               : refuse(tensors, "has a name that is not UTF-8, or there is no memory");
}

static zr_result read_value(const struct tensors *tensors, struct zr_pickle_value value, json_t *root)
{
    struct zr_pickle_value argument[ARGUMENTS_MAX];
    if (arguments_of(tensors->pickle, value, "torch._utils _rebuild_parameter", argument) >= 1)
        value = argument[0];
    return arguments_of(tensors->pickle, value, "torch._utils _rebuild_tensor_v2", argument) >= 4
               ? read_tensor(tensors, argument, root)
               : refuse(tensors, "is not a tensor that torch.save() writes; save the model's state_dict()");
}

/* The tensors of data.pkl, a dict by name. */
static zr_result read_tensors(struct archive *archive, struct zr_pickle *pickle)
{
    struct zr_safetensors *file = archive->file;
    struct zr_pickle_value key, value;
    zr_result result = ZR_OK;
    file->root = json_object();
    if (!file->root)
        return ZR_ERR_HOST_MEMORY;
    if (pickle->root.kind != ZR_PICKLE_DICT)
        return damaged(archive, "it has no dict of tensors; save the model's state_dict()");
    struct zr_pickle_cursor cursor = zr_pickle_cursor_of(pickle, pickle->root);
    while (result == ZR_OK && zr_pickle_next(pickle, &cursor, &key) &&
           zr_pickle_next(pickle, &cursor, &value)) {
        struct tensors tensors = {archive, pickle, "?"};
        char name[256];
        if (key.kind != ZR_PICKLE_TEXT || key.text_bytes >= sizeof name)
            return damaged(archive, "a tensor's name is not a text");
        snprintf(name, sizeof name, "%s", zr_pickle_text(pickle, key));
        tensors.name = name;
        result = read_value(&tensors, value, file->root);
    }
    return result == ZR_OK && zr_pickle_exhausted(pickle) ? damaged(archive, "it names one object too often")
                                                          : result;
}

static zr_result check_order(const struct archive *archive)
{
    struct zr_pickle_part part;
    char order[7] = "";
    if (!find_entry(archive, "byteorder", &part))
        return ZR_OK; /* of an older torch: little */
    if (part.bytes >= sizeof order)
        return damaged(archive, "its byte order is unknown");
    zr_result result = zr_file_read_at(&archive->file->file, part.at_bytes, order, (size_t)part.bytes);
    return result == ZR_OK && strcmp(order, "little") != 0
               ? damaged(archive, "its numbers are big-endian; save it on a little-endian machine")
               : result;
}

bool zr_torch_file_is(const char *path)
{
    struct zr_file file = {.fd = -1};
    char head[4];
    bool is = zr_file_open_regular(&file, path) == ZR_OK &&
              zr_file_read_at(&file, 0, head, sizeof head) == ZR_OK && memcmp(head, "PK\x03\x04", 4) == 0;
    zr_file_close(&file);
    return is;
}

zr_result zr_torch_file_open(struct zr_safetensors *out, const char *path, zr_arena *arena)
{
    struct archive archive = {.file = out};
    struct zr_pickle_part part;
    struct zr_pickle pickle;
    out->file = (struct zr_file){.fd = -1};
    out->root = NULL;
    out->data_bytes = 0;
    if (strlen(path) >= sizeof out->path)
        return zr_fail(ZR_ERR_INVALID, "a path of %zu bytes is too long", strlen(path));
    memcpy(out->path, path, strlen(path) + 1);
    json_set_alloc_funcs(zr_heap_alloc, zr_heap_free);
    zr_result result = zr_file_open_regular(&out->file, path);
    if (result == ZR_OK)
        result = zr_file_size(&out->file, &out->bytes);
    if (result == ZR_OK)
        result = read_directory(&archive);
    if (result == ZR_OK)
        result = check_order(&archive);
    if (result == ZR_OK && !find_entry(&archive, "data.pkl", &part))
        result = damaged(&archive, "it has no data.pkl");
    if (result == ZR_OK)
        result = zr_pickle_read_calls(&pickle, out->path, &part, arena);
    if (result == ZR_OK) {
        result = read_tensors(&archive, &pickle);
        zr_pickle_end(&pickle);
    }
    json_decref(archive.storages);
    zr_heap_free(archive.directory);
    if (result != ZR_OK)
        zr_safetensors_close(out);
    return result;
}
