#!/usr/bin/env python3
"""`make check-pytorch`: PyTorch's CUDA wheel on the emulated card, with its own allocator, beside libzr_cuda.so and through the plug-in.

PyTorch comes from PyPI into BUILD/pytorch at the first run: 540 MB, without NVIDIA's packages. Their place take libraries that are built
here: tests/emulators/runtime/ is the CUDA runtime above the emulated driver, with the answers that PyTorch reads; every other function that
PyTorch's libraries import does nothing and returns 0. No kernel runs. It is not in CI."""
import glob
import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from zrtest import BUILD, done, note, ok, same, skip  # noqa: E402

HOME = os.path.abspath(os.path.join(BUILD, "pytorch"))
EMULATOR = os.path.abspath(os.path.join(BUILD, "tests", "emulator"))
RUNTIME = os.path.join(os.path.dirname(HERE), "emulators", "runtime")
ZR_CUDA = os.path.abspath(os.path.join(BUILD, "lib", "libzr_cuda.so"))
PACKAGES = ["typing_extensions", "filelock", "sympy", "networkx", "jinja2", "fsspec", "numpy", "setuptools>=77"]
GRANULE, MIB = 2 << 20, 1 << 20


def install():
    """The virtual environment's Python; None: there is no network."""
    python = os.path.join(HOME, "venv", "bin", "python")
    if not os.path.exists(os.path.join(HOME, "complete")):
        subprocess.run([sys.executable, "-m", "venv", os.path.dirname(os.path.dirname(python))], check=True)
        for packages in (["--no-deps", "torch>=2.15,<2.16"], PACKAGES):
            if subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages], check=False).returncode:
                return None
        open(os.path.join(HOME, "complete"), "w", encoding="utf-8").close()
    return python


def imports(libraries):
    """{name: the version that an import asks for, "": none} of NVIDIA's functions, and {library: its versions}."""
    names, needed = {}, {}
    for library in libraries:
        for line in subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True).stdout.splitlines():
            name, _, version = line.split()[-1].partition("@")
            if re.match(r"cu|__cuda|nccl|nvrtc|nvshmem", name):
                names[name] = version
        text = subprocess.run(["readelf", "--dynamic", library], capture_output=True, text=True, check=True).stdout
        for name in re.findall(r"NEEDED.*\[(lib(?:cu|nv|nccl)[^]]*)\]", text):
            needed.setdefault(name, set())
        text = subprocess.run(["readelf", "--version-info", library], capture_output=True, text=True, check=True).stdout
        for name, rest in re.findall(r"Version: 1  File: (lib(?:cu|nv|nccl)\S+)  Cnt: \d+\n((?:.*Name: .*\n)*)", text):
            needed.setdefault(name, set()).update(re.findall(r"Name: (\S+)", rest))
    return names, needed


def build(python):
    """The stand-ins, in HOME/lib."""
    library = os.path.join(HOME, "lib")
    os.makedirs(library, exist_ok=True)
    torch = glob.glob(os.path.join(os.path.dirname(os.path.dirname(python)), "lib", "python3*", "site-packages", "torch", "lib", "*.so"))
    names, needed = imports(torch)
    sources = sorted(glob.glob(os.path.join(RUNTIME, "*.c")))
    base = ["gcc", "-O1", "-g", "-fPIC", "-shared", "-I."]
    core = os.path.join(library, "libemulated_runtime.so")
    emulator = ["-L" + EMULATOR, "-l:libcuda.so.1"]
    subprocess.run([*base, "-Wall", "-Wextra", "-o", core, *sources, *emulator], check=True)
    there = set()
    for each in (core, os.path.join(EMULATOR, "libcuda.so.1")):
        text = subprocess.run(["nm", "-D", "--defined-only", each], capture_output=True, text=True, check=True).stdout
        there |= {line.split()[-1] for line in text.splitlines()}
    rest = os.path.join(HOME, "rest.c")
    with open(rest, "w", encoding="utf-8") as file:
        file.writelines(f"int {name}(void); int {name}(void) {{ return 0; }}\n" for name in sorted(set(names) - there))
    subprocess.run([*base, "-fno-builtin", "-Wl,-soname,libemulated_runtime.so", "-o", core, *sources, rest, *emulator], check=True)
    versions = os.path.join(HOME, "versions.map")
    for name, wanted in {**needed, "libnvidia-ml.so.1": set()}.items():
        if name == "libcuda.so.1" or "libtorch" in name:
            continue
        with open(versions, "w", encoding="utf-8") as file:
            file.writelines(f"{version} {{ }};\n" for version in sorted(wanted))
        script = ["-Wl,--version-script=" + versions] if wanted else []
        subprocess.run([*base, "-o", os.path.join(library, name), "-Wl,-soname," + name, *script, "-Wl,--no-as-needed", "-L" + library,
                        "-l:libemulated_runtime.so"], check=True)
    return library, len(names), len(there & set(names))


WAYS = {"native": {}, "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "preload": {"LD_PRELOAD": ZR_CUDA},
        "preload, caching off": {"LD_PRELOAD": ZR_CUDA, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, "plug-in": {}}

# The plug-in has no pool for a graph. With expandable segments PyTorch makes a call during the capture that the emulated driver takes for the
# end of it; which one, and whether a card does, is not known yet.
LEFT_OUT = {("graphs", "plug-in"), ("graphs", "expandable")}


def run(python, library, scenario, way, memory):
    arguments = ["--plug-in", ZR_CUDA] if way == "plug-in" else []
    got = subprocess.run([python, os.path.join(HERE, "pytorch_step.py"), *arguments, scenario], capture_output=True, text=True, timeout=600,
                         env={**os.environ, "LD_LIBRARY_PATH": f"{library}:{EMULATOR}", "ZR_EMULATOR_MEMORY": str(memory),
                              "ZR_EMULATOR_LAUNCHES": "/dev/null", **WAYS[way]})
    if got.returncode != 0:
        note(f"{scenario}, {way}: exit {got.returncode}\n{(got.stdout + got.stderr)[-1500:]}")
        return None
    return json.loads(got.stdout.splitlines()[-1])


def main():
    python = install()
    if not python:
        skip("PyTorch cannot be installed from PyPI")
        return
    library, count, answered = build(python)
    note(f"{count} functions of NVIDIA's libraries are imported by PyTorch: {answered} answer, the others do nothing")
    for scenario in sys.argv[1:] or ("steps", "lengths", "streams", "graphs"):
        found = {way: run(python, library, scenario, way, 80 << 30) for way in WAYS if (scenario, way) not in LEFT_OUT}
        same([way for way in found if not found[way]], [], f"{scenario}: every way ends")
        note(f"{scenario}: " + ", ".join(f"{way} {each['card_bytes'] / MIB:,.0f} MiB" for way, each in found.items() if each))
        native, preload = found["native"], found["preload"]
        if native and preload:
            more = preload["card_bytes"] - native["card_bytes"]
            ok(more <= GRANULE * (1 + preload["segments"]), f"{scenario}: the preload takes {more / MIB:.0f} MiB more than native; "
               f"{preload['segments']} segments of PyTorch, a granule each")
    full = {way: run(python, library, "full", way, 24 << 30) for way in WAYS}
    for way, each in full.items():
        ok(each and "error" in each, f"full, {way}: a Python exception") and note(each["error"][:200])


main()
done()
