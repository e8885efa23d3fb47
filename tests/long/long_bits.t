#!/usr/bin/env python3
"""The wide matrix of train_bits.t: world sizes x stages x micro-batches x shapes in fp32 and bf16, with buckets,
recomputation and threads in turn, each stage of each under mpirun too; fp16 with buckets of each size in turn; and GPT-2's vocabulary, whose
embedding is longer than a bucket of 64 MiB."""
import itertools
import random
import sys

sys.path.insert(0, "tests/support")
from pairs import logged
from zrtest import LONG_HANG, done, mpi_missing, note, ok, same, skip, token_shard

# Buckets are cut to a model's largest unit: for each shape those that differ. The last is cut.
SHAPES = [
    (dict(layers=1, hidden=8, heads=1, seq=2, batch=1, steps=3), (4096, 64 << 20)),
    (dict(layers=7, hidden=33, heads=3, seq=7, batch=3, steps=3), (4096, 16384, 64 << 20)),
    (dict(layers=4, hidden=216, heads=6, seq=8, batch=1, steps=2, eval_every=0), (65536, 1 << 20, 64 << 20)),
]
ROUNDS = (1, 3)  # micro-batches
RECOMPUTE = ("none", "selective", "full")
BLIND = dict(eval_every=0)  # small shapes are evaluated in the run that others are compared with: no bit changes
WITH_MPI = not mpi_missing()


class Case:
    """Runs that must have the losses and the gradient norms of the first."""

    def __init__(self, words, **flags):
        self.words, self.flags, self.rings, self.gathering = words, flags, {}, 0
        first = logged(**flags, timeout=LONG_HANG)
        self.bits = first.bits
        if not same(first.code, 0, words) or not ok(len(set(first.losses)) == flags["steps"], "the loss moves"):
            note(first.err)

    def check(self, bucket, **flags):
        """Its bits; and what tells whether the buckets and stages were not all the same."""
        got = logged(**{**self.flags, **BLIND, **flags}, bucket_bytes=bucket, timeout=LONG_HANG)
        words = " ".join(f"{name} {value}" for name, value in flags.items())
        if not (self.bits and same(got.bits, self.bits, f"{self.words}: bucket {bucket} {words}")):
            note(got.err)
            return False
        ranks = got.report["ranks"]
        self.rings.setdefault(bucket, set()).add(ranks[0]["peak_bytes"]["comm"])
        self.gathering += all(rank["peak_bytes"]["gathered"] > 0 for rank in ranks)
        return True

    def end(self):
        sizes = [sorted(self.rings[bucket]) for bucket in sorted(self.rings)]
        rising = all(one < other for one, other in zip(sizes, sizes[1:]))
        ok(rising and all(len(one) == 1 for one in sizes),
           f"{self.words}: a ring of its own for each size of bucket, the same at every stage: {sizes}")
        return self.gathering


def stage_over_mpi(shape, ranks, accumulate, precision):
    """The stage whose run is repeated there, in turn, so that with the two large shapes and two numbers of micro-batches
    each world meets each stage in each precision."""
    if shape is SHAPES[0][0]:
        return 3 - (ranks + accumulate) // 2 % 2
    turn = 2 * (shape is SHAPES[2][0]) + ROUNDS.index(accumulate) - (2 if precision == "bf16" else 0)
    return (turn + ranks) % 4


def wide_matrix():
    gathering, over_mpi = 0, set()
    for (shape, buckets), ranks, accumulate in itertools.product(SHAPES, (1, 2, 3, 4, 8), ROUNDS):
        turn, buckets = ranks + accumulate, buckets if ranks > 1 else buckets[-1:]  # one rank alone has no ring
        for precision in ("fp32", "bf16") if shape is not SHAPES[0][0] else ("fp32",):
            words = f"{shape} on {ranks} ranks, {accumulate} micro-batches, {precision}"
            case = Case(words, ranks=ranks, accumulate=accumulate, precision=precision, **shape)
            for stage in (0, 1, 2, 3):  # each bucket at a stage at least, the stages in turn
                case.check(buckets[(stage + turn) % len(buckets)], stage=stage, recompute=RECOMPUTE[(stage + turn) % 3])
            if accumulate == 1:
                case.check(buckets[-1], stage=3, threads=1 + turn % 3)
            stage = stage_over_mpi(shape, ranks, accumulate, precision) if WITH_MPI else None
            if stage is not None and case.check(buckets[turn % len(buckets)], stage=stage, comm="mpi"):
                over_mpi.add((ranks, stage, precision))
            gathering += case.end()
        if shape is not SHAPES[0][0]:
            words = f"{shape} on {ranks} ranks, {accumulate} micro-batches, fp16"
            case = Case(words, ranks=ranks, accumulate=accumulate, precision="fp16", loss_scale_power=6, **shape)
            for stage in (1 + turn % 3, 3):
                case.check(buckets[(stage + turn) % len(buckets)], stage=stage, recompute=RECOMPUTE[stage % 3],
                           threads=1 + turn % 3)
            gathering += case.end()
    ok(gathering > 30, f"{gathering} of these runs gather parameters")
    if WITH_MPI:
        same(len(over_mpi), 5 * 4 * 2, "worlds, stages and precisions have all met over --comm mpi")


def tokens(vocabulary, count):
    rng = random.Random(3)
    return token_shard([rng.randrange(vocabulary) for _ in range(count)])


def large_vocabulary():
    shape = dict(data=tokens(50257, 4000), vocab=50257, hidden=384, heads=6, seq=8, batch=1, steps=2)
    buckets = (65536, 1 << 20, 64 << 20)
    for precision in ("fp32", "bf16"):
        case = Case(f"50,257 tokens, {precision}", ranks=2, layers=1, precision=precision, **shape)
        for stage in (0, 1, 2, 3):  # longer than the largest bucket is the embedding in fp32 alone
            for bucket in (buckets[stage % 2], buckets[2]) if precision == "fp32" else (buckets[stage % 3],):
                case.check(bucket, stage=stage)
        if WITH_MPI:
            case.check(64 << 20, stage=2, comm="mpi")
        case.end()
    case = Case("50,257 tokens, layers enough to gather", ranks=4, layers=6, **shape)
    for bucket in buckets:
        case.check(bucket, stage=3)
    same(case.end(), 3, "and all of these gather")


if not WITH_MPI:
    skip(f"--comm mpi beside --comm local: {mpi_missing()}")
wide_matrix()
large_vocabulary()
done()
