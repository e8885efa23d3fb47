#!/usr/bin/env python3
"""What it costs two trainers that their steps do not fit at once under zrd (tests/system/service_runs.t has one of them fail without
the service). Where the processors are enough for both, they compute beside one another: the time of each over its time alone on
the machine, and over that beside a trainer of the same shape that zrd does not limit, for several capacities. Where each uses all
processors, they take turns: the time and the processors' time of both over the sum of each by itself. Rounds in turn,
medians; prints, and never fails on time. The bar is 1.15. bench_turns.py [beside|turns|spill]."""
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


def shown(rows):
    """Of each column its median, least and most."""
    return [f"{statistics.median(column):.3f} ({min(column):.2f} to {max(column):.2f})" for column in zip(*rows)]


def beside(**flags):
    """Half of the processors each; a capacity of both trainers' rest and so much of a step's part."""
    shape = {**SHAPE, "threads": max(1, SHAPE["threads"] // 2), **flags}
    floor, peak = plan_of(shape)
    parts = (1, 1.25, 1.5)
    rows = {part: [] for part in parts}
    for _ in range(ROUNDS):
        alone, free = at_once(shape, FREE)[0][0], at_once(shape, FREE, FREE)[0]
        for part in parts:
            zrd = Zrd("--capacity", int(2 * floor + part * (peak - floor)) + 8 * MIB)
            each = at_once(shape, LIMITED, LIMITED)[0]
            zrd.end()
            rows[part].append([*(one / alone for one in each), *(one / other for one, other in zip(each, free)), max(free) / alone])
    for part in parts:
        columns = shown(rows[part])
        print(f"beside one another, {shape['hidden']} wide, steps of {(peak - floor) >> 20} MiB where {part} of that fits beside the two rests of {floor >> 20}: "
              f"{columns[0]} and {columns[1]} of its time alone, {columns[2]} and {columns[3]} of that beside one without a limit "
              f"(itself {columns[4]} of alone); {ROUNDS} rounds of {STEPS} steps", flush=True)


def turns(words, turn_ms, **flags):
    """All processors each: who has its turn has them."""
    shape = {**SHAPE, **flags}
    floor, peak = plan_of(shape)
    capacity, rows = peak + floor + 8 * MIB, []
    for _ in range(ROUNDS):
        zrd = Zrd("--capacity", capacity, "--turn", turn_ms)
        single = [at_once(shape, LIMITED) for _ in range(2)]
        _, together, processors = at_once(shape, LIMITED, LIMITED)
        zrd.end()
        rows.append([together / sum(one[1] for one in single), processors / sum(one[2] for one in single)])
    columns = shown(rows)
    print(f"{words}, turns of {turn_ms} ms, {capacity >> 20} MiB for steps of {peak >> 20} of which {floor >> 20} stay: together {columns[0]} of the "
          f"sum of each alone, {columns[1]} of its processors' time; {ROUNDS} rounds of {STEPS} steps", flush=True)


WANTED = sys.argv[1:] or ("beside", "turns", "spill")
if "beside" in WANTED:
    for hidden, batch in ((256, 8), (512, 4)):  # what changes hands is cleared: a part of the step that falls with the width
        beside(layers=6, hidden=hidden, heads=hidden // 64, seq=256, batch=batch)
if "turns" in WANTED:
    turns("steps that alternate", 500, layers=4, hidden=128, heads=4, seq=128, batch=16)
if "spill" in WANTED:
    os.mkdir(path("disk"))
    turns("state that goes to a file", 2000, layers=8, hidden=384, heads=6, seq=64, batch=4, spill=f"nvme:{path('disk')}", force=True)
