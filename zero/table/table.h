/* table.h: a table's memory and records. Private to zero/table.
 *
 * The memory has a head and arrays at offsets that follow from the options, and no pointers, so it may lie at
 * another address in each process. Of the arrays only ids, versions, places, values and the order of use
 * count when a process opens the memory; index, free lists, free records and the list of drops are made of
 * them.
 *
 * A process may die between any two stores. The stores after which a row is another are single words:
 *
 *   a new row      its id, version and values, then its place; for a new number, then head.made_count
 *   to the file    a free record in the file, then the place, which names it
 *   from the file  the values in a slot, then the place
 *   updated        the new row and its version in the redo record, then head.redo_row; then the row, its
 *                  version, and head.redo_row 0. An open copies the redo record again.
 *   dropped        its version in the redo record, then head.redo_row; then the version, the place, and
 *                  head.redo_row 0. An open does this again.
 *   a push         head.push_version and begun_sequence; then its rows; then version and sequence
 *
 * table->lock covers everything. */
#ifndef ZR_TABLE_INSIDE_H
#define ZR_TABLE_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>

#include "alloc/base/compiler.h"
#include "alloc/base/error.h"
#include "zero/file_io/nvme_io.h"
#include "zero/table/zr_table.h"

#define ZR_TABLE_MAGIC     UINT64_C(0x32656c6261747a72) /* "rztable2" */
#define ZR_TABLE_NONE      UINT32_MAX                   /* no row, no record */
#define ZR_TABLE_FILE      (UINT32_C(1) << 31)          /* places other than slots: this and a record */
#define ZR_TABLE_FREE      (UINT32_MAX - 1)
#define ZR_TABLE_DROPPED   (UINT32_MAX - 2)
#define ZR_TABLE_REDO_DROP (UINT64_C(1) << 40) /* in head.redo_row */
enum {
    ZR_TABLE_HEAD_BYTES = 4096,
    ZR_TABLE_CHUNK = 512, /* rows that are in memory together; half of ZR_TABLE_SLOTS_MIN */
    ZR_TABLE_STAGING_BLOCKS = 64,
    ZR_TABLE_PIECE_BYTES = 16384, /* of each tensor of a dump */
    ZR_TABLE_TENSORS = 5,
    ZR_TABLE_ALIGN = 64
};

/* What decides layout and values: equal in every process that opens the memory. */
struct zr_table_shape {
    char name[ZR_TABLE_NAME_BYTES];
    uint64_t width, optimizer, full, rows_limit, slots_count, block_bytes, seed;
    float epsilon, beta1, beta2, initial_state, init_range;
    uint32_t states; /* floats of optimizer state, behind the values; then Adam's steps, 32 bits */
    uint64_t row_bytes;
};

/* Lists of rows, linked by next and prev; a row is in one at most. */
enum zr_table_list_kind { ZR_TABLE_USED, ZR_TABLE_DROPS, ZR_TABLE_UNUSED, ZR_TABLE_LISTS };
struct zr_table_list {
    uint32_t first, last; /* used: the most and the least recently used; drops: the newest and the oldest */
};

struct zr_table_head {
    _Atomic uint64_t magic; /* 0: no table */
    struct zr_table_shape shape;
    _Atomic uint64_t version, sequence, begun_sequence, push_version, dumpable_since, applied_until;
    _Atomic uint64_t made_count; /* numbers that rows have had */
    _Atomic uint64_t redo_row;   /* 1 + the row, and ZR_TABLE_REDO_DROP if it is dropped; 0: none */
    _Atomic uint64_t redo_version;
    struct zr_table_list lists[ZR_TABLE_LISTS];
};
_Static_assert(sizeof(struct zr_table_head) <= ZR_TABLE_HEAD_BYTES, "the head has its own page");

/* Offsets in the memory, and in the block of records. */
struct zr_table_layout {
    struct zr_table_shape shape;
    size_t redo, ids, versions, places, next, prev, index, free_slots, records, taken, free_records, rows;
    uint64_t buckets_count;
    uint32_t blocks_count, block_records; /* of the file: blocks; records of a block */
    size_t batch_max, grouped_buckets;
    uint64_t permits_max, permit_buckets;
    size_t first, following, last, numbers, grouped, permits, pieces, sum;
    struct zr_table_plan plan;
};
/* Errors as of zr_table_plan(). */
zr_result zr_table_lay_out(struct zr_table_layout *out, const struct zr_table_options *options);

/* The different ids of a batch in the order of their first places, and the places of each id in order. */
struct zr_table_group {
    uint32_t *first;     /* [unique]: the first place */
    uint32_t *following; /* [place]: the next place with the same id, or ZR_TABLE_NONE */
    uint32_t *last;      /* [unique]: the last place */
    uint32_t *buckets;
    size_t count;
};
struct zr_table_permit {
    uint64_t id;
    uint32_t worker; /* ZR_TABLE_WORKERS_MAX: of all workers */
    uint32_t count;  /* 0: an empty bucket */
};

struct zr_table {
    pthread_mutex_t lock;
    pthread_cond_t released; /* lock; permits */
    struct zr_table_layout layout;
    zr_arena *arena;
    void *own_memory; /* the arena's block, or NULL */
    bool kept;        /* the memory outlives the process */
    bool tracks_use;  /* the list of used rows is needed */
    struct zr_table_head *head;
    char *redo, *rows;
    uint64_t *ids, *versions, *index;
    uint32_t *places, *next, *prev, *free_slots;
    uint32_t free_slots_count;
    /* Of a table with a file, else NULL. A new process takes all rows in memory for changed. */
    uint32_t *records;      /* [slot]: the record that has the row as it is in memory; ZR_TABLE_NONE */
    uint8_t *taken;         /* [record]: it is of a row */
    uint16_t *free_records; /* [block] */
    uint64_t all_free_records;
    uint32_t next_block; /* where free records are looked for */
    uint32_t *numbers;   /* [batch_max]: rows of a batch */
    struct zr_table_group group;
    struct zr_table_permit *permits;
    uint32_t staleness;
    char *pieces;
    char *sum;      /* a row */
    bool may_lose;  /* a full table drops rows */
    zr_nvme_io *io; /* NULL: no file */
    char *staging;
    struct zr_table_status status; /* counts */
};

/* A store that the next process sees. In kept memory it passes the fault site `kept`. */
void zr_table_store(const zr_table *table, _Atomic uint64_t *to, uint64_t value);
void zr_table_set_place(zr_table *table, uint32_t row, uint32_t place);
void zr_table_die_if_asked(const zr_table *table);

static inline uint64_t zr_table_load(const _Atomic uint64_t *from)
{
    return atomic_load_explicit(from, memory_order_relaxed);
}

static inline uint64_t zr_table_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}
static inline bool zr_table_in_memory(const zr_table *table, uint32_t row)
{
    return table->places[row] < ZR_TABLE_FILE;
}
static inline bool zr_table_is_live(const zr_table *table, uint32_t row)
{
    return table->places[row] != ZR_TABLE_FREE && table->places[row] != ZR_TABLE_DROPPED;
}
static inline bool zr_table_in_file(const zr_table *table, uint32_t row)
{
    return !zr_table_in_memory(table, row) && zr_table_is_live(table, row);
}
/* Of a row in memory: values, state, steps. */
static inline char *zr_table_row(const zr_table *table, uint32_t row)
{
    return table->rows + (size_t)table->places[row] * table->layout.shape.row_bytes;
}

/* ---- index.c: rows by their ids, and lists of rows ------------------------------------------------------
 */

/* The row of an id, a dropped one too; ZR_TABLE_NONE. */
uint32_t zr_table_find(const zr_table *table, uint64_t id);
void zr_table_prefetch(const zr_table *table, const uint64_t *ids, size_t count);
void zr_table_index_add(zr_table *table, uint32_t row);
void zr_table_index_remove(zr_table *table, uint32_t row);
void zr_table_list_add(zr_table *table, enum zr_table_list_kind kind, uint32_t row);
void zr_table_list_remove(zr_table *table, enum zr_table_list_kind kind, uint32_t row);

/* ---- rows.c: rows come, go and are in memory -------------------------------------------------------------
 */

/* Rows of up to ZR_TABLE_CHUNK ids, which may repeat; makes those that are missing. Until the next call none
 * of them is dropped. */
zr_result zr_table_resolve(zr_table *table, const uint64_t *ids, uint32_t *rows, size_t count);
/* Brings up to ZR_TABLE_CHUNK live rows, which may repeat, into memory, where they stay until the next call.
 */
zr_result zr_table_bring(zr_table *table, const uint32_t *rows, size_t count);
/* Drops a live row at a version that the head has or is about to have. */
void zr_table_drop_row(zr_table *table, uint32_t row, uint64_t version);
/* ZR_ERR_INVALID: a push was interrupted. */
zr_result zr_table_check_whole(const zr_table *table);

/* ---- update.c: values ------------------------------------------------------------------------------------
 */

/* First values, state and steps of an id. */
void zr_table_first_values(const zr_table *table, uint64_t id, char *row);
struct zr_table_step {
    uint32_t row; /* in memory */
    const float *gradient;
    float rate;
    uint64_t version;
};
void zr_table_update(zr_table *table, const struct zr_table_step *step);
/* Makes the contents of the redo record those of a row in memory. */
void zr_table_commit_row(zr_table *table, uint32_t row, uint64_t version);
/* Notes that a row is about to be dropped / is dropped. */
void zr_table_begin_drop(zr_table *table, uint32_t row, uint64_t version);
void zr_table_end_drop(zr_table *table);
/* After the death of a process: finishes the commit or drop. */
void zr_table_redo(zr_table *table);

/* ---- tier.c: records in the file -------------------------------------------------------------------------
 */

zr_result zr_table_tier_open(zr_table *table, const struct zr_table_options *options, bool exists);
void zr_table_tier_close(zr_table *table);
void zr_table_tier_report(const zr_table *table, struct zr_table_status *out);
/* All records are free, and no row in memory has one. */
void zr_table_tier_clear(zr_table *table);
void zr_table_tier_take(zr_table *table, uint32_t record);
/* The row has changed, or is dropped: its record, if it has one, is free. */
void zr_table_tier_release(zr_table *table, uint32_t row);
/* Writes up to ZR_TABLE_CHUNK different rows in memory that have no record, and gives them one. */
zr_result zr_table_tier_write(zr_table *table, const uint32_t *rows, size_t count);
/* Passes the contents of up to ZR_TABLE_CHUNK different rows in the file to a function, in any order. */
struct zr_table_reader {
    zr_result (*take)(void *state, uint32_t row, const char *contents);
    void *state;
};
zr_result zr_table_tier_read(zr_table *table, const uint32_t *rows, size_t count,
                             const struct zr_table_reader *reader);
/* The same of all rows in the file, in the order of their records: large transfers. */
zr_result zr_table_tier_read_all(zr_table *table, const struct zr_table_reader *reader);

/* ---- dump.c ----------------------------------------------------------------------------------------------
 */

/* A row that was pushed, and since the version. */
static inline bool zr_table_is_changed(const zr_table *table, uint64_t since, uint32_t row)
{
    return table->versions[row] > since && zr_table_is_live(table, row);
}
/* Passes these rows to a function, those in memory first. */
zr_result zr_table_read_changed(zr_table *table, uint64_t since, const struct zr_table_reader *reader);

/* ---- batch.c ---------------------------------------------------------------------------------------------
 */

void zr_table_group_ids(zr_table *table, const uint64_t *ids, size_t count);

/* ---- permits.c -------------------------------------------------------------------------------------------
 */

/* Takes a permit of each id of the group for a worker. ZR_ERR_TIMEOUT. The lock is released meanwhile, and
 * then the group is made again. */
zr_result zr_table_permits_take(zr_table *table, const struct zr_table_pull *pull);
/* Returns a permit of each id of the group that the worker has one of. */
void zr_table_permits_return(zr_table *table, const uint64_t *ids, unsigned worker);

#endif
