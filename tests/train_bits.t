#!/usr/bin/env python3
"""Where bytes live must not change what is computed: losses to the last bit, over stages, buckets, recomputation,
threads, repeats and resumed runs, at every world size, precision and number of micro-batches. All pairs of settings
here, all of them in long_bits.t."""
import os

from pairs import pairwise, saved_tensors
from zrtest import done, note, ok, path, same, train

# Odd in every direction: 3 heads of 7, rows that fill no vector, tensors larger than a bucket of 4 KiB; and as many
# layers as it takes for stage 3 to have something to gather.
ODD = dict(layers=6, hidden=21, heads=3, seq=11, batch=2, steps=3, clip=0.5, weight_decay=0.1, lr_embeddings=0.5,
           lr_vectors=2)
RANKS, ROUNDS = (1, 2, 3, 4, 8), (1, 3, 4)

bases = {}


def base(ranks, accumulate, precision="fp32"):
    """The run that others are compared with: stage 0, one thread."""
    key = ranks, accumulate, precision
    if key not in bases:
        bases[key] = train(ranks=ranks, accumulate=accumulate, precision=precision, stage=0, threads=1,
                           bucket_bytes=16384, **ODD)
        if not same(bases[key].code, 0, f"{ranks} ranks, {accumulate} micro-batches, {precision}: stage 0 runs"):
            note(bases[key].err)
        else:
            ok(len(set(bases[key].losses)) == 3, "the loss moves with every step")
    return bases[key]


def gathers(run):
    return any(rank["placed_stage"] == 3 and rank["peak_bytes"]["gathered"] > 0 for rank in run.report["ranks"])


gathering = 0
for row in pairwise(1, ranks=RANKS, stage=(0, 1, 2, 3), bucket_bytes=(4096, 65536, 1 << 20, 64 << 20),
                    accumulate=ROUNDS, recompute=("none", "selective", "full"), threads=(1, 2, 3),
                    precision=("fp32", "bf16")):
    want, got = base(row["ranks"], row["accumulate"], row["precision"]), train(**row, **ODD)
    if not same(got.losses, want.losses, " ".join(f"{k} {v}" for k, v in row.items())):
        note(got.err)
    elif row["ranks"] > 1:
        gathering += gathers(got)
ok(gathering >= 3, f"{gathering} of these runs gather parameters")

again = train(ranks=3, stage=3, **ODD)
same(again.losses, base(3, 1).losses, "3 ranks, stage 3, and the same again")
same(train(ranks=3, stage=3, **ODD).losses, again.losses, "to the bit")
ok(train(ranks=3, stage=3, **{**ODD, "seed": 12}).losses != again.losses, "another seed is another run")
ok(base(2, 1).losses != base(2, 3).losses, "more micro-batches are another run")
ok(base(2, 1).losses != base(2, 1, "bf16").losses, "bf16 is another run")

once = train(ranks=3, stage=0, accumulate=4, reduce="once", **ODD)
same(train(ranks=3, stage=1, accumulate=4, reduce="once", recompute="full", **ODD).losses, once.losses,
     "--reduce once: stage 1 gives stage 0's losses, bit for bit")
plain, sgd = (train(ranks=3, stage=stage, optimizer="sgd", lr=0.1, **ODD) for stage in (0, 3))
ok(plain.losses and plain.losses != again.losses, "--optimizer sgd is another run")
same(sgd.losses, plain.losses, "and the same at stage 3")
ok(sgd.report and plain.report and sgd.report["ranks"][0]["persistent_bytes"]["optimizer"] * 3 <=
   plain.report["ranks"][0]["persistent_bytes"]["optimizer"] + 3 * 256 and
   2 * sgd.report["ranks"][0]["persistent_bytes"]["optimizer"] ==
   again.report["ranks"][0]["persistent_bytes"]["optimizer"], "with half the state of AdamW, sharded")

# The first steps saved at one stage, then taken up at another: the rest is the uninterrupted run's.
for ranks, first, second, accumulate, precision in ((1, 0, 3, 3, "bf16"), (2, 2, 3, 1, "fp32"), (2, 3, 1, 3, "bf16"),
                                                    (3, 1, 2, 4, "fp32"), (4, 3, 0, 1, "fp32"), (8, 0, 3, 1, "bf16")):
    words = f"{ranks} ranks, {accumulate} micro-batches, {precision}: saved at stage {first}"
    folder, how = path(f"save-{ranks}-{first}"), dict(accumulate=accumulate, precision=precision)
    run = train(ranks=ranks, stage=first, save=folder, save_every=2, **how, **ODD)
    same(run.losses, base(ranks, **how).losses, f"{words}: saving changes nothing")
    run = train(ranks=ranks, stage=second, resume=os.path.join(folder, "step-00000002"), **how, **ODD)
    if not same(run.losses, base(ranks, **how).losses[2:], f"{words}, resumed at {second}"):
        note(run.err)

# The same state in other worlds: read and written again, nothing is different.
want = saved_tensors(os.path.join(path("save-4-3"), "step-00000003"))
ok(set(want) == {"parameter", "momentum", "variance"} and len(want["parameter"]) == 4 *
   base(4, 1).report["parameters"], "4 ranks at stage 3 save every parameter once")
for ranks, stage in ((2, 1), (3, 2), (8, 3), (1, 0)):
    folder = path(f"again-{ranks}-{stage}")
    run = train(ranks=ranks, stage=stage, resume=path("save-4-3"), save=folder, **ODD)
    ok(run.code == 0 and saved_tensors(os.path.join(folder, "step-00000003")) == want,
       f"resumed on {ranks} at stage {stage} and saved: the same bytes")

folder = path("sgd")
train(ranks=2, stage=2, optimizer="sgd", save=folder, save_every=2, **ODD)
run = train(ranks=2, stage=1, optimizer="sgd", resume=os.path.join(folder, "step-00000002"), **ODD)
same(run.losses, train(ranks=2, stage=0, optimizer="sgd", **ODD).losses[2:], "SGD: saved at stage 2, resumed at 1")
run = train(ranks=2, stage=1, resume=folder, **{**ODD, "steps": 5})
ok(run.code == 3 and "--optimizer sgd" in run.err, "its state is refused to AdamW, by name")
done()
