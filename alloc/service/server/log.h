/* log.h: what zrd tells whoever reads its log. Private to alloc/service/. One thread.
 *
 * Lines that differ in their digits only are of one kind. Of a kind that comes often, a line a second is
 * written after the first 20, and the number of those that were left out: a flood does not wipe out other
 * lines. */
#ifndef ZR_SERVICE_LOG_H
#define ZR_SERVICE_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum { ZR_LOG_KINDS = 32, ZR_LOG_BURST = 20, ZR_LOG_SAMPLE_BYTES = 160 };

struct zr_service_log {
    int fd;
    const char *path; /* of a file of zrd's own, which is moved to PATH.1 at a MiB; NULL: fd is not its own */
    uint64_t lost_count; /* lines that could not be written: told once one can be again */
    struct {
        uint64_t hash, seconds; /* seconds: when `credit` was counted last */
        uint64_t left_out_count;
        unsigned credit;                  /* lines that may be written at once */
        char sample[ZR_LOG_SAMPLE_BYTES]; /* of those left out, without time */
    } kinds[ZR_LOG_KINDS];
};

/* Standard error, or a file to append to, whose path stays the caller's. False, with errno: it cannot be
 * opened. */
bool zr_service_log_open(struct zr_service_log *log, const char *path);
/* A line, with the time. A full disk loses it, and nothing else. */
void zr_service_log(struct zr_service_log *log, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void zr_service_log_close(struct zr_service_log *log);

#endif
