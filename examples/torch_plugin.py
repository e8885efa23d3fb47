"""PyTorch on zr's arena, by its pluggable allocator: python3 torch_plugin.py [libzr_cuda.so], after `pip install .` in zr's folder"""
import sys

import torch
import zr

zr.enable(sys.argv[1] if len(sys.argv) > 1 else None)
with zr.tag("activation"):
    x = torch.randn(1000, 1000, device="cuda")
print(x.square().mean().item())
print(zr.stats()["tags"], torch.cuda.max_memory_allocated())
zr.snapshot("snapshot.pickle")  # for `zr stats`, or PyTorch's own viewer
