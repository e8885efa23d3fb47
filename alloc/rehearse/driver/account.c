/* account.c: how many bytes of each device are in use: by this process, or, where ZR_EMULATOR_SHARED names a
 * file, by all that name it. What a process that was killed held is given back by the next that asks. See
 * emulator.h. */
#define _GNU_SOURCE
#include "alloc/rehearse/account.h"
#include "alloc/rehearse/driver/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct zr_account_part alone, *own = &alone;
static struct zr_account *account;    /* the file; NULL: nothing is shared */
static struct zr_account_part *parts; /* its own */
static int parts_fd = -1;
static uint16_t holdings[ZR_ACCOUNT_PIECES_MAX]; /* of this process */

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
    if (at && (at[2] == 'Z' || at[2] == 'X')) /* ended, and its parent has not waited for it yet */
        return 0;
    for (unsigned i = 2; at && i < 22; i++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

/* ---- The file ------------------------------------------------------------------------------------------ */

/* A lock of the process: it ends with it, and no child has it. */
static void set_lock(short type)
{
    struct flock wanted = {.l_type = type, .l_whence = SEEK_SET, .l_len = 1};
    while (parts && fcntl(parts_fd, F_SETLKW, &wanted) != 0)
        if (errno != EINTR)
            abort();
}

static void lock_parts(void)
{
    set_lock(F_WRLCK);
}

static void unlock_parts(void)
{
    set_lock(F_UNLCK);
}

static void drop_holder(struct zr_account_piece *piece, unsigned process)
{
    piece->holders &= ~(UINT64_C(1) << process);
    if (piece->holders == 0)
        piece->bytes = 0;
}

static void bury_dead(void)
{
    for (unsigned i = 0; i < ZR_ACCOUNT_PROCESSES_MAX; i++) {
        if (!parts[i].pid || &parts[i] == own || emu_process_started(parts[i].pid) == parts[i].started)
            continue;
        memset(&parts[i], 0, sizeof parts[i]);
        for (uint32_t piece = 0; piece < account->pieces_count; piece++)
            drop_holder(&account->pieces[piece], i);
    }
}

static int is_torch(struct dl_phdr_info *library, size_t bytes, void *unused)
{
    (void)bytes;
    (void)unused;
    return strstr(library->dlpi_name, "/libc10_cuda.so") != NULL;
}

bool emu_account_share(const char *path)
{
    size_t bytes = sizeof *account;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        return false;
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        return false;
    account = mapped;
    parts = account->parts;
    parts_fd = fd;
    lock_parts();
    bury_dead();
    struct zr_account_part *free_part = NULL;
    for (unsigned i = 0; i < ZR_ACCOUNT_PROCESSES_MAX && !free_part; i++)
        free_part = parts[i].pid ? NULL : &parts[i];
    if (free_part) {
        *free_part = (struct zr_account_part){.pid = getpid(), .started = emu_process_started(getpid())};
        own = free_part;
    }
    unlock_parts();
    if (dl_iterate_phdr(is_torch, NULL))
        __atomic_add_fetch(&account->torches_count, 1, __ATOMIC_RELAXED);
    return free_part;
}

/* Of a number that each part has at that offset. With the parts' lock. */
static uint64_t sum_of(size_t field)
{
    uint64_t sum = 0;
    for (unsigned i = 0; parts && i < ZR_ACCOUNT_PROCESSES_MAX; i++)
        sum += *(uint64_t *)((char *)&parts[i] + field);
    return sum;
}

/* Devices have the machine's numbers here. With the parts' lock. */
static size_t used_of(int device)
{
    size_t sum = sum_of(offsetof(struct zr_account_part, used_bytes[device]));
    for (uint32_t i = 0; parts && i < account->pieces_count; i++)
        sum += account->pieces[i].device == device ? account->pieces[i].bytes : 0;
    return parts ? sum : own->used_bytes[device];
}

static size_t free_of(int device)
{
    size_t used = used_of(device);
    return emu.capacity_bytes > used ? emu.capacity_bytes - used : 0;
}

/* With the parts' lock. Looks for the dead only when it is worth it. */
static size_t free_or_buried(int device, size_t wanted)
{
    if (parts && free_of(device) < wanted)
        bury_dead();
    return free_of(device);
}

/* ---- Bytes --------------------------------------------------------------------------------------------- */

size_t emu_free_bytes(int device)
{
    lock_parts();
    size_t bytes = free_or_buried(emu.machine_device[device], emu.capacity_bytes);
    unlock_parts();
    return bytes;
}

/* With the parts' lock. */
static void note_peak(struct zr_account_device *of, int device)
{
    uint64_t used = used_of(device);
    if (used > of->peak_bytes && parts) {
        bury_dead();
        used = used_of(device);
    }
    if (used > of->peak_bytes)
        of->peak_bytes = used;
}

/* With the parts' lock. A program that is refused may free memory and request the same again: the last
 * refusal of such a row counts, and none if the device grants it in the end. */
static void note_refusal(struct zr_account_device *of, int device, size_t bytes)
{
    const struct zr_account_refusal last = {bytes, used_of(device)};
    of->refusals_count++;
    if (of->last.bytes != bytes &&
        of->last.bytes + of->last.used_bytes > of->largest.bytes + of->largest.used_bytes)
        of->largest = of->last;
    of->last = last;
}

bool emu_take_bytes(int device, size_t bytes)
{
    device = emu.machine_device[device];
    lock_parts();
    const size_t free_bytes = free_or_buried(device, bytes);
    const bool enough = bytes <= free_bytes;
    if (enough)
        own->used_bytes[device] += bytes;
    if (account && enough) {
        note_peak(&account->devices[device], device);
        if (bytes >= account->devices[device].last.bytes)
            account->devices[device].last = (struct zr_account_refusal){0};
    } else if (account)
        note_refusal(&account->devices[device], device, bytes);
    unlock_parts();
    if (!enough)
        emu_trace_refused(device, bytes, free_bytes);
    return enough;
}

/* A process that was killed has no contexts, and its libraries no buffers. */
static void change_number(size_t field, int64_t change, uint64_t *peak)
{
    lock_parts();
    *(uint64_t *)((char *)own + field) += (uint64_t)change;
    if (sum_of(field) > *peak)
        bury_dead();
    uint64_t sum = sum_of(field);
    if (sum > *peak)
        *peak = sum;
    unlock_parts();
}

void emu_account_context(int device, int change)
{
    device = emu.machine_device[device];
    if (account)
        change_number(offsetof(struct zr_account_part, contexts_count[device]), change,
                      &account->devices[device].contexts_peak);
}

void emu_account_nccl(int device, int64_t bytes, bool refused)
{
    device = emu.machine_device[device];
    if (account && refused)
        __atomic_add_fetch(&account->devices[device].nccl_refusals_count, 1, __ATOMIC_RELAXED);
    else if (account)
        change_number(offsetof(struct zr_account_part, nccl_bytes[device]), bytes,
                      &account->devices[device].nccl_peak_bytes);
}

static struct zr_account_torch *torch_of(int device)
{
    static struct zr_account_torch *found[EMU_DEVICES_MAX]; /* of this process */
    const char *rank = getenv("RANK");
    if (!account || found[device])
        return found[device];
    lock_parts();
    for (unsigned i = 0; i < ZR_ACCOUNT_TORCHES_MAX && !found[device]; i++)
        found[device] = account->torches[i].pid ? NULL : &account->torches[i];
    if (found[device])
        *found[device] =
            (struct zr_account_torch){.pid = getpid(), .rank = rank ? atoi(rank) : -1, .device = device};
    unlock_parts();
    return found[device];
}

void emu_account_torch(int device, uint64_t allocated_bytes, uint64_t reserved_bytes)
{
    struct zr_account_torch *of = emu_no_device(device) ? NULL : torch_of(emu.machine_device[device]);
    if (of && allocated_bytes > of->allocated_peak_bytes)
        of->allocated_peak_bytes = allocated_bytes;
    if (of && reserved_bytes > of->reserved_peak_bytes)
        of->reserved_peak_bytes = reserved_bytes;
}

void emu_account_static_runtime(void)
{
    if (account)
        __atomic_add_fetch(&account->static_runtimes_count, 1, __ATOMIC_RELAXED);
}

void emu_account_read(size_t bytes)
{
    if (!account)
        return;
    __atomic_add_fetch(&account->reads_count, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&account->reads_bytes, bytes, __ATOMIC_RELAXED);
}

void emu_account_library(int device, int64_t bytes, bool refused)
{
    device = emu.machine_device[device];
    if (!account)
        return;
    struct zr_account_device *of = &account->devices[device];
    if (bytes > 0)
        __atomic_store_n(&of->libraries_refusals_count, refused ? of->libraries_refusals_count + 1 : 0,
                         __ATOMIC_RELAXED);
    if (!refused)
        change_number(offsetof(struct zr_account_part, libraries_bytes[device]), bytes,
                      &of->libraries_peak_bytes);
}

void emu_give_bytes(int device, size_t bytes)
{
    lock_parts();
    own->used_bytes[emu.machine_device[device]] -= bytes;
    unlock_parts();
}

size_t emu_used_bytes(void)
{
    size_t sum = 0;
    for (int i = 0; i < EMU_DEVICES_MAX; i++)
        sum += own->used_bytes[i];
    return sum;
}

/* ---- Shared pieces ------------------------------------------------------------------------------------- */

uint32_t emu_share_begin(int device, size_t bytes)
{
    uint32_t i = 0;
    if (!account)
        return 0;
    device = emu.machine_device[device];
    lock_parts();
    while (i < account->pieces_count && account->pieces[i].bytes)
        i++;
    if (i < ZR_ACCOUNT_PIECES_MAX) {
        account->pieces_count += i == account->pieces_count;
        account->pieces[i] = (struct zr_account_piece){bytes, UINT64_C(1) << (own - parts), device};
        own->used_bytes[device] -= bytes;
        holdings[i] = 1;
    }
    unlock_parts();
    return i < ZR_ACCOUNT_PIECES_MAX ? i + 1 : 0;
}

bool emu_share_join(uint32_t number)
{
    if (!account || number == 0)
        return number == 0;
    struct zr_account_piece *piece = &account->pieces[number - 1];
    lock_parts();
    bool held = piece->bytes;
    if (held) {
        piece->holders |= UINT64_C(1) << (own - parts);
        holdings[number - 1]++;
    }
    unlock_parts();
    return held;
}

bool emu_share_leave(uint32_t number)
{
    struct zr_account_piece *piece = &account->pieces[number - 1];
    lock_parts();
    if (--holdings[number - 1] == 0)
        drop_holder(piece, (unsigned)(own - parts));
    bool last = piece->bytes == 0;
    unlock_parts();
    return last;
}
