/* fuzz_settings.h: hostile files around a run: the text or tokens it learns from, its settings, its log, and
 * what the system says of the machine. */
#ifndef ZR_FUZZ_SETTINGS_H
#define ZR_FUZZ_SETTINGS_H

#include <jansson.h>
#include <math.h>
#include <sys/stat.h>

#include "alloc/base/option.h"
#include "tests/support/fuzz/fuzz_ground.h"
#include "zero/launch/start.h"
#include "zero/train/settings/config.h"
#include "zero/train/data.h"
#include "zero/train/settings/flags.h"
#include "zero/train/report/log.h"

/* ---- Training data ------------------------------------------------------------------------------------- */

enum { FUZZ_LENGTH = 8, FUZZ_BATCH = 2, FUZZ_VOCABULARY = 50257 };

/* The tokens of a window stand in this part of the file, one after the other. */
static inline bool fuzz_window(const struct zr_data *data, const unsigned char *part, size_t part_bytes,
                               const int32_t *tokens, const int32_t *targets)
{
    unsigned char raw[8 * (FUZZ_LENGTH + 1)] = {0};
    size_t each = data->files.files[0].token_bytes;
    for (unsigned i = 0; i <= FUZZ_LENGTH; i++) {
        int32_t token = i < FUZZ_LENGTH ? tokens[i] : targets[FUZZ_LENGTH - 1];
        if (token < 0 || (size_t)token >= data->options.vocabulary ||
            (i > 0 && i < FUZZ_LENGTH && targets[i - 1] != token))
            return false;
        for (size_t b = 0; b < each && b < sizeof token; b++)
            raw[each * i + b] = (unsigned char)(token >> 8 * b);
    }
    for (size_t at = 0; at + each * (FUZZ_LENGTH + 1) <= part_bytes; at += each)
        if (memcmp(part + at, raw, each * (FUZZ_LENGTH + 1)) == 0)
            return true;
    return false;
}

/* Windows of three steps from the part for training, and all of validation from the part held out. */
static inline bool fuzz_windows(struct zr_data *file, const unsigned char *data, bool scanned)
{
    int32_t tokens[FUZZ_LENGTH * FUZZ_BATCH], targets[FUZZ_LENGTH * FUZZ_BATCH];
    const struct zr_token_file *first = &file->files.files[0];
    const unsigned char *train = data + first->lead_bytes;
    size_t train_bytes = (size_t)(file->train_count * first->token_bytes), count = FUZZ_BATCH;
    size_t held_bytes = (size_t)((file->tokens_count - file->train_count) * first->token_bytes);
    uint64_t rounds = zr_data_validation_rounds(file), seen = 0;
    bool good = true;
    for (uint64_t step = 1; step < 4 + rounds && good; step++) {
        bool held = step >= 4;
        struct zr_data_place place = {.step = held ? step - 4 : step};
        zr_result got = held ? zr_data_validation(file, &place, tokens, targets, &count)
                             : zr_data_train(file, &place, tokens, targets);
        good = fuzz_answer(got) && (!scanned || got == ZR_OK);
        for (size_t row = 0; got == ZR_OK && row < count; row++)
            good &= fuzz_window(file, held ? train + train_bytes : train, held ? held_bytes : train_bytes,
                                tokens + row * FUZZ_LENGTH, targets + row * FUZZ_LENGTH);
        seen += held && got == ZR_OK ? count : 0;
    }
    return good && (!scanned || seen == file->validation_windows);
}

/* Megatron's two files, NAME.bin and NAME.idx. */
static char fuzz_dataset[64];

static inline bool fuzz_data(const char *path, const struct fuzz_part *part, zr_result *result, bool text)
{
    const unsigned char *data = part->data;
    size_t bytes = part->bytes;
    struct zr_data file;
    *result = zr_data_open(&file, &(struct zr_data_options){.sources = path,
                                                            .bytes = text,
                                                            .vocabulary = text ? 256 : FUZZ_VOCABULARY,
                                                            .sequence = FUZZ_LENGTH,
                                                            .batch = FUZZ_BATCH,
                                                            .data_ranks = 1,
                                                            .seed = 3});
    if (*result != ZR_OK)
        return fuzz_answer(*result) && !file.files.files;
    bool good =
        file.files.files[0].lead_bytes + file.tokens_count * file.files.files[0].token_bytes <= bytes &&
        file.train_count < file.tokens_count;
    *result = zr_data_scan(&file);
    good = good && fuzz_answer(*result) && fuzz_windows(&file, data, *result == ZR_OK);
    zr_data_close(&file);
    return good;
}

static inline bool fuzz_tokens(const unsigned char *data, size_t bytes, zr_result *result)
{
    return fuzz_write(data, bytes) && fuzz_data(fuzz_path, &(struct fuzz_part){data, bytes}, result, false);
}

static inline bool fuzz_text_file(const unsigned char *data, size_t bytes, zr_result *result)
{
    return fuzz_write(data, bytes) && fuzz_data(fuzz_path, &(struct fuzz_part){data, bytes}, result, true);
}

static inline bool fuzz_index(const unsigned char *data, size_t bytes, zr_result *result)
{
    struct fuzz_part parts[2];
    fuzz_split(data, bytes, parts, 2);
    return fuzz_write_place(1, parts[0].data, parts[0].bytes) && fuzz_write(parts[1].data, parts[1].bytes) &&
           fuzz_data(fuzz_dataset, &parts[1], result, false);
}

/* ---- Settings ------------------------------------------------------------------------------------------ */

/* A text as ZR_CONF, and as the name of a statistic. */
static inline bool fuzz_setting(const unsigned char *data, size_t bytes, zr_result *result)
{
    char text[300];
    uint64_t value;
    bytes = bytes < sizeof text - 1 ? bytes : sizeof text - 1;
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    *result = zr_option_set(text);
    bool good = *result == ZR_OK || (*result == ZR_ERR_INVALID && fuzz_plain_words());
    good &= zr_option_get(ZR_OPTION_CHECK) <= ZR_CHECK_BYTES;
    zr_option_set(NULL);
    zr_result named = zr_ctl_get(text, &value);
    return good && (named == ZR_OK || (named == ZR_ERR_INVALID && fuzz_plain_words()));
}

static inline void fuzz_config_defaults(struct zr_train_config *config)
{
    memset(config, 0, sizeof *config);
    for (size_t i = 0; i < zr_flags_count; i++)
        if (zr_flags[i].fallback)
            zr_flag_store(zr_flags[i].name, config, zr_flags[i].fallback);
}

/* The settings lie within what their options take. */
static inline bool fuzz_options_hold(const struct zr_train_config *config)
{
    bool good = true;
    for (size_t i = 0; i < zr_flags_count && good; i++) {
        const struct zr_flag *flag = &zr_flags[i];
        const char *field = (const char *)config + flag->offset;
        uint64_t whole = 0;
        float real;
        if ((flag->kind == ZR_FLAG_COUNT || flag->kind == ZR_FLAG_BYTES) && flag->fallback) {
            memcpy(&whole, field, flag->room_bytes);
            good = (double)whole >= flag->min && (double)whole <= flag->max;
        } else if (flag->kind == ZR_FLAG_REAL && flag->room_bytes == sizeof real && flag->fallback) {
            memcpy(&real, field, sizeof real);
            good = (double)real >= flag->min * 0.999999 && (double)real <= flag->max * 1.000001;
        }
    }
    return good;
}

/* An accepted file's batches multiply. */
static inline bool fuzz_config_holds(struct zr_train_config *config, struct zr_config_rest *rest)
{
    if (!fuzz_options_hold(config) || zr_config_resolve(rest, config) != ZR_OK)
        return fuzz_options_hold(config) && fuzz_plain_words();
    return rest->train_batch == 0 || rest->train_batch == (uint64_t)config->shape.batch *
                                                              config->micro_batches *
                                                              zr_train_data_ranks(config);
}

/* The same settings in another order and with other blanks: *other gets what they come to. */
static inline bool fuzz_config_again(const unsigned char *data, size_t bytes, struct zr_train_config *other,
                                     struct zr_config_rest *rest)
{
    json_set_alloc_funcs(malloc, free);
    json_t *root = json_loadb((const char *)data, bytes, 0, NULL);
    char *text = root ? json_dumps(root, JSON_SORT_KEYS | JSON_INDENT(3) | JSON_REAL_PRECISION(17)) : NULL;
    bool good = text && fuzz_write_place(0, text, strlen(text)) &&
                (strlen(text) > 65536 || zr_config_read(fuzz_path, other, rest) == ZR_OK);
    bool same_length = text && strlen(text) <= 65536;
    free(text);
    json_set_alloc_funcs(malloc, free);
    json_decref(root);
    return good && same_length;
}

static inline bool fuzz_config(const unsigned char *data, size_t bytes, zr_result *result)
{
    static struct zr_train_config defaults, config, other;
    struct zr_config_rest rest, other_rest;
    if (defaults.world == 0)
        fuzz_config_defaults(&defaults);
    config = other = defaults;
    if (!fuzz_write(data, bytes))
        return false;
    *result = zr_config_read(fuzz_path, &config, &rest);
    if (*result != ZR_OK)
        return (fuzz_answer(*result) || *result == ZR_ERR_INVALID) && fuzz_plain_words() &&
               strncmp(zr_last_error(), "--config '", 10) == 0 && strstr(zr_last_error(), "' line ");
    return fuzz_config_again(data, bytes, &other, &other_rest) &&
           memcmp(&config, &other, sizeof config) == 0 && rest.train_batch == other_rest.train_batch &&
           rest.has_batch == other_rest.has_batch && rest.has_accumulate == other_rest.has_accumulate &&
           rest.least_ratio == other_rest.least_ratio && rest.start_ratio == other_rest.start_ratio &&
           fuzz_config_holds(&config, &rest);
}

/* ---- The command line and the environment -------------------------------------------------------------- */

/* Takes the next line off the text, as a name and what follows it; false where there is none. */
static inline bool fuzz_next_pair(char **text, char **name, char **value)
{
    char *line = strsep(text, "\n");
    *name = line ? strsep(&line, "=") : NULL;
    *value = line;
    return *name != NULL;
}

/* Lines of option=value, each stored. */
static inline bool fuzz_options(const unsigned char *data, size_t bytes, zr_result *result)
{
    static struct zr_train_config config;
    char text[1024], *rest = text, *name, *value;
    bool good = true;
    bytes = bytes < sizeof text - 1 ? bytes : sizeof text - 1;
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    fuzz_config_defaults(&config);
    *result = ZR_OK;
    while (good && fuzz_next_pair(&rest, &name, &value)) {
        if (!value || strcmp(name, "help") == 0 || strcmp(name, "version") == 0)
            continue; /* these two print */
        int code = zr_flag_store(name, &config, value);
        good = fuzz_options_hold(&config) && (code == -1 || (code == ZR_EXIT_USAGE && fuzz_plain_words()));
        *result = code == -1 ? *result : ZR_ERR_INVALID;
    }
    return good;
}

static const char *const fuzz_variables[] = {
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMIX_NAMESPACE",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PMI_RANK",
    "PMI_SIZE",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_LOCALID",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_STEPID",
    "TORCHELASTIC_RUN_ID",
};
enum { FUZZ_VARIABLES = sizeof fuzz_variables / sizeof *fuzz_variables };

/* Lines of VARIABLE=value, as a launcher of ranks sets them. */
static inline bool fuzz_environment(const unsigned char *data, size_t bytes, zr_result *result)
{
    struct zr_start start;
    char text[1024], *rest = text, *name, *value;
    unsigned ranks = 0;
    bytes = bytes < sizeof text - 1 ? bytes : sizeof text - 1;
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    for (unsigned i = 0; i < FUZZ_VARIABLES; i++)
        unsetenv(fuzz_variables[i]);
    while (fuzz_next_pair(&rest, &name, &value))
        for (unsigned i = 0; i < FUZZ_VARIABLES && value; i++)
            if (strcmp(name, fuzz_variables[i]) == 0)
                setenv(name, value, 1);
    *result = zr_start_read(&start);
    if (*result != ZR_OK)
        return *result == ZR_ERR_INVALID && fuzz_plain_words();
    bool good = start.world >= 1 && start.rank < start.world &&
                (start.local_world == 0 || start.local_rank < start.local_world) && start.port <= 65535 &&
                memchr(start.key, 0, sizeof start.key) != NULL;
    zr_result checked = zr_start_check(&start, false, 0, &ranks);
    return good && (checked == ZR_OK ? ranks >= 1 && ranks <= ZR_MAX_WORLD : fuzz_plain_words());
}

/* ---- The log ------------------------------------------------------------------------------------------- */

enum { FUZZ_LOG_STEP = 12, FUZZ_LOG_LINE = 4096 };

/* Whether a log is cut before this line: it has no end, is too long for one of ours, or of a later step. */
static inline bool fuzz_log_ends(const char *line, size_t bytes, const char *newline)
{
    static const char head[] = "{\"step\": ";
    size_t length = newline ? (size_t)(newline - line) : bytes;
    double step = 0;
    if (!newline || length >= FUZZ_LOG_LINE)
        return true;
    if (length < sizeof head - 1 || memcmp(line, head, sizeof head - 1) != 0)
        return false;
    for (const char *at = line + sizeof head - 1; at < newline && *at >= '0' && *at <= '9'; at++)
        step = 10 * step + (*at - '0');
    return step > FUZZ_LOG_STEP;
}

static inline bool fuzz_log(const unsigned char *data, size_t bytes, zr_result *result)
{
    static char kept[1 << 20];
    const char *text = (const char *)data, *at = text, *end = text + bytes;
    struct zr_log log;
    struct stat is;
    if (bytes > sizeof kept || !fuzz_write(data, bytes))
        return bytes > sizeof kept;
    while (at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        if (fuzz_log_ends(at, (size_t)(end - at), newline))
            break;
        at = newline + 1;
    }
    *result = zr_log_open(&log, fuzz_path, FUZZ_LOG_STEP);
    bool good = *result == ZR_OK && fstat(fuzz_places[0].fd, &is) == 0 && is.st_size == at - text &&
                pread(fuzz_places[0].fd, kept, (size_t)(at - text), 0) == at - text &&
                memcmp(kept, text, (size_t)(at - text)) == 0;
    return zr_log_close(&log) == ZR_OK && good;
}

/* ---- The machine --------------------------------------------------------------------------------------- */

enum { FUZZ_MACHINE_FILES = 6, FUZZ_MACHINE_PLACE = 4 };
static const char *const fuzz_machine_files[FUZZ_MACHINE_FILES] = {
    "/proc/meminfo",        "/proc/cpuinfo",          "/proc/self/cgroup",
    "/proc/self/mountinfo", "/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/memory.max"};
static char fuzz_machine_root[32];

static inline bool fuzz_machine(const unsigned char *data, size_t bytes, zr_result *result)
{
    struct fuzz_part parts[FUZZ_MACHINE_FILES];
    struct zr_machine machine = {.cores_count = 64};
    bool good = true;
    fuzz_split(data, bytes, parts, FUZZ_MACHINE_FILES);
    for (unsigned i = 0; i < FUZZ_MACHINE_FILES; i++)
        good &= fuzz_write_place(FUZZ_MACHINE_PLACE + i, parts[i].data, parts[i].bytes);
    zr_os_machine_under(fuzz_machine_root, &machine);
    *result = machine.cgroup_limit_bytes || machine.cores_count < 64 ? ZR_OK : ZR_ERR_FORMAT;
    zr_fail(ZR_ERR_FORMAT, "%u %u %u", machine.memory_bytes > 0, machine.memory_available_bytes > 0,
            machine.cpu_name[0] != '\0'); /* which of its answers this is, for the corpus */
    return good && machine.cores_count >= 1 && machine.cores_count <= 64 &&
           machine.cgroup_limit_bytes < UINT64_C(1) << 60 &&
           memchr(machine.cpu_name, 0, sizeof machine.cpu_name) != NULL;
}

/* ---- Before and after ---------------------------------------------------------------------------------- */

static const char *const fuzz_machine_folders[] = {"/proc", "/proc/self", "/sys", "/sys/fs",
                                                   "/sys/fs/cgroup"};
enum { FUZZ_MACHINE_FOLDERS = sizeof fuzz_machine_folders / sizeof *fuzz_machine_folders };

static inline bool fuzz_settings_start(void)
{
    char path[128];
    strcpy(fuzz_machine_root, "/tmp/zr-fuzz-XXXXXX");
    bool good = mkdtemp(fuzz_machine_root) != NULL;
    for (unsigned i = 0; i < FUZZ_MACHINE_FOLDERS && good; i++) {
        snprintf(path, sizeof path, "%s%s", fuzz_machine_root, fuzz_machine_folders[i]);
        good = mkdir(path, 0700) == 0;
    }
    for (unsigned i = 0; i < 2 && good; i++) {
        snprintf(path, sizeof path, "%s/data.%s", fuzz_machine_root, i ? "idx" : "bin");
        good = symlink(fuzz_places[i].path, path) == 0;
    }
    snprintf(fuzz_dataset, sizeof fuzz_dataset, "%s/data.bin", fuzz_machine_root);
    for (unsigned i = 0; i < FUZZ_MACHINE_FILES && good; i++) {
        snprintf(path, sizeof path, "%s%s", fuzz_machine_root, fuzz_machine_files[i]);
        good = symlink(fuzz_places[FUZZ_MACHINE_PLACE + i].path, path) == 0;
    }
    return good;
}

static inline void fuzz_settings_end(void)
{
    char path[128];
    for (unsigned i = FUZZ_MACHINE_FOLDERS; i-- > 0;) {
        snprintf(path, sizeof path, "%s%s", fuzz_machine_root, fuzz_machine_folders[i]);
        zr_path_remove_folder(path);
    }
    zr_path_remove_folder(fuzz_machine_root);
}

#endif
