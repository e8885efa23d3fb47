/* nvme_inside.h: what the files of nvme_io.h share. Private to them.
 *
 * nvme_io.c keeps the operations and cuts them into pieces; nvme_file.c makes the file; nvme_ring.c and
 * nvme_threads.c carry pieces out; nvme_measure.c finds the depth. */
#ifndef ZR_NVME_INSIDE_H
#define ZR_NVME_INSIDE_H

#include <liburing.h>
#include <pthread.h>
#include <stdatomic.h>

#include "alloc/base/system/os.h"
#include "zero/engine/nvme/nvme_io.h"

enum { ZR_NVME_THREADS = 8, ZR_NVME_REGISTERED = 64 };
#if defined(__SANITIZE_THREAD__) /* which keeps 0.9 MB of its own on every stack */
enum { ZR_NVME_STACK_BYTES = 2 << 20 };
#else
enum { ZR_NVME_STACK_BYTES = 256 << 10 };
#endif

struct zr_nvme_file {
    int fd;
    char folder[160]; /* for messages */
    size_t align_bytes;
    bool direct, nameless, reserved;
};

struct zr_nvme_operation {
    zr_nvme_event event, after;
    bool write;
    char *memory;
    uint64_t offset_bytes;
    size_t bytes, issued_bytes, done_bytes;
    bool done;
};

/* A part of an operation. Whoever takes it moves its bytes, advances it by what was moved, and ends it. */
struct zr_nvme_piece {
    struct zr_nvme_operation *operation;
    char *memory;
    uint64_t offset_bytes;
    size_t bytes;       /* still to move */
    size_t first_bytes; /* what the first transfer counts for at most: less than `bytes` in a fault test */
    int error;          /* of a fault test: instead of the first transfer */
    bool stalls;        /* the same: it waits before that */
    unsigned fruitless_count;
};

struct zr_nvme_io {
    struct zr_nvme_options options; /* without buffers: those are the caller's */
    struct zr_nvme_file file;
    size_t piece_bytes;
    pthread_mutex_t lock;
    pthread_cond_t work;                                     /* lock; pieces to take, or the end */
    struct zr_nvme_operation operations[ZR_NVME_OPERATIONS]; /* lock; event n is in n modulo the count */
    zr_nvme_event last, oldest;                              /* lock; those before oldest are done */
    unsigned depth, under_way;                               /* lock; of pieces */
    bool write_turn;                                         /* lock */
    bool stopping;                                           /* lock */
    uint64_t moved_bytes[2];                                 /* lock; read, written */
    pthread_t opener;                                        /* the step's thread */
    uint64_t waited_ns, waited_behind_ns;                    /* lock; of the opener, of others */
    uint64_t continued_count;                                /* lock */
    uint64_t under_way_bytes;                                /* lock */
    _Atomic uint32_t finished;                               /* changes with each operation that ends */
    /* The first failure. lock. */
    int error;
    bool failed_write;
    uint64_t failed_offset_bytes;
    size_t failed_bytes;
    double bytes_per_second;
    /* Who carries pieces out: threads[0] drives the ring, or all of them transfer. */
    struct zr_thread threads[ZR_NVME_THREADS];
    unsigned threads_count;
    bool ring_used;
    struct io_uring ring;
    struct zr_nvme_piece pieces[ZR_NVME_DEPTH_MOST]; /* the ring's thread */
    bool piece_used[ZR_NVME_DEPTH_MOST];
    bool ring_stalls; /* one of the new ones does */
    struct iovec registered[ZR_NVME_REGISTERED];
    unsigned registered_count;
};

/* nvme_file.c */
zr_result zr_nvme_file_create(struct zr_nvme_file *out, const struct zr_nvme_folder *folder);
/* Asks for space, and reserves it. */
zr_result zr_nvme_file_reserve(struct zr_nvme_file *file, uint64_t bytes);
/* One sentence, "cannot DOING the offload file in 'FOLDER': cause (way out)". */
zr_result zr_nvme_file_fail(const struct zr_nvme_file *file, const char *doing, int error);
zr_result zr_nvme_file_fail_with(const struct zr_nvme_file *file, const char *doing, int error,
                                 const char *way_out);

/* nvme_io.c */
void zr_nvme_log(const zr_nvme_io *io, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Under the lock: the next piece, false if there is none to start now. It counts as under way until it ends.
 */
bool zr_nvme_take_piece(zr_nvme_io *io, struct zr_nvme_piece *out);
/* A transfer of the piece moved `moved_bytes`, or failed with -moved_bytes as the error. True: the piece has
 * ended. False: go on with what is left of it. Under the lock. */
bool zr_nvme_advance_piece(zr_nvme_io *io, struct zr_nvme_piece *piece, long moved_bytes);

/* What a disk does that stalls: nothing, for twice as long as it takes until that is logged. Not under the
 * lock. */
void zr_nvme_stall(const zr_nvme_io *io);

/* nvme_ring.c: an errno if io_uring cannot be had here; else the ring stands, without its thread. */
int zr_nvme_ring_start(zr_nvme_io *io);
void zr_nvme_ring_end(zr_nvme_io *io);
void *zr_nvme_ring_run(void *io);
/* nvme_threads.c */
void *zr_nvme_thread_run(void *io);
/* nvme_measure.c: sets depth and bytes_per_second; the first buffer loses its contents. */
zr_result zr_nvme_measure(zr_nvme_io *io);
/* Of rates that depths have reached, fewest pieces first: the index of the one to take. */
unsigned zr_nvme_choose_depth(const double *rates, unsigned count);

#endif
