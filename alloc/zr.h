/* zr.h: the arena, its backends and its statistics. A public header of alloc/, beside keep/zr_keep.h.
 *
 * An arena is a range of reserved addresses with physical granules mapped under the parts that are in use. A
 * live block never moves; the granules under free space do. No function prints, exits or aborts on bad input:
 * every failure is a zr_result, and zr_last_error() returns a message with the cause and the fix. */
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

/* The one place of the version: programs, sonames, manual pages and pkg-config files take it from here. */
#define ZR_VERSION_MAJOR 0
#define ZR_VERSION_MINOR 2
#define ZR_VERSION_PATCH 0

/* The version as text, "MAJOR.MINOR.PATCH". */
#define ZR_VERSION_QUOTE(major, minor, patch)  #major "." #minor "." #patch
#define ZR_VERSION_EXPAND(major, minor, patch) ZR_VERSION_QUOTE(major, minor, patch)
#define ZR_VERSION_STRING                      ZR_VERSION_EXPAND(ZR_VERSION_MAJOR, ZR_VERSION_MINOR, ZR_VERSION_PATCH)

/* ---- Results ------------------------------------------------------------------------------------------- */

/* The result of a call. Zero is success. A call that fails changes nothing, unless its comment says
 * otherwise. Two failures are not repeated in the comments: every call returns ZR_ERR_INVALID for a NULL
 * argument that is not marked optional, and every call that creates, allocates, imports or starts something
 * may return ZR_ERR_HOST_MEMORY. */
typedef enum zr_result {
    ZR_OK = 0,
    ZR_ERR_INVALID,     /* an argument breaks the contract of the call */
    ZR_ERR_MEMORY,      /* the backend's physical memory (or the arena's limit) is exhausted */
    ZR_ERR_HOST_MEMORY, /* the system refused memory for zr's own records */
    ZR_ERR_ADDRESSES,   /* the reserved addresses, or the system's mappings, are exhausted */
    ZR_ERR_UNAVAILABLE, /* this machine or build lacks the requested feature */
    ZR_ERR_FOREIGN,     /* the pointer is not a block of this arena */
    ZR_ERR_DOUBLE_FREE, /* the block was freed before */
    ZR_ERR_CORRUPT,     /* a check found memory, a record or a file damaged */
    ZR_ERR_IO,          /* reading or writing a file failed */
    ZR_ERR_FORMAT,      /* a file does not have the expected format */
    ZR_ERR_PEER,        /* another rank died or fell out of step */
    ZR_ERR_TIMEOUT,     /* a wait took longer than its limit */
    ZR_ERR_INTERRUPTED, /* a signal or an abort ended the call */
    ZR_ERR_TAG_LIMIT,   /* a tag's bytes would exceed a limit of zr_arena_set_tag_limits() */
    ZR_RESULT_COUNT
} zr_result;

/* The name of a result, "memory" for ZR_ERR_MEMORY; "unknown" for any other number. Any thread. */
ZR_API const char *zr_result_name(zr_result result);

/* The message of this thread's last failure, never NULL, "" before the first. Valid until the thread's next
 * failing call into zr. */
ZR_API const char *zr_last_error(void);

/* ---- Options ------------------------------------------------------------------------------------------- */

/* Every struct of options begins with struct_bytes, so that later releases can add fields: set it to the
 * struct's sizeof. 0 stands for the size in the first release. Fields that the caller's struct lacks count as
 * 0, which is every field's default. A library older than the caller's header accepts the struct if all
 * fields that the library does not know are 0; otherwise the call returns ZR_ERR_INVALID. */

/* ---- Categories ---------------------------------------------------------------------------------------- */

/* The category of a block. Every block has exactly one. */
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
    ZR_TAG_OFFLOAD,    /* staging for state kept in host memory or a file */
    ZR_TAG_OTHER,      /* everything else: records, stacks, host objects */
    ZR_TAG_COUNT
} zr_tag;

/* The tag's name as the tools print it ("param", "grad", ...); NULL for a number that is not a tag. */
ZR_API const char *zr_tag_name(zr_tag tag);

/* ---- Backends ------------------------------------------------------------------------------------------ */

/* A source of physical memory. Several arenas may use one backend. Any thread may call. The operations that
 * a backend implements are in alloc/backend/backend.h. */
typedef struct zr_backend zr_backend;

struct zr_host_options {
    size_t struct_bytes;  /* its sizeof, or 0: see "Options" */
    size_t granule_bytes; /* 0: 2 MiB. A power of two, at least the page size */
    size_t limit_bytes;   /* physical memory this backend may hold; 0: no limit of its own */
    bool small_pages;     /* do not use huge pages; for measurements and tests */
    bool private_memory;  /* anonymous memory, not shared, committed page by page on first touch */
};

/* Memory of this machine. Granules are ranges of one memfd, in huge pages where the kernel grants them.
 * Granules can be mapped at several addresses, moved without a copy, and shared with other processes by file
 * descriptor. `options` may be NULL.
 *
 * After fork() each process has its own counters, but both share the memory of the existing granules: live
 * blocks, free memory and the cache. So only one of the two processes may continue to allocate from an arena
 * that was created before the fork. The other process may read, write and free the live blocks, and may
 * create a new arena, on this backend or another; the new arena's memory is not shared.
 *
 * With `private_memory` granules are anonymous memory: they cannot be shared, mapped twice or moved, and
 * after fork() the child has copies and may use the arena independently. The limit counts whole granules,
 * touched or not.
 *
 * ZR_ERR_INVALID: bad granule size or bad ZR_CONF. ZR_ERR_UNAVAILABLE: the kernel has no memfd.
 * ZR_ERR_ADDRESSES: `ulimit -v` leaves too few addresses. */
ZR_API zr_result zr_backend_host_create(zr_backend **out, const struct zr_host_options *options);

struct zr_sim_options {
    size_t struct_bytes;   /* its sizeof, or 0: see "Options" */
    size_t granule_bytes;  /* 0: 2 MiB */
    size_t capacity_bytes; /* simulated physical memory; 0: unlimited */
    uint64_t work_ns; /* an event completes this long after it was recorded; 0: streams are synchronous */
    /* Nanoseconds that each operation adds to the simulated clock, in this order: reserve addresses, release
     * addresses, create memory, destroy memory, map, unmap, set access, copy or fill. */
    uint64_t call_ns[8];
};

/* A simulated backend: the same contract on made-up addresses, with any capacity and without memory. The
 * addresses must never be dereferenced. After fork() each process has its own copy. `options` may be NULL.
 * ZR_ERR_INVALID: bad granule size or bad ZR_CONF. */
ZR_API zr_result zr_backend_sim_create(zr_backend **out, const struct zr_sim_options *options);

enum zr_cuda_kind {
    ZR_CUDA_DEVICE = 0, /* the GPU's own memory; the processor cannot read or write it */
    ZR_CUDA_HOST        /* pinned memory of this machine on one NUMA node; the processor and the GPU can use
                           it. Where the driver refuses a node (many containers), the backend uses memory of
                           any node, or page-locked memory, which other processes cannot map */
};

struct zr_cuda_options {
    size_t struct_bytes; /* its sizeof, or 0: see "Options" */
    int device;          /* ordinal, as CUDA_VISIBLE_DEVICES numbers them */
    enum zr_cuda_kind kind;
    int numa_node;        /* ZR_CUDA_HOST: the node; -1: the one closest to the device */
    size_t granule_bytes; /* a multiple of the driver's granularity; 0: the size the driver recommends, or
                             more for large host memory, where each granule is a mapping of the process */
    size_t limit_bytes;   /* physical memory this backend may hold; 0: no limit of its own */
    const int *peers;     /* ordinals of other devices that may read and write the memory; borrowed */
    size_t peers_count;
    size_t expected_bytes; /* ZR_CUDA_HOST: expected mapped bytes, from which the granule size is chosen; 0:
                              the limit, or the machine's memory */
};

/* Memory of a GPU, through the virtual memory calls of the CUDA driver. The driver is loaded at run time; no
 * toolkit is needed to build.
 *
 * Stream numbers are CUstream values of the device's primary context (the context of the CUDA runtime). 0 and
 * CU_STREAM_LEGACY are its default stream. CU_STREAM_PER_THREAD is a different stream in each thread, so
 * every call that takes a stream rejects it with ZR_ERR_INVALID. A program compiled with --default-stream
 * per-thread must pass streams that it created, because 0 means the per-thread stream in its own CUDA calls.
 *
 * No context needs to be current, and the current context does not change. A copy may have its source or
 * destination in the program's own memory, which must stay valid until the copy has finished. A child after
 * fork() cannot use the backend. `options` may be NULL. ZR_ERR_UNAVAILABLE: no driver, too old a driver, no
 * GPU, or a GPU without virtual memory management. ZR_ERR_INVALID: no such device, node, peer or granule
 * size. */
ZR_API zr_result zr_backend_cuda_create(zr_backend **out, const struct zr_cuda_options *options);

/* Destroys a backend; NULL does nothing. ZR_ERR_INVALID: an arena or an import still uses the backend. */
ZR_API zr_result zr_backend_destroy(zr_backend *backend);

/* ---- The arena ----------------------------------------------------------------------------------------- */

typedef struct zr_arena zr_arena;

struct zr_arena_options {
    size_t struct_bytes;  /* its sizeof, or 0: see "Options" */
    zr_backend *backend;  /* borrowed; must outlive the arena */
    const char *name;     /* shown in reports; copied, cut at 31 characters; NULL: "arena" */
    size_t reserve_bytes; /* addresses to reserve; 0: chosen from the limit and the machine */
    size_t limit_bytes;   /* physical memory the arena may hold mapped or in cache; 0: the backend's limit */
    /* The most stripes, 1 to 8; 0: 1. With 1, all threads share one lock and blocks are packed most tightly.
     * With more, a thread that often waits for the lock gets a stripe with its own addresses, under the same
     * limit. Then peak_live_bytes is exact to a MiB per stripe, and the peaks of requests and tags are sums
     * of the stripes' peaks. Traces, learners and plans keep all threads on one stripe. */
    unsigned threads;
};

/* Reserves the addresses of an arena. On success *out owns them until zr_arena_destroy(). Any thread may use
 * the arena. fork() at any time leaves the child a consistent arena with no lock held; the backend determines
 * whether the two processes share its memory. ZR_ERR_INVALID: no backend, or a limit below one granule.
 * ZR_ERR_ADDRESSES: the system refused the reservation, for example because of `ulimit -v`. */
ZR_API zr_result zr_arena_create(zr_arena **out, const struct zr_arena_options *options);

/* Releases the arena and all its memory, including live blocks; *leaked_bytes (may be NULL) gets the bytes
 * that were still live. ZR_ERR_INVALID: a contiguous pool still uses the arena; nothing is released. After
 * any other result the arena no longer exists. ZR_ERR_IO: its trace is incomplete. ZR_ERR_UNAVAILABLE: the
 * driver kept memory that it could not unmap, for example after a kernel crashed or after fork(). */
ZR_API zr_result zr_arena_destroy(zr_arena *arena, size_t *leaked_bytes);

/* The arena's backend, borrowed; NULL for NULL. Any thread. */
ZR_API zr_backend *zr_arena_backend(const zr_arena *arena);

struct zr_request {
    size_t bytes;     /* above 0 */
    size_t alignment; /* a power of two up to the granule size; 0: 256 */
    zr_tag tag;
    /* An opaque number; 0 is the default stream. Work of one stream runs in program order. On cuda a CUstream
     * of the arena's device and its primary context. Memory freed in another device's stream is never reused
     * by a different stream, and zr_arena_destroy() does not wait for that stream. */
    uint64_t stream;
};

/* Allocates one block. The memory is not cleared. On success *out is the block's first byte; on failure *out
 * is NULL. ZR_ERR_INVALID: zero bytes, overflowing size, bad alignment or tag, or CU_STREAM_PER_THREAD.
 * ZR_ERR_MEMORY: shortage or fragmentation; the message says which, and names the largest free run, the
 * blocking allocations and a remedy. ZR_ERR_ADDRESSES: the reservation, or the mappings that the system
 * grants, are exhausted. ZR_ERR_TAG_LIMIT: see zr_arena_set_tag_limits(). */
ZR_API zr_result zr_arena_alloc(zr_arena *arena, const struct zr_request *request, void **out);

/* Frees a block by its first byte; NULL does nothing. Work already submitted to the block's stream may still
 * run: the same stream may reuse the memory at once, other streams after that work has finished.
 * ZR_ERR_FOREIGN: not a block's first byte. ZR_ERR_DOUBLE_FREE: the block was freed before, where the arena
 * can detect it. ZR_ERR_CORRUPT (check:3): the program wrote past the block's end; the block is freed. */
ZR_API zr_result zr_arena_free(zr_arena *arena, void *block);

/* Records that a second stream uses the block. After the free, the memory is not reused until that stream has
 * finished the work submitted before the free; the free itself does not wait. Call this before the free,
 * before or after submitting the work. On a backend with synchronous streams (host, sim) the call only checks
 * the pointer. Any thread. ZR_ERR_FOREIGN: no block begins there. ZR_ERR_HOST_MEMORY: no record for the
 * stream. ZR_ERR_INVALID on cuda: the stream belongs to another device or context, in which this device
 * cannot record events. Either let a stream of the arena's device wait for the other stream's work and name
 * the former, or wait for that work before the free. */
ZR_API zr_result zr_block_use(zr_arena *arena, const void *block, uint64_t stream);

/* Returns idle granules to the backend until at most `keep_bytes` of them remain. Memory that a stream may
 * still use, and memory that the backend fails to unmap, stays. *released_bytes (may be NULL) gets the bytes
 * returned. Any thread. */
ZR_API zr_result zr_arena_trim(zr_arena *arena, size_t keep_bytes, size_t *released_bytes);

/* Whether granules may be mapped elsewhere while the addresses above them are free. */
enum zr_granule_class {
    ZR_GRANULE_MOVABLE = 0, /* yes; the class of every new granule */
    ZR_GRANULE_REGISTERED,  /* no: a communication library or a network card registered it */
    ZR_GRANULE_EXPORTED,    /* no: another process maps it; set by zr_block_export() */
    ZR_GRANULE_FIXED,       /* no: a CUDA graph or a device recorded its address */
    ZR_GRANULE_CLASS_COUNT
};

/* Sets the class of every granule that overlaps [address, address + bytes), and of every granule that shares
 * a handle with one of these. A granule that is not movable stays mapped at its addresses, free or not: it is
 * not stolen, trimmed or taken by a plan, and new blocks at those addresses use it. The class stays after the
 * block is freed, until it is set again, so that a registration can be undone later. zr_arena_destroy()
 * releases granules of every class. Any thread. ZR_ERR_FOREIGN: part of the range is not mapped in this
 * arena, or belongs to a contiguous pool, because pools move their entries. */
ZR_API zr_result zr_arena_set_granule_class(zr_arena *arena, const void *address, size_t bytes,
                                            enum zr_granule_class granule_class);

/* With `fixed`, changes all mapped movable granules to ZR_GRANULE_FIXED; without, changes those of that class
 * back to movable. A program with addresses recorded throughout the arena, as in a CUDA graph, calls this.
 * Any thread. ZR_ERR_INVALID: the arena has several stripes. */
ZR_API zr_result zr_arena_fix(zr_arena *arena, bool fixed);

/* Functions that an arena or a pool calls at every change of its mapped memory, for communication libraries
 * that register buffers. Either function may be NULL. The call holds the lock of the arena or pool that maps
 * the memory. On that arena or pool the callback may call only zr_arena_find(). On the pool's arena, and on
 * other arenas, pools and rings, it may call any function that does not invoke the same callback again
 * through another map callback. A callback must not fork; fork() in other threads waits for it. */
struct zr_map_callback {
    /* Whole granules were mapped and are accessible; no block uses them yet. Any result but ZR_OK rejects the
     * memory: it is unmapped without a further call, and the request that needed it fails with that result.
     */
    zr_result (*mapped)(void *argument, void *address, size_t bytes);
    /* The memory is about to be unmapped. Memory mapped in one call may be unmapped in several, and the
     * reverse; every byte is unmapped as often as it was mapped. If the driver fails to unmap the memory,
     * `mapped` is called again, and its result is ignored. */
    void (*unmapping)(void *argument, void *address, size_t bytes);
    void *argument;
};

/* The most map callbacks of one arena at one time. */
enum { ZR_MAP_CALLBACKS_MAX = 4 };

/* Adds a map callback; the struct is copied. `mapped` is called for all memory that is mapped now. The
 * callback ends with zr_arena_remove_map_callback() or zr_arena_destroy(), which call `unmapping` for all
 * memory that is still mapped. Contiguous pools have their own map callbacks. Any thread. ZR_ERR_INVALID: the
 * arena has ZR_MAP_CALLBACKS_MAX already. Any other result: the callback rejected memory that is mapped now.
 */
ZR_API zr_result zr_arena_add_map_callback(zr_arena *arena, const struct zr_map_callback *callback);
/* Removes the callback that was added with the same three values. ZR_ERR_INVALID: no such callback. */
ZR_API zr_result zr_arena_remove_map_callback(zr_arena *arena, const struct zr_map_callback *callback);

struct zr_block_info {
    void *address;
    size_t bytes;          /* as requested */
    size_t reserved_bytes; /* with rounding */
    zr_tag tag;
    uint64_t stream;
};

/* Finds the block that contains `pointer`, or else the entry of one of the arena's contiguous pools. The
 * place of a movable entry may change at any time. Any thread, and map callbacks too. Blocks are found
 * without a lock; the search for an entry takes the pools' locks. After a search, frees take some nanoseconds
 * longer until 2,048 blocks were freed without another search. ZR_ERR_FOREIGN: neither block nor entry. */
ZR_API zr_result zr_arena_find(zr_arena *arena, const void *pointer, struct zr_block_info *out);

/* ---- Statistics ---------------------------------------------------------------------------------------- */

struct zr_arena_stats {
    size_t live_bytes;      /* blocks, with rounding */
    size_t requested_bytes; /* blocks, as requested */
    size_t mapped_bytes;    /* granules mapped under blocks, free extents and contiguous pools */
    size_t cached_bytes;    /* granules owned and not mapped */
    size_t reserved_bytes;  /* mapped + cached: physical memory held */
    size_t pending_bytes;   /* freed, and a stream may still use the memory */
    size_t
        stranded_bytes; /* free, mapped, and not in a whole movable granule: cannot serve other addresses */
    size_t peak_live_bytes;
    size_t peak_requested_bytes;
    size_t peak_reserved_bytes;
    size_t blocks_count;
    uint64_t allocations_count;   /* successful allocations since creation */
    uint64_t backend_calls_count; /* calls to create, destroy, map, unmap, set access and record an event,
                                   * since creation; includes those of pools, not those of rings */
    size_t live_by_tag_bytes[ZR_TAG_COUNT];
    size_t peak_by_tag_bytes[ZR_TAG_COUNT]; /* each tag's live bytes when live_bytes first reached its peak */
    size_t unmovable_bytes;                 /* part of mapped_bytes: granules whose class is not movable */
};

/* Copies the statistics. The copy is consistent in an arena of one stripe, or while one thread allocates.
 * With several stripes each stripe is read separately while the others continue, so sums combine values that
 * were read microseconds apart. Any thread. */
ZR_API zr_result zr_arena_get_stats(zr_arena *arena, struct zr_arena_stats *out);

/* Resets every peak to the current value. */
ZR_API zr_result zr_arena_reset_peaks(zr_arena *arena);

/* One number by name: "arena.N." and a field of struct zr_arena_stats ("arena.0.stranded_bytes"),
 * "arena.N.tag.TAG.live_bytes" or ".peak_bytes" with the name of a tag, or "option." and an option of ZR_CONF
 * ("option.check"). A new arena gets the lowest free number, from 0. Any thread. ZR_ERR_INVALID: unknown
 * name. */
ZR_API zr_result zr_ctl_get(const char *name, uint64_t *out);

/* Runs every consistency check over the arena's records. ZR_ERR_CORRUPT: the message names the first check
 * that failed. */
ZR_API zr_result zr_arena_check(zr_arena *arena);

/* ---- Tag limits ---------------------------------------------------------------------------------------- */

/* Limits on the bytes of blocks and of pools' entries, with rounding, as live_by_tag_bytes counts them.
 * total_bytes limits the sum of all tags but ZR_TAG_OTHER, whose own field is ignored. SIZE_MAX: no limit. */
struct zr_tag_limits {
    size_t by_tag_bytes[ZR_TAG_COUNT];
    size_t total_bytes;
};

/* Sets tag limits; NULL removes them. A request that would take its tag, or the sum of all tags, above its
 * limit fails with ZR_ERR_TAG_LIMIT; the message names the tag and the bytes. Live blocks stay and count, as
 * do appends to a pool that are in progress in other threads. While tag limits are set, calls are slower and
 * all threads share one lock. Any thread. ZR_ERR_INVALID: the arena already has several stripes; set tag
 * limits before threads allocate, or create the arena with `threads` 1. */
ZR_API zr_result zr_arena_set_tag_limits(zr_arena *arena, const struct zr_tag_limits *tag_limits);
/* The peak of each tag, and of their sum, since tag limits were set. After a run with all limits SIZE_MAX the
 * result is a byte plan that can be set as the tag limits of the next run. Any thread. ZR_ERR_INVALID: no tag
 * limits are set. */
ZR_API zr_result zr_arena_get_high_water(zr_arena *arena, struct zr_tag_limits *out);

/* ---- Contiguous pools ---------------------------------------------------------------------------------- */

/* Memory of one purpose (gradients, activation checkpoints) at consecutive addresses. A pool reserves its own
 * addresses and maps an arena's granules under the part in use. Entries lie in the order in which they were
 * appended. The pool grows by mapping granules at its end and shrinks by unmapping granules that no entry
 * overlaps. A fixed entry never moves. zr_contiguous_compact() moves movable entries down, except borrowed
 * ones. The arena's statistics include the pool's live bytes, tags, peaks and physical memory.
 *
 * An entry belongs to one stream at a time: the stream of its append, then the stream of its last
 * zr_contiguous_return(). The caller orders the new stream's work after the previous stream's. Memory of a
 * freed or moved entry serves its own stream at once, and other streams after the work submitted so far has
 * finished. Any thread may call. With CUDA a child after fork() cannot use the pool; on host memory one of
 * the two processes may append and compact. A call that fails changes no entry. */
typedef struct zr_contiguous zr_contiguous;

/* A handle of a pool's entry; 0 is no entry. */
typedef uint64_t zr_entry;

struct zr_contiguous_options {
    size_t struct_bytes;  /* its sizeof, or 0: see "Options" */
    zr_arena *arena;      /* borrowed; must outlive the pool */
    const char *name;     /* shown in messages; copied, cut at 31 characters; NULL: "pool" */
    zr_tag tag;           /* of all its entries */
    size_t reserve_bytes; /* addresses to reserve for all entries; 0: as many as the arena has */
    size_t keep_bytes;    /* idle granules kept mapped for later appends; 0: none */
    struct zr_map_callback map_callback;
};

/* Reserves the addresses. On success *out owns the pool until zr_contiguous_destroy(), which must precede the
 * arena's destruction. ZR_ERR_INVALID: bad tag or size. ZR_ERR_ADDRESSES: the reservation was refused. */
ZR_API zr_result zr_contiguous_create(zr_contiguous **out, const struct zr_contiguous_options *options);
/* Waits for the streams and returns all memory to the arena, including live entries; *leaked_bytes (may be
 * NULL) gets the bytes that were still live. The pool no longer exists after any result. ZR_ERR_UNAVAILABLE:
 * the driver failed to unmap some addresses, which stay reserved, while their memory returns to the arena; or
 * waiting for a stream failed, and the memory is leaked because the stream may still use it. */
ZR_API zr_result zr_contiguous_destroy(zr_contiguous *pool, size_t *leaked_bytes);

struct zr_entry_request {
    size_t bytes;     /* above 0 */
    size_t alignment; /* a power of two from 16 to the granule size; 0: 256. With granule alignment the whole
                       * granules of a movable entry move without a copy */
    bool movable;
    uint64_t stream;
};

/* Appends one entry after the last. The memory is not cleared. *address (may be NULL) gets the first byte of
 * a fixed entry, valid until its free, and NULL for a movable entry, which must be borrowed. ZR_ERR_INVALID:
 * bad bytes or alignment. ZR_ERR_MEMORY: the arena has no granules left. ZR_ERR_ADDRESSES: the reservation or
 * the system's mappings are exhausted; compact the pool, or reserve more. ZR_ERR_TAG_LIMIT: the pool's tag
 * has reached its limit. */
ZR_API zr_result zr_contiguous_append(zr_contiguous *pool, const struct zr_entry_request *request,
                                      zr_entry *out, void **address);
/* Frees an entry; 0 does nothing. ZR_ERR_DOUBLE_FREE: the entry was freed before. ZR_ERR_FOREIGN: not an
 * entry of this pool. ZR_ERR_INVALID: the entry is borrowed. */
ZR_API zr_result zr_contiguous_free(zr_contiguous *pool, zr_entry entry);

/* Borrows an entry: its address holds until zr_contiguous_return() was called as often as this. Fails with
 * ZR_ERR_DOUBLE_FREE and ZR_ERR_FOREIGN as zr_contiguous_free(). ZR_ERR_CORRUPT: a move of the entry and its
 * undoing both failed half way; the contents are lost. */
ZR_API zr_result zr_contiguous_borrow(zr_contiguous *pool, zr_entry entry, void **address);
/* Ends a borrow. Work submitted to `stream` so far may use the address. ZR_ERR_INVALID: not borrowed. */
ZR_API zr_result zr_contiguous_return(zr_contiguous *pool, zr_entry entry, uint64_t stream);

/* Moves movable entries down, in order, until no free space except alignment padding lies before them.
 * Borrowed and fixed entries stay. Contents move in the entries' streams: whole granules by remapping where
 * possible, the rest by copies. Waits until the freed granules are returned to the arena. After a failure
 * (ZR_ERR_MEMORY, ZR_ERR_ADDRESSES and others) entries that were already moved stay moved. */
ZR_API zr_result zr_contiguous_compact(zr_contiguous *pool);
/* Returns idle granules to the arena until at most `keep_bytes` remain. *released_bytes may be NULL. */
ZR_API zr_result zr_contiguous_trim(zr_contiguous *pool, size_t keep_bytes, size_t *released_bytes);

struct zr_contiguous_stats {
    size_t live_bytes;      /* entries, with rounding */
    size_t requested_bytes; /* entries, as requested */
    size_t pending_bytes;   /* freed or moved away from; a stream may still use the memory */
    size_t mapped_bytes;    /* physical memory held */
    size_t idle_bytes;      /* part of mapped_bytes: whole granules that no entry overlaps */
    size_t stranded_bytes;  /* mapped, and not live, pending or idle */
    size_t end_bytes;       /* offset of the last entry's end */
    size_t peak_live_bytes, peak_mapped_bytes;
    size_t entries_count, borrowed_count;
    uint64_t copied_bytes, remapped_bytes; /* by compaction, since creation */
    uint64_t backend_calls_count;          /* map, unmap, set access, record an event; since creation */
};
ZR_API zr_result zr_contiguous_get_stats(zr_contiguous *pool, struct zr_contiguous_stats *out);
/* Runs every consistency check over the pool's records. ZR_ERR_CORRUPT: the message names the first check
 * that failed. */
ZR_API zr_result zr_contiguous_check(zr_contiguous *pool);

/* ---- Buffer rings -------------------------------------------------------------------------------------- */

/* A fixed set of equal buffers for communication, handed out in order. Their memory is allocated, aligned and
 * registered once, so it does not grow with the data sent. Any thread may acquire and release. After fork()
 * the child's ring has no waiting threads, and acquired buffers stay acquired; on host memory parent and
 * child share the buffers, so only one of the two may use the ring. */
typedef struct zr_ring zr_ring;

struct zr_ring_options {
    size_t struct_bytes; /* its sizeof, or 0: see "Options" */
    zr_arena *arena;     /* borrowed; the buffers are one block of it */
    zr_tag tag;
    size_t buffer_bytes;
    unsigned buffers_count;
    size_t alignment; /* of each buffer: a power of two up to the granule size; 0: 256 */
    struct zr_map_callback
        map_callback; /* called once for the whole ring at creation and once at destruction */
};

/* On success *out owns the ring until zr_ring_destroy(). ZR_ERR_INVALID: no buffers, no bytes, bad alignment
 * or tag. Other failures are those of zr_arena_alloc(). */
ZR_API zr_result zr_ring_create(zr_ring **out, const struct zr_ring_options *options);
/* Waits for the streams that use the buffers, then frees them; NULL does nothing. ZR_ERR_INVALID: a buffer is
 * still acquired, or a thread waits for one. ZR_ERR_UNAVAILABLE: the driver cannot tell whether a stream
 * still uses a buffer. After both failures the ring stays. */
ZR_API zr_result zr_ring_destroy(zr_ring *ring);

#define ZR_RING_WAIT UINT64_MAX /* no timeout */

/* Acquires the next buffer, in cyclic order, for work in `stream`. Waits until the buffer is released and, if
 * another stream released it, until that stream has finished its work. ZR_ERR_TIMEOUT: the wait exceeded
 * `timeout_ns` (0: do not wait). */
ZR_API zr_result zr_ring_acquire(zr_ring *ring, uint64_t stream, uint64_t timeout_ns, void **out);
/* Releases a buffer, in any order. Work submitted to `stream` so far may use it. ZR_ERR_FOREIGN: no buffer
 * begins there. ZR_ERR_DOUBLE_FREE: the buffer is not acquired. ZR_ERR_INVALID: zr_block_use() would reject
 * the stream; the buffer stays acquired. */
ZR_API zr_result zr_ring_release(zr_ring *ring, void *buffer, uint64_t stream);

/* ---- Sharing between processes ------------------------------------------------------------------------- */

/* A part of exported memory: `bytes` at `offset_bytes` of the object behind `fd`. */
struct zr_segment {
    int fd; /* exporter: owned by the backend, valid until zr_block_export_end() or the memory is destroyed;
               importer: owned by the caller */
    uint64_t offset_bytes;
    size_t bytes;
};

/* Describes the granules under a block as segments in address order, with adjacent granules joined, and
 * changes movable ones to ZR_GRANULE_EXPORTED, so that importers never see memory of other addresses. After
 * every importer has released the memory, zr_arena_set_granule_class() makes the granules movable again. On
 * entry *count is the capacity of `segments`, on return the number of segments needed; *lead_bytes gets the
 * block's offset in the first segment. ZR_ERR_INVALID: too small a capacity. ZR_ERR_FOREIGN: no block begins
 * there. ZR_ERR_UNAVAILABLE: the backend cannot export. */
ZR_API zr_result zr_block_export(zr_arena *arena, const void *block, struct zr_segment *segments,
                                 size_t *count, size_t *lead_bytes);

/* Closes the descriptors of the block's exported granules, which are no longer needed once they were sent.
 * Other blocks on the same granules share those descriptors. A later export makes new ones. The host backend
 * has one descriptor for all its memory, which stays open. ZR_ERR_FOREIGN: no block begins there. */
ZR_API zr_result zr_block_export_end(zr_arena *arena, const void *block);

/* Maps the exported segments of another process consecutively, readable and writable, outside every arena.
 * The caller owns *out until zr_import_release(); after fork() parent and child each own a mapping. The fds
 * may be closed afterwards. ZR_ERR_INVALID: a segment is not whole granules, or not this backend's kind of
 * memory. ZR_ERR_ADDRESSES: too few addresses. ZR_ERR_UNAVAILABLE: the backend cannot import. */
ZR_API zr_result zr_import(zr_backend *backend, const struct zr_segment *segments, size_t count, void **out);
/* Releases an import; NULL does nothing. If two threads release one import, one of them succeeds.
 * ZR_ERR_FOREIGN: no import begins there. */
ZR_API zr_result zr_import_release(zr_backend *backend, void *imported);

/* ---- Tracing ------------------------------------------------------------------------------------------- */

/* Writes every event of the arena (alloc, free, map, unmap, mark) to a .zrt file, a few bytes each, through a
 * shared mapping, so the file is readable after a crash. An existing file is replaced. If a later write
 * fails, the trace ends and the arena's calls continue; zr_trace_stop() reports the failure. After fork()
 * only the parent writes; the child may stop the trace. Any thread. ZR_ERR_INVALID: the arena already has a
 * trace, or several stripes. ZR_ERR_IO: the file cannot be created. */
ZR_API zr_result zr_trace_start(zr_arena *arena, const char *path);
/* Writes a mark with `label`, cut at 63 bytes, to the trace. Without a trace it does nothing. */
ZR_API zr_result zr_trace_mark(zr_arena *arena, const char *label);
/* Ends the trace. ZR_ERR_INVALID: the arena has no trace. ZR_ERR_IO: a write failed; the file is valid up to
 * the failure. */
ZR_API zr_result zr_trace_stop(zr_arena *arena);

#ifdef __cplusplus
}
#endif

#endif
