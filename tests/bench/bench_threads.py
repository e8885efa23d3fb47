#!/usr/bin/env python3
"""Ranks as threads, also with --master, beside ranks as processes: steps in turn, the median of their ratios, the ratio of the fastest steps
(which other programs disturb least), and the memory of all ranks. Prints; never fails on time. bench_threads.py ROUNDS runs each shape so many
times."""
import statistics
import sys

sys.path.insert(0, "tests/support")
from zrtest import train

ROUNDS, STEPS, WARM = int(sys.argv[1]) if len(sys.argv) > 1 else 7, 12, 2
SHAPE = dict(ranks=2, threads=1, layers=4, hidden=192, heads=4, seq=64, batch=4, eval_every=0, steps=STEPS, timeout=600)
KINDS = {"processes": {}, "threads": dict(ranks_as="threads"), "master": dict(ranks_as="threads", master=True)}
MIB = 1 << 20


def measure(kind, flags):
    """Seconds of a step and of the fastest one, MiB that all ranks take (the plan's, and what is resident at the end), and milliseconds of --master's parts."""
    run = train(**{**SHAPE, **flags, **KINDS[kind]})
    if run.code:
        raise SystemExit(run.err)
    ranks = run.report["ranks"]
    processes = ranks if kind == "processes" else ranks[:1]
    steps = run.report["step_seconds"][WARM:]
    return (statistics.median(steps), min(steps), sum(rank["planned_bytes"]["total"] for rank in ranks) / MIB,
            sum(rank["rss_anonymous_bytes"] + rank["rss_shared_bytes"] for rank in processes) / MIB,
            {part: numbers["seconds_per_step"] * 1e3 for part, numbers in run.report.get("master", {}).items()})


for words, flags in (("stage 0", dict(stage=0)), ("stage 2", dict(stage=2)), ("stage 3", dict(stage=3)),
                     ("stage 0, bf16", dict(stage=0, precision="bf16")), ("stage 0, 16 tokens", dict(stage=0, batch=1, seq=16))):
    kinds = [kind for kind in KINDS if kind != "master" or flags["stage"] == 0]
    rounds = [{kind: measure(kind, flags) for kind in kinds[turn % len(kinds):] + kinds[:turn % len(kinds)]} for turn in range(ROUNDS)]
    for kind in kinds[1:]:
        ratios = sorted(found[kind][0] / found["processes"][0] for found in rounds)
        fastest, own_fastest = (min(found[each][1] for found in rounds) for each in ("processes", kind))
        (planned, resident, _), (own_planned, own_resident, parts) = (rounds[-1][each][2:] for each in ("processes", kind))
        print(f"{words}: a step of {kind} takes {statistics.median(ratios):.3f} of that of processes ({len(rounds)} rounds, {ratios[0]:.3f} "
              f"to {ratios[-1]:.3f}; {statistics.median(found['processes'][0] for found in rounds) * 1e3:.1f} ms), the fastest "
              f"{own_fastest / fastest:.3f} ({fastest * 1e3:.1f} ms); planned {own_planned:.1f} of "
              f"{planned:.1f} MiB, resident {own_resident:.1f} of {resident:.1f} MiB"
              + "".join(f"; {part} {statistics.median(found[kind][4][part] for found in rounds):.2f} ms" for part in parts), flush=True)
