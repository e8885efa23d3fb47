#!/usr/bin/env python3
"""Where bytes live must not change what is computed: losses to the last bit, over stages, buckets, recomputation,
repeats and resumed runs, at every world size."""
import os

from zrtest import done, note, ok, path, same, train

# Odd in every direction: 3 heads of 7, rows that fill no vector, tensors larger than a bucket of 4 KiB.
ODD = dict(layers=3, hidden=21, heads=3, seq=13, batch=3, steps=4, bucket_bytes=4096, clip=0.5, weight_decay=0.1)

for ranks in (1, 2, 3, 4, 8):
    base = train(ranks=ranks, stage=0, **ODD)
    if not same(base.code, 0, f"{ranks} ranks, stage 0 runs"):
        note(base.err)
        continue
    ok(len(set(base.losses)) == len(base.losses) == 4, f"{ranks} ranks: the loss moves with every step")
    sharded = train(ranks=ranks, stage=1, **ODD)
    same(sharded.losses, base.losses, f"{ranks} ranks: stage 1 gives stage 0's losses, bit for bit")
    same(train(ranks=ranks, stage=1, **ODD).losses, base.losses, f"{ranks} ranks: the same again")
    wide = train(ranks=ranks, stage=ranks % 2, **{**ODD, "bucket_bytes": 1 << 20})
    same(wide.losses, base.losses, f"{ranks} ranks: a bucket of 1 MiB changes nothing")
    for recompute in ("selective", "full"):
        got = train(ranks=ranks, stage=1, recompute=recompute, **ODD)
        same(got.losses, base.losses, f"{ranks} ranks: --recompute {recompute} changes nothing")

    for threads in (1, 2, 3):
        got = train(ranks=ranks, stage=0, threads=threads, **ODD)
        same(got.losses, base.losses, f"{ranks} ranks: {threads} threads each change nothing")

    # The first half saved, then taken up: the second half's losses are the uninterrupted run's.
    for stage in (0, 1):
        folder = path(f"save-{ranks}-{stage}")
        first = train(ranks=ranks, stage=stage, save=folder, save_every=2, **ODD)
        same(first.losses, base.losses, f"{ranks} ranks, stage {stage}: saving changes nothing")
        second = train(ranks=ranks, stage=1 - stage, resume=os.path.join(folder, "step-00000002"), **ODD)
        same(second.losses, base.losses[2:], f"{ranks} ranks: saved at stage {stage}, resumed at {1 - stage}, "
                                             "equal to the uninterrupted run")

    other_seed = train(ranks=ranks, stage=0, **{**ODD, "seed": 12})
    ok(other_seed.losses and other_seed.losses != base.losses, f"{ranks} ranks: another seed is another run")
done()
