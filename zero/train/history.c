/* history.c: see history.h. */
#include "zero/train/history.h"

#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/system/os.h"
#include "alloc/heap/heap.h"
#include "zero/train/rank/kept.h"
#include "zero/train/rank/spill.h"

enum { WARM_STEPS = 2 };
/* A measured step waits for its last writes; if no step is usual, at most this many are measured. */
enum { MEASURED_MAX = 16 };

zr_result zr_history_open(struct zr_history *history, struct zr_rank *rank, size_t steps, size_t count)
{
    if (steps == 0)
        return ZR_OK;
    history->count = count;
    history->kept = rank->keep;
    if (history->kept) {
        /* For all steps: a restart from a save uses the same memory for fewer. */
        const size_t bytes = rank->config->steps * sizeof(double);
        zr_result result = zr_rank_kept_take(rank, "losses", bytes, (void **)&history->loss);
        return result == ZR_OK ? zr_rank_kept_take(rank, "seconds", bytes, (void **)&history->seconds)
                               : result;
    }
    history->loss = zr_heap_zalloc(steps, sizeof *history->loss);
    history->seconds = zr_heap_zalloc(steps, sizeof *history->seconds);
    if (!history->loss || !history->seconds)
        return zr_fail(
            ZR_ERR_HOST_MEMORY,
            "no memory for the losses of %zu steps, 16 bytes each; give fewer --steps, and continue with "
            "--save and --resume",
            steps);
    return ZR_OK;
}

zr_result zr_history_share(struct zr_history *history, unsigned from)
{
    double *const arrays[] = {history->loss, history->seconds};
    zr_comm *comm = history->rank->comm;
    zr_result result = ZR_OK;
    for (unsigned i = 0; i < 2 && history->count > 0 && result == ZR_OK; i++) {
        zr_ticket ticket;
        result = zr_comm_broadcast(comm,
                                   &(struct zr_broadcast){.buffer = arrays[i],
                                                          .bytes = history->count * sizeof *arrays[i],
                                                          .root = from},
                                   &ticket);
        if (result == ZR_OK)
            result = zr_comm_wait(comm, ticket);
    }
    return result;
}

void zr_history_close(struct zr_history *history)
{
    if (!history->kept) {
        zr_heap_free(history->seconds);
        zr_heap_free(history->loss);
    }
    history->seconds = history->loss = NULL;
}

void zr_history_start(struct zr_history *history)
{
    zr_trainer_state_counters_get(&history->rank->state, &history->comm_before);
    zr_history_skip(history);
}

void zr_history_skip(struct zr_history *history)
{
    history->since_ns = zr_os_now_ns();
}

/* Sum over the arenas of both tiers. */
static uint64_t driver_calls(const struct zr_rank *rank)
{
    struct zr_arena_stats stats[2] = {{0}};
    zr_arena_get_stats(rank->arena, &stats[0]);
    if (rank->host_tier)
        zr_arena_get_stats(rank->host_tier, &stats[1]);
    return stats[0].backend_calls_count + stats[1].backend_calls_count;
}

zr_result zr_history_step_begin(const struct zr_history *history, struct zr_history_step *out)
{
    const struct zr_rank *rank = history->rank;
    bool delayed = rank->config->delayed_update;
    bool flows = rank->state.trainer->flow.asynchronous;
    /* A delayed update sends its results in the step after the one that started it. */
    bool warms = zr_engine_warms_up(rank->state.engine); /* sends more than the steps after it */
    *out = (struct zr_history_step){.first = !history->counted && !flows && !warms &&
                                             history->measured < MEASURED_MAX &&
                                             (!delayed || zr_engine_is_delayed(rank->state.engine)),
                                    .fills = flows && zr_trainer_is_drained(rank->state.trainer),
                                    .speculative_updates = history->speculative_updates,
                                    .rolled_back_updates = history->rolled_back_updates,
                                    .merges = rank->state.engine->outer.merges,
                                    .moved_bytes = zr_trainer_state_moved_bytes(&rank->state),
                                    .waited_ns = zr_trainer_state_copies_exposed_ns(&rank->state)};
    /* Waits for the previous update, so that its traffic is not counted in this step. */
    zr_result result =
        out->first && (delayed || history->count > 0) ? zr_engine_synchronize(rank->state.engine) : ZR_OK;
    if (result != ZR_OK)
        return result;
    out->driver_calls = driver_calls(rank);
    zr_trainer_state_counters_get(&rank->state, &out->comm);
    zr_engine_get_file_report(rank->state.engine, &out->file);
    return ZR_OK;
}

static void add_waits(struct zr_history_waits *sum, const struct zr_history_waits *waits)
{
    sum->seconds += waits->seconds;
    sum->host_ns += waits->host_ns;
    sum->nvme_ns += waits->nvme_ns;
}

void zr_history_step_end(struct zr_history *history, const struct zr_history_step *step,
                         struct zr_step_line *line)
{
    const struct zr_rank *rank = history->rank;
    struct zr_arena_stats arena;
    struct zr_comm_counters comm;
    struct zr_state_file_report file;
    zr_engine_get_file_report(rank->state.engine, &file);
    struct zr_history_waits waits = {.host_ns =
                                         zr_trainer_state_copies_exposed_ns(&rank->state) - step->waited_ns,
                                     .nvme_ns = file.waited_ns - step->file.waited_ns};
    zr_arena_get_stats(rank->arena, &arena);
    zr_trainer_state_counters_get(&rank->state, &comm);
    history->sent_bytes += comm.sent_bytes - step->comm.sent_bytes;
    if (step->fills) {
        history->fill = *step;
        history->fill_count = history->count;
    }
    bool drained = rank->state.trainer->flow.asynchronous && zr_trainer_is_drained(rank->state.trainer);
    const struct zr_history_step *from = drained ? &history->fill : step;
    uint64_t steps = drained ? history->count + 1 - history->fill_count : 1;
    /* After some steps groups publish parameters once more. */
    const struct zr_outer *outer = &rank->config->outer;
    bool publishes = outer->period > outer->fragments && rank->state.engine->outer.merges > step->merges;
    /* A skipped step sends less; an update that waits for the norm, or is repeated, moves another amount. */
    if ((step->first || (drained && !history->counted)) && !line->skipped && !publishes) {
        history->measured++;
        history->counted =
            (!rank->config->speculative_bytes || step->speculative_updates < history->speculative_updates) &&
            (!rank->offload_file.folder || step->rolled_back_updates == history->rolled_back_updates);
        history->sent_elements_per_step = (comm.sent_elements - from->comm.sent_elements) / steps;
        history->sent_bytes_per_step = (comm.sent_bytes - from->comm.sent_bytes) / steps;
        history->received_bytes_per_step = (comm.received_bytes - from->comm.received_bytes) / steps;
        history->host_moved_bytes_per_step =
            (zr_trainer_state_moved_bytes(&rank->state) - from->moved_bytes) / steps;
        history->nvme_moved_bytes_per_step = (file.moved_bytes - from->file.moved_bytes) / steps;
    }
    history->host_waits_last_step = rank->state.trainer->host_waits;
    history->driver_calls_last_step = driver_calls(rank) - step->driver_calls;
    uint64_t now_ns = zr_os_now_ns();
    line->step_seconds = (double)(now_ns - history->since_ns) * 1e-9;
    history->since_ns = now_ns;
    line->tokens_per_second = (double)zr_train_step_tokens(rank->config) / line->step_seconds;
    line->live_bytes = arena.live_bytes;
    line->reserved_bytes = arena.reserved_bytes;
    history->loss[history->count] = line->loss;
    history->seconds[history->count] = line->step_seconds;
    waits.seconds = line->step_seconds;
    add_waits(&history->all, &waits);
    if (history->count >= WARM_STEPS &&
        (!rank->config->delayed_update || zr_engine_delayed_is_under_way(rank->state.engine)))
        add_waits(&history->usual, &waits);
    history->count++;
}

/* Seconds of the steps from index `first` on. */
static double seconds_from(const struct zr_history *history, size_t first)
{
    double seconds = 0;
    for (size_t i = first; i < history->count; i++)
        seconds += history->seconds[i];
    return seconds;
}

double zr_history_tokens_per_second(const struct zr_history *history)
{
    size_t skip = history->count > WARM_STEPS ? WARM_STEPS : 0;
    double seconds = seconds_from(history, skip);
    if (seconds <= 0)
        return 0;
    return (double)((history->count - skip) * zr_train_step_tokens(history->rank->config)) / seconds;
}

/* The waits of the usual steps; the waits of all steps if no step was usual. */
static struct zr_history_waits waits_of(const struct zr_history *history)
{
    return history->usual.seconds > 0 ? history->usual : history->all;
}

static double wait_share(uint64_t waited_ns, double seconds)
{
    return seconds > 0 ? (double)waited_ns * 1e-9 / seconds : 0;
}

static void measure_host_tier(const struct zr_history *history, struct zr_rank_report *report)
{
    struct zr_history_waits waits = waits_of(history);
    struct zr_arena_stats stats;
    if (!history->rank->host_tier)
        return;
    zr_arena_get_stats(history->rank->host_tier, &stats);
    report->peak_host_tier_bytes = stats.peak_live_bytes;
    report->peak_host_tier_reserved_bytes = stats.peak_reserved_bytes;
    memcpy(report->peak_host_tier_by_tag_bytes, stats.peak_by_tag_bytes,
           sizeof report->peak_host_tier_by_tag_bytes);
    report->host_moved_bytes = history->host_moved_bytes_per_step;
    report->host_wait_share = wait_share(waits.host_ns, waits.seconds);
}

static void measure_file(const struct zr_history *history, struct zr_rank_report *report)
{
    struct zr_history_waits waits = waits_of(history);
    struct zr_state_file_report file;
    struct zr_delayed_report delayed;
    zr_engine_get_file_report(history->rank->state.engine, &file);
    report->nvme_bytes = file.file_bytes;
    report->nvme_moved_bytes = history->nvme_moved_bytes_per_step;
    zr_engine_get_delayed_report(history->rank->state.engine, &delayed);
    report->delayed_computing_seconds = delayed.computing_seconds;
    report->delayed_waiting_seconds = delayed.waiting_seconds;
    report->nvme_wait_share = wait_share(waits.nvme_ns, waits.seconds);
}

void zr_history_measure(const struct zr_history *history, struct zr_rank_report *report)
{
    const struct zr_rank *rank = history->rank;
    struct zr_arena_stats stats, host;
    struct zr_comm_counters counters;
    struct zr_resident resident = {0};

    zr_arena_get_stats(rank->arena, &stats);
    zr_rank_kept_add(rank, &stats);
    zr_arena_get_stats(rank->host_arena, &host);
    zr_trainer_state_counters_get(&rank->state, &counters);
    if (zr_os_resident(&resident) != ZR_OK)
        resident.peak_bytes = 0;
    memcpy(report->peak_by_tag_bytes, stats.peak_by_tag_bytes, sizeof report->peak_by_tag_bytes);
    memcpy(report->kept_by_tag_bytes, stats.live_by_tag_bytes, sizeof report->kept_by_tag_bytes);
    report->peak_by_tag_bytes[ZR_TAG_OTHER] += host.peak_live_bytes;
    report->peak_bytes = stats.peak_live_bytes + host.peak_live_bytes;
    report->peak_reserved_bytes = stats.peak_reserved_bytes + host.peak_reserved_bytes;
    report->peak_host_reserved_bytes = host.peak_reserved_bytes;
    report->peak_resident_bytes = resident.peak_bytes;
    report->resident_anonymous_bytes = resident.anonymous_bytes;
    report->resident_shared_bytes = resident.shared_bytes;
    report->stranded_bytes = stats.stranded_bytes;
    measure_host_tier(history, report);
    measure_file(history, report);
    zr_spill_get_report(rank, &report->spill);
    zr_outer_get_report(rank->state.engine, &report->outer);
    zr_engine_get_backup_report(rank->state.engine, &report->backup);
    report->sent_elements_per_step = history->sent_elements_per_step;
    report->sent_bytes_per_step = history->sent_bytes_per_step;
    report->mean_sent_bytes = history->count ? (double)history->sent_bytes / (double)history->count : 0;
    report->received_bytes_per_step = history->received_bytes_per_step;
    report->host_waits_last_step = history->host_waits_last_step;
    report->driver_calls_last_step = history->driver_calls_last_step;
    report->graph_steps = rank->state.trainer->graph.launches_count;
    const struct zr_comm_volume *kinds = counters.by_kind, *before = history->comm_before.by_kind;
    report->replicate_ns = kinds[ZR_COMM_BROADCAST].busy_ns - before[ZR_COMM_BROADCAST].busy_ns;
    report->gather_ns = kinds[ZR_COMM_REDUCE].busy_ns - before[ZR_COMM_REDUCE].busy_ns;
    report->update_ns = rank->state.engine->update_ns;
    report->comm_busy_ns = counters.busy_ns - history->comm_before.busy_ns;
    report->comm_exposed_ns = counters.exposed_ns - history->comm_before.exposed_ns;
}
