/* why_reasons.h: the reasons of a failure, and who holds memory, in words and as JSON. Private to
 * defrag/tool/. */
#ifndef ZR_WHY_REASONS_H
#define ZR_WHY_REASONS_H

#include "defrag/report/reason.h"
#include "defrag/report/remedies.h"
#include "defrag/tool/tool.h"

/* What the words need besides the reasons; borrowed. */
struct zr_reason_scene {
    struct zr_recording *recording;
    const struct zr_reasoning *reasoning;
    const struct zr_question *question;
    enum zrt_cause cause;
    const struct zr_vector *holders;    /* struct zr_holder */
    const struct zr_vector *growers;    /* struct zr_holder .. */
    const char *from, *to;              /* .. between these marks; "": none */
    const struct zr_remedies *remedies; /* empty: nothing was replayed */
    bool total_known;                   /* the size of the device is known */
    bool replaying;                     /* the remedies are not yet known */
};

/* One thread at a time; the text keeps the first error of writing. */

/* "reason: leak: .." and "change: ..", then "also: " for each other reason, whose remedies only JSON has;
 * nothing if there is none. The change is missing if it depends on remedies that are not yet known .. */
void zr_reasons_print(struct zr_text *text, const struct zr_reason_scene *scene);
/* .. which this function prints afterwards. */
void zr_reasons_print_replayed(struct zr_text *text, const struct zr_reason_scene *scene);
/* `"reasons": [{"reason", "bytes", "evidence", "stack", "remedy"}]`. */
void zr_reasons_json(struct zr_text *text, const struct zr_reason_scene *scene);

/* The sums of categories, the largest first. Returns their number. */
enum { ZR_CATEGORIES_MAX = 16 };
struct zr_category {
    const char *name;
    uint64_t bytes;
};
unsigned zr_holders_sum(struct zr_category sums[ZR_CATEGORIES_MAX], const struct zr_vector *holders);

/* The five largest call sites of live blocks, and the sums of categories; nothing if there are no holders. */
void zr_holders_print(struct zr_text *text, const struct zr_reason_scene *scene);
/* The ten largest as JSON, with all their frames. A category is the tag of a block, or what its frames tell.
 * `"categories": {"gradients": bytes}, "holders": [{"bytes", "blocks", "category", "stack"}]`. */
void zr_holders_json(struct zr_text *text, const struct zr_reason_scene *scene);

/* What grew: the ten call sites that grew most, and the growth of categories. */
void zr_growth_print(struct zr_text *text, const struct zr_reason_scene *scene);
/* `"growth": {"from": mark or null, "to", "categories": {"activations": bytes}, "sites": [{"grown_bytes",
 * "before_bytes", "bytes", "before_blocks", "blocks", "category", "stack"}]}`. */
void zr_growth_json(struct zr_text *text, const struct zr_reason_scene *scene);

/* why.c: the reasons of a file's failure, or of its growth, as zr_reasons_json() prints them, without
 * replays; nothing for a file without maps. Returns the arena's error, or the text's. */
struct zr_tool_input;
zr_result zr_why_reasons(struct zr_tool_input *input, struct zr_text *text, zr_arena *arena);

#endif
