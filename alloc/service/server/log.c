/* log.c: see log.h. Uses os.c. */
#define _GNU_SOURCE
#include "alloc/service/server/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/hash.h"
#include "alloc/base/system/os.h"

#define MAX_BYTES ((off_t)1 << 20)
enum { PATH_ROOM = 4096, LINE_BYTES = 768 };

/* ---- The file ------------------------------------------------------------------------------------------ */

static int open_file(const char *path)
{
    return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
}

bool zr_service_log_open(struct zr_service_log *log, const char *path)
{
    *log = (struct zr_service_log){.fd = STDERR_FILENO, .path = path};
    if (path)
        log->fd = open_file(path);
    return log->fd >= 0;
}

/* Starts a new file if this one has reached MAX_BYTES or was removed. *size_bytes: the size of the file. */
static bool rotate(struct zr_service_log *log, off_t *size_bytes)
{
    char before[PATH_ROOM];
    struct stat status;
    if (!log->path || fstat(log->fd, &status) != 0 || !S_ISREG(status.st_mode))
        return false;
    *size_bytes = status.st_size;
    if (status.st_nlink > 0 && status.st_size <= MAX_BYTES)
        return true;
    int length = snprintf(before, sizeof before, "%s.1", log->path);
    if (status.st_nlink > 0 &&
        (length < 0 || (size_t)length >= sizeof before || rename(log->path, before) != 0)) {
        if (ftruncate(log->fd, 0) == 0)
            *size_bytes = 0;
        return true;
    }
    int fd = open_file(log->path);
    if (fd < 0) { /* continue in the old file and restore its name */
        if (status.st_nlink > 0)
            (void)!rename(before, log->path);
        return true;
    }
    close(log->fd);
    log->fd = fd;
    return rotate(log, size_bytes);
}

/* Writes a whole line, or truncates the file to remove a partial line. */
static bool write_line(struct zr_service_log *log, const char *line, size_t bytes)
{
    off_t size_bytes = 0;
    bool file = rotate(log, &size_bytes);
    ssize_t written = write(log->fd, line, bytes);
    if (file && written > 0 && (size_t)written < bytes && ftruncate(log->fd, size_bytes) != 0)
        return false;
    return written == (ssize_t)bytes;
}

/* ---- Lines --------------------------------------------------------------------------------------------- */

static void put_line(struct zr_service_log *log, const char *words)
{
    char line[LINE_BYTES], lost[96];
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &parts);
    size_t used = strftime(line, sizeof line, "%Y-%m-%d %H:%M:%S zrd: ", &parts);
    int length = snprintf(line + used, sizeof line - used - 1, "%s", words);
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

static void put_left_out(struct zr_service_log *log, unsigned kind)
{
    char words[ZR_LOG_SAMPLE_BYTES + 64];
    if (log->kinds[kind].left_out_count == 0)
        return;
    snprintf(words, sizeof words, "%llu similar lines were omitted: %s",
             (unsigned long long)log->kinds[kind].left_out_count, log->kinds[kind].sample);
    log->kinds[kind].left_out_count = 0;
    put_line(log, words);
}

static uint64_t hash_of(const char *words)
{
    uint64_t hash = ZR_HASH_START;
    for (; *words; words++)
        if (*words < '0' || *words > '9')
            hash = zr_hash_next(hash, (unsigned char)*words);
    return hash;
}

static void add_credit(struct zr_service_log *log, unsigned kind, uint64_t seconds)
{
    uint64_t credit = log->kinds[kind].credit + (seconds - log->kinds[kind].seconds);
    log->kinds[kind].credit = credit < ZR_LOG_BURST ? (unsigned)credit : ZR_LOG_BURST;
    log->kinds[kind].seconds = seconds;
}

/* The line's kind, or a new kind in place of the one with max credit, which has been silent longest. */
static unsigned kind_of(struct zr_service_log *log, uint64_t hash, uint64_t seconds)
{
    unsigned best = 0;
    for (unsigned i = 0; i < ZR_LOG_KINDS; i++) {
        add_credit(log, i, seconds);
        if (log->kinds[i].hash == hash)
            return i;
        if (log->kinds[i].credit > log->kinds[best].credit)
            best = i;
    }
    put_left_out(log, best);
    log->kinds[best].hash = hash;
    log->kinds[best].credit = ZR_LOG_BURST;
    return best;
}

void zr_service_log(struct zr_service_log *log, const char *format, ...)
{
    char words[LINE_BYTES];
    uint64_t seconds = zr_os_now_ns() / 1000000000;
    va_list arguments;
    va_start(arguments, format);
    if (vsnprintf(words, sizeof words, format, arguments) < 0)
        words[0] = '\0';
    va_end(arguments);
    unsigned kind = kind_of(log, hash_of(words), seconds);
    if (log->kinds[kind].credit == 0) {
        log->kinds[kind].left_out_count++;
        snprintf(log->kinds[kind].sample, sizeof log->kinds[kind].sample, "%.*s", ZR_LOG_SAMPLE_BYTES - 1,
                 words);
        return;
    }
    put_left_out(log, kind);
    log->kinds[kind].credit--;
    put_line(log, words);
}

void zr_service_log_close(struct zr_service_log *log)
{
    for (unsigned i = 0; i < ZR_LOG_KINDS; i++)
        put_left_out(log, i);
    if (log->path && log->fd >= 0)
        close(log->fd);
    log->fd = -1;
}
