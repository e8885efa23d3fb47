#!/usr/bin/env python3
"""What state on a disk costs in time: a step with that of the optimizer, with a delayed update too, and with parameters, beside the
longer of a step without and of the disk's own time for the bytes at the rate that the run measures; and the share of waiting
that the timeline promises beside the measured one. In turn, the round with the median ratio; prints, and never fails on time.
bench_nvme_train.py [FOLDER]; ZR_STEPS, ZR_ROUNDS, ZR_THREADS (all processors), ZR_BATCH (4: with fewer the disk is the longer one) and
ZR_VOCAB (256, bytes; with GPT-2's 50257 the embedding is the largest unit)."""
import os
import statistics
import sys

sys.path.insert(0, "tests/support")
from zrtest import token_shard, train

FOLDER = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("BUILD", "build"))
STEPS, WARM, ROUNDS = int(os.environ.get("ZR_STEPS", 8)), 2, int(os.environ.get("ZR_ROUNDS", 3))
SHAPE = dict(layers=12, hidden=768, heads=12, seq=128, batch=int(os.environ.get("ZR_BATCH", 4)),
             threads=int(os.environ.get("ZR_THREADS", os.cpu_count())), eval_every=0, steps=STEPS, precision="bf16", timeout=1200)
VOCABULARY = int(os.environ.get("ZR_VOCAB", 256))
if VOCABULARY != 256:
    SHAPE.update(vocab=VOCABULARY, data=token_shard([i * 7919 % VOCABULARY for i in range(100000)]))


def measured(**flags):
    run = train(**{**SHAPE, **flags})
    if run.code:
        raise SystemExit(run.err)
    return statistics.median(run.report["step_seconds"][WARM:-1]), run.report  # the last one waits for its own delayed update


def beside(flops, **flags):
    """The ratio, a step without, a step with, and its report; each beside its own: what else runs on the machine changes."""
    without = measured()[0]
    seconds, report = measured(**{"offload_optimizer": "nvme:" + FOLDER, **flags}, flops=flops / without, bandwidth=1e12)
    promised = report["timeline"]["tiers"]["nvme"]
    disk = promised["moved_bytes"] / promised["bytes_per_second"]
    return seconds / max(without, disk), without, seconds, disk, report


without, report = measured()
plan = train(**{**SHAPE, "dry_run": True, "flops": 1e9, "bandwidth": 1e12}).report["timeline"]
print(f"{report['parameters'] / 1e6:.0f} M parameters, {SHAPE['precision']}, 1 rank, --threads {SHAPE['threads']}, batch {SHAPE['batch']}: "
      f"a step without offload takes {without:.3f} s, {plan['flops'] / without / 1e9:.0f} GFLOP/s with its update; {ROUNDS} rounds")
PARAM = dict(stage=3, offload_param="nvme:" + FOLDER)
for words, more in (("in a file", dict(clip=1e9)), ("with six buffers", dict(clip=1e9, offload_buffers=6)), ("every step clipped", {}),
                    ("without a speculative update", dict(speculative_update="none")), ("a delayed update", dict(delayed_update=True)),
                    ("parameters in a file, optimizer on the host", dict(PARAM, offload_optimizer="cpu")), ("both in files", PARAM),
                    ("and a speculative update with six buffers", dict(PARAM, clip=1e9, speculative_update="64GiB", offload_buffers=6))):
    rounds = sorted((beside(plan["flops"], **more) for _ in range(ROUNDS)), key=lambda one: one[0])
    ratio, without, seconds, disk, report = rounds[len(rounds) // 2]
    tier, promised = report["ranks"][0]["tiers"]["nvme"], report["timeline"]["tiers"]["nvme"]
    late = report["ranks"][0].get("delayed_update")
    update = f"; {report['speculative_updates']} speculative, {report['rolled_back_updates']} rolled back" if "rolled_back_updates" in report else ""
    update += f"; of an update {late['computing_seconds'] / STEPS:.3f} s computing and {late['waiting_seconds'] / STEPS:.3f} s for the disk" if late else ""
    print(f"{words}: {seconds:.3f} s, {ratio:.2f} times ({rounds[0][0]:.2f} to {rounds[-1][0]:.2f}) the longer of {without:.3f} s and the disk's {disk:.3f} s "
          f"for {promised['moved_bytes'] / 1e9:.2f} GB at {promised['bytes_per_second'] / 1e6:.0f} MB/s; waiting {tier['wait_share']:.1%}, promised "
          f"{promised['wait_share']:.1%}{update}", flush=True)
