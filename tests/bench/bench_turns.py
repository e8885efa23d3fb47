#!/usr/bin/env python3
"""What turns under zrd cost two trainers whose steps do not fit at once (tests/system/service_runs.t has one of them fail without
the service). The time of each over its time alone, where alone is on its half of the processors: with half of the threads, beside
a trainer of the same shape that zrd does not limit. And of both together, the time and the processors' time over the sum of each by itself, which has
the whole machine. Rounds in turn, medians; prints, and never fails on time. The bar is 1.15."""
import os
import resource
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, "tests/support")
from zrd_client import ENVIRONMENT, MIB, Zrd, status
from zrtest import path, text_file, train, wait_for

ROUNDS, STEPS = int(os.environ.get("ZR_ROUNDS", 5)), int(os.environ.get("ZR_STEPS", 40))
SHAPE = {"threads": os.cpu_count(), "steps": STEPS, "eval_every": 0, "data": text_file()}
LIMITED, FREE = ({**ENVIRONMENT, "ZR_CONF": conf} for conf in ("service:required", "service:off"))
pool = ThreadPoolExecutor(2)


def run(environment, seed, shape):
    """Seconds that zr-train takes from its start to its end, and its report."""
    start = time.monotonic()
    got = train(environment=environment, seed=seed, **shape)
    if got.code:
        raise SystemExit(got.err)
    return time.monotonic() - start, got.report


def at_once(shape, *environments):
    """Of each its seconds; of all together; and of the processors."""
    def used():
        return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    start, before = time.monotonic(), used()
    got = [one.result() for one in [pool.submit(run, environment, seed, shape) for seed, environment in enumerate(environments, 1)]]
    return [seconds for seconds, _ in got], time.monotonic() - start, used() - before


def plan_of(shape):
    """What stays whatever comes, and the most of a step."""
    zrd = Zrd()
    one = pool.submit(run, LIMITED, 1, {**shape, "steps": 3})
    plan = wait_for(lambda: [client for client in status()["clients"] if client["plan_peak_bytes"]])[0]
    spills = one.result()[1]["ranks"][0].get("spill", {"planned_bytes": 0})["planned_bytes"]
    zrd.end()
    return plan["plan_base_bytes"] - spills, plan["plan_peak_bytes"]


def measure(words, turn_ms, **flags):
    shape = {**SHAPE, **flags}
    floor, peak = plan_of(shape)
    capacity, rows = peak + floor + 8 * MIB, []
    for _ in range(ROUNDS):
        zrd = Zrd("--capacity", capacity, "--turn", turn_ms)
        single = [at_once(shape, LIMITED) for _ in range(2)]
        half = {**shape, "threads": max(1, shape["threads"] // 2)}
        halves = [at_once(half, LIMITED, FREE)[0][0], at_once(half, FREE, LIMITED)[0][1]]
        each, together, processors = at_once(shape, LIMITED, LIMITED)
        zrd.end()
        rows.append([*(turns / half for turns, half in zip(each, halves)), together / sum(one[1] for one in single),
                     processors / sum(one[2] for one in single)])
    columns = [f"{statistics.median(column):.3f} ({min(column):.2f} to {max(column):.2f})" for column in zip(*rows)]
    print(f"{words}, turns of {turn_ms} ms, {capacity >> 20} MiB for steps of {peak >> 20} of which {floor >> 20} stay: {columns[0]} and {columns[1]} of its "
          f"time alone; together {columns[2]} of the sum, {columns[3]} of its processors' time; {ROUNDS} rounds of {STEPS} steps", flush=True)


measure("steps that alternate", 500, layers=4, hidden=128, heads=4, seq=128, batch=16)
os.mkdir(path("disk"))
measure("state that goes to a file", 2000, layers=8, hidden=384, heads=6, seq=64, batch=4, spill=f"nvme:{path('disk')}", force=True)
