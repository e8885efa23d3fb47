#!/usr/bin/env python3
"""Steps of pipelines whose modules sleep in place of computing take as long as the simulation of their schedules says.
Long sleeps: a transfer costs milliseconds on a machine with other work."""
import os
import re
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, done, note, ok, run_limited

MOST = 0.05
SCHEDULES = ("1f1b", "zb-h1", "zb-v")
times = {}
for _ in range(3):  # other work only makes steps longer: the shortest median counts
    got = run_limited([os.path.abspath(os.path.join(BUILD, "tests", "bench_pipeline")), "4", "8", "150", *SCHEDULES], timeout=600)
    for name, a, b in re.findall(r"^(\S+) +([\d.]+) s a step, +([\d.]+) s", got.stdout, re.M):
        times[name] = min(times.get(name, (float(a), float(b))), (float(a), float(b)))
    if got.returncode != 0 or all(0 <= measured / simulated - 1 < MOST for measured, simulated in times.values()):
        break
ok(got.returncode == 0 and set(times) == set(SCHEDULES), "sleeping pipelines run") or note(got.stdout + got.stderr)
for name, (measured, simulated) in times.items():
    ok(0 <= measured / simulated - 1 < MOST, f"{name}: {measured:.3f} s a step, {simulated:.3f} by simulation")
done()
