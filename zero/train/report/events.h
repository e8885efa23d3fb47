/* events.h: the scalars of steps as an event file of TensorBoard. Used by rank 0 only.
 *
 * The format is public: records of TFRecord (length, checksum of the length, data, checksum of the data; the
 * checksums are CRC-32C of RFC 3720, masked), each an Event of tensorflow/core/util/event.proto in protobuf's
 * wire format. */
#ifndef ZR_TRAIN_EVENTS_H
#define ZR_TRAIN_EVENTS_H

#include "zero/train/report/log.h"

struct zr_events {
    struct zr_file file; /* fd -1: none, and calls have no effect */
};

/* Creates an event file in a folder, which is created too; "": none. Each run has a file of its own.
 * TensorBoard drops what earlier files have of steps after `resumed_step`. ZR_ERR_IO. */
zr_result zr_events_open(struct zr_events *out, const char *folder, uint64_t resumed_step);
/* Appends a step by one write. */
zr_result zr_events_step(struct zr_events *events, const struct zr_step_line *line);
zr_result zr_events_close(struct zr_events *events);

#endif
