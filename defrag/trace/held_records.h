/* held_records.h: records in memory, 32 bytes each, plus what few records have. Private to defrag/trace/.
 *
 * Most records of a file differ only in address, bytes, time and stack; equal values of the other fields are
 * held once. */
#ifndef ZR_HELD_RECORDS_H
#define ZR_HELD_RECORDS_H

#include "defrag/trace/number_map.h"
#include "defrag/trace/vector.h"

struct zr_record;

struct zr_held_records {
    zr_arena *arena; /* borrowed */
    size_t count;

    /* private */
    struct zr_vector chunks;     /* struct packed *: held_records.c */
    struct zr_vector rests;      /* struct rest */
    struct zr_number_map places; /* of rests by hash */
    struct zr_vector labels;     /* char: of marks; the address of a held mark is its label's index */
    uint32_t recent[8];          /* by kind of record: the last rest, plus 1 */
};

/* Allocates nothing, so it cannot fail. */
void zr_held_records_init(struct zr_held_records *out, zr_arena *arena);
void zr_held_records_end(struct zr_held_records *held);
/* Adds a copy, without its refusal. Returns the arena's error. */
zr_result zr_held_records_add(struct zr_held_records *held, const struct zr_record *record);
/* *out is record `index`; its label is valid until the next add. */
void zr_held_records_get(const struct zr_held_records *held, size_t index, struct zr_record *out);

#endif
