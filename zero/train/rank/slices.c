/* slices.c: see rank.h. Uses alloc/service/client/client.c. */
#include "zero/train/rank/rank.h"

#include <unistd.h>

#include "alloc/backend/backend.h"
#include "alloc/backend/lender.h"
#include "alloc/service/client/client.h"
#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "zero/train/report/terminal.h"
#include "zero/train/rank/spill.h"

#define MIB ((size_t)1 << 20)

/* Maximum bytes of records, stacks and heap, which the plan does not include: see MANUAL.md. */
static size_t other_bytes(const struct zr_train_config *config)
{
    size_t layers = config->shape.layers * 8192;
    return (layers > 8 * MIB ? layers : 8 * MIB) + config->threads * MIB / 2 + 16 * config->steps;
}

/* Bytes that a run keeps between steps. Persistent blocks lie between blocks that are freed, so each tag
 * keeps partly filled handles at both ends. */
static uint64_t kept_bytes(const size_t by_tag_bytes[ZR_TAG_COUNT], size_t granule_bytes)
{
    uint64_t bytes = 0;
    for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++)
        if (by_tag_bytes[tag] > 0)
            bytes += by_tag_bytes[tag] / granule_bytes * granule_bytes +
                     zr_spill_ends_bytes(by_tag_bytes[tag], granule_bytes);
    return bytes;
}

/* The zrd of the GPU's memory; NULL: no GPU, or no zrd for it. */
static struct zr_service *gpu_service(const struct zr_rank *rank)
{
    return rank->config->backend == ZR_TRAIN_CUDA ? zr_service_of_backend(rank->device) : NULL;
}

/* The zrd that gives the run its time slices. With time slices of two zrds, a run could hold one slice while
 * it waits for the other. Therefore either all ranks share the GPU, or its memory is kept between steps; the
 * same holds for host memory next to a GPU's time slices. */
static struct zr_service *slice_service(const struct zr_rank *rank)
{
    struct zr_service *card = gpu_service(rank);
    return card && !zr_card_is_own(rank) ? card : zr_service_host();
}

static struct zr_service_plan plan_on_host(const struct zr_rank *rank, size_t granule_bytes)
{
    bool card = rank->config->backend == ZR_TRAIN_CUDA;
    const struct zr_byte_plan *plan = &rank->plan;
    uint64_t other = (other_bytes(rank->config) / granule_bytes + 1) * granule_bytes;
    return (struct zr_service_plan){
        .base_bytes = (card ? 0 : kept_bytes(plan->persistent_by_tag_bytes, granule_bytes)) +
                      kept_bytes(plan->host_persistent_by_tag_bytes, granule_bytes) + other,
        .peak_bytes = (card ? 0 : (uint64_t)plan->peak_reserved_bytes) + plan->host_reserved_bytes + other,
        .spill_bytes = card ? 0 : zr_spill_sure_bytes(rank, granule_bytes)};
}

static struct zr_service_plan plan_on_gpu(const struct zr_rank *rank, size_t granule_bytes)
{
    return (struct zr_service_plan){.base_bytes =
                                        kept_bytes(rank->plan.persistent_by_tag_bytes, granule_bytes),
                                    .peak_bytes = rank->plan.peak_reserved_bytes};
}

static bool is_first_here(const struct zr_rank *rank)
{
    return rank->rank % rank->config->ranks_here == 0;
}

struct wait {
    const struct zr_rank *rank;
    const char *table; /* key of the clients to show while the run waits to be admitted */
    bool begun, printed;
};

static bool waits_long(const struct zr_rank *rank)
{
    return rank->config->wait || zr_option_get(ZR_OPTION_SERVICE_WAIT);
}

/* Prints the first wait, which may be long. Later waits are short, and a signal takes effect after the next
 * step. */
static bool say_waits(void *state, const char *message)
{
    struct wait *wait = state;
    bool says = is_first_here(wait->rank) && !wait->printed && !wait->begun;
    if (says)
        zr_say("%s", message);
    if (says && wait->table && waits_long(wait->rank))
        zr_report_holders(wait->table);
    wait->printed = true;
    return wait->begun || zr_local_own_request(wait->rank->local) != ZR_REQUEST_SAVE_AND_END;
}

/* Whether the run may compute while another run computes. False if a peer that waits for memory in its step
 * would look dead to others, if --spill could not swap in in time, or for --prove, whose memory no plan
 * includes. */
bool zr_slices_can_overlap(const struct zr_rank *rank)
{
    return zr_service_wanted() && rank->config->world == 1 && rank->config->backend == ZR_TRAIN_HOST &&
           !rank->config->prove && rank->config->over_plan == ZR_OVER_PLAN_FAIL &&
           rank->config->spill == ZR_TIER_NONE;
}

/* Called by the executor. Trims memory that the step no longer needs while another run waits; later actions
 * of the time slice remain within the reservation. */
static void report_reservation(void *state, const struct zr_action *action, bool done)
{
    struct zr_rank *rank = state;
    const struct zr_plan_reservations *reservations = &rank->reservations;
    size_t peak = rank->plan.peak_reserved_bytes, max_bytes = peak;
    if (!done || !(rank->reserved || zr_slices_wanted(rank)))
        return;
    if (action->kind == ZR_ACTION_BACKWARD) {
        size_t place = zr_plan_reservations_place(&rank->state.trainer->step, action);
        max_bytes = place < reservations->count ? reservations->most_bytes[place] : peak;
    }
    if (!rank->reserved && max_bytes >= peak)
        return;
    zr_service_gather_begin();
    zr_result result = zr_arena_trim(rank->arena, 0, NULL);
    zr_service_gather_end();
    rank->reserved = true;
    if (result == ZR_OK && max_bytes < peak)
        zr_service_reserve(zr_service_host(), rank->reported_peak_bytes - (peak - max_bytes));
}

static void note_deferred(void *state, bool waits)
{
    const struct zr_rank *rank = state;
    zr_local_busy(rank->local, rank->rank, waits);
}

void zr_slices_reserve(struct zr_rank *rank)
{
    if (rank->reservations.count == 0)
        return;
    zr_service_on_deferral(zr_service_host(), note_deferred, rank);
    rank->state.trainer->observe = report_reservation;
    rank->state.trainer->observe_state = rank;
}

static zr_result await_admission(struct zr_rank *rank, struct zr_service *service, const char *key,
                                 struct zr_service_plan *plan)
{
    struct wait wait = {.rank = rank, .table = key};
    plan->run = (uint32_t)getppid(); /* the parent of all ranks of this machine */
    plan->run_count = service == gpu_service(rank) && zr_card_is_own(rank) ? 1 : rank->config->ranks_here;
    plan->waits = waits_long(rank);
    if (service != slice_service(rank) || plan->base_bytes > plan->peak_bytes)
        plan->base_bytes = plan->peak_bytes;
    if (plan->spill_bytes > plan->base_bytes)
        plan->spill_bytes = plan->base_bytes;
    zr_local_busy(rank->local, rank->rank, true);
    zr_result result = zr_service_plan(service, plan, say_waits, &wait);
    zr_local_busy(rank->local, rank->rank, false);
    if (result == ZR_ERR_MEMORY && is_first_here(rank))
        zr_report_holders(key);
    if (result == ZR_OK && wait.printed && plan->waits && is_first_here(rank))
        zr_say("the run is admitted");
    return result;
}

static zr_result await_slice(struct zr_rank *rank, struct zr_service *service, struct wait *wait)
{
    zr_local_busy(rank->local, rank->rank, true);
    zr_result result = zr_service_slice(service, say_waits, wait);
    zr_local_busy(rank->local, rank->rank, false);
    return result;
}

static zr_result admit(struct zr_rank *rank)
{
    struct zr_service_plan plan;
    char key[ZR_SERVICE_KEY_BYTES];
    size_t granule_bytes;
    zr_result result = ZR_OK;
    if (gpu_service(rank)) {
        result = zr_cuda_device_key((int)zr_card_device(rank), key);
        plan = plan_on_gpu(rank, rank->device->can.granule_bytes);
        if (result == ZR_OK)
            result = await_admission(rank, gpu_service(rank), key, &plan);
    }
    if (result == ZR_OK)
        result = zr_backend_granule(0, &granule_bytes);
    if (result != ZR_OK)
        return result;
    plan = plan_on_host(rank, granule_bytes);
    plan.threads = rank->reservations.count > 0 ? rank->config->threads : 0;
    rank->reported_peak_bytes = plan.peak_bytes;
    return await_admission(rank, zr_service_host(), ZR_SERVICE_HOST, &plan);
}

zr_result zr_slices_begin(struct zr_rank *rank)
{
    struct wait wait = {.rank = rank};
    struct zr_service *card = gpu_service(rank);
    struct zr_service *other = slice_service(rank) == card ? zr_service_host() : card;
    if (!zr_service_wanted())
        return ZR_OK;
    if (zr_local_are_threads(rank->local))
        return zr_fail(ZR_ERR_INVALID,
                       "--ranks-as threads cannot run under zrd, which admits a process by one byte "
                       "plan; leave it out, or set ZR_CONF=service:off");
    zr_result result = admit(rank);
    if (result == ZR_OK && other) /* its memory may have to wait once for another run's time slice */
        result = await_slice(rank, other, &wait);
    return result == ZR_OK ? await_slice(rank, slice_service(rank), &wait) : result;
}

bool zr_slices_wanted(const struct zr_rank *rank)
{
    return zr_service_yield_bytes(slice_service(rank)) > 0;
}

zr_result zr_slices_next(struct zr_rank *rank)
{
    struct wait wait = {.rank = rank, .begun = true};
    rank->reserved = false;
    zr_step_graph_drop(rank->state.trainer); /* frees the graph's memory */
    zr_result result = zr_engine_synchronize(rank->state.engine);
    zr_service_gather_begin();
    if (result == ZR_OK)
        result = zr_arena_trim(rank->arena, 0, NULL);
    if (result == ZR_OK && rank->host_tier)
        result = zr_arena_trim(rank->host_tier, 0, NULL);
    zr_service_gather_end();
    if (result != ZR_OK)
        return result;
    zr_spill_rest(rank);
    result = await_slice(rank, slice_service(rank), &wait);
    zr_result back = zr_spill_resume(rank);
    return result == ZR_OK ? back : result;
}
