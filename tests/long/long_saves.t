#!/usr/bin/env python3
"""Fifty deaths by -9 at random moments while a run saves: the newest complete checkpoint always loads. And what a save
costs as a model gets more tensors."""
import resource
import sys

sys.path.insert(0, "tests/support")
from saves import kill_while_saving
from zrtest import SEED, done, ok, path, same, train


def seconds_of_processor(layers):
    """Of a run that does little but build a model, save it, and end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    run = train(layers=layers, hidden=8, heads=1, seq=4, batch=1, steps=1, eval_every=0, save=path(f"saved-{layers}"))
    same(run.code, 0, f"{layers} layers are trained and saved")
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


kill_while_saving(50, SEED)
few, many = seconds_of_processor(512), seconds_of_processor(4096)
ok(many < 14 * few, f"eight times the tensors take {many / few:.1f} times the processor, not 64 times")
done()
