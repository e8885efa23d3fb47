"""pytorch_step.py [--plug-in LIBRARY] SCENARIO: a PyTorch program on the emulated card, run by pytorch_check.py. The last line is
JSON: the most bytes of the card that were in use after any forward or backward, and PyTorch's own figures."""
import json
import random
import sys

import torch
import torch.nn.functional as F
from torch import nn

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
    model = Gpt().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for length in lengths:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(torch.randint(0, 50304, (batch, length), device="cuda"))
        look()
        loss.backward()
        look()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()


def steps():
    """GPT-2 124M at one length."""
    train([1024] * 4)


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


def graphs():
    """A captured graph with a pool of its own."""
    model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
    x = torch.zeros(64, 512, device="cuda")
    model(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    for _ in range(10):
        graph.replay()
        look()
    y.sum().item()


def full():
    """More than the card has."""
    try:
        train([1024] * 2, batch=64)
    except torch.OutOfMemoryError as error:
        seen["error"] = f"OutOfMemoryError: {error}"
    except RuntimeError as error:
        seen["error"] = f"RuntimeError: {error}"


if sys.argv[1] == "--plug-in":
    library = sys.argv.pop(2)
    del sys.argv[1]
    torch.cuda.memory.change_current_allocator(torch.cuda.memory.CUDAPluggableAllocator(library, "zr_torch_alloc", "zr_torch_free"))
else:
    seen["allocated"] = True
globals()[sys.argv[1]]()
if seen.pop("allocated", False):
    seen.update(allocated_bytes=torch.cuda.max_memory_allocated(), reserved_bytes=torch.cuda.max_memory_reserved(),
                segments=len(torch.cuda.memory_snapshot()))
print(json.dumps(seen))
