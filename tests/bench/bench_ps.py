#!/usr/bin/env python3
"""Parameter servers with a slow worker: bench_ps.py [--seconds N] [--data FILE] [PICTURE.svg]

Four workers sleep 100 ms in each step, the last one 400 ms, and compute a small model in a few. Each row trains it for as long: steps of
worker 0 per second, the seconds until the mean loss of its last 20 steps is the target, and that loss at the end. The target is what sync
has reached after three quarters of its time. A picture has the losses over time."""
import argparse
import os
import signal
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, ZR_TRAIN, arguments, in_steps, path

import json

ROWS = {"sync": {}, "ssp:2": {}, "ssp:8": {}, "half-async": {}, "geo:5": {}, "async": {}, "async, divide": dict(staleness="divide"), "async, dc:0.04": dict(staleness="dc:0.04")}
SHAPE = dict(comm="ps", ranks=4, servers=1, layers=1, hidden=32, heads=2, seq=32, batch=4, threads=1, steps=100000, eval_every=0, lr=3e-3, warmup=20,
             schedule_lr="constant", worker_sleep="100,100,100,400", seed=1)
WINDOW, WIDTH, HEIGHT = 20, 640, 360
COLOURS = ("#444444", "#1f77b4", "#17becf", "#2ca02c", "#d62728", "#ff7f0e", "#9467bd", "#8c564b")


def run(row, data, seconds):
    """Steps of worker 0 per second, and (seconds, loss) of worker 0 after each of its steps, smoothed."""
    log, report = path("log.jsonl"), path("report.json")
    for file in (log, report):
        if os.path.exists(file):
            os.unlink(file)
    process = subprocess.Popen([ZR_TRAIN] + arguments(**{**SHAPE, "data": data, "ps": row.split(",")[0], "log": log, "json": report, "save": path("saved"), "save_every": 0, **ROWS[row]}),
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    in_steps(log)
    try:
        process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
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
    return len(losses) / spent, curve


def draw(file, curves, seconds):
    low, high = min(loss for curve in curves.values() for _, loss in curve), max(curve[0][1] for curve in curves.values())
    place = lambda at, loss: f"{50 + at / seconds * (WIDTH - 200):.1f},{20 + (high - loss) / (high - low) * (HEIGHT - 70):.1f}"
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="13">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', f'<text x="50" y="{HEIGHT - 12}">0 to {seconds:.0f} seconds</text>',
             f'<text x="4" y="24">{high:.2f}</text>', f'<text x="4" y="{HEIGHT - 48}">{low:.2f}</text>']
    for number, (row, curve) in enumerate(curves.items()):
        colour = COLOURS[number]
        lines += [f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{" ".join(place(*point) for point in curve[::5])}"/>',
                  f'<text x="{WIDTH - 140}" y="{30 + 20 * number}" fill="{colour}">{row}</text>']
    with open(file, "w") as out:
        out.write("\n".join(lines + ["</svg>", ""]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--data", default=f"{BUILD}/demo/bible.txt")
    parser.add_argument("picture", nargs="?")
    given = parser.parse_args()
    rates, curves = {}, {}
    for row in ROWS:
        rates[row], curves[row] = run(row, given.data, given.seconds)
    target = curves["sync"][3 * len(curves["sync"]) // 4][1]
    print(f"{'':<16} {'steps/s':>8} {'seconds to ' + format(target, '.2f'):>18} {'loss at the end':>16}")
    for row, curve in curves.items():
        reached = next((f"{at:.0f}" for at, loss in curve if loss <= target), "-")
        print(f"{row:<16} {rates[row]:8.1f} {reached:>18} {curve[-1][1]:16.3f}")
    if given.picture:
        draw(given.picture, curves, given.seconds)


main()
