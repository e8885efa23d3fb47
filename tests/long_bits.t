#!/usr/bin/env python3
"""The wide matrix of train_bits.t: world sizes x stages x buckets x recomputation x threads x shapes."""
import itertools

from zrtest import done, note, ok, same, train

SHAPES = [
    dict(layers=1, hidden=8, heads=1, seq=2, batch=1),
    dict(layers=2, hidden=33, heads=3, seq=7, batch=5),
    dict(layers=4, hidden=96, heads=6, seq=64, batch=2),
]
for shape, ranks in itertools.product(SHAPES, (1, 2, 3, 4, 5, 8)):
    base = train(ranks=ranks, steps=3, **shape)
    words = f"{shape} on {ranks} ranks"
    if not same(base.code, 0, words):
        note(base.err)
        continue
    for stage, bucket, recompute in itertools.product((0, 1), (4096, 65536, 1 << 22), ("none", "full")):
        got = train(ranks=ranks, steps=3, stage=stage, bucket_bytes=bucket, recompute=recompute, **shape)
        same(got.losses, base.losses, f"{words}: stage {stage}, bucket {bucket}, recompute {recompute}")
    for threads in (1, 2, 3):
        got = train(ranks=ranks, steps=3, threads=threads, **shape)
        same(got.losses, base.losses, f"{words}: {threads} threads")
done()
