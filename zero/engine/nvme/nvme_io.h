/* nvme_io.h: a file for state that has no room in memory, read and written behind the caller's back. Private
 * to zero/.
 *
 * The file has no name, so nothing of it outlives the process. It bypasses the page cache (O_DIRECT), its
 * space is reserved before the first step, and its contents are whatever the caller wrote last. An operation
 * moves one extent between the file and memory and is cut into pieces, of which `depth` are under way at a
 * time; a thread hands them to io_uring, or a few threads to pread and pwrite where io_uring is forbidden.
 * Reads and writes take turns, so that neither waits for all of the other.
 *
 * An operation takes the event that must have passed before it starts and returns the event of its own end.
 * Nothing else orders two operations. For an update over units: unit i-1 is written and units i+1 and i+2
 * are read while the caller computes on unit i (nvme_pipeline.h).
 *
 * All records and stacks are blocks of the host arena, tag other. A file belongs to the process that opened
 * it: not to a child after fork. Any thread may start, poll and wait; one opens and closes. */
#ifndef ZR_NVME_IO_H
#define ZR_NVME_IO_H

#include <stdbool.h>
#include <stdint.h>

#include "alloc/zr.h"

typedef struct zr_nvme_io zr_nvme_io;
typedef uint64_t zr_nvme_event; /* 0 has passed */

enum {
    ZR_NVME_DEPTH_MOST = 64,
    ZR_NVME_OPERATIONS = 64, /* not yet done; one more waits for the oldest */
    ZR_NVME_BUFFERS = 16
};

/* What a folder offers, before anything is decided. */
struct zr_nvme_folder {
    const char *path;
    bool force; /* take a folder that lies in memory (tmpfs), for tests */
};
struct zr_nvme_probe {
    size_t align_bytes;  /* of memory, offsets and lengths; a power of two */
    uint64_t free_bytes; /* for an ordinary user */
    bool direct;         /* false: the file system has no O_DIRECT; the page cache is in between */
    bool nameless;       /* false: no O_TMPFILE; a file is created and its name removed at once */
};
/* ZR_ERR_INVALID: no path. ZR_ERR_IO, with words that name the folder and the way out: it is missing, is no
 * folder, cannot be written, or is memory. Leaves nothing behind. */
zr_result zr_nvme_probe_folder(const struct zr_nvme_folder *folder, struct zr_nvme_probe *out);

/* Memory that operations will mostly use: registered with io_uring, so that its pages are found once. It is
 * the caller's, aligned, and stays until zr_nvme_close(). */
struct zr_nvme_buffer {
    void *memory;
    size_t bytes;
};

struct zr_nvme_options {
    struct zr_nvme_folder folder;
    uint64_t file_bytes; /* all are reserved */
    zr_arena *host_arena;
    const struct zr_nvme_buffer
        *buffers; /* at most ZR_NVME_BUFFERS; none: nothing is registered or measured */
    unsigned buffers_count;
    /* 0: measured with the first buffer, which loses its contents: for about half a second; on a slow disk
     * for as long as it takes for 32 MiB, and then for a second or the first depth. */
    unsigned depth;
    size_t piece_bytes; /* 0: 512 KiB */
    /* Not NULL: a write that failed ends writes alone, what was written before it can still be read, and
     * this is what its words advise. */
    const char *write_way_out;
    bool threads;      /* pread and pwrite, also where io_uring is allowed */
    uint64_t stall_ns; /* a wait without any progress for so long is logged; 0: five seconds */
    /* What a person should know: once each for what this machine refuses, and for a disk that stalls. Called
     * by the thread that opens or waits. NULL: nobody listens. */
    void (*log)(void *state, const char *words);
    void *log_state;
};
/* On success *out owns the file until zr_nvme_close(). ZR_ERR_IO, as of zr_nvme_probe_folder(); also, with
 * the bytes: too little space. ZR_ERR_INVALID: no arena, no bytes, buffers or pieces that are not aligned. */
zr_result zr_nvme_open(zr_nvme_io **out, const struct zr_nvme_options *options);
/* Waits for what is under way; its result is that of the first failure. The file is gone in any case. NULL
 * does nothing. */
zr_result zr_nvme_close(zr_nvme_io *io);

struct zr_nvme_extent {
    uint64_t offset_bytes;
    void *memory;
    size_t bytes;        /* 0: done at once, when `after` has passed */
    zr_nvme_event after; /* starts when this has passed */
};
/* Starts an operation. Where ZR_NVME_OPERATIONS are not yet done it waits for the oldest. ZR_ERR_INVALID: not
 * aligned, outside of the file, an event of the future; or it overlaps an operation that is not done, in the
 * file or in memory, one of them changes what they share, and `after` does not order them. ZR_ERR_IO: an
 * operation failed before: nothing of the file can be relied on from then on, and every call says so with the
 * first failure's words. */
zr_result zr_nvme_read(zr_nvme_io *io, const struct zr_nvme_extent *extent, zr_nvme_event *out);
zr_result zr_nvme_write(zr_nvme_io *io, const struct zr_nvme_extent *extent, zr_nvme_event *out);

/* Whether an event has passed; never waits. ZR_ERR_INVALID: an event of the future. ZR_ERR_IO: see above. */
zr_result zr_nvme_poll(zr_nvme_io *io, zr_nvme_event event, bool *out_passed);
/* Waits until it has. A disk that stalls is waited for: the log hears of it after stall_ns, and again after
 * four times as long each time. On ZR_ERR_IO too the operation has let go of its memory. */
zr_result zr_nvme_wait(zr_nvme_io *io, zr_nvme_event event);
/* Waits for all. */
zr_result zr_nvme_synchronize(zr_nvme_io *io);

struct zr_nvme_report {
    bool ring;       /* io_uring; else threads */
    bool registered; /* the buffers are */
    bool direct, nameless;
    bool reserved; /* false: the file system cannot, and may run out of space later */
    size_t align_bytes, piece_bytes;
    unsigned depth;
    double bytes_per_second; /* reads and writes at once, measured at start; 0: not measured */
    /* Since the start, without the measurement. */
    uint64_t read_bytes, written_bytes;
    uint64_t continued_count; /* transfers that moved a part, and went on with the rest */
    /* In zr_nvme_wait(), zr_nvme_synchronize() and starts that waited: the thread that opened the file, and
     * others, which work behind it. */
    uint64_t waited_ns, waited_behind_ns;
};
void zr_nvme_get_report(zr_nvme_io *io, struct zr_nvme_report *out);

/* What an open file takes of the host arena, in bytes as they are asked for: records and stacks. `threads`:
 * of one that pread and pwrite serve, which takes most; whether io_uring is allowed is known once it is open
 * (report.ring). The buffers are the caller's own. */
size_t zr_nvme_host_bytes(bool threads);

#endif
