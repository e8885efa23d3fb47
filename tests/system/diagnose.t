#!/usr/bin/env python3
"""zr stats, map, why, diff and export: files made here, whose answers are counted independently, and the two
PyTorch snapshots of ../shared/traces where they are."""
import csv
import json
import os
import pickle
import pickletools
import pty
import struct
import subprocess
import sys
import xml.etree.ElementTree
import zlib

sys.path.insert(0, "tests/support")
from zrtest import BUILD, HANG, done, note, ok, path, same, skip

ZR = os.path.abspath(os.path.join(BUILD, "bin", "zr"))
SHARED = [f"../shared/traces/torch_medium_{context}_training.pickle" for context in (128, 512)]
MIB = 1 << 20


def zr(*arguments, **settings):
    settings.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run([ZR, *arguments], capture_output=True, text=True, errors="replace", timeout=HANG, **settings)


def parsed(*arguments, code=0, **settings):
    run = zr(*arguments, "--json", **settings)
    if not ok(run.returncode == code, f"{' '.join(map(os.path.basename, arguments)):.100}: exit {code}"):
        note(f"exit {run.returncode}: {run.stderr}")
        return None
    report = json.loads(run.stdout)
    same(list(report)[0], "version", "its JSON opens with its version")
    return report


def refused(words, code, names, *arguments, **settings):
    run = zr(*arguments, **settings)
    good = same((run.returncode, run.stdout), (code, ""), f"{words}: exit {code} and no data")
    for name in names:
        good &= ok(name in run.stderr, f"{words}: the message names {name!r}")
    if not good:
        note(run.stderr)


def write(name, data):
    where = path(name)
    with open(where, "wb") as file:
        file.write(data if isinstance(data, bytes) else data.encode())
    return where


# ---- Files: .zrt as alloc/telemetry/trace_format.h has it, snapshots as PyTorch pickles them -------------------------------

ALLOC, FREE, MAP, UNMAP, MARK, REFUSED, BEGIN = range(1, 8)
TAGS = ["param", "grad", "optimizer", "master", "gathered", "checkpoint", "activation", "comm", "workspace", "offload",
        "other"]
BASE, GRANULE = 1 << 44, 2 * MIB


def varint(number):
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7f | 0x80)
        number >>= 7
    return bytes(out + bytes([number]))


def zigzag(number):
    return varint(number * 2 if number >= 0 else -number * 2 - 1)


def zrt(events, written=None):
    """events: (kind, offset, bytes, tag, stream), a mark's offset being its label; a microsecond apart."""
    body, place, granule = bytearray(), 0, 0
    for kind, offset, size, tag, stream in events:
        flags = 0x10 | 0x20 | (0x40 if kind in (ALLOC, FREE) else 0) | (0x80 if kind == ALLOC else 0)
        body += bytes([kind | flags]) + varint(1000) + varint(stream) + bytes([TAGS.index(tag)])
        if kind in (ALLOC, FREE):
            body += zigzag(offset - place)
            place = offset
            body += varint(size) + varint((size + 255) // 256 * 256) if kind == ALLOC else b""
        elif kind in (MAP, UNMAP):
            body += zigzag(offset // GRANULE - granule) + varint(size // GRANULE)
            granule = (offset + size) // GRANULE
        elif kind == MARK:
            body += varint(len(offset)) + offset.encode()
        elif kind == REFUSED:
            body += varint(size)
    header = struct.pack("<4sIIIQQQQQQII32s24x", b"ZRT1", 128, 1, 1, len(body) if written is None else written, GRANULE, BASE,
                         1 << 40, 0, 0, 1, 0, b"test")
    return header + bytes(body)


def event(action, addr, size, stream=0, time=0, frames=()):
    where = "device_free" if action == "oom" else "addr"
    return {"action": action, where: addr, "size": size, "stream": stream, "time_us": time, "frames": list(frames)}


def snapshot(segments, events):
    """segments: (address, stream, type, [(bytes, requested, state, frames)])"""
    whole = []
    for address, stream, kind, blocks in segments:
        at, listed = address, []
        for size, requested, state, frames in blocks:
            listed.append({"address": at, "size": size, "requested_size": requested, "state": state, "frames": list(frames)})
            at += size
        live = [b for b in listed if b["state"] == "active_allocated"]
        whole.append({"device": 0, "address": address, "total_size": at - address, "stream": stream, "segment_type": kind,
                      "segment_pool_id": (0, 0), "is_expandable": False, "frames": [],
                      "allocated_size": sum(b["size"] for b in live),
                      "active_size": sum(b["size"] for b in listed if b["state"] != "inactive"),
                      "requested_size": sum(b["requested_size"] for b in live), "blocks": listed})
    return {"segments": whole, "device_traces": [events], "allocator_settings": {}}


FRAMES = [[{"name": "at::empty", "filename": "??", "line": 0}, {"name": name, "filename": "train.py", "line": line}]
          for name, line in (("forward", 12), ("step", 40))]
# 64 MiB in three segments: one of another stream, one whole and free. 6 MiB and 8 MiB lie beside free extents, 4 MiB are
# pending, and 20 MiB were refused with 1 MiB left on the device.
small = write("small.pickle", pickle.dumps(snapshot(
    [(0x10000000, 0, "large", [(8 * MIB, 8 * MIB, "active_allocated", FRAMES[0]), (10 * MIB, 0, "inactive", ()),
                               (6 * MIB, 6 * MIB - 100, "active_allocated", FRAMES[1]), (8 * MIB, 0, "inactive", ())]),
     (0x20000000, 7, "large", [(20 * MIB, 0, "inactive", ()), (4 * MIB, 4 * MIB, "active_allocated", FRAMES[0])]),
     (0x30000000, 0, "large", [(4 * MIB, 4 * MIB, "active_awaiting_free", ()), (4 * MIB, 0, "inactive", ())])],
    [event("segment_alloc", 0x20000000, 24 * MIB, 7, 1), event("alloc", 0x20000000 + 20 * MIB, 4 * MIB, 7, 2, FRAMES[0]),
     event("alloc", 0x20000000, 20 * MIB, 7, 3), event("free_requested", 0x20000000, 20 * MIB, 7, 5),
     event("free_completed", 0x20000000, 20 * MIB, 7, 9), event("segment_free", 0x40000000, 32 * MIB, 0, 10),
     event("alloc", 0x10000000 + 18 * MIB, 6 * MIB - 100, 0, 11, FRAMES[1]), event("free_requested", 0x30000000, 4 * MIB, 0, 12),
     event("oom", MIB, 20 * MIB, 0, 13, FRAMES[1])])))
# Two granules half used, one whole and free.
holes = [(MAP, 0, 3 * GRANULE, "other", 0), (ALLOC, 0, MIB, "param", 0), (ALLOC, 2 * MIB, MIB, "grad", 0),
         (MARK, "h.31 forward", 0, "other", 0), (ALLOC, 3 * MIB, MIB, "activation", 0), (FREE, 3 * MIB, 0, "activation", 0),
         (REFUSED, 0, 8 * MIB, "activation", 0)]
holes_file = write("holes.zrt", zrt(holes))
rmm = write("log.csv", "Thread,Time,Action,Pointer,Size,Stream\n1,10:00:00.000001,allocate,0x1000,100,0\n"
            "1,10:00:00.000002,allocate,0x2000,200,0\n1,10:00:00.000003,free,0x9000,50,0\n"
            "1,10:00:00.000004,free,0x1000,100,0\n1,10:00:01:000000,allocate failure,(nil),1000000,0\n")
lifetimes = write("lifetimes.csv", "id,lower,upper,size\n0,0,2,4\n1,0,9,2\n2,1,3,4\n3,4,9,8\n")


# ---- zr stats ------------------------------------------------------------------------------------------------------

MOMENT = ["live_bytes", "requested_bytes", "reserved_bytes", "internal_bytes", "pending_bytes", "stranded_bytes",
          "releasable_bytes"]


def is_moment(report, name, want, words):
    same(list(report["moments"][name]), MOMENT, f"{words}: the keys of the design")
    same([report["moments"][name][key] for key in MOMENT], want, f"{words}: {name}")


def count(file):
    """What a snapshot's segments say, counted by Python alone: the sums, and each segment's."""
    with open(file, "rb") as data:
        segments = pickle.load(data)["segments"]

    def total(what, state, blocks):
        return sum(block[what] for block in blocks if block["state"] in state)
    live, pending = ("active_allocated",), ("active_awaiting_free", "active_pending_free")
    each = {s["address"]: [s["total_size"], total("size", live, s["blocks"]), total("requested_size", live, s["blocks"]),
                           total("size", pending, s["blocks"])] for s in segments}
    sums = [sum(column) for column in zip(*each.values())]
    free = sum(s["total_size"] for s in segments if all(b["state"] == "inactive" for b in s["blocks"]))
    return each, [sums[1], sums[2], sums[0], sums[1] - sums[2], sums[3], sums[0] - sums[1] - sums[3] - free, free]


def check_against_count(file):
    report = parsed("stats", file)
    each, sums = count(file)
    is_moment(report, "now", sums, f"{os.path.basename(file)}, counted by Python")
    same({s["address"]: [s["bytes"], s["live_bytes"], s["requested_bytes"], s["pending_bytes"]] for s in report["segments"]},
         each, f"and each of its {len(each)} segments")
    return report


def test_stats():
    report = check_against_count(small)
    # The peak: 8 + 4 (pending from before) and the 24 of the second segment. Segments: 32 + 24 + 8, and the one of 32
    # that goes: it is whole and free.
    is_moment(report, "peak", [36 * MIB, 36 * MIB, 96 * MIB, 0, 0, 28 * MIB, 32 * MIB], "small.pickle")
    is_moment(report, "failure", [18 * MIB, 18 * MIB - 100, 64 * MIB, 100, 4 * MIB, 42 * MIB, 0], "small.pickle")
    same(round(report["gmlake_ratio"], 6), round(1 - 36 / 96, 6), "GMLake's ratio")
    # Free at the failure: 10 and 8, 20, 4.
    same([round(one["index"], 6) for one in report["unusable_free_space"]][:4],
         [0, 0, round(22 / 42, 6), 1], "unusable free space for 1, 4, 16 and 64 MiB")
    report = parsed("stats", holes_file)
    is_moment(report, "peak", [3 * MIB, 3 * MIB, 6 * MIB, 0, None, MIB, 2 * MIB], "holes.zrt")
    is_moment(report, "failure", [2 * MIB, 2 * MIB, 6 * MIB, 0, None, 2 * MIB, 2 * MIB], "holes.zrt")
    same(report["stranded_ratio"]["now"], round(1 / 3, 9), "stranded, of reserved")
    # After the map and after each of the others: nothing mapped, then 0, 1, 2, 2, 1, 2 MiB of 6 for a microsecond each.
    same(round(report["stranded_ratio"]["time_weighted"], 6), round((0 + 1 + 2 + 2 + 1 + 2) / 36, 6), "and over time")
    report = parsed("stats", rmm)
    is_moment(report, "peak", [350, 350, None, 0, None, None, None], "log.csv")
    is_moment(report, "now", [200, 200, None, 0, None, None, None], "log.csv")
    same((report["failures"], report["gmlake_ratio"]), (1, None), "an allocation failure, and no ratio of what is not known")
    is_moment(parsed("stats", lifetimes, "--unit", "1KiB"), "peak", [10240, 10240, None, 0, None, None, None], "lifetimes.csv")
    with open(small, "rb") as data:
        report = parsed("stats", "-", stdin=data)
    same(report["moments"]["now"]["live_bytes"], 18 * MIB, "standard input")
    report = parsed("stats", small, holes_file)
    same([one["file"] for one in report["results"]], [small, holes_file], "two files")
    run = zr("stats", small, holes_file, "--segments")
    ok(run.returncode == 0 and "18.0 MiB" in run.stdout and "0x30000000" in run.stdout and "zr why" in run.stdout, "the table") or note(run)


def test_stats_at():
    """Any moment: a number of events, a time, a mark. The events of holes.zrt are a microsecond apart, and begin at 1."""
    start, two, three = [0, 0, 6 * MIB, 0, None, 0, 6 * MIB], [2 * MIB, 2 * MIB, 6 * MIB, 0, None, 2 * MIB, 2 * MIB], \
        [3 * MIB, 3 * MIB, 6 * MIB, 0, None, MIB, 2 * MIB]
    for at, want in (("1", start), ("0s", start), ("0.0000005s", start), ("0.000002s", two), (".000003s", two), ("mark:h.31 forward", two),
                     ("mark:31", two), ("5", three), ("0.000004s", three), ("peak", three), ("100s", two), ("7", two), ("failure", two)):
        report = parsed("stats", holes_file, "--at", at)
        is_moment(report, "at", want, f"--at {at}")
    same(report["stranded_ratio"]["at"], round(1 / 3, 9), "with its ratio")
    # After the map alone nothing is in a run shorter than 6 MiB; after five records 1 MiB lies between the blocks, and 2 go on
    # to the end: 1 + 2 MiB are free, and none of it in a run of 4.
    for at, want in (("1", [0, 0, 1]), ("5", [0, 1, 1])):
        report = parsed("stats", holes_file, "--at", at)
        same([one["index"] for one in report["unusable_free_space"]][:3], want, f"--at {at}: unusable for 1, 4 and 16 MiB")
    steps = write("steps.zrt", zrt([(MAP, 0, 3 * GRANULE, "other", 0)] + [record for number in range(4) for record in (
        (ALLOC, number * MIB, MIB, "grad", 0), (MARK, ("step", "step of 2", "step", "step of 2")[number], 0, "other", 0))]))
    for at, live in (("mark:step", 3), ("mark:step of 2", 4), ("mark:of", 4)):
        same(parsed("stats", steps, "--at", at)["moments"]["at"]["live_bytes"], live * MIB, f"--at {at}: the last such mark")
    same(sum(s["live_bytes"] for s in parsed("stats", holes_file, "--at", "2")["segments"]), MIB, "segments are those of the moment")
    run = zr("stats", holes_file, "--at", "5")
    ok("at       5" in run.stdout and "after 5 events" in run.stdout and "live at that moment, by tag" in run.stdout, "in the table") or note(run.stdout)
    for at, words in (("8", "beyond the 7 events"), ("mark:nothing", "no mark"), ("1.2.3s", "not a moment"), ("s", "not a moment"), (".s", "not a moment"),
                      ("-1s", "not a moment"), ("99999999999999999999s", "not a moment"), ("1e3s", "not a moment")):
        refused(f"--at {at}", 2, [words], "stats", holes_file, "--at", at)
    refused("a time where there is none", 2, ["no times"], "stats", lifetimes, "--at", "1s")


def test_damage():
    whole = zrt(holes)
    cut = write("cut.zrt", whole[:-5])
    run = zr("stats", cut, "--json")
    report = json.loads(run.stdout)
    ok(run.returncode == 0 and report["cut_short"] and "truncated" in run.stderr and "failure" not in report["moments"],
       "a truncated trace is read up to the cut, with a warning")
    refused("a damaged trace", 3, ["damaged", "event 2"], "stats",
            write("damaged.zrt", zrt(holes[:2], written=len(zrt(holes[:2])) - 128 + 4) + bytes(4)))
    refused("a trace that contradicts itself", 3, ["twice.zrt", "live"], "stats", write("twice.zrt", zrt(holes[:2] + holes[1:2])))
    refused("a snapshot that does", 3, ["not live"], "stats", write("gone.pickle", pickle.dumps(snapshot(
        [], [event("free_completed", 4096, 512), event("free_completed", 4096, 512)]))))
    refused("no file", 2, ["a file is missing"], "stats")
    run = subprocess.run(f"{ZR} stats {small} --json | head -c 1", shell=True, capture_output=True, timeout=HANG, check=False)
    same((run.returncode, run.stderr), (0, b""), "a reader that leaves is nobody's failure")


def test_shared():
    for file in SHARED:
        if not os.path.exists(file):
            skip(f"{file} is not here")
            continue
        check_against_count(file)
    if os.path.exists(SHARED[0]) and os.path.exists(SHARED[1]):
        # The first has 7,235,174,400 bytes reserved and 6,816,891,392 live: 418,283,008 are free, less than 2 GiB.
        report = parsed("why", SHARED[0], "--size", "2GiB")
        same((report["verdict"], report["free_bytes"]), ("shortage", 418283008), "2 GiB on the first")
        same({one["change"]: one["fits"] for one in report["remedies"]},
             {"zr": False, "plan": False, "caching": False, "expandable": False, "bestfit": False, "capacity": True}, "which nothing but memory helps")
        # The second: 12,660,506,624 and 6,838,108,672, so 5,822,397,952 are free. No run is beyond 80 MiB, but segments of
        # 4,771,020,800 are empty (active_size 0): PyTorch gives these back, and a new one of 2 GiB fits. One of 5 GiB
        # (5,368,709,120) does not, though more is free; blocks of 89 MB pin the rest, and zr would have had room.
        report = parsed("why", SHARED[1], "--size", "2GiB")
        same((report["verdict"], report["free_bytes"], report["largest_free_run_bytes"], report["releasable_bytes"]),
             ("fits", 5822397952, 83886080, 4771020800), "2 GiB on the second")
        report = parsed("why", SHARED[1], "--size", "5GiB")
        same((report["verdict"], report["pins_proved"]), ("fragmentation", True), "5 GiB on it")
        ok(any(one["change"] == "zr" and one["fits"] for one in report["remedies"]), "which fits with zr")


def test_opcodes():
    """Every opcode that pickletools knows is one that builds data, or is refused by its name there."""
    read = {"MARK", "EMPTY_TUPLE", "STOP", "BINFLOAT", "BININT", "BININT1", "BININT2", "NONE", "BINUNICODE", "EMPTY_LIST", "APPEND",
            "DICT", "APPENDS", "BINGET", "LONG_BINGET", "LIST", "BINPUT", "LONG_BINPUT", "SETITEM", "TUPLE", "SETITEMS", "EMPTY_DICT",
            "TUPLE1", "TUPLE2", "TUPLE3", "NEWTRUE", "NEWFALSE", "LONG1", "LONG4", "SHORT_BINUNICODE", "BINUNICODE8", "MEMOIZE", "FRAME"}
    wrong = []
    for opcode in pickletools.opcodes:
        run = zr("stats", write("opcode.pickle", b"\x80\x04" + opcode.code.encode("latin-1") + b"\0" * 8 + b"."))
        named = f"({opcode.name}:" in run.stderr or f"({opcode.name})" in run.stderr
        if named != (opcode.name not in read) or run.returncode != 3:
            wrong.append((opcode.name, run.returncode, run.stderr))
    same(wrong, [], f"{len(pickletools.opcodes)} opcodes: data, or refused by name")


def test_orders():
    """Events are handed over while a snapshot is read: whatever the order of its fields and the pickler's ways, the answer
    is the same, for each device, where an event is wrong or is named twice."""
    wrong = [event("alloc", 4096, 512), event("alloc", 4096, 512)]
    many, few = ([event("alloc", 8192 + 512 * i, 512, 0, i, FRAMES[i % 2]) for i in range(count)] for count in (2500, 3))
    cases = [("one device", [many], 2500, 2500), ("two", [few, many], 2500, 3), ("a wrong one before", [wrong, many], 2500, None),
             ("an empty one", [[], many], 2500, None), ("the same events", [many[:5], many], 2500, 5), ("the same list", [few] * 3, 3, 3),
             ("a single event", [many[:1]], 1, 1), ("no dicts", [many, [7]], 2500, 2500)]
    other = {"segments": [], "allocator_settings": {}, "annotations": [[{"device_traces": [[1]]}], ["device_traces", [[1]]]]}
    orders = [("segments", "device_traces"), ("device_traces", "segments"), ("allocator_settings", "annotations", "device_traces",
              "segments"), ("device_traces", "annotations", "segments")]
    for words, traces, most, first in cases:
        good = True
        for protocol, order in ((2, orders[0]), (3, orders[1]), (4, orders[2]), (5, orders[3])):
            whole = {**other, "device_traces": traces}
            where = write("order.pickle", pickle.dumps({key: whole[key] for key in order}, protocol=protocol))
            for want, options in ((most, ()), (first, ("--device", "0"))):
                run = zr("stats", where, "--json", *options)
                got = json.loads(run.stdout)["moments"]["now"]["requested_bytes"] if run.returncode == 0 else None
                good &= got == (want if want is None else 512 * want) or bool(note(f"{order} {options}: {got} {run.stderr}"))
        ok(good, f"{words}: found in any order of fields, by every protocol")


# ---- zr map ------------------------------------------------------------------------------------------------------------

def rows_of(run):
    """The map's rows without their addresses."""
    return [line[20:] for line in run.stdout.splitlines() if line.startswith("0x")]


def pixels(file):
    """A PNG of 8 bits and a palette: lines of (red, green, blue). zlib is Python's: it knows nothing of ours."""
    with open(file, "rb") as data:
        content = data.read()
    at, chunks = 8, {}
    while at < len(content):
        size, = struct.unpack(">I", content[at:at + 4])
        kind, body = content[at + 4:at + 8], content[at + 8:at + 8 + size]
        same(struct.unpack(">I", content[at + 8 + size:at + 12 + size])[0], zlib.crc32(kind + body), f"{kind}'s checksum")
        chunks[kind] = body
        at += 12 + size
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    lines, palette = zlib.decompress(chunks[b"IDAT"]), chunks[b"PLTE"]
    same(len(lines), height * (width + 1), "its lines")
    return [[tuple(palette[3 * entry:3 * entry + 3]) for entry in lines[y * (width + 1) + 1:(y + 1) * (width + 1)]]
            for y in range(height)]


def test_map():
    plain = {**os.environ, "LC_ALL": "C"}
    # 64 MiB in 64 cells: 8 live, 10 free, 6 live, 8 free; 20 free, 4 live; 4 pending, 4 free. The 6 lack 100 bytes, but a
    # block is as long as its place.
    want = "########" + "." * 10 + "######" + "." * 8 + "." * 20 + "####" + "pppp" + "...."
    run = zr("map", small, "--at", "now", "--columns", "84", "--rows", "1", env=plain)
    same(rows_of(run), [want], "each MiB as what it is, in ASCII")
    run = zr("map", small, "--columns", "52", "--rows", "2", env={**plain, "LC_ALL": "C.UTF-8"})
    lines = run.stdout.splitlines()
    same([len(line) for line in lines[1:3]], [52, 52], "as wide as it may be, without addresses where it is narrow")
    ok(lines[1].startswith("█" * 12 + "▇░") and "\033" not in run.stdout, "with bars where the locale has them, and no colour off a terminal")
    # 64 MiB in ever more cells, of which each says how large it is.
    footers = {rows: zr("map", small, "--at", "now", "--columns", "84", "--rows", str(rows), env=plain).stdout.splitlines()[-1].split("a cell is ")[1]
               for rows in (1, 2, 100)}
    same(footers, {1: "1.00 MiB", 2: "512 KiB", 100: "10.2 KiB"}, "a cell's size, in the unit that suits it")
    run = zr("map", small, "--at", "7", "--columns", "116", "--rows", "1", env=plain)
    # After the five that make what was there before, and two: 8 live, 24 free; 20 free, 4 live; 4 live, 4 free; 32 to go.
    same(rows_of(run), ["#" * 8 + "." * 24 + "." * 20 + "#" * 4 + "#" * 4 + "." * 4 + "." * 32], "and as it was before")
    ok(zr("map", small, "--at", "99", env=plain).returncode == 2, "a moment beyond the end is a mistake")
    picture = path("map.png")
    same(zr("map", small, "--at", "now", "-o", picture).returncode, 0, "a PNG")
    image = pixels(picture)
    cells = [pixel for line in image[::12] for pixel in line][:1200 * 32]
    per = len(cells) / 64
    colours = {"#": (0x6b, 0x8f, 0xc9), ".": (0xd9, 0xd9, 0xd9), "p": (0xed, 0xc9, 0x48)}
    wrong = [i for i, sign in enumerate(want) if cells[int((i + 0.5) * per)] != colours[sign] and
             (sign != "#" or cells[int((i + 0.5) * per)] != tuple(c - (c >> 3) for c in colours["#"]))]
    same(wrong, [], "its pixels have each block's colour where the block lies")
    same(zr("map", small, "--at", "now", "-o", path("map.svg")).returncode, 0, "an SVG")
    root = xml.etree.ElementTree.parse(path("map.svg")).getroot()
    group = next(child for child in root if child.tag.endswith("}g"))
    free = sum(int(rect.get("width")) for rect in group if rect.get("fill") == "#d9d9d9")
    ok(abs(free - 42 * 600) <= 12, f"as much is free in it as in memory: 42 of 64 MiB, 600 pixels each ({free})")
    refused("a CSV without places", 3, ["zr pack"], "map", lifetimes)
    refused("another kind of picture", 2, [".svg or .png"], "map", small, "-o", path("map.gif"))
    refused("a picture that cannot be written", 3, ["nowhere"], "map", small, "-o", path("nowhere/map.svg"))
    # A terminal: colours, unless NO_COLOR is set.
    for name, want in (("NO_COLOR", False), ("COLOUR", True)):
        out, terminal = pty.openpty()
        subprocess.run([ZR, "map", small, "--columns", "40", "--rows", "2"], stdout=terminal, timeout=HANG, check=False,
                       env={**plain, name: "1"}, stdin=subprocess.DEVNULL)
        os.close(terminal)
        same(b"\033[38;2;107;143;201m" in os.read(out, 65536), want, f"on a terminal with {name}")
        os.close(out)


# ---- zr why ------------------------------------------------------------------------------------------------------------

def live(size):
    return size * MIB, size * MIB, "active_allocated", FRAMES[0]


def free(size):
    return size * MIB, 0, "inactive", ()


def made(name, *segments):
    """A snapshot of segments alone: (stream, type, blocks)."""
    return write(name, pickle.dumps(snapshot([((index + 1) << 32, *segment) for index, segment in enumerate(segments)], [])))


# One run of 64 MiB, 2 MiB in the middle of what is free. A run that lacks what is pending. A large run, and a small pool
# that is full.
split = made("split.pickle", (0, "large", [live(20), free(10), live(2), free(10), live(22)]))
pending = made("pending.pickle", (0, "large", [free(10), (6 * MIB, 6 * MIB, "active_awaiting_free", ()), free(10), live(6)]))
pools = made("pools.pickle", (0, "small", [live(1), live(1)]), (0, "large", [free(10), live(10)]))
# File, options, verdict, free bytes and longest run in MiB, pins in MiB (each 4 GiB apart: the segment's number at 2^32).
WHY = [
    # The first segment's free run of 10 takes it.
    (small, ["--size", "10MiB"], "fits", 43, 10, []),
    # 20 are free in one piece, of stream 7; without the 4 beside them the whole segment of 24 could go back.
    (small, [], "stream", 43, 10, [(0x21400000, 4)]),
    (small, ["--stream", "7"], "fits", 43, 20, []),
    # 43 free; 22 in no run, nor with the pending 4 (a run of 8, or 8 + 1 given back).
    (small, ["--size", "22MiB"], "fragmentation", 43, 10, [(0x21400000, 4)]),
    (small, ["--size", "44MiB"], "shortage", 43, 10, None),
    (small, ["--size", "44MiB", "--capacity", "108MiB"], "fits", 86, 10, []),
    # 10 + 2 + 10 are a run for 20.
    (split, ["--size", "20MiB"], "fragmentation", 20, 10, [((1 << 32) + 30 * MIB, 2)]),
    (split, ["--size", "21MiB"], "shortage", 20, 10, [((1 << 32) + 30 * MIB, 2)]),
    (pending, ["--size", "20MiB"], "pending", 20, 10, [((1 << 32) + 10 * MIB, 6)]),
    # 1 MiB is of the small pool: no run there, and not 2 MiB for a segment; one of the two blocks in the way.
    (pools, ["--size", "1MiB"], "pool", 10, 0, [((1 << 32), 1)]),
    # Free: 1 of the first granule, 1 of the second, and the third. 3 MiB are a run; for 4 the second granule must be empty.
    (holes_file, ["--size", "3MiB"], "fits", 4, 3, []),
    (holes_file, ["--size", "4MiB"], "fragmentation", 4, 3, [(BASE + 2 * MIB, 1)]),
    (holes_file, [], "shortage", 4, 3, []),
]


def test_why():
    for file, options, verdict, free_mib, run_mib, pins in WHY:
        words = f"{os.path.basename(file)} {' '.join(options)}"
        report = parsed("why", file, *options)
        same((report["verdict"], report["free_bytes"], report["largest_free_run_bytes"]),
             (verdict, free_mib * MIB, run_mib * MIB), f"{words}: {verdict}, free, run")
        if pins is not None:
            same([(pin["address"], pin["bytes"] // MIB) for pin in report["pins"]], pins, f"{words}: the pins")
            same(report["pins_proved"], bool(pins), f"{words}: without which it fits")
    report = parsed("why", small)
    same(report["pins"][0]["stack"], ["at::empty (??:0)", "forward (train.py:12)"], "a pin's stack")
    same((report["capacity_bytes"], report["capacity_assumed"]), (65 * MIB, False), "the capacity is what was reserved and left")
    run = zr("why", small)
    ok(run.returncode == 0 and "refused" in run.stdout and "forward (train.py:12)" in run.stdout, "in words") or note(run.stdout)
    # 20 of 64 MiB are free, in pieces; 5 % of 64 is what a caching allocator loses anyway.
    report = parsed("why", split)
    same([(one["reason"], one["bytes"]) for one in report["reasons"]], [("fragmentation", 20 * MIB - 64 * MIB // 20)],
         "without a refusal: why it is as large as it is")
    same((report["verdict"], report["remedies"], report["pins"]), ("fits", [], []), "and nothing is replayed")
    refused("no idea of the capacity", 2, ["--capacity"], "why", rmm)
    refused("a size that is none", 2, ["--size"], "why", split, "--size", "big")


def test_remedies():
    """Each remedy says what zr replay says of a trace that goes on with the request."""
    events, capacity = [(MAP, 0, 64 * GRANULE, "other", 0), (MARK, "forward", 0, "other", 0)], 32 * MIB
    for i in range(8):  # 8 times 3 and 1 MiB, then the 3s go: 24 free of 32 in runs of 3, and 8 granules of 2 whole
        events += [(ALLOC, 8 * i * MIB, 3 * MIB, "activation", 0), (ALLOC, (8 * i + 4) * MIB, MIB, "param", 0)]
    events += [(FREE, 8 * i * MIB, 0, "activation", 0) for i in range(8)] + [(MARK, "step", 0, "other", 0)]
    asked = write("asked.zrt", zrt(events + [(REFUSED, 0, 14 * MIB, "grad", 0)]))
    twin = write("twin.zrt", zrt(events + [(ALLOC, 64 * MIB, 14 * MIB, "grad", 0)]))
    remedies = {one["change"]: one for one in parsed("why", asked, "--capacity", str(capacity))["remedies"]}
    run = zr("replay", twin, "--capacity", str(capacity), "--json")
    replayed = {one["policy"]: one for one in json.loads(run.stdout)["results"]}
    for policy, one in replayed.items():
        same(remedies[policy]["fits"], one["failed_at"] is None, f"{policy}: as zr replay has it")
        if one["failed_at"] is None:
            same(remedies[policy]["peak_reserved_bytes"], one["peak_reserved_bytes"], f"{policy}: and as much")
            continue
        need = remedies[policy]["peak_reserved_bytes"]
        # PyTorch's needs 2 segments of 20 MiB for the 3s alone.
        same((remedies[policy]["short_bytes"], remedies[policy]["where"]),
             (need - capacity, "step" if policy == "bestfit" else "forward"), f"{policy}: short, and where")
        again = json.loads(zr("replay", twin, "--capacity", str(need), "--policy", policy, "--json").stdout)
        same(again["results"][0]["failed_at"], None, f"{policy}: with what it needs it runs")
    same([remedies[change]["fits"] for change in ("zr", "plan", "bestfit")], [True, True, False], "granules move, runs do not")


# ---- zr diff -----------------------------------------------------------------------------------------------------------

# Against small.pickle, whose peaks are 36 MiB live and 96 reserved; split.pickle has 44 and 64.
CONDITIONS = [("peak_reserved_bytes > 0.66x", 1), ("peak_reserved_bytes > 0.67x", 0), ("peak_reserved_bytes < 1x", 1),
              ("peak_live_bytes > +7MiB", 1), ("peak_live_bytes > +8MiB", 0), ("peak_live_bytes>=+8MiB", 1),
              ("peak_live_bytes > +22%", 1), ("peak_live_bytes > +23%", 0), ("peak_live_bytes != 44MiB", 0),
              ("now.pending_bytes == 0", 1), ("failures > 0 , peak_live_bytes == 46137344", 1), ("failures >= 1", 0),
              ("gmlake_ratio > 0.3125", 0), ("gmlake_ratio >= 0.31", 1)]


def test_diff():
    for condition, code in CONDITIONS:
        run = zr("diff", small, split, "--fail-if", condition)
        same((run.returncode, "zr: diff: " in run.stderr), (code, bool(code)), condition)
    report = parsed("diff", small, split, "--fail-if", "failures > 5, peak_live_bytes > 1x, now.live_bytes>1GB", code=0 + 1)
    same(report["failed"], ["peak_live_bytes > 1x"], "the condition that holds")
    figures = {one["name"]: (one["a"], one["b"]) for one in report["figures"]}
    same([figures[name] for name in ("peak_live_bytes", "peak_reserved_bytes", "failures", "allocations")],
         [(36 * MIB, 44 * MIB), (96 * MIB, 64 * MIB), (1, 0), (5, 3)], "figures side by side")
    # At the peaks: of `forward` 8 + 4 (a block that goes has the stack of its event, which is none), then 44.
    grown = {one["of"]: (one["a_bytes"], one["b_bytes"]) for one in report["growth"]}
    same(grown["forward (train.py:12)"], (12 * MIB, 44 * MIB), "growth by stack")
    grown = {one["of"]: one["b_bytes"] for one in parsed("diff", rmm, holes_file)["growth"]}
    same(grown, {"param": MIB, "grad": MIB, "activation": MIB, "other": 0}, "and by tag")
    # Policies: what zr replay says of the same.
    want = {one["policy"]: one for one in parsed("replay", split, "--policy", "caching,zr,bestfit")["results"]}
    for files, policies in (((split,), ("caching", "zr")), ((split, split), ("bestfit", "bestfit"))):
        report = parsed("diff", *files, "--policy", ",".join(policies if len(files) == 1 else policies[:1]))
        figures = {one["name"]: [one["a"], one["b"]] for one in report["figures"]}
        same((report["policies"], figures["replay.peak_reserved_bytes"], figures["replay.driver_calls"], figures["replay.failed"]),
             (list(policies), [want[policy]["peak_reserved_bytes"] for policy in policies], [want[policy]["driver_calls"] for policy in policies],
              [0, 0]), f"{len(files)} files under {policies}")
    lower = want["zr"]["lower_bound_bytes"]
    report = parsed("diff", split, "--policy", "zr,caching", "--capacity", str(lower - MIB), "--fail-if", "replay.failed > 0", code=1)
    same(report["failed"], ["replay.failed > 0"], "a device that is too small fails the condition")
    same([one["a"] for one in parsed("diff", small, split)["figures"] if one["name"].startswith("replay.")], [None] * 4, "no policy, no replay")
    for policies in ("zr,", ",zr", "zr,zr,zr", "best", "zr"):
        refused(f"--policy {policies} of one file", 2, ["diff: "], "diff", small, "--policy", policies)
    run = zr("diff", small, split)
    ok(run.returncode == 0 and "forward (train.py:12)" in run.stdout, "the table") or note(run.stdout + run.stderr)
    for words, names in (("peak > 1", ["no figure 'peak'", "now.live_bytes"]), ("failures 3", ["'failures'", "'3'"]),
                         ("failures > many", ["1.05x", "'many'"]), ("failures > 3 or 4", ["comma", "'or 4'"]), ("failures > 3,", ["a figure is missing"])):
        refused(f"--fail-if '{words}'", 2, names, "diff", small, split, "--fail-if", words)
    refused("a figure that is not known", 2, ["does not contain peak_reserved_bytes"], "diff", small, rmm, "--fail-if", "peak_reserved_bytes > 1x")
    refused("one file", 2, ["two files"], "diff", small)


# ---- zr export ---------------------------------------------------------------------------------------------------------

def exported(kind, file, *options):
    where = path(f"{os.path.basename(file)}.{kind}")
    run = zr("export", "--format", kind, file, "-o", where, *options)
    same((run.returncode, run.stdout, run.stderr), (0, "", ""), f"{os.path.basename(file)} as {kind}")
    return where


def moments(file, *keys):
    report = parsed("stats", file)["moments"]
    return [[moment[key] for key in keys] for moment in report.values()]


def fields(data):
    """A protobuf message: (field, number or bytes)."""
    at = 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    while at < len(data):
        key = number()
        value = number()
        if key & 7 == 2:
            at += value
            value = data[at - value:at]
        yield key >> 3, value


def read_pprof(file):
    """{stack, from the innermost: (bytes, blocks)}"""
    with open(file, "rb") as content:
        profile = list(fields(content.read()))
    texts = [value.decode() for field, value in profile if field == 6]
    names = {dict(fields(value))[1]: texts[dict(fields(value))[2]] for field, value in profile if field == 5}
    places = {dict(fields(value))[1]: names[dict(fields(dict(fields(value))[4]))[1]] for field, value in profile if field == 4}
    types = [[texts[value] for _, value in fields(value)] for field, value in profile if field == 1]
    same((texts[0], types), ("", [["inuse_space", "bytes"], ["inuse_objects", "count"]]), "pprof's texts and types")
    found = {}
    for field, value in profile:
        if field == 2:
            sample = {key: [number for _, number in fields(b"".join(b"\x08" + part for part in split_varints(packed)))]
                      for key, packed in fields(value)}
            stack = tuple(places[place] for place in sample[1])
            before = found.get(stack, (0, 0))
            found[stack] = (before[0] + sample[2][0], before[1] + sample[2][1])
    return found


def split_varints(packed):
    part = b""
    for byte in packed:
        part += bytes([byte])
        if byte < 128:
            yield part
            part = b""


def states(file):
    """The state of each block of a snapshot that is not free, by address."""
    with open(file, "rb") as data:
        blocks = [block for segment in pickle.load(data)["segments"] for block in segment["blocks"]]
    return {block["address"]: block["state"] for block in blocks if block["state"] != "inactive"}


def test_export():
    whole = ["live_bytes", "requested_bytes", "reserved_bytes", "pending_bytes", "stranded_bytes", "releasable_bytes"]
    same(moments(exported("torch", small), *whole), moments(small, *whole), "a snapshot comes back as it was")
    same(states(path("small.pickle.torch")), states(small), "and each block's state, as Python reads it")
    stacks = [[{"name": name, "filename": "train.py", "line": 7}, {"name": "main", "filename": "train.py", "line": 9}] for name in "ab"]
    framed = snapshot([], [event("alloc", 512 * i, 512, frames=list(map(dict, stacks[i % 2]))) for i in range(1, 7)])
    with open(exported("torch", write("framed.pickle", pickle.dumps(framed))), "rb") as data:
        lists = [one["frames"] for one in pickle.load(data)["device_traces"][0]]
    same(lists, [stacks[i % 2] for i in range(1, 7)], "stacks come back")
    same((len({id(frames) for frames in lists}), len({id(frames[1]) for frames in lists})), (2, 1), "and are written once, as their frames are")
    zrt_as_torch = exported("torch", holes_file)
    keys = whole[:3] + whole[4:]
    same(moments(zrt_as_torch, *keys), moments(holes_file, *keys), "and a trace as a snapshot has its figures")
    # Blocks nearer to one another than PyTorch's, which are multiples of 512 bytes: one from before the window, and one of it.
    close = [(MAP, 0, GRANULE, "other", 0), (ALLOC, 0, 700, "param", 0), (BEGIN, 0, 0, "other", 0), (ALLOC, 768, 700, "grad", 0),
             (ALLOC, 1536, MIB, "grad", 0), *[(FREE, at, 0, "param", 0) for at in (0, 768, 1536)]]
    close = write("close.zrt", zrt(close))
    same(moments(exported("torch", close), *keys), moments(close, *keys), "and so has one of blocks of other sizes than PyTorch's")
    with open(zrt_as_torch, "rb") as data:
        loaded = pickle.load(data)
    segment, = loaded["segments"]
    same({key: segment[key] for key in ("address", "total_size", "allocated_size", "active_size", "segment_type", "stream",
                                        "segment_pool_id", "is_expandable", "device", "frames")},
         {"address": BASE, "total_size": 6 * MIB, "allocated_size": 2 * MIB, "active_size": 2 * MIB, "segment_type": "large",
          "stream": 0, "segment_pool_id": (0, 0), "is_expandable": True, "device": 0, "frames": []}, "Python reads the segment")
    same([(b["address"] - BASE, b["size"], b["state"]) for b in segment["blocks"]],
         [(0, MIB, "active_allocated"), (MIB, MIB, "inactive"), (2 * MIB, MIB, "active_allocated"), (3 * MIB, 3 * MIB, "inactive")],
         "its blocks")
    same([(e["action"], e.get("addr", BASE) - BASE, e["size"], e["time_us"]) for e in loaded["device_traces"][0]],
         [("segment_map", 0, 6 * MIB, 1), ("alloc", 0, MIB, 2), ("alloc", 2 * MIB, MIB, 3), ("alloc", 3 * MIB, MIB, 5),
          ("free_requested", 3 * MIB, MIB, 6), ("free_completed", 3 * MIB, MIB, 6), ("oom", 0, 8 * MIB, 7)], "and the events")
    for kind in ("rmm", "minimalloc"):
        report = parsed("stats", exported(kind, holes_file))
        same((report["moments"]["peak"]["requested_bytes"], report["failures"]), (3 * MIB, int(kind == "rmm")), f"{kind} is read again")
    with open(exported("perfetto", holes_file), encoding="utf-8") as data:
        events = json.load(data)["traceEvents"]
    same([(e["ts"], e["args"]) for e in events if e["ph"] == "C" and e["name"] == "live bytes"][-1],
         (6, {"param": MIB, "grad": MIB, "activation": 0}), "Perfetto's last counter")
    same([(e["ts"], e["name"]) for e in events if e["ph"] == "i"], [(4, "h.31 forward"), (7, "allocation refused")], "and its marks")
    same(read_pprof(exported("pprof", small, "--at", "now")),
         {("at::empty (??:0)", "forward (train.py:12)", "other"): (12 * MIB, 2), ("at::empty (??:0)", "step (train.py:40)", "other"): (6 * MIB, 1),
          ("other",): (4 * MIB, 1)}, "pprof's samples, by stack")
    same(read_pprof(exported("pprof", holes_file)), {(tag,): (MIB, 1) for tag in ("param", "grad", "activation")}, "or by tag, at the peak")
    with open(exported("csv", holes_file), encoding="utf-8") as data:
        rows = list(csv.DictReader(data))
    same([row["event"] for row in rows], ["map", "alloc", "alloc", "mark", "alloc", "free", "refused"], "CSV: every event")
    same((rows[3]["label"], rows[2]["tag"], rows[2]["address"]), ("h.31 forward", "grad", str(BASE + 2 * MIB)), "with what it says")
    refused("no format", 2, ["torch, rmm"], "export", small)
    refused("a log without segments as a snapshot", 3, ["mapped ranges"], "export", "--format", "torch", rmm)
    refused("lifetimes as a log", 3, ["addresses of blocks"], "export", "--format", "rmm", lifetimes)
    refused("a file that cannot be written", 3, ["nowhere"], "export", "--format", "csv", small, "-o", path("nowhere/x"))


# ---- zr import ---------------------------------------------------------------------------------------------------------

def imported(file, *options):
    where = path(f"{os.path.basename(file)}.imported.zrt")
    run = zr("import", file, "-o", where, *options)
    same((run.returncode, run.stdout, run.stderr), (0, "", ""), f"{os.path.basename(file)} is imported")
    with open(where, "rb") as data:
        same(data.read(4), b"ZRT1", "as a .zrt")
    return where


def whole(file, *options):
    """All that zr stats says of a file, but for what it is."""
    report = parsed("stats", file, *options)
    return {key: report[key] for key in report if key != "format"} if report else file


def test_import():
    # A mark with a comma, quotes and a line break; requests that are no multiples; a log that begins in the middle.
    marked = write("marked.zrt", zrt(holes + [(MARK, 'a, "b"\nc', 0, "other", 0), (ALLOC, 3 * MIB + 256, 100, "comm", 5)]))
    page = {"is_expandable": True}
    parts = snapshot([(1 << 33, 3, "large", [(4 * MIB, 4 * MIB - 1, "active_allocated", ()), (6 * MIB, 0, "inactive", ())])],
                     [event("segment_map", 1 << 33, 10 * MIB, 3, 1), event("alloc", 1 << 33, 4 * MIB - 1, 3, 2),
                      event("segment_map", (1 << 33) + 10 * MIB, 2 * MIB, 3, 3), event("segment_unmap", (1 << 33) + 10 * MIB, 2 * MIB, 3, 4)])
    parts["segments"][0].update(page)
    expandable = write("parts.pickle", pickle.dumps(parts))
    # Segments of 2 MiB that begin on odd places: the trace has a granule that divides those as well.
    odd = write("odd.pickle", pickle.dumps(snapshot(
        [((1 << 33) + MIB // 2, 3, "large", [(2 * MIB, 2 * MIB, "active_allocated", ())]),
         ((1 << 33) + 5 * MIB, 3, "large", [(2 * MIB, 0, "inactive", ())])],
        [event("segment_alloc", (1 << 33) + MIB // 2, 2 * MIB, 3, 1), event("alloc", (1 << 33) + MIB // 2, 2 * MIB, 3, 2),
         event("segment_alloc", (1 << 33) + 5 * MIB, 2 * MIB, 3, 3)])))
    files = [small, holes_file, marked, expandable, odd, pools, rmm, lifetimes] + [file for file in SHARED if os.path.exists(file)]
    for file in files:
        name = os.path.basename(file)
        trace, rows = imported(file), exported("csv", file)
        same(whole(trace), whole(file), f"{name}: the same figures of the trace")
        said = whole(file)
        for moment in said["moments"].values():
            moment["pending_bytes"] = moment["pending_bytes"] if file not in (expandable, odd, pools) else None  # no row says anything of it
        same(whole(rows), said, f"{name}: and of all events as CSV")
        same(whole(imported(rows)), said, f"{name}: and of these as a trace")
        with open(trace, "rb") as one, open(imported(trace), "rb") as other:
            same(one.read() == other.read(), True, f"{name}: a trace is imported as it is")
        replays = [parsed("replay", one, "--policy", "caching,bestfit") for one in (file, trace, rows)]
        counted = [[(row["policy"], row["lower_bound_bytes"], row["peak_reserved_bytes"], row["driver_calls"])
                    for row in replay["results"]] for replay in replays]
        same(counted[1:], counted[:1] * 2, f"{name}: the same replays")
        if file in (small, expandable, odd, pools):
            same(states(exported("torch", trace)), states(file), f"{name}: each block's state, back as a snapshot")
            answers = [parsed("why", one, "--size", "1MiB" if file == pools else "20MiB") for one in (file, trace)]
            for answer in answers:
                for pin in answer["pins"]:
                    pin.pop("stack")
                for key in ("device", "devices"):  # of a snapshot
                    answer.pop(key, None)
            same(answers[1], answers[0], f"{name}: the same verdict, by PyTorch's rules")
    with open(exported("csv", imported(marked)), encoding="utf-8") as data:
        same([row["label"] for row in csv.DictReader(data) if row["event"] == "mark"], ["h.31 forward", 'a, "b" c'], "labels come through")
    # Through pipes, both ends.
    with open(rmm, "rb") as data:
        run = subprocess.run([ZR, "import", "-"], stdin=data, capture_output=True, timeout=HANG)
    piped = subprocess.run([ZR, "stats", "-", "--json"], input=run.stdout, capture_output=True, timeout=HANG)
    same({**json.loads(piped.stdout), "format": 0}, {**whole(rmm), "format": 0}, "standard input and output")
    # Rows of another program, in columns of its own order.
    rows = write("rows.csv", "bytes, event ,colour,address\n100,alloc,red,0x1000\n50,alloc,\"dark, red\",0x2000\n0,free,red,0x1000\n")
    same([m["live_bytes"] for m in whole(imported(rows))["moments"].values()], [50, 150], "any program's columns are read")
    # Damage: what comes before a cut is read, and said.
    for file, cut, live in ((rmm, 132, 300), (lifetimes, 33, 4), (exported("csv", rmm), -65, 350)):
        with open(file, "rb") as data:
            content = data.read()
        short = write("short" + os.path.basename(file), content[:cut])
        run = zr("import", short, "-o", path("short.zrt"))
        ok(run.returncode == 0 and "truncated" in run.stderr, f"{os.path.basename(file)}: a cut is said: {run.stderr.strip()}")
        report = parsed("stats", path("short.zrt"))
        same(report["moments"]["peak"]["requested_bytes"], live, "and what is before it is imported")
        run = zr("replay", short)
        ok(run.returncode == 0 and "truncated" in run.stderr, "zr replay says it, too")
    with open(holes_file, "rb") as data:
        short = write("short.zrt", data.read()[:-3])
    run = zr("import", short, "-o", path("again.zrt"))
    ok(run.returncode == 0 and "truncated" in run.stderr and zr("stats", path("again.zrt")).stderr == "",
       "a cut trace becomes a whole one of what it holds")
    for words, content in (("an event of no kind", "1,take,0x1000"), ("bytes that are none", "x,alloc,1"), ("no column left", "1,alloc")):
        refused(words, 3, ["line 2"], "import", write("bad.csv", f"bytes,event,address,tag\n{content}\n1,alloc,9\n"))
    refused("a tag of no name", 3, ["line 2", "tag 'bag'"], "import", write("bad.csv", "bytes,event,address,tag\n1,alloc,1,bag\n"))
    refused("a column twice", 3, ["more than one"], "import", write("bad.csv", "bytes,event,address,bytes\n1,alloc,1,1\n"))
    refused("addresses too far apart", 3, ["2^62"], "import",
            write("bad.csv", "event,address,bytes\nalloc,1,1\nalloc,0xfffffffffffffff0,1\n"))
    refused("another kind of file than was said", 3, ["rmm, not torch"], "import", "--format", "torch", rmm)
    refused("counters", 2, ["not blocks"], "import", "--format", "perfetto", rmm)


test_stats()
test_stats_at()
test_opcodes()
test_orders()
test_map()
test_why()
test_remedies()
test_diff()
test_export()
test_import()
test_damage()
test_shared()
done()
