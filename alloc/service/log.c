/* log.c: see log.h. Stands on the system alone. */
#define _GNU_SOURCE
#include "alloc/service/log.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MOST_BYTES ((off_t)1 << 20)

bool zr_service_log_open(struct zr_service_log *log, const char *path)
{
    *log = (struct zr_service_log){.fd = STDERR_FILENO};
    if (!path)
        return true;
    log->fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    log->owned = true;
    return log->fd >= 0;
}

/* What was written of a line that did not fit is taken back. */
static bool write_line(struct zr_service_log *log, const char *line, size_t bytes)
{
    struct stat before;
    bool file = log->owned && fstat(log->fd, &before) == 0 && S_ISREG(before.st_mode);
    if (file && before.st_size > MOST_BYTES && ftruncate(log->fd, 0) == 0)
        before.st_size = 0;
    ssize_t written = write(log->fd, line, bytes);
    if (file && written > 0 && (size_t)written < bytes && ftruncate(log->fd, before.st_size) != 0)
        return false;
    return written == (ssize_t)bytes;
}

void zr_service_log(struct zr_service_log *log, const char *format, ...)
{
    char line[768], lost[96];
    struct timespec now;
    struct tm parts;
    va_list arguments;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &parts);
    size_t used = strftime(line, sizeof line, "%Y-%m-%d %H:%M:%S zrd: ", &parts);
    va_start(arguments, format);
    int length = vsnprintf(line + used, sizeof line - used - 1, format, arguments);
    va_end(arguments);
    size_t room = sizeof line - used - 2;
    used += length < 0 ? 0 : (size_t)length < room ? (size_t)length : room;
    line[used++] = '\n';
    if (log->lost_count > 0) {
        int bytes = snprintf(lost, sizeof lost, "%llu lines could not be written here\n",
                             (unsigned long long)log->lost_count);
        if (write_line(log, lost, (size_t)bytes))
            log->lost_count = 0;
    }
    log->lost_count += !write_line(log, line, used);
}

void zr_service_log_close(struct zr_service_log *log)
{
    if (log->owned && log->fd >= 0)
        close(log->fd);
    log->fd = -1;
}
