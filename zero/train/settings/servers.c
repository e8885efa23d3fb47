/* servers.c: the settings of --comm ps. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/error.h"
#include "zero/train/settings/flags.h"

/* Reads the numbers of --worker-sleep. */
static bool read_sleeps(struct zr_train_config *config)
{
    const char *at = config->worker_sleep;
    while (*at && config->worker_sleeps_count < ZR_TRAIN_SLEEPS_MAX) {
        char *end;
        errno = 0;
        config->worker_sleeps[config->worker_sleeps_count++] = strtoull(at, &end, 10);
        if (errno != 0 || end == at || *at == '-' || (*end && *end != ','))
            return false;
        at = *end ? end + 1 : end;
    }
    return !*at;
}

const char *zr_servers_resolve(struct zr_train_config *config)
{
    if (config->comm == ZR_TRAIN_COMM_PS && config->command != ZR_COMMAND_TRAIN)
        config->comm = ZR_CARRIER_LOCAL; /* nothing is pushed */
    if (config->comm != ZR_TRAIN_COMM_PS)
        return NULL;
    if (!config->ps[0])
        snprintf(config->ps, sizeof config->ps, "sync");
    if (!config->staleness[0])
        snprintf(config->staleness, sizeof config->staleness, "none");
    config->groups = config->world;
    if (zr_ps_timing_read(&config->timing, config->ps) != ZR_OK)
        return "--ps is not sync, async, half-async, geo:K with K steps from 1 on, or ssp:S with 0 to 64 steps S; give one of "
               "them";
    if (!zr_flag_set(config, "clip") && config->timing.kind != ZR_PS_GEO)
        config->optimizer.clip = 0;
    if (zr_ps_staleness_read(&config->correction, config->staleness) != ZR_OK)
        return "--staleness is not none, divide or dc:LAMBDA; give one of them";
    if (config->timing.kind == ZR_PS_ASYNC || config->timing.kind == ZR_PS_HALF_ASYNC)
        config->reduce = ZR_REDUCE_ONCE; /* each push is an update */
    return read_sleeps(config)
               ? NULL
               : "--worker-sleep is not milliseconds of up to 16 workers, separated by commas";
}
