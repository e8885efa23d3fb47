#!/usr/bin/env python3
"""Every fault site fails in turn: the run ends with an error value, words and no leak, until a run is clean."""
import os
import sys

sys.path.insert(0, "tests/support")
from zrtest import done, note, ok, path, start_quickly, train

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


start_quickly()
for site in ("reserve", "create", "map", "access", "metadata", "thread", "open", "read", "write", "sync", "rename"):
    for ranks in (1, 2):
        walk(site, ranks)
done()
