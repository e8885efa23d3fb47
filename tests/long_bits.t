#!/usr/bin/env python3
"""The wide matrix of train_bits.t: world sizes x stages x buckets x micro-batches x recomputation x threads x
shapes, in fp32; in bf16 and fp16 each stage with buckets of each size in turn."""
import itertools

from zrtest import done, note, ok, same, train

SHAPES = [
    dict(layers=1, hidden=8, heads=1, seq=2, batch=1),
    dict(layers=7, hidden=33, heads=3, seq=7, batch=3),
    dict(layers=6, hidden=96, heads=6, seq=32, batch=1),
]
gathering = 0
for shape, ranks, accumulate in itertools.product(SHAPES, (1, 2, 3, 4, 8), (1, 3, 4)):
    base = train(ranks=ranks, steps=3, accumulate=accumulate, **shape)
    words = f"{shape} on {ranks} ranks, {accumulate} micro-batches"
    if not same(base.code, 0, words):
        note(base.err)
        continue
    for stage, bucket in itertools.product((0, 1, 2, 3), (65536, 1 << 20, 64 << 20)):
        recompute = ("none", "selective", "full")[(stage + accumulate) % 3]
        got = train(ranks=ranks, steps=3, stage=stage, bucket_bytes=bucket, accumulate=accumulate,
                    recompute=recompute, **shape)
        same(got.losses, base.losses, f"{words}: stage {stage}, bucket {bucket}, recompute {recompute}")
        gathering += bool(got.report) and got.report["ranks"][0]["peak_bytes"]["gathered"] > 0
    for precision in ("bf16", "fp16") if shape is not SHAPES[0] else ():
        narrow = None
        for stage in (0, 1, 2, 3) if precision == "bf16" else (0, 1 + (ranks + accumulate) % 3):
            bucket = (65536, 1 << 20, 64 << 20)[(stage + ranks + accumulate) % 3]
            got = train(ranks=ranks, steps=3, stage=stage, bucket_bytes=bucket, accumulate=accumulate,
                        precision=precision, recompute=("none", "selective", "full")[stage % 3], **shape)
            narrow = narrow or got.losses
            ok(narrow and got.losses == narrow, f"{words}, {precision}: stage {stage}, bucket {bucket}")
            gathering += bool(got.report) and got.report["ranks"][0]["peak_bytes"]["gathered"] > 0
    for threads in (1, 2, 3) if accumulate == 1 else ():
        got = train(ranks=ranks, steps=3, threads=threads, stage=3, accumulate=accumulate, **shape)
        same(got.losses, base.losses, f"{words}: {threads} threads at stage 3")
ok(gathering > 50, f"{gathering} of these runs gather parameters")
done()
