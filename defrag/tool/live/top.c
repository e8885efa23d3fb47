/* top.c: `zr top`: shows the memory of running processes over time, on a terminal, as text or as JSON. Uses
 * top_model.c, top_draw.c and top_screen.c.
 *
 * JSON: {"version": 1, "processes": [{"pid", "program", "state": "live|silent|gone", "arenas_count", "arenas"
 * (as in zr ps), "map": {"arena", "cell_bytes", "cells": [{"address", "live": {TAG: bytes}, "pending_bytes",
 * "free_bytes"}..]}|null, "holders": [{"tag", "pending", "live_bytes", "blocks_count",
 * "requested_bytes"}..]|null}..], "service": as zr_services_json() prints it}. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <limits.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "defrag/tool/input.h"
#include "defrag/tool/live/top_draw.h"

enum { ONCE_PATIENCE_MS = 5000, JSON_CELLS = 256, INTERVAL_MIN_MS = 100, INTERVAL_MAX_MS = 60000 };

static const char help[] =
    "Shows the memory of running processes: by tag, by address, and the largest holders.\n"
    "\n"
    "Examples\n"
    "  zr top                        all processes of this user that zr ps shows\n"
    "  zr top 4711 4712              two ranks\n"
    "  zr top --once                 one picture, as text\n"
    "  zr top --once --json          the whole model as JSON\n"
    "\n"
    "zr top [PID..] [options]\n"
    "  --once            prints one picture and exits; output need not be a terminal\n"
    "  --json            with --once\n"
    "  --columns N       of the text (default: the terminal's, or 80)\n"
    "  --rows N          of the text (default: the terminal's, or 24)\n"
    "  --interval-ms N   between two refreshes, 100 to 60000 (default 1000)\n"
    "\n"
    "Keys: up and down choose a process, tab an arena, q quits; ? shows all keys. NO_COLOR disables colours.\n"
    "A process appears once its arenas hold 64 MiB; with ZR_CONF=publish:on at once. The map and the holders come\n"
    "from a snapshot, during which the arena's allocations wait; snapshots take at most 2 % of the time.\n";

struct settings {
    struct zr_tool_arguments arguments;
    bool once, json;
    uint64_t columns, rows, interval_ms;
};

/* ---- JSON ---------------------------------------------------------------------------------------------- */

static void json_map(struct zr_text *text, const struct zr_top_look *look)
{
    struct zr_map_cursor cursor = zr_map_cursor_of(look->extents.items, look->extents.count, JSON_CELLS);
    struct zr_map_cell cell;
    zr_text_print(text, "{\"arena\": %u, \"cell_bytes\": %" PRIu64 ", \"cells\": [", look->arena,
                  cursor.cell_bytes);
    for (bool first = true; zr_map_next(&cursor, &cell); first = false) {
        zr_text_print(text, "%s{\"address\": %" PRIu64 ", \"live\": {", first ? "" : ", ", cell.address);
        bool any = false;
        for (unsigned tag = 0; tag < ZR_TAG_COUNT; tag++) {
            if (cell.by_tag_bytes[tag] == 0)
                continue;
            zr_text_print(text, "%s\"%s\": %" PRIu64, any ? ", " : "", zr_tag_name((zr_tag)tag),
                          cell.by_tag_bytes[tag]);
            any = true;
        }
        zr_text_print(text, "}, \"pending_bytes\": %" PRIu64 ", \"free_bytes\": %" PRIu64 "}",
                      cell.by_kind_bytes[ZR_MAP_PENDING], cell.by_kind_bytes[ZR_MAP_FREE]);
    }
    zr_text_print(text, "]}");
}

static void json_holders(struct zr_text *text, const struct zr_top_look *look)
{
    zr_text_print(text, "[");
    for (unsigned i = 0; i < look->holders_count; i++) {
        const struct zr_top_holder *holder = &look->holders[i];
        zr_text_print(text,
                      "%s{\"tag\": \"%s\", \"pending\": %s, \"live_bytes\": %" PRIu64
                      ", \"blocks_count\": %" PRIu64 ", \"requested_bytes\": %" PRIu64 "}",
                      i ? ", " : "", zr_tag_name((zr_tag)holder->tag), holder->pending ? "true" : "false",
                      holder->live_bytes, holder->blocks_count, holder->requested_bytes);
    }
    zr_text_print(text, "]");
}

static void json_process(struct zr_text *text, struct zr_top *top, const struct zr_top_process *process)
{
    static const char *const states[] = {"live", "silent", "gone"};
    const struct zr_published *shown = &process->live.shown;
    bool looked = process->state == ZR_TOP_LIVE && zr_top_look_now(top, process, ZR_TOP_ALL);
    zr_text_print(text, "{\"pid\": %ld, ", process->pid);
    zr_tool_json_words(text, "program", shown->program);
    zr_text_print(text, ", \"state\": \"%s\", \"arenas_count\": %" PRIu32 ", \"arenas\": [",
                  states[process->state], shown->arenas_count);
    for (unsigned i = 0; i < process->live.arenas_count; i++) {
        zr_text_print(text, i ? ", " : "");
        zr_tool_json_arena(text, &shown->arenas[i]);
    }
    zr_text_print(text, "], \"map\": ");
    if (looked)
        json_map(text, &top->look);
    zr_text_print(text, looked ? ", \"holders\": " : "null, \"holders\": ");
    if (looked)
        json_holders(text, &top->look);
    zr_text_print(text, looked ? "}" : "null}");
}

static int print_json(struct zr_top *top)
{
    struct zr_tool_output out;
    zr_tool_output_start(&out);
    zr_text_print(&out.text, "{\"version\": 1, \"processes\": [");
    for (unsigned i = 0; i < top->processes_count; i++) {
        zr_text_print(&out.text, i ? ",\n " : "");
        json_process(&out.text, top, &top->processes[i]);
    }
    zr_text_print(&out.text, "],\n \"service\": ");
    zr_services_json(&out.text, &top->services);
    zr_text_print(&out.text, "}\n");
    return zr_tool_output_end(&out);
}

/* ---- Text ---------------------------------------------------------------------------------------------- */

static unsigned between(uint64_t wanted, unsigned min, unsigned max)
{
    return wanted < min ? min : wanted > max ? max : (unsigned)wanted;
}

/* Prints a row without trailing blanks. */
static void print_row(struct zr_text *text, const struct zr_top_cell *cells, unsigned columns)
{
    char bytes[MB_LEN_MAX];
    mbstate_t state = {0};
    while (columns > 0 && cells[columns - 1].letter == L' ')
        columns--;
    for (unsigned i = 0; i < columns; i++) {
        size_t length = wcrtomb(bytes, cells[i].letter, &state);
        zr_text_put(text, length <= sizeof bytes ? bytes : "?", length <= sizeof bytes ? length : 1);
    }
    zr_text_put(text, "\n", 1);
}

static int print_text(struct zr_top *top, const struct settings *settings)
{
    static struct zr_top_grid grid;
    struct zr_tool_output out;
    struct winsize size = {0};
    struct zr_top_view view = {.arena = ZR_TOP_ALL};
    const struct zr_top_process *chosen = zr_top_chosen(top, &view);
    bool terminal = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
    grid.columns = between(settings->columns ? settings->columns
                           : terminal        ? size.ws_col
                                             : 80,
                           ZR_TOP_COLUMNS_MIN, ZR_TOP_COLUMNS_MAX);
    grid.rows = between(settings->rows ? settings->rows
                        : terminal     ? size.ws_row
                                       : 24,
                        ZR_TOP_ROWS_MIN, ZR_TOP_ROWS_MAX);
    if (chosen && chosen->state == ZR_TOP_LIVE)
        zr_top_look_now(top, chosen, ZR_TOP_ALL);
    zr_top_draw(&grid, top, &view);
    zr_tool_output_start(&out);
    for (unsigned row = 0; row < grid.rows; row++)
        print_row(&out.text, grid.cells[row], grid.columns);
    return zr_tool_output_end(&out);
}

/* ---- The subcommand ------------------------------------------------------------------------------------ */

/* Prints an error for each named process that does not exist. The other processes are still shown. */
static int say_missing(const struct zr_top *top)
{
    static struct zr_live live;
    int code = ZR_TOOL_FINE;
    for (unsigned i = 0; i < top->processes_count; i++)
        if (top->processes[i].named && top->processes[i].state == ZR_TOP_GONE &&
            zr_live_read(&live, top->processes[i].pid, NULL) != ZR_OK)
            code = zr_tool_fail(ZR_ERR_UNAVAILABLE);
    return code;
}

static zr_result work(void *state, zr_arena *arena, int *code)
{
    static struct zr_top top;
    const struct settings *settings = state;
    struct zr_top_view view = {.arena = ZR_TOP_ALL, .interval_ms = (unsigned)settings->interval_ms};
    zr_result result = ZR_OK;
    zr_top_start(&top, arena);
    *code = zr_tool_each_process(&settings->arguments, false, zr_top_name, &top);
    if (*code == ZR_TOOL_FINE) {
        zr_top_refresh(&top, ONCE_PATIENCE_MS);
        int missing = say_missing(&top);
        if (settings->once)
            *code = settings->json ? print_json(&top) : print_text(&top, settings);
        else if (missing == ZR_TOOL_FINE)
            result = zr_top_screen(&top, &view);
        *code = *code == ZR_TOOL_FINE ? missing : *code;
    }
    zr_top_end(&top);
    return result;
}

int zr_tool_top(int argc, char **argv)
{
    struct settings settings = {.interval_ms = 1000};
    const struct zr_tool_option options[] = {{"--once", ZR_TOOL_FLAG, &settings.once},
                                             {"--json", ZR_TOOL_FLAG, &settings.json},
                                             {"--columns", ZR_TOOL_COUNT, &settings.columns},
                                             {"--rows", ZR_TOOL_COUNT, &settings.rows},
                                             {"--interval-ms", ZR_TOOL_COUNT, &settings.interval_ms},
                                             {NULL, ZR_TOOL_FLAG, NULL}};
    settings.arguments = (struct zr_tool_arguments){.help = help, .options = options};
    int code = zr_tool_parse(&settings.arguments, argc, argv);
    if (code >= 0)
        return code;
    const char *wrong =
        settings.json && !settings.once ? "--json needs --once"
        : settings.interval_ms < INTERVAL_MIN_MS || settings.interval_ms > INTERVAL_MAX_MS
            ? "--interval-ms takes 100 to 60000"
        : !settings.once && !isatty(STDOUT_FILENO)
            ? "standard output is not a terminal; zr top --once prints one picture, zr top --once --json the figures"
        : !settings.once && !isatty(STDIN_FILENO)
            ? "standard input is not a terminal, so there are no keys; zr top --once prints one picture"
            : NULL;
    if (wrong) {
        zr_tool_log("top: %s; see zr top --help", wrong);
        return ZR_TOOL_USAGE;
    }
    setlocale(LC_CTYPE, "");
    return zr_tool_with_memory(work, &settings);
}
