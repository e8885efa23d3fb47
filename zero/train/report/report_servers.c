/* report_servers.c: the byte plan and the results of parameter servers. See report.h. */
#include "zero/train/report/report.h"

#include "alloc/base/error.h"
#include "zero/train/report/number.h"
#include "zero/train/report/terminal.h"
#include "zero/train/servers/servers.h"

enum { KINDS = 6 };
static const char *const names[KINDS] = {"master", "optimizer", "gradients", "messages", "log", "records"};

static void list_bytes(const struct zr_ps_bytes *plan, size_t out[KINDS])
{
    const size_t bytes[KINDS] = {plan->master,   plan->optimizer, plan->gradients,
                                 plan->messages, plan->log,       plan->records};
    for (unsigned i = 0; i < KINDS; i++)
        out[i] = bytes[i];
}

/* Plans all servers; calls `each` for each of them. */
static zr_result plan_servers(const struct zr_train_config *config, zr_arena *host_arena,
                              void (*each)(void *state, unsigned server, const size_t bytes[KINDS]),
                              void *state)
{
    struct zr_served_tables tables;
    size_t bytes[KINDS];
    zr_result result = zr_served_tables_make(&tables, config, host_arena);
    for (unsigned s = 0; s < config->servers && result == ZR_OK; s++) {
        struct zr_ps_bytes plan;
        result = zr_ps_server_plan(&tables.options, s, host_arena, &plan);
        list_bytes(&plan, bytes);
        if (result == ZR_OK)
            each(state, s, bytes);
    }
    zr_served_tables_end(&tables, host_arena);
    return result;
}

static void add_largest(void *state, unsigned server, const size_t bytes[KINDS])
{
    size_t *largest = state, sums[2] = {0};
    (void)server;
    for (unsigned i = 0; i < KINDS; i++) {
        sums[0] += largest[i];
        sums[1] += bytes[i];
    }
    for (unsigned i = 0; i < KINDS && sums[1] > sums[0]; i++)
        largest[i] = bytes[i];
}

zr_result zr_report_servers(const struct zr_train_config *config, zr_arena *host_arena)
{
    size_t largest[KINDS] = {0};
    struct zr_text_page page;
    char number[2][ZR_NUMBER_ROOM];
    if (!zr_train_is_served(config))
        return ZR_OK;
    zr_result result = plan_servers(config, host_arena, add_largest, largest);
    if (result != ZR_OK)
        return result;
    zr_page_open(&page, config);
    zr_page_heading(&page, "Byte plan of the largest server");
    for (unsigned i = 0; i < KINDS; i++)
        if (largest[i] > 0)
            zr_text_print(&page.text, "  %-11s %10s  %18s\n", names[i],
                          zr_number_bytes(number[0], largest[i]), zr_number_grouped(number[1], largest[i]));
    zr_text_print(&page.text, "\n");
    return zr_text_flush(&page.text);
}

static void add_object(void *state, unsigned server, const size_t bytes[KINDS])
{
    json_t *list = state, *object = json_pack("{s:i}", "server", (int)server), *planned = json_object();
    for (unsigned i = 0; i < KINDS; i++)
        json_object_set_new(planned, names[i], json_integer((json_int_t)bytes[i]));
    json_object_set_new(object, "planned_bytes", planned);
    json_array_append_new(list, object);
}

/* Adds what servers have measured. */
static void add_measured(const struct zr_train_config *config, json_t *list)
{
    struct zr_server_entry entry;
    for (unsigned s = 0; s < json_array_size(list); s++) {
        json_t *measured = json_object();
        if (zr_file_read_at(&config->served->board, s * sizeof entry, &entry, sizeof entry) != ZR_OK)
            continue;
        for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++)
            if (entry.measured_by_tag_bytes[tag] > 0)
                json_object_set_new(measured, zr_tag_name((zr_tag)tag),
                                    json_integer((json_int_t)entry.measured_by_tag_bytes[tag]));
        json_object_set_new(json_array_get(list, s), "bytes", measured);
    }
}

json_t *zr_report_servers_json(const struct zr_train_config *config, const struct zr_served_report *run,
                               zr_arena *host_arena)
{
    json_t *list = json_array(), *object, *bins = json_array();
    if (plan_servers(config, host_arena, add_object, list) != ZR_OK) {
        json_decref(list);
        json_decref(bins);
        return NULL;
    }
    object = json_pack("{s:s, s:s, s:i, s:o}", "timing", config->ps, "staleness_rule", config->staleness,
                       "replicas", (int)config->replicas, "servers", list);
    for (unsigned i = 0; run && i < ZR_PS_STALE_BINS; i++)
        json_array_append_new(bins, json_integer((json_int_t)run->state.staleness[i]));
    if (!run) {
        json_decref(bins);
        return object;
    }
    add_measured(config, list);
    const struct {
        const char *name;
        uint64_t count;
    } counts[] = {{"version", run->version},
                  {"pushes", run->state.pushes},
                  {"pulls", run->state.pulls},
                  {"updates", run->state.updates},
                  {"held", run->state.held},
                  {"repeated", run->state.repeated},
                  {"lost_replicas", run->state.lost_replicas},
                  {"joined_replicas", run->state.joined_replicas},
                  {"worker_restarts", run->worker_restarts},
                  {"workers_left", run->workers_left},
                  {"received_bytes", run->state.received_bytes},
                  {"sent_bytes", run->state.sent_bytes}};
    json_object_set_new(object, "staleness", bins);
    json_object_set_new(object, "paused_ms", json_real((double)run->state.paused_ns / 1e6));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        json_object_set_new(object, counts[i].name, json_integer((json_int_t)counts[i].count));
    return object;
}
