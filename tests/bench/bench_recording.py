#!/usr/bin/env python3
"""What publishing and the flight recorder cost: programs that do little but allocate, without them and with them (as `zr run`
has them, with the process shown from its start), in pairs, in turn, until the time is over; medians of the pairs' ratios.
Processor time of the malloc workloads under libzr_malloc.so, and of the arena itself on the host backend
(tests/bench/bench_operations.c). --instructions counts those instead, which no other load of the machine changes, but
takes longer. Prints; never fails on time."""
import argparse
import glob
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

from bench_speeds import MACHINE

sys.path.insert(0, "tests/support")
from zrtest import BUILD

WORKLOADS, OPERATIONS = (os.path.join(BUILD, "tests", name) for name in ("malloc_workloads", "bench_operations"))
LIBRARY = os.path.abspath(os.path.join(BUILD, "lib", "libzr_malloc.so"))
CONFS = {"off": "publish:off,recorder:0", "publishing": "publish:on,recorder:0", "both": "publish:on,recorder:1m"}
FEW = ["xmalloc", "mstress", "malloc-large", "redis", "strings"]  # short ones, of small blocks and of large
# Repeats, and the power of two that sizes are divided by: whole ones cost pages of the system, and little else.
ARENA = [("zr-host", "training", 101, 4), ("planned-host", "training", 101, 4), ("zr-host", "server", 60, 0)]


def environment(conf, preload):
    folder = os.path.join(tempfile.gettempdir(), f"zr-bench-{os.getpid()}")
    os.makedirs(folder, 0o700, exist_ok=True)
    return {**os.environ, "ZR_CONF": conf, "XDG_RUNTIME_DIR": folder, **({"LD_PRELOAD": LIBRARY} if preload else {})}


def processor(command, conf, preload, deadline):
    """Its seconds of a processor; None: the time was over first."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(conf, preload))
    while True:
        pid, status, used = os.wait4(child.pid, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > deadline:
            child.kill()
            os.wait4(child.pid, 0)
            child.returncode = -9
            return None
        time.sleep(0.005)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {child.returncode}")
    return used.ru_utime + used.ru_stime


def ratios(subjects, seconds):
    """Of each subject {kind: ratios}: publishing alone and both, as times the processor time of neither. One round of all of
    them after the other, so that each has as many pairs as the time allows."""
    deadline, order = time.monotonic() + seconds, list(CONFS)
    found = {name: {"publishing": [], "both": []} for name in subjects}
    while True:
        for name, (command, preload) in subjects.items():
            times = {}
            for conf in order:
                times[conf] = processor(command, CONFS[conf], preload, deadline)
                if times[conf] is None:
                    return found
            for kind, list_of in found[name].items():
                list_of.append(times[kind] / times["off"])
        order.append(order.pop(0))


def instructions(command, conf, preload=False, counted=()):
    """Of the whole run, or of the function that is named; None without valgrind."""
    try:
        run = subprocess.run(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *counted, *command],
                             capture_output=True, text=True, env=environment(conf, preload))
    except FileNotFoundError:
        return None
    total = re.search(r"Collected : (\d+)", run.stderr)
    return int(total[1]) if total else None


def show(name, found):
    cells = [f"{statistics.median(list_of):7.3f} ({min(list_of):.3f} to {max(list_of):.3f})" if list_of else "no pair in time"
             for list_of in found.values()]
    print(f"{name:32}{len(found['both']):>5}" + "".join(f"{cell:>28}" for cell in cells), flush=True)


def count_instructions():
    counted = ("--toggle-collect=counted_run", "--collect-atstart=no")
    for words, command, preload, only in [("malloc: malloc-large, whole", [WORKLOADS, "malloc-large"], True, ())] + [
            (f"arena: {allocator} {sequence}, bookkeeping alone", [OPERATIONS, allocator, sequence, "3", "1", "0", "0"], False, counted)
            for allocator, sequence, *_ in ARENA]:
        counts = [instructions(command, conf, preload, only) for conf in CONFS.values()]
        if all(counts):
            print(f"{words}: " + ", ".join(f"{name} {count}" for name, count in zip(CONFS, counts)) +
                  f" instructions ({counts[2] / counts[0]:.5f})", flush=True)


def main():
    listed = subprocess.run([WORKLOADS, "list"], capture_output=True, text=True, check=True).stdout.split()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=150, help="by the clock, 150 if not given")
    parser.add_argument("--workloads", type=lambda text: listed if text == "all" else text.split(","), default=FEW, metavar="A,B|all")
    parser.add_argument("--instructions", action="store_true", help="by valgrind, instead of times")
    given = parser.parse_args()
    print(f"machine: {MACHINE}")
    if given.instructions:
        count_instructions()
    else:
        subjects = {f"arena: {allocator} {sequence}": ([OPERATIONS, allocator, sequence, str(repeats), "1", str(shift)], False)
                    for allocator, sequence, repeats, shift in ARENA}
        subjects |= {f"malloc: {name}": ([WORKLOADS, name], True) for name in given.workloads}
        print("processor time as times that without both, medians of the pairs (least to most); bar: 1.010")
        print(f"{'':32}{'pairs':>5}{'publishing':>28}{'publishing and recorder':>28}", flush=True)
        found = ratios(subjects, given.seconds)
        for name in subjects:
            show(name, found[name])
        known = [one for one in found.values() if one["both"]]
        show("all, by their medians", {kind: [statistics.median(one[kind]) for one in known] for kind in ("publishing", "both")})
    for folder in glob.glob(os.path.join(tempfile.gettempdir(), f"zr-bench-{os.getpid()}", "*")) + [environment("", False)["XDG_RUNTIME_DIR"]]:
        try:
            os.rmdir(folder)
        except OSError:
            pass


main()
