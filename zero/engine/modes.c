/* modes.c: see modes.h. */
#include "zero/engine/modes.h"

#include <stdio.h>

/* The mode by which a rule is broken; 0: it holds. */
static unsigned broken_by(const struct zr_mode_table *table, const struct zr_rule *rule, const void *settings)
{
    for (const unsigned char *other = rule->others; *other; other++) {
        const bool on = table->is_on(settings, *other);
        if (rule->needs && (on || (table->is_open && table->is_open(settings, *other))))
            return 0;
        if (!rule->needs && on)
            return *other;
    }
    return rule->needs ? rule->others[0] : 0;
}

static zr_result refuse(const struct zr_mode_table *table, const struct zr_rule *rule, unsigned other)
{
    char names[512] = "";
    size_t used = 0;
    for (unsigned i = 0; rule->needs && rule->others[i] && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s",
                                 i == 0                ? ""
                                 : rule->others[i + 1] ? ", "
                                                       : " or ",
                                 table->names[rule->others[i]]);
    return zr_fail(ZR_ERR_INVALID, "%s %s %s%s%s%s%s", table->names[rule->mode],
                   rule->needs ? "requires" : "cannot be combined with",
                   rule->needs ? names : table->names[other], rule->reason ? ": " : "",
                   rule->reason ? rule->reason : "", rule->fix || !rule->needs ? "; " : "",
                   rule->fix      ? rule->fix
                   : !rule->needs ? "leave one of the two out"
                                  : "");
}

zr_result zr_modes_check_one(const struct zr_mode_table *table, const void *settings, unsigned mode,
                             unsigned *out)
{
    for (const struct zr_rule *rule = table->rules; rule < table->rules + table->rules_count; rule++) {
        const unsigned other = mode == 0
                                   ? table->is_on(settings, rule->mode) ? broken_by(table, rule, settings) : 0
                               : rule->mode == mode ? broken_by(table, rule, settings)
                                                    : 0;
        if (other && out)
            *out = other;
        if (other)
            return refuse(table, rule, other);
    }
    return ZR_OK;
}

zr_result zr_modes_check(const struct zr_mode_table *table, const void *settings)
{
    return zr_modes_check_one(table, settings, 0, NULL);
}
