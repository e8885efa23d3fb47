/* zr.h: the arena, its backends and its statistics. The one public header of alloc/.
 *
 * An arena is a range of reserved addresses with physical granules mapped under the parts that are in use. A
 * live block never moves; the granules under free space do. Nothing here prints, exits or aborts on bad
 * input: every failure is a zr_result, and zr_last_error() says in words what happened and what to do about
 * it. */
#ifndef ZR_H
#define ZR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ZR_API __attribute__((visibility("default")))
#else
#define ZR_API
#endif

#define ZR_VERSION_MAJOR 0
#define ZR_VERSION_MINOR 1

/* ---- Results ------------------------------------------------------------------------------------------- */

/* What a call came to. Zero is success; every other value leaves the world as it was before the call, unless
 * the call says otherwise. Two are not named at each call: ZR_ERR_INVALID where NULL stands for something
 * that is needed, and ZR_ERR_HOST_MEMORY from whatever creates, allocates, imports or starts. */
typedef enum zr_result {
    ZR_OK = 0,
    ZR_ERR_INVALID,     /* an argument breaks the contract of the call */
    ZR_ERR_MEMORY,      /* the backend's physical memory (or the arena's limit) is exhausted */
    ZR_ERR_HOST_MEMORY, /* the system refused memory for zr's own records */
    ZR_ERR_ADDRESSES,   /* the reserved addresses, or the system's mappings, are exhausted */
    ZR_ERR_UNAVAILABLE, /* this machine or build lacks what was asked for */
    ZR_ERR_FOREIGN,     /* the pointer is not a block of this arena */
    ZR_ERR_DOUBLE_FREE, /* the block was freed before */
    ZR_ERR_CORRUPT,     /* a check found memory, a record or a file damaged */
    ZR_ERR_IO,          /* reading or writing a file failed */
    ZR_ERR_FORMAT,      /* a file is not in the format that was expected */
    ZR_ERR_PEER,        /* another rank died or fell out of step */
    ZR_ERR_TIMEOUT,     /* a wait took longer than its limit */
    ZR_ERR_INTERRUPTED, /* a signal or an abort asked for the end */
    ZR_RESULT_COUNT
} zr_result;

/* The name of a result, "memory" for ZR_ERR_MEMORY; "unknown" for any other number. Any thread. */
ZR_API const char *zr_result_name(zr_result result);

/* The words of this thread's last failure, never NULL, "" before the first. Valid until the thread's next
 * failing call into zr. */
ZR_API const char *zr_last_error(void);

/* ---- Categories ---------------------------------------------------------------------------------------- */

/* What a block is for. Every byte has one. */
typedef enum zr_tag {
    ZR_TAG_PARAM = 0,  /* parameters the kernels compute with */
    ZR_TAG_GRAD,       /* gradients */
    ZR_TAG_OPTIMIZER,  /* momentum and variance */
    ZR_TAG_MASTER,     /* fp32 copies of parameters in mixed precision */
    ZR_TAG_GATHERED,   /* parameters gathered for one use (stage 3) */
    ZR_TAG_CHECKPOINT, /* activations kept from forward to backward at the block boundaries */
    ZR_TAG_ACTIVATION, /* all other activations and their gradients */
    ZR_TAG_COMM,       /* the constant-size communication buffers */
    ZR_TAG_WORKSPACE,  /* scratch of the kernels */
    ZR_TAG_OFFLOAD,    /* staging for memory that lives elsewhere */
    ZR_TAG_OTHER,      /* everything else: records, stacks, host objects */
    ZR_TAG_COUNT
} zr_tag;

/* The tag's name as the tools print it ("param", "grad", ...), NULL for a number that is no tag. */
ZR_API const char *zr_tag_name(zr_tag tag);

/* ---- Backends ------------------------------------------------------------------------------------------ */

/* Where physical memory comes from. alloc/backend.h has the operations behind it. */
typedef struct zr_backend zr_backend;

struct zr_host_options {
    size_t granule_bytes; /* 0: 2 MiB. A power of two, at least the page size */
    size_t limit_bytes;   /* physical memory this backend may hold; 0: no limit of its own */
    bool small_pages;     /* leave huge pages alone, for measurements and tests */
};

/* Memory of this machine: granules are ranges of one memfd, as huge pages where the kernel grants them. They
 * can be mapped at several addresses, moved without a copy, and shared with other processes by file
 * descriptor. After fork the memory stays shared with the child, so fork first. `options` may be NULL.
 * ZR_ERR_INVALID: bad granule size, or a ZR_CONF that makes no sense. ZR_ERR_UNAVAILABLE: no memfd on this
 * kernel. ZR_ERR_ADDRESSES: `ulimit -v` leaves too little. */
ZR_API zr_result zr_backend_host_create(zr_backend **out, const struct zr_host_options *options);

struct zr_sim_options {
    size_t granule_bytes;  /* 0: 2 MiB */
    size_t capacity_bytes; /* physical memory that is simulated; 0: no end */
    uint64_t work_ns; /* streams are asynchronous: a point in one has passed so long after it was recorded; 0:
                         synchronous */
    uint64_t call_ns[8]; /* what each operation adds to the clock, by enum zr_backend_operation; 0: nothing */
};

/* Bookkeeping alone: the same contract enforced on made-up addresses, any capacity, no memory. Never
 * dereference an address from it. `options` may be NULL. ZR_ERR_INVALID: bad granule size or ZR_CONF. */
ZR_API zr_result zr_backend_sim_create(zr_backend **out, const struct zr_sim_options *options);

enum zr_cuda_kind {
    ZR_CUDA_DEVICE = 0, /* the GPU's own memory; the processor cannot read or write it */
    ZR_CUDA_HOST        /* this machine's memory on one NUMA node, pinned; the processor and the GPU see it */
};

struct zr_cuda_options {
    int device; /* ordinal, as CUDA_VISIBLE_DEVICES numbers them */
    enum zr_cuda_kind kind;
    int numa_node;        /* ZR_CUDA_HOST: the node; -1: the one closest to the device */
    size_t granule_bytes; /* 0: what the driver recommends; else a multiple of its granularity */
    size_t limit_bytes;   /* physical memory this backend may hold; 0: no limit of its own */
    const int *peers;     /* ordinals of other devices that may read and write the memory; borrowed */
    size_t peers_count;
};

/* Memory of a GPU through the virtual memory calls of its driver, which is loaded at run time: no toolkit is
 * needed to build, and a machine without one gets a result and words. Stream numbers given to the arena are
 * CUstream values of the device's primary context (the one that the CUDA runtime uses), 0 its default stream.
 * No context need be current, and the current one stays. Copies may begin or end in the program's own
 * memory, which must then stay until the stream has passed them. A child after fork() cannot use it.
 * `options` may be NULL. ZR_ERR_UNAVAILABLE: no driver, too old a driver, no GPU, or one without virtual
 * memory management. ZR_ERR_INVALID: no such device, node, peer or granule size. */
ZR_API zr_result zr_backend_cuda_create(zr_backend **out, const struct zr_cuda_options *options);

/* Ends a backend; NULL does nothing. ZR_ERR_INVALID while an arena or an import still stands on it (nothing
 * is released then). */
ZR_API zr_result zr_backend_destroy(zr_backend *backend);

/* ---- The arena ----------------------------------------------------------------------------------------- */

typedef struct zr_arena zr_arena;

struct zr_arena_options {
    zr_backend *backend;  /* borrowed; must outlive the arena */
    const char *name;     /* shown in reports; copied, cut at 31 characters; NULL: "arena" */
    size_t reserve_bytes; /* addresses to reserve; 0: chosen from the limit and the machine */
    size_t limit_bytes;   /* physical memory the arena may hold mapped or in stock; 0: the backend's limit */
};

/* Reserves the addresses of an arena. On success *out owns them until zr_arena_destroy(). Thread-safe
 * afterwards: any thread may allocate, free and ask.
 * ZR_ERR_INVALID: no backend, or a limit below one granule. ZR_ERR_ADDRESSES: the reservation was refused
 * (ulimit -v, for instance; the words say so). */
ZR_API zr_result zr_arena_create(zr_arena **out, const struct zr_arena_options *options);

/* Releases everything, live blocks included; *leaked_bytes (may be NULL) gets what was still live. The arena
 * is gone whatever the result. ZR_ERR_IO: its trace was not written to the end. ZR_ERR_UNAVAILABLE: the
 * driver kept memory that it could not unmap, which a driver does when a kernel has crashed, or after fork().
 */
ZR_API zr_result zr_arena_destroy(zr_arena *arena, size_t *leaked_bytes);

/* The backend that the arena stands on, borrowed; NULL for NULL. Any thread. */
ZR_API zr_backend *zr_arena_backend(const zr_arena *arena);

struct zr_request {
    size_t bytes;     /* above 0 */
    size_t alignment; /* a power of two up to the granule size; 0: 256 */
    zr_tag tag;
    uint64_t stream; /* an opaque stream number; same stream means program order; 0 is the default stream */
};

/* Allocates one block. The memory is not cleared. On success *out is the block's first byte; on failure *out
 * is NULL. ZR_ERR_INVALID: zero bytes, overflowing size, bad alignment or tag. ZR_ERR_MEMORY: shortage or
 * fragmentation, and the words say which, the largest free run, who pins the holes, what would help.
 * ZR_ERR_ADDRESSES: the same of the reservation, or of the mappings that the system grants. */
ZR_API zr_result zr_arena_alloc(zr_arena *arena, const struct zr_request *request, void **out);

/* Frees a block by its first byte. Work that the block's stream was given before may still run: the stream
 * itself may get the memory again at once, everybody else when it has passed this point. NULL is fine and
 * does nothing. ZR_ERR_FOREIGN: not a block's first byte. ZR_ERR_DOUBLE_FREE where it can be told.
 * ZR_ERR_CORRUPT (check:3): written past its end; it is freed. */
ZR_API zr_result zr_arena_free(zr_arena *arena, void *block);

/* Tells that a block is used on a second stream too, up to its free. The free then waits, without waiting
 * itself, until that stream has passed it: call this after giving the stream its work or before, but before
 * the free. On a backend whose streams are synchronous (host, sim) it only checks the pointer. Any thread.
 * ZR_ERR_FOREIGN: no block begins there. */
ZR_API zr_result zr_block_use(zr_arena *arena, const void *block, uint64_t stream);

/* Gives idle granules back to the backend until at most `keep_bytes` of them remain. *released_bytes may be
 * NULL. */
ZR_API zr_result zr_arena_trim(zr_arena *arena, size_t keep_bytes, size_t *released_bytes);

struct zr_block_info {
    void *address;
    size_t bytes;          /* as requested */
    size_t reserved_bytes; /* with rounding */
    zr_tag tag;
    uint64_t stream;
};

/* The block that holds `pointer`, which may be interior. Takes no lock. ZR_ERR_FOREIGN: no live block there.
 */
ZR_API zr_result zr_arena_find(zr_arena *arena, const void *pointer, struct zr_block_info *out);

/* ---- Statistics ---------------------------------------------------------------------------------------- */

struct zr_arena_stats {
    size_t live_bytes;      /* blocks, with rounding */
    size_t requested_bytes; /* blocks, as requested */
    size_t mapped_bytes;    /* granules mapped under blocks and holes */
    size_t stock_bytes;     /* granules owned and not mapped */
    size_t reserved_bytes;  /* mapped + stock: physical memory held */
    size_t pending_bytes;   /* freed, and a stream may still be working on it */
    size_t stranded_bytes;  /* free, mapped, and in no whole granule: usable by nobody elsewhere */
    size_t peak_live_bytes;
    size_t peak_requested_bytes;
    size_t peak_reserved_bytes;
    size_t blocks_count;
    uint64_t allocations_count;   /* successful, ever */
    uint64_t backend_calls_count; /* create, destroy, map, unmap, set access, record an event; ever */
    size_t live_by_tag_bytes[ZR_TAG_COUNT];
    size_t peak_by_tag_bytes[ZR_TAG_COUNT]; /* each tag's live bytes at the first moment live_bytes peaked */
};

/* A consistent copy of the numbers. Any thread. */
ZR_API zr_result zr_arena_get_stats(zr_arena *arena, struct zr_arena_stats *out);

/* Starts the peaks anew from the present state. */
ZR_API zr_result zr_arena_reset_peaks(zr_arena *arena);

/* One number by name, for the tools: "arena.0.stranded_bytes", "arena.0.tag.grad.live_bytes",
 * "option.check". ZR_ERR_INVALID: no such name. */
ZR_API zr_result zr_ctl_get(const char *name, uint64_t *out);

/* Runs every consistency check over the arena's records. ZR_ERR_CORRUPT with words on the first that fails.
 */
ZR_API zr_result zr_arena_check(zr_arena *arena);

/* ---- Sharing between processes ------------------------------------------------------------------------- */

/* One piece of exported memory: `bytes` at `offset_bytes` of the object behind `fd`. */
struct zr_segment {
    int fd; /* borrowed from the backend when exported; the receiver's own when imported */
    uint64_t offset_bytes;
    size_t bytes;
};

/* Describes the granules under a block, in address order, neighbours joined. *count holds the room in
 * `segments` and becomes the number needed; `lead_bytes` gets the block's offset in the first piece.
 * ZR_ERR_INVALID: too little room. ZR_ERR_FOREIGN: no block begins there. ZR_ERR_UNAVAILABLE: the backend
 * cannot export. */
ZR_API zr_result zr_block_export(zr_arena *arena, const void *block, struct zr_segment *segments,
                                 size_t *count, size_t *lead_bytes);

/* Maps another process's exported pieces one after the other, readable and writable, outside every arena.
 * *out is owned until zr_import_release(). The fds may be closed afterwards. ZR_ERR_INVALID: a piece that is
 * no number of granules, or not memory of this kind. ZR_ERR_ADDRESSES: no room for it. ZR_ERR_UNAVAILABLE:
 * the backend cannot import. */
ZR_API zr_result zr_import(zr_backend *backend, const struct zr_segment *segments, size_t count, void **out);
/* NULL does nothing. ZR_ERR_FOREIGN: no import begins there. */
ZR_API zr_result zr_import_release(zr_backend *backend, void *imported);

/* ---- Tracing ------------------------------------------------------------------------------------------- */

/* Writes every event of the arena (alloc, free, map, unmap, marks) to a .zrt file, a few bytes each, through
 * a shared mapping: what was written is readable after a crash. One trace per arena. */
ZR_API zr_result zr_trace_start(zr_arena *arena, const char *path);
ZR_API zr_result zr_trace_mark(zr_arena *arena,
                               const char *label); /* cut at 63 bytes; no trace: does nothing */
/* ZR_ERR_INVALID: no trace is written. ZR_ERR_IO: it ended early, and what was written until then is good. */
ZR_API zr_result zr_trace_stop(zr_arena *arena);

#ifdef __cplusplus
}
#endif

#endif
