#!/usr/bin/env python3
"""Steps of pipelines whose modules sleep in place of computing, with clipping and updates ahead of the norm, take as long as the simulation of
their schedules says, which has no updates. Updates after the norm take longer.
Long sleeps: a transfer costs milliseconds on a machine with other work."""
import os
import re
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, done, note, ok, run_limited

MOST, UPDATE = 0.05, 150  # milliseconds, of each of a rank's two modules: the last one to be reduced cannot overlap
SCHEDULES = ("1f1b", "zb-h1", "zb-v")
times = {}
for _ in range(3):  # other work only makes steps longer: the shortest median counts
    got = run_limited([os.path.abspath(os.path.join(BUILD, "tests", "bench_pipeline")), "4", "8", "150", str(UPDATE), *SCHEDULES], timeout=600)
    for name, a, b, way in re.findall(r"^(\S+) +([\d.]+) s a step, +([\d.]+) s by simulation, updates (after|ahead)", got.stdout, re.M):
        times[name, way] = min(times.get((name, way), (float(a), float(b))), (float(a), float(b)))
    if got.returncode != 0 or all(0 <= measured / simulated - 1 < MOST for (_, way), (measured, simulated) in times.items() if way == "ahead"):
        break
ok(got.returncode == 0 and len(times) == 2 * len(SCHEDULES), "sleeping pipelines run") or note(got.stdout + got.stderr)
for name in SCHEDULES if got.returncode == 0 else ():
    (after, simulated), (measured, _) = times[name, "after"], times[name, "ahead"]
    ok(0 <= measured / simulated - 1 < MOST, f"{name}: {measured:.3f} s a step, {simulated:.3f} by simulation")
    ok(after - measured > UPDATE / 2000, f"{name}: {after:.3f} s with updates after the norm")
done()
