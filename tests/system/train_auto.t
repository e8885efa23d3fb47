#!/usr/bin/env python3
"""--zero-r auto against all configurations one by one: it takes the fastest that fits, and keeps to the options given."""
import itertools
import re
import sys
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, "tests/support")
from zrtest import done, leftovers, note, ok, same, start_quickly, train

start_quickly()
SHAPE = dict(layers=4, hidden=64, heads=4, seq=32, batch=4, accumulate=2, threads=1)
SPEED = dict(flops=1e12, bandwidth=1e10, host_bandwidth=1e10)
KEPT = (dict(recompute="none"), dict(recompute="selective"), dict(recompute="full"), dict(recompute="full", partition_activations=True),
        dict(recompute="full", checkpoint_offload=True), dict(recompute="full", partition_activations=True, checkpoint_offload=True))


def settings():
    for tp, pp, stage, kept, cut in itertools.product((1, 2, 4), (1, 2, 4), range(4), KEPT, ("equal", "memory")):
        if tp * pp > 4 or (stage and tp * pp == 4) or (kept.get("partition_activations") and tp == 1) or (pp == 1 and cut == "memory"):
            continue
        speed = SPEED if kept.get("checkpoint_offload") else {**SPEED, "host_bandwidth": None}
        yield dict(tp=tp, pp=pp, stage=stage, pipeline_cut=cut if pp > 1 else None, **{**SHAPE, "accumulate": 2 * tp * pp}, **kept, **speed)


def plan(flags):
    return train(ranks=None, dry_run=True, world_size=4, **flags).report


with ThreadPoolExecutor(2) as pool:
    every = [(flags, report) for flags, report in zip(settings(), pool.map(plan, settings())) if report]
ok(len(every) > 90, f"{len(every)} configurations of 4 ranks have plans")


def need(report):
    return max(rank["planned_reserved_bytes"] for rank in report["ranks"])


sizes = sorted({need(report) for _, report in every})
for part in (0, len(sizes) // 2, len(sizes) - 1):
    limit = sizes[part]
    fitting = [(report["timeline"]["step_seconds"], flags) for flags, report in every if need(report) <= limit]
    best = min(seconds for seconds, _ in fitting)
    run = train(ranks=None, stage=None, dry_run=True, world_size=4, zero_r="auto", memory_limit=limit, flops=1e12, bandwidth=1e10, **SHAPE)
    ok(run.code == 0 and need(run.report) <= limit and run.report["timeline"]["step_seconds"] <= 1.0001 * best,
       f"under {limit >> 10} KiB, which {len(fitting)} fit, a step of {1e3 * best:.3f} ms is taken") or note(f"{run.code} {run.err} {run.out[:900]}")
    rows = re.findall(r"^ *([\d.]+) ms .*--tp", run.out, re.M)
    ok(rows and rows == sorted(rows, key=float) and len(rows) <= 5, f"beside others, the fastest first: {rows}")
given = train(ranks=None, stage=None, dry_run=True, world_size=4, zero_r="auto", memory_limit=1 << 30, tp=2, recompute="full", **SHAPE)
ok(given.code == 0 and re.search(r"--tp 2 .*--recompute full .*\(taken\)", given.out), "what is given stays") or note(given.out[:600])
for words, flags, needle in (("parts of checkpoints", dict(partition_activations=True), "--tp 2 .*--partition-activations"),
                             ("parts, nothing recomputed", dict(partition_activations=True, recompute="none"), "--tp 2 .*none .*--partition"),
                             ("the host", dict(checkpoint_offload=True), "--checkpoint-offload"),
                             ("rows", dict(sequence_parallel=True), "--tp [24]"), ("a schedule", dict(schedule="gpipe"), "--pp [24]")):
    given = train(ranks=None, stage=None, dry_run=True, world_size=4, zero_r="auto", memory_limit=1 << 30, **flags, **SHAPE)
    ok(given.code == 0 and re.search(needle + r".*\(taken\)", given.out), f"a mesh is found that has what was given: {words}") or note(given.out[:600] + given.err)
for nth in range(1, 7):  # what the process that plans has found comes in parts
    parts = ",".join(f"{site}:{kind}:{nth}" for site in ("read", "write") for kind in ("eintr", "short"))
    same(train(ranks=2, stage=None, zero_r="auto", memory_limit=1 << 30, environment={"ZR_FAULT": parts}, dry_run=True, **SHAPE).code, 0, f"a plan, {parts}")
run = train(ranks=2, stage=None, zero_r="auto", memory_limit=1 << 30, **SHAPE)
ok(run.code == 0 and run.report["steps"] == 3, "and the run goes on with it") or note(run.err[-400:])
for words, flags, code, needle in (("no limit", {}, 2, "--memory-limit"), ("nothing fits", dict(memory_limit=1 << 20), 4, "plans fits --memory-limit"),
                                   ("no mesh has it", dict(memory_limit=1 << 30, pp=2, sequence_parallel=True), 2, "leave out some of")):
    run = train(ranks=2, stage=None, zero_r="auto", **flags, **SHAPE)
    ok(run.code == code and needle in run.err, f"{words}: {run.err.strip()[:110]}") or note(f"{run.code} {run.err}")
leftovers()
done()
