/* lock_test.c: the lock under threads that sleep on it: nothing is lost, nobody sleeps on, and a thread that
 * takes and gives it all the time does not call the kernel each time. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/system/lock.h"
#include "tests/support/random.h"
#include "tests/support/tap.h"

enum { THREADS = 8, TURNS = 4000, LONG_TURNS = 40 };

static struct zr_lock lock;
static uint64_t counter; /* lock: lock */
static atomic_uint slept;
static pthread_barrier_t all_there;

/* Now and then the lock is held for longer than anybody spins. */
static void *work(void *argument)
{
    uint64_t state = (uintptr_t)argument + 1;
    pthread_barrier_wait(&all_there);
    for (unsigned i = 0; i < TURNS; i++) {
        if (!zr_lock_try(&lock))
            atomic_fetch_add(&slept, zr_lock_wait(&lock));
        uint64_t was = counter;
        if (splitmix64(&state) % (TURNS / LONG_TURNS) == 0)
            usleep(100);
        counter = was + 1;
        zr_lock_release(&lock);
    }
    return NULL;
}

static void test_sleepers(void)
{
    pthread_t threads[THREADS];
    pthread_barrier_init(&all_there, NULL, THREADS);
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    tap_is(counter, THREADS * TURNS, "no turn is lost");
    tap_ok(atomic_load(&slept) > 0, "%u waits became sleeps", atomic_load(&slept));
    tap_is(lock.sleepers, 0, "nobody sleeps at the end");
    tap_is(lock.waking, 0, "nobody is being woken");
    tap_is(lock.held, 0, "the lock is open");
}

/* ---- One sleeper, and one that is always at it --------------------------------------------------------- */

static atomic_bool served, ready;

static void *one_turn(void *argument)
{
    atomic_store(&ready, true);
    zr_lock_acquire(&lock);
    zr_lock_release(&lock);
    atomic_store(&served, true);
    return argument;
}

static void test_served(void)
{
    pthread_t other;
    const struct timespec short_while = {.tv_nsec = 2000000};
    unsigned late = 0;
    for (unsigned round = 0; round < 20; round++) {
        atomic_store(&served, false);
        atomic_store(&ready, false);
        zr_lock_acquire(&lock);
        pthread_create(&other, NULL, one_turn, NULL);
        while (!atomic_load(&ready))
            sched_yield();
        nanosleep(&short_while, NULL); /* it has gone to sleep by now */
        zr_lock_release(&lock);
        /* Greedy: the other comes in between. */
        time_t end = time(NULL) + 300;
        while (!atomic_load(&served) && time(NULL) < end)
            for (unsigned i = 0; i < 100; i++) {
                zr_lock_acquire(&lock);
                zr_lock_release(&lock);
            }
        late += !atomic_load(&served);
        pthread_join(other, NULL);
    }
    tap_is(late, 0, "a sleeper gets its turn beside one that is always at it");
    tap_is(lock.sleepers + lock.waking + lock.held, 0, "and leaves nothing behind");
}

int main(void)
{
    test_sleepers();
    test_served();
    return tap_done();
}
