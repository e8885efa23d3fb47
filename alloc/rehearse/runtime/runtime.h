/* runtime.h: the CUDA runtime above the emulated driver, and functions of CUDA's other libraries whose
 * answers programs read. No kernel runs. Private to alloc/rehearse/. */
#ifndef ZR_REHEARSE_RUNTIME_H
#define ZR_REHEARSE_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

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

/* ---- launches.c, of the driver's library --------------------------------------------------------------- */

/* Work of a library in the stream, which takes the time of so many bytes in the device's memory or of so many
 * operations on numbers of so many bits, whichever is longer. */
zr_cu_result cuRehearseWork(zr_cu_stream stream, double moved_bytes, double operations, int operand_bits);
/* Whether the copy is from a device to the program's memory, and kernels may have made its bytes. */
bool cuRehearseMade(zr_cu_address to, zr_cu_address from, size_t bytes);
/* Counts bytes that a library took of the device for itself, gave back (less than 0), or was refused. */
void cuRehearseLibrary(zr_cu_device device, int64_t bytes, bool refused);
/* From now on this thread reads numbers that kernels made as `count`, until it is called with -1: zr rehearse
 * --nonzero. */
void cuRehearseCount(int64_t count);

/* ---- reads.c ------------------------------------------------------------------------------------------- */

/* After a copy: tells the program's sitecustomize.py if kernels may have made what was copied to the host. */
void emulated_read(const void *to, const void *from, size_t bytes);

/* ---- libraries.c --------------------------------------------------------------------------------------- */

/* The size of a workspace that the function is asked for: 0 bytes. Counts the question for the library. */
size_t emulated_no_workspace(const char *function);
/* "workspaces:LIBRARY COUNT" for each library that was asked. */
void emulated_put_workspaces(FILE *file);

/* ---- Others -------------------------------------------------------------------------------------------- */

/* The newest version of CUDA that the stand-ins answer for. */
enum { EMULATED_RUNTIME = 13000, EMULATED_RUNTIME_OLD = 12000 };

/* Of runtime.c. */
zr_cu_result cudaMalloc(void **out, size_t bytes);
zr_cu_result cudaMallocPitch(void **out, size_t *pitch, size_t width, size_t height);
zr_cu_result cudaFree(void *pointer);
zr_cu_result cudaGetDevice(int *device);
zr_cu_result cudaSetDevice(int device);
zr_cu_result cudaStreamSynchronize(zr_cu_stream stream);
zr_cu_result cudaMemsetAsync(void *pointer, int value, size_t bytes, zr_cu_stream stream);
zr_cu_result cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                               size_t height, int kind, zr_cu_stream stream);

/* A value of enum cudaDeviceAttr, whose numbers are the driver's; 0: unknown. */
int emulated_attribute(int which, int device);
/* Fills struct cudaDeviceProp of that version of CUDA: 12000 or 13000. */
void emulated_properties(void *out, int device, int version);
#endif
