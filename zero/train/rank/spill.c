/* spill.c: see spill.h. Uses alloc/front/vacancy.c, reclaim.c and zero/file_io.
 *
 * The rank's thread calls open, rest, resume and close; zrd's helper thread swaps out memory between rest and
 * resume. zr_helper_set_spill() synchronizes the two. */
#define _GNU_SOURCE
#include "zero/train/rank/spill.h"

#include <string.h>
#include <time.h>

#include "alloc/backend/backend.h"
#include "alloc/service/client/client.h"
#include "alloc/base/error.h"
#include "alloc/base/system/os.h"
#include "alloc/front/share.h"
#include "alloc/heap/heap.h"
#include "zero/file_io/nvme_io.h"
#include "zero/train/report/terminal.h"

/* Tags in the order of their use in a step; the last one is swapped out first. */
static const zr_tag order[] = {ZR_TAG_PARAM, ZR_TAG_GRAD, ZR_TAG_MASTER, ZR_TAG_OPTIMIZER};
/* A batch is small enough for a slow disk to write before zrd's deadline. */
enum { ORDER_COUNT = sizeof order / sizeof *order, AT_ONCE = 8, AT_ONCE_BYTES = 32 << 20, DEPTH = 8 };

static const char fix[] =
    "nothing is lost and the run continues; runs that wait for its memory get it when this run "
    "exits. For the next run name another disk with --spill nvme:DIR";

struct swapped {
    zr_arena *arena;
    struct zr_vacancy part;
    uint64_t offset_bytes;
};

struct zr_spill {
    zr_nvme_io *io;
    uint64_t file_bytes, used_bytes;
    struct swapped *swapped; /* [swapped_max], on the heap */
    size_t swapped_count, swapped_max;
    zr_nvme_event written[AT_ONCE]; /* events of the last batch, which may be pending if the disk stalls */
    bool failed;                    /* a write has failed */
    struct zr_spill_report report;
};

/* Whether the host tier can be swapped out. An arena with buffers of an offload file cannot, because they are
 * registered with the kernel. */
static bool spills_host_tier(const struct zr_rank *rank)
{
    return zr_train_has_host_tier(rank->config) && !zr_train_has_file(rank->config);
}

uint64_t zr_spill_ends_bytes(uint64_t of_tag_bytes, size_t granule_bytes)
{
    uint64_t handle = of_tag_bytes / 256 > granule_bytes ? of_tag_bytes / 256 : granule_bytes;
    return 2 * handle / granule_bytes * granule_bytes;
}

static uint64_t sum(const struct zr_rank *rank, size_t granule_bytes, bool sure)
{
    const struct zr_byte_plan *plan = &rank->plan;
    uint64_t bytes = 0;
    if (rank->config->spill == ZR_TIER_NONE)
        return 0;
    for (unsigned i = 0; i < ORDER_COUNT; i++)
        for (unsigned tier = 0; tier < 1 + (unsigned)spills_host_tier(rank); tier++) {
            uint64_t of_tag =
                (tier ? plan->host_persistent_by_tag_bytes : plan->persistent_by_tag_bytes)[order[i]];
            uint64_t ends = zr_spill_ends_bytes(of_tag, granule_bytes);
            of_tag = of_tag / granule_bytes * granule_bytes;
            bytes += !sure ? of_tag + (of_tag ? ends : 0) : of_tag > ends ? of_tag - ends : 0;
        }
    return bytes;
}

uint64_t zr_spill_sure_bytes(const struct zr_rank *rank, size_t granule_bytes)
{
    return sum(rank, granule_bytes, true);
}

/* The maximum that can be swapped out between steps, for the file's size. 0 without --spill. */
static uint64_t most_bytes_of(const struct zr_rank *rank, size_t granule_bytes)
{
    return sum(rank, granule_bytes, false);
}

static void say_of_file(void *state, const char *message)
{
    const struct zr_rank *rank = state;
    if (rank->rank % rank->config->ranks_here == 0)
        zr_say("%s", message);
}

zr_result zr_spill_open(struct zr_rank *rank)
{
    size_t granule_bytes;
    if (rank->config->spill == ZR_TIER_NONE || !zr_service_wanted())
        return ZR_OK;
    zr_result result = zr_backend_granule(0, &granule_bytes);
    if (result != ZR_OK)
        return result;
    struct zr_spill *spill = rank->spill = zr_heap_zalloc(1, sizeof *spill);
    uint64_t bytes = most_bytes_of(rank, granule_bytes);
    if (!spill || bytes == 0)
        return spill ? ZR_OK : ZR_ERR_HOST_MEMORY;
    spill->file_bytes = bytes;
    spill->report.planned_bytes = zr_spill_sure_bytes(rank, granule_bytes);
    spill->swapped_max = (size_t)(bytes / granule_bytes);
    spill->swapped = zr_heap_zalloc(spill->swapped_max, sizeof *spill->swapped);
    if (!spill->swapped)
        return ZR_ERR_HOST_MEMORY;
    return zr_nvme_open(&spill->io,
                        &(struct zr_nvme_options){.folder = {rank->config->spill_folder, rank->config->force},
                                                  .file_bytes = bytes,
                                                  .host_arena = rank->host_arena,
                                                  .depth = DEPTH,
                                                  .write_way_out = fix,
                                                  .log = say_of_file,
                                                  .log_state = rank});
}

/* ---- Swapping out: the helper thread ------------------------------------------------------------------- */

/* Chooses the next parts, those that a step needs last first; returns their number, at most AT_ONCE. The last
 * part may exceed `bytes`. Offsets follow the parts that are swapped out, so an abandoned batch is written
 * again. */
static size_t choose(const struct zr_rank *rank, size_t bytes, struct swapped out[AT_ONCE])
{
    const struct zr_spill *spill = rank->spill;
    zr_arena *arenas[2] = {rank->arena, spills_host_tier(rank) ? rank->host_tier : NULL};
    uint64_t offset_bytes = spill->used_bytes, chosen_bytes = 0;
    size_t count = 0;
    bytes = bytes < AT_ONCE_BYTES ? bytes : AT_ONCE_BYTES;
    for (unsigned which = ORDER_COUNT; which-- > 0;)
        for (unsigned a = 0; a < 2 && arenas[a]; a++) {
            struct zr_vacancy part;
            const char *from = NULL;
            while (count < AT_ONCE && chosen_bytes < bytes &&
                   spill->swapped_count + count < spill->swapped_max &&
                   zr_vacancy_find(arenas[a], order, ORDER_COUNT, which, from, &part) &&
                   part.bytes <= spill->file_bytes - offset_bytes) {
                out[count++] = (struct swapped){arenas[a], part, offset_bytes};
                offset_bytes += part.bytes;
                chosen_bytes += part.bytes;
                from = part.memory + part.bytes;
            }
        }
    return count;
}

/* Starts writes or reads of the parts, in any order of completion. */
static zr_result start(struct zr_spill *spill, const struct swapped *swapped, size_t count, bool write,
                       zr_nvme_event events[AT_ONCE])
{
    zr_result result = ZR_OK;
    memset(events, 0, AT_ONCE * sizeof *events);
    for (size_t i = 0; i < count && result == ZR_OK; i++) {
        const struct zr_nvme_extent extent = {.offset_bytes = swapped[i].offset_bytes,
                                              .memory = swapped[i].part.memory,
                                              .bytes = swapped[i].part.bytes};
        result = write ? zr_nvme_write(spill->io, &extent, &events[i])
                       : zr_nvme_read(spill->io, &extent, &events[i]);
    }
    return result;
}

/* Waits for the writes of the last batch until the deadline; *out: they have ended. A stalled disk delays the
 * time slice and does not lose the leases. */
static zr_result await_written(const struct zr_spill *spill, uint64_t until_ns, bool *out)
{
    zr_result result = ZR_OK;
    *out = true;
    for (size_t i = 0; i < AT_ONCE && *out && result == ZR_OK; i++)
        while ((result = zr_nvme_poll(spill->io, spill->written[i], out)) == ZR_OK && !*out &&
               zr_os_now_ns() < until_ns)
            nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    return result;
}

/* Vacates memory whose contents are in the file. */
static zr_result vacate(struct zr_spill *spill, const struct swapped *swapped)
{
    zr_result result = zr_vacate(swapped->arena, &swapped->part);
    if (result != ZR_OK)
        return result;
    spill->report.times += spill->swapped_count == 0;
    spill->swapped[spill->swapped_count++] = *swapped;
    spill->used_bytes += swapped->part.bytes;
    spill->report.spilled_bytes += swapped->part.bytes;
    return ZR_OK;
}

static size_t swap_out_some(void *state, size_t bytes, uint64_t until_ns)
{
    const struct zr_rank *rank = state;
    struct zr_spill *spill = rank->spill;
    struct swapped chosen[AT_ONCE];
    uint64_t before_bytes = spill->used_bytes, start_ns = zr_os_now_ns();
    zr_result result = ZR_OK;
    bool written = false;
    if (!spill->failed) /* a batch of an earlier call may have timed out */
        result = await_written(spill, until_ns, &written);
    while (written && result == ZR_OK && spill->used_bytes - before_bytes < bytes &&
           zr_os_now_ns() < until_ns) {
        size_t count = choose(rank, bytes - (size_t)(spill->used_bytes - before_bytes), chosen);
        if (count == 0)
            break;
        result = start(spill, chosen, count, true, spill->written);
        if (result == ZR_OK)
            result = await_written(spill, until_ns, &written);
        for (size_t i = 0; i < count && written && result == ZR_OK; i++)
            result = vacate(spill, &chosen[i]);
    }
    if (result != ZR_OK) {
        spill->failed = true;
        zr_say("rank %u keeps its memory while it waits for its time slice: %s", rank->rank, zr_last_error());
    }
    if (spill->used_bytes > spill->report.most_bytes)
        spill->report.most_bytes = spill->used_bytes;
    spill->report.write_seconds += (double)(zr_os_now_ns() - start_ns) * 1e-9;
    return (size_t)(spill->used_bytes - before_bytes);
}

/* ---- Swapping in: the rank's thread -------------------------------------------------------------------- */

void zr_spill_rest(struct zr_rank *rank)
{
    if (rank->spill && rank->spill->io)
        zr_helper_set_spill(swap_out_some, rank);
}

zr_result zr_spill_resume(struct zr_rank *rank)
{
    struct zr_spill *spill = rank->spill;
    uint64_t start_ns = zr_os_now_ns();
    zr_nvme_event events[AT_ONCE];
    zr_result result = ZR_OK;
    zr_helper_set_spill(NULL, NULL);
    if (!spill || spill->swapped_count == 0)
        return ZR_OK;
    while (spill->swapped_count > 0 && result == ZR_OK) {
        size_t count = spill->swapped_count < AT_ONCE ? spill->swapped_count : AT_ONCE, done = 0;
        struct swapped *swapped = &spill->swapped[spill->swapped_count - count];
        while (done < count && (result = zr_occupy(swapped[done].arena, &swapped[done].part)) == ZR_OK)
            done++;
        if (result == ZR_OK)
            result = start(spill, swapped, count, false, events);
        for (size_t i = 0; i < count && result == ZR_OK; i++)
            result = zr_nvme_wait(spill->io, events[i]);
        spill->swapped_count -= count;
    }
    spill->used_bytes = 0;
    spill->report.read_seconds += (double)(zr_os_now_ns() - start_ns) * 1e-9;
    return result;
}

void zr_spill_close(struct zr_rank *rank)
{
    struct zr_spill *spill = rank->spill;
    if (!spill)
        return;
    zr_helper_set_spill(NULL, NULL);
    zr_nvme_close(spill->io);
    zr_heap_free(spill->swapped);
    zr_heap_free(spill);
    rank->spill = NULL;
}

void zr_spill_get_report(const struct zr_rank *rank, struct zr_spill_report *out)
{
    *out = rank->spill ? rank->spill->report : (struct zr_spill_report){0};
}
