#!/usr/bin/env python3
"""make demo, as a newcomer types it: validation loss below 2.0 nats per byte, and what it is to say. ZR_DEMO names a file
of what it has said already: .ci/run has typed it."""
import os
import re
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, done, note, ok, run_limited, same

if os.environ.get("ZR_DEMO"):
    with open(os.environ["ZR_DEMO"], encoding="utf-8", errors="replace") as file:
        said = file.read()
else:
    got = run_limited(["make", "demo", f"BUILD={BUILD}"])
    said = got.stdout
    same(got.returncode, 0, "make demo ends well") or note(got.stderr[-2000:])
losses = re.findall(r"validation\s+([0-9.]+) nats", said)
ok(losses and float(losses[-1]) < 2.0, f"validation loss {losses[-1] if losses else 'missing'} is below 2.0")
for words in ("Byte plan", "stranded", "tokens/s", "as planned", "Next", "--prompt"):
    ok(words in said, f"the table shows {words!r}")
done()
