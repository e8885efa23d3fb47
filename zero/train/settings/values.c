/* values.c: parses an option's value into its field of the settings and prints it back. Keeps no memory. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/sizes.h"
#include "zero/train/data.h"
#include "zero/train/report/terminal.h"
#include "zero/train/settings/flags.h"

/* ---- Values -------------------------------------------------------------------------------------------- */

static bool read_count(const char *text, uint64_t *out)
{
    char *end;
    if (text[0] < '0' || text[0] > '9')
        return false;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0';
}

/* Whether a text is a whole number, with any number of digits. */
static bool is_beyond(const char *text)
{
    text += text[0] == '-';
    return text[0] && text[strspn(text, "0123456789")] == '\0';
}

static bool read_real(const char *text, double *out)
{
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    /* strtod would also accept blanks, "nan", "inf" and hexadecimal */
    return strchr("0123456789.-+", text[0]) && text[0] && end != text && *end == '\0' && isfinite(*out) &&
           !strpbrk(text, "xX");
}

/* Index of `text` in "none|selective|full"; -1: not a choice. */
static int choice_index(const char *choices, const char *text)
{
    size_t length = strlen(text);
    for (int index = 0; choices && length > 0; index++) {
        const char *end = strchrnul(choices, '|');
        if ((size_t)(end - choices) == length && memcmp(choices, text, length) == 0)
            return index;
        choices = *end ? end + 1 : NULL;
    }
    return -1;
}

/* ---- Storing one option -------------------------------------------------------------------------------- */

int zr_flag_wrong(const struct zr_flag *flag, const char *value, const char *format, ...)
{
    char message[512];
    va_list list;
    va_start(list, format);
    vsnprintf(message, sizeof message, format, list);
    va_end(list);
    zr_fail(ZR_ERR_INVALID, "--%s%s%.200s: %s", flag->name, value ? " " : "", value ? value : "", message);
    return ZR_EXIT_USAGE;
}

static void store_whole(const struct zr_flag *flag, struct zr_train_config *config, uint64_t value)
{
    char *field = (char *)config + flag->offset;
    uint32_t narrow = (uint32_t)value;
    if (flag->room_bytes == sizeof value)
        memcpy(field, &value, sizeof value);
    else if (flag->room_bytes == sizeof narrow)
        memcpy(field, &narrow, sizeof narrow);
    else
        *(bool *)field = value != 0;
}

/* Compares in integers: above 2^53 a double cannot represent every value. */
static bool is_out_of_range(const struct zr_flag *flag, uint64_t value)
{
    return value < (uint64_t)flag->min || value > (uint64_t)flag->max;
}

static int store_count(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    uint64_t number;
    bool read = read_count(value, &number);
    if (!read && !is_beyond(value))
        return zr_flag_wrong(flag, value, "not a whole number; give a whole number from %.0f to %.0f%s",
                             flag->min, flag->max, flag->kind == ZR_FLAG_STEPS ? ", or auto" : "");
    if (!read || is_out_of_range(flag, number))
        return zr_flag_wrong(flag, value, "out of range; give %.0f to %.0f", flag->min, flag->max);
    store_whole(flag, config, number);
    return -1;
}

static int store_size(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    char min[ZR_SIZE_ROOM], max[ZR_SIZE_ROOM];
    uint64_t bytes;
    const char *problem = zr_size_read(value, strlen(value), &bytes);
    if (problem)
        return zr_flag_wrong(flag, value, "%s", problem);
    if (is_out_of_range(flag, bytes))
        return zr_flag_wrong(flag, value, "out of range; give %s (%.0f) to %s",
                             zr_size_print(min, (uint64_t)flag->min), flag->min,
                             zr_size_print(max, (uint64_t)flag->max));
    store_whole(flag, config, bytes);
    return -1;
}

static int store_room(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    bool automatic = strcmp(value, "auto") == 0;
    if (!automatic && strcmp(value, "none") != 0)
        return store_size(flag, config, value);
    store_whole(flag, config, automatic ? SIZE_MAX : 0);
    return -1;
}

/* Stores the number of steps, or the seconds in the element after it if the value has a unit. */
static int store_every(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    static const struct {
        char unit;
        uint64_t seconds;
    } units[] = {{'s', 1}, {'m', 60}, {'h', 3600}};
    char digits[24] = "";
    size_t length = strlen(value), unit = 0, count = sizeof units / sizeof *units;
    uint64_t number, every[2] = {0, 0};
    while (unit < count && (length == 0 || value[length - 1] != units[unit].unit))
        unit++;
    if (unit < count && length < sizeof digits)
        memcpy(digits, value, length - 1);
    if (!read_count(unit < count ? digits : value, &number))
        return zr_flag_wrong(flag, value,
                             "neither steps nor a time; give a whole number of steps, or 30s, 10m, 2h");
    if (is_out_of_range(flag, number))
        return zr_flag_wrong(flag, value, "out of range; give at most %.0f", flag->max);
    every[unit < count] = number * (unit < count ? units[unit].seconds : 1);
    memcpy((char *)config + flag->offset, every, sizeof every);
    return -1;
}

static int store_choice(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    int index = choice_index(flag->choices, value);
    if (index < 0)
        return zr_flag_wrong(flag, value, "not a valid choice; give %s", flag->choices);
    store_whole(flag, config, (uint64_t)index);
    return -1;
}

/* The field for the folder of nvme:DIR. */
static char *folder_of(const struct zr_flag *flag, struct zr_train_config *config)
{
    return flag->offset == offsetof(struct zr_train_config, spill)                ? config->spill_folder
           : flag->offset == offsetof(struct zr_train_config, offload_parameters) ? config->parameters_folder
                                                                                  : config->offload_folder;
}

static int store_tier(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    static const char nvme[] = "nvme:";
    char *folder = folder_of(flag, config);
    if (strncmp(value, nvme, sizeof nvme - 1) != 0) {
        folder[0] = '\0';
        return strcmp(value, "nvme") == 0 ? zr_flag_wrong(flag, value, "needs a folder: nvme:DIR")
               : strcmp(value, "none") != 0 &&
                       (strcmp(value, "cpu") != 0 || choice_index(flag->choices, value) < 0)
                   ? zr_flag_wrong(flag, value, "not a valid choice; give %s", flag->choices)
                   : store_choice(flag, config, value);
    }
    value += sizeof nvme - 1;
    if (!value[0] || strlen(value) >= ZR_TRAIN_PATH_ROOM)
        return zr_flag_wrong(flag, nvme, "needs a folder of at most %d bytes", ZR_TRAIN_PATH_ROOM - 1);
    snprintf(folder, ZR_TRAIN_PATH_ROOM, "%s", value);
    store_whole(flag, config, ZR_TIER_NVME);
    return -1;
}

static int store_recompute(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    uint64_t layers = 0;
    static const char full[] = "full:";
    bool some = strncmp(value, full, sizeof full - 1) == 0;
    int index = some ? ZR_RECOMPUTE_FULL : choice_index(flag->choices, value);
    if (index < 0)
        return zr_flag_wrong(flag, value, "not a valid choice; give %s, or full:N", flag->choices);
    if (some && (!read_count(value + sizeof full - 1, &layers) || layers == 0 || layers > 65536))
        return zr_flag_wrong(flag, value, "full:N recomputes the first N layers; give full:1 to full:65536");
    config->shape.recompute = (enum zr_recompute)index;
    config->shape.recompute_layers = (unsigned)layers;
    return -1;
}

/* Stores a number. `value` is the text that `number` was read from. */
static int store_number(const struct zr_flag *flag, struct zr_train_config *config, const char *value,
                        double number)
{
    if (number < flag->min || number > flag->max)
        return zr_flag_wrong(flag, value, "out of range; give %g to %g", flag->min, flag->max);
    float narrow = (float)number;
    if (number != 0 && narrow == 0) /* 0 would disable an option such as --clip or --lr */
        return zr_flag_wrong(flag, value, "too small to represent; give 0, or a larger number");
    if (flag->room_bytes == sizeof number)
        memcpy((char *)config + flag->offset, &number, sizeof number);
    else
        memcpy((char *)config + flag->offset, &narrow, sizeof narrow);
    return -1;
}

static int store_real(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    double number;
    if (!read_real(value, &number))
        return zr_flag_wrong(flag, value, "not a number; give a number from %g to %g", flag->min, flag->max);
    return store_number(flag, config, value, number);
}

static int store_rate(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    double number;
    uint64_t bytes;
    if (!zr_size_read(value, strlen(value), &bytes))
        number = (double)bytes;
    else if (!read_real(value, &number))
        return zr_flag_wrong(flag, value, "not a rate; give bytes per second, such as 25e9 or 25GB");
    return store_number(flag, config, value, number);
}

static int store_ratio(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    const double automatic = ZR_RATIO_AUTO;
    if (strcmp(value, "auto") != 0)
        return store_real(flag, config, value);
    memcpy((char *)config + flag->offset, &automatic, sizeof automatic);
    return -1;
}

static int store_vocab(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    config->bytes = strcmp(value, "byte") == 0;
    if (config->bytes) {
        config->shape.vocabulary = 256;
        return -1;
    }
    uint64_t number;
    if (!read_count(value, &number))
        return zr_flag_wrong(flag, value,
                             "not a vocabulary; give byte for text, or the number of tokens of a shard");
    return store_count(flag, config, value);
}

/* Appends a line to the sources of the data. */
static int store_source(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    char *field = (char *)config + flag->offset;
    size_t used = strlen(field), length = strlen(value);
    const char *problem = zr_data_source_problem(value);
    if (problem || strchr(value, '\n'))
        return zr_flag_wrong(flag, value, "%s; give FILE, or FILE:weight=0.5",
                             problem ? problem : "has a line feed");
    if (used + (used > 0) + length >= flag->room_bytes)
        return zr_flag_wrong(flag, NULL, "longer than %zu bytes in total; use * in a pattern",
                             flag->room_bytes - 1);
    snprintf(field + used, flag->room_bytes - used, "%s%s", used ? "\n" : "", value);
    return -1;
}

/* Appends a value to a list. */
static int store_list(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    struct zr_patterns *list = (void *)((char *)config + flag->offset);
    struct zr_group_rule rule;
    const char *problem = flag->kind == ZR_FLAG_GROUP ? zr_group_rule_read(value, &rule) : NULL;
    if (!value[0])
        return zr_flag_wrong(flag, NULL, "empty; give %s, or leave the option out", flag->argument);
    if (strlen(value) >= ZR_PATTERN_ROOM)
        return zr_flag_wrong(flag, value, "longer than %d bytes; shorten it", ZR_PATTERN_ROOM - 1);
    if (problem)
        return zr_flag_wrong(flag, value, "%s", problem);
    if (list->count == ZR_PATTERNS_MAX)
        return zr_flag_wrong(flag, value, "given more than %d times; use * in a pattern", ZR_PATTERNS_MAX);
    snprintf(list->text[list->count++], ZR_PATTERN_ROOM, "%s", value);
    return -1;
}

static int store_lora(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    struct zr_lora *lora = &config->trainable.lora;
    const char *colon = strchrnul(value, ':'), *pattern = *colon ? colon + 1 : "*attn*";
    char digits[24] = "";
    uint64_t rank;
    if ((size_t)(colon - value) < sizeof digits)
        memcpy(digits, value, (size_t)(colon - value));
    if (!read_count(digits, &rank) || is_out_of_range(flag, rank))
        return zr_flag_wrong(flag, value, "not a rank; give %.0f to %.0f, or RANK:PATTERN", flag->min,
                             flag->max);
    if (!pattern[0] || strlen(pattern) >= sizeof lora->pattern)
        return zr_flag_wrong(flag, value, "needs a pattern of at most %zu bytes after the colon",
                             sizeof lora->pattern - 1);
    lora->rank = (unsigned)rank;
    memset(lora->pattern, 0, sizeof lora->pattern);
    snprintf(lora->pattern, sizeof lora->pattern, "%s", pattern);
    return -1;
}

static const char diloco[] = "diloco:";

static int store_outer(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    uint64_t steps = 0;
    if (strcmp(value, "none") != 0 &&
        (strncmp(value, diloco, sizeof diloco - 1) != 0 || !read_count(value + sizeof diloco - 1, &steps) ||
         is_out_of_range(flag, steps)))
        return zr_flag_wrong(flag, value, "not diloco:H or none; give a number of steps H of %.0f to %.0f",
                             flag->min, flag->max);
    config->outer.period = (unsigned)steps;
    return -1;
}

static int store_text(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    size_t length = strlen(value);
    if (length == 0 && strcmp(flag->name, "prompt") != 0)
        return zr_flag_wrong(flag, NULL, "empty; give %s, or leave the option out", flag->argument);
    if (length >= flag->room_bytes)
        return zr_flag_wrong(flag, NULL, "longer than %zu bytes; shorten it", flag->room_bytes - 1);
    memcpy((char *)config + flag->offset, value, length + 1);
    return -1;
}

/* Stores a value by the kind of its option. Returns -1 to continue, else the exit code. */
int zr_flag_store_in(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    switch (flag->kind) {
    case ZR_FLAG_TEXT:
        return store_text(flag, config, value);
    case ZR_FLAG_SOURCES:
        return store_source(flag, config, value);
    case ZR_FLAG_LIST:
    case ZR_FLAG_GROUP:
        return store_list(flag, config, value);
    case ZR_FLAG_LORA:
        return store_lora(flag, config, value);
    case ZR_FLAG_OUTER:
        return store_outer(flag, config, value);
    case ZR_FLAG_COMPRESS:
        return zr_compress_store(flag, config, value);
    case ZR_FLAG_BYTES:
        return store_size(flag, config, value);
    case ZR_FLAG_STEPS:
        if (strcmp(value, "auto") != 0)
            return store_count(flag, config, value);
        store_whole(flag, config, UINT64_MAX);
        return -1;
    case ZR_FLAG_COUNT:
        return store_count(flag, config, value);
    case ZR_FLAG_ROOM:
        return store_room(flag, config, value);
    case ZR_FLAG_REAL:
        return store_real(flag, config, value);
    case ZR_FLAG_RATE:
        return store_rate(flag, config, value);
    case ZR_FLAG_EVERY:
        return store_every(flag, config, value);
    case ZR_FLAG_CHOICE:
        return store_choice(flag, config, value);
    case ZR_FLAG_TIER:
        return store_tier(flag, config, value);
    case ZR_FLAG_VOCAB:
        return store_vocab(flag, config, value);
    case ZR_FLAG_RATIO:
        return store_ratio(flag, config, value);
    case ZR_FLAG_RECOMPUTE:
        return store_recompute(flag, config, value);
    case ZR_FLAG_SWITCH:
        store_whole(flag, config, 1);
        return -1;
    case ZR_FLAG_HELP: /* args.c */
    case ZR_FLAG_VERSION:
        break;
    }
    return ZR_EXIT_USAGE;
}

const struct zr_flag *zr_flag_find(const char *name)
{
    if (strcmp(name, "micro-batches") == 0) /* alias */
        name = "accumulate";
    for (size_t i = 0; i < zr_flags_count; i++)
        if (strcmp(zr_flags[i].name, name) == 0)
            return &zr_flags[i];
    return NULL;
}

size_t zr_flag_index(const struct zr_flag *flag)
{
    return (size_t)(flag - zr_flags);
}

bool zr_flag_given(const struct zr_train_config *config, const char *name)
{
    const struct zr_flag *flag = zr_flag_find(name);
    return flag && config->given[zr_flag_index(flag)];
}

bool zr_flag_set(const struct zr_train_config *config, const char *name)
{
    const struct zr_flag *flag = zr_flag_find(name);
    return zr_flag_given(config, name) || config->filed[zr_flag_index(flag)];
}

int zr_flag_store(const char *name, struct zr_train_config *config, const char *value)
{
    const struct zr_flag *flag = zr_flag_find(name);
    if (flag)
        return zr_flag_store_in(flag, config, value);
    zr_fail(ZR_ERR_INVALID, "unknown option --%s", name);
    return ZR_EXIT_USAGE;
}

/* ---- Printing a command line --------------------------------------------------------------------------- */

/* Quotes the value for a shell if necessary. */
static void print_quoted(struct zr_text *text, const char *value)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,+=@%";
    if (value[0] && strspn(value, plain) == strlen(value)) {
        zr_text_print(text, " %s", value);
        return;
    }
    zr_text_put(text, " '", 2);
    for (; *value; value++)
        zr_text_put(text, *value == '\'' ? "'\\''" : value, *value == '\'' ? 4 : 1);
    zr_text_put(text, "'", 1);
}

static uint64_t whole_field(const struct zr_flag *flag, const struct zr_train_config *config)
{
    const char *field = (const char *)config + flag->offset;
    uint64_t wide;
    uint32_t narrow;
    if (flag->room_bytes == sizeof wide) {
        memcpy(&wide, field, sizeof wide);
        return wide;
    }
    if (flag->room_bytes == sizeof narrow) {
        memcpy(&narrow, field, sizeof narrow);
        return narrow;
    }
    return *(const bool *)field;
}

/* Prints the fewest digits that read back as the same float. A whole number is printed exactly: rounding
 * up could exceed the option's maximum. */
static void print_float(struct zr_text *text, float value)
{
    char number[32];
    int digits = 6;
    if (value == truncf(value) && fabsf(value) < 0x1p53f) {
        zr_text_print(text, " %.0f", (double)value);
        return;
    }
    do
        snprintf(number, sizeof number, "%.*g", digits, (double)value);
    while (strtof(number, NULL) != value && ++digits <= 9);
    zr_text_print(text, " %s", number);
}

static void print_sources(struct zr_text *text, const struct zr_flag *flag, const char *at)
{
    char source[ZR_TRAIN_PATH_ROOM];
    for (size_t length; *at; at += length + (at[length] != '\0')) {
        length = strcspn(at, "\n");
        snprintf(source, sizeof source, "%.*s", (int)length, at);
        print_quoted(text, source);
        if (at[length])
            zr_text_print(text, " --%s", flag->name);
    }
}

void zr_flag_print(struct zr_text *text, const struct zr_flag *flag, const struct zr_train_config *config)
{
    const char *choice = flag->choices;
    float real;
    double wide;

    if (flag->kind == ZR_FLAG_RECOMPUTE) {
        for (unsigned left = config->shape.recompute; left > 0; left--)
            choice = strchr(choice, '|') + 1;
        zr_text_print(text, " %.*s", (int)strcspn(choice, "|"), choice);
        if (config->shape.recompute_layers)
            zr_text_print(text, ":%u", config->shape.recompute_layers);
    } else if (flag->kind == ZR_FLAG_EVERY) {
        uint64_t every[2];
        memcpy(every, (const char *)config + flag->offset, sizeof every);
        zr_text_print(text, " %llu%s", (unsigned long long)(every[1] ? every[1] : every[0]),
                      every[1] ? "s" : "");
    } else if (flag->kind == ZR_FLAG_ROOM &&
               (config->speculates_if_room || whole_field(flag, config) == SIZE_MAX)) {
        zr_text_print(text, " auto");
    } else if (flag->kind == ZR_FLAG_STEPS && whole_field(flag, config) == UINT64_MAX) {
        zr_text_print(text, " auto");
    } else if (flag->kind == ZR_FLAG_ROOM && whole_field(flag, config) == 0) {
        zr_text_print(text, " none");
    } else if (flag->kind == ZR_FLAG_TEXT) {
        print_quoted(text, (const char *)config + flag->offset);
    } else if (flag->kind == ZR_FLAG_LORA) {
        char lora[ZR_PATTERN_ROOM + 16];
        snprintf(lora, sizeof lora, "%u:%s", config->trainable.lora.rank, config->trainable.lora.pattern);
        print_quoted(text, lora);
    } else if (flag->kind == ZR_FLAG_OUTER) {
        zr_text_print(text, " %s%u", diloco, config->outer.period);
    } else if (flag->kind == ZR_FLAG_SOURCES) {
        print_sources(text, flag, (const char *)config + flag->offset);
    } else if (flag->kind == ZR_FLAG_COMPRESS) {
        zr_compress_print(text, config);
    } else if (zr_flag_repeats(flag)) {
        const struct zr_patterns *list = (const void *)((const char *)config + flag->offset);
        for (unsigned i = 0; i < list->count; i++) {
            if (i > 0)
                zr_text_print(text, " --%s", flag->name);
            print_quoted(text, list->text[i]);
        }
    } else if (flag->kind == ZR_FLAG_RATIO && config->offload_ratio < 0) {
        zr_text_print(text, " auto");
    } else if (flag->kind == ZR_FLAG_RATIO || flag->kind == ZR_FLAG_RATE ||
               (flag->kind == ZR_FLAG_REAL && flag->room_bytes == sizeof wide)) {
        memcpy(&wide, (const char *)config + flag->offset, sizeof wide);
        zr_text_print(text, " %.15g", wide);
    } else if (flag->kind == ZR_FLAG_REAL) {
        memcpy(&real, (const char *)config + flag->offset, sizeof real);
        print_float(text, real);
    } else if (flag->kind == ZR_FLAG_VOCAB && config->bytes) {
        zr_text_print(text, " byte");
    } else if (flag->kind == ZR_FLAG_TIER && whole_field(flag, config) == ZR_TIER_NVME) {
        char folder[ZR_TRAIN_PATH_ROOM + 8];
        snprintf(folder, sizeof folder, "nvme:%s", folder_of(flag, (struct zr_train_config *)config));
        print_quoted(text, folder);
    } else if (flag->kind == ZR_FLAG_CHOICE || flag->kind == ZR_FLAG_TIER) {
        for (uint64_t left = whole_field(flag, config); left > 0; left--)
            choice = strchr(choice, '|') + 1;
        zr_text_print(text, " %.*s", (int)strcspn(choice, "|"), choice);
    } else if (flag->kind != ZR_FLAG_SWITCH) {
        zr_text_print(text, " %llu", (unsigned long long)whole_field(flag, config));
    }
}

void zr_args_print(struct zr_text *text, const struct zr_train_config *config,
                   const struct zr_args_change *changes, size_t changes_count)
{
    zr_text_print(text, "%s", config->program ? config->program : "zr-train");
    for (size_t i = 0; i < zr_flags_count; i++) {
        const struct zr_flag *flag = &zr_flags[i];
        const struct zr_args_change *change = NULL;
        for (size_t c = 0; c < changes_count; c++)
            if (strcmp(changes[c].name, flag->name) == 0)
                change = &changes[c];
        bool once = strcmp(flag->name, "json") == 0 || strcmp(flag->name, "trace") == 0;
        if (change ? !change->value : !config->given[i] || once)
            continue;
        zr_text_print(text, " --%s", flag->name);
        if (change)
            print_quoted(text, change->value);
        else
            zr_flag_print(text, flag, config);
    }
}
