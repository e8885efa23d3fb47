/* fault.c: failures on demand. Stands on init.c, which hands it ZR_FAULT.
 *
 * Each site counts its passes and fails the one whose number was asked for. Until somebody asks, nothing is
 * counted and a pass costs one load. */
#include "alloc/base/fault.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/init.h"

struct site {
    _Atomic uint64_t passes; /* since the last zr_fault_set() */
    _Atomic uint64_t fails;  /* the pass to fail; 0: none */
};

static struct site sites[ZR_FAULT_SITE_COUNT];
_Atomic bool zr_fault_watching;

static const char *const names[ZR_FAULT_SITE_COUNT] = {
    [ZR_FAULT_RESERVE] = "reserve",
    [ZR_FAULT_CREATE] = "create",
    [ZR_FAULT_MAP] = "map",
    [ZR_FAULT_ACCESS] = "access",
    [ZR_FAULT_METADATA] = "metadata",
    [ZR_FAULT_THREAD] = "thread",
    [ZR_FAULT_OPEN] = "open",
    [ZR_FAULT_READ] = "read",
    [ZR_FAULT_WRITE] = "write",
    [ZR_FAULT_SYNC] = "sync",
    [ZR_FAULT_RENAME] = "rename",
    [ZR_FAULT_DISK_READ] = "disk_read",
    [ZR_FAULT_DISK_WRITE] = "disk_write",
    [ZR_FAULT_DISK_SHORT] = "disk_short",
    [ZR_FAULT_DISK_STALL] = "disk_stall",
};

const char *zr_fault_site_name(enum zr_fault_site site)
{
    return (unsigned)site < ZR_FAULT_SITE_COUNT ? names[site] : "unknown";
}

bool zr_fault(enum zr_fault_site site)
{
    zr_init();
    if (!zr_fault_watched())
        return false;
    uint64_t pass = atomic_fetch_add(&sites[site].passes, 1) + 1;
    return pass == atomic_load(&sites[site].fails);
}

uint64_t zr_fault_set(enum zr_fault_site site, uint64_t nth)
{
    zr_init();
    atomic_store(&sites[site].fails, 0);
    uint64_t passes = atomic_exchange(&sites[site].passes, 0);
    atomic_store(&sites[site].fails, nth);
    atomic_store(&zr_fault_watching, true);
    return passes;
}

/* The first part of ZR_FAULT that could not be understood; "" if none. Written once, by zr_init(). */
static char misread[48];

/* One "site:count" of the list. False: no such site, or no count above 0. */
static bool read_one(const char *text, size_t length)
{
    const char *colon = memchr(text, ':', length);
    char *end;
    if (!colon || colon[1] < '1' || colon[1] > '9')
        return false;
    uint64_t count = strtoull(colon + 1, &end, 10);
    for (unsigned i = 0; i < ZR_FAULT_SITE_COUNT && end == text + length; i++) {
        size_t name_length = strlen(names[i]);
        if (name_length != (size_t)(colon - text) || memcmp(names[i], text, name_length) != 0)
            continue;
        atomic_store(&sites[i].fails, count);
        atomic_store(&zr_fault_watching, true);
        return true;
    }
    return false;
}

void zr_fault_read(const char *text)
{
    while (text && *text) {
        size_t length = strcspn(text, ",");
        if (!read_one(text, length) && !misread[0])
            snprintf(misread, sizeof misread, "%.*s", (int)(length < 40 ? length : 40), length ? text : ",");
        text += length + (text[length] == ',');
    }
}

zr_result zr_fault_result(void)
{
    zr_init();
    return misread[0]
               ? zr_fail(
                     ZR_ERR_INVALID,
                     "ZR_FAULT has \"%s\", which is no site:count; sites are reserve, create, map, access, "
                     "metadata, thread, open, read, write, sync, rename, disk_read, disk_write, disk_short and "
                     "disk_stall, counts start at 1",
                     misread)
               : ZR_OK;
}
