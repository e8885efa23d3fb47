/* flags.h: the table of zr-train's options. args.c and values.c parse by the table, help.c prints it. Private
 * to settings/. */
#ifndef ZR_TRAIN_FLAGS_H
#define ZR_TRAIN_FLAGS_H

#include "zero/engine/modes.h"
#include "zero/train/settings/args.h"

enum zr_flag_kind {
    ZR_FLAG_TEXT,      /* text, stored in a char array */
    ZR_FLAG_COUNT,     /* a whole number from min to max */
    ZR_FLAG_STEPS,     /* likewise, or auto, stored as UINT64_MAX */
    ZR_FLAG_BYTES,     /* a size in bytes, see alloc/base/sizes.h */
    ZR_FLAG_ROOM,      /* a size in bytes, or none, or auto */
    ZR_FLAG_REAL,      /* a number from min to max */
    ZR_FLAG_RATE,      /* bytes per second: a number or a size, from min to max */
    ZR_FLAG_CHOICE,    /* one of `choices`; its index is stored */
    ZR_FLAG_TIER,      /* one of `choices`, or nvme:DIR, whose folder is stored in another field */
    ZR_FLAG_VOCAB,     /* byte, or a number of tokens */
    ZR_FLAG_RATIO,     /* a number from min to max, or auto */
    ZR_FLAG_EVERY,     /* a number of steps, or a time in seconds, minutes or hours */
    ZR_FLAG_RECOMPUTE, /* one of `choices`; the last one also as "full:N" */
    ZR_FLAG_SOURCES,   /* text, may be repeated; the values are stored in a char array with line feeds */
    ZR_FLAG_LIST,      /* text, may be repeated; the values are stored in a struct zr_patterns */
    ZR_FLAG_GROUP,     /* likewise; each value is a rule of a parameter group */
    ZR_FLAG_LORA,      /* a rank, or RANK:PATTERN; stored in a struct zr_lora */
    ZR_FLAG_COMPRESS,  /* KIND:METHOD[,..], may be repeated; stored in a struct zr_compression */
    ZR_FLAG_OUTER,     /* diloco:H, with H from min to max; stored in a struct zr_outer */
    ZR_FLAG_SWITCH,    /* no argument */
    ZR_FLAG_HELP,
    ZR_FLAG_VERSION,
};

struct zr_flag {
    const char *name;     /* without dashes */
    const char *group;    /* heading in the help */
    const char *argument; /* "N", "FILE"; NULL: none */
    const char *help;     /* one line without a final period */
    const char *fallback; /* default value in the syntax of the command line; NULL: zero, or resolved later */
    const char *resolved; /* description of a computed default in the help: "cores / ranks" */
    const char *choices;  /* "none|selective|full" */
    enum zr_flag_kind kind;
    size_t offset, room_bytes; /* the field in struct zr_train_config */
    double min, max;
};

extern const struct zr_flag zr_flags[];
extern const size_t zr_flags_count;

/* The option with this name; NULL: none. */
const struct zr_flag *zr_flag_find(const char *name);
/* Index in the table, zr_train_config.given and .filed. */
size_t zr_flag_index(const struct zr_flag *flag);
/* Writes a blank and the value in the syntax of the command line; nothing for a switch. */
void zr_flag_print(struct zr_text *text, const struct zr_flag *flag, const struct zr_train_config *config);
/* Stores a value; NULL for a switch. Returns -1, or exit code 2 with a message in zr_last_error(). */
int zr_flag_store_in(const struct zr_flag *flag, struct zr_train_config *config, const char *value);
/* Sets zr_last_error() to a message about a value, prefixed with the option's name. Returns exit code 2. */
int zr_flag_wrong(const struct zr_flag *flag, const char *value, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Stores the value of an option that takes one. Returns -1, or exit code 2 with a message in
 * zr_last_error(). */
int zr_flag_store(const char *name, struct zr_train_config *config, const char *value);
/* Whether an option may be repeated. */
static inline bool zr_flag_repeats(const struct zr_flag *flag)
{
    return flag->kind == ZR_FLAG_SOURCES || flag->kind == ZR_FLAG_LIST || flag->kind == ZR_FLAG_GROUP ||
           flag->kind == ZR_FLAG_COMPRESS;
}
/* Whether the command line has the option. */
bool zr_flag_given(const struct zr_train_config *config, const char *name);
/* Whether the command line or the file of --config has the option. */
bool zr_flag_set(const struct zr_train_config *config, const char *name);
/* Whether the command line has an option that requires a pipeline. */
bool zr_pipeline_flag_given(const struct zr_train_config *config);

zr_result zr_help_print(void);
zr_result zr_version_print(void);

/* ---- Optimizers: optimizers.c -----------------------------------------------------------------------------
 */

/* Sets the groups, and the numbers that neither command line nor file has, to the optimizer's defaults. */
void zr_optimizer_resolve(struct zr_train_config *config);
/* Whether an option is that of a number that the optimizer does not take. */
bool zr_optimizer_ignores(const struct zr_train_config *config, const char *option);
/* Message about settings that the optimizer excludes, also in zr_last_error(); NULL: none. */
const char *zr_optimizer_conflict(const struct zr_train_config *config);
/* The section of --help. */
void zr_optimizers_help(struct zr_text *text);

/* ---- Compression: compress.c ------------------------------------------------------------------------------
 */

/* zr_flag_store_in() of --compress. */
int zr_compress_store(const struct zr_flag *flag, struct zr_train_config *config, const char *value);
/* Leaves out what the file of --config compresses where it has no effect: with one data rank, at stage 0, for
 * nodes of one rank or of all. Else a node size in the file is --compress hpz at stage 3. */
void zr_compress_read_file(struct zr_train_config *config);
/* Sets the defaults of --compress-warmup, --compress-check and --zerone-local. */
void zr_compress_resolve(struct zr_train_config *config);
/* Takes hosts as nodes if MPI ranks on several hosts compress without --node-size. */
void zr_compress_take_hosts(struct zr_train_config *config);
/* Message about numbers of --compress; NULL: none. */
const char *zr_compress_conflict(const struct zr_train_config *config);

/* ---- Consistency --------------------------------------------------------------------------------------- */

/* Checks what options exclude and require (exclusions.c). ZR_ERR_INVALID: "A requires B: reason; fix", or "A
 * cannot be combined with B: reason; fix". The second function checks the rules of --epochs only. */
zr_result zr_exclusions_check(const struct zr_train_config *config);
zr_result zr_exclusions_check_epochs(const struct zr_train_config *config);
/* The table, for tests. */
extern const struct zr_mode_table zr_exclusions;
/* Message about the sizes of --resize and --elastic; NULL: none (sizes.c). */
const char *zr_sizes_conflict(const struct zr_train_config *config);
/* Checks resolved settings. Returns -1, or an exit code after printing a message. */
int zr_args_together(const struct zr_train_config *config);
/* Checks --bucket-bytes and rounds it down to whole lines. Returns -1, or an exit code after printing a
 * message. */
int zr_args_check_bucket(struct zr_train_config *config);

#endif
