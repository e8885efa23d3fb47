/* manual.c: manual pages and shell completion, generated from the help texts and the tables of options. See
 * tool.h. */
#include <string.h>

#include "alloc/base/error.h"
#include "defrag/tool/tool.h"

/* ---- Manual pages -------------------------------------------------------------------------------------- */

/* Writes a line of text in troff, with control characters and escapes disarmed. */
static void put_line(struct zr_text *text, const char *line, size_t length)
{
    if (length > 0 && (line[0] == '.' || line[0] == '\''))
        zr_text_put(text, "\\&", 2);
    for (size_t i = 0; i < length; i++)
        if (line[i] == '\\')
            zr_text_put(text, "\\e", 2);
        else if (line[i] == '-')
            zr_text_put(text, "\\-", 2);
        else
            zr_text_put(text, line + i, 1);
    zr_text_put(text, "\n", 1);
}

static void put_heading(struct zr_text *text, const char *heading)
{
    zr_text_print(text, ".SH %s\n", heading);
}

/* The parts of a help text: a sentence, examples, the synopsis, options in two columns, and notes. */
enum part { NAME = 0, EXAMPLES, SYNOPSIS, OPTIONS, WORDS };

/* In "  --size BYTES  of the request", the column where the description begins; 0: the line continues the one
 * before. */
static size_t second_column(const char *line, size_t length)
{
    size_t at = 2;
    if (length < 3 || line[0] != ' ' || line[1] != ' ' || line[2] == ' ')
        return 0;
    while (at + 1 < length && !(line[at] == ' ' && line[at + 1] == ' '))
        at++;
    while (at < length && line[at] == ' ')
        at++;
    return at < length && at + 1 < length ? at : 0;
}

static void put_option(struct zr_text *text, const char *line, size_t length)
{
    size_t column = second_column(line, length), end = column;
    if (column == 0) {
        size_t skip = strspn(line, " ");
        put_line(text, line + skip, length - skip);
        return;
    }
    while (end > 0 && line[end - 1] == ' ')
        end--;
    zr_text_print(text, ".TP\n.B ");
    put_line(text, line + 2, end - 2);
    put_line(text, line + column, length - column);
}

static bool is_heading(const char *line, size_t length)
{
    return (length == 8 && memcmp(line, "Examples", 8) == 0) ||
           (length == 11 && memcmp(line, "Subcommands", 11) == 0);
}

static enum part part_of(const char *line, size_t length, enum part now)
{
    if (length == 8 && memcmp(line, "Examples", 8) == 0)
        return EXAMPLES;
    if (now == NAME || length == 0)
        return now;
    if (length > 3 && memcmp(line, "zr ", 3) == 0)
        return SYNOPSIS;
    return line[0] == ' ' ? (now == EXAMPLES ? EXAMPLES : OPTIONS) : WORDS;
}

/* Writes the lines of one part, under its heading. */
static void put_part(struct zr_text *text, const char *help, enum part wanted, const char *heading)
{
    enum part now = NAME;
    bool any = false, gap = false;
    for (const char *next, *line = help; *line; line = next) {
        size_t length = strcspn(line, "\n");
        next = line + length + (line[length] == '\n');
        now = part_of(line, length, now);
        if (length == 0 || now != wanted || is_heading(line, length)) {
            gap = true;
            continue;
        }
        if (!any)
            put_heading(text, heading);
        if (!any && wanted == EXAMPLES)
            zr_text_print(text, ".nf\n");
        if (any && gap && wanted == WORDS)
            zr_text_print(text, ".PP\n");
        if (wanted == OPTIONS)
            put_option(text, line, length);
        else
            put_line(text, line, length);
        if (wanted == SYNOPSIS)
            zr_text_print(text, ".br\n");
        any = true;
        gap = false;
    }
    if (any && wanted == EXAMPLES)
        zr_text_print(text, ".fi\n");
}

void zr_tool_manual_page(struct zr_text *text, const char *name, const char *help)
{
    size_t first = strcspn(help, "\n"), second = 0;
    bool whole = strcmp(name, "zr") == 0;
    if (help[first] == '\n' && help[first + 1] != '\n')
        second = strcspn(help + first + 1, "\n");
    zr_text_print(text, ".TH \"%s%s\" 1 \"\" \"zr %d.%d\"\n", whole ? "" : "zr-", name, ZR_VERSION_MAJOR,
                  ZR_VERSION_MINOR);
    put_heading(text, "NAME");
    zr_text_print(text, "%s%s \\- ", whole ? "" : "zr\\-", name);
    put_line(text, help, first);
    if (second > 0)
        put_line(text, help + first + 1, second);
    put_part(text, help, SYNOPSIS, "SYNOPSIS");
    put_part(text, help, EXAMPLES, "EXAMPLES");
    put_part(text, help, OPTIONS, whole ? "SUBCOMMANDS" : "OPTIONS");
    put_part(text, help, WORDS, "DESCRIPTION");
}

static void put_others(struct zr_text *text, const struct zr_tool_subcommand *list)
{
    put_heading(text, "SEE ALSO");
    for (size_t i = 0; list[i].name; i++)
        zr_text_print(text, ".BR zr\\-%s (1)%s\n", list[i].name, list[i + 1].name ? "," : "");
}

/* Runs a subcommand to print its own description. */
static int ask(const struct zr_tool_subcommand *one, enum zr_tool_ask what)
{
    char *arguments[] = {(char *)(uintptr_t)one->name, NULL};
    zr_tool_ask_for(what);
    return one->run(1, arguments);
}

int zr_tool_manual(int argc, char **argv, const struct zr_tool_subcommand *list, const char *main_help)
{
    struct zr_tool_output out;
    for (size_t i = 0; argc > 1 && list[i].name; i++)
        if (strcmp(list[i].name, argv[1]) == 0)
            return ask(&list[i], ZR_TOOL_MANUAL);
    if (argc > 1) {
        zr_tool_log("manual: there is no subcommand %s; see zr --help", argv[1]);
        return ZR_TOOL_USAGE;
    }
    zr_tool_output_start(&out);
    zr_tool_manual_page(&out.text, "zr", main_help);
    put_others(&out.text, list);
    return zr_tool_output_end(&out);
}

/* ---- Completion ---------------------------------------------------------------------------------------- */

/* Completes subcommands first, then options after a dash, PIDs for subcommands that take them, and files. */
static const char script_begin[] = "# bash completion of zr, made by zr completion bash\n"
                                   "_zr()\n"
                                   "{\n"
                                   "    local word=\"${COMP_WORDS[COMP_CWORD]}\" options=\n"
                                   "    COMPREPLY=()\n"
                                   "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
                                   "        COMPREPLY=($(compgen -W '--help --version";
static const char script_middle[] = "' -- \"$word\"))\n"
                                    "        return\n"
                                    "    fi\n"
                                    "    case \"${COMP_WORDS[1]}\" in\n";
static const char script_end[] =
    "    *) return ;;\n"
    "    esac\n"
    "    case \" ${COMP_WORDS[*]:2:COMP_CWORD-2} \" in\n"
    "    *' -- '*) mapfile -t COMPREPLY < <(compgen -c -f -- \"$word\"); return ;;\n"
    "    esac\n"
    "    case \"$word\" in\n"
    "    -*) COMPREPLY=($(compgen -W \"$options\" -- \"$word\")); return ;;\n"
    "    esac\n"
    "    case \"${COMP_WORDS[1]}\" in\n"
    "    ps|top|ledger|snapshot|attach|record|serve)\n"
    "        if [ \"${COMP_WORDS[COMP_CWORD-1]}\" = \"${COMP_WORDS[1]}\" ]; then\n"
    "            COMPREPLY=($(compgen -W \"$(zr ps 2> /dev/null | awk 'NR > 1 {print $1}')\" -- \"$word\"))\n"
    "            return\n"
    "        fi ;;\n"
    "    esac\n"
    "    mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
    "}\n"
    "complete -o filenames -F _zr zr\n";

int zr_tool_completion(int argc, char **argv, const struct zr_tool_subcommand *list)
{
    struct zr_tool_output out;
    if (argc != 2 || strcmp(argv[1], "bash") != 0) {
        zr_tool_log(
            "completion: zr completion bash prints a script; put it in /etc/bash_completion.d or source it");
        return ZR_TOOL_USAGE;
    }
    zr_tool_output_start(&out);
    zr_text_put(&out.text, script_begin, sizeof script_begin - 1);
    for (size_t i = 0; list[i].name; i++)
        zr_text_print(&out.text, " %s", list[i].name);
    zr_text_put(&out.text, script_middle, sizeof script_middle - 1);
    int code = zr_tool_output_end(&out);
    for (size_t i = 0; list[i].name && code == ZR_TOOL_FINE; i++)
        code = ask(&list[i], ZR_TOOL_OPTIONS);
    if (code != ZR_TOOL_FINE)
        return code;
    zr_tool_output_start(&out);
    zr_text_put(&out.text, script_end, sizeof script_end - 1);
    return zr_tool_output_end(&out);
}
