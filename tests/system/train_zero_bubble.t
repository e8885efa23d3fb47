#!/usr/bin/env python3
"""Zero-bubble pipelines: the bits of 1f1b, bytes as planned, idle time by the formula, updates ahead of the norm, and what is refused."""
import json
import os
import sys

sys.path.insert(0, "tests/support")
from pairs import logged, rolled_back
from zrtest import done, note, ok, path, same, start_quickly, text_file, token_shard, train

start_quickly(fp32_alone=True)
SHAPE = dict(data=text_file(), layers=8, hidden=32, heads=4, seq=8, batch=2, steps=3, clip=0.5, eval_every=0, accumulate=6, ranks=4)
GEMMA = dict(model_type="gemma3_text", hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_hidden_layers=8, intermediate_size=48,
             vocab_size=24, sliding_window=3, sliding_window_pattern=2, query_pre_attn_scalar=5, tie_word_embeddings=False)
os.mkdir(path("gemma3"))
with open(path("gemma3/config.json"), "w") as file:
    json.dump(GEMMA, file)
MODELS = {"gpt2": SHAPE, "llama": {**SHAPE, "arch": "llama", "kv_heads": 4, "ffn": 48},
          "gemma3": {**SHAPE, "data": token_shard([n * n % 23 for n in range(2000)]), "model": path("gemma3"), "layers": None, "hidden": None, "heads": None}}
TAGS = ("param", "grad", "optimizer", "master", "gathered", "checkpoint", "activation", "comm", "workspace", "offload")


def as_planned(run, words):
    ranks = run.report["ranks"]
    differ = [(rank["rank"], tag, rank["planned_bytes"][tag], rank["peak_bytes"][tag])
              for rank in ranks for tag in TAGS if rank["planned_bytes"][tag] != rank["peak_bytes"][tag]]
    same((differ, sum(rank["driver_calls_last_step"] for rank in ranks)), ([], 0), f"{words}: every tag of every rank as planned")


for schedule, model, flags, other in (
        ("zb-h1", "gpt2", dict(pp=4), "1f1b"),
        ("zb-h1", "gpt2", dict(pp=2, stage=2, precision="bf16", dropout=0.1, attention_dropout=0.2), "1f1b"),
        ("zb-h1", "gpt2", dict(pp=2, tp=2, sequence_parallel=True), "1f1b"),
        ("zb-h1", "gpt2", dict(pp=2, stage=3, reduce="each", recompute="full:3"), "1f1b"),
        ("zb-h1", "llama", dict(pp=2, tp=2, stage=0, precision="bf16"), "gpipe"),
        ("zb-h1", "llama", dict(pp=2, stage=1, precision="bf16", reduce="once"), "1f1b"),
        ("zb-h1", "llama", dict(pp=4, recompute="full", accumulate=2), "1f1b"),
        ("zb-h1", "llama", dict(pp=2, tile=2), "1f1b"),
        ("zb-h1", "llama", dict(pp=2, lora=2, lora_alpha=4), "1f1b"),
        ("zb-h1", "gemma3", dict(pp=2, tp=2, sequence_parallel=True, dropout=0.1), "1f1b"),
        ("zb-v", "gemma3", dict(pp=4, recompute="full:5"), "1f1b"),
        ("zb-v", "llama", dict(pp=4), "1f1b"),
        ("zb-v", "llama", dict(pp=2, stage=2, precision="bf16", recompute="full"), "1f1b"),
        ("zb-v", "llama", dict(pp=2, stage=3, no_contiguous=True), "1f1b"),
        ("zb-v", "llama", dict(pp=2, stage=1, accumulate=1), "vhalf")):
    words = f"{schedule} {model} {flags}"
    run = logged(schedule=schedule, **{**MODELS[model], **flags})
    same(run.bits, logged(schedule=other, **{**MODELS[model], **flags}).bits, f"{words}: the bits of {other}") or note(run.err[-600:])
    run.report and as_planned(run, words)


# Each stage updates ahead of the norm. Steps that are clipped undo that on all stages.
for schedule, model, flags in (
        ("zb-h1", "gpt2", dict(pp=4)),
        ("zb-h1", "llama", dict(pp=2, stage=2, precision="bf16")),
        ("zb-h1", "gpt2", dict(pp=2, stage=3, reduce="each")),
        ("zb-v", "llama", dict(pp=4, precision="bf16")),
        ("zb-h1", "gpt2", dict(pp=2, stage=0)),
        ("1f1b", "gpt2", dict(pp=2, stage=0, precision="bf16", accumulate=1)),
        ("vhalf", "llama", dict(pp=2, tp=2))):
    words, flags = f"{schedule} {model} {flags}", {**MODELS[model], **flags, "steps": 8, "lr": 0.01, "warmup": 0}
    flags["clip"] = sorted(logged(schedule="1f1b", **{**flags, "clip": 1000}).norms)[4]
    plain, run = logged(schedule="1f1b", **flags), logged(schedule=schedule, speculative_update="1GiB", **flags)
    same(run.bits, plain.bits, f"{words}: the bits of updates after the norm, clipped at {flags['clip']:.3f}") or note(run.err[-600:])
    if run.report:
        as_planned(run, words)
        again = rolled_back(plain.norms, flags["clip"])
        same((run.report["speculative_updates"] > again > 0, run.report["rolled_back_updates"]), (True, again), f"{again} updates are undone")
        ok(f"and {again} were rolled back" in run.out, "which the summary has")


def planned(**flags):
    return train(ranks=None, dry_run=True, world_size=4, pp=4, layers=32, accumulate=8, flops=1e12, bandwidth=1e15, pipeline_cut="equal",
                 hidden=128, heads=4, seq=64, batch=2, data=None, vocab=16, **flags).report


plans = {schedule: planned(schedule=schedule) for schedule in ("1f1b", "zb-h1", "zb-v", "vhalf")}
idle = {schedule: plan["timeline"]["pipeline_idle_share"] for schedule, plan in plans.items()}
formula = plans["zb-h1"]["timeline"]["pipeline_idle_share_by_formula"]
ok(abs(idle["zb-h1"] / formula - 1) < 0.02, f"zb-h1: idle for {idle['zb-h1']:.4f}, {formula:.4f} by its formula")
ok(idle["zb-v"] < idle["zb-h1"] < 0.6 * idle["1f1b"], f"idle: {', '.join(f'{k} {v:.4f}' for k, v in idle.items())}")
same([stage["micro_batches_held"] for stage in plans["zb-h1"]["pipeline"]], [4] * 4, "zb-h1 holds p micro-batches on every rank")
most = max(stage["micro_batches_held"] for stage in plans["zb-v"]["pipeline"])
ok(most <= 8, f"zb-v holds {most} halves at most")

for words, flags, needle in (("offloaded checkpoints", dict(checkpoint_offload=True, recompute="full"), "--checkpoint-offload"),
                             ("C2", dict(zero_r="C2", stage=1, tp=2), "--zero-r C2"),
                             ("stages", dict(interleave=2), "--interleave requires")):
    run = train(schedule="zb-h1", pp=2, **{**SHAPE, **flags})
    ok(run.code == 2 and needle in run.err, f"zb-h1 with {words}: {run.err.strip()[:110]}") or note(f"{run.code} {run.err}")
done()
