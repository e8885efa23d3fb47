/* conversion.h: the common part of `zr import` and `zr export`: one input file, a format, an output. Private
 * to defrag/tool/. */
#ifndef ZR_TOOL_CONVERSION_H
#define ZR_TOOL_CONVERSION_H

#include "defrag/tool/input.h"

struct zr_tool_conversion {
    const char *file;                 /* input */
    const char *format, *output, *at; /* as given; NULL: not given */
    struct zr_tool_reading reading;
};

/* Reads the arguments of subcommand argv[0]; `takes_at`: the subcommand has --at. Returns an exit code after
 * a message, or less than 0 to continue. */
int zr_tool_read_conversion(struct zr_tool_conversion *out, const char *help, bool takes_at, int argc,
                            char **argv);

/* False, after a message: the output is a terminal, which must not receive binary data. */
bool zr_tool_takes_binary(const struct zr_tool_conversion *conversion, const char *command);

/* Opens the output file, or standard output if the user named none, and calls `write`. Shows progress. */
typedef zr_result zr_tool_writer(void *state, struct zr_text *text);
zr_result zr_tool_write_conversion(const struct zr_tool_conversion *conversion, zr_tool_writer *write,
                                   void *state);

#endif
