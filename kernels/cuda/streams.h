/* streams.h: the streams of this room's table; kernels/streams.h has their contract. */
#ifndef ZR_CUDA_STREAMS_H
#define ZR_CUDA_STREAMS_H

#include "kernels/streams.h"

extern const struct zr_kernel_streams zr_cuda_streams;

/* Finds the driver's calls, of a driver that is loaded; before any of the table's. */
zr_result zr_cuda_streams_find(void);
/* Waits until the context's stream has ended what it was asked for, or context->while_waiting fails. */
zr_result zr_cuda_stream_wait(const struct zr_kernel_context *context);

#endif
