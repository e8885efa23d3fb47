/* normalize.h: what zero/text shares with the normalizers: white space and replacement. Private to
 * zero/text. */
#ifndef ZR_TEXT_NORMALIZE_H
#define ZR_TEXT_NORMALIZE_H

#include "zero/text/steps.h"

/* Unicode's property White_Space. */
bool zr_is_white_space(int32_t code_point);
/* Bytes of white space at the start and at the end of a text, valid UTF-8. */
size_t zr_leading_space(const char *text, size_t bytes);
size_t zr_trailing_space(const char *text, size_t bytes);

/* Appends the text to `out` with step->to in place of each step->from. False: no memory. */
bool zr_replace_text(const struct zr_step *step, const char *text, size_t bytes, struct zr_growing *out);

/* Applies the steps to *text in order. *text and *bytes become the result, in the scratch or unchanged. */
struct zr_step_scratch {
    struct pcre2_real_match_data_8 *match;
    struct zr_growing texts[2], code_points;
};
zr_result zr_normalize(const struct zr_steps *steps, struct zr_step_scratch *scratch, const char **text,
                       size_t *bytes);

#endif
