/* local_group.c: a communicator of a subset of another one's ranks. Uses local.c and the control block.
 *
 * Each member publishes the place of its ring in the control block, under the group's key, and withdraws
 * it when all have read it. The files themselves are known from the parent, or are passed between members
 * (share.c) if the ring is in other files, as on a GPU, where each granule is a file. A host message ends
 * the creation: all members have a communicator, or none has. */
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
#include "zero/launch/timeout.h"

/* This rank's state during the creation of a group. */
struct birth {
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

static struct zr_segment *segments_of(const struct birth *birth, unsigned p)
{
    return birth->segments + (size_t)p * ZR_LOCAL_PLACES;
}

static zr_result take_lists(struct birth *birth)
{
    zr_arena *arena = birth->members->options->host_arena;
    unsigned count = birth->members->count;
    zr_result result = zr_take(arena, ZR_TAG_OTHER, (size_t)count * ZR_LOCAL_PLACES, sizeof *birth->segments,
                               (void **)&birth->segments);
    if (result == ZR_OK)
        result =
            zr_take(arena, ZR_TAG_OTHER, 2 * (size_t)count, sizeof *birth->counts, (void **)&birth->counts);
    if (result != ZR_OK)
        return result;
    memset(birth->counts, 0, 2 * (size_t)count * sizeof *birth->counts);
    birth->wanted = birth->counts + count;
    return ZR_OK;
}

/* Frees the lists and closes the descriptors in them. */
static void drop_lists(struct birth *birth)
{
    zr_arena *arena = birth->members->options->host_arena;
    for (unsigned p = 0; p < birth->members->count && birth->counts; p++) {
        const struct zr_segment *list = segments_of(birth, p);
        for (unsigned i = 0; i < birth->counts[p] && p != birth->members->rank; i++)
            if (i == 0 || list[i].fd != list[i - 1].fd)
                close(list[i].fd);
    }
    if (birth->counts && birth->counts[birth->members->rank] > 0 && birth->comm->backend->can.descriptors)
        zr_block_export_end(birth->comm->base.options.arena, birth->comm->slots);
    zr_drop(arena, &birth->counts);
    zr_drop(arena, &birth->segments);
}

static uint64_t key_of(const unsigned *ranks, unsigned count)
{
    uint64_t hash = ZR_HASH_START;
    for (unsigned i = 0; i < count; i++)
        hash = zr_hash_next(hash, ranks[i]);
    return hash | 1;
}

/* Describes this rank's ring by its places in the file of the parent's ring. */
static zr_result describe(const struct birth *birth)
{
    struct zr_segment *segments = segments_of(birth, birth->members->rank);
    size_t count = ZR_LOCAL_PLACES, lead_bytes;
    zr_result result =
        zr_block_export(birth->comm->base.options.arena, birth->comm->slots, segments, &count, &lead_bytes);
    if (result == ZR_ERR_INVALID)
        return zr_fail(result, "the ring of a group consists of %zu pieces, and the maximum is %d", count,
                       ZR_LOCAL_PLACES);
    for (size_t i = 0; i < count && result == ZR_OK; i++) {
        birth->own->passes |= segments[i].fd != birth->parent->file_fd;
        birth->own->places[i] =
            (struct zr_local_place){.offset_bytes = segments[i].offset_bytes, .bytes = segments[i].bytes};
    }
    birth->own->places_count = (uint32_t)count;
    if (birth->own->passes) {
        birth->counts[birth->members->rank] = (unsigned)count;
        birth->comm->file_fd = birth->comm->backend->can.descriptors ? -1 : segments[0].fd;
    }
    birth->own->lead_bytes = lead_bytes;
    birth->own->ring = (uint32_t)(birth->comm->ring - birth->local->ranks[birth->comm->base.run_rank].rings);
    birth->own->posted = birth->comm->peers[birth->members->rank].posted;
    birth->own->host_posted = birth->comm->peers[birth->members->rank].host_posted;
    return result;
}

static void change(struct zr_local_opening *own, uint64_t key)
{
    atomic_store(&own->key, key);
    zr_local_advance(&own->changes, atomic_load(&own->changes) + 1, NULL);
}

/* Waits until a member has published this group and no other. */
static zr_result wait_for_member(const struct birth *birth, unsigned rank)
{
    struct zr_local_opening *theirs = &birth->local->ranks[rank].opening;
    struct zr_timeout timeout = zr_timeout_begin();
    zr_result result = ZR_OK;
    while (result == ZR_OK) {
        uint32_t seen = atomic_load(&theirs->changes);
        uint32_t number = atomic_load(&theirs->key) == birth->key ? atomic_load(&theirs->number) : 0;
        if (number != 0 && number != birth->own->seen[rank] && atomic_load(&theirs->key) == birth->key) {
            birth->own->seen[rank] = number; /* a later group may have the same members while this entry
                                              * still exists */
            return ZR_OK;
        }
        zr_word_wait(&theirs->changes, seen, ZR_LOCAL_POLL_NS);
        result = zr_local_check(birth->local, rank);
        uint64_t waited_ns = zr_timeout_waited_ns(&timeout);
        if (result == ZR_OK && waited_ns > birth->parent->base.options.timeout_ns)
            result = zr_local_lost(birth->local, rank, waited_ns);
    }
    return result;
}

/* Maps a member's ring. */
static zr_result map_ring(const struct birth *birth, unsigned p)
{
    const struct zr_local_opening *theirs = &birth->local->ranks[birth->ranks[p]].opening;
    struct zr_local_peer *peer = &birth->comm->peers[p];
    struct zr_segment known[ZR_LOCAL_PLACES], *segments = theirs->passes ? segments_of(birth, p) : known;
    int fd = birth->parent->peers[birth->members->ranks[p]].mapping.fd;
    for (uint32_t i = 0; i < theirs->places_count && !theirs->passes; i++)
        segments[i] = (struct zr_segment){
            .fd = fd, .offset_bytes = theirs->places[i].offset_bytes, .bytes = theirs->places[i].bytes};
    fd = theirs->passes ? segments[0].fd : fd;
    peer->ring = &birth->local->ranks[birth->ranks[p]].rings[theirs->ring];
    peer->posted = theirs->posted;
    peer->host_posted = theirs->host_posted;
    zr_result result = zr_import(birth->comm->backend, segments, theirs->places_count, &peer->import);
    if (result != ZR_OK)
        return result;
    peer->slots = (const char *)peer->import + theirs->lead_bytes;
    peer->mapping.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0); /* without it all data goes through the ring */
    return ZR_OK;
}

/* Results so far: of this rank, and of the first other one that failed. */
struct outcome {
    zr_result mine, others;
    char words[ZR_COMM_MESSAGE_BYTES]; /* message of `mine` */
};

/* Passes descriptors between the members that have not failed. */
static zr_result pass_rings(const struct birth *birth)
{
    unsigned count = birth->members->count;
    for (unsigned p = 0; p < count; p++) {
        const struct zr_local_opening *theirs = &birth->local->ranks[birth->ranks[p]].opening;
        birth->wanted[p] = theirs->passes && theirs->result == ZR_OK ? theirs->places_count : 0;
    }
    return zr_local_pass_rings(&(struct zr_local_pass){.local = birth->local,
                                                       .ranks = birth->ranks,
                                                       .count = count,
                                                       .rank = birth->members->rank,
                                                       .attempt = (uint32_t)birth->key,
                                                       .timeout_ns = birth->parent->base.options.timeout_ns,
                                                       .segments = birth->segments,
                                                       .counts = birth->counts,
                                                       .wanted = birth->wanted});
}

static zr_result read_member(const struct birth *birth, unsigned p, struct outcome *outcome)
{
    struct zr_local_opening *theirs = &birth->local->ranks[birth->ranks[p]].opening;
    if (theirs->result != ZR_OK && outcome->others == ZR_OK)
        outcome->others = zr_fail(ZR_ERR_PEER, "rank %u failed to create its part of a group: %s",
                                  birth->ranks[p], zr_result_name((zr_result)theirs->result));
    if (theirs->result == ZR_OK && outcome->mine == ZR_OK) {
        outcome->mine = map_ring(birth, p);
        snprintf(outcome->words, sizeof(outcome->words), "%s", zr_last_error());
    }
    atomic_fetch_add(&theirs->readers, 1);
    zr_word_wake_all(&theirs->readers);
    return ZR_OK;
}

/* Reads what all members have published, and waits until they have read this rank's entry. Fails if the
 * run ends. */
static zr_result meet(const struct birth *birth, struct outcome *outcome)
{
    unsigned count = birth->members->count, next = birth->ranks[(birth->members->rank + 1) % count];
    for (unsigned p = 0; p < count; p++) {
        zr_result result = p == birth->members->rank ? ZR_OK : wait_for_member(birth, birth->ranks[p]);
        if (result != ZR_OK)
            return result;
    }
    zr_result passed = outcome->mine == ZR_OK ? pass_rings(birth) : ZR_OK;
    if (passed == ZR_ERR_PEER || passed == ZR_ERR_TIMEOUT || passed == ZR_ERR_INTERRUPTED)
        return passed;
    if (passed != ZR_OK) {
        outcome->mine = passed;
        snprintf(outcome->words, sizeof(outcome->words), "%s", zr_last_error());
    }
    for (unsigned p = 0; p < count; p++) {
        zr_result result = p == birth->members->rank ? ZR_OK : read_member(birth, p, outcome);
        if (result != ZR_OK)
            return result;
    }
    return zr_local_wait_for(birth->local,
                             &(struct zr_local_wait){.word = &birth->own->readers,
                                                     .target = count - 1,
                                                     .peer = next,
                                                     .timeout_ns = birth->parent->base.options.timeout_ns});
}

/* All members have communicators, or the first failure counts for all. */
static zr_result agree(const struct birth *birth, zr_result mine)
{
    uint32_t own = (uint32_t)mine, all[ZR_MAX_WORLD];
    zr_result result = zr_comm_host_all_gather(&birth->comm->base, &own, sizeof(own), all);
    for (unsigned p = 0; p < birth->members->count && result == ZR_OK && mine == ZR_OK; p++)
        if (all[p] != ZR_OK)
            result = zr_fail(ZR_ERR_PEER, "rank %u failed to create its part of a group: %s", birth->ranks[p],
                             zr_result_name((zr_result)all[p]));
    memset(&birth->comm->base.counters, 0,
           sizeof(birth->comm->base.counters)); /* do not count the creation */
    return result;
}

/* Publishes, meets the other members, and ends the creation in any case. */
static zr_result be_born(struct birth *birth, struct outcome *outcome)
{
    bool prepared = outcome->mine == ZR_OK;
    birth->own->result = (uint32_t)outcome->mine;
    atomic_store(&birth->own->readers, 0);
    change(birth->own, birth->key);
    zr_result result = meet(birth, outcome);
    change(birth->own, 0);
    if (result != ZR_OK || !prepared || outcome->others != ZR_OK)
        return result != ZR_OK ? result : outcome->others;
    if (outcome->mine == ZR_OK) {
        zr_local_mappings_open(birth->comm);
        zr_local_calls_open(birth->comm);
    }
    return agree(birth, outcome->mine);
}

zr_result zr_local_group(struct zr_comm **out, struct zr_comm *base, const struct zr_comm_members *members)
{
    struct local_comm *parent = (struct local_comm *)base;
    unsigned ranks[ZR_MAX_WORLD];
    struct outcome outcome = {0};
    struct birth birth = {.parent = parent, .members = members, .ranks = ranks, .local = base->local};
    for (unsigned i = 0; i < members->count; i++)
        ranks[i] = parent->peers[members->ranks[i]].rank;
    birth.own = &base->local->ranks[base->run_rank].opening;
    birth.key = key_of(ranks, members->count);
    atomic_fetch_add(&birth.own->number, 1);
    birth.own->passes = false;
    outcome.mine = take_lists(&birth);
    if (outcome.mine == ZR_OK)
        outcome.mine = zr_local_prepare(
            &birth.comm, members->options,
            &(struct zr_local_seats){
                .local = base->local, .ranks = ranks, .rank = members->rank, .world = members->count});
    if (outcome.mine == ZR_OK) {
        birth.comm->file_fd = parent->file_fd;
        outcome.mine = describe(&birth);
    }
    snprintf(outcome.words, sizeof(outcome.words), "%s", zr_last_error());
    zr_result result = be_born(&birth, &outcome);
    if (outcome.mine == ZR_OK) {
        outcome.mine = result;
        snprintf(outcome.words, sizeof(outcome.words), "%s", zr_last_error());
    }
    drop_lists(&birth);
    if (outcome.mine == ZR_OK)
        *out = &birth.comm->base;
    else if (birth.comm)
        zr_comm_destroy(&birth.comm->base);
    return outcome.mine == ZR_OK ? ZR_OK : zr_fail(outcome.mine, "%s", outcome.words);
}
