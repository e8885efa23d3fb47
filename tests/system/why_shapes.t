#!/usr/bin/env python3
"""zr why on snapshots of a model of PyTorch's allocator (tests/support/torch_shapes.py): the right reason comes first."""
import json
import os
import pickle
import random
import subprocess
import sys

sys.path.insert(0, "tests/support")
import torch_shapes
from torch_allocator import MIB, OutOfMemory, Torch, write
from zrtest import BUILD, HANG, done, note, ok, path, same, skip

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


def test_growth():
    """What grew between the marks of the first and the last step, by line and category. A workspace that is freed in its phase is
    temporary; activations live until backward."""
    torch = Torch(1 << 30)
    torch_shapes.weights(torch, 10, 2 * MIB)
    for number in range(20):
        torch.mark(f"step {number}")
        blocks = [torch.alloc(16 * MIB, torch_shapes.FORWARD) for _ in range(4 + number // 18)]  # larger steps are no growth
        torch.temporary(8 * MIB, "kernel.py:9 forward, train.py:50 step")
        for block in blocks:
            torch.temporary(3 * MIB, torch_shapes.BACKWARD)
            torch.free(block)
        torch.alloc(4 * MIB, f"model.py:60 remember, train.py:{54 + number % 2} step")
    report = why(write(path("grown.pickle"), torch), "--growth")
    growth = report["growth"]
    same((growth["from"], growth["to"], growth["categories"]), ("step 0", "step 18", {"other": 72 * MIB}), "20 marks: from the first to the last two")
    same([(one["grown_bytes"], one["before_bytes"], one["blocks"]) for one in growth["sites"]], [(72 * MIB, 0, 18)],
         "18 blocks by then, of one line that two lines call")
    same((report["reason"], report["categories"]), ("leak", {"other": 80 * MIB, "parameters": 20 * MIB}), "without a refusal the reason is the leak")
    same(len(report["holders"]), 2, "blocks of one line have one holder")
    run = subprocess.run([ZR, "why", path("grown.pickle")], capture_output=True, text=True, timeout=HANG, stdin=subprocess.DEVNULL)
    ok("Growth from mark 'step 0' to 'step 18': other 72.0 MiB" in run.stdout, "in words, without an option") or note(run.stdout)
    blocks = [torch.alloc(16 * MIB, torch_shapes.FORWARD) for _ in range(2)]
    torch.alloc(8 * MIB, "kernel.py:9 forward, train.py:50 step")
    report = why(write(path("grown.pickle"), torch))
    same(report["categories"], {"other": 80 * MIB, "parameters": 20 * MIB, "activations": 32 * MIB, "temporary": 8 * MIB}, "a workspace is temporary, an activation is not")


def test_ranks():
    """Four ranks with sequences of other lengths; from step 6 on the third has more live than any of the others ever differ."""
    def rank(number, marks=True):
        torch, rng = Torch(2 << 30), random.Random(number)
        for at in range(12):
            if marks:
                torch.mark(f"step {at}")
            torch_shapes.step(torch, 6 + 3 * (number == 2 and at >= 6), (16 + rng.randrange(3)) * MIB)
        return write(path(f"rank{number}.pickle"), torch)
    for marks, place in ((True, "mark 'step 6'"), (False, "sixteenth 8 of the events")):
        files = [rank(number, marks) for number in range(4)]
        odd = why(*files)["odd_rank"]
        same((odd["file"], odd["parted_at"]), (files[2], place), "several ranks: the odd one, and where it parts")
        ok(odd["bytes"] - odd["others_bytes"] > 40 * MIB, "by what its live bytes exceed the median")
    run = subprocess.run([ZR, "why", *files], capture_output=True, text=True, timeout=HANG, stdin=subprocess.DEVNULL)
    ok(run.stdout.count("reason: ") == 4 and "rank2.pickle is the odd one of 4: it parts at sixteenth 8" in run.stdout.replace("\n  ", " "),
       "each rank's reasons, then the odd one") or note(run.stdout)
    same(why(*[files[0]] * 3)["odd_rank"], None, "equal ranks have no odd one")


def test_phases():
    """zr stats: per phase the most that is live, by patterns of call stacks; retries and flushes counted."""
    torch = Torch(GIB := 1 << 30)
    for _ in range(3):
        torch.mark("train")
        torch_shapes.step(torch, 20, 20 * MIB, grads=4 * MIB)
        torch.mark("validate")
        torch_shapes.step(torch, 10, 60 * MIB)
        if _ == 1:
            torch.empty_cache()
    torch.alloc(GIB - 40 * MIB, torch_shapes.FORWARD)  # what is cached goes back first
    run = subprocess.run([ZR, "stats", write(path("phases.pickle"), torch), "--by", "forward=^forward .*linear", "--by", "back=backward", "--by", "model=model", "--json"],
                         capture_output=True, text=True, timeout=HANG, stdin=subprocess.DEVNULL)
    phases = {one["label"]: one for one in json.loads(run.stdout or "{}").get("phases", [])}
    same({label: (one["marks"], one["live_bytes"] // MIB, one["by"]["forward"] // MIB, one["by"]["back"] // MIB, one["retries"], one["flushes"])
          for label, one in phases.items()},
         {"train": (3, 404, 400, 4, 0, 0), "validate": (3, 984, 984, 0, 1, 1)}, "phases, categories, retries and flushes") or note(run.stderr)
    run = subprocess.run([ZR, "stats", path("phases.pickle"), "--phases"], capture_output=True, text=True, timeout=HANG, stdin=subprocess.DEVNULL)
    ok(any(line.split()[:3] == ["validate", "984", "MiB"] for line in run.stdout.splitlines()), "as a table") or note(run.stdout)
    run = subprocess.run([ZR, "stats", path("phases.pickle"), "--by", "a=("], capture_output=True, text=True, timeout=HANG, stdin=subprocess.DEVNULL)
    ok(run.returncode == 2 and "is no regular expression" in run.stderr, "a pattern that is none") or note(run.stderr)


# Shape, options, the first reason, a word of its evidence, a word of its remedy, the replay that proves it.
ROWS = [
    ("changing_lengths", [], "fragmentation", "in pieces", "zr run --cuda", "zr"),
    ("validation_pins", [], "fragmentation", "in pieces", "expandable_segments:True", "expandable"),
    ("interleaved_loading", [], "fragmentation", "in pieces", "expandable_segments:True", "expandable"),
    ("side_stream", [], "stream", "796 MiB", "empty_cache()", "one stream"),
    ("record_stream", [], "pending", "may still use", "record_stream()", "pending"),
    ("flush_each_step", [], "flush", "360 calls", "leave out torch.cuda.empty_cache()", None),
    ("optimizer_state", [], "shortage", "of 2.00 GiB are live", "smaller batch", None),
    ("checkpoint_kept", [], "shortage", "800 MiB by main (train.py:22)", "map_location=\"cpu\"", None),
    ("long_logits", [], "spike", "3.00 GiB by cross_entropy (loss.py:9)", "in parts", None),
    ("cached_beside_library", [], "cached", "other libraries", "empty_cache()", None),
    ("weights_twice", [], "shortage", "weights twice: 1.11 GiB by wake_up (engine/worker.py:88)", "free the first copy", None),
    ("split_limit", [], "option", "max_split_size of 64.0 MiB", "max_split_size_mb", "expandable"),
    ("losses_kept", [], "leak", "by forward", ".detach()", None),
    ("evaluation_kept", [], "leak", "by forward (model.py:41)", ".detach()", None),
    ("graph_pools", [], "pool", "private pools", "graph_pool_handle()", "caching"),
    ("shared_card", ["--total", "11GiB"], "other process", "10.2 GiB of the device's 11.0 GiB", "nvidia-smi", None),
    ("trials_kept", [], "leak", "by main (train.py:20)", "del model", None),
    ("evaluation_with_gradients", [], "shortage", "of 4.00 GiB are live", "torch.no_grad()", None),
    ("engine_cache", [], "shortage", "of 8.00 GiB are live", "smaller batch", None),
    ("hidden_state_kept", [], "leak", "by forward (model.py:40)", ".detach()", None),
    ("second_of_three", [], "shortage", "of 1.00 GiB are live", "smaller batch", None),
]


def test_events():
    """Marks, unknown kinds of events, the devices, and the device's size, as later versions of PyTorch write them."""
    torch, other = Torch(1 << 30), Torch(1 << 30, device=1)
    torch.mark("epoch 3")
    torch.trace.append({"action": "teleported", "addr": 0, "size": 0, "stream": 0, "time_us": 1, "frames": []})
    for number in range(8):
        torch.metadata = f"phase {number // 4}"
        torch_shapes.step(torch, 4, 16 * MIB)
    try:
        torch_shapes.weights(other, 90, 20 * MIB)
    except OutOfMemory:
        other.trace[-1]["device_total"] = 16 << 30
    where = write(path("events.pickle"), torch, other)
    run = subprocess.run([ZR, "why", where], capture_output=True, text=True, timeout=HANG, stdin=subprocess.DEVNULL)
    first = run.stdout.replace("\n  ", " ").splitlines()
    ok("on device 1 of 0 to 1 (--device)" in first[0], "the device with a refusal, and that there are others") or note(run.stdout)
    ok(first[1].startswith("reason: other process: 15.0 GiB of the device's 16.0 GiB"), "the device's size is the file's word") or note(run.stdout)
    same([(one["device"], one["devices"], one["reason"]) for one in why(where, "--device", "all")["results"]],
         [(1, 2, "other process"), (0, 2, "cached")], "--device all: each one, that with the refusal first")
    run = subprocess.run([ZR, "stats", where, "--device", "0", "--at", "mark:epoch 3"], capture_output=True, text=True, timeout=HANG, stdin=subprocess.DEVNULL)
    same(run.returncode, 0, "a mark of the program is a moment") or note(run.stderr)
    run = subprocess.run([ZR, "stats", where, "--device", "0", "--at", "mark:phase 1", "--json"], capture_output=True, text=True, timeout=HANG, stdin=subprocess.DEVNULL)
    same(json.loads(run.stdout or "{}").get("moments", {}).get("at", {}).get("live_bytes"), 0, "and so is a change of user_metadata")
    ok("1 events of unknown kinds, which are left out; the first is 'teleported'" in run.stderr, "what is unknown is said once") or note(run.stderr)


def test_shapes():
    same([row[0] for row in ROWS], [shape.__name__ for shape in torch_shapes.SHAPES], "a row for each shape")
    for name, options, reason, evidence, remedy, proof in ROWS:
        where = path(f"{name}.pickle")
        refused = torch_shapes.write_shape(getattr(torch_shapes, name), where)
        same(refused, reason not in ("flush", "cached"), f"{name}: refused, or not")
        report = why(where, *options)
        if proof:
            ok(any(one["change"] == proof and one["fits"] for one in report["remedies"]), f"{name}: {proof} fits, replayed") or note(report["remedies"])
        first = report["reasons"][0]
        same((report["reason"], first["reason"]), (reason, reason), f"{name}: the first reason")
        ok(evidence in first["evidence"], f"{name}: its evidence") or note(first["evidence"])
        ok(remedy in first["remedy"], f"{name}: its remedy") or note(first["remedy"])
        if name == "graph_pools":
            same(report["verdict"], "pool", f"{name}: what is free at a refusal was not PyTorch's to return")
        sizes = [one["bytes"] for one in report["reasons"]]
        same(sizes, sorted(sizes, reverse=True), f"{name}: the largest first")
    smaller = why(path("shared_card.pickle"), "--capacity", "400MiB")["reasons"]
    same([one["reason"] for one in smaller], ["shortage"], "what a smaller capacity leaves out is not held by others")


def test_categories():
    """Who holds what in real snapshots, beside a count of their frames."""
    for context in (128, 512):
        where = f"../shared/traces/torch_medium_{context}_training.pickle"
        if not os.path.exists(where):
            skip(f"context {context}: no such snapshot")
            continue
        with open(where, "rb") as file:
            data = pickle.load(file)
        counted = {"optimizer state": 0, "gradients": 0, "activations": 0, "other": 0}
        for block in (block for segment in data["segments"] for block in segment["blocks"] if block["state"] == "active_allocated"):
            words = " ".join(f"{frame['name']} {frame['filename']}" for frame in block["frames"])
            counted["optimizer state" if "torch/optim/" in words else "gradients" if "backward" in words or "torch::autograd::Engine" in words
                    else "activations" if "forward" in words else "other"] += block["size"]
        report = why(where, "--no-replay")
        same(report["categories"], {name: bytes for name, bytes in counted.items() if bytes}, f"context {context}: who holds what")


def test_sweep():
    """What zr why --sweep says of each option is what the model of PyTorch's allocator reserves with it."""
    def program(torch):
        rng, held = random.Random(7), []
        for number in range(300):
            held.append(torch.alloc(rng.choice((1, 700, 3000, 9000, 30000, 90000)) * (700 + rng.randrange(700)), torch_shapes.FORWARD))
            if len(held) > 30:
                torch.free(held.pop(rng.randrange(30)))
        return torch
    sweep = why(write(path("sweep.pickle"), program(Torch(1 << 40))), "--sweep")["sweep"]
    same(sweep["default"], program(Torch(1 << 40)).peak, "--sweep: the default")
    for split in (32, 64):
        same(sweep[f"max_split_size_mb:{split}"], program(Torch(1 << 40, max_split=split * MIB)).peak, f"--sweep: max_split_size_mb:{split}")
    for divisions in (2, 4, 8):
        same(sweep[f"roundup_power2_divisions:{divisions}"], program(Torch(1 << 40, divisions=divisions)).peak, f"--sweep: {divisions} divisions")
    ok("max_split_size_mb:128" not in sweep, "--sweep: no request has 128 MiB, so that no option of that size is tried")
    # A snapshot made with an option is replayed with it, and without.
    for settings in ({"max_split": 32 * MIB}, {"divisions": 4}, {"collect": 0.5}):
        made, words = Torch(2400 * MIB, **settings), " ".join(settings)
        run = subprocess.run([ZR, "replay", write(path("own.pickle"), program(made)), "--policy", "caching", "--capacity", "2400MiB", "--json"],
                             capture_output=True, text=True, timeout=HANG, stdin=subprocess.DEVNULL)
        own = json.loads(run.stdout)["results"][0]
        same((own["peak_reserved_bytes"], own["driver_calls"]), (made.peak, made.calls), f"zr replay applies the file's {words}")
        ok(own["allocator_settings"], "and says so")
    # Divisions that differ by size, in numbers or only in the text of the settings.
    made, listed = Torch(1 << 40), "roundup_power2_divisions:[1:2,2:4,>:0]"
    for settings in ({"roundup_power2_divisions": {"1": 2, "2": 4}}, {"PYTORCH_CUDA_ALLOC_CONF": listed}):
        made.settings = lambda settings=settings: settings
        run = subprocess.run([ZR, "replay", write(path("own.pickle"), program(made)), "--policy", "expandable", "--json"],
                             capture_output=True, text=True, timeout=HANG, stdin=subprocess.DEVNULL)
        same(json.loads(run.stdout)["results"][0].get("allocator_settings"), listed, f"zr replay reads {list(settings)[0]}")
    where = path("split_limit.pickle")
    torch_shapes.write_shape(torch_shapes.split_limit, where)
    fits = {one["change"]: one["fits"] for one in why(where)["remedies"]}
    same((fits["caching"], fits["expandable"]), (False, True), "the replay applies the file's own option")
    ok("no options" in fits, "and replayed without")


def test_order():
    """The reasons come before any replay, then the changes, as they are found; what the limit on replays leaves out is named."""
    where = path("changing.pickle")
    torch_shapes.write_shape(torch_shapes.changing_lengths, where)
    run = subprocess.run([ZR, "why", where], capture_output=True, text=True, timeout=HANG, stdin=subprocess.DEVNULL)
    head = run.stdout.splitlines()[:24]
    order = [next((at for at, line in enumerate(head) if line.startswith(word)), None) for word in ("reason: ", "Live then", "  bestfit ", "change: ")]
    ok(None not in order and order == sorted(order), "24 lines have reason, holders, the first changes, and what to do") or note(run.stdout)
    left = why(where, "--replays", "1")
    ok(not left["remedies"] and "caching" in left["not_replayed"] and "plan" in left["not_replayed"], "a limit of no replays leaves all out, and names them")
    half = why(where, "--replays", "10000")
    ok(half["remedies"] and half["not_replayed"] and half["reason"] == "fragmentation", "a limit leaves out the expensive ones") or note(half["not_replayed"])
    run = subprocess.run([ZR, "why", where, "--replays", "10000"], capture_output=True, text=True, timeout=HANG, stdin=subprocess.DEVNULL)
    ok("not replayed, beyond --replays: " in run.stdout, "in words, too") or note(run.stdout)


def test_words():
    """A C++ name of 300 characters is cut where a person reads, and whole in JSON. More live than reserved is said."""
    torch = Torch(1 << 30)
    torch_shapes.weights(torch, 20, 20 * MIB, "??:0 " + "at::native::" + "Tensor," * 40)
    where = write(path("names.pickle"), torch)
    run = subprocess.run([ZR, "why", where], capture_output=True, text=True, timeout=HANG, stdin=subprocess.DEVNULL)
    lines = run.stdout.splitlines()
    ok(max(map(len, lines)) <= 80, "no line is longer than 80 columns, and names are cut") or note(run.stdout)
    ok("Tensor," * 20 in why(where)["holders"][0]["stack"][2], "and whole in JSON")
    same(run.stderr, "", "a snapshot without contradictions")
    gone = torch.segments.pop()
    torch.trace = [event for event in torch.trace if (event["action"], event.get("addr")) != ("segment_alloc", gone.address)]
    run = subprocess.run([ZR, "why", write(path("short.pickle"), torch)], capture_output=True, text=True, timeout=HANG, stdin=subprocess.DEVNULL)
    ok("contradicts itself: more is live" in run.stderr, "a segment that is missing is said") or note(run.stdout + run.stderr)


test_categories()
test_equal_stacks()
test_growth()
test_ranks()
test_phases()
test_sweep()
test_order()
test_words()
test_events()
test_shapes()
done()
