#!/usr/bin/env python3
"""zr-train --backend cuda on the emulated driver: the order of its streams. The driver draws again how long each piece of work of
each stream takes; what waits too little shows in the bits. And nobody waits too much: between the first launch of a step and its
end the host does not wait for the card, by the trainer's own count and by the driver's. A step that is captured and replayed as a
graph has the same bits, in other orders of its lanes."""
import os
import signal
import sys

sys.path.insert(0, "tests/support")
from cuda_train import begin_on_card, given_back, on_card, went_well
from pairs import ALL_ROWS
from zrtest import DEAD, done, finish, note, ok, path, same, wait_for

SEEDS, SMALL = 12, dict(layers=1, hidden=4, heads=1, seq=3, batch=1, steps=2)
SHORT = sys.argv[1:] == ["short"]  # for mutants
CASES = [(stage, ranks) for ranks in (1, 2) for stage in (0, 1, 2, 3)]
first = {}
for seed in range(0, (8 if SHORT else SEEDS) + 1):
    stage, ranks = CASES[seed % len(CASES)]
    # Shards of three pieces, so that a slot of the ring is filled again before the operation ends; or micro-batches.
    more = dict(bucket_bytes=4096, hidden=20) if ranks > 1 and seed < 8 else dict(accumulate=2)
    # The first is the other extreme: nothing runs before the host has asked for more than it can in a step.
    order = {"ZR_EMULATOR_SEED": str(seed)} if seed else {"ZR_EMULATOR_TICKS": "100000"}
    run = on_card(order, stage=stage, ranks=ranks, **{**SMALL, **more})
    if went_well(run, f"stage {stage}, {ranks} ranks, seed {seed}"):
        same(run.bits, first.setdefault((ranks, str(more)), run.bits), f"stage {stage}, {ranks} ranks, seed {seed}: the bits of other orders")


# The rate changes with each step, the batch too. A graph is made when a step has called for no memory: of the third here.
STEPS = 5
plain = {ranks: on_card(stage=1, ranks=ranks, **{**SMALL, "steps": STEPS, "bucket_bytes": 4096, "hidden": 20}) for ranks in (1, 2)}
for seed, (stage, ranks) in enumerate(CASES):
    if stage not in (1, 3) and (SHORT or not ALL_ROWS):
        continue
    run = on_card({"ZR_EMULATOR_SEED": str(30 + seed)}, stage=stage, ranks=ranks, cuda_graph=True,
                  **{**SMALL, "steps": STEPS, "bucket_bytes": 4096, "hidden": 20})
    words = f"stage {stage}, {ranks} ranks, captured and replayed as a graph"
    if went_well(run, words):
        same(run.bits, plain[ranks].bits, f"{words}: with equal losses")
        same([rank["graph_steps"] for rank in run.report["ranks"]], [STEPS - 2] * ranks, f"{words}: from the third step on")


# A graph that the driver does not make, or does not launch, ends the run on all ranks, who have asked one another for what is in it.
for fault in ("cuGraphInstantiateWithFlags:1:2", "cuGraphLaunch:2:2"):
    run = on_card({"ZR_EMULATOR_FAULT": fault}, ranks=2, stage=1, cuda_graph=True, **{**SMALL, "steps": STEPS})
    ok(run.code > 0 and "as a CUDA graph: " in run.err, f"{fault}: the run ends: {run.err.strip()[-200:]}")
    given_back(fault, 2)

# A rank that dies while the others' graphs wait for it: they end, and say who it was.
log = path("killed.jsonl")
process = begin_on_card(ranks=2, stage=1, cuda_graph=True, log=log, **{**SMALL, "steps": 100000})
ok(wait_for(lambda: os.path.exists(log) and open(log).read().count("\n") > 5), "two ranks are in steps that are graphs")
with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
    os.kill(int(file.read().split()[1]), signal.SIGKILL)
code, err = finish(process, DEAD)
ok(code not in (None, 0) and "rank 1" in err, f"one is killed: the other ends: {err.strip()[-200:]}")


def waits(steps, **flags):
    """By process: how often the program waited for the card, by the driver's count, after launches of which there were so many."""
    log, found = path(f"waits-{steps}-{sorted(flags.items())}"), {}
    run = on_card({"ZR_EMULATOR_WAITS": log}, **{**SMALL, **flags, "steps": steps})
    ok(run.code == 0, f"{flags}, {steps} steps: trains") or note(run.err[-1000:])
    for line in open(log):
        process, _, launches = line.split()
        found.setdefault(process, []).append(int(launches))
    return list(found.values())


# A step's end is one wait, with the few calls that it takes, all of them after the last of the step's launches.
for flags in (dict(stage=1, accumulate=3), dict(stage=3, ranks=2, accumulate=2)):
    few, more = waits(1, **flags), waits(3, **flags)
    ends = [len(set(b)) - len(set(a)) for a, b in zip(few, more)]
    same(ends, [2] * flags.get("ranks", 1), f"{flags}: two steps more are two places more at which the driver saw the host wait")
done()
