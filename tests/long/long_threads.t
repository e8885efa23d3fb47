#!/usr/bin/env python3
"""Ranks as threads beside ranks as processes: meshes, precisions, optimizers and micro-batches at each stage, bit by bit, and checkpoints
that either continues. `make check-tsan` looks for races in small runs of them."""
import filecmp
import os
import sys

sys.path.insert(0, "tests/support")
from pairs import logged
from zrtest import done, note, ok, path, same

RUNS = [dict(ranks=4, tp=2, sequence_parallel=True), dict(ranks=4, pp=2, accumulate=4), dict(ranks=4, cp=2), dict(ranks=8, tp=2, pp=2, accumulate=2),
        dict(ranks=3, precision="bf16", accumulate=2), dict(ranks=2, precision="fp16"), dict(ranks=3, optimizer="lamb"),
        dict(ranks=2, optimizer="adafactor"), dict(ranks=2, optimizer="muon", precision="bf16"), dict(ranks=2, optimizer="adamw8"),
        dict(ranks=2, accumulate=2, reduce="once"), dict(ranks=2, compress="gradients:int8"), dict(ranks=4, groups=2, outer="diloco:2"),
        dict(ranks=2, offload_optimizer="cpu"), dict(ranks=4, pp=2, accumulate=4, schedule="2bw"), dict(ranks=2, freeze="embedding"),
        dict(ranks=2, ema=0.9, sample=5), dict(ranks=2, attention_dropout=0.1), dict(ranks=2, arch="llama", noise_scale=0.9)]

for flags in RUNS:
    for stage in range(4):
        shape = dict(stage=stage, layers=4, hidden=64, heads=2, seq=32, batch=2, steps=4, **flags)
        processes = logged(**shape)
        if processes.code == 2:  # refused: this stage excludes an option
            continue
        for master in (None, True) if stage == 0 else (None,):
            threads = logged(**shape, ranks_as="threads", master=master)
            if not (master and threads.code == 2):  # refused: --master excludes an option
                same((threads.code, threads.bits), (0, processes.bits), f"{flags} stage {stage}{' --master' if master else ''}: the bits of processes") or note(threads.err)

small = dict(layers=2, hidden=32, heads=2, seq=16, batch=2, ranks=2)
KINDS = {"processes": {}, "threads": dict(ranks_as="threads"), "master": dict(ranks_as="threads", master=True)}
for first, second in (("threads", "processes"), ("processes", "threads"), ("master", "processes"), ("processes", "master")):
    folders = [path(f"{first}-{kind}") for kind in ("saved", "again")]
    for folder, kind in zip(folders, (first, second)):
        ok(logged(**small, stage=0, steps=2, save=folder, **KINDS[kind]).code == 0, f"{kind}: saved")
    files = [os.path.join(at, name)[len(folders[0]) + 1:] for at, _, names in os.walk(folders[0]) for name in names]
    same(filecmp.cmpfiles(*folders, files, shallow=False)[0], files, f"{first} and {second} save the same files")
    resumed = [logged(**small, stage=0 if kind == "master" else stage, steps=4, resume=folders[0], **KINDS[kind])
               for stage, kind in ((2, first), (0, second))]
    same(resumed[0].bits, resumed[1].bits, f"{second} continue what {first} have saved")
done()
