/* threads.c: a kernel's threads as fibers, one block after the other, all on the calling thread. Which of the
 * threads that can go on does so is drawn at random, and so is the order of the blocks. Rules that a card
 * does not enforce are enforced here: a barrier is for all threads of the block at one place of the source, a
 * shuffle for all lanes of its mask. What breaks one ends the launch: its fibers are left where they are.
 * See kernels.h. */
#define _GNU_SOURCE
#include "tests/emulators/cuda/kernels.h"

#include <immintrin.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

/* An odd number of pages for a stack: those of a block share no set of the processor's TLB. */
enum { THREADS_MAX = 1024, LANES = 32, STACK_BYTES = 68 << 10, SHARED_BYTES = 256 << 10 };
/* Stacks begin at different lines of the processor's caches, which would hold a few of them alone. */
enum { STACK_COLOURS = 61, COLOUR_BYTES = 192 };
enum { GUARD_BYTES = 4096, REACHES = 256, REACH_BITS = 14 };
/* As kernels/cpu/context.c has it: denormals are zero. */
enum { FLOAT_MODE = 0x1f80 | 0x8000 | 0x0040 };

enum state { READY, AT_BARRIER, AT_EXCHANGE, DONE };

struct thread {
    void *stack_pointer;
    enum state state;
    unsigned line; /* of the barrier */
    struct zr_device_dim index;
    const struct zr_device_lane *own; /* on its stack, while it waits */
    uint64_t result;
};

/* Lanes that wait at a shuffle, and those that have ended or never were. */
struct warp {
    uint32_t waiting, gone;
    uint16_t met;
};

/* One launch at a time: the emulator's lock. */
static const struct emu_execution *running;
static struct thread threads[THREADS_MAX];
static uint16_t ready[THREADS_MAX];
static struct warp warps[THREADS_MAX / LANES];
static unsigned threads_count, ready_count, done_count, current;
static struct zr_device_dim block;
static struct emu_moment now;
static uint32_t moments; /* ever */
static void *scheduler_stack_pointer;
static char *stacks, *dynamic_shared;
static uintptr_t own_stack;
static zr_cu_result outcome;
static uint32_t random_state;
static struct emu_reach reaches[REACHES];

/* xorshift32, which is quicker than the emulator's own. */
static unsigned draw(unsigned end)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return (unsigned)((uint64_t)random_state * end >> 32);
}

/* ---- Changing stacks ----------------------------------------------------------------------------------- */

void emu_switch(void **from, void *to) __attribute__((visibility("hidden")));
__asm__(".text\n"
        ".globl emu_switch\n"
        ".hidden emu_switch\n"
        ".type emu_switch, @function\n"
        "emu_switch:\n"
        "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov %rsi, %rsp\n"
        "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n"
        "    ret\n"
        ".size emu_switch, .-emu_switch\n");
enum { SAVED_REGISTERS = 6 };

static char *stack_of(unsigned thread)
{
    return stacks + (size_t)thread * STACK_BYTES;
}

/* One of the threads that can go on becomes the current one. The stack to change to. */
static void *next_stack(void)
{
    unsigned pick = draw(ready_count);
    current = ready[pick];
    ready[pick] = ready[--ready_count];
    own_stack = (uintptr_t)stack_of(current);
    now.thread = (uint16_t)current;
    now.warp_met = warps[current / LANES].met;
    return threads[current].stack_pointer;
}

static void wait_here(enum state state)
{
    void **own = &threads[current].stack_pointer;
    threads[current].state = state;
    emu_switch(own, ready_count ? next_stack() : scheduler_stack_pointer);
}

static void lane_ends(void);

static void thread_main(void)
{
    running->launch->kernel->run(running->launch->arguments);
    done_count++;
    lane_ends();
    wait_here(DONE);
    abort();
}

/* For as many threads as the launch has; those of launches before are there. */
static void make_stacks(void)
{
    static unsigned guarded;
    size_t bytes = (size_t)THREADS_MAX * STACK_BYTES;
    if (!stacks)
        stacks = mmap(NULL, bytes + SHARED_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED)
        abort();
    for (; guarded < threads_count; guarded++)
        mprotect(stack_of(guarded), GUARD_BYTES, PROT_NONE);
    dynamic_shared = stacks + bytes;
}

static void make_ready(unsigned thread)
{
    threads[thread].state = READY;
    ready[ready_count++] = (uint16_t)thread;
}

static void begin_thread(unsigned i)
{
    void **top = (void **)(void *)(stack_of(i) + STACK_BYTES - i % STACK_COLOURS * COLOUR_BYTES) - 2;
    *top = (void *)(uintptr_t)thread_main;
    for (unsigned r = 0; r < SAVED_REGISTERS; r++)
        *--top = NULL;
    const struct zr_device_dim *d = &running->launch->threads;
    threads[i] = (struct thread){.stack_pointer = top, .index = {i % d->x, i / d->x % d->y, i / d->x / d->y}};
    emu_copies_begin(i);
    make_ready(i);
}

/* ---- Reports ------------------------------------------------------------------------------------------- */

static void report(zr_cu_result code, unsigned thread, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void report(zr_cu_result code, unsigned thread, const char *format, ...)
{
    char words[256];
    struct zr_device_dim at = threads[thread].index;
    va_list list;
    va_start(list, format);
    vsnprintf(words, sizeof words, format, list);
    va_end(list);
    emu_report("kernel %s, thread (%u, %u, %u) of block (%u, %u, %u): %s", running->launch->kernel->name,
               at.x, at.y, at.z, block.x, block.y, block.z, words);
    outcome = code;
}

/* From a thread; the launch has failed. */
static void leave(void)
{
    emu_switch(&threads[current].stack_pointer, scheduler_stack_pointer);
    abort();
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

static bool within(uintptr_t address, const char *low, const char *high)
{
    return (uintptr_t)low <= address && address < (uintptr_t)high;
}

static const char *find_reach(uintptr_t address, bool writes, struct emu_reach *out)
{
    const struct zr_device_image *image = running->image;
    const char *dynamic_end = dynamic_shared + running->launch->shared_bytes;
    if (within(address, image->shared, image->shared_end)) {
        *out = (struct emu_reach){(uintptr_t)image->shared, (uintptr_t)image->shared_end, true, true};
        return NULL;
    }
    if (within(address, dynamic_shared, dynamic_end)) {
        *out = (struct emu_reach){(uintptr_t)dynamic_shared, (uintptr_t)dynamic_end, true, true};
        return NULL;
    }
    if (within(address, stacks, dynamic_shared))
        return "in another thread's local memory, or outside its own";
    if (within(address, dynamic_shared, dynamic_shared + SHARED_BYTES))
        return "past the end of the dynamic shared memory";
    if (within(address, image->constants, image->constants_end)) {
        *out = (struct emu_reach){(uintptr_t)image->constants, (uintptr_t)image->constants_end, false, false};
        return writes ? "in the module's constants" : NULL;
    }
    return emu_reach(running, address, writes, out);
}

/* What is not yet known of the address, or goes on behind a stretch that is known. */
static const struct emu_reach *find(uintptr_t address, size_t bytes, unsigned access)
{
    struct emu_reach *reach = &reaches[(address >> REACH_BITS) % REACHES], rest;
    bool writes = access & (ZR_DEVICE_WRITE | ZR_DEVICE_ATOMIC);
    const char *words = find_reach(address, writes, reach);
    if (!words && address + bytes > reach->high)
        words = find_reach(address + bytes - 1, writes, &rest);
    if (words) {
        *reach = (struct emu_reach){0};
        report(ZR_CU_ILLEGAL_ADDRESS, current, "%s %zu bytes at %#zx %s", writes ? "writes" : "reads", bytes,
               (size_t)address, words);
        leave();
    }
    return reach;
}

static __attribute__((noinline, cold)) void misaligned(uintptr_t address, size_t bytes)
{
    report(ZR_CU_MISALIGNED_ADDRESS, current, "uses %zu bytes at %#zx, no multiple of that", bytes,
           (size_t)address);
    leave();
}

static __attribute__((noinline, cold)) void races(const char *words, uintptr_t address, size_t bytes,
                                                  bool shared, uint16_t other)
{
    char who[24] = "";
    if (other != UINT16_MAX)
        snprintf(who, sizeof who, ", thread %u", other);
    report(ZR_CU_LAUNCH_FAILED, current, "%s: %zu bytes at %#zx%s%s", words, bytes, (size_t)address,
           shared ? " of shared memory" : "", who);
    leave();
}

static __attribute__((noinline)) void look_for_races(const struct emu_reach *reach, uintptr_t address,
                                                     size_t bytes, unsigned access)
{
    uint16_t other = UINT16_MAX;
    const char *words = emu_race(&now, reach, address, bytes, access, &other);
    if (words)
        races(words, address, bytes, reach->shared, other);
}

static inline void look(const struct emu_reach *reach, uintptr_t address, size_t bytes, unsigned access)
{
    if (!(access & ZR_DEVICE_UNALIGNED) && address & (bytes - 1)) /* else it is a power of two */
        misaligned(address, bytes);
    if (emu.races > reach->shared)
        look_for_races(reach, address, bytes, access);
}

static __attribute__((noinline)) void find_and_look(uintptr_t address, size_t bytes, unsigned access)
{
    look(find(address, bytes, access), address, bytes, access);
}

/* The common path saves no registers. */
static void device_access(const void *pointer, size_t bytes, unsigned access)
{
    uintptr_t address = (uintptr_t)pointer;
    if (address - own_stack < STACK_BYTES)
        return;
    const struct emu_reach *reach = &reaches[(address >> REACH_BITS) % REACHES];
    if (address < reach->low || address + bytes > reach->high ||
        (access & (ZR_DEVICE_WRITE | ZR_DEVICE_ATOMIC) && !reach->writes))
        find_and_look(address, bytes, access);
    else
        look(reach, address, bytes, access);
}

/* ---- Barriers ------------------------------------------------------------------------------------------ */

static void device_barrier(unsigned line)
{
    threads[current].line = line;
    wait_here(AT_BARRIER);
}

static void next_moment(void)
{
    now.barrier = ++moments;
}

/* A thread of the block that waits at a shuffle is reported, with a lane that it waits for. */
static bool shuffle_waits(void)
{
    for (unsigned i = 0; i < threads_count; i++) {
        const struct thread *t = &threads[i];
        const struct warp *warp = &warps[i / LANES];
        if (t->state != AT_EXCHANGE)
            continue;
        uint32_t missing = t->own->mask & ~warp->gone & ~warp->waiting;
        if (missing)
            report(ZR_CU_LAUNCH_FAILED, i, "waits at the shuffle of line %u for lane %d, which is elsewhere",
                   t->own->line, __builtin_ctz(missing));
        else
            report(ZR_CU_LAUNCH_FAILED, i, "waits at the shuffle of line %u for ever", t->own->line);
        return true;
    }
    return false;
}

/* No thread can go on. Whether all wait at one barrier, which then lets them; else one of them is reported.
 */
static bool all_meet(void)
{
    if (shuffle_waits())
        return false;
    unsigned first = 0;
    while (threads[first].state == DONE)
        first++;
    for (unsigned i = 0; i < threads_count; i++) {
        if (threads[i].state == DONE) {
            report(ZR_CU_LAUNCH_FAILED, i, "has ended without the barrier of line %u, where others wait",
                   threads[first].line);
            return false;
        }
        if (threads[i].line != threads[first].line) {
            report(ZR_CU_LAUNCH_FAILED, i, "waits at the barrier of line %u, and others at that of line %u",
                   threads[i].line, threads[first].line);
            return false;
        }
    }
    for (unsigned i = 0; i < threads_count; i++)
        make_ready(i);
    next_moment();
    return true;
}

/* ---- Warps --------------------------------------------------------------------------------------------- */

/* The lane that a shuffle reads; itself where CUDA says so, LANES and more: none. */
static unsigned source_of(const struct zr_device_lane *own, unsigned lane)
{
    switch (own->kind) {
    case ZR_DEVICE_SHUFFLE:
        return own->lane;
    case ZR_DEVICE_SHUFFLE_UP:
        return own->lane >= LANES ? own->lane : lane < own->lane ? lane : lane - own->lane;
    case ZR_DEVICE_SHUFFLE_DOWN:
        return own->lane >= LANES ? own->lane : lane + own->lane >= LANES ? lane : lane + own->lane;
    default:
        return own->lane >= LANES ? own->lane : lane ^ own->lane;
    }
}

static void refuse(unsigned thread, const char *words, unsigned number)
{
    char text[96];
    snprintf(text, sizeof text, words, number);
    report(ZR_CU_LAUNCH_FAILED, thread, "%s, in line %u", text, threads[thread].own->line);
    leave();
}

/* Loads and products of matrices, which take a whole warp. */
static void exchange_matrices(unsigned first, uint32_t part)
{
    union {
        struct zr_device_matrices *matrices[LANES];
        struct zr_device_fragments *fragments[LANES];
    } lanes;
    bool loads = threads[first].own->kind == ZR_DEVICE_LOAD_MATRICES;
    if (part != UINT32_MAX)
        refuse(current, "multiplies matrices in a warp without lane %u", (unsigned)__builtin_ctz(~part));
    for (unsigned lane = 0; lane < LANES; lane++) {
        uintptr_t at = (uintptr_t)threads[first + lane].own->value;
        if (loads)
            lanes.matrices[lane] = (struct zr_device_matrices *)at;
        else
            lanes.fragments[lane] = (struct zr_device_fragments *)at;
    }
    if (loads)
        emu_matrices_load(lanes.matrices);
    else
        emu_matrices_multiply(lanes.fragments);
}

/* All lanes of `part`, of the warp that begins with thread `first`, are here: they go on with their results.
 */
static void exchange(unsigned first, uint32_t part)
{
    const struct zr_device_lane *one = threads[first + (unsigned)__builtin_ctz(part)].own;
    struct warp *warp = &warps[first / LANES];
    uint64_t ballot = 0;
    for (uint32_t rest = warp->waiting & ~part; rest; rest &= rest - 1)
        if (threads[first + (unsigned)__builtin_ctz(rest)].own->mask & part)
            refuse(first + (unsigned)__builtin_ctz(rest),
                   "shuffles with lanes of which one is in line %u, or has another mask", one->line);
    for (uint32_t rest = part; rest; rest &= rest - 1) {
        unsigned lane = (unsigned)__builtin_ctz(rest);
        const struct zr_device_lane *own = threads[first + lane].own;
        if (own->kind != one->kind || own->line != one->line || own->mask != one->mask)
            refuse(first + lane, "shuffles with lanes of which one is in line %u, or has another mask",
                   one->line);
        ballot |= own->value ? (uint64_t)1 << lane : 0;
    }
    bool shuffles = one->kind >= ZR_DEVICE_SHUFFLE && one->kind <= ZR_DEVICE_SHUFFLE_XOR;
    if (one->kind > ZR_DEVICE_BALLOT)
        exchange_matrices(first, part);
    for (uint32_t rest = part; rest; rest &= rest - 1) {
        unsigned lane = (unsigned)__builtin_ctz(rest);
        struct thread *t = &threads[first + lane];
        unsigned source = shuffles ? source_of(t->own, lane) : lane;
        if (source >= LANES)
            refuse(first + lane, "shuffles past the warp, with %u", source);
        if (!(part >> source & 1))
            refuse(first + lane, "shuffles from lane %u, which does not take part", source);
        t->result = shuffles ? threads[first + source].own->value : ballot;
        if (first + lane != current)
            make_ready(first + lane);
    }
    warp->waiting &= ~part;
    if (one->kind == ZR_DEVICE_SYNC && part == ~warp->gone)
        now.warp_met = ++warp->met;
}

/* Others may have waited for it alone. */
static void lane_ends(void)
{
    struct warp *warp = &warps[current / LANES];
    unsigned first = current / LANES * LANES;
    warp->gone |= UINT32_C(1) << current % LANES;
    if (warp->waiting) {
        uint32_t part = threads[first + (unsigned)__builtin_ctz(warp->waiting)].own->mask & ~warp->gone;
        if (part && (warp->waiting & part) == part)
            exchange(first, part);
    }
}

static uint64_t device_exchange(const struct zr_device_lane *own)
{
    struct thread *self = &threads[current];
    struct warp *warp = &warps[current / LANES];
    uint32_t bit = UINT32_C(1) << current % LANES, part = own->mask & ~warp->gone;
    self->own = own;
    if (!(own->mask & bit))
        refuse(current, "shuffles with lanes of mask %#x, of which it is none", own->mask);
    warp->waiting |= bit;
    if ((warp->waiting & part) != part)
        wait_here(AT_EXCHANGE);
    else
        exchange(current / LANES * LANES, part);
    return self->result;
}

/* ---- Running ------------------------------------------------------------------------------------------- */

static struct zr_device_dim device_thread(void)
{
    return threads[current].index;
}

static struct zr_device_dim device_block(void)
{
    return block;
}

static struct zr_device_dim device_threads(void)
{
    return running->launch->threads;
}

static struct zr_device_dim device_blocks(void)
{
    return running->launch->blocks;
}

static void *device_dynamic_shared(void)
{
    return dynamic_shared;
}

static void device_copy(void *to, const void *from, size_t bytes)
{
    if (emu_copies_add(current, to, from, bytes))
        return;
    report(ZR_CU_LAUNCH_FAILED, current, "has too many copies under way");
    leave();
}

static void device_copies_wait(void)
{
    emu_copies_wait(current);
}

static const struct zr_device_runner runner = {.access = device_access,
                                               .barrier = device_barrier,
                                               .exchange = device_exchange,
                                               .thread = device_thread,
                                               .block = device_block,
                                               .threads = device_threads,
                                               .blocks = device_blocks,
                                               .dynamic_shared = device_dynamic_shared,
                                               .copy = device_copy,
                                               .copies_wait = device_copies_wait};

static void run_block(void)
{
    ready_count = done_count = 0;
    next_moment();
    now.block = now.barrier;
    for (unsigned i = 0; i < threads_count; i++)
        begin_thread(i);
    for (unsigned i = 0; i < THREADS_MAX / LANES; i++) {
        unsigned lanes = threads_count > i * LANES ? threads_count - i * LANES : 0;
        warps[i] = (struct warp){.gone = lanes >= LANES ? 0 : ~UINT32_C(0) << lanes};
    }
    while (outcome == ZR_CU_SUCCESS && done_count < threads_count) {
        if (ready_count == 0 && !all_meet())
            return;
        emu_switch(&scheduler_stack_pointer, next_stack());
    }
}

/* Without a factor in common with the count: steps of it come to every block. */
static uint64_t step_through(uint64_t count)
{
    uint64_t step = 1 + emu_draw(count), a = count, b = step;
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a == 1 ? step : 1;
}

zr_cu_result emu_threads_run(const struct emu_execution *e)
{
    const struct zr_device_dim *blocks = &e->launch->blocks, *t = &e->launch->threads;
    uint64_t count = (uint64_t)blocks->x * blocks->y * blocks->z;
    uint64_t step = step_through(count), at = emu_draw(count);
    unsigned mode = _mm_getcsr();
    running = e;
    random_state = 1 + (uint32_t)emu_draw(UINT32_MAX);
    outcome = ZR_CU_SUCCESS;
    threads_count = t->x * t->y * t->z;
    make_stacks();
    for (unsigned i = 0; i < REACHES; i++)
        reaches[i] = (struct emu_reach){0};
    *e->image->runner = &runner;
    next_moment();
    now.launch = now.barrier;
    now.under_way = emu_race_begin(e, now.launch);
    _mm_setcsr(FLOAT_MODE);
    for (uint64_t i = 0; i < count && outcome == ZR_CU_SUCCESS; i++) {
        block = (struct zr_device_dim){(unsigned)(at % blocks->x), (unsigned)(at / blocks->x % blocks->y),
                                       (unsigned)(at / blocks->x / blocks->y)};
        run_block();
        at = (at + step) % count;
    }
    _mm_setcsr(mode);
    return outcome;
}
