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
counted, moved, launches, seen = collections.Counter(), collections.Counter(), collections.Counter(), {}
for line in lines:
    if line[0] == "kernel" and line[1].startswith(("attention_", "add_bf16", "update_adamw", "residual_layernorm")):
        name, numbers, argument = line[1], tuple(map(int, line[2:9])), bytes.fromhex(line[9])
        key = name, numbers, gpu_model.shape_of(argument)
        if key not in seen:
            launch = gpu_model.Launch(known[name](), numbers[:3], numbers[3:6], numbers[6], argument)
            sums = sum(count * (2048 if name.startswith("HMMA.16816") else 32) for name, count in launch.instructions().items() if name.startswith(("HMMA", "FFMA")))
            seen[key] = sums * launch.warps * launch.blocks, launch.bytes()[0]
        kind = next(each for each in ("attention_forward", "attention_backward", "attention", "add", "update_adamw", "residual_layernorm") if name.startswith(each))
        counted[kind] += seen[key][0]
        moved[kind] += seen[key][1]
        launches[kind] += 1
# A product of queries and keys: half of tokens x tokens, and as many multiplications as a head has numbers, of all heads.
product = tokens * model["seq"] * channels / 2 * model["layers"]
for kind, least, most in (("attention_forward", 2, 2), ("attention_backward", 5, 7)):
    got = counted[kind] / product
    ok(least * (1 - QUARTER) <= got <= most * (1 + QUARTER), f"{kind}: multiplications of {got:.2f} products of queries and keys; the formula has {least} to {most}")
for kind, bytes_of in (("add", 3 * 2 * tokens * channels * launches["add"]), ("residual_layernorm", 4 * 2 * tokens * channels * launches["residual_layernorm"]),
                       ("update_adamw", 28 * parameters)):
    ok(abs(moved[kind] / bytes_of - 1) <= QUARTER, f"{kind}: {moved[kind] / 1e9:.3f} GB, by the tensors' sizes {bytes_of / 1e9:.3f}")
for name in ("GPT-2 124M", "GPT-2 1.5B"):
    rows, rate, parameters = gpu_model.expected(MODELS[name], known)
    share = gpu_model.utilisation(rate, parameters, MODELS[name])
    ok(0.01 < share < gpu_model.MMA_SYNC + QUARTER, f"{name}, batch {MODELS[name]['batch']}: {rate:,.0f} tokens/s, {share:.1%} of the peak")
    for kernel, row in sorted(rows.items(), key=lambda each: -each[1].seconds)[:12]:
        note(f"{row.seconds * 1e6:10.0f} us  {row.launches:5}  {kernel}: {row.bounds.most_common(1)[0][0]}")
done()
