#!/usr/bin/env python3
"""zr why on snapshots of a model of PyTorch's allocator (tests/support/torch_shapes.py): the right reason comes first."""
import json
import os
import subprocess
import sys

sys.path.insert(0, "tests/support")
import torch_shapes
from torch_allocator import MIB, OutOfMemory, Torch, write
from zrtest import BUILD, HANG, done, note, ok, path, same

ZR = os.path.abspath(os.path.join(BUILD, "bin", "zr"))


def why(*arguments):
    run = subprocess.run([ZR, "why", *arguments, "--json"], capture_output=True, text=True, timeout=HANG, stdin=subprocess.DEVNULL)
    if not same(run.returncode, 0, f"zr why {' '.join(map(os.path.basename, arguments))}"):
        note(run.stderr)
    return json.loads(run.stdout or "{}")


def test_equal_stacks():
    """PyTorch writes one list of frames for each call. Blocks of one line are of one kind, whichever list they name."""
    torch = Torch(1 << 30)
    try:
        while True:
            torch_shapes.step(torch, 4, 16 * MIB)
            torch.alloc(4 * MIB, "model.py:60 remember, train.py:54 step")
    except OutOfMemory:
        pass
    report = why(write(path("remembered.pickle"), torch))
    same(report["reason"], "leak", "a leak in a snapshot is a leak")
    kept = sum(event["action"] == "alloc" and event["size"] == 4 * MIB for event in torch.trace)
    same(report["kind"]["blocks"], kept, "of all blocks of one line")


test_equal_stacks()
done()
