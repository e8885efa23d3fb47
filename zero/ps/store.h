/* store.h: the memory of a server: its parts of the tables, pushes that wait, and the record that makes a
 * request and its sequence number one change. Private to zero/ps/.
 *
 * Everything in struct zr_ps_kept and the arrays may be kept memory. A server that is killed leaves one of:
 *
 *   no intent      The last request was answered, or nothing of it was applied.
 *   an intent      The request of the worker's buffer is being applied, and item `item` is next. The
 * successor applies it again from there: every store is an absolute number, so a second one changes nothing.
 *   an operation   Numbers of a table are being changed. Before a window of elements is changed, its old
 * state goes to the log. The successor restores the window of the log and continues from there.
 *
 * The order of stores is what a process killed between two of them leaves, since the memory itself survives.
 */
#ifndef ZR_PS_STORE_H
#define ZR_PS_STORE_H

#include "zero/ps/timing.h"
#include "zero/ps/wire.h"
#include "zero/table/zr_table.h"

enum {
    ZR_PS_WINDOW = 64 << 10, /* elements: the log stays in the processor's caches */
    ZR_PS_OBSERVERS = 2,     /* connections of observers, and one of a primary */
    ZR_PS_EXTRA = ZR_PS_OBSERVERS + 1,
    ZR_PS_STATES = 2 /* slots of AdamW */
};

enum zr_ps_operation_kind {
    ZR_PS_OP_UPDATE = 1, /* with a push in its worker's buffer */
    ZR_PS_OP_ADD,        /* likewise; geo */
    ZR_PS_OP_GROUP,      /* with the sum of a group */
    ZR_PS_OP_SUM,        /* adds a group to the table's sum */
    ZR_PS_OP_SUMMED,     /* with the table's sum */
    ZR_PS_OP_ROWS,       /* rows of a push in its worker's buffer */
    ZR_PS_OP_ROWS_GROUP  /* rows of a group */
};

/* A change of one table. `version`, `applied`, `summed` and `item` are those after it. */
struct zr_ps_operation {
    _Atomic uint64_t active; /* 1: what follows holds */
    uint64_t kind, table, worker, offset,
        count; /* offset: of the data in the worker's buffer; count: of rows */
    uint64_t group, version, applied, summed, item;
    float rate, scale;
    uint64_t adds;           /* OP_SUM: not the first of the step */
    _Atomic uint64_t done;   /* elements */
    _Atomic uint64_t logged; /* 1 + the element at which the log's window begins; 0: none */
};

struct zr_ps_kept {
    _Atomic uint64_t layout; /* hash of what the memory contains; 0: nothing of use */
    _Atomic uint64_t intent; /* 1 + the buffer whose request is being applied; 0: none */
    _Atomic uint64_t item;   /* of it, that is next */
    struct zr_ps_operation operation;
};

/* Of a table. */
struct zr_ps_numbers {
    _Atomic uint64_t version; /* updates */
    _Atomic uint64_t summed;  /* groups that the sum has */
    _Atomic uint64_t written; /* 1: filled */
};

/* A push that waits, of a table, a worker and one of the places. */
struct zr_ps_waiter {
    _Atomic uint64_t group; /* 1 + its group; 0: none */
    float rate, scale;
    uint64_t offset, count; /* rows: of their data in the worker's area */
};

struct zr_ps_slice {
    struct zr_ps_part part;
    size_t stride; /* elements from one worker's push to the next one's */
    unsigned places;
    float *master, *states[ZR_PS_STATES];
    char *pushes;                 /* [workers][places] of stride elements */
    float *sum;                   /* with several pushes in a step */
    float *pulled;                /* [workers] of stride elements; ZR_PS_STALE_COMPENSATE */
    struct zr_ps_waiter *waiters; /* [workers][places] */
    zr_table *rows;               /* of a sparse table */
};

struct zr_ps_store {
    struct zr_ps_setup *setup;
    unsigned server;
    zr_arena *arena;
    const struct zr_kernels *kernels;
    struct zr_kernel_context *context;
    const struct zr_kept_memory *memory; /* NULL: the arena */
    /* Kept. */
    struct zr_ps_kept *kept;
    struct zr_ps_numbers *numbers; /* [tables] */
    char *messages;                /* [workers + ZR_PS_EXTRA] of a frame and message_bytes */
    char *row_areas;               /* [workers][places] of message_bytes, of rows that wait */
    float *log;
    struct zr_ps_timetable timetable;
    /* Of the arena. */
    struct zr_ps_slice *slices; /* [tables] */
    uint32_t *pushes;           /* of the timetable */
    float *scratch;             /* of a window */
    char *gathered;             /* of rows: all waiting ones of a table */
    void *blocks[20];
    uint64_t updates, staleness[ZR_PS_STALE_BINS];
};

/* Plans / allocates. With kept memory that has the layout of these options the contents stay, and
 * zr_ps_store_recover() must follow. */
zr_result zr_ps_store_plan(struct zr_ps_setup *setup, unsigned server, struct zr_ps_bytes *out);
zr_result zr_ps_store_init(struct zr_ps_store *store);
void zr_ps_store_fini(struct zr_ps_store *store);
/* Passes the blocks and rows that make another server of the same options a copy of this one to a stream /
 * receives them. Not kept memory; between two requests. */
zr_result zr_ps_store_send(struct zr_ps_store *store, const struct zr_table_stream *stream);
zr_result zr_ps_store_receive(struct zr_ps_store *store, const struct zr_table_stream *stream);

static inline struct zr_ps_frame *zr_ps_buffer(const struct zr_ps_store *store, unsigned number)
{
    return (struct zr_ps_frame *)(store->messages +
                                  number * (sizeof(struct zr_ps_frame) + store->setup->message_bytes));
}
static inline struct zr_ps_waiter *zr_ps_waiter_of(const struct zr_ps_store *store, unsigned table,
                                                   unsigned worker, uint64_t group)
{
    const struct zr_ps_slice *slice = &store->slices[table];
    return &slice->waiters[(size_t)worker * slice->places + group % slice->places];
}

/* rows.c: opens the sparse tables of a store / closes them. */
zr_result zr_ps_rows_open(struct zr_ps_store *store);
void zr_ps_rows_close(struct zr_ps_store *store);

/* operation.c: begins and ends a change / ends one that a killed process had begun. */
zr_result zr_ps_operate(struct zr_ps_store *store, const struct zr_ps_operation *operation);
zr_result zr_ps_operation_resume(struct zr_ps_store *store);
/* Dies at the fault site `kept`. */
void zr_ps_store_point(void);

/* apply.c: applies the valid request in a buffer that changes something and may be applied now, with its
 * sequence number / ends what a killed process has begun / reads: PULL and READ to `out`. */
zr_result zr_ps_apply(struct zr_ps_store *store, unsigned buffer);
zr_result zr_ps_store_recover(struct zr_ps_store *store);
zr_result zr_ps_answer(struct zr_ps_store *store, unsigned buffer, char *out);
/* Whether a valid request has to wait. */
bool zr_ps_must_wait(struct zr_ps_store *store, unsigned buffer);
/* Whether the rows of a valid request fit beside those that its worker has pushed in the step. */
bool zr_ps_rows_fit(struct zr_ps_store *store, unsigned buffer);

#endif
