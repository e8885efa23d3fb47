"""pytorch_step.py [--plug-in [LIBRARY]] SCENARIO: a PyTorch program on the emulated card, run by pytorch_check.py. The last line is
JSON: the most bytes of the card that were in use after any forward or backward, and the figures of PyTorch and zr."""
import contextlib
import json
import os
import random
import sys
import threading

import rehearse_models
import torch
import torch.nn.functional as F
import zr
from torch import nn

PLUG_IN, CACHES = "--plug-in" in sys.argv, "PYTORCH_NO_CUDA_MEMORY_CACHING" not in os.environ
seen = {"card_bytes": 0}


def look():
    free, total = torch.cuda.mem_get_info()
    seen["card_bytes"] = max(seen["card_bytes"], total - free)


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads, self.norm_1, self.norm_2 = heads, nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.wide, self.narrow = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        batch, tokens, hidden = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(batch, tokens, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, tokens, hidden))
        return x + self.narrow(F.gelu(self.wide(self.norm_2(x))))


class Gpt(nn.Module):
    def __init__(self, layers=12, hidden=768, heads=12, vocab=50304, tokens=1024):
        super().__init__()
        self.words, self.places = nn.Embedding(vocab, hidden), nn.Embedding(tokens, hidden)
        self.blocks, self.norm = nn.ModuleList(Block(hidden, heads) for _ in range(layers)), nn.LayerNorm(hidden)

    def forward(self, x):
        y = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            y = block(y)
        return F.cross_entropy((self.norm(y) @ self.words.weight.T).flatten(0, 1), x.flatten())


def train(lengths, batch=8):
    with zr.tag("model") if PLUG_IN else contextlib.nullcontext():
        model = Gpt().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for i, length in enumerate(lengths):
        if (PLUG_IN or not CACHES) and i == len(lengths) - 1:
            zr.reset_peaks()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(torch.randint(0, 50304, (batch, length), device="cuda"))
        look()
        loss.backward()
        look()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
    if PLUG_IN or not CACHES:
        seen["zr"] = zr.stats()
    seen["model_bytes"] = sum(each.numel() * each.element_size() for each in model.parameters())


def steps():
    """GPT-2 124M at one length."""
    train([1024] * 6)


def lengths():
    """GPT-2 124M at changing lengths."""
    draw = random.Random(1)
    train([draw.choice(range(256, 1025, 128)) for _ in range(12)])


def streams():
    """Blocks that other streams use when they are freed, and a backward pass in its own thread."""
    side = torch.cuda.Stream()
    for i in range(50):
        x = torch.empty(1 + i % 7, 1 << 18, device="cuda", requires_grad=True)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = (x * 2).sum()
        x.record_stream(side)
        y.backward()
        look()
        del x, y
    torch.cuda.synchronize()


def threads():
    """Threads that have no context at first, each with its own stream and backward passes; another thread frees the gradients."""
    grads = []

    def work(width):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                x = torch.empty(width, 1 << 18, device="cuda", requires_grad=True)
                (x * 2).sum().backward()
                grads.append(x.grad)
            torch.cuda.current_stream().synchronize()

    workers = [threading.Thread(target=work, args=(1 + i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        look()
    grads.clear()


def graphs():
    """Two graphs that share a pool, the second with larger blocks."""
    model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
    graph, outputs, pool = [], [], torch.cuda.graph_pool_handle()
    for count in 64, 1024:
        x = torch.zeros(count, 512, device="cuda")
        model(x)
        graph.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graph[-1], pool=pool):
            outputs.append(model(x))
    for _ in range(10):
        for each in graph:
            each.replay()
        look()
    sum(each.sum() for each in outputs).item()


def package():
    """What the package promises, and what PyTorch refuses under another pluggable allocator."""
    mib = 1 << 20
    with zr.tag("kv"):
        x = torch.empty(mib, device="cuda")
    seen["zr"] = zr.stats()
    del x
    zr.enable()
    torch.cuda.reset_peak_memory_stats()
    seen["live"] = [torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()]
    y = torch.empty(2 * mib, device="cuda")
    seen["live"] += [torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()]
    seen["summary"] = torch.cuda.memory_summary()
    seen["segments"] = sum(block["requested_size"] for segment in torch.cuda.memory_snapshot() for block in segment["blocks"])
    torch.cuda.set_per_process_memory_fraction(0.001)
    try:
        torch.empty(1 << 30, device="cuda")
    except torch.OutOfMemoryError as error:
        seen["error"] = str(error)
    torch.cuda.set_per_process_memory_fraction(1.0)
    del y
    torch.cuda.empty_cache()
    seen["left"] = zr.stats()["reserved_bytes"], torch.cuda.memory_stats()["num_ooms"]
    try:
        with zr.tag("x" * 32):
            pass
    except RuntimeError as error:
        seen["refused"] = str(error)


def full():
    """More than the card has."""
    try:
        train([1024] * 2, batch=64)
    except torch.OutOfMemoryError as error:
        seen["error"] = f"OutOfMemoryError: {error}"
    except RuntimeError as error:
        seen["error"] = f"RuntimeError: {error}"
    torch.empty(1 << 28, device="cuda")


def model(name):
    """A model of rehearse_models.py: the figures of each step, from one zero_grad() to the next."""
    rehearse_models.STEPS, of_zr = 30, PLUG_IN or "libzr_cuda" in os.environ["LD_PRELOAD"]
    seen["calls"], seen["most_bytes"], before = [], 0, 0

    def note_step():
        nonlocal before
        figures = zr.stats() if of_zr else torch.cuda.memory_stats()
        calls = figures["backend_calls_count"] if of_zr else figures["num_device_alloc"] + figures["num_device_free"]
        seen["asked_bytes"] = figures["peak_requested_bytes"] if PLUG_IN or not CACHES else torch.cuda.memory_stats()["requested_bytes.all.peak"]
        seen["last_bytes"] = figures["peak_reserved_bytes"] if of_zr else figures["reserved_bytes.all.peak"]
        seen["most_bytes"] = max(seen["most_bytes"], seen["last_bytes"])
        seen["calls"].append(calls - before)
        before = calls
        if of_zr:
            zr.reset_peaks()

    for each in nn.Module, torch.optim.Optimizer:
        each.zero_grad = lambda *a, zero_grad=each.zero_grad, **k: (note_step(), zero_grad(*a, **k))[1]
    getattr(rehearse_models, name)()


if PLUG_IN:
    zr.enable(*sys.argv[2:-1])
if sys.argv[-1] in globals():  # a scenario of this file comes before a model of the same name
    globals()[sys.argv[-1]]()
else:
    model(sys.argv[-1])
if CACHES:
    seen.update(allocated_bytes=torch.cuda.max_memory_allocated(), reserved_bytes=torch.cuda.max_memory_reserved())
    seen.setdefault("segments", len(torch.cuda.memory_snapshot()))
print(json.dumps(seen))
