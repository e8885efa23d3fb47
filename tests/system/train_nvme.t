#!/usr/bin/env python3
"""Optimizer state and parameters in files on a disk: the bits of a run and of its checkpoints are those of a run without, the file and
what the host keeps are as planned and as a formula of its own has them, the timeline waits for what the disk takes, and
what goes wrong ends with the folder and the way out, with nothing left in it and the last checkpoint intact."""
import json
import os
import subprocess
import sys

sys.path.insert(0, "tests/support")
from pairs import logged, rolled_back
from saves import contents
from zrtest import ZR_TRAIN, arguments, done, kill_session, leftovers, note, ok, path, same, start_quickly, text_file, train, wait_for

start_quickly(fp32_alone=True)
FOLDER = path("disk")
os.mkdir(FOLDER)
NVME, BLOCK = dict(offload_optimizer="nvme:" + FOLDER, nvme_depth=8, force=True, speculative_update="none"), 4096
PARAM = dict(stage=3, offload_param="nvme:" + FOLDER, nvme_depth=8, force=True)
LAYERS, HIDDEN, SEQ, VOCAB = 3, 48, 12, 256
SHAPE = dict(layers=LAYERS, hidden=HIDDEN, heads=4, seq=SEQ, batch=2, steps=4, clip=0.5, eval_every=2)
FP16 = dict(precision="fp16", loss_scale_power=24, loss_scale_hysteresis=1)  # the first steps are skipped

# Elements of each unit: the tied embedding with positions, the blocks, the last norm.
UNITS = [VOCAB * HIDDEN, SEQ * HIDDEN] + LAYERS * [12 * HIDDEN ** 2 + 13 * HIDDEN] + [2 * HIDDEN]


def as_planned(run, words, kinds, gradient, parameter=0, micro_batches=1, buffers=3):
    """`kinds` numbers of each element, read and written once. `gradient`: bytes of one that waits in the file, which are written
    once and read once; the tied embedding's do not. `parameter`: likewise, written once and read twice for each micro-batch, but
    for what forward leaves for backward; at most as many units as are gathered at a time. `buffers` units are on the host at a time."""
    for rank in run.report["ranks"]:
        tiers, ranks = rank["tiers"], len(run.report["ranks"])
        nvme, host = tiers["nvme"], tiers["host"]
        kept, passes = parameter * sum(UNITS) // ranks, 2 * micro_batches - 1
        exact = kinds * 4 * sum(UNITS) // ranks + kept
        filed = gradient * sum(UNITS[2:]) // ranks
        slack = (len(UNITS) + 1) * (BLOCK + kinds * 4 * (256 + 16 * 64))  # blocks of a unit, alignment of its tensors
        slack = slack * bool(kinds) + (len(UNITS) * BLOCK + parameter * (256 + 16 * 64)) * bool(parameter)
        largest = (kinds * 4 + parameter) * max(UNITS) // ranks + slack
        further = nvme["moved_bytes_per_step"] - 2 * nvme["peak_bytes"] - passes * kept
        good = (nvme["planned_bytes"] == nvme["peak_bytes"] and nvme["planned_moved_bytes_per_step"] == nvme["moved_bytes_per_step"] and
                exact + filed <= nvme["peak_bytes"] <= exact + filed + 2 * slack and
                -micro_batches * 2 * parameter * max(UNITS) // ranks <= further <= slack * passes * bool(parameter) and
                (not gradient or host["peak_by_tag_bytes"]["grad"] <= 8 * sum(UNITS[:2]) // ranks + slack) and host["planned_by_tag_bytes"] == host["peak_by_tag_bytes"] and
                (buffers - 1) * kinds * 4 * max(UNITS) // ranks <= host["peak_by_tag_bytes"]["offload"] <= buffers * (largest + gradient * max(UNITS) // ranks + BLOCK) and (host["peak_by_tag_bytes"]["optimizer"] == 0) == (host["peak_by_tag_bytes"]["master"] == 0) == bool(kinds))
        if not good:
            return ok(False, f"{words}: tiers") or note(f"{tiers} {exact} {slack}")
    return ok(True, f"{words}: files of {kinds} numbers for each element, {gradient} bytes of gradients, {parameter} of parameters, buffers on the host")


for flags in (dict(ranks=1, stage=0), dict(ranks=1, stage=0, precision="bf16", accumulate=3), dict(ranks=2, stage=1, **FP16),
              dict(ranks=3, stage=2, precision="bf16"), dict(ranks=2, stage=3, optimizer="sgd", precision="bf16", offload_buffers=5),
              dict(ranks=4, tp=2, stage=3, offload_param="cpu", precision="bf16", accumulate=2), dict(ranks=2, pp=2, stage=0, accumulate=2),
              dict(ranks=2, stage=2, precision="bf16", offload_ratio=0.5)):
    want = logged(**{**flags, "stage": 0, "offload_param": None, "offload_ratio": None, "offload_buffers": None}, **SHAPE)
    got = logged(**flags, **NVME, **SHAPE)
    words = " ".join(f"{k} {v}" for k, v in flags.items())
    same((got.code, got.bits), (0, want.bits), words) or note(got.err[-600:])
    if got.code == 0 and "fp16" not in words and "tp" not in words and "pp" not in words and "ratio" not in words:
        as_planned(got, words, 2 if "sgd" in words else 3, 0 if "accumulate" in words else 2 if "bf16" in words else 4, buffers=flags.get("offload_buffers", 3))
DISK = "nvme:" + FOLDER
for tier, flags in (("cpu", dict(ranks=1, recompute="full")), (DISK, dict(ranks=1)), (DISK, dict(ranks=3, precision="bf16", accumulate=3)),
                    (DISK, dict(ranks=2, **FP16)), ("cpu", dict(ranks=4, tp=2, precision="bf16"))):  # parameters in a file, and the optimizer's state on the host or in another
    want, got = logged(**flags, stage=0, **SHAPE), logged(**flags, **PARAM, offload_optimizer=tier, **SHAPE)
    words = " ".join(f"{k} {v}" for k, v in flags.items()) + f", parameters on nvme, optimizer {tier[:4]}"
    same((got.code, got.bits), (0, want.bits), words) or note(got.err[-600:])
    if got.code == 0 and "fp16" not in words and "tp" not in words:
        width = 2 if "bf16" in words else 4
        as_planned(got, words, 3 if tier == DISK else 0, width if tier == DISK and "accumulate" not in words else 0, width, flags.get("accumulate", 1))
same(os.listdir(FOLDER), [], "the folder shows nothing")
for flags, where in ((dict(ranks=1), {}), (dict(ranks=2, stage=2, precision="bf16", accumulate=2), {}), (dict(ranks=2, stage=3, precision="bf16"), PARAM)):  # a step late: as with the host
    late = [logged(delayed_update=True, **{**flags, **SHAPE, **tier}) for tier in (dict(offload_optimizer="cpu"), {**NVME, **where})]
    same((late[1].code, late[1].bits), (0, late[0].bits), f"--delayed-update {flags}") or note(late[1].err[-600:])
    tiers = [tier for rank in late[1].report["ranks"] for tier in rank["tiers"].values()]
    same([tier["moved_bytes_per_step"] for tier in tiers], [tier["planned_moved_bytes_per_step"] for tier in tiers], "and moves what is planned")
    ok(all(0 <= tier["wait_share"] <= 1 for tier in tiers) and all(rank["delayed_update"]["computing_seconds"] > 0 <= rank["delayed_update"]["waiting_seconds"] for rank in late[1].report["ranks"]) and
       all(rank["delayed_update"]["waiting_seconds"] == 0 for rank in late[0].report["ranks"]), "the update's time stands apart from the step's waits")
    bytes_of, width = 24 * sum(UNITS) // flags["ranks"], 2 if "precision" in flags else 4  # an update reads and writes masters, momentum and variance; the step's end reads nothing
    ok(where or all(bytes_of <= rank["tiers"]["nvme"]["moved_bytes_per_step"] <= 1.2 * bytes_of + 64 * BLOCK for rank in late[1].report["ranks"]), "state is moved once") or note(f"{bytes_of} {tiers}")
    new = [run.report["ranks"][0]["tiers"]["host"]["peak_by_tag_bytes"]["param"] for run in late]
    ok(all(width * sum(UNITS) // flags["ranks"] <= bytes <= 1.2 * width * sum(UNITS) // flags["ranks"] + len(UNITS) * (BLOCK + 256) for bytes in new) and
       all(tier.get("planned_by_tag_bytes") == tier.get("peak_by_tag_bytes") for tier in tiers), "its parameters wait on the host for the step's end") or note(f"{new} {tiers}")

# A speculative update: state lies twice in the file, as far as the bytes allow, and what was wrong is made again from what it was.
for flags, log in ((dict(ranks=1, clip=2.1), "1GiB"), (dict(ranks=2, stage=1, precision="bf16", accumulate=2, clip=1.8), "300KiB"), (dict(ranks=2, stage=2, precision="bf16", clip=1000), "1GiB"),
                   (dict(ranks=3, stage=3, clip=1.75, **{**FP16, "loss_scale_power": 17}), "1GiB"), (dict(ranks=2, stage=3, precision="bf16", offload_param="cpu", clip=1000, optimizer="sgd"), "100KiB"),
                   (dict(ranks=2, pp=2, accumulate=2, clip=1000, precision="bf16", offload_buffers=4), "1GiB"), (dict(ranks=2, pp=2, accumulate=2, clip=1000, offload_ratio=0.3), "1GiB"),
                   (dict(ranks=2, stage=2, precision="bf16", clip=1000, offload_ratio=0.6), "1GiB"),
                   (dict(ranks=2, stage=3, precision="bf16", clip=1.92, offload_param=DISK), "1GiB"), (dict(ranks=1, clip=1000, stage=3, offload_param=DISK), "200KiB")):
    runs = [logged(**{**SHAPE, "steps": 12, **flags, **more}) for more in (dict(stage=0, offload_param=None, offload_ratio=None, offload_buffers=None), NVME, dict(**{**NVME, "speculative_update": log}, **(dict(save=path("speculated"), save_every=3) if flags["clip"] == 1.8 else {})))]
    again = rolled_back(runs[0].norms, flags["clip"])
    if not same((runs[2].code, runs[2].bits, runs[2].report and runs[2].report["rolled_back_updates"]), (0, runs[0].bits, again), f"--speculative-update {log} {flags}: {again} of 12 are rolled back"):
        note(runs[2].err[-600:])
        continue
    for once, rank in zip(runs[1].report["ranks"], runs[2].report["ranks"]):
        tier, nvme, once = rank["tiers"]["host"], rank["tiers"]["nvme"], once["tiers"]["nvme"]
        same([tier["moved_bytes_per_step"], tier["peak_by_tag_bytes"], nvme["moved_bytes_per_step"], nvme["peak_bytes"]],
             [tier["planned_moved_bytes_per_step"], tier["planned_by_tag_bytes"], nvme["planned_moved_bytes_per_step"], nvme["planned_bytes"]], "its tiers are as planned")
        ok(once["peak_bytes"] < nvme["peak_bytes"] <= 2 * once["peak_bytes"] and nvme["moved_bytes_per_step"] <= once["moved_bytes_per_step"], "it takes space for more of the state, and moves no more")
    if flags["clip"] != 1.8:
        continue
    resumed = logged(**{**SHAPE, "steps": 12, **flags, "stage": 0}, resume=os.path.join(path("speculated"), "step-00000003"))
    same(resumed.bits, runs[0].bits[3:], "its checkpoint has the current half") or note(resumed.err[-300:])

peaks = []
for words, flags, begun in (("as much as all of the state", dict(speculative_update="1GiB"), 4), ("what is there", {}, 4), ("so is asked for", dict(speculative_update="auto"), 4), ("in ranks", dict(ranks=2, stage=1), 4),
                            ("with clipping in every step", dict(clip=1e-6), 1), ("not under a limit", dict(nvme_limit="2MB"), None), ("nor late", dict(delayed_update=True), None),
                            ("nor for more memory", PARAM, None), ("nor on the host", dict(offload_optimizer="cpu", nvme_depth=None, force=None), None)):
    run = train(**{**SHAPE, **NVME, "ranks": 1, "clip": 1000, "speculative_update": None, **flags})
    peaks.append(run.report["ranks"][0]["tiers"].get("nvme", {}).get("peak_bytes"))
    same((run.code, run.report.get("speculative_updates"), "two copies of the optimizer state exceed" in run.err), (0, begun, "nvme_limit" in flags), f"an update is speculative: {words}") or note(run.err[-300:])
ok(peaks[0] == peaks[1] == peaks[2] > peaks[5], "which has twice the room of state") or note(f"{peaks}")

# Checkpoints, both ways.
here, disk = path("here"), path("disk-saved")
for folder, flags in ((here, dict(stage=2)), (disk, {**NVME, **PARAM})):
    run = train(ranks=2, precision="bf16", save=folder, **flags, **SHAPE)
    same(run.code, 0, f"saves {folder}") or note(run.err[-600:])
state = os.path.join("step-00000004", "state.safetensors")
ok(contents(os.path.join(here, state)) == contents(os.path.join(disk, state)), "the file of a checkpoint is that of a run without")
resumed = [logged(ranks=2, precision="bf16", resume=folder, stage=stage, **{**SHAPE, "steps": 7}, **flags)
           for folder, stage, flags in ((here, 1, {}), (here, 3, {**NVME, "offload_param": PARAM["offload_param"]}), (disk, 1, {}))]
for run in resumed[1:]:
    same((run.code, run.bits), (0, resumed[0].bits), "a resumed run") or note(run.err[-600:])

# The disk fails, at many places; a process is killed: words, exit code, nothing left, and the checkpoint loads.
HOSTED = {**PARAM, "offload_optimizer": "cpu"}
for site, nth, where in (("disk_read", 3, NVME), ("disk_read", 40, NVME), ("disk_write", 1, NVME), ("disk_write", 25, NVME), ("disk_write", 60, NVME),
                         ("disk_read", 1, HOSTED), ("disk_read", 17, HOSTED), ("disk_write", 22, HOSTED)):
    run = train(environment={"ZR_FAULT": f"{site}:{nth}"}, precision="bf16", resume=here, **{"ranks": 2, "stage": 2, **where, **SHAPE, "steps": 12})
    ok(run.code == 3 and FOLDER in run.err and "the device failed" in run.err and os.listdir(FOLDER) == [], f"{site}:{nth}: {run.err.strip()[-160:]}") or note(f"{run.code} {run.err[-600:]}")
for where in (NVME, HOSTED):  # space is gone when the file is made, behind the plan on standard output
    run = train(environment={"ZR_FAULT": "write:2"}, ranks=1, precision="bf16", **{**where, **SHAPE})
    ok(run.code == 3 and FOLDER in run.err and "space" in run.err and os.listdir(FOLDER) == [], f"no space: {run.err.strip()[-160:]}") or note(f"{run.code} {run.err[-600:]}")
want = train(ranks=1, precision="bf16", **SHAPE).report["loss_hex"]
for where in (NVME, HOSTED):
    run = train(environment={"ZR_FAULT": "disk_read:eintr:5,disk_read:short:7,disk_write:short:9"}, ranks=1, precision="bf16", **{**where, **SHAPE})
    same((run.code, run.report and run.report["loss_hex"]), (0, want), "a short transfer goes on with the rest")
intact = 0
for size in (0, 200, 2000):
    log = path(f"killed-{size}.jsonl")
    process = subprocess.Popen([ZR_TRAIN] + arguments(data=text_file(), ranks=2, precision="bf16", resume=here, log=log, **{**NVME, **PARAM, **SHAPE, "steps": 100000, "seed": 11}),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    runs = wait_for(lambda: process.poll() is not None or os.path.exists(log) and os.path.getsize(log) >= size) and process.poll() is None
    kill_session(process)
    process.wait()
    intact += runs and os.listdir(FOLDER) == []
same(intact, 3, "nothing is left of processes that are killed")
same(logged(ranks=2, precision="bf16", resume=here, stage=1, **{**SHAPE, "steps": 7}).bits, resumed[0].bits, "and the checkpoint loads")

# Plans and their limits; no folder is looked at.
PLAN = dict(ranks=None, dry_run=True, speculative_update="none", world_size=4, stage=2, precision="bf16", layers=24, hidden=256, heads=8, seq=32, batch=1,
            offload_optimizer="nvme:/not/here")
plan = train(**PLAN)
need = plan.report["ranks"][0]["tiers"]["nvme"]["planned_bytes"]
host = plan.report["ranks"][0]["tiers"]["host"]
ok("optimizer state in a file" in plan.out and host["planned_by_tag_bytes"]["offload"] > 0, "--dry-run plans a file") or note(plan.err)
for words, flags, code, needle in (("enough", dict(nvme_limit=need), 0, ""), ("a byte too few", dict(nvme_limit=need - 1), 4, "--nvme-limit"),
                                   ("enough of all", dict(nvme_limit=need, host_limit=host["planned_reserved_bytes"]), 0, ""),
                                   ("too few for parameters", dict(nvme_limit=need, stage=3, offload_param="nvme:/not/here"), 4, "--nvme-limit")):
    run = train(**{**PLAN, **flags})
    ok(run.code == code and needle in run.err, f"{words}: {run.err.strip()[-140:]}") or note(f"{run.code} {run.err}")
largest = [train(find_max="layers", memory_limit="64MiB", **{**PLAN, "layers": None, **flags}).report["find_max"]["value"]
           for flags in ({}, dict(accumulate=2, host_limit="16MiB"), dict(nvme_limit="48MiB"), dict(stage=3, offload_param="nvme:/not/here"))]
ok(largest[1] < largest[0] and largest[2] < largest[0] < largest[3], f"--find-max knows the tiers: {largest} layers")

# The timeline: nobody computes behind the file, so a step waits for it as long as the disk takes, but for the last writes.
rate = 1e9
t = train(flops=1e12, bandwidth=1e10, host_bandwidth=1e10, nvme_bandwidth=rate, **PLAN).report["timeline"]
nvme, host = t["tiers"]["nvme"], t["tiers"]["host"]
moved = nvme["moved_bytes"]
ok(2 * need <= moved <= 2.2 * need and 0.7 * moved / rate < nvme["waiting_seconds"] <= moved / rate and
   abs(nvme["wait_share"] - nvme["waiting_seconds"] / t["step_seconds"]) < 1e-9 and host["moved_bytes"] > 0 and
   abs(nvme["needed_bytes_per_second"] * (t["step_seconds"] - nvme["waiting_seconds"]) / moved - 1) < 1e-6,
   f"a step of {t['step_seconds']:.4f} s waits {nvme['waiting_seconds']:.4f} s for {moved} bytes at 1 GB/s") or note(f"{t['tiers']}")
fast = train(flops=1e12, bandwidth=1e10, nvme_bandwidth=1e15, **PLAN).report["timeline"]
ok(abs(t["step_seconds"] - nvme["waiting_seconds"] - host["waiting_seconds"] - fast["step_seconds"]) < 0.05 * t["step_seconds"], "and no longer than without")
# Parameters are read behind the computing: a fast disk costs a step little, of a slow one it takes what the disk takes.
for flags in (dict(world_size=1), dict(world_size=4, accumulate=9)):
    steps = []
    for rate in (1e13, 1e11, 1e6):
        t = train(flops=1e12, bandwidth=1e11, host_bandwidth=1e11, nvme_bandwidth=rate, **{**PLAN, "stage": 3, "offload_optimizer": "cpu", **flags},
                  offload_param="nvme:/not/here").report["timeline"]
        steps.append((t["step_seconds"], t["tiers"]["nvme"]["waiting_seconds"], t["tiers"]["nvme"]["moved_bytes"] / rate))
    ok(steps[1][1] < 0.5 * steps[1][2] < 0.5 * steps[1][0] and 0.99 < steps[2][0] / steps[2][2] < 1.01 and steps[0][1] < 0.02 * steps[0][0],
       f"{flags}: parameters by the clock, (step, waiting, disk): {steps}")
run = train(ranks=1, flops=1e9, bandwidth=1e9, **{**NVME, "nvme_depth": None}, **SHAPE)
ok(run.code == 0 and run.report["timeline"]["tiers"]["nvme"]["bytes_per_second"] > 0, "a run measures the disk's rate where none is given") or note(run.err)
shares = [train(**{**NVME, **fast, "flops": 1e18, "bandwidth": 1e18, "host_bandwidth": 1e18, "nvme_bandwidth": 1e18, **SHAPE}).report["timeline"]["tiers"]["nvme"]["wait_share"]
          for fast in (dict(ranks=1), dict(ranks=1, delayed_update=True), dict(ranks=1, speculative_update="auto"), dict(world_size=1, ranks=None, dry_run=True, speculative_update="auto"), dict(world_size=1, ranks=None, dry_run=True, delayed_update=True))]
ok(shares[0] < 0.5 < 0.9 < min(shares[1:3]) and max(shares[3:]) < 0.5, f"and the computing of an update in a thread of its own, which alone a step waits for where all else is fast: {shares}")

# Bad folders, and what does not go together.
os.mkdir(path("closed"), 0o500)
MEMORY = os.path.exists("/dev/shm") and subprocess.run(["stat", "-fc", "%T", "/dev/shm"], capture_output=True, text=True).stdout.strip() == "tmpfs"
for words, folder, flags, code, needles in (
        ("missing", path("nowhere"), {}, 3, ("No such file", "create the folder")), ("a file", "/etc/passwd", {}, 3, ("not a file",)),
        ("not writable", path("closed"), {}, 3, ("permissions",)), ("memory", "/dev/shm", dict(force=None), 3, ("tmpfs", "--force")),
        ("too small", FOLDER, dict(layers=64, hidden=65536, heads=8, batch=1, threads=1), 3, (FOLDER, "52,777,", "are free", "a larger disk")),
        ("a limit", FOLDER, dict(nvme_limit="1MiB", layers=8, hidden=256), 4, ("--nvme-limit",)),
        ("none", "", {}, 2, ("a folder",)), ("parameters elsewhere", FOLDER, dict(stage=3, offload_param="nvme:" + path("nowhere")), 3, ("No such file", "nowhere")),
        ("parameters too large", FOLDER, dict(stage=3, offload_param="nvme:" + FOLDER, layers=64, hidden=65536, heads=8, batch=1, threads=1), 3, (FOLDER, "65,972,", "a larger disk")),
        ("parameters that are whole", FOLDER, dict(stage=2, offload_param="nvme:" + FOLDER), 2, ("--stage 3",))):
    if words == "not writable" and os.geteuid() == 0 or words == "memory" and not MEMORY:
        continue
    run = train(**{**dict(ranks=1, steps=1, force=True), **flags, "offload_optimizer": "nvme:" + folder, "nvme_depth": 4})
    ok(run.code == code and all(needle in run.err for needle in needles) and run.err.count("\n") < 60, f"{words}: {run.err.strip()[-160:]}") or note(f"{run.code} {run.err[-600:]}")
for words, flags in (("a rate of none", dict(nvme_bandwidth=1e9, flops=1e9, bandwidth=1e9)), ("a limit of none", dict(nvme_limit="1GiB"))):
    run = train(**flags)
    ok(run.code == 2 and "--offload-optimizer nvme:DIR" in run.err, f"{words}: {run.err.strip()[:120]}") or note(run.err)

config = path("config.json")
with open(config, "w") as file:
    json.dump({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/local", "buffer_count": 4, "pipeline_read": True},
                                     "offload_param": {"device": "nvme", "nvme_path": "/other", "buffer_count": 5, "pin_memory": True, "max_in_cpu": 1000}}}, file)
plans = [train(ranks=2, dry_run=True, layers=LAYERS, **more) for more in (dict(config=config, stage=None), dict(stage=3, offload_optimizer="nvme:/local", offload_param="nvme:/other", offload_buffers=4))]
ok(plans[0].code == plans[1].code == 0 and plans[0].report["ranks"] == plans[1].report["ranks"], "DeepSpeed's keys are the flags") or note(plans[0].err)
same(os.listdir(FOLDER), [], "the folder shows nothing in the end")
leftovers()
done()
