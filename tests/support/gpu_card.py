"""gpu_card.py: which card there is, by the driver's own words, in a process of its own: gpu_check.py, bench_gpu.py."""
import json
import os
import subprocess
import sys

from zrtest import BUILD, path

ABSENT = 77  # the exit code of what needs a card and finds none
EMULATOR = os.path.abspath(os.path.join(BUILD, "tests", "emulator"))

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


def environment_of(emulated, **more):
    """For a program that loads the driver by its name; ranks share the emulated card's bytes by a file."""
    if not emulated:
        return more
    conf = ",".join(filter(None, [os.environ.get("ZR_CONF"), "kernels:emulated"]))
    return {"LD_LIBRARY_PATH": EMULATOR, "ZR_CONF": conf, "ZR_EMULATOR_SHARED": path("card"), **more}


def card(emulated=False):
    """{"name", "cuda", "cards", "driver"}; None: there is none."""
    got = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, env={**os.environ, **environment_of(emulated)})
    if got.returncode != 0:
        return None
    found = json.loads(got.stdout)
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            found["driver"] = " ".join(file.readline().split()[2:9])
    except OSError:
        found["driver"] = f"CUDA {found['cuda'] // 1000}.{found['cuda'] % 1000 // 10}"
    return found
