/* helper.c: see client.h. Uses core/reclaim.c and client.c. */
#define _GNU_SOURCE

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/system/fork.h"
#include "alloc/base/system/os.h"
#include "alloc/core/registry.h"
#include "alloc/service/client/client.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define STACK_BYTES ((size_t)4 << 20)
#else
#define STACK_BYTES ((size_t)256 << 10)
#endif
enum { POLL_MS = 500 };

static struct {
    pthread_mutex_t lock;
    zr_helper_spill *spill;
    void *state;
} spiller = {.lock = PTHREAD_MUTEX_INITIALIZER};

void zr_helper_set_spill(zr_helper_spill *spill, void *state)
{
    pthread_mutex_lock(&spiller.lock);
    spiller.spill = spill;
    spiller.state = state;
    pthread_mutex_unlock(&spiller.lock);
}

static size_t spill(size_t bytes, uint64_t until_ns)
{
    pthread_mutex_lock(&spiller.lock);
    size_t returned_bytes = spiller.spill ? spiller.spill(spiller.state, bytes, until_ns) : 0;
    pthread_mutex_unlock(&spiller.lock);
    return returned_bytes;
}

/* Receives a notification, returns the memory that it requests, and answers. */
static void handle_notification(struct zr_service *service)
{
    struct zr_service_message wanted;
    if (!zr_service_receive_notification(service, &wanted))
        return;
    if (wanted.kind == ZR_SERVICE_INQUIRE) {
        zr_service_report_idle(service, zr_reclaim_idle_bytes(zr_service_lender(service)));
        return;
    }
    /* Retries busy arenas for half of the time limit: a thread may hold an arena's lock while it waits for
     * zrd.
     */
    uint64_t until_ns = zr_os_now_ns() + (uint64_t)wanted.within_ms * 500000;
    size_t returned_bytes = 0;
    bool busy = true;
    zr_service_gather_begin();
    while (busy && returned_bytes < wanted.bytes) {
        busy = false;
        returned_bytes += zr_reclaim(wanted.bytes - returned_bytes, zr_service_lender(service), &busy);
        if (zr_service_is_waiting(service) || zr_os_now_ns() >= until_ns)
            break;
        if (busy && returned_bytes < wanted.bytes)
            nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    }
    if (returned_bytes < wanted.bytes && service == zr_service_host() && wanted.flags & ZR_SERVICE_SPILL)
        returned_bytes += spill(wanted.bytes - returned_bytes, until_ns);
    zr_service_gather_end();
    zr_service_given(service, &wanted, returned_bytes);
}

/* ---- The thread ---------------------------------------------------------------------------------------- */

_Atomic bool zr_helper_started;

static struct zr_thread thread;
static void *stack;       /* of the thread; a child reuses it for its own */
static pid_t own_process; /* the process that may start the thread, and no child of vfork() */

/* Waits for notifications of all zrds, handles them, and reconnects where a retry is due. */
static void poll_notifications(void)
{
    enum { SOCKETS_MAX = 32 };
    struct pollfd sockets[SOCKETS_MAX];
    struct zr_service *service = NULL;
    unsigned count = 0, i = 0;
    while (count < SOCKETS_MAX && (service = zr_service_next(service)))
        sockets[count++] = (struct pollfd){.fd = zr_service_notifications(service), .events = POLLIN};
    if (poll(sockets, count, POLL_MS) > 0)
        for (service = NULL; i < count && (service = zr_service_next(service)); i++)
            if (sockets[i].revents)
                handle_notification(service);
    for (service = NULL; (service = zr_service_next(service));)
        zr_service_tick(service);
}

/* The thread is never joined: it ends with the process. */
static void *run(void *nothing)
{
    (void)nothing;
    pthread_setname_np(pthread_self(), "zr-reclaim");
    zr_service_listen();
    for (;;)
        poll_notifications();
    return NULL;
}

static void after_fork(bool child)
{
    if (!child)
        return;
    own_process = getpid();
    atomic_store(&zr_helper_started, false);
}

static void prepare(void)
{
    static const struct zr_fork_room room = {.open = after_fork};
    own_process = getpid();
    zr_fork_register(ZR_FORK_RECLAIM, &room);
}

void zr_helper_start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int error = errno;
    bool expected = false;
    pthread_once(&once, prepare);
    if (getpid() == own_process && atomic_compare_exchange_strong(&zr_helper_started, &expected, true)) {
        if (!stack)
            stack = zr_pages_take(STACK_BYTES);
        if (stack)
            zr_thread_start_on(&thread, (struct zr_stack){stack, STACK_BYTES}, run, NULL);
    }
    errno = error;
}
