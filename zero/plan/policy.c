/* policy.c: see plan.h. */
#define _GNU_SOURCE
#include "zero/plan/plan.h"

#include <stdio.h>

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"
#include "zero/comm/take.h"

/* Adds memory that exists before everything else. */
static zr_result put_first(struct zr_sequence *sequence, uint64_t bytes, zr_arena *host_arena)
{
    struct zr_event *events;
    if (bytes == 0 || sequence->events_count == 0)
        return ZR_OK;
    zr_result result =
        zr_take(host_arena, ZR_TAG_OTHER, sequence->events_count + 1, sizeof *events, (void **)&events);
    if (result != ZR_OK)
        return result;
    for (size_t i = 0; i < sequence->events_count; i++) {
        events[i + 1] = sequence->events[i];
        events[i + 1].block += sequence->events[i].kind != ZR_EVENT_MARK;
    }
    events[0] = (struct zr_event){.kind = ZR_EVENT_ALLOC, .tag = ZR_TAG_CHECKPOINT, .bytes = bytes};
    sequence->blocks_count++;
    zr_drop(host_arena, &sequence->events);
    sequence->events = events;
    sequence->events_count++;
    sequence->lower_bound_bytes += bytes;
    return ZR_OK;
}

static zr_result replay(struct zr_policy_use *out, const struct zr_sequence *sequence, enum zr_policy policy,
                        uint64_t capacity_bytes)
{
    struct zr_replay_report report;
    zr_result result = zr_replay(
        sequence, &(struct zr_replay_options){.policy = policy, .capacity_bytes = capacity_bytes}, &report);
    *out = (struct zr_policy_use){.live_bytes = sequence->lower_bound_bytes,
                                  .reserved_bytes = report.peak_reserved_bytes,
                                  .fits = report.failed_at == UINT64_MAX};
    return result;
}

zr_result zr_policy_weigh(struct zr_policy_use *out, const struct zr_plan_request *request,
                          enum zr_policy policy, uint64_t capacity_bytes, const char *folder)
{
    struct zr_plan_request traced = *request;
    struct zr_byte_plan plan;
    struct zr_sequence sequence = {.events = NULL};
    struct zr_file file;
    char path[40];
    if (zr_file_create_nameless(&file, folder) != ZR_OK)
        return zr_fail(ZR_ERR_IO,
                       "--policy: cannot create a trace file in '%s'; set TMPDIR to a folder with space",
                       folder);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file.fd);
    traced.trace = path;
    traced.live_only = true;
    traced.places = NULL;
    zr_result result = zr_plan_make(&plan, &traced);
    if (result == ZR_OK)
        result = zr_sequence_read(&sequence, &(struct zr_read_options){.path = path}, request->host_arena);
    if (result == ZR_OK && !request->checkpoints.scattered && !request->offloads_checkpoints)
        result = put_first(&sequence, plan.tag_limits.by_tag_bytes[ZR_TAG_CHECKPOINT], request->host_arena);
    if (result == ZR_OK)
        result = replay(out, &sequence, policy, capacity_bytes);
    zr_sequence_end(&sequence);
    zr_file_close(&file);
    return result;
}
