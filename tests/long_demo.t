#!/usr/bin/env python3
"""make demo, as a newcomer types it: under three minutes of two processors with the build, validation loss below 2.0
nats per byte."""
import re
import resource
import time

from zrtest import done, note, ok, path, run_limited, same

folder = path("demo-build")
began = time.monotonic()
got = run_limited(["make", "demo", f"BUILD={folder}"])
clock = time.monotonic() - began
used = resource.getrusage(resource.RUSAGE_CHILDREN)
took = (used.ru_utime + used.ru_stime) / 2  # what else the machine does is not counted
same(got.returncode, 0, "make demo ends well") or note(got.stderr[-2000:])
ok(took < 180, f"it took {took:.0f} s of two processors, the build included ({clock:.0f} s by the clock)")
losses = re.findall(r"validation\s+([0-9.]+) nats", got.stdout)
ok(losses and float(losses[-1]) < 2.0, f"validation loss {losses[-1] if losses else 'missing'} is below 2.0")
for words in ("Byte plan", "stranded", "tokens/s", "as planned", "Next", "--prompt"):
    ok(words in got.stdout, f"the table shows {words!r}")
done()
