#!/usr/bin/env python3
"""Compression over a slow link: bench_links.py [--steps N] [--loss F] [--rates MBIT,..] [ROW...]

Two hosts, which are namespaces of this machine, with a link of a given rate each way. Every row trains make demo's model on the same data
with the same batch, rate and beta2. Printed are, for each rate:
  bytes       that a rank sends per step, after the warm-up of the method; zerone: in a step that is not local
  step        median time of a step, and beside none: none's step divided by the row's
  bound       none's step divided by its step without a link, which no method can exceed (Amdahl's law): computing remains
  to the loss time until the mean loss of 25 steps is below --loss, beside none's: the steps of a run without a link, which has the same bits,
              times the median steps before and after the warm-up over the link"""
import argparse
import statistics
import sys

from bench_speeds import MACHINE

sys.path.insert(0, "tests/support")
from compressions import METHODS, SHAPE, is_unknown
from hosts import become_hosts, shape, train_on_hosts
from zrtest import BUILD, train

BETA2, MEASURED, SETTLING, WINDOW = 0.99, 20, 4, 25
COMMON = dict(lr=2.5e-3, beta2=BETA2, data=f"{BUILD}/demo/bible.txt", timeout=3600)
FEEDBACK = {name: round(1 / (1 - BETA2)) for name in ("onebit", "zerone")}  # steps of the default warm-up
GROWING = {"zerone": 4 * FEEDBACK["zerone"]}  # steps after it in which the interval of exchanges grows
PLAIN = {name: "none, stage 3 on 4 ranks" if "4 ranks" in name else "none" for name in METHODS}


def flags_of(row, steps):
    return {**SHAPE, **COMMON, **METHODS[row], "steps": steps}


def steps_to_loss(row, steps, target):
    """None: this build lacks the method; 0: the loss is not reached, or none is wanted."""
    run = train(prefix=["nice", "-n", "19"], dry_run=None if target else True, **flags_of(row, steps))  # not timed
    if is_unknown(run):
        return None
    if run.code:
        raise SystemExit(f"{row}: {run.err}")
    losses = run.report["loss"] if target else []
    means = [statistics.mean(losses[end - WINDOW:end]) for end in range(WINDOW, len(losses) + 1)]
    return next((end + WINDOW for end, mean in enumerate(means) if mean < target), 0)


def over_link(row):
    """A step's seconds before and after the warm-up, and a rank's bytes: medians, or means where steps are of several kinds."""
    warm = FEEDBACK.get(row, SETTLING)
    flags = {**flags_of(row, warm + GROWING.get(row, 0) + SETTLING + MEASURED), "warmup": SETTLING}
    ranks = flags.pop("ranks") // 2
    run = train_on_hosts((ranks, ranks), **flags)
    if run.code:
        raise SystemExit(f"{row}: {run.err}")
    seconds = run.report["step_seconds"]
    usual = statistics.mean if row in GROWING else statistics.median
    after = usual(seconds[-MEASURED:])
    return (usual(seconds[SETTLING:warm]) if row in FEEDBACK else after), after, run.report["ranks"][0]["sent_bytes_per_step"]


def seconds_to_loss(row, steps, timed):
    warm = min(steps, FEEDBACK.get(row, 0))
    return warm * timed[0] + (steps - warm) * timed[1]


def print_link(rate, rows, steps, unlimited):
    limited = {row: over_link(row) for row in rows}
    print(f"{rate} Mbit/s each way\n{'':28}{'bytes':>10}{'step':>10}{'beside none':>13}{'bound':>8}{'to the loss':>13}{'beside none':>13}")
    for row, (_, step, sent) in limited.items():
        plain = PLAIN[row]
        line = f"{row:28}{sent:10}{1000 * step:7.0f} ms{limited[plain][1] / step:13.2f}{limited[plain][1] / unlimited[plain][1]:8.2f}"
        if steps[row] and steps[plain]:
            times = [seconds_to_loss(name, steps[name], limited[name]) for name in (row, plain)]
            line += f"{times[0]:11.0f} s{times[1] / times[0]:13.2f}"
        print(line, flush=True)
    for plain in dict.fromkeys(PLAIN[row] for row in rows):
        transfer = limited[plain][2] * 8 / (1e6 * rate)
        print(f"  {plain}: {unlimited[plain][1] / transfer:.2f} s of computing and copying per second of transfer")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500, help="steps of the runs without a link")
    parser.add_argument("--loss", type=float, default=2.0, help="0: only the times of steps")
    parser.add_argument("--rates", default="100,1000", help="Mbit/s")
    parser.add_argument("rows", nargs="*", metavar="ROW", help="beside those of none: " + ", ".join(METHODS))
    given = parser.parse_args()
    unknown = [row for row in given.rows if row not in METHODS]
    if unknown:
        parser.error(f"no row {unknown[0]}")
    wanted = [row for row in METHODS if not given.rows or row in given.rows or row in {PLAIN[name] for name in given.rows}]
    print(f"machine: {MACHINE}", flush=True)
    steps = {row: steps_to_loss(row, given.steps, given.loss) for row in wanted}
    for row in wanted if given.loss else []:
        print(f"  {row}: " + ("not in this build" if steps[row] is None else f"{steps[row] or 'more than ' + str(given.steps)} steps to {given.loss}"))
    rows = [row for row in wanted if steps[row] is not None]
    why = become_hosts()
    if why:
        raise SystemExit(f"skipped: {why}")
    unlimited = {row: over_link(row) for row in rows}
    print("without a link: " + ", ".join(f"{row} {1000 * timed[1]:.0f} ms" for row, timed in unlimited.items()), flush=True)
    for rate in map(int, given.rates.split(",")):
        why = shape(rate)
        if why:
            raise SystemExit(f"skipped: {why}")
        print_link(rate, rows, steps, unlimited)


main()
