#!/usr/bin/env python3
"""The figures of zr-train: GPT-2 124M's step on this machine, and how much communication is hidden behind backward.
Prints; never fails on time."""
import random
import statistics
import struct
import sys

from bench_speeds import MACHINE, speed

sys.path.insert(0, "tests/support")
from zrtest import path, train


def shard(vocabulary, count=20000):
    where = path("tokens.bin")
    rng = random.Random(3)
    with open(where, "wb") as file:
        file.write(struct.pack("<256i", 20240520, 1, count, *[0] * 253))
        file.write(struct.pack(f"<{count}H", *[rng.randrange(vocabulary) for _ in range(count)]))
    return where


def hidden(run):
    """The share of the communicator's time that the training thread did not wait for, per rank."""
    return [100 * max(0.0, 1 - r["comm_exposed_ns"] / r["comm_busy_ns"]) for r in run.report["ranks"]]


print(f"machine: {MACHINE}")
# 6 floating-point operations per token and parameter in matrix products, 12 L C T more for attention, forward and backward
flops = 256 * (6 * (12 * 12 * 768 * 768 + 50304 * 768) + 12 * 12 * 768 * 64)
# The precisions in turn, so that a machine's mood falls on both alike.
GPT2 = dict(data=shard(50257), vocab=50257, layers=12, hidden=768, heads=12, seq=64, batch=4, steps=9, eval_every=0,
            timeout=600)
steps, peaks = {"fp32": [], "bf16": []}, {}
for _ in range(2):
    for precision in steps:
        run = train(precision=precision, **GPT2)
        if run.code:
            raise SystemExit(run.err)
        steps[precision] += run.report["step_seconds"][2:]
        peaks[precision] = run.report["ranks"][0]["peak_bytes"]["total"], run.report["ranks"][0]["peak_rss_bytes"]
for precision, seconds in steps.items():
    median = statistics.median(seconds)
    print(f"GPT-2 124M, batch 4 x 64, {precision}, one rank: {256 / median:.0f} tokens/s "
          f"(median step {median:.3f} s, least {min(seconds):.3f}, most {max(seconds):.3f}, {len(seconds)} steps), "
          f"{flops / median / 1e9:.0f} GFLOP/s over the whole step; "
          f"arena {peaks[precision][0] / 1e9:.2f} GB, resident {peaks[precision][1] / 1e9:.2f} GB")
    speed(f"tokens/s, GPT-2 124M, {precision}", 256 / median)

# Stages beside each other: rounds of short runs in turn, and ratios within a round, so that a machine's mood falls on
# all of them alike.
ROUNDS, STEPS, WARM = 7, 8, 2
seconds = {stage: [] for stage in range(4)}
last, ratios = {}, {stage: [] for stage in range(4)}
for _ in range(ROUNDS):
    medians = {}
    for stage in seconds:
        run = train(layers=8, hidden=384, heads=6, seq=128, batch=8, ranks=2, stage=stage, steps=STEPS, eval_every=0,
                    timeout=600)
        if run.code:
            raise SystemExit(run.err)
        seconds[stage] += run.report["step_seconds"][WARM:]
        medians[stage] = statistics.median(run.report["step_seconds"][WARM:])
        ratios[stage].append(medians[stage] / medians[0])
        last[stage] = run
print(f"2 ranks, {last[0].report['parameters'] / 1e6:.1f} M parameters, batch 8 x 128 per rank, "
      f"{ROUNDS} rounds of {STEPS - WARM} steps of each stage:")
for stage, run in last.items():
    median = statistics.median(seconds[stage])
    shares = ", ".join(f"{share:.0f} %" for share in hidden(run))
    calls = ", ".join(str(rank["driver_calls_last_step"]) for rank in run.report["ranks"])
    print(f"  stage {stage}: {2048 / median:.0f} tokens/s, step {median:.3f} s, "
          f"{statistics.median(ratios[stage]):.3f} x stage 0's "
          f"(the rounds': {min(ratios[stage]):.3f} to {max(ratios[stage]):.3f}; "
          f"the least of {len(seconds[stage])} steps {min(seconds[stage]):.3f} s, "
          f"{min(seconds[stage]) / min(seconds[0]):.3f} x), "
          f"communication hidden behind work on each rank: {shares}; driver calls in the last step: {calls}")
    speed(f"seconds of a step, 14 M parameters, 2 ranks, stage {stage}", median, less=True)
