"""sitecustomize.py: what `zr rehearse` adds to a Python program: PyTorch's history of allocations is recorded from the start of CUDA on,
and written with PyTorch's own figures when the program ends. The program's own sitecustomize, if there is one, runs as well."""
import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

EVENTS_MAX = 500_000  # of the history, whose beginning is dropped then: it lies in the host's memory
# Where snapshots go, and the file for the lines below, which zr rehearse reads.
FOLDER, LINES = os.environ.get("ZR_REHEARSE_FOLDER"), os.environ.get("ZR_REHEARSE_LINES")
HERE = os.path.dirname(os.path.abspath(__file__))


def put(line):
    with open(LINES, "a", encoding="utf-8") as file:
        file.write(line + "\n")


def write(torch):
    """One line for each device: the peaks of allocated and reserved bytes, how many requests failed for good, and the snapshot."""
    if not torch.cuda.is_initialized():
        return
    name = os.path.join(FOLDER, f"snapshot.{os.getpid()}.pickle")
    torch.cuda.memory._dump_snapshot(name)
    for device in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats(device)
        if stats.get("reserved_bytes.all.peak") or stats.get("num_ooms"):
            put(f"{os.getpid()} {device} {stats['allocated_bytes.all.peak']} {stats['reserved_bytes.all.peak']} {stats['num_ooms']} {name}")


def begin(torch):
    if hasattr(torch, "version"):
        put(f"torch {torch.__version__} {torch.version.cuda}")
    if hasattr(torch, "cuda") and torch.backends.cuda.is_built():
        torch.cuda._lazy_call(lambda: torch.cuda.memory._record_memory_history(stacks="python", max_entries=EVENTS_MAX))
        atexit.register(write, torch)


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


def run_next():
    """The sitecustomize that this one hides."""
    rest = [folder for folder in sys.path if os.path.abspath(folder or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec and spec.loader:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if FOLDER and LINES:
    sys.meta_path.insert(0, Finder())
run_next()
