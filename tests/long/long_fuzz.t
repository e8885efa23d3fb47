#!/usr/bin/env python3
"""fuzz_test.c on each format, under AddressSanitizer and UndefinedBehaviorSanitizer together, from seeds that stay the
same: what fails on one machine fails on all. Then for some seconds each the readers of traces, the live socket with
both its sides, and the calls of alloc/zr.h. `make fuzz` looks further, from no seed at all."""
import os
import re
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, LONG_HANG, done, note, ok, run_limited

SECONDS = int(os.environ.get("FUZZ_SECONDS", "20"))
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
for target in ("trace", "recording", "lifetimes", "zrt"):
    got = run_limited([program, str(SECONDS), target], env={**os.environ, "ZR_TEST_SEED": "5"}, timeout=SECONDS + LONG_HANG)
    ok(got.returncode == 0, f"{target}: " + " ".join(line.split(": ", 1)[1] for line in got.stdout.splitlines() if "hostile files" in line)) or \
        note((got.stdout + got.stderr)[-3000:])
got = run_limited([sys.executable, "tests/support/fuzz/fuzz_socket.py", str(SECONDS)], timeout=SECONDS + LONG_HANG,
                  env={**os.environ, "BUILD": os.path.join(BUILD, "both-sanitizers")})
ok(got.returncode == 0, f"the live socket: {got.stdout.count('ok ')} checks") or note((got.stdout + got.stderr)[-3000:])
got = run_limited([sys.executable, "tests/support/fuzz/fuzz_api.py", str(3 * SECONDS)], timeout=3 * SECONDS + 2 * LONG_HANG)
ok(got.returncode == 0, "the calls of alloc/zr.h: " + "".join(re.findall(r"- (.*)", got.stdout))) or note((got.stdout + got.stderr)[-3000:])
done()
