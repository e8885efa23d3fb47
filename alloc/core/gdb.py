"""gdb.py: prints arenas, extents, placement plans and traces in gdb. Private to zr.

gdb loads it with libzr.so, whose name it has beside the library: libzr.so.VERSION-gdb.py. For a program that is linked with
libzr.a: `source alloc/core/gdb.py`. `print *arena` shows the counters and the extents in address order, up to `set print elements`."""
import gdb
import gdb.printing


def name_of(enum, prefix, value):
    """The name of a value of an enum, without its prefix: "block" of ZR_EXTENT_BLOCK."""
    for field in gdb.lookup_type("enum " + enum).fields():
        if field.enumval == int(value):
            return field.name[len(prefix):].lower()
    return f"{enum} {int(value)}"


class Extent:
    def __init__(self, value):
        self.value = value

    def to_string(self):
        extent = self.value
        kind = name_of("zr_extent_kind", "ZR_EXTENT_", extent["kind"])
        text = f"{kind} at offset {int(extent['offset_bytes']):#x}, {int(extent['bytes'])} bytes"
        if kind in ("block", "planned"):
            requested_bytes = int(extent["bytes"]) - int(extent["slack_bytes"])
            text += f" for {requested_bytes}, {name_of('zr_tag', 'ZR_TAG_', extent['tag'])}, stream {int(extent['stream'])}"
        return text


class Arena:
    def __init__(self, value):
        self.value = value

    def to_string(self):
        arena = self.value
        text = (f"arena {arena['name'].string()!r}, number {int(arena['number'])}: {int(arena['live_bytes'])} bytes live"
                f" in {int(arena['blocks_count'])} blocks, peak {int(arena['peak_live_bytes'])},"
                f" {int(arena['reserved_bytes'])} reserved, {int(arena['mapped_bytes'])} mapped")
        if int(arena["deferred_bytes"]):
            text += f", {int(arena['deferred_bytes'])} pending"
        plan = arena["executor"]["plan"] if arena["executor"] else None
        return text + (", follows a plan" if plan else "") + (", writes a trace" if any(arena["traces"][i] for i in range(2)) else "")

    def children(self):
        base, extent = int(self.value["base"]), self.value["first"]
        while extent:
            yield f"{base + int(extent['offset_bytes']):#x}", extent.dereference()
            extent = extent["next"]


def place(offset_bytes, bytes_, request):
    where = "dynamic path" if offset_bytes == 2**64 - 1 else f"offset {offset_bytes:#x}"
    return f"{where}, {bytes_} bytes, {request}"


class Plan:
    """struct zr_plan: a plan that a maker hands over."""

    def __init__(self, value):
        self.value = value

    def to_string(self):
        plan = self.value
        return (f"placement plan: {int(plan['steps_count'])} steps in {int(plan['sequences_count'])} sequences,"
                f" {int(plan['region_bytes'])} bytes of addresses, {int(plan['pages_count'])} pages")

    def children(self):
        for number in range(int(self.value["steps_count"])):
            step = self.value["steps"][number]
            tag = name_of("zr_tag", "ZR_TAG_", step["request"]["tag"])
            yield f"[{number}]", place(int(step["offset_bytes"]), int(step["request"]["bytes"]), f"{tag}, for {int(step['alive_count'])} steps")


class PlanInForce:
    """struct zr_executor_plan: a plan that an arena executes, or has executed."""

    def __init__(self, value):
        self.value = value

    def to_string(self):
        plan = self.value
        count = int(plan["slots_count"])
        live = sum(int(plan["live"][number]) for number in range(count))
        return f"placement plan in force: {count} steps in {int(plan['sequences_count'])} sequences, {live} live, {int(plan['pages_count'])} pages"

    def children(self):
        for number in range(int(self.value["slots_count"])):
            step = self.value["steps"][number]
            tag = name_of("zr_tag", "ZR_TAG_", step["tag"])
            yield f"[{number}]", place(int(step["offset_bytes"]), int(step["requested_bytes"]), tag + (", live" if int(self.value["live"][number]) else ""))


class Trace:
    def __init__(self, value):
        self.value = value

    def to_string(self):
        trace = self.value
        state = "" if trace["window"] else ", stopped"
        return f"trace {trace['file']['name'].string()!r}: {int(trace['position_bytes'])} bytes{state}"


printers = gdb.printing.RegexpCollectionPrettyPrinter("zr")
for struct, printer in ("zr_arena", Arena), ("zr_extent", Extent), ("zr_plan", Plan), ("zr_executor_plan", PlanInForce), ("zr_trace", Trace):
    printers.add_printer(struct, f"^{struct}$", printer)
gdb.printing.register_pretty_printer(gdb.current_objfile(), printers, replace=True)
