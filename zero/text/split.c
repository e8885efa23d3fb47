/* split.c: the pre-tokenizers of steps.h. A text goes down the steps piece by piece, so that no list of words
 * is kept. */
#define _GNU_SOURCE
#include "zero/text/steps.h"

#include "alloc/base/error.h"

static zr_result run_step(struct zr_splitter *splitter, unsigned index, struct zr_text_span span,
                          const char *text, bool first);

/* ---- Splits -------------------------------------------------------------------------------------------- */

struct pieces {
    struct zr_splitter *splitter;
    unsigned step;
    const char *text;
    bool first;
    struct zr_text_span pending; /* empty: none */
    bool pending_match;
};

static zr_result pass_on(struct pieces *pieces, struct zr_text_span span)
{
    return run_step(pieces->splitter, pieces->step + 1, span, pieces->text, pieces->first && span.from == 0);
}

static zr_result flush(struct pieces *pieces)
{
    struct zr_text_span pending = pieces->pending;
    pieces->pending = (struct zr_text_span){0, 0};
    return pending.to > pending.from ? pass_on(pieces, pending) : ZR_OK;
}

/* Whether a piece extends the one before it. */
static bool joins(const struct pieces *pieces, enum zr_split_behavior split, bool match)
{
    return pieces->pending.to > pieces->pending.from &&
           (split == ZR_SPLIT_CONTIGUOUS             ? pieces->pending_match == match
            : split == ZR_SPLIT_MERGED_WITH_PREVIOUS ? match && !pieces->pending_match
                                                     : pieces->pending_match && !match);
}

static zr_result add_piece(struct pieces *pieces, struct zr_text_span span, bool match)
{
    const struct zr_text_step *step = &pieces->splitter->steps->step[pieces->step];
    match ^= step->inverted;
    if (span.to == span.from || (step->split == ZR_SPLIT_REMOVED && match))
        return ZR_OK;
    if (step->split == ZR_SPLIT_REMOVED || step->split == ZR_SPLIT_ISOLATED)
        return pass_on(pieces, span);
    zr_result result = ZR_OK;
    if (joins(pieces, step->split, match)) {
        pieces->pending.to = span.to;
    } else {
        result = flush(pieces);
        pieces->pending = span;
    }
    pieces->pending_match = match;
    return result;
}

/* The next match of the step's pattern, which is an expression or a plain text. */
static zr_result find(const struct zr_splitter *splitter, const struct zr_text_step *step, const char *text,
                      size_t bytes, struct zr_text_span *found)
{
    if (step->pattern.code)
        return zr_pattern_next(&step->pattern, splitter->match, text, bytes, found);
    size_t width = strlen(step->from);
    const char *at = memmem(text + found->to, bytes - found->to, step->from, width);
    *found = at ? (struct zr_text_span){(size_t)(at - text), (size_t)(at - text) + width}
                : (struct zr_text_span){bytes, bytes};
    return ZR_OK;
}

static zr_result split(struct zr_splitter *splitter, unsigned index, const char *text, size_t bytes,
                       bool first)
{
    struct pieces pieces = {.splitter = splitter, .step = index, .text = text, .first = first};
    struct zr_text_span found = {0, 0};
    zr_result result = ZR_OK;
    for (size_t at = 0; at < bytes && !result; at = found.to) {
        result = find(splitter, &splitter->steps->step[index], text, bytes, &found);
        if (!result)
            result = add_piece(&pieces, (struct zr_text_span){at, found.from}, false);
        if (!result)
            result = add_piece(&pieces, found, true);
    }
    return result ? result : flush(&pieces);
}

/* ---- Steps that change the text ------------------------------------------------------------------------ */

static bool starts_with(const char *text, size_t bytes, const char *start)
{
    size_t width = strlen(start);
    return bytes >= width && memcmp(text, start, width) == 0;
}

/* Blanks become the replacement, which begins each word. */
static zr_result metaspace(struct zr_splitter *splitter, unsigned index, const char *text, size_t bytes,
                           bool first)
{
    const struct zr_text_step *step = &splitter->steps->step[index];
    struct zr_growing *changed = &splitter->texts[index];
    size_t width = strlen(step->to);
    bool prepends = (step->prepend == ZR_PREPEND_ALWAYS || (step->prepend == ZR_PREPEND_FIRST && first)) &&
                    text[0] != ' ' && !starts_with(text, bytes, step->to);
    changed->used_bytes = 0;
    bool good = !prepends || zr_growing_add(changed, step->to, width);
    for (size_t at = 0, next; at < bytes && good; at = next + 1) {
        const char *blank = memchr(text + at, ' ', bytes - at);
        next = blank ? (size_t)(blank - text) : bytes;
        good = zr_growing_add(changed, text + at, next - at) &&
               (!blank || zr_growing_add(changed, step->to, width));
    }
    if (!good)
        return ZR_ERR_HOST_MEMORY;
    zr_result result = ZR_OK;
    for (size_t at = 0, end; at < changed->used_bytes && !result; at = end) {
        const char *from = changed->data + at, *next = NULL;
        size_t left = changed->used_bytes - at, skipped = starts_with(from, left, step->to) ? width : 0;
        if (step->splits)
            next = memmem(from + skipped, left - skipped, step->to, width);
        end = next ? (size_t)(next - changed->data) : changed->used_bytes;
        result =
            run_step(splitter, index + 1, (struct zr_text_span){at, end}, changed->data, first && at == 0);
    }
    return result;
}

static zr_result prefix_space(struct zr_splitter *splitter, unsigned index, const char *text, size_t bytes,
                              bool first)
{
    struct zr_growing *changed = &splitter->texts[index];
    if (text[0] == ' ')
        return run_step(splitter, index + 1, (struct zr_text_span){0, bytes}, text, first);
    changed->used_bytes = 0;
    if (!zr_growing_add(changed, " ", 1) || !zr_growing_add(changed, text, bytes))
        return ZR_ERR_HOST_MEMORY;
    return run_step(splitter, index + 1, (struct zr_text_span){0, bytes + 1}, changed->data, first);
}

static zr_result run_step(struct zr_splitter *splitter, unsigned index, struct zr_text_span span,
                          const char *text, bool first)
{
    const char *piece = text + span.from;
    size_t bytes = span.to - span.from;
    if (bytes == 0)
        return ZR_OK;
    if (index == splitter->steps->count)
        return splitter->word(splitter->state, piece, bytes);
    switch (splitter->steps->step[index].kind) {
    case ZR_STEP_METASPACE:
        return metaspace(splitter, index, piece, bytes, first);
    case ZR_STEP_PREFIX_SPACE:
        return prefix_space(splitter, index, piece, bytes, first);
    default:
        return split(splitter, index, piece, bytes, first);
    }
}

zr_result zr_split(struct zr_splitter *splitter, const char *text, size_t bytes, bool first)
{
    return run_step(splitter, 0, (struct zr_text_span){0, bytes}, text, first);
}
