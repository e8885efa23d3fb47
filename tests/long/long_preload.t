#!/usr/bin/env python3
"""Programs that people have, with zr's malloc and without: the slower rows of tests/system/programs.py; and a thousand
forks beside threads that allocate."""
import os
import subprocess
import sys

sys.path.insert(0, "tests/support")
sys.path.insert(0, "tests/system")
from zrtest import BUILD, LONG_HANG, done, note, ok
import programs

calls = os.path.abspath(os.path.join(BUILD, "tests", "preload_calls"))
got = subprocess.run([programs.ZR, "run", "--", calls, "threads", "1000"], capture_output=True, text=True, timeout=LONG_HANG)
if not ok(got.returncode == 0, "a thousand forks beside eight threads that allocate"):
    note(got.stderr)
programs.check(programs.SLOW, at_once=3)
done()
