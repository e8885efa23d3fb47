/* progress.c: draws the live line, or prints plain lines. */
#define _GNU_SOURCE
#include "zero/train/report/log.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/system/os.h"
#include "zero/train/report/number.h"

#define REDRAW_NS   UINT64_C(100000000) /* redraws at most ten times a second */
#define PLAIN_LINES 20

void zr_progress_start(struct zr_progress *out, uint64_t first_step, uint64_t steps)
{
    *out = (struct zr_progress){.first_step = first_step,
                                .steps = steps,
                                .started_ns = zr_os_now_ns(),
                                .shown_step = first_step,
                                .validation_loss = -1,
                                .noun = "step"};
    zr_terminal_find(&out->terminal, 2);
}

void zr_progress_break(struct zr_progress *progress)
{
    if (progress->open)
        zr_show(progress->terminal.fd, "\r\033[K", 4);
    progress->open = false;
}

static double seconds_left(const struct zr_progress *progress, uint64_t step)
{
    double seconds = (double)(zr_os_now_ns() - progress->started_ns) * 1e-9;
    return seconds / (double)(step - progress->first_step) * (double)(progress->steps - step);
}

/* "saves in 9 min 20 s", or "saves at 60"; false: no --save. */
static bool describe_save(const struct zr_progress *progress, uint64_t step, char out[64])
{
    uint64_t now_ns = zr_os_now_ns();
    char number[ZR_NUMBER_ROOM];
    if (progress->save_step == 0)
        return false;
    double until = progress->save_ns > now_ns ? (double)(progress->save_ns - now_ns) * 1e-9 : 0;
    if (progress->save_ns && until < seconds_left(progress, step))
        snprintf(out, 64, "saves in %s", zr_number_seconds(number, until));
    else
        snprintf(out, 64, "saves at %" PRIu64, progress->save_step);
    return true;
}

/* "exchange at 200"; false: no groups, or none follows. */
static bool describe_exchange(const struct zr_progress *progress, uint64_t step, char out[64])
{
    uint64_t every = progress->exchange_steps, next = every > 0 ? (step / every + 1) * every : 0;
    if (next == 0 || next > progress->steps)
        return false;
    snprintf(out, 64, "exchange at %" PRIu64, next);
    return true;
}

/* A bar of `width` cells: eighths of a block in UTF-8, else '#' and '.'. Returns its bytes. */
static size_t draw_bar(const struct zr_progress *progress, uint64_t step, unsigned width, char *out)
{
    static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    double share = progress->steps ? (double)step / (double)progress->steps : 1;
    unsigned parts = (unsigned)(share * width * 8 + 1e-9), full = parts / 8;
    size_t used = 0;

    for (unsigned cell = 0; cell < width; cell++) {
        const char *glyph;
        if (progress->terminal.utf8)
            glyph = cell < full ? "█" : cell == full && parts % 8 ? eighths[parts % 8] : "░";
        else
            glyph = cell < full ? "#" : ".";
        size_t bytes = strlen(glyph);
        memcpy(out + used, glyph, bytes);
        used += bytes;
    }
    out[used] = '\0';
    return used;
}

/* Draws the parts of the line by importance; omits a part if the bar would have no space. */
static unsigned draw_text(const struct zr_progress *progress, const struct zr_step_line *line, unsigned space,
                          char text[512])
{
    char pieces[9][64], number[ZR_NUMBER_ROOM];
    size_t count = 0;
    unsigned used = 0;

    snprintf(pieces[count++], 64, "%" PRIu64 "/%" PRIu64, line->step, progress->steps);
    if (!isnan(line->loss))
        snprintf(pieces[count++], 64, "loss %.4f", line->loss);
    snprintf(pieces[count++], 64, "%s tok/s",
             zr_number_counted(number, progress->smoothed_tokens_per_second));
    snprintf(pieces[count++], 64, "%s", zr_number_bytes(number, line->reserved_bytes));
    snprintf(pieces[count++], 64, "%s left", zr_number_seconds(number, seconds_left(progress, line->step)));
    if (progress->validation_loss >= 0)
        snprintf(pieces[count++], 64, "val %.4f", progress->validation_loss);
    if (line->measures_noise && isfinite(line->noise_scale))
        snprintf(pieces[count++], 64, "noise %s tok", zr_number_counted(number, line->noise_scale));
    count += describe_exchange(progress, line->step, pieces[count]);
    count += describe_save(progress, line->step, pieces[count]);
    text[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        unsigned length = (unsigned)strlen(pieces[i]) + (i ? 2 : 0);
        if (used + length > space)
            continue;
        snprintf(text + used, 512 - used, "%s%s", i ? "  " : "", pieces[i]);
        used += length;
    }
    return used;
}

static void draw_line(struct zr_progress *progress, const struct zr_step_line *line)
{
    enum { BAR_MIN = 6, BAR_MAX = 30, BAR_FROM = 40 }; /* cells; narrower terminals have no bar */
    char text[512], bar[4 * 64] = "", out[1024];
    const char *colour = progress->terminal.colour ? "\033[36m" : "", *plain = colour[0] ? "\033[0m" : "";

    zr_terminal_measure(&progress->terminal);
    /* The last column remains free, because some terminals wrap there. */
    unsigned columns = progress->terminal.columns > 1 ? progress->terminal.columns - 1 : 1;
    unsigned used = draw_text(progress, line, columns < BAR_FROM ? columns : columns - BAR_MIN - 2, text);
    unsigned width = columns > used + 2 ? columns - used - 2 : 0;
    if (columns >= BAR_FROM && width >= BAR_MIN)
        draw_bar(progress, line->step, width < BAR_MAX ? width : BAR_MAX, bar);
    snprintf(out, sizeof out, "\r%s%s%s%s%s\033[K", colour, bar, plain, bar[0] ? "  " : "", text);
    zr_show(progress->terminal.fd, out, strlen(out));
    progress->open = true;
}

static void print_line(struct zr_progress *progress, const struct zr_step_line *line)
{
    char number[3][ZR_NUMBER_ROOM], loss[48] = "", validation[48] = "", noise[48] = "", save[64],
                                    exchange[64];
    bool saves = line->step < progress->steps && describe_save(progress, line->step, save),
         exchanges = describe_exchange(progress, line->step, exchange);
    if (!isnan(line->loss))
        snprintf(loss, sizeof loss, "  loss %.4f", line->loss);
    if (progress->unshown)
        snprintf(validation, sizeof validation, "  val %.4f", progress->validation_loss);
    progress->unshown = false;
    if (line->measures_noise && isfinite(line->noise_scale))
        snprintf(noise, sizeof noise, "  noise %s tok", zr_number_counted(number[2], line->noise_scale));
    zr_say("%s %" PRIu64 "/%" PRIu64 "%s%s%s  %s tok/s  %s left%s%s%s%s", progress->noun, line->step,
           progress->steps, loss, validation, noise,
           zr_number_counted(number[0], progress->smoothed_tokens_per_second),
           zr_number_seconds(number[1], seconds_left(progress, line->step)), exchanges ? "  " : "",
           exchanges ? exchange : "", saves ? "  " : "", saves ? save : "");
}

void zr_progress_step(struct zr_progress *progress, const struct zr_step_line *line)
{
    uint64_t now = zr_os_now_ns(), done = line->step - progress->first_step;
    bool last = line->step == progress->steps;
    double *speed = &progress->smoothed_tokens_per_second;

    if (line->validated) {
        progress->validation_loss = line->validation_loss;
        progress->unshown = true;
    }
    *speed = *speed > 0 ? 0.9 * *speed + 0.1 * line->tokens_per_second : line->tokens_per_second;
    if (done == 0)
        return;
    if (progress->terminal.live) {
        if (!last && progress->shown_ns && now - progress->shown_ns < REDRAW_NS)
            return;
        draw_line(progress, line);
    } else {
        uint64_t every = (progress->steps - progress->first_step) / PLAIN_LINES;
        if (!last && done != 1 && line->step - progress->shown_step < (every ? every : 1))
            return;
        print_line(progress, line);
    }
    progress->shown_ns = now;
    progress->shown_step = line->step;
}
