#!/usr/bin/env python3
"""The examples run as they stand."""
import os
import subprocess
import sys

from zrtest import BUILD, done, note, ok, same

for words, command in (("arena.c", [os.path.join(BUILD, "examples", "arena")]),
                       ("arena.py", [sys.executable, "examples/arena.py", os.path.join(BUILD, "lib", "libzr.so")])):
    got = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if not same(got.returncode, 0, f"examples/{words} ends well"):
        note(got.stderr)
    ok("bytes live" in got.stdout, f"examples/{words} says what it holds: {got.stdout.strip()}")
got = subprocess.run([os.path.join(BUILD, "examples", "mlp"), "2", "3", "20"], capture_output=True, text=True, timeout=60)
if not same(got.returncode, 0, "examples/mlp.c ends well (install.t looks closer)"):
    note(got.stderr)
done()
