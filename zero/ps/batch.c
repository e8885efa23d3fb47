/* batch.c: cuts a batch into requests to servers, and puts their answers together. See worker.h. */
#include <string.h>

#include "alloc/base/error.h"
#include "zero/ps/worker.h"
#include "zero/table/zr_table.h"

struct round {
    struct zr_ps_worker *worker;
    const struct zr_ps_frame *frame;
    const struct zr_ps_batch *batch;
    unsigned item; /* next */
    size_t at;     /* elements or ids of it that earlier rounds had */
};

static bool reads(const struct round *round)
{
    return round->frame->kind == ZR_PS_PULL || round->frame->kind == ZR_PS_READ;
}

/* Bytes of an element of a dense table, or of a row without its id. */
static size_t number_bytes(const struct round *round, const struct zr_ps_entry *entry)
{
    bool wide = round->frame->kind == ZR_PS_FILL ||
                (round->frame->kind == ZR_PS_READ && round->frame->content > ZR_PS_PARAMETERS);
    return entry->width ? entry->width * sizeof(float)
           : wide       ? sizeof(float)
                        : zr_precision_bytes(entry->table.precision);
}

static size_t whole_count(const struct zr_ps_entry *entry, const struct zr_ps_item *item)
{
    return entry->width ? item->ids_count : item->count ? item->count : entry->table.elements - item->first;
}

/* Counts what a piece has for each server. */
static void count_piece(const struct round *round, unsigned piece)
{
    const struct zr_ps_setup *setup = &round->worker->setup;
    const struct zr_ps_piece *p = &round->worker->pieces[piece];
    const struct zr_ps_entry *entry = &setup->entries[p->item->table];
    const unsigned servers = setup->options.servers;
    size_t *counts = zr_ps_counts_of(round->worker, piece);
    memset(counts, 0, servers * sizeof *counts);
    if (entry->width > 0 && servers == 1)
        counts[0] = p->count;
    else if (entry->width > 0)
        for (size_t i = 0; i < p->count; i++)
            counts[zr_table_server(p->item->ids[p->first + i], servers)]++;
    for (unsigned s = 0; s < servers && entry->width == 0; s++) {
        struct zr_ps_part part = zr_ps_part_of(entry->table.elements, servers, p->item->table, s);
        size_t first = p->first > part.first ? p->first : part.first, end = p->first + p->count,
               part_end = part.first + part.count;
        end = end < part_end ? end : part_end;
        counts[s] = end > first ? end - first : 0;
    }
}

/* Whether the last piece fits into the messages, with the pieces before it; adds its bytes if so. */
static bool fits(const struct round *round, unsigned piece, size_t *sent, size_t *received)
{
    const struct zr_ps_setup *setup = &round->worker->setup;
    const struct zr_ps_entry *entry = &setup->entries[round->worker->pieces[piece].item->table];
    const size_t *counts = zr_ps_counts_of(round->worker, piece), bytes = number_bytes(round, entry),
                 asked = (reads(round) ? 0 : bytes) + (entry->width ? sizeof(uint64_t) : 0),
                 answered = reads(round) ? bytes : 0;
    for (unsigned s = 0; s < setup->options.servers; s++)
        if (sent[s] + sizeof(struct zr_ps_wire_item) + counts[s] * asked + 7 > setup->message_bytes ||
            received[s] + counts[s] * answered + 7 > setup->message_bytes)
            return false;
    for (unsigned s = 0; s < setup->options.servers; s++) {
        sent[s] += sizeof(struct zr_ps_wire_item) + zr_ps_padded(counts[s] * asked);
        received[s] += zr_ps_padded(counts[s] * answered);
    }
    return true;
}

/* The most elements or ids that always fit into one message. */
static size_t piece_max(const struct round *round, const struct zr_ps_entry *entry)
{
    size_t bytes = number_bytes(round, entry) + (entry->width ? sizeof(uint64_t) : 0);
    size_t max = (round->worker->setup.message_bytes - sizeof(struct zr_ps_wire_item) - 8) / bytes;
    return entry->width > 0 && entry->rows_max < max ? entry->rows_max : max;
}

/* Whether the round has a push of the table whose number the next one would get too. */
static bool is_pushed(const struct round *round, unsigned table)
{
    bool found = false;
    for (unsigned i = 0; i < round->worker->pieces_count; i++)
        found |= round->worker->pieces[i].item->table == table;
    return found && round->frame->kind == ZR_PS_PUSH && zr_ps_numbers(&round->worker->setup.options);
}

/* Chooses the pieces of the next round. */
static zr_result choose(struct round *round)
{
    struct zr_ps_worker *worker = round->worker;
    size_t sent[ZR_PS_SERVERS_MAX] = {0}, received[ZR_PS_SERVERS_MAX] = {0};
    worker->pieces_count = 0;
    while (round->item < round->batch->items_count && worker->pieces_count < ZR_PS_PIECES) {
        const struct zr_ps_item *item = &round->batch->items[round->item];
        const struct zr_ps_entry *entry = &worker->setup.entries[item->table];
        if (is_pushed(round, item->table))
            return ZR_OK;
        const size_t left = whole_count(entry, item) - round->at, max = piece_max(round, entry);
        const bool cut = round->frame->kind != ZR_PS_PUSH && left > max;
        worker->pieces[worker->pieces_count] =
            (struct zr_ps_piece){item, (entry->width ? 0 : item->first) + round->at, cut ? max : left};
        count_piece(round, worker->pieces_count);
        if ((left > max && !cut && entry->width > 0 && left > entry->rows_max) ||
            !fits(round, worker->pieces_count, sent, received)) {
            if (worker->pieces_count > 0)
                return ZR_OK;
            return zr_fail(ZR_ERR_INVALID,
                           "a push of table %s exceeds message_bytes (%zu) or batch_max; raise it",
                           entry->table.name, worker->setup.message_bytes);
        }
        worker->pieces_count++;
        round->at = cut ? round->at + max : 0;
        round->item += !cut;
    }
    return ZR_OK;
}

/* Where the data of a piece begins in the message to a server, and for rows where the next id and row go. */
struct cursor {
    char *data;
    uint64_t *ids;
    char *rows;
};

static void scatter_rows(const struct round *round, const struct zr_ps_piece *p, struct cursor *to,
                         size_t row)
{
    const unsigned servers = round->worker->setup.options.servers;
    const char *values = (const char *)p->item->values + p->first * row;
    for (size_t i = 0; i < p->count; i++) {
        const uint64_t id = p->item->ids[p->first + i];
        struct cursor *c = &to[servers > 1 ? zr_table_server(id, servers) : 0];
        *c->ids++ = id;
        if (reads(round))
            continue;
        memcpy(c->rows, values + i * row, row);
        c->rows += row;
    }
}

static void gather_rows(const struct round *round, const struct zr_ps_piece *p, struct cursor *from,
                        size_t row)
{
    const unsigned servers = round->worker->setup.options.servers;
    char *values = (char *)p->item->values + p->first * row;
    for (size_t i = 0; i < p->count; i++) {
        struct cursor *c = &from[servers > 1 ? zr_table_server(p->item->ids[p->first + i], servers) : 0];
        memcpy(values + i * row, c->rows, row);
        c->rows += row;
    }
}

/* First element of a dense piece at a server, which has some. */
static size_t first_at(const struct round *round, const struct zr_ps_piece *p, unsigned server)
{
    const struct zr_ps_setup *setup = &round->worker->setup;
    size_t part = zr_ps_part_of(setup->entries[p->item->table].table.elements, setup->options.servers,
                                p->item->table, server)
                      .first;
    return p->first > part ? p->first : part;
}

/* Writes the requests of the round's pieces. */
static void write_requests(struct round *round)
{
    struct zr_ps_worker *worker = round->worker;
    const unsigned servers = worker->setup.options.servers;
    struct cursor to[ZR_PS_SERVERS_MAX] = {{NULL, NULL, NULL}};
    for (unsigned s = 0; s < servers; s++) {
        struct zr_ps_frame *request = worker->peers[s].request;
        request->items_count = 0;
        for (unsigned i = 0; i < worker->pieces_count; i++)
            request->items_count += zr_ps_counts_of(worker, i)[s] > 0;
        worker->peers[s].asked = request->items_count > 0;
        to[s].data = (char *)(request + 1) + request->items_count * sizeof(struct zr_ps_wire_item);
        request->items_count = 0;
    }
    for (unsigned i = 0; i < worker->pieces_count; i++) {
        const struct zr_ps_piece *p = &worker->pieces[i];
        const struct zr_ps_entry *entry = &worker->setup.entries[p->item->table];
        const size_t *counts = zr_ps_counts_of(worker, i), number = number_bytes(round, entry);
        for (unsigned s = 0; s < servers; s++) {
            struct zr_ps_frame *request = worker->peers[s].request;
            struct zr_ps_wire_item item = {.table = p->item->table, .count = counts[s]};
            if (counts[s] == 0)
                continue;
            if (zr_ps_numbers(&worker->setup.options) && round->frame->kind == ZR_PS_PUSH)
                item.index = worker->pushed[p->item->table];
            item.first = entry->width ? 0 : first_at(round, p, s);
            item.bytes = counts[s] * ((reads(round) ? 0 : number) + (entry->width ? sizeof(uint64_t) : 0));
            memcpy((char *)(request + 1) + request->items_count++ * sizeof item, &item, sizeof item);
            if (entry->width == 0 && !reads(round))
                memcpy(to[s].data, (const char *)p->item->values + (item.first - p->item->first) * number,
                       item.bytes);
            to[s].ids = (uint64_t *)to[s].data;
            to[s].rows = to[s].data + counts[s] * sizeof(uint64_t);
            to[s].data += zr_ps_padded(item.bytes);
        }
        if (entry->width > 0)
            scatter_rows(round, p, to, number);
    }
    for (unsigned s = 0; s < servers; s++)
        worker->peers[s].request->bytes = (uint64_t)(to[s].data - (char *)(worker->peers[s].request + 1));
}

static zr_result read_answers(struct round *round)
{
    struct zr_ps_worker *worker = round->worker;
    const unsigned servers = worker->setup.options.servers;
    struct cursor from[ZR_PS_SERVERS_MAX] = {{NULL, NULL, NULL}};
    for (unsigned s = 0; s < servers; s++)
        from[s].data = worker->peers[s].answer;
    for (unsigned i = 0; i < worker->pieces_count; i++) {
        const struct zr_ps_piece *p = &worker->pieces[i];
        const struct zr_ps_entry *entry = &worker->setup.entries[p->item->table];
        const size_t *counts = zr_ps_counts_of(worker, i), number = number_bytes(round, entry);
        for (unsigned s = 0; s < servers; s++) {
            const size_t bytes = counts[s] * number;
            const struct zr_ps_peer *peer = &worker->peers[s];
            if (bytes > 0 && zr_ps_padded(bytes) > peer->reply.bytes - (size_t)(from[s].data - peer->answer))
                return zr_fail(ZR_ERR_PEER, "server %u answers with too few bytes", s);
            from[s].rows = from[s].data;
            if (entry->width == 0 && bytes > 0)
                memcpy((char *)p->item->values + (first_at(round, p, s) - p->item->first) * number,
                       from[s].data, bytes);
            from[s].data += zr_ps_padded(bytes);
        }
        if (entry->width > 0)
            gather_rows(round, p, from, number);
    }
    return ZR_OK;
}

zr_result zr_ps_batch_exchange(struct zr_ps_worker *worker, const struct zr_ps_frame *frame,
                               const struct zr_ps_batch *batch)
{
    struct round round = {.worker = worker, .frame = frame, .batch = batch};
    zr_result result = ZR_OK;
    while (result == ZR_OK && round.item < batch->items_count) {
        result = choose(&round);
        if (result != ZR_OK)
            break;
        write_requests(&round);
        result = zr_ps_peers_exchange(worker, frame);
        if (result == ZR_OK && reads(&round))
            result = read_answers(&round);
        for (unsigned i = 0; i < worker->pieces_count && result == ZR_OK && frame->kind == ZR_PS_PUSH; i++)
            worker->pushed[worker->pieces[i].item->table]++;
    }
    return result;
}
