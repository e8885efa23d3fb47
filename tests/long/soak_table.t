#!/usr/bin/env python3
"""A table of 4 GB in 1 GiB: `click` with rows of 128 floats and as many of optimizer state, on 4 million samples, learns with the bits of
all rows in memory, in the planned bytes. Takes 6 GB of disk in the build folder, 5 GB of memory and a quarter of an hour."""
import json
import os
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, done, note, ok, same

CLICK, SAMPLES = os.path.join(BUILD, "tests", "click_wide"), os.path.join(BUILD, "click-samples")
LIMIT, ROW, ROUNDING = 1 << 30, 1024, 4096
BESIDE = 128 << 20  # the program, its batches and model


def train(*words):
    got = subprocess.run([CLICK, "train", SAMPLES, "--json", "--rows", str(1 << 22), *words], capture_output=True, text=True, check=True)
    run = json.loads(got.stdout)
    note(f"{run['samples_per_second']:.0f} samples/s, {run['tiers'][0]}")
    return run


try:
    subprocess.run([CLICK, "make", SAMPLES, "4000000"], check=True)
    beyond = train("--memory-limit", str(LIMIT), "--file", BUILD)
    whole = train()
finally:
    if os.path.exists(SAMPLES):
        os.unlink(SAMPLES)
tier = beyond["tiers"][0]
ok(tier["rows"] * ROW > 4e9 and tier["rows_in_memory"] * 4 < tier["rows"], f"{tier['rows']} rows, {tier['rows_in_memory']} of them in memory")
same([point[2] for point in beyond["curve"]], [point[2] for point in whole["curve"]], "the AUC of all rows in memory, to the last digit")
ok(0 <= tier["memory_measured_bytes"] - tier["memory_planned_bytes"] < ROUNDING and tier["memory_planned_bytes"] <= LIMIT, "memory as planned, within the limit")
ok(0 <= tier["file_measured_bytes"] - tier["file_planned_bytes"] < tier["file_planned_bytes"] // 1000, "a file as planned")
ok(tier["resident_peak_bytes"] < LIMIT + BESIDE, f"at most {tier['resident_peak_bytes']} bytes are resident")
ok(tier["file_written_bytes"] < 2 * tier["file_changed_bytes"], "less than two bytes are written for one that changed")
done()
