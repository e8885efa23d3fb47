/* modes.h: what modes of a run exclude or require, as a table that one function checks. A mode is a setting,
 * or settings, with a name that messages use. engine_check.c has the table of an engine's options, and
 * train/settings/exclusions.c that of a command line. Pure functions of the settings. */
#ifndef ZR_ENGINE_MODES_H
#define ZR_ENGINE_MODES_H

#include <stdbool.h>
#include <stddef.h>

#include "alloc/base/error.h"

enum { ZR_RULE_MODES = 16 };

struct zr_rule {
    unsigned char mode;                  /* the rule holds in this mode */
    bool needs;                          /* requires one of the other modes; false: excludes each of them */
    unsigned char others[ZR_RULE_MODES]; /* 0: no mode */
    const char *reason, *fix;            /* of the message; NULL: none */
};
#define ZR_EXCLUDES(mode, reason, fix, ...)                                                                  \
    {                                                                                                        \
        mode, false, {__VA_ARGS__}, reason, fix                                                              \
    }
#define ZR_REQUIRES(mode, reason, fix, ...)                                                                  \
    {                                                                                                        \
        mode, true, {__VA_ARGS__}, reason, fix                                                               \
    }

struct zr_mode_table {
    const char *const *names; /* by mode, from 1 on */
    const struct zr_rule *rules;
    size_t rules_count;
    bool (*is_on)(const void *settings, unsigned mode);
    /* Whether the run chooses the mode later: a rule that requires it holds. NULL: no mode is open. */
    bool (*is_open)(const void *settings, unsigned mode);
};

/* Checks the rules of modes that are on, in their order. ZR_ERR_INVALID: "A requires B or C: reason; fix", or
 * "A cannot be combined with B: reason; fix". */
zr_result zr_modes_check(const struct zr_mode_table *table, const void *settings);
/* Likewise the rules of `mode`, whether it is on or not. *out: the excluded mode that is on, or the required
 * one that is off; may be NULL. */
zr_result zr_modes_check_one(const struct zr_mode_table *table, const void *settings, unsigned mode,
                             unsigned *out);

#endif
