/* readers.c: counters of read sections. Uses base/system/fork.h.
 *
 * The counters are a simpler form of those of sleepable RCU in the Linux kernel. A section decrements the
 * counter that it has incremented, so each counter alone is the number of its running sections. A writer that
 * has removed a record and then reads a counter as 0 needs no further wait for that counter: both sides use
 * read-modify-writes, which have one order, and a section that begins later sees the removal. Each place has
 * two counters. Sections that begin while a writer waits use the other counter, so the wait ends.
 *
 * liburcu is not used, because every flavour ends the process when memory runs out. bp maps its registry as
 * threads begin to read, and aborts if the system refuses. Its registry is private, so zr can neither count
 * its entries (other libraries register too) nor grow it in advance. memb, mb and qsbr keep a thread's record
 * in the library's thread-local memory. If the library was opened by dlopen(), glibc allocates that memory on
 * first use and exits if it cannot. After fork() the records of threads that no longer exist stay in the
 * registry, on stacks that the child uses again. A pair of calls takes 6 ns with memb, 7.5 ns with bp and 9.5
 * ns here; a search takes 20 ns. */
#include "alloc/core/index.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#include "alloc/base/system/fork.h"

enum { PLACES_SHIFT = 6, PLACES = 1 << PLACES_SHIFT };

/* Fills a cache line, so that places do not share one. */
struct place {
    zr_reading running[2];
} __attribute__((aligned(64)));

static struct place places[PLACES];
static _Atomic unsigned side; /* the index of the counters that new sections use */

static pthread_mutex_t waiting = PTHREAD_MUTEX_INITIALIZER; /* held by a writer while it changes `side` */

static const long first_pause_ns = 1000, last_pause_ns = 1000000;

/* The address of this variable identifies the thread. */
static __thread char here __attribute__((tls_model("initial-exec")));

static struct place *own_place(void)
{
    /* Stacks lie at regular distances, so a multiplication by the golden ratio spreads them over the places.
     */
    return &places[(uintptr_t)&here * UINT64_C(0x9e3779b97f4a7c15) >> (64 - PLACES_SHIFT)];
}

static void close_readers(void)
{
    pthread_mutex_lock(&waiting);
}

static void open_readers(bool child)
{
    for (size_t i = 0; i < PLACES && child; i++) {
        atomic_store(&places[i].running[0], 0);
        atomic_store(&places[i].running[1], 0);
    }
    pthread_mutex_unlock(&waiting);
}

void zr_readers_prepare(void)
{
    static const struct zr_fork_room room = {.close = close_readers, .open = open_readers};
    zr_fork_register(ZR_FORK_READERS, &room);
}

zr_reading *zr_read_begin(void)
{
    unsigned now = atomic_load_explicit(&side, memory_order_relaxed);
    zr_reading *reading = &own_place()->running[now];
    atomic_fetch_add_explicit(reading, 1, memory_order_acquire);
    return reading;
}

void zr_read_end(zr_reading *reading)
{
    atomic_fetch_sub_explicit(reading, 1, memory_order_release);
}

/* A read-modify-write, although it changes nothing: see the top of the file. */
static bool runs(zr_reading *reading)
{
    return atomic_fetch_add_explicit(reading, 0, memory_order_acq_rel) != 0;
}

static void wait_for(zr_reading *reading)
{
    for (long pause_ns = first_pause_ns; runs(reading);
         pause_ns = pause_ns < last_pause_ns ? 2 * pause_ns : pause_ns)
        nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
}

void zr_readers_wait(void)
{
    pthread_mutex_lock(&waiting);
    for (unsigned round = 0; round < 2; round++) {
        unsigned old = atomic_load_explicit(&side, memory_order_relaxed);
        atomic_store_explicit(&side, 1 - old, memory_order_relaxed);
        for (size_t i = 0; i < PLACES; i++)
            wait_for(&places[i].running[old]);
    }
    pthread_mutex_unlock(&waiting);
}
