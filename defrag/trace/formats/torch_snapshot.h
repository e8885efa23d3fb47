/* torch_snapshot.h: reads PyTorch's snapshots event by event; recording_torch.c makes records of them.
 * Private to defrag/trace/. */
#ifndef ZR_TORCH_SNAPSHOT_H
#define ZR_TORCH_SNAPSHOT_H

#include "defrag/trace/formats/pickle.h"

/* PyTorch rounds requests up to multiples of this size. */
enum { ZR_TORCH_ROUND_BYTES = 512 };

/* A block's size if the file does not contain it. */
static inline uint64_t zr_torch_round(uint64_t requested_bytes)
{
    return requested_bytes > UINT64_MAX - ZR_TORCH_ROUND_BYTES
               ? requested_bytes
               : (requested_bytes + ZR_TORCH_ROUND_BYTES - 1) / ZR_TORCH_ROUND_BYTES * ZR_TORCH_ROUND_BYTES;
}

/* Returns ZR_ERR_FORMAT: the file is no snapshot; `what` is the problem. */
zr_result zr_torch_wrong(const struct zr_pickle *pickle, const char *what);
/* Reads a number that exists and is not negative. */
bool zr_torch_number(struct zr_pickle_value value, uint64_t *out);
/* Reads a stream: an address or a small number; an absent stream is the default stream. */
uint64_t zr_torch_stream(struct zr_pickle_value value);
/* Reads a snapshot and delivers the events of one device one by one, in up to three passes. The first pass
 * assumes that the first device with events has the most; if it has not, a second pass follows. A file that
 * names an event twice is read whole. */
struct zr_torch_events {
    /* called before the first event, and before each later pass, which delivers all events again */
    void (*restart)(void *state);
    zr_result (*take)(void *state, struct zr_pickle *pickle, struct zr_pickle_value event, bool *stop);
    void *state;
    bool whole; /* read whole in the first pass: pass on read_whole of an earlier pickle */
};
/* *device: the device to read, or negative for the first one with a refusal, or else the one with the most
 * events; receives the device's number, or
 * stays negative if there is none. The caller owns *out until zr_pickle_end(); after an error there is
 * nothing to end. *segments is a list. ZR_ERR_FORMAT: not a snapshot; no such device. */
zr_result zr_torch_read(struct zr_pickle *out, const char *path, const struct zr_torch_events *events,
                        zr_arena *arena, int *device, struct zr_pickle_value *segments);

/* ---- Equal stacks -------------------------------------------------------------------------------------- */

/* One number for all stacks with the same frames. A pickle names a list of frames by its identity, and
 * PyTorch writes one list for each recorded call, so two blocks of one line of code have different lists.
 * Frames are equal if their name, file and line are. */
struct zr_equal_stacks {
    struct zr_number_map numbers;  /* of a list or a frame: the number of the first equal one */
    struct zr_number_map contents; /* of a hash of content: the first number */
};

/* Allocates nothing, so it cannot fail. */
void zr_equal_stacks_init(struct zr_equal_stacks *out, zr_arena *arena);
void zr_equal_stacks_end(struct zr_equal_stacks *stacks);
/* *out: the number of the first stack that was asked for and has equal frames, plus 1; 0: no frames. Numbers
 * are those of one reading of the pickle. Returns the arena's error. */
zr_result zr_equal_stacks_find(struct zr_equal_stacks *stacks, struct zr_pickle *pickle,
                               struct zr_pickle_value frames, uint32_t *out);

#endif
