/* command.c: parses commands (see command.h). Uses alloc/base only. */
#include "alloc/telemetry/command.h"

#include <string.h>

#include "alloc/base/error.h"

static const struct {
    const char *name;
    bool takes_arena, takes_path, takes_label;
} commands[ZR_COMMAND_COUNT] = {
    [ZR_COMMAND_STATS] = {"stats", false, false, false},
    [ZR_COMMAND_LEDGER] = {"ledger", false, false, false},
    [ZR_COMMAND_TRIM] = {"trim", false, false, false},
    [ZR_COMMAND_SNAPSHOT] = {"snapshot", true, true, false},
    [ZR_COMMAND_ATTACH] = {"attach", true, true, false},
    [ZR_COMMAND_RECORD] = {"record", true, true, false},
    [ZR_COMMAND_STOP] = {"stop", true, false, false},
    [ZR_COMMAND_MARK] = {"mark", false, false, true},
    [ZR_COMMAND_STACKS] = {"stacks", true, false, false},
};

/* Advances past the word and one blank after it, if the text begins with the word. */
static bool step_over(const char **at, const char *word)
{
    size_t length = strlen(word);
    if (strncmp(*at, word, length) != 0 || ((*at)[length] != ' ' && (*at)[length] != '\0'))
        return false;
    *at += length + ((*at)[length] == ' ');
    return true;
}

static bool read_number(const char **at, unsigned *out)
{
    unsigned digits = 0;
    for (*out = 0; **at >= '0' && **at <= '9' && digits < 6; digits++)
        *out = *out * 10 + (unsigned)(*(*at)++ - '0');
    bool good = digits > 0 && (**at == ' ' || **at == '\0');
    *at += **at == ' ';
    return good;
}

zr_result zr_command_read(struct zr_command *out, const char *line, size_t bytes)
{
    const char *at = line;
    unsigned kind = 0;
    *out = (struct zr_command){.text = ""};
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)line[i] < ' ' || line[i] == 0x7f)
            return zr_fail(ZR_ERR_INVALID, "a command must not contain control characters");
    while (kind < ZR_COMMAND_COUNT && !step_over(&at, commands[kind].name))
        kind++;
    if (kind == ZR_COMMAND_COUNT)
        return zr_fail(ZR_ERR_INVALID, "unknown command");
    out->kind = (enum zr_command_kind)kind;
    if (commands[kind].takes_arena && !read_number(&at, &out->arena))
        return zr_fail(ZR_ERR_INVALID, "%s needs a number", commands[kind].name);
    if (commands[kind].takes_path && *at != '/')
        return zr_fail(ZR_ERR_INVALID, "%s needs an absolute path", commands[kind].name);
    if (commands[kind].takes_label && (*at == '\0' || strlen(at) > ZR_COMMAND_MARK_BYTES))
        return zr_fail(ZR_ERR_INVALID, "%s needs 1 to %d letters", commands[kind].name,
                       ZR_COMMAND_MARK_BYTES);
    if (!commands[kind].takes_path && !commands[kind].takes_label && *at != '\0')
        return zr_fail(ZR_ERR_INVALID, "%s takes no further argument", commands[kind].name);
    out->text = at;
    return ZR_OK;
}
