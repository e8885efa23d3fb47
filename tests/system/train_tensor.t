#!/usr/bin/env python3
"""Tensor and sequence parallelism against one rank that has the whole model: losses, bits between stages, bytes as
planned, saves at one mesh that are taken up at another, and what is refused."""
import array
import json
import os
import random
import signal
import subprocess
import sys

sys.path.insert(0, "tests/support")
from pairs import hard_to_prove, logged, most_pairs
from saves import contents, read_safetensors, write_safetensors
from zrtest import (SEED, ZR_TRAIN, arguments, done, finish, in_steps, leftovers, mpi_missing, note, ok, path, same, skip,
                    start_quickly, text_file, token_shard, train, wait_for)

start_quickly(fp32_alone=True)
VOCAB = 1009  # prime: no number of ranks divides it, nor its 1,024 stored rows into equal shares of words
rng = random.Random(3)
shard = token_shard([int(VOCAB * rng.random() ** 3) for _ in range(20000)])
SHAPE = dict(data=shard, vocab=VOCAB, layers=3, hidden=48, heads=12, seq=12, batch=2, steps=4, clip=0.5, eval_every=0)
MODELS = {"gpt2": SHAPE, "llama": {**SHAPE, "arch": "llama", "kv_heads": 12, "ffn": 60},
          "tied llama": {**SHAPE, "arch": "llama", "kv_heads": 4, "ffn": 36, "tie_embeddings": True}}
SEQUENCE = {False: {}, True: dict(sequence_parallel=True)}
TAGS = ("param", "grad", "optimizer", "master", "gathered", "checkpoint", "activation", "comm", "workspace", "total")
dense = {}


def whole(model, data, precision="fp32", accumulate=1):
    key = model, data, precision, accumulate
    if key not in dense:
        dense[key] = logged(ranks=data, precision=precision, accumulate=accumulate, **MODELS[model])
        same(dense[key].code, 0, f"{model} on {data} ranks, {precision}, {accumulate} micro-batches")
    return dense[key]


def near(run, other, most, words):
    pairs = [*zip(run.report["loss"], other.report["loss"]), *zip(run.norms, other.norms)] if run.report else []
    worst = max((abs(a - b) / abs(b) for a, b in pairs), default=1)
    ok(len(pairs) == 8 and worst <= most, f"{words}: losses and norms within {worst:.1e}") or note(run.err[-600:])


def as_planned(run, words):
    differ = [(rank["rank"], tag, rank["planned_bytes"][tag], rank["peak_bytes"][tag])
              for rank in run.report["ranks"] for tag in TAGS[:-1] if rank["planned_bytes"][tag] != rank["peak_bytes"][tag]]
    same(differ, [], f"{words}: every tag of every rank as planned")


# Every mesh is the dense run with as many data ranks, and has the same bits at another stage and recomputation.
OTHER = {"none": "full", "selective": "none", "full": "selective"}
for row in most_pairs(5, model=tuple(MODELS), tensor=(2, 4), data=(1, 2), stage=(0, 1, 2, 3), sequence=(False, True),
                    recompute=("none", "selective", "full"), precision=("fp32", "bf16", "fp16"), accumulate=(1, 3)):
    want = whole(row["model"], row["data"], row["precision"], row["accumulate"])
    got, other = (logged(ranks=row["data"] * row["tensor"], tp=row["tensor"], stage=stage, recompute=recompute,
                         precision=row["precision"], accumulate=row["accumulate"], **SEQUENCE[row["sequence"]],
                         **MODELS[row["model"]])
                  for stage, recompute in ((row["stage"], row["recompute"]), (3 - row["stage"], OTHER[row["recompute"]])))
    words = " ".join(f"{k} {v}" for k, v in row.items())
    near(got, want, 1e-5 if row["precision"] == "fp32" else 1e-2, words)
    same(other.bits, got.bits, f"and at stage {3 - row['stage']}, recompute {OTHER[row['recompute']]}") or note(other.err[-600:])
    if got.report and other.report:
        as_planned(got, words)
        as_planned(other, words)
wide = dict(vocab=50257, layers=1, hidden=24, heads=4, seq=12, batch=1, steps=4, eval_every=2, data=shard)
for tensor in (2, 4):
    near(logged(ranks=tensor, tp=tensor, sequence_parallel=True, **wide), logged(ranks=1, **wide), 1e-5,
         f"50,257 words on {tensor} ranks")
scaled = dict(precision="fp16", loss_scale_power=30, loss_scale_hysteresis=1)
pair = [logged(ranks=ranks, tp=ranks // 2, stage=2, **scaled, **{**SHAPE, "steps": 16}) for ranks in (4, 2)]
same(*([norm is None for norm in run.norms] for run in pair), "the same steps are skipped for their overflow")
ok(None in pair[0].norms and pair[0].norms[-1], "which are some, and not the last")
run = logged(ranks=4, tp=2, stage=1, reduce="once", accumulate=3, sequence_parallel=True, **SHAPE)
near(run, whole("gpt2", 2, accumulate=3), 1e-5, "--reduce once")
run = logged(ranks=2, tp=2, optimizer="sgd", lr=0.1, sequence_parallel=True, **SHAPE)
near(run, logged(ranks=1, optimizer="sgd", lr=0.1, **SHAPE), 1e-5, "SGD with clipping")
odd = dict(layers=1, hidden=24, heads=3, seq=6, batch=1, steps=4, eval_every=0)
run = logged(ranks=3, tp=3, sequence_parallel=True, **odd)
near(run, logged(ranks=1, **odd), 1e-5, "three ranks, one layer, bytes")
if mpi_missing():
    skip(f"tensor ranks over MPI: {mpi_missing()}")
else:
    local, mpi = (logged(ranks=4, tp=2, stage=2, comm=comm, sequence_parallel=True, **{**SHAPE, "steps": 3})
                  for comm in ("local", "mpi"))
    same(mpi.bits, local.bits, "tensor ranks over MPI: the same bits")

# Saved at one mesh, taken up at any other: what they export has the same bytes.
for model in MODELS:
    folder, first = path(f"saved {model}"), path(f"{model}.first")
    run = train(ranks=4, tp=2, stage=1, save=folder, export=first, **{**MODELS[model], "steps": 3})
    same(run.code, 0, f"{model}: saved at tp 2 by 2") or note(run.err[-600:])
    for mesh in (dict(ranks=4, stage=3), dict(ranks=4, tp=4), dict(ranks=1), dict(ranks=4, tp=2, stage=3, sequence_parallel=True)):
        again = path(f"{model}.again")
        run = train(resume=folder, export=again, **{**MODELS[model], "steps": 3}, **mesh)
        same(run.code == 0 and contents(again), contents(first), f"{model}: resumed at {mesh}, the same export") or note(run.err[-600:])
    one, four = (train(resume=first, **{**MODELS[model], "steps": 2, "batch": 4 if mesh == 1 else 2, **({} if mesh == 1 else dict(tp=2, stage=3))},
                       ranks=mesh) for mesh in (1, 4))
    ok(one.report and four.report and abs(one.report["loss"][0] - four.report["loss"][0]) < 1e-5,
       f"{model}: its export begins with the same loss at tp 2 by 2") or note(four.err[-600:])
tensors, metadata = read_safetensors(path("gpt2.first"))
for name, (kind, shape, data) in tensors.items():  # as torch.nn.Linear has them: [out, in]
    if len(shape) == 2 and name.startswith("h."):
        values, (rows, columns) = array.array("f", data), shape
        turned = array.array("f", [values[r * columns + c] for c in range(columns) for r in range(rows)])
        tensors[name] = kind, shape[::-1], turned.tobytes()
write_safetensors(path("turned"), tensors)
run = train(ranks=4, tp=2, stage=3, resume=path("turned"), assume_shape=True, export=path("back"), **{**SHAPE, "steps": 1, "lr": 0, "min_lr": 0, "weight_decay": 0})
same({k: v for k, v in read_safetensors(path("back"))[0].items()} if run.code == 0 else run.err[-600:],
     read_safetensors(path("gpt2.first"))[0], "matrices [out, in] come in at tp 2 by 2, and go out as they were")
texts = [train(ranks=tensor, tp=tensor, sample=20, temperature=0, resume=path("gpt2.first"), **{**SHAPE, "steps": 1, "lr": 0, "min_lr": 0},
               **SEQUENCE[tensor > 1]).out.split("text ──")[-1].split("Next ──")[0] for tensor in (1, 2)]
ok(len(texts[0]) > 40 and texts[0] == texts[1], "the likeliest text is the same on two tensor ranks")

# Failures: a loss that is no number, a rank that dies.
for stage in (0, 3):
    run = train(ranks=4, tp=2, stage=stage, **{**SHAPE, "lr": 10, "warmup": 0, "clip": 0, "steps": 60, "weight_decay": 10})
    ok(run.code == 1 and "not finite" in run.err, f"a loss that is no number ends the run in words at stage {stage}") or \
        note(f"{run.code} {run.err[-600:]}")
log = path("killed.jsonl")
process = subprocess.Popen([ZR_TRAIN, *arguments(ranks=4, tp=2, stage=2, log=log, **{**SHAPE, "steps": 100000})],
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
in_steps(log)
with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
    victim = int(file.read().split()[1])
os.kill(victim, signal.SIGKILL)
out = finish(process)
ok(process.returncode == 128 + 9 and "rank 1" in (out[1] if isinstance(out, tuple) else str(out)), "a killed tensor rank is named, and nobody hangs") or note(f"{process.returncode} {out}")

# What does not divide is refused, with what does.
for words, flags, needle in (("ranks", dict(ranks=4, tp=3), "--ranks 6"), ("heads", dict(ranks=5, tp=5, hidden=48, heads=12), "--tp 4"),
                             ("KV heads", dict(ranks=4, tp=4, arch="llama", hidden=48, heads=12, kv_heads=6), "--tp 2"),
                             ("rows", dict(ranks=4, tp=4, sequence_parallel=True, seq=10, hidden=48, heads=12), "--seq 12"),
                             ("nothing", dict(ranks=2, sequence_parallel=True), "--tp 2")):
    run = train(**flags)
    ok(run.code == 2 and needle in run.err, f"{words} that do not divide: {run.err.strip()[:110]}") or note(f"{run.code} {run.err}")

# --prove takes no rounding for a mistake. More of these in long_prove.t.
for row in (row for row in hard_to_prove(SEED, 9) if row["ranks"] == 2):
    run = train(**row)
    ok(run.code == 0 and "proved: beside one dense rank" in run.err, "right: " + " ".join(arguments(**row))) or note(f"{run.code} {run.err[-500:]}")
run = train(ranks=2, tp=2, precision="fp16", loss_scale_power=32, loss_scale_hysteresis=9, prove=True)
ok(run.code == 0 and "every step was skipped" in run.err, "that no gradient was compared is said") or note(f"{run.code} {run.err[-500:]}")

# Plans of meshes that are not there, and settings of a file.
run = train(ranks=None, dry_run=True, world_size=400, tp=16, layers=2, hidden=512, heads=16, batch=16, seq=64)
same(run.code, 0, "400 ranks, 16 of them per layer, are planned") or note(run.err)
config = path("config.json")
with open(config, "w") as file:
    json.dump({"train_batch_size": 6, "gradient_accumulation_steps": 3}, file)
for mesh in (dict(ranks=4, tp=2), dict(ranks=4, pp=2), dict(ranks=4, tp=2, pp=2), dict(ranks=None, world_size=4, pp=2)):
    run = train(config=config, batch=None, **mesh, **{k: v for k, v in SHAPE.items() if k != "batch"}, dry_run=True)
    ok(run.code == 0 and "\n72 tokens a step" in run.out, f"train_batch_size counts the data ranks of {mesh}") or note(run.out + run.err)
run = train(config=config, ranks=1, tp=2, dry_run=True)
ok(run.code == 2 and "--ranks 2" in run.err, "of which there is none where --tp is more than the ranks") or note(f"{run.code} {run.err}")
timed = train(ranks=4, tp=2, dry_run=True, flops=1e12, bandwidth=1e9, **SHAPE)
ok(timed.code == 0 and timed.report["timeline"]["waiting_seconds"] > 0,
   "a step timeline waits for the sums of tensor ranks") or note(timed.err)
# 4 sequences of 16, one window held out, and a token more.
for mesh in (dict(ranks=2, tp=2), dict(ranks=2, pp=2)):
    for missing, code in ((0, 0), (1, 3)):
        run = train(data=text_file(f"text-{missing}", 4 * 16 + 18 - missing), **mesh, steps=1, batch=4, seq=16, eval_every=0)
        same(run.code, code, f"{missing} bytes short of a batch of the one data rank of {mesh}") or note(run.err)
same(leftovers(), [], "and no process is left")
done()
