/* command.h: what another process of the same user may ask of this one: a line of text, read without trusting
 * a byte of it. Private to the project.
 *
 *     stats                    refreshes all published figures
 *     ledger                   the same, with what the devices say of their memory
 *     trim                     gives back what is idle
 *     snapshot ARENA PATH      writes what is there now as a .zrt
 *     attach ARENA PATH        records, until the connection ends, on which more lines may follow
 *     record ARENA PATH        records, until stop
 *     stop ARENA
 *     mark WORDS               in every trace that is written
 *     stacks N                 call stacks of one allocation in N, 0: none, until the next trace from outside
 * ends
 *
 * ARENA and N are numbers, PATH absolute, to the end of the line. The answer is "ok WORDS" or "no WORDS", one
 * line.
 */
#ifndef ZR_COMMAND_H
#define ZR_COMMAND_H

#include "alloc/zr.h"

enum { ZR_COMMAND_BYTES = 4200, ZR_COMMAND_MARK_BYTES = 63 };

enum zr_command_kind {
    ZR_COMMAND_STATS,
    ZR_COMMAND_LEDGER,
    ZR_COMMAND_TRIM,
    ZR_COMMAND_SNAPSHOT,
    ZR_COMMAND_ATTACH,
    ZR_COMMAND_RECORD,
    ZR_COMMAND_STOP,
    ZR_COMMAND_MARK,
    ZR_COMMAND_STACKS,
    ZR_COMMAND_COUNT
};

struct zr_command {
    enum zr_command_kind kind;
    unsigned arena;   /* stacks: N */
    const char *text; /* path or words, in the line; "" where there is none */
};

/* Reads a line of `bytes`, its end of line not among them; line[bytes] is a zero. ZR_ERR_INVALID, with words.
 */
zr_result zr_command_read(struct zr_command *out, const char *line, size_t bytes);

#endif
