/* rehearse_answer.c: the answer of `zr rehearse` in words and as JSON. See rehearse.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "defrag/tool/input.h"
#include "defrag/tool/rehearse/rehearse.h"

/* PyTorch asks the driver again after it has returned its cache, so a refusal of the driver is no failure of
 * its own. */
enum zr_rehearse_verdict zr_rehearse_verdict(const struct zr_rehearse_answer *answer)
{
    const struct zr_rehearse_figures *figures = answer->figures;
    bool failed = answer->status != 0, unused = figures->use.contexts_peak == 0;
    if (failed &&
        ((figures->torch.process ? figures->torch.failures_count : figures->use.refusals_count) > 0 ||
         figures->use.nccl_refusals_count > 0 || figures->use.libraries_refusals_count > 0))
        return ZR_REHEARSE_SHORT;
    if (figures->static_runtimes_count && (failed || unused))
        return ZR_REHEARSE_REFUSED;
    if (failed)
        return ZR_REHEARSE_FAILED;
    if (unused)
        return ZR_REHEARSE_UNUSED;
    return figures->torch.failures_count > 0 ? ZR_REHEARSE_WENT_ON : ZR_REHEARSE_FITS;
}

const char *zr_rehearse_verdict_name(const struct zr_rehearse_answer *answer)
{
    static const char *const names[] = {"fits",   "does not fit", "went on",
                                        "failed", "refused",      "no device used"};
    return names[zr_rehearse_verdict(answer)];
}

/* The refusal that misses the most. */
static struct zr_account_refusal refusal_of(const struct zr_account_device *use)
{
    bool last = use->last.bytes + use->last.used_bytes > use->largest.bytes + use->largest.used_bytes;
    return last ? use->last : use->largest;
}

uint64_t zr_rehearse_short_bytes(const struct zr_rehearse_answer *answer)
{
    struct zr_account_refusal refusal = refusal_of(&answer->figures->use);
    uint64_t needed = refusal.used_bytes + refusal.bytes, there = answer->device->memory_bytes;
    return needed > there ? needed - there : 0;
}

static void put_end(struct zr_text *text, int status)
{
    if (WIFSIGNALED(status))
        zr_text_print(text, "signal %d", WTERMSIG(status));
    else
        zr_text_print(text, "exit code %d", WEXITSTATUS(status));
}

/* Why no CUDA context was made. */
static void print_unused(struct zr_text *text, const struct zr_rehearse_figures *figures)
{
    if (figures->is_cpu)
        zr_text_print(
            text, ": PyTorch %s is a build for the CPU; install a build for CUDA, which needs no GPU here",
            figures->version);
    else if (figures->version[0])
        zr_text_print(text, ": PyTorch %s was imported, and the program put nothing on a CUDA device",
                      figures->version);
    else
        zr_text_print(text, ": the program made no CUDA context");
}

static void print_short(struct zr_text *text, const struct zr_rehearse_answer *answer)
{
    const struct zr_account_refusal refusal = refusal_of(&answer->figures->use);
    const uint64_t short_bytes = zr_rehearse_short_bytes(answer);
    char room[4][ZR_TOOL_NUMBER_ROOM];
    if (short_bytes)
        zr_text_print(text, "device %d is short by %s: %s of %s were in use when %s were requested",
                      answer->figures->device, zr_tool_bytes(room[0], short_bytes),
                      zr_tool_bytes(room[1], refusal.used_bytes),
                      zr_tool_bytes(room[2], answer->device->memory_bytes),
                      zr_tool_bytes(room[3], refusal.bytes));
    else
        zr_text_print(text, "a limit that the program set for PyTorch; the device itself has room");
}

static void print_verdict(struct zr_text *text, const struct zr_rehearse_answer *answer)
{
    const struct zr_account_device *use = &answer->figures->use;
    const uint64_t there = answer->device->memory_bytes, failures = answer->figures->torch.failures_count;
    char room[3][ZR_TOOL_NUMBER_ROOM];
    zr_text_print(text, "zr: verdict    %s", zr_rehearse_verdict_name(answer));
    switch (zr_rehearse_verdict(answer)) {
    case ZR_REHEARSE_FITS:
        zr_text_print(text, ": %s of %s in use at the peak of device %d%s, %s left",
                      zr_tool_bytes(room[0], use->peak_bytes), zr_tool_bytes(room[1], there),
                      answer->figures->device,
                      answer->device->devices_count > 1 ? ", which needs the most" : "",
                      zr_tool_bytes(room[2], there - use->peak_bytes));
        break;
    case ZR_REHEARSE_SHORT:
        zr_text_print(text, ": ");
        print_short(text, answer);
        break;
    case ZR_REHEARSE_WENT_ON:
        zr_text_print(text, " after %" PRIu64 " request%s that failed: ", failures, failures == 1 ? "" : "s");
        print_short(text, answer);
        break;
    case ZR_REHEARSE_FAILED:
        zr_text_print(text,
                      ": the program ended for another reason than memory; until then %s of %s were in use",
                      zr_tool_bytes(room[0], use->peak_bytes), zr_tool_bytes(room[1], there));
        break;
    case ZR_REHEARSE_REFUSED:
        zr_text_print(
            text,
            ": the program has the CUDA runtime inside; link it with -cudart shared, or do not strip it");
        break;
    case ZR_REHEARSE_UNUSED:
        print_unused(text, answer->figures);
        break;
    }
    zr_text_print(text, "\n");
}

static void print_live(struct zr_text *text, const struct zr_rehearse_figures *figures)
{
    char room[ZR_TOOL_NUMBER_ROOM];
    if (figures->categories_count == 0)
        return;
    zr_text_print(text, "zr: at peak   ");
    for (unsigned i = 0; i < figures->categories_count; i++)
        zr_text_print(text, "%s %s %s", i ? "," : "", figures->categories[i].name,
                      zr_tool_bytes(room, figures->categories[i].bytes));
    zr_text_print(text, "\n");
    for (unsigned i = 0; i < figures->sites_count; i++)
        zr_text_print(text, "zr: site      %10s of %s: %s\n", zr_tool_bytes(room, figures->sites[i].bytes),
                      figures->sites[i].category, figures->sites[i].words);
}

static void print_others(struct zr_text *text, const struct zr_rehearse_figures *figures)
{
    char room[ZR_TOOL_NUMBER_ROOM];
    if (figures->zr_bytes == 0)
        return;
    zr_text_print(text, "zr: replays    %s reserved with zr", zr_tool_bytes(room, figures->zr_bytes));
    for (unsigned i = 0; i < figures->options_count; i++)
        if (figures->options[i].bytes < figures->torch.reserved_bytes)
            zr_text_print(text, ", %s with %s", zr_tool_bytes(room, figures->options[i].bytes),
                          figures->options[i].conf);
    zr_text_print(text, "\n");
}

/* The snapshot's place, or why there is none. */
static void print_next(struct zr_text *text, const struct zr_rehearse_answer *answer)
{
    const struct zr_rehearse_figures *figures = answer->figures;
    const bool ended_early = (!figures->torch.process || figures->torch.killed) && figures->torches_count;
    if (figures->unread[0])
        zr_text_print(text, "zr: no sites   %s\n", figures->unread);
    if (figures->torch.snapshot[0]) {
        zr_text_print(text, "zr: next       zr why ");
        zr_text_put_plain(text, figures->torch.snapshot);
        zr_text_print(text, "\n");
    } else if (ended_early && figures->version[0]) {
        zr_text_print(
            text, "zr: no sites   PyTorch's process ended without Python's exit (os._exit(), a signal)\n");
    } else if (ended_early) {
        zr_text_print(
            text,
            "zr: no sites   no Python with sitecustomize ran PyTorch: leave out -I, -S, -E of python\n");
    }
    if (!figures->torch.snapshot[0] && figures->use.contexts_peak && answer->traces[0]) {
        zr_text_print(text, "zr: next       zr why ");
        zr_text_put_plain(text, answer->traces);
        zr_text_print(text, "/device%d.*.zrt\n", figures->device);
    }
}

static void print_calls(struct zr_text *text, const struct zr_rehearse_calls *calls)
{
    for (unsigned i = 0; i < calls->count; i++)
        zr_text_print(text, "zr: no answer  %s: called %" PRIu64 " time%s, returned 0\n", calls->each[i].name,
                      calls->each[i].count, calls->each[i].count == 1 ? "" : "s");
}

static void print_workspaces(struct zr_text *text, const struct zr_rehearse_calls *libraries)
{
    for (unsigned i = 0; i < libraries->count; i++)
        zr_text_print(text, "%s%s", i ? ", " : "zr: not in it  workspaces of ", libraries->each[i].name);
    if (libraries->count)
        zr_text_print(text,
                      ": they count as 0 bytes, since no sizes are published, and take some on a GPU\n");
}

void zr_rehearse_print(struct zr_text *text, const struct zr_rehearse_answer *answer)
{
    const struct zr_rehearse_device *device = answer->device;
    const struct zr_rehearse_torch *torch = &answer->figures->torch;
    char room[2][ZR_TOOL_NUMBER_ROOM];
    zr_text_print(text, "zr: rehearsed  %" PRIu64 " x %s of %s: ", device->devices_count, device->card->title,
                  zr_tool_bytes(room[0], device->memory_bytes));
    put_end(text, answer->status);
    zr_text_print(text, "\n");
    print_verdict(text, answer);
    if (torch->process)
        zr_text_print(text, "zr: PyTorch    %s allocated at the peak, %s reserved: its own figures\n",
                      zr_tool_bytes(room[0], torch->allocated_bytes),
                      zr_tool_bytes(room[1], torch->reserved_bytes));
    if (answer->figures->cupy_reserved_bytes)
        zr_text_print(text, "zr: CuPy       %s reserved by its memory pool at the end, %s of it in use\n",
                      zr_tool_bytes(room[0], answer->figures->cupy_reserved_bytes),
                      zr_tool_bytes(room[1], answer->figures->cupy_used_bytes));
    if (answer->figures->use.contexts_peak)
        zr_text_print(text, "zr: contexts   %" PRIu64 " of %s on the device, an estimate (--context)\n",
                      answer->figures->use.contexts_peak, zr_tool_bytes(room[0], device->context_bytes));
    if (answer->figures->use.nccl_peak_bytes)
        zr_text_print(text, "zr: NCCL       %s of the device for its own buffers, an estimate\n",
                      zr_tool_bytes(room[0], answer->figures->use.nccl_peak_bytes));
    if (answer->figures->use.libraries_peak_bytes)
        zr_text_print(text, "zr: libraries  %s of workspaces that cuBLAS took for itself\n",
                      zr_tool_bytes(room[0], answer->figures->use.libraries_peak_bytes));
    print_workspaces(text, &answer->figures->workspaces);
    zr_rehearse_ranks_print(text, &answer->figures->ranks);
    print_live(text, answer->figures);
    zr_rehearse_reads_print(text, answer->figures);
    print_others(text, answer->figures);
    print_next(text, answer);
    if (answer->verbose)
        print_calls(text, &answer->figures->calls);
}

static void json_bytes(struct zr_text *text, const char *name, uint64_t bytes, bool known)
{
    zr_text_print(text, ", ");
    zr_tool_json_number(text, name, bytes, known);
}

static void json_calls(struct zr_text *text, const char *name, const struct zr_rehearse_calls *calls)
{
    zr_text_print(text, ",\n \"%s\": {", name);
    for (unsigned i = 0; i < calls->count; i++)
        zr_text_print(text, "%s\"%s\": %" PRIu64, i ? ", " : "", calls->each[i].name, calls->each[i].count);
    zr_text_print(text, "}");
}

static void json_lists(struct zr_text *text, const struct zr_rehearse_figures *figures)
{
    zr_text_print(text, ",\n \"options\": {");
    for (unsigned i = 0; i < figures->options_count; i++)
        zr_text_print(text, "%s\"%s\": %" PRIu64, i ? ", " : "", figures->options[i].conf,
                      figures->options[i].bytes);
    zr_text_print(text, "},\n \"categories\": {");
    for (unsigned i = 0; i < figures->categories_count; i++)
        zr_text_print(text, "%s\"%s\": %" PRIu64, i ? ", " : "", figures->categories[i].name,
                      figures->categories[i].bytes);
    zr_text_print(text, "},\n \"sites\": [");
    for (unsigned i = 0; i < figures->sites_count; i++) {
        zr_text_print(text, "%s{\"bytes\": %" PRIu64 ", ", i ? ", " : "", figures->sites[i].bytes);
        zr_tool_json_words(text, "category", figures->sites[i].category);
        zr_text_print(text, ", ");
        zr_tool_json_words(text, "site", figures->sites[i].words);
        zr_text_print(text, "}");
    }
    zr_text_print(text, "]");
    json_calls(text, "unanswered", &figures->calls);
    json_calls(text, "workspaces", &figures->workspaces);
}

void zr_rehearse_json(struct zr_text *text, const struct zr_rehearse_answer *answer)
{
    const struct zr_rehearse_device *device = answer->device;
    const struct zr_rehearse_figures *figures = answer->figures;
    const struct zr_rehearse_torch *torch = &figures->torch;
    const uint64_t short_bytes = zr_rehearse_short_bytes(answer);
    const enum zr_rehearse_verdict verdict = zr_rehearse_verdict(answer);
    zr_tool_json_words(text, "verdict", zr_rehearse_verdict_name(answer));
    zr_text_print(text, ", \"exit_code\": %d, \"seconds\": %.3f, ",
                  WIFSIGNALED(answer->status) ? 128 + WTERMSIG(answer->status) : WEXITSTATUS(answer->status),
                  (double)answer->ns / 1e9);
    zr_tool_json_words(text, "card", device->card->name);
    zr_text_print(text, ", \"devices\": %" PRIu64 ", \"device\": %d", device->devices_count, figures->device);
    json_bytes(text, "host_bytes", answer->host_bytes, true);
    json_bytes(text, "memory_bytes", device->memory_bytes, true);
    json_bytes(text, "context_bytes", device->context_bytes, true);
    json_bytes(text, "contexts", figures->use.contexts_peak, true);
    json_bytes(text, "libraries_bytes", figures->use.libraries_peak_bytes, true);
    json_bytes(text, "nccl_bytes", figures->use.nccl_peak_bytes, true);
    json_bytes(text, "peak_bytes", figures->use.peak_bytes, true);
    json_bytes(text, "short_bytes", short_bytes,
               short_bytes && (verdict == ZR_REHEARSE_SHORT || verdict == ZR_REHEARSE_WENT_ON));
    json_bytes(text, "refusals", figures->use.refusals_count, true);
    json_bytes(text, "allocated_bytes", torch->allocated_bytes, torch->process);
    json_bytes(text, "reserved_bytes", torch->reserved_bytes, torch->process);
    json_bytes(text, "failures", torch->failures_count, torch->process);
    json_bytes(text, "cupy_reserved_bytes", figures->cupy_reserved_bytes, figures->cupy_reserved_bytes > 0);
    json_bytes(text, "cupy_used_bytes", figures->cupy_used_bytes, figures->cupy_reserved_bytes > 0);
    json_bytes(text, "zr_bytes", figures->zr_bytes, figures->zr_bytes > 0);
    zr_text_print(text, ",\n ");
    zr_tool_json_words(text, "pytorch", figures->version);
    zr_text_print(text, ", ");
    zr_tool_json_words(text, "snapshot", torch->snapshot);
    zr_text_print(text, ",\n ");
    zr_rehearse_ranks_json(text, &figures->ranks, device->devices_count);
    json_lists(text, figures);
    zr_text_print(text, ",\n ");
    zr_rehearse_reads_json(text, figures);
    zr_text_print(text, ", ");
    zr_tool_json_number(text, "clock", answer->clock ? strtoull(answer->clock, NULL, 10) : 0, answer->clock);
}
