#!/usr/bin/env python3
"""What ZeRO-R and pipelines cost in time: steps of two ranks in turn, and the median of their ratios. Prints; never fails
on time."""
import statistics
import sys

sys.path.insert(0, "tests/support")
from zrtest import train

ROUNDS, STEPS, WARM = 5, 8, 2
SHAPE = dict(layers=8, hidden=384, heads=6, seq=128, ranks=2, eval_every=0, steps=STEPS, threads=1, timeout=600)
TENSOR = dict(SHAPE, tp=2, batch=8, recompute="full")


def tokens_per_second(flags):
    run = train(**flags)
    if run.code:
        raise SystemExit(run.err)
    data = flags["ranks"] // flags.get("tp", 1) // flags.get("pp", 1)
    return data * flags["batch"] * flags.get("accumulate", 1) * flags["seq"] / statistics.median(run.report["step_seconds"][WARM:])


for words, without, with_it in (
        ("--partition-activations, beside --tp 2 --recompute full", TENSOR, dict(TENSOR, partition_activations=True)),
        ("--recompute selective, beside none", dict(SHAPE, batch=8), dict(SHAPE, batch=8, recompute="selective")),
        ("--pp 2 with 8 micro-batches, equal stages, beside two data ranks", dict(SHAPE, batch=2, accumulate=4),
         dict(SHAPE, pp=2, pipeline_cut="equal", batch=2, accumulate=8)),
        ("the same, stages of equal peaks", dict(SHAPE, batch=2, accumulate=4), dict(SHAPE, pp=2, batch=2, accumulate=8))):
    pairs = [(tokens_per_second(without), tokens_per_second(with_it)) for _ in range(ROUNDS)]
    ratios = sorted(a / b for a, b in pairs)
    print(f"{words}: {statistics.median(ratios):.3f} times as long per token (of {ROUNDS} rounds {ratios[0]:.3f} to {ratios[-1]:.3f}; "
          f"{statistics.median(a for a, _ in pairs):.0f} and {statistics.median(b for _, b in pairs):.0f} tokens/s)", flush=True)
