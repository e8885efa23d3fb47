/* handing.c: blocks that one thread takes and another frees. */
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>

#include "tests/bench/malloc/workloads.h"

/* ---- larson: a server whose threads end and leave their blocks to their successors ---- */

#define LARSON_BLOCKS      5000
#define LARSON_GENERATIONS 60

struct chain {
    uint64_t *blocks[LARSON_BLOCKS];
    unsigned generations; /* still to come */
    uint64_t steps, random;
    struct tally tally;
    sem_t *ended;
};

static void *larson_thread(void *argument)
{
    struct chain *chain = argument;
    for (uint64_t i = 0; i < chain->steps; i++) {
        uint64_t **slot = &chain->blocks[below(&chain->random, LARSON_BLOCKS)];
        chain->tally.checksum += block_drop(*slot);
        *slot = block_new(8 + below(&chain->random, 993), (uint32_t)i);
    }
    chain->tally.operations += chain->steps;
    if (--chain->generations) {
        pthread_t successor;
        thread_start(&successor, larson_thread, chain);
        pthread_detach(successor);
    } else {
        sem_post(chain->ended);
    }
    return NULL;
}

struct tally workload_larson(const struct run *run)
{
    struct chain *chains = take_zeroed(run->threads, sizeof *chains);
    struct tally sum = {0};
    sem_t ended;
    sem_init(&ended, 0, 0);
    for (unsigned i = 0; i < run->threads; i++) {
        chains[i].generations = LARSON_GENERATIONS;
        chains[i].steps = scaled(run, 20000000) / run->threads / LARSON_GENERATIONS;
        chains[i].random = mixed(i) | 1;
        chains[i].ended = &ended;
        pthread_t first;
        thread_start(&first, larson_thread, &chains[i]);
        pthread_detach(first);
    }
    for (unsigned i = 0; i < run->threads; i++) {
        sem_wait(&ended);
    }
    for (unsigned i = 0; i < run->threads; i++) {
        sum.operations += chains[i].tally.operations;
        sum.checksum += chains[i].tally.checksum;
        for (unsigned j = 0; j < LARSON_BLOCKS; j++) {
            sum.checksum += block_drop(chains[i].blocks[j]);
        }
    }
    free(chains);
    sem_destroy(&ended);
    return sum;
}

/* ---- xmalloc: some threads only take, the others only free ---- */

#define XMALLOC_BATCH  1024
#define XMALLOC_QUEUED 64 /* batches at most */

struct batch {
    struct batch *next;
    uint64_t *blocks[XMALLOC_BATCH];
};

struct batch_queue {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct batch *first, **last; /* lock */
    unsigned queued, producers;  /* lock */
};

static void batch_push(struct batch_queue *queue, struct batch *batch)
{
    pthread_mutex_lock(&queue->lock);
    while (queue->queued == XMALLOC_QUEUED) {
        pthread_cond_wait(&queue->changed, &queue->lock);
    }
    batch->next = NULL;
    *queue->last = batch;
    queue->last = &batch->next;
    queue->queued++;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
}

/* NULL: no producer is left, and no batch. */
static struct batch *batch_pop(struct batch_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    while (!queue->queued && queue->producers) {
        pthread_cond_wait(&queue->changed, &queue->lock);
    }
    struct batch *batch = queue->first;
    if (batch) {
        queue->first = batch->next;
        queue->last = queue->first ? queue->last : &queue->first;
        queue->queued--;
        pthread_cond_broadcast(&queue->changed);
    }
    pthread_mutex_unlock(&queue->lock);
    return batch;
}

static void xmalloc_produce(struct worker *worker, struct batch_queue *queue)
{
    for (uint64_t done = 0; done < worker->steps; done += XMALLOC_BATCH) {
        struct batch *batch = take(sizeof *batch);
        for (unsigned i = 0; i < XMALLOC_BATCH; i++) {
            batch->blocks[i] = block_new(power_law(&worker->random, 16, 6), (uint32_t)done + i);
        }
        worker->tally.operations += XMALLOC_BATCH + 1;
        batch_push(queue, batch);
    }
    pthread_mutex_lock(&queue->lock);
    queue->producers--;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
}

static void *xmalloc_thread(void *argument)
{
    struct worker *worker = argument;
    struct batch_queue *queue = worker->shared;
    if (worker->index % 2 == 0) {
        xmalloc_produce(worker, queue);
        return NULL;
    }
    for (struct batch *batch; (batch = batch_pop(queue)); free(batch)) {
        for (unsigned i = 0; i < XMALLOC_BATCH; i++) {
            worker->tally.checksum += block_drop(batch->blocks[i]);
        }
    }
    return NULL;
}

/* An even number of threads. */
struct tally workload_xmalloc(const struct run *run)
{
    struct run even = {.threads = (run->threads + 1) / 2 * 2, .scale = run->scale};
    struct batch_queue queue = {.lock = PTHREAD_MUTEX_INITIALIZER,
                                .changed = PTHREAD_COND_INITIALIZER,
                                .last = &queue.first,
                                .producers = even.threads / 2};
    return workers_run(&even, 18000000, xmalloc_thread, &queue);
}

/* ---- mstress: phases, random lifetimes, and a table through which threads swap blocks ---- */

#define MSTRESS_PHASES 12
#define MSTRESS_SHARED 4096
#define MSTRESS_OWN    30000

typedef _Atomic(uint64_t *) shared_slot;

static void *mstress_thread(void *argument)
{
    struct worker *worker = argument;
    shared_slot *shared = worker->shared;
    uint64_t **own = take_zeroed(MSTRESS_OWN, sizeof *own);
    for (uint64_t i = 0; i < worker->steps; i++) {
        uint32_t what = below(&worker->random, 16), at = below(&worker->random, MSTRESS_OWN);
        if (what < 10 || !own[at]) {
            worker->tally.checksum += block_drop(own[at]);
            own[at] = block_new(power_law(&worker->random, 16, what ? 8 : 14), (uint32_t)i);
            worker->tally.operations++;
        } else if (what < 13) {
            worker->tally.checksum += block_drop(own[at]);
            own[at] = NULL;
        } else {
            shared_slot *slot = &shared[below(&worker->random, MSTRESS_SHARED)];
            worker->tally.checksum += block_drop(atomic_exchange(slot, own[at]));
            own[at] = NULL;
        }
    }
    for (unsigned i = 0; i < MSTRESS_OWN; i++) {
        worker->tally.checksum += block_drop(own[i]);
    }
    free(own);
    return NULL;
}

struct tally workload_mstress(const struct run *run)
{
    shared_slot *shared = take_zeroed(MSTRESS_SHARED, sizeof *shared);
    struct tally sum = {0};
    for (unsigned phase = 0; phase < MSTRESS_PHASES; phase++) {
        struct tally more = workers_run(run, 1500000, mstress_thread, shared);
        sum.operations += more.operations;
        sum.checksum += more.checksum;
        unsigned step = phase + 1 < MSTRESS_PHASES ? 2 : 1;
        for (unsigned i = 0; i < MSTRESS_SHARED; i += step) {
            sum.checksum += block_drop(atomic_exchange(&shared[i], NULL));
        }
    }
    free(shared);
    return sum;
}

/* ---- rptest: groups of blocks, some of which go to the other threads ---- */

#define RPTEST_GROUP  64
#define RPTEST_SLOTS  4096
#define RPTEST_SHARED 32 /* parcels on their way, at most */

struct parcel {
    uint64_t *blocks[RPTEST_GROUP];
};
typedef _Atomic(struct parcel *) parcel_slot;

/* Puts the parcel, or NULL, where another may be, and frees that one and its blocks. */
static uint64_t parcel_swap(parcel_slot *slot, struct parcel *parcel)
{
    uint64_t checksum = 0;
    struct parcel *other = atomic_exchange(slot, parcel);
    for (unsigned i = 0; other && i < RPTEST_GROUP; i++) {
        checksum += block_drop(other->blocks[i]);
    }
    free(other);
    return checksum;
}

static void *rptest_thread(void *argument)
{
    struct worker *worker = argument;
    parcel_slot *shared = worker->shared;
    uint64_t **slots = take_zeroed(RPTEST_SLOTS, sizeof *slots);
    for (uint64_t i = 0; i < worker->steps; i++) {
        uint64_t *group[RPTEST_GROUP];
        for (unsigned j = 0; j < RPTEST_GROUP; j++) {
            uint32_t range = below(&worker->random, 8) ? 1000 : 16000;
            group[j] = block_new(16 + below(&worker->random, range), (uint32_t)i);
        }
        worker->tally.operations += RPTEST_GROUP;
        if (i % 4 == 0) {
            struct parcel *parcel = take(sizeof *parcel);
            memcpy(parcel->blocks, group, sizeof group);
            worker->tally.checksum += parcel_swap(&shared[below(&worker->random, RPTEST_SHARED)], parcel);
            worker->tally.operations++;
            continue;
        }
        for (unsigned j = 0; j < RPTEST_GROUP; j++) {
            uint64_t **slot = &slots[below(&worker->random, RPTEST_SLOTS)];
            worker->tally.checksum += block_drop(*slot);
            *slot = group[j];
        }
    }
    for (unsigned i = 0; i < RPTEST_SLOTS; i++) {
        worker->tally.checksum += block_drop(slots[i]);
    }
    free(slots);
    return NULL;
}

struct tally workload_rptest(const struct run *run)
{
    parcel_slot *shared = take_zeroed(RPTEST_SHARED, sizeof *shared);
    struct tally sum = workers_run(run, 150000, rptest_thread, shared);
    for (unsigned i = 0; i < RPTEST_SHARED; i++) {
        sum.checksum += parcel_swap(&shared[i], NULL);
    }
    free(shared);
    return sum;
}
