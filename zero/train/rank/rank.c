/* rank.c: opens and closes everything that a rank owns. */
#include "zero/train/rank/rank.h"

#include <string.h>

#include "alloc/service/client/client.h"
#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "alloc/heap/heap.h"
#include "zero/comm/posted.h"
#include "alloc/base/system/os.h"
#include "zero/train/settings/args.h"
#include "zero/train/rank/kept.h"
#include "zero/train/rank/rank_plan.h"
#include "zero/train/settings/offload.h"
#include "zero/train/rank/spill.h"
#include "zero/train/servers/servers.h"
#include "zero/train/report/terminal.h"

#define MIB ((size_t)1 << 20)

/* Address space for records, stacks and the heap: enough for the largest run, and for the rehearsal of a
 * run that no machine could hold. Reduced if addresses are limited. */
enum {
    HOST_RESERVE_MIB = 256,
    SMALL_RESERVE_MIB = 64,
    TOKENIZER_RESERVE_MIB = 2048, /* the JSON of a large one, while it is read */
    REHEARSAL_RESERVE_MIB = 4096,
    SHARED_RESERVE_MIB = 1 << 16, /* at most, for the heap of ranks that are threads */
    THREAD_RESERVE_BYTES = 512 << 10
};

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
    /* Threads share the heap of the first one, which stops it once every thread has parted. */
    return result == ZR_ERR_INVALID && zr_local_are_threads(rank->local) ? ZR_OK : result;
}

/* Prints that ZR_CONF=service:on has no effect without a running zrd. */
static void say_without_service(void)
{
    char message[512];
    zr_service_alone(message, sizeof message);
    if (message[0])
        zr_say("%s; this run continues without zrd", message);
}

/* Of ranks that are threads the first to open has the heap of all. */
static size_t reserve_for_heap(const struct zr_rank *rank, size_t each_bytes)
{
    const size_t most = SHARED_RESERVE_MIB * MIB, ranks = rank->config->ranks_here;
    if (!zr_local_are_threads(rank->local))
        return each_bytes;
    return each_bytes < most / ranks ? each_bytes * ranks : most;
}

static zr_result open_memory(struct zr_rank *rank)
{
    size_t stacks = (size_t)rank->config->threads * THREAD_RESERVE_BYTES;
    struct zr_plan_request request;
    zr_option_prefer(ZR_OPTION_PUBLISH, 2); /* zr ps shows trainers of any size */
    size_t tokenizer =
        rank->config->tokenizer[0] && (rank->config->sample || rank->config->command == ZR_COMMAND_EVAL)
            ? TOKENIZER_RESERVE_MIB * MIB
            : 0;
    zr_result result =
        open_host_memory(rank, reserve_for_heap(rank, HOST_RESERVE_MIB * MIB + stacks + tokenizer));
    if (result == ZR_OK)
        result = zr_rank_request(&request, rank->config, rank->rank, rank->host_arena);
    request.places = &rank->places;
    rank->reservations.host_arena = rank->host_arena;
    request.reservations = zr_slices_can_overlap(rank) ? &rank->reservations : NULL;
    if (result == ZR_OK)
        result = zr_plan_make(&rank->plan, &request);
    if (result == ZR_OK)
        result = zr_card_open(rank);
    if (result == ZR_OK && rank->config->start.rank == 0)
        say_without_service();
    if (result == ZR_OK)
        result = zr_offload_check_space(rank->config, &rank->plan);
    if (result == ZR_OK)
        result = zr_rank_check_plan_fits(rank);
    if (result == ZR_OK)
        result = zr_slices_begin(rank);
    if (result != ZR_OK)
        return result;
    /* Twice the plan in addresses: best fit moves holes, and unmapped addresses are cheap. */
    result = zr_arena_create(
        &rank->arena, &(struct zr_arena_options){.backend = rank->device ? rank->device : rank->backend,
                                                 .name = "training",
                                                 .reserve_bytes = 2 * rank->plan.peak_reserved_bytes,
                                                 .limit_bytes = rank->config->memory_limit_bytes});
    if (result == ZR_OK && zr_train_has_host_tier(rank->config))
        result =
            zr_arena_create(&rank->host_tier,
                            &(struct zr_arena_options){.backend = rank->pinned ? rank->pinned : rank->backend,
                                                       .name = "host tier",
                                                       .reserve_bytes = 2 * rank->plan.host_bytes + MIB,
                                                       .limit_bytes = rank->config->host_limit_bytes});
    if (result == ZR_OK && rank->config->over_plan == ZR_OVER_PLAN_FAIL)
        result = zr_arena_set_tag_limits(rank->arena, &rank->plan.tag_limits);
    if (result == ZR_OK && rank->host_tier && rank->config->over_plan == ZR_OVER_PLAN_FAIL)
        result = zr_arena_set_tag_limits(rank->host_tier, &rank->plan.host_tag_limits);
    return result;
}

/* Creates the communicator and makes the first exchanges: settings, which must agree, and plans, which
 * rank 0 prints. */
static zr_result open_peers(struct zr_rank *rank)
{
    const struct zr_train_config *config = rank->config;
    struct zr_rank_report mine = {0};
    struct zr_comm_options options = {.struct_bytes = sizeof options,
                                      .arena = rank->arena,
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
                                                                  .precision = zr_train_precision(config),
                                                                  .data = zr_mesh_shards(mesh),
                                                                  .cap_bytes = config->bucket_bytes,
                                                                  .optimizer = config->optimizer.kind},
                                      rank->host_arena, &bucket_bytes);
    options.bucket_bytes = zr_mesh_world_bucket_bytes(mesh, bucket_bytes);
    if (result == ZR_OK)
        result = zr_rank_kept_begin(rank);
    options.windows = rank->windows;
    if (result == ZR_OK)
        result = config->comm == ZR_TRAIN_COMM_NCCL ? zr_card_comm_create(rank, &options)
                 : zr_train_repeats(config) ? zr_comm_posted_create(&rank->comm, &options, rank->local,
                                                                    rank->rank, &config->served->posts)
                                            : zr_comm_create(&rank->comm, &options, rank->local, rank->rank);
    if (result == ZR_OK)
        result = zr_compress_check_hosts(config, zr_message_host_ranks());
    if (result == ZR_OK)
        result = zr_train_agree(config, rank->comm);
    if (result == ZR_OK)
        result = zr_mesh_open(&rank->mesh, rank->comm, mesh, bucket_bytes);
    if (result != ZR_OK)
        return result;
    rank->reports = zr_heap_zalloc(config->world, sizeof *rank->reports);
    if (!rank->reports)
        return ZR_ERR_HOST_MEMORY;
    zr_rank_note_plan(&mine, &rank->plan, rank->rank);
    result = zr_rank_exchange_reports(rank, &mine);
    bool reports = rank->rank == 0 && config->command == ZR_COMMAND_TRAIN &&
                   (zr_local_restarts(rank->local) == 0 || zr_local_is_moved(rank->local));
    if (result == ZR_OK && reports)
        result = zr_report_plan(config, rank->plan.elements, rank->reports, config->world);
    if (result == ZR_OK && reports)
        result = zr_report_stages(config, rank->reports, rank->host_arena);
    if (result == ZR_OK && reports)
        result = zr_report_servers(config, rank->host_arena);
    if (result == ZR_OK && rank->rank == 0)
        result = zr_rank_time_plan(&rank->timeline, config, rank->host_arena);
    return result;
}

/* A trace per rank: FILE for a single rank, else FILE.0, FILE.1, ... */
static zr_result open_trace(struct zr_rank *rank)
{
    char path[ZR_TRAIN_PATH_ROOM + 16];
    struct zr_text text;
    zr_result result;

    if (!rank->config->trace[0])
        return ZR_OK;
    zr_text_start(&text, NULL, path, sizeof path);
    zr_text_print(&text, "%s", rank->config->trace);
    if (rank->config->world > 1)
        zr_text_print(&text, ".%u", rank->rank);
    if (text.result != ZR_OK)
        return text.result;
    result = zr_trace_start(rank->arena, path);
    rank->traced = result == ZR_OK;
    return result;
}

/* Passes the placement plan to the arena, beside blocks that live between steps. */
static zr_result install_places(struct zr_rank *rank)
{
    zr_result result = rank->places ? zr_rehearsal_install(rank->places, rank->arena) : ZR_OK;
    zr_rehearsal_destroy(rank->places);
    rank->places = NULL;
    return result;
}

static void say_of_file(void *state, const char *message)
{
    const struct zr_rank *rank = state;
    if (rank->rank % rank->config->ranks_here == 0) /* one rank per machine prints the line */
        zr_say("%s", message);
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
                               .resident_share = zr_offload_resident_share(rank->config),
                               .speculative_bytes = rank->config->speculative_bytes};
}

struct zr_data_options zr_rank_data_options(const struct zr_train_config *config)
{
    return (struct zr_data_options){.sources = config->data,
                                    .bytes = config->bytes,
                                    .type = config->data_type,
                                    .vocabulary = config->shape.vocabulary,
                                    .sequence = config->shape.sequence,
                                    .batch = config->shape.batch,
                                    .data_ranks = zr_train_data_ranks(config),
                                    .micro_batches = config->micro_batches,
                                    .step_micro_batches = zr_train_division(config).micro_batches,
                                    .order = config->epochs ? ZR_DATA_ORDER_EPOCHS : ZR_DATA_ORDER_ROWS,
                                    .seed = config->seed};
}

void zr_rank_draw(const struct zr_rank *rank, const struct zr_trainer_state *state,
                  const struct zr_data_place *place)
{
    struct zr_dropout_draw *input =
        zr_trainer_input(state->trainer, zr_transformer_draw_input(&state->transformer));
    if (input)
        *input = zr_transformer_draw(
            &state->transformer,
            &(struct zr_transformer_draw){.seed = rank->config->seed,
                                          .step = place->step,
                                          .sequence = zr_data_first_row(&rank->data, place)});
}

/* Data ranks that divide a step unequally weigh its micro-batches alike. */
static void share_step(struct zr_rank *rank)
{
    const struct zr_train_config *config = rank->config;
    const struct zr_division division = zr_train_division(config);
    if (!zr_division_is_even(division))
        zr_trainer_set_share(
            rank->state.trainer,
            (struct zr_step_share){
                .weighted = zr_division_weighted(division, zr_train_data_rank(config, rank->place)),
                .mean = (double)division.micro_batches / division.data_ranks});
}

zr_result zr_rank_open_records(struct zr_rank *out, const struct zr_train_config *config)
{
    *out = (struct zr_rank){.config = config};
    return open_host_memory(out, REHEARSAL_RESERVE_MIB * MIB);
}

zr_result zr_rank_open(struct zr_rank *out, const struct zr_train_config *config,
                       struct zr_local_world *local, unsigned rank)
{
    enum zr_isa isa = ZR_ISA_PLAIN;
    struct zr_checkpoint_policy checkpoints = config->checkpoints;
    struct zr_data_options data = zr_rank_data_options(config);
    struct zr_servers servers = {.on = false};
    zr_result result;

    memset(out, 0, sizeof *out);
    out->config = config;
    out->local = local;
    out->rank = rank;
    out->place = zr_mesh_place_of(zr_train_mesh(config), rank);
    result = zr_rank_choose_isa(&isa);
    out->kernels = zr_rank_kernels(config, isa);
    if (result == ZR_OK)
        result = open_memory(out);
    if (result == ZR_OK)
        result = open_trace(out);
    if (result == ZR_OK)
        result = open_peers(out);
    if (config->data_of_ranks)
        zr_data_share(&out->data, config->data_of_ranks);
    else if (result == ZR_OK && config->command == ZR_COMMAND_TRAIN)
        result = zr_data_open(&out->data, &data);
    if (result == ZR_OK)
        result = zr_thread_pool_create(&out->pool,
                                       &(struct zr_thread_pool_options){.host_arena = out->host_arena,
                                                                        .threads = config->threads,
                                                                        .ranks_here = config->ranks_here});
    if (result == ZR_OK)
        result = zr_rank_check_addresses_left(out);
    if (result == ZR_OK)
        result = zr_rank_kept_open(out);
    if (result == ZR_OK)
        result = zr_served_open(out, &servers);
    checkpoints.host = config->checkpoint_offload ? out->host_tier : NULL;
    if (result == ZR_OK)
        result = zr_trainer_state_open(
            &out->state,
            &(struct zr_trainer_state_options){.arena = out->arena,
                                               .host_arena = out->host_arena,
                                               .kernels = out->kernels,
                                               .stream = out->stream,
                                               .host_kernels = out->device ? zr_kernels_cpu(isa) : NULL,
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
                                               .compression = zr_train_compression(config),
                                               .measures_squares = config->noise_decay > 0,
                                               .kept = out->keep ? &out->kept : NULL,
                                               .snapshots = config->save_background,
                                               .shares_parameters = zr_train_shares_parameters(config),
                                               .root_owns = config->master,
                                               .outer = config->outer,
                                               .servers = servers,
                                               .differs = zr_train_differs(config),
                                               .precision = zr_train_precision(config),
                                               .loss_scaling = config->loss_scaling,
                                               .seed = config->seed,
                                               .optimizer = config->optimizer});
    if (result == ZR_OK)
        share_step(out);
    if (result == ZR_OK && out->kernels->products)
        result = zr_train_agree_products(config, out->comm, out->kernels->products(&out->state.context));
    if (result == ZR_OK)
        result = install_places(out);
    if (result == ZR_OK)
        zr_slices_reserve(out);
    if (result == ZR_OK && config->cuda_graph)
        result = zr_step_graph_want(out->state.trainer, true);
    return result == ZR_OK ? zr_spill_open(out) : result;
}

zr_result zr_rank_close(struct zr_rank *rank)
{
    size_t leaked_heap = 0, leaked_arena = 0, leaked_host = 0, leaked_tier = 0;

    zr_spill_close(rank);
    zr_trainer_state_close(&rank->state);
    zr_served_close(rank);
    zr_rank_kept_close(rank);
    zr_thread_pool_destroy(rank->pool);
    zr_data_close(&rank->data);
    if (rank->mesh.world)
        zr_mesh_close(&rank->mesh);
    if (rank->comm)
        zr_comm_destroy(rank->comm);
    zr_heap_free(rank->windows);
    zr_heap_free(rank->reports);
    zr_timeline_end(&rank->timeline);
    zr_service_on_deferral(zr_service_host(), NULL, NULL);
    zr_plan_reservations_end(&rank->reservations);
    zr_rehearsal_destroy(rank->places);
    zr_local_part(rank->local);
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
    struct zr_rank_report *all = zr_heap_alloc(rank->config->world * sizeof *all);
    if (!all)
        return ZR_ERR_HOST_MEMORY;
    zr_result result = zr_comm_host_all_gather(rank->comm, mine, sizeof *mine, all);
    for (unsigned r = 0; r < rank->config->world && result == ZR_OK; r++)
        if (all[r].rank == r) /* else it has left the run, and its last report stays */
            rank->reports[r] = all[r];
    zr_heap_free(all);
    return result;
}
