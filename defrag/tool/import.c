/* import.c: `zr import`: converts other programs' files to .zrt traces. Uses defrag/trace/. */
#include <string.h>

#include "alloc/base/error.h"
#include "defrag/tool/input.h"
#include "defrag/trace/recording.h"

static const char help[] =
    "Makes a .zrt trace of another program's file.\n"
    "\n"
    "Examples\n"
    "  zr import snapshot.pickle -o snapshot.zrt\n"
    "  zr import --format rmm log.csv -o log.zrt        fails if the file has another format\n"
    "  zr import events.csv | zr stats -\n"
    "\n"
    "zr import [--format F] IN [options]\n"
    "  IN            a PyTorch snapshot, an RMM log, a MiniMalloc CSV, a CSV of events or a .zrt trace; - is standard input\n"
    "  --format F    torch, rmm, minimalloc, csv or zrt (default: detected from the content)\n"
    "  -o OUT        the file (default: standard output)\n"
    "  --device N    of a snapshot of several devices (default: the one with the most events)\n"
    "  --unit BYTES  one unit of the sizes in a MiniMalloc CSV (default 1)\n"
    "\n"
    "A CSV of events has a line of column names, and one row for each event: event (alloc, free_asked, free, map, unmap,\n"
    "refused, mark), address and bytes; optional columns are time_ns, reserved_bytes, stream, thread, tag, pool, unit_bytes,\n"
    "free_bytes, before, label. Every figure of zr stats is the same before and after. A .zrt has no stacks of snapshots. A\n"
    "truncated file is read up to the cut. A pickled list of torch.cuda.memory_snapshot() is a snapshot without events.\n"
    "Every subcommand of zr reads files that are compressed by gzip or zstd, too.\n"
    "\n"
    "Perfetto's counters and pprof's sums hold no blocks, so they cannot be imported. heaptrack's files have no addresses:\n"
    "record the program by zr run --trace instead. The format of memray's files belongs to memray's version; its FileReader\n"
    "writes a CSV of events (of malloc; memory by mmap is left out):\n"
    "  import memray, sys\n"
    "  live = set()\n"
    "  print(\"event,address,bytes,thread\")\n"
    "  for one in memray.FileReader(sys.argv[1]).get_allocation_records():\n"
    "      kind = memray.AllocatorType(one.allocator).name\n"
    "      if \"MAP\" not in kind and (one.address in live) == kind.endswith(\"FREE\"):\n"
    "          live ^= {one.address}\n"
    "          event = \"free\" if kind.endswith(\"FREE\") else \"alloc\"\n"
    "          print(f\"{event},{one.address},{one.size},{one.tid}\")\n";

static zr_result write_text(void *state, struct zr_text *text)
{
    return zr_recording_import(state, text);
}

static zr_result work(void *state, zr_arena *arena, int *code)
{
    const struct zr_tool_conversion *conversion = state;
    struct zr_tool_input input;
    (void)code;
    zr_result result = zr_tool_input_open(&input, conversion->file, &conversion->reading, arena);
    if (result == ZR_OK && conversion->format && strcmp(conversion->format, input.recording.format) != 0)
        result = zr_fail(ZR_ERR_FORMAT, "'%s' is of the format %s, not %s", input.name,
                         input.recording.format, conversion->format);
    if (result == ZR_OK)
        result = zr_tool_write_conversion(conversion, write_text, &input.recording);
    zr_tool_input_end(&input);
    return result;
}

/* Checks that files of the format can be read. */
static bool check_format(const char *format)
{
    static const char *const names[] = {"torch", "rmm", "minimalloc", "csv", "zrt"};
    for (size_t i = 0; format && i < sizeof names / sizeof *names; i++)
        if (strcmp(format, names[i]) == 0)
            return true;
    if (format && (strcmp(format, "perfetto") == 0 || strcmp(format, "pprof") == 0))
        zr_tool_log("import: a %s file holds sums, not blocks, and cannot be imported; see zr import --help",
                    format);
    else if (format)
        zr_tool_log("import: --format takes one of torch, rmm, minimalloc, csv, zrt; see zr import --help");
    return !format;
}

int zr_tool_import(int argc, char **argv)
{
    struct zr_tool_conversion conversion;
    int code = zr_tool_read_conversion(&conversion, help, false, argc, argv);
    if (code >= 0)
        return code;
    if (!check_format(conversion.format) || !zr_tool_takes_binary(&conversion, "import"))
        return ZR_TOOL_USAGE;
    return zr_tool_with_memory(work, &conversion);
}
