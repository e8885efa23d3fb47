/* terminal.c: finds the capabilities of a descriptor, once, and writes text to it. */
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

static bool is_set(const char *name)
{
    const char *value = getenv(name);
    return value && value[0];
}

/* Whether the locale is UTF-8, by the rules of setlocale(), without loading a locale. */
static bool locale_is_utf8(void)
{
    const char *value = is_set("LC_ALL")     ? getenv("LC_ALL")
                        : is_set("LC_CTYPE") ? getenv("LC_CTYPE")
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

/* Whether mpirun copies the output: mpirun gives each rank a terminal and copies the terminal's output to its
 * own output. */
static bool is_passed_on(void)
{
    return is_set("OMPI_COMM_WORLD_RANK");
}

void zr_terminal_find(struct zr_terminal *out, int fd)
{
    const char *kind = getenv("TERM");
    *out = (struct zr_terminal){.fd = fd, .utf8 = locale_is_utf8()};
    out->live = isatty(fd) == 1 && kind && strcmp(kind, "dumb") != 0 && !is_passed_on();
    out->colour = out->live && !is_set("NO_COLOR");
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
    char message[2048] = "zr-train: ";
    size_t lead = strlen(message);
    va_list list;
    va_start(list, format);
    int length = vsnprintf(message + lead, sizeof message - lead - 1, format, list);
    va_end(list);
    if (length < 0)
        return;
    size_t used = strlen(message);
    message[used++] = '\n';
    zr_show(STDERR_FILENO, message, used);
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
