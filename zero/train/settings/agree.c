/* agree.c: compares the settings of all ranks by a hash per option. */
#include "zero/train/settings/args.h"

#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/heap/heap.h"
#include "zero/train/report/terminal.h"
#include "zero/train/settings/flags.h"

/* Options that may differ between ranks. */
static bool own(const struct zr_flag *flag)
{
    static const char *const names[] = {
        "config", "rank",         "secret-file",  "log",          "tensorboard", "status",
        "json",   "trace",        "threads",      "memory-limit", "host-limit",  "over-plan",
        "flops",  "bandwidth",    "comm-timeout", "nvme-limit",   "nvme-depth",  "nvme-bandwidth",
        "device", "max-restarts", "rejoin-within"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(flag->name, names[i]) == 0)
            return true;
    return flag->room_bytes == 0;
}

/* Hash of an option. A path may differ by machine, so only its presence counts, which decides which
 * collectives the ranks run. */
static uint32_t hash(const struct zr_flag *flag, const struct zr_train_config *config)
{
    const unsigned char *field = (const unsigned char *)config + flag->offset;
    const unsigned char given = field[0] != '\0';
    size_t bytes = flag->room_bytes;
    uint32_t sum = UINT32_C(0x811c9dc5); /* FNV-1a */
    /* Each process cuts the pipeline by its own plan, so the resulting cut is hashed too. */
    for (size_t i = 0; strcmp(flag->name, "pipeline-cut") == 0 && i < sizeof config->stages.layers; i++)
        sum = (sum ^ ((const unsigned char *)config->stages.layers)[i]) * UINT32_C(0x01000193);
    for (size_t i = 0; strcmp(flag->name, "model") == 0 && i < sizeof config->shape.variant; i++)
        sum = (sum ^ ((const unsigned char *)&config->shape.variant)[i]) * UINT32_C(0x01000193);
    if (strcmp(flag->name, "prompt") == 0 || strcmp(flag->name, "stop") == 0) {
        bytes = strlen((const char *)field);
    } else if (flag->kind == ZR_FLAG_TEXT || flag->kind == ZR_FLAG_SOURCES) {
        field = &given;
        bytes = 1;
    }
    for (size_t i = 0; i < bytes; i++)
        sum = (sum ^ field[i]) * UINT32_C(0x01000193);
    return sum;
}

/* One exchange compares all settings: with a different --bucket-bytes or model the rings differ, and a second
 * exchange could hang. */
zr_result zr_train_agree(const struct zr_train_config *config, zr_comm *comm)
{
    unsigned world = zr_comm_world(comm);
    uint32_t mine[ZR_FLAGS_MAX] = {0}, (*all)[ZR_FLAGS_MAX] = zr_heap_zalloc(world, sizeof *all);
    if (!all)
        return ZR_ERR_HOST_MEMORY;
    for (size_t i = 0; i < zr_flags_count; i++)
        mine[i] = own(&zr_flags[i]) ? 0 : hash(&zr_flags[i], config);
    zr_result result = zr_comm_host_all_gather(comm, mine, sizeof mine, all);
    for (size_t i = 0; i < zr_flags_count && result == ZR_OK; i++)
        for (unsigned p = 1; p < world && result == ZR_OK; p++)
            if (all[p][i] != all[0][i])
                result = zr_fail(ZR_ERR_INVALID,
                                 "rank %u was started with another --%s than rank 0; give all ranks the same",
                                 p, zr_flags[i].name);
    zr_heap_free(all);
    return result;
}

zr_result zr_train_agree_products(const struct zr_train_config *config, zr_comm *comm, const char *mine)
{
    enum { ROOM = 192 };
    unsigned world = zr_comm_world(comm), other = 1;
    char own[ROOM] = "", (*all)[ROOM] = zr_heap_zalloc(world, sizeof *all);
    if (!all)
        return ZR_ERR_HOST_MEMORY;
    snprintf(own, sizeof own, "%s", mine);
    zr_result result = zr_comm_host_all_gather(comm, own, sizeof own, all);
    while (result == ZR_OK && other < world && strcmp(all[other], all[0]) == 0)
        other++;
    if (result == ZR_OK && other < world && config->deterministic)
        result =
            zr_fail(ZR_ERR_INVALID,
                    "--deterministic requires the same card and version of cuBLASLt on every rank: rank 0 "
                    "has %s, rank %u has %s",
                    all[0], other, all[other]);
    else if (result == ZR_OK && other < world && zr_comm_rank(comm) == 0)
        zr_say("matrix products differ between ranks in their last bits: they are made by %s on rank 0, and "
               "by %s on rank %u",
               all[0], all[other], other);
    zr_heap_free(all);
    return result;
}
