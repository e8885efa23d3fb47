#!/usr/bin/env python3
"""What communication costs, at the project's bars: at least half of it is hidden behind computing at every stage, and a
reduce-scatter of 32 MB on local is at least as fast as the fastest of Open MPI's ways to the same shards, in turns. Each
by the median of three measurements."""
import os
import re
import statistics
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, done, mpi_missing, note, ok, run_limited, skip, train

TRIES, HIDDEN_MIN, TIMES_MIN = 3, 0.5, 1.0


def hidden(stage):
    """The least share over the ranks of the communicator's time that the training thread did not wait for."""
    run = train(layers=8, hidden=384, heads=6, seq=128, batch=8, ranks=2, stage=stage, steps=5, eval_every=0, timeout=600)
    if run.code:
        note(run.err[-800:])
        return None
    return min(1 - rank["comm_exposed_ns"] / rank["comm_busy_ns"] for rank in run.report["ranks"])


def times():
    """How many times as fast as Open MPI; None where bench_comm could not say."""
    got = run_limited([os.path.abspath(os.path.join(BUILD, "tests", "bench_comm")), "2", "32", "4"])
    stock = got.stdout.partition("beside the fastest of its ways")[2]
    found = re.search(r"reduce-scatter .*: ([\d.]+) times", stock)
    if not found:
        note(got.stdout + got.stderr)
    return float(found.group(1)) if found else None


def middle(measure):
    figures = [measure() for _ in range(TRIES)]
    return None if None in figures else statistics.median(figures), figures


for stage in range(4):
    got, tries = middle(lambda: hidden(stage))
    ok(got is not None and got >= HIDDEN_MIN, f"stage {stage}, 14 M parameters: at least half is hidden: {tries}")
if mpi_missing() or not os.path.exists(os.path.join(BUILD, "tests", "mpi_stock")):
    skip(f"reduce-scatter beside Open MPI: {mpi_missing() or 'mpi_stock is not built'}")
else:
    got, tries = middle(times)
    ok(got is not None and got >= TIMES_MIN, f"reduce-scatter of 32 MB, 2 ranks: times as fast as Open MPI: {tries}")
done()
