/* log.h: what zrd tells whoever reads its log. Private to alloc/service/. */
#ifndef ZR_SERVICE_LOG_H
#define ZR_SERVICE_LOG_H

#include <stdbool.h>
#include <stdint.h>

struct zr_service_log {
    int fd;
    bool owned;          /* a file of zrd's own, which begins anew at a MiB */
    uint64_t lost_count; /* lines that could not be written: told once one can be again */
};

/* Standard error, or a file to append to. False, with errno: it cannot be opened. */
bool zr_service_log_open(struct zr_service_log *log, const char *path);
/* A line, with the time. A full disk loses it, and nothing else. */
void zr_service_log(struct zr_service_log *log, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void zr_service_log_close(struct zr_service_log *log);

#endif
