/* pattern.h: a regular expression of a tokenizer.json, run by PCRE2. Private to zero/text. */
#ifndef ZR_TEXT_PATTERN_H
#define ZR_TEXT_PATTERN_H

#include "alloc/zr.h"

/* Zeros: none. */
struct zr_pattern {
    struct pcre2_real_code_8 *code;
};

/* Compiles an expression in Oniguruma's syntax, as `tokenizers` reads it. Only what means the same in PCRE2,
 * or can be translated, is accepted. `place` is for messages. ZR_ERR_FORMAT: another construct, or an
 * expression that matches the empty text. ZR_ERR_HOST_MEMORY. */
zr_result zr_pattern_compile(struct zr_pattern *out, const char *place, const char *expression);
void zr_pattern_free(struct zr_pattern *pattern);

/* Scratch for one thread; NULL: no memory. */
struct pcre2_real_match_data_8 *zr_pattern_scratch(void);
void zr_pattern_scratch_free(struct pcre2_real_match_data_8 *scratch);

struct zr_text_span {
    size_t from, to; /* bytes */
};
/* The first match in text[0, bytes) at or after found->to; an empty span at `bytes`: none. The text is valid
 * UTF-8. ZR_ERR_FORMAT: PCRE2's limit of steps is exceeded. */
zr_result zr_pattern_next(const struct zr_pattern *pattern, struct pcre2_real_match_data_8 *scratch,
                          const char *text, size_t bytes, struct zr_text_span *found);

#endif
