"""gpu_card.py: which card there is, by the driver's own words, in a process of its own; and the environment of programs that use it:
tests/gpu_shot and its steps, bench_gpu.py."""
import glob
import json
import os
import subprocess
import sys

from zrtest import BUILD, path

ABSENT = 77  # the exit code of what needs a card and finds none
EMULATOR = os.path.abspath(os.path.join(BUILD, "tests", "emulator"))
LIBRARIES = os.path.abspath(os.path.join(BUILD, "libraries"))  # of gpu_shot's archive: what zr's programs need beside glibc
# Where cuBLASLt is, of a toolkit or beside PyTorch: a driver alone does not bring it.
CUBLASLT = ("/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/x86_64-linux/lib", *(os.path.join(folder, "nvidia", "*", "lib") for folder in sys.path if folder))

ASK = r"""
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
version, count, device, name = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(96)
assert cuda.cuInit(0) == 0 and cuda.cuDriverGetVersion(ctypes.byref(version)) == 0
assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
if hasattr(cuda, "cuDeviceGetName"):
    cuda.cuDeviceGetName(name, 96, 0)
print(json.dumps({"name": name.value.decode() or "emulated", "cuda": version.value, "cards": count.value}))
"""


def cublaslt():
    """The first folder that has the library; "": none."""
    return next((os.path.dirname(file) for pattern in CUBLASLT for file in sorted(glob.glob(pattern + "/libcublasLt.so.1[23]"))), "")


def environment_of(emulated, **more):
    """For a program of zr's, which loads the driver by its name; ranks share the emulated card's bytes by a file."""
    folders = [EMULATOR] if emulated else []
    folders += [LIBRARIES] if os.path.isdir(LIBRARIES) else []
    folders += [os.environ.get("LD_LIBRARY_PATH", ""), "" if emulated else cublaslt()]
    found = ":".join(dict.fromkeys(folder for part in folders for folder in part.split(":") if folder))
    more = {**({"LD_LIBRARY_PATH": found} if found else {}), **more}
    if not emulated:
        return more
    conf = ",".join(filter(None, [os.environ.get("ZR_CONF"), "" if "kernels:emulated" in os.environ.get("ZR_CONF", "") else "kernels:emulated"]))
    return {"ZR_CONF": conf, "ZR_EMULATOR_SHARED": path("card"), **more}


def card(emulated=False):
    """{"name", "cuda", "cards", "driver"}; None: there is none."""
    try:
        got = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, timeout=60, env={**os.environ, **environment_of(emulated)})
    except subprocess.TimeoutExpired:
        return None
    if got.returncode != 0:
        return None
    found = json.loads(got.stdout)
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            found["driver"] = " ".join(file.readline().split()[2:9])
    except OSError:
        found["driver"] = f"CUDA {found['cuda'] // 1000}.{found['cuda'] % 1000 // 10}"
    return found
