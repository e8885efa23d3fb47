/* state_store.h: where the state of the optimizer lies: masters, momentum and variance of what a rank
 * updates.
 *
 * An engine asks for a unit, works on what it gets, and gives it back; where the numbers lie between the two
 * is the store's affair. A store of memory (the device's arena, or an arena of the host tier) has them in
 * place, and taking is free. A store that has no room for all of them brings a unit in when it is taken and
 * puts it away when it is given back; it may read ahead within a pass, which goes over the units in order.
 *
 * One thread uses a store. A second unit is taken while the first is not given back only of a store whose
 * `random` says so. */
#ifndef ZR_STATE_STORE_H
#define ZR_STATE_STORE_H

#include "zero/comm/clock.h"
#include "zero/engine/layout.h"
#include "zero/engine/nvme/nvme_pipeline.h"

/* Of one unit, from the first element that the rank updates; NULL: the store keeps none of that kind. */
struct zr_state_view {
    float *master, *momentum, *variance;
};

enum { ZR_STATE_FILE_ALIGN_BYTES = 4096 };

struct zr_state_store_options {
    zr_arena *arena; /* the memory of the store: tags master and optimizer; borrowed */
    const struct zr_layout *layout;
    bool whole; /* the rank updates whole units, else its shards */
    /* Units that stay: those of the range are in another store, or, with `staying`, in this one alone. Of a
     * unit that is elsewhere a view is of nothing. */
    struct zr_unit_range stay;
    bool staying;
    bool master;          /* masters are kept beside the parameters */
    bool variance;        /* the optimizer has one */
    zr_arena *host_arena; /* records */
    /* Of the store in a file, whose `arena` has its buffers alone, tag offload; borrowed for its life. */
    const struct zr_offload_file *file;
    bool simulated; /* no file: what it would take, and move */
    /* Of the store in a file: units that lie in it twice, from the last one on, as far as these bytes allow,
     * but for those that ranks of a pipeline share. 0: none. See zr_state_file_begin_ahead(). */
    uint64_t twice_bytes;
    /* Room in the file behind the store's own, for another use, and memory that it is moved from; 0: none. */
    uint64_t more_bytes;
    void *more_memory;
    size_t more_memory_bytes;
};

struct zr_state_store;
struct zr_nvme_state;

/* What a kind of store does. All but open, take and close may be NULL: nothing to do. */
struct zr_state_store_table {
    const char *name; /* "memory" */
    bool random;      /* any number of units may be taken at a time, in any order, and stay where they are */
    zr_result (*open)(struct zr_state_store *store);
    zr_result (*begin)(struct zr_state_store *store);
    zr_result (*take)(struct zr_state_store *store, size_t unit, struct zr_state_view *out);
    zr_result (*give)(struct zr_state_store *store, size_t unit, bool changed);
    zr_result (*end)(struct zr_state_store *store);
    void (*close)(struct zr_state_store *store);
};

struct zr_state_store {
    const struct zr_state_store_table *table; /* NULL: not open */
    struct zr_state_store_options options;
    size_t elements; /* of each kind, all units together */
    /* Of a store of memory, [elements]. */
    float *master, *momentum, *variance;
    struct zr_nvme_state *file; /* of the store in a file */
};

/* `nvme` keeps all of it in an offload file, and some buffers of the largest unit in memory: behind the work
 * on unit i of a pass, unit i-1 is written and as many after unit i are read as there are buffers but one.
 * Its first failure is every later call's, too; that of a pass's last writes is found by the next pass, take
 * or save. */
extern const struct zr_state_store_table zr_state_store_memory, zr_state_store_nvme;

/* Takes what is kept, its contents undefined. On failure nothing is left. */
zr_result zr_state_store_open(struct zr_state_store *out, const struct zr_state_store_table *table,
                              const struct zr_state_store_options *options);
void zr_state_store_close(struct zr_state_store *store); /* zeros are fine */

/* A unit's elements in the store, 0 where it is elsewhere / those before it, in the store's order. */
size_t zr_state_store_elements(const struct zr_state_store *store, size_t unit);
size_t zr_state_store_at(const struct zr_state_store *store, size_t unit);

/* A pass: begin, then take and give of each unit in order, then end, also after a failure. Outside of a pass
 * take and give are of single units. `changed` false: what was taken is as it was. */
zr_result zr_state_store_begin(struct zr_state_store *store);
zr_result zr_state_store_take(struct zr_state_store *store, size_t unit, struct zr_state_view *out);
zr_result zr_state_store_give(struct zr_state_store *store, size_t unit, bool changed);
zr_result zr_state_store_end(struct zr_state_store *store);

/* Of the store in a file; zeros of others. */
struct zr_state_file_report {
    uint64_t file_bytes, buffers_bytes;
    uint64_t moved_bytes;      /* read and written since the start */
    uint64_t waited_ns;        /* for it, by the thread of the steps */
    uint64_t waited_behind_ns; /* and by others */
    double bytes_per_second;   /* read and written at once, as measured at the start; 0: it was not */
};
/* Of the store in a file, for whoever uses the room behind it: the file, NULL of a simulated store; where the
 * room begins; counts a transfer, and says when it ends by the clock; and waits by it. */
zr_nvme_io *zr_state_file_io(const struct zr_state_store *store);
uint64_t zr_state_file_base(const struct zr_state_store *store);
double zr_state_file_count(struct zr_state_store *store, uint64_t bytes);
void zr_state_file_wait_by_clock(struct zr_state_store *store, double end_seconds);

/* Units of a store in a file that lie there twice are updated outside of a pass before it is known whether
 * the update is right. The beginning starts to read `count` of them from their current places, in that order,
 * as many as have room in the buffers. Another thread takes each and gives it, which starts to write it to
 * its other place and to read the next. Keeping makes that the current one, and the pass that comes next
 * passes over the unit; without it nothing has changed. A pass, or the take of a single unit, ends it if
 * nothing was taken before, and never comes later. */
static inline unsigned zr_state_file_buffers(const struct zr_offload_file *file)
{
    return file->buffers ? file->buffers : ZR_NVME_BUFFERS_LEAST;
}
bool zr_state_file_is_twice(const struct zr_state_store *store, size_t unit);
zr_result zr_state_file_begin_ahead(struct zr_state_store *store, const unsigned *order, size_t count);
bool zr_state_file_runs_ahead(const struct zr_state_store *store);
zr_result zr_state_file_take_ahead(struct zr_state_store *store, size_t unit, struct zr_state_view *out);
zr_result zr_state_file_give_ahead(struct zr_state_store *store);
/* By the clock: until it has been updated, by one thread in the order in which units are taken. */
void zr_state_file_wait_ahead(struct zr_state_store *store, size_t unit);
/* When all that was taken has been given: what was written of a unit is its state; and, in any case, the end.
 */
void zr_state_file_keep_ahead(struct zr_state_store *store, size_t unit);
void zr_state_file_end_ahead(struct zr_state_store *store);

/* Lets a simulated one go by the clock of a rehearsal, at its nvme_bytes_per_second. Nothing for others. */
void zr_state_store_set_clock(struct zr_state_store *store, struct zr_comm_clock *clock);
void zr_state_store_get_report(const struct zr_state_store *store, struct zr_state_file_report *out);

#endif
