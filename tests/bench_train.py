#!/usr/bin/env python3
"""The figures of zr-train: GPT-2 124M's step on this machine, and how much communication is hidden behind backward.
Prints; never fails on time."""
import os
import random
import statistics
import struct

from zrtest import path, train


def machine():
    name = "unknown processor"
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


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


print(f"machine: {machine()}")
run = train(data=shard(50257), vocab=50257, layers=12, hidden=768, heads=12, seq=64, batch=4, steps=14, eval_every=0,
            timeout=600)
if run.code:
    raise SystemExit(run.err)
steps = sorted(run.report["step_seconds"][2:])
median = statistics.median(steps)
print(f"GPT-2 124M, batch 4 x 64, fp32, one rank: {256 / median:.0f} tokens/s "
      f"(median step {median:.3f} s, least {steps[0]:.3f}, most {steps[-1]:.3f}, {len(steps)} steps)")
# 6 floating-point operations per token and parameter in matrix products, 12 L C T more for attention, forward and backward
flops = 256 * (6 * (12 * 12 * 768 * 768 + 50304 * 768) + 12 * 12 * 768 * 64)
print(f"  {flops / median / 1e9:.0f} GFLOP/s over the whole step")

for stage in (0, 1):
    run = train(layers=6, hidden=384, heads=6, seq=128, batch=8, ranks=2, stage=stage, steps=24, eval_every=0,
                timeout=600)
    if run.code:
        raise SystemExit(run.err)
    median = statistics.median(run.report["step_seconds"][4:])
    shares = ", ".join(f"{share:.0f} %" for share in hidden(run))
    print(f"2 ranks, stage {stage}, {run.report['parameters'] / 1e6:.1f} M parameters, batch 8 x 128 per rank: "
          f"{2048 / median:.0f} tokens/s, communication hidden behind work on each rank: {shares}")
