#!/usr/bin/env python3
"""The model of a card's time (tests/support/gpu_model.py) on the kernels of this build: what it counts beside the operations' formulas, and
its table for GPT-2 124M and 1.5B. It needs machine code in the build and nvdisasm, which it fetches where there is a network."""
import collections
import os
import subprocess
import sys

sys.path.insert(0, "tests/support")
import gpu_model
from zrtest import BUILD, done, note, ok, skip

QUARTER, MODELS = 0.25, gpu_model.bench_gpu.MODELS
if not gpu_model.nvdisasm():
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", os.path.join(BUILD, "nvdisasm"), "nvidia-cuda-nvdisasm>=13,<14"], capture_output=True)
known = gpu_model.kernels()
if known is None:
    skip("no nvdisasm (install the CUDA toolkit, or set NVDISASM), or the build has no machine code for sm_90")
    done()
model = MODELS["GPT-2 124M"]
tokens, channels = model["batch"] * model["seq"], model["hidden"]
lines, parameters = gpu_model.launches(model)
KINDS = "attention_forward", "attention_backward", "update_adamw", "layernorm_forward"
counted, moved, launches = collections.Counter(), collections.Counter(), collections.Counter()
for line in lines:
    kind = next((each for each in KINDS if line[0] == "kernel" and line[1].startswith(each)), None)
    if kind:
        launch = gpu_model.launch_of(line, known)
        counted[kind] += 2048 * launch.warps * launch.blocks * sum(count for name, count in launch.instructions().items() if name.startswith("HMMA.16816"))
        moved[kind] += launch.bytes()[0]
        launches[kind] += 1
# A product of queries and keys: half of tokens x tokens, and as many multiplications as a head has numbers, of all heads.
product = tokens * model["seq"] * channels / 2 * model["layers"]
for kind, least, most in (("attention_forward", 2, 2), ("attention_backward", 5, 7)):
    got = counted[kind] / product
    if got:
        ok(least * (1 - QUARTER) <= got <= most * (1 + QUARTER), f"{kind}: multiplications of {got:.2f} products of queries and keys; the formula has {least} to {most}")
forward = [gpu_model.launch_of(line, known).seconds()[0] for line in lines if line[0] == "kernel" and line[1].startswith("attention_forward")] if counted["attention_forward"] else []
if forward:
    rate = 2 * 2 * product / sum(forward)
    ok(rate <= gpu_model.FLASH_2_FORWARD * (1 + QUARTER), f"attention_forward: {rate / 1e12:.0f} TFLOP/s; FlashAttention-2's kernel, published, {gpu_model.FLASH_2_FORWARD / 1e12:.0f}")
for kind, bytes_of in (("layernorm_forward", 2 * 2 * tokens * channels * launches["layernorm_forward"]), ("update_adamw", 28 * parameters)):
    ok(abs(moved[kind] / bytes_of - 1) <= QUARTER, f"{kind}: {moved[kind] / 1e9:.3f} GB, by the tensors' sizes {bytes_of / 1e9:.3f}")
# The kernel for heads of any width, as a reader counts it: 11 to 12 instructions and two loads of shared memory for a multiplication of a score, so often as
# a row's tiles of 32 keys have numbers.
WIDTH, TILE = 40, 32
lines, _ = gpu_model.launches(dict(vocab=64, layers=1, hidden=2 * WIDTH, heads=2, seq=8 * TILE, batch=1))
launch = gpu_model.launch_of(next(line for line in lines if line[1] == "attention_forward_bf16"), known)
walk = launch.walk(0, 7, 0, 0)
loops = [block for at, block in launch.kernel.blocks.items() if at in block.next and block.counts.get("FFMA.FTZ") == 1 and block.counts.get("LDS") == 2 and walk.runs.get(at)]
ok(loops and all(11 * (1 - QUARTER) <= len(block.instructions) <= 12 * (1 + QUARTER) for block in loops),
   f"attention_forward: {[len(block.instructions) for block in loops]} instructions and two loads for a multiplication of a score")
ok({walk.runs[block.at] for block in loops} == {8 * WIDTH}, f"and {8 * WIDTH} such of a row behind eight tiles of keys: {[walk.runs[block.at] for block in loops]}")
for name in ("GPT-2 124M", "GPT-2 1.5B"):
    rows, rate, parameters = gpu_model.expected(MODELS[name], known)
    share = gpu_model.utilisation(rate, parameters, MODELS[name])
    ok(0.01 < share < gpu_model.MMA_SYNC + QUARTER, f"{name}, batch {MODELS[name]['batch']}: {rate:,.0f} tokens/s, {share:.1%} of the peak")
    for kernel, row in sorted(rows.items(), key=lambda each: -each[1].seconds)[:12]:
        note(f"{row.seconds * 1e6:10.0f} us  {row.launches:5}  {kernel}: {row.bounds.most_common(1)[0][0]}")
done()
