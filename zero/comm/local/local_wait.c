/* local_wait.c: how ranks of one machine wait for one another's words in shared memory. See local.h and
 * local_ring.h. */
#include "alloc/base/error.h"
#include "zero/comm/calls.h"
#include "zero/comm/local/local_ring.h"
#include "zero/comm/local/spin.h"
#include "alloc/base/system/os.h"

#define SPIN_NS 3000ull /* about the cost of a wake-up; longer spins would take time from compute threads */

zr_result zr_local_check(struct zr_local_world *local, unsigned peer)
{
    unsigned p = peer == ZR_LOCAL_ALL ? 0 : peer, last = peer == ZR_LOCAL_ALL ? local->world - 1 : peer;
    while (p < last && !atomic_load(&local->ranks[p].ended))
        p++;
    bool ended = atomic_load(&local->ranks[p].ended);
    uint32_t abort = atomic_load(&local->abort); /* read after `ended`, which is set after abort */
    if (abort != 0)
        return zr_fail((zr_result)(abort & 255), "%s", local->ranks[abort >> 9].message[abort >> 8 & 1]);
    return ended ? zr_fail(ZR_ERR_PEER, "rank %u (pid %d) has exited while others still wait for it", p,
                           (int)atomic_load(&local->ranks[p].pid))
                 : ZR_OK;
}

static bool reached(_Atomic uint32_t *word, uint32_t target, uint32_t *seen)
{
    *seen = atomic_load(word);
    return (int32_t)(*seen - target) >= 0;
}

zr_result zr_local_lost(const struct zr_local_world *local, unsigned rank, uint64_t waited_ns)
{
    unsigned long long seconds = waited_ns / 1000000000u;
    if (rank == ZR_LOCAL_ALL)
        return zr_fail(ZR_ERR_TIMEOUT, "a rank has not answered for %llu s", seconds);
    const struct zr_local_rank *peer = &local->ranks[rank];
    char status[ZR_LOCAL_STATUS_BYTES];
    zr_local_read_status(peer, status);
    return zr_fail(
        ZR_ERR_TIMEOUT,
        "rank %u (pid %d) has not answered for %llu s%s%s; the process is running but makes no progress",
        rank, (int)atomic_load(&peer->pid), seconds, status[0] ? ", at " : "", status);
}

/* Slow path of zr_local_wait_for(). The sleeper is counted before the last check, and zr_local_advance()
 * reads the count after it moves the word, so one of the two sees the other. */
static zr_result sleep_for(struct zr_local_world *local, const struct zr_local_wait *wait)
{
    uint32_t seen;
    uint64_t looked_ns = 0;
    zr_result result = ZR_OK;
    struct zr_timeout timeout = zr_timeout_begin();
    if (wait->sleepers)
        atomic_fetch_add(wait->sleepers, 1);
    while (result == ZR_OK && !reached(wait->word, wait->target, &seen)) {
        zr_word_wait(wait->word, seen, ZR_LOCAL_POLL_NS);
        /* Check before reading the word, because a peer advances the word before it exits. */
        result = zr_local_check(local, wait->peer);
        if (reached(wait->word, wait->target, &seen)) {
            result = ZR_OK;
            break;
        }
        uint64_t waited_ns = zr_timeout_waited_ns(&timeout);
        if (result == ZR_OK && wait->looks && waited_ns - looked_ns >= ZR_CALLS_PATIENCE_NS) {
            looked_ns = waited_ns;
            if (zr_calls_check_local(local, wait->rank) != ZR_OK)
                result = zr_local_out_of_step(local, wait->rank);
        }
        if (result == ZR_OK && waited_ns > wait->timeout_ns)
            result = zr_local_lost(local, wait->peer, waited_ns);
    }
    if (wait->sleepers)
        atomic_fetch_sub(wait->sleepers, 1);
    return result;
}

zr_result zr_local_wait_for(struct zr_local_world *local, const struct zr_local_wait *wait)
{
    uint32_t seen;
    if (reached(wait->word, wait->target, &seen))
        return ZR_OK;
    if (local->spins && zr_spin_while(wait->word, seen, SPIN_NS) && reached(wait->word, wait->target, &seen))
        return ZR_OK;
    return sleep_for(local, wait);
}

zr_result zr_local_wait_for_peer(const struct local_comm *comm, unsigned p, _Atomic uint32_t *word,
                                 _Atomic uint32_t *sleepers, uint32_t target)
{
    return zr_local_wait_for(comm->base.local,
                             &(struct zr_local_wait){.word = word,
                                                     .sleepers = sleepers,
                                                     .target = target,
                                                     .peer = comm->peers[p].rank,
                                                     .timeout_ns = comm->base.options.timeout_ns,
                                                     .looks = true,
                                                     .rank = comm->base.run_rank});
}
