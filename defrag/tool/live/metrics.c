/* metrics.c: see top_model.h. Uses top_model.c and live.c. */
#include "defrag/tool/live/top_model.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

/* Names come from other processes: unprintable bytes become question marks. */
static void put_label(struct zr_text *text, const char *name, const char *value)
{
    zr_text_print(text, "%s=\"", name);
    for (; *value; value++) {
        if (*value == '"' || *value == '\\')
            zr_text_put(text, "\\", 1);
        zr_text_put(text, *value >= ' ' && *value <= '~' ? value : "?", 1);
    }
    zr_text_put(text, "\"", 1);
}

static void put_process(struct zr_text *text, const struct zr_top_process *process)
{
    zr_text_print(text, "{pid=\"%ld\",", process->pid);
    put_label(text, "program", process->live.shown.program);
}

static void put_arena(struct zr_text *text, const struct zr_top_process *process,
                      const struct zr_published_arena *arena)
{
    put_process(text, process);
    zr_text_print(text, ",arena=\"%" PRIu32 "\",", arena->number);
    put_label(text, "name", arena->name);
}

static void put_head(struct zr_text *text, const char *name, const char *unit, const char *help, bool counts)
{
    zr_text_print(text, "# HELP %s%s %s\n# TYPE %s%s %s\n", name, unit, help, name, unit,
                  counts ? "counter" : "gauge");
}

/* Prints one figure of all arenas. A counter's name ends in _total by Prometheus's convention. */
static void put_figure(struct zr_text *text, const struct zr_top *top, unsigned index)
{
    struct zr_tool_figure figures[ZR_TOOL_FIGURES];
    char name[64];
    zr_tool_arena_figures(figures, &(const struct zr_published_arena){0});
    const char *end = strstr(figures[index].name, "_count");
    bool counts = end && strcmp(figures[index].name, "blocks_count") != 0;
    struct zr_text words;
    zr_text_start(&words, NULL, name, sizeof name);
    zr_text_print(&words, "zr_arena_%.*s", (int)(end ? end - figures[index].name : 63), figures[index].name);
    put_head(text, name, counts ? "_total" : "", "See struct zr_arena_stats in alloc/zr.h.", counts);
    for (unsigned i = 0; i < top->processes_count; i++) {
        const struct zr_top_process *process = &top->processes[i];
        for (unsigned a = 0; process->state != ZR_TOP_GONE && a < process->live.arenas_count; a++) {
            zr_tool_arena_figures(figures, &process->live.shown.arenas[a]);
            zr_text_print(text, "%s%s", name, counts ? "_total" : "");
            put_arena(text, process, &process->live.shown.arenas[a]);
            zr_text_print(text, "} %" PRIu64 "\n", figures[index].value);
        }
    }
}

static void put_tags(struct zr_text *text, const struct zr_top *top, const char *name, const char *help,
                     bool peaks)
{
    put_head(text, name, "", help, false);
    for (unsigned i = 0; i < top->processes_count; i++) {
        const struct zr_top_process *process = &top->processes[i];
        for (unsigned a = 0; process->state != ZR_TOP_GONE && a < process->live.arenas_count; a++) {
            const struct zr_arena_stats *stats = &process->live.shown.arenas[a].stats;
            for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++) {
                zr_text_print(text, "%s", name);
                put_arena(text, process, &process->live.shown.arenas[a]);
                zr_text_print(text, ",tag=\"%s\"} %zu\n", zr_tag_name((zr_tag)tag),
                              peaks ? stats->peak_by_tag_bytes[tag] : stats->live_by_tag_bytes[tag]);
            }
        }
    }
}

static bool is_host(const struct zr_clients *clients)
{
    return strcmp(clients->key, ZR_SERVICE_HOST) == 0;
}

static void put_service(struct zr_text *text, const char *name, const struct zr_clients *clients,
                        uint64_t value)
{
    if (is_host(clients))
        zr_text_print(text, "%s %" PRIu64 "\n", name, value);
    else
        zr_text_print(text, "%s{device=\"%s\"} %" PRIu64 "\n", name, clients->key, value);
}

static void put_client(struct zr_text *text, const char *name, const struct zr_clients *clients,
                       const struct zr_service_message *client, uint64_t value)
{
    zr_text_print(text, "%s{pid=\"%" PRId32 "\",", name, client->pid);
    put_label(text, "program", client->program);
    zr_text_print(text, ",");
    put_label(text, "group", client->group);
    if (!is_host(clients))
        zr_text_print(text, ",device=\"%s\"", clients->key);
    zr_text_print(text, "} %" PRIu64 "\n", value);
}

static void put_figure_of_clients(struct zr_text *text, const char *name, const struct zr_clients *clients,
                                  size_t offset)
{
    for (unsigned i = 0; clients->served && i < clients->count; i++) {
        uint64_t value;
        memcpy(&value, (const char *)&clients->rows[i] + offset, sizeof value);
        put_client(text, name, clients, &clients->rows[i], value);
    }
}

/* Prints the metrics of each zrd; the host's have no label `device`. */
static void put_services(struct zr_text *text, const struct zr_services *services)
{
    static const struct {
        const char *name, *help;
        size_t offset; /* of the number in a client's message */
    } figures[] = {
        {"zr_service_held_bytes", "Bytes that a client of zrd leases.",
         offsetof(struct zr_service_message, held_bytes)},
        {"zr_service_idle_bytes", "Idle bytes of these, by the client's last report.",
         offsetof(struct zr_service_message, idle_bytes)},
        {"zr_service_planned_bytes", "Peak of the client's byte plan; 0: no plan.",
         offsetof(struct zr_service_message, plan_peak_bytes)},
        {"zr_service_hard_bytes", "Its hard quota; 0: none.",
         offsetof(struct zr_service_message, hard_bytes)},
    };
    put_head(text, "zr_service_up", "", "1: a zrd serves this user.", false);
    for (unsigned s = 0; s < services->count; s++)
        put_service(text, "zr_service_up", &services->each[s], services->each[s].served);
    put_head(text, "zr_service_capacity_bytes", "", "Bytes that zrd may lend.", false);
    for (unsigned s = 0; s < services->count; s++)
        if (services->each[s].served)
            put_service(text, "zr_service_capacity_bytes", &services->each[s],
                        services->each[s].totals.bytes);
    put_head(text, "zr_service_lent_bytes", "", "Bytes that zrd has lent.", false);
    for (unsigned s = 0; s < services->count; s++)
        if (services->each[s].served)
            put_service(text, "zr_service_lent_bytes", &services->each[s],
                        services->each[s].totals.held_bytes);
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        put_head(text, figures[i].name, "", figures[i].help, false);
        for (unsigned s = 0; s < services->count; s++)
            put_figure_of_clients(text, figures[i].name, &services->each[s], figures[i].offset);
    }
}

void zr_metrics_print(struct zr_text *text, const struct zr_top *top)
{
    put_head(text, "zr_process_up", "",
             "1: the process answers; 0: it is silent, or a named process is gone.", false);
    for (unsigned i = 0; i < top->processes_count; i++) {
        zr_text_print(text, "zr_process_up");
        put_process(text, &top->processes[i]);
        zr_text_print(text, "} %d\n", top->processes[i].state == ZR_TOP_LIVE);
    }
    put_head(text, "zr_processes_not_shown", "", "Processes beyond 128, or of another release.", false);
    zr_text_print(text, "zr_processes_not_shown %u\n", top->others_count);
    for (unsigned i = 0; i < ZR_TOOL_FIGURES; i++)
        put_figure(text, top, i);
    put_tags(text, top, "zr_arena_tag_live_bytes", "Live bytes of a tag.", false);
    put_tags(text, top, "zr_arena_tag_peak_bytes", "Live bytes of a tag when live_bytes was at its peak.",
             true);
    put_services(text, &top->services);
}
