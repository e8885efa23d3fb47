#!/usr/bin/env python3
"""The kernels' tests with draws of thirty seeds that no earlier run had."""
import os
import re
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, done, note, ok, run_limited

TESTS = ("gradients", "kernel_pairs", "kernel_products", "kernel_rules", "kernel_shares", "kernel_tiles", "kernels", "kernels_narrow", "llama_kernels")
SEEDS = [int.from_bytes(os.urandom(4), "little") for _ in range(30)]
for name in TESTS:
    wrong = []
    for seed in SEEDS:
        got = run_limited([f"{BUILD}/tests/{name}_test"], env={**os.environ, "ZR_TEST_SEED": str(seed)})
        wrong += [f"ZR_TEST_SEED={seed}: {line}" for line in re.findall(r"^not ok.*", got.stdout, flags=re.M) or [f"ended with {got.returncode}"] if got.returncode]
    ok(not wrong, f"{name}_test passes with {len(SEEDS)} seeds") or note("\n".join(wrong[:9]))
done()
