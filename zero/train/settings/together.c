/* together.c: checks that settings are consistent with each other; the rules that are about numbers. See
 * flags.h. */
#define _GNU_SOURCE
#include "zero/train/settings/flags.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/error.h"
#include "zero/comm/zr_comm.h"
#include "zero/train/memory_limit.h"
#include "zero/train/settings/config.h"
#include "zero/train/report/terminal.h"
#include "zero/train/settings/args.h"

bool zr_prompt_is_tokens(const struct zr_train_config *config, const char *prompt)
{
    for (const char *at = prompt; *(at += strspn(at, " ,"));) {
        char *end;
        errno = 0;
        if (*at < '0' || *at > '9' || strtoull(at, &end, 10) >= config->shape.vocabulary || errno != 0)
            return false;
        at = end;
    }
    return true;
}

/* Rounds --bucket-bytes down to lines and refuses a size without one line for each peer: the communication
 * buffers never exceed the given size. */
int zr_args_check_bucket(struct zr_train_config *config)
{
    struct zr_mesh_shape mesh = zr_train_mesh(config);
    unsigned max_ranks = zr_mesh_shards(mesh) > mesh.tensor ? zr_mesh_shards(mesh)
                                                            : mesh.tensor; /* of the largest communicator */
    max_ranks = zr_mesh_groups(mesh) > max_ranks ? zr_mesh_groups(mesh) : max_ranks;
    size_t min_bytes = (size_t)(max_ranks - 1) * ZR_COMM_LINE_BYTES;

    config->bucket_bytes -= config->bucket_bytes % ZR_COMM_LINE_BYTES;
    if (config->bucket_bytes >= min_bytes || config->bucket_bytes == ZR_TRAIN_BUCKET_BYTES)
        return -1;
    zr_say("--bucket-bytes %zu is too small for %u ranks: a slot has %d bytes for each other rank; give "
           "at least %zu",
           config->bucket_bytes, max_ranks, ZR_COMM_LINE_BYTES, min_bytes);
    return ZR_EXIT_USAGE;
}

/* Whether --groups, --tp, --cp and --pp divide the ranks; prints a message if not. */
static bool divides_ranks(const struct zr_train_config *config)
{
    unsigned tensor = (unsigned)zr_shape_tensor(&config->shape), pipeline = config->stages.ranks,
             context = (unsigned)zr_shape_context(&config->shape),
             each = tensor * pipeline * context * zr_mesh_groups(zr_train_mesh(config)), below = tensor;
    if (config->world % each == 0)
        return true;
    if (config->groups > 1) {
        zr_say("--groups, --tp, --cp and --pp take a multiple of %u ranks, not %u; give --%s %u", each,
               config->world, config->dry_run && config->world_size ? "world-size" : "ranks",
               (config->world / each + 1) * each);
        return false;
    }
    if (context > 1) {
        zr_say("--cp %u times --tp %u times --pp %u does not divide %u ranks; give --%s %u", context, tensor,
               pipeline, config->world, config->dry_run && config->world_size ? "world-size" : "ranks",
               (config->world / each + 1) * each);
        return false;
    }
    while (config->world % below != 0)
        below--;
    if (pipeline > 1)
        zr_say("--pp %u%s do not divide %u ranks; give --%s %u", pipeline, tensor > 1 ? " and --tp" : "",
               config->world, config->dry_run && config->world_size ? "world-size" : "ranks",
               (config->world / each + 1) * each);
    else
        zr_say("--tp %u does not divide %u ranks; give --tp %u, or --%s %u", tensor, config->world, below,
               config->dry_run && config->world_size ? "world-size" : "ranks",
               (config->world / tensor + 1) * tensor);
    return false;
}

/* Message about numbers of groups; NULL: valid. */
static const char *outer_conflict(const struct zr_train_config *config)
{
    const struct zr_outer *o = &config->outer;
    if (o->period == 0)
        return NULL;
    const unsigned interval = o->period / o->fragments;
    if (o->period % o->fragments != 0)
        return "--outer-fragments must divide the H of --outer diloco:H";
    if (o->delay >= interval)
        return "--outer-delay must be below H of --outer diloco:H divided by --outer-fragments, the steps between two "
               "exchanges";
    return o->delay > 0 && config->save[0] &&
                   (config->steps % interval != 0 || config->save_every % interval != 0)
               ? "--save with --outer-delay requires --steps and --save-every that are multiples of H of --outer diloco:H "
                 "divided by --outer-fragments: a checkpoint has no exchange that is under way"
               : NULL;
}

/* Message about numbers and files; NULL: valid. */
static const char *numbers_conflict(const struct zr_train_config *config)
{
    const struct zr_shape *shape = &config->shape;
    unsigned all;
    if (config->min_rate > config->rate)
        return "--min-lr is above --lr; the rate falls from --lr to --min-lr";
    if (config->start_rate > config->rate)
        return "--warmup-lr is above --lr; the rate rises from --warmup-lr to --lr";
    if (config->warmup > config->steps && (zr_flag_given(config, "warmup") || !config->config_file[0]))
        return "--warmup is longer than --steps; the rate would never reach --lr";
    if (strcmp(config->log, "-") == 0 || strcmp(config->trace, "-") == 0 ||
        strcmp(config->status, "-") == 0 || strcmp(config->export, "-") == 0)
        return "--log, --status, --trace and --export need a file name; only --json can write to standard "
               "output (-)";
    if (shape->documents && (size_t)shape->eos >= shape->vocabulary)
        return "--eos is no token of --vocab; give a smaller number";
    if (shape->recompute_layers > shape->layers)
        return "--recompute full:N exceeds --layers; give at most --layers, or full for all layers";
    if (config->precision == ZR_PRECISION_FP16 && !config->loss_scaling.constant &&
        config->loss_scaling.least > config->loss_scaling.initial)
        return "--min-loss-scale is above the initial scale, two to the power of --loss-scale-power; give a "
               "smaller one";
    if (config->stride > shape->sequence)
        return "--stride is above --seq: tokens between two windows would not be predicted";
    if (shape->fp8 && zr_shape_fp8_matrices(shape, &all) == 0) /* another precision than requested */
        return "--precision fp8 requires --batch times --seq and the columns of --hidden and --ffn, divided "
               "by --tp and --tile, to be multiples of 16, and here no product of a block qualifies; change "
               "them, or give --precision bf16";
    return outer_conflict(config);
}

int zr_args_together(const struct zr_train_config *config)
{
    const struct zr_shape *shape = &config->shape;
    if (shape->hidden % shape->heads != 0 && shape->variant.head_width == 0) {
        size_t below = shape->hidden - shape->hidden % shape->heads;
        zr_say("--heads %zu does not divide --hidden %zu; give --hidden %zu, for example", shape->heads,
               shape->hidden, below ? below : shape->heads);
        return ZR_EXIT_USAGE;
    }
    if (!divides_ranks(config))
        return ZR_EXIT_USAGE;
    const char *message = !config->data[0] && !config->dry_run && config->command == ZR_COMMAND_TRAIN
                              ? "--data FILE is missing; give a text to train on, or --dry-run for the byte "
                                "plan (examples: zr-train --help)"
                          : zr_exclusions_check(config) != ZR_OK ? zr_last_error()
                                                                 : numbers_conflict(config);
    message = message ? message : zr_compress_conflict(config);
    message = message ? message : zr_sizes_conflict(config);
    message = message ? message : zr_optimizer_conflict(config);
    message = message || zr_train_check_stages(config) == ZR_OK ? message : zr_last_error();
    if (message)
        zr_say("%s", message);
    return message ? ZR_EXIT_USAGE : -1;
}
