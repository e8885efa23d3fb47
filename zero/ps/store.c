/* store.c: allocates the memory of a server. See store.h. */
#include "zero/ps/store.h"

#include <string.h>

#include "alloc/base/error.h"
#include "zero/comm/take.h"

enum { STRIDE = 16 }; /* elements: parts begin at multiples of 64 bytes */

/* The blocks of a server. Those up to LAST_KEPT may be kept memory. */
enum block {
    RECORD,
    MEMBERS,
    LANES,
    APPLIED,
    NUMBERS,
    WAITERS,
    MASTER,
    STATES,
    PUSHES,
    SUMS,
    PULLED,
    MESSAGES,
    AREAS,
    LOG,
    LAST_KEPT = LOG,
    SLICES,
    COUNTS,
    SCRATCH,
    GATHERED,
    BLOCKS
};

static const struct {
    const char *name;
    zr_tag tag;
} blocks[BLOCKS] = {[RECORD] = {"ps.record", ZR_TAG_OTHER},    [MEMBERS] = {"ps.members", ZR_TAG_OTHER},
                    [LANES] = {"ps.lanes", ZR_TAG_OTHER},      [APPLIED] = {"ps.applied", ZR_TAG_OTHER},
                    [NUMBERS] = {"ps.numbers", ZR_TAG_OTHER},  [WAITERS] = {"ps.waiters", ZR_TAG_OTHER},
                    [MASTER] = {"ps.master", ZR_TAG_MASTER},   [STATES] = {"ps.states", ZR_TAG_OPTIMIZER},
                    [PUSHES] = {"ps.pushes", ZR_TAG_GRAD},     [SUMS] = {"ps.sums", ZR_TAG_GRAD},
                    [PULLED] = {"ps.pulled", ZR_TAG_COMM},     [MESSAGES] = {"ps.messages", ZR_TAG_COMM},
                    [AREAS] = {"ps.areas", ZR_TAG_GRAD},       [LOG] = {"ps.log", ZR_TAG_WORKSPACE},
                    [SLICES] = {"slices", ZR_TAG_OTHER},       [COUNTS] = {"counts", ZR_TAG_OTHER},
                    [SCRATCH] = {"scratch", ZR_TAG_WORKSPACE}, [GATHERED] = {"gathered", ZR_TAG_WORKSPACE}};

static unsigned slots_of(const struct zr_ps_setup *setup)
{
    return setup->options.timing.kind == ZR_PS_GEO ? 0 : setup->optimizer->slots_count;
}

static size_t add(size_t a, size_t b)
{
    return a > SIZE_MAX - b ? SIZE_MAX : a + b;
}

static size_t times(size_t a, size_t b)
{
    size_t product;
    return __builtin_mul_overflow(a, b, &product) ? SIZE_MAX : product;
}

/* Bytes of each block. */
static void measure(const struct zr_ps_setup *setup, unsigned server, size_t out[BLOCKS])
{
    const struct zr_ps_options *o = &setup->options;
    const size_t tables = o->tables_count, workers = o->workers;
    const bool groups = zr_ps_groups(&o->timing);
    size_t places_sum = 0;
    bool rows = false;
    memset(out, 0, BLOCKS * sizeof *out);
    for (unsigned t = 0; t < tables; t++) {
        const struct zr_ps_entry *entry = &setup->entries[t];
        size_t places = zr_ps_waiting(&o->timing, entry->pushes);
        places_sum += places;
        rows |= entry->width > 0;
        if (entry->width > 0)
            continue;
        size_t count = zr_ps_part_of(entry->table.elements, o->servers, t, server).count,
               stride = (count + STRIDE - 1) / STRIDE * STRIDE;
        out[MASTER] = add(out[MASTER], times(stride, sizeof(float)));
        out[STATES] = add(out[STATES], times(stride, slots_of(setup) * sizeof(float)));
        if (groups)
            out[PUSHES] = add(out[PUSHES], times(times(stride, zr_precision_bytes(entry->table.precision)),
                                                 workers * places));
        if (groups && entry->pushes > 1)
            out[SUMS] = add(out[SUMS], times(stride, sizeof(float)));
        if (o->staleness.kind == ZR_PS_STALE_COMPENSATE)
            out[PULLED] = add(out[PULLED], times(stride, workers * sizeof(float)));
    }
    out[RECORD] = sizeof(struct zr_ps_kept);
    out[MEMBERS] = workers * sizeof(struct zr_ps_member);
    out[LANES] = tables * workers * sizeof(struct zr_ps_lane);
    out[APPLIED] = tables * sizeof(uint64_t);
    out[NUMBERS] = tables * sizeof(struct zr_ps_numbers);
    out[WAITERS] = groups ? times(places_sum, workers * sizeof(struct zr_ps_waiter)) : 0;
    out[MESSAGES] = times(workers + ZR_PS_EXTRA, sizeof(struct zr_ps_frame) + setup->message_bytes);
    out[AREAS] = rows && groups ? times(setup->message_bytes, workers * (zr_ps_ahead(&o->timing) + 1)) : 0;
    out[LOG] = (size_t)ZR_PS_WINDOW * sizeof(float) * (1 + slots_of(setup));
    out[SLICES] = tables * sizeof(struct zr_ps_slice);
    out[COUNTS] = tables * sizeof(uint32_t);
    out[SCRATCH] = (size_t)ZR_PS_WINDOW * sizeof(float);
    out[GATHERED] = rows ? times(setup->message_bytes, groups ? workers : 1) : 0;
}

zr_result zr_ps_store_plan(struct zr_ps_setup *setup, unsigned server, struct zr_ps_bytes *out)
{
    size_t bytes[BLOCKS], all = 0;
    measure(setup, server, bytes);
    for (unsigned i = 0; i < BLOCKS; i++)
        all = add(all, bytes[i]);
    if (all > PTRDIFF_MAX)
        return zr_fail(ZR_ERR_INVALID, "the tables of a parameter server overflow the address space");
    *out = (struct zr_ps_bytes){.master = bytes[MASTER],
                                .optimizer = bytes[STATES],
                                .gradients = bytes[PUSHES] + bytes[SUMS] + bytes[AREAS],
                                .messages = bytes[MESSAGES] + bytes[PULLED],
                                .log = bytes[LOG] + bytes[SCRATCH] + bytes[GATHERED]};
    out->records = all - out->master - out->optimizer - out->gradients - out->messages - out->log;
    return ZR_OK;
}

/* Sets the addresses of the slices, in the order of the tables. */
static void place(struct zr_ps_store *store, void *const block[BLOCKS])
{
    const struct zr_ps_options *o = &store->setup->options;
    float *master = block[MASTER], *states = block[STATES], *sums = block[SUMS], *pulled = block[PULLED];
    char *pushes = block[PUSHES];
    struct zr_ps_waiter *waiters = block[WAITERS];
    for (unsigned t = 0; t < o->tables_count; t++) {
        const struct zr_ps_entry *entry = &store->setup->entries[t];
        struct zr_ps_slice *slice = &store->slices[t];
        *slice = (struct zr_ps_slice){.places = zr_ps_waiting(&o->timing, entry->pushes)};
        store->pushes[t] = entry->width > 0 ? 0 : entry->pushes;
        if (waiters) {
            slice->waiters = waiters;
            waiters += (size_t)o->workers * slice->places;
        }
        if (entry->width > 0)
            continue;
        slice->part = zr_ps_part_of(entry->table.elements, o->servers, t, store->server);
        slice->stride = (slice->part.count + STRIDE - 1) / STRIDE * STRIDE;
        slice->master = master;
        master += slice->stride;
        for (unsigned s = 0; s < slots_of(store->setup); s++, states += slice->stride)
            slice->states[s] = states;
        if (pushes) {
            slice->pushes = pushes;
            pushes += slice->stride * zr_precision_bytes(entry->table.precision) * o->workers * slice->places;
        }
        if (sums && entry->pushes > 1) {
            slice->sum = sums;
            sums += slice->stride;
        }
        if (pulled) {
            slice->pulled = pulled;
            pulled += slice->stride * o->workers;
        }
    }
}

zr_result zr_ps_store_init(struct zr_ps_store *store)
{
    const struct zr_ps_options *o = &store->setup->options;
    size_t bytes[BLOCKS];
    void *block[BLOCKS] = {NULL};
    zr_result result = ZR_OK;
    _Static_assert(BLOCKS <= sizeof store->blocks / sizeof *store->blocks, "a pointer for each block");
    measure(store->setup, store->server, bytes);
    for (unsigned i = 0; i < BLOCKS && result == ZR_OK; i++) {
        if (i <= LAST_KEPT && store->memory && store->memory->take && bytes[i] > 0) {
            result = store->memory->take(store->memory->state,
                                         &(struct zr_kept_request){blocks[i].name, blocks[i].tag, bytes[i]},
                                         &block[i]);
            continue;
        }
        result = zr_name_call(zr_take_block(store->arena, blocks[i].tag, bytes[i], 1, &block[i]), __func__,
                              blocks[i].name);
        store->blocks[i] = block[i];
        if (block[i])
            memset(block[i], 0, bytes[i]);
    }
    if (result != ZR_OK)
        return result;
    store->kept = block[RECORD];
    store->numbers = block[NUMBERS];
    store->messages = block[MESSAGES];
    store->row_areas = block[AREAS];
    store->log = block[LOG];
    store->slices = block[SLICES];
    store->pushes = block[COUNTS];
    store->scratch = block[SCRATCH];
    store->gathered = block[GATHERED];
    store->timetable = (struct zr_ps_timetable){.timing = o->timing,
                                                .successors = o->successors,
                                                .workers = o->workers,
                                                .tables = o->tables_count,
                                                .members = block[MEMBERS],
                                                .lanes = block[LANES],
                                                .applied = block[APPLIED],
                                                .pushes = block[COUNTS]};
    uint64_t layout = atomic_load(&store->kept->layout);
    if (layout != 0 && layout != store->setup->hash)
        return zr_fail(ZR_ERR_FORMAT, "the kept memory of server %u is of other tables or options; drop it",
                       store->server);
    place(store, block);
    return zr_ps_rows_open(store);
}

static zr_result copy(struct zr_ps_store *store, const struct zr_table_stream *stream,
                      zr_result (*copy_rows)(zr_table *table, const struct zr_table_stream *stream))
{
    size_t bytes[BLOCKS];
    zr_result result = ZR_OK;
    measure(store->setup, store->server, bytes);
    for (unsigned i = MEMBERS; i < LOG && result == ZR_OK; i++)
        if (i != MESSAGES && bytes[i] > 0)
            result = stream->move(stream->state, store->blocks[i], bytes[i]);
    for (unsigned t = 0; t < store->setup->options.tables_count && result == ZR_OK; t++)
        if (store->slices[t].rows)
            result = copy_rows(store->slices[t].rows, stream);
    return result;
}

zr_result zr_ps_store_send(struct zr_ps_store *store, const struct zr_table_stream *stream)
{
    return copy(store, stream, zr_table_send);
}

zr_result zr_ps_store_receive(struct zr_ps_store *store, const struct zr_table_stream *stream)
{
    return copy(store, stream, zr_table_receive);
}

void zr_ps_store_fini(struct zr_ps_store *store)
{
    zr_ps_rows_close(store);
    for (unsigned i = BLOCKS; i-- > 0;)
        zr_drop(store->arena, &store->blocks[i]);
}
