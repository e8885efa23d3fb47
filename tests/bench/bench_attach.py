#!/usr/bin/env python3
"""What zr attach does to the steps of a trainer that runs: the same run left alone and attached to again and again, in pairs, in
turn, until there have been so many attaches in all; p50, p99 and p99.9 of all steps of either kind. Prints; fails only where a loss
differs by a bit."""
import argparse
import json
import os
import subprocess
import sys
import time

from bench_speeds import MACHINE

sys.path.insert(0, "tests/support")
from zrtest import BUILD, ZR_TRAIN, arguments, path, text_file

ZR = os.path.abspath(os.path.join(BUILD, "bin", "zr"))
ENVIRONMENT = {**os.environ, "XDG_RUNTIME_DIR": path("runtime"), "ZR_CONF": "publish:on"}
SHARES = (0.5, 0.99, 0.999)
FOR, BETWEEN = 0.1, 0.05  # seconds
PAIRS = 5  # at least


def attach(pid):
    """Whether it could, and was ended by a signal as ever."""
    one = subprocess.Popen([ZR, "attach", str(pid), "-o", path("now.zrt")], env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    time.sleep(FOR)
    one.send_signal(2)
    return one.wait() == 0


def run(steps, attaches):
    """Attaches, seconds of its steps, losses."""
    command = [ZR_TRAIN, *arguments(data=text_file(), steps=steps, layers=2, hidden=128, heads=4, seq=64, batch=4, ranks=1, seed=11,
                                    json=path("run.json"))]
    trainer, count = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL), 0
    while count < attaches and trainer.poll() is None:
        count += attach(trainer.pid)
        time.sleep(BETWEEN)
    if trainer.wait():
        sys.exit(f"the trainer ended with {trainer.returncode}")
    with open(path("run.json")) as file:
        got = json.load(file)
    return count, got["step_seconds"][1:-1], got["loss_hex"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attaches", type=int, default=100, help="100 if not given")
    parser.add_argument("--steps", type=int, default=1000, help="of a run, 1000 if not given")
    given = parser.parse_args()
    os.makedirs(path("runtime"), 0o700)
    steps, left, pairs, losses = {"alone": [], "attached": []}, given.attaches, 0, set()
    while left > 0:
        for kind in sorted(steps, reverse=pairs % 2 == 1):
            count, seconds, loss = run(given.steps, min(left, -(-given.attaches // PAIRS)) if kind == "attached" else 0)
            if kind == "attached" and count == 0:
                sys.exit("the trainer ended before the first attach: give it more --steps")
            left -= count
            steps[kind] += seconds
            losses.add(tuple(loss))
        pairs += 1
    print(f"machine: {MACHINE}")
    at = {kind: [sorted(all_of)[int(len(all_of) * share)] for share in SHARES] for kind, all_of in steps.items()}
    for kind, values in at.items():
        print(f"{kind:10}" + "".join(f"  p{100 * share:g} {1e3 * value:8.2f} ms" for share, value in zip(SHARES, values)))
    print(f"{given.attaches - left} attaches in {pairs} pairs, attached beside alone:" + "".join(
        f"  p{100 * share:g} {a / b:.3f}" for share, a, b in zip(SHARES, at["attached"], at["alone"])) + "  (bar of p99.9: 1.1)")
    print("losses: " + ("the same bits in all runs" if len(losses) == 1 else f"{len(losses)} different ones"))
    sys.exit(len(losses) != 1)


main()
