/* limits.h: the quotas that `zr service limit` has set, in a file, for the zrd that comes after this one.
 * Private to alloc/service/. One thread.
 *
 * A line for each: of the capacity (it holds while the command line's is the one it took the place of, and
 * the machine or the device has as much), of a group, of a process (by number and by when it began, since
 * numbers come again). */
#ifndef ZR_SERVICE_LIMITS_H
#define ZR_SERVICE_LIMITS_H

#include "alloc/service/server/ledger.h"
#include "alloc/service/server/log.h"

enum { ZR_LIMITS_PROCESSES_MOST = 256, ZR_LIMITS_PATH_ROOM = 160 };

struct zr_limits {
    char path[ZR_LIMITS_PATH_ROOM]; /* "": nothing is kept */
    uint64_t own_capacity_bytes;    /* the command line's */
    bool is_written;                /* there is a file */
    struct {
        int32_t pid;
        uint64_t began, hard_bytes, soft_bytes; /* began: in the kernel's ticks */
    } processes[ZR_LIMITS_PROCESSES_MOST];
    unsigned processes_count;
};

/* The file lies beside zrd's socket. */
void zr_limits_name(struct zr_limits *limits, const char *socket_path);
/* The socket lies there now: what the file had is written there. ZR_ERR_IO, with words. */
zr_result zr_limits_move(struct zr_limits *limits, const struct zr_ledger *ledger, const char *socket_path);
/* Reads the file into the ledger, whose capacity is the command line's. One that is damaged is set aside, and
 * the log says so; what its lines said does not hold then. */
void zr_limits_load(struct zr_limits *limits, struct zr_ledger *ledger, struct zr_service_log *log);
/* A limit was set: the file is written anew, whole or not at all. ZR_ERR_IO, with words: it could not be. */
zr_result zr_limits_note(struct zr_limits *limits, const struct zr_ledger *ledger,
                         const struct zr_service_message *limit);
/* A process has registered: its quotas are the ones that it had. */
void zr_limits_apply(const struct zr_limits *limits, struct zr_holder *holder);

#endif
