/* account.c: how many bytes of each device are in use. See emulator.h. */
#include "tests/emulators/cuda/inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

uint64_t emu_process_started(int pid)
{
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    size_t got = file ? fread(line, 1, sizeof line - 1, file) : 0;
    if (file)
        fclose(file);
    line[got] = 0;
    /* The 22nd field; the second one, in brackets, may hold blanks. */
    char *at = strrchr(line, ')');
    for (unsigned i = 2; at && i < 22; i++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}
