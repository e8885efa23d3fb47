#!/usr/bin/env python3
"""Long PyTorch snapshots, made here, in memory that their length does not set: the figures as counted where they are made,
and the peak of resident memory of each subcommand. ZR_TEST_SNAPSHOT_BYTES: how long the longest is; soak_snapshot.t has
500 MB."""
import json
import os
import subprocess
import sys

sys.path.insert(0, "tests/support")
from drawn_snapshot import write_snapshot
from zrtest import BUILD, LONG_HANG, SEED, done, note, ok, path, same

ZR = os.path.abspath(os.path.join(BUILD, "bin", "zr"))
MIB = 1 << 20
LONG = int(os.environ.get("ZR_TEST_SNAPSHOT_BYTES", 60 * MIB))
# Bytes held for a byte of the file: numbers of the pickle's memo, while their array grows, but for zr why and zr replay, which
# hold the events to replay them again and again.
MEMO, EVENTS = 0.15, 1.2
COMMANDS = [(["stats"], MEMO), (["map"], MEMO), (["export", "--format", "csv", "-o", "/dev/null"], MEMO),
            (["report", "-o", path("page.html")], MEMO), (["why", "--size", "2GiB"], EVENTS),
            (["replay", "--policy", "caching"], EVENTS)]


def run(command, where, *more):
    """Exit code, standard output, and the peak of resident bytes."""
    with open(path("out"), "w+b") as out:
        child = subprocess.Popen([ZR, command[0], where, *command[1:], *more], stdin=subprocess.DEVNULL, stdout=out,
                                 stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        return child.returncode, out.read(), used.ru_maxrss * 1024


lengths = {}
for name, size in (("short", 4 * MIB), ("long", LONG)):
    lengths[name] = write_snapshot(path(name), size, SEED)
    note(f"{name}: {lengths[name]['file_bytes'] / 1e6:.0f} MB, {lengths[name]['events']} events")
    code, out, _ = run(["stats", "--json"], path(name))
    got = json.loads(out)["moments"] if code == 0 else {}
    same([got.get("now", {}).get(key) for key in ("live_bytes", "requested_bytes", "reserved_bytes")] +
         [got.get("peak", {}).get("requested_bytes")],
         [lengths[name][key] for key in ("live_bytes", "requested_bytes", "reserved_bytes", "peak_requested_bytes")],
         f"{name}: live, requested, reserved, and the most requested, as they were made")
longer = lengths["long"]["file_bytes"] - lengths["short"]["file_bytes"]
for command, factor in COMMANDS if LONG <= 100 * MIB else COMMANDS[:1]:
    peaks = [run(command, path(name)) for name in ("short", "long")]
    note(f"zr {command[0]}: {peaks[0][2] / MIB:.1f} MiB, {peaks[1][2] / MIB:.1f} MiB for {longer / MIB:.0f} MiB more")
    ok([peak[0] for peak in peaks] == [0, 0] and peaks[1][2] - peaks[0][2] <= 4 * MIB + factor * longer,
       f"zr {command[0]}: at most {factor} bytes more for a byte more")
with open(path("long"), "rb") as file:
    data = file.read(3 * MIB)
with open(path("cut"), "wb") as file:
    file.write(data)
code, out, _ = run(["stats"], path("cut"))
same((code, out), (3, b""), "a snapshot that is cut short is refused: a pickle has no meaning before its end")
done()
