/* cuda_device.h: what names a CUDA device in every process. Private to the project. Any thread.
 *
 * A number names another device in each process (CUDA_VISIBLE_DEVICES); a UUID, of a GPU or of a part of one
 * (MIG), the same in all. */
#ifndef ZR_BACKEND_CUDA_DEVICE_H
#define ZR_BACKEND_CUDA_DEVICE_H

#include "alloc/backend/lender.h"
#include "alloc/zr.h"

/* The device's UUID: 32 small hexadecimal digits and four dashes, as nvidia-smi -L shows it after "GPU-".
 * ZR_ERR_UNAVAILABLE: no driver, or one before CUDA 11.4; ZR_ERR_INVALID: no such device. */
zr_result zr_cuda_device_key(int ordinal, char out[ZR_LENDER_KEY_BYTES]);
/* By what people write: a number of this process's, or a UUID, after "GPU-" or "MIG-" or without. Without
 * `ordinal` a UUID is taken as it is, and needs no driver. Errors as above. */
zr_result zr_cuda_device_find(const char *text, int *ordinal, char key[ZR_LENDER_KEY_BYTES]);

#endif
