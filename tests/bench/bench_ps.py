#!/usr/bin/env python3
"""Parameter servers with a slow worker: bench_ps.py [--seconds N] [--sleep-ms MS] [--data FILE] [PICTURE.svg]

Four workers sleep in each step, the last one four times as long, and compute a small model in a few milliseconds. Each row trains it for as
long: steps of worker 0 per second, the seconds until the mean loss of its last 20 steps is the target, that loss at the end, and the share
of its time that each worker is asleep. With less than nine tenths other programs decide the row: lengthen the sleeps. The target is what
sync has reached after three quarters of its time. A picture has the losses over time."""
import argparse
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, "tests/support")
from curves import draw
from zrtest import BUILD, ZR_TRAIN, arguments, children, in_steps, path

import json

ROWS = {"sync": {}, "ssp:2": {}, "ssp:8": {}, "half-async": {}, "geo:5": {}, "async": {}, "async, divide": dict(staleness="divide"), "async, dc:0.04": dict(staleness="dc:0.04")}
SHAPE = dict(comm="ps", ranks=4, servers=1, layers=1, hidden=32, heads=2, seq=32, batch=4, threads=1, steps=100000, eval_every=0, lr=3e-3, warmup=20,
             schedule_lr="constant", seed=1)
WINDOW = 20


def busy(pids):
    """Seconds that the main thread of each process has computed or waited for a processor."""
    lines = [open(f"/proc/{pid}/schedstat").read().split() for pid in pids]
    return [(int(computed) + int(waited)) / 1e9 for computed, waited, _ in lines]


def run(row, given):
    """Steps of worker 0 per second, (seconds, loss) of worker 0 after each of its steps, smoothed, and the share of each worker's sleep."""
    log, report = path("log.jsonl"), path("report.json")
    for file in (log, report):
        if os.path.exists(file):
            os.unlink(file)
    process = subprocess.Popen([ZR_TRAIN] + arguments(**{**SHAPE, "data": given.data, "worker_sleep": ",".join(str(given.sleep_ms * factor) for factor in (1, 1, 1, 4)), "ps": row.split(",")[0], "log": log, "json": report, "save": path("saved"), "save_every": 0, **ROWS[row]}),
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    in_steps(log)
    workers = [child for child in children(process.pid) if not children(child)]
    before, begin = busy(workers), time.monotonic()
    try:
        process.communicate(timeout=given.seconds)
    except subprocess.TimeoutExpired:
        elapsed = time.monotonic() - begin
        sleeps = [1 - (after - was) / elapsed for after, was in zip(busy(workers), before)]
        process.send_signal(signal.SIGTERM)
        err = process.communicate()[1]
    if not os.path.exists(report):
        raise SystemExit(f"{row}: {err}")
    with open(report) as file:
        got = json.load(file)
    losses, spent, curve = got.get("worker_loss", got["loss"]), 0, []
    for i, step in enumerate(got["step_seconds"]):
        spent += step
        if i >= WINDOW:
            curve.append((spent, sum(losses[i - WINDOW:i]) / WINDOW))
    return len(losses) / spent, curve, sleeps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--sleep-ms", type=int, default=400)
    parser.add_argument("--data", default=f"{BUILD}/demo/bible.txt")
    parser.add_argument("picture", nargs="?")
    given = parser.parse_args()
    rates, curves, sleeps = {}, {}, {}
    for row in ROWS:
        rates[row], curves[row], sleeps[row] = run(row, given)
    target = curves["sync"][3 * len(curves["sync"]) // 4][1]
    print(f"{'':<16} {'steps/s':>8} {'seconds to ' + format(target, '.2f'):>18} {'loss at the end':>16}  workers sleep")
    for row, curve in curves.items():
        reached = next((f"{at:.0f}" for at, loss in curve if loss <= target), "-")
        print(f"{row:<16} {rates[row]:8.1f} {reached:>18} {curve[-1][1]:16.3f}  {' '.join(f'{100 * share:.0f} %' for share in sleeps[row])}")
    if given.picture:
        draw(given.picture, {row: curve[::5] for row, curve in curves.items()}, "loss")


main()
