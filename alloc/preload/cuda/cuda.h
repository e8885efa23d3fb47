/* cuda.h: libzr_cuda.so inside: the real driver, the arenas of the devices, and what the program has: its
 * blocks, streams, contexts and pools. Private to alloc/preload/cuda/.
 *
 * A program's call comes to the function of the same name (driver.c says how), which looks up whose the
 * memory is: a block of an arena, or the driver's, to which the call is passed on as it came.
 *
 * When memory that was freed may be handed out again:
 *  - by cuMemFree, while the device has no stream but the default one: at once, in that stream (request
 *    stream 0). Else when the legacy default stream has passed the free, which waits for every blocking
 *    stream and every thread's own default stream, and each non-blocking stream that had work then has.
 *    Blocks are then requested in a stream of the library's, `idle`, which never has work, so its frees
 *    never delay reuse.
 *  - by cuMemFreeAsync: when its stream has passed the free.
 * Streams of contexts that the program created are followed by no event of the arena's: a free waits for
 * those contexts, as the driver's own may. */
#ifndef ZR_PRELOAD_CUDA_H
#define ZR_PRELOAD_CUDA_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/base/compiler.h"
#include "alloc/preload/cuda/driver_api.h"
#include "alloc/preload/say.h"
#include "alloc/zr.h"
#include "defrag/zr_defrag.h"

/* What this library shows, by the driver's names. */
#define ZR_CUDA_SHOWN(member, name, suffix, parameters) ZR_EXPORT zr_cu_result name##suffix parameters;
ZR_CUDA_TAKEN(ZR_CUDA_SHOWN)
#undef ZR_CUDA_SHOWN

/* ---- The real driver (driver.c) ------------------------------------------------------------------------ */

/* The driver's functions by their names; NULL: it has none of that name. */
#define ZR_CUDA_POINTER(member, name, suffix, parameters) zr_cu_result(*member) parameters;
struct zr_cuda_real {
    ZR_CUDA_TAKEN(ZR_CUDA_POINTER)
    ZR_CUDA_USED(ZR_CUDA_POINTER)
};
#undef ZR_CUDA_POINTER
extern struct zr_cuda_real zr_cuda_real;

/* Finds the driver, once. False: the process has none. Any thread. */
bool zr_cuda_see(void);

/* The real function's answer, for what is not ours; also where there is no driver, or an older one. */
#define ZR_CUDA_PASS(member, ...)                                                                            \
    (!zr_cuda_see()         ? (zr_cu_result)ZR_CU_NOT_INITIALIZED                                            \
     : !zr_cuda_real.member ? (zr_cu_result)ZR_CU_NOT_SUPPORTED                                              \
                            : zr_cuda_real.member(__VA_ARGS__))

/* The dynamic linker's own dlsym. */
void *zr_real_dlsym(void *handle, const char *name);

/* What stands in the place of a function of the real driver; NULL: nothing does. */
void *zr_cuda_instead(const void *found);

/* ---- Threads' own default streams (thunks.c) ----------------------------------------------------------- */

/* What a program gets for a function of the driver's that takes a stream, by its name without version and
 * form: each call that uses a thread's own default stream has `used` called before it, the same one for all,
 * until zr_cuda_thunks_done(). Any thread. */
void *zr_cuda_thunk(const char *name, void *function, bool per_thread_form, void (*used)(void));
/* From now on thunks look at nothing. */
void zr_cuda_thunks_done(void);
void zr_cuda_thunks_forked(void);

/* ---- Devices (device.c) -------------------------------------------------------------------------------- */

enum { ZR_CUDA_DEVICES_MAX = 64, ZR_CUDA_STREAMS_MAX = 1024, ZR_CUDA_CONTEXTS_MAX = 64 };

struct zr_cuda_device {
    _Atomic bool ready;     /* all below is set but `passed_on` */
    _Atomic bool passed_on; /* it has no virtual memory: the driver serves it */
    int ordinal;
    const struct zr_cuda_driver *driver;
    zr_cu_context primary;
    zr_cu_context retained; /* the same, by calls that had no context; NULL: none has. lock: device.c's */
    zr_backend *backend;
    zr_arena *arena;
    zr_learner *learner;
    zr_cu_stream idle;           /* of ours, without work; NULL: none could be had */
    zr_cu_stream _Atomic gather; /* of ours: waits for what no event of the arena's follows; NULL: none yet */
    _Atomic size_t live_bytes;   /* of blocks that the program has, as it asked for them; kept by blocks.c */
};

/* A call of the program's that may come to an arena: zr_cuda_enter() ... zr_cuda_leave(). */
struct zr_cuda_call {
    struct zr_cuda_device *device; /* of the current context */
    zr_cu_context context;         /* the current one */
    zr_cu_capture_mode mode;       /* of the thread, put back by leave */
    bool pushed;                   /* the context, which leave pops */
};

/* Finds the current context, has the thread's capture mode relaxed, and keeps devices from ending meanwhile.
 * Not ZR_CU_SUCCESS: the answer of the call; there is nothing to leave. */
zr_cu_result zr_cuda_enter(struct zr_cuda_call *call);
void zr_cuda_leave(const struct zr_cuda_call *call);
/* The same for a call that names its device: where the current context is not of that device, or there is
 * none, as in a thread that has called nothing of CUDA yet, the device's primary context is current until
 * leave. */
zr_cu_result zr_cuda_enter_device(struct zr_cuda_call *call, int ordinal);
/* The same without a context, for a call that has its device. */
void zr_cuda_keep(struct zr_cuda_call *call);

/* Makes the device's arena, at its first allocation. ZR_CU_NOT_SUPPORTED: the device is passed on. */
zr_cu_result zr_cuda_device_open(struct zr_cuda_device *device);
struct zr_cuda_device *zr_cuda_device_at(int ordinal);

/* Whether a free has to follow more than the default stream; never again false. */
bool zr_cuda_many_streams(void);
/* The program has more than the default stream from now on. Waits for what the default streams are doing,
 * once: memory that was reused in their order must not be in use still when others get it. */
void zr_cuda_go_many(void);
/* A call names the stream, before zr_cuda_enter(): its thread's own default one is one more than the default.
 */
static inline void zr_cuda_note_stream(zr_cu_stream stream)
{
    if ((uintptr_t)stream == ZR_CU_STREAM_PER_THREAD)
        zr_cuda_go_many();
}

/* A result of zr's as the driver would say it. */
zr_cu_result zr_cuda_code(zr_result result);
/* With ZR_CONF=verbose: the words of zr_last_error(). */
void zr_cuda_log(const char *call);

/* The child of a process that has used CUDA: every call is the driver's, which refuses it. */
bool zr_cuda_forked(void);
/* Something of CUDA exists in this process: a child of it cannot go on. */
void zr_cuda_note_used(void);

/* The program ends the device's primary context, and all memory with it: no call of zr_cuda_enter() is under
 * way meanwhile. */
void zr_cuda_device_end(int ordinal);
/* Registers a function that ends the backend's other users before the backend ends, with no call under way.
 * One at a time. */
void zr_cuda_at_device_end(void (*end)(struct zr_cuda_device *device));
/* From now on the driver serves the device's allocations; what there is stays. */
void zr_cuda_device_give_up(int ordinal, const char *why);

/* ---- Streams and contexts (streams.c) ------------------------------------------------------------------ */

/* True if something is being captured in the context, which is current. */
bool zr_cuda_capturing(zr_cu_context context);
/* True if this stream is; NULL, the legacy default stream of the current context: if a blocking one is. */
bool zr_cuda_stream_capturing(zr_cu_stream stream);
/* Has the block, which is about to be freed, wait for all that works on the device. False: that cannot be
 * waited for now, because something is being captured there or the driver refuses: keep the block. */
bool zr_cuda_follow_all(struct zr_cuda_device *device, zr_arena *arena, void *block);
/* Has the block wait for what the stream, any that the caller may name, was given. False: likewise. */
bool zr_cuda_follow(struct zr_cuda_device *device, zr_arena *arena, void *block, zr_cu_stream stream);
/* Whether nothing is at work any more where a wait has ended so: it came to its end, or the stream, its
 * context or the driver is gone. False: says so once, unless a capture forbade the wait. */
bool zr_cuda_wait_is_over(zr_cu_result code);
/* The number by which the arena knows the stream, which may be the current context's default one; false: no
 * event of the arena's follows it. */
bool zr_cuda_stream_number(struct zr_cuda_device *device, zr_cu_stream stream, uint64_t *out);
/* The context ends, and its streams with it. */
void zr_cuda_streams_forget(zr_cu_context context);
void zr_cuda_streams_forked(void);

/* ---- Blocks (blocks.c, memory.c) ----------------------------------------------------------------------- */

struct zr_cuda_pool;

struct zr_cuda_block {
    struct zr_cuda_block *children[2]; /* of a tree by address */
    uintptr_t address;
    size_t bytes;
    uint64_t id; /* never used again */
    zr_cu_context context;
    struct zr_cuda_device *device;
    zr_arena *arena;           /* NULL: imported */
    struct zr_cuda_pool *pool; /* NULL: none */
    uint64_t stream;           /* that it was requested in */
    bool everywhere;           /* a stream that no event follows uses it */
    uint64_t secret;           /* by which another process asks for it; 0: none has */
    /* Of an import, besides the secret: */
    void *import;
    int32_t owner_pid; /* whose it is, by its secret there */
    unsigned opened_count;
};

/* Blocks of the device that wait for the end of a capture go with its arena. */
void zr_cuda_deferred_forget(struct zr_cuda_device *device);

/* Makes room for one more; false: the system refuses memory. */
bool zr_cuda_blocks_reserve(void);
void zr_cuda_blocks_unreserve(void);
/* Puts a copy in, with an id of its own. After a reserve. */
void zr_cuda_blocks_put(const struct zr_cuda_block *block);
/* The block that holds the address; false: it is foreign. */
bool zr_cuda_blocks_find(zr_cu_address address, struct zr_cuda_block *out);
/* Takes out the arena's block that begins there. */
bool zr_cuda_blocks_take(zr_cu_address address, struct zr_cuda_block *out);
/* Closes the import that begins there once; with opened_count 0 it is taken out. */
bool zr_cuda_blocks_close(zr_cu_address address, struct zr_cuda_block *out);
/* Takes out any block of the context, or of the device (context NULL). */
bool zr_cuda_blocks_take_any(zr_cu_context context, struct zr_cuda_device *device, struct zr_cuda_block *out);
/* Changes one in its place; false: it is gone. `change` runs with the lock of all blocks. */
bool zr_cuda_blocks_change(uintptr_t address, void (*change)(struct zr_cuda_block *, void *), void *argument);
/* The first for which `test` says so. */
bool zr_cuda_blocks_search(bool (*test)(const struct zr_cuda_block *, const void *), const void *argument,
                           struct zr_cuda_block *out);
/* The first that begins at the address or behind it. */
bool zr_cuda_blocks_next(uintptr_t address, struct zr_cuda_block *out);
void zr_cuda_blocks_forked(void);

/* What others come to hold does not move from here on: the class of the bytes of a block, from the address
 * on; bytes 0: to its end. */
void zr_cuda_fix(zr_cu_address address, size_t bytes, enum zr_granule_class granule_class);

struct zr_cuda_request {
    size_t bytes;
    zr_cu_context context;
    struct zr_cuda_pool *pool;
    zr_arena *arena; /* NULL: the device's */
    bool any_stream; /* the next owner may use it in any stream at once */
    bool waits;      /* rather than for more of the driver's memory, for what the program has freed */
    uint64_t stream; /* else in this */
};

/* Allocates a block, with a trim and a second try. */
zr_cu_result zr_cuda_block_new(struct zr_cuda_device *device, const struct zr_cuda_request *request,
                               zr_cu_address *out);
/* Frees a block that was taken out of the records. `everywhere`: whatever the program has may be at work on
 * it; else `stream` only. */
void zr_cuda_block_end(const struct zr_cuda_block *block, bool everywhere, zr_cu_stream stream);

/* ---- Pools (pools.c) ----------------------------------------------------------------------------------- */

/* The pool that a handle names, if its allocations come from an arena; NULL: the driver's. */
struct zr_cuda_pool *zr_cuda_pool_of(zr_cu_pool handle);
/* The device's current pool, likewise. */
struct zr_cuda_pool *zr_cuda_pool_current(int ordinal);
int zr_cuda_pool_device(const struct zr_cuda_pool *pool);
zr_cu_pool zr_cuda_pool_handle(const struct zr_cuda_pool *pool);
/* A block of the pool begins or ends. */
void zr_cuda_pool_count(struct zr_cuda_pool *pool, size_t bytes, bool in);
void zr_cuda_pools_forked(void);

/* ---- Other processes (ipc.c, ipc_server.c) ------------------------------------------------------------- */

void zr_cuda_ipc_forked(void);

/* ---- Figures for zr run (figures.c) ------------------------------------------------------------------- */

/* The device opens: finds the process's record, where one is asked for. One at a time. */
void zr_cuda_figures_start(const struct zr_cuda_device *device);
/* What the program has of the device, and what zr holds of it, have changed. Any thread, no lock of an arena.
 */
void zr_cuda_figures_note(const struct zr_cuda_device *device);
/* A request for so many bytes got nothing. */
void zr_cuda_figures_refused(const struct zr_cuda_device *device, size_t bytes);
void zr_cuda_figures_forked(void);

/* ---- The self-test (paths.c) --------------------------------------------------------------------------- */

/* Compares what the driver has with what is replaced; says what ZR_CONF=verbose wants to know, and ends the
 * process where ZR_STRICT is set and a path is missed. Once, when the driver is found. */
void zr_cuda_paths_check(void);
/* The same as the library starts, where the program is linked with the driver. */
void zr_cuda_paths_start(void);

#endif
