/* torch_snapshot.h: what the two readers of PyTorch's snapshots share: the one that makes a sequence
 * (torch_snapshot.c) and the one that makes a recording (recording_torch.c). Private to defrag/trace/. */
#ifndef ZR_TORCH_SNAPSHOT_H
#define ZR_TORCH_SNAPSHOT_H

#include "defrag/trace/pickle.h"

/* ZR_ERR_FORMAT: the file is no snapshot, and `what` is wrong with it. */
zr_result zr_torch_wrong(const struct zr_pickle *pickle, const char *what);
/* A number that is there and not negative. */
bool zr_torch_number(struct zr_pickle_value value, uint64_t *out);
/* A stream: a handle, which is an address or a small number; no stream is the default one. */
uint64_t zr_torch_stream(struct zr_pickle_value value);
/* The list of events of the device, or of the one with the most where *device is negative; *device gets its
 * number. ZR_ERR_FORMAT: no such device. */
zr_result zr_torch_device(struct zr_pickle *pickle, struct zr_pickle_value traces, int *device,
                          struct zr_pickle_value *out);

#endif
