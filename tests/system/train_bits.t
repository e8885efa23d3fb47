#!/usr/bin/env python3
"""Where bytes live must not change what is computed: losses and gradient norms to the last bit, over stages, buckets,
recomputation, threads, communicators, repeats and resumed runs, at every world size, precision and number of
micro-batches. All pairs of settings here, all of them in long_bits.t."""
import itertools
import os
import re
import signal
import subprocess
import sys

sys.path.insert(0, "tests/support")
from pairs import logged, most_pairs, optimizers
from saves import change_manifest, contents, read_checkpoint
from zrtest import (ZR_TRAIN, arguments, done, finish, in_steps, mpi_missing, note, ok, path, same, skip, start_quickly, text_file,
                    train)

# Odd in every direction: 3 heads of 7, rows that fill no vector, tensors larger than a bucket of 4 KiB; and as many
# layers as it takes for stage 3 to have something to gather.
ODD = dict(layers=6, hidden=21, heads=3, seq=11, batch=2, steps=3, clip=0.5, weight_decay=0.1, lr_embeddings=0.5,
           lr_vectors=2, eval_every=0)
# Wide enough that buckets of 64 KiB and 1 MiB are less than a layer in bf16 and fp32 alike, and of 64 MiB are not.
WIDE = dict(layers=4, hidden=216, heads=3, seq=5, batch=1, steps=2, eval_every=0)
# Four heads of queries on two of keys and values, and a feed-forward layer that fills no vector.
LLAMA = {**ODD, "arch": "llama", "hidden": 24, "heads": 4, "kv_heads": 2, "ffn": 37}
RANKS, ROUNDS, BUCKETS = (1, 2, 3, 4, 8), (1, 3, 4), (65536, 1 << 20, 64 << 20)
COMMS = ("local",) if mpi_missing() else ("local", "mpi")

bases = {}


def base(ranks, accumulate=1, precision="fp32", shape=ODD):
    """The run that others are compared with: stage 0, one thread. Some evaluate, which must not change them."""
    key = ranks, accumulate, precision, shape["hidden"]  # which differs between the shapes
    if key not in bases:
        evaluated = {"eval_every": 1} if accumulate == 1 and shape is ODD else {}
        bases[key] = logged(ranks=ranks, accumulate=accumulate, precision=precision, stage=0, threads=1,
                            bucket_bytes=16384, **scaled(precision), **{**shape, **evaluated})
        if not same(bases[key].code, 0, f"{ranks} ranks, {accumulate} micro-batches, {precision}: stage 0 runs"):
            note(bases[key].err)
        else:
            ok(len(set(bases[key].losses)) == len(set(bases[key].norms)) == shape["steps"],
               "the loss and the norm of the gradient move with every step")
    return bases[key]


def scaled(precision):
    """A loss scale from which no step is skipped."""
    return dict(loss_scale_power=6) if precision == "fp16" else {}


def gathers(run):
    return all(rank["peak_bytes"]["gathered"] > 0 for rank in run.report["ranks"])


def near(run, other, words):
    """What may differ in its bits differs by no more than README says."""
    pairs = list(zip(run.report["loss"], other.report["loss"])) if run.report and other.report else []
    ok(pairs and all(abs(a - b) < 1e-4 for a, b in pairs), f"{words}: to 1e-4") or \
        note(f"{pairs}\n{run.err}{other.err}")


if len(COMMS) == 1:
    skip(f"--comm mpi beside --comm local: {mpi_missing()}")
gathering = dict.fromkeys(COMMS, 0)
for row in most_pairs(1, ranks=RANKS, stage=(0, 1, 2, 3), bucket_bytes=(4096, *BUCKETS), accumulate=ROUNDS,
                    recompute=("none", "selective", "full"), threads=(1, 2, 3), precision=("fp32", "bf16", "fp16"),
                    comm=COMMS):
    want = base(row["ranks"], row["accumulate"], row["precision"])
    got = logged(**row, **scaled(row["precision"]), **ODD)
    if not same(got.bits, want.bits, " ".join(f"{k} {v}" for k, v in row.items())):
        note(got.err)
    elif row["ranks"] > 1 and row["stage"] == 3:
        gathering[row["comm"]] += ok(gathers(got), "and its parameters are gathered")
for comm, count in gathering.items():
    ok(count > 0, f"{count} of these runs gather parameters over --comm {comm}")

ring = {}  # bytes, by precision and bucket
for number, (precision, bucket) in enumerate(itertools.product(("fp32", "bf16"), BUCKETS)):
    row = dict(stage=(3, 1, 2, 0, 3, 1)[number], bucket_bytes=bucket, precision=precision, comm=COMMS[number % len(COMMS)])
    got, words = logged(ranks=2, **row, **WIDE), " ".join(f"{k} {v}" for k, v in row.items())
    if not same(got.bits, base(2, precision=row["precision"], shape=WIDE).bits, f"wide layers: {words}"):
        note(got.err)
        continue
    ring.setdefault((row["precision"], row["bucket_bytes"]), set()).add(got.report["ranks"][0]["peak_bytes"]["comm"])
    if row["stage"] == 3:
        ok(gathers(got), "and its parameters are gathered")
for precision in ("fp32", "bf16"):
    sizes = [sorted(ring.get((precision, bucket), ())) for bucket in BUCKETS]
    ok(all(len(one) == 1 for one in sizes) and sizes[0] < sizes[1] < sizes[2],
       f"{precision}: buckets of each size are another ring, at every stage the same one: {sizes} bytes")

again = logged(ranks=3, stage=3, **ODD)
same(again.bits, base(3, 1).bits, "3 ranks, stage 3, and the same again")
same(logged(ranks=3, stage=3, **ODD).bits, again.bits, "to the bit")
ok(train(ranks=3, stage=3, **{**ODD, "seed": 12}).losses != again.losses, "another seed is another run")
ok(base(2, 1).losses != base(2, 3).losses, "more micro-batches are another run")
ok(base(2, 1).losses != base(2, 1, "bf16").losses, "bf16 is another run")

once = logged(ranks=3, stage=0, accumulate=4, reduce="once", **ODD)
same(logged(ranks=3, stage=1, accumulate=4, reduce="once", recompute="full", **ODD).bits, once.bits,
     "--reduce once: stage 1 gives stage 0's losses and norms, bit for bit")
near(once, base(3, 4), "and near those of --reduce each")
FIVE = {**ODD, "steps": 5}
alone = train(ranks=1, **{**FIVE, "batch": 8})
for ranks in (2, 4, 8):
    near(train(ranks=ranks, stage=1, **{**FIVE, "batch": 8 // ranks}), alone,
         f"the same 8 sequences a step on {ranks} ranks as on one")
# What follows is about where bytes live, whatever computes them.
start_quickly(fp32_alone=True)
bases.clear()
for precision in ("fp32", "bf16"):
    for row in most_pairs(4, stage=(0, 1, 2, 3), bucket_bytes=(4096, 65536), recompute=("none", "selective", "full"),
                        threads=(1, 2), comm=COMMS):
        want, words = base(2, precision=precision, shape=LLAMA), " ".join(f"{k} {v}" for k, v in row.items())
        got = logged(ranks=2, precision=precision, **row, **LLAMA)
        same(got.bits, want.bits, f"LLaMA, {precision}: {words}") or note(got.err)
        if row["stage"] == 3:
            ok(gathers(got), "and its parameters are gathered")
tied = [logged(ranks=3, stage=stage, tie_embeddings=True, **LLAMA) for stage in (0, 3)]
same(tied[1].bits, tied[0].bits, "LLaMA with a tied head on 3 ranks: stage 3 is stage 0")
ok(tied[0].losses != base(3, shape=LLAMA).losses, "which is another model than with a head of its own")

plain, sgd = (logged(ranks=3, stage=stage, optimizer="sgd", lr=0.1, **ODD) for stage in (0, 3))
ok(plain.losses and plain.losses != again.losses, "--optimizer sgd is another run")
same(sgd.bits, plain.bits, "and the same at stage 3")
ok(sgd.report and plain.report and sgd.report["ranks"][0]["persistent_bytes"]["optimizer"] * 3 <=
   plain.report["ranks"][0]["persistent_bytes"]["optimizer"] + 3 * 256 and
   2 * sgd.report["ranks"][0]["persistent_bytes"]["optimizer"] ==
   again.report["ranks"][0]["persistent_bytes"]["optimizer"], "with half the state of AdamW, sharded")
whole, eight = (logged(ranks=3, stage=stage, optimizer="adamw8", **ODD) for stage in (0, 3))
ok(whole.losses and whole.losses != again.losses, "--optimizer adamw8 is another run")
same(eight.bits, whole.bits, "and the same at stage 3")
state, narrow = (run.report["ranks"][0]["persistent_bytes"]["optimizer"] for run in (base(3), whole))
embedded = (256 + ODD["seq"]) * ODD["hidden"]  # elements of both embeddings, which keep their 8 bytes
without_padding = 8 * embedded + 2 * 260 / 256 * (state / 8 - embedded)
ok(without_padding < narrow < state / 2, f"its state: {narrow} of {state} bytes")
for words in (dict(offload_optimizer="cpu"), dict(offload_optimizer="cpu", offload_param="cpu"), dict(offload_optimizer="nvme:" + path("disk"), force=True),
              dict(offload_optimizer="cpu", speculative_update="1GiB", stage=2)):
    os.makedirs(path("disk"), exist_ok=True)
    same(logged(**{**dict(ranks=3, stage=3, optimizer="adamw8"), **words}, **ODD).bits, whole.bits, f"and with {words}")
late = [logged(ranks=2, stage=stage, optimizer="adamw8", offload_optimizer="cpu", delayed_update=True, **ODD).bits for stage in (1, 3)]
ok(late[0] and late[0] == late[1], "a delayed update of 8-bit state: stages 1 and 3")
for precision in ("fp32", "bf16"):
    muon = [logged(ranks=3, stage=stage, optimizer="muon", precision=precision, **ODD) for stage in (0, 1, 2, 3)]
    ok(muon[0].losses and muon[0].losses != again.losses and all(run.bits == muon[0].bits for run in muon), f"--optimizer muon in {precision}: stages 0 to 3")
bytes_of = [run.report["ranks"][0]["persistent_bytes"]["optimizer"] for run in (muon[0], base(3))]
ok(bytes_of[0] < bytes_of[1], f"with less state than AdamW: {bytes_of}")
for words in (dict(stage=1), dict(offload_ratio=0.5), dict(offload_param="cpu", group="*c_attn.weight:lr=1")):
    same(logged(**{**dict(ranks=3, stage=3, optimizer="muon", precision="bf16", offload_optimizer="cpu"), **words}, **ODD).bits, muon[0].bits, f"and offloaded with {words}")

# The first steps saved at one stage, then taken up at another: the rest is the uninterrupted run's.
for ranks, first, second, accumulate, precision in ((1, 0, 3, 3, "bf16"), (2, 2, 3, 1, "fp32"), (2, 3, 1, 3, "bf16"),
                                                    (3, 1, 2, 4, "fp32"), (4, 3, 0, 1, "fp32"), (8, 0, 3, 1, "bf16")):
    words = f"{ranks} ranks, {accumulate} micro-batches, {precision}: saved at stage {first}"
    folder, how = path(f"save-{ranks}-{first}"), dict(accumulate=accumulate, precision=precision)
    run = train(ranks=ranks, stage=first, save=folder, save_every=2, **how, **ODD)
    same(run.losses, base(ranks, **how).losses, f"{words}: saving changes nothing")
    run = logged(ranks=ranks, stage=second, resume=os.path.join(folder, "step-00000002"), **how, **ODD)
    if not same(run.bits, base(ranks, **how).bits[2:], f"{words}, resumed at {second}"):
        note(run.err)

# Interrupted by a signal, wherever that is: it saves, and is taken up from there.
folder, log = path("interrupted"), path("interrupted.jsonl")
how = {**ODD, "ranks": 2, "precision": "bf16", "schedule_lr": "constant", "warmup": 0}
process = subprocess.Popen([ZR_TRAIN, *arguments(data=text_file(), seed=11, stage=2, save=folder, log=log, **{**how, "steps": 1000000})],
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
in_steps(log)
process.send_signal(signal.SIGTERM)
code, err = finish(process)
there = max((int(name.split("-")[1]) for name in os.listdir(folder) if name.startswith("step-")), default=0)
ok(code == 143 and there > 0, f"SIGTERM saves step {there}") or note(f"{code} {err[-500:]}")
run, whole = (train(stage=stage, resume=where, **{**how, "steps": there + 5}) for stage, where in ((3, folder), (0, None)))
same(run.losses, (whole.losses or [])[-5:], "and the rest is the uninterrupted run's, at another stage too")

# Another mesh, batch or number of micro-batches, of as many rows: the same sequences, and losses but for rounding.
folder, rows = path("rows"), {**ODD, "hidden": 24, "heads": 4, "steps": 5}
whole = train(**{**rows, "ranks": 2, "batch": 3, "accumulate": 2}, save=folder, save_every=2)
for ranks, batch, accumulate, more in ((1, 12, 1, {}), (1, 1, 12, {}), (3, 2, 2, {}), (4, 3, 2, dict(tp=2)), (2, 2, 6, dict(pp=2))):
    run = train(**{**rows, "ranks": ranks, "batch": batch, "accumulate": accumulate, **more}, resume=os.path.join(folder, "step-00000002"))
    pairs = list(zip(run.report["loss"], whole.report["loss"][2:])) if run.report and whole.report else []
    ok(len(pairs) == 3 and all(abs(a - b) < 1e-5 for a, b in pairs), f"resumed on {ranks} ranks x {batch} x {accumulate} {more}: to 1e-5") or \
        note(f"{pairs}\n{run.err}{whole.err}")
    same("same loss up to rounding" in run.err, accumulate != 2, "which is said where --accumulate is another") or note(run.err)

# A checkpoint of an older zr-train, whose manifest has no number of an order: it goes on in its own, in which a micro-batch counts
# as a step. At a rate of zero the loss of a step is that of its sequences.
folder, still = path("older"), {**ODD, "lr": 0, "steps": 9}
steps = train(**still, save=path("newer"), save_every=2)
train(**{**still, "accumulate": 3, "steps": 1}, save=folder)
change_manifest(os.path.join(folder, "step-00000001"), lambda manifest: (manifest.pop("data_order"), manifest.pop("course")))
losses = steps.report["loss"] if steps.report else [0] * 9
for stop in (2, 3):  # the second goes on from what the first has saved
    run = train(**{**still, "accumulate": 3, "steps": stop}, resume=folder, save=folder)
    got, want = run.report["loss"] if run.report else [0], [sum(losses[3 * stop - 3:3 * stop]) / 3]
    ok(len(got) == 1 and abs(got[0] - want[0]) < 1e-6, f"step {stop} of an older checkpoint has the sequences that it would have had") or \
        note(f"{got} {want}\n{run.err}")
    ok("older zr-train" in run.err, "and that is said") or note(run.err)
change_manifest(os.path.join(folder, "step-00000003"), lambda manifest: manifest.update(data_order=4))
run = train(**{**still, "accumulate": 3}, resume=folder)
ok(run.code == 3 and "data order is 4" in run.err, "an order that is not known is refused") or note(f"{run.code} {run.err}")

# What changes in a run that goes on is said, and nothing of what does not.
SAID = "learning rate continues with other settings"
for words, flags, needles in (("nothing", {}, ()), ("another end", dict(steps=12), (SAID, "--steps 12 (it had 9)", "--warmup 6 (it had 4)")),
                              ("a schedule", dict(schedule_lr="linear"), (SAID, "--schedule-lr linear (it had cosine)")),
                              ("a rate", dict(lr=0.002, min_lr=0), (SAID, "--lr 0.002 (it had 0)", "step 9 has ", "instead of 0")),
                              ("a text", dict(data=text_file("other.txt", seed=8)), ("other.txt' is not the data", "with other values")),
                              ("a longer text", dict(data=text_file("longer.txt", size=17000)), ("which had 16000 tokens, this has 17000",))):
    run = train(**{**still, **flags}, resume=path("newer/step-00000008"))
    lines = [line for line in run.err.splitlines() if not re.match("zr-train: (resumed after|step 9|step 1[0-2])", line)]
    ok(run.code == 0 and len(lines) == bool(needles) and all(needle in run.err for needle in needles), f"{words} is another: {lines}") or \
        note(f"{run.code} {run.err}")

# The same state in other worlds: read and written again, nothing is different.
manifest, kinds = read_checkpoint(os.path.join(path("save-4-3"), "step-00000003"))
same([len(values) for values in kinds.values()], [len(kinds["parameter"])] * 3, "4 ranks at stage 3 save all of each tensor")
want = contents(os.path.join(path("save-4-3"), "step-00000003/state.safetensors"))
for ranks, stage in ((2, 1), (3, 2), (8, 3), (1, 0)):
    folder = path(f"again-{ranks}-{stage}")
    run = train(ranks=ranks, stage=stage, resume=path("save-4-3"), save=folder, **ODD)
    ok(run.code == 0 and contents(os.path.join(folder, "step-00000003/state.safetensors")) == want,
       f"resumed on {ranks} at stage {stage} and saved: the same bytes")

FOUR = {**ODD, "steps": 4}  # the last loss is behind an update from the state that was read
for kind in optimizers():
    train(ranks=2, stage=2, optimizer=kind, save=path(kind), save_every=2, **FOUR)
    rest = train(ranks=2, stage=3, optimizer=kind, **FOUR).losses[2:]
    for stage in (0, 1):
        run = train(ranks=2, stage=stage, optimizer=kind, resume=os.path.join(path(kind), "step-00000002"), **FOUR)
        same(run.losses, rest, f"{kind}: saved at stage 2, resumed at {stage}")
run = train(ranks=2, stage=1, resume=path("sgd"), **{**ODD, "steps": 5})
ok(run.code == 3 and "--optimizer sgd" in run.err, "its state is refused to AdamW, by name")
done()
