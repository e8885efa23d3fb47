/* moved.c: see moved.h. A change of size uses two files of the launcher's memory: the first one has the
 * engine's state, the second one struct zr_moved, then the losses and the seconds of the steps. Changes take
 * turns with two pairs, so that one pair is complete while the other one is written. */
#define _GNU_SOURCE
#include "zero/train/moved.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/heap/heap.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/launch/control.h"

enum part { STATE, COURSE, PARTS };
enum { PIECE_BYTES = 64 << 10 };

/* The file of a change; the world has seen `sizes` of them. */
static int memory_of(const struct zr_local_world *local, enum part part, bool next)
{
    return zr_local_memory((zr_local_sizes(local) + next) % 2 * PARTS + part);
}

static struct zr_file borrow(const struct zr_local_world *local, enum part part, bool next)
{
    return zr_file_borrow(memory_of(local, part, next), "the launcher's memory");
}

static void name_state(char out[32], const struct zr_local_world *local, bool next)
{
    snprintf(out, 32, "/proc/self/fd/%d", memory_of(local, STATE, next));
}

void zr_sizes_add(struct zr_sizes *sizes, uint64_t step, unsigned replicas)
{
    bool again = sizes->count > 0 && sizes->at[sizes->count - 1].step == step;
    if (again || sizes->count < ZR_SIZES_MAX)
        sizes->at[again ? sizes->count - 1 : sizes->count++] = (struct zr_size){step, replicas};
}

/* ---- The losses ---------------------------------------------------------------------------------------- */

/* The steps of a history, written or read. */
static zr_result transfer(const struct zr_history *history, bool reads)
{
    const struct zr_file file = borrow(history->rank->local, COURSE, !reads);
    const size_t bytes = history->count * sizeof *history->loss;
    double *const columns[] = {history->loss, history->seconds};
    uint64_t at = sizeof(struct zr_moved);
    zr_result result = ZR_OK;
    for (unsigned i = 0; i < 2 && bytes > 0 && result == ZR_OK; i++, at += bytes)
        result = reads ? zr_file_read_at(&file, at, columns[i], bytes)
                       : zr_file_write_at(&file, at, columns[i], bytes);
    return result;
}

static zr_result write_course(const struct zr_history *history, const struct zr_moved *moved)
{
    const struct zr_file file = borrow(history->rank->local, COURSE, true);
    zr_result result = zr_file_write_at(&file, 0, moved, sizeof *moved);
    return result == ZR_OK ? transfer(history, false) : result;
}

/* ---- Launchers with memory of their own ---------------------------------------------------------------- */

struct extent {
    uint64_t at, bytes;
};

/* The next bytes of a file that are not a hole, from `at` on; bytes 0: none. */
static struct extent next_extent(int fd, uint64_t at)
{
    const off_t begin = lseek(fd, (off_t)at, SEEK_DATA),
                end = begin < 0 ? begin : lseek(fd, begin, SEEK_HOLE);
    if (begin < 0 || end <= begin)
        return (struct extent){0, 0};
    const uint64_t bytes = (uint64_t)(end - begin);
    return (struct extent){(uint64_t)begin, bytes < PIECE_BYTES ? bytes : PIECE_BYTES};
}

/* Adds bytes of another rank to a file. Where both have written, both have written the same, and what a rank
 * has not written is 0. */
static zr_result add(const struct zr_file *file, struct extent extent, const unsigned char *theirs,
                     unsigned char *room)
{
    uint64_t size;
    zr_result result = zr_file_size(file, &size);
    if (result == ZR_OK && size < extent.at + extent.bytes)
        result = zr_file_resize(file, extent.at + extent.bytes);
    if (result == ZR_OK)
        result = zr_file_read_at(file, extent.at, room, extent.bytes);
    for (size_t i = 0; i < extent.bytes; i++)
        room[i] |= theirs[i];
    return result == ZR_OK ? zr_file_write_at(file, extent.at, room, extent.bytes) : result;
}

/* Brings the bytes that a rank has written to the files of the others. A rank that fails takes part to the
 * end. */
static zr_result bring(const struct zr_rank *rank, unsigned root, const struct zr_file *file,
                       unsigned char *room)
{
    struct extent mine, all[ZR_MAX_WORLD];
    zr_result result = ZR_OK, failed = ZR_OK;
    for (uint64_t at = 0; result == ZR_OK; at = all[root].at + all[root].bytes) {
        zr_ticket ticket;
        mine = next_extent(file->fd, at);
        result = zr_comm_host_all_gather(rank->comm, &mine, sizeof mine, all);
        if (result != ZR_OK || all[root].bytes == 0)
            break;
        if (rank->rank == root && failed == ZR_OK)
            failed = zr_file_read_at(file, mine.at, room, mine.bytes);
        result = zr_comm_broadcast(
            rank->comm, &(struct zr_broadcast){.buffer = room, .bytes = all[root].bytes, .root = root},
            &ticket);
        if (result == ZR_OK)
            result = zr_comm_wait(rank->comm, ticket);
        if (result == ZR_OK && failed == ZR_OK && rank->rank != root)
            failed = add(file, all[root], room, room + PIECE_BYTES);
    }
    return result == ZR_OK ? failed : result;
}

/* All launchers get what each rank has written to the memory of its own. */
static zr_result share(const struct zr_rank *rank, enum part part)
{
    const struct zr_file file = borrow(rank->local, part, true);
    unsigned char *room = zr_heap_alloc((size_t)2 * PIECE_BYTES);
    zr_result result = zr_comm_all_status(rank->comm, room ? ZR_OK : ZR_ERR_HOST_MEMORY);
    for (unsigned r = 0; r < rank->config->world && result == ZR_OK; r++)
        result = zr_comm_all_status(rank->comm, bring(rank, r, &file, room));
    zr_heap_free(room);
    return result;
}

static zr_result share_all(const struct zr_rank *rank)
{
    zr_result result = ZR_OK;
    for (unsigned part = 0; part < PARTS && zr_train_is_apart(rank->config) && result == ZR_OK; part++)
        result = share(rank, (enum part)part);
    return result;
}

/* Nothing of an earlier change stays in memory that each launcher fills. */
static zr_result clear(const struct zr_rank *rank)
{
    zr_result result = ZR_OK;
    for (unsigned part = 0; part < PARTS && zr_train_is_apart(rank->config) && result == ZR_OK; part++) {
        const struct zr_file file = borrow(rank->local, (enum part)part, true);
        result = zr_file_resize(&file, 0);
    }
    return result;
}

zr_result zr_moved_agree(const struct zr_rank *rank, bool *changes)
{
    const struct zr_launch_replicas replicas = zr_train_launch_replicas(rank->config);
    bool mine, all[ZR_MAX_WORLD];
    *changes = true;
    if (!zr_train_is_apart(rank->config))
        return ZR_OK;
    mine = atomic_load(&rank->local->leaves);
    zr_result result = zr_comm_host_all_gather(rank->comm, &mine, sizeof mine, all);
    if (result == ZR_OK)
        *changes = zr_local_agree_to_leave(rank->local, &replicas, all) > 0;
    return result;
}

/* ---- The state ----------------------------------------------------------------------------------------- */

zr_result zr_moved_write(struct zr_saves *saves, const struct zr_history *history, struct zr_moved *moved)
{
    const struct zr_rank *rank = saves->rank;
    const struct zr_data *data = &rank->data;
    char path[32];
    moved->course =
        (struct zr_kept_course){saves->resumed_step, data->order, data->steps_before, data->rows_before};
    moved->saved_step = saves->saved_step;
    moved->clock_step = saves->clock_step;
    moved->started_ns = history->started_ns;
    moved->speculative_updates = history->speculative_updates;
    moved->rolled_back_updates = history->rolled_back_updates;
    moved->validated = history->validated;
    moved->validation_loss = history->validation_loss;
    name_state(path, rank->local, true);
    const struct zr_checkpoint checkpoint = zr_saves_checkpoint(saves, path, moved->step);
    zr_local_busy(rank->local, rank->rank, true);
    zr_result result = zr_comm_all_status(rank->comm, clear(rank));
    if (result == ZR_OK)
        result = zr_checkpoint_write_state(&checkpoint);
    if (result == ZR_OK)
        result = zr_comm_all_status(rank->comm, rank->rank == 0 ? write_course(history, moved) : ZR_OK);
    if (result == ZR_OK)
        result = share_all(rank);
    zr_local_busy(rank->local, rank->rank, false);
    return result;
}

/* Over a rendezvous rank 0 reads it: a launcher that stands in for another one has not been there. */
zr_result zr_moved_read_course(struct zr_moved *out, const struct zr_rank *rank)
{
    const bool apart = zr_train_is_apart(rank->config);
    const struct zr_file file = borrow(rank->local, COURSE, false);
    zr_ticket ticket;
    if (zr_local_sizes(rank->local) == 0)
        return ZR_OK;
    zr_result result = !apart || rank->rank == 0 ? zr_file_read_at(&file, 0, out, sizeof *out) : ZR_OK;
    if (!apart)
        return result;
    result = zr_comm_all_status(rank->comm, result);
    if (result == ZR_OK)
        result = zr_comm_broadcast(
            rank->comm, &(struct zr_broadcast){.buffer = out, .bytes = sizeof *out, .root = 0}, &ticket);
    return result == ZR_OK ? zr_comm_wait(rank->comm, ticket) : result;
}

zr_result zr_moved_read(struct zr_saves *saves, struct zr_history *history, const struct zr_moved *moved)
{
    char path[32];
    name_state(path, saves->rank->local, false);
    const struct zr_checkpoint checkpoint = zr_saves_checkpoint(saves, path, moved->step);
    zr_result result = zr_checkpoint_read_state(&checkpoint);
    if (result == ZR_OK)
        result = transfer(history, true);
    saves->saved_step = moved->saved_step;
    saves->clock_step = moved->clock_step;
    history->started_ns = moved->started_ns;
    history->speculative_updates = moved->speculative_updates;
    history->rolled_back_updates = moved->rolled_back_updates;
    history->validated = moved->validated;
    history->validation_loss = moved->validation_loss;
    return zr_comm_all_status(saves->rank->comm, result);
}

zr_result zr_moved_note(const struct zr_rank *rank, const struct zr_moved *moved)
{
    const struct zr_file file = borrow(rank->local, COURSE, false);
    return zr_local_sizes(rank->local) > 0 ? zr_file_write_at(&file, 0, moved, sizeof *moved) : ZR_OK;
}

zr_result zr_moved_end(const struct zr_rank *rank)
{
    zr_result result = ZR_OK;
    if (!zr_local_is_moved(rank->local))
        return ZR_OK;
    zr_local_end_move(rank->local);
    for (unsigned next = 0; next < 2 && result == ZR_OK; next++) {
        const struct zr_file state = borrow(rank->local, STATE, next);
        result = zr_file_resize(&state, 0);
    }
    return result;
}
