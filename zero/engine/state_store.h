/* state_store.h: stores of optimizer state: masters, momentum and variance of the elements that a rank
 * updates.
 *
 * The engine takes a unit, works on it and gives it back. A memory store (in the device arena or a host
 * arena) keeps all units in place. A file store reads a unit when it is taken and writes it when it is given
 * back; within a pass over the units in order it reads ahead.
 *
 * One thread uses a store. Several units may be taken at a time only if the store is `random`. */
#ifndef ZR_STATE_STORE_H
#define ZR_STATE_STORE_H

#include "zero/comm/clock.h"
#include "zero/engine/layout.h"
#include "zero/engine/optimizer.h"
#include "zero/file_io/nvme_pipeline.h"

/* State of one unit, from the first element that the rank updates; NULL: not in this store. */
struct zr_state_view {
    float *master;
    void *slots[ZR_SLOTS_MAX]; /* of the optimizer */
};

enum { ZR_STATE_FILE_ALIGN_BYTES = 4096 };

struct zr_state_store_options {
    zr_arena *arena; /* memory of the store, tags master and optimizer; borrowed */
    const struct zr_layout *layout;
    bool whole; /* the rank updates whole units; false: its shards */
    /* Range of device-resident units. They are in another store; with `staying`, only they are in this one.
     * The view of a unit that is not in the store is all NULL. */
    struct zr_unit_range stay;
    bool staying;
    bool master;          /* masters are separate from the parameters */
    zr_arena *host_arena; /* for records */
    /* NULL: a memory store. Must outlive the store. Its buffers are in `arena`, tag offload. */
    const struct zr_offload_file *file;
    bool simulated;                    /* no file; only sizes and transfers are counted */
    const struct zr_servers *servers;  /* if on, a store of these; or NULL */
    const struct zr_kept_memory *kept; /* memory store only: memory of the state; NULL: `arena` */
    /* File store only: limit in bytes for units with a second place in the file, from the last unit on,
     * except units shared by pipeline ranks. 0: none. See zr_state_file_begin_ahead(). */
    uint64_t twice_bytes;
    /* File store only: additional space in the file, and memory that is transferred to it; 0: none. */
    uint64_t more_bytes;
    void *more_memory;
    size_t more_memory_bytes;
};

struct zr_state_store;
struct zr_nvme_state;

/* Operations of a kind of store. begin, give and end may be NULL. */
struct zr_state_store_table {
    const char *name; /* "memory" */
    bool random;      /* units may be taken in any order and number, and have fixed addresses */
    zr_result (*open)(struct zr_state_store *store);
    zr_result (*begin)(struct zr_state_store *store);
    zr_result (*take)(struct zr_state_store *store, size_t unit, struct zr_state_view *out);
    zr_result (*give)(struct zr_state_store *store, size_t unit, bool changed);
    zr_result (*end)(struct zr_state_store *store);
    void (*close)(struct zr_state_store *store);
    /* After a wait of the step's thread for a pass in another thread: counts it; NULL: not counted / waits by
     * the simulated clock. */
    void (*waited)(struct zr_state_store *store, uint64_t ns);
    double (*wait_by_clock)(struct zr_comm_clock *clock, double end_seconds);
};

struct zr_state_store {
    const struct zr_state_store_table *table; /* NULL: not open */
    struct zr_state_store_options options;
    size_t elements; /* of each kind, over all units */
    /* Memory store only: state of [elements]. */
    float *master;
    char *slots[ZR_SLOTS_MAX];        /* with a unit's blocks at slots_at[unit] */
    size_t (*slots_at)[ZR_SLOTS_MAX]; /* [units_count + 1], in bytes */
    struct zr_nvme_state *file;       /* file store only */
    /* Store of parameter servers only: the state of the taken unit, and [the most of a unit] for a call. */
    float *taken;
    size_t held; /* whose state `taken` is; SIZE_MAX: none's */
    struct zr_server_tensor *tensors;
};

/* `nvme` keeps the state in an offload file, with buffers of the size of the largest unit in memory. While
 * the caller works on unit i of a pass, unit i-1 is written and the following units are read into the other
 * buffers. After a failure every later call fails with the same error; a failed last write of a pass is
 * reported by the next pass, take or save. */
extern const struct zr_state_store_table zr_state_store_memory, zr_state_store_nvme,
    zr_state_store_served; /* state_served.c; see served.h */

/* Describes the tensors of a unit whose values are at `values`, with padding between them, for a call of a
 * store of parameter servers; valid until the next call. */
struct zr_server_tensors zr_state_served_tensors(const struct zr_state_store *store, size_t unit,
                                                 struct zr_numbers values);

/* Allocates the state with undefined contents. On failure everything is released. */
zr_result zr_state_store_open(struct zr_state_store *out, const struct zr_state_store_options *options);
void zr_state_store_close(struct zr_state_store *store); /* allowed for a struct of zeros */

/* Number of a unit's elements in the store; 0: not in this store. */
size_t zr_state_store_elements(const struct zr_state_store *store, size_t unit);

/* A pass: begin, take and give of each unit in order, then end, also after a failure. Outside of a pass
 * single units may be taken and given. `changed` false: the unit was not modified. */
zr_result zr_state_store_begin(struct zr_state_store *store);
zr_result zr_state_store_take(struct zr_state_store *store, size_t unit, struct zr_state_view *out);
zr_result zr_state_store_give(struct zr_state_store *store, size_t unit, bool changed);
zr_result zr_state_store_end(struct zr_state_store *store);

/* Report of a file store; zeros for other stores. */
struct zr_state_file_report {
    uint64_t file_bytes, buffers_bytes;
    uint64_t moved_bytes;      /* read and written since the start */
    uint64_t waited_ns;        /* waits for transfers by the thread of the steps */
    uint64_t waited_behind_ns; /* waits by other threads */
    double bytes_per_second;   /* concurrent reads and writes, measured at the start; 0: not measured */
};
/* For the user of the file's additional space: returns the file (NULL: simulated) / the offset of the
 * additional space / counts a transfer and returns its end by the simulated clock / waits by the simulated
 * clock. */
zr_nvme_io *zr_state_file_io(const struct zr_state_store *store);
uint64_t zr_state_file_base(const struct zr_state_store *store);
double zr_state_file_count(struct zr_state_store *store, uint64_t bytes);
void zr_state_file_wait_by_clock(struct zr_state_store *store, double end_seconds);

/* Speculative updates of units with two places in the file, outside of a pass. begin_ahead() starts to read
 * the `count` units of `order` from their current places, as far as buffers are free. Another thread takes
 * each unit and gives it, which starts to write the unit to its other place and to read the next one.
 * keep_ahead() makes the other place current, and the next pass skips the unit; otherwise nothing has
 * changed. A pass or a take of a single unit ends a speculation in which no unit was taken; after a unit was
 * taken, neither is allowed. */
static inline unsigned zr_state_file_buffers(const struct zr_offload_file *file)
{
    return file->buffers ? file->buffers : ZR_NVME_BUFFERS_MIN;
}
static inline size_t zr_state_file_align(const struct zr_offload_file *file)
{
    return file->align_bytes ? file->align_bytes : ZR_STATE_FILE_ALIGN_BYTES;
}
static inline size_t zr_state_file_round_up(size_t bytes, size_t align_bytes)
{
    return (bytes + align_bytes - 1) / align_bytes * align_bytes;
}
/* Slots of memory for the transfers of an offload file; 0 bytes: NULL. `what` names them if a tag limit
 * refuses. */
struct zr_file_slots {
    size_t bytes, align_bytes; /* of each slot */
    unsigned count;
    const char *what;
};
zr_result zr_state_file_take_slots(zr_arena *arena, const struct zr_file_slots *slots, void **out);
/* Lists the units with two places, from the last one on, in `order`; returns their number. */
unsigned zr_state_file_order(const struct zr_state_store *store, unsigned *order);
zr_result zr_state_file_begin_ahead(struct zr_state_store *store, const unsigned *order, size_t count);
bool zr_state_file_runs_ahead(const struct zr_state_store *store);
zr_result zr_state_file_take_ahead(struct zr_state_store *store, size_t unit, struct zr_state_view *out);
zr_result zr_state_file_give_ahead(struct zr_state_store *store);
/* Simulated clock: waits until the unit has been updated; one thread updates units in the order in which they
 * are taken. */
void zr_state_file_wait_ahead(struct zr_state_store *store, size_t unit);
/* After all taken units were given: confirms a unit's update / ends the speculation. */
void zr_state_file_keep_ahead(struct zr_state_store *store, size_t unit);
void zr_state_file_end_ahead(struct zr_state_store *store);

/* A simulated file store takes time by `clock`, at its nvme_bytes_per_second; no effect on other stores. */
void zr_state_store_set_clock(struct zr_state_store *store, struct zr_comm_clock *clock);
void zr_state_store_get_report(const struct zr_state_store *store, struct zr_state_file_report *out);

#endif
