/* log.h: zrd's log. Private to alloc/service/. One thread.
 *
 * Lines that differ only in digits are of one kind. Of each kind 20 lines are written at once and then one
 * per second, with the number of lines omitted, so that a flood does not displace other lines. */
#ifndef ZR_SERVICE_LOG_H
#define ZR_SERVICE_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum { ZR_LOG_KINDS = 32, ZR_LOG_BURST = 20, ZR_LOG_SAMPLE_BYTES = 160 };

struct zr_service_log {
    int fd;
    const char *path;    /* zrd's own file, renamed to PATH.1 at 1 MiB; NULL: fd is borrowed */
    uint64_t lost_count; /* lines that could not be written; reported with the next line that can */
    struct {
        uint64_t hash, seconds; /* seconds: when `credit` was counted last */
        uint64_t left_out_count;
        unsigned credit;                  /* lines that may be written at once */
        char sample[ZR_LOG_SAMPLE_BYTES]; /* an omitted line, without time */
    } kinds[ZR_LOG_KINDS];
};

/* Opens standard error (NULL) or a file to append to; `path` is borrowed. False, with errno: cannot open. */
bool zr_service_log_open(struct zr_service_log *log, const char *path);
/* Writes a line with the time. On a full disk only the line is lost. */
void zr_service_log(struct zr_service_log *log, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void zr_service_log_close(struct zr_service_log *log);

#endif
