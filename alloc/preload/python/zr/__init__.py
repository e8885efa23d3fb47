"""zr: the device memory of a PyTorch program from zr's arena.

    import zr
    zr.enable()                     # before the first CUDA tensor; in a notebook in its first cell

    with zr.tag("kv"):
        cache = torch.empty(4, 1 << 30, device="cuda")
    zr.stats()["tags"]["kv"]        # 17179869184

torch.cuda.memory_allocated() and its kin, memory_summary(), memory_snapshot() and empty_cache() work as before. An
allocation that fails raises torch.OutOfMemoryError with zr's reason. `python -m zr` is the program zr."""
import contextlib
import ctypes
import os
import pickle
import sys
import tempfile
import threading

__all__ = ["enable", "stats", "tag", "reset_peaks", "snapshot"]

FIGURES = ("live_bytes", "requested_bytes", "reserved_bytes", "pending_bytes", "stranded_bytes", "peak_live_bytes", "peak_requested_bytes",
           "peak_reserved_bytes", "blocks_count", "allocations_count", "backend_calls_count", "allocated_bytes", "refused_count")
# PyTorch's setters of a pluggable allocator, and the library's functions for them.
SETTERS = {"set_record_stream_fn": "record_stream", "set_begin_allocate_to_pool": "begin_allocate_to_pool",
           "set_end_allocate_to_pool_fn": "end_allocate_to_pool", "set_release_pool": "release_pool",
           "set_memory_fraction_fn": "memory_fraction", "set_base_alloc_fn": "base_alloc", "set_init_fn": "init", "set_reset_fn": "reset"}

_allocator = _loaded = None
_own = threading.local()
_tags = set()


def _path():
    """The package's library; None: the process has it preloaded."""
    return None if hasattr(ctypes.CDLL(None), "zr_torch_alloc") else os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", "libzr_cuda.so")


def _library(path=None):
    global _loaded
    if _loaded is None:
        _loaded = ctypes.CDLL(path or _path())
        _loaded.zr_torch_error.restype = ctypes.c_char_p
    return _loaded


def _check(result):
    if result:
        raise RuntimeError("zr: " + _library().zr_torch_error().decode(errors="replace"))


def _figure(device, name):
    value = ctypes.c_uint64()
    _check(_library().zr_torch_stat(device, name.encode(), ctypes.byref(value)))
    return value.value


def _device(device):
    """The number of a torch.device, a name or a number; None: the current device."""
    if isinstance(device, int):
        return device
    torch = sys.modules.get("torch")
    if device is not None:
        return torch.cuda._utils._get_device_index(device)
    return torch.cuda.current_device() if torch and torch.cuda.is_initialized() else 0


def enable(library=None):
    """Makes zr PyTorch's allocator of CUDA memory, once. Call it before the first CUDA tensor. `library` is a libzr_cuda.so
    other than the package's."""
    global _allocator
    if _allocator:
        return
    import torch
    allocator = torch.cuda.memory.CUDAPluggableAllocator(library or _path(), "zr_torch_alloc", "zr_torch_free")
    functions = _library(library)
    for setter, name in SETTERS.items():
        getattr(allocator._allocator, setter)(ctypes.cast(getattr(functions, "zr_torch_" + name), ctypes.c_void_p).value)
    try:
        torch.cuda.memory.change_current_allocator(allocator)
    except RuntimeError as error:
        raise RuntimeError("zr.enable(): this process already has CUDA tensors; call it before the first, in a notebook after a restart "
                           "of the kernel") from error
    _allocator = allocator
    _answer_for_pytorch(torch._C)


def stats(device=None):
    """The figures of a device: fields of zr's arena, in bytes and counts, and the live bytes of each tag of this process."""
    device = _device(device)
    return {**{name: _figure(device, name) for name in FIGURES},
            "tags": {name: _figure(device, f"tag.{name}.live_bytes") for name in sorted(_tags)}}


def reset_peaks(device=None):
    """Sets the peaks of stats() to the present values."""
    _library().zr_torch_reset_peaks(_device(device))


def snapshot(path):
    """Writes the live blocks of all devices to a file for `zr stats`, `zr why` and PyTorch's viewer."""
    _check(_library().zr_torch_snapshot(os.fsencode(path)))


@contextlib.contextmanager
def tag(name):
    """Names the blocks that this thread allocates meanwhile. A backward pass allocates in threads of its own."""
    before = getattr(_own, "tag", None)
    _set_tag(name)
    _tags.add(name)
    try:
        yield
    finally:
        _set_tag(before)


def _set_tag(name):
    _check(_library().zr_torch_tag(None if name is None else name.encode()))
    _own.tag = name


# ---- What PyTorch refuses to answer for a pluggable allocator ------------------------------------------------------------------

_before = {}  # {device: (bytes, blocks, failures) at the last reset_accumulated_memory_stats()}


def _totals(figures):
    return figures["allocated_bytes"], figures["allocations_count"], figures["refused_count"]


def _stat(current, peak, total=0):
    return {"current": current, "peak": peak, "allocated": total, "freed": max(0, total - current)}


def _memory_stats(device):
    """torch._C._cuda_memoryStats(): figures that zr does not have are 0. All blocks count to the large pool."""
    figures = stats(device)
    total_bytes, total, failures = (now - before for now, before in zip(_totals(figures), _before.get(device, (0, 0, 0))))
    blocks = _stat(figures["blocks_count"], figures["blocks_count"], total)
    live = _stat(figures["live_bytes"], figures["peak_live_bytes"], total_bytes)
    found = {"allocation": blocks, "active": blocks, "allocated_bytes": live, "active_bytes": live,
             "requested_bytes": _stat(figures["requested_bytes"], figures["peak_requested_bytes"], total_bytes),
             "reserved_bytes": _stat(figures["reserved_bytes"], figures["peak_reserved_bytes"]), "segment": _stat(0, 0),
             "inactive_split": _stat(0, 0), "inactive_split_bytes": _stat(0, 0)}
    return {**{name: {"all": each, "large_pool": each, "small_pool": _stat(0, 0)} for name, each in found.items()},
            "oversize_allocations": _stat(0, 0), "oversize_segments": _stat(0, 0), "reserved_bytes_by_private_pools": {}, "max_split_size": -1,
            "num_alloc_retries": 0, "num_ooms": failures, "num_sync_all_streams": 0, "num_device_alloc": figures["backend_calls_count"],
            "num_device_free": 0}


def _memory_snapshot(_wanted=None):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "snapshot.pickle")
        snapshot(path)
        with open(path, "rb") as file:
            return pickle.load(file)


def _answer_for_pytorch(functions):
    functions._cuda_memoryStats = _memory_stats
    functions._cuda_resetPeakMemoryStats = reset_peaks
    functions._cuda_resetAccumulatedMemoryStats = lambda device: _before.__setitem__(device, _totals(stats(device)))
    functions._cuda_memorySnapshot = _memory_snapshot
