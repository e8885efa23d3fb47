/* rehearse_answer.c: the answer of `zr rehearse` in words and as JSON. See rehearse.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "defrag/tool/input.h"
#include "defrag/tool/rehearse/rehearse.h"

enum verdict { FITS, SHORT, FAILED, REFUSED, UNUSED };
static const char *const verdict_names[] = {"fits", "does not fit", "failed", "refused", "no device used"};

/* PyTorch asks the driver again after it has returned its cache, so a refusal of the driver is no failure of
 * its own. */
static enum verdict verdict_of(const struct zr_rehearse_answer *answer)
{
    const struct zr_rehearse_figures *figures = answer->figures;
    bool failed = answer->status != 0;
    if (failed &&
        ((figures->torch.process ? figures->torch.failures_count : figures->use.refusals_count) > 0 ||
         figures->use.nccl_refusals_count > 0))
        return SHORT;
    if (failed && figures->static_runtimes_count)
        return REFUSED;
    if (failed)
        return FAILED;
    return figures->use.contexts_peak == 0 ? UNUSED : FITS;
}

/* The refusal that misses the most. */
static struct zr_account_refusal refusal_of(const struct zr_account_device *use)
{
    bool last = use->last.bytes + use->last.used_bytes > use->largest.bytes + use->largest.used_bytes;
    return last ? use->last : use->largest;
}

static uint64_t short_bytes(const struct zr_rehearse_answer *answer)
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

static void print_verdict(struct zr_text *text, const struct zr_rehearse_answer *answer)
{
    const struct zr_account_device *use = &answer->figures->use;
    uint64_t there = answer->device->memory_bytes;
    char room[4][ZR_TOOL_NUMBER_ROOM];
    enum verdict verdict = verdict_of(answer);
    zr_text_print(text, "zr: verdict    %s", verdict_names[verdict]);
    switch (verdict) {
    case FITS:
        zr_text_print(text, ": %s of %s in use at the peak of device %d, %s left",
                      zr_tool_bytes(room[0], use->peak_bytes), zr_tool_bytes(room[1], there),
                      answer->figures->device, zr_tool_bytes(room[2], there - use->peak_bytes));
        if (answer->figures->torch.failures_count)
            zr_text_print(text, ", after %" PRIu64 " requests that failed: the program went on",
                          answer->figures->torch.failures_count);
        break;
    case SHORT:
        zr_text_print(text, ": device %d is short by %s: %s of %s were in use when %s were requested",
                      answer->figures->device, zr_tool_bytes(room[0], short_bytes(answer)),
                      zr_tool_bytes(room[1], refusal_of(use).used_bytes), zr_tool_bytes(room[2], there),
                      zr_tool_bytes(room[3], refusal_of(use).bytes));
        break;
    case FAILED:
        zr_text_print(text,
                      ": the program ended for another reason than memory; until then %s of %s were in use",
                      zr_tool_bytes(room[0], use->peak_bytes), zr_tool_bytes(room[1], there));
        break;
    case REFUSED:
        zr_text_print(text, ": the program has the CUDA runtime inside; link it with -cudart shared");
        break;
    case UNUSED:
        zr_text_print(text,
                      ": the program made no CUDA context; a build of PyTorch for the CPU alone makes none");
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
    char room[3][ZR_TOOL_NUMBER_ROOM];
    if (figures->zr_bytes == 0)
        return;
    zr_text_print(text, "zr: replays    %s reserved with zr, %s with expandable_segments:True",
                  zr_tool_bytes(room[0], figures->zr_bytes),
                  zr_tool_bytes(room[1], figures->expandable_bytes));
    if (figures->best_bytes < figures->torch.reserved_bytes && strcmp(figures->best_option, "default") != 0)
        zr_text_print(text, ", %s with %s", zr_tool_bytes(room[2], figures->best_bytes),
                      figures->best_option);
    zr_text_print(text, "\n");
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
    if (answer->figures->use.contexts_peak)
        zr_text_print(text, "zr: contexts   %" PRIu64 " of %s on the device, an estimate (--context)\n",
                      answer->figures->use.contexts_peak, zr_tool_bytes(room[0], device->context_bytes));
    if (answer->figures->use.nccl_peak_bytes)
        zr_text_print(text, "zr: NCCL       %s of the device for its own buffers, an estimate\n",
                      zr_tool_bytes(room[0], answer->figures->use.nccl_peak_bytes));
    if (answer->figures->use.libraries_peak_bytes)
        zr_text_print(text, "zr: libraries  %s of workspaces that cuBLAS took for itself\n",
                      zr_tool_bytes(room[0], answer->figures->use.libraries_peak_bytes));
    zr_rehearse_ranks_print(text, &answer->figures->ranks);
    print_live(text, answer->figures);
    zr_rehearse_reads_print(text, answer->figures);
    print_others(text, answer->figures);
    if (answer->figures->unread[0])
        zr_text_print(text, "zr: no sites   %s\n", answer->figures->unread);
    if (torch->snapshot[0]) {
        zr_text_print(text, "zr: next       zr why ");
        zr_text_put_plain(text, torch->snapshot);
        zr_text_print(text, "\n");
    }
}

static void json_bytes(struct zr_text *text, const char *name, uint64_t bytes, bool known)
{
    zr_text_print(text, ", ");
    zr_tool_json_number(text, name, bytes, known);
}

void zr_rehearse_json(struct zr_text *text, const struct zr_rehearse_answer *answer)
{
    const struct zr_rehearse_device *device = answer->device;
    const struct zr_rehearse_figures *figures = answer->figures;
    const struct zr_rehearse_torch *torch = &figures->torch;
    bool is_short = verdict_of(answer) == SHORT, replayed = figures->zr_bytes > 0;
    zr_text_print(text, "{\"version\": 1, ");
    zr_tool_json_words(text, "verdict", verdict_names[verdict_of(answer)]);
    zr_text_print(text, ", ");
    zr_tool_json_words(text, "card", device->card->name);
    zr_text_print(text, ", \"devices\": %" PRIu64 ", \"device\": %d", device->devices_count, figures->device);
    json_bytes(text, "memory_bytes", device->memory_bytes, true);
    json_bytes(text, "context_bytes", device->context_bytes, true);
    json_bytes(text, "contexts", figures->use.contexts_peak, true);
    json_bytes(text, "libraries_bytes", figures->use.libraries_peak_bytes, true);
    json_bytes(text, "peak_bytes", figures->use.peak_bytes, true);
    json_bytes(text, "nccl_bytes", figures->use.nccl_peak_bytes, true);
    json_bytes(text, "short_bytes", short_bytes(answer), is_short);
    json_bytes(text, "allocated_bytes", torch->allocated_bytes, torch->process);
    json_bytes(text, "reserved_bytes", torch->reserved_bytes, torch->process);
    json_bytes(text, "expandable_bytes", figures->expandable_bytes, replayed);
    json_bytes(text, "best_option_bytes", figures->best_bytes, replayed);
    json_bytes(text, "zr_bytes", figures->zr_bytes, replayed);
    zr_text_print(text, ",\n ");
    zr_tool_json_words(text, "best_option", figures->best_option);
    zr_text_print(text, ", ");
    zr_tool_json_words(text, "snapshot", torch->snapshot);
    zr_text_print(text, ",\n ");
    zr_rehearse_ranks_json(text, &figures->ranks, device->devices_count);
    zr_text_print(text, ",\n \"categories\": {");
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
    zr_text_print(text, "],\n ");
    zr_rehearse_reads_json(text, figures);
    zr_text_print(text, ", ");
    zr_tool_json_number(text, "clock", answer->clock ? strtoull(answer->clock, NULL, 10) : 0, answer->clock);
    zr_text_print(text, "}\n");
}
