/* rehearse_ranks.c: the ranks of a rehearsed PyTorch program: each process's peaks and snapshot. See
 * rehearse.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "defrag/tool/input.h"
#include "defrag/tool/rehearse/rehearse.h"

static int in_order(const void *a, const void *b)
{
    const struct zr_rehearse_rank *one = a, *other = b;
    const int differences[] = {one->rank - other->rank, one->process - other->process,
                               one->device - other->device};
    for (unsigned i = 0; i < sizeof differences / sizeof *differences; i++)
        if (differences[i])
            return differences[i];
    return 0;
}

static bool is_device(int machine_device)
{
    return machine_device >= 0 && machine_device < ZR_ACCOUNT_DEVICES_MAX;
}

static bool parse(struct zr_rehearse_rank *out, const char *line)
{
    int at = 0;
    if (sscanf(line, "%d %d %d %d %" SCNu64 " %" SCNu64 " %" SCNu64 " %n", &out->process, &out->rank,
               &out->device, &out->machine_device, &out->allocated_bytes, &out->reserved_bytes,
               &out->failures_count, &at) < 7)
        return false;
    snprintf(out->snapshot, sizeof out->snapshot, "%.*s", (int)strcspn(line + at, "\n"), line + at);
    return is_device(out->machine_device);
}

/* Those that wrote no line: they were killed, or ended without Python's exit. */
static void add_killed(struct zr_rehearse_ranks *out, const struct zr_account *account)
{
    const unsigned written = out->count;
    for (unsigned i = 0; i < ZR_ACCOUNT_TORCHES_MAX && account->torches[i].pid; i++) {
        const struct zr_account_torch *torch = &account->torches[i];
        unsigned line = 0;
        while (line < written &&
               (out->each[line].process != torch->pid || out->each[line].machine_device != torch->device))
            line++;
        if (line == written && out->count < ZR_REHEARSE_RANKS_MAX && is_device(torch->device))
            out->each[out->count++] =
                (struct zr_rehearse_rank){.process = torch->pid,
                                          .rank = torch->rank,
                                          .device = torch->device,
                                          .machine_device = torch->device,
                                          .allocated_bytes = torch->allocated_peak_bytes,
                                          .reserved_bytes = torch->reserved_peak_bytes,
                                          .failures_count = account->devices[torch->device].last.bytes > 0};
    }
}

void zr_rehearse_ranks_read(struct zr_rehearse_ranks *out, const struct zr_account *account,
                            const char *folder)
{
    char line[2 * PATH_MAX];
    FILE *file = zr_rehearse_take_file(folder, "ranks");
    out->count = 0;
    while (file && out->count < ZR_REHEARSE_RANKS_MAX && fgets(line, sizeof line, file))
        out->count += parse(&out->each[out->count], line);
    if (file)
        fclose(file);
    add_killed(out, account);
    qsort(out->each, out->count, sizeof *out->each, in_order);
    for (int i = 0; i < ZR_ACCOUNT_DEVICES_MAX; i++) {
        out->peak_bytes[i] = account->devices[i].peak_bytes;
        out->nccl_bytes[i] = account->devices[i].nccl_peak_bytes;
        out->libraries_bytes[i] = account->devices[i].libraries_peak_bytes;
    }
}

int zr_rehearse_ranks_device(const struct zr_rehearse_ranks *ranks, int process, int device)
{
    for (unsigned i = 0; i < ranks->count; i++)
        if (ranks->each[i].process == process && ranks->each[i].device == device)
            return ranks->each[i].machine_device;
    return device;
}

static void put_rank(struct zr_text *text, const struct zr_rehearse_ranks *ranks,
                     const struct zr_rehearse_rank *rank)
{
    char room[2][ZR_TOOL_NUMBER_ROOM];
    if (rank->rank >= 0)
        zr_text_print(text, "rank %d", rank->rank);
    else
        zr_text_print(text, "process %d", rank->process);
    zr_text_print(text, " on device %d has %s, of which PyTorch reserved %s", rank->machine_device,
                  zr_tool_bytes(room[0], ranks->peak_bytes[rank->machine_device]),
                  zr_tool_bytes(room[1], rank->reserved_bytes));
}

void zr_rehearse_ranks_print(struct zr_text *text, const struct zr_rehearse_ranks *ranks)
{
    const struct zr_rehearse_rank *most = ranks->each, *least = ranks->each;
    for (unsigned i = 1; i < ranks->count; i++) {
        const struct zr_rehearse_rank *rank = &ranks->each[i];
        most = rank->reserved_bytes > most->reserved_bytes ? rank : most;
        least = rank->reserved_bytes < least->reserved_bytes ? rank : least;
    }
    if (ranks->count < 2)
        return;
    zr_text_print(text, "zr: ranks      %u: ", ranks->count);
    put_rank(text, ranks, most);
    if (least->reserved_bytes < most->reserved_bytes) {
        zr_text_print(text, ", the most;\nzr:            ");
        put_rank(text, ranks, least);
        zr_text_print(text, ", the least");
    } else {
        zr_text_print(text, ", as each");
    }
    zr_text_print(text, "\n");
}

static void put_number(struct zr_text *text, const char *name, uint64_t number)
{
    zr_tool_json_number(text, name, number, true);
    zr_text_print(text, ", ");
}

void zr_rehearse_ranks_json(struct zr_text *text, const struct zr_rehearse_ranks *ranks,
                            uint64_t devices_count)
{
    zr_text_print(text, "\"peaks\": [");
    for (uint64_t i = 0; i < devices_count; i++)
        zr_text_print(text, "%s%" PRIu64, i ? ", " : "", ranks->peak_bytes[i]);
    zr_text_print(text, "], \"ranks\": [");
    for (unsigned i = 0; i < ranks->count; i++) {
        const struct zr_rehearse_rank *rank = &ranks->each[i];
        zr_text_print(text, "%s{\"rank\": %d, \"process\": %d, \"device\": %d, ", i ? ",\n  " : "",
                      rank->rank, rank->process, rank->machine_device);
        put_number(text, "allocated_bytes", rank->allocated_bytes);
        put_number(text, "reserved_bytes", rank->reserved_bytes);
        put_number(text, "peak_bytes", ranks->peak_bytes[rank->machine_device]);
        put_number(text, "nccl_bytes", ranks->nccl_bytes[rank->machine_device]);
        put_number(text, "libraries_bytes", ranks->libraries_bytes[rank->machine_device]);
        put_number(text, "failures", rank->failures_count);
        zr_tool_json_words(text, "snapshot", rank->snapshot);
        zr_text_print(text, "}");
    }
    zr_text_print(text, "]");
}
