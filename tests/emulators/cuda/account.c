/* account.c: how many bytes of each device are in use. See emulator.h. */
#include "tests/emulators/cuda/inside.h"

static size_t used_bytes[EMU_DEVICES_MOST];

size_t emu_free_bytes(int device)
{
    return emu.capacity_bytes > used_bytes[device] ? emu.capacity_bytes - used_bytes[device] : 0;
}

bool emu_take_bytes(int device, size_t bytes)
{
    if (bytes > emu_free_bytes(device))
        return false;
    used_bytes[device] += bytes;
    return true;
}

void emu_give_bytes(int device, size_t bytes)
{
    used_bytes[device] -= bytes;
}

size_t emu_used_bytes(void)
{
    size_t sum = 0;
    for (int i = 0; i < EMU_DEVICES_MOST; i++)
        sum += used_bytes[i];
    return sum;
}
