#!/usr/bin/env python3
"""--compress powersgd:RANK and topk:SHARE: stages have the same losses, ranks send and keep the plan's bytes, a run goes on after an interruption
as if there was none, also on another number of ranks, and what is excluded is refused with the reason."""
import itertools
import os
import sys

sys.path.insert(0, "tests/support")
from zrtest import ZR_TRAIN, done, note, ok, path, same, start_quickly, text_file, train

start_quickly()
SHAPE = dict(layers=6, hidden=48, heads=4, seq=16, batch=2, steps=8, eval_every=0, warmup=1)
READING = dict.fromkeys(("data", "json", "steps", "warmup", "eval_every", "lr", "clip", "momentum", "compress_warmup"))
METHODS = {"powersgd:4": dict(compress_warmup=3), "topk:0.02": dict(compress_warmup=3, clip=0.5)}


def measured(run):
    rank = run.report["ranks"][0]
    return rank["sent_bytes_per_step"], rank["peak_bytes"]["total"] - rank["peak_bytes"]["other"]


def planned(run):
    rank = run.report["ranks"][0]
    return rank["planned_sent_bytes_per_step"], rank["planned_bytes"]["total"] - rank["planned_bytes"].get("other", 0)


plain = train(ranks=2, stage=1, **SHAPE)
for method, precision in itertools.product(METHODS, ("fp32", "bf16")):
    flags = {**SHAPE, "compress": method, "precision": precision, "steps": 4}
    runs = [train(ranks=2, stage=stage, **flags) for stage in range(4)]
    for stage, run in enumerate(runs):
        same(measured(run), planned(run), f"{method}, {precision}, stage {stage}: bytes sent and kept, as planned") or note(run.err)
    runs += [train(ranks=2, stage=1, threads=4, **flags), train(ranks=2, stage=2, no_contiguous=True, **flags)]
    same([run.losses for run in runs], [runs[0].losses] * 6, "stages, threads and places of gradients have the same losses")
    ok(measured(runs[1])[0] < measured(plain)[0], f"{measured(runs[1])[0]} bytes a step at stage 1, {measured(plain)[0]} of a plain run")
for method, flags in {**METHODS, "topk:0.05": dict(optimizer="sgd", lr=0.1, momentum=0.9)}.items():
    flags = {**SHAPE, **flags, "stage": 1, "compress": method}
    saved = path(method.replace(":", "-"))
    run = train(ranks=2, save=saved, save_every=5, **flags)
    last = os.path.join(saved, "step-00000005")
    same(train(ranks=2, threads=4, resume=last, **flags).losses, run.losses[5:], f"{method}: a resumed run has the losses of one without an interruption")
    other = train(prefix=(ZR_TRAIN, "eval"), program=text_file(), ranks=2, resume=last, **{**flags, **READING})
    ok(other.code == 0, "an evaluation, which has no gradients, leaves the errors out") or note(other.err)
    other = train(ranks=3, resume=last, **flags)
    ok(other.code == 0, "another number of ranks resumes it") or note(other.err)
    ok("powersgd" not in method or run.losses[:3] == plain.losses[:3] and run.losses != plain.losses, "the warm-up of powersgd is plain")
    other = train(ranks=2, resume=last, **{**flags, "compress": "powersgd:2", "compress_warmup": 1})
    ok(other.code == 2 and "another method or rank" in other.err, "another method does not") or note(other.err)
saved = path("plain")
train(ranks=2, stage=1, save=saved, save_every=4, **SHAPE)
for method, code in {"topk:0.02": 3, "powersgd:4": 0}.items():
    run = train(ranks=2, stage=1, resume=os.path.join(saved, "step-00000004"), compress=method, compress_warmup=4, **SHAPE)
    ok(run.code == code, f"{method} goes on from a plain run: exit code {code}") or note(run.err)
plan = train(dry_run=True, ranks=2, stage=0, compress="gradients:powersgd", compress_warmup=3, data=None, vocab="byte", **SHAPE)
ok(plan.code == 0 and "ranks send packed gradients:powersgd after 3 steps" in plan.out, "a plan says which") or note(plan.err)
for reason, flags in {"powersgd[:RANK], topk:SHARE": dict(compress="powersgd:0"), "not KIND:METHOD": dict(compress="topk:1.5"), "not KIND": dict(compress="parameters:topk:0.1"),
                      "a loss scale would change": dict(precision="fp16"), "whole models": dict(tp=2, ranks=4), "state is on the device": dict(offload_optimizer="cpu"),
                      "errors of earlier gradients": dict(noise_scale=0.9), "no kernels of a GPU": dict(backend="cuda"), "requires --stage 1, 2 or 3": dict(stage=0, compress="powersgd:4,parameters:int8")}.items():
    run = train(**{"ranks": 2, "stage": 1, "compress": "powersgd:4", **SHAPE, **flags})
    ok(run.code == 2 and reason in run.err, f"refused: {run.err.strip()[:150]}")
done()
