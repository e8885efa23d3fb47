/* terminal.h: capabilities of a descriptor (live line, colour, UTF-8, width), and messages on stderr. These
 * functions allocate nothing, and fault injection does not count their writes. */
#ifndef ZR_TRAIN_TERMINAL_H
#define ZR_TRAIN_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>

#include "alloc/base/system/file.h"

struct zr_terminal {
    int fd;
    bool live;        /* a terminal that can overwrite a line, in the foreground */
    bool colour;      /* live, and NO_COLOR is not set */
    bool utf8;        /* the locale's character set */
    unsigned columns; /* 80 if unknown */
};

void zr_terminal_find(struct zr_terminal *out, int fd);
/* Reads the width again, after a resize. */
void zr_terminal_measure(struct zr_terminal *terminal);

/* Prints "zr-train: ", the message and a newline on stderr in one write; cut at 2,047 bytes. */
void zr_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Writes bytes to a descriptor; a closed reader is ignored. */
void zr_show(int fd, const char *data, size_t bytes);

/* ---- Pages --------------------------------------------------------------------------------------------- */

/* Destination and headings of the tables of report*.c. */
struct zr_train_config;
struct zr_text_page {
    struct zr_terminal terminal;
    struct zr_file file;
    struct zr_text text;
    char buffer[8192];
};

/* Tables go to stdout, or to stderr if stdout has the JSON. zr_text_flush(&page->text) ends a page. */
void zr_page_open(struct zr_text_page *page, const struct zr_train_config *config);
void zr_page_heading(struct zr_text_page *page, const char *words);

#endif
