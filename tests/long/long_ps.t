#!/usr/bin/env python3
"""Parameter servers: a million random schedules of the timings, servers killed before each store to kept memory and
connections lost at each message, and the same tests with other draws."""
import os
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, done, note, ok, run_limited


def run(words, program, **environment):
    got = run_limited([os.path.join(BUILD, "tests", program)], env={**os.environ, **environment})
    checks = [line for line in got.stdout.splitlines() if line.startswith("ok ")]
    if not ok(got.returncode == 0 and checks, f"{words}: {len(checks)} checks"):
        note((got.stdout + got.stderr)[-3000:])


run("a million schedules", "ps_timing_test", ZR_TEST_SCHEDULES="1000000")
run("each store and each message", "ps_kill_test", ZR_TEST_LONG="1")
for seed in range(2, 4):
    run(f"seed {seed}, servers and workers", "ps_test", ZR_TEST_SEED=str(seed))
    run(f"seed {seed}, kills", "ps_kill_test", ZR_TEST_SEED=str(seed))
done()
