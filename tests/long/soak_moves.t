#!/usr/bin/env python3
"""Moving granules on the host backend beside copying them, at the project's bars: 10 times less than a warm copy granule
by granule, 100 times less in one run. And that whoever judges can say no."""
import os
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, done, note, ok, run_limited, skip

BENCH = os.path.abspath(os.path.join(BUILD, "tests", "bench_moves"))
MIB, UNJUDGED = 256, 77

got = run_limited([BENCH, "--check", str(MIB)])
if got.returncode == UNJUDGED:
    skip(got.stdout.strip())
    done()
ok(got.returncode == 0 and got.stdout.startswith("good by the median of 5 tries"), f"10 and 100 times less: exit {got.returncode}")
note(got.stdout + got.stderr)
for bars in ("1e9", "1"), ("1", "1e9"):
    got = run_limited([BENCH, "--check", "16", *bars])
    if got.returncode == UNJUDGED:  # the huge pages have gone meanwhile
        skip(got.stdout.strip())
        continue
    ok(got.returncode == 1 and got.stdout.startswith("too slow by the median of 5 tries"),
       f"of {' and '.join(bars)} times less it is told that it is too slow") or note(got.stdout + got.stderr)
done()
