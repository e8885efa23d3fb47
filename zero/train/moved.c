/* moved.c: see moved.h. A change of size uses two files of the launcher's memory: the first one has the
 * engine's state, the second one struct zr_moved, then the losses and the seconds of the steps. Changes take
 * turns with two pairs, so that one pair is complete while the other one is written. */
#include "zero/train/moved.h"

#include <stdio.h>

#include "alloc/base/error.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/launch/control.h"

enum part { STATE, COURSE, PARTS };

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

static zr_result share(const struct zr_rank *rank, bool next, struct zr_spread_part how)
{
    zr_result result = ZR_OK;
    for (unsigned part = 0; part < PARTS && zr_train_is_apart(rank->config) && result == ZR_OK; part++) {
        const struct zr_file file = borrow(rank->local, (enum part)part, next);
        result = zr_spread(rank, &file, how);
    }
    return result;
}

/* Nothing of an earlier change stays in memory that each launcher fills. */
static zr_result clear(const struct zr_rank *rank, bool next)
{
    zr_result result = ZR_OK;
    for (unsigned part = 0; part < PARTS && zr_train_is_apart(rank->config) && result == ZR_OK; part++) {
        const struct zr_file file = borrow(rank->local, (enum part)part, next);
        result = zr_file_resize(&file, 0);
    }
    return result;
}

zr_result zr_moved_find(const struct zr_rank *rank, bool *moves)
{
    const bool mine = zr_local_is_moved(rank->local);
    bool all[ZR_MAX_WORLD], some_lack = false;
    unsigned from = rank->config->world;
    *moves = mine;
    if (!zr_train_is_apart(rank->config) || zr_local_restarts(rank->local) == 0)
        return ZR_OK;
    zr_result result = zr_comm_host_all_gather(rank->comm, &mine, sizeof mine, all);
    for (unsigned r = rank->config->world; r-- > 0 && result == ZR_OK;) {
        from = all[r] ? r : from;
        some_lack |= !all[r];
    }
    *moves = from < rank->config->world;
    if (result != ZR_OK || !*moves || !some_lack)
        return result;
    result = zr_comm_all_status(rank->comm, mine ? ZR_OK : clear(rank, false));
    if (result == ZR_OK)
        result = share(rank, false, (struct zr_spread_part){.gives = rank->rank == from, .takes = !mine});
    if (result == ZR_OK)
        atomic_store(&rank->local->moved, 1);
    return result;
}

zr_result zr_moved_agree(const struct zr_rank *rank, bool *changes)
{
    const struct zr_launch_replicas replicas = zr_train_launch_replicas(rank->config);
    uint8_t mine, all[ZR_MAX_WORLD];
    *changes = true;
    if (!zr_train_is_apart(rank->config))
        return ZR_OK;
    mine = zr_local_gather_leave(rank->local);
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
    zr_result result = zr_comm_all_status(rank->comm, clear(rank, true));
    if (result == ZR_OK)
        result = zr_checkpoint_write_state(&checkpoint);
    if (result == ZR_OK)
        result = zr_comm_all_status(rank->comm, rank->rank == 0 ? write_course(history, moved) : ZR_OK);
    if (result == ZR_OK)
        result = share(rank, true, (struct zr_spread_part){.gives = true, .takes = true});
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
