/* manual.c: manual pages and shell completion, generated from the help texts and tables of options, so they
 * cannot differ from these. Pages of other programs are generated from their --help. See tool.h. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "defrag/tool/tool.h"

enum { HELP_ROOM = 1 << 16, CHOICES_ROOM = 200 };

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

/* In "  --size BYTES  of the request", the column where the description begins; 0: the line continues the
 * previous one. */
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
    if (column == 0 && length > 2 && line[2] == '-') { /* the description begins on the next line */
        zr_text_print(text, ".TP\n.B ");
        put_line(text, line + 2, length - 2);
        return;
    }
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

static bool is_word(const char *line, size_t length, const char *word)
{
    return length == strlen(word) && memcmp(line, word, length) == 0;
}

/* Whether a line is a heading: it follows an empty line, and the next line is indented. */
static bool is_heading(const char *help, const char *line, size_t length)
{
    return length > 0 && line[0] != ' ' && line >= help + 2 && line[-2] == '\n' && line[length] == '\n' &&
           line[length + 1] == ' ';
}

static enum part part_of(const char *help, const char *line, size_t length, enum part now)
{
    if (is_word(line, length, "Examples"))
        return EXAMPLES;
    if (now == NAME || length == 0)
        return now;
    if (length > 3 && memcmp(line, "zr ", 3) == 0 && now != WORDS)
        return SYNOPSIS;
    if (is_heading(help, line, length))
        return OPTIONS;
    return line[0] != ' ' ? WORDS : now == EXAMPLES && line[2] != '-' ? EXAMPLES : OPTIONS;
}

/* Writes the lines of one part, under its heading. */
static void put_part(struct zr_text *text, const char *help, enum part wanted, const char *heading)
{
    enum part now = NAME;
    bool any = false, gap = false;
    for (const char *next, *line = help; *line; line = next) {
        size_t length = strcspn(line, "\n");
        next = line + length + (line[length] == '\n');
        now = part_of(help, line, length, now);
        if (length == 0 || now != wanted || is_word(line, length, "Examples") ||
            is_word(line, length, "Subcommands")) {
            gap = true;
            continue;
        }
        if (!any)
            put_heading(text, heading);
        if (!any && wanted == EXAMPLES)
            zr_text_print(text, ".nf\n");
        if (any && gap && wanted == WORDS)
            zr_text_print(text, ".PP\n");
        if (is_heading(help, line, length))
            zr_text_print(text, ".SS ");
        if (wanted == OPTIONS && line[0] == ' ')
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

/* What a page is of. */
struct title {
    const char *name, *section; /* "zr-why", "1" */
    const char *options;        /* heading of the lines in two columns */
    const char *synopsis;       /* NULL: the help has it, or there is none */
};

static void put_page(struct zr_text *text, const struct title *title, const char *help)
{
    size_t first = strcspn(help, "\n"), second = 0;
    if (help[first] == '\n' && help[first + 1] != '\n')
        second = strcspn(help + first + 1, "\n");
    zr_text_print(text, ".TH \"%s\" %s \"\" \"zr " ZR_VERSION_STRING "\"\n", title->name, title->section);
    put_heading(text, "NAME");
    for (const char *letter = title->name; *letter; letter++)
        zr_text_put(text, *letter == '-' ? "\\-" : letter, *letter == '-' ? 2 : 1);
    zr_text_print(text, " \\- ");
    put_line(text, help, first);
    if (second > 0)
        put_line(text, help + first + 1, second);
    put_part(text, help, SYNOPSIS, "SYNOPSIS");
    if (title->synopsis)
        zr_text_print(text, ".SH SYNOPSIS\n.B %s\n%s\n", title->name, title->synopsis);
    put_part(text, help, EXAMPLES, "EXAMPLES");
    put_part(text, help, OPTIONS, title->options);
    put_part(text, help, WORDS, "DESCRIPTION");
}

void zr_tool_manual_page(struct zr_text *text, const char *name, const char *help)
{
    char whole[40] = "zr";
    snprintf(whole + 2, sizeof whole - 2, "-%s", name);
    put_page(text, &(struct title){whole, "1", "OPTIONS", NULL}, help);
}

/* Reads the help text of another program from standard input. */
static zr_result read_help(char *out, size_t room_bytes)
{
    struct zr_file in = zr_file_borrow(STDIN_FILENO, "standard input");
    size_t got_bytes = 0;
    zr_result result = zr_file_read(&in, out, room_bytes, &got_bytes);
    if (result == ZR_OK && got_bytes == room_bytes)
        result = zr_fail(ZR_ERR_FORMAT, "standard input: the help text exceeds %zu bytes", room_bytes - 1);
    out[result == ZR_OK ? got_bytes : 0] = '\0';
    return result;
}

static const char conf_begin[] =
    "Settings of zr's libraries and programs, in one environment variable.\n"
    "\n"
    "Examples\n"
    "  ZR_CONF=check:3,isa:avx2 zr-train --data FILE\n"
    "  ZR_CONF=help zr                                prints the options\n"
    "\n"
    "ZR_CONF contains pairs NAME:VALUE, separated by commas. A process reads it once. If it is malformed, every\n"
    "option has its default, and zr and zr-train report the error. Set-user-ID programs do not read it.\n"
    "\n";

static void put_conf(struct zr_text *text)
{
    char options[8192], page[sizeof conf_begin + sizeof options + 1024];
    size_t used = sizeof conf_begin - 1;
    memcpy(page, conf_begin, used);
    zr_option_help(options, sizeof options);
    bool indented = true;
    for (const char *next, *line = options; *line; line = next) {
        size_t length = strcspn(line, "\n");
        next = line + length + (line[length] == '\n');
        indented = indented && length > 0;
        used += (size_t)snprintf(page + used, sizeof page - used, "%s%.*s\n", indented ? "  " : "",
                                 (int)length, line);
    }
    put_page(text, &(struct title){"ZR_CONF", "5", "OPTIONS", NULL}, page);
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
    bool is_conf = argc == 2 && strcmp(argv[1], "ZR_CONF") == 0;
    for (size_t i = 0; argc == 2 && list[i].name; i++)
        if (strcmp(list[i].name, argv[1]) == 0)
            return ask(&list[i], ZR_TOOL_MANUAL);
    if (argc == 2 && !is_conf) {
        zr_tool_log("manual: there is no subcommand %s; see zr --help", argv[1]);
        return ZR_TOOL_USAGE;
    }
    char help[HELP_ROOM];
    zr_result result = argc > 2 ? read_help(help, sizeof help) : ZR_OK;
    if (result != ZR_OK)
        return zr_tool_fail(result);
    zr_tool_output_start(&out);
    if (argc > 2 && strcmp(argv[2], "3") == 0) {
        put_page(&out.text, &(struct title){argv[1], argv[2], "FUNCTIONS", NULL}, help);
    } else if (argc > 2) {
        put_page(&out.text, &(struct title){argv[1], argv[2], "OPTIONS", "[options]"}, help);
    } else if (is_conf) {
        put_conf(&out.text);
    } else {
        put_page(&out.text, &(struct title){"zr", "1", "SUBCOMMANDS", NULL}, main_help);
        put_others(&out.text, list);
    }
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

/* A line of a help text that describes an option: "  --stage 0|1|auto  which stage". */
struct option_line {
    const char *name, *argument;
    size_t name_length, argument_length; /* 0: it takes none */
};

/* Finds the next option from `help` on. Returns what follows its line; NULL: there is none. */
static const char *next_option(const char *help, struct option_line *out)
{
    for (const char *line = help; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        if (strncmp(line, "  --", 4) != 0)
            continue;
        *out = (struct option_line){.name = line + 2, .name_length = strcspn(line + 2, " ,\n")};
        out->argument = out->name + out->name_length;
        if (out->argument[0] == ' ' && out->argument[1] != ' ')
            out->argument_length = strcspn(++out->argument, " \n");
        return line + strcspn(line, "\n");
    }
    return NULL;
}

/* The words of "none|cpu|nvme:DIR" that can be typed as they are, divided by blanks. */
static const char *choices(const struct option_line *option, char out[CHOICES_ROOM])
{
    size_t length, used = 0;
    out[0] = '\0';
    for (size_t at = 0; at < option->argument_length && used < CHOICES_ROOM; at += length + 1) {
        const char *word = option->argument + at;
        length = strcspn(word, "| \n");
        bool is_placeholder = word[0] >= 'A' && word[0] <= 'Z' && strcspn(word, "0123456789") >= length;
        if (!is_placeholder && memchr(word, ':', length) == NULL)
            used += (size_t)snprintf(out + used, CHOICES_ROOM - used, "%s%.*s", used ? " " : "", (int)length,
                                     word);
    }
    return out;
}

/* Completes the options in a help text and their choices, else files. */
static void put_program(struct zr_text *text, const char *name, const char *help)
{
    char function[40], words[CHOICES_ROOM];
    struct option_line option;
    snprintf(function, sizeof function, "_%s", name);
    for (char *letter = function; *letter; letter++)
        if (*letter == '-')
            *letter = '_';
    zr_text_print(text,
                  "# bash completion of %s, made by zr completion bash\n"
                  "%s()\n"
                  "{\n"
                  "    local word=\"${COMP_WORDS[COMP_CWORD]}\"\n"
                  "    COMPREPLY=()\n"
                  "    case \"${COMP_WORDS[COMP_CWORD-1]}\" in\n",
                  name, function);
    for (const char *at = help; (at = next_option(at, &option)) != NULL;)
        if (memchr(option.argument, '|', option.argument_length) && choices(&option, words)[0])
            zr_text_print(text, "    %.*s) COMPREPLY=($(compgen -W '%s' -- \"$word\")); return ;;\n",
                          (int)option.name_length, option.name, words);
    zr_text_print(text, "    esac\n"
                        "    case \"$word\" in\n"
                        "    -*) COMPREPLY=($(compgen -W '--help");
    for (const char *at = help; (at = next_option(at, &option)) != NULL;)
        if (!is_word(option.name, option.name_length, "--help"))
            zr_text_print(text, " %.*s", (int)option.name_length, option.name);
    zr_text_print(text,
                  "' -- \"$word\")); return ;;\n"
                  "    esac\n"
                  "    mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
                  "}\n"
                  "complete -o filenames -F %s %s\n",
                  function, name);
}

static int complete_program(const char *name)
{
    struct zr_tool_output out;
    char help[HELP_ROOM];
    zr_result result = read_help(help, sizeof help);
    if (result != ZR_OK)
        return zr_tool_fail(result);
    zr_tool_output_start(&out);
    put_program(&out.text, name, help);
    return zr_tool_output_end(&out);
}

int zr_tool_completion(int argc, char **argv, const struct zr_tool_subcommand *list)
{
    struct zr_tool_output out;
    if (argc < 2 || argc > 3 || strcmp(argv[1], "bash") != 0) {
        zr_tool_log(
            "completion: zr completion bash prints a script; put it in /etc/bash_completion.d or source it");
        return ZR_TOOL_USAGE;
    }
    if (argc == 3)
        return complete_program(argv[2]);
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
