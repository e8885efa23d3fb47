#!/usr/bin/env python3
"""The Python package: the wheel that the build backend makes, its programs and commands, and `import zr` on the emulated driver, with a
stand-in for PyTorch. tests/support/pytorch_check.py has PyTorch itself."""
import base64
import csv
import hashlib
import io
import os
import subprocess
import sys
import zipfile

sys.path[:0] = ["tests/support", "alloc/preload/python"]
import wheels
from zrtest import BUILD, HANG, done, note, ok, path, same

SITE, EMULATOR = path("site"), os.path.abspath(os.path.join(BUILD, "tests", "emulator"))
name = wheels.build_wheel(path(""), {"built": os.path.abspath(BUILD)})
with zipfile.ZipFile(path(name)) as wheel:
    record = next(entry for entry in wheel.namelist() if entry.endswith(".dist-info/RECORD"))
    rows = list(csv.reader(io.StringIO(wheel.read(record).decode())))
    same(sorted(row[0] for row in rows), sorted(wheel.namelist()), f"{name}: the record has every file")
    wrong = [entry for entry, digest, size in rows if entry != record and (int(size), digest) != (
        len(wheel.read(entry)), "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(wheel.read(entry)).digest()).decode().rstrip("="))]
    same(wrong, [], "with its size and digest")
    wheel.extractall(SITE)
    for entry in wheel.infolist():
        os.chmod(os.path.join(SITE, entry.filename), entry.external_attr >> 16 & 0o777)
with open("pyproject.toml", encoding="utf-8") as file:
    ok('build-backend = "wheels"' in file.read(), "pyproject.toml names the backend")


def python(*arguments, **environment):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=HANG, cwd=path(""),
                          env={**os.environ, "PYTHONPATH": SITE, **environment})


same(python("-m", "zr", "--version").stdout, f"zr {wheels.version()}\n", "python -m zr is the program zr")
with open(path("train.py"), "w", encoding="utf-8") as file:
    file.write("import sys; print(sys.argv[1:], sys.executable)")
got = python("-m", "zr", "run", "--malloc", "--", "train.py", "--steps", "2")
same(got.stdout, f"['--steps', '2'] {sys.executable}\n", "a script gets this Python, with the package's libraries") or note(got.stderr)
got = python("-m", "zr", "rehearse", "--", os.path.abspath(os.path.join(BUILD, "tests", "rehearse_program")), "1000", "3")
same((got.returncode, "verdict    fits" in got.stderr), (0, True), "zr rehearse has its libraries") or note(got.stderr)
sys.path.insert(0, SITE)
from zr.__main__ import with_python  # noqa: E402

os.chdir(path(""))
for words, wanted in ((["rehearse", "train.py", "a"], ["rehearse", sys.executable, "train.py", "a"]), (["rehearse", "python3", "train.py"], None),
                      (["run", "--json", "out", "--", "train.py"], ["run", "--json", "out", "--", sys.executable, "train.py"]), (["run", "--", "other.py"], None),
                      (["run", "python3", "-u", "train.py"], None), (["run", "torchrun", "--nproc_per_node", "8", "train.py"], None), (["stats", "train.py"], None),
                      (["run", "--", "python3", "-m", "pdb", "train.py"], None), (["train.py"], None)):
    same(with_python(words), wanted or words, f"zr {' '.join(words)}")

program = r"""
import ctypes, sys, types
calls = {}
class Setters:
    def __getattr__(self, name): return lambda address: calls.__setitem__(name, address)
class Allocator:
    def __init__(self, path, *names): self.path, self.names, self._allocator = path, names, Setters()
def change(allocator): calls["current"] = allocator
memory = types.SimpleNamespace(CUDAPluggableAllocator=Allocator, change_current_allocator=change)
torch = types.ModuleType("torch")
torch.cuda, torch._C = types.SimpleNamespace(memory=memory, is_initialized=lambda: True, current_device=lambda: 0), types.SimpleNamespace()
sys.modules["torch"] = torch
import zr
zr.enable()
zr.enable()
assert len(calls) == 9 and all(calls.values()) and calls["current"].names == ("zr_torch_alloc", "zr_torch_free"), calls
assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
library = ctypes.CDLL(calls["current"].path)
library.zr_torch_alloc.restype = ctypes.c_void_p
with zr.tag("outer"):
    with zr.tag("kv"):
        block = library.zr_torch_alloc(ctypes.c_ssize_t(5 << 20), 0, None)
    library.zr_torch_alloc(ctypes.c_ssize_t(1 << 20), 0, None)
library.zr_torch_alloc(ctypes.c_ssize_t(2 << 20), 0, None)
assert zr.stats()["tags"] == {"kv": 5 << 20, "outer": 1 << 20}, zr.stats()
assert sum(b["requested_size"] for s in torch._C._cuda_memorySnapshot()["segments"] for b in s["blocks"]) == 8 << 20
library.zr_torch_free(ctypes.c_void_p(block), ctypes.c_ssize_t(5 << 20), 0, None)
stats = torch._C._cuda_memoryStats(0)
assert stats["allocated_bytes"]["all"] == {"current": 3 << 20, "peak": 8 << 20, "allocated": 8 << 20, "freed": 5 << 20}, stats
torch._C._cuda_resetPeakMemoryStats(0)
torch._C._cuda_resetAccumulatedMemoryStats(0)
stats = torch._C._cuda_memoryStats(0)
assert stats["allocated_bytes"]["all"]["peak"] == 3 << 20 and stats["allocation"]["all"]["allocated"] == 0, stats
try:
    zr.snapshot("/nowhere/snapshot")
except RuntimeError as error:
    assert "/nowhere" in str(error), error
else:
    raise SystemExit("a snapshot in a folder that does not exist")
"""
got = python("-c", program, LD_LIBRARY_PATH=EMULATOR)
ok(got.returncode == 0, "enable(), tag(), stats(), snapshot() and PyTorch's figures") or note(got.stderr[-800:])
done()
