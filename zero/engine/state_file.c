/* state_file.c: the state store in an offload file, with a few buffers in memory. See state_store.h.
 *
 * A unit's extent holds its masters and the optimizer's slots, padded to a block. In a pass the pipeline
 * reads ahead and writes behind. The end of a pass does not wait for the last writes, which overlap with the
 * next forward; the next call reports their failure. Outside of a pass the first buffer caches one unit. A
 * simulated store has buffers and no file, and waits by the simulated clock. */
#include "zero/engine/state_store.h"

#include <stdatomic.h>
#include <string.h>

#include "zero/comm/take.h"
#include "zero/file_io/nvme_pipeline.h"

enum { NO_UNIT = UINT32_MAX };

/* A unit with two places in the file. */
struct ahead_unit {
    bool twice, kept;     /* kept: the next pass skips it */
    uint64_t other_bytes; /* offset of the place that is not current */
    double end_seconds;   /* simulated clock: end of its update */
};

struct zr_nvme_state {
    zr_nvme_io *io; /* NULL: simulated */
    struct zr_nvme_unit *units;
    size_t units_count;
    uint64_t bytes;
    _Atomic uint64_t moved_bytes; /* atomic: a delayed update transfers on another thread */
    struct zr_nvme_pipeline pipeline;
    bool passing;                        /* between begin and end */
    bool taken;                          /* in a pass: unit `pending` is taken */
    bool runs_ahead;                     /* between zr_state_file_begin_ahead() and _end_ahead() */
    unsigned held;                       /* unit in the first buffer outside of a pass */
    unsigned pending;                    /* in a pass: index of the current or next unit in `pass` */
    struct zr_comm_clock *clock;         /* NULL: none */
    uint64_t waited_ns;                  /* for passes of another thread */
    double read_seconds[ZR_NVME_PLACES]; /* simulated clock: end of a read, by index modulo places */
    /* Units of a pass or of a speculation, in order; 0 bytes: skipped. targets: offsets of speculative
     * writes. */
    struct zr_nvme_unit *pass; /* [units_count] */
    uint64_t *targets;         /* [units_count] */
    struct ahead_unit *ahead;  /* [units_count] */
};

static size_t bytes_of(const struct zr_state_store *store, size_t unit)
{
    size_t elements = zr_state_store_elements(store, unit);
    return store->options.master * elements * sizeof(float) +
           (elements > 0 ? zr_layout_state_bytes(store->options.layout, unit, store->options.whole) : 0);
}

static void view(const struct zr_state_store *store, size_t unit, void *at, struct zr_state_view *out)
{
    const struct zr_optimizer *optimizer = store->options.layout->units[unit].optimizer;
    size_t elements = zr_state_store_elements(store, unit);
    char *next = at;
    *out = (struct zr_state_view){.master = store->options.master ? at : NULL};
    next += store->options.master * elements * sizeof(float);
    for (unsigned s = 0; s < optimizer->slots_count; s++) {
        out->slots[s] = next;
        next += zr_layout_slot_bytes(store->options.layout, unit, s, store->options.whole);
    }
}

/* ---- Simulated clock ----------------------------------------------------------------------------------- */

double zr_state_file_count(struct zr_state_store *store, uint64_t bytes)
{
    store->file->moved_bytes += bytes;
    return zr_comm_clock_disk(store->file->clock, ZR_CLOCK_STATE, bytes);
}

void zr_state_file_wait_by_clock(struct zr_state_store *store, double end_seconds)
{
    zr_comm_clock_wait_disk(store->file->clock, end_seconds);
}

/* Called when the pipeline starts to read a unit. */
static void count_read(void *state, unsigned place)
{
    struct zr_state_store *store = state;
    store->file->read_seconds[place % ZR_NVME_PLACES] =
        zr_state_file_count(store, store->file->pass[place].bytes);
}

/* ---- Open and close ------------------------------------------------------------------------------------ */

static void nvme_close(struct zr_state_store *store)
{
    struct zr_nvme_state *file = store->file;
    if (!file)
        return;
    zr_nvme_close(file->io); /* the contents are discarded, so failures do not matter */
    zr_drop(store->options.arena, &file->pipeline.buffers);
    zr_drop(store->options.host_arena, &file->ahead);
    zr_drop(store->options.host_arena, &file->targets);
    zr_drop(store->options.host_arena, &file->pass);
    zr_drop(store->options.host_arena, &file->units);
    zr_drop(store->options.host_arena, &store->file);
}

static void lay_out(struct zr_state_store *store, size_t align_bytes)
{
    struct zr_nvme_state *file = store->file;
    for (size_t u = 0; u < file->units_count; u++) {
        size_t bytes = zr_state_file_round_up(bytes_of(store, u), align_bytes);
        file->units[u] = (struct zr_nvme_unit){file->bytes, bytes};
        file->bytes += bytes;
        file->pipeline.buffer_bytes =
            bytes > file->pipeline.buffer_bytes ? bytes : file->pipeline.buffer_bytes;
    }
    uint64_t left = store->options.twice_bytes;
    for (size_t u = file->units_count; u-- > 0;) {
        const struct zr_layout *layout = store->options.layout;
        bool shared = layout->parameters[layout->units[u].first_parameter].parameter.part.shared;
        size_t bytes = bytes_of(store, u);
        if (shared || bytes == 0 || bytes > left)
            continue;
        left -= bytes;
        file->ahead[u] = (struct ahead_unit){.twice = true, .other_bytes = file->bytes};
        file->bytes += file->units[u].bytes;
    }
}

zr_result zr_state_file_take_slots(zr_arena *arena, const struct zr_file_slots *slots, void **out)
{
    struct zr_request request = {.alignment = slots->align_bytes, .tag = ZR_TAG_OFFLOAD};
    *out = NULL;
    if (slots->bytes == 0)
        return ZR_OK;
    if (__builtin_mul_overflow(slots->bytes, (size_t)slots->count, &request.bytes))
        return zr_fail(ZR_ERR_INVALID, "%s: %u of %zu bytes overflow the address space", slots->what,
                       slots->count, slots->bytes);
    return zr_name_call(zr_arena_alloc(arena, &request, out), __func__, slots->what);
}

static zr_result nvme_open(struct zr_state_store *store)
{
    const struct zr_state_store_options *o = &store->options;
    size_t align_bytes = zr_state_file_align(o->file);
    zr_result result = zr_take(o->host_arena, ZR_TAG_OTHER, 1, sizeof *store->file, (void **)&store->file);
    if (result != ZR_OK)
        return result;
    struct zr_nvme_state *file = memset(store->file, 0, sizeof *file);
    file->units_count = o->layout->units_count;
    file->held = NO_UNIT;
    file->pipeline.buffers_count = zr_state_file_buffers(o->file);
    file->pipeline.starts = count_read;
    file->pipeline.state = store;
    result =
        zr_take(o->host_arena, ZR_TAG_OTHER, file->units_count, sizeof *file->units, (void **)&file->units);
    if (result == ZR_OK)
        result =
            zr_take(o->host_arena, ZR_TAG_OTHER, file->units_count, sizeof *file->pass, (void **)&file->pass);
    if (result == ZR_OK)
        result = zr_take(o->host_arena, ZR_TAG_OTHER, file->units_count, sizeof *file->targets,
                         (void **)&file->targets);
    if (result == ZR_OK)
        result = zr_take(o->host_arena, ZR_TAG_OTHER, file->units_count, sizeof *file->ahead,
                         (void **)&file->ahead);
    if (result == ZR_OK) {
        memset(file->ahead, 0, file->units_count * sizeof *file->ahead);
        lay_out(store, align_bytes);
        result = zr_state_file_take_slots(o->arena,
                                          &(struct zr_file_slots){file->pipeline.buffer_bytes, align_bytes,
                                                                  file->pipeline.buffers_count,
                                                                  "the buffers of the offload file"},
                                          &file->pipeline.buffers);
    }
    if (result != ZR_OK || o->simulated || file->bytes == 0)
        return result;
    const struct zr_nvme_buffer buffers[] = {
        {file->pipeline.buffers, file->pipeline.buffers_count * file->pipeline.buffer_bytes},
        {o->more_memory, o->more_memory_bytes}};
    result = zr_nvme_open(&file->io, &(struct zr_nvme_options){.folder = {o->file->folder, o->file->force},
                                                               .file_bytes = file->bytes + o->more_bytes,
                                                               .host_arena = o->host_arena,
                                                               .buffers = buffers,
                                                               .buffers_count = o->more_memory ? 2 : 1,
                                                               .depth = o->file->depth,
                                                               .log = o->file->log,
                                                               .log_state = o->file->log_state});
    file->pipeline.io = file->io;
    return result;
}

/* ---- Passes over ordered units ------------------------------------------------------------------------- */

/* Starts a pass over the units of `pass`; earlier writes continue. */
static zr_result begin_units(struct zr_state_store *store, size_t count, const uint64_t *targets)
{
    struct zr_nvme_state *file = store->file;
    struct zr_nvme_pipeline *pipeline = &file->pipeline;
    zr_result result = pipeline->running ? zr_nvme_pipeline_end(pipeline) : ZR_OK;
    file->runs_ahead = targets != NULL;
    file->held = NO_UNIT;
    file->pending = 0;
    file->taken = false;
    pipeline->units = file->pass;
    pipeline->units_count = (unsigned)count;
    pipeline->targets = targets;
    return result == ZR_OK ? zr_nvme_pipeline_begin(pipeline) : result;
}

static zr_result take_next(struct zr_state_store *store, size_t unit, struct zr_state_view *out)
{
    struct zr_nvme_state *file = store->file;
    void *at = NULL;
    zr_result result = zr_nvme_pipeline_take(&file->pipeline, &at);
    file->taken = result == ZR_OK;
    view(store, unit, at, out);
    return result;
}

static zr_result give_next(struct zr_state_store *store, bool changed)
{
    struct zr_nvme_state *file = store->file;
    unsigned place = file->pending++;
    file->taken = false;
    if (changed)
        zr_state_file_count(store, file->pass[place].bytes);
    return zr_nvme_pipeline_give(&file->pipeline, changed);
}

/* ---- A pass -------------------------------------------------------------------------------------------- */

static zr_result nvme_begin(struct zr_state_store *store)
{
    struct zr_nvme_state *file = store->file;
    if (file->passing)
        return zr_fail(ZR_ERR_INVALID, "the previous pass over the state in the offload file has not ended");
    for (size_t u = 0; u < file->units_count; u++) {
        file->pass[u] = file->units[u];
        if (file->ahead[u].kept)
            file->pass[u].bytes = 0;
        file->ahead[u].kept = false;
    }
    file->passing = true;
    return begin_units(store, file->units_count, NULL);
}

/* Passes over units before `unit` that are in another store. */
static zr_result skip_units(struct zr_state_store *store, size_t unit)
{
    struct zr_nvme_state *file = store->file;
    struct zr_state_view none;
    zr_result result = ZR_OK;
    while (result == ZR_OK && !file->taken && file->pending < unit &&
           zr_state_store_elements(store, file->pending) == 0) {
        result = take_next(store, file->pending, &none);
        if (result == ZR_OK)
            result = give_next(store, false);
    }
    return result;
}

static zr_result take_in_pass(struct zr_state_store *store, size_t unit, struct zr_state_view *out)
{
    struct zr_nvme_state *file = store->file;
    zr_result result = skip_units(store, unit);
    if (result != ZR_OK)
        return result;
    if (unit != file->pending)
        return zr_fail(ZR_ERR_INVALID,
                       "cannot read unit %zu of the state in the offload file: unit %u is next", unit,
                       file->pending);
    if (file->pass[unit].bytes > 0)
        zr_state_file_wait_by_clock(store, file->read_seconds[unit % ZR_NVME_PLACES]);
    return take_next(store, unit, out);
}

static zr_result nvme_end(struct zr_state_store *store)
{
    struct zr_nvme_state *file = store->file;
    zr_result result = skip_units(store, file->units_count);
    file->passing = false;
    if (result == ZR_OK && file->pending == file->units_count)
        return ZR_OK;
    /* An aborted pass waits for its transfers here. */
    zr_result ended = zr_nvme_pipeline_end(&file->pipeline);
    return result == ZR_OK ? ended : result;
}

/* ---- Speculative updates ------------------------------------------------------------------------------- */

unsigned zr_state_file_order(const struct zr_state_store *store, unsigned *order)
{
    unsigned count = 0;
    for (size_t u = store->file->units_count; u-- > 0;)
        if (store->file->ahead[u].twice)
            order[count++] = (unsigned)u;
    return count;
}

zr_result zr_state_file_begin_ahead(struct zr_state_store *store, const unsigned *order, size_t count)
{
    struct zr_nvme_state *file = store->file;
    for (size_t i = 0; i < count; i++) {
        file->pass[i] = file->units[order[i]];
        file->targets[i] = file->ahead[order[i]].other_bytes;
    }
    return begin_units(store, count, file->targets);
}

bool zr_state_file_runs_ahead(const struct zr_state_store *store)
{
    return store->file->runs_ahead;
}

zr_result zr_state_file_take_ahead(struct zr_state_store *store, size_t unit, struct zr_state_view *out)
{
    struct zr_nvme_state *file = store->file;
    if (file->clock)
        file->ahead[unit].end_seconds =
            zr_comm_clock_update_ahead(file->clock, file->read_seconds[file->pending % ZR_NVME_PLACES],
                                       zr_state_store_elements(store, unit));
    return take_next(store, unit, out);
}

zr_result zr_state_file_give_ahead(struct zr_state_store *store)
{
    return give_next(store, true);
}

void zr_state_file_wait_ahead(struct zr_state_store *store, size_t unit)
{
    zr_state_file_wait_by_clock(store, store->file->ahead[unit].end_seconds);
}

void zr_state_file_keep_ahead(struct zr_state_store *store, size_t unit)
{
    struct zr_nvme_state *file = store->file;
    uint64_t before = file->units[unit].offset_bytes;
    file->units[unit].offset_bytes = file->ahead[unit].other_bytes;
    file->ahead[unit].other_bytes = before;
    file->ahead[unit].kept = true;
}

void zr_state_file_end_ahead(struct zr_state_store *store)
{
    store->file->runs_ahead = false;
}

/* ---- Single units -------------------------------------------------------------------------------------- */

typedef zr_result transfer_call(zr_nvme_io *, const struct zr_nvme_extent *, zr_nvme_event *);

static zr_result transfer(struct zr_state_store *store, size_t unit, transfer_call *call)
{
    struct zr_nvme_state *file = store->file;
    zr_nvme_event event;
    file->moved_bytes += file->units[unit].bytes;
    if (!file->io)
        return ZR_OK;
    zr_result result = call(file->io,
                            &(struct zr_nvme_extent){.offset_bytes = file->units[unit].offset_bytes,
                                                     .memory = file->pipeline.buffers,
                                                     .bytes = file->units[unit].bytes},
                            &event);
    return result == ZR_OK ? zr_nvme_wait(file->io, event) : result;
}

static zr_result nvme_take(struct zr_state_store *store, size_t unit, struct zr_state_view *out)
{
    struct zr_nvme_state *file = store->file;
    zr_result result = ZR_OK;
    if (file->passing)
        return take_in_pass(store, unit, out);
    view(store, unit, file->pipeline.buffers, out);
    if (file->held == unit)
        return ZR_OK;
    file->held = NO_UNIT;
    file->runs_ahead = false;
    result = zr_nvme_pipeline_end(&file->pipeline);
    if (result == ZR_OK)
        result = transfer(store, unit, zr_nvme_read);
    if (result == ZR_OK)
        file->held = (unsigned)unit;
    return result;
}

static zr_result nvme_give(struct zr_state_store *store, size_t unit, bool changed)
{
    struct zr_nvme_state *file = store->file;
    if (!file->passing)
        return changed && file->held == unit ? transfer(store, unit, zr_nvme_write) : ZR_OK;
    if (!file->taken || unit != file->pending)
        return ZR_OK; /* take() has reported the failure */
    return give_next(store, changed);
}

static void nvme_waited(struct zr_state_store *store, uint64_t ns)
{
    store->file->waited_ns += ns;
}

const struct zr_state_store_table zr_state_store_nvme = {.name = "nvme",
                                                         .open = nvme_open,
                                                         .begin = nvme_begin,
                                                         .take = nvme_take,
                                                         .give = nvme_give,
                                                         .end = nvme_end,
                                                         .close = nvme_close,
                                                         .waited = nvme_waited,
                                                         .wait_by_clock = zr_comm_clock_wait_disk};

/* ---- Reports ------------------------------------------------------------------------------------------- */

zr_nvme_io *zr_state_file_io(const struct zr_state_store *store)
{
    return store->file ? store->file->io : NULL;
}

uint64_t zr_state_file_base(const struct zr_state_store *store)
{
    return store->file->bytes;
}

void zr_state_store_set_clock(struct zr_state_store *store, struct zr_comm_clock *clock)
{
    if (store->file && !store->file->io)
        store->file->clock = clock;
}

void zr_state_store_get_report(const struct zr_state_store *store, struct zr_state_file_report *out)
{
    const struct zr_nvme_state *file = store->file;
    struct zr_nvme_report report = {.ring = false};
    *out = (struct zr_state_file_report){.file_bytes = 0};
    if (!file)
        return;
    if (file->io)
        zr_nvme_get_report(file->io, &report);
    *out = (struct zr_state_file_report){.file_bytes = file->bytes + store->options.more_bytes,
                                         .buffers_bytes =
                                             file->pipeline.buffers_count * file->pipeline.buffer_bytes,
                                         .moved_bytes = file->moved_bytes,
                                         .waited_ns = report.waited_ns + file->waited_ns,
                                         .waited_behind_ns = report.waited_behind_ns,
                                         .bytes_per_second = report.bytes_per_second};
}
