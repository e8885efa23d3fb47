#!/usr/bin/env python3
"""What one allocation or free costs: zr's arena, dynamic and following a plan of the sequence, beside best fit, jemalloc
and mimalloc on the same sequences, in nanoseconds and in instructions (counted by callgrind), and two threads beside
one. Prints; never fails on time.

Allocators, and one thread and two, take turns several times, so that what else the machine does falls on all; shown are
medians of the turns' medians, and the least and the most of them. Nobody touches the memory. The PyTorch traces come first where there are any: ../shared/traces, or the files named."""
import glob
import os
import re
import statistics
import subprocess
import sys

from zrtest import BUILD, path

PROGRAM = os.path.join(BUILD, "tests", "bench_operations")
# As it comes, jemalloc gives unused pages back to the system after a while, which costs calls; the arena does not
# before it is asked, so jemalloc is shown keeping them too.
ALLOCATORS = {"zr": ("zr", {}), "  planned": ("planned", {}), "bestfit": ("bestfit", {}), "jemalloc": ("jemalloc", {}),
              "  keeping": ("jemalloc", {"MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0"}),
              "mimalloc": ("mimalloc", {})}
TURNS, REPEATS, COUNTED_REPEATS = 3, 15, 3
# jemalloc keeps more thread-local data than a library that is opened late usually finds room for.
ENVIRONMENT = {**os.environ, "GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=32768"}


def run(allocator, sequence, repeats, threads=1, prefix=()):
    """What the program says, as a dictionary; None where the allocator is not there."""
    name, environment = ALLOCATORS[allocator]
    got = subprocess.run([*prefix, PROGRAM, name, sequence, str(repeats), str(threads)], capture_output=True, text=True,
                         env={**ENVIRONMENT, **environment}, timeout=900)
    if got.returncode:
        raise SystemExit(got.stderr)
    words = got.stdout.split()
    return None if not words or words[0] == "absent" else {k: float(v) for k, v in zip(words[::2], words[1::2])}


def instructions(allocator, sequence):
    """Per operation of the last repeat, with everything that it calls; None without Valgrind."""
    out = path("callgrind.out")
    try:
        got = run(allocator, sequence, COUNTED_REPEATS, prefix=(
            "valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={out}", "--toggle-collect=counted_run"))
    except FileNotFoundError:
        return None
    if got is None:
        return None
    with open(out) as file:
        total = re.search(r"^(?:totals|summary): (\d+)", file.read(), re.M)
    return int(total.group(1)) / got["operations"] if total else None


def shown(value, form="{:.0f}"):
    return "-" if value is None else form.format(value)


sequences = sys.argv[1:] or sorted(glob.glob("../shared/traces/*.pickle")) + ["training", "server", "small"]
print(f"{'sequence':<32} {'operations':>10}  {'allocator':<9} {'ns/operation':>12} {'(least..most)':>18} "
      f"{'instructions':>12} {'2 threads':>9}")
for sequence in sequences:
    turns = {allocator: [(run(allocator, sequence, REPEATS), None)] for allocator in ALLOCATORS}
    here = [allocator for allocator in ALLOCATORS if turns[allocator][0][0]]
    for allocator in here:
        turns[allocator] = []
    for _ in range(TURNS):
        for allocator in here:
            turns[allocator].append((run(allocator, sequence, REPEATS), run(allocator, sequence, REPEATS, 2)))
    for allocator in ALLOCATORS:
        if allocator not in here:
            print(f"{os.path.basename(sequence):<32} {'':>10}  {allocator:<9} is not installed")
            continue
        one = turns[allocator][0][0]
        times = [first["median_ns"] for first, _ in turns[allocator]]
        rates = [first["median_ns"] / second["median_ns"] for first, second in turns[allocator] if second]
        rate = statistics.median(rates) if rates else None
        spread = f"({min(first['least_ns'] for first, _ in turns[allocator]):.1f}..{max(times):.1f})"
        print(f"{os.path.basename(sequence):<32} {one['operations']:>10.0f}  {allocator:<9} "
              f"{statistics.median(times):>12.1f} {spread:>18} {shown(instructions(allocator, sequence)):>12} "
              f"{shown(rate, '{:.2f} x'):>9}"
              + (f"  sizes divided by {one['divided']:.0f}" if one["divided"] > 1 else "")
              + (f"  {one['refused']:.0f} requests refused" if one["refused"] else "")
              + (f"  {one['unplanned']:.0f} outside the plan" if one.get("unplanned") else ""), flush=True)
print("ns and instructions are per allocation or free, medians of a repeated sequence with one thread; "
      "2 threads: their rate together on one arena or heap, as a multiple of one thread's")
