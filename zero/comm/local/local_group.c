/* local_group.c: a communicator for a subset of a parent's ranks. Uses local.c and the control block.
 *
 * Each member publishes the place of its ring in the control block, under the group's key, and withdraws the
 * entry when all members have read it. The files themselves are known from the parent, or are passed between
 * members (share.c) if the ring is in other files, as on a GPU, where each granule is a file. A host message
 * ends the creation: all members have a communicator, or none has. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/backend/backend.h"
#include "alloc/base/error.h"
#include "alloc/base/hash.h"
#include "zero/comm/local/local_mapping.h"
#include "zero/comm/take.h"
#include "alloc/base/system/os.h"

/* This rank's state during the creation of a group. */
struct creation {
    struct local_comm *parent, *comm; /* comm: NULL if this rank has failed */
    const struct zr_comm_members *members;
    const unsigned *ranks; /* [count]: ranks in the run */
    struct zr_local_world *local;
    struct zr_local_opening *own;
    uint64_t key;
    /* In the host arena; NULL: this rank has failed. */
    struct zr_segment *segments; /* [count][ZR_LOCAL_PLACES]: of this rank, and of members that pass theirs */
    unsigned *counts, *wanted;   /* [count] */
};

static struct zr_segment *segments_of(const struct creation *creation, unsigned p)
{
    return creation->segments + (size_t)p * ZR_LOCAL_PLACES;
}

static zr_result take_lists(struct creation *creation)
{
    zr_arena *arena = creation->members->options->host_arena;
    unsigned count = creation->members->count;
    zr_result result = zr_take(arena, ZR_TAG_OTHER, (size_t)count * ZR_LOCAL_PLACES,
                               sizeof *creation->segments, (void **)&creation->segments);
    if (result == ZR_OK)
        result = zr_take(arena, ZR_TAG_OTHER, 2 * (size_t)count, sizeof *creation->counts,
                         (void **)&creation->counts);
    if (result != ZR_OK)
        return result;
    memset(creation->counts, 0, 2 * (size_t)count * sizeof *creation->counts);
    creation->wanted = creation->counts + count;
    return ZR_OK;
}

/* Frees the lists and closes the descriptors in them. */
static void drop_lists(struct creation *creation)
{
    zr_arena *arena = creation->members->options->host_arena;
    for (unsigned p = 0; p < creation->members->count && creation->counts; p++) {
        const struct zr_segment *list = segments_of(creation, p);
        for (unsigned i = 0; i < creation->counts[p] && p != creation->members->rank; i++)
            if (i == 0 || list[i].fd != list[i - 1].fd)
                close(list[i].fd);
    }
    if (creation->counts && creation->counts[creation->members->rank] > 0 &&
        creation->comm->backend->can.descriptors)
        zr_block_export_end(creation->comm->base.options.arena, creation->comm->slots);
    zr_drop(arena, &creation->counts);
    zr_drop(arena, &creation->segments);
}

static uint64_t key_of(const unsigned *ranks, unsigned count)
{
    uint64_t hash = ZR_HASH_START;
    for (unsigned i = 0; i < count; i++)
        hash = zr_hash_next(hash, ranks[i]);
    return hash | 1;
}

/* Describes this rank's ring by its places in the file of the parent's ring. */
static zr_result describe(const struct creation *creation)
{
    struct zr_segment *segments = segments_of(creation, creation->members->rank);
    size_t count = ZR_LOCAL_PLACES, lead_bytes;
    creation->own->ring =
        (uint32_t)(creation->comm->ring - creation->local->ranks[creation->comm->base.run_rank].rings);
    if (creation->local->threads)
        return ZR_OK;
    zr_result result = zr_block_export(creation->comm->base.options.arena, creation->comm->slots, segments,
                                       &count, &lead_bytes);
    if (result == ZR_ERR_INVALID)
        return zr_fail(result, "the ring of a group consists of %zu pieces, and the maximum is %d", count,
                       ZR_LOCAL_PLACES);
    for (size_t i = 0; i < count && result == ZR_OK; i++) {
        creation->own->passes |= segments[i].fd != creation->parent->file_fd;
        creation->own->places[i] =
            (struct zr_local_place){.offset_bytes = segments[i].offset_bytes, .bytes = segments[i].bytes};
    }
    creation->own->places_count = (uint32_t)count;
    if (creation->own->passes) {
        creation->counts[creation->members->rank] = (unsigned)count;
        creation->comm->file_fd = creation->comm->backend->can.descriptors ? -1 : segments[0].fd;
    }
    creation->own->lead_bytes = lead_bytes;
    creation->own->posted = creation->comm->peers[creation->members->rank].posted;
    creation->own->host_posted = creation->comm->peers[creation->members->rank].host_posted;
    return result;
}

static void change(struct zr_local_opening *own, uint64_t key)
{
    atomic_store(&own->key, key);
    zr_local_advance(&own->changes, atomic_load(&own->changes) + 1, NULL);
}

/* Waits until a member has published its entry for this group. */
static zr_result wait_for_member(const struct creation *creation, unsigned rank)
{
    struct zr_local_opening *theirs = &creation->local->ranks[rank].opening;
    struct zr_timeout timeout = zr_timeout_begin();
    zr_result result = ZR_OK;
    while (result == ZR_OK) {
        uint32_t seen = atomic_load(&theirs->changes);
        uint32_t number = atomic_load(&theirs->key) == creation->key ? atomic_load(&theirs->number) : 0;
        if (number != 0 && number != creation->own->seen[rank] &&
            atomic_load(&theirs->key) == creation->key) {
            creation->own->seen[rank] = number; /* a later group may have the same members while this entry
                                                 * still exists */
            return ZR_OK;
        }
        zr_word_wait(&theirs->changes, seen, ZR_LOCAL_POLL_NS);
        result = zr_local_check(creation->local, rank);
        uint64_t waited_ns = zr_timeout_waited_ns(&timeout);
        if (result == ZR_OK && waited_ns > creation->parent->base.options.timeout_ns)
            result = zr_local_lost(creation->local, rank, waited_ns);
    }
    return result;
}

/* Maps a member's ring. */
static zr_result map_ring(const struct creation *creation, unsigned p)
{
    const struct zr_local_opening *theirs = &creation->local->ranks[creation->ranks[p]].opening;
    struct zr_local_peer *peer = &creation->comm->peers[p];
    struct zr_segment known[ZR_LOCAL_PLACES], *segments = theirs->passes ? segments_of(creation, p) : known;
    int fd = creation->parent->peers[creation->members->ranks[p]].mapping.fd;
    if (creation->local->threads) {
        zr_local_find_thread(peer, &creation->local->ranks[creation->ranks[p]].rings[theirs->ring]);
        return ZR_OK;
    }
    for (uint32_t i = 0; i < theirs->places_count && !theirs->passes; i++)
        segments[i] = (struct zr_segment){
            .fd = fd, .offset_bytes = theirs->places[i].offset_bytes, .bytes = theirs->places[i].bytes};
    fd = theirs->passes ? segments[0].fd : fd;
    peer->ring = &creation->local->ranks[creation->ranks[p]].rings[theirs->ring];
    peer->posted = theirs->posted;
    peer->host_posted = theirs->host_posted;
    zr_result result = zr_import(creation->comm->backend, segments, theirs->places_count, &peer->import);
    if (result != ZR_OK)
        return result;
    peer->slots = (const char *)peer->import + theirs->lead_bytes;
    peer->mapping.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0); /* if this fails, all data goes through the ring */
    return ZR_OK;
}

/* Results so far: of this rank, and of the first other rank that failed. */
struct outcome {
    zr_result mine, others;
    char message[ZR_COMM_MESSAGE_BYTES]; /* message of `mine` */
};

/* Passes descriptors between the members that have not failed. */
static zr_result pass_rings(const struct creation *creation)
{
    unsigned count = creation->members->count;
    for (unsigned p = 0; p < count; p++) {
        const struct zr_local_opening *theirs = &creation->local->ranks[creation->ranks[p]].opening;
        creation->wanted[p] = theirs->passes && theirs->result == ZR_OK ? theirs->places_count : 0;
    }
    return zr_local_pass_rings(
        &(struct zr_local_pass){.local = creation->local,
                                .ranks = creation->ranks,
                                .count = count,
                                .rank = creation->members->rank,
                                .attempt = (uint32_t)creation->key,
                                .timeout_ns = creation->parent->base.options.timeout_ns,
                                .segments = creation->segments,
                                .counts = creation->counts,
                                .wanted = creation->wanted});
}

static zr_result read_member(const struct creation *creation, unsigned p, struct outcome *outcome)
{
    struct zr_local_opening *theirs = &creation->local->ranks[creation->ranks[p]].opening;
    if (theirs->result != ZR_OK && outcome->others == ZR_OK)
        outcome->others = zr_fail(ZR_ERR_PEER, "rank %u failed to create its part of a group: %s",
                                  creation->ranks[p], zr_result_name((zr_result)theirs->result));
    if (theirs->result == ZR_OK && outcome->mine == ZR_OK) {
        outcome->mine = map_ring(creation, p);
        snprintf(outcome->message, sizeof(outcome->message), "%s", zr_last_error());
    }
    atomic_fetch_add(&theirs->readers, 1);
    zr_word_wake_all(&theirs->readers);
    return ZR_OK;
}

/* Reads what all members have published, and waits until they have read this rank's entry. Fails if the
 * run ends. */
static zr_result meet(const struct creation *creation, struct outcome *outcome)
{
    unsigned count = creation->members->count, next = creation->ranks[(creation->members->rank + 1) % count];
    for (unsigned p = 0; p < count; p++) {
        zr_result result =
            p == creation->members->rank ? ZR_OK : wait_for_member(creation, creation->ranks[p]);
        if (result != ZR_OK)
            return result;
    }
    zr_result passed = outcome->mine == ZR_OK ? pass_rings(creation) : ZR_OK;
    if (passed == ZR_ERR_PEER || passed == ZR_ERR_TIMEOUT || passed == ZR_ERR_INTERRUPTED)
        return passed;
    if (passed != ZR_OK) {
        outcome->mine = passed;
        snprintf(outcome->message, sizeof(outcome->message), "%s", zr_last_error());
    }
    for (unsigned p = 0; p < count; p++) {
        zr_result result = p == creation->members->rank ? ZR_OK : read_member(creation, p, outcome);
        if (result != ZR_OK)
            return result;
    }
    return zr_local_wait_for(
        creation->local, &(struct zr_local_wait){.word = &creation->own->readers,
                                                 .target = count - 1,
                                                 .peer = next,
                                                 .timeout_ns = creation->parent->base.options.timeout_ns});
}

/* Compares the results: all members have communicators, or the first failure counts for all. */
static zr_result agree(const struct creation *creation, zr_result mine)
{
    uint32_t own = (uint32_t)mine, all[ZR_MAX_WORLD];
    zr_result result = zr_comm_host_all_gather(&creation->comm->base, &own, sizeof(own), all);
    for (unsigned p = 0; p < creation->members->count && result == ZR_OK && mine == ZR_OK; p++)
        if (all[p] != ZR_OK)
            result = zr_fail(ZR_ERR_PEER, "rank %u failed to create its part of a group: %s",
                             creation->ranks[p], zr_result_name((zr_result)all[p]));
    memset(&creation->comm->base.counters, 0,
           sizeof(creation->comm->base.counters)); /* do not count the creation */
    return result;
}

/* Publishes this rank's entry and reads the other members' entries. Ends the creation in any case. */
static zr_result run_creation(struct creation *creation, struct outcome *outcome)
{
    bool prepared = outcome->mine == ZR_OK;
    creation->own->result = (uint32_t)outcome->mine;
    atomic_store(&creation->own->readers, 0);
    change(creation->own, creation->key);
    zr_result result = meet(creation, outcome);
    change(creation->own, 0);
    if (result != ZR_OK || !prepared || outcome->others != ZR_OK)
        return result != ZR_OK ? result : outcome->others;
    if (outcome->mine == ZR_OK) {
        zr_local_mappings_open(creation->comm);
        zr_local_calls_open(creation->comm);
    }
    return agree(creation, outcome->mine);
}

zr_result zr_local_group(struct zr_comm **out, struct zr_comm *base, const struct zr_comm_members *members)
{
    struct local_comm *parent = (struct local_comm *)base;
    unsigned ranks[ZR_MAX_WORLD];
    struct outcome outcome = {0};
    struct creation creation = {.parent = parent, .members = members, .ranks = ranks, .local = base->local};
    for (unsigned i = 0; i < members->count; i++)
        ranks[i] = parent->peers[members->ranks[i]].rank;
    creation.own = &base->local->ranks[base->run_rank].opening;
    creation.key = key_of(ranks, members->count);
    atomic_fetch_add(&creation.own->number, 1);
    creation.own->passes = false;
    creation.own->places_count = 0;
    outcome.mine = take_lists(&creation);
    if (outcome.mine == ZR_OK)
        outcome.mine = zr_local_prepare(
            &creation.comm, members->options,
            &(struct zr_local_position){
                .local = base->local, .ranks = ranks, .rank = members->rank, .world = members->count});
    if (outcome.mine == ZR_OK) {
        creation.comm->file_fd = parent->file_fd;
        outcome.mine = describe(&creation);
    }
    snprintf(outcome.message, sizeof(outcome.message), "%s", zr_last_error());
    zr_result result = run_creation(&creation, &outcome);
    if (outcome.mine == ZR_OK) {
        outcome.mine = result;
        snprintf(outcome.message, sizeof(outcome.message), "%s", zr_last_error());
    }
    drop_lists(&creation);
    if (outcome.mine == ZR_OK)
        *out = &creation.comm->base;
    else if (creation.comm)
        zr_comm_destroy(&creation.comm->base);
    return outcome.mine == ZR_OK ? ZR_OK : zr_fail(outcome.mine, "%s", outcome.message);
}
