/* service_keep.c: `zr service keep`: lists and drops the segments of kept memory that zrd holds. Uses
 * alloc/service/client/query.c.
 *
 * JSON of `list`: {"version": 1, "segments": [{"name", "group", "pid", "bytes", "resident_bytes",
 * "generation", "lease", "written", "dropped_after_ns"}..]}. `pid` is the last writer, `lease` counts
 * writers, `written`: a writer lives; else the segment is dropped after `dropped_after_ns`. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/service/client/query.h"
#include "alloc/service/client/wire.h"
#include "defrag/tool/tool.h"

static void print_json(struct zr_text *text, const struct zr_service_message *kept, bool first)
{
    bool written = kept->flags & ZR_SERVICE_KEEP_WRITES;
    zr_text_print(text, "%s{\"name\": ", first ? "" : ",\n ");
    zr_text_json_string(text, kept->words, strlen(kept->words));
    zr_text_print(text, ", \"group\": ");
    zr_text_json_string(text, kept->group, strlen(kept->group));
    zr_text_print(text,
                  ", \"pid\": %" PRId32 ", \"bytes\": %" PRIu64 ", \"resident_bytes\": %" PRIu64
                  ", \"generation\": %" PRIu64 ", \"lease\": %" PRIu64
                  ", \"written\": %s, \"dropped_after_ns\": %" PRIu64 "}",
                  kept->pid, kept->bytes, kept->resident_bytes, kept->count, kept->slice,
                  written ? "true" : "false", written ? 0 : kept->reclaim_ns);
}

static void print_row(struct zr_text *text, const struct zr_service_message *kept, bool first)
{
    char number[2][ZR_TOOL_NUMBER_ROOM];
    if (first)
        zr_text_print(text, "%-32s %8s %-12s %10s %10s %10s\n", "segment", "pid", "group", "size", "resident",
                      "generation");
    zr_text_print(text, "%-32s %8" PRId32 " %-12.12s %10s %10s %10" PRIu64, kept->words, kept->pid,
                  kept->group, zr_tool_bytes(number[0], kept->bytes),
                  zr_tool_bytes(number[1], kept->resident_bytes), kept->count);
    if (kept->flags & ZR_SERVICE_KEEP_WRITES)
        zr_text_print(text, "\n");
    else
        zr_text_print(text, "  no writer; dropped in %" PRIu64 " s\n", kept->reclaim_ns / 1000000000);
}

static int list(bool json)
{
    struct zr_service_message request = zr_service_message_of(ZR_SERVICE_KEEP_LIST), answer;
    struct zr_tool_output out;
    int fd;
    bool first = true;
    zr_result result = zr_service_connect(ZR_SERVICE_HOST, &fd);
    if (result != ZR_OK)
        return zr_tool_fail(result);
    zr_tool_output_start(&out);
    zr_text_print(&out.text, json ? "{\"version\": 1, \"segments\": [" : "");
    while ((result = zr_service_ask(fd, &request, &answer)) == ZR_OK && answer.kind == ZR_SERVICE_KEPT) {
        (json ? print_json : print_row)(&out.text, &answer, first);
        request.serial = answer.serial;
        first = false;
    }
    close(fd);
    if (result != ZR_OK)
        return zr_tool_fail(result);
    zr_text_print(&out.text, json ? "]}\n" : first ? "zrd holds no kept memory\n" : "");
    return zr_tool_output_end(&out);
}

static int drop(const char *name)
{
    struct zr_service_message request = zr_service_message_of(ZR_SERVICE_KEEP_DROP), answer;
    int fd;
    if (strlen(name) >= sizeof request.words) {
        zr_tool_log("service keep drop: the name is too long: see zr service keep list");
        return ZR_TOOL_USAGE;
    }
    snprintf(request.words, sizeof request.words, "%s", name);
    zr_result result = zr_service_connect(ZR_SERVICE_HOST, &fd);
    if (result != ZR_OK)
        return zr_tool_fail(result);
    result = zr_service_ask(fd, &request, &answer);
    close(fd);
    return zr_tool_fail(result);
}

int zr_tool_service_keep(int argc, char **argv, const char *help)
{
    bool json = false;
    const struct zr_tool_option options[] = {{"--json", ZR_TOOL_FLAG, &json}, {NULL, ZR_TOOL_FLAG, NULL}};
    struct zr_tool_arguments arguments = {.help = help, .options = options, .takes_files = true};
    int code = argc == 1 ? -1 : zr_tool_parse(&arguments, argc, argv);
    if (code >= 0)
        return code;
    if (arguments.files_count == 1 && strcmp(arguments.files[0], "list") == 0)
        return list(json);
    if (arguments.files_count == 2 && strcmp(arguments.files[0], "drop") == 0 && !json)
        return drop(arguments.files[1]);
    zr_tool_log("service keep: no such command; give list [--json] or drop NAME; see zr service --help");
    return ZR_TOOL_USAGE;
}
