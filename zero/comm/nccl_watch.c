/* nccl_watch.c: a thread that watches operations that the host does not wait for; see nccl.h. When a rank
 * is lost, NCCL fails, or an operation is silent for too long, it records a message and aborts. The
 * streams then finish, and the next call of the communicator fails with the message. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "zero/comm/nccl.h"

void zr_nccl_fail(struct nccl_comm *self, zr_result result, const char *words)
{
    pthread_mutex_lock(&self->base.lock);
    if (self->base.failure == ZR_OK) {
        self->base.failure = result;
        snprintf(self->base.failure_message, sizeof(self->base.failure_message), "%s", words);
    }
    pthread_mutex_unlock(&self->base.lock);
    if (self->comm)
        self->nccl->abort(self->comm);
    self->comm = NULL;
}

/* Whether an operation has ended or can no longer end. If a later operation has reused the event, it is
 * sufficient. */
static bool is_done(const struct nccl_comm *self, zr_ticket ticket)
{
    return ticket == 0 ||
           self->driver->event_query(self->base.ended[ticket % ZR_COMM_QUEUE_COUNT]) != ZR_CU_NOT_READY;
}

/* Whether an operation is pending, and for how long. */
static bool is_under_way(struct nccl_comm *self, uint64_t *waited_ns)
{
    zr_ticket last = atomic_load(&self->base.queued);
    zr_ticket oldest = last >= ZR_COMM_QUEUE_COUNT ? last - ZR_COMM_QUEUE_COUNT + 1 : 1;
    uint64_t now_ns = zr_os_now_ns();
    bool first = self->stuck == 0;
    self->stuck = self->stuck > oldest ? self->stuck : oldest;
    if (is_done(self, last)) {
        self->stuck = 0;
        return false;
    }
    bool moved = first;
    while (self->stuck < last && is_done(self, self->stuck)) {
        self->stuck++;
        moved = true;
    }
    if (moved)
        self->stuck_ns = now_ns;
    *waited_ns = now_ns - self->stuck_ns;
    return true;
}

/* Checks a communicator; ZR_OK: no problem. `looks`: consecutive checks in which a rank was missing. */
static zr_result look(struct nccl_comm *self, unsigned *looks)
{
    zr_nccl_result error = 0;
    uint64_t waited_ns = 0;
    if (!self->comm || !is_under_way(self, &waited_ns))
        return ZR_OK;
    self->nccl->async_error(self->comm, &error);
    if (error != 0 && error != ZR_NCCL_IN_PROGRESS)
        return zr_nccl_refused(self, error, "operation");
    zr_result result = zr_nccl_find_lost(self, looks);
    if (result == ZR_OK && waited_ns > self->base.options.timeout_ns)
        result = zr_nccl_silent(self, "operation", waited_ns);
    return result;
}

static void *watch(void *argument)
{
    struct nccl_comm *root = argument;
    struct nccl_watch *self = root->watch;
    char words[ZR_COMM_MESSAGE_BYTES];
    unsigned looks = 0;
    zr_result result = zr_backend_enter(root->backend);
    bool entered = result == ZR_OK;
    while (result == ZR_OK && !atomic_load(&self->stopping)) {
        zr_word_wait(&self->stopping, 0, ZR_NCCL_LOOK_NS);
        pthread_mutex_lock(&self->lock);
        for (struct nccl_comm *each = self->comms; each && result == ZR_OK; each = each->watched_next)
            result = look(each, &looks);
        if (result != ZR_OK)
            snprintf(words, sizeof(words), "%s", zr_last_error());
        for (struct nccl_comm *each = self->comms; each && result != ZR_OK; each = each->watched_next)
            zr_nccl_fail(each, result, words);
        pthread_mutex_unlock(&self->lock);
    }
    if (entered)
        zr_backend_leave(root->backend);
    return NULL;
}

zr_result zr_nccl_watch_start(struct nccl_comm *root)
{
    root->watch = &root->own_watch;
    pthread_mutex_init(&root->watch->lock, NULL);
    zr_result result = zr_thread_start(&root->watch->thread, root->base.options.host_arena, 0, watch, root);
    root->watch->started = result == ZR_OK;
    if (result == ZR_OK)
        zr_nccl_watch_add(root);
    return result;
}

void zr_nccl_watch_stop(struct nccl_comm *root)
{
    if (!root->own_watch.started)
        return;
    atomic_store(&root->own_watch.stopping, 1);
    zr_word_wake_all(&root->own_watch.stopping);
    zr_thread_join(&root->own_watch.thread);
    root->own_watch.started = false;
    pthread_mutex_destroy(&root->own_watch.lock);
}

void zr_nccl_watch_add(struct nccl_comm *self)
{
    pthread_mutex_lock(&self->watch->lock);
    self->watched_next = self->watch->comms;
    self->watch->comms = self;
    pthread_mutex_unlock(&self->watch->lock);
}

void zr_nccl_watch_remove(struct nccl_comm *self)
{
    _Atomic uint32_t unused = 0;
    struct nccl_comm **link = &self->watch->comms;
    while (!is_done(self, atomic_load(&self->base.queued)))
        zr_word_wait(&unused, 0, ZR_NCCL_LOOK_NS / 1000);
    pthread_mutex_lock(&self->watch->lock);
    while (*link && *link != self)
        link = &(*link)->watched_next;
    if (*link)
        *link = self->watched_next;
    pthread_mutex_unlock(&self->watch->lock);
}
