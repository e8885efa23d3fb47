#!/usr/bin/env python3
"""make demo, as a newcomer types it: under three minutes with the build, validation loss below 2.0 nats per byte."""
import re
import subprocess
import time

from zrtest import done, note, ok, path, same

folder = path("demo-build")
began = time.time()
got = subprocess.run(["make", "demo", f"BUILD={folder}"], capture_output=True, text=True, errors="replace",
                     timeout=600)
took = time.time() - began
same(got.returncode, 0, "make demo ends well") or note(got.stderr[-2000:])
ok(took < 180, f"it took {took:.0f} s, the build included")
losses = re.findall(r"validation\s+([0-9.]+) nats", got.stdout)
ok(losses and float(losses[-1]) < 2.0, f"validation loss {losses[-1] if losses else 'missing'} is below 2.0")
for words in ("Byte plan", "stranded", "tokens/s", "as planned", "Next", "--prompt"):
    ok(words in got.stdout, f"the table shows {words!r}")
done()
