#!/usr/bin/env python3
"""What offload costs in time: steps with and without in turn, the median of their ratios, and the share of a step that
waits for copies; and likewise steps with a speculative update beside those without one. Prints; never fails on time. The bar is 1.10."""
import os
import statistics
import sys

sys.path.insert(0, "tests/support")
from zrtest import train

ROUNDS, STEPS, WARM = int(os.environ.get("ZR_ROUNDS", 5)), 10, 3
SHAPE = dict(layers=6, hidden=384, heads=6, seq=128, batch=8, eval_every=0, steps=STEPS, timeout=600)


def measured(flags):
    run = train(**flags)
    if run.code:
        raise SystemExit(run.err)
    return statistics.median(run.report["step_seconds"][WARM:]), {**run.report["ranks"][0], "rolled_back": run.report.get("rolled_back_updates")}


def in_turn(first, second):
    pairs = [(measured(first), measured(second)) for _ in range(ROUNDS)]
    ratios = sorted(b[0] / a[0] for a, b in pairs)
    return f"{statistics.median(ratios):.3f} times as long (of {ROUNDS} rounds {ratios[0]:.3f} to {ratios[-1]:.3f})", pairs[-1][0][1], pairs[-1][1][1]


for words, flags, param in (("1 rank, bf16", dict(precision="bf16"), False), ("1 rank, fp32", dict(), False),
                            ("1 rank, stage 3, bf16, parameters too", dict(precision="bf16", stage=3), True),
                            ("2 ranks, stage 1, bf16", dict(precision="bf16", ranks=2, stage=1, threads=1), False),
                            ("2 ranks, stage 3, bf16", dict(precision="bf16", ranks=2, stage=3, threads=1), False),
                            ("2 ranks, stage 3, bf16, parameters too", dict(precision="bf16", ranks=2, stage=3, threads=1), True)):
    away = dict(offload_optimizer="cpu", **(dict(offload_param="cpu") if param else {}))
    told, here, there = in_turn({**SHAPE, **flags}, {**SHAPE, **flags, **away})
    print(f"{words}: {told}; "
          f"{there['tiers']['host']['wait_share']:.1%} waiting for copies; state on the device {here['persistent_bytes']['state']:,} -> "
          f"{there['persistent_bytes']['state']:,} bytes, peak {here['peak_bytes']['total']:,} -> {there['peak_bytes']['total']:,}", flush=True)
for words, flags in (("1 rank, bf16", {}), ("2 ranks, stage 2, bf16", dict(ranks=2, stage=2, threads=1))):
    plain = dict(precision="bf16", offload_optimizer="cpu", clip=1e9, **SHAPE, **flags)
    told, here, there = in_turn(plain, {**plain, "speculative_update": "16GiB"})
    print(f"{words}, a speculative update beside one after the norm: {told}; {here['tiers']['host']['wait_share']:.1%} -> "
          f"{there['tiers']['host']['wait_share']:.1%} waiting for copies, {there['rolled_back']} rolled back", flush=True)
