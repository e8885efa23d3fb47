"""train.py [BATCH]: trains a small GPT on texts of changing length, which fragments the memory of PyTorch's allocator."""
import sys

import torch
from torch import nn

layer = nn.TransformerEncoderLayer(768, 12, 3072, dropout=0, batch_first=True, norm_first=True)
blocks = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
model = nn.Sequential(nn.Embedding(50257, 768), blocks, nn.Linear(768, 50257, bias=False)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
batch = int(sys.argv[1]) if sys.argv[1:] else 16
for step in range(20):
    ids = torch.randint(50257, (batch, 256 + 64 * (7 * step % 13)), device="cuda")
    logits = model(ids)
    nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
