/* fault.h: injected failures, by site and count. `ZR_FAULT=map:3,write:1` fails the third map and the first
 * file write of the process. Private to the project. */
#ifndef ZR_FAULT_H
#define ZR_FAULT_H

#include "alloc/base/private_api.h"
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
    ZR_FAULT_DISK_SHORT, /* a transfer that moves one block */
    ZR_FAULT_DISK_STALL, /* a transfer that takes ten seconds */
    ZR_FAULT_SITE_COUNT
};

/* ZR_ERR_INVALID, with words, if a part of ZR_FAULT could not be understood; the other parts hold. */
zr_result zr_fault_result(void);
/* True when this pass of `site` is the one to fail. Counts from 1, per process, atomically. */
ZR_PRIVATE_API bool zr_fault(enum zr_fault_site site);
const char *zr_fault_site_name(enum zr_fault_site site);
/* For tests inside one process: fails pass number `nth` from now (0: never) and returns how many passes there
 * have been since the last call for this site. */
uint64_t zr_fault_set(enum zr_fault_site site, uint64_t nth);

#endif
