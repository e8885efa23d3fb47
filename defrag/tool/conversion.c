/* conversion.c: see input.h. Uses tool.c. */
#include "defrag/tool/input.h"

#include <unistd.h>

#include "alloc/base/error.h"

int zr_tool_read_conversion(struct zr_tool_conversion *out, const char *help, bool takes_at, int argc,
                            char **argv)
{
    *out = (struct zr_tool_conversion){.reading = {.device = UINT64_MAX}};
    const struct zr_tool_option options[] = {
        {"--format", ZR_TOOL_TEXT, &out->format},
        {"-o", ZR_TOOL_TEXT, &out->output},
        {"--device", ZR_TOOL_COUNT, &out->reading.device},
        {"--unit", ZR_TOOL_BYTES, &out->reading.unit_bytes},
        {takes_at ? "--at" : NULL, ZR_TOOL_TEXT, &out->at},
        {NULL, ZR_TOOL_FLAG, NULL},
    };
    struct zr_tool_arguments arguments = {
        .help = help, .options = options, .takes_files = true, .takes_one = true};
    int code = zr_tool_parse(&arguments, argc, argv);
    if (code >= 0)
        return code;
    out->file = arguments.files[0];
    return -1;
}

bool zr_tool_takes_binary(const struct zr_tool_conversion *conversion, const char *command)
{
    bool takes = conversion->output || !isatty(STDOUT_FILENO);
    if (!takes)
        zr_tool_log("%s: the output is binary and standard output is a terminal; use -o FILE or a pipe",
                    command);
    return takes;
}

zr_result zr_tool_write_conversion(const struct zr_tool_conversion *conversion, zr_tool_writer *write,
                                   void *state)
{
    struct zr_file file = zr_file_borrow(STDOUT_FILENO, "standard output");
    struct zr_text text;
    char buffer[1 << 15];
    const char *output = conversion->output;
    zr_result result = output ? zr_file_create(&file, output, ZR_CREATE_REPLACE) : ZR_OK;
    if (result != ZR_OK)
        return result;
    zr_tool_progress_say("writing");
    zr_text_start(&text, &file, buffer, sizeof buffer);
    result = write(state, &text);
    if (result == ZR_OK)
        result = zr_text_flush(&text);
    zr_tool_progress_say(NULL);
    zr_result closed = output ? zr_file_close(&file) : ZR_OK;
    return result == ZR_OK ? closed : result;
}
