#!/usr/bin/env python3
"""What one allocation or free costs, in nanoseconds and in instructions (counted by callgrind), and two threads beside
one. Bookkeeping beside bookkeeping: zr's arena on sim, dynamic and following a plan of the sequence, and best fit, all
without memory. Memory beside memory: zr's arena on the host backend, dynamic and planned, jemalloc and mimalloc, where
the first and the last byte of every block are written. Prints; never fails on time.

Allocators, and one thread and two, take turns several times, so that what else the machine does falls on all; shown are
medians of the turns' medians, the least and the most of them, and the median of the turns' means. Sizes are divided by a
power of two, for all alike, where a sequence takes more than a 32nd of the memory here. Instructions are counted
without touching. The PyTorch traces come first where there are any: ../shared/traces, or the files named."""
import glob
import os
import re
import statistics
import subprocess
import sys

from bench_speeds import speed

sys.path.insert(0, "tests/support")
from zrtest import BUILD, path

PROGRAM = os.path.join(BUILD, "tests", "bench_operations")
# As it comes, jemalloc gives unused pages back to the system after a while, which costs calls; the arena does not
# before it is asked, so jemalloc is shown keeping them too.
KEEPING = {"MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0"}
ALLOCATORS = {"zr": ("zr", {}), "  planned": ("planned", {}), "bestfit": ("bestfit", {}),
              "zr on host": ("zr-host", {}), "  planned ": ("planned-host", {}), "jemalloc": ("jemalloc", {}),
              "  keeping": ("jemalloc", KEEPING), "mimalloc": ("mimalloc", {})}
OURS = {"zr": "dynamic", "  planned": "planned", "zr on host": "dynamic with memory", "  planned ": "planned with memory"}
TURNS, REPEATS, COUNTED_REPEATS = 3, 15, 3
# jemalloc keeps more thread-local data than a library that is opened late usually finds room for.
ENVIRONMENT = {**os.environ, "GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=32768"}


def run(allocator, sequence, repeats, threads=1, prefix=(), shift=0, touch=1):
    """What the program says, as a dictionary; None where the allocator is not there."""
    name, environment = ALLOCATORS[allocator]
    got = subprocess.run([*prefix, PROGRAM, name, sequence, *map(str, (repeats, threads, shift, touch))], capture_output=True, text=True,
                         env={**ENVIRONMENT, **environment}, timeout=900)
    if got.returncode:
        raise SystemExit(got.stderr)
    words = got.stdout.split()
    return None if not words or words[0] == "absent" else {k: float(v) for k, v in zip(words[::2], words[1::2])}


def shift_of(sequence):
    """By how many powers of two its sizes are divided, so that it takes a small part of the memory here."""
    memory, shift = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), 0
    while 32 * run("bestfit", sequence, 1, shift=shift)["live_bytes"] > memory:
        shift += 1
    return shift


def instructions(allocator, sequence, shift):
    """Per operation of the last repeat, with everything that it calls; None without Valgrind."""
    out = path("callgrind.out")
    try:
        got = run(allocator, sequence, COUNTED_REPEATS, prefix=(
            "valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={out}", "--toggle-collect=counted_run"),
                  shift=shift, touch=0)
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
print(f"{'sequence':<32} {'operations':>10}  {'allocator':<10} {'ns/operation':>12} {'(least..most)':>20} {'mean':>9} "
      f"{'instructions':>12} {'2 threads':>9}")
for sequence in sequences:
    shift = shift_of(sequence)
    turns = {allocator: [] for allocator in ALLOCATORS if run(allocator, sequence, 1, shift=shift)}
    for _ in range(TURNS):
        for allocator in turns:
            turns[allocator].append([run(allocator, sequence, REPEATS, threads, shift=shift) for threads in (1, 2)])
    for allocator in ALLOCATORS:
        if allocator not in turns:
            print(f"{os.path.basename(sequence):<32} {'':>10}  {allocator:<10} is not installed")
            continue
        one = turns[allocator][0][0]
        times, means = ([first[name] for first, _ in turns[allocator]] for name in ("median_ns", "mean_ns"))
        rates = [first["median_ns"] / second["median_ns"] for first, second in turns[allocator] if second]
        rate = statistics.median(rates) if rates else None
        spread = f"({min(first['least_ns'] for first, _ in turns[allocator]):.1f}..{max(times):.1f})"
        print(f"{os.path.basename(sequence):<32} {one['operations']:>10.0f}  {allocator:<10} "
              f"{statistics.median(times):>12.1f} {spread:>20} {statistics.median(means):>9.1f} "
              f"{shown(instructions(allocator, sequence, shift)):>12} {shown(rate, '{:.2f} x'):>9}"
              + (f"  sizes divided by {1 << shift}" if shift else "")
              + (f"  {one['refused']:.0f} requests refused" if one["refused"] else "")
              + (f"  {one['unplanned']:.0f} outside the plan" if one.get("unplanned") else ""), flush=True)
        if allocator in OURS:
            speed(f"ns per operation, {os.path.basename(sequence).partition('.')[0]}, {OURS[allocator]}", statistics.median(times), less=True)
            if rate:
                speed(f"two threads beside one, {os.path.basename(sequence).partition('.')[0]}, {OURS[allocator]}", rate)
print("zr, planned and bestfit keep books alone; zr on host, its planned, jemalloc and mimalloc have memory, and the ends of "
      "each block are written; medians of a repeated sequence with one thread, per allocation or free; 2 threads: their rate together on "
      "one arena or heap, as a multiple of one thread's")
