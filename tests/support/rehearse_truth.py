#!/usr/bin/env python3
"""zr rehearse beside a real GPU: a training step that was recorded there, and the same step rehearsed (rehearse_truth_model.py). Compared are
the peak of live bytes, reserved bytes, how often each size was allocated at each place, and the order. Every difference is listed.

    rehearse_truth.py                     the check: rehearsals against rehearse_truth.txt
    rehearse_truth.py --table SNAPSHOT..  makes that file of the recordings

A place is the innermost statement of the program: its function, and its ordinal among the statements of the function that allocate, since lines
differ. A stack without a frame of the program is of the backward pass, which runs in a thread of PyTorch's engine."""
import ast
import collections
import hashlib
import json
import os
import pickle
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from pytorch_check import HOME, install  # noqa: E402
from zrtest import BUILD, done, note, ok, path, same, skip  # noqa: E402

MODEL, TABLE = os.path.join(HERE, "rehearse_truth_model.py"), os.path.join(HERE, "rehearse_truth.txt")
PROVENANCE = """\
# Made by rehearse_truth.py --table of two recordings of a GPU: results of the repository Wedsonlin/assignment2-systems, under the MIT licence,
# Copyright 2025 Stanford University. A recording is: its context, the peak of live bytes, reserved bytes, a digest of its allocations and frees
# in their order. Then how many allocations there were of how many bytes at a place."""
# The classes of the original's model.py by their first line that allocates: a frame names the method.
CLASSES = {39: "Linear", 54: "Embedding", 101: "RMSNorm", 147: "RotaryEmbedding", 383: "TransformerBlock", 399: "SwiGLU", 513: "CausalMultiHeadSelfAttention"}
# PyTorch 2.15 allocates cuBLAS's workspace for each product; the recordings' version kept one for each thread. 8,519,680 bytes: no Hopper.
WORKSPACE_BYTES, KEEP_WORKSPACE = 8_519_680, {"TORCH_CUBLAS_WORKSPACE_CACHE": "1"}


def original_name(frame):
    """The function of a frame of the recordings, with its class where that is needed."""
    methods = [first for first in CLASSES if first <= frame["line"]]
    return f"{CLASSES[max(methods)]}.forward" if frame["name"] == "forward" else frame["name"].removeprefix("AdamW.")


def model_name(frame):
    return next((name for first, last, name in MODEL_FUNCTIONS if first <= frame["line"] <= last), frame["name"])


def functions(file):
    """First line, last line and name of each function, a class before "forward"."""
    with open(file, encoding="utf-8") as text:
        tree = ast.parse(text.read())
    for node in tree.body:
        for child in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(child, ast.FunctionDef):
                yield child.lineno, child.end_lineno, f"{node.name}.forward" if child.name == "forward" else child.name


MODEL_FUNCTIONS = list(functions(MODEL))


def statement(event, name):
    """The function and line of the innermost frame of the program."""
    for frame in event["frames"]:
        if frame["filename"].endswith(".py") and not any(part in frame["filename"] for part in ("site-packages", "/zr-rehearse/")):
            return name(frame), frame["line"]
    return "backward", 0


def read(file, name):
    """A snapshot: peak bytes, reserved bytes, the digest of the order, and how many allocations of each size and place."""
    with open(file, "rb") as stream:
        snapshot = pickle.load(stream)
    events, blocks = snapshot["device_traces"][0], [block for segment in snapshot["segments"] for block in segment["blocks"]]
    signs = {"alloc": 1, "free_completed": -1}
    changes = [signs[event["action"]] * event["size"] for event in events if event["action"] in signs]
    live = peak = sum(block["requested_size"] for block in blocks if block["state"] != "inactive") - sum(changes)
    for change in changes:
        live += change
        peak = max(peak, live)
    allocations = [(event["size"], *statement(event, name)) for event in events if event["action"] == "alloc"]
    lines = collections.defaultdict(set)
    for _, function, line in allocations:
        lines[function].add(line)
    counts = collections.Counter((size, f"{function} {sorted(lines[function]).index(line) + 1}") for size, function, line in allocations)
    order = hashlib.sha256(repr([(event["action"], event["size"]) for event in events if event["action"] in ("alloc", "free_requested")]).encode())
    return peak, sum(segment["total_size"] for segment in snapshot["segments"]), order.hexdigest()[:16], counts


def print_table(files):
    print(PROVENANCE)
    for file in files:
        peak, reserved, order, counts = read(file, original_name)
        print(f"recording {128 if '128' in os.path.basename(file) else 512} {peak} {reserved} {order}")
        for (size, place), count in sorted(counts.items(), key=lambda item: (item[0][1], item[0][0])):
            print(count, size, place)


def read_table():
    """The recordings' read(), by context."""
    recordings = {}
    with open(TABLE, encoding="utf-8") as file:
        for line in file:
            if line.startswith("recording"):
                _, context, peak, reserved, order = line.split()
                recordings[context] = int(peak), int(reserved), order, collections.Counter()
            elif not line.startswith("#"):
                count, size, place = line.rstrip("\n").split(" ", 2)
                recordings[context][3][int(size), place] = int(count)
    return recordings


def rehearse(python, context, environment):
    """The answer of zr rehearse, and what read() gives of the program's own snapshot; None, None: it failed."""
    answer, snapshot = path("answer"), path("snapshot")
    got = subprocess.run([os.path.join(os.path.abspath(BUILD), "bin", "zr"), "rehearse", "--device", "rtx4090", "--output", path("snapshots"), "--json", answer, "--",
                          python, MODEL, context, snapshot], capture_output=True, text=True, timeout=900, env={**os.environ, **environment})
    if not same(got.returncode, 0, f"context {context}: a rehearsal ends"):
        note(got.stderr[-3000:])
        return None, None
    with open(answer, encoding="utf-8") as file:
        return json.load(file), read(snapshot, model_name)


def compare(context, recorded, rehearsed, cause):
    """Differences of the allocations, each with its cause; returns how many have none."""
    unexplained = 0
    for sign, name in ((1, "more"), (-1, "fewer")):
        extra = rehearsed - recorded if sign > 0 else recorded - rehearsed
        for (size, place), count in extra.items():
            why = cause(size, place)
            unexplained += 0 if why else count
            note(f"context {context}: {count} {name} of {size} bytes in {place}: {why or 'no known cause'}")
    return unexplained


def main():
    python = install()
    if not python:
        skip(f"PyTorch cannot be installed from PyPI into {HOME}")
        return
    for context, (peak, reserved, order, recorded) in read_table().items():
        answer, got = rehearse(python, context, KEEP_WORKSPACE)
        if got:
            ok(abs(got[0] / peak - 1) < 0.02, f"context {context}: {got[0]} bytes are live at the peak of the step, {peak} on the card ({100 * (got[0] / peak - 1):+.3f} %)")
            ok(abs(answer["reserved_bytes"] / reserved - 1) < 0.02, f"context {context}: {answer['reserved_bytes']} bytes are reserved, {reserved} on the card")
            equal = sum((recorded & got[3]).values()) / max(sum(recorded.values()), sum(got[3].values()))
            ok(equal >= 0.95, f"context {context}: {100 * equal:.2f} % of {sum(recorded.values())} allocations are equal in size and place")
            same(compare(context, recorded, got[3], lambda size, place: ""), 0, f"context {context}: no difference is without a cause")
            same(got[2], order, f"context {context}: allocations and frees come in the order of the card's")
            same([site["site"] for site in answer["sites"] if site["site"].startswith("??")], [], f"context {context}: each site has a name")
    # As this version of PyTorch does by itself.
    peak, _, _, recorded = read_table()["128"]
    _, got = rehearse(python, "128", {})
    if got:
        words = "this PyTorch allocates cuBLAS's workspace for each product, the recorded one kept it"
        same(compare("128", recorded, got[3], lambda size, place: words if size == WORKSPACE_BYTES else ""), 0, "workspaces of products are the only difference")
        ok(abs(got[0] / peak - 1) < 0.02, f"without workspaces that are kept, {got[0]} bytes are live at the peak ({100 * (got[0] / peak - 1):+.3f} %)")


if sys.argv[1:2] == ["--table"]:
    print_table(sys.argv[2:])
else:
    main()
    done()
