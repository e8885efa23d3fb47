"""PyTorch on zr's arena without a preload: python3 torch_plugin.py [build/lib/libzr_cuda.so]"""
import ctypes
import sys

import torch

path = sys.argv[1] if len(sys.argv) > 1 else "build/lib/libzr_cuda.so"
library = ctypes.CDLL(path)
zr = torch.cuda.memory.CUDAPluggableAllocator(path, "zr_torch_alloc", "zr_torch_free")
for setter, name in (("set_record_stream_fn", "record_stream"), ("set_begin_allocate_to_pool", "begin_allocate_to_pool"),
                     ("set_end_allocate_to_pool_fn", "end_allocate_to_pool"), ("set_release_pool", "release_pool"),
                     ("set_memory_fraction_fn", "memory_fraction"), ("set_base_alloc_fn", "base_alloc"),
                     ("set_reset_fn", "reset")):
    getattr(zr._allocator, setter)(ctypes.cast(getattr(library, "zr_torch_" + name), ctypes.c_void_p).value)
torch.cuda.memory.change_current_allocator(zr)
print(torch.randn(1000, 1000, device="cuda").square().mean().item())
library.zr_torch_snapshot(b"snapshot.pickle")  # for `zr stats`, or PyTorch's own viewer
