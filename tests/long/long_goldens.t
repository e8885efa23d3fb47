#!/usr/bin/env python3
"""Losses and gradient norms of forty configurations, to the last bit, as tests/long/goldens.json has them: what is
rebuilt in the engine must not change what is computed. They are stored for the instruction sets plain and avx2 and one
version of oneDNN, whose products they hold.

ZR_GOLDENS=store writes the file. ZR_GOLDENS=PATH compares the processor's best instruction set with another build's
zr-train at PATH, for the sets that are not stored."""
import ctypes
import json
import os
import sys

sys.path.insert(0, "tests/support")
import zrtest
from pairs import logged, pairwise
from zrtest import done, note, ok, path, same, skip

FILE = "tests/long/goldens.json"
SETS = ("plain", "avx2")
SHAPES = (dict(layers=1, hidden=8, heads=1, seq=2, batch=1), dict(layers=5, hidden=21, heads=3, seq=11, batch=2),
          dict(layers=2, hidden=64, heads=4, seq=32, batch=3), dict(layers=3, hidden=40, heads=5, seq=17, batch=1))
FACTORS = dict(shape=range(len(SHAPES)), stage=(0, 1, 2, 3), ranks=(1, 2, 3, 4), precision=("fp32", "bf16", "fp16"),
               accumulate=(1, 2, 3), recompute=("none", "selective", "full"), optimizer=("adamw", "sgd"),
               clip=(0, 0.5), reduce=("each", "once"), threads=(1, 2))
COUNT = 40


def onednn_version():
    for name in ("libdnnl.so.2", "libdnnl.so.3"):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        library.dnnl_version.restype = ctypes.POINTER(ctypes.c_int * 3)
        return ".".join(map(str, library.dnnl_version().contents))
    return None


def configurations():
    """Rows in which every two settings meet, more of them until there are COUNT."""
    rows, seed = [], 0
    while len(rows) < COUNT:
        seed += 1
        for row in pairwise(seed, **FACTORS):
            row.update(SHAPES[row.pop("shape")], steps=4, lr=0.01, eval_every=0)
            if row["stage"] > 1:
                row["reduce"] = "each"
            if row["precision"] == "fp16":
                row["loss_scale_power"] = 8
            rows.append(row)
    return rows[:COUNT]


def text():
    """Made of a counter alone, so that no version of Python changes it."""
    where, state = path("goldens.txt"), 1
    with open(where, "w") as file:
        for _ in range(20000):
            state = state * 1103515245 + 12345 & 0x7FFFFFFF
            file.write(" etaoinshrdlu.\n,"[state >> 20 & 15])
    return where


def run(row, instruction_set=None):
    environment = {"ZR_CONF": f"isa:{instruction_set}"} if instruction_set else None
    got = logged(data=text(), environment=environment, **row)
    if got.code or len(got.bits) != row["steps"]:
        note(got.err)
        return None
    return [[loss, norm.hex()] for loss, norm, _ in got.bits]


def words(row):
    return " ".join(f"{name} {value}" for name, value in row.items())


what, version = os.environ.get("ZR_GOLDENS", ""), onednn_version()
if what == "store":
    runs = [{"flags": row, **{one: run(row, one) for one in SETS}} for row in configurations()]
    with open(FILE, "w") as file:
        lines = ",\n".join(json.dumps(one).replace(', "plain"', ',\n "plain"').replace(', "avx2"', ',\n "avx2"')
                           for one in runs)
        file.write(f'{{"onednn": "{version}", "runs": [\n{lines}]}}\n')
    ok(all(one[isa] for one in runs for isa in SETS), f"{COUNT} configurations are stored")
elif what:
    rows, ours = configurations(), zrtest.ZR_TRAIN
    for row in rows:
        zrtest.ZR_TRAIN = what
        want = run(row)
        zrtest.ZR_TRAIN = ours
        same(run(row), want, words(row))
else:
    with open(FILE) as file:
        stored = json.load(file)
    if version != stored["onednn"]:
        skip(f"these bits are of oneDNN {stored['onednn']}, and here is {version}")
    for one in stored["runs"] if version == stored["onednn"] else ():
        for instruction_set in SETS:
            same(run(one["flags"], instruction_set), one[instruction_set], f"{instruction_set}: {words(one['flags'])}")
done()
