/* ledger.c: `zr ledger`: accounts for all memory of a process. Uses ledger_rows.c.
 *
 * The kernel's counts and the arenas' figures are read one after the other, so allocations in between appear
 * in the host's residual. A granule that is mapped twice counts twice, as in the kernel's count. */
#include "defrag/tool/live/clients.h"
#include "defrag/tool/live/ledger.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "defrag/tool/live/live.h"
#include "defrag/tool/tool.h"

static const char help[] =
    "Accounts for all memory of a running process, as the kernel and the devices count it, row by row.\n"
    "\n"
    "Examples\n"
    "  zr ledger 4711\n"
    "  zr ledger 4711 --json\n"
    "  zr ledger                                    every process that zr ps shows\n"
    "\n"
    "zr ledger [PID..] [options]\n"
    "  --json        bytes as JSON\n"
    "\n"
    "The host's total is the process's resident memory; its rows are the arenas by tag and the other mappings by kind. A\n"
    "device's total is the used memory that its driver reports, for all processes: its rows are the process's arenas, other\n"
    "processes on zr, and the memory in use before zr opened the device: the CUDA context. The difference is the residual:\n"
    "libraries, memory that the driver serves itself, processes without zr. Rows and residual sum to the total;\n"
    "a row with \"less\" is subtracted, as memory of the arenas that has not been touched yet.\n";

/* ---- Rows ---------------------------------------------------------------------------------------------- */

static uint64_t magnitude(int64_t bytes)
{
    return bytes < 0 ? -(uint64_t)bytes : (uint64_t)bytes;
}

static void json_ledger(struct zr_text *text, const struct zr_memory_ledger *ledger)
{
    zr_text_print(text, "\"total_bytes\": %" PRIu64 ", \"rows\": [", ledger->total_bytes);
    for (unsigned i = 0; i < ledger->rows_count; i++) {
        zr_text_print(text, i ? ", {" : "{");
        const struct zr_ledger_row *row = &ledger->rows[i];
        const char *key = row->bytes < 0 ? "less" : row->is_tag ? "tag" : row->pid ? "program" : "name";
        zr_tool_json_words(text, key, row->name);
        if (row->pid)
            zr_text_print(text, ", \"pid\": %ld", row->pid);
        zr_text_print(text, ", \"bytes\": %" PRIu64 "}", magnitude(row->bytes));
    }
    zr_text_print(text, "], \"residual_bytes\": %" PRId64, zr_ledger_residual(ledger));
}

static void table_row(struct zr_text *text, const char *name, uint64_t bytes)
{
    char number[ZR_TOOL_NUMBER_ROOM];
    zr_text_print(text, "    %-40s %12s\n", name, zr_tool_bytes(number, bytes));
}

static void table_ledger(struct zr_text *text, const struct zr_memory_ledger *ledger, const char *residual)
{
    char name[64];
    for (unsigned i = 0; i < ledger->rows_count; i++) {
        const struct zr_ledger_row *row = &ledger->rows[i];
        if (row->pid)
            snprintf(name, sizeof name, "process %ld, %s", row->pid, row->name);
        else
            snprintf(name, sizeof name, "%s%s",
                     row->bytes < 0 ? "less: "
                     : row->is_tag  ? "live: "
                                    : "",
                     row->name);
        table_row(text, name, magnitude(row->bytes));
    }
    table_row(text, residual, (uint64_t)zr_ledger_residual(ledger));
    zr_text_print(text, "    %-40s %12s\n", "", "-----------");
    table_row(text, "total", ledger->total_bytes);
}

/* ---- Processes ----------------------------------------------------------------------------------------- */

/* Whether the arena is the first one on its device. */
static bool is_first(const struct zr_live *live, unsigned number)
{
    for (unsigned i = 0; i < number; i++)
        if (live->shown.arenas[i].backend == live->shown.arenas[number].backend)
            return false;
    return true;
}

static bool is_device(const struct zr_published_arena *arena)
{
    return !arena->visible && arena->device_total_bytes > 0;
}

static void show_devices(struct zr_text *text, const struct zr_live *live, bool json)
{
    char used[ZR_TOOL_NUMBER_ROOM], whole[ZR_TOOL_NUMBER_ROOM];
    struct zr_memory_ledger ledger;
    bool any = false;
    for (unsigned i = 0; i < live->arenas_count; i++) {
        const struct zr_published_arena *arena = &live->shown.arenas[i];
        if (!is_device(arena) || !is_first(live, i))
            continue;
        zr_ledger_device(&ledger, live, arena->backend);
        if (json) {
            zr_text_print(text, any ? ", {" : "{");
            zr_tool_json_words(text, "arena", arena->name);
            zr_text_print(text, ", \"capacity_bytes\": %" PRIu64 ", \"free_bytes\": %" PRIu64 ", ",
                          arena->device_total_bytes, arena->device_free_bytes);
            json_ledger(text, &ledger);
            zr_text_print(text, "}");
        } else {
            zr_text_print(text, "  the device of arena %s: %s used of %s\n", arena->name,
                          zr_tool_bytes(used, ledger.total_bytes),
                          zr_tool_bytes(whole, arena->device_total_bytes));
            table_ledger(text, &ledger, "residual: libraries, the driver, others");
        }
        any = true;
    }
}

static void show(struct zr_text *text, const struct zr_live *live, const struct zr_memory_ledger *host,
                 uint64_t cached_bytes, bool json)
{
    static struct zr_services services;
    char cached[ZR_TOOL_NUMBER_ROOM], idle[ZR_TOOL_NUMBER_ROOM];
    zr_services_read(&services, ZR_SERVICE_AWAITED);
    const struct zr_service_message *client = zr_clients_find(&services.each[0], live->shown.process.pid);
    if (json) {
        zr_text_print(text, "{\"pid\": %" PRId32 ", ", live->shown.process.pid);
        zr_tool_json_words(text, "program", live->shown.program);
        zr_text_print(text, ",\n  \"host\": {");
        json_ledger(text, host);
        zr_text_print(text,
                      ", \"cached_bytes\": %" PRIu64 ", \"leased_bytes\": %" PRIu64 "},\n  \"devices\": [",
                      cached_bytes, client ? client->held_bytes : 0);
        show_devices(text, live, true);
        zr_text_print(text, "]}");
        return;
    }
    zr_text_print(text, "process %" PRId32 ", %s\n  resident memory of the host\n", live->shown.process.pid,
                  live->shown.program);
    table_ledger(text, host, "residual");
    if (cached_bytes > 0)
        zr_text_print(text, "  and %s that its arenas keep for later, not mapped",
                      zr_tool_bytes(cached, cached_bytes));
    if (client)
        zr_text_print(text, "  zrd has lent it %s of this, %s of it idle\n",
                      zr_tool_bytes(cached, client->held_bytes), zr_tool_bytes(idle, client->idle_bytes));
    show_devices(text, live, false);
    for (unsigned i = 1; i < services.count; i++)
        if ((client = zr_clients_find(&services.each[i], live->shown.process.pid)))
            zr_text_print(text, "  zrd has lent it %s of device %s, %s of it idle\n",
                          zr_tool_bytes(cached, client->held_bytes), services.each[i].key,
                          zr_tool_bytes(idle, client->idle_bytes));
}

struct shown {
    struct zr_text *text;
    bool json, any, named;
};

/* ZR_ERR_UNAVAILABLE: the process exited, or publishes no figures. */
static zr_result show_process(void *state, long pid)
{
    static struct zr_live live;
    struct shown *shown = state;
    struct zr_memory_ledger host;
    uint64_t cached_bytes;
    zr_result result = zr_live_read_devices(&live, pid, shown->named ? &zr_tool_patience : &zr_tool_glance);
    if (result == ZR_ERR_TIMEOUT && !shown->named)
        result = zr_tool_note_old();
    if (result == ZR_OK)
        result = zr_ledger_host(&host, &cached_bytes, &live);
    if (result != ZR_OK)
        return result;
    zr_text_print(shown->text, "%s", shown->json && shown->any ? ",\n " : "");
    show(shown->text, &live, &host, cached_bytes, shown->json);
    shown->any = true;
    return ZR_OK;
}

int zr_tool_ledger(int argc, char **argv)
{
    bool json = false;
    const struct zr_tool_option options[] = {{"--json", ZR_TOOL_FLAG, &json}, {NULL, ZR_TOOL_FLAG, NULL}};
    struct zr_tool_arguments arguments = {.help = help, .options = options};
    struct zr_tool_output out;
    int code = zr_tool_parse(&arguments, argc, argv);
    if (code >= 0)
        return code;
    zr_tool_output_start(&out);
    struct shown shown = {.text = &out.text, .json = json, .named = arguments.files_count > 0};
    if (json)
        zr_text_print(&out.text, "{\"version\": 1, \"processes\": [");
    code = zr_tool_each_process(&arguments, true, show_process, &shown);
    if (code == ZR_TOOL_USAGE && !shown.any)
        return code;
    if (json)
        zr_text_print(&out.text, "]}\n");
    else if (!shown.any && code == ZR_TOOL_FINE)
        zr_tool_log("ledger: no process publishes its memory; see zr ps");
    int written = zr_tool_output_end(&out);
    return written != ZR_TOOL_FINE ? written : code;
}
