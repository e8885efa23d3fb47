#!/usr/bin/env python3
"""What zr export writes as torch, read by PyTorch's own functions (torch/cuda/_memory_viz.py): none fails, and their sums
are zr's to the byte."""
import base64
import collections
import contextlib
import io
import json
import os
import pickle
import re
import subprocess
import sys

sys.path.insert(0, "tests/support")
import memory_viz
from zrtest import BUILD, LONG_HANG, ZR_TRAIN, arguments, done, note, ok, path, same, skip, text_file

ZR = os.path.abspath(os.path.join(BUILD, "bin", "zr"))
VIZ = memory_viz.load()


def zr(*words):
    run = subprocess.run([ZR, *words], capture_output=True, text=True, timeout=LONG_HANG)
    if run.returncode:
        note(run.stderr)
    return run


def trained():
    """A trace of a trainer: granules that come and go, tags, marks."""
    where = path("train.zrt")
    subprocess.run([ZR_TRAIN, *arguments(data=text_file(), steps=3, layers=2, hidden=64, heads=4, seq=32, batch=2, trace=where)],
                   capture_output=True, timeout=LONG_HANG)
    return where


def refused():
    """A snapshot with a refusal, pending frees, two streams and Python frames."""
    mib = 1 << 20
    frames = [{"name": "at::empty", "filename": "??", "line": 0}, {"name": "step", "filename": "/home/me/train.py", "line": 40}]

    def block(size, requested, state):
        return {"size": size, "requested_size": requested, "state": state, "frames": frames}

    def event(action, address, size, stream, time):
        where = "device_free" if action == "oom" else "addr"
        return {"action": action, where: address, "size": size, "stream": stream, "time_us": time, "frames": frames}
    base = 0x7f0000000000
    whole = {"segments": [{"device": 0, "address": base, "total_size": 24 * mib, "stream": 7, "segment_type": "large",
                           "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "allocated_size": 4 * mib,
                           "active_size": 8 * mib, "requested_size": 4 * mib - 100,
                           "blocks": [block(4 * mib, 4 * mib - 100, "active_allocated"), block(4 * mib, 4 * mib, "active_awaiting_free"),
                                      block(16 * mib, 0, "inactive")]}],
             "device_traces": [[event("segment_alloc", base, 24 * mib, 7, 1), event("alloc", base, 4 * mib - 100, 7, 2),
                                event("alloc", base + 4 * mib, 4 * mib, 7, 3), event("free_requested", base + 4 * mib, 4 * mib, 7, 4),
                                event("oom", 3 * mib, 64 * mib, 7, 5)]]}
    with open(path("refused.pickle"), "wb") as file:
        pickle.dump(whole, file)
    return path("refused.pickle")


def sums(lines):
    """Bytes of a flame graph's lines: by state, and all that are rounding or free."""
    found = collections.Counter()
    for line in lines.splitlines():
        stack, size = line.rsplit(" ", 1)
        state = next(part for part in stack.split(";") if part in ("active_allocated", "active_awaiting_free", "inactive"))
        found[state] += int(size)
        found["requested"] += int(size) if state == "active_allocated" and not stack.endswith("<gaps>") else 0
    return found


def check(file):
    name = os.path.basename(file)
    torch = path(f"{name}.torch")
    if not ok(zr("export", "--format", "torch", file, "-o", torch).returncode == 0, f"{name} is exported"):
        return
    report = json.loads(zr("stats", file, "--json").stdout)
    now = report["moments"]["now"]
    with open(torch, "rb") as data:
        snapshot = pickle.load(data)
    want = {"active_allocated": now["live_bytes"], "active_awaiting_free": now["pending_bytes"] or 0, "requested": now["requested_bytes"]}
    for function in (VIZ.segments, VIZ.memory):
        got = sums(function(snapshot, format_flamegraph=str))
        same({key: got[key] for key in want}, want, f"{name}: {function.__name__}() sums what is live, pending and requested")
        same(sum(got[state] for state in ("active_allocated", "active_awaiting_free", "inactive")), now["reserved_bytes"],
             f"{name}: and all that is reserved")
    VIZ._format_size = str  # its sums as they are, not to a decimal
    text = VIZ.segsum(snapshot)
    same([int(re.search(rf"^{key}: (\d+)", text, re.M)[1]) for key in ("total_reserved", "total_allocated", "total_free")],
         [now["reserved_bytes"], now["requested_bytes"], now["reserved_bytes"] - now["requested_bytes"]], f"{name}: segsum()")
    events = snapshot["device_traces"][0]
    text = VIZ.trace(snapshot)
    ok(f"{len(events)} entries" in text and text.count("raise OutOfMemoryError") == report["failures"],
       f"{name}: trace() has {len(events)} events and {report['failures']} refusals")
    with contextlib.redirect_stdout(io.StringIO()) as said:
        lines = VIZ.compare(snapshot["segments"], snapshot["segments"], format_flamegraph=str)
    same((lines, said.getvalue()), ("", "only_before = []\nonly_after = []\n"), f"{name}: compare() with itself")
    for page in (VIZ.trace_plot(snapshot), VIZ.trace_plot(snapshot, plot_segments=True), VIZ.segment_plot(snapshot)):
        held = json.loads(re.search(r"local_files = (\[.*\])", page)[1])[0]["base64"]
        same(pickle.loads(base64.b64decode(held)) == snapshot, True, f"{name}: a page of it holds all of it")
    return snapshot


if isinstance(VIZ, str):
    skip(VIZ)
    done()
note(VIZ.__file__)
check(trained())
snapshot = check(refused())
same(sorted(set(line.rsplit(" ", 1)[0].split(";", 3)[-1] for line in VIZ.segments(snapshot, format_flamegraph=str).splitlines())),
     ["<gaps>", "<non-python>", "train.py:40:step;??:0:at::empty"], "frames have their functions, files and lines")
for context in (128, 512):
    file = f"../shared/traces/torch_medium_{context}_training.pickle"
    check(file) if os.path.exists(file) else skip(f"{file} is not here")
done()
