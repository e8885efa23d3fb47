#!/usr/bin/env python3
"""Training on a card: tokens per second of zr-train, and the share of the card's peak, for GPT-2 124M and 1.5B and a LLaMA of
1.1B, beside PyTorch (eager and compiled) and llm.c where they are there in the same run. It needs a card, and says so.

    tests/bench/bench_gpu.py [--only WORDS] [--steps N] [--json FILE] [--emulated]

LLMC names the program train_gpt2cu of llm.c, ZR_BENCH_PEAK the card's dense bf16 operations per second (989e12: H100 and
H200). A token takes 6 operations per parameter and 12 x layers x hidden x tokens of a sequence in attention. --emulated
runs tiny shapes on the emulated driver: that all of this works, no figures. Exit code 77: there is no card."""
import argparse
import json
import os
import random
import re
import statistics
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "support"))
from gpu_card import ABSENT, card, environment_of  # noqa: E402
from zrtest import path, train  # noqa: E402

PEAK = float(os.environ.get("ZR_BENCH_PEAK", "989e12"))
WARM = 3  # steps before the clock starts
MODELS = {
    "GPT-2 124M": dict(layers=12, hidden=768, heads=12, seq=1024, batch=32, vocab=50257),
    "GPT-2 1.5B": dict(layers=48, hidden=1600, heads=25, seq=1024, batch=8, vocab=50257, recompute="selective"),
    "LLaMA 1.1B": dict(arch="llama", layers=22, hidden=2048, heads=32, kv_heads=4, ffn=5632, seq=2048, batch=4, vocab=32000,
                       recompute="selective"),
}
TINY = {name: dict(vocab=24, layers=1, hidden=12, heads=2, seq=4, batch=1, arch=model.get("arch", "gpt2"))
        for name, model in MODELS.items()}


def shard(vocabulary, count):
    where, rng = path(f"tokens-{vocabulary}.bin"), random.Random(3)
    if not os.path.exists(where):
        with open(where, "wb") as file:
            file.write(struct.pack("<256i", 20240520, 1, count, *[0] * 253))
            file.write(struct.pack(f"<{count}H", *[rng.randrange(vocabulary) for _ in range(count)]))
    return where


def operations(parameters, model):
    """Of a token, forward and backward; what is recomputed counts once."""
    return 6 * parameters + 12 * model["layers"] * model["hidden"] * model["seq"]


def zr(model, steps, emulated, program=None, **environment):
    """(tokens per second, parameters), or words. The program is zr-train, or one that is like it."""
    tokens = model["batch"] * model["seq"]
    run = train(environment_of(emulated, **environment), timeout=540, program=program, data=shard(model["vocab"], 3000 if emulated else tokens * 8), steps=steps + WARM,
                eval_every=0, backend="cuda", precision="bf16", threads=1, **model)
    if run.code:
        return f"zr-train: {run.err.strip().splitlines()[-1][-200:] if run.err.strip() else run.code}"
    return tokens / statistics.median(run.report["step_seconds"][WARM:]), run.report["parameters"]


# A GPT-2 of the same shape, with the fused AdamW and attention that PyTorch has, in a process of its own.
TORCH = r"""
import json, sys, time
import torch, torch.nn as nn, torch.nn.functional as F
shape, steps, warm, compiled = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "compile"
L, C, H, T, B, V = (shape[k] for k in ("layers", "hidden", "heads", "seq", "batch", "vocab"))
V = (V + 63) // 64 * 64
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv, self.o, self.up, self.down = nn.Linear(C, 3 * C), nn.Linear(C, C), nn.Linear(C, 4 * C), nn.Linear(4 * C, C)
    def forward(self, x):
        q, k, v = (t.view(B, T, H, C // H).transpose(1, 2) for t in self.qkv(self.n1(x)).split(C, 2))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C))
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.t, self.p, self.n = nn.Embedding(V, C), nn.Embedding(T, C), nn.LayerNorm(C)
        self.blocks = nn.ModuleList(Block() for _ in range(L))
    def forward(self, x, y):
        h = self.t(x) + self.p(torch.arange(T, device=x.device))
        for block in self.blocks: h = block(h)
        return F.cross_entropy(F.linear(self.n(h), self.t.weight).float().view(-1, V), y.view(-1))
torch.set_float32_matmul_precision("high")
model = Model().cuda()
step_of = torch.compile(model) if compiled else model
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
seconds = []
for i in range(steps + warm):
    x = torch.randint(0, V, (B, T + 1), device="cuda")
    torch.cuda.synchronize(); start = time.perf_counter()
    with torch.autocast("cuda", torch.bfloat16): loss = step_of(x[:, :-1], x[:, 1:].contiguous())
    loss.backward(); nn.utils.clip_grad_norm_(model.parameters(), 1.0); optimizer.step(); optimizer.zero_grad()
    torch.cuda.synchronize(); seconds.append(time.perf_counter() - start)
seconds = sorted(seconds[warm:])
print(json.dumps(B * T / seconds[len(seconds) // 2]))
"""


def pytorch(model, steps, mode):
    """Tokens per second, or why not."""
    if "arch" in model:
        return "not compared: its model is GPT-2's"
    got = subprocess.run([sys.executable, "-c", TORCH, json.dumps(model), str(steps), str(WARM), mode], capture_output=True, text=True,
                         timeout=540)
    return json.loads(got.stdout) if got.returncode == 0 else (got.stderr.strip().splitlines() or ["it failed"])[-1][-120:]


def llmc(model, steps):
    program = os.environ.get("LLMC")
    if not program or "arch" in model:
        return "LLMC names no train_gpt2cu" if not program else "not compared: its model is GPT-2's"
    data = shard(model["vocab"], model["batch"] * model["seq"] * 8)
    got = subprocess.run([program, "-i", data, "-j", data, "-e", f"d{model['layers']}", "-b", str(model["batch"]), "-t", str(model["seq"]),
                          "-d", str(model["batch"] * model["seq"]), "-v", "0", "-s", "0", "-x", str(steps + WARM)],
                         capture_output=True, text=True, timeout=540)
    rates = [float(rate) for rate in re.findall(r"([\d.]+) tok/s", got.stdout)][WARM:]
    return statistics.median(rates) if rates else (got.stderr.strip().splitlines() or ["it said no tok/s"])[-1][-120:]


def main():
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--only", default="")
    asked.add_argument("--steps", type=int, default=20)
    asked.add_argument("--json")
    asked.add_argument("--emulated", action="store_true")
    asked = asked.parse_args()
    found = card(asked.emulated)
    if not found:
        print("bench_gpu.py needs a card: there is no CUDA driver here, or no device. Nothing was measured.")
        return ABSENT
    print(f"card: {found['name']}, driver {found['driver']}{'; emulated: no figure here is a speed' if asked.emulated else ''}")
    rows, failed = [], False
    for name, model in (TINY if asked.emulated else MODELS).items():
        if asked.only not in name:
            continue
        got = zr(model, asked.steps, asked.emulated)
        row = {"model": name, "zr": got if isinstance(got, str) else got[0]}
        failed |= isinstance(got, str)
        if not asked.emulated:
            row |= {mode: pytorch(model, asked.steps, mode) for mode in ("eager", "compile")} | {"llm.c": llmc(model, asked.steps)}
        share = "" if isinstance(got, str) else f", {got[0] * operations(got[1], model) / PEAK:.1%} of {PEAK / 1e12:.0f} TFLOP/s"
        shown = [f"{who} {rate if isinstance(rate, str) else f'{rate:,.0f} tokens/s'}{share if who == 'zr' and not asked.emulated else ''}"
                 for who, rate in row.items() if who != "model"]
        print(f"{name}, batch {model['batch']} x {model['seq']}, bf16: " + "; ".join(shown), flush=True)
        rows.append(row)
    if asked.json:
        with open(asked.json, "w", encoding="utf-8") as file:
            json.dump({"version": 1, "card": found, "emulated": asked.emulated, "rows": rows}, file, indent=1)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
