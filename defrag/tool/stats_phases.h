/* stats_phases.h: `zr stats --phases` and `--by`: patterns of call stacks, and phases as text and JSON.
 * Private to defrag/tool/. */
#ifndef ZR_STATS_PHASES_H
#define ZR_STATS_PHASES_H

#include "defrag/report/phases.h"
#include "defrag/tool/tool.h"

/* What --by asks for: a column for each. One thread at a time. */
struct zr_stats_patterns {
    regex_t list[ZR_PHASE_CATEGORIES];
    char names[ZR_PHASE_CATEGORIES][32]; /* plain */
    unsigned count;
};
/* Reads "name=regex" or "regex", extended as of grep -E. False, after a message: one is invalid. The caller
 * ends *out in any case. */
bool zr_stats_patterns_read(struct zr_stats_patterns *out, const struct zr_tool_texts *texts);
/* Frees what reading has made, also after a failure. */
void zr_stats_patterns_end(struct zr_stats_patterns *patterns);

/* The twenty phases with the most live bytes; sorts the phases, and makes their labels plain. The text keeps
 * the first error of writing. */
void zr_stats_phases_print(struct zr_text *text, struct zr_phases *phases,
                           const struct zr_stats_patterns *patterns);
/* `"phases": [{"label", "marks", "allocations", "retries", "flushes", "live_bytes", "reserved_bytes", "by":
 * {"forward": bytes, "rest": bytes}}]`, in order of their first mark. */
void zr_stats_phases_json(struct zr_text *text, const struct zr_phases *phases,
                          const struct zr_stats_patterns *patterns);

#endif
