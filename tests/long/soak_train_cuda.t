#!/usr/bin/env python3
"""zr-train --backend cuda on the emulated driver, widely: every stage, precision and number of ranks; the order of streams and
threads drawn anew; each call of the driver refused in turn; a rank that dies. The rest is tests/system/train_cuda.t."""
import itertools
import sys

sys.path.insert(0, "tests/support")
from cuda_train import FP32, LLAMA, near, on_card, on_host, went_well
from zrtest import done, note, ok, same

NEAR = {"fp32": FP32, "bf16": 5e-3, "fp16": 5e-3}
SEEDS = 20

for ranks, precision, model in itertools.product((1, 2, 3), NEAR, ({}, LLAMA)):
    flags = dict(ranks=ranks, precision=precision, accumulate=2, **model)
    first, host = None, on_host(**flags)
    for stage, recompute in ((0, "none"), (1, "full"), (2, "selective"), (3, "full")):
        words = f"{model.get('arch', 'gpt2')}, {ranks} ranks, {precision}, stage {stage}"
        run = on_card(stage=stage, recompute=recompute, **flags)
        if went_well(run, words):
            near(run, host, NEAR[precision], words)
            same(run.bits, (first or run).bits, f"{words}: the bits of stage 0")
            first = first or run

once = on_card(stage=3, ranks=2)
for seed in range(1, SEEDS + 1):
    same(on_card({"ZR_EMULATOR_SEED": str(seed)}, stage=3, ranks=2).bits, once.bits, f"the same bits with seed {seed}")

# NCCL, a card each: bits as through granules of one card where sums are in rank order; meshes.
CARDS, SPLIT = {"ZR_EMULATOR_DEVICES": "4"}, dict(arch="llama", heads=4, kv_heads=2, hidden=16, ffn=14, layers=4)
for words, flags in (("3 ranks, stage 2", dict(ranks=3, stage=2, accumulate=2)), ("tp 2 x 2, stage 3", dict(ranks=4, tp=2, stage=3, **SPLIT)),
                     ("1f1b", dict(ranks=2, pp=2, accumulate=4)), ("gpipe", dict(ranks=2, pp=2, accumulate=4, schedule="gpipe")),
                     ("vhalf", dict(ranks=2, pp=2, accumulate=4, schedule="vhalf", layers=4)),
                     ("zb-h1", dict(ranks=2, pp=2, accumulate=4, schedule="zb-h1")), ("zb-v", dict(ranks=2, pp=2, accumulate=4, schedule="zb-v", layers=4)),
                     ("interleaved, tp 2", dict(ranks=4, pp=2, tp=2, accumulate=4, interleave=2, **SPLIT))):
    run = on_card(CARDS, comm="nccl", deterministic=True, **flags)
    if went_well(run, f"NCCL, {words}"):
        near(run, on_host(**flags), FP32, f"NCCL, {words}")
    if "pp" not in flags:
        same(run.bits, on_card(**flags).bits, f"NCCL, {words}: the bits of --comm local")
near(on_card(CARDS, comm="nccl", ranks=3, stage=2), on_host(ranks=3), FP32, "NCCL's own sums")
for seed in range(1, SEEDS + 1):
    same(on_card({"ZR_EMULATOR_SEED": str(seed)}, stage=3, ranks=2, comm="nccl").bits, once.bits, f"NCCL: the same bits with seed {seed}")

# A refused call ends the run with words, or is one that a run can do without; then the bits are what they were.
alone = on_card()
for call in ("cuDevicePrimaryCtxRetain", "cuCtxPushCurrent", "cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess",
             "cuMemUnmap", "cuLibraryLoadData", "cuLibraryGetKernel", "cuMemcpyAsync", "cuStreamSynchronize", "cuLaunchKernel",
             "cuMemsetD8Async", "cuEventRecord", "cuEventSynchronize"):
    for nth in (1, 2, 5, 11, 23):
        run = on_card({"ZR_EMULATOR_FAULT": f"{call}:{nth}:999"})
        good = run.losses == alone.losses if run.code == 0 else run.code in (1, 2, 4) and "zr-train: " in run.err
        ok(good and "AddressSanitizer" not in run.err, f"{call} refused at call {nth}: exit code {run.code}") or note(run.err[-1500:])
done()
