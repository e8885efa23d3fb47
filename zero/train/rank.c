/* rank.c: opens and closes what a rank holds, and the rehearsal without ranks. */
#include "zero/train/rank.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/backend/service_client.h"
#include "alloc/base/error.h"
#include "alloc/heap/heap.h"
#include "alloc/base/system/os.h"
#include "zero/train/card.h"
#include "zero/train/settings/agree.h"
#include "zero/train/limit.h"
#include "zero/train/rank_plan.h"
#include "zero/train/rank_time.h"
#include "zero/train/report/number.h"
#include "zero/train/settings/offload.h"
#include "zero/train/balance.h"
#include "zero/train/spill.h"
#include "zero/train/turns.h"
#include "zero/train/settings/stages.h"
#include "zero/train/report/terminal.h"

#define MIB ((size_t)1 << 20)

/* Addresses, not memory: records, stacks and the heap of the largest run fit, and of a rehearsal those of a
 * run that no machine could hold. Less where addresses are limited. */
enum {
    HOST_RESERVE_MIB = 256,
    SMALL_RESERVE_MIB = 64,
    REHEARSAL_RESERVE_MIB = 4096,
    THREAD_RESERVE_BYTES = 512 << 10
};

/* Addresses that the libraries take beside ours: generated code, descriptions, and a region of 64 MiB that
 * the C library reserves for each thread that allocates. */
enum { LIBRARY_MIB = 64, LIBRARY_THREAD_MIB = 72 };

/* A plan that cannot fit is refused before step 1, with the limit it meets. */
static zr_result check_plan_fits(const struct zr_rank *rank)
{
    const struct zr_train_config *config = rank->config;
    size_t device = rank->plan.peak_reserved_bytes, host = rank->plan.host_reserved_bytes,
           need = rank->device ? host : device + host; /* both are memory of this machine, but a card's */
    uint64_t all = (uint64_t)need * config->ranks_here;
    struct zr_machine machine;
    char number[2][ZR_NUMBER_ROOM];

    if (config->host_limit_bytes && host > config->host_limit_bytes)
        return zr_fail(
            ZR_ERR_MEMORY,
            "the plan takes %s bytes of the host tier per rank and --host-limit allows %s; try a higher "
            "--stage, more --ranks, or leave out what is offloaded",
            zr_number_grouped(number[0], host), zr_number_grouped(number[1], config->host_limit_bytes));
    if (config->memory_limit_bytes && device > config->memory_limit_bytes)
        return zr_fail(ZR_ERR_MEMORY,
                       "the plan takes %s bytes per rank and --memory-limit allows %s; try --recompute full, "
                       "a smaller --batch, a higher --stage or more --ranks",
                       zr_number_grouped(number[0], device),
                       zr_number_grouped(number[1], config->memory_limit_bytes));
    zr_result on_card = rank->device ? zr_card_check_plan(rank) : ZR_OK;
    if (on_card != ZR_OK)
        return on_card;
    zr_os_machine(&machine);
    if (machine.cgroup_limit_bytes) {
        uint64_t left = machine.cgroup_limit_bytes > machine.cgroup_used_bytes
                            ? machine.cgroup_limit_bytes - machine.cgroup_used_bytes
                            : 0;
        if (all > left)
            return zr_fail(ZR_ERR_MEMORY,
                           "the plan takes %" PRIu64
                           " MiB for %u rank(s), and this cgroup's memory.max leaves %" PRIu64 " of %" PRIu64
                           " MiB; raise the limit, or try --recompute full, a smaller --batch or model",
                           (uint64_t)(all / MIB), config->ranks, (uint64_t)(left / MIB),
                           (uint64_t)(machine.cgroup_limit_bytes / MIB));
    }
    if (machine.overcommit_strict && all > machine.commit_left_bytes)
        return zr_fail(ZR_ERR_MEMORY,
                       "the plan takes %" PRIu64
                       " MiB for %u rank(s), and under vm.overcommit_memory = 2 the system has %" PRIu64
                       " MiB left to promise; raise vm.overcommit_ratio, or try --recompute full, a smaller "
                       "--batch or model",
                       (uint64_t)(all / MIB), config->ranks, (uint64_t)(machine.commit_left_bytes / MIB));
    if (machine.memory_available_bytes && all > machine.memory_available_bytes)
        return zr_fail(ZR_ERR_MEMORY,
                       "the plan takes %" PRIu64 " MiB for %u rank(s), and this machine has %" PRIu64
                       " MiB available; try --recompute full, a smaller --batch or model, or fewer --ranks",
                       (uint64_t)(all / MIB), config->ranks,
                       (uint64_t)(machine.memory_available_bytes / MIB));
    return ZR_OK;
}

static zr_result open_host_memory(struct zr_rank *rank, size_t reserve_bytes)
{
    struct zr_machine machine;
    zr_result result = zr_backend_host_create(&rank->backend, NULL);
    if (result != ZR_OK)
        return result;
    zr_os_machine(&machine);
    if (machine.address_limit_bytes)
        reserve_bytes = SMALL_RESERVE_MIB * MIB;
    result = zr_arena_create(
        &rank->host_arena,
        &(struct zr_arena_options){.backend = rank->backend, .name = "host", .reserve_bytes = reserve_bytes});
    if (result == ZR_OK)
        result = zr_heap_start(rank->host_arena);
    rank->heap_started = result == ZR_OK;
    return result;
}

/* Under ZR_CONF=service:on, where there is no service. */
static void say_alone(void)
{
    char words[512];
    zr_service_alone(words, sizeof words);
    if (words[0])
        zr_say("%s; this run goes on alone", words);
}

static zr_result open_memory(struct zr_rank *rank)
{
    size_t stacks = (size_t)rank->config->threads * THREAD_RESERVE_BYTES;
    struct zr_plan_request request;
    zr_result result = open_host_memory(rank, HOST_RESERVE_MIB * MIB + stacks);
    if (result == ZR_OK)
        result = zr_rank_request(&request, rank->config, rank->rank, rank->host_arena);
    request.places = &rank->places;
    if (result == ZR_OK)
        result = zr_plan_make(&rank->plan, &request);
    if (result == ZR_OK)
        result = zr_card_open(rank);
    if (result == ZR_OK && rank->config->start.rank == 0)
        say_alone();
    if (result == ZR_OK)
        result = zr_offload_check_space(rank->config, &rank->plan);
    if (result == ZR_OK)
        result = check_plan_fits(rank);
    if (result == ZR_OK)
        result = zr_turns_begin(rank);
    if (result != ZR_OK)
        return result;
    /* Twice the plan in addresses: holes move, and unmapped addresses cost nothing but their number. */
    result = zr_arena_create(
        &rank->arena, &(struct zr_arena_options){.backend = rank->device ? rank->device : rank->backend,
                                                 .name = "training",
                                                 .reserve_bytes = 2 * rank->plan.peak_reserved_bytes,
                                                 .limit_bytes = rank->config->memory_limit_bytes});
    zr_backend *tier = rank->pinned ? rank->pinned : rank->backend;
    if (result == ZR_OK && zr_train_has_host_tier(rank->config))
        result = zr_arena_create(&rank->host_tier,
                                 &(struct zr_arena_options){.backend = tier,
                                                            .name = "host tier",
                                                            .reserve_bytes = 2 * rank->plan.host_bytes + MIB,
                                                            .limit_bytes = rank->config->host_limit_bytes});
    if (result == ZR_OK && rank->config->over_plan == ZR_OVER_PLAN_FAIL)
        result = zr_arena_set_tag_limits(rank->arena, &rank->plan.tag_limits);
    if (result == ZR_OK && rank->host_tier && rank->config->over_plan == ZR_OVER_PLAN_FAIL)
        result = zr_arena_set_tag_limits(rank->host_tier, &rank->plan.host_tag_limits);
    return result;
}

/* The communicator, and with it the first words between the ranks: their settings, which must agree, and
 * their plans, which rank 0 prints. */
static zr_result open_peers(struct zr_rank *rank)
{
    const struct zr_train_config *config = rank->config;
    struct zr_rank_report mine = {0};
    struct zr_comm_options options = {.arena = rank->arena,
                                      .host_arena = rank->host_arena,
                                      .kernels = rank->kernels,
                                      .stream = rank->stream,
                                      .beside = rank->beside,
                                      .timeout_ns = config->comm_timeout * UINT64_C(1000000000)};
    struct zr_mesh_shape mesh = zr_train_mesh(config);
    struct zr_shape shape = zr_train_shape(config, rank->rank);
    size_t bucket_bytes;
    zr_result result =
        zr_trainer_state_bucket_bytes(&(struct zr_bucket_request){.shape = &shape,
                                                                  .precision = config->precision,
                                                                  .data = mesh.data,
                                                                  .cap_bytes = config->bucket_bytes},
                                      rank->host_arena, &bucket_bytes);
    options.bucket_bytes = zr_mesh_world_bucket_bytes(mesh, bucket_bytes);
    if (result == ZR_OK)
        result = config->comm == ZR_TRAIN_COMM_NCCL
                     ? zr_card_comm_create(rank, &options)
                     : zr_comm_create(&rank->comm, &options, rank->local, rank->rank);
    if (result == ZR_OK)
        result = zr_train_agree(config, rank->comm);
    if (result == ZR_OK)
        result = zr_mesh_open(&rank->mesh, rank->comm, mesh, bucket_bytes);
    if (result != ZR_OK)
        return result;
    rank->reports = zr_heap_zalloc(config->ranks, sizeof *rank->reports);
    if (!rank->reports)
        return ZR_ERR_HOST_MEMORY;
    zr_rank_note_plan(&mine, &rank->plan, rank->rank);
    result = zr_rank_exchange_reports(rank, &mine);
    if (result == ZR_OK && rank->rank == 0)
        result = zr_report_plan(config, rank->plan.elements, rank->reports, config->ranks);
    if (result == ZR_OK && rank->rank == 0)
        result = zr_report_stages(config, rank->reports, rank->host_arena);
    if (result == ZR_OK && rank->rank == 0)
        result = zr_rank_time_plan(&rank->timeline, config, rank->host_arena);
    return result;
}

/* A trace per rank: FILE for a single one, FILE.0, FILE.1, .. for several. */
static zr_result open_trace(struct zr_rank *rank)
{
    char path[ZR_TRAIN_PATH_ROOM + 16];
    struct zr_text text;
    zr_result result;

    if (!rank->config->trace[0])
        return ZR_OK;
    zr_text_start(&text, NULL, path, sizeof path);
    zr_text_print(&text, "%s", rank->config->trace);
    if (rank->config->ranks > 1)
        zr_text_print(&text, ".%u", rank->rank);
    if (text.result != ZR_OK)
        return text.result;
    result = zr_trace_start(rank->arena, path);
    rank->traced = result == ZR_OK;
    return result;
}

/* The matrix library and the C library map memory of their own, and oneDNN does not survive a refusal: under
 * `ulimit -v` what they need must be left when our own reservations stand. */
static zr_result check_addresses_left(const struct zr_rank *rank)
{
    struct zr_machine machine;
    struct zr_resident resident;
    size_t need = (LIBRARY_MIB + (size_t)rank->config->threads * LIBRARY_THREAD_MIB) * MIB;

    zr_os_machine(&machine);
    if (machine.address_limit_bytes == 0 || zr_os_resident(&resident) != ZR_OK ||
        resident.address_bytes + need <= machine.address_limit_bytes)
        return ZR_OK;
    return zr_fail(ZR_ERR_ADDRESSES,
                   "`ulimit -v` allows %" PRIu64 " MiB of addresses, %zu are in use, and the libraries need "
                   "%zu more; type `ulimit -v %zu` or `ulimit -v unlimited`",
                   (uint64_t)(machine.address_limit_bytes / MIB), resident.address_bytes / MIB, need / MIB,
                   (resident.address_bytes + need + MIB) / 1024);
}

/* The blocks of a step get their places, next to what is kept between steps. */
static zr_result keep_places(struct zr_rank *rank)
{
    zr_result result = rank->places ? zr_rehearsal_install(rank->places, rank->arena) : ZR_OK;
    zr_rehearsal_destroy(rank->places);
    rank->places = NULL;
    return result;
}

static void say_of_file(void *state, const char *words)
{
    const struct zr_rank *rank = state;
    if (rank->rank % rank->config->ranks_here == 0) /* what a machine has to say is said once */
        zr_say("%s", words);
}

static struct zr_offload offload_of(struct zr_rank *rank)
{
    rank->offload_file = zr_offload_file_of(rank->config);
    rank->parameters_file = zr_offload_parameters_file_of(rank->config);
    rank->offload_file.log = rank->parameters_file.log = say_of_file;
    rank->offload_file.log_state = rank->parameters_file.log_state = rank;
    return (struct zr_offload){.host = rank->host_tier,
                               .optimizer = rank->config->offload_optimizer != ZR_TIER_NONE,
                               .file = rank->offload_file.folder ? &rank->offload_file : NULL,
                               .parameters = rank->config->offload_parameters != ZR_TIER_NONE,
                               .parameters_file =
                                   rank->parameters_file.folder ? &rank->parameters_file : NULL,
                               .delayed = rank->config->delayed_update,
                               .stays = zr_offload_stays(rank->config),
                               .speculative_bytes = rank->config->speculative_bytes};
}

zr_result zr_rank_open(struct zr_rank *out, const struct zr_train_config *config,
                       struct zr_local_world *local, unsigned rank)
{
    enum zr_isa isa = ZR_ISA_PLAIN;
    struct zr_checkpoint_policy checkpoints = config->checkpoints;
    zr_result result;

    memset(out, 0, sizeof *out);
    out->config = config;
    out->local = local;
    out->rank = rank;
    out->place = zr_mesh_place_of(zr_train_mesh(config), rank);
    out->data.file.fd = -1;
    result = zr_rank_choose_isa(&isa);
    out->kernels = zr_rank_kernels(config, isa);
    if (result == ZR_OK)
        result = open_memory(out);
    if (result == ZR_OK)
        result = open_trace(out);
    if (result == ZR_OK)
        result = open_peers(out);
    if (result == ZR_OK)
        result = zr_data_open(&out->data, &(struct zr_data_options){.path = config->data,
                                                                    .bytes = config->bytes,
                                                                    .vocabulary = config->shape.vocabulary,
                                                                    .sequence = config->shape.sequence,
                                                                    .batch = config->shape.batch,
                                                                    .world = zr_train_mesh(config).data,
                                                                    .seed = config->seed});
    if (result == ZR_OK)
        result =
            zr_thread_pool_create(&out->pool, &(struct zr_thread_pool_options){.host_arena = out->host_arena,
                                                                               .threads = config->threads,
                                                                               .ranks = config->ranks});
    if (result == ZR_OK)
        result = check_addresses_left(out);
    checkpoints.host = config->checkpoint_offload ? out->host_tier : NULL;
    const struct zr_kernels *host_kernels = out->device ? zr_kernels_cpu(isa) : NULL;
    if (result == ZR_OK)
        result = zr_trainer_state_open(
            &out->state, &(struct zr_trainer_state_options){.arena = out->arena,
                                                            .host_arena = out->host_arena,
                                                            .kernels = out->kernels,
                                                            .stream = out->stream,
                                                            .host_kernels = host_kernels,
                                                            .isa = isa,
                                                            .parallel = zr_thread_pool_parallel(out->pool),
                                                            .mesh = &out->mesh,
                                                            .shape = zr_train_shape(config, rank),
                                                            .stages = &config->stages,
                                                            .stage = config->stage,
                                                            .checkpoints = checkpoints,
                                                            .offload = offload_of(out),
                                                            .micro_batches = config->micro_batches,
                                                            .reduce = config->reduce,
                                                            .precision = config->precision,
                                                            .loss_scaling = config->loss_scaling,
                                                            .seed = config->seed,
                                                            .optimizer = config->optimizer});
    if (result == ZR_OK)
        result = keep_places(out);
    if (result == ZR_OK && config->cuda_graph)
        result = zr_step_graph_want(out->state.trainer, true);
    return result == ZR_OK ? zr_spill_open(out) : result;
}

zr_result zr_rank_close(struct zr_rank *rank)
{
    size_t leaked_heap = 0, leaked_arena = 0, leaked_host = 0, leaked_tier = 0;

    zr_spill_close(rank);
    zr_trainer_state_close(&rank->state);
    zr_thread_pool_destroy(rank->pool);
    zr_data_close(&rank->data);
    if (rank->mesh.world)
        zr_mesh_close(&rank->mesh);
    if (rank->comm)
        zr_comm_destroy(rank->comm);
    zr_heap_free(rank->reports);
    zr_timeline_end(&rank->timeline);
    zr_rehearsal_destroy(rank->places);
    if (rank->traced)
        zr_trace_stop(rank->arena);
    if (rank->host_tier)
        zr_arena_destroy(rank->host_tier, &leaked_tier);
    if (rank->arena)
        zr_arena_destroy(rank->arena, &leaked_arena);
    zr_card_close(rank);
    if (rank->heap_started)
        zr_heap_stop(&leaked_heap);
    if (rank->host_arena)
        zr_arena_destroy(rank->host_arena, &leaked_host);
    if (rank->backend)
        zr_backend_destroy(rank->backend);
    leaked_arena += leaked_tier;
    if (leaked_arena || leaked_heap || leaked_host)
        return zr_fail(ZR_ERR_CORRUPT, "left behind: %zu bytes of tensors, %zu of the heap, %zu of records",
                       leaked_arena, leaked_heap, leaked_host);
    return ZR_OK;
}

zr_result zr_rank_exchange_reports(struct zr_rank *rank, const struct zr_rank_report *mine)
{
    return zr_comm_host_all_gather(rank->comm, mine, sizeof *mine, rank->reports);
}

/* Prints what does not fit under --memory-limit, and what would. */
static zr_result refuse(const struct zr_train_config *config, const struct zr_limit_advice *advice)
{
    char need[ZR_NUMBER_ROOM], limit[ZR_NUMBER_ROOM], which[64] = "the plan";
    zr_result result = config->start.rank == 0 ? zr_report_limit(config, advice) : ZR_OK;
    if (result != ZR_OK)
        return result;
    if (config->host_limit_bytes && advice->plan.host_reserved_bytes > config->host_limit_bytes)
        return zr_fail(
            ZR_ERR_MEMORY,
            "the plan takes %s bytes of the host tier per rank and --host-limit allows %s; the table has %s",
            zr_number_grouped(need, advice->plan.host_reserved_bytes),
            zr_number_grouped(limit, config->host_limit_bytes),
            advice->count ? "what would fit" : "nothing smaller that would fit");
    if (config->nvme_limit_bytes && advice->plan.nvme_bytes > config->nvme_limit_bytes)
        return zr_fail(
            ZR_ERR_MEMORY,
            "the plan takes %s bytes of files per rank and --nvme-limit allows %s; the table has %s",
            zr_number_grouped(need, advice->plan.nvme_bytes),
            zr_number_grouped(limit, config->nvme_limit_bytes),
            advice->count ? "what would fit" : "nothing smaller that would fit");
    if (config->finds_max)
        snprintf(which, sizeof which, "not even --%s 1 fits: its plan",
                 config->find_max == ZR_LIMIT_BATCH ? "batch" : "layers");
    return zr_fail(ZR_ERR_MEMORY, "%s takes %s bytes per rank and --memory-limit allows %s; the table has %s",
                   which, zr_number_grouped(need, advice->plan.peak_reserved_bytes),
                   zr_number_grouped(limit, config->memory_limit_bytes),
                   advice->count ? "what would fit" : "what does not fit, and nothing smaller would");
}

/* Where it does not fit, --json has that in place of the report of a run. */
static zr_result check_limit(const struct zr_train_config *config, zr_arena *host_arena)
{
    struct zr_limit_advice advice;
    struct zr_plan_report report = {.config = config, .advice = &advice};
    zr_result result = zr_limit_advise(&advice, config, host_arena);
    if (result != ZR_OK || advice.fits)
        return result;
    report.parameters = advice.plan.elements;
    if (config->start.rank == 0)
        result = zr_report_json_plan(&report);
    return result == ZR_OK ? refuse(config, &advice) : result;
}

/* All ranks of a pipeline rank. Data and tensor parallel ranks take the same bytes: shards are equal by
 * construction. The last one is rehearsed too, as a proof; were it to differ, every rank would be. Order: the
 * first, the last, the third, .., the second. */
static zr_result plan_ranks(const struct zr_train_config *config, unsigned pipeline_rank,
                            struct zr_rank_report *reports, struct zr_byte_plan *plan, zr_arena *host_arena)
{
    unsigned count = config->ranks / zr_train_pipeline(config), last = count - 1;
    struct zr_byte_plan first = {0};
    bool alike = false;
    for (unsigned i = 0; i < count; i++) {
        unsigned r = zr_train_first_rank(config, pipeline_rank) + (i == 0      ? 0
                                                                   : i == 1    ? last
                                                                   : i == last ? 1
                                                                               : i);
        zr_result result = alike ? ZR_OK : zr_rank_plan(plan, config, r, host_arena);
        if (result != ZR_OK)
            return result;
        zr_rank_note_plan(&reports[r], plan, r);
        reports[r].sent_elements_per_step = plan->sent_elements_per_step;
        alike = i == 1 ? memcmp(plan, &first, sizeof *plan) == 0 : alike;
        first = i == 0 ? *plan : first;
    }
    return ZR_OK;
}

/* `found`: by --find-max; NULL: it was not asked for. */
static zr_result rehearse(const struct zr_train_config *config, const struct zr_limit_found *found,
                          zr_arena *host_arena)
{
    struct zr_rank_report *reports = zr_heap_zalloc(config->ranks, sizeof *reports);
    struct zr_byte_plan plan = {0};
    struct zr_timeline timeline = {.clock = {.flops = 0}};
    struct zr_limit_advice advice = {.fits = true};
    zr_result result = reports ? ZR_OK : ZR_ERR_HOST_MEMORY;

    for (unsigned p = 0; result == ZR_OK && p < zr_train_pipeline(config); p++)
        result = plan_ranks(config, p, reports, &plan, host_arena);
    if (result == ZR_OK)
        result = zr_report_plan(config, plan.elements, reports, config->ranks);
    if (result == ZR_OK)
        result = zr_report_stages(config, reports, host_arena);
    if (result == ZR_OK && found)
        result = zr_report_found(config, found);
    if (result == ZR_OK)
        result = zr_rank_time_plan(&timeline, config, host_arena);
    bool limited = zr_limit_is_set(config);
    if (result == ZR_OK && limited)
        result = zr_limit_advise(&advice, config, host_arena);
    if (result == ZR_OK)
        result = zr_report_json_plan(
            &(struct zr_plan_report){.config = config,
                                     .found = found,
                                     .advice = limited ? &advice : NULL,
                                     .timeline = config->flops_per_second > 0 ? &timeline : NULL,
                                     .ranks = reports,
                                     .host_arena = host_arena,
                                     .parameters = plan.elements});
    zr_timeline_end(&timeline);
    zr_heap_free(reports);
    return result == ZR_OK && !advice.fits ? refuse(config, &advice) : result;
}

static zr_result rehearse_alone(const struct zr_train_config *config, zr_arena *host_arena)
{
    return rehearse(config, NULL, host_arena);
}

/* --find-max: the largest that fits, and its plan; where not even 1 fits, what would. */
static zr_result find_max(const struct zr_train_config *config, zr_arena *host_arena)
{
    struct zr_train_config changed = *config;
    enum zr_limit_size size = (enum zr_limit_size)config->find_max;
    struct zr_limit_found found;
    zr_result result = zr_limit_find(&found, config, size, host_arena);

    if (result != ZR_OK)
        return result;
    *(size == ZR_LIMIT_BATCH ? &changed.shape.batch : &changed.shape.layers) = found.value ? found.value : 1;
    if (result == ZR_OK)
        result = zr_train_cut_stages(&changed, host_arena);
    if (result != ZR_OK)
        return result;
    return found.value ? rehearse(&changed, &found, host_arena) : check_limit(&changed, host_arena);
}

/* Something that needs memory for records, and no ranks. Returns the exit code. */
static int without_ranks(const struct zr_train_config *config,
                         zr_result (*work)(const struct zr_train_config *, zr_arena *))
{
    struct zr_rank rank = {.config = config, .data = {.file = {.fd = -1}}};
    zr_result result = open_host_memory(&rank, REHEARSAL_RESERVE_MIB * MIB);
    if (result == ZR_OK)
        result = work(config, rank.host_arena);
    if (result != ZR_OK && config->start.rank == 0)
        zr_say("%s", zr_last_error());
    zr_result closed = zr_rank_close(&rank);
    if (closed != ZR_OK)
        zr_say("%s", zr_last_error());
    return (int)zr_exit_of(result != ZR_OK ? result : closed);
}

int zr_rank_rehearse(const struct zr_train_config *config)
{
    return without_ranks(config, config->finds_max ? find_max : rehearse_alone);
}

/* The same in a process of its own, so that the caller stays without memory of the arena's. -1: there is no
 * child. */
static int in_child(const struct zr_train_config *config,
                    zr_result (*work)(const struct zr_train_config *, zr_arena *))
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(without_ranks(config, work));
    }
    while (child > 0 && waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return child < 0 ? -1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int zr_rank_check_limit(const struct zr_train_config *config)
{
    int status = zr_limit_is_set(config) ? in_child(config, check_limit) : -1;
    return status == ZR_EXIT_OK ? -1 : status; /* no child: the ranks check for themselves, in fewer words */
}

/* The highest stage that such a run may have. */
static unsigned highest_stage(const struct zr_train_config *config)
{
    if (config->offload_parameters != ZR_TIER_NONE)
        return 3;
    return zr_train_mesh(config).data == 1 ? 0 : config->reduce == ZR_REDUCE_ONCE ? 1 : 3;
}

static int answer_end = -1; /* where pick_stage() and cut_stages() write, in the child */

static zr_result answer(const void *words, size_t bytes)
{
    return write(answer_end, words, bytes) == (ssize_t)bytes
               ? ZR_OK
               : zr_fail(ZR_ERR_IO, "what a plan has come to could not be passed on");
}

/* The stage whose plan takes the fewest bytes, of equal ones the lowest, which sends least; to the pipe. */
static zr_result pick_stage(const struct zr_train_config *config, zr_arena *host_arena)
{
    struct zr_train_config changed = *config;
    struct zr_stage_pick pick = {.reserved_bytes = SIZE_MAX};
    for (changed.stage = 0; changed.stage <= highest_stage(config); changed.stage++) {
        struct zr_byte_plan plan;
        if (zr_train_offload_words(&changed))
            continue;
        zr_result result = zr_rank_plan(&plan, &changed, 0, host_arena);
        if (result != ZR_OK)
            return result;
        if (plan.peak_reserved_bytes < pick.reserved_bytes)
            pick = (struct zr_stage_pick){changed.stage, plan.peak_reserved_bytes};
    }
    return answer(&pick, sizeof pick);
}

static zr_result cut_stages(const struct zr_train_config *config, zr_arena *host_arena)
{
    struct zr_train_config changed = *config;
    zr_result result = zr_train_cut_stages(&changed, host_arena);
    return result == ZR_OK ? answer(changed.stages.layers, sizeof changed.stages.layers) : result;
}

/* What a child finds out, for an option; read from its end of a pipe. -1, or an exit code. */
static int ask_child(const struct zr_train_config *config, const char *option,
                     zr_result (*work)(const struct zr_train_config *, zr_arena *), void *out, size_t bytes)
{
    int ends[2], code = -1;
    if (pipe(ends) != 0) {
        zr_say("%s: a pipe was refused (error %d)", option, errno);
        return ZR_EXIT_MEMORY;
    }
    answer_end = ends[1];
    int status = in_child(config, work);
    close(ends[1]);
    if (status < 0)
        zr_say("%s: the system refused a process to plan in (error %d)", option, errno);
    if (status != ZR_EXIT_OK || read(ends[0], out, bytes) != (ssize_t)bytes)
        code = status > 0 ? status : ZR_EXIT_MEMORY;
    close(ends[0]);
    return code;
}

int zr_rank_pick_stage(struct zr_train_config *config, struct zr_stage_pick *out)
{
    int code = ask_child(config, "--stage auto", pick_stage, out, sizeof *out);
    if (code < 0)
        config->stage = out->stage;
    return code;
}

static zr_result pick_all(const struct zr_train_config *config, zr_arena *host_arena)
{
    struct zr_picks picks;
    zr_result result = zr_pick_find(&picks, config, host_arena);
    return result == ZR_OK ? answer(&picks, sizeof picks) : result;
}

int zr_rank_pick_all(struct zr_train_config *config, struct zr_picks *out)
{
    int code = ask_child(config, "--zero-r auto", pick_all, out, sizeof *out);
    if (code < 0)
        zr_pick_apply(config, &out->best[0]);
    return code;
}

static zr_result pick_ratio(const struct zr_train_config *config, zr_arena *host_arena)
{
    double ratio;
    zr_result result = zr_pick_ratio(&ratio, config, host_arena);
    return result == ZR_OK ? answer(&ratio, sizeof ratio) : result;
}

int zr_rank_pick_ratio(struct zr_train_config *config)
{
    return ask_child(config, "--offload-ratio auto", pick_ratio, &config->offload_ratio,
                     sizeof config->offload_ratio);
}

static zr_result weigh_policy(const struct zr_train_config *config, zr_arena *host_arena)
{
    struct zr_plan_request request;
    struct zr_policy_use use;
    const char *folder = getenv("TMPDIR");
    zr_result result = zr_rank_request(&request, config, 0, host_arena);
    if (result == ZR_OK)
        result = zr_policy_weigh(&use, &request, (enum zr_policy)config->policy, config->memory_limit_bytes,
                                 folder && folder[0] ? folder : "/tmp");
    return result == ZR_OK ? answer(&use, sizeof use) : result;
}

int zr_rank_weigh_policy(struct zr_train_config *config)
{
    return config->policy == ZR_POLICY_ZR
               ? -1
               : ask_child(config, "--policy", weigh_policy, &config->policy_use, sizeof config->policy_use);
}

static zr_result measure_tiers(const struct zr_train_config *config, zr_arena *host_arena)
{
    struct zr_tiers_found found;
    zr_result result = zr_offload_measure(&found, config, host_arena);
    return result == ZR_OK ? answer(&found, sizeof found) : result;
}

int zr_rank_measure_tiers(struct zr_train_config *config)
{
    return zr_offload_has_to_measure(config)
               ? ask_child(config, "nvme:DIR", measure_tiers, &config->found, sizeof config->found)
               : -1;
}

int zr_rank_cut_stages(struct zr_train_config *config)
{
    return config->stages.ranks > 1 ? ask_child(config, "--pipeline-cut", cut_stages, config->stages.layers,
                                                sizeof config->stages.layers)
                                    : -1;
}
