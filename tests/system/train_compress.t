#!/usr/bin/env python3
"""--compress: what ranks send is the plan's bytes and the packings' formula; losses are near those of a plain run, and do not depend on the stage,
on threads, on where state is kept or on an interruption; what cannot be packed is refused with the reason."""
import array
import itertools
import json
import os
import sys

sys.path.insert(0, "tests/support")
from saves import read_safetensors
from zrtest import done, note, ok, path, same, start_quickly, train

start_quickly()
BLOCK, BYTES = 512, {"int8": 512 + 2 * 4, "int4": 256 + 4 * 4, "int4_rotated": 256 + 4 * 4, "mxfp8": 512 + 16}
SHAPE = dict(layers=6, hidden=48, heads=4, seq=16, batch=2, steps=4, eval_every=0, warmup=1)
BOTH = "parameters:{0},gradients:{0}"


def sent(run):
    rank = run.report["ranks"][0]
    return rank["sent_elements_per_step"], rank["sent_bytes_per_step"], rank["planned_sent_bytes_per_step"]


def packed(words, packing="int8", **flags):
    """A run that sends everything packed, whose bytes are right."""
    run = train(**{"ranks": 2, "compress": BOTH.format(packing), **SHAPE, **flags})
    elements, got, planned = sent(run) if run.code == 0 else (1, 0, 0)
    ok(run.code == 0 and got == planned == elements * BYTES[packing] // BLOCK, f"{words}: {elements} elements in {got} bytes, as planned") or note(run.err[-600:])
    return run


for precision, micro_batches in itertools.product(("fp32", "bf16"), (1, 2)):
    flags = dict(precision=precision, accumulate=micro_batches)
    plain = train(ranks=2, stage=1, **flags, **SHAPE)
    runs = [packed(f"{precision}, {micro_batches} micro-batches, stage {stage}", stage=stage, **flags) for stage in (1, 2, 3)]
    ok(all(run.losses == runs[0].losses for run in runs), "stages have the same losses")
    off = max(abs(a / b - 1) for a, b in zip(runs[0].report["loss"], plain.report["loss"]))
    ok(0 < off < 1e-2, f"which are within {off:.1e} of a plain run's")
want = packed("stage 3", stage=3).losses
for words, flags in {"4 threads": dict(threads=4), "state on the host": dict(offload_optimizer="cpu"), "parameters too": dict(offload_optimizer="cpu", offload_param="cpu"),
                     "scattered gradients": dict(no_contiguous=True)}.items():
    same(packed(words, stage=3, **flags).losses, want, f"{words}: the same losses")
for packing in BYTES:
    packed(packing, packing, ranks=3, stage=2, tile=2 if packing == "int4" else 1)
for stage in (1, 3):
    flags = dict(precision="fp16", stage=stage, loss_scale_power=17, loss_scale_hysteresis=1)
    runs = [train(**{"ranks": 2, **SHAPE, **flags}), packed("fp16", **flags), packed("fp16", "mxfp8", **flags)]
    same([run.report["skipped_steps"] for run in runs], [1] * 3, f"stage {stage}: packed gradients skip the steps of plain ones")
for words, flags in {"tensor ranks have the same norms and biases": dict(ranks=4, tp=2, stage=2, compress=BOTH.format("int4")),
                     "no step depends on the last one's sums": dict(ranks=2, stage=1, compress=BOTH.format("int4_rotated"))}.items():
    saved = path(words)
    whole = train(save=saved, save_every=2, **flags, **SHAPE)  # a checkpoint has one of the copies, and no padding
    run = train(resume=os.path.join(saved, "step-00000002"), **flags, **SHAPE)
    same(run.losses, whole.losses[2:], words) or note(run.err)
saved = path("saved")
train(ranks=2, stage=3, compress=BOTH.format("int8"), save=saved, save_every=2, **SHAPE)
run = train(ranks=2, stage=1, compress=BOTH.format("int8"), resume=os.path.join(saved, "step-00000002"), **SHAPE)
same(run.losses, want[2:], "a resumed run has the losses of one without an interruption") or note(run.err)

FOUR = dict(ranks=4, stage=3, **SHAPE)
plain, nodes, both = [train(**FOUR, **flags) for flags in ({}, dict(compress="hpz", node_size=2), dict(compress="qwz,qgz,hpz", node_size=2))]
same(nodes.losses, plain.losses, "a copy per node changes no losses") or note(nodes.err)
ok(sent(nodes)[0] < sent(plain)[0] and all(sent(run)[1] == sent(run)[2] for run in (nodes, both)), f"it saves {sent(plain)[0] - sent(nodes)[0]} of {sent(plain)[0]} elements, as planned")
ok(both.code == 0 and both.report["ranks"][0]["planned_bytes"]["total"] >= both.report["ranks"][0]["peak_bytes"]["total"] - both.report["ranks"][0]["peak_bytes"]["other"],
   "its bytes are planned") or note(both.err)
same([train(**FOUR, compress="qwz,qgz,hpz", node_size=2, **flags).losses for flags in (dict(threads=2), dict(offload_optimizer="cpu", offload_param="cpu"))], [both.losses] * 2,
     "gradients in two hops have the same losses on other threads, and with parameters on the host")
ONEBIT = dict(ranks=2, stage=1, compress="gradients:onebit", beta2=0.5)
TENSORS = 4 + 12 * SHAPE["layers"]
for optimizer, precision, stage in (("lamb", "fp32", 0), ("lamb", "bf16", 1), *itertools.product(("adamw",), ("fp32", "bf16"), (0, 1))):
    flags = {**ONEBIT, **SHAPE, "optimizer": optimizer, "precision": precision, "steps": 8, "stage": stage}
    if precision == "fp32" and optimizer == "adamw":  # the warm-up ends after the one of the rate, 6 steps, or as soon as there is a ratio, after 3
        flags.update(compress_warmup="auto", warmup=1 if stage else 6)
    saved = path(f"onebit-{optimizer}-{precision}-{stage}")
    run = train(save=saved, save_every=5, **flags)
    elements, got, planned = sent(run)
    sums = 2 * 8 * TENSORS if optimizer == "lamb" and stage else 0  # two doubles of each tensor go to the other rank
    ok(run.code == 0 and got == planned == (elements - sums // 4) * (64 + 4) // BLOCK + sums, f"onebit, {optimizer}, {precision}, stage {stage}: {elements} elements in {got} bytes, as planned") or note(run.err)
    rank = run.report["ranks"][0]
    ok(rank["planned_bytes"]["total"] >= rank["peak_bytes"]["total"] - rank["peak_bytes"]["other"], "its bytes are planned")
    same(train(threads=4, accumulate=1, **flags).losses, run.losses, "4 threads: the same losses")
    last = os.path.join(saved, "step-00000005")
    again = train(resume=last, **flags)
    same(again.losses, run.losses[5:], "a resumed run has the losses of one without an interruption") or note(again.err)
    if "compress_warmup" in flags:
        same([r.report["compress_warmup"] for r in (run, again)], [dict(updates=3 if stage else 6, ratio=run.report["compress_warmup"]["ratio"])] * 2,
             "and its warm-up ends when the variance has settled")
        ok(f"step {3 if stage else 6}: the variance has settled" in run.err and (stage or "after the variance has settled" in run.out), "a message says so") or note(run.err)
    other = train(**{**flags, "ranks": 3}, resume=last)
    ok(other.code == 0, "another number of ranks resumes it") or note(other.err)
run = train(resume=last, **{**flags, "stage": 0})
ok(run.code != 0 and "of onebit at another stage" in run.err, "errors of gradients are not those of momentum") or note(run.err)
for at, bits, what in ((24, 8, "or damaged"), (400, 255, "are damaged")):
    with open(os.path.join(last, "errors.00001"), "r+b") as file:
        file.seek(at)
        before = file.read(1)
        file.seek(at)
        file.write(bytes([before[0] ^ bits]))
        file.flush()
        run = train(resume=last, **flags)
        file.seek(at)
        file.write(before)
    ok(run.code != 0 and what in run.err, f"damaged errors are refused: byte {at}") or note(run.err)

ZERONE = {**SHAPE, "ranks": 2, "stage": 0, "compress": "gradients:zerone", "beta2": 0.5, "steps": 15, "compress_warmup": 3, "zerone_variance": 1, "zerone_local": 2, "zerone_interval": 4}
for precision in ("fp32", "bf16"):
    some, saved = {**ZERONE, "precision": precision}, path(f"zerone-{precision}")
    run = train(accumulate=1, **some)
    elements, got, planned = sent(run)
    rank = run.report["ranks"][0]
    ok(run.code == 0 and got == planned == elements * (64 + 4) // BLOCK, f"zerone, {precision}: {elements} elements in {got} bytes, as planned") or note(run.err)
    mean = (2 * elements * (4 if precision == "fp32" else 2) + 6 * got) / 15  # full, sent and local steps: FSFSS LS LLLS LLLS
    ok(rank["mean_sent_bytes"] == rank["planned_mean_sent_bytes"] == mean, f"{mean:.0f} bytes in the mean, as planned")
    ok(rank["planned_bytes"]["total"] >= rank["peak_bytes"]["total"] - rank["peak_bytes"]["other"], "its bytes are planned")
    ninth = os.path.join(saved, "step-00000009")
    same(train(threads=4, save=saved, save_every=9, **some).losses, run.losses, "4 threads and a save after local steps: the same losses")
    same(train(resume=ninth, **some).losses, run.losses[9:], "a run resumed after local steps has the losses of one without an interruption")
other = train(resume=ninth, **{**some, "ranks": 3})
ok(other.code == 0, "another number of ranks resumes it") or note(other.err)
other = train(resume=ninth, **{**some, "zerone_variance": 2})
ok(other.code != 0 and "another --zerone-variance" in other.err, "the updates of the variance are those of the run") or note(other.err)
alike = train(**{**ZERONE, "zerone_variance": 100, "compress_warmup": 100, "lora": 4})
same(alike.losses, train(**{**ZERONE, "compress": None, "lora": 4, **{name: None for name in ZERONE if "zerone" in name or "warmup" in name}, "warmup": 1}).losses,
     "steps in full precision are those of a plain run, also of adapters") or note(alike.err)
with open(path("rare"), "wb") as out:  # the second shard of the embedding has no gradients in the warm-up
    common = b"a common text. " * 400
    out.write(common + bytes(range(128, 256)) * 5 + common)
train(**{**SHAPE, **ONEBIT, "steps": 30, "seed": 5}, arch="llama", data=path("rare"), save=path("seen"))
tensors = read_safetensors(os.path.join(path("seen"), "step-00000030", "state.safetensors"))[0]
least, most = [limit(array.array("f", tensors[name][2])[128 * SHAPE["hidden"]:]) for limit, name in ((min, "optimizer.variance.model.embed_tokens.weight"), (max, "model.embed_tokens.weight"))]
ok(least > 0 and most < 10, f"tokens that the warm-up has not seen have values up to {most:.2f}, and a variance of at least {least:.1e}")
for reason, more in {"the gradients that were sent; if none were": dict(resume=os.path.join(path("saved"), "step-00000004")), "resume with --compress-warmup 2": dict(resume=last, compress_warmup=3)}.items():
    run = train(**{**flags, **more})
    ok(run.code != 0 and reason in run.err, f"refused: {run.err.strip()[:300]}")
for words, more in {"signs": ONEBIT, "versions of parameters": dict(ranks=4, stage=1, pp=2, schedule="2bw", accumulate=2)}.items():
    run = train(memory_limit="2MiB", **{**SHAPE, **more})
    ok(run.code == 4 and "nothing smaller would" in run.err, f"no advice has a stage that {words} exclude") or note(run.err)
plan = train(dry_run=True, **{**SHAPE, **ONEBIT, "beta2": 0.999})
ok("gradients:onebit after 1000 steps" in plan.out, "the variance settles in 1 / (1 - beta2) steps") or note(plan.err)
plan = train(dry_run=True, world_size=8, ranks=1, stage=3, compress="qwz,qgz", data=None, vocab="byte", **SHAPE)
ok(plan.code == 0 and "ranks send packed parameters:int8,gradients:int4" in plan.out and "packed, sent by a rank per step" in plan.out,
   "a plan has the bytes, and ZeRO++'s names are known") or note(plan.err)
file = path("zero++.json")
with open(file, "w") as out:
    json.dump({"zero_optimization": {"stage": 2, "zero_quantized_weights": True, "zero_quantized_gradients": True}}, out)
run = train(ranks=2, stage=None, config=file, **SHAPE)
ok(run.code == 0 and "parameters:int8,gradients:int4" in run.out, "DeepSpeed's keys set it") or note(run.err)
for reason, flags in {"not KIND:METHOD": dict(compress="weights:int8", stage=1), "int4_rotated, mxfp8": dict(compress="gradients:int3", stage=1),
                      "requires several data ranks": dict(ranks=1, stage=1), "requires --stage 1, 2 or 3": dict(stage=0),
                      "--node-size must divide": dict(stage=1, node_size=3), "hpz requires --stage 3: each node": dict(stage=2, compress="hpz"),
                      "--node-size requires --compress": dict(compress=None, node_size=2), "other methods have no nodes": dict(ranks=4, stage=1, compress="powersgd:2", node_size=2),
                      "requires --stage 0 or 1": {**ONEBIT, "stage": 2}, "errors of earlier gradients": {**ONEBIT, "noise_scale": 0.9}, "ends before the variance is settled": {**ONEBIT, "compress_warmup": 1},
                      "a loss scale would change": {**ONEBIT, "precision": "fp16"}, "requires --optimizer adamw": {**ONEBIT, "optimizer": "sgd", "beta2": None},
                      "--compress cannot be combined with --prove": dict(prove=True, stage=1), "--cuda-graph cannot be combined": {**ONEBIT, "backend": "cuda", "cuda_graph": True}}.items():
    run = train(**{"ranks": 2, "compress": "gradients:int8", **SHAPE, **flags})
    ok(run.code == 2 and reason in run.err, f"refused: {run.err.strip()[:150]}")
for reason, flags in {"requires --stage 0: between exchanges": dict(stage=1), "exchanges no gradients": dict(compress_check=2),
                      "cannot be combined with --ema": dict(ema=0.9), "a loss scale would change": dict(precision="fp16"), "without a variance": dict(compress_warmup=0),
                      "state is on the device": dict(offload_optimizer="cpu", ranks=2), "cannot be combined with --cp": dict(ranks=4, cp=2), "whole models": dict(ranks=4, pp=2),
                      "errors of earlier gradients": dict(noise_scale=0.9), "requires --compress gradients:zerone": dict(compress="topk:0.1", compress_warmup=None)}.items():
    run = train(**{**ZERONE, **flags})
    ok(run.code == 2 and reason in run.err, f"refused: {run.err.strip()[:150]}")
done()
