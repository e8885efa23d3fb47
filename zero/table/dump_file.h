/* dump_file.h: the safetensors file of a dump. Private to zero/table.
 *
 * The header follows from four numbers in its first note, at a fixed offset, and from the table's shape. A
 * reader makes the header from the numbers and compares, so nothing in a file needs to be trusted. The
 * tensors lie in the order of enum zr_table_tensor and are written and read together, each through a piece of
 * memory. */
#ifndef ZR_TABLE_DUMP_FILE_H
#define ZR_TABLE_DUMP_FILE_H

#include "alloc/base/system/file.h"
#include "zero/table/table.h"

enum zr_table_tensor {
    ZR_TABLE_IDS = 0,
    ZR_TABLE_STEPS, /* Adam */
    ZR_TABLE_DROPPED_IDS,
    ZR_TABLE_VALUES,
    ZR_TABLE_STATE /* optimizers with state */
};

struct zr_table_dump_numbers {
    uint64_t rows_count, dropped_count, since, until;
};
struct zr_table_dump_part {
    uint64_t at_bytes, end_bytes;  /* in the file: of the next piece, and the tensor's end */
    size_t used_bytes, room_bytes; /* of the piece: taken or filled / there */
    char *piece;
};
struct zr_table_dump_file {
    const struct zr_table_shape *shape;
    struct zr_table_dump_numbers numbers;
    struct zr_file file;
    uint64_t data_at_bytes, bytes;
    struct zr_table_dump_part parts[ZR_TABLE_TENSORS];
};

/* Shape and numbers are set: computes offsets and gives each tensor a piece of the table's. */
void zr_table_dump_lay_out(struct zr_table_dump_file *dump, const zr_table *table);
zr_result zr_table_dump_write_header(struct zr_table_dump_file *dump);
/* Opens a file, sets numbers and offsets. ZR_ERR_FORMAT: not a dump of a table like this one. On failure the
 * file is closed. */
zr_result zr_table_dump_open(struct zr_table_dump_file *dump, const zr_table *table, const char *path);

/* Appends bytes to a tensor / writes its last piece. */
zr_result zr_table_dump_put(struct zr_table_dump_file *dump, enum zr_table_tensor tensor, const void *data,
                            size_t bytes);
zr_result zr_table_dump_flush(struct zr_table_dump_file *dump);
/* The next bytes of a tensor. */
zr_result zr_table_dump_get(struct zr_table_dump_file *dump, enum zr_table_tensor tensor, void *data,
                            size_t bytes);

#endif
