"""gpu_driver.py: the CUDA driver by ctypes, for steps of tests/gpu_shot: what it says of itself and the device, and how long each
virtual memory call takes. The driver is loaded into this process."""
import ctypes
import os
import statistics
import time
from collections import defaultdict

DEVICE, HOST, HOST_NUMA = 1, 2, 3  # CUmemLocationType
MIB = 1 << 20
ATTRIBUTES = {  # numbers of cuda.h that zr reads, or whose value decides how it runs
    "clock_khz": 13, "multiprocessors": 16, "pci_bus": 33, "pci_device": 34, "memory_clock_khz": 36, "memory_bus_bits": 37, "l2_bytes": 38,
    "unified_addressing": 41, "pci_domain": 50, "compute_major": 75, "compute_minor": 76, "pageable_memory": 88,
    "concurrent_managed": 89, "host_pointer_of_registered": 91, "shared_memory_per_block_max": 97, "virtual_memory": 102,
    "posix_fd": 103, "rdma_virtual_memory": 110, "memory_pools": 115, "rdma": 116, "multicast": 132, "host_numa_id": 134,
    "host_numa_virtual_memory": 141, "host_virtual_memory": 145}


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("exported", ctypes.c_int), ("location", Location), ("windows", ctypes.c_void_p),
                ("flags", ctypes.c_ubyte * 8)]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


class Refused(Exception):
    """A call that the driver refused: its name and the code."""


class Driver:
    """Device 0 with its primary context current. call() raises Refused; with `times` it keeps what each call took."""

    def __init__(self):
        self.library, self.times = ctypes.CDLL("libcuda.so.1"), None
        self.context, self.device = ctypes.c_void_p(), ctypes.c_int()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(self.device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.device)
        self.call("cuCtxPushCurrent_v2", self.context)

    def code(self, name, *arguments):
        function = getattr(self.library, name)
        start = time.perf_counter_ns()
        code = function(*arguments)
        if self.times is not None:
            self.times[name].append(time.perf_counter_ns() - start)
        return code

    def call(self, name, *arguments):
        code = self.code(name, *arguments)
        if code != 0:
            raise Refused(f"{name}: error {code}")

    def size(self, name, *arguments):
        """What a call writes to its first argument, a size_t or an address."""
        out = ctypes.c_uint64()
        self.call(name, ctypes.byref(out), *arguments)
        return out.value

    def attribute(self, number):
        out = ctypes.c_int()
        code = self.code("cuDeviceGetAttribute", ctypes.byref(out), number, self.device)
        return out.value if code == 0 else f"error {code}"

    def create(self, size, properties):
        return self.size("cuMemCreate", ctypes.c_size_t(size), ctypes.byref(properties), ctypes.c_uint64(0))


def memory_on(kind, number=0, exported=1):
    return Properties(1, exported, Location(kind, number))


def attributes(row):
    """Rows of what the driver says. A kind of memory that it refuses is a row with the code, and no failure."""
    driver = Driver()
    version = ctypes.c_int()
    driver.call("cuDriverGetVersion", ctypes.byref(version))
    row("driver_version", version.value)
    for name, number in ATTRIBUTES.items():
        row(name, driver.attribute(number))
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    row("memory_total", total.value, "bytes")
    row("memory_free", free.value, "bytes")
    numa = driver.attribute(ATTRIBUTES["host_numa_id"])
    for words, properties in (("device", memory_on(DEVICE, 0)), ("host_numa", memory_on(HOST_NUMA, numa if isinstance(numa, int) else 0, 0)),
                              ("host", memory_on(HOST, 0, 0))):
        for which, number in (("minimum", 0), ("recommended", 1)):
            granule = ctypes.c_size_t()
            code = driver.code("cuMemGetAllocationGranularity", ctypes.byref(granule), ctypes.byref(properties), number)
            row(f"granularity_{which} {words}", granule.value if code == 0 else f"error {code}", "bytes")
        memory, size = ctypes.c_uint64(), granule.value or 2 * MIB
        code = driver.code("cuMemCreate", ctypes.byref(memory), ctypes.c_size_t(size), ctypes.byref(properties), ctypes.c_uint64(0))
        row(f"create {words}", "works" if code == 0 else f"error {code}", good=code == 0 if words == "device" else None)
        if code == 0 and words == "device":
            fd = ctypes.c_int(-1)
            code = driver.code("cuMemExportToShareableHandle", ctypes.byref(fd), memory, 1, ctypes.c_uint64(0))
            row("export to a descriptor", "works" if code == 0 else f"error {code}", good=code == 0)
            if fd.value >= 0:
                os.close(fd.value)
        if memory.value:
            driver.code("cuMemRelease", memory)


class Load:
    """A stream with work in it, for as long as busy() is called."""

    def __init__(self, driver, megabytes, pieces):
        self.driver, self.bytes, self.pieces = driver, megabytes * MIB, pieces
        self.stream, self.memory = ctypes.c_void_p(), ctypes.c_uint64()
        driver.call("cuStreamCreate", ctypes.byref(self.stream), 1)  # non-blocking
        driver.call("cuMemAlloc_v2", ctypes.byref(self.memory), ctypes.c_size_t(self.bytes))

    def busy(self):
        if self.driver.library.cuStreamQuery(self.stream) == 0:
            for _ in range(self.pieces):
                self.driver.call("cuMemsetD8Async", self.memory, ctypes.c_ubyte(1), ctypes.c_size_t(self.bytes), self.stream)

    def end(self):
        self.driver.call("cuStreamSynchronize", self.stream)
        self.driver.call("cuMemFree_v2", self.memory)
        self.driver.call("cuStreamDestroy_v2", self.stream)


def live(driver, size, count, properties, access):
    """The life of `count` handles side by side in one range; a lone one is exported and imported too."""
    whole, handles = ctypes.c_size_t(size * count), []
    address = driver.size("cuMemAddressReserve", whole, ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0))
    for i in range(count):
        handles.append(driver.create(size, properties))
        driver.call("cuMemMap", ctypes.c_uint64(address + i * size), ctypes.c_size_t(size), ctypes.c_size_t(0), ctypes.c_uint64(handles[i]),
                    ctypes.c_uint64(0))
    driver.call("cuMemSetAccess", ctypes.c_uint64(address), whole, ctypes.byref(access), ctypes.c_size_t(1))
    if count == 1:
        fd = ctypes.c_int()
        driver.call("cuMemExportToShareableHandle", ctypes.byref(fd), ctypes.c_uint64(handles[0]), 1, ctypes.c_uint64(0))
        handles.append(driver.size("cuMemImportFromShareableHandle", ctypes.c_void_p(fd.value), 1))
        os.close(fd.value)
    driver.call("cuMemUnmap", ctypes.c_uint64(address), whole)
    for handle in handles:
        driver.call("cuMemRelease", ctypes.c_uint64(handle))
    driver.call("cuMemAddressFree", ctypes.c_uint64(address), whole)


def latencies(row, small):
    """Rows of each call's median and most, idle and while the device fills memory. Handles of several sizes, and many in one range."""
    driver = Driver()
    properties, access = memory_on(DEVICE), Access(Location(DEVICE, 0), 3)
    granule = driver.size("cuMemGetAllocationGranularity", ctypes.byref(properties), 0)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    cases = [(granule, 1, 3), (granule, 4, 2)] if small else [(granule, 1, 200), (granule, 64, 10), (32 * MIB, 1, 50), (512 * MIB, 1, 20), (4096 * MIB, 1, 5)]
    for words in ("idle", "busy"):
        load = Load(driver, 2 if small else 2048, 2 if small else 64) if words == "busy" else None
        for size, count, rounds in cases:
            if size * count > free.value // 2:
                continue
            driver.times, until = defaultdict(list), time.monotonic() + 4
            for _ in range(rounds):
                if load:
                    times, driver.times = driver.times, None
                    load.busy()
                    driver.times = times
                live(driver, size, count, properties, access)
                if time.monotonic() > until:
                    break
            times, driver.times = driver.times, None
            shape = f"{size // MIB} MiB" if count == 1 else f"{count} x {size // MIB} MiB"
            for name, taken in times.items():
                row(f"{name} {shape} {words}", round(statistics.median(taken)), "ns", most=max(taken), calls=len(taken))
        if load:
            load.end()
