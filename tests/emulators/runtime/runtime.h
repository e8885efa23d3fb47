/* runtime.h: the CUDA runtime above the emulated driver, for PyTorch: tests/support/pytorch_check.py builds
 * it. No kernel runs. */
#ifndef ZR_EMULATED_RUNTIME_H
#define ZR_EMULATED_RUNTIME_H

#include <stddef.h>

#include "alloc/preload/cuda/driver_api.h"

#define ZR_DECLARE(member, name, suffix, parameters) zr_cu_result name##suffix parameters;
ZR_CUDA_FUNCTIONS(ZR_DECLARE)
ZR_CUDA_REPLACED(ZR_DECLARE)
ZR_CUDA_USED(ZR_DECLARE)
#undef ZR_DECLARE
zr_cu_result cuEventElapsedTime(float *ms, zr_cu_event start, zr_cu_event end);

/* The version of the runtime that the stand-in libcudart answers for. */
enum { EMULATED_RUNTIME = 13000 };

/* A value of enum cudaDeviceAttr, whose numbers are the driver's; 0: unknown. */
int emulated_attribute(int which, int device);
/* Fills struct cudaDeviceProp of CUDA 13. */
void emulated_properties(void *out, int device);
/* Checks a launch and lets its time pass; nothing runs. */
zr_cu_result emulated_launch(unsigned x, unsigned y, unsigned z, unsigned threads, size_t shared_bytes,
                             zr_cu_stream stream);
/* A function that does nothing and returns success, for a driver function that the emulated driver lacks. */
void *emulated_driver_call(const char *name);

#endif
