/* local.c: the communicator of ranks on one machine: creation and destruction. local_ring.c has the
 * operations, local_wait.c the waits. */
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "kernels/streams.h"
#include "zero/comm/calls.h"
#include "zero/comm/comm.h"
#include "zero/comm/local/local_ring.h"
#include "zero/comm/local/local_mapping.h"
#include "zero/comm/take.h"

/* ---- Creation and destruction -------------------------------------------------------------------------- */

/* Sets the words that the stream waits for, so that the stream finishes after the loss of a rank. */
static zr_result release_waits(void *state)
{
    const struct local_comm *self = state;
    for (unsigned p = 0; p < self->base.world; p++) {
        const struct zr_local_peer *peer = &self->peers[p];
        if (p == self->base.rank || !peer->ring)
            continue;
        zr_local_advance(&peer->ring->posted, peer->posted + self->read, &peer->ring->posted_sleepers);
        zr_local_advance(&peer->ring->consumed, peer->posted + self->filled, &peer->ring->consumed_sleepers);
    }
    return ZR_OK;
}

/* Waits for the stream before its memory is freed; after a failure releases the stream's waits first. */
static void end_stream(struct local_comm *self)
{
    const struct zr_comm_options *o = &self->base.options;
    void *const streams[] = {o->beside, o->stream}; /* graphs run in the caller's stream */
    if (!self->queues)
        return;
    zr_result result = self->base.failure == ZR_OK ? zr_comm_drain(&self->base) : self->base.failure;
    if (result != ZR_OK) {
        release_waits(self);
        for (unsigned i = 0; i < 2; i++)
            o->kernels->streams->drain(&(struct zr_kernel_context){
                .stream = streams[i], .while_waiting = release_waits, .waiting_state = self});
    }
    self->queues = false;
}

/* Waits until rank p has read everything that this rank has posted for it. */
static zr_result wait_for_reader(struct local_comm *self, unsigned p)
{
    struct zr_local_peer *peer = &self->peers[p];
    if (p == self->base.rank || !peer->ring)
        return ZR_OK;
    zr_result result = zr_local_wait_for_peer(self, p, &peer->ring->consumed, &peer->ring->consumed_sleepers,
                                              peer->posted + self->filled);
    return result != ZR_OK
               ? result
               : zr_local_wait_for_peer(self, p, &peer->ring->host_consumed,
                                        &peer->ring->host_consumed_sleepers, peer->host_posted + self->said);
}

/* Releases a complete or partial communicator. This rank's ring must remain until all peers have read the
 * last piece. After a failure the peers exit without reading. */
static void local_close(struct zr_comm *comm)
{
    struct local_comm *self = (struct local_comm *)comm;
    end_stream(self);
    for (unsigned p = 0; p < comm->world && comm->failure == ZR_OK; p++) {
        zr_result result = wait_for_reader(self, p);
        if (result == ZR_ERR_INTERRUPTED || result == ZR_ERR_TIMEOUT || atomic_load(&comm->local->abort))
            break;
    }
    if (self->pinned)
        comm->options.kernels->streams->unpin(comm->local);
    if (self->ring) /* closed before memory that peers may read is freed */
        atomic_store(&self->ring->open, false);
    if (self->whole)
        atomic_store(&comm->local->ranks[comm->run_rank].whole, false);
    for (unsigned p = 0; p < comm->world; p++)
        if (self->peers[p].import)
            zr_import_release(self->backend, self->peers[p].import);
    zr_local_mappings_close(self);
    if (self->slots) {
        zr_arena_set_granule_class(comm->options.arena, self->slots,
                                   zr_comm_ring_bytes(comm->world, comm->options.bucket_bytes),
                                   ZR_GRANULE_MOVABLE);
        zr_arena_free(comm->options.arena, self->slots);
    }
}

static void abandon(struct zr_comm *comm, const char *why)
{
    zr_local_end(comm->local, &(struct zr_local_end){.reporter = ZR_LOCAL_BY_RANK,
                                                     .rank = comm->run_rank,
                                                     .why = ZR_ERR_PEER,
                                                     .reason = why});
}

static zr_result look(struct zr_comm *comm, uint64_t waited_ns)
{
    zr_comm_heartbeat(comm);
    zr_result result = zr_local_check(comm->local, ZR_LOCAL_ALL);
    return result == ZR_OK && waited_ns > comm->options.timeout_ns
               ? zr_local_lost(comm->local, ZR_LOCAL_ALL, waited_ns)
               : result;
}

/* ---- Graphs -------------------------------------------------------------------------------------------- */

static void record(struct zr_comm *comm, enum zr_comm_recording what)
{
    struct local_comm *self = (struct local_comm *)comm;
    if (what == ZR_COMM_DROPS) {
        self->filled = self->recorded[0].filled;
        self->read = self->recorded[0].read;
    } else {
        self->recorded[what] = (struct local_count){self->filled, self->read};
    }
}

/* A graph waits for the counter values of its recording, which the counters have passed. The counters are
 * reset when no rank's stream waits for them, before any rank launches. */
static zr_result again(struct zr_comm *comm)
{
    struct local_comm *self = (struct local_comm *)comm;
    uint32_t base = self->peers[comm->rank].posted;
    zr_result result = zr_comm_barrier(comm);
    if (result != ZR_OK)
        return result;
    zr_local_advance(&self->ring->posted, base + self->recorded[0].filled, &self->ring->posted_sleepers);
    zr_local_advance(&self->ring->consumed, base + self->recorded[0].read, &self->ring->consumed_sleepers);
    self->filled = self->recorded[1].filled;
    self->read = self->recorded[1].read;
    return zr_comm_barrier(comm);
}

static const struct zr_comm_table local_table = {.name = "local",
                                                 .meets = true,
                                                 .run = zr_local_run,
                                                 .host = zr_local_host,
                                                 .group = zr_local_group,
                                                 .synchronize = zr_local_synchronize,
                                                 .look = look,
                                                 .record = record,
                                                 .again = again,
                                                 .abandon = abandon,
                                                 .close = local_close};

/* Acquires a free ring of the rank. No process waits for the counters of a free ring. */
static struct zr_local_ring *take_ring(struct zr_local_rank *rank)
{
    unsigned i = 0;
    while (i < ZR_LOCAL_RINGS && atomic_load(&rank->rings[i].open))
        i++;
    if (i == ZR_LOCAL_RINGS)
        return NULL;
    struct zr_local_ring *ring = &rank->rings[i];
    atomic_store(&ring->consumed, atomic_load(&ring->posted));
    atomic_store(&ring->host_consumed, atomic_load(&ring->host_posted));
    atomic_store(&ring->taken, atomic_load(&ring->lent));
    atomic_store(&ring->open, true);
    return ring;
}

static zr_result register_rank(struct local_comm *comm, const struct zr_local_position *position)
{
    struct zr_local_rank *rank = &position->local->ranks[position->ranks[position->rank]];
    if (position->whole && atomic_exchange(&rank->whole, true))
        return zr_fail(ZR_ERR_INVALID, "rank %u already has a communicator", comm->base.run_rank);
    comm->whole = position->whole;
    comm->ring = take_ring(rank);
    if (!comm->ring)
        return zr_fail(ZR_ERR_INVALID, "rank %u has %d communicators, the maximum", comm->base.run_rank,
                       ZR_LOCAL_RINGS);
    comm->lent = atomic_load(&comm->ring->lent);
    comm->ring->slots = NULL;
    comm->ring->first_posted = atomic_load(&comm->ring->posted);
    comm->ring->first_host_posted = atomic_load(&comm->ring->host_posted);
    comm->peers[position->rank].ring = comm->ring;
    comm->peers[position->rank].posted = atomic_load(&comm->ring->posted);
    comm->peers[position->rank].host_posted = atomic_load(&comm->ring->host_posted);
    return ZR_OK;
}

/* On a GPU the counters are words that streams write and wait for, in memory that is pinned once. */
static zr_result queue_words(struct local_comm *comm)
{
    struct zr_local_world *local = comm->base.local;
    size_t bytes = sizeof *local + local->world * sizeof local->ranks[0];
    zr_result result = comm->whole ? comm->base.options.kernels->streams->pin(local, bytes) : ZR_OK;
    comm->pinned = comm->whole && result == ZR_OK;
    comm->queues = result == ZR_OK;
    return result;
}

zr_result zr_local_prepare(struct local_comm **out, const struct zr_comm_options *options,
                           const struct zr_local_position *position)
{
    void *block;
    unsigned world = position->world;
    size_t bytes = sizeof(struct local_comm) + world * (sizeof(void *) + sizeof(struct zr_local_peer));
    zr_result result = zr_comm_options_check(options, position->rank, world);
    if (result == ZR_OK)
        result = zr_arena_alloc(options->host_arena,
                                &(struct zr_request){.bytes = bytes, .tag = ZR_TAG_OTHER}, &block);
    if (result != ZR_OK)
        return result;
    struct local_comm *comm = memset(block, 0, bytes);
    zr_comm_open(&comm->base, &local_table, options);
    comm->base.local = position->local;
    comm->base.rank = position->rank;
    comm->base.run_rank = position->ranks[position->rank];
    comm->base.world = world;
    comm->backend = zr_arena_backend(options->arena);
    comm->slot_bytes = zr_comm_slot_bytes(world, options->bucket_bytes);
    comm->each_bytes = comm->slot_bytes / (world - 1) / 64 * 64;
    comm->peers = (struct zr_local_peer *)(comm + 1);
    comm->from = (const void **)(comm->peers + world);
    for (unsigned p = 0; p < world; p++)
        comm->peers[p] = (struct zr_local_peer){.rank = position->ranks[p], .mapping = ZR_LOCAL_UNMAPPED};
    result = register_rank(comm, position);
    if (result == ZR_OK)
        result = zr_take(options->arena, ZR_TAG_COMM, zr_comm_ring_bytes(world, options->bucket_bytes), 1,
                         (void **)&comm->slots);
    if (comm->ring)
        comm->ring->slots = comm->slots;
    if (result == ZR_OK)
        result = zr_comm_thread_start(&comm->base);
    if (result == ZR_OK && zr_comm_by_stream(&comm->base))
        result = queue_words(comm);
    if (result == ZR_OK)
        *out = comm;
    else
        zr_comm_destroy(&comm->base);
    return result;
}

/* Starts the record of operations. The first rank's ring and its count of host messages identify a
 * communicator, because every communicator sends host messages. */
void zr_local_calls_open(struct local_comm *comm)
{
    unsigned ranks[ZR_MAX_WORLD];
    const struct zr_local_peer *first = &comm->peers[0];
    uint64_t ring = (uint64_t)(first->ring - comm->base.local->ranks[first->rank].rings);
    for (unsigned p = 0; p < comm->base.world; p++)
        ranks[p] = comm->peers[p].rank;
    zr_calls_open(&comm->base,
                  UINT64_C(1) << 63 | (uint64_t)first->rank << 48 | ring << 32 | first->host_posted, ranks);
}

void zr_local_find_thread(struct zr_local_peer *peer, struct zr_local_ring *ring)
{
    peer->ring = ring;
    peer->posted = ring->first_posted;
    peer->host_posted = ring->first_host_posted;
    peer->slots = ring->slots;
}

/* Publishes this rank's result and reads the peers', so that all ranks have a communicator or none has. */
static zr_result agree(const struct zr_local_share *share, zr_result mine)
{
    struct zr_local_world *local = share->local;
    uint32_t attempt = share->attempt;
    zr_local_advance(&local->ranks[share->rank].verdict, (attempt + 1) << 8 | (uint32_t)mine, NULL);
    if (mine == ZR_ERR_TIMEOUT) /* waiting for the lost rank again would time out again */
        return mine;
    for (unsigned p = 0; p < local->world; p++) {
        zr_result result = zr_local_wait_for(local, &(struct zr_local_wait){.word = &local->ranks[p].verdict,
                                                                            .target = (attempt + 1) << 8,
                                                                            .peer = p,
                                                                            .timeout_ns = share->timeout_ns});
        if (result != ZR_OK)
            return result;
        zr_result theirs = (zr_result)(atomic_load(&local->ranks[p].verdict) & 255);
        if (theirs != ZR_OK && p != share->rank)
            return zr_fail(ZR_ERR_PEER, "rank %u failed to create its part of the communicator: %s", p,
                           zr_result_name(theirs));
    }
    return ZR_OK;
}

/* Arguments to share this rank's ring. A rank without a ring takes part so that the others do not wait. */
static struct zr_local_share share_of(struct zr_local_world *local, unsigned rank, struct local_comm *comm)
{
    struct zr_local_share share = {.local = local, .rank = rank, .timeout_ns = ZR_COMM_TIMEOUT_NS};
    share.attempt = atomic_fetch_add(&local->ranks[rank].attempts, 1);
    if (comm) {
        share.ring = (unsigned)(comm->ring - local->ranks[rank].rings);
        share.timeout_ns = comm->base.options.timeout_ns;
        share.mine = comm->slots;
        share.file_fd = &comm->file_fd;
        share.arena = comm->base.options.arena;
        share.host_arena = comm->base.options.host_arena;
        share.backend = comm->backend;
    }
    return share;
}

zr_result zr_comm_local_create(zr_comm **out, const struct zr_comm_options *options,
                               struct zr_local_world *local, unsigned rank)
{
    struct zr_comm_options own;
    struct local_comm *comm = NULL;
    if (!out || !local || rank >= local->world)
        return zr_fail(ZR_ERR_INVALID,
                       "zr_comm_local_create() requires out and a world that includes this rank");
    *out = NULL;
    if (local->world == 1) {
        zr_result result = zr_comm_null_create(out, options, 0, 1);
        if (result == ZR_OK)
            (*out)->local = local;
        return result;
    }
    char words[ZR_COMM_MESSAGE_BYTES];
    unsigned all[ZR_MAX_WORLD];
    struct zr_local_position position = {
        .local = local, .ranks = all, .rank = rank, .world = local->world, .whole = true};
    for (unsigned p = 0; p < local->world; p++)
        all[p] = p;
    zr_result result = ZR_STRUCT_COPY(zr_comm_options, beside, &own, options);
    if (result == ZR_OK)
        result = zr_local_prepare(&comm, &own, &position);
    struct zr_local_share share = share_of(local, rank, comm);
    snprintf(words, sizeof(words), "%s", zr_last_error());
    if (comm)
        atomic_store(&local->ranks[rank].whole_ring, share.ring);
    zr_result shared = local->threads ? ZR_OK : zr_local_share_rings(&share, comm ? comm->peers : NULL);
    if (result == ZR_OK && shared != ZR_OK)
        snprintf(words, sizeof(words), "%s", zr_last_error());
    result = result == ZR_OK ? shared : result;
    if (result == ZR_OK)
        zr_local_mappings_open(comm);
    zr_result agreed = agree(&share, result);
    for (unsigned p = 0; p < local->world && local->threads && result == ZR_OK && agreed == ZR_OK; p++)
        zr_local_find_thread(&comm->peers[p],
                             &local->ranks[p].rings[atomic_load(&local->ranks[p].whole_ring)]);
    if (result == ZR_OK && agreed == ZR_OK) {
        zr_local_calls_open(comm);
        zr_calls_name(&comm->base, "world");
        *out = &comm->base;
        return ZR_OK;
    }
    if (comm)
        zr_comm_destroy(&comm->base);
    return result == ZR_OK ? agreed : zr_fail(result, "%s", words);
}
