/* card.c: see rank.h. */
#include "zero/train/rank/rank.h"

#include <stdio.h>

#include "alloc/backend/backend.h"
#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "alloc/base/system/os.h"
#include "kernels/cuda/cuda.h"
#include "kernels/streams.h"
#include "zero/train/report/number.h"
#include "zero/train/report/terminal.h"

/* The emulated driver's name for its kernel image, next to the driver. */
static const char emulated_kernels[] = "zr emulated image kernels.image\n";

bool zr_card_is_own(const struct zr_rank *rank)
{
    return rank->config->comm == ZR_TRAIN_COMM_NCCL;
}

unsigned zr_card_device(const struct zr_rank *rank)
{
    const struct zr_start *start = &rank->config->start;
    unsigned here = start->kind == ZR_START_FORK ? rank->rank : start->local_rank;
    return rank->config->device + (zr_card_is_own(rank) ? here : 0);
}

/* Sets eager loading. A kernel loaded at its first launch may make that launch wait for all work of the
 * context, which deadlocks if that work waits for another rank; loading also takes memory that is not
 * planned. */
void zr_card_prepare(const struct zr_train_config *config)
{
    if (config->backend == ZR_TRAIN_CUDA && config->comm != ZR_TRAIN_COMM_NCCL && config->ranks_here > 1)
        zr_environment_prefer("CUDA_MODULE_LOADING", "EAGER");
}

zr_result zr_card_open(struct zr_rank *rank)
{
    if (rank->config->backend != ZR_TRAIN_CUDA)
        return ZR_OK;
    if (zr_option_get(ZR_OPTION_KERNELS) == 1)
        zr_cuda_kernels_image_set(emulated_kernels);
    zr_result result =
        zr_backend_cuda_create(&rank->device, &(struct zr_cuda_options){.device = (int)zr_card_device(rank)});
    if (result == ZR_OK)
        result = zr_backend_enter(rank->device);
    rank->entered = result == ZR_OK;
    if (result == ZR_OK)
        result = zr_kernels_cuda()->streams->create(&rank->stream, false);
    if (result == ZR_OK)
        result = zr_kernels_cuda()->streams->create(&rank->beside, true);
    if (result == ZR_OK && zr_train_has_host_tier(rank->config))
        result = zr_backend_cuda_create(
            &rank->pinned, &(struct zr_cuda_options){.struct_bytes = sizeof(struct zr_cuda_options),
                                                     .device = (int)zr_card_device(rank),
                                                     .kind = ZR_CUDA_HOST,
                                                     .numa_node = -1,
                                                     .expected_bytes = rank->plan.host_bytes});
    return result == ZR_OK ? ZR_OK : zr_fail(result, "--backend cuda: %s", zr_last_error());
}

void zr_card_say_memory(const struct zr_rank *rank)
{
    if (rank->pinned)
        zr_say("offloaded state is in memory of %s", rank->pinned->memory);
}

void zr_card_close(struct zr_rank *rank)
{
    zr_kernels_cuda()->streams->destroy(rank->beside);
    zr_kernels_cuda()->streams->destroy(rank->stream);
    rank->stream = rank->beside = NULL;
    zr_backend_destroy(rank->pinned);
    rank->pinned = NULL;
    if (rank->entered)
        zr_backend_leave(rank->device);
    if (rank->device)
        zr_backend_destroy(rank->device);
    rank->entered = false;
    rank->device = NULL;
}

/* Compares the plans of all ranks of this machine with the GPU's free memory. */
zr_result zr_card_check_plan(const struct zr_rank *rank)
{
    struct zr_backend_memory memory;
    char number[2][ZR_NUMBER_ROOM];
    unsigned sharing = zr_card_is_own(rank) ? 1 : rank->config->ranks_here;
    uint64_t all = (uint64_t)rank->plan.peak_reserved_bytes * sharing;
    zr_result result = zr_backend_memory_info(rank->device, &memory);
    return result != ZR_OK || all <= memory.total_bytes
               ? result
               : zr_fail(
                     ZR_ERR_MEMORY,
                     "the plan takes %s bytes for %u rank(s), but device %u has %s in total; give --memory-limit, "
                     "which shrinks the head's chunks, --recompute full, a smaller --batch or model, or a higher "
                     "--stage",
                     zr_number_grouped(number[0], (size_t)all), sharing, zr_card_device(rank),
                     zr_number_grouped(number[1], memory.total_bytes));
}

/* Creates the communicator over NCCL. Host messages use the launcher's transport. */
zr_result zr_card_comm_create(struct zr_rank *rank, const struct zr_comm_options *options)
{
    struct zr_comm_options talking = *options;
    zr_comm *talk;
    talking.arena = rank->host_arena;
    talking.kernels = zr_kernels_cpu(ZR_ISA_PLAIN);
    talking.bucket_bytes = ZR_COMM_LINE_BYTES;
    talking.stream = talking.beside = NULL;
    zr_result result = zr_comm_create(&talk, &talking, rank->local, rank->rank);
    if (result != ZR_OK)
        return result;
    result = zr_comm_nccl_create(&rank->comm,
                                 &(struct zr_nccl_options){.comm = options,
                                                           .local = rank->local,
                                                           .stream = rank->stream,
                                                           .deterministic = rank->config->deterministic},
                                 talk);
    if (result == ZR_OK)
        return ZR_OK;
    char message[512];
    snprintf(message, sizeof message, "%s", zr_last_error());
    zr_comm_destroy(talk);
    return zr_fail(result, "%s", message);
}
