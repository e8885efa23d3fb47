/* clients.c: see clients.h. Uses alloc/service/client/query.c and file.c. */
#include "defrag/tool/live/clients.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/system/file.h"

#define PATIENCE_NS UINT64_C(500000000)
#define MIN_BYTES   ((uint64_t)1 << 20) /* skips launchers, which hold almost nothing */

static void add(void *state, const struct zr_service_message *client)
{
    struct zr_clients *clients = state;
    unsigned at = clients->count;
    clients->idle_bytes += client->flags & ZR_SERVICE_IDLE_KNOWN ? client->idle_bytes : 0;
    if (client->held_bytes < MIN_BYTES && client->plan_peak_bytes == 0)
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

/* Parses "service-KEY.sock". */
static bool read_key(const char *name, char key[ZR_SERVICE_KEY_BYTES])
{
    static const char before[] = "service-", after[] = ".sock";
    size_t length = strlen(name), around = sizeof before - 1 + sizeof after - 1;
    if (length <= around || length - around >= ZR_SERVICE_KEY_BYTES ||
        strncmp(name, before, sizeof before - 1) != 0 ||
        strcmp(name + length - (sizeof after - 1), after) != 0)
        return false;
    snprintf(key, ZR_SERVICE_KEY_BYTES, "%.*s", (int)(length - around), name + sizeof before - 1);
    return strcmp(key, ZR_SERVICE_HOST) != 0;
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(a, b);
}

unsigned zr_services_keys(char out[ZR_SERVICES_SHOWN][ZR_SERVICE_KEY_BYTES])
{
    char path[ZR_FOLDER_BYTES];
    struct zr_folder folder;
    struct zr_folder_entry entry;
    unsigned count = 1;
    strcpy(out[0], ZR_SERVICE_HOST);
    if (zr_folder_runtime(path, false) != ZR_OK || zr_folder_open(&folder, path) != ZR_OK)
        return count;
    while (count < ZR_SERVICES_SHOWN && zr_folder_next(&folder, &entry) == ZR_OK && entry.name)
        count += read_key(entry.name, out[count]);
    zr_folder_close(&folder);
    qsort(out[1], count - 1, sizeof out[1], compare_keys);
    return count;
}

static void read_one(struct zr_clients *out, enum zr_service_fresh fresh)
{
    out->count = 0;
    out->idle_bytes = 0;
    out->served =
        zr_service_query(out->key, &(struct zr_service_question){.fresh = fresh, .patience_ns = PATIENCE_NS},
                         add, out, &out->totals) == ZR_OK;
}

void zr_services_read(struct zr_services *out, enum zr_service_fresh fresh)
{
    char keys[ZR_SERVICES_SHOWN][ZR_SERVICE_KEY_BYTES];
    unsigned count = zr_services_keys(keys);
    out->count = 0;
    for (unsigned i = 0; i < count; i++) {
        struct zr_clients *clients = &out->each[out->count];
        memcpy(clients->key, keys[i], sizeof clients->key);
        read_one(clients, fresh);
        out->count += clients->served || i == 0;
    }
}

const struct zr_service_message *zr_clients_find(const struct zr_clients *clients, long pid)
{
    for (unsigned i = 0; clients->served && i < clients->count; i++)
        if (clients->rows[i].pid == pid && !(clients->rows[i].flags & ZR_SERVICE_SEGMENT))
            return &clients->rows[i];
    return NULL;
}

const char *zr_clients_words(char out[ZR_CLIENTS_LINE_ROOM], const struct zr_clients *clients)
{
    char number[3][ZR_TOOL_NUMBER_ROOM];
    bool host = strcmp(clients->key, ZR_SERVICE_HOST) == 0;
    snprintf(out, ZR_CLIENTS_LINE_ROOM, "zrd%s%.*s lends %s of %s to %" PRIu64 " process%s; %s idle",
             host ? "" : " of device ", host ? 0 : 8, clients->key,
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
                  ", \"plan_peak_bytes\": %" PRIu64 ", \"in_turn\": %s, \"turn\": %" PRIu64
                  ", \"claim_bytes\": %" PRIu64 ", \"shares\": %" PRIu32 ", \"messages\": %" PRIu64
                  ", \"listens\": %s, \"left\": %s}",
                  client->held_bytes, client->resident_bytes, client->peak_bytes, client->bytes,
                  client->hard_bytes, client->soft_bytes, client->idle_bytes, client->reclaim_ns,
                  client->plan_base_bytes, client->plan_peak_bytes,
                  client->flags & ZR_SERVICE_IN_SLICE ? "true" : "false", client->slice,
                  client->reservation_bytes, client->shares, client->count,
                  client->flags & ZR_SERVICE_LISTENS ? "true" : "false",
                  client->flags & ZR_SERVICE_LEFT ? "true" : "false");
}

static void json_one(struct zr_text *text, const struct zr_clients *clients)
{
    zr_text_print(text,
                  "\"capacity_bytes\": %" PRIu64 ", \"lent_bytes\": %" PRIu64 ", \"idle_bytes\": %" PRIu64
                  ", \"clients\": [",
                  clients->totals.bytes, clients->totals.held_bytes, clients->idle_bytes);
    for (unsigned i = 0; i < clients->count; i++) {
        zr_text_print(text, i ? ", " : "");
        zr_client_json(text, &clients->rows[i]);
    }
    zr_text_print(text, "]");
}

void zr_services_json(struct zr_text *text, const struct zr_services *services)
{
    static const struct zr_clients nobody;
    const struct zr_clients *host = &services->each[0];
    if (services->count == 0 || (services->count == 1 && !host->served)) {
        zr_text_print(text, "null");
        return;
    }
    zr_text_print(text, "{");
    json_one(text, host->served ? host : &nobody);
    zr_text_print(text, ", \"devices\": [");
    for (unsigned i = 1; i < services->count; i++) {
        zr_text_print(text, "%s{\"device\": \"%s\", ", i > 1 ? ", " : "", services->each[i].key);
        json_one(text, &services->each[i]);
        zr_text_print(text, "}");
    }
    zr_text_print(text, "]}");
}
