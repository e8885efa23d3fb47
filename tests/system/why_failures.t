#!/usr/bin/env python3
"""Programs that run out of memory, each for another reason (tests/support/failing.c): zr why names it, from the flight
recorder's file alone. No trace is written, and the program has ended."""
import glob
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, "tests/support")
from zrtest import BUILD, FOLDER, HANG, done, note, ok, path, same, skip

ZR = os.path.abspath(os.path.join(BUILD, "bin", "zr"))
FAILING = os.path.abspath(os.path.join(BUILD, "tests", "failing"))
EMULATOR = os.path.abspath(os.path.join(BUILD, "tests", "emulator"))
MIB = 1 << 20
GPU = {"LD_LIBRARY_PATH": EMULATOR, "ZR_EMULATOR_MEMORY": str(64 * MIB)}

# Program, environment, reason, what is missing, who has it (both in MiB), the kind of block, a word of the change. By hand:
# 64 MiB of device but where it says otherwise; of free granules none are left where nothing is said.
ROWS = [
    ("shortage", {}, "shortage", 8, 0, None, "more memory"),
    # 32 of 64 free, a MiB in each granule.
    ("fragmentation", {}, "fragmentation", 8, 0, None, "long-lived blocks first"),
    # 40 freed within a capture; 24 of the device were never taken.
    ("pending", GPU, "pending", None, 40, None, "synchronize"),
    ("pool", {}, "pool", None, 40, None, "zr_contiguous_trim()"),
    # The 113 of 512 KiB that have no use; 7 of the 8 blocks of the step beside them.
    ("leak", {}, "leak", None, 0, ("workspace", 113, 113 * MIB // 2), "which code keeps them"),
    # 6 blocks of 4 are the 24 of the limit; the device has 1024.
    ("limit", {}, "limit", 4, 24, None, "raise the limit"),
    # 16 blocks of 4 are the 64 that are reserved; the device has 512.
    ("addresses", {}, "addresses", 0, 0, None, "reserve_bytes"),
    # 8 times 6 are registered, and free.
    ("unmovable", {}, "unmovable", None, 48, None, "deregister"),
    ("spike", {}, "spike", None, 0, ("workspace", 1, 56 * MIB), "split it into parts"),
    # 40 are the other's, and 24 of the 32 are there: 8 in the arena's cache or the device.
    ("other", {**GPU, "ZR_EMULATOR_SHARED": path("shared")}, "other process", 8, 40, None, "its share"),
]


def fail(program, environment):
    """Runs it; the one file that it leaves, or None."""
    folder = tempfile.mkdtemp(dir=FOLDER)
    run = subprocess.run([FAILING, program], capture_output=True, text=True, errors="replace", timeout=HANG,
                         stdin=subprocess.DEVNULL,
                         env={**os.environ, **environment, "TMPDIR": folder, "ZR_CONF": "recorder:1m"})
    files = glob.glob(os.path.join(folder, "*.zrt"))
    if not ok(run.returncode == 4 and len(files) == 1 and f"zr why {files[0]}" in run.stderr,
              f"{program}: it is refused, and the words name zr why with the one file"):
        note(f"exit {run.returncode}, {len(files)} files: {run.stderr}")
        return None
    return files[0]


def check(program, environment, reason, missing, culprit, kind, change):
    file = fail(program, environment)
    if not file:
        return
    run = subprocess.run([ZR, "why", file, "--json"], capture_output=True, text=True, timeout=HANG, stdin=subprocess.DEVNULL)
    if not same(run.returncode, 0, f"{program}: zr why"):
        note(run.stderr)
        return
    report = json.loads(run.stdout)
    same(report["reason"], reason, f"{program}: the reason")
    same(report["culprit_bytes"], culprit * MIB, f"{program}: who has it")
    if missing is not None:
        same(report["missing_bytes"], missing * MIB, f"{program}: what is missing")
    if kind:
        found = report["kind"]
        same((found["tag"], found["blocks"], found["live_bytes"]), kind, f"{program}: which blocks")
    else:
        ok("kind" not in report, f"{program}: no kind of block is accused")
    ok(not report["capacity_assumed"], f"{program}: how much there was is the file's own word")
    run = subprocess.run([ZR, "why", file], capture_output=True, text=True, timeout=HANG, stdin=subprocess.DEVNULL)
    parts = run.stdout.replace("\n  ", " ").splitlines()  # lines of more than 80 columns go on with two spaces
    ok(parts[1].startswith(f"reason: {reason}: ") and parts[2].startswith("change: ") and change in parts[2],
       f"{program}: in words") or note(run.stdout + run.stderr)


def test_all():
    with_cuda = "CUDA=0" not in os.environ.get("MAKEFLAGS", "") and os.path.exists(os.path.join(EMULATOR, "libcuda.so.1"))
    for row in ROWS:
        if row[1] and not with_cuda:
            skip(f"{row[0]}: no CUDA backend, or no emulated driver")
            continue
        holder = None
        if row[0] == "other":
            holder = subprocess.Popen([FAILING, "holder"], stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL,
                                      env={**os.environ, **row[1]})
            same(holder.stdout.readline(), "holds\n", "another process holds 40 MiB")
        try:
            check(*row)
        finally:
            if holder:
                holder.kill()
                holder.communicate()
    # Alone on the device the same program has room.
    if with_cuda:
        run = subprocess.run([FAILING, "other"], capture_output=True, timeout=HANG, env={**os.environ, **GPU})
        same(run.returncode, 1, "other: nothing is refused once the other process has gone: the change helps")


def test_main_path():
    """As a new user goes it: it dies, the words name zr why with the file, zr why the cause and the change, and with that
    it runs."""
    fragment = os.path.abspath(os.path.join(BUILD, "examples", "fragment"))
    if not os.path.exists(os.path.join(EMULATOR, "libcuda.so.1")):
        skip("the main path: no emulated driver")
        return
    folder = tempfile.mkdtemp(dir=FOLDER)
    settings = {"capture_output": True, "text": True, "errors": "replace", "timeout": HANG, "stdin": subprocess.DEVNULL,
                "env": {**os.environ, "LD_LIBRARY_PATH": EMULATOR, "ZR_EMULATOR_MEMORY": str(1100 * MIB), "TMPDIR": folder}}
    run = subprocess.run([ZR, "run", "--stats", "--", fragment], **settings)
    following = [line.split("next", 1)[1].strip() for line in run.stderr.splitlines() if line.startswith("zr: next")]
    good = same(run.returncode, 4, "the main path: fragment dies under zr run")
    good &= ok("a device refused memory to fragment" in run.stderr, "the main path: the verdict is about the device")
    if not ok(good and len(following) == 1 and following[0].startswith("zr why " + folder), "the main path: zr why is next, with the file"):
        note(run.stderr)
        return
    run = subprocess.run([ZR, *following[0].split()[1:]], **settings)
    parts = run.stdout.replace("\n  ", " ").splitlines()
    ok("caching allocator" in parts[1] and "let zr serve" in parts[2], "the main path: cause and change") or note(run.stdout)
    run = subprocess.run([ZR, "run", "--stats", "--", fragment, "--direct"], **settings)
    ok(run.returncode == 0 and "all 60 steps" in run.stdout and "refused" not in run.stderr,
       "the main path: with the change it runs, and an older file is not taken for this run's") or note(run.stderr)


test_all()
test_main_path()
done()
