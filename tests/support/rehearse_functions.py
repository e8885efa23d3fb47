#!/usr/bin/env python3
"""rehearse_functions.py LIBRARY..: prints alloc/rehearse/functions.txt: the libraries of NVIDIA that programs link, each with the versions of
its symbols, and their functions, of the libraries of PyTorch's wheels (torch/lib/*.so of each) and of others that use CUDA. A .c file, as
Triton's backends/nvidia/driver.c, is compiled by the program: the functions of the driver that it calls or looks up."""
import re
import subprocess
import sys

# Loaded by dlopen.
LIBRARIES = {"libnvidia-ml.so.1": set()}
# Without the driver, which is a library of its own, and without what a wheel has brought under a name with a hash.
OURS = r"lib(?:cu(?!da\.so)|nv|nccl)(?![^]\s]*-[0-9a-f]{8}\.so)"
# Functions of the driver by name: what cudaGetDriverEntryPoint is asked for.
DRIVER = re.compile(rb"\0(cu(?:Mem|Multicast|Ctx|GreenCtx|Stream|Logs|Device|Tensor|Kernel|Library|Module|Func|Graph|Event|Launch|Link|Occupancy|Pointer)\w+)(?=\0)")

# What Triton's modules link, which it compiles on the machine.
TRITON = {"cuCtxGetLimit", "cuCtxSetLimit", "cuFuncSetCacheConfig", "cuOccupancyMaxActiveClusters"}


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main():
    names, libraries = set(TRITON), dict(LIBRARIES)
    for library in sys.argv[1:]:
        if library.endswith(".c"):
            with open(library, encoding="utf-8") as file:
                names.update(re.findall(r"\bcu[A-Z]\w+(?=\()", file.read()))
            continue
        for line in output("nm", "-D", "--undefined-only", library).splitlines():
            name = line.split()[-1].partition("@")[0]
            if re.match(r"cu|__cuda|nccl|nvrtc|nvshmem|nvtx|nvml|nvJitLink|nvjpeg", name):
                names.add(name)
        for name in re.findall(rf"NEEDED.*\[({OURS}[^]]*)\]", output("readelf", "--dynamic", library)):
            libraries.setdefault(name, set())
        for name, rest in re.findall(rf"Version: 1  File: ({OURS}\S+)  Cnt: \d+\n((?:.*Name: .*\n)*)", output("readelf", "--version-info", library)):
            libraries.setdefault(name, set()).update(re.findall(r"Name: (\S+)", rest))
        if re.search(r"lib(c10_cuda|torch_cuda)\.so$", library):
            with open(library, "rb") as file:
                names.update(name.decode() for name in DRIVER.findall(file.read()))
    for name in sorted(libraries):
        print(*[name, *sorted(libraries[name])])
    print(*sorted(names), sep="\n")


main()
