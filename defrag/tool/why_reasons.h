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
    const struct zr_remedies *remedies; /* empty: nothing was replayed */
    bool total_known;                   /* the size of the device is known */
};

/* One thread at a time; the text keeps the first error of writing. */

/* "reason: leak: .." and "change: ..", then a line for each other reason, whose remedies only JSON has;
 * nothing if there is none. */
void zr_reasons_print(struct zr_text *text, const struct zr_reason_scene *scene);
/* `"reasons": [{"reason", "bytes", "evidence", "stack", "remedy"}]`. */
void zr_reasons_json(struct zr_text *text, const struct zr_reason_scene *scene);

/* The sums of categories, the largest first. Returns their number. */
enum { ZR_CATEGORIES_MAX = 16 };
struct zr_category {
    const char *name;
    uint64_t bytes;
};
unsigned zr_holders_sum(struct zr_category sums[ZR_CATEGORIES_MAX], const struct zr_vector *holders);

/* The ten largest call sites of live blocks, and the sums of categories; nothing if there are no holders. */
void zr_holders_print(struct zr_text *text, const struct zr_reason_scene *scene);
/* The ten largest as JSON, with all their frames. A category is the tag of a block, or what its frames tell.
 * `"categories": {"gradients": bytes}, "holders": [{"bytes", "blocks", "category", "stack"}]`. */
void zr_holders_json(struct zr_text *text, const struct zr_reason_scene *scene);

#endif
