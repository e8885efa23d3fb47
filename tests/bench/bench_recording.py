#!/usr/bin/env python3
"""What publishing and the flight recorder cost: programs that do little but allocate, without them and with them (as `zr run`
has them, with the process shown from its start), in pairs, in turn; medians of the pairs' ratios. Processor time of the malloc
workloads under libzr_malloc.so, and of the arena itself on the host backend (tests/bench/bench_operations.c): all of a
process, and instructions of the bookkeeping alone, which no other load of the machine changes. Prints; never fails on time."""
import argparse
import glob
import os
import re
import statistics
import subprocess
import sys
import tempfile

from bench_speeds import MACHINE

sys.path.insert(0, "tests/support")
from zrtest import BUILD

WORKLOADS, OPERATIONS = (os.path.join(BUILD, "tests", name) for name in ("malloc_workloads", "bench_operations"))
LIBRARY = os.path.abspath(os.path.join(BUILD, "lib", "libzr_malloc.so"))
CONFS = {"off": "publish:off,recorder:0", "publishing": "publish:on,recorder:0", "both": "publish:on,recorder:1m"}
ARENA = [("zr-host", "training", 7), ("planned-host", "training", 7), ("zr-host", "server", 7)]


def environment(conf, preload):
    folder = os.path.join(tempfile.gettempdir(), f"zr-bench-{os.getpid()}")
    os.makedirs(folder, 0o700, exist_ok=True)
    return {**os.environ, "ZR_CONF": conf, "XDG_RUNTIME_DIR": folder, **({"LD_PRELOAD": LIBRARY} if preload else {})}


def processor(command, conf, preload):
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(conf, preload))
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {child.returncode}")
    return used.ru_utime + used.ru_stime


def ratios(command, rounds, preload):
    """Of each round: publishing alone and both, as times the processor time of neither."""
    order, found = list(CONFS), {"publishing": [], "both": []}
    for _ in range(rounds):
        times = {name: processor(command, CONFS[name], preload) for name in order}
        for name in found:
            found[name].append(times[name] / times["off"])
        order.append(order.pop(0))
    return found


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
    cells = [f"{statistics.median(found[kind]):7.3f} ({min(found[kind]):.3f} to {max(found[kind]):.3f})" for kind in ("publishing", "both")]
    print(f"{name:26}" + "".join(f"{cell:>28}" for cell in cells), flush=True)


def main():
    listed = subprocess.run([WORKLOADS, "list"], capture_output=True, text=True, check=True).stdout.split()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="pairs of each, 7 if not given")
    parser.add_argument("--workloads", type=lambda text: text.split(","), default=listed, metavar="A,B")
    given = parser.parse_args()
    print(f"machine: {MACHINE}")
    print(f"processor time as times that without both, medians of {given.rounds} pairs (least to most); bar: 1.010")
    print(f"{'':26}{'publishing':>28}{'publishing and recorder':>28}")
    every = {"publishing": [], "both": []}
    for name in given.workloads:
        found = ratios([WORKLOADS, name], given.rounds, True)
        show(f"malloc: {name}", found)
        for kind in every:
            every[kind].append(statistics.median(found[kind]))
    show("malloc: all, by workload", every)
    for allocator, sequence, repeats in ARENA:
        show(f"arena: {allocator} {sequence}", ratios([OPERATIONS, allocator, sequence, str(repeats)], given.rounds, False))
    counted = ("--toggle-collect=counted_run", "--collect-atstart=no")
    for words, command, preload, only in [("malloc: malloc-large, whole", [WORKLOADS, "malloc-large"], True, ())] + [
            (f"arena: {allocator} {sequence}, bookkeeping alone", [OPERATIONS, allocator, sequence, "3", "1", "0", "0"], False, counted)
            for allocator, sequence, _ in ARENA]:
        counts = [instructions(command, CONFS[name], preload, only) for name in CONFS]
        if all(counts):
            print(f"{words}: " + ", ".join(f"{name} {count}" for name, count in zip(CONFS, counts)) +
                  f" instructions ({counts[2] / counts[0]:.5f})", flush=True)
    for folder in glob.glob(os.path.join(tempfile.gettempdir(), f"zr-bench-{os.getpid()}", "*")) + [environment("", False)["XDG_RUNTIME_DIR"]]:
        try:
            os.rmdir(folder)
        except OSError:
            pass


main()
