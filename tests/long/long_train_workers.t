#!/usr/bin/env python3
"""--comm ps: workers killed at every kind of message, many times in a run, with and without replicas of servers: each push is applied
once, and sync and ssp:0 have the losses of a whole run. Without restarts left a run continues without its worker, or ends."""
import os
import signal
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import ZR_TRAIN, arguments, children, done, finish, in_steps, note, ok, path, same, start_quickly, text_file, train, wait_for

start_quickly()
SHAPE = dict(ranks=2, steps=24, eval_every=8, clip=0, threads=1, layers=1, hidden=32, heads=2, seq=16, batch=2)
PS = dict(comm="ps", servers=2)
whole = train(**SHAPE)
kills = 0
for timing in ("sync", "ssp:0", "ssp:2", "half-async", "async", "geo:3"):
    flags = dict(SHAPE, steps=72) if timing == "geo:3" else SHAPE
    plain = train(**flags, **PS, ps=timing).report["servers"]
    for nth, replicas in ((501, 0), (523, 1)):
        run = train(environment=dict(ZR_FAULT=f"ps_message:{nth}"), **flags, **PS, ps=timing, max_restarts=1000, replicas=replicas)
        served = run.report["servers"] if run.report else {}
        deaths = served.get("worker_restarts", 0)
        kills += deaths
        words = f"{timing}, {replicas} replicas, {deaths} kills of workers"
        ok(run.code == 0 and deaths > 1 and run.err.count(" replaces it") == deaths and all(served[name] == plain[name] for name in ("version", "updates")),
           f"{words}: each push is applied once") or note(f"{served} {plain} {run.err[-900:]}")
        if timing in ("sync", "ssp:0"):
            same((run.losses, run.report and run.report["val_loss"]), (whole.losses, whole.report["val_loss"]), f"{words}: the losses of a whole run")
ok(kills >= 50, f"{kills} kills")

# The last messages of worker 0: numbers, LEAVE and BYE.
least, beyond = 1, 1024


def killed(nth):
    return train(environment=dict(ZR_FAULT=f"ps_message:{nth}"), **dict(SHAPE, steps=1, eval_every=0), **PS, max_restarts=2)


while least + 1 < beyond:
    middle = (least + beyond) // 2
    least, beyond = (middle, beyond) if "replaces it" in killed(middle).err else (least, middle)
for nth in range(beyond - 12, beyond):
    run = killed(nth)
    ok(run.code == 0 and run.err.count("rank 0") == 1 and run.losses == whole.losses[:1], f"worker 0 is killed at message {nth - beyond} from the last") or note(run.err[-600:])

# Between its LEAVEs to two servers, of which the first one ends before the stopped launcher replaces the worker.
process = subprocess.Popen([ZR_TRAIN] + arguments(**{**SHAPE, **PS, "steps": 1, "eval_every": 0, "data": text_file(), "max_restarts": 2, "worker_sleep": 300}),
                           env={**os.environ, "ZR_FAULT": f"ps_message:{beyond - 6}"}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
wait_for(lambda: len(children(process.pid)) == 3)
os.kill(process.pid, signal.SIGSTOP)
ended = wait_for(lambda: sum(len(children(child)) for child in children(process.pid)) == 1)
os.kill(process.pid, signal.SIGCONT)
code, err = finish(process, 60)
ok(ended and code == 0 and "replaces it" in err, "a worker leaves the server that has not ended") or note(f"{code} {err[-900:]}")

for timing in ("sync", "async", "half-async", "geo:3"):
    log = path(f"log-{timing}.jsonl")
    process = subprocess.Popen([ZR_TRAIN] + arguments(**{**SHAPE, **PS, "ps": timing, "ranks": 3, "steps": 60, "data": text_file(), "log": log,
                                                         "max_restarts": 1, "worker_sleep": 10}), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    in_steps(log)
    workers = [child for child in children(process.pid) if not children(child)]
    for worker in workers[1:]:
        os.kill(worker, signal.SIGKILL)
    code, err = finish(process)
    goes_on = timing != "sync"
    ok(code == (0 if goes_on else 137) and "restart 1 of 1" in err and ("the run continues without it" if goes_on else "the run ends") in err and "rank 2" in err + "rank 1",
       f"{timing}: a worker is lost for good") or note(err[-900:])
done()
