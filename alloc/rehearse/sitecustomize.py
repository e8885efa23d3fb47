"""sitecustomize.py: what `zr rehearse` adds to a Python program: PyTorch's history of allocations is recorded from the start of CUDA on,
and written with PyTorch's own figures when the program ends, as are the lines that read what kernels would have made. The program's own
sitecustomize, if there is one, runs as well."""
import atexit
import ctypes
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

import zr_rehearse_ranks
import zr_rehearse_values

EVENTS_MAX = 500_000  # of the history, whose beginning is dropped then: it lies in the host's memory
NONZERO = os.environ.get("ZR_REHEARSE_NONZERO")  # the share of elements that operators with outputs of an unknown size find
# Where snapshots go, and the folder of the files below, which zr rehearse reads.
FOLDER, LINES = os.environ.get("ZR_REHEARSE_FOLDER"), os.environ.get("ZR_REHEARSE_LINES")
HERE = os.path.dirname(os.path.abspath(__file__))


def put(line, name="torch"):
    try:
        with open(os.path.join(LINES, name), "a", encoding="utf-8") as file:
            file.write(line + "\n")
    except FileNotFoundError:
        pass  # the rehearsal has ended, and this process, a compiler's worker for example, goes on


# Operators that hand a value to the program; another one that reads from the device makes a tensor whose size it has read.
VALUES = {"", "item", "_local_scalar_dense", "is_nonzero", "equal", "allclose", "_to_copy", "copy_", "cpu", "print"}
COUNTED = {"nonzero", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive"}
reads = {}  # [count, bytes] of (operator, file, line)


def place_of(torch):
    """The innermost frame of the program's own, and whether PyTorch prints a tensor for it."""
    frame, printed = sys._getframe(1).f_back, False
    folder = os.path.dirname(torch.__file__) + os.sep
    while frame and (frame.f_code.co_filename.startswith((folder, "<", HERE + os.sep))):
        printed |= os.path.basename(frame.f_code.co_filename) == "_tensor_str.py"
        frame = frame.f_back
    return (frame.f_code.co_filename.rpartition("-packages/")[2], frame.f_lineno, printed) if frame else ("backward", 0, printed)


def watch_reads(torch, device):
    """reads.c calls the function in the thread that reads."""

    @ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_size_t)
    def on_read(operator, size):
        file, line, printed = place_of(torch)
        row = reads.setdefault(("print" if printed else operator.decode(), file, line), [0, 0])
        row[0] += 1
        row[1] += size

    device.zr_rehearse_on_read(on_read)

    def stop():
        device.zr_rehearse_on_read(None)
        for (operator, name, line), (count, size) in reads.items():
            sizes = int(operator not in VALUES and not operator.startswith("to_"))
            put(f"{count} {size} {sizes} {operator or 'copy'} {name}:{line}", "reads")
        return on_read  # lives until now

    zr_rehearse_ranks.at_end(stop)


def elements_of(name, tensor, arguments):
    if not name.startswith("unique_dim"):
        return tensor.numel()
    return tensor.size(arguments[0]) if tensor.dim() else 1


def assume_share(torch, device, share):
    """The counts that these operators read back are a share of their input's elements. Their kernels are called as before: BackendSelect
    comes behind autograd and before CUDA."""
    library = torch.library.Library("aten", "IMPL")
    behind = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    device.cuRehearseCount.argtypes = [ctypes.c_int64]

    def replace(name, operator):
        def run(keys, tensor, *arguments, **others):
            if tensor.is_cuda:
                count = round(share * elements_of(name, tensor, arguments))
                device.cuRehearseCount(count if name == "nonzero" else max(count, int(tensor.numel() > 0)))
            try:
                return operator.redispatch(keys & behind, tensor, *arguments, **others)
            finally:
                device.cuRehearseCount(-1)

        library.impl(name, run, "BackendSelect", with_keyset=True)

    for name in COUNTED:
        replace(name, getattr(torch.ops.aten, name).default)
    return library


def has_history(torch):
    """PyTorch's cudaMallocAsync backend and pluggable allocators record none."""
    return torch.cuda.get_allocator_backend() == "native"


def write_snapshot(torch):
    """The name of the file; "-": PyTorch has no history; "": the file cannot be written, and the figures are there all the same."""
    name = os.path.join(FOLDER, f"snapshot.{os.getpid()}.pickle")
    if not has_history(torch):
        return "-"
    try:
        torch.cuda.memory._dump_snapshot(name)
        return name
    except OSError as error:
        print(f"zr: rehearse: cannot write {name}: {error.strerror}; give another --output", file=sys.stderr)
        if os.path.exists(name):
            os.remove(name)
        return ""


def write(torch):
    """One line for each device: the peaks of allocated and reserved bytes, how many requests failed for good, and the snapshot."""
    if not torch.cuda.is_initialized() or not os.path.isdir(LINES):
        return
    name = write_snapshot(torch)
    zr_rehearse_ranks.note(torch, LINES, name)
    for device in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats(device)
        if stats.get("reserved_bytes.all.peak") or stats.get("num_ooms"):
            put(f"{os.getpid()} {device} {stats['allocated_bytes.all.peak']} {stats['reserved_bytes.all.peak']} {stats['num_ooms']} {name}")


def record_history(torch):
    """Records from now on. A program's own recording goes on in this one, which it neither ends nor shortens."""
    record = torch.cuda.memory._record_memory_history

    @functools.wraps(record)
    def keep(enabled="all", *arguments, **named):
        if isinstance(enabled, str):  # not the old form, which records one event
            record(enabled, *arguments, **{**named, **({"max_entries": EVENTS_MAX} if "max_entries" in named else {})})

    if has_history(torch):
        record(stacks="python", max_entries=EVENTS_MAX)
        torch.cuda.memory._record_memory_history = keep


def begin(torch):
    if hasattr(torch, "version"):
        put(f"torch {torch.__version__} {torch.version.cuda}")
    if hasattr(torch, "cuda") and torch.backends.cuda.is_built():
        torch.cuda._lazy_call(lambda: record_history(torch))
        torch.cuda._lazy_call(lambda: zr_rehearse_ranks.at_end(lambda: write(torch)))
        zr_rehearse_ranks.prepare(torch)
        # Its checks of values read what kernels compute, and find it invalid.
        torch.distributions.Distribution.set_default_validate_args(False)
        device = ctypes.CDLL(None)
        if hasattr(device, "zr_rehearse_on_read"):
            watch_reads(torch, device)
            if hasattr(torch, "library"):
                torch._zr_rehearse_values = zr_rehearse_values.prepare(torch, device)
            if NONZERO:
                torch._zr_rehearse = assume_share(torch, device, float(NONZERO))  # lives as long as torch


class Finder(importlib.abc.MetaPathFinder):
    """Calls begin() when torch has been imported. A program may look for torch without importing it."""

    def find_spec(self, name, path, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if name == "torch" else None
        if spec and spec.loader:
            run = spec.loader.exec_module

            def exec_module(module):
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                run(module)
                begin(module)

            spec.loader.exec_module = exec_module
        return spec


def write_cupy():
    """What the default pool of CuPy has of the current device, and how much of it is in use; it counts no peak."""
    find_pool = getattr(sys.modules.get("cupy"), "get_default_memory_pool", None)
    if find_pool:
        put(f"{find_pool().total_bytes()} {find_pool().used_bytes()}", "cupy")


def replace_runtimes():
    """The CUDA runtime inside of an extension module or of a library of ctypes, as CuPy's, gives way to the stand-in: static_runtime.c."""
    replace = getattr(ctypes.CDLL(None), "zr_rehearse_replace_runtimes", lambda: None)

    def after(load):
        @functools.wraps(load)
        def run(*arguments, **named):
            loaded = load(*arguments, **named)
            replace()
            return loaded
        return run

    loader = importlib.machinery.ExtensionFileLoader
    loader.create_module, ctypes.CDLL.__init__ = after(loader.create_module), after(ctypes.CDLL.__init__)


def run_next():
    """The sitecustomize that this one hides."""
    rest = [folder for folder in sys.path if os.path.abspath(folder or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec and spec.loader:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if FOLDER and LINES:
    sys.meta_path.insert(0, Finder())
    replace_runtimes()
    atexit.register(write_cupy)
run_next()
