/* rehearse_figures.c: the figures of a run: of the device's account, of PyTorch's own count, and of its
 * snapshot. See rehearse.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "defrag/report/growth.h"
#include "defrag/report/remedies.h"
#include "defrag/tool/input.h"
#include "defrag/tool/rehearse/rehearse.h"
#include "defrag/tool/why_reasons.h"

/* ---- Which process ------------------------------------------------------------------------------------- */

/* Of the lines of sitecustomize.py a request that failed for good comes first, then the most reserved bytes.
 */
static bool comes_before(const struct zr_rehearse_torch *one, const struct zr_rehearse_torch *other)
{
    if ((one->failures_count > 0) != (other->failures_count > 0))
        return one->failures_count > 0;
    return other->process == 0 || one->reserved_bytes > other->reserved_bytes;
}

FILE *zr_rehearse_take_file(const char *folder, const char *name)
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    if (file)
        unlink(path);
    return file;
}

/* A line is "torch VERSION CUDA" when PyTorch has been imported, and the rest at the end. */
static void read_torch(struct zr_rehearse_figures *out, const char *folder)
{
    char line[2 * PATH_MAX], cuda[32];
    FILE *file = zr_rehearse_take_file(folder, "torch");
    while (file && fgets(line, sizeof line, file)) {
        struct zr_rehearse_torch one = {0};
        int at = 0;
        if (sscanf(line, "torch %47s %31s", out->version, cuda) == 2)
            out->is_cpu = strcmp(cuda, "None") == 0;
        if (sscanf(line, "%d %d %" SCNu64 " %" SCNu64 " %" SCNu64 " %n", &one.process, &one.device,
                   &one.allocated_bytes, &one.reserved_bytes, &one.failures_count, &at) < 5)
            continue;
        snprintf(one.snapshot, sizeof one.snapshot, "%.*s", (int)strcspn(line + at, "\n"), line + at);
        if (comes_before(&one, &out->torch))
            out->torch = one;
    }
    zr_make_plain(out->version);
    if (file)
        fclose(file);
}

/* Unless a request failed, the process on the fullest device is shown, which other processes may use, too. */
static void take_fullest(struct zr_rehearse_figures *out)
{
    const struct zr_rehearse_ranks *ranks = &out->ranks;
    const int shown = zr_rehearse_ranks_device(ranks, out->torch.process, out->torch.device);
    for (unsigned i = 0; i < ranks->count && out->torch.failures_count == 0; i++) {
        const struct zr_rehearse_rank *one = &ranks->each[i];
        if (one->machine_device != out->device || ranks->peak_bytes[shown] >= ranks->peak_bytes[out->device])
            continue;
        out->torch = (struct zr_rehearse_torch){.process = one->process,
                                                .device = one->device,
                                                .allocated_bytes = one->allocated_bytes,
                                                .reserved_bytes = one->reserved_bytes};
        memcpy(out->torch.snapshot, one->snapshot, sizeof one->snapshot);
        return;
    }
}

/* Of the process whose pool has the most: a line is "RESERVED USED". */
static void read_cupy(struct zr_rehearse_figures *out, const char *folder)
{
    uint64_t reserved, used;
    FILE *file = zr_rehearse_take_file(folder, "cupy");
    while (file && fscanf(file, "%" SCNu64 " %" SCNu64, &reserved, &used) == 2)
        if (reserved > out->cupy_reserved_bytes) {
            out->cupy_reserved_bytes = reserved;
            out->cupy_used_bytes = used;
        }
    if (file)
        fclose(file);
}

static void add_calls(struct zr_rehearse_calls *out, const char *name, uint64_t count)
{
    unsigned i = 0;
    while (i < out->count && strcmp(out->each[i].name, name) != 0)
        i++;
    if (i == ZR_REHEARSE_CALLS)
        return;
    out->count += i == out->count;
    snprintf(out->each[i].name, sizeof out->each[i].name, "%s", name);
    out->each[i].count += count;
}

/* Sums the lines "NAME COUNT" and "workspaces:LIBRARY COUNT" of all processes. */
static void read_calls(struct zr_rehearse_figures *out, const char *folder)
{
    static const char workspaces[] = "workspaces:";
    const size_t length = sizeof workspaces - 1;
    char name[64];
    uint64_t count;
    FILE *file = zr_rehearse_take_file(folder, "calls");
    while (file && fscanf(file, "%63s %" SCNu64, name, &count) == 2)
        if (strncmp(name, workspaces, length) == 0)
            add_calls(&out->workspaces, name + length, count);
        else
            add_calls(&out->calls, name, count);
    if (file)
        fclose(file);
}

static int fullest(const struct zr_account *account)
{
    int found = 0;
    for (int i = 1; i < ZR_ACCOUNT_DEVICES_MAX; i++)
        if (account->devices[i].peak_bytes > account->devices[found].peak_bytes)
            found = i;
    return found;
}

/* ---- The snapshot -------------------------------------------------------------------------------------- */

/* Stacks that differ above the line which they show are one site. */
static zr_result add_site(struct zr_vector *sites, const struct zr_holder *holder,
                          struct zr_recording *recording)
{
    struct zr_rehearse_site one = {.bytes = holder->bytes};
    if (!zr_tool_short_stack(recording, holder->stack, sizeof one.words, one.words))
        strcpy(one.words, "no Python frame, as in PyTorch's backward pass");
    zr_make_plain(one.words);
    snprintf(one.category, sizeof one.category, "%s", zr_holder_category(holder));
    for (size_t i = 0; i < sites->count; i++) {
        struct zr_rehearse_site *each = zr_vector_at(sites, i);
        if (strcmp(each->words, one.words) == 0 && strcmp(each->category, one.category) == 0) {
            each->bytes += one.bytes;
            return ZR_OK;
        }
    }
    return zr_vector_add(sites, &one);
}

/* Keeps the largest in order. */
static void show_site(struct zr_rehearse_figures *out, const struct zr_rehearse_site *one)
{
    unsigned at = out->sites_count;
    while (at > 0 && out->sites[at - 1].bytes < one->bytes)
        at--;
    if (at == ZR_REHEARSE_SITES)
        return;
    out->sites_count += out->sites_count < ZR_REHEARSE_SITES;
    memmove(&out->sites[at + 1], &out->sites[at], (out->sites_count - 1 - at) * sizeof *one);
    out->sites[at] = *one;
}

static zr_result take_growth(void *state, const struct zr_record *record, bool *stop)
{
    (void)stop;
    return zr_growth_take(state, record);
}

static zr_result note_holders(struct zr_rehearse_figures *out, struct zr_tool_input *input, zr_arena *arena)
{
    struct zr_memory memory = {0};
    struct zr_growth growth;
    struct zr_vector holders, sites;
    const uint64_t records_count = input->moments.peak.records_count;
    struct zr_category sums[ZR_CATEGORIES_MAX];
    zr_vector_init(&holders, arena, sizeof(struct zr_holder));
    zr_vector_init(&sites, arena, sizeof(struct zr_rehearse_site));
    zr_growth_init(&growth, &input->recording, &memory, records_count, 0);
    zr_result result = zr_moment_reach(&memory, &input->recording, records_count,
                                       &(struct zr_recording_sink){take_growth, &growth});
    if (result == ZR_OK)
        result = zr_holders_find(&holders, &growth);
    unsigned count = result == ZR_OK ? zr_holders_sum(sums, &holders) : 0;
    for (unsigned i = 0; i < count && i < ZR_REHEARSE_CATEGORIES; i++) {
        snprintf(out->categories[i].name, sizeof out->categories[i].name, "%s", sums[i].name);
        out->categories[out->categories_count++].bytes = sums[i].bytes;
    }
    for (size_t i = 0; result == ZR_OK && i < holders.count; i++)
        result = add_site(&sites, zr_vector_at(&holders, i), &input->recording);
    for (size_t i = 0; result == ZR_OK && i < sites.count; i++)
        show_site(out, zr_vector_at(&sites, i));
    zr_vector_end(&sites);
    zr_vector_end(&holders);
    zr_growth_end(&growth);
    zr_memory_end(&memory);
    return result;
}

static zr_result take(void *state, const struct zr_record *record, bool *stop)
{
    (void)stop;
    return zr_requests_take(state, record);
}

/* Of each option the value that reserves the least. */
static void note_sweep(struct zr_rehearse_figures *out, const struct zr_sweep *sweep)
{
    for (unsigned i = 0; i < sweep->count; i++) {
        const char *conf = sweep->list[i].option;
        const size_t length = strcspn(conf, ":") + 1;
        unsigned at = 0;
        if (!strchr(conf, ':'))
            continue;
        while (at < out->options_count && strncmp(out->options[at].conf, conf, length) != 0)
            at++;
        if (at == ZR_REHEARSE_OPTIONS ||
            (at < out->options_count && out->options[at].bytes <= sweep->list[i].peak_reserved_bytes))
            continue;
        out->options_count += at == out->options_count;
        out->options[at].bytes = sweep->list[i].peak_reserved_bytes;
        snprintf(out->options[at].conf, sizeof out->options[at].conf, "%s", conf);
    }
}

/* The same requests under other allocators. */
static zr_result note_others(struct zr_rehearse_figures *out, struct zr_tool_input *input, zr_arena *arena)
{
    struct zr_memory memory = {0};
    struct zr_requests requests;
    struct zr_sweep sweep = {0};
    struct zr_replay_report report = {0};
    zr_requests_init(&requests, input->recording.path, arena);
    zr_result result = zr_moment_reach(&memory, &input->recording, input->moments.now.records_count,
                                       &(struct zr_recording_sink){take, &requests});
    if (result == ZR_OK)
        result = zr_remedies_sweep(&sweep, &requests, &input->recording, 0, zr_tool_progress_say);
    struct zr_sequence sequence = zr_numbering_sequence(&requests.numbering);
    if (result == ZR_OK)
        result = zr_replay(&sequence, &(struct zr_replay_options){.policy = ZR_POLICY_ZR}, &report);
    if (result == ZR_OK) {
        note_sweep(out, &sweep);
        out->zr_bytes = report.peak_reserved_bytes;
    }
    zr_requests_end(&requests);
    zr_memory_end(&memory);
    return result;
}

/* No process of PyTorch wrote its figures. */
static void take_killed(struct zr_rehearse_figures *out, const struct zr_rehearse_rank *rank)
{
    const struct zr_rehearse_torch one = {.process = rank->process,
                                          .device = rank->device,
                                          .allocated_bytes = rank->allocated_bytes,
                                          .reserved_bytes = rank->reserved_bytes,
                                          .failures_count = rank->failures_count,
                                          .killed = true};
    if (comes_before(&one, &out->torch))
        out->torch = one;
}

zr_result zr_rehearse_read(struct zr_rehearse_figures *out, const struct zr_account *account,
                           const char *folder, zr_arena *arena)
{
    *out = (struct zr_rehearse_figures){.device = fullest(account),
                                        .torches_count = account->torches_count,
                                        .static_runtimes_count = account->static_runtimes_count};
    read_torch(out, folder);
    const bool written = out->torch.process;
    zr_rehearse_ranks_read(&out->ranks, account, folder);
    zr_rehearse_reads_read(out, account, folder);
    for (unsigned i = 0; !written && i < out->ranks.count; i++)
        take_killed(out, &out->ranks.each[i]);
    read_calls(out, folder);
    read_cupy(out, folder);
    take_fullest(out);
    if (out->torch.process)
        out->device = zr_rehearse_ranks_device(&out->ranks, out->torch.process, out->torch.device);
    for (int i = 0; out->torch.failures_count == 0 && i < ZR_ACCOUNT_DEVICES_MAX; i++)
        if (account->devices[i].nccl_refusals_count || account->devices[i].libraries_refusals_count)
            out->device = i; /* a library found too few bytes there; another device may have more reserved */
    out->use = account->devices[out->device];
    if (strcmp(out->torch.snapshot, "-") == 0) {
        out->torch.snapshot[0] = '\0';
        snprintf(out->unread, sizeof out->unread,
                 "PyTorch's caching allocator alone records its memory, and the program chose another one");
    }
    if (!out->torch.snapshot[0])
        return ZR_OK;
    struct zr_tool_input input;
    struct zr_tool_reading reading = {.device = (uint64_t)out->torch.device, .held = true};
    zr_result result = zr_tool_input_open(&input, out->torch.snapshot, &reading, arena);
    if (result == ZR_OK)
        result = note_holders(out, &input, arena);
    if (result == ZR_OK)
        result = note_others(out, &input, arena);
    zr_tool_input_end(&input);
    if (result != ZR_OK) {
        out->sites_count = out->categories_count = 0;
        snprintf(out->unread, sizeof out->unread, "%s", zr_last_error());
        zr_make_plain(out->unread);
    }
    return ZR_OK;
}
