#!/usr/bin/env python3
"""--data: the same tokens in any format and any division into files train to the same bits; epochs go on where a
checkpoint left them, with other ranks and batches; outputs do not overwrite data."""
import array
import random
import struct
import sys

sys.path.insert(0, "tests/support")
from zrtest import SEED, done, note, ok, path, same, train

COUNT, VOCAB = 6000, 300
rng = random.Random(SEED)
TOKENS = [min(int(rng.expovariate(0.05)), VOCAB - 1) for _ in range(COUNT)]


def numbers(kind, tokens=TOKENS):
    return array.array(kind, tokens).tobytes()


def write(name, *parts):
    with open(path(name), "wb") as file:
        file.writelines(parts)
    return path(name)


def shard(name, tokens, magic=20240520, version=1, kind="H"):
    return write(name, struct.pack("<256i", magic, version, len(tokens), *[0] * 253), numbers(kind, tokens))


def index(name, code, width, lengths):
    places = [width * sum(lengths[:i]) for i in range(len(lengths))]
    return write(name, b"MMIDIDX\0\0", struct.pack("<QBQQ", 1, code, len(lengths), len(lengths) + 1), numbers("i", lengths),
                 numbers("q", places), numbers("q", range(len(lengths) + 1)))


whole = shard("whole.bin", TOKENS)
shard("wide.bin", TOKENS, 20240801, 7, "I")
write("raw16", numbers("H")), write("raw32", numbers("I")), write("raw64", numbers("q"))
write("mega.bin", numbers("i")), index("mega.idx", 4, 4, [100] * (COUNT // 100))
write("mega16.bin", numbers("H")), index("mega16.idx", 8, 2, [COUNT - 7, 7])
for i, (first, last) in enumerate([(0, 1), (1, 1234), (1234, 1234), (1234, COUNT)]):
    shard(f"part-{i}.bin", TOKENS[first:last])

BASE = dict(vocab=VOCAB, batch=4, steps=3, eval_every=3)
want = train(data=whole, **BASE)
for name, kind in [("wide.bin", None), ("raw16", "uint16"), ("raw32", "uint32"), ("raw64", "int64"), ("mega", None),
                   ("mega16.bin", None), ("part-*.bin", None), ("pa?t-*", None)]:
    got = train(data=path(name), data_type=kind, **BASE)
    if not same([got.code, got.losses, got.report and got.report["val_loss"]],
                [0, want.losses, want.report["val_loss"]], f"{name}: the same bits"):
        note(got.err)

# 16 windows by the end of step 4. From there on with other ranks and batches: the same rows, in other hands.
EPOCHS = dict(data=path("part-*.bin"), vocab=VOCAB, batch=4, data_order="epochs", eval_every=0, steps=8)
straight = train(**EPOCHS)
ok(straight.code == 0 and " windows of 16 tokens; the next step begins at window 1 of epoch 1\n" in straight.err,
   "a run says what an epoch is") or note(straight.err)
ok(straight.losses != train(**{**EPOCHS, "data_order": None}).losses, "epochs are another order")
first = train(**{**EPOCHS, "steps": 4}, save=path("half"), warmup=2, schedule_lr="constant")
straight = train(**EPOCHS, warmup=2, schedule_lr="constant")
for mesh in [dict(), dict(ranks=2, batch=2), dict(ranks=2, batch=1, accumulate=2, stage=2), dict(batch=3)]:
    got = train(**{**EPOCHS, "data_order": None, **mesh}, resume=path("half"), warmup=2, schedule_lr="constant")
    said = got.code == 0 and "the next step begins at window 17 of epoch 1" in got.err
    alike = "batch" in mesh and mesh["batch"] == 3 or all(
        abs(a - b) <= 1e-4 * abs(a) for a, b in zip(straight.report["loss"][4:], got.report["loss"]))
    ok(said and alike, f"resumed with {mesh or 'the same'}: the rest of the epoch") or note(got.err)
got = train(**{**EPOCHS, "data_order": "random"}, resume=path("half"))
ok(got.code == 0 and "of epoch" not in got.err, "--data-order random leaves the epochs")

# Two sources with weights, and what is refused.
got = train(data=f"{whole}:weight=0.9", **BASE)
same(got.losses, want.losses, "one source with a weight is the file")
for words, flags in [("the same as --data", dict(data=path("part-*.bin"), export=path("part-1.bin"))),
                     ("--data-type requires --vocab", dict(data=whole, vocab="byte", data_type="uint16")),
                     ("the weight must be", dict(data=f"{whole}:weight=x")),
                     ("only a weight", dict(data=":weight=1"))]:
    got = train(**{**BASE, **flags})
    ok(got.code == 2 and words in got.err and got.err.count("\n") == 1, f"refused: {words}") or note(got.err)
same(open(path("part-1.bin"), "rb").read()[1024:], numbers("H", TOKENS[1:1234]), "no data is overwritten")
done()
