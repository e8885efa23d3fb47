#!/usr/bin/env python3
"""fuzz_api.py SECONDS: calls of alloc/zr.h from libFuzzer, under clang's AddressSanitizer and UndefinedBehaviorSanitizer.
Inputs that lead to new code stay in fuzz/api of the build folder, where the next run begins; one that fails in
fuzz/found."""
import os
import re
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, LONG_HANG, done, note, ok, run_limited

SECONDS = int(sys.argv[1])
folder = os.path.join(BUILD, "fuzz")
for name in "api", "found":
    os.makedirs(os.path.join(folder, name), exist_ok=True)
got = run_limited([os.path.join(folder, "tests", "api_entry"), f"-max_total_time={SECONDS}", "-timeout=60", "-rss_limit_mb=2048", "-max_len=2048",
                   "-len_control=10", f"-artifact_prefix={folder}/found/", f"{folder}/api"], timeout=SECONDS + LONG_HANG)
runs = re.findall(r"^Done (\d+) runs", got.stderr, flags=re.M)
ok(got.returncode == 0 and runs, f"{''.join(runs)} sequences of calls in {SECONDS} seconds: no contradiction, nothing reported") or \
    note((got.stdout + got.stderr)[-3000:])
done()
