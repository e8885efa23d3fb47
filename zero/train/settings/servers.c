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

const char *zr_servers_conflict(const struct zr_train_config *config)
{
    static const char *const options[] = {"servers", "replicas", "ps", "staleness", "worker-sleep"};
    const enum zr_ps_timing_kind kind = config->timing.kind;
    if (config->command != ZR_COMMAND_TRAIN)
        return NULL;
    for (size_t i = 0; i < sizeof options / sizeof *options && config->comm != ZR_TRAIN_COMM_PS; i++)
        if (zr_flag_given(config, options[i]))
            return "--servers, --replicas, --ps, --staleness and --worker-sleep require --comm ps";
    if (config->comm != ZR_TRAIN_COMM_PS)
        return NULL;
    if (config->start.kind != ZR_START_FORK)
        return "--comm ps requires workers that zr-train forks, with --ranks; start it without torchrun, srun or mpirun";
    if (config->stage != 0 || config->shape.tensor > 1 || config->shape.context > 1 ||
        config->stages.ranks > 1 || zr_flag_given(config, "groups"))
        return "--comm ps requires --stage 0 without --tp, --cp, --pp and --groups: a worker has the whole model, and "
               "servers divide its state";
    if (config->backend == ZR_TRAIN_CUDA)
        return "--comm ps requires --backend host: gradients are sent from host memory";
    if (config->precision == ZR_PRECISION_FP16)
        return "--comm ps requires --precision fp32, bf16 or fp8: in fp16 workers would skip different steps";
    if (config->optimizer.clip > 0 && kind != ZR_PS_GEO)
        return "--clip cannot be combined with --comm ps, but for --ps geo:K: gradients are sent before their norm is known; give --clip 0, "
               "or leave it out";
    if (config->optimizer.kind != ZR_OPTIMIZER_ADAMW && config->optimizer.kind != ZR_OPTIMIZER_SGD)
        return "--comm ps requires --optimizer adamw or sgd: servers update ranges of tensors";
    if (config->optimizer.average_decay > 0 || config->outer.period > 0 || config->noise_decay > 0 ||
        config->prove)
        return "--comm ps cannot be combined with --ema, --outer, --noise-scale and --prove; leave them out";
    if (config->offload_optimizer || config->offload_parameters || config->spill)
        return "--comm ps cannot be combined with --offload-optimizer, --offload-param and --spill: servers keep the "
               "state; leave them out";
    for (unsigned i = 0; i < ZR_COMPRESSED_KINDS; i++)
        if (config->compression.kinds[i].on)
            return "--comm ps cannot be combined with --compress; leave one of the two out";
    if (config->finds_strategy)
        return "--comm ps cannot be combined with --zero-r auto, which chooses the stage; leave one of the two out";
    if (config->save_background && config->max_restarts > 0)
        return "--save-background cannot be combined with --max-restarts and --comm ps, whose workers restart one by one; leave "
               "one of them out";
    if (config->correction.kind != ZR_PS_STALE_NONE && kind != ZR_PS_ASYNC && kind != ZR_PS_HALF_ASYNC)
        return "--staleness divide and dc:LAMBDA require --ps async or half-async";
    if (zr_train_is_free(config) && config->save[0] && config->save_seconds &&
        zr_flag_set(config, "save-every"))
        return "--save-every TIME requires --ps sync: other workers do not agree on a time; give a number of steps";
    return NULL;
}
