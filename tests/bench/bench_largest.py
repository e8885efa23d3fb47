#!/usr/bin/env python3
"""The largest model of each preset of --zero-r on 400 ranks of 32 GB, 16 of them to a layer, batch 16, 1,024 tokens, fp16,
by the byte plan; beside what the ZeRO paper (arXiv 1910.02054) has trained there, and the plan of a model of that size."""
import sys

sys.path.insert(0, "tests/support")
from zrtest import train

PAPER = {"C1": (50, 8192, 40), "C2": (132, 6144, 60), "C3": (62, 8192, 50), "C4": (175, 8192, 140), "C5": (187, 8192, 150)}
SHAPE = dict(world_size=400, tp=16, batch=16, seq=1024, vocab=50257, precision="fp16", threads=1, dry_run=True, steps=None, ranks=None,
             stage=None)


def gigabytes(rank):
    return " ".join(f"{tag} {rank['planned_bytes'][tag] / 1e9:.1f}" for tag in ("param", "grad", "optimizer", "master", "checkpoint", "activation", "comm"))


print("preset   paper                    its plan here   largest that fits in 32 GB by its plan, and what that takes (GB)")
for preset, (layers, hidden, billions) in PAPER.items():
    shape = dict(SHAPE, hidden=hidden, heads=hidden // 128, zero_r=preset)
    same, most = train(layers=layers, **shape), train(layers=None, find_max="layers", memory_limit="32GB", **shape)
    if same.code or most.code:
        raise SystemExit(same.err + most.err)
    print(f"{preset}       {layers:3} x {hidden}, {billions:3}B    {same.report['ranks'][0]['planned_reserved_bytes'] / 1e9:9.1f} GB   "
          f"{most.report['find_max']['value']:3} x {hidden}, {most.report['parameters'] / 1e9:.0f}B: {gigabytes(most.report['ranks'][0])}")
