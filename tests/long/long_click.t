#!/usr/bin/env python3
"""examples/click on 100,000 samples: every timing learns what one process learns, sync and ssp:0 with its bits; rows beyond the
memory limit, in one process and on servers, change no bit; and a slow worker holds back the timings that wait for it, and
no other."""
import json
import os
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, LONG_HANG, done, note, ok, path, same

CLICK = os.path.join(BUILD, "examples", "click")
SAMPLES, BATCH, WORKERS = 100000, 64, 4
ROUNDING = 256 * 64  # of the arena, for each block
SERVERS = ["--servers", "2"]


def train(*words, workers=WORKERS, samples=SAMPLES):
    command = [CLICK, "train", path("samples"), "--json", "--rows", "400000", "--batch", str(BATCH), "--workers", str(workers), "--samples", str(samples), *words]
    got = subprocess.run(command, capture_output=True, text=True, timeout=LONG_HANG)
    if not same(got.returncode, 0, " ".join(command[8:])):
        note(got.stderr[-500:])
        raise SystemExit(1)
    run = json.loads(got.stdout)
    ok(all(0 <= tier["memory_measured_bytes"] - tier["memory_planned_bytes"] < ROUNDING for tier in run["tiers"]), f"bytes are as planned: {run['tiers']}")
    return run


def check_timings(one):
    for timing in ("sync", "ssp:0", "ssp:3", "async", "half-async", "geo:5"):
        run = train("--ps", timing, *SERVERS)
        if timing in ("sync", "ssp:0"):
            same(run["auc"], one["auc"], f"{timing} has the bits of one process")
        ok(run["auc"] > one["auc"] - 0.02, f"{timing}: AUC {run['auc']}, of one process {one['auc']}")
        if timing in ("sync", "half-async"):
            same(sum(run["staleness"][1 if timing == "sync" else WORKERS:]), 0, f"{timing}: no push is older than a step")
        ok(sum(run["staleness"]) > 0 or timing == "geo:5", f"{timing}: staleness {run['staleness']}")


def check_limits():
    for seed in "12":
        one = train("--seed", seed)
        for where in ([], SERVERS):
            run = train("--seed", seed, "--memory-limit", "32MiB", "--file", path("."), *where)
            same(run["auc"], one["auc"], f"seed {seed}: a third of the rows in memory, the same bits")
            ok(all(tier["file_planned_bytes"] > 0 for tier in run["tiers"]), "with a file")


def check_slow():
    """Workers sleep for most of a step, one for ten times as long."""
    for timing, waits in (("sync", True), ("ssp:2", True), ("half-async", True), ("async", False), ("geo:5", False)):
        run = train("--ps", timing, *SERVERS, "--sleep-ms", "20", "--slow", "2:10", samples=6400)
        steps, shares = run["steps"], run["sleep_shares"]
        ok(0 < min(shares) and max(shares) < 1, f"{timing}: workers sleep for {shares} of their time")
        if waits:
            ok(shares[2] == max(shares), f"{timing}: and the others wait")
            same(steps, [25] * WORKERS, f"{timing}: all workers make as many steps")
        else:
            ok(sum(steps) == 100 and steps[2] < 13, f"{timing}: the others make the steps of the slow worker: {steps}")


def main():
    subprocess.run([CLICK, "make", path("samples"), str(SAMPLES)], check=True, timeout=LONG_HANG)
    check_timings(train())
    check_limits()
    check_slow()
    done()


main()
