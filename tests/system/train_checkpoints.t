#!/usr/bin/env python3
"""Activation checkpoints: whole or in parts, here or on the host, in a pool or in blocks, with any recomputation: the
bits of a run are the same, and the bytes are what they should be."""
import json
import sys

sys.path.insert(0, "tests/support")
from pairs import logged, most_pairs
from zrtest import done, leftovers, note, ok, path, same, start_quickly, train

start_quickly(fp32_alone=True)
LAYERS, HIDDEN, SEQ, BATCH = 5, 48, 12, 3
SHAPE = dict(layers=LAYERS, hidden=HIDDEN, heads=12, seq=SEQ, batch=BATCH, steps=4, clip=0.5, eval_every=2)
MODELS = {"gpt2": SHAPE, "llama": {**SHAPE, "arch": "llama", "kv_heads": 12, "ffn": 60}}
SWITCH = {False: None, True: True}
bases = {}


def base(model, tensor, data, precision, accumulate):
    key = model, tensor, data, precision, accumulate
    if key not in bases:
        bases[key] = logged(ranks=tensor * data, tp=tensor, precision=precision, accumulate=accumulate,
                            no_contiguous=True, **MODELS[model])
        same(bases[key].code, 0, f"{key}: whole, in blocks, nothing recomputed") or note(bases[key].err[-600:])
    return bases[key]


def bytes_of(run, words, tensor, parts, host, element):
    for rank in run.report["ranks"]:
        planned, measured = rank["planned_bytes"], rank["peak_bytes"]
        differ = [tag for tag in planned if tag not in ("other", "total") and planned[tag] != measured[tag]]
        tier = rank.get("tiers", {}).get("host", {"planned_bytes": 0, "peak_bytes": 0})
        if not (not differ and tier["planned_bytes"] == tier["peak_bytes"] and rank["driver_calls_last_step"] == 0):
            return ok(False, f"{words}: as planned") or note(f"{differ} {tier} {rank['driver_calls_last_step']}")
        if host:
            kept = LAYERS * SEQ * BATCH * HIDDEN * element // parts
            ok(measured["checkpoint"] == 0 and kept <= tier["peak_bytes"] <= kept + LAYERS * 256 and
               tier["moved_bytes_per_step"] == tier["planned_moved_bytes_per_step"], f"{words}: host tier") or note(f"{tier} {kept}")
    return ok(True, f"{words}: every tag of every rank as planned, no driver call in the last step")


for row in most_pairs(7, model=tuple(MODELS), tensor=(1, 2, 4), data=(1, 2), stage=(0, 1, 2, 3), partition=(False, True),
                    host=(False, True), scattered=(False, True), buffers=(False, True),
                    recompute=("none", "selective", "full", "full:2"), precision=("fp32", "bf16"), accumulate=(1, 2)):
    partition = row["partition"] and row["tensor"] > 1
    want = base(row["model"], row["tensor"], row["data"], row["precision"], row["accumulate"])
    got = logged(ranks=row["tensor"] * row["data"], tp=row["tensor"], stage=row["stage"], recompute=row["recompute"],
                 precision=row["precision"], accumulate=row["accumulate"], partition_activations=SWITCH[partition],
                 checkpoint_offload=SWITCH[row["host"]], no_contiguous=SWITCH[row["scattered"]],
                 no_constant_buffers=SWITCH[row["buffers"]], **MODELS[row["model"]])
    words = " ".join(f"{k} {v}" for k, v in row.items())
    if same(got.bits, want.bits, words):
        bytes_of(got, words, row["tensor"], row["tensor"] if partition else 1, row["host"], 4 if row["precision"] == "fp32" else 2)
    else:
        note(got.err[-600:])

# One input per layer; parts divide them by the ranks exactly; on the host there is nothing of them here.
kept = {}
for tensor, flags in ((1, {}), (2, {}), (2, dict(partition_activations=True)), (4, dict(partition_activations=True)),
                      (4, dict(partition_activations=True, checkpoint_offload=True))):
    run = train(ranks=tensor, tp=tensor, recompute="full", **flags, **{**SHAPE, "batch": 4, "layers": 4, "steps": 1})
    kept[tensor, len(flags)] = run.report["ranks"][-1]["peak_bytes"]["checkpoint"] if run.report else run.err
layer = 4 * SEQ * HIDDEN * 4
same(kept, {(1, 0): 4 * layer, (2, 0): 4 * layer, (2, 1): 2 * layer, (4, 1): layer, (4, 2): 0},
     "full recomputation keeps an input per layer, partitioning divides it by the ranks, the host takes all of it")
# A message here is what an all-gather of a checkpoint sends; Megatron's six all-reduces for a recomputed layer are twelve.
message = SEQ * BATCH * HIDDEN * 3 // 4
sent = [train(ranks=4, tp=4, recompute="full", partition_activations=SWITCH[on], **{**SHAPE, "layers": 40, "steps": 1}).report["ranks"][0]["sent_elements_per_step"]
        for on in (False, True)]
ok(0 < sent[1] - sent[0] <= 0.10 * sent[0], f"partitioning sends {100 * (sent[1] / sent[0] - 1):.1f} % more than the sums of tensor ranks, "
   "of which a recomputed layer has five, not Megatron's six")
ok(sent[1] - sent[0] <= 0.084 * 12 * 40 * message and sent[1] < 12 * 40 * message,
   f"which is {100 * (sent[1] - sent[0]) / (12 * 40 * message):.1f} % by the paper's count; with it a layer sends "
   f"{sent[1] / 40 / message:.1f} messages, fewer than the paper's 12 without")

# Activations of a layer as Korthikanti et al. count them (arXiv 2205.05198), without dropout, in units of tokens x hidden:
# of 34 there are 32, of which t ranks divide 24 and sequence parallelism the other 8; the scores' 5as/h are 2as/h, and
# with --recompute selective 0, and on a card always, whose backward reads no probabilities (a plan of one needs no card).
# What is more here: 6 fp32 numbers per token and head, log-sums and means.
S, B, H, A = 256, 2, 512, 8
for words, flags, expected in [(f"{backend}, tp {t}{' in rows' if rows else ''}, {recompute}", dict(backend=backend, tp=t, recompute=recompute, sequence_parallel=SWITCH[rows]),
                                2 if recompute == "full" and not rows else 2 / t if recompute == "full" else
                                (32 / t if rows else 8 + 24 / t) + (2 * A * S / H / t if recompute == "none" and backend == "host" else 0))
                               for t in (1, 2, 4) for rows in (False, True) if t > 1 or not rows for recompute in ("none", "selective", "full")
                               for backend in ("host", "cuda") if backend == "host" or not rows]:
    plans = [train(ranks=None, dry_run=True, world_size=flags["tp"], layers=layers, hidden=H, heads=A, seq=S, batch=B, precision="bf16", **flags).report
             for layers in (8, 16)]
    kept = [sum(plan["ranks"][0]["planned_bytes"][tag] for tag in ("checkpoint", "activation")) for plan in plans]
    got = (kept[1] - kept[0]) / 8 / (S * B * H)
    ok(abs(got / expected - 1) < 0.02, f"{words}: a layer keeps {got:.2f} bytes per token and channel, {expected:.2f} by the formula")

# With everything on: of what is reserved 0.5 % at most is in no block, or two granules of each pool.
for words, flags, pools in (("C1", dict(world_size=2, zero_r="C1"), 2), ("C4", dict(world_size=4, tp=2, zero_r="C4"), 3),
                            ("C5", dict(world_size=4, tp=2, zero_r="C5"), 3), ("C2 in four stages", dict(world_size=16, tp=4, pp=4, accumulate=8, zero_r="C2"), 6),
                            ("C3 in a V", dict(world_size=8, pp=4, accumulate=8, schedule="vhalf", zero_r="C3"), 7)):
    ranks = train(ranks=None, stage=None, dry_run=True, vocab=50257, layers=12, hidden=768, heads=12, seq=256, batch=2, **flags).report["ranks"]
    over = [(rank["planned_reserved_bytes"] - rank["planned_bytes"]["total"], rank["planned_bytes"]["total"]) for rank in ranks]
    ok(all(more <= max(0.005 * total, pools * (4 << 20)) for more, total in over),
       f"{words}: {max(more / total for more, total in over):.2%} stranded, {max(more for more, _ in over) / (2 << 20):.1f} granules of {pools} pools")

# Without pools and planned places gradients lie in the holes of activations, which then cannot come back.
LARGE = dict(ranks=None, dry_run=True, world_size=2, stage=1, layers=16, hidden=512, heads=8, seq=96, batch=4, threads=1)
planned = train(no_contiguous=True, **LARGE).report["ranks"][0]
caching = train(no_contiguous=True, policy="caching", **LARGE).report["policy"]
stranded = 1 - caching["live_bytes"] / caching["reserved_bytes"]
ok(0.1 < stranded < 0.5 and caching["live_bytes"] >= planned["planned_bytes"]["total"] * 0.98,
   f"the caching allocator strands {stranded:.1%} of what it takes for blocks without places")
ok(planned["planned_reserved_bytes"] <= 1.01 * planned["planned_bytes"]["total"], "zr's places strand less than 1 %")
limit = planned["planned_reserved_bytes"] + (32 << 20)
refused, fits = (train(no_contiguous=True, memory_limit=limit, policy=policy, **LARGE) for policy in ("caching", "zr"))
ok(refused.code == 4 and "finds no room" in refused.err and fits.code == 0, "and finds no room where zr does") or note(refused.err + fits.err)
scattered = [logged(ranks=2, stage=stage, accumulate=accumulate, precision=precision, no_contiguous=SWITCH[on], **SHAPE)
             for stage, accumulate, precision in ((0, 1, "fp32"), (1, 2, "fp32"), (2, 2, "bf16"), (3, 1, "fp16"), (1, 3, "bf16")) for on in (False, True)]
for pool, blocks in zip(scattered[::2], scattered[1::2]):
    same(blocks.bits, pool.bits, "gradients in blocks have the same bits") or note(blocks.err[-300:])

# What would save nothing, and what does not fit together.
for words, flags, needle in (("one rank", {}, "--tp 2"), ("rows divided already", dict(ranks=2, tp=2, sequence_parallel=True), "--force"),
                             ("too many layers", dict(partition_activations=None, recompute="full:3"), "--layers"),
                             ("no layers", dict(partition_activations=None, recompute="full:0"), "full:1"),
                             ("nothing to force", dict(partition_activations=None, force=True), "leave it out"),
                             ("two sizes of buffers", dict(partition_activations=None, no_constant_buffers=True, bucket_bytes=4096), "--bucket-bytes"),
                             ("a bandwidth of nothing", dict(partition_activations=None, host_bandwidth=1e9), "--checkpoint-offload")):
    run = train(**{"partition_activations": True, **flags})
    ok(run.code == 2 and needle in run.err, f"{words}: {run.err.strip()[:100]}") or note(f"{run.code} {run.err}")
forced = [logged(ranks=2, tp=2, sequence_parallel=True, partition_activations=SWITCH[on], force=SWITCH[on], **SHAPE) for on in (False, True)]
same(forced[1].bits, forced[0].bits, "--force does it all the same")
preset = {"C1": dict(stage=1), "C2": dict(stage=1, partition_activations=True), "C3": dict(stage=2),
          "C4": dict(stage=2, partition_activations=True), "C5": dict(stage=2, partition_activations=True, checkpoint_offload=True)}
for name, flags in preset.items():
    plans = [train(ranks=None, dry_run=True, world_size=8, tp=2, **{**SHAPE, "stage": None, **more})
             for more in (dict(zero_r=name), dict(recompute="full", **flags))]
    ok(plans[0].code == plans[1].code == 0 and plans[0].report["ranks"] == plans[1].report["ranks"], f"--zero-r {name} is {flags}") or note(plans[0].err)
for flags in (dict(stage=3), dict(recompute="selective"), dict(no_contiguous=True), dict(no_constant_buffers=True), dict(checkpoint_offload=True)):
    run = train(ranks=2, tp=2, zero_r="C4", **{"stage": None, **flags})
    ok(run.code == 2 and "contradicts" in run.err, f"--zero-r C4 and {flags}: {run.err.strip()[:100]}") or note(f"{run.code} {run.err}")
config = path("config.json")
for keys, flags in (({"partition_activations": True, "cpu_checkpointing": True, "number_checkpoints": 4}, dict(partition_activations=True, checkpoint_offload=True)),
                    ({"contiguous_memory_optimization": False}, dict(no_contiguous=True))):
    with open(config, "w") as file:
        json.dump({"activation_checkpointing": keys}, file)
    plans = [train(ranks=2, tp=2, dry_run=True, **SHAPE, **more) for more in (dict(config=config), flags)]
    ok(plans[0].code == plans[1].code == 0 and plans[0].report["ranks"] == plans[1].report["ranks"], f"DeepSpeed's {keys} are {flags}") or note(plans[0].err)
timed = [train(ranks=4, tp=4, recompute="full", partition_activations=True, checkpoint_offload=True, dry_run=True, flops=1e12,
               bandwidth=1e11, host_bandwidth=speed, **SHAPE).report["timeline"]["waiting_seconds"] for speed in (1e13, 1e8)]
ok(timed[0] < timed[1], "a plan's step waits for slow copies")
leftovers()
done()
