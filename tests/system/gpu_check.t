#!/usr/bin/env python3
"""make gpu-check without a card: each of its stages on the emulated driver in place of the machine's, what it keeps of them,
a stage that fails, and what it and bench_gpu.py say where there is no card."""
import json
import os
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import HANG, done, note, ok, path, same

RESULTS, KEPT = path("results"), {"stage", "date", "card", "driver", "well", "seconds", "rows", "figures", "version", "cuda"}


def run(program, *arguments, **environment):
    return subprocess.run([sys.executable, program, *arguments], capture_output=True, text=True, timeout=HANG,
                          env={**os.environ, "GPU_RESULTS": RESULTS, **environment})


def kept():
    found = {}
    for name in sorted(os.listdir(RESULTS)):
        with open(os.path.join(RESULTS, name), encoding="utf-8") as file:
            found[name.split("-")[-1]] = json.load(file)
    return found


got = run("tests/support/gpu_check.py", "--emulated")
same(got.returncode, 0, "every stage is well on the emulated driver") or note(got.stdout + got.stderr)
results = kept()
same([*results], [f"{name}.json" for name in ("fragmentation", "graphs", "kernels", "latency", "speed", "train", "verdicts")], "each is kept")
ok(all(set(each) == KEPT and each["well"] and each["rows"] for each in results.values()), "with its date, card, driver and rows") or note(results)
ok(results["latency.json"]["figures"]["cuMemMap"] > 0, "the time of a call is among the figures")
got = run("tests/support/gpu_check.py", "--emulated", "latency", ZR_EMULATOR_FAULT="cuMemMap:1:2")
same((got.returncode, kept()["latency.json"]["well"]), (1, False), "a call that a card refuses fails the stage") or note(got.stdout)
got = run("tests/support/gpu_check.py", "--emulated", "kernels", ZR_EMULATOR_FAULT="cuLaunchKernel:40:719")
same((got.returncode, kept()["kernels.json"]["well"]), (1, False), "so does a kernel") or note(got.stdout)
for program in ("tests/support/gpu_check.py", "tests/bench/bench_gpu.py"):
    got = run(program, LD_LIBRARY_PATH="")
    if got.returncode == 77:
        ok("card" in got.stdout, f"{program} says that it needs a card")
    else:
        note(f"{program}: there is a card here")
done()
