/* terminal.c: asks the system and the environment about a descriptor, once, and writes words to it. */
#define _GNU_SOURCE
#include "alloc/base/system/file.h"
#include "zero/train/report/terminal.h"
#include "zero/train/settings/args.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

static bool says(const char *name)
{
    const char *value = getenv(name);
    return value && value[0];
}

/* As setlocale() would decide, without loading a locale. */
static bool locale_is_utf8(void)
{
    const char *value = says("LC_ALL")     ? getenv("LC_ALL")
                        : says("LC_CTYPE") ? getenv("LC_CTYPE")
                                           : getenv("LANG");
    return value && (strcasestr(value, "UTF-8") || strcasestr(value, "UTF8"));
}

void zr_terminal_measure(struct zr_terminal *terminal)
{
    struct winsize size;
    terminal->columns = 80;
    if (ioctl(terminal->fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        terminal->columns = size.ws_col;
}

/* mpirun gives each rank a terminal of its own, and passes on what comes out of it to wherever it writes. */
static bool passed_on(void)
{
    return says("OMPI_COMM_WORLD_RANK");
}

void zr_terminal_find(struct zr_terminal *out, int fd)
{
    const char *kind = getenv("TERM");
    *out = (struct zr_terminal){.fd = fd, .utf8 = locale_is_utf8()};
    out->live = isatty(fd) == 1 && kind && strcmp(kind, "dumb") != 0 && !passed_on();
    out->colour = out->live && !says("NO_COLOR");
    zr_terminal_measure(out);
}

void zr_show(int fd, const char *data, size_t bytes)
{
    int before = errno;
    zr_write_all(fd, ZR_PRESENT_POSITION, data, bytes);
    errno = before;
}

void zr_say(const char *format, ...)
{
    char words[2048] = "zr-train: ";
    size_t lead = strlen(words);
    va_list list;
    va_start(list, format);
    int length = vsnprintf(words + lead, sizeof words - lead - 1, format, list);
    va_end(list);
    if (length < 0)
        return;
    size_t used = strlen(words);
    words[used++] = '\n';
    zr_show(STDERR_FILENO, words, used);
}

/* ---- Pages --------------------------------------------------------------------------------------------- */

void zr_page_open(struct zr_text_page *page, const struct zr_train_config *config)
{
    int fd = strcmp(config->json, "-") == 0 ? STDERR_FILENO : STDOUT_FILENO;
    zr_terminal_find(&page->terminal, fd);
    if (page->terminal.columns > 88)
        page->terminal.columns = 88;
    page->file = zr_file_borrow(fd, fd == STDOUT_FILENO ? "standard output" : "standard error");
    zr_text_start(&page->text, &page->file, page->buffer, sizeof page->buffer);
}

void zr_page_heading(struct zr_text_page *page, const char *words)
{
    bool colour = page->terminal.colour;
    zr_text_print(&page->text, "\n%s%s%s ", colour ? "\033[1m" : "", words, colour ? "\033[0m" : "");
    for (size_t i = strlen(words) + 1; i < page->terminal.columns; i++)
        zr_text_print(&page->text, "%s", page->terminal.utf8 ? "─" : "-");
    zr_text_print(&page->text, "\n");
}
