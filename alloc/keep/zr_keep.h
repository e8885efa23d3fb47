/* zr_keep.h: kept memory: named segments whose contents survive the death of the process that writes them.
 *
 * A segment is memory of this machine (a memfd) with a header, a table of kept tensors, and the tensors. One
 * process writes a segment, under a lease; any number of processes read it. The writer changes tensors
 * between zr_keep_begin() and zr_keep_commit(); the commit is one store of a 64-bit word, the generation.
 * A process that dies in between, by kill -9 too, leaves the last committed generation. The next writer
 * gets the same memory without a copy.
 *
 * A holder keeps a segment while no process maps it: the launcher of a run (zero/launch), else zrd
 * (alloc/service). Without a holder a segment lives as long as a process has it open.
 *
 * A function that a comment gives to the writer belongs to the process that has the lease, one thread at a
 * time; other functions may be called by any thread. A child after fork() may only close the segment; the
 * lease lasts until the child has closed it, exits or calls exec. Kept memory protects against the death of a
 * process, not of the machine. A GPU that writes a tensor must have finished before the commit. */
#ifndef ZR_KEEP_H
#define ZR_KEEP_H

#include "alloc/zr.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct zr_keep zr_keep;

enum {
    ZR_KEEP_NAME_BYTES = 48, /* with the final zero: of a segment: letters, digits and -_.:/ */
    ZR_KEEP_TENSOR_NAME_BYTES = 64,
    ZR_KEEP_COORDINATES = 4
};

enum zr_keep_access { ZR_KEEP_READ = 0, ZR_KEEP_WRITE };

enum zr_keep_holder {
    ZR_KEEP_HOLDER_ANY = 0, /* the launcher of the run, else zrd */
    ZR_KEEP_HOLDER_NONE     /* the segment lives as long as a process has it open */
};

struct zr_keep_options {
    size_t struct_bytes; /* its sizeof, or 0: see "Options" in alloc/zr.h */
    const char *name;
    uint64_t token;       /* a number that only the run knows; zr_keep_open() requires it */
    size_t bytes;         /* for blocks, rounded up to granules */
    size_t granule_bytes; /* 0: 2 MiB. A power of two, at least 64 KiB */
    unsigned tensors_max; /* 0: 1024 */
    enum zr_keep_holder holder;
};

/* Creates a segment and acquires its lease. On success *out owns the mapping until zr_keep_close(). Memory is
 * committed as blocks are allocated; a holder counts all of it. ZR_ERR_INVALID: a bad name or size, or the
 * holder has a segment of this name. ZR_ERR_MEMORY: the holder's quotas do not allow it. ZR_ERR_UNAVAILABLE:
 * there is no holder, or the system has no memfd or /proc. */
ZR_API zr_result zr_keep_create(zr_keep **out, const struct zr_keep_options *options);

struct zr_keep_name {
    const char *name; /* borrowed */
    uint64_t token;
};
/* Opens a segment that the run's holder has. ZR_ERR_FOREIGN: there is no segment of this name and token.
 * ZR_ERR_UNAVAILABLE: there is no holder; or, with ZR_KEEP_WRITE, another writer lives, which the message
 * names. ZR_ERR_FORMAT: the segment is damaged, or of another version. */
ZR_API zr_result zr_keep_open(zr_keep **out, const struct zr_keep_name *name, enum zr_keep_access access);
/* Opens the segment behind a descriptor, which stays the caller's. Errors as for zr_keep_open(). */
ZR_API zr_result zr_keep_attach(zr_keep **out, int fd, enum zr_keep_access access);
/* The segment's descriptor, to be sent to another process; owned by the segment. */
ZR_API int zr_keep_fd(const zr_keep *keep);
/* Unmaps the segment and releases the lease; a generation that was begun is abandoned. NULL does nothing. The
 * holder still has the segment. */
ZR_API void zr_keep_close(zr_keep *keep);

/* Tells the holder to forget a segment; its memory is freed when no process maps it. ZR_ERR_INVALID: a
 * process writes it, the caller included. ZR_ERR_FOREIGN, ZR_ERR_UNAVAILABLE: as for zr_keep_open(). */
ZR_API zr_result zr_keep_drop(const struct zr_keep_name *name);

struct zr_keep_info {
    char name[ZR_KEEP_NAME_BYTES];
    size_t bytes;              /* of the segment, with header and table */
    uint64_t generation;       /* committed; 0: none */
    uint64_t begun_generation; /* the last one that was begun */
    uint64_t lease;            /* counts writers, from 1 */
    int32_t writer_pid;        /* the last writer */
    uint32_t tensors_count;
};
ZR_API zr_result zr_keep_get_info(const zr_keep *keep, struct zr_keep_info *out);

/* The arena of the segment's memory, for the writer; NULL for a reader. Owned by the segment. An address of
 * the arena has the same offset in the segment in every process. Kept tensors are blocks of granules of class
 * ZR_GRANULE_EXPORTED. Other blocks are lost with the process. The arena has no contiguous pools, stripes or
 * plans. */
ZR_API zr_arena *zr_keep_arena(zr_keep *keep);
/* The memory of all kept tensors as this process maps it, and its size: the same contents and offsets in
 * every process. NULL: 0 bytes. */
ZR_API const void *zr_keep_data(const zr_keep *keep, size_t *bytes);

/* ---- Kept tensors -------------------------------------------------------------------------------------- */

enum zr_keep_mode {
    ZR_KEEP_TWO_PLACES = 0, /* twice the bytes: the last committed contents stay whole until the commit */
    ZR_KEEP_IN_PLACE        /* once the bytes: marked open while it is written; for an owner that can redo the
                             * step from a log of its own, or from other ranks */
};

struct zr_keep_tensor {
    size_t struct_bytes;                       /* its sizeof, or 0 */
    const char *name;                          /* unique in the segment, up to 63 bytes; copied */
    uint64_t coordinates[ZR_KEEP_COORDINATES]; /* the caller's, such as the range of a sharded tensor */
    size_t bytes;
    zr_tag tag;
    enum zr_keep_mode mode;
};

/* Allocates a kept tensor and enters it in the table; *tensor gets its number, the same in every process.
 * Contents are undefined until the first commit. For the writer. ZR_ERR_INVALID: bad options, or the name is
 * in use. ZR_ERR_MEMORY: the segment or its table is full. */
ZR_API zr_result zr_keep_tensor_create(zr_keep *keep, const struct zr_keep_tensor *options, uint32_t *tensor);
/* Finds a tensor by name. ZR_ERR_FOREIGN: there is none. */
ZR_API zr_result zr_keep_tensor_find(const zr_keep *keep, const char *name, uint32_t *tensor);

struct zr_keep_tensor_info {
    char name[ZR_KEEP_TENSOR_NAME_BYTES];
    uint64_t coordinates[ZR_KEEP_COORDINATES];
    size_t offset_bytes[2]; /* of each place in the segment */
    size_t bytes;
    zr_tag tag;
    enum zr_keep_mode mode;
};
/* ZR_ERR_INVALID: no such tensor. ZR_ERR_CORRUPT: its entry is damaged. */
ZR_API zr_result zr_keep_tensor_get(const zr_keep *keep, uint32_t tensor, struct zr_keep_tensor_info *out);

/* ---- Writing ------------------------------------------------------------------------------------------- */

/* Begins a generation; *generation (may be NULL) gets its number, which no earlier generation had, committed
 * or not. For the writer. ZR_ERR_INVALID: one has begun already, or the caller has no lease. */
ZR_API zr_result zr_keep_begin(zr_keep *keep, uint64_t *generation);
/* The place to write the tensor's next contents to, valid until the commit. The whole tensor must be written.
 * ZR_KEEP_TWO_PLACES: the place that does not have the committed contents. ZR_KEEP_IN_PLACE: the only place,
 * marked open. For the writer; threads may call it for different tensors. ZR_ERR_INVALID: no generation has
 * begun, or no such tensor. */
ZR_API zr_result zr_keep_write(zr_keep *keep, uint32_t tensor, void **address);
/* Commits the generation: every tensor of zr_keep_write() has its new contents from here on, the others keep
 * theirs. For the writer. ZR_ERR_INVALID: no generation has begun. */
ZR_API zr_result zr_keep_commit(zr_keep *keep);
/* Gives the generation up. Tensors in two places keep the committed contents; tensors written in place stay
 * open. For the writer. ZR_ERR_INVALID: no generation has begun. */
ZR_API zr_result zr_keep_abandon(zr_keep *keep);

/* ---- Reading ------------------------------------------------------------------------------------------- */

enum zr_keep_state {
    ZR_KEEP_COMMITTED = 0,
    ZR_KEEP_EMPTY, /* never committed */
    ZR_KEEP_OPEN,  /* in place: being written, or its writer died meanwhile; the contents are mixed */
    ZR_KEEP_AHEAD  /* in place: written whole for a generation that was not committed */
};

struct zr_keep_view {
    const void *address; /* NULL: ZR_KEEP_EMPTY */
    size_t bytes;
    uint64_t generation; /* of the contents; ZR_KEEP_OPEN: that was being written */
    enum zr_keep_state state;
};

/* The tensor's committed contents. ZR_ERR_CORRUPT: they are open or ahead; *out has the contents as they are
 * and their state. ZR_ERR_UNAVAILABLE: nothing was committed yet. ZR_ERR_INVALID: no such tensor. */
ZR_API zr_result zr_keep_read(const zr_keep *keep, uint32_t tensor, struct zr_keep_view *out);
/* Whether the contents of the view were the same from zr_keep_read() to this call. ZR_ERR_PEER: the writer
 * has begun to overwrite them; read again. */
ZR_API zr_result zr_keep_read_check(const zr_keep *keep, uint32_t tensor, const struct zr_keep_view *view);

#ifdef __cplusplus
}
#endif

#endif
