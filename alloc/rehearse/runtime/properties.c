/* properties.c: struct cudaDeviceProp of CUDA 12 and 13, from its public description. See runtime.h. */
#include "alloc/rehearse/runtime/runtime.h"

#include <stdbool.h>
#include <string.h>

/* Both versions have these members in this order; 12 has a few more between them. */
struct head {
    char name[256];
    unsigned char uuid[16];
    char luid[8];
    unsigned luid_mask;
    size_t memory_bytes, shared_bytes;
    int registers, warp;
    size_t pitch_max;
    int threads_max, block_max[3], grid_max[3];
};

/* From surfaceAlignment on; `clock` and others that 13 has no more are left out by the writer. */
struct writer {
    unsigned char *at;
    size_t offset;
};

static void put(struct writer *to, const void *value, size_t bytes)
{
    to->offset = (to->offset + bytes - 1) / bytes * bytes;
    memcpy(to->at + to->offset, value, bytes);
    to->offset += bytes;
}

static void put_int(struct writer *to, int value)
{
    put(to, &value, sizeof value);
}

static void put_attribute(struct writer *to, int which, int device)
{
    put_int(to, emulated_attribute(which, device));
}

static void put_size(struct writer *to, int which, int device)
{
    size_t value = (size_t)emulated_attribute(which, device);
    put(to, &value, sizeof value);
}

int emulated_attribute(int which, int device)
{
    int value = 0;
    return cuDeviceGetAttribute(&value, (zr_cu_attribute)which, device) == ZR_CU_SUCCESS ? value : 0;
}

/* Numbers are those of enum cudaDeviceAttr. */
void emulated_properties(void *out, int device, int version)
{
    enum { ALL_12 = 1032, ALL_13 = 1008, TEXTURES_12 = 40, TEXTURES_13 = 39, NONE = 0 };
    bool old = version < 13000;
    struct head head = {.warp = emulated_attribute(10, device)};
    struct writer to = {out, offsetof(struct head, grid_max) + sizeof head.grid_max};
    memset(out, 0, old ? ALL_12 : ALL_13);
    cuDeviceGetName(head.name, sizeof head.name, device);
    cuDeviceTotalMem_v2(&head.memory_bytes, device);
    cuDeviceGetUuid_v2(head.uuid, device);
    head.shared_bytes = (size_t)emulated_attribute(8, device);
    head.registers = emulated_attribute(12, device);
    head.pitch_max = (size_t)emulated_attribute(11, device);
    head.threads_max = emulated_attribute(1, device);
    for (int i = 0; i < 3; i++) {
        head.block_max[i] = emulated_attribute(2 + i, device);
        head.grid_max[i] = emulated_attribute(5 + i, device);
    }
    memcpy(out, &head, to.offset);
    if (old)
        put_attribute(&to, 13, device); /* clock */
    put_size(&to, 9, device);           /* constant memory */
    put_attribute(&to, 75, device);
    put_attribute(&to, 76, device);
    put_size(&to, 14, device); /* texture alignment */
    put_size(&to, 51, device); /* texture pitch alignment */
    if (old)
        put_attribute(&to, 15, device); /* overlap */
    put_attribute(&to, 16, device);     /* processors */
    if (old)
        put_attribute(&to, 17, device); /* kernel timeout */
    put_attribute(&to, 18, device);     /* integrated */
    put_attribute(&to, 19, device);     /* maps host memory */
    if (old)
        put_attribute(&to, 20, device); /* compute mode */
    to.offset += (old ? TEXTURES_12 : TEXTURES_13) * sizeof(int);
    put_size(&to, 30, device);      /* surface alignment */
    put_attribute(&to, 31, device); /* concurrent kernels */
    put_attribute(&to, 32, device); /* ECC */
    put_attribute(&to, 33, device); /* PCI bus */
    put_attribute(&to, 34, device);
    put_attribute(&to, 50, device);
    put_attribute(&to, 35, device); /* TCC */
    put_attribute(&to, 40, device); /* copy engines */
    put_attribute(&to, 41, device); /* unified addressing */
    if (old)
        put_attribute(&to, 36, device); /* memory clock */
    put_attribute(&to, 37, device);     /* bus */
    put_attribute(&to, 38, device);     /* level 2 cache */
    put_attribute(&to, 108, device);    /* its persisting part */
    put_attribute(&to, 39, device);     /* threads of a processor */
    put_attribute(&to, 78, device);     /* stream priorities */
    put_attribute(&to, 79, device);
    put_attribute(&to, 80, device);
    put_size(&to, 81, device); /* shared memory of a processor */
    put_attribute(&to, 82, device);
    put_attribute(&to, 83, device); /* managed memory */
    put_attribute(&to, 84, device);
    put_attribute(&to, 85, device);
    put_int(&to, NONE); /* host atomics */
    if (old)
        put_attribute(&to, 87, device);
    put_attribute(&to, 88, device); /* pageable memory */
    put_attribute(&to, 89, device);
    put_attribute(&to, 90, device);
    put_attribute(&to, 91, device);
    put_attribute(&to, 95, device); /* cooperative launches */
    if (old)
        put_attribute(&to, 96, device);
    put_size(&to, 97, device); /* shared memory of a block that asks for it */
    put_attribute(&to, 100, device);
    put_attribute(&to, 101, device);
    put_attribute(&to, 106, device); /* blocks of a processor */
    put_attribute(&to, 109, device);
    put_size(&to, 111, device); /* reserved shared memory */
}
