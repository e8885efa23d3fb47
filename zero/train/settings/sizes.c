/* sizes.c: rows of a step, and the numbers of data replicas that a run may have: --global-batch, --resize and
 * --elastic. */
#include "zero/train/settings/args.h"

#include <inttypes.h>
#include <stdlib.h>

#include "alloc/base/error.h"
#include "zero/train/settings/flags.h"

/* Reads "A:B" and moves *at behind it. */
static bool read_pair(const char **at, uint64_t *first, uint64_t *second)
{
    uint64_t *numbers[] = {first, second};
    for (unsigned i = 0; i < 2; i++) {
        char *end;
        if (**at < '0' || **at > '9')
            return false;
        *numbers[i] = strtoull(*at, &end, 10);
        *at = end;
        if (i == 0 && *(*at)++ != ':')
            return false;
    }
    return true;
}

/* ---- Sizes --------------------------------------------------------------------------------------------- */

unsigned zr_train_replica_ranks(const struct zr_train_config *config)
{
    const struct zr_mesh_shape mesh = zr_train_mesh(config);
    return mesh.tensor * (unsigned)zr_shape_context(&config->shape) * mesh.pipeline * zr_mesh_groups(mesh);
}

unsigned zr_train_scheduled(const struct zr_train_config *config, uint64_t step)
{
    unsigned replicas = 0;
    uint64_t at, to;
    for (const char *text = config->resize; *text && read_pair(&text, &at, &to); text += *text == ',')
        replicas = at <= step ? (unsigned)to : replicas;
    return replicas;
}

struct zr_replica_range zr_train_replica_range(const struct zr_train_config *config)
{
    const unsigned first = zr_train_data_ranks(config);
    struct zr_replica_range range = {first, first};
    uint64_t at, to;
    for (const char *text = config->resize; *text && read_pair(&text, &at, &to); text += *text == ',') {
        range.least = to < range.least ? (unsigned)to : range.least;
        range.most = to > range.most ? (unsigned)to : range.most;
    }
    return config->most_replicas > 0
               ? (struct zr_replica_range){config->least_replicas, config->most_replicas}
               : range;
}

struct zr_launch_replicas zr_train_launch_replicas(const struct zr_train_config *config)
{
    const unsigned inner = (unsigned)(zr_shape_tensor(&config->shape) * zr_shape_context(&config->shape));
    const struct zr_replica_range range = zr_train_replica_range(config);
    if (!zr_train_changes_size(config))
        return (struct zr_launch_replicas){.inner = 0};
    return (struct zr_launch_replicas){.inner = inner,
                                       .outer = zr_train_replica_ranks(config) / inner,
                                       .least = range.least,
                                       .most = range.most,
                                       .by_events = config->elastic[0] != '\0'};
}

void zr_train_set_replicas(struct zr_train_config *config, unsigned replicas)
{
    config->world = replicas * zr_train_replica_ranks(config);
    if (!zr_train_is_apart(config))
        config->ranks_here = config->world;
    if (config->global_batch > 0)
        config->micro_batches = zr_division_rounds(zr_train_division(config));
}

/* ---- The command line ---------------------------------------------------------------------------------- */

/* Checks the texts of --resize and --elastic. */
static zr_result read_sizes(struct zr_train_config *config)
{
    const char *text = config->resize;
    uint64_t before = 0, first, second;
    while (*text) {
        if (!read_pair(&text, &first, &second) || (*text && *text++ != ',') || first <= before ||
            second == 0 || second > ZR_MAX_WORLD)
            return zr_fail(
                ZR_ERR_INVALID,
                "--resize '%s': give STEP:REPLICAS[,STEP:REPLICAS..], with rising steps from 1 and 1 to %d "
                "replicas",
                config->resize, ZR_MAX_WORLD);
        before = first;
    }
    text = config->elastic;
    if (!*text)
        return ZR_OK;
    if (!read_pair(&text, &first, &second) || *text || first == 0 || second < first || second > ZR_MAX_WORLD)
        return zr_fail(ZR_ERR_INVALID, "--elastic '%s': give MIN:MAX, numbers of data replicas from 1 to %d",
                       config->elastic, ZR_MAX_WORLD);
    config->least_replicas = (unsigned)first;
    config->most_replicas = (unsigned)second;
    return ZR_OK;
}

zr_result zr_train_resolve_rows(struct zr_train_config *config)
{
    const unsigned data_ranks = zr_train_data_ranks(config);
    zr_result result = read_sizes(config);
    const unsigned most = zr_train_replica_range(config).most;
    if (result != ZR_OK || data_ranks == 0) /* zr_args_together() refuses the ranks */
        return result;
    if (zr_train_changes_size(config) && config->global_batch == 0)
        config->global_batch = (uint64_t)data_ranks * config->micro_batches * config->shape.batch;
    if (config->global_batch == 0)
        return ZR_OK;
    if (config->global_batch % config->shape.batch != 0)
        return zr_fail(ZR_ERR_INVALID,
                       "--global-batch %" PRIu64 " is no multiple of --batch %zu; give %" PRIu64,
                       config->global_batch, config->shape.batch,
                       (config->global_batch / config->shape.batch + 1) * config->shape.batch);
    if (config->global_batch / config->shape.batch < most)
        return zr_fail(ZR_ERR_INVALID,
                       "--global-batch %" PRIu64
                       " has fewer micro-batches of --batch %zu than %u data replicas; give %" PRIu64
                       " or more, or a smaller --batch",
                       config->global_batch, config->shape.batch, most, (uint64_t)most * config->shape.batch);
    if (config->global_batch / config->shape.batch / data_ranks > ZR_ACCUMULATE_MAX)
        return zr_fail(ZR_ERR_INVALID,
                       "--global-batch %" PRIu64 " has more than %d micro-batches per rank; give a larger "
                       "--batch",
                       config->global_batch, ZR_ACCUMULATE_MAX);
    config->micro_batches = zr_division_rounds(zr_train_division(config));
    return ZR_OK;
}

/* Checks a size that the run may get. */
static zr_result check_size(const struct zr_train_config *config, unsigned replicas)
{
    struct zr_train_config changed = *config;
    if (replicas * zr_train_replica_ranks(config) > ZR_MAX_WORLD)
        return zr_fail(ZR_ERR_INVALID,
                       "%u replicas of %u ranks are more than %d ranks; give a smaller number to %s",
                       replicas, zr_train_replica_ranks(config), ZR_MAX_WORLD,
                       config->elastic[0] ? "--elastic" : "--resize");
    zr_train_set_replicas(&changed, replicas);
    return zr_train_check_stages(&changed);
}

const char *zr_sizes_conflict(const struct zr_train_config *config)
{
    const char *text = config->resize;
    uint64_t at, to;
    if (!zr_train_changes_size(config))
        return NULL;
    if (config->elastic[0] && (zr_train_data_ranks(config) < config->least_replicas ||
                               zr_train_data_ranks(config) > config->most_replicas))
        return "--elastic MIN:MAX requires --ranks with MIN to MAX data replicas to start with";
    zr_result result = ZR_OK;
    for (; *text && result == ZR_OK && read_pair(&text, &at, &to); text += *text == ',')
        result = check_size(config, (unsigned)to);
    for (unsigned n = config->least_replicas; n > 0 && n <= config->most_replicas && result == ZR_OK; n++)
        result = check_size(config, n);
    return result == ZR_OK ? NULL : zr_last_error();
}
