/* say.c: lines on standard error, and the trace that zr run requests. See usage.h. */
#define _GNU_SOURCE
#include "alloc/preload/usage.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"

void zr_say(const char *format, ...)
{
    char line[1200] = "zr: ";
    int error = errno;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line + 4, sizeof line - 5, format, arguments);
    va_end(arguments);
    size_t bytes = 4 + (length < 0 ? 0 : (size_t)length < sizeof line - 6 ? (size_t)length : sizeof line - 6);
    line[bytes++] = '\n';
    zr_write_all(STDERR_FILENO, ZR_PRESENT_POSITION, line,
                 bytes); /* a failed write, for example to a closed standard error, is ignored */
    errno = error;
}

zr_result zr_trace_start_requested(zr_arena *arena, const char *variable, const char *suffix)
{
    char path[4096], *file;
    const char *text = secure_getenv(variable);
    if (!text)
        return ZR_OK;
    long writer = strtol(text, &file, 10);
    if (*file++ != ':')
        return zr_fail(ZR_ERR_INVALID, "%s=%s: must be PID:FILE", variable, text);
    if (writer == (long)getpid())
        snprintf(path, sizeof path, "%s%s", file, suffix);
    else
        snprintf(path, sizeof path, "%s%s.%ld", file, suffix, (long)getpid());
    return zr_trace_start(arena, path);
}
