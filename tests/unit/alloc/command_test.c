/* command_test.c: lines of commands, good ones and any other: what is taken is what the contract says. */
#include <string.h>

#include "alloc/telemetry/command.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"

static const struct {
    const char *line;
    enum zr_command_kind kind; /* ZR_COMMAND_COUNT: refused */
    unsigned arena;
    const char *text;
} lines[] = {
    {"stats", ZR_COMMAND_STATS, 0, ""},
    {"ledger", ZR_COMMAND_LEDGER, 0, ""},
    {"trim", ZR_COMMAND_TRIM, 0, ""},
    {"snapshot 3 /tmp/a b.zrt", ZR_COMMAND_SNAPSHOT, 3, "/tmp/a b.zrt"},
    {"attach 0 /x", ZR_COMMAND_ATTACH, 0, "/x"},
    {"record 999999 /x", ZR_COMMAND_RECORD, 999999, "/x"},
    {"stop 1", ZR_COMMAND_STOP, 1, ""},
    {"mark epoch 2", ZR_COMMAND_MARK, 0, "epoch 2"},
    {"stacks 100", ZR_COMMAND_STACKS, 100, ""},
    {"", ZR_COMMAND_COUNT, 0, ""},
    {"stat", ZR_COMMAND_COUNT, 0, ""},
    {"statsx", ZR_COMMAND_COUNT, 0, ""},
    {" stats", ZR_COMMAND_COUNT, 0, ""},
    {"stats 1", ZR_COMMAND_COUNT, 0, ""},
    {"stop", ZR_COMMAND_COUNT, 0, ""},
    {"stop1", ZR_COMMAND_COUNT, 0, ""},
    {"snapshot 0/a", ZR_COMMAND_COUNT, 0, ""},
    {"stop -1", ZR_COMMAND_COUNT, 0, ""},
    {"stop 1000000", ZR_COMMAND_COUNT, 0, ""},
    {"stop 1x", ZR_COMMAND_COUNT, 0, ""},
    {"stop 1 x", ZR_COMMAND_COUNT, 0, ""},
    {"snapshot 0", ZR_COMMAND_COUNT, 0, ""},
    {"snapshot 0 a/b", ZR_COMMAND_COUNT, 0, ""},
    {"snapshot /a", ZR_COMMAND_COUNT, 0, ""},
    {"mark", ZR_COMMAND_COUNT, 0, ""},
    {"mark a\tb", ZR_COMMAND_COUNT, 0, ""},
    {"stacks", ZR_COMMAND_COUNT, 0, ""},
    {"stacks 1 2", ZR_COMMAND_COUNT, 0, ""},
};

/* Whether what was read is as command.h has it. */
static bool is_good(const struct zr_command *command, const char *line, size_t bytes)
{
    bool path = command->kind == ZR_COMMAND_SNAPSHOT || command->kind == ZR_COMMAND_ATTACH ||
                command->kind == ZR_COMMAND_RECORD;
    bool words = command->kind == ZR_COMMAND_MARK;
    size_t length = strlen(command->text);
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)line[i] < ' ' || line[i] == 0x7f)
            return false;
    return command->kind < ZR_COMMAND_COUNT && command->arena <= 999999 &&
           (path    ? command->text[0] == '/'
            : words ? length >= 1 && length <= ZR_COMMAND_MARK_BYTES
                    : length == 0) &&
           (length == 0 || (command->text > line && command->text + length == line + bytes));
}

int main(void)
{
    enum { COUNT = sizeof lines / sizeof *lines, TRIES = 200000 };
    static char line[ZR_COMMAND_BYTES];
    struct zr_command command;
    uint64_t state = run_seed();
    size_t taken = 0, wrong = 0;
    for (size_t i = 0; i < COUNT; i++) {
        zr_result result = zr_command_read(&command, lines[i].line, strlen(lines[i].line));
        bool refused = lines[i].kind == ZR_COMMAND_COUNT;
        tap_ok(refused ? result == ZR_ERR_INVALID
                       : result == ZR_OK && command.kind == lines[i].kind &&
                             command.arena == lines[i].arena && strcmp(command.text, lines[i].text) == 0,
               "`%s` is %s", lines[i].line, refused ? "refused" : "taken");
    }
    for (size_t i = 0; i < TRIES; i++) {
        const char *from = lines[xorshift64(&state) % COUNT].line;
        size_t bytes = strlen(from),
               more = xorshift64(&state) % 4 ? 0 : xorshift64(&state) % (sizeof line - 100);
        memset(line, 'a' + (int)(i % 26), sizeof line);
        memcpy(line, from, bytes);
        bytes += more;
        for (unsigned change = (unsigned)(xorshift64(&state) % 3); bytes > 0 && change > 0; change--)
            line[xorshift64(&state) % bytes] = (char)xorshift64(&state);
        line[bytes] = '\0';
        if (zr_command_read(&command, line, bytes) != ZR_OK)
            continue;
        taken++;
        wrong += !is_good(&command, line, bytes);
    }
    tap_ok(wrong == 0 && taken > TRIES / 100, "%d changed lines: %zu taken, %zu against the contract", TRIES,
           taken, wrong);
    return tap_done();
}
