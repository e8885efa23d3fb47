/* emulator.h: a CUDA driver made of host memory, for tests on machines without a GPU.
 *
 * It is built as a libcuda.so.1 of its own and knows the calls that zr makes, no others, and no kernels but
 * zr_emulator.launch(). It is strict where NVIDIA's documentation states a rule, also where a card may be
 * lenient; tests/support/cuda_rules.h has where the rules come from, cuda_emulator_test.c and
 * cuda_work_test.c the rules and a program that breaks each. Asynchronous work is carried out late: every
 * call of the driver moves each device's clock by one tick, work takes some ticks, drawn for each stream and
 * each piece, and waiting moves the clock to the end of what is waited for. So a missing wait shows, on any
 * machine, also of one stream among several; with one seed the same calls make the same draws.
 *
 * For programs that do not call it: ZR_EMULATOR_FAULT=cuMemMap:3:2 fails the third map with code 2, and
 * ZR_EMULATOR_DEVICES, _MEMORY, _GRANULARITY, _VERSION, _TICKS, _SEED and _DELAY_NS set what their names say,
 * _FORKS=1 has cuInit fork; with its folder in LD_LIBRARY_PATH any program loads it. All are read by cuInit.
 *
 * Device memory lies in a memfd. Its addresses are reserved without access: a processor that touches them
 * dies, as it would with a card. */
#ifndef ZR_CUDA_EMULATOR_H
#define ZR_CUDA_EMULATOR_H

#include "alloc/backend/cuda_driver.h"

struct zr_emulator_fault {
    const char *call; /* the driver's name without a version, "cuMemMap"; NULL: any */
    uint64_t nth;     /* from now on, from 1; 0: none */
    uint64_t count;   /* how many in a row; 0: one */
    zr_cu_result code;
};

/* What the process holds of the emulated driver. */
struct zr_emulator_state {
    size_t memories_count, mappings_count,
        reservations_count; /* handles, or memory that only mappings keep */
    size_t used_bytes;      /* on all devices */
    size_t retained_count;  /* of primary contexts */
    size_t events_count, streams_count, pending_count;
    size_t stack_depth;             /* of this thread's contexts */
    uint64_t without_context_count; /* virtual memory calls made with no context current, ever */
    uint64_t rdma_count;            /* memories created for GPUDirect RDMA, ever */
};

/* The one symbol besides the driver's. Set up before cuInit where it says so; any thread. */
struct zr_emulator {
    uint64_t (*calls)(const char *call); /* so far; NULL: all together */
    void (*fail)(const struct zr_emulator_fault *fault);
    void (*delay)(const char *call, uint64_t ns); /* real time for each such call; NULL: every call */
    void (*work_ticks)(uint64_t ticks);           /* that asynchronous work takes from now on, each time */
    void (*random_ticks)(uint64_t seed); /* as long as is drawn: the state at the start, with seed 1 */
    void (*attribute)(zr_cu_attribute which, int value);
    void (*version)(int version);   /* as cuDriverGetVersion has it */
    void (*capacity)(size_t bytes); /* of each device */
    void (*one_way)(bool on);       /* of two neighbours the one with the odd number reaches the other only */
    struct zr_emulator_state (*state)(void);
    /* A kernel that writes `value` over the bytes when it ends. */
    zr_cu_result (*launch)(zr_cu_stream stream, zr_cu_address address, size_t bytes, unsigned char value);
};
extern const struct zr_emulator zr_emulator;

/* ---- Inside the emulator ------------------------------------------------------------------------------- */

/* Calls that tests make and zr does not. */
// clang-format off
#define ZR_EMULATOR_EXTRAS(f)                                                          \
    f(context_current, cuCtxGetCurrent, , (zr_cu_context *context))                    \
    f(stream_create, cuStreamCreate, , (zr_cu_stream *stream, unsigned int flags))     \
    f(stream_destroy, cuStreamDestroy, _v2, (zr_cu_stream stream))
// clang-format on

/* What the emulator defines is what zr declares. */
#define EMU_DECLARE(member, name, suffix, parameters) zr_cu_result name##suffix parameters;
ZR_CUDA_FUNCTIONS(EMU_DECLARE)
ZR_EMULATOR_EXTRAS(EMU_DECLARE)
#undef EMU_DECLARE
zr_cu_result emu_launch(zr_cu_stream stream, zr_cu_address address, size_t bytes, unsigned char value);

enum emu_call {
#define EMU_CALL(member, name, suffix, parameters) EMU_##member,
    ZR_CUDA_FUNCTIONS(EMU_CALL) ZR_EMULATOR_EXTRAS(EMU_CALL) EMU_launch,
    EMU_CALLS_COUNT
#undef EMU_CALL
};

enum { EMU_DEVICES_MOST = 8, EMU_STACK_MOST = 64 };

struct emu_work;

struct zr_cu_context_st {
    int device;
    unsigned retained_count;
    zr_cu_result dead;                 /* the error after which nothing runs */
    uint64_t clock;                    /* in ticks */
    uint64_t last;                     /* when the last work ends */
    uint64_t null_last, blocking_last; /* of the NULL stream; of those that wait for it */
    uint64_t null_slowness;            /* of the NULL stream; 0: not drawn yet */
    struct emu_work *pending;          /* by their end */
};

struct emu_settings {
    int devices_count, nodes_count, version;
    size_t granularity_bytes, capacity_bytes;
    uint64_t work_ticks;
    bool exact_ticks; /* that long each time, not so long in the mean of quick streams */
    uint64_t random;  /* not 0 */
};
extern struct emu_settings emu;

/* What a call needs before it may look at its arguments. */
enum emu_need { EMU_NOTHING, EMU_INIT, EMU_MEMORY, EMU_CONTEXT };

/* Takes the emulator's lock, counts, injects, moves the clocks. emu_leave() follows in any case. */
zr_cu_result emu_enter(enum emu_call call, enum emu_need need);
zr_cu_result emu_leave(zr_cu_result code);

/* All below with the lock. */
struct zr_cu_context_st *emu_context(int device);
struct zr_cu_context_st *emu_current(void); /* NULL: none */
bool emu_peers(int device, int peer);

void emu_memory_state(struct zr_emulator_state *out);
size_t emu_used_bytes(int device);
enum emu_place { EMU_HOST, EMU_MAPPED, EMU_NOWHERE };
/* Where the bytes lie: in the program's memory, in mappings that the device may use so, or neither. */
enum emu_place emu_place(zr_cu_address address, size_t bytes, int device, zr_cu_access_flags flags);
void emu_read(zr_cu_address address, void *out, size_t bytes);
void emu_write(zr_cu_address address, const void *bytes, size_t count);

void emu_work_state(struct zr_emulator_state *out);
/* Carries out what has ended by the context's clock. */
void emu_run(struct zr_cu_context_st *context);
/* The bytes are being unmapped: work that still needs them kills its context. */
void emu_unmapped(zr_cu_address address, size_t bytes);

#endif
