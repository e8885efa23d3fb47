"""A CuPy that is a fake, for gpu_train.py on the emulated driver: arrays that have memory of the driver, and no numbers. FAKE is "wrong":
its sums differ without a cache, or "dies": it ends under the preload."""
import ctypes, os, types
driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert driver.cuInit(0) == 0 and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and driver.cuCtxSetCurrent(context) == 0
__version__, float32, off = "0", None, []
class Array:
    def __init__(self, count):
        self.count, self.block = count, ctypes.c_uint64()
        assert driver.cuMemAlloc_v2(ctypes.byref(self.block), ctypes.c_size_t(4 * count)) == 0
    def __del__(self): driver.cuMemFree_v2(self.block)
    def reshape(self, *shape): return self
    def sum(self): return self.count + (len(off) if os.environ.get("FAKE") == "wrong" else 0)
    def __mod__(self, other): return Array(self.count)
    __truediv__ = __matmul__ = __mod__
    T = property(lambda self: self)
def arange(count, dtype): return Array(count)
class Device: synchronize = staticmethod(lambda: None)
runtime = types.SimpleNamespace(getDeviceProperties=lambda device: {"name": b"a fake"})
cuda = types.SimpleNamespace(runtime=runtime, Device=Device, set_allocator=lambda new: off.append(1))
def get_default_memory_pool(): return types.SimpleNamespace(total_bytes=lambda: 9 << 20)
if os.environ.get("FAKE") == "dies" and "zr_cuda" in os.environ.get("LD_PRELOAD", ""): os._exit(5)
