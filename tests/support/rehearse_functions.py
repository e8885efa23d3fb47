#!/usr/bin/env python3
"""rehearse_functions.py [--beyond TABLE] FILE..: prints alloc/rehearse/functions.txt: the libraries of NVIDIA that programs link, each with
the versions of its symbols, and their functions, of the libraries of PyTorch's wheels and of others that use CUDA. A FILE is a library, a
folder or a wheel. Of libcudart.so itself all functions are taken: a wheel of another version may need any. A .c file, as Triton's
backends/nvidia/driver.c, is compiled by the program: the functions of the driver that it calls or looks up. --beyond
prints only what the table lacks, and with it the library that needs it; then the exit code is 1."""
import argparse
import os
import re
import subprocess
import sys
import tempfile
import zipfile

# Loaded by dlopen.
LIBRARIES = {"libnvidia-ml.so.1": set()}
# Without the driver, which is a library of its own, and without what a wheel has brought under a name with a hash.
OURS = r"lib(?:cu(?!da\.so)|nv|nccl)(?![^]\s]*[-.][0-9a-f]{8}\.so)"
# Functions of the driver by name: what cudaGetDriverEntryPoint is asked for.
DRIVER = re.compile(rb"\0(cu(?:Mem|Multicast|Ctx|GreenCtx|Stream|Logs|Device|Tensor|Kernel|Library|Module|Func|Graph|Event|Launch|Link|Occupancy|Pointer)\w+)(?=\0)")

# Forms of functions for a program whose default stream is one of each thread.
PER_THREAD = "_pt[ds][sz]"
# Files that may use CUDA.
USERS = r"\.so(\.\d+)*$|nvidia/driver\.c$"

# What Triton's modules link, which it compiles on the machine.
TRITON = {"cuCtxGetLimit", "cuCtxSetLimit", "cuFuncSetCacheConfig", "cuOccupancyMaxActiveClusters"}


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def files_of(path, folder):
    """The files that use CUDA in a wheel, which is unpacked in the folder, or in a directory; or the file itself."""
    if path.endswith(".whl"):
        folder = os.path.join(folder, os.path.basename(path))
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(folder, [name for name in wheel.namelist() if re.search(USERS, name)])
        path = folder
    if not os.path.isdir(path):
        return [path]
    return [name for each, _, names in os.walk(path) for name in (os.path.join(each, name) for name in sorted(names)) if re.search(USERS, name)]


def needs(library):
    """The functions that the library needs, and the libraries with their versions."""
    functions, libraries = set(), {}
    if re.match(r"libcudart\.so", os.path.basename(library)):
        return set(re.findall(rf" T (cuda\w+)(?<!{PER_THREAD})@", output("nm", "-D", "--defined-only", library))), {}
    if library.endswith(".c"):
        with open(library, encoding="utf-8") as file:
            return set(re.findall(r"\bcu[A-Z]\w+(?=\()", file.read())), {}
    for line in output("nm", "-D", "--undefined-only", library).splitlines():
        name = line.split()[-1].partition("@")[0]
        if re.match(r"cu[A-Z]|cu(?:da|blas|fft|rand|solver|sparse|dnn|pti|tensor)|__cuda|nccl|nvrtc|nvshmem|nvtx|nvml|nvJitLink", name):
            functions.add(name)
    for name in re.findall(rf"NEEDED.*\[({OURS}[^]]*)\]", output("readelf", "--dynamic", library)):
        libraries.setdefault(name, set())
    for name, rest in re.findall(rf"Version: 1  File: ({OURS}\S+)  Cnt: \d+\n((?:.*Name: .*\n)*)", output("readelf", "--version-info", library)):
        libraries.setdefault(name, set()).update(re.findall(r"Name: (\S+)", rest))
    if re.search(r"lib(c10_cuda|torch_cuda)\.so$", library):
        with open(library, "rb") as file:
            functions.update(name.decode() for name in DRIVER.findall(file.read()))
    if "libcudart_static_" in output("nm", library):  # the runtime is inside: what the rest calls of it
        functions.update(re.findall(rf"(?:call|jmp) +[0-9a-f]+ <((?:__)?cuda[A-Z]\w+)(?<!{PER_THREAD})>", output("objdump", "-d", "--no-show-raw-insn", library)))
    return functions, libraries


def read_table(path):
    with open(path, encoding="utf-8") as file:
        rows = [line.split() for line in file if line.strip()]
    return {row[0] for row in rows if ".so" not in row[0]}, {row[0]: set(row[1:]) for row in rows if ".so" in row[0]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--beyond")
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    functions, libraries = read_table(options.beyond) if options.beyond else (set(TRITON), dict(LIBRARIES))
    lacks = 0
    with tempfile.TemporaryDirectory() as folder:
        for library in (each for path in options.files for each in files_of(path, folder)):
            needed, linked = needs(library)
            new = sorted(needed - functions) + sorted(f"{name} {version}".strip() for name, versions in linked.items()
                                                      for version in versions | ({""} if name not in libraries else set())
                                                      if version not in libraries.get(name, {None}))
            if options.beyond and new:
                print(*[f"{library}: {each}" for each in new], sep="\n")
            lacks += len(new)
            functions |= needed
            for name, versions in linked.items():
                libraries.setdefault(name, set()).update(versions)
    if options.beyond:
        sys.exit(lacks > 0)
    for name in sorted(libraries):
        print(*[name, *sorted(libraries[name])])
    print(*sorted(functions), sep="\n")


main()
