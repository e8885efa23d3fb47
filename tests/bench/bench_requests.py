#!/usr/bin/env python3
"""Requests to parameter servers behind computing: bench_requests.py [--pairs N] [--delays MS,..] [--before PROGRAM]

Two workers and a server train a small model. Each request takes a delay more, in which its worker's processor is free (link_delay.c). For
each timing and delay: the median time of a step, the share of the requests' time that is hidden, and with --before, another build of
zr-train, which runs by turns with this one, its step and the median of the pairs' ratios."""
import argparse
import os
import statistics
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, ZR_TRAIN, arguments, path

import json

SHAPE = dict(comm="ps", ranks=2, servers=1, layers=4, hidden=128, heads=4, seq=64, batch=4, threads=1, steps=24, eval_every=0, seed=1,
             data=f"{BUILD}/demo/bible.txt")
SETTLING = 4


def library():
    made = path("link_delay.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-I.", "-o", made, "tests/bench/link_delay.c"], check=True)
    return made


def run(program, timing, delay, delays):
    """A step's seconds, and the hidden share of the requests' time."""
    report = path("report.json")
    env = {**os.environ, "LD_PRELOAD": delays, "ZR_LINK_DELAY_US": str(int(1000 * delay))}
    got = subprocess.run(["nice", "-n", "19", program] + arguments(**{**SHAPE, "ps": timing, "json": report}), env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if got.returncode:
        raise SystemExit(got.stderr)
    with open(report) as file:
        read = json.load(file)
    busy, exposed = (sum(rank[name] for rank in read["ranks"]) for name in ("comm_busy_ns", "comm_exposed_ns"))
    return statistics.median(read["step_seconds"][SETTLING:]), 1 - exposed / busy if busy else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--delays", default="0,1,3")
    parser.add_argument("--timings", default="sync,ssp:2,half-async,async")
    parser.add_argument("--before")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    SHAPE["ranks"] = options.workers
    delays = library()
    print(f"{'':12}{'delay':>8}{'before':>12}{'step':>12}{'ratio':>8}{'hidden':>9}")
    for timing in options.timings.split(","):
        for delay in map(float, options.delays.split(",")):
            before, after = [], []
            for _ in range(options.pairs):
                before.append(run(options.before, timing, delay, delays)[0] if options.before else 0)
                after.append(run(ZR_TRAIN, timing, delay, delays))
            steps = [step for step, _ in after]
            line = f"{1000 * statistics.median(before):9.1f} ms" if options.before else f"{'-':>12}"
            ratio = f"{statistics.median(step / old for step, old in zip(steps, before)):8.3f}" if options.before else f"{'-':>8}"
            print(f"{timing:12}{delay:5g} ms{line}{1000 * statistics.median(steps):9.1f} ms{ratio}{100 * statistics.median(share for _, share in after):7.0f} %", flush=True)


if __name__ == "__main__":
    main()
