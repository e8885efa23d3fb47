#!/usr/bin/env python3
"""The largest models that the byte plan finds under --memory-limit 32GB --host-limit 96GB --nvme-limit 1.75TB per rank (a
DGX-2's memory over its 16 GPUs), for 1, 16 and 512 ranks, beside what the ZeRO-Infinity paper says of one V100, of a node
and of 32 nodes, and what sets the two apart. All plans, no estimate; what a formula says has that in its line."""
import os
import sys

sys.path.insert(0, "tests/support")
from zrtest import train

LIMITS = dict(memory_limit="32GB", host_limit="96GB", nvme_limit="1.75TB")
DEVICE, HOST, NVME = 32e9, 96e9, 1.75e12
SHAPE = dict(ranks=None, data=None, steps=None, seed=None, heads=64, seq=1024, batch=1, vocab=50304, stage=3, precision="bf16",
             recompute="full", checkpoint_offload=True, offload_optimizer="nvme:/not/looked/at", offload_param="nvme:/not/looked/at", threads=1)
WIDTHS = [int(width) for width in os.environ.get("ZR_WIDTHS", "2048 4096 6144 8192 12288 16384").split()]
# Parameters by the paper; what it keeps of each in a file: two bytes of parameter and of gradient, and four fp32 numbers.
PAPER = {1: None, 16: 1e12, 512: 32e12}
PAPER_BYTES = 20


def largest(ranks):
    """Of all widths: the run, and its width."""
    best = None
    for width in WIDTHS:
        run = train(find_max="layers", layers=None, world_size=ranks, hidden=width, **LIMITS, **SHAPE)
        if run.code == 0 and (best is None or run.report["parameters"] > best[0].report["parameters"]):
            best = run, width
    return best


def bound(found):
    """What one more layer is too much for."""
    return ("host" if found["one_more_host_reserved_bytes"] > HOST else "nvme" if found["one_more_nvme_bytes"] > NVME else "device")


print(f"{'ranks':>5}  {'parameters':>10}  {'layers x width':>15}  {'device':>8}  {'host':>8}  {'nvme':>8}  full   ZeRO-Infinity")
rows = []
for ranks in (1, 16, 512):
    run, width = largest(ranks)
    found, rank = run.report["find_max"], run.report["ranks"][0]
    rows.append((ranks, run.report["parameters"], width, rank))
    print(f"{ranks:5}  {run.report['parameters'] / 1e9:8.1f} G  {found['value']:6} x {width:6}  {found['reserved_bytes'] / 1e9:5.1f} GB  "
          f"{found['host_reserved_bytes'] / 1e9:5.1f} GB  {found['nvme_bytes'] / 1e9:5.0f} GB  {bound(found):6} "
          f"{'-' if PAPER[ranks] is None else f'{PAPER[ranks] / 1e9:.0f} G'}", flush=True)
print("\nper parameter, in bytes of all ranks:")
for ranks, parameters, width, rank in rows:
    tags, nvme = rank["tiers"]["host"]["planned_by_tag_bytes"], rank["tiers"]["nvme"]["planned_bytes"]
    each = {tag: tags[tag] * ranks / parameters for tag in ("param", "grad", "offload")}
    print(f"  {ranks:4} ranks: host {each['param']:.2f} of parameters, {each['grad']:.2f} of gradients, {each['offload']:.2f} of checkpoints and the "
          f"files' buffers; nvme {nvme * ranks / parameters:.2f} of optimizer state, gradients and parameters")
print(f"""
what sets the two apart:
  in the files: ZeRO-Infinity keeps {PAPER_BYTES} bytes of a parameter there, so 1.75 TB a rank bound it: {16 * NVME / PAPER_BYTES / 1e12:.2f} T on 16 ranks (it
    says 1 T), {512 * NVME / PAPER_BYTES / 1e12:.1f} T on 512 (it says 32 T). Here they have 16: the optimizer's 12, the gradients' 2 and the parameters' 2, so
    {16 * NVME / 16 / 1e12:.2f} T on 16 ranks and {512 * NVME / 16 / 1e12:.0f} T on 512; the fp32 gradients that the paper counts are none here: the update reads
    those of two bytes.
  width: a block is gathered whole, twice, and its gradients are staged whole, twice: 96 bytes times width squared, so 32 GB allow a
    width of {int((DEVICE / 96) ** 0.5):,} and less beside activations. ZeRO-Infinity's tiles allow 64 thousand: --tile is not in this version.
  many ranks: checkpoints are a layer's width times sequence each, on every rank, and a block's parameters are the width squared; at
    the widest that the device allows, they fill the host's 96 GB before the files are full.
  one rank: nothing is divided, so buffers of the largest unit weigh most with wide blocks; many narrow ones fit more.""")
