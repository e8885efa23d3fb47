#!/usr/bin/env python3
"""Ranks as threads beside ranks as processes: steps in turn, the median of their ratios, and the memory of all ranks. Prints; never
fails on time. bench_threads.py PAIRS runs so many pairs of each shape."""
import statistics
import sys

sys.path.insert(0, "tests/support")
from zrtest import train

PAIRS, STEPS, WARM = int(sys.argv[1]) if len(sys.argv) > 1 else 7, 12, 2
SHAPE = dict(ranks=2, threads=1, layers=4, hidden=192, heads=4, seq=64, batch=4, eval_every=0, steps=STEPS, timeout=600)
MIB = 1 << 20


def measure(flags):
    """Seconds of a step, and MiB that all ranks take: the plan's, and what is resident at the end."""
    run = train(**flags)
    if run.code:
        raise SystemExit(run.err)
    ranks = run.report["ranks"]
    processes = ranks if flags.get("ranks_as") != "threads" else ranks[:1]
    return (statistics.median(run.report["step_seconds"][WARM:]), sum(rank["planned_bytes"]["total"] for rank in ranks) / MIB,
            sum(rank["rss_anonymous_bytes"] + rank["rss_shared_bytes"] for rank in processes) / MIB)


for words, flags in (("stage 0", dict(stage=0)), ("stage 2", dict(stage=2)), ("stage 3", dict(stage=3)),
                     ("stage 0, bf16", dict(stage=0, precision="bf16"))):
    pairs = []
    for turn in range(PAIRS):
        kinds = ["processes", "threads"]
        found = {kind: measure({**SHAPE, **flags, "ranks_as": kind}) for kind in (kinds if turn % 2 else reversed(kinds))}
        pairs.append([found[kind] for kind in kinds])
    ratios = sorted(threads[0] / processes[0] for processes, threads in pairs)
    (seconds, planned, resident), (_, planned_threads, resident_threads) = pairs[-1]
    print(f"{words}: a step of threads takes {statistics.median(ratios):.3f} of that of processes ({len(pairs)} pairs, {ratios[0]:.3f} "
          f"to {ratios[-1]:.3f}; {statistics.median(p[0] for p, _ in pairs) * 1e3:.1f} ms); planned {planned_threads:.1f} of {planned:.1f} "
          f"MiB, resident {resident_threads:.1f} of {resident:.1f} MiB", flush=True)
