/* command.h: commands of other processes of the same user: lines of text, parsed as untrusted input. Private
 * to the project.
 *
 *     stats                    refreshes all published figures
 *     ledger                   refreshes the counters and the devices' figures
 *     trim                     releases idle memory
 *     snapshot ARENA PATH      writes the present state as a .zrt
 *     attach ARENA PATH        records until the connection ends; more lines may follow
 *     record ARENA PATH        records until `stop`
 *     stop ARENA               ends a record
 *     mark LABEL               writes a mark to every running trace
 *     stacks N                 takes call stacks of one allocation in N, 0: none, until the next record ends
 *
 * ARENA and N are numbers; PATH is absolute and extends to the end of the line. The answer is one line, "ok
 * MESSAGE" or "no MESSAGE". */
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
    const char *text; /* path or label, within the line; "": none */
};

/* Parses a line of `bytes` without its line end; line[bytes] is 0. ZR_ERR_INVALID: not a command, with a
 * message. */
zr_result zr_command_read(struct zr_command *out, const char *line, size_t bytes);

#endif
