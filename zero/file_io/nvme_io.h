/* nvme_io.h: a file for state that does not fit into memory, with asynchronous reads and writes. Private to
 * zero/.
 *
 * The file has no name unless the caller gives one, so it does not outlive the process. It bypasses the page
 * cache (O_DIRECT), and its space is reserved when it is opened. An operation transfers one extent between
 * file and memory in pieces, of which `depth` are in flight at a time. A thread submits the pieces to
 * io_uring; without io_uring, several threads use pread and pwrite. Reads and writes alternate, so neither
 * kind starves.
 *
 * An operation starts after its `after` event has passed, and returns the event of its end. Operations are
 * not ordered otherwise.
 *
 * Records and stacks are blocks of the host arena, tag other. A file must not be used by a child after fork.
 * Any thread may start operations, poll and wait; one thread opens and closes. */
#ifndef ZR_NVME_IO_H
#define ZR_NVME_IO_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc/zr.h"

typedef struct zr_nvme_io zr_nvme_io;
typedef uint64_t zr_nvme_event; /* 0: always passed */

enum {
    ZR_NVME_DEPTH_MAX = 64,
    ZR_NVME_OPERATIONS = 64, /* maximum of unfinished operations; one more waits for the oldest */
    ZR_NVME_BUFFERS = 16
};

struct zr_nvme_folder {
    const char *path;
    bool force; /* accept a folder in memory (tmpfs), for tests */
};
struct zr_nvme_probe {
    size_t align_bytes;  /* alignment of memory, offsets and lengths; a power of two */
    uint64_t free_bytes; /* available to an unprivileged user */
    bool direct;         /* false: no O_DIRECT; transfers use the page cache */
    bool nameless;       /* false: no O_TMPFILE; the file is created and unlinked */
};
/* Properties of a folder. ZR_ERR_INVALID: no path. ZR_ERR_IO: the folder does not exist, is not a folder,
 * cannot be written or is in memory; the message names folder and fix. Leaves no file behind. */
zr_result zr_nvme_probe_folder(const struct zr_nvme_folder *folder, struct zr_nvme_probe *out);

/* Memory used by most operations; registered with io_uring to save page lookups. Owned by the caller,
 * aligned, valid until zr_nvme_close(). */
struct zr_nvme_buffer {
    void *memory;
    size_t bytes;
};

struct zr_nvme_options {
    struct zr_nvme_folder folder;
    /* Of a file in the folder that outlives the process, with the contents that an earlier one left; NULL: a
     * file without a name. */
    const char *file_name;
    bool file_exists; /* the named file must be there; ZR_ERR_IO if it is missing */
    uint64_t file_bytes;
    zr_arena *host_arena;
    const struct zr_nvme_buffer
        *buffers; /* at most ZR_NVME_BUFFERS; 0 buffers: none is registered, and depth is not measured */
    unsigned buffers_count;
    /* 0: measured for about half a second with the first buffer, which is overwritten. On a slow disk the
     * measurement transfers 32 MiB, then takes a second or ends after the first depth. */
    unsigned depth;
    size_t piece_bytes; /* 0: 512 KiB */
    /* Not NULL: after a failed write earlier data can still be read, and this is the fix that the error
     * message of later writes suggests. */
    const char *write_way_out;
    bool threads;      /* use pread and pwrite even if io_uring is available */
    uint64_t stall_ns; /* log a wait without progress after this time; 0: five seconds */
    /* Receives warnings about missing system features and stalled disks, on the thread that opens or waits.
     * May be NULL. */
    void (*log)(void *state, const char *words);
    void *log_state;
};
/* On success *out owns the file until zr_nvme_close(). ZR_ERR_IO: as zr_nvme_probe_folder(), or too little
 * space. ZR_ERR_INVALID: no arena, no bytes, or unaligned buffers or pieces. */
zr_result zr_nvme_open(zr_nvme_io **out, const struct zr_nvme_options *options);
/* Waits for all operations and closes the file in any case; returns the first failure. NULL does nothing. */
zr_result zr_nvme_close(zr_nvme_io *io);

struct zr_nvme_extent {
    uint64_t offset_bytes;
    void *memory;
    size_t bytes;        /* 0: ends when `after` has passed */
    zr_nvme_event after; /* the operation starts when this event has passed */
};
/* Starts an operation; waits for the oldest if ZR_NVME_OPERATIONS are unfinished. ZR_ERR_INVALID: unaligned,
 * outside of the file, an unknown event, or a data race: the operation overlaps an unfinished one in file or
 * memory, one of them writes the overlap, and `after` does not order them. ZR_ERR_IO: an earlier operation
 * failed; the file's contents are invalid, and every call returns the first failure. */
zr_result zr_nvme_read(zr_nvme_io *io, const struct zr_nvme_extent *extent, zr_nvme_event *out);
zr_result zr_nvme_write(zr_nvme_io *io, const struct zr_nvme_extent *extent, zr_nvme_event *out);

/* Whether an event has passed; never waits. ZR_ERR_INVALID: an unknown event. ZR_ERR_IO: see above. */
zr_result zr_nvme_poll(zr_nvme_io *io, zr_nvme_event event, bool *out_passed);
/* Waits until an event has passed, without a time limit: a stalled disk is logged after stall_ns, then after
 * four times the previous interval. The operation no longer uses its memory on return, even on ZR_ERR_IO. */
zr_result zr_nvme_wait(zr_nvme_io *io, zr_nvme_event event);
/* Waits for all operations. */
zr_result zr_nvme_synchronize(zr_nvme_io *io);

struct zr_nvme_report {
    bool ring;       /* io_uring; else threads */
    bool registered; /* the buffers are registered */
    bool direct, nameless;
    bool reserved; /* false: not supported by the file system; it may run out of space later */
    size_t align_bytes, piece_bytes;
    unsigned depth;
    double bytes_per_second; /* concurrent reads and writes, measured at start; 0: not measured */
    /* Since the start, without the measurement. */
    uint64_t read_bytes, written_bytes;
    uint64_t continued_count; /* short transfers that were continued */
    uint64_t file_bytes;      /* of the file system for the file; 0: not known */
    /* Waits in zr_nvme_wait(), zr_nvme_synchronize() and starts of operations, by the thread that opened the
     * file and by other threads. */
    uint64_t waited_ns, waited_behind_ns;
};
void zr_nvme_get_report(zr_nvme_io *io, struct zr_nvme_report *out);

#endif
