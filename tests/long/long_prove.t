#!/usr/bin/env python3
"""Every combination of settings, in pairs, beside one dense rank: --prove finds nothing, or the settings are refused in
words with what would do. Nothing crashes, hangs, or is left out in silence."""
import os
import random
import re
import sys
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, "tests/support")
from pairs import hard_to_prove, optimizers, pairwise
from zrtest import SEED, arguments, done, leftovers, note, ok, path, same, train

DISK = path("disk")
os.mkdir(DISK)
COUNT, HARD = int(os.environ.get("ZR_PROVE", 300)), int(os.environ.get("ZR_PROVE_HARD", 60))
OPTIMIZERS = optimizers()
SHAPES = (dict(hidden=48, heads=12, seq=12), dict(hidden=36, heads=6, seq=8), dict(hidden=24, heads=6, seq=6), dict(hidden=24, heads=4, seq=5))
FACTORS = dict(shape=SHAPES, arch=("gpt2", "llama"), tp=(1, 2, 3), data=(1, 2), pp=(None, None, 2, 3), schedule=(None, "naive", "gpipe", "1f1b", "vhalf", "zb-h1", "zb-v"),
               interleave=(None, None, 2), pipeline_cut=(None, "memory", "equal"), stage=(0, 1, 2, 3),
               sequence_parallel=(None, None, True), partition_activations=(None, None, True), checkpoint_offload=(None, True), offload_optimizer=(None, None, "cpu"), offload_param=(*[None] * 6, "cpu", "nvme:" + DISK), offload_ratio=(None, None, 0.5),
               recompute=("none", "selective", "full", "full:1"), no_contiguous=(None, True), no_constant_buffers=(None, True),
               precision=("fp32", "bf16", "fp16"), accumulate=(1, 2, 6), reduce=("each", "each", "each", "once"), optimizer=tuple(OPTIMIZERS),
               batch=(1, 2), layers=(1, 3, 6), bucket_bytes=(4096, 1 << 20), threads=(1, 2), clip=(0, 0.5), tie_embeddings=(None, True),
               tile=(None, None, None, 2, 4), force=(None, True), dropout=(None, 0.2), ema=(None, 0.9),
               zero_r=(None, None, "C1", "C2", "C5"))


def rows():
    """All pairs, with another seed each time, until there are enough."""
    seed, count = 1, 0
    while count < COUNT:
        for row in pairwise(seed, **FACTORS):
            yield row
            count += 1
            if count == COUNT:
                return
        seed += 1


def run(row):
    row = dict(row)
    shape, tp, data = row.pop("shape"), row["tp"], row.pop("data")
    if row["arch"] == "gpt2":
        row["tie_embeddings"] = None
    if not row["pp"]:
        row.update(dict.fromkeys(("schedule", "interleave", "pipeline_cut")))
    elif row["schedule"] != "1f1b":
        row["interleave"] = None
    if row["zero_r"]:
        row.update(dict.fromkeys(("stage", "recompute", "partition_activations", "checkpoint_offload", "no_contiguous", "no_constant_buffers")))
    if row["no_constant_buffers"]:
        row["bucket_bytes"] = None
    if row["stage"] != 3 or row["zero_r"]:
        row["offload_param"] = None
    elif row["offload_param"]:
        row["offload_optimizer"] = "cpu"
    if not row["partition_activations"] and row["zero_r"] not in ("C2", "C5"):
        row["force"] = None
    if not row["offload_optimizer"]:
        row["offload_ratio"] = None
    if row["offload_param"] and row["offload_param"] != "cpu":
        row.update(nvme_depth=4, force=True)
    if "--tp" in OPTIMIZERS[row["optimizer"]]:  # train_optimizers.t has the refusals
        row.update(tp=1, sequence_parallel=None, tile=None)
        tp = 1
    more = dict(loss_scale_power=6) if row["precision"] == "fp16" else {}
    return train(ranks=tp * data * (row["pp"] or 1), prove=True, steps=3, eval_every=0, warmup=1, **more, **shape, **row)


chosen, kinds = list(rows()), {}
with ThreadPoolExecutor(2) as pool:
    for row, got in zip(chosen, pool.map(run, chosen)):
        words = " ".join(f"{k} {v}" for k, v in row.items() if v is not None)
        refused = got.code == 2 and re.search(r"(give|use|set|take|leave|try|add|requires|excludes|needs|nearest)", got.err)
        proved = got.code == 0 and re.search(r"proved: beside one dense rank", got.err)
        kinds["refused" if refused else "proved" if proved else "neither"] = kinds.get("refused" if refused else "proved" if proved else "neither", 0) + 1
        ok(refused or proved, words) or note(f"{got.code} {got.err[-500:]}")
ok(kinds.get("proved", 0) > COUNT / 3, f"of {COUNT} settings {kinds.get('proved', 0)} are proved, {kinds.get('refused', 0)} refused")
hard = list(hard_to_prove(SEED, HARD))
with ThreadPoolExecutor(2) as pool:
    for row, got in zip(hard, pool.map(lambda row: train(**row), hard)):
        ok(got.code == 0 and "proved: beside one dense rank" in got.err, "right: " + " ".join(arguments(**row))) or note(f"{got.code} {got.err[-500:]}")
got = train(ranks=2, tp=2, prove=True, tolerance=1e-9, steps=3)
ok(got.code == 1 and re.search(r"--prove: after step 1 .* \(unit \S+\) is on rank \d by \S+ of its size", got.err),
   "what differs is named, with its unit and rank") or note(got.err)
leftovers()
done()
