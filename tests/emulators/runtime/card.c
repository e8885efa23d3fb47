/* card.c: the emulated card's properties, for the runtime. See runtime.h. */
#include "tests/emulators/runtime/runtime.h"

#include <stdio.h>
#include <string.h>

/* struct cudaDeviceProp of CUDA 13, from its public description. */
struct properties {
    char name[256];
    unsigned char uuid[16];
    char luid[8];
    unsigned luid_mask;
    size_t memory_bytes, shared_bytes;
    int registers, warp;
    size_t pitch_max;
    int threads_max, block_max[3], grid_max[3];
    size_t constant_bytes;
    int major, minor;
    size_t texture_alignment, texture_pitch_alignment;
    int processors, integrated, maps_host;
    int textures[39]; /* maxTexture1D to maxSurfaceCubemapLayered */
    size_t surface_alignment;
    int concurrent_kernels, ecc, pci_bus, pci_device, pci_domain, tcc, copy_engines, unified;
    int bus_width, level_2_bytes, level_2_persisting, threads_of_processor, priorities, level_1_global,
        level_1_local;
    size_t shared_of_processor;
    int registers_of_processor, managed, multi_board, board_group, native_atomics, pageable,
        concurrent_managed, preemption, host_pointer, cooperative;
    size_t shared_optin;
    int page_tables, direct_managed, blocks_of_processor, window_max;
    size_t shared_reserved;
    int rest[76];
};

int emulated_attribute(int which, int device)
{
    static const struct {
        int which, value;
    } card[] = {{1, 1024},     {2, 1024},     {3, 1024},  {4, 64},        {5, 2147483647},  {6, 65535},
                {7, 65535},    {8, 49152},    {9, 65536}, {10, 32},       {11, 2147483647}, {12, 65536},
                {13, 1980000}, {14, 512},     {15, 1},    {16, 132},      {19, 1},          {31, 1},
                {32, 1},       {36, 2619000}, {37, 5120}, {38, 52428800}, {39, 2048},       {40, 3},
                {41, 1},       {75, 9},       {76, 0},    {78, 1},        {79, 1},          {80, 1},
                {81, 233472},  {82, 65536},   {83, 1},    {89, 1},        {90, 1},          {91, 1},
                {95, 1},       {97, 232448},  {99, 1},    {106, 32},      {111, 1024},      {115, 1},
                {120, 1}};
    int value = 0;
    for (size_t i = 0; i < sizeof card / sizeof *card; i++)
        if (card[i].which == which)
            return card[i].value;
    return cuDeviceGetAttribute(&value, (zr_cu_attribute)which, device) == ZR_CU_SUCCESS ? value : 0;
}

void emulated_properties(void *out, int device)
{
    struct properties card = {.name = "NVIDIA H100 80GB HBM3"};
    cuDeviceTotalMem_v2(&card.memory_bytes, device);
    card.uuid[0] = (unsigned char)(1 + device);
    card.shared_bytes = 49152;
    card.registers = card.registers_of_processor = 65536;
    card.warp = 32;
    card.pitch_max = 2147483647;
    card.threads_max = 1024;
    memcpy(card.block_max, (int[3]){1024, 1024, 64}, sizeof card.block_max);
    memcpy(card.grid_max, (int[3]){2147483647, 65535, 65535}, sizeof card.grid_max);
    card.constant_bytes = 65536;
    card.major = 9;
    card.texture_alignment = 512;
    card.texture_pitch_alignment = 32;
    card.processors = 132;
    card.maps_host = card.concurrent_kernels = card.ecc = card.unified = card.managed = card.cooperative = 1;
    card.concurrent_managed = card.preemption = card.host_pointer = card.priorities = 1;
    card.surface_alignment = 512;
    card.pci_bus = emulated_attribute(ZR_CU_ATTRIBUTE_PCI_BUS, device);
    card.copy_engines = 3;
    card.bus_width = 5120;
    card.level_2_bytes = 52428800;
    card.threads_of_processor = 2048;
    card.shared_of_processor = 233472;
    card.shared_optin = 232448;
    card.blocks_of_processor = 32;
    card.shared_reserved = 1024;
    memcpy(out, &card, sizeof card);
}

zr_cu_result emulated_launch(unsigned x, unsigned y, unsigned z, unsigned threads, size_t shared_bytes,
                             zr_cu_stream stream)
{
    (void)stream;
    return x == 0 || y == 0 || z == 0 || threads == 0 || threads > 1024 || shared_bytes > 232448
               ? ZR_CU_INVALID_VALUE
               : ZR_CU_SUCCESS;
}
