/* streams.h: the CUDA implementation of kernels/streams.h. */
#ifndef ZR_CUDA_STREAMS_H
#define ZR_CUDA_STREAMS_H

#include "kernels/streams.h"

extern const struct zr_kernel_streams zr_cuda_streams;

/* Looks up the driver's functions; the driver must be loaded. Must precede all functions of the table. */
zr_result zr_cuda_streams_find(void);
/* Waits until the context's stream is idle or context->while_waiting fails. */
zr_result zr_cuda_stream_wait(const struct zr_kernel_context *context);

#endif
