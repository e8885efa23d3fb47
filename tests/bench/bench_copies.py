#!/usr/bin/env python3
"""What copies of the state cost make demo's model on two ranks: bench_copies.py [--pairs N] [--steps N]

Runs with and without an option, in turn; medians of the ratios of their median steps and of their processor time, with the least and the most. --max-restarts beside
none; --redundancy 2 beside --max-restarts, with the bytes of a copy and the time that a step waits for it. Then the time that a save stops
training, in the foreground and in the background."""
import argparse
import resource
import statistics
import sys

from bench_speeds import MACHINE

sys.path.insert(0, "tests/support")
from compressions import SHAPE
from zrtest import BUILD, path, train

KEPT, COPIED = dict(max_restarts=1), dict(max_restarts=1, redundancy=2)
WARM = 5


def processor():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def shown(ratios):
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def measure(**flags):
    before = processor()
    run = train(**{**SHAPE, "data": f"{BUILD}/demo/bible.txt", "timeout": 3600, **flags})
    if run.code:
        raise SystemExit(run.err)
    return run.report, statistics.median(run.report["step_seconds"][WARM:]), processor() - before


parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
parser.add_argument("--pairs", type=int, default=9)
parser.add_argument("--steps", type=int, default=60)
given = parser.parse_args()
print(f"machine: {MACHINE}")
for name, without, flags in (("--max-restarts 1 beside none", {}, KEPT), ("--redundancy 2 beside --max-restarts 1", KEPT, COPIED)):
    ratios, costs, waits, steps = [], [], [], []
    for i in range(given.pairs):
        seconds, work = {}, {}
        for copies in sorted((False, True), reverse=i % 2 == 1):
            report, seconds[copies], work[copies] = measure(steps=given.steps, **(flags if copies else without))
            if copies and "redundancy" in report["ranks"][0]:
                waits += [rank["redundancy"]["waited_seconds_per_step"] for rank in report["ranks"]]
                size = report["ranks"][0]["redundancy"]["sent_bytes_per_step"]
        ratios.append(seconds[True] / seconds[False])
        costs.append(work[True] / work[False])
        steps.append(seconds[True])
    print(f"{name}, {given.pairs} pairs: steps {shown(ratios)}, processor time {shown(costs)}; {1e3 * statistics.median(steps):.2f} ms a step", flush=True)
print(f"  a copy has {size:,} bytes, and a step waits {1e3 * statistics.median(waits):.3f} ms for it")
for name, background in (("foreground", None), ("background", True)):
    saves = [measure(steps=given.steps, save=path(f"{name}-{i}"), save_every=20, save_background=background)[0]["saves"]
             for i in range(given.pairs)]
    print(f"saves in the {name} stop training for {1e3 * statistics.median(save['stopped_seconds'] / save['count'] for save in saves):.2f} ms "
          f"each (median of {given.pairs} runs of {saves[0]['count']} saves)", flush=True)
