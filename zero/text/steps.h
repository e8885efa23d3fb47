/* steps.h: what surrounds the model of a tokenizer: steps that change a text before it is split, that split
 * it into words, and that turn the texts of tokens into a text. Private to zero/text. */
#ifndef ZR_TEXT_STEPS_H
#define ZR_TEXT_STEPS_H

#include "zero/text/growing.h"
#include "zero/text/pattern.h"

enum zr_step_kind {
    /* normalizers */
    ZR_STEP_NORMAL_FORM = 1,
    ZR_STEP_PREPEND,
    ZR_STEP_REPLACE, /* a decoder too */
    ZR_STEP_REPLACE_PATTERN,
    ZR_STEP_STRIP_SPACE,
    ZR_STEP_CHARSMAP,
    /* pre-tokenizers */
    ZR_STEP_SPLIT,
    ZR_STEP_METASPACE, /* a decoder too */
    ZR_STEP_PREFIX_SPACE,
    /* decoders */
    ZR_STEP_BYTE_FALLBACK,
    ZR_STEP_FUSE,
    ZR_STEP_STRIP
};

/* What happens to a match of the pattern of a split, as `tokenizers` names it. */
enum zr_split_behavior {
    ZR_SPLIT_REMOVED = 0,
    ZR_SPLIT_ISOLATED,
    ZR_SPLIT_MERGED_WITH_PREVIOUS,
    ZR_SPLIT_MERGED_WITH_NEXT,
    ZR_SPLIT_CONTIGUOUS
};

enum zr_form { ZR_FORM_NFC = 0, ZR_FORM_NFD, ZR_FORM_NFKC, ZR_FORM_NFKD };

enum zr_prepend { ZR_PREPEND_ALWAYS = 0, ZR_PREPEND_FIRST, ZR_PREPEND_NEVER };

enum { ZR_STEP_TEXT_ROOM = 64, ZR_STEPS_MAX = 16 };

struct zr_charsmap;

struct zr_text_step {
    enum zr_step_kind kind;
    struct zr_pattern pattern;
    char from[ZR_STEP_TEXT_ROOM], to[ZR_STEP_TEXT_ROOM];
    enum zr_split_behavior split;
    bool inverted; /* of a split: matches are what is between the pattern's */
    enum zr_prepend prepend;
    bool splits; /* of metaspace: words begin at each replacement */
    enum zr_form form;
    bool left, right;     /* of strip space */
    unsigned start, stop; /* of strip: characters at most */
    struct zr_charsmap *charsmap;
};

struct zr_text_steps {
    struct zr_text_step step[ZR_STEPS_MAX];
    unsigned count;
};
void zr_steps_end(struct zr_text_steps *steps);

/* ---- SentencePiece's table of replacements (charsmap.c) -------------------------------------------------
 */

/* `precompiled_charsmap` of a tokenizer.json: a double array (darts-clone) from texts to offsets, and the
 * texts there. As in the `tokenizers` package, a grapheme of less than six bytes is looked up as a whole,
 * then each of its characters, and the shortest entry that it starts with replaces all of it. */

/* Reads base64. On success the caller owns *out. ZR_ERR_FORMAT, ZR_ERR_HOST_MEMORY: *out is NULL. */
zr_result zr_charsmap_create(struct zr_charsmap **out, const char *place, const char *base64);
/* NULL: no effect. */
void zr_charsmap_destroy(struct zr_charsmap *charsmap);

/* Appends the text, valid UTF-8, with its replacements to `out`. ZR_ERR_HOST_MEMORY. Any thread. */
zr_result zr_charsmap_apply(const struct zr_charsmap *charsmap, const char *text, size_t bytes,
                            struct zr_growing *out);

/* ---- Normalizers (normalize.c) ------------------------------------------------------------------------- */

/* Unicode's property White_Space. */
bool zr_is_white_space(int32_t code_point);
/* Bytes of white space at the start and at the end of a text, valid UTF-8. */
size_t zr_leading_space(const char *text, size_t bytes);
size_t zr_trailing_space(const char *text, size_t bytes);

/* Appends the text to `out` with step->to in place of each step->from. False: no memory. */
bool zr_replace_text(const struct zr_text_step *step, const char *text, size_t bytes, struct zr_growing *out);

/* Applies the steps to *text in order. *text and *bytes become the result, in the scratch or unchanged. */
struct zr_step_scratch {
    struct pcre2_real_match_data_8 *match;
    struct zr_growing texts[2], code_points;
};
zr_result zr_normalize(const struct zr_text_steps *steps, struct zr_step_scratch *scratch, const char **text,
                       size_t *bytes);

/* ---- Pre-tokenizers (split.c) -------------------------------------------------------------------------- */

struct zr_splitter {
    const struct zr_text_steps *steps;
    struct pcre2_real_match_data_8 *match;
    struct zr_growing texts[ZR_STEPS_MAX]; /* of the steps that change it */
    zr_result (*word)(void *state, const char *text, size_t bytes);
    void *state;
};

/* Calls word() for each word in order. `first`: the text is the start of the whole. */
zr_result zr_split(struct zr_splitter *splitter, const char *text, size_t bytes, bool first);

/* ---- Decoders (join.c) --------------------------------------------------------------------------------- */

/* Texts behind one another, with the end of each. */
struct zr_text_pieces {
    struct zr_growing text, ends; /* ends: size_t */
};

/* Applies the steps in order; the result is in `pieces`, `spare` is scratch. */
zr_result zr_join(const struct zr_text_steps *steps, struct zr_text_pieces *pieces,
                  struct zr_text_pieces *spare);

#endif
