#!/usr/bin/env python3
"""Groups that train apart beside data ranks: bench_outer.py [--steps N] [--seeds N] [ROW...]

Every row trains make demo's model on the King James Bible from its first values. Printed are the loss of validation of each seed, how far
their mean is above that of two data ranks, and the planned bytes between groups beside those of sums of gradients in each step. 2,000 steps
take two to four minutes of two cores a run."""
import argparse
import statistics
import sys

sys.path.insert(0, "tests/support")
from compressions import SHAPE
from zrtest import BUILD, train

MEAN = dict(groups=2, outer_lr=1, outer_momentum=0)
ROWS = {"two data ranks": {},
        "diloco:100": dict(groups=2, outer="diloco:100"),
        "diloco:100, mean": dict(outer="diloco:100", **MEAN),
        "diloco:16, mean, int4": dict(outer="diloco:16", compress="outer:int4", **MEAN)}


def run(row, given, seed):
    """The loss of validation, and what share of the bytes of sums in each step the exchanges send."""
    got = train(timeout=None, **{**SHAPE, **ROWS[row], "data": f"{BUILD}/demo/bible.txt", "lr": 2.5e-3, "steps": given.steps, "eval_every": given.steps, "seed": seed})
    if got.code:
        raise SystemExit(f"{row}: {got.err}")
    sent = got.report["ranks"][0].get("outer", {}).get("planned_bytes")
    return got.report["val_loss"], 1 if sent is None else sent / (got.report["parameters"] * 4 * given.steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("rows", nargs="*", default=list(ROWS))
    given = parser.parse_args()
    base = None
    for row in given.rows:
        losses, shares = zip(*(run(row, given, seed) for seed in range(1, given.seeds + 1)))
        base = base or statistics.mean(losses)
        print(f"{row:<24} {' '.join(f'{loss:.4f}' for loss in losses)}  {statistics.mean(losses) - base:+.4f}  bytes 1/{1 / shares[0]:.0f}", flush=True)


main()
