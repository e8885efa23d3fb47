/* worker.c: the calls of a worker. See worker.h. */
#include "zero/ps/worker.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/hash.h"
#include "alloc/base/system/os.h"
#include "zero/comm/take.h"

#define TIMEOUT_NS UINT64_C(60000000000)

/* ---- Creation ------------------------------------------------------------------------------------------ */

static zr_result check(const struct zr_ps_worker_options *options)
{
    if (!options || !options->arena || !options->addresses)
        return zr_fail(ZR_ERR_INVALID, "a worker requires an arena and the addresses of servers");
    if (options->struct_bytes != 0 && options->struct_bytes != sizeof *options)
        return zr_fail(ZR_ERR_INVALID,
                       "struct zr_ps_worker_options of another release: %zu bytes instead of %zu",
                       options->struct_bytes, sizeof *options);
    if (options->worker >= options->common.workers && options->worker != ZR_PS_OBSERVER)
        return zr_fail(ZR_ERR_INVALID, "worker %u of %u", options->worker, options->common.workers);
    return ZR_OK;
}

static zr_result copy_address(char out[ZR_PS_ADDRESS_BYTES], const char *text)
{
    struct zr_ps_address address;
    if (!text || strlen(text) >= ZR_PS_ADDRESS_BYTES)
        return zr_fail(ZR_ERR_INVALID, "an address of a parameter server is NULL or too long");
    snprintf(out, ZR_PS_ADDRESS_BYTES, "%s", text);
    return zr_ps_address_read(&address, text);
}

static zr_result allocate(struct zr_ps_worker *worker)
{
    const struct zr_ps_options *o = &worker->setup.options;
    const size_t message = sizeof(struct zr_ps_frame) + worker->setup.message_bytes;
    zr_result result =
        zr_take(worker->arena, ZR_TAG_OTHER, o->servers, sizeof *worker->peers, (void **)&worker->peers);
    if (result == ZR_OK)
        result = zr_take(worker->arena, ZR_TAG_OTHER, 2 * (size_t)o->tables_count, sizeof *worker->pushed,
                         (void **)&worker->pushed);
    if (result == ZR_OK)
        result = zr_take(worker->arena, ZR_TAG_OTHER, (size_t)ZR_PS_PIECES * o->servers,
                         sizeof *worker->counts, (void **)&worker->counts);
    if (result == ZR_OK)
        result =
            zr_take(worker->arena, ZR_TAG_COMM, 2 * (size_t)o->servers, message, (void **)&worker->buffers);
    if (result != ZR_OK)
        return result;
    memset(worker->peers, 0, o->servers * sizeof *worker->peers);
    memset(worker->pushed, 0, 2 * (size_t)o->tables_count * sizeof *worker->pushed);
    for (unsigned s = 0; s < o->servers; s++) {
        struct zr_ps_peer *peer = &worker->peers[s];
        peer->link.fd = -1;
        peer->request = (struct zr_ps_frame *)(worker->buffers + 2 * s * message);
        peer->answer = worker->buffers + (2 * s + 1) * message;
    }
    return ZR_OK;
}

/* Asks all servers, without items. */
static zr_result ask_all(struct zr_ps_worker *worker, const struct zr_ps_frame *frame)
{
    for (unsigned s = 0; s < worker->setup.options.servers; s++) {
        worker->peers[s].asked = !worker->peers[s].ended;
        worker->peers[s].request->bytes = 0;
        worker->peers[s].request->items_count = 0;
    }
    return zr_ps_peers_exchange(worker, frame);
}

/* A predecessor may have died while it ended a step: the pushes of the step are on all servers. */
static zr_result catch_up(struct zr_ps_worker *worker)
{
    zr_result result = ZR_OK;
    uint64_t least = UINT64_MAX;
    for (unsigned s = 0; s < worker->setup.options.servers; s++) {
        if (worker->peers[s].ended)
            continue;
        worker->clock = worker->peers[s].clock > worker->clock ? worker->peers[s].clock : worker->clock;
        least = worker->peers[s].clock < least ? worker->peers[s].clock : least;
    }
    for (; least < worker->clock && result == ZR_OK; least++)
        result = ask_all(worker, &(struct zr_ps_frame){.kind = ZR_PS_END_STEP, .clock = least});
    return result;
}

zr_result zr_ps_worker_create(zr_ps_worker **out, const struct zr_ps_worker_options *options)
{
    zr_ps_worker *worker = NULL;
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "%s: out is NULL", __func__);
    *out = NULL;
    zr_result result = check(options);
    if (result == ZR_OK)
        result = zr_take(options->arena, ZR_TAG_OTHER, 1, sizeof *worker, (void **)&worker);
    if (result != ZR_OK)
        return result;
    *worker = (zr_ps_worker){.arena = options->arena,
                             .number = options->worker,
                             .leaves = options->leaves,
                             .timeout_ns = options->timeout_ns ? options->timeout_ns : TIMEOUT_NS};
    result = zr_ps_setup_init(&worker->setup, &options->common, options->arena);
    if (result == ZR_OK)
        result = allocate(worker);
    const uint64_t deadline_ns = zr_os_now_ns() + worker->timeout_ns;
    for (unsigned s = 0; s < options->common.servers && result == ZR_OK; s++) {
        struct zr_ps_peer *peer = &worker->peers[s];
        result = copy_address(peer->addresses[0], options->addresses[s]);
        if (result == ZR_OK && options->replicas && options->replicas[s])
            result = copy_address(peer->addresses[1], options->replicas[s]);
        if (result == ZR_OK)
            result = zr_ps_peer_open(worker, peer, deadline_ns);
        peer->sequence = peer->reply.number;
        peer->clock = peer->reply.clock;
    }
    if (result == ZR_OK)
        result = catch_up(worker);
    if (result == ZR_OK)
        *out = worker;
    else
        zr_ps_worker_destroy(worker);
    return result;
}

void zr_ps_worker_destroy(zr_ps_worker *worker)
{
    if (!worker)
        return;
    zr_arena *arena = worker->arena;
    for (unsigned s = 0; worker->peers && s < worker->setup.options.servers; s++)
        zr_ps_link_close(&worker->peers[s].link);
    zr_drop(arena, &worker->buffers);
    zr_drop(arena, &worker->counts);
    zr_drop(arena, &worker->pushed);
    zr_drop(arena, &worker->peers);
    zr_ps_setup_fini(&worker->setup);
    zr_drop(arena, &worker);
}

/* ---- Batches ------------------------------------------------------------------------------------------- */

static zr_result refuse_item(unsigned index, const char *why)
{
    return zr_fail(ZR_ERR_INVALID, "item %u of a batch: %s", index, why);
}

static zr_result check_item(const struct zr_ps_worker *worker, const struct zr_ps_batch *batch, unsigned i,
                            enum zr_ps_kind kind)
{
    const struct zr_ps_item *item = &batch->items[i];
    if (item->table >= worker->setup.options.tables_count)
        return refuse_item(i, "no table has this number");
    const struct zr_ps_entry *entry = &worker->setup.entries[item->table];
    const size_t elements = entry->table.elements;
    if ((entry->width > 0) != (item->ids != NULL))
        return refuse_item(i, "ids are for sparse tables only, which require them");
    if (!item->values)
        return refuse_item(i, "`values` is NULL");
    if (entry->width > 0 && (kind == ZR_PS_FILL || kind == ZR_PS_READ))
        return refuse_item(i, "the table is sparse");
    if (entry->width == 0 && (item->first >= elements || item->count > elements - item->first))
        return refuse_item(i, "the range is not in the table");
    if (kind != ZR_PS_PUSH)
        return ZR_OK;
    if (entry->width == 0 && (item->first != 0 || (item->count != 0 && item->count != elements)))
        return refuse_item(i, "a push has the whole table");
    unsigned times = worker->pushed[item->table];
    for (unsigned before = 0; before < i; before++)
        times += batch->items[before].table == item->table;
    return zr_ps_numbers(&worker->setup.options) && times >= entry->pushes
               ? refuse_item(i, "the table has had all its pushes of the step")
               : ZR_OK;
}

/* Of a valid push; never 0. */
static uint64_t digest_of(const struct zr_ps_worker *worker, const struct zr_ps_frame *frame,
                          const struct zr_ps_batch *batch)
{
    const float floats[] = {frame->rate, frame->scale};
    uint64_t hash = zr_hash_more(zr_hash_next(ZR_HASH_START, frame->clock), floats, sizeof floats);
    for (unsigned i = 0; i < batch->items_count; i++) {
        const struct zr_ps_item *item = &batch->items[i];
        const struct zr_ps_entry *entry = &worker->setup.entries[item->table];
        hash = zr_hash_next(zr_hash_next(hash, item->table), item->ids_count);
        hash = zr_hash_more(hash, item->ids, item->ids ? item->ids_count * sizeof *item->ids : 0);
        hash = zr_hash_more(hash, item->values,
                            item->ids ? item->ids_count * entry->width * sizeof(float)
                                      : entry->table.elements * zr_precision_bytes(entry->table.precision));
    }
    return hash | 1;
}

/* A push that repeats one without an answer has its sequence numbers. */
static zr_result exchange_push(struct zr_ps_worker *worker, const struct zr_ps_frame *frame,
                               const struct zr_ps_batch *batch)
{
    const size_t tables = worker->setup.options.tables_count, bytes = tables * sizeof *worker->pushed;
    const bool repeats = worker->unanswered != 0 && digest_of(worker, frame, batch) == worker->unanswered;
    for (unsigned s = 0; s < worker->setup.options.servers; s++) {
        struct zr_ps_peer *peer = &worker->peers[s];
        if (repeats)
            peer->sequence = peer->first;
        peer->first = peer->sequence;
    }
    memcpy(worker->pushed + tables, worker->pushed, bytes);
    zr_result result = zr_ps_batch_exchange(worker, frame, batch);
    worker->unanswered = 0;
    if (result == ZR_ERR_TIMEOUT) {
        memcpy(worker->pushed, worker->pushed + tables, bytes);
        worker->unanswered = digest_of(worker, frame, batch);
    }
    return result;
}

/* Checks a batch and sends it. */
static zr_result send_batch(struct zr_ps_worker *worker, const struct zr_ps_frame *frame,
                            const struct zr_ps_batch *batch)
{
    zr_result result = ZR_OK;
    if (!batch || (batch->items_count > 0 && !batch->items))
        return zr_fail(ZR_ERR_INVALID, "the batch or its items are NULL");
    for (unsigned i = 0; i < batch->items_count && result == ZR_OK; i++)
        result = check_item(worker, batch, i, (enum zr_ps_kind)frame->kind);
    if (result != ZR_OK)
        return result;
    return frame->kind == ZR_PS_PUSH ? exchange_push(worker, frame, batch)
                                     : zr_ps_batch_exchange(worker, frame, batch);
}

static zr_result check_worker(const struct zr_ps_worker *worker, const void *argument, bool steps)
{
    if (!worker || !argument)
        return zr_fail(ZR_ERR_INVALID, "the worker or an argument is NULL");
    return steps && worker->number == ZR_PS_OBSERVER
               ? zr_fail(ZR_ERR_INVALID, "an observer neither pushes nor ends steps")
               : ZR_OK;
}

zr_result zr_ps_pull(zr_ps_worker *worker, const struct zr_ps_batch *batch)
{
    zr_result result = check_worker(worker, batch, false);
    return result == ZR_OK
               ? send_batch(worker, &(struct zr_ps_frame){.kind = ZR_PS_PULL, .clock = worker->clock}, batch)
               : result;
}

static zr_result check_content(const struct zr_ps_worker *worker, unsigned content)
{
    return content >= ZR_PS_SLOT + worker->setup.optimizer->slots_count
               ? zr_fail(ZR_ERR_INVALID, "tables have no content %u", content)
               : ZR_OK;
}

zr_result zr_ps_read(zr_ps_worker *worker, unsigned content, const struct zr_ps_batch *batch)
{
    zr_result result = check_worker(worker, batch, false);
    if (result == ZR_OK)
        result = check_content(worker, content);
    return result == ZR_OK
               ? send_batch(worker, &(struct zr_ps_frame){.kind = ZR_PS_READ, .content = content}, batch)
               : result;
}

zr_result zr_ps_push(zr_ps_worker *worker, const struct zr_ps_push *push)
{
    zr_result result = check_worker(worker, push, true);
    if (result == ZR_OK && (!(push->rate >= 0) || !isfinite(push->rate) || !isfinite(push->gradient_scale)))
        result = zr_fail(ZR_ERR_INVALID, "a push has a finite rate from 0 and a finite scale");
    return result == ZR_OK ? send_batch(worker,
                                        &(struct zr_ps_frame){
                                            .kind = ZR_PS_PUSH,
                                            .clock = worker->clock,
                                            .rate = push->rate,
                                            .scale = push->gradient_scale != 0 ? push->gradient_scale : 1},
                                        &push->batch)
                           : result;
}

/* Declares tables written: an item without elements to each server. */
static zr_result end_fill(struct zr_ps_worker *worker, const struct zr_ps_filling *filling)
{
    const unsigned servers = worker->setup.options.servers, count = filling->batch.items_count;
    const unsigned max = (unsigned)(worker->setup.message_bytes / sizeof(struct zr_ps_wire_item));
    zr_result result = ZR_OK;
    for (unsigned from = 0, n; from < count && result == ZR_OK; from += n) {
        n = count - from < max ? count - from : max;
        for (unsigned s = 0; s < servers; s++) {
            struct zr_ps_frame *request = worker->peers[s].request;
            for (unsigned i = 0; i < n; i++) {
                unsigned table = filling->batch.items[from + i].table;
                struct zr_ps_wire_item item = {.table = table};
                item.first =
                    zr_ps_part_of(worker->setup.entries[table].table.elements, servers, table, s).first;
                memcpy((char *)(request + 1) + i * sizeof item, &item, sizeof item);
            }
            request->items_count = n;
            request->bytes = n * sizeof(struct zr_ps_wire_item);
            worker->peers[s].asked = true;
        }
        result = zr_ps_peers_exchange(worker, &(struct zr_ps_frame){.kind = ZR_PS_FILL,
                                                                    .content = filling->content,
                                                                    .done = 1,
                                                                    .number = filling->updates});
    }
    return result;
}

zr_result zr_ps_fill(zr_ps_worker *worker, const struct zr_ps_filling *filling)
{
    zr_result result = check_worker(worker, filling, false);
    if (result == ZR_OK)
        result = check_content(worker, filling->content);
    if (result == ZR_OK) {
        worker->unanswered = 0;
        result = send_batch(worker, &(struct zr_ps_frame){.kind = ZR_PS_FILL, .content = filling->content},
                            &filling->batch);
    }
    return result == ZR_OK && filling->done ? end_fill(worker, filling) : result;
}

/* ---- Steps --------------------------------------------------------------------------------------------- */

zr_result zr_ps_end_step(zr_ps_worker *worker)
{
    zr_result result = check_worker(worker, worker, true);
    if (result == ZR_OK) {
        worker->unanswered = 0;
        result = ask_all(worker, &(struct zr_ps_frame){.kind = ZR_PS_END_STEP, .clock = worker->clock});
    }
    if (result == ZR_OK) {
        worker->clock++;
        memset(worker->pushed, 0, worker->setup.options.tables_count * sizeof *worker->pushed);
    }
    return result;
}

uint64_t zr_ps_worker_clock(const zr_ps_worker *worker)
{
    return worker ? worker->clock : 0;
}

zr_result zr_ps_leave(zr_ps_worker *worker, unsigned number)
{
    zr_result result = check_worker(worker, worker, false);
    if (result == ZR_OK && (number >= worker->setup.options.workers ||
                            (worker->number != ZR_PS_OBSERVER && worker->number != number)))
        result = zr_fail(ZR_ERR_INVALID, "worker %u cannot end worker %u; an observer can", worker->number,
                         number);
    if (result == ZR_OK)
        result = ask_all(worker, &(struct zr_ps_frame){.kind = ZR_PS_LEAVE, .number = number});
    for (unsigned s = 0; result == ZR_OK && worker->number == number && s < worker->setup.options.servers;
         s++) {
        struct zr_ps_frame bye = {.magic = ZR_PS_MAGIC, .kind = ZR_PS_BYE, .worker = number};
        struct iovec part = {&bye, sizeof bye};
        zr_ps_message_point();
        if (zr_ps_link_send(&worker->peers[s].link, &part, 1, zr_os_now_ns() + worker->timeout_ns) == ZR_OK)
            zr_ps_link_close(&worker->peers[s].link);
    }
    return result;
}

/* ---- Statistics ---------------------------------------------------------------------------------------- */

void zr_ps_worker_counters(const zr_ps_worker *worker, struct zr_ps_counters *out)
{
    if (!out)
        return;
    *out = worker ? worker->counters : (struct zr_ps_counters){0};
    for (unsigned s = 0; worker && s < worker->setup.options.servers; s++) {
        out->sent_bytes += worker->peers[s].link.sent_bytes;
        out->received_bytes += worker->peers[s].link.received_bytes;
    }
}

zr_result zr_ps_report(zr_ps_worker *worker, struct zr_ps_state *out)
{
    zr_result result = check_worker(worker, out, false);
    if (result == ZR_OK)
        result = ask_all(worker, &(struct zr_ps_frame){.kind = ZR_PS_REPORT});
    if (result != ZR_OK)
        return result;
    *out = (struct zr_ps_state){.clock_min = UINT64_MAX};
    for (unsigned s = 0; s < worker->setup.options.servers; s++) {
        struct zr_ps_state one;
        if (worker->peers[s].reply.bytes != sizeof one)
            return zr_fail(ZR_ERR_PEER, "server %u reports with too few bytes", s);
        memcpy(&one, worker->peers[s].answer, sizeof one);
        out->pushes += one.pushes;
        out->pulls += one.pulls;
        out->repeated += one.repeated;
        out->held += one.held;
        out->updates += one.updates;
        out->received_bytes += one.received_bytes;
        out->sent_bytes += one.sent_bytes;
        out->replicas += one.replicas;
        out->lost_replicas += one.lost_replicas;
        out->joined_replicas += one.joined_replicas;
        out->joined_bytes += one.joined_bytes;
        out->paused_ns += one.paused_ns;
        out->clock_min = one.clock_min < out->clock_min ? one.clock_min : out->clock_min;
        out->clock_max = one.clock_max > out->clock_max ? one.clock_max : out->clock_max;
        for (unsigned bin = 0; bin < ZR_PS_STALE_BINS; bin++)
            out->staleness[bin] += one.staleness[bin];
    }
    return ZR_OK;
}

zr_result zr_ps_version(zr_ps_worker *worker, unsigned table, uint64_t *out)
{
    zr_result result = check_worker(worker, out, false);
    if (result == ZR_OK && table >= worker->setup.options.tables_count)
        result = zr_fail(ZR_ERR_INVALID, "there is no table %u", table);
    if (result == ZR_OK)
        result = ask_all(worker, &(struct zr_ps_frame){.kind = ZR_PS_VERSION_OF, .number = table});
    if (result != ZR_OK)
        return result;
    *out = UINT64_MAX;
    for (unsigned s = 0; s < worker->setup.options.servers; s++)
        if (worker->peers[s].reply.number < *out)
            *out = worker->peers[s].reply.number;
    return ZR_OK;
}

/* ---- Geo ----------------------------------------------------------------------------------------------- */

void zr_ps_difference(const struct zr_ps_exchange *exchange, float *difference)
{
    for (size_t i = 0; i < exchange->n; i++) {
        difference[i] = (exchange->own[i] - exchange->old[i]) / (float)exchange->workers;
        exchange->old[i] += difference[i];
    }
}

void zr_ps_receive(const struct zr_ps_exchange *exchange, const float *server)
{
    for (size_t i = 0; i < exchange->n; i++) {
        exchange->own[i] += server[i] - exchange->old[i];
        exchange->old[i] = server[i];
    }
}
