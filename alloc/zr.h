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

/* The result of a call. Zero is success. A call that fails changes nothing, unless its comment says
 * otherwise. Comments do not repeat two failures: ZR_ERR_INVALID for a NULL that must not be one, and
 * ZR_ERR_HOST_MEMORY of every call that creates, allocates, imports or starts something. */
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
    ZR_ERR_TAG_LIMIT,   /* a tag's bytes would pass what zr_arena_set_tag_limits() allows them */
    ZR_RESULT_COUNT
} zr_result;

/* The name of a result, "memory" for ZR_ERR_MEMORY; "unknown" for any other number. Any thread. */
ZR_API const char *zr_result_name(zr_result result);

/* The words of this thread's last failure, never NULL, "" before the first. Valid until the thread's next
 * failing call into zr. */
ZR_API const char *zr_last_error(void);

/* ---- Options ------------------------------------------------------------------------------------------- */

/* Every struct of options begins with struct_bytes, so that later releases can add fields: set it to the
 * struct's sizeof. Fields that the caller's struct does not have are 0, which is the default of each. 0 means
 * the fields of the first release. A library that is older than the caller's header accepts the struct as
 * long as every field that it does not know is 0, and fails with ZR_ERR_INVALID otherwise. */

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

/* Where physical memory comes from; several arenas may stand on one. (alloc/backend/backend.h of the sources
 * has the operations behind it.) Any thread may call. */
typedef struct zr_backend zr_backend;

struct zr_host_options {
    size_t struct_bytes;  /* its sizeof, or 0: see "Options" */
    size_t granule_bytes; /* 0: 2 MiB. A power of two, at least the page size */
    size_t limit_bytes;   /* physical memory this backend may hold; 0: no limit of its own */
    bool small_pages;     /* leave huge pages alone, for measurements and tests */
    bool private_memory;  /* memory of this process alone, which takes pages as they are touched */
};

/* Memory of this machine: granules are ranges of one memfd, as huge pages where the kernel grants them. They
 * can be mapped at several addresses, moved without a copy, and shared with other processes by file
 * descriptor. `options` may be NULL.
 *
 * After fork() each process has its own counters, but both share the memory of the granules that exist: live
 * blocks, free memory and the cache. So only one of the two processes may go on allocating from an arena that
 * was made before. The other may read and write what was live, free it, and make a new arena, on this backend
 * or another, whose memory is its own.
 *
 * With `private_memory` granules are anonymous memory: not shared, not mapped twice, not moved, and after
 * fork() the child has copies and goes on for itself. A limit counts whole granules, touched or not.
 *
 * ZR_ERR_INVALID: bad granule size, or a ZR_CONF that makes no sense. ZR_ERR_UNAVAILABLE: no memfd on this
 * kernel. ZR_ERR_ADDRESSES: `ulimit -v` leaves too little. */
ZR_API zr_result zr_backend_host_create(zr_backend **out, const struct zr_host_options *options);

struct zr_sim_options {
    size_t struct_bytes;   /* its sizeof, or 0: see "Options" */
    size_t granule_bytes;  /* 0: 2 MiB */
    size_t capacity_bytes; /* physical memory that is simulated; 0: no end */
    uint64_t work_ns; /* streams are asynchronous: a point in one has passed so long after it was recorded; 0:
                         synchronous */
    /* What an operation adds to the clock: reserve addresses, release them, create memory, destroy it, map,
     * unmap, set access, copy or fill; in this order. 0: nothing. */
    uint64_t call_ns[8];
};

/* Bookkeeping alone: the same contract enforced on made-up addresses, any capacity, no memory. Never
 * dereference an address from it. After fork() each process goes on with a copy of its own. `options` may be
 * NULL. ZR_ERR_INVALID: bad granule size or ZR_CONF. */
ZR_API zr_result zr_backend_sim_create(zr_backend **out, const struct zr_sim_options *options);

enum zr_cuda_kind {
    ZR_CUDA_DEVICE = 0, /* the GPU's own memory; the processor cannot read or write it */
    ZR_CUDA_HOST        /* this machine's memory on one NUMA node, pinned; the processor and the GPU see it.
                           Where the driver refuses that (many containers): without a node, else locked pages
                           of the process, which other processes cannot map */
};

struct zr_cuda_options {
    size_t struct_bytes; /* its sizeof, or 0: see "Options" */
    int device;          /* ordinal, as CUDA_VISIBLE_DEVICES numbers them */
    enum zr_cuda_kind kind;
    int numa_node;        /* ZR_CUDA_HOST: the node; -1: the one closest to the device */
    size_t granule_bytes; /* 0: what the driver recommends, of much host memory more: each granule is a
                             mapping of the process; else a multiple of the driver's granularity */
    size_t limit_bytes;   /* physical memory this backend may hold; 0: no limit of its own */
    const int *peers;     /* ordinals of other devices that may read and write the memory; borrowed */
    size_t peers_count;
    size_t expected_bytes; /* ZR_CUDA_HOST: what will be mapped; granules grow with it; 0: the limit, or all
                              the machine has */
};

/* Memory of a GPU through the virtual memory calls of its driver, which is loaded at run time: no toolkit is
 * needed to build, and a machine without one gets a result and words. Stream numbers given to the arena are
 * CUstream values of the device's primary context (the one that the CUDA runtime uses), 0 its default stream,
 * which CU_STREAM_LEGACY means too. CU_STREAM_PER_THREAD is another stream in each thread: every call that
 * takes a stream refuses it with ZR_ERR_INVALID and changes nothing. A program compiled with
 * --default-stream per-thread means that one by 0 in its own calls: it gives streams that it has made.
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
    size_t struct_bytes;  /* its sizeof, or 0: see "Options" */
    zr_backend *backend;  /* borrowed; must outlive the arena */
    const char *name;     /* shown in reports; copied, cut at 31 characters; NULL: "arena" */
    size_t reserve_bytes; /* addresses to reserve; 0: chosen from the limit and the machine */
    size_t limit_bytes;   /* physical memory the arena may hold mapped or in cache; 0: the backend's limit */
    /* Threads that allocate at once without waiting for one another, up to 8; 0: 1, and blocks are packed
     * best. More: a thread that keeps meeting others gets addresses of its own, under the same limit. Then
     * peak_live_bytes is right to a MiB per thread, and the peaks of requests and tags are sums of each one's
     * own. Traces, learners and plans keep all threads together. */
    unsigned threads;
};

/* Reserves the addresses of an arena. On success *out owns them until zr_arena_destroy(). Thread-safe
 * afterwards: any thread may allocate, free and ask. fork() at any time leaves the child an arena that no
 * thread is at work on, with the memory that its backend says. ZR_ERR_INVALID: no backend, or a limit below
 * one granule. ZR_ERR_ADDRESSES: the reservation was refused (ulimit -v, for instance; the words say so). */
ZR_API zr_result zr_arena_create(zr_arena **out, const struct zr_arena_options *options);

/* Releases everything, live blocks included; *leaked_bytes (may be NULL) gets what was still live. The arena
 * is gone whatever the result but one: ZR_ERR_INVALID: a contiguous pool stands on it, which must end first;
 * nothing is released then. ZR_ERR_IO: its trace was not written to the end. ZR_ERR_UNAVAILABLE: the
 * driver kept memory that it could not unmap, which a driver does when a kernel has crashed, or after fork().
 */
ZR_API zr_result zr_arena_destroy(zr_arena *arena, size_t *leaked_bytes);

/* The backend that the arena stands on, borrowed; NULL for NULL. Any thread. */
ZR_API zr_backend *zr_arena_backend(const zr_arena *arena);

struct zr_request {
    size_t bytes;     /* above 0 */
    size_t alignment; /* a power of two up to the granule size; 0: 256 */
    zr_tag tag;
    /* An opaque number; same stream means program order; 0 is the default stream. On cuda a CUstream of the
     * arena's own device, in its primary context: what another's stream frees is never anybody else's, and
     * the arena's end does not wait for it. */
    uint64_t stream;
};

/* Allocates one block. The memory is not cleared. On success *out is the block's first byte; on failure *out
 * is NULL. ZR_ERR_INVALID: zero bytes, overflowing size, bad alignment or tag, one name for many streams.
 * ZR_ERR_MEMORY: shortage or fragmentation, and the words say which, the largest free run, who pins the
 * free extents, what would help. ZR_ERR_ADDRESSES: the same of the reservation, or of the mappings that the
 * system grants. ZR_ERR_TAG_LIMIT: see there. */
ZR_API zr_result zr_arena_alloc(zr_arena *arena, const struct zr_request *request, void **out);

/* Frees a block by its first byte. Work that the block's stream was given before may still run: the stream
 * itself may get the memory again at once, everybody else when it has passed this point. NULL is fine and
 * does nothing. ZR_ERR_FOREIGN: not a block's first byte. ZR_ERR_DOUBLE_FREE where it can be told.
 * ZR_ERR_CORRUPT (check:3): written past its end; it is freed. */
ZR_API zr_result zr_arena_free(zr_arena *arena, void *block);

/* Notes that a second stream uses the block, too. After the free, the memory goes to nobody until that stream
 * has passed the point of the free; the free itself does not wait. Call it before the free, before or after
 * giving the stream its work. On a backend whose streams are synchronous (host, sim) it only checks the
 * pointer. Any thread. ZR_ERR_FOREIGN: no block begins there. ZR_ERR_HOST_MEMORY: there is no record for the
 * stream, and the block is as it was. ZR_ERR_INVALID on cuda: the stream is a peer device's or another
 * context's, which no event of this one follows; the block is as it was. Let a stream of the arena's device
 * wait for the peer's work and name that one, or wait for that work before the free. */
ZR_API zr_result zr_block_use(zr_arena *arena, const void *block, uint64_t stream);

/* Gives idle granules back to the backend until at most `keep_bytes` of them remain. Memory that a stream may
 * still use, and memory that the backend does not take, stays. *released_bytes (may be NULL) gets the bytes
 * given back. Any thread. */
ZR_API zr_result zr_arena_trim(zr_arena *arena, size_t keep_bytes, size_t *released_bytes);

/* Whether granules may be mapped elsewhere while the addresses above them are free. */
enum zr_granule_class {
    ZR_GRANULE_MOVABLE = 0, /* at once: what every granule is unless somebody says otherwise */
    ZR_GRANULE_REGISTERED,  /* no: a communication library or a network card has registered it */
    ZR_GRANULE_EXPORTED,    /* no: another process has mapped it; zr_block_export() sets it */
    ZR_GRANULE_FIXED,       /* no: a CUDA graph, or a device, has recorded its address */
    ZR_GRANULE_CLASS_COUNT
};

/* Sets the class of every granule that [address, address + bytes) touches; granules that were created as one
 * run take the run along. A granule that is not movable stays under its addresses, free or not: it is not
 * stolen, trimmed or taken by a plan, and new blocks at those addresses use it. Its class stays until it is
 * set again, also after the block is free, so that whoever registered memory can undo that later.
 * zr_arena_destroy() returns it whatever its class. Any thread. ZR_ERR_FOREIGN: not all of it is mapped in
 * this arena; nothing is changed. Memory of contiguous pools is such: pools move their entries. */
ZR_API zr_result zr_arena_set_granule_class(zr_arena *arena, const void *address, size_t bytes,
                                            enum zr_granule_class granule_class);

/* Makes every granule that is mapped now and movable ZR_GRANULE_FIXED, or those of that class movable again:
 * for who has recorded addresses all over the arena, as in a CUDA graph. Any thread. ZR_ERR_INVALID: no
 * arena, or one of several stripes. */
ZR_API zr_result zr_arena_fix(zr_arena *arena, bool fixed);

/* Called at every change of the mapped memory, for communication libraries that register buffers. Either
 * function may be NULL. It runs with the lock of the arena, or pool, whose memory it is. Of that one it may
 * call zr_arena_find() alone; of the arena under the pool, and of other arenas, pools and rings, any function
 * that does not lead back to it by another map callback. fork() by other threads waits for it, and it may not
 * fork. */
struct zr_map_callback {
    /* Whole granules were mapped, with access, and no caller has them yet. Any result but ZR_OK rejects them:
     * they are unmapped without a further call, and the request that needed them fails with that result. */
    zr_result (*mapped)(void *argument, void *address, size_t bytes);
    /* The memory is about to be unmapped. What was mapped in one call may be unmapped in several, and the
     * reverse; every byte is unmapped as often as it was mapped. If the driver fails to unmap it, `mapped` is
     * called again, and its result is ignored. */
    void (*unmapping)(void *argument, void *address, size_t bytes);
    void *argument;
};

/* At one time for one arena. */
enum { ZR_MAP_CALLBACKS_MOST = 4 };

/* Calls `callback` (copied) for what is mapped in the arena's range now, and from now on for each change,
 * until zr_arena_remove_map_callback() or the arena's end, which call it for everything that is still mapped.
 * Contiguous pools have a map callback of their own. Any thread. ZR_ERR_INVALID: there are
 * ZR_MAP_CALLBACKS_MOST already. Others: the callback rejected what is mapped now. */
ZR_API zr_result zr_arena_add_map_callback(zr_arena *arena, const struct zr_map_callback *callback);
/* Removes the callback that was added with the same three values. ZR_ERR_INVALID: there is none. */
ZR_API zr_result zr_arena_remove_map_callback(zr_arena *arena, const struct zr_map_callback *callback);

struct zr_block_info {
    void *address;
    size_t bytes;          /* as requested */
    size_t reserved_bytes; /* with rounding */
    zr_tag tag;
    uint64_t stream;
};

/* The block that holds `pointer`, which may be interior; else the entry of a contiguous pool of the arena (a
 * movable one's place may change at once). Any thread, also one that is being told of maps. A block is found
 * without a lock; an entry, and that there is neither, with one that is held for a look through the pool's
 * entries. After the first search for a while, and until 2,048 blocks have been freed without one, a free
 * takes some nanoseconds longer. ZR_ERR_FOREIGN: neither. */
ZR_API zr_result zr_arena_find(zr_arena *arena, const void *pointer, struct zr_block_info *out);

/* ---- Statistics ---------------------------------------------------------------------------------------- */

struct zr_arena_stats {
    size_t live_bytes;      /* blocks, with rounding */
    size_t requested_bytes; /* blocks, as requested */
    size_t mapped_bytes;    /* granules mapped under blocks, free extents and contiguous pools */
    size_t cached_bytes;    /* granules owned and not mapped */
    size_t reserved_bytes;  /* mapped + cache: physical memory held */
    size_t pending_bytes;   /* freed, and a stream may still be working on it */
    size_t stranded_bytes;  /* free, mapped, and in no whole movable granule: usable by nobody elsewhere */
    size_t peak_live_bytes;
    size_t peak_requested_bytes;
    size_t peak_reserved_bytes;
    size_t blocks_count;
    uint64_t allocations_count;   /* successful, ever */
    uint64_t backend_calls_count; /* create, destroy, map, unmap, set access, record an event; ever; of pools
                                   * too, of rings not (an event at each release, where streams are late) */
    size_t live_by_tag_bytes[ZR_TAG_COUNT];
    size_t peak_by_tag_bytes[ZR_TAG_COUNT]; /* each tag's live bytes at the first moment live_bytes peaked */
    size_t unmovable_bytes;                 /* of mapped_bytes: granules whose class is not movable */
};

/* A copy of the numbers, consistent where one thread allocates at a time, or with struct zr_arena_options'
 * `threads` 1. With more, each thread's part is read by itself while the others go on: sums may be of moments
 * that are microseconds apart. Any thread. */
ZR_API zr_result zr_arena_get_stats(zr_arena *arena, struct zr_arena_stats *out);

/* Starts the peaks anew from the present state. */
ZR_API zr_result zr_arena_reset_peaks(zr_arena *arena);

/* One number by name: "arena.N." and a field of struct zr_arena_stats ("arena.0.stranded_bytes"), or
 * "arena.N.tag.TAG.live_bytes" or ".peak_bytes" with the name of a tag, or "option." and a name of ZR_CONF
 * ("option.check"). Arenas are numbered from 0 in the order of creation, a new one by the least number that
 * no other has. Any thread. ZR_ERR_INVALID: nothing has that name. */
ZR_API zr_result zr_ctl_get(const char *name, uint64_t *out);

/* Runs every consistency check over the arena's records. ZR_ERR_CORRUPT with words on the first that fails.
 */
ZR_API zr_result zr_arena_check(zr_arena *arena);

/* ---- Tag limits ---------------------------------------------------------------------------------------- */

/* Bytes of blocks and of pools' entries, with rounding, as live_by_tag_bytes counts them. ZR_TAG_OTHER is in
 * none of it: its own field is not looked at, and `together` counts all other tags. SIZE_MAX: no end. */
struct zr_tag_limits {
    size_t by_tag_bytes[ZR_TAG_COUNT];
    size_t total_bytes;
};

/* Holds an arena to a byte plan: from now on a request that would take its tag, or all tags together, above
 * the tag limit fails with ZR_ERR_TAG_LIMIT and changes nothing; the words name the tag and the bytes. What
 * is live stays, and counts, as does what another thread is about to append to a pool. NULL ends it. While
 * tag limits stand, calls do more than usual, and all threads allocate in turn. Any thread. ZR_ERR_INVALID:
 * threads have addresses of their own already: set tag limits before they allocate, or make the arena for one
 * thread. */
ZR_API zr_result zr_arena_set_tag_limits(zr_arena *arena, const struct zr_tag_limits *tag_limits);
/* The most that there has been of each tag, at whatever time, and of all together, since tag limits were set:
 * where those had no end, the byte plan of what was done since, ready to be the tag limits of the next run.
 * Any thread. ZR_ERR_INVALID: there are no tag limits. */
ZR_API zr_result zr_arena_get_high_water(zr_arena *arena, struct zr_tag_limits *out);

/* ---- Contiguous pools ---------------------------------------------------------------------------------- */

/* Memory of one purpose in one row of addresses: gradients, activation checkpoints. A pool reserves addresses
 * of its own and maps an arena's granules under the part in use. Entries follow one another in the order in
 * which they are appended and are written where they lie; the pool grows by mapping more at its end and
 * shrinks by unmapping what no entry touches, and no fixed entry ever moves. Entries made movable are moved
 * down by zr_contiguous_compact(), unless borrowed. Live bytes, tags, peaks and physical memory count in the
 * arena's statistics.
 *
 * An entry belongs to one stream at a time: the one it was appended with, then the one of its last
 * zr_contiguous_return(); work of the next stream is ordered after that of the last by whoever hands it on.
 * What lay under a freed or moved entry serves its own stream at once, everything else when the stream has
 * passed that point. Any thread may call, not a child after fork() of a process with CUDA; elsewhere a child
 * has the pool as it has its arena: on host memory one of the two processes may append and compact. A call
 * that fails leaves every entry where it is and as it is. */
typedef struct zr_contiguous zr_contiguous;

/* An entry of one pool; 0 is none. */
typedef uint64_t zr_entry;

struct zr_contiguous_options {
    size_t struct_bytes;  /* its sizeof, or 0: see "Options" */
    zr_arena *arena;      /* borrowed; must outlive the pool */
    const char *name;     /* shown in messages; copied, cut at 31 characters; NULL: "pool" */
    zr_tag tag;           /* of all its entries */
    size_t reserve_bytes; /* addresses, the farthest an entry can end; 0: as many as the arena has */
    size_t keep_bytes;    /* idle granules kept mapped for what comes next; 0: all go back at once */
    struct zr_map_callback map_callback;
};

/* Reserves the addresses. On success *out owns the pool until zr_contiguous_destroy(), which comes before
 * that of the arena. ZR_ERR_INVALID: bad tag or size. ZR_ERR_ADDRESSES: the reservation was refused. */
ZR_API zr_result zr_contiguous_create(zr_contiguous **out, const struct zr_contiguous_options *options);
/* Waits for the streams and gives all memory back to the arena, live entries included; *leaked_bytes (may be
 * NULL) gets what was still live. The pool is gone whatever the result. ZR_ERR_UNAVAILABLE: the driver would
 * not unmap some of its addresses; they stay reserved, their memory is the arena's again; or it could not be
 * waited for, and the memory is nobody's, since streams may be at work on it. */
ZR_API zr_result zr_contiguous_destroy(zr_contiguous *pool, size_t *leaked_bytes);

struct zr_entry_request {
    size_t bytes;     /* above 0 */
    size_t alignment; /* a power of two from 16 to the granule size; 0: 256. With the granule's, a movable
                       * entry's whole granules move without a copy */
    bool movable;
    uint64_t stream;
};

/* Appends one entry behind the last. The memory is not cleared. *address (may be NULL) gets the first byte of
 * a fixed entry, its place until it is freed; NULL for a movable one: borrow it. ZR_ERR_INVALID: bytes or
 * alignment. ZR_ERR_MEMORY: the arena has no granules left. ZR_ERR_ADDRESSES: the reservation ends, or the
 * system's mappings do; compact the pool, or reserve more. ZR_ERR_TAG_LIMIT: the pool's tag is at its own. */
ZR_API zr_result zr_contiguous_append(zr_contiguous *pool, const struct zr_entry_request *request,
                                      zr_entry *out, void **address);
/* Frees an entry; 0 does nothing. ZR_ERR_DOUBLE_FREE: it was freed before. ZR_ERR_FOREIGN: never an entry of
 * this pool. ZR_ERR_INVALID: it is borrowed. */
ZR_API zr_result zr_contiguous_free(zr_contiguous *pool, zr_entry entry);

/* Lends the address of an entry, which stays where it is until as many returns as borrows. Failures as for a
 * free. ZR_ERR_CORRUPT: a move of it was refused half way, and so was the way back; its contents are lost. */
ZR_API zr_result zr_contiguous_borrow(zr_contiguous *pool, zr_entry entry, void **address);
/* Work submitted to `stream` so far has used the address. ZR_ERR_INVALID: not borrowed. */
ZR_API zr_result zr_contiguous_return(zr_contiguous *pool, zr_entry entry, uint64_t stream);

/* Moves movable entries down, in order, until none of them has room before it but for its alignment; borrowed
 * and fixed ones stay. Contents move in the entries' streams: whole granules by mapping them elsewhere where
 * that can be, else by copies. Waits until what became free has been given back. ZR_ERR_MEMORY,
 * ZR_ERR_ADDRESSES and others: as far as it came. */
ZR_API zr_result zr_contiguous_compact(zr_contiguous *pool);
/* Gives idle granules back to the arena until at most `keep_bytes` remain. *released_bytes may be NULL. */
ZR_API zr_result zr_contiguous_trim(zr_contiguous *pool, size_t keep_bytes, size_t *released_bytes);

struct zr_contiguous_stats {
    size_t live_bytes;      /* entries, with rounding */
    size_t requested_bytes; /* entries, as requested */
    size_t pending_bytes;   /* freed or left behind, in use by a stream still */
    size_t mapped_bytes;    /* physical memory held */
    size_t idle_bytes;      /* of it in whole granules that nothing touches */
    size_t stranded_bytes;  /* mapped, and none of the above */
    size_t end_bytes;       /* where the last entry ends */
    size_t peak_live_bytes, peak_mapped_bytes;
    size_t entries_count, borrowed_count;
    uint64_t copied_bytes, remapped_bytes; /* by compaction, ever */
    uint64_t backend_calls_count;          /* map, unmap, set access, record an event; ever */
};
ZR_API zr_result zr_contiguous_get_stats(zr_contiguous *pool, struct zr_contiguous_stats *out);
/* Runs every consistency check over the pool's records. ZR_ERR_CORRUPT with words on the first that fails. */
ZR_API zr_result zr_contiguous_check(zr_contiguous *pool);

/* ---- Buffer rings -------------------------------------------------------------------------------------- */

/* Buffers of one size for data on its way, handed out in order, in memory that is taken, aligned and
 * registered once: its size is fixed at the start and does not grow with what passes through. Any thread may
 * acquire and release. After fork() the child's ring has no threads that wait; what was acquired stays so,
 * and on host memory the buffers are the parent's too: use a ring in one of the two. */
typedef struct zr_ring zr_ring;

struct zr_ring_options {
    size_t struct_bytes; /* its sizeof, or 0: see "Options" */
    zr_arena *arena;     /* borrowed; the buffers are one block of it */
    zr_tag tag;
    size_t buffer_bytes;
    unsigned buffers_count;
    size_t alignment; /* of each buffer: a power of two up to the granule size; 0: 256 */
    struct zr_map_callback
        map_callback; /* told once of all the memory when it is there, and once before it goes */
};

/* The bytes that a ring with these numbers takes from its arena; 0: more than there can be. */
ZR_API size_t zr_ring_bytes(const struct zr_ring_options *options);
/* ZR_ERR_INVALID: no buffers, no bytes, bad alignment or tag; else the arena's failure. */
ZR_API zr_result zr_ring_create(zr_ring **out, const struct zr_ring_options *options);
/* Waits for the streams that use the buffers. ZR_ERR_INVALID: buffers are acquired still, or a thread waits
 * for one; ZR_ERR_UNAVAILABLE: nobody knows whether one of the streams still uses them. Nothing is released
 * then. NULL does nothing. */
ZR_API zr_result zr_ring_destroy(zr_ring *ring);

#define ZR_RING_WAIT UINT64_MAX /* as a timeout: none */

/* Lends the next buffer, for work in `stream`: after the last one comes the first again. Waits until it has
 * been released, and until the stream that used it last has passed that point, if that is another one.
 * ZR_ERR_TIMEOUT: it took longer than `timeout_ns` (0: only if it can be had at once). */
ZR_API zr_result zr_ring_acquire(zr_ring *ring, uint64_t stream, uint64_t timeout_ns, void **out);
/* Gives a buffer back, in any order; work submitted to `stream` so far has used it. ZR_ERR_FOREIGN: no buffer
 * begins there. ZR_ERR_DOUBLE_FREE: it is not acquired. ZR_ERR_INVALID: a stream as zr_block_use() refuses
 * it; the buffer stays acquired. */
ZR_API zr_result zr_ring_release(zr_ring *ring, void *buffer, uint64_t stream);

/* ---- Sharing between processes ------------------------------------------------------------------------- */

/* One piece of exported memory: `bytes` at `offset_bytes` of the object behind `fd`. */
struct zr_segment {
    int fd; /* of the backend when exported, until zr_block_export_end() or the memory's end; the receiver's
               own when imported */
    uint64_t offset_bytes;
    size_t bytes;
};

/* Describes the granules under a block, in address order, neighbours joined, and makes those that were
 * movable ZR_GRANULE_EXPORTED: after the block is free no other memory comes to be what the importer sees.
 * Once every importer has released them, zr_arena_set_granule_class() makes them movable again. *count holds
 * the room in `segments` and becomes the number needed; `lead_bytes` gets the block's offset in the first
 * piece. ZR_ERR_INVALID: too little room. ZR_ERR_FOREIGN: no block begins there. ZR_ERR_UNAVAILABLE: the
 * backend cannot export. */
ZR_API zr_result zr_block_export(zr_arena *arena, const void *block, struct zr_segment *segments,
                                 size_t *count, size_t *lead_bytes);

/* Closes the descriptors that an export has left with the granules of the block, once they have been sent;
 * those of neighbours on the same granules too. The host backend has one for all its memory, which stays. A
 * later export makes new ones. ZR_ERR_FOREIGN: no block begins there. */
ZR_API zr_result zr_block_export_end(zr_arena *arena, const void *block);

/* Maps another process's exported pieces one after the other, readable and writable, outside every arena.
 * *out is owned until zr_import_release(), in a child after fork() too, each process for itself. The fds may
 * be closed afterwards. ZR_ERR_INVALID: a piece that is no number of granules, or not memory of this kind.
 * ZR_ERR_ADDRESSES: no room for it. ZR_ERR_UNAVAILABLE: the backend cannot import. */
ZR_API zr_result zr_import(zr_backend *backend, const struct zr_segment *segments, size_t count, void **out);
/* NULL does nothing. Of two calls at once for one import one releases it. ZR_ERR_FOREIGN: no import begins
 * there. */
ZR_API zr_result zr_import_release(zr_backend *backend, void *imported);

/* ---- Tracing ------------------------------------------------------------------------------------------- */

/* Writes every event of the arena (alloc, free, map, unmap, marks) to a .zrt file, a few bytes each, through
 * a shared mapping: what was written is readable after a crash. A file of that name is replaced. A write that
 * fails later ends the trace, not the calls; zr_trace_stop() tells. Any thread. ZR_ERR_INVALID: the arena
 * writes a trace already, or its threads have addresses of their own by now. ZR_ERR_IO: the file cannot be
 * made. After fork() the parent alone writes on; the child's calls write nothing, and it may stop the trace.
 */
ZR_API zr_result zr_trace_start(zr_arena *arena, const char *path);
/* Notes a word among the events, cut at 63 bytes. Without a trace it does nothing. */
ZR_API zr_result zr_trace_mark(zr_arena *arena, const char *label);
/* ZR_ERR_INVALID: no trace is written. ZR_ERR_IO: it ended early, and what was written until then is good. */
ZR_API zr_result zr_trace_stop(zr_arena *arena);

#ifdef __cplusplus
}
#endif

#endif
