/* stats_phases.c: phases and categories of zr stats. Uses defrag/report/phases.h. */
#include "defrag/tool/stats_phases.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/sort.h"

enum { PHASES_SHOWN = 20 };

bool zr_stats_patterns_read(struct zr_stats_patterns *out, const struct zr_tool_texts *texts)
{
    char words[100];
    for (; out->count < texts->count && out->count < ZR_PHASE_CATEGORIES; out->count++) {
        const char *text = texts->list[out->count], *equals = strchr(text, '=');
        const char *pattern = equals ? equals + 1 : text;
        int bytes = equals ? (int)(equals - text) : (int)strlen(text);
        snprintf(out->names[out->count], sizeof out->names[0], "%.*s", bytes, text);
        zr_make_plain(out->names[out->count]);
        int error = regcomp(&out->list[out->count], pattern, REG_EXTENDED | REG_NOSUB);
        if (error != 0) {
            regerror(error, NULL, words, sizeof words);
            zr_tool_log("stats: --by '%.60s' is no regular expression: %s", text, words);
            return false;
        }
    }
    return true;
}

void zr_stats_patterns_end(struct zr_stats_patterns *patterns)
{
    while (patterns->count > 0)
        regfree(&patterns->list[--patterns->count]);
}

static bool larger(const void *one, const void *other)
{
    const struct zr_phase *a = one, *b = other;
    return a->most_live_bytes != b->most_live_bytes ? a->most_live_bytes > b->most_live_bytes
                                                    : strcmp(a->label, b->label) < 0;
}

/* Whether something happened in it. */
static bool is_shown(const struct zr_phase *phase)
{
    return phase->marks_count > 0 || phase->allocations_count > 0;
}

void zr_stats_phases_print(struct zr_text *text, struct zr_phases *phases,
                           const struct zr_stats_patterns *patterns)
{
    char room[ZR_TOOL_NUMBER_ROOM];
    const size_t count = phases->list.count;
    zr_sort_in_place(&(struct zr_sort_records){phases->list.items, count, sizeof(struct zr_phase), larger});
    zr_text_print(text, "  %-20s %10s %10s %8s %8s", "phase, at its peak", "live", "reserved", "retries",
                  "flushes");
    for (unsigned i = 0; i < patterns->count; i++)
        zr_text_print(text, " %10s", patterns->names[i]);
    zr_text_print(text, patterns->count ? " %10s\n" : "\n", "rest");
    for (size_t i = 0; i < count && i < PHASES_SHOWN; i++) {
        struct zr_phase *phase = zr_vector_at(&phases->list, i);
        if (!is_shown(phase))
            continue;
        zr_make_plain(phase->label);
        zr_text_print(text, "  %-20s %10s", phase->marks_count ? phase->label : "(no mark)",
                      zr_tool_bytes(room, phase->most_live_bytes));
        zr_text_print(text, " %10s %8" PRIu64 " %8" PRIu64, zr_tool_bytes(room, phase->most_reserved_bytes),
                      phase->retries_count, phase->flushes_count);
        for (unsigned by = 0; by <= patterns->count && patterns->count > 0; by++)
            zr_text_print(text, " %10s", zr_tool_bytes(room, phase->by_bytes[by]));
        zr_text_print(text, "\n");
    }
    if (count > PHASES_SHOWN)
        zr_text_print(text, "  and %zu more (--json has them)\n", count - PHASES_SHOWN);
}

void zr_stats_phases_json(struct zr_text *text, const struct zr_phases *phases,
                          const struct zr_stats_patterns *patterns)
{
    bool first = true;
    zr_text_print(text, ",\n \"phases\": [");
    for (size_t i = 0; i < phases->list.count; i++) {
        const struct zr_phase *phase = zr_vector_at(&phases->list, i);
        if (!is_shown(phase))
            continue;
        zr_text_print(text, first ? "\n  {" : ",\n  {");
        first = false;
        zr_tool_json_words(text, "label", phase->label);
        zr_text_print(text, ", \"marks\": %" PRIu64 ", \"allocations\": %" PRIu64, phase->marks_count,
                      phase->allocations_count);
        zr_text_print(text, ", \"retries\": %" PRIu64 ", \"flushes\": %" PRIu64, phase->retries_count,
                      phase->flushes_count);
        zr_text_print(text, ", \"live_bytes\": %" PRIu64 ", \"reserved_bytes\": %" PRIu64 ", \"by\": {",
                      phase->most_live_bytes, phase->most_reserved_bytes);
        for (unsigned by = 0; by <= patterns->count; by++) {
            const char *name = by < patterns->count ? patterns->names[by] : "rest";
            zr_text_print(text, by ? ", " : "");
            zr_text_json_string(text, name, strlen(name));
            zr_text_print(text, ": %" PRIu64, phase->by_bytes[by]);
        }
        zr_text_print(text, "}}");
    }
    zr_text_print(text, "]");
}
