/* local.c: the communicator of ranks on one machine: its waits, its birth and its end. The operations are in
 * local_ring.c. */
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/struct_bytes.h"
#include "zero/comm/comm.h"
#include "zero/comm/local_ring.h"
#include "zero/comm/local_mapping.h"
#include "zero/launch/timeout.h"
#include "zero/comm/spin.h"
#include "zero/comm/take.h"

#define SPIN_NS 3000ull /* about what a wake-up costs; more would be taken from the compute threads */

/* ---- Waits --------------------------------------------------------------------------------------------- */

zr_result zr_local_check(struct zr_local_world *local, unsigned peer)
{
    unsigned p = peer == ZR_LOCAL_ALL ? 0 : peer, last = peer == ZR_LOCAL_ALL ? local->world - 1 : peer;
    while (p < last && !atomic_load(&local->ranks[p].ended))
        p++;
    bool ended = atomic_load(&local->ranks[p].ended);
    uint32_t abort = atomic_load(&local->abort); /* after `ended`, which a failure raises after it */
    if (abort != 0)
        return zr_fail((zr_result)(abort & 255), "%s", local->ranks[abort >> 9].message[abort >> 8 & 1]);
    return ended ? zr_fail(ZR_ERR_PEER, "rank %u (pid %d) has ended while others still wait for it", p,
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
    return zr_fail(ZR_ERR_TIMEOUT,
                   "rank %u (pid %d) has not answered for %llu s%s%s; it runs still, but does not get on",
                   rank, (int)atomic_load(&peer->pid), seconds, status[0] ? ", at " : "", status);
}

/* The slow half of zr_local_wait_for(). The sleeper is counted before the last look, and zr_local_advance()
 * looks at the count after moving the word, so one of the two always sees the other. */
static zr_result sleep_for(struct zr_local_world *local, const struct zr_local_wait *wait)
{
    uint32_t seen;
    zr_result result = ZR_OK;
    uint64_t limit_ns = atomic_load(&local->timeout_ns);
    struct zr_timeout timeout = zr_timeout_begin();
    if (wait->sleepers)
        atomic_fetch_add(wait->sleepers, 1);
    while (result == ZR_OK && !reached(wait->word, wait->target, &seen)) {
        zr_word_wait(wait->word, seen, ZR_LOCAL_POLL_NS);
        if (reached(wait->word, wait->target, &seen))
            break;
        result = zr_local_check(local, wait->peer);
        if (result == ZR_ERR_PEER && reached(wait->word, wait->target, &seen) && !atomic_load(&local->abort))
            result = ZR_OK; /* it did its part before it ended */
        uint64_t waited_ns = zr_timeout_waited_ns(&timeout);
        if (result == ZR_OK && limit_ns > 0 && waited_ns > limit_ns)
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

void zr_local_advance(_Atomic uint32_t *word, uint32_t value, _Atomic uint32_t *sleepers)
{
    atomic_store(word, value);
    if (!sleepers || atomic_load(sleepers) > 0)
        zr_word_wake_all(word);
}

/* ---- Birth and end ------------------------------------------------------------------------------------- */

/* Gives back what there is of a communicator, whole or half made. After a failure the peers end anyway; else
 * this rank's ring must stay until all of them have read the last piece. */
static void local_close(struct zr_comm *comm)
{
    struct local_comm *self = (struct local_comm *)comm;
    for (unsigned p = 0; p < comm->world && comm->failure == ZR_OK; p++) {
        struct zr_local_rank *peer = &comm->local->ranks[p];
        zr_result result =
            zr_local_wait_for(comm->local, &(struct zr_local_wait){.word = &peer->consumed,
                                                                   .sleepers = &peer->consumed_sleepers,
                                                                   .target = self->filled,
                                                                   .peer = p});
        if (result == ZR_ERR_INTERRUPTED || result == ZR_ERR_TIMEOUT || atomic_load(&comm->local->abort))
            break;
    }
    atomic_store(&self->self->open, false); /* before what peers may still be reading is given back */
    for (unsigned p = 0; p < comm->world; p++)
        if (self->peers[p].import)
            zr_import_release(self->backend, self->peers[p].import);
    zr_local_mappings_close(self);
    if (self->ring) {
        zr_arena_set_granule_class(comm->options.arena, self->ring,
                                   zr_comm_ring_bytes(comm->world, comm->options.bucket_bytes),
                                   ZR_GRANULE_MOVABLE);
        zr_arena_free(comm->options.arena, self->ring);
    }
}

static const struct zr_comm_table local_table = {
    .name = "local", .run = zr_local_run, .synchronize = zr_local_synchronize, .close = local_close};

/* Everything of a rank's own: records, ring, thread. On success *out is closed by zr_comm_destroy(). */
static zr_result prepare(struct local_comm **out, const struct zr_comm_options *options,
                         struct zr_local_world *local, unsigned rank)
{
    void *block;
    unsigned world = local->world;
    size_t bytes = sizeof(struct local_comm) + world * (sizeof(void *) + sizeof(struct zr_local_peer));
    zr_result result = zr_comm_options_check(options, rank, world);
    if (result != ZR_OK)
        return result;
    if (atomic_load(&local->ranks[rank].open))
        return zr_fail(ZR_ERR_INVALID, "rank %u already has a communicator", rank);
    result = zr_arena_alloc(options->host_arena, &(struct zr_request){.bytes = bytes, .tag = ZR_TAG_OTHER},
                            &block);
    if (result != ZR_OK)
        return result;
    struct local_comm *comm = memset(block, 0, bytes);
    zr_comm_open(&comm->base, &local_table, options);
    comm->base.local = local;
    comm->base.rank = rank;
    comm->base.world = world;
    comm->backend = zr_arena_backend(options->arena);
    comm->slot_bytes = zr_comm_slot_bytes(world, options->bucket_bytes);
    comm->each_bytes = comm->slot_bytes / (world - 1) / 64 * 64;
    atomic_store(&local->timeout_ns, comm->base.options.timeout_ns);
    comm->self = &local->ranks[rank];
    comm->filled = atomic_load(&comm->self->posted); /* an earlier communicator may have counted */
    comm->read = atomic_load(&comm->self->consumed);
    comm->lent = atomic_load(&comm->self->lent);
    comm->peers = (struct zr_local_peer *)(comm + 1);
    comm->from = (const void **)(comm->peers + world);
    for (unsigned p = 0; p < world; p++)
        comm->peers[p].mapping = (struct zr_local_mapping){.fd = -1, .first = SIZE_MAX};
    atomic_store(&comm->self->open, true);
    result = zr_take(options->arena, ZR_TAG_COMM, zr_comm_ring_bytes(world, options->bucket_bytes), 1,
                     (void **)&comm->ring);
    if (result == ZR_OK)
        result = zr_comm_thread_start(&comm->base);
    if (result == ZR_OK)
        *out = comm;
    else
        zr_comm_destroy(&comm->base);
    return result;
}

/* Tells the peers how far this rank has come, and learns it of them: all have a communicator, or none. */
static zr_result agree(struct zr_local_world *local, unsigned rank, uint32_t attempt, zr_result mine)
{
    zr_local_advance(&local->ranks[rank].verdict, (attempt + 1) << 8 | (uint32_t)mine, NULL);
    if (mine == ZR_ERR_TIMEOUT) /* whoever is lost would be waited for once more */
        return mine;
    for (unsigned p = 0; p < local->world; p++) {
        zr_result result = zr_local_wait_for(local, &(struct zr_local_wait){.word = &local->ranks[p].verdict,
                                                                            .target = (attempt + 1) << 8,
                                                                            .peer = p});
        if (result != ZR_OK)
            return result;
        zr_result theirs = (zr_result)(atomic_load(&local->ranks[p].verdict) & 255);
        if (theirs != ZR_OK && p != rank)
            return zr_fail(ZR_ERR_PEER, "rank %u could not make its part of the communicator: %s", p,
                           zr_result_name(theirs));
    }
    return ZR_OK;
}

zr_result zr_comm_local_create(zr_comm **out, const struct zr_comm_options *options,
                               struct zr_local_world *local, unsigned rank)
{
    struct zr_comm_options own;
    struct local_comm *comm = NULL;
    if (!out || !local || rank >= local->world)
        return zr_fail(ZR_ERR_INVALID, "a rank needs its world and a place for its communicator");
    *out = NULL;
    if (local->world == 1) {
        zr_result result = zr_comm_null_create(out, options, 0, 1);
        if (result == ZR_OK)
            (*out)->local = local;
        return result;
    }
    char words[ZR_COMM_MESSAGE_BYTES];
    uint32_t attempt = atomic_fetch_add(&local->ranks[rank].attempts, 1);
    zr_result result = ZR_STRUCT_COPY(zr_comm_options, algorithm, &own, options);
    options = &own;
    if (result == ZR_OK)
        result = prepare(&comm, options, local, rank);
    struct zr_local_share share = {.local = local, .rank = rank, .attempt = attempt};
    if (result == ZR_OK) {
        share.mine = comm->ring;
        share.arena = options->arena;
        share.host_arena = options->host_arena;
        share.backend = comm->backend;
        result = zr_local_share_rings(&share, comm->peers);
        snprintf(words, sizeof(words), "%s", zr_last_error());
        if (result == ZR_OK)
            zr_local_mappings_open(comm);
    } else { /* the peers wait for this rank all the same */
        snprintf(words, sizeof(words), "%s", zr_last_error());
        zr_local_share_rings(&share, NULL);
    }
    zr_result agreed = agree(local, rank, attempt, result);
    if (result == ZR_OK && agreed == ZR_OK) {
        *out = &comm->base;
        return ZR_OK;
    }
    if (comm)
        zr_comm_destroy(&comm->base);
    return result == ZR_OK ? agreed : zr_fail(result, "%s", words);
}
