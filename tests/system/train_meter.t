#!/usr/bin/env python3
"""--compress-check and --compress-tolerance: a kind that loses too much is sent in full precision, which a resumed run keeps; sdp4bit: differences of
parameters and two packings of gradients; activations between pipeline stages. Bytes are the plan's, and what cannot be packed is refused with the reason."""
import json
import os
import sys

sys.path.insert(0, "tests/support")
from zrtest import done, note, ok, path, same, start_quickly, train

start_quickly()
SHAPE = dict(layers=4, hidden=48, heads=4, seq=16, batch=2, steps=6, eval_every=0, warmup=1)
ELEMENTS_TIED = 256 * 48  # two gradients of the embedding


def planned(run, words):
    """The report of rank 0 of a run whose bytes, sent and in memory, are those of its plan."""
    ranks = run.report["ranks"] if run.code == 0 else []
    ok(ranks and all(r["sent_bytes_per_step"] == r["planned_sent_bytes_per_step"] and r["peak_bytes"]["total"] - r["peak_bytes"]["other"] <= r["planned_bytes"]["total"]
                     for r in ranks), f"{words}: bytes as planned") or note(run.err[-600:])
    return ranks[0] if ranks else dict(sent_bytes_per_step=0, sent_elements_per_step=0)


def resumed(words, flags, at=2):
    """A run with `flags`, and whether it can be interrupted."""
    saved = path(words)
    run = train(**flags, save=saved, save_every=at, log=saved + ".jsonl")
    last = os.path.join(saved, f"step-{at:08}")
    again = train(**flags, resume=last)
    same(again.losses, run.losses[at:], f"{words}: a resumed run has the losses of one without an interruption") or note(again.err)
    return run, last, again


# 1. The meter: int4 gradients have an error of a tenth, int8 parameters of less than a hundredth.
LOSSY = dict(ranks=2, stage=1, compress="parameters:int8,gradients:int4", compress_check=2, compress_tolerance=0.05, **SHAPE)
run, last, again = resumed("meter", LOSSY)
check = run.report["compression_check"]
ok(check["gradients"]["full_since"] == 2 and check["parameters"]["full_since"] == 0 and 0 < check["parameters"]["error"] < 0.01, f"gradients are sent in full precision: {check}")
ok("step 2: packing gradients has a relative error of" in run.err and "gradients are sent in full precision since 2 updates" in run.out, "a message says so") or note(run.err)
lines = [json.loads(line) for line in open(path("meter") + ".jsonl")]
ok([line["step"] for line in lines if "error_gradients" in line] == [2, 4, 6] and lines[1]["error_gradients"] > 0.05 and lines[1]["full_gradients"], "the log has the checks")
ok(0 < check["sent_bytes"] <= run.report["ranks"][0]["planned_check_bytes"], f"{check['sent_bytes']} bytes were sent to check, within the plan")
ok(again.report["compression_check"]["gradients"]["full_since"] == 2, "a resumed run keeps that")
other = train(**{**LOSSY, "compress": "parameters:int8,gradients:int8"}, resume=last).report["compression_check"]
ok(other["gradients"]["full_since"] == 0 and other["gradients"]["error"] < 0.05, "but packs by another method")
plain = train(**{**LOSSY, "compress_tolerance": 0})
same(plain.losses[:2], run.losses[:2], "the first steps are packed") or note(plain.err)
ok(plain.losses[2:] != run.losses[2:], "later ones are not")
same(train(**{**LOSSY, "compress_tolerance": 0, "compress_check": 0}).losses, plain.losses, "measuring changes no loss")
for words, flags in {"stage 3 and nodes": dict(ranks=4, stage=3, node_size=2), "low rank": dict(compress="powersgd:1", stage=0), "pipeline and tensor ranks": dict(ranks=8, pp=2, tp=2, accumulate=2)}.items():
    run = train(**{**LOSSY, **flags})
    ok(run.code == 0 and run.report["compression_check"]["gradients"]["full_since"] == 2, f"{words}: gradients are sent in full precision") or note(run.err[-600:])
resumed("onebit", {**LOSSY, "compress": "gradients:onebit", "beta2": 0.5, "compress_warmup": 2}, at=4)

# 2. Differences.
SDP = dict(ranks=2, stage=1, compress="sdp4bit", clip=1000, **SHAPE)
for precision in ("fp32", "bf16"):
    run, last, _ = resumed(f"sdp4bit, {precision}", dict(SDP, precision=precision))
    rank = planned(run, f"sdp4bit, {precision}")
    parameters = (rank["sent_elements_per_step"] - ELEMENTS_TIED // 2) // 2
    gradients = rank["sent_elements_per_step"] - parameters
    ok(rank["sent_bytes_per_step"] == (parameters * 272 + gradients * 520) // 512, f"{parameters} parameters in 4 bits and {gradients} gradients in 8")
    same(train(**{**SDP, "precision": precision, "stage": 2, "threads": 2, "speculative_update": "1TB"}).losses, run.losses,
         "stage 2, two threads and updates ahead of the norm have the same losses")
    other = train(**{**SDP, "precision": precision, "ranks": 3}, resume=last)
    ok(other.code == 0, "another number of ranks resumes it") or note(other.err)
    os.unlink(os.path.join(last, "errors.00000"))
    other = train(**{**SDP, "precision": precision}, resume=last)
    ok(other.code == 3 and "errors.00000' is missing beside its manifest" in other.err, "lost parameters are found") or note(other.err)
off = max(abs(a / b - 1) for a, b in zip(run.report["loss"], train(**{**SDP, "precision": "bf16", "compress": None}).report["loss"]))
ok(off < 1e-2, f"losses are within {off:.1e} of a plain run's")
HOPS = dict(SDP, ranks=4, node_size=2)
four = [planned(train(**{**HOPS, "compress": words}), words) for words in ("sdp4bit", "parameters:difference:int4,gradients:int8", "parameters:difference:int4,gradients:int4_rotated")]
ok(four[2]["sent_bytes_per_step"] < four[0]["sent_bytes_per_step"] < four[1]["sent_bytes_per_step"], "8 bits within a node and 4 between are between both")
run, last, _ = resumed("two hops", dict(HOPS, compress_check=2, compress_tolerance=0.05))
other = train(**{**HOPS, "compress": "parameters:difference:int4,gradients:int8", "compress_check": 2}, resume=last)
ok([r.report["compression_check"]["gradients"]["full_since"] for r in (run, other)] == [2, 0], "other packings between nodes are not those that fell back") or note(other.err)

# 3. Activations; the cut is the same for all schedules.
PIPE = dict(ranks=2, pp=2, stage=0, accumulate=2, pipeline_cut="equal", **{**SHAPE, "steps": 4})
plain, packed = train(**PIPE), train(**PIPE, compress="activations:int8:mxfp8")
ranks = [planned(run, words) for words, run in {"plain": plain, "activations": packed}.items()]
ok(ranks[0]["sent_elements_per_step"] == ranks[1]["sent_elements_per_step"] and ranks[1]["sent_bytes_per_step"] < ranks[0]["sent_bytes_per_step"], "as many elements, in fewer bytes")
first, second = [rank["sent_bytes_per_step"] for rank in packed.report["ranks"]]
ok(second - first == PIPE["accumulate"] * 2 * 16 * 48 * (528 - 520) // 512, "outputs go as int8, their gradients as mxfp8")
off = max(abs(a / b - 1) for a, b in zip(packed.report["loss"], plain.report["loss"]))
ok(0 < off < 1e-2, f"losses are within {off:.1e} of a plain run's")
for schedule in ("gpipe", "naive", "zb-h1"):
    same(train(**PIPE, schedule=schedule, compress="activations:int8:mxfp8").losses, packed.losses, f"{schedule}: the same losses")
for words, flags in {"recomputation": dict(recompute="full"), "4 threads": dict(threads=4)}.items():
    run = train(**PIPE, **flags, compress="activations:int8:mxfp8")
    planned(run, words)
    same(run.losses, packed.losses, f"{words}: the same losses")
for schedule in ("vhalf", "zb-v"):
    planned(train(**PIPE, schedule=schedule, compress="activations:int8"), f"{schedule}, two stages per rank")
for words, flags in {"two versions": dict(schedule="2bw"), "tensor ranks": dict(ranks=4, tp=2), "data ranks": dict(ranks=4, stage=1, compress="activations:int8,gradients:int8"), "bf16": dict(precision="bf16")}.items():
    run = train(**{**PIPE, "compress": "activations:int8", **flags})
    ok(run.code == 0, words) or note(run.err[-600:])

for reason, flags in {"activations requires --pp": dict(compress="activations:int8"), "not KIND:METHOD": dict(compress="activations:onebit"), "not KIND": dict(compress="gradients:int8:int4:int4"), "give --stage 1 or 2": dict(stage=3),
                      "no loss scale is chosen": {**PIPE, "compress": "activations:int8", "precision": "fp16"}, "state is on the device": dict(offload_optimizer="cpu"),
                      "it replaces parameters": dict(ema=0.9), "requires --compress-check above 0": dict(compress_tolerance=0.1, compress_check=0),
                      "has checks at --stage 1": dict(stage=0, compress="onebit", compress_check=2), "requires --compress": dict(compress=None, compress_check=5)}.items():
    run = train(**{**SDP, **flags})
    ok(run.code == 2 and reason in run.err, f"refused: {run.err.strip()[:150]}")
done()
