/* inside.h: the emulated driver from the inside: for its own files, and for those that add kernels to it.
 * emulator.h is what tests know of it. */
#ifndef ZR_CUDA_EMULATOR_INSIDE_H
#define ZR_CUDA_EMULATOR_INSIDE_H

#include <stdio.h>

#include "alloc/preload/cuda/driver_api.h"
#include "kernels/cuda/driver_launch.h"
#include "kernels/cuda/driver_streams.h"
#include "alloc/rehearse/account.h"
#include "alloc/rehearse/cards.h"
#include "alloc/rehearse/driver/emulator.h"

#define PUBLIC __attribute__((visibility("default")))

/* ---- The calls ----------------------------------------------------------------------------------------- */

/* The forms for programs whose default stream is their thread's own, of calls that have one: the legacy
 * form with another default. f(the driver's name, the suffix, the legacy form's suffix, parameters,
 * arguments).
 */
// clang-format off
#define EMU_PER_THREAD(f)                                                                                     \
    f(cuMemcpyAsync, _ptsz, , (zr_cu_address to, zr_cu_address from, size_t bytes, zr_cu_stream stream),      \
      (to, from, bytes, own(stream)))                                                                         \
    f(cuMemsetD8Async, _ptsz, , (zr_cu_address to, unsigned char value, size_t bytes, zr_cu_stream stream),   \
      (to, value, bytes, own(stream)))                                                                        \
    f(cuStreamSynchronize, _ptsz, , (zr_cu_stream stream), (own(stream)))                                     \
    f(cuStreamQuery, _ptsz, , (zr_cu_stream stream), (own(stream)))                                           \
    f(cuStreamGetCtx, _ptsz, , (zr_cu_stream stream, zr_cu_context *out), (own(stream), out))                 \
    f(cuEventRecord, _ptsz, , (zr_cu_event event, zr_cu_stream stream), (event, own(stream)))                 \
    f(cuStreamWaitEvent, _ptsz, , (zr_cu_stream stream, zr_cu_event event, unsigned int flags),               \
      (own(stream), event, flags))                                                                            \
    f(cuStreamIsCapturing, _ptsz, , (zr_cu_stream stream, zr_cu_capture_status *out), (own(stream), out))     \
    f(cuStreamBeginCapture, _v2_ptsz, _v2, (zr_cu_stream stream, zr_cu_capture_mode mode), (own(stream), mode)) \
    f(cuStreamEndCapture, _ptsz, , (zr_cu_stream stream, zr_cu_graph *out), (own(stream), out))               \
    f(cuGraphLaunch, _ptsz, , (zr_cu_graph_exec graph, zr_cu_stream stream), (graph, own(stream)))            \
    f(cuMemAllocAsync, _ptsz, , (zr_cu_address *out, size_t bytes, zr_cu_stream stream),                      \
      (out, bytes, own(stream)))                                                                              \
    f(cuMemFreeAsync, _ptsz, , (zr_cu_address address, zr_cu_stream stream), (address, own(stream)))          \
    f(cuMemAllocFromPoolAsync, _ptsz, ,                                                                       \
      (zr_cu_address *out, size_t bytes, zr_cu_pool pool, zr_cu_stream stream),                               \
      (out, bytes, pool, own(stream)))                                                                        \
    f(cuLaunchKernel, _ptsz, ,                                                                                \
      (zr_cu_function function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,                \
       unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,           \
       zr_cu_stream stream, void **arguments, void **extra),                                                  \
      (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, own(stream), arguments, extra)) \
    f(cuLaunchKernelEx, _ptsz, ,                                                                              \
      (const zr_cu_launch_config *config, zr_cu_function function, void **arguments, void **extra),           \
      (own_config(config, &(zr_cu_launch_config){0}), function, arguments, extra))
/* And of those that name no stream. */
#define EMU_PER_THREAD_NOW(f)                                                                                 \
    f(cuMemcpy, _ptds, (zr_cu_address to, zr_cu_address from, size_t bytes))                                  \
    f(cuMemcpyHtoD, _v2_ptds, (zr_cu_address to, const void *from, size_t bytes))                             \
    f(cuMemcpyDtoH, _v2_ptds, (void *to, zr_cu_address from, size_t bytes))                                   \
    f(cuMemsetD8, _v2_ptds, (zr_cu_address to, unsigned char value, size_t bytes))
// clang-format on

/* What the emulator defines is what zr declares. */
#define EMU_DECLARE(member, name, suffix, parameters) zr_cu_result name##suffix parameters;
ZR_CUDA_FUNCTIONS(EMU_DECLARE)
ZR_CUDA_REPLACED(EMU_DECLARE)
ZR_CUDA_USED(EMU_DECLARE)
ZR_CUDA_LAUNCHING(EMU_DECLARE)
ZR_CUDA_WORDS(EMU_DECLARE)
#undef EMU_DECLARE
zr_cu_result cuDeviceGetUuid_v2(unsigned char out[16], zr_cu_device device);
#define EMU_DECLARE(name, suffix, legacy, parameters, arguments) zr_cu_result name##suffix parameters;
EMU_PER_THREAD(EMU_DECLARE)
#undef EMU_DECLARE
#define EMU_DECLARE(name, suffix, parameters) zr_cu_result name##suffix parameters;
EMU_PER_THREAD_NOW(EMU_DECLARE)
#undef EMU_DECLARE

/* A function that is in two lists, or has two versions, has two numbers and one name. */
enum emu_call {
#define EMU_CALL(member, name, suffix, parameters) EMU_##member,
    ZR_CUDA_FUNCTIONS(EMU_CALL) ZR_CUDA_REPLACED(EMU_CALL) ZR_CUDA_USED(EMU_CALL) ZR_CUDA_LAUNCHING(EMU_CALL)
        ZR_CUDA_WORDS(EMU_CALL) EMU_launch,
    EMU_CALLS_COUNT
#undef EMU_CALL
};

enum { EMU_DEVICES_MAX = ZR_ACCOUNT_DEVICES_MAX, EMU_STACK_MAX = 64 };

struct emu_settings {
    int devices_count, nodes_count, version, capability;
    int machine_device[ZR_ACCOUNT_DEVICES_MAX]; /* CUDA_VISIBLE_DEVICES: the machine's number of each device
                                                 */
    size_t granularity_bytes, capacity_bytes;
    size_t context_bytes; /* of a device, for its primary context */
    uint64_t work_ticks;
    bool exact_ticks; /* that long each time, not so long in the mean of quick streams */
    uint64_t random;  /* not 0 */
    bool lazy_free;   /* cuMemFree does not wait for work */
    unsigned races;   /* searched for in kernels: 0 none, 1 in global memory, 2 in shared memory too */
    bool dirty;       /* what cuMemCreate makes is not zeros */
    enum zr_emulator_host host_memory;
    bool costs;                 /* virtual memory calls take their time */
    bool lazy;                  /* a kernel is loaded by its first launch, which waits for the context */
    const char *launches_path;  /* NULL: work is carried out, and not written down */
    const struct zr_card *card; /* NULL: the tests' card */
    size_t keep_bytes;          /* longer copies and fills leave zeros; SIZE_MAX: there are none */
    bool timed;                 /* work takes what it takes on the card */
    bool clocked;               /* and ends later than the call that submits it */
    double fill;                /* what a kernel's results read as */
};
extern struct emu_settings emu;
int emu_version(void);

/* Results that zr does not tell apart. */
enum {
    EMU_PEER_UNSUPPORTED = 217,
    EMU_PEER_ENABLED = 704,
    EMU_REGISTERED_ALREADY = 712,
    EMU_MAP_FAILED = 205,
    EMU_ILLEGAL_STATE = 401,
    EMU_CAPTURE_MERGE = 902,
    EMU_CAPTURE_UNMATCHED = 903,
    EMU_CAPTURE_UNJOINED = 904,
    EMU_CAPTURE_ISOLATION = 905,
    EMU_CAPTURED_EVENT = 907,
    EMU_CAPTURE_WRONG_THREAD = 908
};

/* What a call needs before it may look at its arguments. */
enum emu_need { EMU_NOTHING, EMU_INIT, EMU_MEMORY, EMU_CONTEXT };

/* Takes the emulator's lock, counts, injects, moves the clocks, refuses what a capture forbids. emu_leave()
 * follows in any case. All else below with the lock. */
zr_cu_result emu_enter(enum emu_call call, enum emu_need need);
zr_cu_result emu_leave(zr_cu_result code);
/* Gives other processes time to do what the device waits for; lets the lock go meanwhile. */
void emu_pause(void);
/* The program waits, or may have to, for the device in this call. */
void emu_host_waits(enum emu_call call);
/* What a call on so many handles takes on a card. Published for an A100 and handles of 2 MiB (kvcached). */
enum { EMU_CREATE_NS = 193000, EMU_ACCESS_NS = 36000, EMU_UNMAP_NS = 26000, EMU_MAP_NS = 1450 };
void emu_spend(uint64_t ns);

/* ---- contexts.c ---------------------------------------------------------------------------------------- */

/* Launches that a card's queue holds: a launch waits until it has room. */
enum { EMU_QUEUED_MAX = 1024 };

struct zr_cu_context_st {
    struct zr_cu_context_st *next; /* of all that ever were */
    int device;
    bool primary, gone; /* gone: destroyed; the record stays */
    unsigned retained_count;
    uint64_t peers;                    /* a bit for each device whose contexts' memory kernels may use */
    unsigned flags;                    /* that cuCtxSetFlags() was given */
    zr_cu_result dead;                 /* the error after which nothing runs */
    uint64_t clock;                    /* in ticks */
    uint64_t last;                     /* when the last work ends */
    uint64_t null_last, blocking_last; /* of the NULL stream; of those that wait for it */
    uint64_t null_slowness;            /* of the NULL stream; 0: not drawn yet */
    struct emu_work *pending;          /* by their end */
    struct emu_work *latest;           /* of the pending, the last submitted; NULL: it has ended */
    uint64_t queued[EMU_QUEUED_MAX];   /* the ends of the last launches */
    uint64_t queued_count;             /* of launches, ever */
    bool running;                      /* emu_run() is at it */
};

extern struct zr_cu_context_st *emu_contexts;
void emu_contexts_begin(void);              /* with the settings read */
struct zr_cu_context_st *emu_current(void); /* NULL: none */
bool emu_no_device(int device);
/* The number here of a device of the machine, which other processes name; EMU_DEVICES_MAX: not visible. */
int emu_device_here(int machine_device);
bool emu_no_context(const struct zr_cu_context_st *context);
bool emu_peers(int device, int peer);
void emu_contexts_one_way(bool on);
void emu_attribute_set(zr_cu_attribute which, int value);
int emu_attribute_of(zr_cu_attribute which); /* of every device; 0: there is no such */
void emu_contexts_state(struct zr_emulator_state *out);

/* ---- visible.c ----------------------------------------------------------------------------------------- */

/* CUDA_VISIBLE_DEVICES (NULL: not set): writes the machine's numbers of the devices that a program sees, of
 * `devices_count` at most, and returns how many there are. */
int emu_visible_devices(const char *text, int devices_count, int *out);
/* The identifier of a device of the machine, the same in every process. */
void emu_device_uuid(int machine_device, unsigned char out[16]);

/* ---- account.c ----------------------------------------------------------------------------------------- */

/* From now on the file's processes have one account. False: that cannot be. */
bool emu_account_share(const char *path);
void emu_account_context(int device, int change);
/* So much more of what NCCL has allocated for itself; refused: the device had too few bytes for it. */
void emu_account_nccl(int device, int64_t bytes, bool refused);
void emu_account_read(size_t bytes); /* a copy to the host of what kernels may have made */
void emu_account_library(int device, int64_t bytes,
                         bool refused); /* in bytes that a library took for itself */
/* PyTorch's allocator has so many bytes now, allocated and reserved. */
void emu_account_torch(int device, uint64_t allocated_bytes, uint64_t reserved_bytes);
void emu_account_static_runtime(void); /* a program that has the CUDA runtime inside was met */
/* A device's bytes. False: there are not so many left. */
bool emu_take_bytes(int device, size_t bytes);
void emu_give_bytes(int device, size_t bytes);
size_t emu_free_bytes(int device);
size_t emu_used_bytes(void); /* of this process, on all devices */
/* Memory that other processes may hold: its bytes are in use until no process does. Begins with bytes of this
 * process's, and is one more holding of it; 0: no account is shared, or there is no room. */
uint32_t emu_share_begin(int device, size_t bytes);
/* One more holding. False: no process held it any more. */
bool emu_share_join(uint32_t number);
/* One holding less. True: it was the last of all processes. */
bool emu_share_leave(uint32_t number);

/* ---- memory.c, share.c: virtual memory ----------------------------------------------------------------- */

struct emu_file {
    int fd;
    size_t users_count; /* imported: memories in it */
};

struct emu_memory {
    zr_cu_location location;
    zr_cu_handle_type exported_as;
    size_t bytes;
    uint64_t offset_bytes; /* in the file */
    struct emu_file *file;
    size_t mappings_count, handles_count;
    zr_cu_memory handle;
    bool imported, exported; /* exported: others may hold it: its bytes stay */
    uint32_t shared;         /* emu_share_begin()'s; 0: not */
};

/* A shared piece begins with a page that says what it is. */
enum { EMU_HEADER_BYTES = 4096 };
#define EMU_HEADER_MAGIC 0x7a72656d756c6131ull
struct emu_header {
    uint64_t magic, bytes;
    zr_cu_location location;
    uint64_t shared; /* as emu_memory's; so wide that nothing unsaid lies behind it */
};

/* A range of the emulator's file, zeros behind a header of its own. */
zr_cu_result emu_file_take(size_t bytes, zr_cu_location location, uint64_t *offset_bytes);
void emu_file_give(uint64_t offset_bytes, size_t bytes);
extern struct emu_file emu_own_file;

struct emu_memory *emu_memory_of(zr_cu_memory handle);
zr_cu_memory emu_memory_add(struct emu_memory *memory);
void emu_memory_state(struct zr_emulator_state *out);
void *emu_must(void *pointer); /* a test's own memory: nothing to be polite about */

/* The reservation's bounds; false: the address is in none. */
bool emu_reservation_at(zr_cu_address address, zr_cu_address *base, size_t *bytes);
/* The mapping's bounds; NULL: nothing is mapped there. */
struct emu_memory *emu_mapping_at(zr_cu_address address, zr_cu_address *base, size_t *bytes);
unsigned emu_mapping_access(zr_cu_address address, const zr_cu_location *location);

/* ---- blocks.c: all other memory ------------------------------------------------------------------------ */

/* Addresses with bytes behind them. A device's addresses belong to the emulator for good. */
struct emu_block {
    zr_cu_address address;
    size_t bytes;
    int device;            /* whose bytes it takes; -1: of none */
    int fd;                /* -1: the bytes are where the address says */
    uint64_t offset_bytes; /* in fd */
    bool own_file;         /* and not another process's, whose descriptor is closed at the end */
    bool program;          /* the program's own bytes, registered */
    bool unmapped;         /* addresses of a graph that has not run */
};

/* NULL: the device has not so many bytes left. */
struct emu_block *emu_block_create(int device, size_t bytes);
struct emu_block *emu_block_of_host(void *address, size_t bytes); /* NULL: makes them */
struct emu_block *emu_block_of_file(int fd, uint64_t offset_bytes, size_t bytes);
struct emu_block *emu_block_reserve(size_t bytes); /* addresses alone... */
bool emu_block_map(struct emu_block *block,
                   int device); /* ...that get their bytes; false: too few are left */
void emu_block_destroy(struct emu_block *block);
struct emu_block *emu_block_at(zr_cu_address address);
bool emu_host_block(zr_cu_address address); /* page-locked, registered or managed memory of this process */
bool emu_device_address(zr_cu_address address); /* is, was or may become device memory */

/* ---- allocate.c, small.c ------------------------------------------------------------------------------- */

enum emu_kind {
    EMU_PLAIN,
    EMU_POOLED,
    EMU_MANAGED,
    EMU_PAGE_LOCKED,
    EMU_REGISTERED,
    EMU_IMPORTED,
    EMU_GRAPH
};

struct emu_allocation {
    zr_cu_address address;
    size_t bytes;
    enum emu_kind kind;
    unsigned flags; /* that the program gave */
    bool sync_copies;
    struct emu_block *block;
    struct zr_cu_context_st *context;
    zr_cu_pool pool; /* of pooled ones */
    uint64_t id;
    uint64_t ready; /* by the context's clock: no use before it but in stream order */
};

struct emu_allocation *emu_allocation_add(struct emu_allocation allocation);
void emu_allocation_remove(struct emu_allocation *allocation);
void emu_allocation_freed(
    const struct emu_allocation *allocation);                    /* into the trace, before its block goes */
struct emu_allocation *emu_allocation_at(zr_cu_address address); /* that holds the address */
zr_cu_result emu_free_imported(zr_cu_address address);
void emu_allocations_state(struct zr_emulator_state *out);
void emu_allocations_end(struct zr_cu_context_st *context); /* what went with the context */
/* Parts of a granule. Give: false where the block is none of them. */
struct emu_block *emu_small_take(struct zr_cu_context_st *context, size_t bytes, zr_cu_address *address);
bool emu_small_give(struct emu_block *block, zr_cu_address address, size_t bytes);

/* ---- pools.c ------------------------------------------------------------------------------------------- */

/* The host has seen the device's work end: what pools hold beyond their thresholds goes back. */
void emu_pools_settle(int device);
void emu_pools_state(struct zr_emulator_state *out);
/* The piece is free for the stream at once (NULL with number 0: the context's NULL stream), for all when its
 * context's clock reaches the end. */
void emu_pool_give(struct emu_allocation *allocation, struct zr_cu_context_st *context, uint64_t number,
                   uint64_t end);
unsigned emu_pool_access(const struct emu_allocation *allocation, int device); /* zr_cu_access_flags */

/* ---- contents.c ---------------------------------------------------------------------------------------- */

enum emu_place { EMU_HOST, EMU_MAPPED, EMU_NOWHERE };
enum emu_use { EMU_READS = ZR_CU_ACCESS_READ, EMU_WRITES = ZR_CU_ACCESS_READ_WRITE, EMU_COPIES = 16 };
/* Where the bytes lie: in the program's memory, in memory that the context may use so, or neither. */
enum emu_place emu_place(zr_cu_address address, size_t bytes, const struct zr_cu_context_st *context,
                         unsigned use);
/* Whether there are bytes, for work that was in order when it was submitted. */
bool emu_backed(zr_cu_address address, size_t bytes, const struct zr_cu_context_st *context, unsigned use);
void emu_read(zr_cu_address address, void *out, size_t bytes);
void emu_write(zr_cu_address address, const void *bytes, size_t count);
/* Zeros from now on, which take no memory. */
void emu_clear(zr_cu_address address, size_t bytes);
/* The same where something may have been written, of a device's memory. */
void emu_forget(zr_cu_address address, size_t bytes);
/* A word that others may look at meanwhile. */
uint32_t emu_word(zr_cu_address address);
void emu_word_set(zr_cu_address address, uint32_t word);

/* ---- work.c -------------------------------------------------------------------------------------------- */

/* EMU_AWAIT_WORD: until the word at `to` is `word` or more, EMU_WRITE_WORD: sets it. */
enum emu_work_kind { EMU_COPY, EMU_FILL, EMU_KERNEL, EMU_WAIT, EMU_AWAIT_WORD, EMU_WRITE_WORD, EMU_LIBRARY };

struct emu_work {
    struct emu_work *next; /* of the context, by end; of a graph, in order */
    uint64_t end;          /* by the context's clock */
    enum emu_work_kind kind;
    bool invalid;           /* out of order with its memory's allocation */
    bool unchecked;         /* its addresses were not looked at */
    bool written;           /* a copy or fill before its time, or not at all: emu_write_early() */
    zr_cu_address to, from; /* from: 0 for what was staged */
    size_t bytes;
    unsigned char value;
    uint32_t word;
    bool host_to, host_from;         /* the program's own, pageable bytes */
    unsigned char *staged;           /* a copy of the program's bytes, owned */
    struct zr_cu_context_st *awaits; /* of a wait: whose clock reaches... */
    uint64_t awaits_end;             /* ...this first, */
    uint64_t awaits_number;          /* ...in this stream */
    bool awaits_blocking;
    uint64_t number;           /* its stream's */
    bool blocking;             /* its stream, with the NULL stream */
    bool stalled;              /* its time has come, and a library's work that it comes behind goes on */
    struct emu_launch *launch; /* of a kernel, held */
    enum zr_emulator_step (*step)(void *state); /* of a library */
    void *state;                                /* of it */
    struct emu_gone *gone;                      /* what it may not use any more, owned */
    uint64_t start;                             /* by the context's clock */
    /* Of a kernel or a library's work, for its time on a card: bytes in the device's memory, operations, and
     * on numbers of how many bits; 0: unknown. */
    double moved_bytes, operations;
    int operand_bits;
    struct zr_emulator_transfer transfer; /* of a library's work */
    int64_t count; /* of a copy to the host: emu_count_expected when it was submitted */
};

void emu_submit(struct zr_cu_context_st *context, struct zr_cu_stream_st *stream, struct emu_work work);
zr_cu_result emu_wait_until(struct zr_cu_context_st *context, uint64_t end);
/* The program has given the memory another use, in the order of its streams: the contents of copies and fills
 * under way to and from it are made now, and those that come behind a library's work are not made there. */
void emu_write_early(zr_cu_address address, size_t bytes);
void emu_run(struct zr_cu_context_st *context); /* what has ended by the context's clock */
/* A place in a stream. */
struct emu_point {
    uint64_t end, number;
    bool blocking;
};
/* Whether the clock has come to it, and the stream: a library's work may take longer. */
bool emu_reached(const struct zr_cu_context_st *context, struct emu_point point);
zr_cu_result emu_wait_for(struct zr_cu_context_st *context, struct emu_point point);
zr_cu_result emu_library_work(zr_cu_stream stream, enum zr_emulator_step (*step)(void *state), void *state,
                              struct zr_emulator_transfer transfer);
/* Within a step: NULL, or why the work that it is of may not use the bytes. */
const char *emu_library_reach(zr_cu_address address, size_t bytes, bool writes);
/* The bytes go: work that still needs them kills its context. */
void emu_unmapped(zr_cu_address address, size_t bytes);
/* They go when the stream's work has ended: so does work that needs them later. */
void emu_unmapped_after(zr_cu_address address, size_t bytes, struct zr_cu_context_st *context, uint64_t end);
void emu_drop_work(struct zr_cu_context_st *context);
void emu_work_state(struct zr_emulator_state *out);
zr_cu_result emu_copy(zr_cu_address to, zr_cu_address from, size_t bytes, zr_cu_stream stream, bool now);
zr_cu_result emu_fill(zr_cu_address to, unsigned char value, size_t bytes, zr_cu_stream stream, bool now);
zr_cu_result emu_launch(zr_cu_stream stream, zr_cu_address address, size_t bytes, unsigned char value);

/* ---- durations.c --------------------------------------------------------------------------------------- */

uint64_t emu_draw(uint64_t end); /* a random number below it */
uint64_t emu_work_ticks(struct zr_cu_context_st *context, struct zr_cu_stream_st *stream,
                        const struct emu_work *work);
/* A launch that ends at `end` was submitted: waits until the queue has room for it. */
zr_cu_result emu_launch_queued(struct zr_cu_context_st *context, uint64_t end);

/* ---- known.c ------------------------------------------------------------------------------------------- */

void emu_known_add(zr_cu_address address, size_t bytes);
void emu_known_forget(zr_cu_address address, size_t bytes); /* a kernel may write them, or they go */
void emu_known_note(zr_cu_address address, size_t bytes, bool known); /* either, on a card of the table */
void emu_known_launch(void);
/* Kernels made them, and their value is computed without: that of the memory (pattern NULL), or the pattern
 * from an address on that eight divides. */
void emu_known_compute(zr_cu_address address, size_t bytes, const uint64_t *pattern);
bool emu_known_value(zr_cu_address address, size_t bytes); /* written by the program, or computed */
bool emu_known(zr_cu_address address, size_t bytes);       /* the program has written all of them */
bool emu_known_still(zr_cu_address address, size_t bytes); /* and no kernel was launched since */
/* Writes to `out`, a copy of the bytes at the address, emu.fill in the place of those that are not known;
 * `count` in the place of all of them unless it is below 0. */
void emu_known_fill(zr_cu_address address, unsigned char *out, size_t bytes, int64_t count);
/* How many elements this thread's operation finds, by zr rehearse --nonzero; -1: unknown. */
extern __thread int64_t emu_count_expected;

/* ---- Kernels: another folder has these, once in a library. tests/emulators/cuda/ runs kernels;
 * alloc/rehearse/runtime/ lets them do nothing.
 * -------------------------------------------------------------- */

/* A launch as it was asked for; graphs and submitted work hold it. */
struct emu_launch;
/* A range that a kernel may not use although it is in order now: it was unmapped or freed meanwhile. */
struct emu_gone {
    struct emu_gone *next;
    zr_cu_address address;
    size_t bytes;
};
void emu_launch_hold(struct emu_launch *launch);
void emu_launch_drop(struct emu_launch *launch);
/* One line about it: its name, shape and argument. */
void emu_launch_write(const struct emu_launch *launch, FILE *file);
/* What the work comes to. */
zr_cu_result emu_kernel_run(struct zr_cu_context_st *context, const struct emu_work *work);
/* What the last kernel that failed did; "" before one did. */
const char *emu_launch_report(void);
void emu_guard(zr_cu_address address, size_t bytes); /* emulator.h: guard() */

/* ---- The trace of what a device's memory is used for: alloc/rehearse/runtime/trace.c writes one, the tests'
 * emulator none. With the lock.
 * -------------------------------------------------------------- */

enum emu_traced { EMU_TRACE_MAP, EMU_TRACE_UNMAP, EMU_TRACE_ALLOC, EMU_TRACE_FREE };
void emu_trace_begin(const struct emu_settings *settings);
void emu_trace_end(void); /* nothing is written any more */
/* Nothing is written of a device that is not visible here, as -1. */
void emu_trace(enum emu_traced what, int device, zr_cu_address address, size_t bytes);
void emu_trace_refused(int machine_device, size_t bytes, size_t free_bytes);

/* ---- streams.c ----------------------------------------------------------------------------------------- */

enum { EMU_AWAITED_MAX = 16 };

struct zr_cu_stream_st {
    struct zr_cu_stream_st *next;
    struct zr_cu_context_st *context;
    uint64_t last, slowness, number;
    unsigned thread, flags; /* thread: whose default stream it is; 0: of none */
    int priority;
    bool non_blocking;
    struct emu_capture *capture; /* NULL: none */
    size_t captured_at;          /* how much was recorded when it last worked */
    bool unjoined;               /* captured, and no stream has waited for it since */
    /* What it has waited for, by events: up to where of which streams. */
    struct {
        uint64_t number, end;
    } awaited[EMU_AWAITED_MAX];
    unsigned awaited_count;
};

struct zr_cu_event_st {
    struct zr_cu_event_st *next;      /* free ones */
    struct zr_cu_context_st *context; /* NULL: free */
    uint64_t end, number;             /* number: its stream's */
    uint64_t time;                    /* that the event says: an idle stream records it at once */
    bool blocking;                    /* its stream */
    struct emu_capture *captured;     /* recorded in a stream that was being captured, NULL: else */
    size_t captured_at;
};

/* The handle may be the number of a default stream; *stream gets the record then, NULL for the NULL stream.
 */
bool emu_no_stream(zr_cu_stream *stream, struct zr_cu_context_st *context);
/* When work that is submitted to the stream now begins at the earliest. */
uint64_t emu_stream_end(const struct zr_cu_context_st *context, const struct zr_cu_stream_st *stream);
uint64_t emu_stream_number(const struct zr_cu_stream_st *stream);
bool emu_stream_blocks(const struct zr_cu_stream_st *stream);
/* All that it was given. */
struct emu_point emu_stream_point(const struct zr_cu_context_st *context,
                                  const struct zr_cu_stream_st *stream);
void emu_streams_end(struct zr_cu_context_st *context);
/* One that no program has: a graph's, which frees it. */
struct zr_cu_stream_st *emu_stream_hidden(struct zr_cu_context_st *context);
void emu_streams_state(struct zr_emulator_state *out);
struct zr_cu_stream_st *emu_streams_next(struct zr_cu_stream_st *previous); /* NULL: the first */

/* ---- proc.c -------------------------------------------------------------------------------------------- */

/* The identifiers of private tables that were asked for, 16 bytes each, the first `most`; how many there
 * were. Takes the lock. */
size_t emu_tables_asked(unsigned char (*out)[16], size_t most);

/* ---- capture.c, graphs.c ------------------------------------------------------------------------------- */

size_t emu_graphs_count(void); /* of graphs, and of instantiated ones */

/* Whether a capture forbids the call; if so it is broken. */
zr_cu_result emu_capture_check(enum emu_call call);
/* True when the stream's work is recorded, or may not be: *code is what the call returns then. */
bool emu_captured(struct zr_cu_context_st *context, struct zr_cu_stream_st *stream,
                  const struct emu_work *work, zr_cu_result *code);
bool emu_captured_allocation(zr_cu_address *out, size_t bytes, struct zr_cu_context_st *context,
                             struct zr_cu_stream_st *stream, zr_cu_result *code);
bool emu_captured_launch(struct zr_cu_context_st *context, struct zr_cu_stream_st *stream,
                         struct zr_cu_graph_st *graph, zr_cu_result *code);
bool emu_captured_free(zr_cu_address address, struct zr_cu_context_st *context,
                       struct zr_cu_stream_st *stream, zr_cu_result *code);
/* Synchronising and asking are for streams that are not captured; whole: it is for all of the context's. */
zr_cu_result emu_capture_asked(struct zr_cu_context_st *context, struct zr_cu_stream_st *stream, bool whole);
zr_cu_result emu_capture_event_asked(struct zr_cu_event_st *event);
bool emu_captured_record(struct zr_cu_event_st *event, struct zr_cu_context_st *context,
                         struct zr_cu_stream_st *stream, zr_cu_result *code);
bool emu_captured_wait(struct zr_cu_event_st *event, struct zr_cu_context_st *context,
                       struct zr_cu_stream_st *stream, zr_cu_result *code);
void emu_capture_forget(struct zr_cu_stream_st *stream); /* it is destroyed */

/* Lanes are the numbers of captured streams. Waits: the lane's later nodes come behind those of lane `of`
 * among the graph's first `behind`. */
struct zr_cu_graph_st *emu_graph_new(uint64_t lane);
size_t emu_graph_length(const struct zr_cu_graph_st *graph);
void emu_graph_append(struct zr_cu_graph_st *graph, uint64_t lane, const struct emu_work *work);
void emu_graph_wait(struct zr_cu_graph_st *graph, uint64_t lane, uint64_t of, size_t behind);
zr_cu_result emu_graph_append_all(struct zr_cu_graph_st *to, uint64_t lane,
                                  const struct zr_cu_graph_st *from);
zr_cu_result emu_graph_allocate(struct zr_cu_graph_st *graph, uint64_t lane, zr_cu_address *out, size_t bytes,
                                struct zr_cu_context_st *context);
zr_cu_result emu_graph_free(struct zr_cu_graph_st *graph, uint64_t lane, zr_cu_address address);
void emu_graph_end_recording(struct zr_cu_graph_st *graph);
void emu_graph_drop(struct zr_cu_graph_st *graph);
void emu_graph_memory_give(struct emu_allocation *allocation);

/* ---- ipc.c, account.c ---------------------------------------------------------------------------------- */

void emu_ipc_forget(zr_cu_address address); /* the allocation ends */
/* When the process was started, by the kernel's clock; 0: there is none. */
uint64_t emu_process_started(int pid);

#endif
