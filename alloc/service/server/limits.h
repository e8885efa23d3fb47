/* limits.h: a file with the quotas set by `zr service limit`, which the next zrd reads. Private to
 * alloc/service/. One thread.
 *
 * Each line is a capacity, a group's quotas or a process's quotas. The capacity applies while --capacity is
 * the value that it replaced, and the machine or device has enough memory. A process is named by number and
 * start time, because numbers are reused. */
#ifndef ZR_SERVICE_LIMITS_H
#define ZR_SERVICE_LIMITS_H

#include "alloc/service/server/ledger.h"
#include "alloc/service/server/log.h"

enum { ZR_LIMITS_PROCESSES_MAX = 256, ZR_LIMITS_PATH_ROOM = 160 };

struct zr_limits {
    char path[ZR_LIMITS_PATH_ROOM]; /* "": nothing is kept */
    uint64_t own_capacity_bytes;    /* the command line's */
    bool is_written;                /* the file exists */
    struct {
        int32_t pid;
        uint64_t began, hard_bytes, soft_bytes; /* began: in the kernel's ticks */
    } processes[ZR_LIMITS_PROCESSES_MAX];
    unsigned processes_count;
};

/* Sets the path: beside zrd's socket. */
void zr_limits_name(struct zr_limits *limits, const char *socket_path);
/* Writes the file at the socket's new path. ZR_ERR_IO. */
zr_result zr_limits_move(struct zr_limits *limits, const struct zr_ledger *ledger, const char *socket_path);
/* Reads the file into the ledger, whose capacity is the command line's. A damaged file is renamed to `.bad`
 * and logged, and none of its lines apply. */
void zr_limits_load(struct zr_limits *limits, struct zr_ledger *ledger, struct zr_service_log *log);
/* Replaces the file atomically after a limit was set. ZR_ERR_IO: the old file stays. */
zr_result zr_limits_note(struct zr_limits *limits, const struct zr_ledger *ledger,
                         const struct zr_service_message *limit);
/* Restores the quotas of a process that has registered. */
void zr_limits_apply(const struct zr_limits *limits, struct zr_client *client);

#endif
