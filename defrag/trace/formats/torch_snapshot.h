/* torch_snapshot.h: what the two readers of PyTorch's snapshots share: the one that makes a sequence
 * (torch_snapshot.c) and the one that makes a recording (recording_torch.c). Private to defrag/trace/. */
#ifndef ZR_TORCH_SNAPSHOT_H
#define ZR_TORCH_SNAPSHOT_H

#include "defrag/trace/formats/pickle.h"

/* PyTorch rounds requests up to multiples of it. */
enum { ZR_TORCH_ROUND_BYTES = 512 };

/* A block's size where the file does not say it. */
static inline uint64_t zr_torch_round(uint64_t requested_bytes)
{
    return requested_bytes > UINT64_MAX - ZR_TORCH_ROUND_BYTES
               ? requested_bytes
               : (requested_bytes + ZR_TORCH_ROUND_BYTES - 1) / ZR_TORCH_ROUND_BYTES * ZR_TORCH_ROUND_BYTES;
}

/* ZR_ERR_FORMAT: the file is no snapshot, and `what` is wrong with it. */
zr_result zr_torch_wrong(const struct zr_pickle *pickle, const char *what);
/* A number that is there and not negative. */
bool zr_torch_number(struct zr_pickle_value value, uint64_t *out);
/* A stream: a handle, which is an address or a small number; no stream is the default one. */
uint64_t zr_torch_stream(struct zr_pickle_value value);
/* Reads a snapshot, one device's events handed over one after the other and not held, in up to three passes:
 * the first device that has events is taken for the one with the most until the file ends; a file that names
 * an event twice is read whole. */
struct zr_torch_events {
    /* Before the first event, and again where what was taken is to be forgotten. */
    void (*restart)(void *state);
    zr_result (*take)(void *state, struct zr_pickle *pickle, struct zr_pickle_value event, bool *stop);
    void *state;
    bool whole; /* at once: what the last pickle's read_whole says */
};
/* *device: the one that is meant, negative for the one with the most events; gets its number, and stays
 * negative where there is none. The caller owns *out until zr_pickle_end(); after a failure there is nothing
 * to end. *segments is a list. ZR_ERR_FORMAT: no snapshot; no such device. */
zr_result zr_torch_read(struct zr_pickle *out, const char *path, const struct zr_torch_events *events,
                        zr_arena *arena, int *device, struct zr_pickle_value *segments);

#endif
