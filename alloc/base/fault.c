/* fault.c: failures on demand. Reads ZR_FAULT at the first call.
 *
 * Each site and kind counts its passes and fails the requested one. Without a request nothing is counted and
 * a pass costs one load. */
#define _GNU_SOURCE /* memrchr */
#include "alloc/base/fault.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/error.h"

enum { KINDS = 4, SHORT_BYTES = 4096 + 7 };

struct counter {
    _Atomic uint64_t passes;  /* since the last zr_fault_set() */
    _Atomic uint64_t strikes; /* the pass to strike; 0: none */
};

static struct counter counters[ZR_FAULT_SITE_COUNT][KINDS]; /* a failure and "twice" share their passes */
_Atomic bool zr_fault_watched;

/* The kinds of a site by name; NULL: it has no such kind, of which no pass would ever be counted. */
#define FAILS(name)       name, name ":twice"
#define INTERRUPTED(name) FAILS(name), name ":eintr"
#define MOVES(name)       INTERRUPTED(name), name ":short"
static const char *const names[ZR_FAULT_SITE_COUNT][KINDS] = {
    [ZR_FAULT_RESERVE] = {FAILS("reserve")},
    [ZR_FAULT_CREATE] = {FAILS("create")},
    [ZR_FAULT_MAP] = {FAILS("map")},
    [ZR_FAULT_ACCESS] = {FAILS("access")},
    [ZR_FAULT_METADATA] = {FAILS("metadata")},
    [ZR_FAULT_THREAD] = {FAILS("thread")},
    [ZR_FAULT_OPEN] = {FAILS("open")},
    [ZR_FAULT_READ] = {MOVES("read")},
    [ZR_FAULT_WRITE] = {MOVES("write")},
    [ZR_FAULT_SYNC] = {INTERRUPTED("sync")},
    [ZR_FAULT_RENAME] = {FAILS("rename")},
    [ZR_FAULT_DISK_READ] = {MOVES("disk_read")},
    [ZR_FAULT_DISK_WRITE] = {MOVES("disk_write")},
    [ZR_FAULT_DISK_STALL] = {FAILS("disk_stall")},
    [ZR_FAULT_DESCRIPTOR] = {INTERRUPTED("descriptor")},
    [ZR_FAULT_RECEIVE] = {MOVES("receive")},
    [ZR_FAULT_SEND] = {MOVES("send")},
    [ZR_FAULT_WAIT] = {NULL, NULL, "wait:eintr"},
    [ZR_FAULT_KEPT] = {FAILS("kept")},
    [ZR_FAULT_PS_MESSAGE] = {FAILS("ps_message")},
};

/* The first part of ZR_FAULT that could not be understood; "" if none. Written once, by
 * read_environment(). */
static char misread[48];

/* One "site:count" or "site:kind:count" of the list. False: there is no such site and kind, or no count above
 * 0.
 */
static bool read_one(const char *text, size_t length)
{
    const char *colon = memrchr(text, ':', length);
    char *end;
    if (!colon || colon[1] < '1' || colon[1] > '9')
        return false;
    uint64_t count = strtoull(colon + 1, &end, 10);
    size_t name_length = (size_t)(colon - text);
    for (unsigned i = 0; i < ZR_FAULT_SITE_COUNT * KINDS && end == text + length; i++) {
        const char *name = names[i / KINDS][i % KINDS];
        if (!name || strlen(name) != name_length || memcmp(name, text, name_length) != 0)
            continue;
        atomic_store(&counters[i / KINDS][i % KINDS].strikes, count);
        atomic_store(&zr_fault_watched, true);
        return true;
    }
    return false;
}

static void read_environment(void)
{
    const char *text = secure_getenv("ZR_FAULT");
    while (text && *text) {
        size_t length = strcspn(text, ",");
        if (!read_one(text, length) && !misread[0])
            snprintf(misread, sizeof misread, "%.*s", (int)(length < 40 ? length : 40), length ? text : ",");
        text += length + (text[length] == ',');
    }
}

static void prepare(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_environment);
}

static struct counter *counter_of(unsigned site_and_kind)
{
    return &counters[site_and_kind & 0xff][site_and_kind >> 8];
}

const char *zr_fault_site_name(unsigned site_and_kind)
{
    unsigned site = site_and_kind & 0xff, kind = site_and_kind >> 8;
    const char *name = site < ZR_FAULT_SITE_COUNT && kind < KINDS ? names[site][kind] : NULL;
    return name ? name : "unknown";
}

bool zr_fault(enum zr_fault_site site)
{
    prepare();
    if (!zr_fault_watched)
        return false;
    uint64_t pass = atomic_fetch_add(&counter_of(site)->passes, 1) + 1;
    uint64_t twice = atomic_load(&counter_of(site | ZR_FAULT_TWICE)->strikes);
    return pass == atomic_load(&counter_of(site)->strikes) || (twice && (pass == twice || pass == twice + 1));
}

static bool strikes(unsigned site_and_kind)
{
    prepare();
    if (!zr_fault_watched)
        return false;
    struct counter *counter = counter_of(site_and_kind);
    return atomic_fetch_add(&counter->passes, 1) + 1 == atomic_load(&counter->strikes);
}

bool zr_fault_interrupts(enum zr_fault_site site)
{
    bool interrupts = strikes(site | ZR_FAULT_EINTR);
    if (interrupts)
        errno = EINTR;
    return interrupts;
}

bool zr_fault_no_descriptor(void)
{
    bool none = zr_fault(ZR_FAULT_DESCRIPTOR);
    if (none)
        errno = EMFILE;
    return none;
}

size_t zr_fault_part(enum zr_fault_site site, size_t bytes)
{
    if (bytes <= 1 || !strikes(site | ZR_FAULT_SHORT))
        return bytes;
    return bytes > SHORT_BYTES ? SHORT_BYTES : 1;
}

uint64_t zr_fault_set(unsigned site_and_kind, uint64_t nth)
{
    prepare();
    struct counter *asked = counter_of(site_and_kind), *counted = asked;
    if (site_and_kind >> 8 == ZR_FAULT_TWICE >> 8)
        counted = counter_of(site_and_kind & 0xff);
    atomic_store(&asked->strikes, 0);
    uint64_t passes = atomic_exchange(&counted->passes, 0);
    atomic_store(&asked->strikes, nth);
    atomic_store(&zr_fault_watched, true);
    return passes;
}

zr_result zr_fault_result(void)
{
    prepare();
    return misread[0]
               ? zr_fail(
                     ZR_ERR_INVALID,
                     "ZR_FAULT: \"%s\" is not site:count or site:kind:count; sites are reserve, create, map, access, metadata, thread, open, read, write, sync, rename, disk_read, disk_write, disk_stall, descriptor, receive, send and wait, counts start at 1, kinds are twice, eintr and short, where the site has them",
                     misread)
               : ZR_OK;
}
