/* dump_file.c: see dump_file.h. */
#include "zero/table/dump_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/hash.h"
#include "zero/checkpoint/safetensors.h"

#define NUMBERS_BEFORE "{\"__metadata__\":{\"zr_table\":\""
enum { DIGITS = 20, NUMBERS = 5, NUMBERS_END = 256, HEADER_MAX = 2048 };

static const struct {
    const char *name;
    bool integers;
} tensors[ZR_TABLE_TENSORS] = {[ZR_TABLE_IDS] = {"ids", true},
                               [ZR_TABLE_STEPS] = {"steps", true},
                               [ZR_TABLE_DROPPED_IDS] = {"dropped", true},
                               [ZR_TABLE_VALUES] = {"rows", false},
                               [ZR_TABLE_STATE] = {"state", false}};

/* Rows and columns of a tensor; false: the file does not have it. A vector has no columns. */
static bool has(const struct zr_table_dump_file *dump, unsigned tensor, struct zr_safetensors_entry *out)
{
    const struct zr_table_shape *shape = dump->shape;
    const uint64_t columns[ZR_TABLE_TENSORS] = {
        [ZR_TABLE_VALUES] = shape->width, [ZR_TABLE_STATE] = shape->states};
    *out = (struct zr_safetensors_entry){.rows = tensor == ZR_TABLE_DROPPED_IDS ? dump->numbers.dropped_count
                                                                                : dump->numbers.rows_count,
                                         .columns = columns[tensor],
                                         .integers = tensors[tensor].integers};
    return tensor == ZR_TABLE_STEPS ? shape->optimizer == ZR_TABLE_ADAM
                                    : tensor != ZR_TABLE_STATE || shape->states > 0;
}

static uint64_t words_of(const struct zr_safetensors_entry *entry)
{
    return entry->rows * (entry->columns ? entry->columns : 1) * (entry->integers ? 2 : 1);
}

static uint64_t hash_of(const struct zr_table_dump_numbers *numbers)
{
    uint64_t hash = zr_hash_next(ZR_HASH_START, numbers->rows_count);
    hash = zr_table_mix(zr_hash_next(hash, numbers->dropped_count));
    hash = zr_table_mix(zr_hash_next(hash, numbers->since));
    return zr_table_mix(zr_hash_next(hash, numbers->until));
}

static void say(struct zr_safetensors_header *header, void *whose)
{
    const struct zr_table_dump_file *dump = whose;
    const struct zr_table_dump_numbers *numbers = &dump->numbers;
    static const char *const optimizers[ZR_TABLE_OPTIMIZERS_COUNT] = {"sgd", "adagrad", "adagrad_row",
                                                                      "adam"};
    uint64_t first = 0;
    zr_safetensors_note(
        header, "zr_table", "%020" PRIu64 " %020" PRIu64 " %020" PRIu64 " %020" PRIu64 " %020" PRIu64,
        numbers->rows_count, numbers->dropped_count, numbers->since, numbers->until, hash_of(numbers));
    zr_safetensors_note(header, "format", "zr_table 1: rows, dropped, since, until, hash of these");
    zr_safetensors_note(header, "optimizer", "%s", optimizers[dump->shape->optimizer]);
    for (unsigned i = 0; i < ZR_TABLE_TENSORS; i++) {
        char name[ZR_TABLE_NAME_BYTES + 16];
        struct zr_safetensors_entry entry;
        if (!has(dump, i, &entry))
            continue;
        entry.name = name;
        entry.name_bytes = (size_t)snprintf(name, sizeof name, "%s.%s", dump->shape->name, tensors[i].name);
        entry.first = first;
        first += words_of(&entry);
        zr_safetensors_tensor(header, &entry);
    }
}

void zr_table_dump_lay_out(struct zr_table_dump_file *dump, const zr_table *table)
{
    dump->data_at_bytes = zr_safetensors_data_at(&(struct zr_safetensors_contents){say, dump});
    uint64_t at = dump->data_at_bytes;
    for (unsigned i = 0; i < ZR_TABLE_TENSORS; i++) {
        struct zr_safetensors_entry entry;
        uint64_t bytes = has(dump, i, &entry) ? words_of(&entry) * sizeof(float) : 0;
        dump->parts[i] = (struct zr_table_dump_part){
            .at_bytes = at, .end_bytes = at + bytes, .piece = table->pieces + i * ZR_TABLE_PIECE_BYTES};
        at += bytes;
    }
    dump->bytes = at;
}

zr_result zr_table_dump_write_header(struct zr_table_dump_file *dump)
{
    return zr_safetensors_put(&(struct zr_safetensors_contents){say, dump}, dump->data_at_bytes,
                              &(struct zr_safetensors_sink){zr_safetensors_write, &dump->file});
}

/* ---- Reading ------------------------------------------------------------------------------------------- */

static zr_result fail_format(const struct zr_table_dump_file *dump, const char *problem)
{
    return zr_fail(ZR_ERR_FORMAT,
                   "'%s' %s table %s with its width and optimizer; use a file of zr_table_dump()",
                   dump->file.name, problem, dump->shape->name);
}

struct comparison {
    const char *with;
    size_t bytes;
    bool differs;
};

static zr_result compare(void *whose, uint64_t at_bytes, const char *data, size_t bytes)
{
    struct comparison *comparison = whose;
    comparison->differs = comparison->differs || at_bytes + bytes > comparison->bytes ||
                          memcmp(comparison->with + at_bytes, data, bytes) != 0;
    return ZR_OK;
}

/* The numbers at the beginning of a header. */
static bool read_numbers(const char *header, struct zr_table_dump_numbers *out)
{
    uint64_t hash = 0;
    uint64_t *const numbers[NUMBERS] = {&out->rows_count, &out->dropped_count, &out->since, &out->until,
                                        &hash};
    const char *at = header + sizeof(uint64_t);
    if (memcmp(at, NUMBERS_BEFORE, sizeof NUMBERS_BEFORE - 1) != 0)
        return false;
    at += sizeof NUMBERS_BEFORE - 1;
    for (unsigned i = 0; i < NUMBERS; i++, at++)
        for (unsigned digit = 0; digit < DIGITS; digit++, at++)
            if (*at < '0' || *at > '9' || __builtin_mul_overflow(*numbers[i], 10, numbers[i]) ||
                __builtin_add_overflow(*numbers[i], (uint64_t)(*at - '0'), numbers[i]))
                return false;
    return hash == hash_of(out);
}

static zr_result read_header(struct zr_table_dump_file *dump, const zr_table *table)
{
    char header[HEADER_MAX] = {0};
    uint64_t bytes;
    zr_result result = zr_file_size(&dump->file, &bytes);
    size_t part = bytes < sizeof header ? (size_t)bytes : sizeof header;
    if (result == ZR_OK)
        result = zr_file_read_at(&dump->file, 0, header, part);
    if (result != ZR_OK)
        return result;
    struct zr_table_dump_numbers *numbers = &dump->numbers;
    uint64_t row_bytes = (dump->shape->width + dump->shape->states) * sizeof(float);
    if (part < NUMBERS_END || !read_numbers(header, numbers) || numbers->rows_count > bytes / row_bytes ||
        numbers->dropped_count > bytes / sizeof(uint64_t) || numbers->until < numbers->since)
        return fail_format(dump, "is not a dump of");
    zr_table_dump_lay_out(dump, table);
    struct comparison comparison = {.with = header, .bytes = part};
    result = zr_safetensors_put(&(struct zr_safetensors_contents){say, dump}, dump->data_at_bytes,
                                &(struct zr_safetensors_sink){compare, &comparison});
    if (result != ZR_OK)
        return result;
    if (comparison.differs)
        return fail_format(dump, "has another header than a dump of");
    return dump->bytes == bytes ? ZR_OK : fail_format(dump, "has another size than a dump of");
}

zr_result zr_table_dump_open(struct zr_table_dump_file *dump, const zr_table *table, const char *path)
{
    *dump = (struct zr_table_dump_file){.shape = &table->layout.shape};
    zr_result result = zr_file_open_regular(&dump->file, path);
    if (result != ZR_OK)
        return result;
    result = read_header(dump, table);
    if (result != ZR_OK)
        zr_file_close(&dump->file);
    return result;
}

/* ---- Pieces -------------------------------------------------------------------------------------------- */

static zr_result write_piece(struct zr_table_dump_file *dump, struct zr_table_dump_part *part)
{
    zr_result result = zr_file_write_at(&dump->file, part->at_bytes, part->piece, part->used_bytes);
    part->at_bytes += part->used_bytes;
    part->used_bytes = 0;
    zr_assert(part->at_bytes <= part->end_bytes);
    return result;
}

zr_result zr_table_dump_put(struct zr_table_dump_file *dump, enum zr_table_tensor tensor, const void *data,
                            size_t bytes)
{
    struct zr_table_dump_part *part = &dump->parts[tensor];
    zr_result result = ZR_OK;
    for (size_t done = 0, some; done < bytes && result == ZR_OK; done += some) {
        size_t room = ZR_TABLE_PIECE_BYTES - part->used_bytes;
        some = bytes - done < room ? bytes - done : room;
        memcpy(part->piece + part->used_bytes, (const char *)data + done, some);
        part->used_bytes += some;
        if (part->used_bytes == ZR_TABLE_PIECE_BYTES)
            result = write_piece(dump, part);
    }
    return result;
}

zr_result zr_table_dump_flush(struct zr_table_dump_file *dump)
{
    zr_result result = ZR_OK;
    for (unsigned i = 0; i < ZR_TABLE_TENSORS && result == ZR_OK; i++) {
        result = write_piece(dump, &dump->parts[i]);
        zr_assert(result != ZR_OK || dump->parts[i].at_bytes == dump->parts[i].end_bytes);
    }
    return result;
}

zr_result zr_table_dump_get(struct zr_table_dump_file *dump, enum zr_table_tensor tensor, void *data,
                            size_t bytes)
{
    struct zr_table_dump_part *part = &dump->parts[tensor];
    for (size_t done = 0, some; done < bytes; done += some) {
        if (part->used_bytes == part->room_bytes) {
            uint64_t left = part->end_bytes - part->at_bytes;
            part->room_bytes = left < ZR_TABLE_PIECE_BYTES ? (size_t)left : ZR_TABLE_PIECE_BYTES;
            part->used_bytes = 0;
            zr_assert(part->room_bytes > 0);
            zr_result result = zr_file_read_at(&dump->file, part->at_bytes, part->piece, part->room_bytes);
            if (result != ZR_OK)
                return result;
            part->at_bytes += part->room_bytes;
        }
        size_t there = part->room_bytes - part->used_bytes;
        some = bytes - done < there ? bytes - done : there;
        memcpy((char *)data + done, part->piece + part->used_bytes, some);
        part->used_bytes += some;
    }
    return ZR_OK;
}
