/* join.c: the decoders of steps.h. */
#define _GNU_SOURCE
#include "zero/text/steps.h"

/* Appends a piece to the output and ends it. */
static bool end_piece(struct zr_text_pieces *out)
{
    return zr_growing_add(&out->ends, &out->text.used_bytes, sizeof out->text.used_bytes);
}

/* The byte of a text "<0xXX>"; -1: another text. */
static int byte_of(const char *text, size_t bytes)
{
    static const char digits[] = "0123456789ABCDEF";
    const char *high, *low;
    if (bytes != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    high = memchr(digits, text[3], 16);
    low = memchr(digits, text[4], 16);
    return high && low ? (int)(16 * (high - digits) + (low - digits)) : -1;
}

/* Consecutive bytes become one piece. */
static bool add_fallback(struct zr_text_pieces *out, const char *text, size_t bytes, bool *after_byte)
{
    int byte = byte_of(text, bytes);
    if (byte >= 0 && *after_byte)
        out->ends.used_bytes -= sizeof(size_t);
    *after_byte = byte >= 0;
    return byte >= 0 ? zr_growing_add(&out->text, &(char){(char)byte}, 1)
                     : zr_growing_add(&out->text, text, bytes);
}

/* Without up to `start` leading and `stop` trailing characters `from`. */
static bool add_stripped(const struct zr_text_step *step, struct zr_text_pieces *out, const char *text,
                         size_t bytes)
{
    size_t width = strlen(step->from), from = 0, to = bytes;
    for (unsigned i = 0; i < step->start && to - from >= width && memcmp(text + from, step->from, width) == 0;
         i++)
        from += width;
    for (unsigned i = 0;
         i < step->stop && to - from >= width && memcmp(text + to - width, step->from, width) == 0; i++)
        to -= width;
    return zr_growing_add(&out->text, text + from, to - from);
}

/* The replacement becomes a blank; that of the first piece vanishes, if the encoder prepends one. */
static bool add_blanks(const struct zr_text_step *step, struct zr_text_pieces *out, const char *text,
                       size_t bytes, bool first)
{
    struct zr_text_step replace = *step;
    memcpy(replace.from, step->to, sizeof replace.from);
    replace.to[0] = first && step->prepend != ZR_PREPEND_NEVER ? '\0' : ' ';
    replace.to[1] = '\0';
    return zr_replace_text(&replace, text, bytes, &out->text);
}

static bool join_step(const struct zr_text_step *step, const struct zr_text_pieces *pieces,
                      struct zr_text_pieces *out)
{
    const size_t *ends = (const size_t *)(void *)pieces->ends.data;
    size_t count = pieces->ends.used_bytes / sizeof *ends;
    bool good = true, after_byte = false;
    out->text.used_bytes = out->ends.used_bytes = 0;
    for (size_t i = 0, from = 0; i < count && good; from = ends[i++]) {
        const char *text = pieces->text.data + from;
        size_t bytes = ends[i] - from;
        switch (step->kind) {
        case ZR_STEP_REPLACE:
            good = zr_replace_text(step, text, bytes, &out->text);
            break;
        case ZR_STEP_BYTE_FALLBACK:
            good = add_fallback(out, text, bytes, &after_byte);
            break;
        case ZR_STEP_STRIP:
            good = add_stripped(step, out, text, bytes);
            break;
        case ZR_STEP_METASPACE:
            good = add_blanks(step, out, text, bytes, i == 0);
            break;
        default:
            good = zr_growing_add(&out->text, text, bytes);
            if (i + 1 < count)
                continue; /* one piece of all */
        }
        good = good && end_piece(out);
    }
    return good;
}

zr_result zr_join(const struct zr_text_steps *steps, struct zr_text_pieces *pieces,
                  struct zr_text_pieces *spare)
{
    for (unsigned i = 0; i < steps->count; i++) {
        if (!join_step(&steps->step[i], pieces, spare))
            return ZR_ERR_HOST_MEMORY;
        struct zr_text_pieces joined = *spare;
        *spare = *pieces;
        *pieces = joined;
    }
    return ZR_OK;
}
