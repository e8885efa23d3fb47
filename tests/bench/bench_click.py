#!/usr/bin/env python3
"""examples/click with a slow worker: bench_click.py [--sleep-ms MS] [--samples N] [PICTURE.svg]

Four workers and two servers learn clicks with every timing; each step of a worker sleeps, at least nine tenths of it. Then one worker
sleeps four times as long. A row has samples per second, the seconds to an AUC, the AUC at the end, and the share of its time that each
worker sleeps; workers that wait for others sleep less. The picture has AUC over time, dashed with the slow worker."""
import argparse
import json
import os
import subprocess
import sys

sys.path.insert(0, "tests/support")
from curves import draw
from zrtest import BUILD, path

CLICK = os.path.join(BUILD, "examples", "click")
ROWS = {"sync": (), "half-async": (), "ssp:3": (), "async": (), "async, divide": ("--staleness", "divide"), "geo:10": ()}


def run(row, given, slow):
    command = [CLICK, "train", path("samples"), "--json", "--workers", "4", "--servers", "2", "--batch", "128", "--ps", row.split(",")[0], "--rows", "1300000", *ROWS[row],
               "--samples", str(given.samples), "--eval-every", str(given.samples // 20), "--sleep-ms", str(given.sleep_ms), *(("--slow", "3:4") if slow else ())]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sleep-ms", type=int, default=400)
    parser.add_argument("--samples", type=int, default=80000)
    parser.add_argument("--target", type=float, default=0.73)
    parser.add_argument("picture", nargs="?")
    given = parser.parse_args()
    subprocess.run([CLICK, "make", path("samples"), "300000"], check=True)
    curves = ({}, {})
    for slow in (False, True):
        print(f"{'with a slow worker' if slow else '':<20} {'samples/s':>10} {'to ' + str(given.target):>9} {'AUC':>8}  workers sleep")
        for row in ROWS:
            got = run(row, given, slow)
            curves[slow][row] = [(seconds, auc) for _, seconds, auc in got["curve"]]
            reached = next((f"{seconds:.1f} s" for _, seconds, auc in got["curve"] if auc >= given.target), "-")
            shares = " ".join(f"{100 * share:.0f} %" for share in got["sleep_shares"])
            print(f"{row:<20} {got['samples_per_second']:10.0f} {reached:>9} {got['auc']:8.4f}  {shares}", flush=True)
    if given.picture:
        draw(given.picture, curves[False], "AUC", dashed=curves[True])


main()
