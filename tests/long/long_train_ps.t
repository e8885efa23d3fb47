#!/usr/bin/env python3
"""--comm ps in all its forms: losses of stage 0 by model, precision and micro-batches; replicas; signals in each timing, whose saves
resume; kills of servers at random."""
import json
import os
import random
import signal
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import SEED, ZR_TRAIN, arguments, done, finish, in_steps, note, ok, path, same, text_file, train

SHAPE = dict(ranks=3, steps=12, eval_every=4, clip=0, warmup=2, schedule_lr="constant", threads=1)
PS = dict(comm="ps", servers=2)
draws = random.Random(SEED)


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


for words, flags in {"fp32": {}, "once": dict(accumulate=3, reduce="once"), "llama, bf16": dict(arch="llama", precision="bf16", accumulate=2),
                     "sgd": dict(optimizer="sgd", accumulate=2), "dropout, recompute": dict(dropout=0.1, recompute="full"),
                     "frozen": dict(freeze="*attn*"), "groups": dict(group="*.bias:lr=3,decay=0"), "a server": dict(servers=1)}.items():
    plain = train(**{**SHAPE, **flags, "servers": None})
    for timing in ("sync", "ssp:0"):
        run = train(**{**SHAPE, **PS, "ps": timing, **flags})
        same(run.losses, plain.losses, f"{words}, {timing}: the losses of stage 0") or note(run.err[-600:])


def interrupted(kills, **flags):
    """A run that is in its steps, its end after `kills` has been called with its servers, and its report."""
    log, report = path(f"log-{draws.getrandbits(32)}.jsonl"), path(f"report-{draws.getrandbits(32)}.json")
    settings = {**SHAPE, **PS, "steps": 60, "eval_every": 0, "layers": 1, "hidden": 32, "heads": 2, "seq": 16, "batch": 2, "seed": 11, "data": text_file()}
    process = subprocess.Popen([ZR_TRAIN] + arguments(**{**settings, "log": log, "json": report, **flags}), stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    in_steps(log)
    kills(process, [grandchild for child in children(process.pid) for grandchild in children(child)])
    code, err = finish(process)
    with open(report) as file:
        return code, err, json.load(file)


whole = interrupted(lambda process, servers: None)[2]["loss_hex"]
code, err, report = interrupted(lambda process, servers: os.kill(servers[0], signal.SIGKILL), replicas=1, worker_sleep=10)
ok(code == 0 and "its other copy continues" in err and report["loss_hex"] == whole, "a replica continues with the same losses") or note(err[-600:])
for kill in range(5):
    code, err, report = interrupted(lambda process, servers: os.kill(draws.choice(servers), signal.SIGKILL), max_restarts=1, worker_sleep=draws.randrange(5, 20))
    ok(code == 0 and "a successor continues" in err and report["loss_hex"] == whole, f"kill {kill}: the losses of a whole run") or note(err[-600:])

# The stopped server sends its state to no new replica, and it is killed: nothing has the state.
log = path("log-joins.jsonl")
process = subprocess.Popen([ZR_TRAIN] + arguments(**{**SHAPE, **PS, "servers": 1, "replicas": 1, "max_restarts": 3, "steps": 60, "data": text_file(),
                                                     "log": log, "worker_sleep": 10}), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
in_steps(log)
server, replica = [grandchild for child in children(process.pid) for grandchild in children(child)]
os.kill(server, signal.SIGSTOP)
os.kill(replica, signal.SIGKILL)
for line in process.stderr:
    if "gets a new replica" in line:
        break
os.kill(server, signal.SIGKILL)
code, err = finish(process, 40)
ok(code not in (0, None) and "no other copy has its state" in err, "a server killed before its new replica has the state ends the run") or note(f"{code} {err[-900:]}")

for timing in ("sync", "async", "half-async", "ssp:3", "geo:4"):
    saved = path(f"saved-{timing}")
    code, err, report = interrupted(lambda process, servers: process.send_signal(signal.SIGTERM), ps=timing, worker_sleep="10,10,30", save=saved)
    steps = [int(name[5:]) for name in os.listdir(saved) if name.startswith("step-")]
    ok(code == 143 and len(steps) == 1 and 0 < steps[0] < 60, f"{timing}: saved at a signal, after step {steps}") or note(err[-600:])
    run = train(**{**SHAPE, "layers": 1, "steps": 60, "seed": 11, "eval_every": 0}, resume=saved)
    ok(run.code == 0 and run.report["loss"][-1] < report["loss"][0], f"{timing}: resumed without servers") or note(run.err[-600:])
done()
