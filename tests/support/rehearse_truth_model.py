"""rehearse_truth_model.py CONTEXT SNAPSHOT: the training program of two recordings from real GPUs (rehearse_truth.py), written from their call
stacks and sizes. A GPT of the medium size: 24 blocks of 1024 features and 16 heads, RMSNorm, rotary embedding, SwiGLU of 4096 features, 10,000
tokens, 4 sequences, AdamW in Python. A context of 128 is in float32, one of 512 under autocast to bfloat16. One step is recorded, after five.
Functions have the names of the original's, and each statement that allocates there is a statement here, in the same order."""
import contextlib
import math
import sys

import torch
from torch import nn

LAYERS, FEATURES, HEADS, INNER, TOKENS, SEQUENCES, WARM_STEPS = 24, 1024, 16, 4096, 10_000, 4, 5


class Linear(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs).normal_(std=0.02))

    def forward(self, x):
        return torch.einsum("...i,oi->...o", x, self.weight)


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(TOKENS, FEATURES).normal_(std=0.02))

    def forward(self, token_ids):
        return self.weight[token_ids, :]


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(FEATURES))

    def forward(self, x):
        rms = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        x = x * rms
        return self.weight * x


class RotaryEmbedding(nn.Module):
    def __init__(self, context):
        super().__init__()
        half = FEATURES // HEADS // 2
        angles = torch.outer(torch.arange(context).float(), 10_000.0 ** (-torch.arange(half).float() / half))
        self.register_buffer("table", torch.stack((angles.cos(), angles.sin())), persistent=False)

    def forward(self, x):
        first, second = x.unflatten(-1, (-1, 2)).movedim(-1, 0)
        cos, sin = self.table
        turned_first = cos * first - sin * second
        turned_second = sin * first + cos * second
        return torch.stack((turned_first, turned_second), dim=-1).flatten(-2)


def softmax(x):
    x = x - x.max(dim=-1, keepdim=True)[0]
    exponential = torch.exp(x)
    return exponential / exponential.sum(dim=-1, keepdim=True)


def scaled_dot_product_attention(q, k, v, mask):
    scores = torch.einsum("...qd,...kd->...qk", q, k) / math.sqrt(k.shape[-1])
    scores = torch.where(mask, scores, float("-inf"))
    weights = softmax(scores)
    return torch.einsum("...qk,...kd->...qd", weights, v)


class CausalMultiHeadSelfAttention(nn.Module):
    def __init__(self, rope):
        super().__init__()
        self.q, self.k, self.v, self.out = (Linear(FEATURES, FEATURES) for _ in range(4))
        self.rope = rope

    def forward(self, x):
        q = self.q(x)
        k = self.k(x)
        v = self.v(x)
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (q, k, v))
        q = self.rope(q)
        k = self.rope(k)
        positions = torch.arange(x.shape[1], device=x.device)
        mask = positions[:, None] >= positions
        attended = scaled_dot_product_attention(q, k, v, mask)
        attended = attended.transpose(1, 2).reshape(x.shape)
        return self.out(attended)


def silu(x):
    return x * torch.sigmoid(x)


class SwiGLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2, self.w3 = Linear(FEATURES, INNER), Linear(INNER, FEATURES), Linear(FEATURES, INNER)

    def forward(self, x):
        return self.w2(silu(self.w1(x)) * self.w3(x))


class TransformerBlock(nn.Module):
    def __init__(self, rope):
        super().__init__()
        self.attn, self.ffn, self.ln1, self.ln2 = CausalMultiHeadSelfAttention(rope), SwiGLU(), RMSNorm(), RMSNorm()

    def forward(self, x):
        attended = self.attn(self.ln1(x))
        after = x + attended
        fed = self.ffn(self.ln2(after))
        return after + fed


class TransformerLM(nn.Module):
    def __init__(self, context):
        super().__init__()
        rope = RotaryEmbedding(context)
        self.token_embeddings, self.layers = Embedding(), nn.ModuleList(TransformerBlock(rope) for _ in range(LAYERS))
        self.ln_final, self.lm_head = RMSNorm(), Linear(FEATURES, TOKENS)

    def forward(self, ids):
        x = self.token_embeddings(ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.ln_final(x))


def log_softmax(x):
    highest = x.max(dim=-1, keepdim=True)[0]
    x = x - highest
    return x - torch.log(torch.sum(torch.exp(x), dim=-1, keepdim=True))


def cross_entropy(logits, targets):
    negative = -log_softmax(logits)
    return torch.mean(torch.gather(negative, -1, targets.unsqueeze(-1)))


class AdamW(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-3, "weight_decay": 0.01})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state, grad, rate = self.state[p], p.grad, group["lr"]
                p -= rate * group["weight_decay"] * p
                m = state.get("m", torch.zeros_like(p))
                v = state.get("v", torch.zeros_like(p))
                state["m"] = 0.9 * m + 0.1 * grad
                state["v"] = 0.999 * v + 0.001 * torch.square(grad)
                p -= rate * state["m"] / (torch.sqrt(state["v"]) + 1e-8)


def memory_profile(context, snapshot):
    model = TransformerLM(context).cuda()
    optimizer = AdamW(model.parameters())
    data = [torch.randint(TOKENS, (steps, SEQUENCES, context), device="cuda") for _ in ("ids", "targets") for steps in (WARM_STEPS, 1)]
    mixed = torch.autocast("cuda", dtype=torch.bfloat16) if context == 512 else contextlib.nullcontext()
    for ids, targets in [*zip(data[0], data[2]), (data[1][0], data[3][0])]:
        optimizer.zero_grad(set_to_none=True)
        if ids._base is data[1]:
            logits = loss = None
            torch.cuda.memory._record_memory_history(clear_history=True)
        with mixed:
            logits = model(ids)
            loss = cross_entropy(logits, targets)
        loss.backward()
        optimizer.step()
    torch.cuda.memory._dump_snapshot(snapshot)


memory_profile(int(sys.argv[1]), sys.argv[2])
