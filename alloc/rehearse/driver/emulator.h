/* emulator.h: a CUDA driver made of host memory: for zr rehearse, whose kernels do nothing, and for tests on
 * machines without a GPU, whose kernels run (tests/emulators/cuda/).
 *
 * Each is a libcuda.so.1 of its own and knows the calls that zr makes (alloc/backend/cuda_driver.h,
 * kernels/cuda/driver_launch.h) and those by which programs allocate (alloc/preload/cuda/driver_api.h), no
 * others. Kernels are .cu sources compiled for the processor (kernels/cuda/device_processor.h), one block
 * after the other in a random order, with threads as fibers; what they do wrong is reported on standard error
 * and ends the context: addresses out of reach, misaligned ones, shared memory read before it is written,
 * races within a launch and of two launches that are under way at one time, since nothing orders them
 * (threads.c, races.c). Not seen are device memory read before it is written, and races of launches with
 * copies, but by what they compute. It is strict where NVIDIA's documentation states a rule, also where a
 * card may be lenient; tests/support/cuda/cuda_rules.h has where the rules come from, the tests that include
 * it (cuda_emulator_test.c, cuda_alloc_test.c and others) the rules and a program that breaks each. Not
 * there: pools that other processes open, handles for dma-buf, and the private tables of cuGetExportTable;
 * each is refused, and the device's attributes say so where there is one.
 *
 * Asynchronous work is carried out late: every call of the driver moves each context's clock by one tick,
 * work takes some ticks, drawn for each stream and each piece, and waiting moves the clock to the end of what
 * is waited for. A tick counts as a microsecond. As a driver does, the emulator loads a kernel at its first
 * launch, and waits for the context's work there, unless CUDA_MODULE_LOADING is EAGER. So a missing wait
 * shows, on any machine, also of one stream among several; with one seed the same calls make the same draws.
 * Memory of a pool that another stream uses before its own has allocated it, or after it has freed it, ends
 * the context as a wrong address does. A program that asks for an event again and again lets ever more time
 * pass.
 *
 * For programs that do not call it: ZR_EMULATOR_FAULT=cuMemMap:3:2 fails the third map with code 2, and
 * ZR_EMULATOR_DEVICES, _MEMORY, _CONTEXT, _GRANULARITY, _VERSION, _TICKS, _SEED, _LAZY_FREE and _DELAY_NS set
 * what their names say, _CAPABILITY=80 makes it a card of compute capability 8.0 and not 9.0, _FORKS=1 has
 * cuInit fork, _SHARED names a file: the processes that name it share the devices' bytes, and those of one
 * that was killed come back; what was exported is in use until the last process that holds it has let it go.
 * _HOST=1 to 3 refuses kinds of host memory (enum zr_emulator_host), and _COSTS=1 lets virtual memory calls
 * take the time that they take on a card. _DIRTY=1 fills what cuMemCreate makes, which a card does not
 * promise to clear. _RACES=0 does not search kernels for races between threads, which takes about half of
 * their time. _CARD names a row of cards.c, _KEEP the longest copy or fill that is carried out, _CLOCK a seed
 * of the card's times (none: the host waits for each piece of work), and _FILL what results of kernels read
 * as; these are zr rehearse's. _LAUNCHES names a file that gets a line for each kernel, fill and copy on a
 * device, of which none is carried out: what a program of any size would do, in no time and next to no
 * memory. _WAITS names a file that gets a line each time that the program waits for a device: process, call,
 * launches so far. _LEFT names a file that gets a line when a primary context ends: what was not given back.
 * All but these two are read by cuInit. With its folder in LD_LIBRARY_PATH any program loads it. _ASKED, read
 * at each question, names a file that gets a line for every function and private table that was asked for.
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

/* Which host memory the driver gives for a device: each kind refuses those before it, too. */
enum zr_emulator_host {
    ZR_EMULATOR_HOST_ALL,
    ZR_EMULATOR_HOST_NO_NODE,   /* cuMemCreate() on a node is not permitted, as in a container */
    ZR_EMULATOR_HOST_NO_CREATE, /* nor is there host memory without a node, as before CUDA 13 */
    ZR_EMULATOR_HOST_NO_LOCK    /* nor may pages be locked */
};

/* What a library sends from device to device, for its time: so many bytes over each link, and steps that wait
 * for one another. 0 hops: nothing. */
struct zr_emulator_transfer {
    double bytes;
    int hops;
};

/* What the process holds of the emulated driver. */
struct zr_emulator_state {
    size_t memories_count, mappings_count,
        reservations_count; /* handles, or memory that only mappings keep */
    size_t used_bytes;      /* on all devices */
    size_t retained_count;  /* of primary contexts */
    size_t events_count, streams_count, pending_count;
    size_t allocations_count;       /* from all calls but cuMemCreate */
    size_t contexts_count;          /* created ones */
    size_t pool_bytes;              /* that pools hold of the devices, used or not */
    size_t stack_depth;             /* of this thread's contexts */
    uint64_t without_context_count; /* virtual memory calls made with no context current, ever */
    uint64_t rdma_count;            /* memories created for GPUDirect RDMA, ever */
    uint64_t memory_ns;             /* that virtual memory calls would have taken on a card, ever */
};

/* What a library's work has come to: it is asked again, has ended, or has done what a wrong kernel does. */
enum zr_emulator_step { ZR_EMULATOR_AGAIN, ZR_EMULATOR_DONE, ZR_EMULATOR_WRONG };

/* The one symbol besides the driver's. Set up before cuInit where it says so; any thread. */
struct zr_emulator {
    uint64_t (*calls)(const char *call); /* so far; NULL: all together */
    /* How often the program has waited for a device so far: in synchronize calls, synchronous copies and
     * fills, and asynchronous copies from or to memory that is not page-locked, which may wait. */
    uint64_t (*host_waits)(void);
    void (*fail)(const struct zr_emulator_fault *fault);
    void (*delay)(const char *call, uint64_t ns); /* real time for each such call; NULL: every call */
    void (*work_ticks)(uint64_t ticks);           /* that asynchronous work takes from now on, each time */
    void (*random_ticks)(uint64_t seed); /* as long as is drawn: the state at the start, with seed 1 */
    void (*attribute)(zr_cu_attribute which, int value);
    void (*version)(int version);   /* as cuDriverGetVersion has it */
    void (*capacity)(size_t bytes); /* of each device */
    void (*one_way)(bool on);       /* of two neighbours the one with the odd number reaches the other only */
    void (*lazy_free)(bool on);     /* cuMemFree does not wait for work, as it may or may not */
    void (*host_memory)(enum zr_emulator_host refused);
    void (*late_loading)(
        bool on);           /* of kernels, by their first launch; the state at the start is by the variable */
    void (*costs)(bool on); /* virtual memory calls move the clocks by what they take on a card */
    /* The identifiers of private tables that cuGetExportTable was asked for and refused: the first `most`,
     * and how many there were. */
    size_t (*tables_asked)(unsigned char (*out)[16], size_t most);
    struct zr_emulator_state (*state)(void);
    /* A kernel that writes `value` over the bytes when it ends. */
    zr_cu_result (*launch)(zr_cu_stream stream, zr_cu_address address, size_t bytes, unsigned char value);
    /* What the last real kernel that failed did, with its name, address and thread; "": none has. */
    const char *(*report)(void);
    /* For emulated libraries: their own work, in its place in the stream. `step` is asked again and again,
     * under the driver's lock, once the stream has come to it: it calls reach(), read() and write() alone. */
    zr_cu_result (*work)(zr_cu_stream stream, enum zr_emulator_step (*step)(void *state), void *state,
                         struct zr_emulator_transfer transfer);
    /* NULL, or why work that was submitted may not use the bytes: within a step, of that work. */
    const char *(*reach)(zr_cu_address address, size_t bytes, bool writes);
    void (*read)(zr_cu_address address, void *out, size_t bytes);
    void (*write)(zr_cu_address address, const void *bytes, size_t count);
    void (*clear)(zr_cu_address address, size_t bytes); /* zeros, which take no memory of the host */
    /* Within a step: whether the program, and no kernel, made the bytes; and that it did or did not make what
     * the step has written. */
    bool (*known)(zr_cu_address address, size_t bytes);
    void (*note)(zr_cu_address address, size_t bytes, bool known);
    void (*poll)(uint64_t ticks); /* lets work of libraries go on, and so much time pass */
    /* NCCL's buffers on the device: so many bytes more, or a request that was refused. */
    void (*nccl)(int device, int64_t bytes, bool refused);
    void (*torch)(int device, uint64_t allocated_bytes,
                  uint64_t reserved_bytes); /* of PyTorch's allocator, now */
    uint64_t (*started)(int pid);           /* what no later process of that number has; 0: there is none */
    /* Bytes that no kernel may touch although the program has them, at most 512 ranges; 0 bytes: forgets all.
     */
    void (*guard)(const void *address, size_t bytes);
    void (*pass)(void); /* moves the clocks by a tick, as a call does: a card works on without one */
    /* What no other memory that was ever mapped there has; 0: nothing is mapped. Takes the lock, as do: */
    uint64_t (*mapped)(zr_cu_address address);
    int (*device)(void);                         /* of the current context; -1: there is none */
    bool (*stream_is_here)(zr_cu_stream stream); /* of the current context */
    uint64_t (*ticks)(void);                     /* of the current context's clock */
    /* The program has given the memory another use: it reads as zeros until a copy or fill writes there. */
    void (*forget)(zr_cu_address address, size_t bytes);
};
extern const struct zr_emulator zr_emulator;

#endif
