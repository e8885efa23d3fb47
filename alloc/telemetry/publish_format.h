/* publish_format.h: what a process shows of its memory to the tools of its user, as it lies in a file.
 * Written by alloc/telemetry/publish.c, read by defrag/trace/live.c of the same release.
 *
 * The file is PID.live in the folder of zr_folder_runtime(), mode 0600. A reader copies it while `sequence`
 * is even and the same before and after. The names of the figures are the fields of struct zr_arena_stats. */
#ifndef ZR_PUBLISH_FORMAT_H
#define ZR_PUBLISH_FORMAT_H

#include <stdatomic.h>

#include "alloc/base/system/process.h"
#include "alloc/zr.h"

#define ZR_PUBLISHED_MAGIC "ZRLIVE1"
enum {
    ZR_PUBLISHED_VERSION = 4,
    ZR_PUBLISHED_ARENAS = 16,
    ZR_PUBLISHED_RANGES = 16,
    ZR_PUBLISHED_NAME_BYTES = 32
};

struct zr_published_arena {
    char name[ZR_PUBLISHED_NAME_BYTES]; /* ended by a zero */
    uint32_t number;                    /* by which zr_ctl_get() and the commands know it */
    uint32_t stripes_count;             /* beside the first */
    uint64_t limit_bytes;               /* 0: none of its own */
    /* Where its blocks lie: of the first stripe, and of so many others as fit. */
    struct {
        uint64_t address, bytes;
    } ranges[ZR_PUBLISHED_RANGES];
    uint32_t ranges_count;
    uint32_t visible; /* 1: the memory is the host's */
    uint64_t backend; /* the same number: the same backend, one device's memory */
    uint64_t device;  /* the same number in two processes: the same card; 0: not known, or no card */
    uint64_t device_before_bytes; /* of a card: in use when the backend was made, by anybody */
    /* Of the device when the command `ledger` last asked; total_bytes 0: never, or it has no end. */
    uint64_t device_total_bytes, device_free_bytes;
    uint64_t device_held_bytes;  /* by all arenas of the backend */
    struct zr_arena_stats stats; /* pending_bytes and stranded_bytes: of when a command last asked for them */
};

struct zr_published {
    char magic[8];
    uint32_t version, bytes; /* sizeof this */
    _Atomic uint32_t sequence;
    uint32_t arenas_count; /* of the process; those beyond ZR_PUBLISHED_ARENAS are not here */
    struct zr_process process;
    uint64_t written_ns; /* monotonic, when the figures were last taken */
    char program[ZR_PUBLISHED_NAME_BYTES];
    struct zr_published_arena arenas[ZR_PUBLISHED_ARENAS];
};

#endif
