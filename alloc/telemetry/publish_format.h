/* publish_format.h: the layout of the file in which a process publishes its figures to tools of the same
 * user. Written by alloc/telemetry/publish.c, read by defrag/trace/live.c of the same release.
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
    char name[ZR_PUBLISHED_NAME_BYTES]; /* terminated by a zero */
    uint32_t number;                    /* the arena's number in zr_ctl_get() and in commands */
    uint32_t stripes_count;             /* stripes after the first one */
    uint64_t limit_bytes;               /* 0: none */
    /* Address ranges of the first stripe and of as many other stripes as fit. */
    struct {
        uint64_t address, bytes;
    } ranges[ZR_PUBLISHED_RANGES];
    uint32_t ranges_count;
    uint32_t visible;             /* 1: the memory is the host's */
    uint64_t backend;             /* identifies the backend within the process: one device's memory */
    uint64_t device;              /* identifies the GPU among all processes; 0: unknown, or no GPU */
    uint64_t device_before_bytes; /* GPU: bytes in use by all processes when the backend was created */
    /* The device's figures at the last command `ledger`; total_bytes 0: never refreshed, or unlimited. */
    uint64_t device_total_bytes, device_free_bytes;
    uint64_t device_held_bytes;  /* held by all arenas of the backend */
    struct zr_arena_stats stats; /* pending_bytes and stranded_bytes: at the last command `stats` */
};

struct zr_published {
    char magic[8];
    uint32_t version, bytes; /* size of this struct */
    _Atomic uint32_t sequence;
    uint32_t arenas_count; /* all arenas of the process; those beyond ZR_PUBLISHED_ARENAS are omitted */
    struct zr_process process;
    uint64_t written_ns; /* monotonic time of the last refresh */
    char program[ZR_PUBLISHED_NAME_BYTES];
    struct zr_published_arena arenas[ZR_PUBLISHED_ARENAS];
};

#endif
