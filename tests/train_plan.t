#!/usr/bin/env python3
"""The byte plan: equal to what is measured, for every tag; and equal to a formula that shares no code with it."""
import os

from zrtest import PLANNED_TAGS, done, note, ok, same, train

FLOAT = 4


def other_cap(steps, ranks):
    """Bytes of records, stacks and heap that README allows a rank."""
    threads = max(1, os.cpu_count() // ranks)
    return (8 << 20) + threads * (512 << 10) + 16 * steps


def up(n, multiple):
    return -(-n // multiple) * multiple


def formula(layers, hidden, heads, seq, batch, vocabulary, ranks, stage, recompute):
    """Bytes of states, checkpoints and activations at the peak, from the shapes alone. The peak is the start of the
    last block's backward: all blocks' activations, the gradient of the residual stream and of the wide layer."""
    block = [hidden] * 2 + [3 * hidden * hidden, 3 * hidden] + [hidden * hidden, hidden] + [hidden] * 2 + \
        [4 * hidden * hidden, 4 * hidden] + [4 * hidden * hidden, hidden]
    elements = vocabulary * hidden + seq * hidden + layers * sum(block) + 2 * hidden
    rows = batch * seq
    kept = hidden * (1 + 3 + 1 + 1 + 1 + 4 + 4) + 4 + heads  # norms, qkv, attention, middle, fc, gelu; statistics
    if recompute == "none":
        kept += heads * seq
    blocks_kept = 1 if recompute == "full" else layers
    states = {"param": FLOAT * elements, "grad": FLOAT * elements,
              "optimizer": 2 * FLOAT * elements / (ranks if stage else 1)}
    if ranks > 1:  # the tied embedding's first contribution, summed aside
        states["grad"] += FLOAT * vocabulary * hidden / ranks
    return {**states,
            "checkpoint": FLOAT * rows * hidden * layers,
            "activation": FLOAT * rows * (blocks_kept * kept + hidden + 4 * hidden + hidden + 3)}


SHAPES = [
    dict(layers=2, hidden=64, heads=4, seq=32, batch=2, ranks=1, stage=0),
    dict(layers=3, hidden=60, heads=5, seq=17, batch=3, ranks=3, stage=1),
    dict(layers=6, hidden=192, heads=6, seq=96, batch=4, ranks=2, stage=1),
    dict(layers=6, hidden=192, heads=6, seq=96, batch=4, ranks=2, stage=0),
    dict(layers=5, hidden=128, heads=2, seq=128, batch=8, ranks=2, stage=1, recompute="full"),
    dict(layers=5, hidden=128, heads=2, seq=128, batch=8, ranks=1, stage=0, recompute="selective"),
]
optimizer = {}
for shape in SHAPES:
    words = " ".join(f"{key} {value}" for key, value in shape.items())
    run = train(**shape, steps=4, eval_every=2, sample=8)
    if not same(run.code, 0, f"runs: {words}"):
        note(run.err)
        continue
    want = formula(vocabulary=256, **{"recompute": "none", **shape})
    for rank in run.report["ranks"]:
        planned, measured = rank["planned_bytes"], rank["peak_bytes"]
        same({t: measured[t] for t in PLANNED_TAGS}, {t: planned[t] for t in PLANNED_TAGS},
             f"rank {rank['rank']}: planned equals measured for every tag")
        cap = other_cap(4, shape["ranks"])
        ok(0 < measured["other"] <= cap, f"rank {rank['rank']}: other is {measured['other']} <= {cap}")
        same(measured["total"], sum(measured[t] for t in PLANNED_TAGS) + measured["other"], "the tags add up")
        # Within 2 % of the formula, and of what rounding to 256 bytes per tensor and padding of shards can add.
        slack = 256 * 20 * (shape["layers"] + 2) + 64 * FLOAT * shape["ranks"] * (shape["layers"] + 3)
        for tag, value in want.items():
            ok(abs(planned[tag] - value) <= 0.02 * value + slack,
               f"rank {rank['rank']}: {tag} is {planned[tag]}, the formula says {value:.0f}")
        ok(rank["peak_reserved_bytes"] >= measured["total"] - measured["other"], "reserved covers what is live")
    optimizer[tuple(sorted((k, v) for k, v in shape.items() if k != "stage")), shape["stage"]] = \
        run.report["ranks"][0]["peak_bytes"]["optimizer"]

for (shape, stage), sharded in optimizer.items():
    whole = optimizer.get((shape, 0))
    if stage == 1 and whole:
        ranks = dict(shape)["ranks"]
        ok(abs(sharded * ranks - whole) <= 64 * 256 * ranks,
           f"optimizer bytes at stage 1 ({sharded}) are 1/{ranks} of stage 0's ({whole})")

# A plan of more than 1 GiB: the process's own memory is the plan, within 3 % and a base of 96 MiB.
big = dict(layers=8, hidden=768, heads=12, seq=64, batch=2, vocab=16384, ranks=1, stage=0, steps=2)
import struct
from zrtest import path
import random
rng = random.Random(3)
shard = path("tokens.bin")
count = 8192
with open(shard, "wb") as file:
    file.write(struct.pack("<256i", 20240520, 1, count, *[0] * 253))
    file.write(struct.pack(f"<{count}H", *[rng.randrange(16384) for _ in range(count)]))
run = train(data=shard, **big, timeout=300)
if same(run.code, 0, "a model of more than 1 GiB runs"):
    rank = run.report["ranks"][0]
    plan = rank["planned_bytes"]["total"]
    own = rank["rss_anonymous_bytes"] + rank["rss_shared_bytes"]
    ok(plan >= 1 << 30, f"its plan is {plan / 2**30:.2f} GiB")
    ok(plan * 0.97 <= own <= plan * 1.03 + (96 << 20),
       f"its own memory is {own / 2**20:.0f} MiB, the plan {plan / 2**20:.0f} MiB")
    same({t: rank["peak_bytes"][t] for t in PLANNED_TAGS}, {t: rank["planned_bytes"][t] for t in PLANNED_TAGS},
         "planned equals measured for every tag")
else:
    note(run.err)
done()
