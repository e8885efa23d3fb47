#!/usr/bin/env python3
"""zr report: the page is well formed and asks nothing of a network; its columns, unpacked here, hold what was drawn."""
import base64
import html.parser
import json
import os
import pickle
import re
import subprocess
import sys
import zlib

sys.path.insert(0, "tests/support")
from zrtest import BUILD, HANG, SEED, done, made_in, note, ok, path, same, skip
from drawn_snapshot import CATEGORIES, write_devices
from drawn_trace import BASE, GRANULE, TAGS, Trace

ZR = os.path.abspath(os.path.join(BUILD, "bin", "zr"))
SHARED = "../shared/traces/torch_medium_128_training.pickle"
VOID = {"meta", "link", "input", "br"}


def zr(*arguments, **settings):
    settings.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run([ZR, *arguments], capture_output=True, text=True, errors="replace", timeout=HANG, **settings)


def refused(words, code, name, *arguments):
    run = zr("report", *arguments)
    ok(run.returncode == code and run.stdout == "" and name in run.stderr, f"{words}: exit {code}, and {name!r} is said") or note(run)


class Page(html.parser.HTMLParser):
    """Elements in balance, what they refer to, and the columns: {(file, name): bytes}."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.wrong, self.refers, self.columns, self.ids, self.column = [], [], [], {}, set(), None
        self.feed(text)
        self.close()
        self.wrong += self.open

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.refers += [value for name, value in attributes.items() if name in ("src", "href", "action", "data", "srcset")]
        self.ids.add(attributes.get("id"))
        if tag not in VOID:
            self.open.append(tag)
        if "data-column" in attributes:
            self.column = (int(attributes["data-file"]), attributes["data-column"], int(attributes["data-bytes"]))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)
        self.column = None

    def handle_data(self, data):
        if self.column:
            file, name, size = self.column
            plain = zlib.decompress(base64.b64decode(data, validate=True))
            if len(plain) != size:
                self.wrong.append(name)
            self.columns[file, name] = plain


def numbers(data):
    out, number, shift = [], 0, 0
    for byte in data:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            out.append(number)
            number = shift = 0
    return out


def sums(values, signed=False):
    total, out = 0, []
    for value in values:
        total += (value >> 1) ^ -(value & 1) if signed else value
        out.append(total)
    return out


class Data:
    """What a page holds of one file."""

    def __init__(self, page, file):
        def get(name):
            return numbers(page.columns[file, name])
        self.meta = json.loads(page.columns[file, "meta"])
        starts, ages, made = sums(get("alloc_moment")), get("free_age"), 0
        ends = [None] * len(starts)
        for moment, age in zip(sums(get("free_moment")), ages):
            while made < len(starts) and starts[made] < moment:
                made += 1
            ends[made - 1 - age] = moment
        asked = get("alloc_bytes")
        self.blocks = [list(row) for row in zip(starts, ends, sums(get("alloc_place"), True) or [None] * len(starts),
                                                [a + b for a, b in zip(asked, get("alloc_rounding"))], asked, get("alloc_tag"),
                                                get("alloc_stream"))]
        self.stack = get("alloc_stack")
        self.cells = page.columns[file, "cells"]
        values = TAGS + 3
        self.start, self.peak = ([sums(get(name)[k::values], True) for k in range(values)] for name in ("curve_start", "curve_peak"))
        row = get("maps")
        self.maps = [tuple(row[i:i + 7]) for i in range(0, len(row), 7)]
        row = get("refused")
        self.refused = [tuple(row[i:i + 3]) for i in range(0, len(row), 3)]


def read(where):
    with open(where, encoding="utf-8") as file:
        text = file.read()
    page = Page(text)
    same(page.wrong, [], f"{os.path.basename(where)}: elements in balance, columns of their sizes")
    ok(not re.search(r"https?:|//[a-z0-9-]+\.[a-z]{2,}/|@import|url\(", text) and all(one.startswith("data:,") for one in page.refers),
       "and nothing in it is elsewhere") or note(page.refers)
    return page, text


def cell_areas(trace, meta):
    """The cells by adding up each block's part of each, one after the other."""
    width, rows = meta["column_moments"], meta["rows_count"]
    areas = {}
    for begin, end, place, size, _, tag, _ in trace.blocks:
        end = meta["moments_count"] if end is None else end
        for column in range(begin // width, (end - 1) // width + 1):
            passed = min(end, (column + 1) * width) - max(begin, column * width)
            for row in range(place // meta["row_bytes"], (place + size - 1) // meta["row_bytes"] + 1):
                part = min(place + size, (row + 1) * meta["row_bytes"]) - max(place, row * meta["row_bytes"])
                areas.setdefault(column * rows + row, [0] * TAGS)[tag] += passed * part
    return areas


def test_drawn():
    trace = Trace(6000, SEED, live=300, granules=40)
    run = zr("report", trace.write(path("drawn.zrt")), "-o", path("drawn.html"))
    same((run.returncode, run.stdout, run.stderr), (0, "", ""), "a page of a trace, and no words off a terminal")
    ok(not [name for name in os.listdir(path("")) if "partial" in name], "what is written aside is gone")
    page, _ = read(path("drawn.html"))
    data = Data(page, 0)
    meta = data.meta
    same(data.blocks, trace.blocks, f"its {len(trace.blocks)} blocks: when, where, how large, of which tag and stream")
    same((meta["moments_count"], meta["axis_bytes"], meta["before_count"]), (trace.moment + 1, 40 * GRANULE, 0), "and the axes")
    same(numbers(page.columns[0, "bands"]), [BASE, 40 * GRANULE], "addresses begin where the trace has them")
    same((data.refused, data.maps), (trace.refused, [(1, 1, 0, 40 * GRANULE, 40 * GRANULE, 0, 0)]), "failures and maps")
    stats = json.loads(zr("stats", path("drawn.zrt"), "--json").stdout)["moments"]
    for name in ("now", "peak", "failure"):
        live = sum(trace.blocks[i][3] for i in trace.live_at(meta[name]["moment"]))
        same(live, meta[name]["live_bytes"], f"{name}: live bytes by the blocks")
        same({key: meta[name][key] for key in stats[name] if key != "pending_bytes"}, {key: value for key, value in stats[name].items() if key != "pending_bytes"},
             f"{name}: the figures of zr stats")
    step = meta["step_moments"]
    wrong = [i for i in range(0, len(data.start[0]), 37) if [sum(trace.blocks[b][3] for b in trace.live_at(i * step) if trace.blocks[b][5] == tag)
                                                              for tag in range(TAGS)] != [data.start[tag][i] for tag in range(TAGS)]]
    same(wrong, [], "the curve's steps begin with what is live by tag")
    totals = [sum(column) for column in zip(*data.peak[:TAGS])]
    same(max(totals), meta["peak"]["live_bytes"], "and none hides the peak")
    areas, whole = cell_areas(trace, meta), meta["row_bytes"] * meta["column_moments"]
    last = (len(data.cells) // meta["rows_count"] - 1) * meta["rows_count"]
    wrong = [i for i, cell in enumerate(data.cells[:last]) if (i in areas) != (cell > 0) or (cell and (
        areas[i][cell >> 4] != max(areas[i]) or abs((cell & 15) - max(1, 15 * sum(areas[i]) / whole)) > 0.51))]
    same(wrong, [], f"{last} cells of address x time have the tag and the part that the blocks come to")


def test_others():
    frames = [{"name": "</script><b>", "filename": "train.py", "line": 12}]
    event = [{"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "time_us": 1, "frames": frames},
             {"action": "free_requested", "addr": 4096, "size": 512, "stream": 0, "time_us": 2, "frames": []}]
    hostile = path("<b>&quot;.pickle")
    with open(hostile, "wb") as file:
        pickle.dump({"segments": [], "device_traces": [event], "allocator_settings": {}}, file)
    csv = path("lifetimes.csv")
    with open(csv, "w") as file:
        file.write("id,lower,upper,size\n0,0,2,4\n1,0,9,2\n")
    run = zr("report", hostile, csv, "-o", "-")
    ok(run.returncode == 0, "two files, to standard output") or note(run)
    with open(path("two.html"), "w") as file:
        file.write(run.stdout)
    page, text = read(path("two.html"))
    ok("<b>" not in text and page.columns[0, "frames"].endswith(b"</script><b> (train.py:12)"),
       "names and frames of a hostile file are data and no markup")
    one, other = Data(page, 0), Data(page, 1)
    same((one.meta["name"], one.stack, numbers(page.columns[0, "asked_moment"])), (hostile, [1], [2]), "a snapshot: its stack, its pending free")
    same((other.meta["has_addresses"], [block[3] for block in other.blocks], other.meta["rows_count"]), (False, [4, 2], 0), "a CSV has no addresses")
    if not os.path.exists(SHARED):
        return skip(f"{SHARED} is not here")
    same(zr("report", SHARED, "-o", path("shared.html")).returncode, 0, "a snapshot of PyTorch's")
    data = Data(read(path("shared.html"))[0], 0)
    with open(SHARED, "rb") as file:
        segments = pickle.load(file)["segments"]
    want = sorted(b["size"] for s in segments for b in s["blocks"] if b["state"] != "inactive")
    same(sorted(block[3] for block in data.blocks if block[1] is None), want, "its blocks at the end, as PyTorch lists them")


def test_snapshot():
    """Two devices, a private pool, annotations, what stacks tell, and the reasons of zr why."""
    where = write_devices(path("devices.pickle"))
    same(zr("report", where, "-o", path("devices.html")).returncode, 0, "a snapshot of two devices")
    page, text = read(path("devices.html"))
    one, other = Data(page, 0), Data(page, 1)
    same([(data.meta["device"], data.meta["devices"], data.meta["name"]) for data in (one, other)], [(1, 2, where), (0, 2, where)],
         "is shown once for each, the one that refused first")
    same(zr("report", where, "--device", "0", "-o", path("zero.html")).returncode, 0, "--device")
    ok((1, "meta") not in Page(open(path("zero.html")).read()).columns, "shows one alone")
    for data in (one, other):
        why = json.loads(zr("why", where, "--json", "--no-replay", "--device", str(data.meta["device"])).stdout)
        same(data.meta.get("reasons"), why["reasons"], f"device {data.meta['device']}: the reasons are those of zr why, of which there are {len(why['reasons'])}")
    ok(one.meta["reasons"] and one.meta["failure"], "a failure has reasons")
    names = [name for name, _ in one.meta["tags"]]
    same([names[block[5]] for block in one.blocks], CATEGORIES, "categories as the stacks tell them")
    live = [max(column) for column in one.peak]
    ok(all((live[names.index(name)] > 0) == (name in CATEGORIES) for name in names[:-1]), "and the curves are of them")
    same({(row[5], row[6]) for row in one.maps}, {(0, 0), (1, 0), (((3 * 65599) + 7) * 2, 5)}, "pools and streams of the segments")
    row, at, marks = page.columns[0, "marks"], 0, []
    while at < len(row):
        marks.append((row[at], row[at + 2:at + 2 + row[at + 1]].decode()))
        at += 2 + row[at + 1]
    before = one.meta["before_count"]
    same(marks, [(before + 4, "forward pass"), (before + 9, "mine"), (before + 12, "after all")], "annotations: the profiler's by time, and the trace's own")
    stacks, sizes, noise = numbers(page.columns[0, "stacks"]), [], []
    while stacks:
        sizes.append(stacks[0])
        noise.append(stacks[1])
        stacks = stacks[2 + stacks[0]:]
    same((max(sizes), max(noise)), (200, 1), "stacks are whole, and say which frames are the allocator's")
    ok(all(name in page.ids for name in ("reason", "device", "pool", "segment", "axis", "flame", "stack", "holders")), "the page has a place for each")


def test_mistakes():
    ok(zr("report", "--help").stdout.split("\n")[2] == "Examples", "the help begins with examples")
    trace = Trace(2000, SEED + 1, live=100, granules=40)
    whole, cut = trace.write(path("whole.zrt")), trace.write(path("cut.zrt"), cut=300)
    refused("no output", 2, "-o", whole)
    refused("no file", 2, "a file is missing", "-o", path("x.html"))
    refused("a file that is not there", 3, "gone", path("gone"), "-o", path("x.html"))
    refused("a folder that is not there", 3, "nowhere", whole, "-o", path("nowhere/x.html"))
    refused("a folder for a page", 3, "folder", whole, "-o", path(""))
    refused("the input for a page", 2, "input", whole, "-o", whole)
    for name, content in (("empty", b""), ("noise", b"\0\1\2" * 50)):
        with open(path(name), "wb") as file:
            file.write(content)
        refused(f"{name} for a trace", 3, name, path(name), "-o", path("x.html"))
    ok(not os.path.exists(path("x.html")) and not os.path.exists(path("x.html.partial")), "of what failed nothing is left")
    folder = path("made")
    os.mkdir(folder)
    with made_in(folder) as names:
        run = zr("report", cut, "-o", "-", env={**os.environ, "TMPDIR": folder})
        beside = zr("report", cut, "-o", os.path.join(folder, "cut.html"))
    same((run.returncode, beside.returncode, sorted(names)), (0, 0, ["cut.html.partial"]), "nothing has a name on the way but the page")
    run = zr("report", cut, "-o", path("cut.html"))
    ok(run.returncode == 0 and "truncated" in run.stderr, "a truncated trace is shown up to the cut") or note(run)
    ok(Data(read(path("cut.html"))[0], 0).meta["cut_short"], "and the page knows")
    with open(whole, "rb") as file:
        run = zr("report", "-", "-o", path("whole.html"), stdin=file)
    ok(run.returncode == 0 and "whole.html" in os.listdir(path("")), "standard input") or note(run)
    run = subprocess.run(f"{ZR} report {whole} -o /dev/full", shell=True, capture_output=True, text=True, timeout=HANG)
    ok(run.returncode == 3 and os.path.exists("/dev/full"), "a full device is said, and stays a device") or note(run)


test_drawn()
test_others()
test_snapshot()
test_mistakes()
done()
