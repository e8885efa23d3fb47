/* flags.h: the table of zr-train's options, as args.c and values.c read it and help.c prints it. Private
 * to settings/. */
#ifndef ZR_TRAIN_FLAGS_H
#define ZR_TRAIN_FLAGS_H

#include "zero/train/settings/args.h"

enum zr_flag_kind {
    ZR_FLAG_TEXT,      /* a path or words, into a char array */
    ZR_FLAG_COUNT,     /* a whole number of least .. most */
    ZR_FLAG_BYTES,     /* likewise, a size: sizes.h of alloc/base */
    ZR_FLAG_ROOM,      /* likewise, or none, or auto */
    ZR_FLAG_REAL,      /* a number of least .. most */
    ZR_FLAG_RATE,      /* likewise, bytes a second: a number or a size */
    ZR_FLAG_CHOICE,    /* one of `choices`; its index is stored */
    ZR_FLAG_TIER,      /* likewise, or nvme:DIR, whose folder is stored beside it */
    ZR_FLAG_VOCAB,     /* byte, or a number */
    ZR_FLAG_RATIO,     /* a number of least .. most, or auto */
    ZR_FLAG_EVERY,     /* a whole number of steps, or of seconds, minutes or hours */
    ZR_FLAG_RECOMPUTE, /* one of `choices`; the last one with ":N" of N layers */
    ZR_FLAG_SWITCH,    /* no argument */
    ZR_FLAG_HELP,
    ZR_FLAG_VERSION,
};

struct zr_flag {
    const char *name;     /* without dashes */
    const char *group;    /* heading in the help */
    const char *argument; /* "N", "FILE"; NULL: none */
    const char *help;     /* one line */
    const char *fallback; /* the value when not given, read like any other; NULL: zero, or resolved later */
    const char *resolved; /* said in the help where the program works it out: "cores / ranks" */
    const char *choices;  /* "none|selective|full" */
    enum zr_flag_kind kind;
    size_t offset, room_bytes; /* the field in struct zr_train_config */
    double least, most;
};

extern const struct zr_flag zr_flags[];
extern const size_t zr_flags_count;

/* NULL: there is none of that name. */
const struct zr_flag *zr_flag_find(const char *name);
/* Its place in the table, and in zr_train_config.given and .filed. */
size_t zr_flag_index(const struct zr_flag *flag);
/* Writes its value as the command line has it, a blank before it; nothing of a switch. */
void zr_flag_print(struct zr_text *text, const struct zr_flag *flag, const struct zr_train_config *config);
/* Stores the value, NULL of a switch. -1: done; else 2, with words in zr_last_error(). */
int zr_flag_store_in(const struct zr_flag *flag, struct zr_train_config *config, const char *value);
/* Keeps words on a value for zr_last_error(), with the option's name before them. 2. */
int zr_flag_wrong(const struct zr_flag *flag, const char *value, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Stores the value of an option that takes one. -1: done; else 2, with words in zr_last_error(). */
int zr_flag_store(const char *name, struct zr_train_config *config, const char *value);
/* Whether the option was on the command line. */
bool zr_flag_given(const struct zr_train_config *config, const char *name);
/* Whether one was that has no meaning without a pipeline. */
bool zr_pipeline_flag_given(const struct zr_train_config *config);

zr_result zr_help_print(void);
zr_result zr_version_print(void);

#endif
