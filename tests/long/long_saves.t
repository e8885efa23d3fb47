#!/usr/bin/env python3
"""Fifty deaths by -9 at random moments while a run saves: the newest complete checkpoint always loads. And what a save
and the byte plan of a pipeline cost as a model gets more tensors."""
import resource
import sys

sys.path.insert(0, "tests/support")
from saves import kill_while_saving
from zrtest import SEED, done, ok, path, same, train


def seconds_of_processor(layers, what, **flags):
    """Of a run that does little but `what`: the least of three. One thread works: a second one would spin as long as it
    waits, and the wait depends on the machine."""
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        run = train(layers=layers, hidden=8, heads=1, seq=4, batch=1, steps=1, eval_every=0, threads=1, **flags)
        same(run.code, 0, f"{layers} layers: {what}")
        seconds.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
    return min(seconds)


kill_while_saving(50, SEED)
for what, flags in (("a model is built and saved", {"save": path("saved")}),
                    ("the byte plan of a pipeline", {"dry_run": True, "ranks": 4, "pp": 4, "accumulate": 4,
                                                     "pipeline_cut": "equal"})):
    few, many = seconds_of_processor(512, what, **flags), seconds_of_processor(4096, what, **flags)
    ok(many < 24 * few, f"{what}: eight times the tensors take {many / few:.1f} times the processor, not 64 times")
done()
