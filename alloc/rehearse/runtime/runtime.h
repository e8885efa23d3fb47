/* runtime.h: the CUDA runtime above the emulated driver, and functions of CUDA's other libraries whose
 * answers programs read. No kernel runs. Private to alloc/rehearse/. */
#ifndef ZR_REHEARSE_RUNTIME_H
#define ZR_REHEARSE_RUNTIME_H

#include <stddef.h>

#include "alloc/preload/cuda/driver_api.h"
#include "kernels/cuda/driver_launch.h"

#define ZR_DECLARE(member, name, suffix, parameters) zr_cu_result name##suffix parameters;
ZR_CUDA_FUNCTIONS(ZR_DECLARE)
ZR_CUDA_REPLACED(ZR_DECLARE)
ZR_CUDA_USED(ZR_DECLARE)
ZR_CUDA_LAUNCHING(ZR_DECLARE)
#undef ZR_DECLARE
zr_cu_result cuDeviceGetUuid_v2(unsigned char out[16], zr_cu_device device);
zr_cu_result cuEventElapsedTime(float *ms, zr_cu_event start, zr_cu_event end);

zr_cu_result cudaMalloc(void **out, size_t bytes);
zr_cu_result cudaFree(void *pointer);
zr_cu_result cudaGetDevice(int *device);
zr_cu_result cudaSetDevice(int device);

/* The newest version of CUDA that the stand-ins answer for. */
enum { EMULATED_RUNTIME = 13000, EMULATED_RUNTIME_OLD = 12000 };

/* A value of enum cudaDeviceAttr, whose numbers are the driver's; 0: unknown. */
int emulated_attribute(int which, int device);
/* Fills struct cudaDeviceProp of that version of CUDA: 12000 or 13000. */
void emulated_properties(void *out, int device, int version);
#endif
