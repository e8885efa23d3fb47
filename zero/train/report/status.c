/* status.c: see log.h. */
#define _GNU_SOURCE
#include "zero/train/report/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "alloc/base/system/os.h"
#include "zero/train/report/number.h"
#include "zero/train/report/report.h"

#define REWRITE_NS UINT64_C(100000000)

static zr_result write_file(struct zr_status *status, const char *state)
{
    char buffer[2048], partial[ZR_TRAIN_PATH_ROOM + 16], number[ZR_NUMBER_ROOM];
    const struct zr_step_line *line = &status->line;
    uint64_t done = line->step > status->first_step ? line->step - status->first_step : 0,
             left = status->steps > line->step ? status->steps - line->step : 0;
    struct zr_text text;
    struct zr_file file;
    status->written_ns = zr_os_now_ns();
    double seconds = (double)(status->written_ns - status->started_ns) * 1e-9;
    zr_report_name_partial(status->path, partial);
    zr_result result = zr_file_create(&file, partial, ZR_CREATE_REPLACE);
    if (result != ZR_OK)
        return result;
    zr_text_start(&text, &file, buffer, sizeof buffer);
    zr_step_line_print(&text, line);
    zr_text_print(&text, ", \"steps\": %" PRIu64 ", \"seconds_left\": %s, \"pid\": %d, \"state\": \"%s\"}\n",
                  status->steps,
                  done ? zr_number_exact(number, seconds / (double)done * (double)left) : "null",
                  (int)getpid(), state);
    result = zr_text_flush(&text);
    zr_result closed = zr_file_close(&file);
    result = result == ZR_OK ? closed : result;
    if (result == ZR_OK)
        result = zr_path_rename(&(struct zr_rename){partial, status->path});
    if (result != ZR_OK)
        unlink(partial);
    return result;
}

static bool is_open(const struct zr_status *status)
{
    return status->path && status->path[0];
}

zr_result zr_status_start(struct zr_status *out, const char *path, uint64_t first_step, uint64_t steps)
{
    *out = (struct zr_status){.path = path,
                              .first_step = first_step,
                              .steps = steps,
                              .started_ns = zr_os_now_ns(),
                              .line = {.step = first_step}};
    return is_open(out) ? write_file(out, "training") : ZR_OK;
}

zr_result zr_status_step(struct zr_status *status, const struct zr_step_line *line)
{
    struct zr_step_line last = status->line;
    status->line = *line;
    if (!line->validated) {
        status->line.validated = last.validated;
        status->line.validation_loss = last.validation_loss;
    }
    return is_open(status) && zr_os_now_ns() - status->written_ns >= REWRITE_NS
               ? write_file(status, "training")
               : ZR_OK;
}

zr_result zr_status_end(struct zr_status *status, const char *state)
{
    return is_open(status) ? write_file(status, state) : ZR_OK;
}
