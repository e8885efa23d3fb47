/* expression.c: conditions on figures. Uses moments.h, and zr_defrag.h for replays. */
#include "defrag/report/expression.h"

#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/sizes.h"

/* ---- Figures ------------------------------------------------------------------------------------------- */

#define OF_MOMENT(moment, field)                                                                             \
    static double moment##_##field(const struct zr_compared *of)                                             \
    {                                                                                                        \
        return (double)of->moments->moment.figures.field;                                                    \
    }
#define OF_MOMENTS(field) OF_MOMENT(now, field) OF_MOMENT(peak, field)
OF_MOMENTS(live_bytes)
OF_MOMENTS(requested_bytes)
OF_MOMENTS(internal_bytes)
OF_MOMENTS(pending_bytes)
OF_MOMENTS(reserved_bytes)
OF_MOMENTS(stranded_bytes)
OF_MOMENTS(releasable_bytes)

static double most_reserved(const struct zr_compared *of)
{
    return (double)of->moments->peak_reserved_bytes;
}

static double most_requested(const struct zr_compared *of)
{
    return (double)of->moments->peak_requested_bytes;
}

static double stranded_ratio(const struct zr_compared *of)
{
    return of->moments->stranded_time_weighted;
}

static double gmlake_ratio(const struct zr_compared *of)
{
    return of->moments->gmlake_ratio;
}

static double failures(const struct zr_compared *of)
{
    return (double)of->moments->failures_count;
}

static double allocations(const struct zr_compared *of)
{
    return (double)of->moments->allocations_count;
}

static double replay_peak(const struct zr_compared *of)
{
    return (double)of->replay->peak_reserved_bytes;
}

static double replay_ratio(const struct zr_compared *of)
{
    uint64_t least = of->replay->lower_bound_bytes;
    return least ? (double)of->replay->peak_reserved_bytes / (double)least : 0;
}

static double replay_calls(const struct zr_compared *of)
{
    return (double)of->replay->driver_calls;
}

static double replay_failed(const struct zr_compared *of)
{
    return of->replay->failed_at != UINT64_MAX;
}

const struct zr_figure zr_figures[] = {
    {"peak_live_bytes", true, peak_live_bytes, false, false, false},
    {"peak_requested_bytes", true, most_requested, false, false, false},
    {"peak_reserved_bytes", true, most_reserved, true, false, false},
    {"peak.requested_bytes", true, peak_requested_bytes, false, false, false},
    {"peak.internal_bytes", true, peak_internal_bytes, false, false, false},
    {"peak.pending_bytes", true, peak_pending_bytes, false, true, false},
    {"peak.reserved_bytes", true, peak_reserved_bytes, true, false, false},
    {"peak.stranded_bytes", true, peak_stranded_bytes, true, false, false},
    {"peak.releasable_bytes", true, peak_releasable_bytes, true, false, false},
    {"now.live_bytes", true, now_live_bytes, false, false, false},
    {"now.requested_bytes", true, now_requested_bytes, false, false, false},
    {"now.internal_bytes", true, now_internal_bytes, false, false, false},
    {"now.pending_bytes", true, now_pending_bytes, false, true, false},
    {"now.reserved_bytes", true, now_reserved_bytes, true, false, false},
    {"now.stranded_bytes", true, now_stranded_bytes, true, false, false},
    {"now.releasable_bytes", true, now_releasable_bytes, true, false, false},
    {"stranded_ratio", false, stranded_ratio, true, false, false},
    {"gmlake_ratio", false, gmlake_ratio, true, false, false},
    {"failures", false, failures, false, false, false},
    {"allocations", false, allocations, false, false, false},
    {"replay.peak_reserved_bytes", true, replay_peak, false, false, true},
    {"replay.ratio", false, replay_ratio, false, false, true},
    {"replay.driver_calls", false, replay_calls, false, false, true},
    {"replay.failed", false, replay_failed, false, false, true},
    {NULL, false, NULL, false, false, false}};

/* ---- Reading ------------------------------------------------------------------------------------------- */

static const char *skip(const char *at)
{
    return at + strspn(at, " \t");
}

static bool read_number(const char **at, double *out)
{
    double value = 0, part = 1;
    const char *next = *at;
    bool dot = false, any = false;
    for (; (*next >= '0' && *next <= '9') || (*next == '.' && !dot); next++) {
        if (*next == '.') {
            dot = true;
            continue;
        }
        any = true;
        part = dot ? part / 10 : part;
        value = dot ? value + (*next - '0') * part : value * 10 + (*next - '0');
    }
    *out = value;
    *at = next;
    return any;
}

/* Reads a size, or a number, which may be small or have any fraction. */
static zr_result read_amount(const char **at, double *out)
{
    const char *start = *at;
    uint64_t bytes;
    read_number(at, out); /* the caller has checked that a number follows */
    size_t length = strcspn(*at, ", \t");
    if (length == 0)
        return ZR_OK;
    *at += length;
    const char *words = zr_size_read(start, (size_t)(*at - start), &bytes);
    if (words)
        return zr_fail(ZR_ERR_INVALID, "'%.*s' %s", (int)(*at - start < 40 ? *at - start : 40), start, words);
    *out = (double)bytes;
    return ZR_OK;
}

static zr_result read_figure(const char **at, struct zr_condition *out)
{
    size_t length = strspn(*at, "abcdefghijklmnopqrstuvwxyz_.");
    char names[1000];
    int used = 0;
    for (const struct zr_figure *figure = zr_figures; figure->name; figure++) {
        if (strlen(figure->name) == length && memcmp(figure->name, *at, length) == 0) {
            out->figure = figure;
            *at = skip(*at + length);
            return ZR_OK;
        }
        used += snprintf(names + used, sizeof names - (size_t)used, "%s%s", used ? ", " : "", figure->name);
    }
    return zr_fail(ZR_ERR_INVALID, "there is no figure '%.*s'; choose from %s", length ? (int)length : 40,
                   *at, names);
}

zr_result zr_condition_read(const char **at, struct zr_condition *out)
{
    static const char *const ops[] = {">=", "<=", "==", "!=", ">", "<"};
    const char *next = skip(*at);
    *out = (struct zr_condition){.words = next};
    zr_result result = read_figure(&next, out);
    if (result != ZR_OK)
        return result;
    for (unsigned i = 0; i < sizeof ops / sizeof *ops && !out->op[0]; i++)
        if (strncmp(next, ops[i], strlen(ops[i])) == 0)
            strcpy(out->op, ops[i]);
    if (!out->op[0])
        return zr_fail(ZR_ERR_INVALID, "after '%s' comes >, >=, <, <=, == or !=, not '%.20s'",
                       out->figure->name, next);
    next = skip(next + strlen(out->op));
    bool plus = *next == '+';
    next += plus;
    const char *number = next;
    if (!read_number(&next, &out->value))
        return zr_fail(ZR_ERR_INVALID,
                       "after '%s' comes a value such as 1.05x, +5%%, +64MiB or 24GB, not '%.20s'", out->op,
                       next);
    out->kind = plus ? ZR_CONDITION_PLUS : ZR_CONDITION_PLAIN;
    if (!plus && *next == 'x') {
        out->kind = ZR_CONDITION_TIMES;
        next++;
    } else if (plus && *next == '%') {
        out->kind = ZR_CONDITION_PER_CENT;
        next++;
    } else {
        next = number;
        result = read_amount(&next, &out->value);
        if (result != ZR_OK)
            return result;
    }
    out->words_bytes = (int)(next - out->words);
    next = skip(next);
    if (*next != ',' && *next != '\0')
        return zr_fail(ZR_ERR_INVALID,
                       "after '%.*s' comes a comma and the next condition, or nothing, not '%.20s'",
                       out->words_bytes < 60 ? out->words_bytes : 60, out->words, next);
    if (*next == ',' && *skip(next + 1) == '\0')
        return zr_fail(ZR_ERR_INVALID, "a figure is missing after the last comma");
    *at = *next == ',' ? next + 1 : next;
    return ZR_OK;
}

bool zr_condition_holds(const struct zr_condition *condition, double a, double b)
{
    double value = condition->value;
    switch (condition->kind) {
    case ZR_CONDITION_TIMES:
        value *= a;
        break;
    case ZR_CONDITION_PER_CENT:
        value = a + a * value / 100;
        break;
    case ZR_CONDITION_PLUS:
        value += a;
        break;
    default:
        break;
    }
    bool or_equal = condition->op[1] == '=';
    switch (condition->op[0]) {
    case '>':
        return or_equal ? b >= value : b > value;
    case '<':
        return or_equal ? b <= value : b < value;
    case '=':
        return b == value;
    default:
        return b != value;
    }
}
