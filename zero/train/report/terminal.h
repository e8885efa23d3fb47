/* terminal.h: what the program may show on a descriptor (a live line, colour, UTF-8, how wide), and words on
 * stderr. Nothing here allocates or counts as a file write for the fault sites. */
#ifndef ZR_TRAIN_TERMINAL_H
#define ZR_TRAIN_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>

struct zr_terminal {
    int fd;
    bool live;        /* a terminal that can overwrite a line, and that somebody looks at */
    bool colour;      /* live, and NO_COLOR is not set */
    bool utf8;        /* the locale's character set */
    unsigned columns; /* 80 where nobody says */
};

void zr_terminal_find(struct zr_terminal *out, int fd);
/* Asks for the width again (the window may have been resized). */
void zr_terminal_measure(struct zr_terminal *terminal);

/* "zr-train: words\n" on stderr, in one write; cut at 2,047 bytes. */
void zr_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* `bytes` as they are, to a descriptor; a reader that has gone is nobody's failure. */
void zr_show(int fd, const char *data, size_t bytes);

#endif
