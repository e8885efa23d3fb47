#!/usr/bin/env python3
"""Every fault site fails in turn: the run ends with an error value, words and no leak, until a run is clean."""
import os
import sys

sys.path.insert(0, "tests/support")
from zrtest import done, note, ok, path, same, start_quickly, train

# Passes beyond this number are not walked one by one but in strides; the C tests walk every one.
ONE_BY_ONE = 4


def walk(site, ranks):
    """Fails pass 1, 2, 3, .. of a site in every process until a run never reaches it."""
    failures = nth = 0
    stride = 1
    while True:
        nth += stride
        if nth > ONE_BY_ONE:
            stride = max(1, nth // 2)
        saved = path(f"{site}-{ranks}-{nth}")
        run = train(ranks=ranks, threads=2 if site == "thread" else 1, stage=1, steps=2, save=saved, log=path("log.jsonl"), trace=path("trace.zrt"),
                    environment={"ZR_FAULT": f"{site}:{nth}"})
        words = f"{site}:{nth}, {ranks} ranks"
        if run.code == 0:
            ok(failures > 0, f"{words}: clean, after {failures} failures")
            return
        failures += 1
        good = run.code in (1, 3, 4) and "left behind" not in run.err and run.err.strip() and "Sanitizer" not in run.err
        partial = [n for n in (os.listdir(saved) if os.path.isdir(saved) else []) if not n.startswith("step-")]
        if not ok(good and not partial, f"{words}: exit {run.code}, no leak, nothing half written"):
            note(run.err[-1500:])
            note(partial)
        if failures > 60:
            ok(False, f"{site}: no end of failures")
            return


def run_on(nth, fault):
    """A run with a checkpoint and a trace, and one that goes on from it: the exit codes, the losses, the words."""
    saved, flags = path(f"on-{nth}"), dict(ranks=2, threads=1, stage=1, environment={"ZR_FAULT": fault})
    run = train(steps=2, save=saved, trace=path("trace.zrt"), **flags)
    on = train(steps=3, resume=saved, **flags) if run.code == 0 else run
    return {run.code, on.code}, (run.losses, on.losses), run.err + on.err


def goes_on(nth):
    """Signals, transfers that are cut short and descriptors that run out twice: the same run, or words."""
    moved = [f"{site}:{kind}:{nth}" for site in ("read", "write", "receive", "send") for kind in ("eintr", "short")]
    same(run_on(nth, ",".join(moved + [f"{site}:eintr:{nth}" for site in ("descriptor", "wait", "sync")]))[:2], WANT[:2], f"interrupted and cut short at {nth}")
    codes, _, err = run_on(nth, f"descriptor:twice:{nth}")
    ok(codes == {0} or (codes <= {0, 1, 3, 4} and "ulimit -n" in err and "left behind" not in err), f"descriptor:twice:{nth}: {codes}") or note(err[-900:])


start_quickly()
WANT = run_on(0, "")
for nth in (1, 2, 3, 4, 6, 8, 11, 15, 20):
    goes_on(nth)
for site in ("reserve", "create", "map", "access", "metadata", "thread", "open", "read", "write", "sync", "rename"):
    for ranks in (1, 2):
        walk(site, ranks)
done()
