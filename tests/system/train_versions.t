#!/usr/bin/env python3
"""Asynchronous pipelines, whose orders and bits versions_test and pipeline_test prove: the same losses on any mesh, stage and
place of checkpoints, bytes as planned, drained for evaluations and saves, what is printed, failures, and what is refused."""
import os
import signal
import subprocess
import sys

sys.path.insert(0, "tests/support")
from pairs import logged, most_pairs
from zrtest import (ZR_TRAIN, arguments, done, finish, in_steps, leftovers, mpi_missing, note, ok, path, same, settles, skip,
                    start_quickly, text_file, train, wait_for)

start_quickly(fp32_alone=True)
SHAPE = dict(data=text_file(), layers=8, hidden=32, heads=4, seq=8, batch=2, steps=10, clip=0, eval_every=0)
LLAMA = {**SHAPE, "arch": "llama", "kv_heads": 4, "ffn": 48}
MODELS = {"gpt2": SHAPE, "llama": LLAMA}
KEPT = {"as they are": {}, "full": dict(recompute="full"), "host": dict(recompute="full", checkpoint_offload=True),
        "offloaded": dict(offload_optimizer="cpu"), "scattered": dict(no_contiguous=True, no_constant_buffers=True)}
first = {}
for row in most_pairs(6, schedule=("2bw", "pipedream", "vertical"), model=tuple(MODELS), pp=(2, 4), data=(1, 2), stage=(0, 1, 2), kept=tuple(KEPT),
                    precision=("fp32", "bf16")):
    pipedream = row["schedule"] != "2bw"
    if pipedream:
        row["model"] = "llama"
    if row["kept"] == "offloaded" and row["data"] > 1:
        row["stage"] = max(row["stage"], 1)
    run = logged(ranks=row["pp"] * row["data"], pp=row["pp"], stage=row["stage"], schedule="pipedream" if pipedream else "2bw", precision=row["precision"],
                 pipeline_cut="equal", vertical_sync=row["schedule"] == "vertical",
                 **KEPT[row["kept"]], **MODELS[row["model"]], **({} if pipedream else dict(accumulate=4)))
    words = " ".join(f"{k} {v}" for k, v in row.items())
    # A gradient is one update old in every stage of 2bw, and P - 1 or as old as the stage is early in pipedream.
    key = row["schedule"], row["model"], row["data"], row["precision"], row["pp"] if pipedream else 0
    same(run.losses, first.setdefault(key, run.losses), f"{words}: the losses of its schedule") or note(run.err[-600:])
    if run.report:
        ranks = run.report["ranks"]
        same([(rank["rank"], tag) for rank in ranks for tag in rank["planned_bytes"] if tag not in ("other", "total") and
              rank["planned_bytes"][tag] != rank["peak_bytes"][tag]], [], "with bytes as planned")
        same(*([rank[key] for rank in ranks] for key in ("sent_bytes_per_step", "planned_sent_bytes_per_step")), "sent ones, too")
TWO = dict(ranks=2, pp=2, schedule="2bw", accumulate=4, **SHAPE)
plain = logged(**TWO)
ok(plain.losses[0] == logged(**{**TWO, "schedule": "1f1b"}).losses[0] != plain.losses[1], "the first step's losses are 1f1b's")
late = logged(ranks=1, offload_optimizer="cpu", delayed_update=True, **{**SHAPE, "accumulate": 4})
ok(len(late.losses) == 10 and all(abs(a - b) < 1e-6 for a, b in zip(late.report["loss"], plain.report["loss"])),
   "and the others those of a delayed update on one rank, to 1e-6") or note(f"{late.losses} {plain.losses}")
if mpi_missing():
    skip(f"2bw over MPI: {mpi_missing()}")
else:
    same(logged(comm="mpi", **TWO).bits, plain.bits, "2bw over MPI: the same bits")

# Drained for evaluations and saves. A resumed run has the bits of one that drained at the same steps.
for words, flags in (("2bw", TWO), ("pipedream", dict(ranks=4, pp=4, schedule="pipedream", vertical_sync=True, **LLAMA))):
    folder = path(f"saved {words}")
    whole = logged(save=folder, save_every=5, **{**flags, "steps": 15})
    again = logged(resume=os.path.join(folder, "step-00000005"), save=path("again"), save_every=5, **{**flags, "steps": 15})
    same((again.code, again.losses, len(whole.losses)), (0, whole.losses[5:], 15), f"{words}: resumed after 5 of 15 steps") or note(again.err[-600:])
    seen = logged(**{**flags, "steps": 15, "eval_every": 5})
    same(seen.losses, whole.losses, f"{words}: an evaluation drains like a save")
for number in (signal.SIGTERM, signal.SIGUSR1):
    log, folder = path("signal.jsonl"), path(f"signal {number}")
    process = subprocess.Popen([ZR_TRAIN, *arguments(log=log, save=folder, ranks=4, pp=4, schedule="pipedream", **{**LLAMA, "steps": 100000})],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
    in_steps(log)
    process.send_signal(number)
    wait_for(lambda: process.poll() is not None or os.path.isdir(folder) and any(n.startswith("step-") for n in os.listdir(folder)))
    ok(os.path.isdir(folder) and any(n.startswith("step-") for n in os.listdir(folder)),
       f"{number.name}: a save, drained, while micro-batches of later steps had begun")
    if number == signal.SIGUSR1:
        process.send_signal(signal.SIGTERM)
    finish(process)
    same(process.returncode, 128 + signal.SIGTERM, "and the run ends by the signal")
    os.unlink(log)

# What is printed: versions, staleness, idle time of equal stages between filling and draining.
def planned(world_size=4, **flags):
    return train(ranks=None, dry_run=True, world_size=world_size, pp=4, flops=1e12, bandwidth=1e13, pipeline_cut="equal", layers=64, hidden=128, heads=4,
                 seq=64, batch=2, arch="llama", **flags)


for schedule, flags, stale in (("2bw", dict(accumulate=4), [1] * 4), ("pipedream", {}, [3, 2, 1, 0]),
                               ("pipedream", dict(vertical_sync=True), [3] * 4)):
    plan, base = planned(schedule=schedule, **flags), planned(schedule="1f1b", accumulate=4).report
    same([(stage["staleness"], stage["parameter_versions"]) for stage in plan.report["pipeline"]], [(s, s + 1) for s in stale],
         f"{schedule}: versions and staleness of each stage")
    same([rank["planned_bytes"]["param"] for rank in plan.report["ranks"]],
         [rank["planned_bytes"]["param"] * (s + 1) for rank, s in zip(base["ranks"], stale)], "each version has the bytes of the parameters")
    same([stage["micro_batches_held"] for stage in plan.report["pipeline"]], [4, 3, 2, 1], "p - i micro-batches are held")
    idle = [stage["idle_share"] for stage in plan.report["pipeline"]]
    ok(min(idle) <= 0.001 and plan.report["timeline"]["pipeline_idle_share"] <= 0.02, f"idle for {idle}") or note(plan.report["timeline"])
    same(planned(schedule=schedule, stage="auto", world_size=8, **flags).report["stage"], 2, "--stage auto takes no stage that is refused")
    ok("updates old" in plan.out or "update old" in plan.out, "and the text says so")

# Failures end all ranks; what does not fit together is refused, with what does.
run = train(ranks=4, pp=4, schedule="2bw", accumulate=4, **{**SHAPE, "lr": 10, "warmup": 0, "steps": 60, "optimizer": "sgd", "lr_embeddings": 1000})
ok(run.code == 1 and run.err.count("not finite") == 1, "gradients that are no numbers end the run in words") or note(f"{run.code} {run.err[-600:]}")
for words, flags, needle in (("few micro-batches", dict(TWO, accumulate=1), "--accumulate 2"), ("stage 3", dict(TWO, stage=3), "--stage 2"),
                             ("parameters on the host", dict(TWO, ranks=4, stage="auto", offload_param="cpu", offload_optimizer="cpu"), "--stage 2"),
                             ("a delayed update", dict(TWO, offload_optimizer="cpu", delayed_update=True), "leave one"), ("fp16", dict(TWO, precision="fp16"), "bf16"),
                             ("a proof", dict(TWO, prove=True), "leave one"), ("interleaved stages", dict(TWO, interleave=2), "leave one"),
                             ("a tied embedding", dict(ranks=2, pp=2, schedule="pipedream", **SHAPE), "--arch llama"),
                             ("several micro-batches", dict(ranks=2, pp=2, schedule="pipedream", accumulate=2, **LLAMA), "leave")):
    run = train(**flags)
    ok(run.code == 2 and needle in run.err, f"{words}: {run.err.strip()[:110]}") or note(f"{run.code} {run.err}")
settles(lambda: leftovers() == [])
same(leftovers(), [], "and no process is left")
done()
