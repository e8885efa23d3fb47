/* driver_streams.h: zr's declarations of the CUDA driver functions for streams, events, memory semaphores and
 * graphs; like driver_launch.h. Private to the project. */
#ifndef ZR_CUDA_DRIVER_STREAMS_H
#define ZR_CUDA_DRIVER_STREAMS_H

#include "alloc/backend/cuda_driver.h"

typedef struct zr_cu_graph_st *zr_cu_graph;
typedef struct zr_cu_graph_exec_st *zr_cu_graph_exec;

/* f(member, the driver's name, the suffix of the version, parameters) */
// clang-format off
/* 32-bit words in memory that the device can access. A stream waits until a word is at least `value` modulo 2^32 (flags
 * 0), or sets it. */
#define ZR_CUDA_WORDS(f)                                                                                      \
    f(word_wait, cuStreamWaitValue32, _v2,                                                                    \
      (zr_cu_stream stream, zr_cu_address address, uint32_t value, unsigned int flags))                       \
    f(word_write, cuStreamWriteValue32, _v2,                                                                  \
      (zr_cu_stream stream, zr_cu_address address, uint32_t value, unsigned int flags))
#define ZR_CUDA_STREAMS(f)                                                                                    \
    f(stream_create, cuStreamCreate, , (zr_cu_stream *out, unsigned int flags))                               \
    f(stream_destroy, cuStreamDestroy, _v2, (zr_cu_stream stream))                                            \
    f(stream_wait, cuStreamWaitEvent, , (zr_cu_stream stream, zr_cu_event event, unsigned int flags))         \
    f(stream_query, cuStreamQuery, , (zr_cu_stream stream))                                                   \
    f(host_register, cuMemHostRegister, _v2, (void *address, size_t bytes, unsigned int flags))               \
    f(host_unregister, cuMemHostUnregister, , (void *address))                                                \
    f(host_address, cuMemHostGetDevicePointer, _v2, (zr_cu_address *out, void *address, unsigned int flags))
/* Capture and graphs. */
#define ZR_CUDA_GRAPHS(f)                                                                                     \
    f(capture_begin, cuStreamBeginCapture, _v2, (zr_cu_stream stream, zr_cu_capture_mode mode))               \
    f(capture_end, cuStreamEndCapture, , (zr_cu_stream stream, zr_cu_graph *out))                             \
    f(graph_instantiate, cuGraphInstantiateWithFlags, ,                                                       \
      (zr_cu_graph_exec *out, zr_cu_graph graph, unsigned long long flags))                                   \
    f(graph_launch, cuGraphLaunch, , (zr_cu_graph_exec graph, zr_cu_stream stream))                           \
    f(graph_exec_destroy, cuGraphExecDestroy, , (zr_cu_graph_exec graph))                                     \
    f(graph_destroy, cuGraphDestroy, , (zr_cu_graph graph))
// clang-format on

#endif
