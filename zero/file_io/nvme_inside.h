/* nvme_inside.h: shared internals of the files that implement nvme_io.h: nvme_io.c (operations and their
 * pieces), nvme_file.c (creating the file), nvme_ring.c and nvme_threads.c (transfers), nvme_measure.c (queue
 * depth). */
#ifndef ZR_NVME_INSIDE_H
#define ZR_NVME_INSIDE_H

#include <liburing.h>
#include <pthread.h>
#include <stdatomic.h>

#include "alloc/base/system/os.h"
#include "zero/file_io/nvme_io.h"

enum { ZR_NVME_THREADS = 8, ZR_NVME_REGISTERED = 64 };
#if defined(__SANITIZE_THREAD__) /* needs 0.9 MB on every stack */
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

/* A part of an operation. The thread that takes the piece transfers it, calling zr_nvme_advance_piece() until
 * it has ended. */
struct zr_nvme_piece {
    struct zr_nvme_operation *operation;
    char *memory;
    uint64_t offset_bytes;
    size_t bytes;       /* remaining */
    size_t first_bytes; /* maximum size of the first transfer; below `bytes` only in fault tests */
    int error;          /* fault tests: error instead of the first transfer */
    bool stalls;        /* fault tests: wait before the first transfer */
    unsigned fruitless_count;
};

struct zr_nvme_io {
    struct zr_nvme_options options; /* without buffers, which the caller owns */
    struct zr_nvme_file file;
    size_t piece_bytes;
    pthread_mutex_t lock;
    pthread_cond_t work;                                     /* lock; signals pieces to take, or stopping */
    struct zr_nvme_operation operations[ZR_NVME_OPERATIONS]; /* lock; event n is in n modulo the count */
    zr_nvme_event last, oldest;                              /* lock; those before oldest are done */
    unsigned depth, under_way;                               /* lock; number of pieces */
    bool write_turn;                                         /* lock */
    bool stopping;                                           /* lock */
    uint64_t moved_bytes[2];                                 /* lock; read, written */
    pthread_t opener;                                        /* the step's thread */
    uint64_t waited_ns, waited_behind_ns;                    /* lock; by the opener, by other threads */
    uint64_t continued_count;                                /* lock */
    uint64_t under_way_bytes;                                /* lock */
    _Atomic uint32_t finished;                               /* changes with each operation that ends */
    /* The first failure. lock. */
    int error;
    bool failed_write;
    uint64_t failed_offset_bytes;
    size_t failed_bytes;
    double bytes_per_second;
    /* threads[0] drives the ring, or all threads transfer pieces. */
    struct zr_thread threads[ZR_NVME_THREADS];
    unsigned threads_count;
    bool ring_used;
    struct io_uring ring;
    struct zr_nvme_piece pieces[ZR_NVME_DEPTH_MAX]; /* used by the ring's thread */
    bool piece_used[ZR_NVME_DEPTH_MAX];
    bool ring_stalls; /* fault tests: one of the new pieces stalls */
    struct iovec registered[ZR_NVME_REGISTERED];
    unsigned registered_count;
};

/* nvme_file.c */
/* name NULL: a file without a name. */
struct zr_nvme_name {
    const char *name;
    bool exists; /* else the file is created if it is missing */
};
zr_result zr_nvme_file_create(struct zr_nvme_file *out, const struct zr_nvme_folder *folder,
                              struct zr_nvme_name name);
/* Checks free space and reserves it. */
zr_result zr_nvme_file_reserve(struct zr_nvme_file *file, uint64_t bytes);
/* Error message "cannot DOING the offload file in 'FOLDER': cause (fix)". */
zr_result zr_nvme_file_fail(const struct zr_nvme_file *file, const char *doing, int error);
zr_result zr_nvme_file_fail_with(const struct zr_nvme_file *file, const char *doing, int error,
                                 const char *fix);

/* nvme_io.c */
void zr_nvme_log(const zr_nvme_io *io, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The caller holds the lock. Takes the next piece; false: none can start now. */
bool zr_nvme_take_piece(zr_nvme_io *io, struct zr_nvme_piece *out);
/* The caller holds the lock. A transfer of the piece moved `moved_bytes`, or failed with errno -moved_bytes.
 * True: the piece has ended; false: the rest must be transferred. */
bool zr_nvme_advance_piece(zr_nvme_io *io, struct zr_nvme_piece *piece, long moved_bytes);

/* Fault tests: simulates a stalled disk by sleeping twice the time after which a stall is logged. The caller
 * does not hold the lock. */
void zr_nvme_stall(const zr_nvme_io *io);

/* nvme_ring.c: sets up the ring, without its thread; returns an errno if io_uring is not available. */
int zr_nvme_ring_start(zr_nvme_io *io);
void zr_nvme_ring_end(zr_nvme_io *io);
void *zr_nvme_ring_run(void *io);
/* nvme_threads.c */
void *zr_nvme_thread_run(void *io);
/* nvme_measure.c: sets depth and bytes_per_second; overwrites the first buffer. */
zr_result zr_nvme_measure(zr_nvme_io *io);
/* `rates`: by depth, ascending. Returns the index of the depth to use. */
unsigned zr_nvme_choose_depth(const double *rates, unsigned count);

#endif
