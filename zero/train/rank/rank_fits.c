/* rank_fits.c: see rank.h. */
#include "zero/train/rank/rank.h"

#include "alloc/base/error.h"
#include "alloc/base/sizes.h"
#include "alloc/base/system/os.h"
#include "zero/train/report/number.h"

#define MIB ((size_t)1 << 20)

/* Addresses that libraries take: generated code, descriptors, and the 64 MiB that the C library reserves
 * for each thread that allocates. */
enum { LIBRARY_MIB = 64, LIBRARY_THREAD_MIB = 72 };

/* Memory of the machine for all ranks here, if each takes as much as this one. Threads share parameters, or
 * rank 0 has the state of all. */
static uint64_t bytes_here(const struct zr_rank *rank, size_t each_bytes)
{
    const struct zr_train_config *config = rank->config;
    const unsigned ranks = config->ranks_here, others = ranks - ranks / zr_train_shards(config);
    const size_t *bytes = rank->plan.peak_by_tag_bytes;
    const uint64_t once = config->master ? bytes[ZR_TAG_MASTER] + bytes[ZR_TAG_OPTIMIZER]
                          : zr_train_shares_parameters(config) ? bytes[ZR_TAG_PARAM]
                                                               : 0;
    return (uint64_t)each_bytes * ranks - once * others;
}

zr_result zr_rank_check_plan_fits(const struct zr_rank *rank)
{
    const struct zr_train_config *config = rank->config;
    size_t device = rank->plan.peak_reserved_bytes, host = rank->plan.host_reserved_bytes,
           need = rank->device ? host : device + host; /* both are host memory, unless there is a GPU */
    uint64_t all = bytes_here(rank, need);
    struct zr_machine machine;
    char number[3][ZR_NUMBER_ROOM];

    if (config->host_limit_bytes && host > config->host_limit_bytes)
        return zr_fail(
            ZR_ERR_MEMORY,
            "the plan takes %s bytes of the host tier per rank, but --host-limit allows %s; give a "
            "higher --stage, more --ranks, or less offload",
            zr_number_grouped(number[0], host), zr_number_grouped(number[1], config->host_limit_bytes));
    if (config->memory_limit_bytes && device > config->memory_limit_bytes)
        return zr_fail(
            ZR_ERR_MEMORY,
            "the plan takes %s bytes per rank, but --memory-limit allows %s; give --recompute full, a "
            "smaller --batch, a higher --stage or more --ranks",
            zr_number_grouped(number[0], device), zr_number_grouped(number[1], config->memory_limit_bytes));
    zr_result on_card = rank->device ? zr_card_check_plan(rank) : ZR_OK;
    if (on_card != ZR_OK)
        return on_card;
    zr_os_machine(&machine);
    if (machine.cgroup_limit_bytes) {
        uint64_t left = machine.cgroup_limit_bytes > machine.cgroup_used_bytes
                            ? machine.cgroup_limit_bytes - machine.cgroup_used_bytes
                            : 0;
        if (all > left)
            return zr_fail(
                ZR_ERR_MEMORY,
                "the plan takes %s for %u rank(s), but this cgroup's memory.max leaves %s of %s; raise the "
                "limit, or give --recompute full, a smaller --batch or model",
                zr_size_print(number[0], all), config->ranks_here, zr_size_print_in(number[1], left, all),
                zr_size_print_in(number[2], machine.cgroup_limit_bytes, all));
    }
    if (machine.overcommit_strict && all > machine.commit_left_bytes)
        return zr_fail(
            ZR_ERR_MEMORY,
            "the plan takes %s for %u rank(s), but under vm.overcommit_memory = 2 the system has %s "
            "left; raise vm.overcommit_ratio, or give --recompute full, a smaller --batch or model",
            zr_size_print(number[0], all), config->ranks_here,
            zr_size_print_in(number[1], machine.commit_left_bytes, all));
    if (machine.memory_available_bytes && all > machine.memory_available_bytes)
        return zr_fail(
            ZR_ERR_MEMORY,
            "the plan takes %s for %u rank(s), but this machine has %s available; give --recompute full, "
            "a smaller --batch or model, or fewer --ranks",
            zr_size_print(number[0], all), config->ranks_here,
            zr_size_print_in(number[1], machine.memory_available_bytes, all));
    return ZR_OK;
}

zr_result zr_rank_check_addresses_left(const struct zr_rank *rank)
{
    struct zr_machine machine;
    struct zr_resident resident;
    char number[3][ZR_SIZE_ROOM];
    size_t need = (LIBRARY_MIB + (size_t)rank->config->threads * LIBRARY_THREAD_MIB) * MIB;

    zr_os_machine(&machine);
    if (machine.address_limit_bytes == 0 || zr_os_resident(&resident) != ZR_OK ||
        resident.address_bytes + need <= machine.address_limit_bytes)
        return ZR_OK;
    return zr_fail(ZR_ERR_ADDRESSES,
                   "`ulimit -v` allows %s of addresses, %s are in use, and the libraries need %s more; run "
                   "`ulimit -v %zu` or `ulimit -v unlimited`",
                   zr_size_print(number[0], machine.address_limit_bytes),
                   zr_size_print_in(number[1], resident.address_bytes, machine.address_limit_bytes),
                   zr_size_print_in(number[2], need, machine.address_limit_bytes),
                   (resident.address_bytes + need + MIB) / 1024);
}
