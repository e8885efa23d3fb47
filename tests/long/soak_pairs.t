#!/usr/bin/env python3
"""All rows of the tables of which `make check` runs the first third: see pairs.py."""
import os
import re
import sys

sys.path.insert(0, "tests/support")
from zrtest import done, note, ok, run_limited

os.environ["ZR_TEST_ROWS"] = "all"
for name in ("mpi", "train_bits", "train_checkpoints", "train_compress_card", "train_offload", "train_pipeline", "train_tensor", "train_tile"):
    got = run_limited([sys.executable, f"tests/system/{name}.t"])
    wrong = re.findall(r"^not ok.*", got.stdout, flags=re.M)
    count = len(re.findall(r"^ok ", got.stdout, flags=re.M))
    ok(got.returncode == 0 and not wrong and count, f"tests/system/{name}.t with all rows: {count} hold") or note("\n".join(wrong) + got.stderr[-2000:])
done()
