/* cuda.h: internals of libzr_cuda.so: the real driver, the devices' arenas, and the program's blocks,
 * streams, contexts and pools. Private to alloc/preload/cuda/.
 *
 * A program's driver call reaches the function of the same name (see lookup.c). The function finds out
 * whether the memory is a block of an arena; otherwise it passes the call on to the driver unchanged.
 *
 * Freed memory may be reused:
 *  - after cuMemFree, while the device has only the default stream: at once, in that stream (request
 *    stream 0). Otherwise after the legacy default stream has passed the free, which waits for every
 *    blocking stream and every thread's default stream, and after each non-blocking stream that had work has
 *    passed the free. Blocks are then requested in a stream of the library, `idle`, which never has work, so
 *    its frees never delay reuse.
 *  - after cuMemFreeAsync: when the stream has passed the free.
 * The arena has no events of streams in contexts that the program created: a free waits for those contexts,
 * as the driver's free may. */
#ifndef ZR_PRELOAD_CUDA_H
#define ZR_PRELOAD_CUDA_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/base/compiler.h"
#include "alloc/preload/cuda/driver_api.h"
#include "alloc/preload/usage.h"
#include "alloc/zr.h"
#include "defrag/zr_defrag.h"

/* The functions that this library exports under the driver's names. */
#define ZR_CUDA_SHOWN(member, name, suffix, parameters) ZR_EXPORT zr_cu_result name##suffix parameters;
ZR_CUDA_REPLACED(ZR_CUDA_SHOWN)
#undef ZR_CUDA_SHOWN

/* ---- The real driver (driver.c) ------------------------------------------------------------------------ */

/* The number of functions that the library replaces. */
#define ZR_CUDA_ONE(member, name, suffix, parameters) +1
enum { ZR_CUDA_REPLACED_COUNT = ZR_CUDA_REPLACED(ZR_CUDA_ONE) };
#undef ZR_CUDA_ONE

/* The driver's functions; NULL: the driver has no function of that name. */
#define ZR_CUDA_POINTER(member, name, suffix, parameters) zr_cu_result(*member) parameters;
struct zr_cuda_real {
    ZR_CUDA_REPLACED(ZR_CUDA_POINTER)
    ZR_CUDA_USED(ZR_CUDA_POINTER)
};
#undef ZR_CUDA_POINTER
extern struct zr_cuda_real zr_cuda_real;

/* Finds the driver, once. False: the process has no driver. Any thread. */
bool zr_cuda_find_driver(void);
/* As zr_cuda_find_driver(), for a driver that the process has already loaded. */
bool zr_cuda_find_loaded_driver(void);
/* The index in ZR_CUDA_REPLACED of a function of the real driver; ZR_CUDA_REPLACED_COUNT: none. */
size_t zr_cuda_replaced_index(const void *function);

/* Passes a call on to the real function; an error if there is no driver or no such function. */
#define ZR_CUDA_PASS(member, ...)                                                                            \
    (!zr_cuda_find_driver() ? (zr_cu_result)ZR_CU_NOT_INITIALIZED                                            \
     : !zr_cuda_real.member ? (zr_cu_result)ZR_CU_NOT_SUPPORTED                                              \
                            : zr_cuda_real.member(__VA_ARGS__))

/* The dynamic linker's own dlsym. A sanitizer that starts looks functions up before its shadow memory exists.
 */
typedef void *zr_dlsym_function(void *handle, const char *name);
#define ZR_BEFORE_SANITIZERS __attribute__((no_sanitize("address", "undefined")))
ZR_BEFORE_SANITIZERS zr_dlsym_function *zr_real_dlsym(void);

/* ---- Per-thread default streams (thunks.c) ------------------------------------------------------------- */

/* Returns a thunk of a driver function that takes a stream. `name` has no version and no form suffix. The
 * thunk calls `used` (the same function for all thunks) before each call that uses a per-thread default
 * stream, until zr_cuda_thunks_done(). Any thread. */
void *zr_cuda_thunk(const char *name, void *function, bool per_thread_form, void (*used)(void));
/* Makes thunks jump to the driver's functions without checks. */
void zr_cuda_thunks_done(void);
void zr_cuda_thunks_forked(void);
/* Whether a library of the process that was loaded since the last call is linked with the per-thread form of
 * a driver function. Any thread. */
bool zr_cuda_imports_per_thread_forms(void);

/* ---- Devices (device.c) -------------------------------------------------------------------------------- */

enum { ZR_CUDA_DEVICES_MAX = 64, ZR_CUDA_STREAMS_MAX = 1024, ZR_CUDA_CONTEXTS_MAX = 64 };

struct zr_cuda_device {
    _Atomic bool ready;     /* all fields below are set, except `passed_on` */
    _Atomic bool passed_on; /* the driver serves the device, for example without virtual memory management */
    int ordinal;
    const struct zr_cuda_driver *driver;
    zr_cu_context primary;
    zr_cu_context retained; /* primary context as retained for calls without a context; NULL: not retained.
                               lock: device.c's `making` */
    zr_backend *backend;
    zr_arena *arena;
    zr_learner *learner;
    zr_cu_stream idle; /* the library's stream without work; NULL before it is created */
    zr_cu_stream _Atomic
        gather; /* the library's stream that waits for streams unknown to the arena; NULL: none yet */
    /* Requested bytes of the program's blocks that are live, and of all so far; updated by blocks.c. */
    _Atomic size_t live_bytes, allocated_bytes;
    _Atomic uint64_t refused_count; /* requests that failed */
};

/* A call of the program that may use an arena, between zr_cuda_enter() and zr_cuda_leave(). */
struct zr_cuda_call {
    struct zr_cuda_device *device; /* the current context's device */
    zr_cu_context context;         /* the current context */
    zr_cu_capture_mode mode;       /* the thread's mode, restored by zr_cuda_leave() */
    bool pushed;                   /* zr_cuda_leave() pops the context */
};

/* Finds the current context, relaxes the thread's capture mode, and keeps devices open until zr_cuda_leave().
 * Another result than ZR_CU_SUCCESS is the call's result, and zr_cuda_leave() must not be called. */
zr_cu_result zr_cuda_enter(struct zr_cuda_call *call);
void zr_cuda_leave(const struct zr_cuda_call *call);
/* zr_cuda_enter() for a call that names its device: the device's primary context is current until
 * zr_cuda_leave() if the thread has no current context or one of another device. */
zr_cu_result zr_cuda_enter_device(struct zr_cuda_call *call, int ordinal);
/* zr_cuda_enter() without a context, for a call that knows its device. */
void zr_cuda_enter_no_context(struct zr_cuda_call *call);

/* Creates the device's arena at its first allocation. ZR_CU_NOT_SUPPORTED: the driver serves the device. */
zr_cu_result zr_cuda_device_open(struct zr_cuda_device *device);
struct zr_cuda_device *zr_cuda_device_at(int ordinal);

/* Whether the program uses more than the default stream, so that a free must follow other streams. Once true,
 * always true. */
bool zr_cuda_many_streams(void);
/* Records that the program uses more than the default stream. The first call waits for the default streams of
 * all devices: memory that was reused in their order must not be in use when other streams get it. */
void zr_cuda_set_many_streams(void);
/* Called with a call's stream, before zr_cuda_enter(): a per-thread default stream counts as a second stream.
 */
static inline void zr_cuda_note_stream(zr_cu_stream stream)
{
    if ((uintptr_t)stream == ZR_CU_STREAM_PER_THREAD)
        zr_cuda_set_many_streams();
}

/* The driver's code for a result of zr. */
zr_cu_result zr_cuda_code(zr_result result);
/* Prints zr_last_error() if ZR_CONF=verbose. */
void zr_cuda_log(const char *call);

/* Whether this process is a forked child of a process that used CUDA: every call goes to the driver, which
 * refuses it. */
bool zr_cuda_forked(void);
/* Records that the process uses CUDA, so that its forked children cannot. */
void zr_cuda_note_used(void);
void zr_cuda_devices_forked(void);
/* Reports a failed assertion: existing blocks remain, and the driver serves further allocations. */
void zr_cuda_report_broken(const char *condition, const char *file, int line);

/* Destroys the device's arena before the program resets the primary context, which frees all memory. Waits
 * until all calls have left, and blocks new ones. `end_users` ends everything that uses the backend. */
void zr_cuda_device_end(int ordinal, void (*end_users)(struct zr_cuda_device *device));
/* Lets the driver serve the device's further allocations; existing blocks remain. */
void zr_cuda_device_disable(int ordinal, const char *why);

/* ---- Streams and contexts (streams.c) ------------------------------------------------------------------ */

/* Whether a stream of the context, which is current, is being captured. */
bool zr_cuda_capturing(zr_cu_context context);
/* Whether the stream is being captured. NULL (the legacy default stream): whether a blocking stream is. */
bool zr_cuda_stream_capturing(zr_cu_stream stream);
/* Makes the reuse of a block that is about to be freed wait for all work on the device. False: keep the
 * block, because a stream is being captured or the driver refuses. */
bool zr_cuda_follow_all(struct zr_cuda_device *device, zr_arena *arena, void *block);
/* Makes the reuse of a block wait for one stream, of any kind. False: keep the block, as for
 * zr_cuda_follow_all(). */
bool zr_cuda_follow(struct zr_cuda_device *device, zr_arena *arena, void *block, zr_cu_stream stream);
/* Whether a wait with this result means that no work remains: the wait succeeded, or the stream, its context
 * or the driver no longer exists. False: reports the error once, unless a capture forbade the wait. */
bool zr_cuda_wait_is_over(zr_cu_result code);
/* The arena's number of a stream, which may be the current context's default stream. False: the arena has no
 * events of the stream. */
bool zr_cuda_stream_number(struct zr_cuda_device *device, zr_cu_stream stream, uint64_t *out);
/* Removes the streams of a context that is destroyed. */
void zr_cuda_streams_forget(zr_cu_context context);
void zr_cuda_streams_forked(void);
/* Whether the program created the context, and forgetting it when the program destroys it. */
bool zr_cuda_context_known(zr_cu_context context);
void zr_cuda_context_forget(zr_cu_context context);

/* ---- Names of blocks (tags.c) -------------------------------------------------------------------------- */

/* Sets the calling thread's tag: the number of a name; NULL: none. Names are kept until the process ends.
 * ZR_ERR_INVALID: the name is too long or empty, or there are too many names. */
zr_result zr_cuda_tag_set(const char *name);
/* The calling thread's tag; 0: none. */
uint8_t zr_cuda_tag(void);
/* The name of a tag; NULL: none. */
const char *zr_cuda_tag_name(uint8_t tag);
/* The arena's tag of that name; ZR_TAG_OTHER: the arena has none of that name. */
zr_tag zr_cuda_tag_of_arena(uint8_t tag);
void zr_cuda_tags_forked(void);

/* ---- Blocks (blocks.c, memory.c) ----------------------------------------------------------------------- */

struct zr_cuda_pool;

struct zr_cuda_block {
    struct zr_cuda_block *children[2]; /* links of a tree by address */
    uintptr_t address;
    size_t bytes;
    uint64_t id; /* a number that is never reused */
    zr_cu_context context;
    struct zr_cuda_device *device;
    zr_arena *arena;           /* NULL: the block is imported */
    struct zr_cuda_pool *pool; /* NULL: the block is in no pool */
    uint64_t stream;           /* the requested stream */
    uint8_t tag;               /* zr_cuda_tag() of the thread that allocated the block */
    bool everywhere;           /* used in a stream without events: a free waits for all work */
    uint64_t secret;           /* names the block to other processes; 0: not exported */
    /* An imported block has these fields and the secret. */
    void *import;
    int32_t owner_pid; /* the process that exported the block */
    unsigned opened_count;
};

/* Drops deferred frees of the device, whose arena is destroyed. */
void zr_cuda_deferred_forget(struct zr_cuda_device *device);

/* Reserves a record for one block. False: the system refuses memory. */
bool zr_cuda_blocks_reserve(void);
void zr_cuda_blocks_unreserve(void);
/* Inserts a copy with a new id; the caller has reserved a record. */
void zr_cuda_blocks_put(const struct zr_cuda_block *block);
/* Copies the block that contains the address. False: no block does. */
bool zr_cuda_blocks_find(zr_cu_address address, struct zr_cuda_block *out);
/* Removes the arena's block that begins at the address. */
bool zr_cuda_blocks_take(zr_cu_address address, struct zr_cuda_block *out);
/* Closes the import that begins at the address once, and removes it if opened_count becomes 0. */
bool zr_cuda_blocks_close(zr_cu_address address, struct zr_cuda_block *out);
/* Removes any one block of the context, or of the device if the context is NULL. */
bool zr_cuda_blocks_take_any(zr_cu_context context, struct zr_cuda_device *device, struct zr_cuda_block *out);
/* Changes a block in place. False: no block begins at the address. `change` runs under the lock of all
 * blocks. */
bool zr_cuda_blocks_change(uintptr_t address, void (*change)(struct zr_cuda_block *, void *), void *argument);
/* Copies a block for which `test` is true. */
bool zr_cuda_blocks_search(bool (*test)(const struct zr_cuda_block *, const void *), const void *argument,
                           struct zr_cuda_block *out);
/* Copies the first block that begins at or after the address. */
bool zr_cuda_blocks_next(uintptr_t address, struct zr_cuda_block *out);
void zr_cuda_blocks_forked(void);

struct zr_cuda_request {
    size_t bytes;
    zr_cu_context context;
    struct zr_cuda_pool *pool;
    zr_arena *arena; /* NULL: the device's arena */
    bool any_stream; /* the block may be used in any stream at once */
    bool waits;      /* wait for freed memory before the arena grows */
    uint64_t stream; /* the request's stream unless any_stream */
};

/* Allocates a block; after a failure trims and tries again. */
zr_cu_result zr_cuda_block_new(struct zr_cuda_device *device, const struct zr_cuda_request *request,
                               zr_cu_address *out);
/* Frees a block whose record was removed. `everywhere`: any work of the program may use the block; else only
 * work in `stream`. */
void zr_cuda_block_end(const struct zr_cuda_block *block, bool everywhere, zr_cu_stream stream);

/* ---- Pools (pools.c) ----------------------------------------------------------------------------------- */

/* The pool of a handle if an arena serves it; NULL: the driver serves the pool. */
struct zr_cuda_pool *zr_cuda_pool_of(zr_cu_pool handle);
/* The device's current pool if an arena serves it; NULL: the driver serves the pool. */
struct zr_cuda_pool *zr_cuda_pool_current(int ordinal);
int zr_cuda_pool_device(const struct zr_cuda_pool *pool);
zr_cu_pool zr_cuda_pool_handle(const struct zr_cuda_pool *pool);
/* Counts a block of the pool that is allocated (`in`) or freed. */
void zr_cuda_pool_count(struct zr_cuda_pool *pool, size_t bytes, bool in);
void zr_cuda_pools_forked(void);

/* ---- Other processes (ipc.c, ipc_server.c) ------------------------------------------------------------- */

void zr_cuda_ipc_forked(void);

/* ---- Figures for zr run (figures.c) -------------------------------------------------------------------- */

/* Called when a device opens: finds the process's record if `zr run` requests one. One call at a time. */
void zr_cuda_figures_start(const struct zr_cuda_device *device);
/* Called after live or held bytes of the device changed. Any thread, without an arena's lock. */
void zr_cuda_figures_note(const struct zr_cuda_device *device);
/* Called after a request for `bytes` failed. */
void zr_cuda_figures_refused(const struct zr_cuda_device *device, size_t bytes);
void zr_cuda_figures_forked(void);

/* ---- The self-test (paths.c) --------------------------------------------------------------------------- */

/* Compares the driver's functions with the replaced ones. Prints the result if ZR_CONF=verbose, and ends the
 * process if ZR_STRICT is set and a path is missed. Called once, when the driver is found. */
void zr_cuda_paths_check(void);
/* Does the check at the library's start if the program is linked with the driver. */
void zr_cuda_paths_start(void);

#endif
