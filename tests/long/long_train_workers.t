#!/usr/bin/env python3
"""--comm ps: workers killed at every kind of message, many times in a run, with and without replicas of servers: each push is applied
once, and sync and ssp:0 have the losses of a whole run."""
import sys

sys.path.insert(0, "tests/support")
from zrtest import note, ok, done, same, start_quickly, train

start_quickly()
SHAPE = dict(ranks=2, steps=12, eval_every=4, clip=0, threads=1, layers=1, hidden=32, heads=2, seq=16, batch=2)
PS = dict(comm="ps", servers=2)
whole = train(**SHAPE)
counts = {}
kills = 0
for timing in ("sync", "ssp:0", "ssp:2", "half-async", "async", "geo:3"):
    counts[timing] = train(**SHAPE, **PS, ps=timing).report["servers"]
    for nth, replicas in ((71, 0), (94, 1)):
        run = train(environment=dict(ZR_FAULT=f"ps_message:{nth}"), **SHAPE, **PS, ps=timing, max_restarts=1000, replicas=replicas)
        served = run.report["servers"] if run.report else {}
        kills += served.get("worker_restarts", 0)
        words = f"{timing}, {replicas} replicas, {served.get('worker_restarts')} kills of workers"
        ok(run.code == 0 and served["worker_restarts"] > 3 and all(served[name] == counts[timing][name] for name in ("version", "updates")),
           f"{words}: each push is applied once") or note(f"{served} {counts[timing]} {run.err[-900:]}")
        if timing in ("sync", "ssp:0"):
            same((run.losses, run.report["val_loss"]), (whole.losses, whole.report["val_loss"]), f"{words}: the losses of a whole run")
ok(kills >= 50, f"{kills} kills")
done()
