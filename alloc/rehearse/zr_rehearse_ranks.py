"""zr_rehearse_ranks.py: what `zr rehearse` adds to PyTorch programs of several processes: the figures of each rank, and collectives of Python
objects. PyTorch computes the sizes of those messages by kernels on the device (cat, sum, max), which do nothing here, so their tensors are
kept in the host's memory and go through the device for each transfer."""
import atexit
import ctypes
import functools
import os
import threading

OBJECTS = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list", "recv_object_list")
DEVICE_OF = ("_get_object_coll_device", "_get_pg_default_device")  # of PyTorch 2.6 and of earlier ones
TRANSFERS = ("all_gather", "all_gather_single", "all_gather_into_tensor", "gather", "broadcast", "scatter", "send", "recv")


def at_end(call):
    """Calls once when the process ends, and in no child of it. A child of multiprocessing does not run atexit's functions but its own, and forgets those that were
    there before its work."""
    from multiprocessing import util
    pending, process = [call], os.getpid()

    def end():
        while pending and os.getpid() == process:
            pending.pop()()

    atexit.register(end)
    util.Finalize(None, end, exitpriority=0)


def note(torch, folder, snapshot):
    """A line for each device: process, rank, the device's number here and in the machine, PyTorch's peaks, failed requests, and the snapshot."""
    uuid = ctypes.create_string_buffer(16)
    with open(os.path.join(folder, "ranks"), "a", encoding="utf-8") as file:
        for device in range(torch.cuda.device_count()):
            stats = torch.cuda.memory_stats(device)
            if stats.get("reserved_bytes.all.peak") or stats.get("num_ooms"):
                ctypes.CDLL("libcuda.so.1").cuDeviceGetUuid_v2(uuid, device)
                print(os.getpid(), os.environ.get("RANK", -1), device, uuid.raw[15], stats["allocated_bytes.all.peak"], stats["reserved_bytes.all.peak"],
                      stats["num_ooms"], snapshot, file=file)


def prepare(torch):
    """Replaces the functions in torch.distributed, if it is there."""
    c10d = getattr(getattr(torch, "distributed", None), "distributed_c10d", None)
    device_of_name = next((name for name in DEVICE_OF if hasattr(c10d, name)), None)
    if not device_of_name:
        return
    state, driver = threading.local(), ctypes.CDLL("libcuda.so.1")
    device_of = getattr(c10d, device_of_name)

    def on_host(call):
        @functools.wraps(call)
        def run(*arguments, **named):
            named.pop("device", None)
            outer, state.on = getattr(state, "on", False), True
            try:
                return call(*arguments, **named)
            finally:
                state.on = outer
        return run

    def by_device(call):
        @functools.wraps(call)
        def run(*arguments, **named):
            if not getattr(state, "on", False):
                return call(*arguments, **named)
            pairs = []

            def there(value):
                if isinstance(value, (list, tuple)):
                    return [there(each) for each in value]
                if not isinstance(value, torch.Tensor) or value.is_cuda:
                    return value
                pairs.append((value, value.contiguous().cuda()))
                return pairs[-1][1]

            result = call(*[there(each) for each in arguments], **{name: there(each) for name, each in named.items()})
            torch.cuda.current_stream().synchronize()
            for host, device in pairs:  # by the driver: no read of the program's
                driver.cuMemcpyDtoH_v2(ctypes.c_void_p(host.data_ptr()), ctypes.c_uint64(device.data_ptr()), ctypes.c_size_t(host.nbytes))
            return result
        return run

    def object_device(group=None):
        device = device_of(group)
        return torch.device("cpu") if torch.device(device).type == "cuda" and getattr(state, "on", False) else device

    setattr(c10d, device_of_name, object_device)
    for names, wrap in ((OBJECTS, on_host), (TRANSFERS, by_device)):
        for name in names:
            if hasattr(c10d, name):
                before, after = getattr(c10d, name), wrap(getattr(c10d, name))
                for module in (c10d, torch.distributed):
                    if getattr(module, name, None) is before:
                        setattr(module, name, after)
