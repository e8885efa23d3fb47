/* conversion.h: what `zr import` and `zr export` have in common: one file to read, a format, where to write.
 * Private to defrag/tool/. */
#ifndef ZR_TOOL_CONVERSION_H
#define ZR_TOOL_CONVERSION_H

#include "defrag/tool/input.h"

struct zr_tool_conversion {
    const char *file;                 /* what is read */
    const char *format, *output, *at; /* as they are given; NULL: they are not */
    struct zr_tool_reading reading;
};

/* Reads the arguments of the subcommand argv[0]; `takes_at`: --at is one of its options. Below 0: go on; else
 * the exit code to end with, everything said. */
int zr_tool_read_conversion(struct zr_tool_conversion *out, const char *help, bool takes_at, int argc,
                            char **argv);

/* Whether the output takes a file that is no text; if not, that is said. */
bool zr_tool_takes_binary(const struct zr_tool_conversion *conversion, const char *command);

/* Has `write` put text to the output, standard output where none is named, and says meanwhile that it writes.
 */
typedef zr_result zr_tool_writer(void *state, struct zr_text *text);
zr_result zr_tool_write_conversion(const struct zr_tool_conversion *conversion, zr_tool_writer *write,
                                   void *state);

#endif
