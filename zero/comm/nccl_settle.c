/* nccl_settle.c: waits for NCCL, whose communicators are non-blocking, and composes error messages; see
 * nccl.h. Used by nccl_run.c, nccl_watch.c and nccl.c. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "zero/comm/local/local.h"
#include "zero/comm/nccl.h"
#include "alloc/base/system/os.h"

enum { LOOKS_BEFORE_LOST = 10 };
#define NAP_NS  20000ull
#define SPIN_NS 20000ull /* a call that only queues finishes within this time */

zr_result zr_nccl_find_lost(struct nccl_comm *self, unsigned *looks)
{
    zr_result result = self->base.local ? zr_local_check(self->base.local, ZR_LOCAL_ALL) : ZR_OK;
    if (result == ZR_OK || atomic_load(&self->base.local->abort)) {
        *looks = 0;
        return result;
    }
    /* A rank that exited successfully has sent everything, and its messages may still be in flight. */
    return ++*looks < LOOKS_BEFORE_LOST ? ZR_OK : result;
}

/* Adds `what` to the message, unless the run's end has a message. */
static zr_result find_lost_in(struct nccl_comm *self, unsigned *looks, const char *what)
{
    char message[ZR_COMM_MESSAGE_BYTES];
    zr_result result = zr_nccl_find_lost(self, looks);
    if (result == ZR_OK || atomic_load(&self->base.local->abort))
        return result;
    snprintf(message, sizeof message, "%s", zr_last_error());
    return zr_fail(result, "NCCL's %s: %s", what, message);
}

/* Finds the lost rank, which NCCL does not name: the remaining ranks, which have failed too, exchange a
 * message. Takes up to the timeout of `talk`. */
static zr_result name_lost_rank(struct nccl_comm *self, const char *message)
{
    char byte = 0, all[ZR_MAX_WORLD];
    zr_ticket ticket;
    struct zr_all_gather op = {.source = &byte, .destination = all, .shard_bytes = 1};
    /* An operation, not a host message, because the caller's thread may be in a host message. */
    zr_result result = zr_comm_all_gather(self->talk, &op, &ticket);
    if (result == ZR_OK)
        result = zr_comm_wait(self->talk, ticket);
    if (result != ZR_OK)
        return zr_fail(result, "%s: %s", message, zr_last_error());
    return zr_fail(ZR_ERR_PEER, "%s, but all ranks answer: NCCL makes no progress", message);
}

zr_result zr_nccl_refused(struct nccl_comm *self, zr_nccl_result code, const char *what)
{
    char message[ZR_COMM_MESSAGE_BYTES];
    const char *warning = self->nccl->last_error(NULL);
    snprintf(message, sizeof(message), "NCCL's %s failed: %s%s%s%s", what, self->nccl->error_text(code),
             warning && warning[0] ? ": " : "", warning ? warning : "",
             warning && strstr(warning, "Duplicate GPU") ? "; give each rank a card, or use --comm local"
                                                         : "");
    return code == ZR_NCCL_REMOTE_ERROR ? name_lost_rank(self, message)
                                        : zr_fail(ZR_ERR_UNAVAILABLE, "%s", message);
}

zr_result zr_nccl_silent(struct nccl_comm *self, const char *what, uint64_t waited_ns)
{
    char message[ZR_COMM_MESSAGE_BYTES];
    snprintf(message, sizeof(message), "NCCL's %s has not ended within %llu s on rank %u", what,
             (unsigned long long)(waited_ns / 1000000000u), self->base.rank);
    return name_lost_rank(self, message);
}

zr_result zr_nccl_settle(struct nccl_comm *self, zr_nccl_comm comm, zr_nccl_result code, const char *what)
{
    _Atomic uint32_t unused = 0;
    struct zr_timeout timeout = zr_timeout_begin();
    const uint64_t began_ns = zr_os_now_ns();
    uint64_t looked_ns = began_ns;
    unsigned looks = 0;
    zr_result result = ZR_OK;
    while (code == ZR_NCCL_IN_PROGRESS && result == ZR_OK) {
        zr_nccl_result asked = self->nccl->async_error(comm, &code);
        uint64_t now_ns = zr_os_now_ns();
        code = asked != 0 ? asked : code;
        if (code != ZR_NCCL_IN_PROGRESS || now_ns - began_ns < SPIN_NS)
            continue;
        zr_word_wait(&unused, 0, NAP_NS);
        if (now_ns - looked_ns < ZR_NCCL_LOOK_NS)
            continue;
        looked_ns = now_ns;
        uint64_t waited_ns = zr_timeout_waited_ns(&timeout);
        result = find_lost_in(self, &looks, what);
        if (result == ZR_OK && waited_ns > self->base.options.timeout_ns)
            result = zr_nccl_silent(self, what, waited_ns);
    }
    return result != ZR_OK || code == 0 ? result : zr_nccl_refused(self, code, what);
}
