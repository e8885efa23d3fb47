#!/usr/bin/env python3
"""fuzz_test.c on each format, under AddressSanitizer and UndefinedBehaviorSanitizer together, from seeds that stay the
same: what fails on one machine fails on all. `make fuzz` looks further, from no seed at all."""
import os
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, done, note, ok, run_limited

SEEDS = range(2, 5)  # the first one is long_sanitizers.t's
program = os.path.join(BUILD, "both-sanitizers", "tests", "fuzz_test")  # make built-long has built it
for seed in SEEDS:
    got = run_limited([program], env={**os.environ, "ZR_TEST_SEED": str(seed)})
    for line in got.stdout.splitlines():
        if "hostile files" in line:
            ok(line.startswith("ok"), f"seed {seed}: " + line.split(" - ", 1)[1])
    reports = [line for line in got.stderr.splitlines() if "Sanitizer" in line or "runtime error" in line]
    if not ok(got.returncode == 0 and not reports,
              " | ".join([f"seed {seed}: exit code {got.returncode} and nothing reported", *reports])):
        note((got.stdout + got.stderr)[-3000:])
done()
