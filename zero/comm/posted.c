/* posted.c: see posted.h. Uses comm.c. */
#include "zero/comm/posted.h"

#include <stddef.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "alloc/base/system/os.h"
#include "zero/comm/comm.h"
#include "zero/comm/local/local.h"
#include "zero/comm/take.h"

/* A place is sparse: pages that nothing was written to take no space. */
enum { PLACE_BYTES = 64 << 10, FLAGS_BYTES = 4096, PIECE_BYTES = PLACE_BYTES - sizeof(uint64_t) };

struct posted_comm {
    struct zr_comm base;
    void *ring; /* of the byte plan; not used */
    const struct zr_file *file;
    uint64_t number; /* of the next message */
};

/* ---- The file ------------------------------------------------------------------------------------------ */

static bool reads(const struct zr_file *file, uint64_t at, void *out, size_t bytes)
{
    return zr_read_all(file->fd, (int64_t)at, out, bytes) == (ssize_t)bytes;
}

bool zr_comm_posted_has_left(const struct zr_file *file, unsigned rank)
{
    char flag = 0;
    return reads(file, rank, &flag, 1) && flag;
}

static uint64_t place_of(const struct posted_comm *comm, unsigned rank)
{
    return FLAGS_BYTES + (comm->number * comm->base.world + rank) * PLACE_BYTES;
}

/* The mark of a message, behind its data, is written last. */
static bool is_posted(const struct posted_comm *comm, unsigned rank)
{
    uint64_t mark = 0;
    return reads(comm->file, place_of(comm, rank) + PIECE_BYTES, &mark, sizeof mark) &&
           mark == comm->number + 1;
}

static zr_result post(struct posted_comm *comm, const void *data, size_t bytes)
{
    const uint64_t at = place_of(comm, comm->base.rank), mark = comm->number + 1;
    if (is_posted(comm, comm->base.rank))
        return ZR_OK;
    zr_result result = zr_file_write_at(comm->file, at, data, bytes);
    if (result == ZR_OK)
        result = zr_file_write_at(comm->file, at + PIECE_BYTES, &mark, sizeof mark);
    zr_comm_posted_wake(&comm->base);
    return result;
}

zr_result zr_comm_posted_leave(const struct zr_file *file, unsigned rank)
{
    return zr_file_write_at(file, rank, "l", 1);
}

/* ---- Waiting ------------------------------------------------------------------------------------------- */

void zr_comm_posted_wake(zr_comm *comm)
{
    atomic_fetch_add(&comm->local->posts, 1);
    zr_word_wake_all(&comm->local->posts);
}

zr_result zr_comm_posted_await(zr_comm *comm, const struct zr_comm_posted_wait *wait)
{
    struct zr_timeout timeout = zr_timeout_begin();
    zr_result result = ZR_OK;
    while (true) {
        uint32_t seen = atomic_load(&comm->local->posts);
        if (wait->is_there(wait->state))
            return ZR_OK;
        if (result != ZR_OK)
            return result;
        zr_word_wait(&comm->local->posts, seen, ZR_LOCAL_POLL_NS);
        result = zr_local_check(comm->local, wait->rank);
        if (result == ZR_OK && zr_timeout_waited_ns(&timeout) > comm->options.timeout_ns)
            result = zr_local_lost(comm->local, wait->rank, zr_timeout_waited_ns(&timeout));
    }
}

/* ---- Messages ------------------------------------------------------------------------------------------ */

struct sender {
    const struct posted_comm *comm;
    unsigned rank;
};

/* Nothing is posted after the leave. */
static bool is_settled(const void *state)
{
    const struct sender *sender = state;
    return zr_comm_posted_has_left(sender->comm->file, sender->rank) || is_posted(sender->comm, sender->rank);
}

static zr_result gather_piece(struct posted_comm *comm, const struct zr_all_gather *op, size_t first,
                              size_t bytes)
{
    const char *mine = (const char *)op->source + first;
    zr_result result = post(comm, mine, bytes);
    for (unsigned p = 0; p < comm->base.world && result == ZR_OK; p++) {
        const struct sender sender = {comm, p};
        char *to = (char *)op->destination + p * op->shard_bytes + first;
        result = zr_comm_posted_await(&comm->base, &(struct zr_comm_posted_wait){is_settled, &sender, p});
        if (result != ZR_OK || bytes == 0)
            continue;
        if (is_posted(comm, p))
            result = zr_file_read_at(comm->file, place_of(comm, p), to, bytes);
        else
            memmove(to, mine, bytes);
        comm->base.host_received_bytes += p != comm->base.rank ? bytes : 0;
    }
    comm->number++;
    return result;
}

static zr_result posted_host(struct zr_comm *comm, const struct zr_all_gather *op)
{
    size_t done = 0;
    zr_result result;
    do {
        size_t left = op->shard_bytes - done, piece = left < PIECE_BYTES ? left : PIECE_BYTES;
        result = gather_piece((struct posted_comm *)comm, op, done, piece);
        done += piece;
    } while (result == ZR_OK && done < op->shard_bytes);
    return result;
}

static zr_result posted_run(struct zr_comm *comm, const struct zr_comm_item *item)
{
    (void)comm;
    (void)item;
    return zr_fail(ZR_ERR_INVALID, "ranks whose messages stay in a file have host messages only");
}

static zr_result posted_group(struct zr_comm **out, struct zr_comm *parent,
                              const struct zr_comm_members *members)
{
    if (members->count > 1)
        return posted_run(parent, NULL);
    zr_result result = zr_comm_null_create(out, members->options, members->rank, 1);
    if (result == ZR_OK)
        (*out)->local = parent->local;
    return result;
}

static void posted_close(struct zr_comm *comm)
{
    zr_arena_free(comm->options.arena, ((struct posted_comm *)comm)->ring);
}

static const struct zr_comm_table posted_table = {
    .name = "posted", .run = posted_run, .host = posted_host, .group = posted_group, .close = posted_close};

uint64_t zr_comm_posted_number(const zr_comm *comm)
{
    return ((const struct posted_comm *)comm)->number;
}

void zr_comm_posted_continue(zr_comm *comm, uint64_t number)
{
    ((struct posted_comm *)comm)->number = number;
}

zr_result zr_comm_posted_create(zr_comm **out, const struct zr_comm_options *options,
                                struct zr_local_world *local, unsigned rank, const struct zr_file *file)
{
    struct zr_comm_options own;
    struct posted_comm *comm = NULL;
    if (!out || !local || !file || rank >= local->world)
        return zr_fail(ZR_ERR_INVALID, "%s() requires out, a file and a world that includes this rank",
                       __func__);
    *out = NULL;
    zr_result result = ZR_STRUCT_COPY(zr_comm_options, beside, &own, options);
    if (result == ZR_OK)
        result = zr_comm_options_check(&own, rank, local->world);
    if (result == ZR_OK)
        result = zr_take(own.host_arena, ZR_TAG_OTHER, 1, sizeof *comm, (void **)&comm);
    if (result != ZR_OK)
        return result;
    void *ring = NULL;
    result = zr_take(own.arena, ZR_TAG_COMM, zr_comm_ring_bytes(local->world, own.bucket_bytes), 1, &ring);
    if (result != ZR_OK) {
        zr_drop(own.host_arena, &comm);
        return result;
    }
    zr_comm_open(&comm->base, &posted_table, &own);
    comm->base.local = local;
    comm->base.rank = comm->base.run_rank = rank;
    comm->base.world = local->world;
    comm->ring = ring;
    comm->file = file;
    comm->number = 0;
    *out = &comm->base;
    return ZR_OK;
}
