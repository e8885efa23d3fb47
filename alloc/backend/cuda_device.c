/* cuda_device.c: keys of devices (see lender.h). Uses cuda_driver.c. */
#include "alloc/backend/lender.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/backend/cuda_driver.h"
#include "alloc/base/error.h"

enum { UUID_BYTES = 16, UUID_LETTERS = 36 };

static bool is_dash(unsigned at)
{
    return at == 8 || at == 13 || at == 18 || at == 23;
}

zr_result zr_cuda_device_key(int ordinal, char out[ZR_LENDER_KEY_BYTES])
{
    const struct zr_cuda_driver *driver;
    zr_cu_result (*uuid_of)(unsigned char *uuid, zr_cu_device device) = NULL;
    unsigned char uuid[UUID_BYTES];
    zr_cu_device device;
    out[0] = '\0';
    zr_result result = zr_cuda_driver_get(&driver);
    /* The call without _v2 returns one UUID for all parts of a GPU. */
    if (result == ZR_OK)
        result = zr_cuda_driver_find("cuDeviceGetUuid_v2", (void **)&uuid_of);
    if (result != ZR_OK)
        return result;
    zr_cu_result code = driver->device_get(&device, ordinal);
    if (code == ZR_CU_SUCCESS)
        code = uuid_of(uuid, device);
    if (code != ZR_CU_SUCCESS)
        return zr_cuda_error(code, ZR_ERR_INVALID, "the UUID of device %d", ordinal);
    for (unsigned i = 0, at = 0; i < UUID_BYTES; i++, at += 2) {
        if (is_dash(at))
            out[at++] = '-';
        snprintf(out + at, 3, "%02x", uuid[i]);
    }
    return ZR_OK;
}

static bool read_uuid(const char *text, char key[ZR_LENDER_KEY_BYTES])
{
    if (strncmp(text, "GPU-", 4) == 0 || strncmp(text, "MIG-", 4) == 0)
        text += 4;
    if (strlen(text) != UUID_LETTERS)
        return false;
    for (unsigned i = 0; i < UUID_LETTERS; i++) {
        key[i] = text[i] >= 'A' && text[i] <= 'F' ? (char)(text[i] - 'A' + 'a') : text[i];
        bool digit = (key[i] >= '0' && key[i] <= '9') || (key[i] >= 'a' && key[i] <= 'f');
        if (is_dash(i) ? key[i] != '-' : !digit)
            return false;
    }
    key[UUID_LETTERS] = '\0';
    return true;
}

static zr_result find_uuid(const char *key, int *ordinal)
{
    const struct zr_cuda_driver *driver;
    char other[ZR_LENDER_KEY_BYTES];
    int count = 0;
    zr_result result = zr_cuda_driver_get(&driver);
    if (result == ZR_OK && driver->device_count(&count) != ZR_CU_SUCCESS)
        count = 0;
    for (int i = 0; result == ZR_OK && i < count; i++) {
        result = zr_cuda_device_key(i, other);
        if (result == ZR_OK && strcmp(other, key) == 0) {
            *ordinal = i;
            return ZR_OK;
        }
    }
    return result == ZR_OK ? zr_fail(ZR_ERR_INVALID,
                                     "no device that is visible here has the UUID %s: see nvidia-smi -L and "
                                     "CUDA_VISIBLE_DEVICES",
                                     key)
                           : result;
}

zr_result zr_cuda_device_find(const char *text, int *ordinal, char key[ZR_LENDER_KEY_BYTES])
{
    char *end;
    long number = strtol(text, &end, 10);
    if (read_uuid(text, key))
        return ordinal ? find_uuid(key, ordinal) : ZR_OK;
    if (*text < '0' || *text > '9' || *end != '\0' || number > 4096)
        return zr_fail(ZR_ERR_INVALID, "'%.40s' is neither a device's number nor its UUID: see nvidia-smi -L",
                       text);
    if (ordinal)
        *ordinal = (int)number;
    return zr_cuda_device_key((int)number, key);
}
