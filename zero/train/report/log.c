/* log.c: writes the JSONL log, and finds where a resumed run continues it. */
#define _GNU_SOURCE
#include "zero/train/report/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "zero/engine/meter.h"
#include "zero/train/report/number.h"

static const char line_head[] = "{\"step\": ";

/* Whether a line starts like a line of this log and belongs to a step after `step`. */
static bool is_later(const char *line, size_t bytes, uint64_t step)
{
    uint64_t number = 0;
    size_t at = sizeof line_head - 1;
    if (bytes <= at || memcmp(line, line_head, at) != 0)
        return false;
    for (; at < bytes && line[at] >= '0' && line[at] <= '9'; at++)
        if (__builtin_mul_overflow(number, 10, &number) ||
            __builtin_add_overflow(number, (uint64_t)(line[at] - '0'), &number))
            return true;
    return number > step;
}

/* Truncates the file after the last whole line before the first line of a step after `step`. */
static zr_result cut_after(const struct zr_file *file, uint64_t step)
{
    char piece[4096];
    uint64_t size_bytes, keep_bytes = 0;
    zr_result result = zr_file_size(file, &size_bytes);

    while (!result && keep_bytes < size_bytes) {
        uint64_t left = size_bytes - keep_bytes;
        size_t bytes = left < sizeof piece ? (size_t)left : sizeof piece, used = 0;
        result = zr_file_read_at(file, keep_bytes, piece, bytes);
        while (!result && used < bytes) {
            const char *end = memchr(piece + used, '\n', bytes - used);
            if (!end || is_later(piece + used, (size_t)(end - piece) - used, step))
                break;
            used = (size_t)(end - piece) + 1;
        }
        if (used == 0) /* a later step, a partial line, or a line too long for this log */
            break;
        keep_bytes += used;
    }
    return result ? result : zr_file_resize(file, keep_bytes);
}

zr_result zr_log_open(struct zr_log *out, const char *path, uint64_t resumed_step)
{
    *out = (struct zr_log){.file = {.fd = -1}};
    if (!path[0])
        return ZR_OK;
    /* Opened in append mode, so a line goes to the end even if other processes write to the file. */
    zr_result result = zr_file_create(&out->file, path, ZR_CREATE_APPEND);
    if (result)
        return result;
    if (out->file.regular)
        result = resumed_step ? cut_after(&out->file, resumed_step) : zr_file_resize(&out->file, 0);
    if (result)
        zr_log_close(out);
    return result;
}

void zr_step_line_print(struct zr_text *text, const struct zr_step_line *line)
{
    char number[5][ZR_NUMBER_ROOM];
    zr_text_print(text,
                  "%s%" PRIu64
                  ", \"loss\": %s, \"gradient_norm\": %s, \"rate\": %s, \"tokens_per_second\": %s, "
                  "\"step_seconds\": %s, \"live_bytes\": %zu, \"reserved_bytes\": %zu",
                  line_head, line->step, zr_number_exact(number[0], line->loss),
                  /* JSON has no non-finite numbers */
                  line->skipped ? "null" : zr_number_exact(number[1], line->gradient_norm),
                  zr_number_exact(number[2], line->rate), zr_number_exact(number[3], line->tokens_per_second),
                  zr_number_exact(number[4], line->step_seconds), line->live_bytes, line->reserved_bytes);
    if (line->loss_scale > 0)
        zr_text_print(text, ", \"loss_scale\": %s, \"skipped\": %s",
                      zr_number_exact(number[0], line->loss_scale), line->skipped ? "true" : "false");
    if (line->measures_noise)
        zr_text_print(text, ", \"noise_scale\": %s, \"gradient_square\": %s, \"gradient_variance\": %s",
                      zr_number_exact(number[0], line->noise_scale),
                      zr_number_exact(number[1], line->gradient_square),
                      zr_number_exact(number[2], line->gradient_variance));
    for (unsigned kind = 0; kind < ZR_COMPRESSED_KINDS && line->checks_compression; kind++)
        zr_text_print(text, ", \"error_%s\": %s, \"full_%s\": %s",
                      zr_compressed_kind_name((enum zr_compressed_kind)kind),
                      zr_number_exact(number[0], line->compression.error[kind]),
                      zr_compressed_kind_name((enum zr_compressed_kind)kind),
                      line->compression.full_since[kind] > 0 ? "true" : "false");
    if (line->validated)
        zr_text_print(text, ", \"val_loss\": %s", zr_number_exact(number[0], line->validation_loss));
}

zr_result zr_log_step(struct zr_log *log, const struct zr_step_line *line)
{
    struct zr_text text;
    if (log->file.fd < 0)
        return ZR_OK;
    zr_text_start(&text, &log->file, log->buffer, sizeof log->buffer);
    zr_step_line_print(&text, line);
    zr_text_print(&text, "}\n");
    return zr_text_flush(&text);
}

zr_result zr_log_close(struct zr_log *log)
{
    zr_result result = zr_file_close(&log->file);
    log->file.fd = -1;
    return result;
}
