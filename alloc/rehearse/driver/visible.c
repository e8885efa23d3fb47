/* visible.c: CUDA_VISIBLE_DEVICES: which devices of the machine a program sees, and in which order, as the
 * CUDA Programming Guide has it ("CUDA Environment Variables"): indices, or beginnings of identifiers that
 * name one device. Devices before the first invalid entry are visible. A device that is named twice leaves
 * none, as PyTorch's reading of the variable has it (torch/cuda/__init__.py). See emulator.h. */
#include "alloc/rehearse/driver/inside.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { UUID_BYTES = 16, UUID_TEXT_BYTES = 48 };

void emu_device_uuid(int machine_device, unsigned char out[16])
{
    for (int i = 0; i < UUID_BYTES; i++)
        out[i] = (unsigned char)(i < UUID_BYTES - 1 ? 0xe0 + i : machine_device);
}

/* As nvidia-smi has it: GPU-8932f937-d72c-4106-c12f-20bd9faed9f6. */
static void write_uuid(char out[UUID_TEXT_BYTES], int device)
{
    unsigned char bytes[UUID_BYTES];
    int at = snprintf(out, UUID_TEXT_BYTES, "GPU");
    emu_device_uuid(device, bytes);
    for (int i = 0; i < UUID_BYTES; i++)
        at += snprintf(out + at, (size_t)(UUID_TEXT_BYTES - at), "%s%02x",
                       i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", bytes[i]);
}

/* -1: the entry names no device, or more than one. */
static int device_of(const char *entry, size_t length, int devices_count)
{
    int found = -1;
    if (isdigit((unsigned char)*entry)) {
        long index = strtol(entry, NULL, 10);
        return index < devices_count ? (int)index : -1;
    }
    for (int i = 0; i < devices_count && length > strlen("GPU-"); i++) {
        char uuid[UUID_TEXT_BYTES];
        write_uuid(uuid, i);
        if (length <= strlen(uuid) && strncasecmp(entry, uuid, length) == 0) {
            if (found >= 0)
                return -1;
            found = i;
        }
    }
    return found;
}

int emu_visible_devices(const char *text, int devices_count, int *out)
{
    int count = 0;
    for (int i = 0; !text && i < devices_count; i++)
        out[count++] = i;
    while (text && *text) {
        text += strspn(text, " \t");
        size_t length = strcspn(text, ", \t");
        int device = device_of(text, length, devices_count);
        for (int i = 0; i < count; i++)
            if (out[i] == device)
                return 0;
        if (device < 0)
            break;
        out[count++] = device;
        text += strcspn(text, ",");
        text += *text == ',';
    }
    return count;
}
