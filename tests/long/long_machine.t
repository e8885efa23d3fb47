#!/usr/bin/env python3
"""overcommit_memory = 2, which is the whole machine's setting: changed for a moment where this test may, and put back."""
# Runs alone.
import signal
import sys

sys.path.insert(0, "tests/support")
from zrtest import done, note, ok, same, skip, train

SETTING = "/proc/sys/vm/overcommit_memory"


def put(value):
    with open(SETTING, "w") as file:
        file.write(value)


with open(SETTING) as file:
    before = file.read()
base = train(ranks=2, stage=1)
try:
    put("2")
except OSError as error:
    skip(f"overcommit_memory cannot be set here ({error.strerror})")
else:
    def back(*_):
        put(before)
        raise SystemExit(1)
    signal.signal(signal.SIGTERM, back)
    try:
        small = train(ranks=2, stage=1)
        large = train(layers=60, hidden=4096, heads=32, seq=64, batch=2, steps=1, timeout=300)
    finally:
        put(before)
    same(small.code, 0, "overcommit_memory = 2: a small model runs") or note(small.err)
    same(small.losses, base.losses, "overcommit_memory = 2: and its losses are the same")
    if not ok(large.code == 4 and "overcommit_memory" in large.err,
              f"overcommit_memory = 2: a model of 194 GB is refused with the reason (exit {large.code})"):
        note(large.err)
done()
