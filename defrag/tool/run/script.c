/* script.c: see program.h. */
#define _GNU_SOURCE
#include "defrag/tool/run/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/system/file.h"

enum { SCRIPT_BYTES = 64 << 10, VARIABLES = 128, NAME_BYTES = 64, DEPTH_MAX = 4 };

struct script {
    const char *path;
    struct {
        char name[NAME_BYTES];
        char value[PATH_MAX];
    } variables[VARIABLES];
    unsigned count;
};

/* ---- Words --------------------------------------------------------------------------------------------- */

/* The expansion so far. A word is unknown if it is too long, or if it depends on a run of the script. */
struct word {
    char text[PATH_MAX];
    size_t length;
    bool known;
};

static void add(struct word *word, const char *text, size_t bytes)
{
    if (word->length + bytes >= sizeof word->text) {
        word->known = false;
        return;
    }
    memcpy(word->text + word->length, text, bytes);
    word->length += bytes;
    word->text[word->length] = '\0';
}

static bool is_name(char letter)
{
    return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
           (letter >= '0' && letter <= '9') || letter == '_';
}

static size_t name_length(const char *text)
{
    size_t length = 0;
    while (is_name(text[length]))
        length++;
    return length;
}

static const char *value_of(const struct script *script, const char *name, size_t length)
{
    char whole[NAME_BYTES];
    if (length >= sizeof whole)
        return NULL;
    for (unsigned i = script->count; i-- > 0;)
        if (strlen(script->variables[i].name) == length &&
            memcmp(script->variables[i].name, name, length) == 0)
            return script->variables[i].value;
    memcpy(whole, name, length);
    whole[length] = '\0';
    return getenv(whole);
}

static const char *expand(const struct script *script, const char *at, unsigned depth, struct word *out);

/* Expands $NAME, ${NAME}, ${NAME:-VALUE} or $0; returns the position after it. */
static const char *expand_variable(const struct script *script, const char *at, unsigned depth,
                                   struct word *out)
{
    bool braced = *at == '{';
    const char *name = at + braced;
    size_t length = name_length(name);
    if (length == 0) { /* $@, $(( and similar */
        out->known = false;
        return at + (*at != '\0');
    }
    const char *value = length == 1 && *name == '0' ? script->path : value_of(script, name, length);
    at = name + length;
    if (braced && *at != '}') {
        const char *end = strchr(at, '}');
        bool fallback = at[0] == ':' && (at[1] == '-' || at[1] == '=');
        struct word other = {.known = true};
        if (!end || !fallback) {
            out->known = false;
            return end ? end + 1 : at;
        }
        if (!value || !*value)
            expand(script, at + 2, depth + 1, &other);
        value = value && *value ? value : other.text;
        out->known = out->known && other.known;
        at = end;
    }
    if (value)
        add(out, value, strlen(value));
    return at + (braced && *at == '}');
}

static void cut_name(char *path)
{
    char *slash = strrchr(path, '/');
    if (!slash)
        strcpy(path, ".");
    else
        slash[slash == path] = '\0';
}

/* Expands the commands that find the script's own folder: dirname, readlink -f, realpath, and cd FOLDER &&
 * pwd. */
static void expand_command(const struct script *script, const char *command, unsigned depth, struct word *out)
{
    static const char *const names[] = {"dirname ", "readlink -f ", "readlink -e ", "realpath ", "cd "};
    struct word word = {.known = true};
    char real[PATH_MAX];
    command += strspn(command, " \t");
    size_t which = 0;
    while (which < 5 && strncmp(command, names[which], strlen(names[which])) != 0)
        which++;
    if (which == 5) {
        out->known = false;
        return;
    }
    command += strlen(names[which]);
    command += strspn(command, " ");
    command += strncmp(command, "-- ", 3) == 0 ? 3 : 0;
    const char *rest = expand(script, command, depth + 1, &word);
    bool good = word.known && (which < 4 || strstr(rest, "pwd"));
    if (good && which == 0)
        cut_name(word.text);
    else if (good)
        good = realpath(word.text, real) && strcpy(word.text, real);
    out->known = out->known && good;
    if (good)
        add(out, word.text, strlen(word.text));
}

/* Copies a command from after its opening ` or $( up to its end; returns the position after it. */
static const char *copy_command(const char *at, bool backquoted, char out[PATH_MAX])
{
    size_t length = 0;
    unsigned open = 1;
    for (; *at && *at != '\n'; at++) {
        open += !backquoted && *at == '(';
        open -= !backquoted && *at == ')';
        if (open == 0 || (backquoted && *at == '`'))
            break;
        if (length + 1 < PATH_MAX)
            out[length++] = *at;
    }
    out[length] = '\0';
    return at + (*at && *at != '\n');
}

/* Expands one word of a shell's line and removes its quotes; returns the position after it. */
static const char *expand(const struct script *script, const char *at, unsigned depth, struct word *out)
{
    char command[PATH_MAX];
    bool quoted = false;
    out->known = out->known && depth < DEPTH_MAX;
    while (*at && *at != '\n' && (quoted || !strchr(" \t;&|<>()}", *at)) && depth < DEPTH_MAX) {
        if (*at == '"') {
            quoted = !quoted;
            at++;
        } else if (*at == '\'' && !quoted) {
            size_t length = strcspn(at + 1, "'");
            add(out, at + 1, length);
            at += 1 + length + (at[1 + length] == '\'');
        } else if (*at == '\\' && at[1]) {
            add(out, at + 1, 1);
            at += 2;
        } else if (*at == '`' || (*at == '$' && at[1] == '(')) {
            at = copy_command(at + 1 + (*at == '$'), *at == '`', command);
            expand_command(script, command, depth, out);
        } else if (*at == '$') {
            at = expand_variable(script, at + 1, depth, out);
        } else {
            add(out, at++, 1);
        }
    }
    return at;
}

/* ---- Lines --------------------------------------------------------------------------------------------- */

/* Records NAME=VALUE and moves *at past it; false: not an assignment. */
static bool assign(struct script *script, const char **at)
{
    size_t length = name_length(*at);
    if (length == 0 || length >= NAME_BYTES || (*at)[length] != '=')
        return false;
    struct word word = {.known = true};
    const char *end = expand(script, *at + length + 1, 0, &word);
    if (word.known && script->count < VARIABLES) {
        memcpy(script->variables[script->count].name, *at, length);
        memcpy(script->variables[script->count++].value, word.text, sizeof word.text);
    }
    *at = end;
    return true;
}

static bool skip_word(const char **at, const char *word)
{
    size_t length = strlen(word);
    if (strncmp(*at, word, length) != 0 || !strchr(" \t", (*at)[length]) || !(*at)[length])
        return false;
    *at += length;
    *at += strspn(*at, " \t");
    return true;
}

/* Reads the commands of a line: records assignments, and takes the started program if it exists. */
static void read_line(struct script *script, const char *line, char target[PATH_MAX])
{
    static const char *const before[] = {"export", "local", "readonly", "then", "else", "do", "{", "env"};
    bool passes = strstr(line, "\"$@\"") || strstr(line, "$*") || strstr(line, "\"${@}\"");
    for (const char *at = line; *at && *at != '#';) {
        bool executes = false, more = true;
        at += strspn(at, " \t;&|()");
        while (more) {
            more = executes && at[0] == '-' && at[1] == 'a';
            if (more) { /* exec -a NAME */
                struct word name = {.known = true};
                at = expand(script, at + 2 + strspn(at + 2, " \t"), 0, &name);
            }
            for (size_t i = 0; i < sizeof before / sizeof *before; i++)
                more = skip_word(&at, before[i]) || more;
            bool is_exec = skip_word(&at, "exec");
            executes = executes || is_exec;
            more = assign(script, &at) || is_exec || more;
            at += strspn(at, " \t");
        }
        struct word word = {.known = true};
        struct zr_program program;
        const char *end = expand(script, at, 0, &word);
        if ((executes || (passes && strchr(word.text, '/'))) && word.known && word.length > 0 &&
            zr_program_find(word.text, &program))
            memcpy(target, program.path, PATH_MAX);
        while (*end && !strchr(";&|", *end)) { /* skip the arguments */
            struct word argument = {.known = true};
            const char *next = expand(script, end + strspn(end, " \t<>()}"), 0, &argument);
            end = next > end ? next : end + 1;
        }
        at = end;
    }
}

/* Whether the first line names a shell. */
static bool is_shell_script(const char *text)
{
    char line[256];
    if (strncmp(text, "#!", 2) != 0)
        return false;
    snprintf(line, sizeof line, "%.*s", (int)strcspn(text, "\n"), text);
    char *rest = line + 2, *word;
    while ((word = strsep(&rest, " \t"))) {
        const char *name = strrchr(word, '/') ? strrchr(word, '/') + 1 : word;
        if (strcmp(name, "sh") == 0 || strcmp(name, "bash") == 0 || strcmp(name, "dash") == 0 ||
            strcmp(name, "ksh") == 0 || strcmp(name, "zsh") == 0)
            return true;
    }
    return false;
}

static size_t read_start(const char *path, char *out, size_t room_bytes)
{
    struct zr_file file;
    size_t used = 0, got = 1;
    if (zr_file_open(&file, path) != ZR_OK)
        return 0;
    while (used < room_bytes - 1 && got > 0 &&
           zr_file_read(&file, out + used, room_bytes - 1 - used, &got) == ZR_OK)
        used += got;
    zr_file_close(&file);
    out[used] = '\0';
    return used;
}

bool zr_script_target(const char *path, char out[PATH_MAX])
{
    static struct script script; /* large because of the text */
    static char text[SCRIPT_BYTES];
    char *rest = text, *line;
    script.path = path;
    script.count = 0;
    out[0] = '\0';
    if (read_start(path, text, sizeof text) == 0 || !is_shell_script(text))
        return false;
    while ((line = strsep(&rest, "\n"))) {
        size_t length = strlen(line);
        while (rest && length > 0 && line[length - 1] == '\\') { /* a continued line */
            line[length - 1] = ' ';
            line[length] = ' ';
            rest += strcspn(rest, "\n");
            rest = *rest ? (*rest = '\0', rest + 1) : NULL;
            length = strlen(line);
        }
        read_line(&script, line, out);
    }
    return out[0] != '\0' && strcmp(out, path) != 0;
}
