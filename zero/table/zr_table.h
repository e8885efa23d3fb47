/* zr_table.h: sparse embedding tables of any size. A table maps 64-bit ids to rows of `width` floats with
 * optimizer state; a row is made when its id is first pulled or pushed.
 *
 * Values. The first values of a row are a function of (seed, id) and of no history. Pulls read rows, pushes
 * apply gradients. A push first sums the gradients of equal ids in the order of the batch, then makes one
 * optimizer step per id, so bits do not depend on the order of different ids.
 *
 * Tiers. A table takes all its memory at its creation, as zr_table_plan() says, and never grows: rows_limit
 * rows have a number, slots_count of them lie in memory. Without memory for one more row, the least-used rows
 * move to the file tier; without a file they are dropped, or the call is refused (enum zr_table_full). A row
 * that returns from the file has the same bits, state included. A table without room for its rows in memory
 * trains with the values of a table that has it.
 *
 * Exactly once. A push has a sequence number. A number that is not above that of the last complete push
 * changes nothing, so a caller may repeat a push after a lost answer. A push ends early if a file fails or if
 * the process dies. The table then accepts only the same push again (same sequence, ids, gradients and rate),
 * which skips the rows that were reached. A server in kept memory therefore logs a batch there before
 * zr_table_push() and repeats the logged batch after zr_table_open(). A repetition without ids gives up the
 * remainder of the push. In a table that drops rows (ZR_TABLE_DROP), a push with more ids than the memory has
 * rows may update a row and then drop it. Its repetition makes the row again, which then has first values and
 * this one gradient, as if it had been dropped before the push.
 *
 * Versions. Each push, drop and application of a dump raises the table's version, and changed rows carry the
 * version. zr_table_dump() writes the rows that changed since a version, and the ids that were dropped.
 *
 * Permits bound staleness: at most `staleness` pulls of a row are without their push. Permits belong to
 * workers and to this process: after zr_table_open() there are none.
 *
 * Threads. Any thread may call; one lock per table serialises the calls. Parallel servers have a table each,
 * see zr_table_server(). A child after fork() must not use a table that has a file, nor one that another
 * thread of the parent used at the time of the fork.
 *
 * Errors. Besides those named at the functions, every call that reads or makes rows returns ZR_ERR_IO after a
 * failure of the file tier, and ZR_ERR_CORRUPT if a record of the file is not the row's. */
#ifndef ZR_TABLE_H
#define ZR_TABLE_H

#include "alloc/zr.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct zr_table zr_table;

enum zr_table_optimizer {
    ZR_TABLE_SGD = 0,     /* value -= rate * gradient */
    ZR_TABLE_ADAGRAD,     /* state += gradient^2; value -= rate * gradient / (sqrt(state) + epsilon) */
    ZR_TABLE_ADAGRAD_ROW, /* the same with one state per row: the mean of gradient^2 over the row is added */
    ZR_TABLE_ADAM,        /* Adam with a step count per row, which corrects the moments: rows that are rarely
                           * pushed are corrected as in their own steps */
    ZR_TABLE_OPTIMIZERS_COUNT
};
#define ZR_TABLE_OPTIMIZER_NAMES "sgd|adagrad|adagrad_row|adam" /* of the kinds, in order */

/* A new row when no memory is left and the table has no file. */
enum zr_table_full {
    ZR_TABLE_REFUSE = 0, /* ZR_ERR_MEMORY */
    ZR_TABLE_DROP        /* the least-used row is dropped; rows_limit is at least ZR_TABLE_SLOTS_MIN */
};

enum {
    ZR_TABLE_NAME_BYTES = 64,       /* with the final zero */
    ZR_TABLE_WIDTH_MAX = 1 << 16,   /* floats */
    ZR_TABLE_BATCH_MAX = 1 << 24,   /* ids */
    ZR_TABLE_SLOTS_MIN = 1024,      /* rows in memory, of a table that has more rows than slots */
    ZR_TABLE_ROWS_MAX = 0x7fff0000, /* rows of a table */
    ZR_TABLE_WORKERS_MAX = 1 << 16
};

/* The file tier. */
struct zr_table_file {
    const char *folder; /* on a disk; NULL: the table has no file */
    const char *name;   /* of the file in the folder, which stays after zr_table_close() and which the caller
                         * removes; NULL: the file has no name and does not outlive the process */
    bool force;         /* accept a folder in memory (tmpfs), for tests */
    size_t align_bytes; /* block size of the device, a power of two; 0: 4096 */
};

struct zr_table_options {
    size_t struct_bytes; /* its sizeof, or 0: see "Options" in alloc/zr.h */
    zr_arena *arena;     /* host memory: rows (tag param), staging of the file (tag offload), records (tag
                          * other); borrowed */
    const char *name;    /* of the tensors of dumps: letters, digits and -_./ ; copied */
    size_t width;        /* floats per row, at least 1 */
    enum zr_table_optimizer optimizer;
    float epsilon;       /* Adagrad and Adam: positive */
    float beta1, beta2;  /* Adam: at least 0, below 1 */
    float initial_state; /* Adagrad: of each state of a new row, at least 0 */
    float init_range;    /* first values are uniform in [-init_range, init_range); 0: zeros */
    uint64_t seed;
    uint64_t rows_limit; /* rows and remembered drops; at most ZR_TABLE_ROWS_MAX */
    /* Bytes of all memory of the table but for transfer records of the file: slots_count follows. 0: enough
     * for all rows. */
    size_t memory_limit_bytes;
    enum zr_table_full full; /* without a file */
    struct zr_table_file file;
    size_t batch_max; /* ids of a call; 0: 131072 */
    /* Permits of a row, at most 65535; 0: no permits are counted / permits of the table; 0: four batches. */
    unsigned staleness;
    size_t permits_max;
    /* Memory of zr_table_plan.memory_bytes for the rows, aligned to 64 bytes, at any address: kept memory of
     * a server that may be replaced. Borrowed until zr_table_close(). NULL: a block of the arena. */
    void *memory;
};

/* What a table takes. */
struct zr_table_plan {
    size_t memory_bytes;  /* tag param, or zr_table_options.memory */
    size_t staging_bytes; /* tag offload */
    size_t record_bytes;  /* tag other; without the transfer records of zero/file_io */
    uint64_t file_bytes;
    uint64_t slots_count; /* rows in memory at a time */
    size_t row_bytes;     /* of a row in memory, with its state */
};
/* ZR_ERR_INVALID: a bad option; the message says which. ZR_ERR_MEMORY: memory_limit_bytes is below the
 * smallest table; the message says how much is needed. Any thread. */
ZR_API zr_result zr_table_plan(const struct zr_table_options *options, struct zr_table_plan *out);

/* Makes an empty table. On success *out owns its memory, and a nameless file, until zr_table_close(). Errors
 * as of zr_table_plan(), of zr_arena_alloc(), and ZR_ERR_IO: the folder cannot be used. */
ZR_API zr_result zr_table_create(zr_table **out, const struct zr_table_options *options);
/* Continues the table that an earlier process left in options->memory, with the same options, at any point of
 * its death (kill -9), and in the named file. The time is that of one pass over the rows' records in memory.
 * ZR_ERR_INVALID: no memory, or other options; the message names one. ZR_ERR_FORMAT: no table is there, or it
 * is damaged. ZR_ERR_IO: the file is missing, or the folder cannot be used. */
ZR_API zr_result zr_table_open(zr_table **out, const struct zr_table_options *options);
/* Frees the table. With options.memory its contents stay. NULL does nothing. No other call may be running. */
ZR_API void zr_table_close(zr_table *table);

struct zr_table_pull {
    const uint64_t *ids; /* [count], in any order, with repetitions */
    size_t count;        /* at most batch_max */
    float *rows;         /* [count * width], written: the row of each id */
    bool peek;           /* make no rows and take no permits: an id without a row gives its first values */
    /* With staleness: takes one permit of each different id, for this worker, below ZR_TABLE_WORKERS_MAX. If
     * one is missing, waits up to wait_ns for all of them. */
    unsigned worker;
    uint64_t wait_ns; /* 0: does not wait */
};
/* ZR_ERR_TIMEOUT: an id has no permit left, or permits_max are taken; no permit has been taken.
 * ZR_ERR_MEMORY: no memory for a new row (ZR_TABLE_REFUSE), or rows_limit rows exist; permits are returned,
 * and rows that were made stay. ZR_ERR_INVALID: too many ids, or a push must be repeated first. `rows` has no
 * defined contents after a failure. */
ZR_API zr_result zr_table_pull(zr_table *table, const struct zr_table_pull *pull);

struct zr_table_push {
    const uint64_t *ids;    /* [count], in any order, with repetitions */
    size_t count;           /* at most batch_max */
    const float *gradients; /* [count * width] */
    float rate;             /* learning rate */
    uint64_t sequence;      /* above that of the last push; 0: the next number */
    unsigned worker; /* with staleness: returns one of its permits of each different id, if it has one */
};
/* Applies a batch. *out_applied (optional) is false if a push of this or a higher sequence number was
 * complete before; then the call changes nothing. ZR_ERR_MEMORY: as for a pull; nothing is applied.
 * ZR_ERR_INVALID: too many ids, or another push must be repeated first; nothing is applied. ZR_ERR_IO,
 * ZR_ERR_CORRUPT: see "Exactly once". */
ZR_API zr_result zr_table_push(zr_table *table, const struct zr_table_push *push, bool *out_applied);

/* Returns all permits of a worker: it has died. Returns the number of permits. NULL: 0. */
ZR_API uint64_t zr_table_release_worker(zr_table *table, unsigned worker);

/* Drops rows whose last change is older than `version`, in memory and in the file. *out_count (optional) is
 * their number. ZR_ERR_INVALID: a push must be repeated first. */
ZR_API zr_result zr_table_drop(zr_table *table, uint64_t version, uint64_t *out_count);

/* The server, below `servers`, that has the row of an id. 0 servers: 0. */
ZR_API unsigned zr_table_server(uint64_t id, unsigned servers);

struct zr_table_status {
    uint64_t version;                                     /* changes of the table so far */
    uint64_t sequence;                                    /* of the last complete push */
    uint64_t interrupted_sequence;                        /* of the push that must be repeated; 0: none */
    uint64_t rows_count, slots_used_count, dropped_count; /* rows / rows in memory / remembered drops */
    uint64_t dumpable_since;                              /* the oldest version whose dump knows all drops */
    uint64_t applied_until;                               /* of the last dump that was applied */
    uint64_t permits_count;
    /* Since this process created or opened the table. */
    uint64_t pulled_count, pushed_count; /* ids, without repetitions within a push */
    uint64_t made_count;                 /* rows */
    uint64_t loaded_count, stored_count; /* rows from and to the file */
    uint64_t lost_count;                 /* rows dropped because the table was full */
    /* Of the file: its size / transferred / the time that calls waited for it. */
    uint64_t file_bytes, file_read_bytes, file_written_bytes, file_wait_ns;
};
ZR_API void zr_table_get_status(zr_table *table, struct zr_table_status *out);

/* ---- Files --------------------------------------------------------------------------------------------- */

/* A dump is a safetensors file with NAME.ids (I64), NAME.rows (F32, [rows, width]), NAME.state (F32,
 * [rows, states]) if the optimizer has state, NAME.steps (I64) with Adam, and NAME.dropped (I64), the ids of
 * dropped rows. An id is stored as the signed number of the same bits. Only changed rows are in it: a row
 * that was never pushed has its first values, which the seed gives. */
struct zr_table_dump {
    const char *path; /* written aside and renamed when it is synced */
    uint64_t since;   /* 0: the whole table */
};
/* *out_until (optional) is the version that the file reaches, the `since` of the next dump. Other calls wait
 * meanwhile. ZR_ERR_INVALID: the table has forgotten drops since that version (dumpable_since); dump the
 * whole table. ZR_ERR_IO: the file cannot be written. */
ZR_API zr_result zr_table_dump(zr_table *table, const struct zr_table_dump *dump, uint64_t *out_until);

struct zr_table_apply {
    const char *path;
    unsigned server, servers; /* only ids of this server, see zr_table_server(); servers 0: all ids */
};
/* Applies a dump: its rows replace those of the table, its dropped ids are dropped. A whole table is applied
 * to any table with the same name, width and optimizer; the whole tables of several servers may follow each
 * other, for any number of new servers. Other dumps require `since` at or below applied_until, and its
 * `until` above; all dumps of one table, applied in order, give its rows. The caller repeats the call if the
 * process dies meanwhile. ZR_ERR_FORMAT: not a dump of a table like this one, or damaged. ZR_ERR_INVALID: a
 * dump between is missing. ZR_ERR_MEMORY, ZR_ERR_IO: as for a pull; some rows may have been replaced. */
ZR_API zr_result zr_table_apply(zr_table *table, const struct zr_table_apply *apply);

/* A stream of bytes between two processes. `move` writes, or reads into, `data`. */
struct zr_table_stream {
    zr_result (*move)(void *state, void *data, size_t bytes);
    void *state;
};
/* Sends the rows that were pushed, with version and sequence number / makes an empty table with the same
 * options a copy with the same rows; drops are not remembered. Other calls wait meanwhile. ZR_ERR_INVALID:
 * the table is not empty, or a push must be repeated first. ZR_ERR_FORMAT: the stream is of another table.
 * Also errors of `move`, and as for a pull; the receiving table can then only be closed. */
ZR_API zr_result zr_table_send(zr_table *table, const struct zr_table_stream *stream);
ZR_API zr_result zr_table_receive(zr_table *table, const struct zr_table_stream *stream);

#ifdef __cplusplus
}
#endif

#endif
