/* clients.c: see clients.h. Stands on alloc/backend/service_query.c. */
#include "defrag/tool/live/clients.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define PATIENCE_NS UINT64_C(500000000)
#define LEAST_BYTES ((uint64_t)1 << 20) /* launchers hold next to nothing */

static void add(void *state, const struct zr_service_message *client)
{
    struct zr_clients *clients = state;
    unsigned at = clients->count;
    clients->idle_bytes += client->flags & ZR_SERVICE_IDLE_KNOWN ? client->idle_bytes : 0;
    if (client->held_bytes < LEAST_BYTES && client->plan_peak_bytes == 0)
        return;
    while (at > 0 && clients->rows[at - 1].held_bytes < client->held_bytes)
        at--;
    if (at >= ZR_CLIENTS_SHOWN)
        return;
    unsigned last = clients->count < ZR_CLIENTS_SHOWN ? clients->count : ZR_CLIENTS_SHOWN - 1;
    memmove(&clients->rows[at + 1], &clients->rows[at], (last - at) * sizeof *clients->rows);
    clients->rows[at] = *client;
    clients->count = last + 1;
}

void zr_clients_read(struct zr_clients *out, enum zr_service_fresh fresh)
{
    out->count = 0;
    out->idle_bytes = 0;
    out->served = zr_service_query(ZR_SERVICE_HOST, &(struct zr_service_question){.fresh = fresh, .patience_ns = PATIENCE_NS},
                                   add, out, &out->totals) == ZR_OK;
}

const struct zr_service_message *zr_clients_find(const struct zr_clients *clients, long pid)
{
    for (unsigned i = 0; clients->served && i < clients->count; i++)
        if (clients->rows[i].pid == pid)
            return &clients->rows[i];
    return NULL;
}

const char *zr_clients_words(char out[ZR_CLIENTS_LINE_ROOM], const struct zr_clients *clients)
{
    char number[3][ZR_TOOL_NUMBER_ROOM];
    snprintf(out, ZR_CLIENTS_LINE_ROOM, "zrd lends %s of %s to %" PRIu64 " process%s; %s idle",
             zr_tool_bytes(number[0], clients->totals.held_bytes),
             zr_tool_bytes(number[1], clients->totals.bytes), clients->totals.count,
             clients->totals.count == 1 ? "" : "es", zr_tool_bytes(number[2], clients->idle_bytes));
    return out;
}

const char *zr_client_words(char out[ZR_CLIENTS_LINE_ROOM], const struct zr_service_message *client)
{
    char number[3][ZR_TOOL_NUMBER_ROOM], plan[64] = "", within[64] = "", idle[96] = "";
    if (client->reclaim_ns > 0)
        snprintf(within, sizeof within, ", reclaimable in %.0f ms", (double)client->reclaim_ns / 1e6);
    if (client->flags & ZR_SERVICE_IDLE_KNOWN && client->idle_bytes > 0)
        snprintf(idle, sizeof idle, ", %s idle%s", zr_tool_bytes(number[1], client->idle_bytes), within);
    if (client->plan_peak_bytes > 0)
        snprintf(plan, sizeof plan, ", %s planned", zr_tool_bytes(number[2], client->plan_peak_bytes));
    snprintf(out, ZR_CLIENTS_LINE_ROOM, "%s held by pid %" PRId32 " (%s)%s%s",
             zr_tool_bytes(number[0], client->held_bytes), client->pid, client->program, plan, idle);
    return out;
}

void zr_client_json(struct zr_text *text, const struct zr_service_message *client)
{
    zr_text_print(text, "{\"pid\": %" PRId32 ", ", client->pid);
    zr_tool_json_words(text, "program", client->program);
    zr_text_print(text, ", ");
    zr_tool_json_words(text, "group", client->group);
    zr_text_print(text,
                  ", \"held_bytes\": %" PRIu64 ", \"resident_bytes\": %" PRIu64 ", \"peak_bytes\": %" PRIu64
                  ", \"waiting_bytes\": %" PRIu64 ", \"hard_bytes\": %" PRIu64 ", \"soft_bytes\": %" PRIu64
                  ", \"idle_bytes\": %" PRIu64 ", \"reclaim_ns\": %" PRIu64 ", \"plan_base_bytes\": %" PRIu64
                  ", \"plan_peak_bytes\": %" PRIu64 ", \"in_turn\": %s, \"shares\": %" PRIu32
                  ", \"messages\": %" PRIu64 ", \"listens\": %s, \"left\": %s}",
                  client->held_bytes, client->resident_bytes, client->peak_bytes, client->bytes,
                  client->hard_bytes, client->soft_bytes, client->idle_bytes, client->reclaim_ns,
                  client->plan_base_bytes, client->plan_peak_bytes,
                  client->flags & ZR_SERVICE_IN_TURN ? "true" : "false", client->shares, client->count,
                  client->flags & ZR_SERVICE_LISTENS ? "true" : "false",
                  client->flags & ZR_SERVICE_LEFT ? "true" : "false");
}

void zr_clients_json(struct zr_text *text, const struct zr_clients *clients)
{
    if (!clients->served) {
        zr_text_print(text, "null");
        return;
    }
    zr_text_print(text,
                  "{\"capacity_bytes\": %" PRIu64 ", \"lent_bytes\": %" PRIu64 ", \"idle_bytes\": %" PRIu64
                  ", \"clients\": [",
                  clients->totals.bytes, clients->totals.held_bytes, clients->idle_bytes);
    for (unsigned i = 0; i < clients->count; i++) {
        zr_text_print(text, i ? ", " : "");
        zr_client_json(text, &clients->rows[i]);
    }
    zr_text_print(text, "]}");
}
