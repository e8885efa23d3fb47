#!/usr/bin/env python3
"""The kernels of a card on the emulated driver, with all the shapes of their test programs, and what is offloaded from there in all
orders of streams: `make check` takes the first of each."""
import os
import re
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, LONG_HANG, done, note, ok

for name, command, least in (*((f"cuda_{name}", os.path.join(BUILD, "tests", f"cuda_{name}_test"), 80) for name in ("fp32", "narrow", "llama")),
                             ("train_card_offload", os.path.join("tests", "system", "train_card_offload.t"), 250)):
    got = subprocess.run([command], env=dict(os.environ, ZR_TEST_LONG="1"),
                         capture_output=True, text=True, timeout=LONG_HANG)
    failed, right = re.findall(r"^not ok.*", got.stdout, re.M), len(re.findall(r"^ok ", got.stdout, re.M))
    for line in failed:
        note(line)
    ok(got.returncode == 0 and not failed and right > least, f"{name}: {right} rules hold, {len(failed)} do not")
done()
