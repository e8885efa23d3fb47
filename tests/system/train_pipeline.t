#!/usr/bin/env python3
"""Pipelines against one rank that has the whole model: losses, bits between schedules, bytes as planned, what is held and
how long ranks are idle; saves at one mesh that are taken up at another; failures; and what is refused."""
import os
import random
import signal
import struct
import subprocess
import sys

sys.path.insert(0, "tests/support")
from pairs import logged, most_pairs
from saves import contents, read_safetensors, write_safetensors
from zrtest import (SILENT, ZR_TRAIN, arguments, done, finish, in_steps, leftovers, mpi_missing, note, ok, path, same, skip,
                    start_quickly, text_file, token_shard, train)

start_quickly(fp32_alone=True)
SHAPE = dict(data=text_file(), layers=8, hidden=32, heads=4, seq=8, batch=2, steps=4, clip=0.5, eval_every=0, accumulate=4)
MODELS = {"gpt2": SHAPE, "llama": {**SHAPE, "arch": "llama", "kv_heads": 4, "ffn": 48},
          "tied llama": {**SHAPE, "arch": "llama", "kv_heads": 4, "ffn": 36, "tie_embeddings": True}}
TAGS = ("param", "grad", "optimizer", "master", "gathered", "checkpoint", "activation", "comm", "workspace")
dense = {}


def whole(model, data, precision="fp32"):
    key = model, data, precision
    if key not in dense:
        dense[key] = logged(ranks=data, precision=precision, **MODELS[model])
        same(dense[key].code, 0, f"{model} on {data} ranks, {precision}")
    return dense[key]


def near(run, other, most, words):
    pairs = [*zip(run.report["loss"], other.report["loss"]), *zip(run.norms, other.norms)] if run.report else []
    worst = max((abs(a - b) / abs(b) for a, b in pairs), default=1)
    ok(len(pairs) == 8 and worst <= most, f"{words}: losses and norms within {worst:.1e}") or note(run.err[-600:])


def as_planned(run, words):
    ranks = run.report["ranks"]
    differ = [(rank["rank"], tag, rank["planned_bytes"][tag], rank["peak_bytes"][tag])
              for rank in ranks for tag in TAGS if rank["planned_bytes"][tag] != rank["peak_bytes"][tag]]
    same((differ, sum(rank["driver_calls_last_step"] for rank in ranks)), ([], 0),
         f"{words}: every tag of every rank as planned, and no driver call in the last step")


# Every pipeline is the dense run, and has the same bits under another schedule, stage, recomputation and place of checkpoints.
KEPT = {"as they are": {}, "full": dict(recompute="full"), "full:3": dict(recompute="full:3"),
        "host": dict(recompute="full", checkpoint_offload=True), "scattered": dict(no_contiguous=True, no_constant_buffers=True)}
OTHER = {"naive": "1f1b", "gpipe": "1f1b", "1f1b": "gpipe"}
for row in most_pairs(7, model=tuple(MODELS), pp=(2, 4), tp=(1, 2), data=(1, 2), stage=(0, 1, 2, 3), schedule=tuple(OTHER),
                    kept=tuple(KEPT), precision=("fp32", "bf16", "fp16"), cut=("memory", "equal")):
    if row["pp"] * row["tp"] * row["data"] > 8:
        row["data"] = 1
    mesh = dict(ranks=row["pp"] * row["tp"] * row["data"], pp=row["pp"], tp=row["tp"], pipeline_cut=row["cut"],
                precision=row["precision"], **MODELS[row["model"]])
    got = logged(stage=row["stage"], schedule=row["schedule"], **KEPT[row["kept"]], **mesh)
    other = logged(stage=3 - row["stage"], schedule=OTHER[row["schedule"]],
                   **(dict(partition_activations=True, recompute="full") if row["tp"] > 1 else {}), **mesh)
    words = " ".join(f"{k} {v}" for k, v in row.items())
    near(got, whole(row["model"], row["data"], row["precision"]), 1e-5 if row["precision"] == "fp32" else 1e-2, words)
    same(other.bits, got.bits, f"and as {OTHER[row['schedule']]} at stage {3 - row['stage']}, checkpoints elsewhere") or note(other.err[-600:])
    if got.report and other.report:
        as_planned(got, words)
        as_planned(other, "the other")
for words, flags in (("interleaved", dict(pp=2, interleave=2)), ("interleaved by four", dict(pp=2, interleave=4)),
                     ("vhalf", dict(pp=2, schedule="vhalf")), ("vhalf on four", dict(pp=4, schedule="vhalf")),
                     ("zb-h1", dict(pp=4, schedule="zb-h1")), ("zb-v", dict(pp=2, schedule="zb-v"))):
    run = logged(ranks=flags["pp"], **flags, **SHAPE)
    near(run, whole("gpt2", 1), 1e-5, words)
    run.report and as_planned(run, words)
    same(*(logged(ranks=flags["pp"], **{**MODELS["llama"], **more, "steps": 3}).bits for more in (flags, dict(pp=flags["pp"]))),
         f"{words}: the bits of 1f1b, where nothing is tied")
run = logged(ranks=8, tp=2, pp=2, sequence_parallel=True, **SHAPE)
near(run, whole("gpt2", 2), 1e-5, "2 x 2 x 2, sequence parallel")
run = logged(ranks=2, pp=2, reduce="once", **SHAPE)
near(run, whole("gpt2", 1), 1e-5, "--reduce once")
run = logged(ranks=2, pp=2, **SHAPE)
same([rank["received_bytes_per_step"] for rank in run.report["ranks"]], [4 * 4 * 2 * 8 * 32 + 4 * 256 * 32] * 2,
     "a stage receives activations or their gradients, and the tied embedding's")
same(logged(ranks=2, pp=2, **{**SHAPE, "accumulate": None}, micro_batches=4).bits, run.bits,
     "--micro-batches is another name of --accumulate")
if mpi_missing():
    skip(f"a pipeline over MPI: {mpi_missing()}")
else:
    local, mpi = (logged(ranks=4, tp=2, pp=2, comm=comm, **{**SHAPE, "steps": 3}) for comm in ("local", "mpi"))
    same(mpi.bits, local.bits, "a pipeline over MPI: the same bits")

# What ranks hold, and how long they are idle.
def planned(**flags):
    return train(ranks=None, dry_run=True, flops=1e12, bandwidth=1e13, pipeline_cut="equal", **flags).report


LARGE = dict(hidden=128, heads=4, seq=64, batch=2)


def kept(plan):
    return [rank["planned_bytes"]["activation"] + rank["planned_bytes"]["checkpoint"] for rank in plan["ranks"]]


four = dict(world_size=4, pp=4, layers=16, accumulate=4, **LARGE)
one, all_forward = planned(**four), planned(schedule="gpipe", **four)
same([stage["micro_batches_held"] for stage in one["pipeline"]], [4, 3, 2, 1], "1f1b holds p - i micro-batches")
same([stage["micro_batches_held"] for stage in all_forward["pipeline"]], [4] * 4, "gpipe all of them")
blocks = [a - b for a, b in zip(kept(planned(**{**four, "layers": 32})), kept(one))]
ok(all(abs(4 * b / ((4 - i) * blocks[0]) - 1) < 0.02 for i, b in enumerate(blocks)),
   f"the activations of layers are there {', '.join(f'{4 * b / blocks[0]:.2f}' for b in blocks)} times")
half = {p: max(kept(planned(world_size=p, pp=p, layers=4 * p, accumulate=2 * p, schedule="vhalf", **LARGE))) /
        max(kept(planned(world_size=p, pp=p, layers=4 * p, accumulate=2 * p, **LARGE))) for p in (4, 16)}
ok(half[16] <= 0.55, f"vhalf has {half[16]:.1%} of 1f1b's activations on 16 ranks, {half[4]:.1%} on 4")
for schedule, flags in (("gpipe", {}), ("1f1b", {}), ("naive", {}), ("1f1b", dict(interleave=2))):
    line = planned(world_size=4, pp=4, layers=32, accumulate=8, schedule=schedule, **flags, **LARGE)["timeline"]
    idle, formula = line["pipeline_idle_share"], line["pipeline_idle_share_by_formula"]
    ok(abs(idle / formula - 1) < 0.1, f"{schedule} {flags or ''}: idle for {idle:.3f}, {formula:.3f} by its formula")
balanced = train(ranks=None, dry_run=True, world_size=4, pp=4, layers=24, accumulate=8, vocab=50257, hidden=256, heads=4, seq=64).report
totals = [rank["planned_bytes"]["total"] for rank in balanced["ranks"]]
layers = [stage["layers"][0] for stage in balanced["pipeline"]]
fewer = train(ranks=None, dry_run=True, world_size=4, pp=4, layers=20, accumulate=8, vocab=50257, hidden=256, heads=4, seq=64).report
ok(max(totals) - min(t for t, l in zip(totals, layers) if l) <= (sum(totals) - sum(r["planned_bytes"]["total"] for r in fewer["ranks"])) / 4 * 1.6,
   f"stages of {layers} layers have peaks within about a layer: {[t >> 20 for t in totals]} MiB")

# Saved at one mesh, taken up at any other: what they export has the same bytes.
for model in MODELS:
    folder, first = path(f"saved {model}"), path(f"{model}.first")
    run = train(ranks=8, tp=2, pp=2, stage=1, save=folder, export=first, **{**MODELS[model], "steps": 3})
    same(run.code, 0, f"{model}: saved at 2 x 2 x 2") or note(run.err[-600:])
    for mesh in (dict(ranks=4, stage=3), dict(ranks=4, tp=4), dict(ranks=1), dict(ranks=4, pp=4, schedule="gpipe"),
                 dict(ranks=4, tp=2, pp=2, schedule="vhalf"), dict(ranks=4, pp=4, schedule="zb-h1")):
        again = path(f"{model}.again")
        run = train(resume=folder, export=again, **{**MODELS[model], "steps": 3}, **mesh)
        same(run.code == 0 and contents(again), contents(first), f"{model}: resumed at {mesh}, the same export") or note(run.err[-600:])
texts = [train(ranks=pp, pp=pp, sample=20, temperature=0, resume=path("gpt2.first"), eval_every=1,
               **{k: v for k, v in {**SHAPE, "steps": 1, "lr": 0, "min_lr": 0}.items() if k != "eval_every"}) for pp in (1, 2)]
same(*(run.out.split("text ──")[-1].split("Next ──")[0] for run in texts), "the likeliest text is the same from two stages")
ok(texts[0].report["val_loss"] and abs(texts[0].report["val_loss"] - texts[1].report["val_loss"]) < 1e-6, "and the loss of a validation")

# Failures: gradients and a loss that are no numbers, a rank that dies.
run = train(ranks=4, pp=4, **{**SHAPE, "lr": 10, "warmup": 0, "clip": 0, "steps": 60, "optimizer": "sgd", "lr_embeddings": 1000})
ok(run.code == 1 and "not finite" in run.err, "gradients that are no numbers end the run in words") or note(f"{run.code} {run.err[-600:]}")
tensors, metadata = read_safetensors(path("gpt2.first"))
kind, shape, data = tensors["ln_f.weight"]
tensors["ln_f.weight"] = kind, shape, struct.pack("<f", 3e38) + bytes(data[4:])
write_safetensors(path("huge"), tensors)
for flags in (dict(), dict(schedule="vhalf"), dict(schedule="zb-v"), *([dict(schedule="vhalf", comm="mpi")] if not mpi_missing() else [])):
    run = train(ranks=2, pp=2, resume=path("huge"), assume_shape=True, comm_timeout=20, **{**SHAPE, "lr": 0, "min_lr": 0}, **flags)
    ok(run.code == 1 and "run with --pp 1" in run.err, f"nor does a loss that is none leave ranks waiting: {flags}") or note(f"{run.code} {run.err[-600:]}")
# The last round of a validation leaves a data rank without a window, and one stage of the two has something to gather.
rng = random.Random(1)
few = dict(data=token_shard([rng.randrange(5000) for _ in range(6000)]), vocab=5000, layers=4, seq=16, batch=4, steps=2, eval_every=1,
           warmup=1, ranks=4, stage=3, comm_timeout=SILENT)
parts, other = train(pp=2, **few), train(pp=2, **{**few, "stage": 1})
ok(parts.code == other.code == 0 and parts.report["val_loss"] == other.report["val_loss"],
   "a round of validation that leaves a rank without a window: the loss of another stage") or note(f"{parts.code} {other.code} {parts.err[-500:]}")

log = path("killed.jsonl")
process = subprocess.Popen([ZR_TRAIN, *arguments(ranks=4, pp=4, log=log, **{**SHAPE, "steps": 100000})],
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
in_steps(log)
with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
    victim = int(file.read().split()[1])
os.kill(victim, signal.SIGKILL)
out = finish(process)
ok(process.returncode == 128 + 9 and "rank 1" in (out[1] if isinstance(out, tuple) else str(out)), "a killed stage is named, and nobody hangs") or note(f"{process.returncode} {out}")

# What does not fit together is refused, with what does.
for words, flags, needle in (("ranks", dict(ranks=4, pp=3), "--ranks 6"), ("layers", dict(ranks=8, pp=8, layers=2), "--pp 4"),
                             ("layers of equal stages", dict(ranks=3, pp=3, layers=2, pipeline_cut="equal"), "--layers 3"),
                             ("rounds", dict(ranks=2, pp=2, interleave=2, layers=4, accumulate=3), "--micro-batches 4"),
                             ("a schedule", dict(ranks=2, pp=2, interleave=2, schedule="gpipe"), "leave one"),
                             ("nothing", dict(ranks=2, schedule="gpipe"), "--pp 2")):
    run = train(**flags)
    ok(run.code == 2 and needle in run.err, f"{words} that do not fit: {run.err.strip()[:110]}") or note(f"{run.code} {run.err}")
same(leftovers(), [], "and no process is left")
done()
