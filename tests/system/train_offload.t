#!/usr/bin/env python3
"""Optimizer state and parameters on the host: the bits of a run and the bytes of its files are those of a run without, what
is left on the device is what the paper says, both tiers are as planned, and what cannot be is refused with the way out."""
import json
import os
import sys

sys.path.insert(0, "tests/support")
from pairs import logged, most_pairs, rolled_back
from saves import contents
from zrtest import done, leftovers, note, ok, path, same, start_quickly, train

start_quickly(fp32_alone=True)
LAYERS, HIDDEN, SEQ, VOCAB = 5, 48, 12, 256
SHAPE = dict(layers=LAYERS, hidden=HIDDEN, heads=4, seq=SEQ, batch=2, steps=4, clip=0.5, eval_every=2)
MODELS = {"gpt2": SHAPE, "llama": {**SHAPE, "arch": "llama", "kv_heads": 2, "ffn": 38}}
SWITCH = {False: None, True: True}
# Overflows in fp16: of the first steps some are skipped.
SCALES = {"fp32": {}, "bf16": {}, "fp16": dict(loss_scale_power=24, loss_scale_hysteresis=1)}
bases = {}


def base(model, data, tensor, precision, accumulate, optimizer):
    key = model, data, tensor, precision, accumulate, optimizer
    if key not in bases:
        bases[key] = logged(ranks=data * tensor, tp=tensor, precision=precision, accumulate=accumulate, optimizer=optimizer, stage=0,
                            **SCALES[precision], **MODELS[model])
        same(bases[key].code, 0, f"{key}: all in one place") or note(bases[key].err[-600:])
    return bases[key]


def tiers_as_planned(run, words):
    for rank in run.report["ranks"]:
        planned, measured, host = rank["planned_bytes"], rank["peak_bytes"], rank.get("tiers", {}).get("host", {})
        differ = [tag for tag in planned if tag not in ("other", "total") and planned[tag] != measured[tag]]
        pairs = [(host.get("planned" + end), host.get(kind + end)) for kind, end in
                 (("peak", "_by_tag_bytes"), ("peak", "_bytes"))] + [(host.get("planned_moved_bytes_per_step"), host.get("moved_bytes_per_step"))]
        if differ or any(a is None or a != b for a, b in pairs) or rank["driver_calls_last_step"]:
            return ok(False, f"{words}: as planned") or note(f"{differ} {host} {rank['driver_calls_last_step']}")
    return ok(True, f"{words}: every tag of both tiers and what moves as planned, no driver call in the last step")


skipped = undone = 0
for row in most_pairs(3, model=tuple(MODELS), data=(1, 2, 3), tensor=(1, 2), stage=(0, 1, 2, 3), param=(False, True),
                    precision=("fp32", "bf16", "fp16"), accumulate=(1, 3), scattered=(False, True), host=(False, True),
                    bucket_bytes=(4096, 1 << 20), recompute=("none", "full"), optimizer=("adamw", "sgd"),
                    log=(None, "100KB", "1GiB"), ratio=(None, 0.6)):
    if row["data"] * row["tensor"] > 4:
        row["tensor"] = 1
    if row["stage"] == 0 and row["data"] > 1:
        row["stage"] = 1
    param = row["param"] and row["stage"] == 3
    want = base(*(row[key] for key in ("model", "data", "tensor", "precision", "accumulate", "optimizer")))
    got = logged(ranks=row["data"] * row["tensor"], tp=row["tensor"], stage=row["stage"], precision=row["precision"], accumulate=row["accumulate"],
                 optimizer=row["optimizer"], bucket_bytes=row["bucket_bytes"], recompute=row["recompute"], no_contiguous=SWITCH[row["scattered"]],
                 checkpoint_offload=SWITCH[row["host"]], offload_optimizer="cpu", offload_param="cpu" if param else None, offload_ratio=row["ratio"],
                 speculative_update=row["log"], **SCALES[row["precision"]], **MODELS[row["model"]])
    words = " ".join(f"{k} {v}" for k, v in row.items())
    if same(got.bits, want.bits, words):
        skipped += "is skipped" in got.err
        undone += got.report.get("rolled_back_updates", 0)
        if "is skipped" not in got.err:  # such a step moves less
            tiers_as_planned(got, words)
    else:
        note(got.err[-600:])
ok(skipped > 0, f"steps were skipped in {skipped} of the runs in fp16")
for pipeline in (dict(pp=2, ranks=4, stage=2, accumulate=2, clip=1000), dict(pp=2, ranks=2, stage=0, accumulate=2, schedule="vhalf")):
    runs = [logged(precision="bf16", offload_optimizer=tier, speculative_update=log, **{**SHAPE, **pipeline})
            for tier, log in (("none", None), ("cpu", None), ("cpu", "1GiB"))]
    for run in runs[1:]:
        same(run.bits, runs[0].bits, f"a pipeline: {pipeline}") and tiers_as_planned(run, "its tiers") or note(run.err[-600:])

# What stays on the device: 2 bytes of a parameter at stages 1 and 2, 2/N at stage 3, and with its shards away 0; on the host
# 12/N, and 2/N of shards. Counted from the model's shapes; each unit has padding of 256 bytes for each rank.
PSI = VOCAB * HIDDEN + SEQ * HIDDEN + LAYERS * (12 * HIDDEN ** 2 + 13 * HIDDEN) + 2 * HIDDEN
for ranks, stage, param in ((1, 0, None), (2, 1, None), (2, 2, None), (4, 3, None), (4, 3, "cpu"), (1, 3, "cpu")):
    rank = train(ranks=ranks, stage=stage, precision="bf16", offload_optimizer="cpu", offload_param=param, bucket_bytes=4096, **SHAPE).report["ranks"][-1]
    kept, host = rank["persistent_bytes"], rank["tiers"]["host"]["peak_by_tag_bytes"]
    divided = ranks if stage == 3 else 1
    slack = lambda each: each * (LAYERS + 3) * (256 * ranks + 64 * 16)  # units, and their tensors' alignment
    within = lambda bytes, exact, each: exact <= bytes <= exact + slack(each)
    words = f"{ranks} ranks, stage {stage}, parameters {param or 'here'}: {kept['state']} bytes stay"
    ok(within(kept["state"], 0 if param else 2 * PSI // divided, 1 if not param else 0) and kept["optimizer"] == kept["master"] == kept["grad"] == 0 and
       kept["comm"] <= 2 * max(4096, 64 * ranks) * (ranks > 1) + 512, words) or note(f"{kept} {2 * PSI // divided}")
    ok(within(host["optimizer"], 8 * PSI // ranks, 4) and within(host["master"], 4 * PSI // ranks, 2) and
       within(host["param"], 2 * PSI // ranks if param else 0, 1 if param else 0) and 2 * PSI // ranks <= host["grad"] <= 4 * PSI // ranks + slack(2) and
       host["comm"] <= 2 * 4096, "and the rest is on the host") or note(f"{host}")

# A speculative update: all of its steps are clipped above, a part or none of them here. The log has what a rank updates.
ok(undone > 0, f"{undone} updates were rolled back")
for flags in (dict(ranks=1, stage=0, precision="fp32", clip=2.5), dict(ranks=2, stage=1, precision="bf16", accumulate=2, clip=1.8), dict(ranks=3, stage=3, precision="fp16", clip=3, loss_scale_power=17),
              dict(ranks=2, stage=3, precision="bf16", offload_param="cpu", clip=1000), dict(ranks=2, stage=2, precision="bf16", clip=1.8, offload_ratio=0.5)):
    runs = [logged(offload_optimizer="cpu", speculative_update=log, **{**SHAPE, **SCALES[flags["precision"]], "steps": 6, **flags}) for log in (None, "1GiB")]
    again = rolled_back(runs[0].norms, flags["clip"])
    same((runs[1].bits, runs[1].report["rolled_back_updates"]), (runs[0].bits, again), f"{flags}: {again} of 6 updates are rolled back") or note(runs[1].err[-600:])
    for rank in runs[1].report["ranks"]:
        host = rank["tiers"]["host"]["peak_by_tag_bytes"]
        same(host["offload"], host["optimizer"] + host["master"], "the log is as large as the state")
proved = train(ranks=2, stage=2, offload_optimizer="cpu", speculative_update="1MiB", prove=True, **SHAPE)
ok(proved.code == 0 and "rolled back" in proved.out, "--prove finds nothing") or note(proved.err[-600:])

# A part stays: no more than was left, and no less than that without its largest unit.
wants = logged(stage=0, **SHAPE)
for ranks, ratio in ((1, 0.3), (2, 0.75), (2, 0)):
    run = logged(ranks=ranks, stage=1, offload_optimizer="cpu", offload_ratio=ratio, **SHAPE) if ranks > 1 else logged(stage=0, offload_optimizer="cpu", offload_ratio=ratio, **SHAPE)
    rank = run.report["ranks"][-1]
    kept, room = rank["persistent_bytes"]["optimizer"], 8 * (1 - ratio) * PSI / ranks
    ok(run.code == 0 and room - 8 * (12 * HIDDEN ** 2 + VOCAB * HIDDEN) / ranks <= kept <= room + slack(8) * (LAYERS + 3) and
       rank["persistent_bytes"]["master"] == 0 and (ratio == 0) == ("tiers" not in rank), f"{ranks} ranks, ratio {ratio}: {kept} bytes of the optimizer stay") or note(f"{kept} {room} {run.err[-300:]}")
    same(run.bits if ranks == 1 else True, wants.bits if ranks == 1 else True, "the bits are those of a run without")

# Files: the same bytes; each resumes from the other's.
folders = {}
for name, flags in (("here", dict(stage=1)), ("host", dict(stage=1, offload_optimizer="cpu")),
                    ("away", dict(stage=3, offload_optimizer="cpu", offload_param="cpu"))):
    folders[name] = path(name)
    run = train(ranks=2, precision="bf16", save=folders[name], export=path(name + ".safetensors"), **flags, **SHAPE)
    same(run.code, 0, f"saves: {name}") or note(run.err[-600:])
state = os.path.join("step-00000004", "state.safetensors")
for name in ("host", "away"):
    ok(contents(os.path.join(folders[name], state)) == contents(os.path.join(folders["here"], state)) and
       contents(path(name + ".safetensors")) == contents(path("here.safetensors")), f"{name}: the files are those of a run without")
resumed = [logged(ranks=2, precision="bf16", resume=folders[name], **{**SHAPE, "steps": 7}, **flags)
           for name, flags in (("here", dict(stage=1)), ("here", dict(stage=3, offload_optimizer="cpu", offload_param="cpu")),
                               ("away", dict(stage=2, offload_optimizer="cpu")), ("host", dict(stage=0)))]
for run in resumed:
    same((run.code, run.bits), (0, resumed[0].bits), "a resumed run") or note(run.err[-600:])
imported = [logged(ranks=2, resume=path("here.safetensors"), stage=2, offload_optimizer=tier, **SHAPE) for tier in ("none", "cpu")]
same(imported[1].bits, imported[0].bits, "a run from an exported model")
proved = train(ranks=4, tp=2, stage=3, accumulate=2, offload_optimizer="cpu", offload_param="cpu", prove=True, **SHAPE)
same(proved.code, 0, "--prove finds nothing") or note(proved.err[-600:])

# A delayed update: the first two steps see the first parameters, wherever things are; a run that was saved and one that
# is resumed are the same.
DELAYED = dict(ranks=2, precision="bf16", offload_optimizer="cpu", delayed_update=True, **{**SHAPE, "steps": 6, "eval_every": 0})
at_once, still = (logged(**{**DELAYED, "delayed_update": None, **flags}, stage=1) for flags in ({}, dict(lr=0)))
folder = path("delayed")
late = [logged(stage=stage, offload_param=param, **DELAYED) for stage, param in ((1, None), (2, None), (3, None), (3, "cpu"))]
for run in late:
    same(run.bits, late[0].bits, "a delayed update has the same bits at every stage") and tiers_as_planned(run, "its tiers") or note(run.err[-600:])
ok(late[0].bits[0] == at_once.bits[0] and late[0].losses[1] == still.losses[1] and late[0].losses[2] != at_once.losses[2] and
   "delayed update" in train(stage=1, **DELAYED).out, "the second step computes without the first's gradients, and the run says so")
saved = logged(stage=1, save=folder, save_every=3, **DELAYED)
resumed = logged(stage=2, resume=os.path.join(folder, "step-00000003"), **DELAYED)
same(resumed.bits, saved.bits[3:], "a resumed run goes on as the one that saved") or note(resumed.err[-600:])

# On a slow link to the host a step takes what it moves over it; on a fast one nothing is waited for.
for flags in (dict(world_size=1), dict(world_size=2, stage=2), dict(world_size=4, stage=3, offload_param="cpu"), dict(world_size=1, stage=3, offload_param="cpu"),
              dict(world_size=2, stage=1, delayed_update=True)):
    for accumulate in (1, 4):
        reports = [train(ranks=None, dry_run=True, precision="bf16", offload_optimizer="cpu", accumulate=accumulate, flops=1e12, bandwidth=1e12,
                         host_bandwidth=speed, **{"stage": 0, **SHAPE, **flags}).report for speed in (1e13, 1e5)]
        seconds = [report["timeline"]["step_seconds"] for report in reports]
        moved = reports[0]["ranks"][0]["tiers"]["host"]["planned_moved_bytes_per_step"]
        ok(1 <= seconds[1] / (moved / 1e5) < 1.01 and reports[0]["timeline"]["waiting_seconds"] < 0.02 * seconds[0],
           f"{flags}, {accumulate} micro-batches: {moved} bytes in {seconds[1]:.3f} s") or note(f"{seconds} {moved}")

timed = [train(ranks=None, dry_run=True, world_size=2, stage=2, precision="bf16", offload_optimizer="cpu", speculative_update="1GiB", flops=1e12, bandwidth=1e12,
               host_bandwidth=speed, **SHAPE).report for speed in (1e13, 1e5)]
host = timed[0]["ranks"][0]["tiers"]["host"]
log, moved = host["planned_by_tag_bytes"]["offload"] / 1e5, host["planned_moved_bytes_per_step"] / 1e5
seconds = timed[1]["timeline"]["step_seconds"]
ok(max(log, moved) <= seconds < 0.99 * (log + moved) and timed[0]["timeline"]["waiting_seconds"] < 0.02 * timed[0]["timeline"]["step_seconds"],
   f"a log that takes {log:.1f} s is filled beside {moved:.1f} s of other copies, in {seconds:.1f} s") or note(f"{timed}")

# Plans, limits, and what does not go together.
PLAN = dict(ranks=None, dry_run=True, world_size=4, precision="bf16", layers=3, hidden=256, heads=8, seq=8, batch=1)
plan = train(stage=2, offload_optimizer="cpu", **PLAN)
without = train(stage=2, **PLAN)
host, device = plan.report["ranks"][0]["tiers"]["host"], plan.report["ranks"][0]["planned_reserved_bytes"]
ok(plan.code == 0 and host["planned_by_tag_bytes"]["optimizer"] > 0 and "peak_bytes" not in host and "host tier" in plan.out and
   device < without.report["ranks"][0]["planned_reserved_bytes"], "--dry-run plans both tiers") or note(plan.err)
need = host["planned_reserved_bytes"]
for words, flags, code, needle in (("enough", dict(host_limit=need), 0, ""), ("a byte too few", dict(host_limit=need - 1), 4, "--host-limit"),
                                   ("enough here", dict(memory_limit=device, host_limit=need), 0, ""),
                                   ("less here than without", dict(memory_limit=device - 1), 4, "--memory-limit")):
    run = train(stage=2, offload_optimizer="cpu", **flags, **PLAN)
    ok(run.code == code and needle in run.err, f"{words}: {run.err.strip()[-140:]}") or note(f"{run.code} {run.err}")
run = train(ranks=2, stage=1, offload_optimizer="cpu", host_limit=1 << 20, layers=8, hidden=64)
ok(run.code == 4 and "--host-limit" in run.err, f"a run is refused likewise: {run.err.strip()[-140:]}") or note(f"{run.code} {run.err}")
largest = [train(stage=2, find_max="layers", memory_limit="64MiB", **{**PLAN, "layers": None}, **flags).report["find_max"]["value"]
           for flags in ({}, dict(offload_optimizer="cpu"), dict(offload_optimizer="cpu", host_limit="32MiB"))]
ok(largest[0] < largest[1] and largest[2] < largest[1], f"--find-max knows both tiers: {largest} layers")
found = train(stage=2, offload_optimizer="cpu", offload_ratio="auto", memory_limit=(device + without.report["ranks"][0]["planned_reserved_bytes"]) // 2, **PLAN)
ratio = float(found.err.split("--offload-ratio auto: takes --offload-ratio ")[1].split(";")[0]) if found.code == 0 else -1
least = [train(stage=2, offload_optimizer="cpu", offload_ratio=number, memory_limit=(device + without.report["ranks"][0]["planned_reserved_bytes"]) // 2, **PLAN).code
         for number in (ratio, ratio - 1 / 4096)] if ratio > 0 else found.err
same(least, [0, 4], f"--offload-ratio auto offloads what must be: {ratio:.4f}")
picked = train(ranks=2, stage="auto", offload_optimizer="cpu", offload_param="cpu", layers=LAYERS, steps=1)
ok(picked.code == 0 and picked.report["stage"] == 3, "--stage auto takes one that can") or note(picked.err)
for words, flags, needle in (("copies of all", dict(ranks=2, stage=0), "--stage 1"), ("whole gradients", dict(ranks=2, stage=1, reduce="once"), "--reduce each"),
                             ("parameters that are whole", dict(ranks=2, stage=2, offload_param="cpu"), "--stage 3"),
                             ("parameters alone", dict(ranks=2, stage=3, offload_optimizer="none", offload_param="cpu"), "--offload-optimizer cpu"),
                             ("a delay alone", dict(offload_optimizer="none", delayed_update=True), "--offload-optimizer cpu"),
                             ("a part alone", dict(offload_optimizer="none", offload_ratio=0.5), "--offload-optimizer"), ("a part late", dict(offload_ratio=0.5, delayed_update=True), "leave one"),
                             ("more than all", dict(offload_ratio=1.5), "0 to 1"), ("what fits, without a limit", dict(offload_ratio="auto"), "--memory-limit"),
                             ("a delay to prove", dict(delayed_update=True, prove=True), "--prove"), ("a limit of nothing", dict(offload_optimizer="none", host_limit=1 << 30), "--offload-optimizer"),
                             ("a speculation and a delay", dict(delayed_update=True, speculative_update="1MiB"), "one of the two"), ("a folder of none", dict(offload_optimizer="nvme:"), "a folder"), ("a place", dict(offload_optimizer="disk"), "none|cpu")):
    run = train(**{"offload_optimizer": "cpu", **flags})
    ok(run.code == 2 and needle in run.err, f"{words}: {run.err.strip()[:140]}") or note(f"{run.code} {run.err}")

config = path("config.json")
keys = {"stage": 3, "sub_group_size": 1000000000, "offload_optimizer": {"device": "cpu", "pin_memory": True, "buffer_count": 4, "ratio": 0.5, "fast_init": False},
        "offload_param": {"device": "cpu", "pin_memory": False, "max_in_cpu": 1000000000}}
with open(config, "w") as file:
    json.dump({"zero_optimization": keys}, file)
plans = [train(ranks=2, dry_run=True, layers=LAYERS, **more) for more in (dict(config=config, stage=None), dict(stage=3, offload_optimizer="cpu", offload_param="cpu", offload_ratio=0.5))]
ok(plans[0].code == plans[1].code == 0 and plans[0].report["ranks"] == plans[1].report["ranks"], "DeepSpeed's keys are the flags") or note(plans[0].err)
same(leftovers(), [], "no process stays")
done()
