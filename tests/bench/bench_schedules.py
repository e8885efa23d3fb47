#!/usr/bin/env python3
"""What schedules and compression cost in loss after a long run: bench_schedules.py [--steps N] [--seeds N] [--jobs N] [ROW...]

Every row trains make demo's model on the same data with the same batch, rate and beta2, whose variance settles in half of the steps: onebit
begins then. Printed are the mean training loss of the last tenth of the steps over the seeds, and the spread: the standard deviation of the
seeds, of none's runs and the row's together. Compression passes within 1 % and the spread of none. 2,000 steps take two to four
minutes of two cores a run. Runs have the lowest priority; two at a time fill the cores while the ranks of one wait for each other."""
import argparse
import concurrent.futures
import os
import statistics
import sys

sys.path.insert(0, "tests/support")
from compressions import METHODS, SHAPE, is_unknown
from zrtest import BUILD, train

PIPELINE = dict(pp=2, stage=0)  # one data rank
LLAMA = dict(arch="llama")  # pipedream excludes GPT-2's tied embedding
ROWS = {**{name: METHODS[name] for name in ("none", "onebit", "qwz + qgz + hpz on 4 ranks", "powersgd", "topk", "sdp4bit", "zerone")},
        "onebit, auto": dict(compress="gradients:onebit", compress_warmup="auto"),
        "diloco:100": dict(stage=0, groups=2, outer="diloco:100"),
        "2bw": dict(schedule="2bw", accumulate=2, **PIPELINE),
        "none, llama": LLAMA,
        "pipedream, llama": dict(schedule="pipedream", batch=8, **PIPELINE, **LLAMA),
        "pipedream, vertical sync, llama": dict(schedule="pipedream", vertical_sync=True, batch=8, **PIPELINE, **LLAMA)}
MARGIN = 0.01


def final_loss(row, steps, seed):
    """None: this build lacks the method."""
    run = train(**{**SHAPE, "data": f"{BUILD}/demo/bible.txt", "lr": 1e-3, "beta2": 1 - 2 / steps, "steps": steps, "seed": seed,
                   "timeout": 24 * 3600, **ROWS[row]})
    if is_unknown(run):
        return None
    if run.code:
        raise SystemExit(f"{row}: {run.err}")
    loss = statistics.mean(run.report["loss"][-max(1, steps // 10):])
    print(f"  {row}, seed {seed}: {loss:.4f} after {run.report['seconds']:.0f} s", flush=True)
    return loss


def spread(*groups):
    """Standard deviation within the groups; 0 for one seed."""
    squares = sum((loss - statistics.mean(group)) ** 2 for group in groups for loss in group)
    return (squares / max(1, sum(len(group) - 1 for group in groups))) ** 0.5


def plain_of(row):
    return "none, llama" if row.endswith("llama") else "none"


def verdict(row, losses, plain):
    if "compress" not in ROWS[row]:
        return ""
    limit = statistics.mean(plain) * (1 + MARGIN) + spread(plain, losses)
    return f"within 1 % + spread of none: {'yes' if statistics.mean(losses) <= limit else 'no'}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("rows", nargs="*", metavar="ROW", help="parts of names, beside none: " + ", ".join(ROWS))
    given = parser.parse_args()
    chosen = [row for row in ROWS if not given.rows or any(part in row for part in given.rows)]
    wanted = [row for row in ROWS if row in chosen or row in map(plain_of, chosen)]
    os.nice(19)
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        runs = [(row, pool.submit(final_loss, row, given.steps, seed)) for seed in range(1, given.seeds + 1) for row in wanted]
        losses = {row: [run.result() for of, run in runs if of == row and run.result() is not None] for row in wanted}
    print(f"{given.steps} steps, {given.seeds} seeds\n{'':28}{'loss':>8}{'spread':>9}{'to none':>10}")
    for row in wanted:
        if not losses[row]:
            print(f"{row:28}  not in this build")
            continue
        mean, plain = statistics.mean(losses[row]), losses[plain_of(row)]
        print(f"{row:28}{mean:8.4f}{spread(losses[row]):9.4f}{100 * (mean / statistics.mean(plain) - 1):+9.2f} %  {verdict(row, losses[row], plain)}")


main()
