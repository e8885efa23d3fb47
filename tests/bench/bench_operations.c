/* bench_operations.c: one allocator, one sequence: nanoseconds per operation, and the work itself in a
 * function of its own for callgrind to count. tests/bench/bench_operations.py runs all of them and prints the
 * table.
 *
 *   bench_operations ALLOCATOR SEQUENCE [REPEATS [THREADS [SHIFT [TOUCH]]]]
 *
 * Two kinds stand beside one another, each with its like. Bookkeeping alone: zr (our arena on sim), planned
 * (the same arena, which follows a plan packed from the sequence beforehand) and bestfit (best fit in one
 * growing range, as `zr replay` has it). Memory of the processor: zr-host and planned-host (the arena on the
 * host backend, all its driver calls and page faults included), jemalloc and mimalloc (the system's
 * libraries, opened at run time); there the first and the last byte of every block are written, for all
 * alike, unless TOUCH is 0. SEQUENCE is a trace, or training, server or small, which are made here. Where a
 * trace is larger than memory, SHIFT divides its sizes by a power of two, for all that are compared alike.
 * Each of THREADS runs the whole sequence. The answer is one line of "name value" pairs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alloc/plan/plan.h"
#include "defrag/replay/model.h"
#include "tests/support/pin.h"
#include "tests/support/random.h"

enum { EVENTS_MAX = 200000, REPEATS_MAX = 101, THREADS_MAX = 8, WARM = 2 };

static void fail(const char *words)
{
    fprintf(stderr, "bench_operations: %s: %s\n", words, zr_last_error());
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- Sequences made here ------------------------------------------------------------------------------- */

static struct zr_event made[EVENTS_MAX];
static uint64_t bytes_of[EVENTS_MAX];
static size_t made_count;
static uint32_t made_blocks;
static uint64_t random_state = 88172645463325252u;

static uint64_t next_random(void)
{
    return xorshift64(&random_state);
}

static uint32_t take(uint64_t bytes)
{
    if (made_count == EVENTS_MAX)
        fail("a sequence is too long");
    made[made_count++] = (struct zr_event){
        .kind = ZR_EVENT_ALLOC, .tag = ZR_TAG_ACTIVATION, .block = made_blocks, .bytes = bytes};
    bytes_of[made_blocks] = bytes;
    return made_blocks++;
}

static void give(uint32_t block)
{
    if (made_count == EVENTS_MAX)
        fail("a sequence is too long");
    made[made_count++] = (struct zr_event){
        .kind = ZR_EVENT_FREE, .tag = ZR_TAG_ACTIVATION, .block = block, .bytes = bytes_of[block]};
}

/* Ten steps of a transformer of 24 layers: six activations kept and four short-lived blocks for each layer,
 * forward; what was kept goes backward, among gradients. */
static void make_training(void)
{
    enum { LAYERS = 24, KEPT = 6 };
    static const uint64_t kept_bytes[KEPT] = {8 << 20, 24 << 20, 16 << 20, 8 << 20, 32 << 20, 65536};
    uint32_t kept[LAYERS][KEPT];
    for (unsigned step = 0; step < 10; step++) {
        for (unsigned layer = 0; layer < LAYERS; layer++)
            for (unsigned i = 0; i < KEPT; i++) {
                uint32_t scratch = take(kept_bytes[(i + 3) % KEPT] / 2 + 512);
                kept[layer][i] = take(kept_bytes[i] + 4096 * i);
                give(scratch);
            }
        for (unsigned layer = LAYERS; layer-- > 0;) {
            uint32_t gradient = take(8 << 20), small = take(12288);
            for (unsigned i = KEPT; i-- > 0;) {
                uint32_t next = take(kept_bytes[i]);
                give(kept[layer][i]);
                give(gradient);
                gradient = next;
            }
            give(small);
            give(gradient);
        }
    }
}

/* Sizes over fourteen powers of two, replaced at random. */
static void make_server(void)
{
    enum { SLOTS = 500 };
    uint32_t slots[SLOTS];
    bool used[SLOTS] = {false};
    for (unsigned i = 0; i < 40000; i++) {
        size_t at = next_random() % SLOTS;
        if (used[at])
            give(slots[at]);
        else
            slots[at] = take((256 + next_random() % 256) << next_random() % 14);
        used[at] = !used[at];
    }
}

/* Blocks up to 4 KiB, replaced at random. */
static void make_small(void)
{
    enum { SLOTS = 2000 };
    uint32_t slots[SLOTS];
    bool used[SLOTS] = {false};
    for (unsigned i = 0; i < 60000; i++) {
        size_t at = next_random() % SLOTS;
        if (used[at])
            give(slots[at]);
        else
            slots[at] = take(1 + next_random() % 4096);
        used[at] = !used[at];
    }
}

/* ---- Allocators ---------------------------------------------------------------------------------------- */

struct allocator {
    const char *name;
    void (*open)(const struct zr_sequence *sequence);
    void *(*alloc)(const struct zr_event *event); /* NULL: no memory */
    void (*free)(void *block);
    bool threads; /* several may call */
    bool memory;  /* there is some behind the addresses */
};

static zr_arena *arena;
static struct zr_policy_model *model;
static void *(*peer_alloc)(size_t bytes);
static void (*peer_free)(void *block);
static unsigned arena_threads = 1; /* that it is made for */
static bool arena_on_host;
static unsigned shift; /* what sizes are divided by, as a power of two */

static uint64_t bytes_asked(const struct zr_event *event)
{
    return (event->bytes >> shift) + (shift > 0);
}

static void arena_open(const struct zr_sequence *sequence)
{
    zr_backend *backend;
    (void)sequence;
    if ((arena_on_host ? zr_backend_host_create(&backend, NULL) : zr_backend_sim_create(&backend, NULL)) !=
            ZR_OK ||
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .threads = arena_threads}) !=
            ZR_OK)
        fail("the arena");
}

static void *arena_alloc(const struct zr_event *event)
{
    void *out;
    zr_arena_alloc(
        arena,
        &(struct zr_request){.bytes = bytes_asked(event), .tag = (zr_tag)event->tag, .stream = event->stream},
        &out);
    return out;
}

static void arena_free(void *block)
{
    zr_arena_free(arena, block);
}

/* The steps of the plan: every allocation, where the packer put it and how long it stays. What is live at the
 * end is freed before the sequence begins again. */
static void fill_steps(struct zr_plan_step *steps, const struct zr_sequence *sequence,
                       const struct zr_lifetimes *lifetimes)
{
    size_t *step_of = calloc(sequence->blocks_count + 1, sizeof *step_of), count = 0;
    if (!step_of)
        fail("memory for a plan");
    for (size_t i = 0; i < sequence->events_count; i++) {
        const struct zr_event *event = &sequence->events[i];
        if (event->kind == ZR_EVENT_ALLOC) {
            step_of[event->block] = count;
            steps[count++] = (struct zr_plan_step){.request = {.bytes = bytes_asked(event),
                                                               .alignment = 256,
                                                               .tag = (zr_tag)event->tag,
                                                               .stream = event->stream},
                                                   .thread = zr_thread_number()};
        } else if (event->kind == ZR_EVENT_FREE) {
            struct zr_plan_step *step = &steps[step_of[event->block]];
            step->alive_count = (uint32_t)(count - step_of[event->block]);
        }
    }
    for (size_t i = 0; i < count; i++)
        if (steps[i].alive_count == 0)
            steps[i].alive_count = (uint32_t)(count - i);
    for (size_t i = 0; i < lifetimes->count; i++)
        steps[step_of[lifetimes->buffers[i].id]].offset_bytes = (size_t)lifetimes->buffers[i].offset_bytes;
    free(step_of);
}

static void planned_open(const struct zr_sequence *sequence)
{
    struct zr_lifetimes lifetimes;
    struct zr_pack_report report;
    arena_open(sequence);
    if (zr_lifetimes_of(&lifetimes, sequence, sequence->host_arena) != ZR_OK)
        fail("the lifetimes");
    for (size_t i = 0; i < lifetimes.count; i++)
        lifetimes.buffers[i].bytes = (lifetimes.buffers[i].bytes >> shift) + (shift > 0);
    if (zr_pack(&lifetimes, &(struct zr_pack_options){.alignment_bytes = 256, .time_ns = 1000000000},
                &report) != ZR_OK)
        fail("the packer");
    struct zr_plan_step *steps = calloc(sequence->blocks_count, sizeof *steps);
    if (!steps)
        fail("memory for a plan");
    fill_steps(steps, sequence, &lifetimes);
    struct zr_plan_sequence planned = {.count = sequence->blocks_count, .any = true};
    if (zr_arena_install_plan(
            arena, &(struct zr_plan){.steps = steps,
                                     .steps_count = sequence->blocks_count,
                                     .sequences = &planned,
                                     .sequences_count = 1,
                                     .region_bytes = (report.height_bytes + (2 << 20)) >> 21 << 21}) != ZR_OK)
        fail("the plan");
    zr_lifetimes_end(&lifetimes);
    free(steps);
}

static void host_open(const struct zr_sequence *sequence)
{
    arena_on_host = true;
    arena_open(sequence);
}

static void planned_host_open(const struct zr_sequence *sequence)
{
    arena_on_host = true;
    planned_open(sequence);
}

static void bestfit_open(const struct zr_sequence *sequence)
{
    if (zr_model_begin(&model, &zr_model_bestfit,
                       &(struct zr_model_options){.host_arena = sequence->host_arena,
                                                  .granule_bytes = (size_t)2 << 20}) != ZR_OK)
        fail("best fit");
}

static void *bestfit_alloc(const struct zr_event *event)
{
    void *out = NULL;
    return zr_model_bestfit.alloc(model, event, &out) == ZR_OK ? out : NULL;
}

static void bestfit_free(void *block)
{
    zr_model_bestfit.free(model, block);
}

static void peer_open(const char *library, const char *alloc, const char *dealloc)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    peer_alloc = handle ? (void *(*)(size_t))dlsym(handle, alloc) : NULL;
    peer_free = handle ? (void (*)(void *))dlsym(handle, dealloc) : NULL;
    if (!peer_alloc || !peer_free) {
        printf("absent %s\n", library);
        exit(0);
    }
}

static void jemalloc_open(const struct zr_sequence *sequence)
{
    (void)sequence;
    peer_open("libjemalloc.so.2", "malloc", "free");
}

static void mimalloc_open(const struct zr_sequence *sequence)
{
    (void)sequence;
    peer_open("libmimalloc.so.2", "mi_malloc", "mi_free");
}

static void *peer_alloc_event(const struct zr_event *event)
{
    return peer_alloc(bytes_asked(event));
}

static void peer_free_block(void *block)
{
    peer_free(block);
}

static const struct allocator allocators[] = {
    {"zr", arena_open, arena_alloc, arena_free, true, false},
    {"planned", planned_open, arena_alloc, arena_free, false, false},
    {"bestfit", bestfit_open, bestfit_alloc, bestfit_free, false, false},
    {"zr-host", host_open, arena_alloc, arena_free, true, true},
    {"planned-host", planned_host_open, arena_alloc, arena_free, false, true},
    {"jemalloc", jemalloc_open, peer_alloc_event, peer_free_block, true, true},
    {"mimalloc", mimalloc_open, peer_alloc_event, peer_free_block, true, true},
};

/* ---- Running ------------------------------------------------------------------------------------------- */

struct job {
    const struct allocator *allocator;
    const struct zr_sequence *sequence;
    void **blocks;
    unsigned repeats;
    bool touches;               /* both ends of each block */
    pthread_barrier_t *barrier; /* NULL: nobody runs beside it */
    unsigned number;            /* among those that run beside one another */
    uint64_t start_ns[REPEATS_MAX], end_ns[REPEATS_MAX];
    size_t refused;
};

/* The whole sequence. Returns how many requests found no memory. */
static inline __attribute__((always_inline)) size_t run(const struct job *job)
{
    void *(*alloc)(const struct zr_event *) = job->allocator->alloc;
    void (*dealloc)(void *) = job->allocator->free;
    const struct zr_event *event = job->sequence->events, *end = event + job->sequence->events_count;
    void **blocks = job->blocks;
    size_t refused = 0;
    for (; event < end; event++)
        if (event->kind == ZR_EVENT_ALLOC) {
            blocks[event->block] = alloc(event);
            refused += blocks[event->block] == NULL;
            if (job->touches && blocks[event->block]) {
                volatile char *block = blocks[event->block];
                block[0] = block[bytes_asked(event) - 1] = 1;
            }
        } else if (event->kind == ZR_EVENT_FREE) {
            dealloc(blocks[event->block]);
            blocks[event->block] = NULL;
        }
    return refused;
}

/* The last repeat: what callgrind counts, by this name. */
size_t counted_run(const struct job *job);
__attribute__((noinline)) size_t counted_run(const struct job *job)
{
    return run(job);
}

static void drain(const struct job *job)
{
    for (uint32_t i = 0; i < job->sequence->blocks_count; i++)
        if (job->blocks[i]) {
            job->allocator->free(job->blocks[i]);
            job->blocks[i] = NULL;
        }
}

static void *work(void *argument)
{
    struct job *job = argument;
    if (job->barrier)
        pin_to(job->number);
    for (unsigned i = 0; i < job->repeats; i++) {
        if (job->barrier)
            pthread_barrier_wait(job->barrier);
        job->start_ns[i] = now_ns();
        job->refused += i + 1 == job->repeats ? counted_run(job) : run(job);
        job->end_ns[i] = now_ns();
        drain(job);
    }
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Runs the jobs beside one another; *out gets the sorted times from the first start to the last end. Returns
 * the refused requests. */
static size_t run_jobs(struct job *jobs, unsigned threads, uint64_t *out)
{
    pthread_barrier_t barrier;
    pthread_t others[THREADS_MAX];
    size_t refused = 0;
    pthread_barrier_init(&barrier, NULL, threads);
    for (unsigned i = 0; i < threads; i++) {
        jobs[i].barrier = threads > 1 ? &barrier : NULL;
        jobs[i].number = i;
    }
    for (unsigned i = 1; i < threads; i++)
        pthread_create(&others[i], NULL, work, &jobs[i]);
    work(&jobs[0]);
    for (unsigned i = 1; i < threads; i++)
        pthread_join(others[i], NULL);
    for (unsigned i = 0; i < jobs[0].repeats; i++) {
        uint64_t start = UINT64_MAX, end = 0;
        for (unsigned k = 0; k < threads; k++) {
            start = jobs[k].start_ns[i] < start ? jobs[k].start_ns[i] : start;
            end = jobs[k].end_ns[i] > end ? jobs[k].end_ns[i] : end;
        }
        out[i] = end - start;
    }
    for (unsigned i = 0; i < threads; i++)
        refused += jobs[i].refused;
    pthread_barrier_destroy(&barrier);
    unsigned warm = jobs[0].repeats > 2 * WARM ? WARM : 0;
    memmove(out, out + warm, (jobs[0].repeats - warm) * sizeof *out);
    qsort(out, jobs[0].repeats - warm, sizeof *out, by_value);
    return refused;
}

/* The largest sum of live bytes, as they are asked for. */
static uint64_t most_live_bytes(const struct zr_sequence *sequence)
{
    uint64_t live = 0, most = 0;
    for (size_t i = 0; i < sequence->events_count; i++) {
        const struct zr_event *event = &sequence->events[i];
        live += event->kind == ZR_EVENT_ALLOC ? bytes_asked(event) : 0;
        live -= event->kind == ZR_EVENT_FREE ? bytes_asked(event) : 0;
        most = live > most ? live : most;
    }
    return most;
}

static void measure(const struct allocator *allocator, const struct zr_sequence *sequence, unsigned repeats,
                    unsigned threads, bool touches)
{
    static struct job jobs[THREADS_MAX];
    static uint64_t ns[REPEATS_MAX];
    size_t operations = 0, refused;
    for (size_t i = 0; i < sequence->events_count; i++)
        operations += sequence->events[i].kind != ZR_EVENT_MARK;
    allocator->open(sequence);
    for (unsigned i = 0; i < threads; i++)
        jobs[i] = (struct job){.allocator = allocator,
                               .sequence = sequence,
                               .repeats = repeats,
                               .touches = touches && allocator->memory,
                               .blocks = calloc(sequence->blocks_count + 1, sizeof(void *))};
    refused = run_jobs(jobs, threads, ns);
    double mean = 0;
    size_t samples = repeats > 2 * WARM ? repeats - WARM : repeats;
    double each = (double)operations * threads;
    for (size_t i = 0; i < samples; i++)
        mean += (double)ns[i] / (double)samples;
    struct zr_executor_counts followed = {0};
    if (arena)
        zr_arena_executor_counts(arena, &followed);
    if (followed.plans_count)
        printf("unplanned %llu ", (unsigned long long)(followed.unplanned_count + followed.unplaced_count +
                                                       followed.conflicts_count + followed.refused_count));
    printf(
        "operations %zu live_bytes %llu refused %zu median_ns %.2f mean_ns %.2f least_ns %.2f most_ns %.2f\n",
        operations, (unsigned long long)most_live_bytes(sequence), refused, (double)ns[samples / 2] / each,
        mean / each, (double)ns[0] / each, (double)ns[samples - 1] / each);
}

/* ---- Main ---------------------------------------------------------------------------------------------- */

static void sequence_of(const char *name, struct zr_sequence *out, zr_arena *host_arena)
{
    static const struct {
        const char *name;
        void (*make)(void);
    } makers[] = {{"training", make_training}, {"server", make_server}, {"small", make_small}};
    for (size_t i = 0; i < sizeof makers / sizeof *makers; i++)
        if (strcmp(makers[i].name, name) == 0) {
            makers[i].make();
            *out = (struct zr_sequence){.events = made,
                                        .events_count = made_count,
                                        .blocks_count = made_blocks,
                                        .host_arena = host_arena};
            return;
        }
    if (zr_sequence_read(out, &(struct zr_read_options){.path = name, .device = -1}, host_arena) != ZR_OK)
        fail(name);
}

static unsigned number(const char *text, unsigned most)
{
    unsigned value = (unsigned)strtoul(text, NULL, 10);
    return value < 1 ? 1 : value > most ? most : value;
}

int main(int count, char **arguments)
{
    struct zr_sequence sequence;
    zr_backend *host;
    zr_arena *host_arena;
    if (count < 3) {
        fprintf(stderr, "usage: bench_operations zr|planned|bestfit|zr-host|planned-host|jemalloc|mimalloc "
                        "FILE|training|server|small [REPEATS [THREADS [SHIFT [TOUCH]]]]\n");
        return 2;
    }
    if (zr_backend_host_create(&host, NULL) != ZR_OK ||
        zr_arena_create(&host_arena, &(struct zr_arena_options){.backend = host}) != ZR_OK)
        fail("the host arena");
    sequence_of(arguments[2], &sequence, host_arena);
    for (size_t i = 0; i < sizeof allocators / sizeof *allocators; i++)
        if (strcmp(allocators[i].name, arguments[1]) == 0) {
            unsigned threads = count > 4 ? number(arguments[4], THREADS_MAX) : 1;
            arena_threads = threads;
            shift = count > 5 ? (unsigned)strtoul(arguments[5], NULL, 10) : 0;
            if (threads > 1 && !allocators[i].threads)
                printf("absent threads\n");
            else
                measure(&allocators[i], &sequence, count > 3 ? number(arguments[3], REPEATS_MAX) : 25,
                        threads, count <= 6 || strcmp(arguments[6], "0") != 0);
            return 0;
        }
    fprintf(stderr, "bench_operations: there is no allocator %s\n", arguments[1]);
    return 2;
}
