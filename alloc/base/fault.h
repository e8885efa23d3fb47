/* fault.h: injected failures, by site, kind and count. `ZR_FAULT=map:3,write:1` fails the third map and the
 * first file write of the process; `read:short:3` cuts the third read short. The variable is read at the
 * first call. Private to the project. */
#ifndef ZR_FAULT_H
#define ZR_FAULT_H

#include "alloc/base/compiler.h"
#include "alloc/zr.h"

enum zr_fault_site {
    ZR_FAULT_RESERVE, /* address reservation */
    ZR_FAULT_CREATE,  /* physical memory */
    ZR_FAULT_MAP,
    ZR_FAULT_ACCESS,   /* set access */
    ZR_FAULT_METADATA, /* zr's own records */
    ZR_FAULT_THREAD,   /* starting a thread */
    ZR_FAULT_OPEN,     /* opening or creating a file */
    ZR_FAULT_READ,     /* reading a file */
    ZR_FAULT_WRITE,    /* writing a file: no space left */
    ZR_FAULT_SYNC,     /* syncing a file or folder */
    ZR_FAULT_RENAME,
    ZR_FAULT_DISK_READ,  /* a transfer of the offload file: the device fails */
    ZR_FAULT_DISK_WRITE, /* the same for a write */
    ZR_FAULT_DISK_STALL, /* a transfer that takes ten seconds */
    ZR_FAULT_DESCRIPTOR, /* a call that makes a descriptor, or a message with some: none is left (EMFILE) */
    ZR_FAULT_RECEIVE,    /* receiving from a socket or a pipe: the other end is gone */
    ZR_FAULT_SEND,       /* sending: the same */
    ZR_FAULT_WAIT,       /* waiting for a descriptor; cannot fail, but can be interrupted */
    ZR_FAULT_KEPT,       /* a store to the header of kept memory: the process is killed before it */
    ZR_FAULT_PS_MESSAGE, /* a message of a worker of parameter servers: the process is killed before or after
                          * it, or after its answer */
    ZR_FAULT_SITE_COUNT
};

/* What happens to a pass, added to the site: ZR_FAULT_READ | ZR_FAULT_SHORT. Each kind counts passes of its
 * own: a failure those of zr_fault(), the other two those of the system calls. */
enum zr_fault_kind {
    ZR_FAULT_FAILS = 0,
    ZR_FAULT_TWICE = 1 << 8, /* "twice": the pass fails, and the next one, too */
    ZR_FAULT_EINTR = 2 << 8, /* "eintr": a signal interrupts the call before it has done anything */
    ZR_FAULT_SHORT = 3 << 8  /* "short": the call moves a part: see zr_fault_part() */
};

/* Whether any fault site is counted: hot paths read it, relaxed, before they call zr_fault(). */
extern _Atomic bool zr_fault_watched;

/* ZR_ERR_INVALID, with words, if a part of ZR_FAULT could not be understood; the other parts hold. */
zr_result zr_fault_result(void);
/* True when this pass of `site` is one to fail. Counts from 1, per process, atomically. */
ZR_PRIVATE_API bool zr_fault(enum zr_fault_site site);
/* True, with errno EINTR, when this system call is the one to interrupt: make it again. */
ZR_PRIVATE_API bool zr_fault_interrupts(enum zr_fault_site site);
/* True, with errno EMFILE, when this call that makes a descriptor is one to fail. */
ZR_PRIVATE_API bool zr_fault_no_descriptor(void);
/* How many of `bytes` this system call may move: all, or, where it is the one to cut short, 4096 + 7 of more
 * and 1 of fewer. A single byte is no transfer that could be cut, and counts as no pass. */
ZR_PRIVATE_API size_t zr_fault_part(enum zr_fault_site site, size_t bytes);
/* "read", "read:short"; "unknown" where a site has no such kind. */
const char *zr_fault_site_name(unsigned site_and_kind);
/* For tests inside one process: strikes pass number `nth` from now (0: never) and returns how many passes
 * there have been since the last call for this site and kind. */
uint64_t zr_fault_set(unsigned site_and_kind, uint64_t nth);

#endif
