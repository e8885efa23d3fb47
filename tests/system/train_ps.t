#!/usr/bin/env python3
"""--comm ps: sync has the losses of stage 0, also after a save that another --comm resumes and with a killed server; other timings
train, with the staleness of their pushes; workers and servers take the plan's bytes; what cannot be combined is refused."""
import glob
import json
import os
import signal
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import ZR_TRAIN, arguments, done, finish, in_steps, note, ok, path, same, start_quickly, text_file, train

start_quickly()
SHAPE = dict(ranks=2, steps=6, eval_every=3, clip=0, warmup=1, schedule_lr="constant", threads=1, accumulate=2, precision="bf16", lr_vectors=2)
PS = dict(comm="ps", servers=2)


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def updates_of(saved):
    """Steps of checkpoints and the updates that they have."""
    manifests = [json.load(open(name)) for name in sorted(glob.glob(os.path.join(saved, "*", "manifest.json")))]
    return [(manifest["step"], manifest["updates"]) for manifest in manifests]


def served(words, **flags):
    """A run with servers, whose ranks and servers take what is planned."""
    run = train(**{**SHAPE, **PS, **flags})
    report = run.report or {}
    planned = [rank["peak_bytes"][tag] == count for rank in report.get("ranks", []) for tag, count in rank["planned_bytes"].items() if tag not in ("other", "total")]
    for server in report.get("servers", {}).get("servers", []):
        planned += [0 <= server["bytes"].get(tag, 0) - server["planned_bytes"][kind] < 1024  # blocks are rounded
                    for tag, kind in {"master": "master", "optimizer": "optimizer", "grad": "gradients"}.items()]
    ok(run.code == 0 and len(planned) > 6 and all(planned), f"{words}: bytes as planned") or note(run.err[-600:] + str(report.get("servers")))
    return run


saved = path("saved")
plain = train(**SHAPE)
run = served("sync", save=saved, save_every=1)
same(run.losses, plain.losses, "the losses of stage 0") or note(run.err[-600:])
ok(run.report["val_loss"] == plain.report["val_loss"] and run.report["servers"]["version"] == 6, "the parameters of stage 0, after an update a step")
ok(all(rank["comm_busy_ns"] > 0 for rank in run.report["ranks"]) and "of communication hidden" in run.out, "the report has the hidden share of requests") or note(run.out[-600:])
resumed = train(**SHAPE, resume=os.path.join(saved, "step-00000004"))
same(resumed.losses, plain.losses[4:], "resumed without servers") or note(resumed.err[-600:])

# A step of these is an update for each worker, or for both with ssp, which sees all updates but those of the last step.
for timing, flags in {"async": dict(staleness="divide", resume=os.path.join(saved, "step-00000004"), steps=13), "half-async": {}, "ssp:1": {}, "geo:3": dict(clip=1)}.items():
    run = served(timing, ps=timing, **{**dict(eval_every=0, steps=9, lr=0.01), **flags})
    servers = run.report["servers"] if run.code == 0 else {}
    versions = {"async": 4 + 18, "half-async": 18, "ssp:1": 9, "geo:3": 2 * 4}[timing]  # geo: differences every third step and at the end
    ok(run.code == 0 and run.report["loss"][-1] < run.report["loss"][0] - 0.1 and servers["version"] == versions, f"{timing} trains") or note(f"{run.report} {run.err[-300:]}")
    ok(servers and sum(servers["staleness"][2 if timing == "ssp:1" else 3 if timing == "half-async" else 16:]) == 0, f"{timing}: the staleness of pushes") or note(str(servers))

# A killed server has a successor with its memory, and a killed worker one with its number.
log, report, saved_each = path("log.jsonl"), path("killed.json"), path("each")
FLAGS = {**SHAPE, "steps": 20, "layers": 1, "hidden": 32, "heads": 2, "seq": 16, "batch": 2, "seed": 11, "data": text_file()}
process = subprocess.Popen([ZR_TRAIN] + arguments(**{**FLAGS, **PS, "max_restarts": 1, "worker_sleep": 10, "log": log, "json": report, "save": saved_each, "save_every": 1}),
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
in_steps(log)
servers = [grandchild for child in children(process.pid) for grandchild in children(child)]
workers = [child for child in children(process.pid) if not children(child)]
os.kill(servers[0], signal.SIGKILL)
os.kill(workers[0], signal.SIGKILL)
code, err = finish(process)
ok(len(servers) == 2 and code == 0 and "a successor continues with its memory" in err, "a killed server is replaced") or note(err[-600:])
ok(len(workers) == 2 and "restart 1 of 1 replaces it" in err, "a killed worker is replaced") or note(err[-600:])
with open(report) as file:
    got = json.load(file)
same(got["loss_hex"], train(**FLAGS).losses, "the losses of a run without servers")
same((got["servers"]["worker_restarts"], got["servers"]["version"]), (1, 20), "a restart, and an update a step")
same((updates_of(saved), updates_of(saved_each)), ([(step, step) for step in range(1, 7)], [(step, step) for step in range(1, 21)]), "a save waits for the step of all workers")

# With replicas a killed server has a new replica, which continues when its other copy is killed. A stopped worker holds the run meanwhile.
log, report = path("copies.jsonl"), path("copies.json")
process = subprocess.Popen([ZR_TRAIN] + arguments(**{**FLAGS, **PS, "servers": 1, "replicas": 1, "max_restarts": 2, "worker_sleep": 10, "log": log, "json": report}),
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
in_steps(log)
keeper = next(child for child in children(process.pid) if children(child))
worker = next(child for child in children(process.pid) if child != keeper)
heard = []
for victim in 0, 0, 1:  # the server, its former replica, and without --max-restarts left the replica of that
    os.kill(worker, signal.SIGSTOP)
    os.kill(children(keeper)[victim], signal.SIGKILL)
    for line in process.stderr:
        heard.append(line)
        if "with the state of its other copy" in line or "; its other copy continues\n" in line:
            break
    os.kill(worker, signal.SIGCONT)
code, err = finish(process)
heard = "".join(heard)
ok(code == 0 and heard.count("gets a new replica") == 2 and heard.count("with the state of its other copy") == 2, "killed servers have new replicas") or note(heard + err[-600:])
with open(report) as file:
    run = json.load(file)
same(run["loss_hex"], train(**FLAGS).losses, "the losses of a run without servers") or note(heard)
ok(run["servers"]["joined_replicas"] == 3 and run["servers"]["lost_replicas"] == 1 and run["servers"]["paused_ms"] > 0,
   "the report counts replicas and pauses") or note(str(run["servers"]))

log = path("silent.jsonl")
process = subprocess.Popen([ZR_TRAIN] + arguments(**{**FLAGS, **PS, "servers": 1, "replicas": 1, "max_restarts": 1, "worker_sleep": 100, "comm_timeout": 10, "log": log, "json": report}),
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
in_steps(log)
keeper = next(child for child in children(process.pid) if children(child))
os.kill(children(keeper)[1], signal.SIGSTOP)
code, err = finish(process)
ok(code == 0 and "its replica has not answered for 10 s and is ended" in err and "gets a new replica" in err, "a stopped replica is replaced") or note(err[-600:])
with open(report) as file:
    same(json.load(file)["loss_hex"], train(**FLAGS).losses, "the losses of a run without servers")

got = subprocess.run([ZR_TRAIN, "eval"] + arguments(layers=2, hidden=32, heads=2, seq=16, threads=1, precision="bf16", resume=saved, **PS) + [text_file()],
                     capture_output=True, text=True)
ok(got.returncode == 0 and "perplexity" in got.stdout, "eval takes the options of the run") or note(got.stderr[-300:])
run = train(dry_run=True, **{**SHAPE, **PS})
ok(run.code == 0 and "Byte plan of the largest server" in run.out and len(run.report["servers"]["servers"]) == 2, "a plan has the servers") or note(run.out[-600:])
for words, flags in {"requires --comm ps": dict(servers=2),
                     "requires --stage 0": dict(comm="ps", stage=1),
                     "is not sync, async": dict(comm="ps", ps="geo:0"),
                     "--staleness is not": dict(comm="ps", ps="async", staleness="half"),
                     "requires --ps async": dict(comm="ps", staleness="divide"),
                     "--worker-sleep is not": dict(comm="ps", worker_sleep="3,x"),
                     "--clip cannot": dict(comm="ps", clip=1),
                     "skip different steps": dict(comm="ps", precision="fp16"),
                     "--replicas 1, which": dict(comm="ps", max_restarts=1, redundancy=2),
                     "servers update ranges": dict(comm="ps", optimizer="muon"),
                     "cannot be combined with --ema": dict(comm="ps", ema=0.9),
                     "servers keep the state": dict(comm="ps", offload_optimizer="cpu"),
                     "--save-every TIME requires --ps sync": dict(comm="ps", ps="async", save=path("none"), save_every="30s")}.items():
    run = train(**{**SHAPE, **flags})
    ok(run.code == 2 and words in run.err, f"refused: {words}") or note(run.err[-300:])
done()
