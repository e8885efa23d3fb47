/* rehearse_runs.c: several runs of `zr rehearse`: --sweep, --find-max and --allocators. See rehearse.h.
 *
 * {NAME} in an argument is replaced if NAME is a key of --sweep or --find-max; other braces stay as they are.
 * --json has {"version", "rows", "largest", "interrupted"}: a row has `values`, by key, and the members of an
 * answer. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "defrag/tool/input.h"
#include "defrag/tool/rehearse/rehearse.h"

enum {
    KEYS_MAX = 17,
    ARGUMENTS_MAX = 4096,
    TEXT_BYTES = 1 << 18,
    VALUE_BYTES = 64,
    VALUES_BYTES = 512, /* of all keys, in words */
    TAIL_LINES = 10
};
#define HIGHEST (UINT64_C(1) << 20) /* that --find-max tries without a bound */

struct key {
    char name[32];
    const char *values; /* apart by commas; NULL: the key of --find-max */
    char value[VALUE_BYTES];
};

struct runs {
    struct zr_rehearse *rehearse;
    const struct zr_rehearse_plan *plan;
    struct key keys[KEYS_MAX]; /* that of --find-max is the last one */
    unsigned keys_count;
    uint64_t low, high; /* of --find-max */
    unsigned rows_count;
    bool short_of_memory; /* a row does not fit, or none does */
    int interrupted;
    struct zr_rehearse_answer answer; /* of the last run */
    char *arguments[ARGUMENTS_MAX];   /* of the next one, in `text` */
    char text[TEXT_BYTES];
    struct zr_tool_output output;
    struct zr_text *json;   /* NULL: none */
    struct zr_text largest; /* JSON objects of --find-max */
    char largest_buffer[TEXT_BYTES / 4];
};

/* ---- Keys ---------------------------------------------------------------------------------------------- */

static int reject(const char *option, const char *given, const char *problem)
{
    zr_tool_log("rehearse: %s %.60s: %s; see zr rehearse --help", option, given, problem);
    return ZR_TOOL_USAGE;
}

/* {NAME}, with its length, if the text begins so. */
static const struct key *key_at(const struct runs *own, const char *text, size_t *length)
{
    for (unsigned i = 0; text[0] == '{' && i < own->keys_count; i++) {
        *length = strlen(own->keys[i].name) + 2;
        if (strncmp(text + 1, own->keys[i].name, *length - 2) == 0 && text[*length - 1] == '}')
            return &own->keys[i];
    }
    return NULL;
}

static bool has_key(const struct runs *own, const struct key *key)
{
    size_t length;
    for (char **argument = own->plan->command; *argument; argument++)
        for (const char *at = strchr(*argument, '{'); at; at = strchr(at + 1, '{'))
            if (key_at(own, at, &length) == key)
                return true;
    return false;
}

/* Less than 0: the key was added. */
static int add_key(struct runs *own, const char *option, const char *given)
{
    struct key *key = &own->keys[own->keys_count];
    size_t length = strcspn(given, "=");
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)given[i]) && !strchr("_-", given[i]))
            return reject(option, given, "a name has letters, digits, _ and -");
    if (length == 0 || length >= sizeof key->name)
        return reject(option, given, "it begins with a name of up to 31 letters");
    memcpy(key->name, given, length);
    for (unsigned i = 0; i < own->keys_count; i++)
        if (strcmp(own->keys[i].name, key->name) == 0)
            return reject(option, given, "the name is there already");
    own->keys_count++;
    if (!has_key(own, key))
        return reject(option, given, "no argument of the program has that name in braces, as {batch}");
    return -1;
}

static int add_sweep(struct runs *own, const char *given)
{
    int code = add_key(own, "--sweep", given);
    const char *values = strchr(given, '=');
    if (code < 0 && (!values || !values[1]))
        return reject("--sweep", given, "it takes NAME=VALUE,VALUE..");
    for (const char *at = values; code < 0 && at; at = strchr(at + 1, ','))
        if (strcspn(at + 1, ",") >= VALUE_BYTES)
            return reject("--sweep", given, "a value has up to 63 bytes");
    own->keys[own->keys_count - 1].values = values ? values + 1 : NULL;
    return code;
}

/* NAME, NAME=LOW:, NAME=LOW:HIGH */
static int add_find_max(struct runs *own, const char *given)
{
    int code = add_key(own, "--find-max", given);
    const char *range = strchr(given, '=');
    char *end = NULL;
    own->low = 1;
    own->high = HIGHEST;
    if (code >= 0 || !range)
        return code;
    if (isdigit((unsigned char)range[1]))
        own->low = strtoull(range + 1, &end, 10);
    if (end && end[0] == ':' && isdigit((unsigned char)end[1]))
        own->high = strtoull(end + 1, &end, 10);
    else if (end && end[0] == ':')
        end++;
    if (!end || *end || own->low < 1 || own->high < own->low || own->high > UINT64_MAX / 2)
        return reject("--find-max", given, "it takes NAME or NAME=LOW:HIGH, with 1 <= LOW <= HIGH");
    return -1;
}

/* ---- One row ------------------------------------------------------------------------------------------- */

/* Writes the command with the keys' values; false: it is too long. */
static bool substitute(struct runs *own)
{
    size_t at = 0, count = 0, length;
    for (char **argument = own->plan->command; *argument; argument++) {
        if (count + 1 == ARGUMENTS_MAX)
            return false;
        own->arguments[count++] = own->text + at;
        for (const char *from = *argument; *from;) {
            const struct key *key = key_at(own, from, &length);
            const char *part = key ? key->value : from;
            const size_t bytes = key ? strlen(key->value) : 1;
            if (at + bytes + 1 >= sizeof own->text)
                return false;
            memcpy(own->text + at, part, bytes);
            at += bytes;
            from += key ? length : 1;
        }
        own->text[at++] = '\0';
        if (at == sizeof own->text)
            return false;
    }
    own->arguments[count] = NULL;
    return true;
}

/* "batch=4 length=512" */
static void put_values(char *out, size_t room_bytes, const struct runs *own)
{
    size_t at = 0;
    out[0] = '\0';
    for (unsigned i = 0; i < own->keys_count && at < room_bytes; i++)
        at += (size_t)snprintf(out + at, room_bytes - at, "%s%s=%s", i ? " " : "", own->keys[i].name,
                               own->keys[i].value);
}

static void print_head(struct runs *own)
{
    struct zr_text *text = &own->output.text;
    for (unsigned i = 0; i < own->keys_count; i++)
        zr_text_print(text, "%-12s ", own->keys[i].name);
    zr_text_print(text, "%-8s %11s %10s %10s %10s %10s %8s\n", "fits", "left", "in use", "allocated",
                  "reserved", "zr", "run");
    zr_text_flush(text);
}

static const char *bytes_or_dash(char out[ZR_TOOL_NUMBER_ROOM], uint64_t bytes)
{
    return bytes ? zr_tool_bytes(out, bytes) : strcpy(out, "-");
}

static const char *fits_word(const struct zr_rehearse_answer *answer)
{
    switch (zr_rehearse_verdict(answer)) {
    case ZR_REHEARSE_FITS:
        return "yes";
    case ZR_REHEARSE_SHORT:
        return "no";
    default:
        return zr_rehearse_verdict_name(answer);
    }
}

static void print_row(struct runs *own)
{
    const struct zr_rehearse_answer *answer = &own->answer;
    const struct zr_rehearse_figures *figures = answer->figures;
    const uint64_t short_bytes = zr_rehearse_short_bytes(answer);
    struct zr_text *text = &own->output.text;
    char room[4][ZR_TOOL_NUMBER_ROOM], left[ZR_TOOL_NUMBER_ROOM + 1] = "-";
    if (zr_rehearse_verdict(answer) == ZR_REHEARSE_FITS)
        zr_tool_bytes(left, answer->device->memory_bytes - figures->use.peak_bytes);
    else if (short_bytes)
        zr_tool_bytes(left + 1, short_bytes);
    for (unsigned i = 0; i < own->keys_count; i++)
        zr_text_print(text, "%-12s ", own->keys[i].value);
    zr_text_print(text, "%-8s %11s %10s %10s %10s %10s %6.1f s\n", fits_word(answer), left,
                  zr_tool_bytes(room[0], figures->use.peak_bytes),
                  bytes_or_dash(room[1], figures->torch.allocated_bytes),
                  bytes_or_dash(room[2], figures->torch.reserved_bytes),
                  bytes_or_dash(room[3], figures->zr_bytes), (double)answer->ns / 1e9);
    zr_text_flush(text);
}

static void json_values(struct zr_text *json, const struct runs *own)
{
    zr_text_print(json, "{\"values\": {");
    for (unsigned i = 0; i < own->keys_count; i++) {
        zr_text_print(json, i ? ", " : "");
        zr_tool_json_words(json, own->keys[i].name, own->keys[i].value);
    }
    zr_text_print(json, "}");
}

/* The end of the program's own output. */
static void show_failure(const struct runs *own)
{
    const char *at = own->answer.tail + strlen(own->answer.tail);
    char values[VALUES_BYTES];
    for (unsigned lines = 0; at > own->answer.tail; at--)
        if (at[-1] == '\n' && at[0] && ++lines == TAIL_LINES)
            break;
    put_values(values, sizeof values, own);
    zr_tool_log("rehearse: %s: %s, which is not for memory; the program's output ends:", values,
                zr_rehearse_verdict_name(&own->answer));
    while (*at) {
        char line[512];
        size_t bytes = strcspn(at, "\n");
        snprintf(line, sizeof line, "%.*s", (int)bytes, at);
        zr_make_plain(line);
        fprintf(stderr, "  %s\n", line);
        at += bytes + (at[bytes] == '\n');
    }
}

/* Runs the command with the present values. Less than 0: the answer says whether it fits. */
static int run_row(struct runs *own)
{
    char folder[PATH_MAX], values[VALUES_BYTES], words[VALUES_BYTES + 32];
    if (!substitute(own)) {
        zr_tool_log("rehearse: the command is too long for --sweep and --find-max");
        return ZR_TOOL_USAGE;
    }
    put_values(values, sizeof values, own);
    snprintf(words, sizeof words, "run %u: %s", ++own->rows_count, values);
    zr_tool_progress_say(words);
    snprintf(folder, sizeof folder, "%s/%u", own->plan->output ? own->plan->output : "", own->rows_count);
    int code = zr_rehearse_run(own->rehearse,
                               &(struct zr_rehearse_run){.command = own->arguments,
                                                         .output = own->plan->output ? folder : NULL,
                                                         .logged = true},
                               &own->answer);
    zr_tool_progress_say(NULL);
    if (code > 128)
        own->interrupted = code - 128;
    if (code >= 0)
        return code;
    if (own->answer.interrupted) {
        own->interrupted = own->answer.interrupted;
        return 128 + own->interrupted;
    }
    print_row(own);
    if (own->json) {
        zr_text_print(own->json, own->rows_count > 1 ? ",\n" : "");
        json_values(own->json, own);
        zr_text_print(own->json, ", ");
        zr_rehearse_json(own->json, &own->answer);
        zr_text_print(own->json, "}");
    }
    if (zr_rehearse_verdict(&own->answer) <= ZR_REHEARSE_WENT_ON)
        return -1;
    show_failure(own);
    return ZR_TOOL_INPUT;
}

/* ---- All rows ------------------------------------------------------------------------------------------ */

/* Whether the last run fits. Requests that failed while the program went on are no fit: it would go on with
 * any size. */
static bool last_fits(const struct runs *own)
{
    return zr_rehearse_verdict(&own->answer) == ZR_REHEARSE_FITS;
}

static void say_largest(struct runs *own, uint64_t fits, uint64_t too_large, uint64_t short_bytes)
{
    struct zr_text *text = &own->output.text;
    char room[ZR_TOOL_NUMBER_ROOM], values[VALUES_BYTES];
    put_values(values, sizeof values, own);
    if (fits == 0)
        zr_text_print(text, "%s, the least, does not fit\n", values);
    else if (too_large > own->high)
        zr_text_print(text, "%s fits, the most that was tried\n", values);
    else
        zr_text_print(text, "%s is the largest that fits; %" PRIu64 " is short by %s\n", values, too_large,
                      zr_tool_bytes(room, short_bytes));
    zr_text_flush(text);
    zr_text_print(&own->largest, own->largest.used_bytes ? ",\n " : "");
    json_values(&own->largest, own);
    zr_text_print(&own->largest, ", \"fits\": %s", fits ? "true" : "false");
    zr_text_print(&own->largest, ", ");
    zr_tool_json_number(&own->largest, "too_large", too_large, too_large <= own->high);
    zr_text_print(&own->largest, "}");
}

/* Doubles the value until it does not fit, and halves the gap. */
static int find_largest(struct runs *own)
{
    struct key *key = &own->keys[own->keys_count - 1];
    uint64_t fits = 0, too_large = own->high + 1, value = own->low, short_bytes = 0;
    while (fits + 1 < too_large && value > 0) {
        snprintf(key->value, sizeof key->value, "%" PRIu64, value);
        int code = run_row(own);
        if (code >= 0)
            return code;
        if (last_fits(own)) {
            fits = value;
        } else {
            too_large = value;
            short_bytes = zr_rehearse_short_bytes(&own->answer);
        }
        if (fits == 0)
            value = 0; /* the least does not fit */
        else if (too_large > own->high)
            value = fits > own->high / 2 ? own->high : 2 * fits;
        else
            value = fits + (too_large - fits) / 2;
    }
    own->short_of_memory |= fits == 0;
    snprintf(key->value, sizeof key->value, "%" PRIu64, fits ? fits : own->low);
    say_largest(own, fits, too_large, short_bytes);
    return -1;
}

/* The product of the values, the last key's fastest. */
static int run_rows(struct runs *own, unsigned which)
{
    struct key *key = &own->keys[which];
    int code = -1;
    if (which == own->keys_count) {
        code = run_row(own);
        own->short_of_memory |= code < 0 && !last_fits(own);
        return code;
    }
    if (!key->values)
        return find_largest(own);
    for (const char *at = key->values; at && code < 0; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        snprintf(key->value, sizeof key->value, "%.*s", (int)strcspn(at, ","), at);
        code = run_rows(own, which + 1);
    }
    return code;
}

int zr_rehearse_sweep(struct zr_rehearse *rehearse, const struct zr_rehearse_plan *plan, struct zr_text *json)
{
    static struct runs own;
    int code = -1;
    own.rehearse = rehearse;
    own.plan = plan;
    own.json = json;
    for (unsigned i = 0; i < plan->sweeps.count && code < 0; i++)
        code = add_sweep(&own, plan->sweeps.list[i]);
    if (plan->find_max && code < 0)
        code = add_find_max(&own, plan->find_max);
    if (code >= 0)
        return code;
    if (plan->output)
        mkdir(plan->output, 0777); /* else the first run says why */
    zr_tool_output_start(&own.output);
    zr_text_start(&own.largest, NULL, own.largest_buffer, sizeof own.largest_buffer);
    print_head(&own);
    if (json)
        zr_text_print(json, "{\"version\": 1, \"rows\": [\n");
    code = run_rows(&own, 0);
    if (json)
        zr_text_print(json, "],\n \"largest\": [%s], \"interrupted\": %s}\n", own.largest_buffer,
                      own.interrupted ? "true" : "false");
    int written = zr_tool_output_end(&own.output);
    if (code >= 0 || written != ZR_TOOL_FINE)
        return code >= 0 ? code : written;
    return own.short_of_memory ? ZR_TOOL_THRESHOLD : ZR_TOOL_FINE;
}

/* ---- --allocators -------------------------------------------------------------------------------------- */

static void print_option(struct zr_text *text, const char *conf, const struct zr_rehearse_answer *answer)
{
    char room[3][ZR_TOOL_NUMBER_ROOM];
    zr_text_print(text, "zr: ran with   %s: %s", conf, zr_rehearse_verdict_name(answer));
    if (zr_rehearse_short_bytes(answer))
        zr_text_print(text, " by %s", zr_tool_bytes(room[0], zr_rehearse_short_bytes(answer)));
    if (answer->figures->torch.process)
        zr_text_print(text, ", %s allocated, %s reserved",
                      zr_tool_bytes(room[1], answer->figures->torch.allocated_bytes),
                      zr_tool_bytes(room[2], answer->figures->torch.reserved_bytes));
    zr_text_print(text, "\n");
    zr_text_flush(text);
}

int zr_rehearse_allocators(struct zr_rehearse *rehearse, char **command,
                           const struct zr_rehearse_answer *answer, struct zr_text *words,
                           struct zr_text *json)
{
    /* The values of the others come from the requests. */
    char confs[ZR_REHEARSE_OPTIONS + 2][sizeof answer->figures->options[0].conf] = {
        "expandable_segments:True", "garbage_collection_threshold:0.8"};
    unsigned count = 2;
    for (unsigned i = 0; i < answer->figures->options_count; i++)
        if (strncmp(answer->figures->options[i].conf, confs[0], strcspn(confs[0], ":")) != 0)
            memcpy(confs[count++], answer->figures->options[i].conf, sizeof confs[0]);
    if (json)
        zr_text_print(json, ",\n \"allocators\": [");
    int code = -1;
    for (unsigned i = 0; i < count && code < 0; i++) {
        struct zr_rehearse_answer one;
        char said[sizeof confs[0] + 32];
        snprintf(said, sizeof said, "running with %s", confs[i]);
        zr_tool_progress_say(said);
        code = zr_rehearse_run(
            rehearse, &(struct zr_rehearse_run){.command = command, .allocator = confs[i], .logged = true},
            &one);
        zr_tool_progress_say(NULL);
        if (code < 0 && one.interrupted)
            code = 128 + one.interrupted;
        if (code >= 0)
            break;
        print_option(words, confs[i], &one);
        if (!json)
            continue;
        zr_text_print(json, i ? ",\n  {" : "\n  {");
        zr_tool_json_words(json, "conf", confs[i]);
        zr_text_print(json, ", ");
        zr_rehearse_json(json, &one);
        zr_text_print(json, "}");
    }
    if (json)
        zr_text_print(json, "]");
    return code;
}
