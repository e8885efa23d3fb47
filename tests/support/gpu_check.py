#!/usr/bin/env python3
"""`make gpu-check`: what a card says to all that the emulated driver has said so far, in stages that take less than ten minutes
each; GPU_STAGE names some of them, all without it:

    verdicts       the emulated driver's verdict on each rule beside the card's, and the backend's tests on the card
    kernels        each kernel against the double-precision oracle, on shapes that are drawn anew
    train          stages 0 to 3 at 1, 2 and 4 ranks that share the card: equal bits, near the processor's losses; NCCL where
                   there are two cards
    graphs         steps that are captured and replayed as CUDA graphs: equal bits; their time beside that of others
    latency        each virtual memory call of the driver, its median
    fragmentation  zr replay's policies beside PyTorch's allocators, and PyTorch, CuPy and JAX on zr's memory
    speed          tests/bench/bench_gpu.py, a few steps

    tests/support/gpu_check.py [--emulated] [STAGE ...]

Each stage writes tests/gpu-results/DATE-CARD-STAGE.json (GPU_RESULTS: another folder; emulated ones lie in the build): date, card, driver, verdict, seconds
and what it found. --emulated has the emulated driver pose as this machine's, with small shapes: that the stages themselves
work. Exit code 0: all well; 1: a stage failed; 77: no card."""
import argparse
import datetime
import json
import os
import random
import re
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)
from gpu_card import ABSENT, card, environment_of  # noqa: E402
from zrtest import BUILD, path, text_file, train  # noqa: E402

LIMIT = 570  # seconds of a stage
FP32, BF16 = 1e-4, 1e-2  # a card's products may be in other orders than the emulated one's


class Stage:
    """What a stage finds: rows of words and whether they are as they should be."""

    def __init__(self, emulated):
        self.emulated, self.rows, self.figures, self.until = emulated, [], {}, time.monotonic() + LIMIT

    def check(self, good, words):
        print(f"  {'ok' if good else 'NOT OK'}  {words}", flush=True)
        self.rows.append([bool(good), words])
        return good

    def run(self, *command, **environment):
        """(exit code, output); what is over the stage's time is ended with all that it has started."""
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, start_new_session=True,
                                   env={**os.environ, **environment_of(self.emulated, **environment)})
        try:
            output = process.communicate(timeout=max(1, self.until - time.monotonic()))[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return 124, process.communicate()[0] + f"\nover the stage's {LIMIT} s"
        return process.returncode, output

    def programs(self, *names, **environment):
        code, output = self.run("tests/run", *(f"{BUILD}/tests/{name}_test" for name in names), ZR_TEST_CUDA="card", **environment)
        last = ([line for line in output.splitlines() if re.match(r"\d+ passed", line)] or ["nothing ran"])[-1]
        if not self.check(code == 0, f"{', '.join(names)}: {last}"):
            print(output[-3000:])


def verdicts(stage):
    names = ["cuda_share", "cuda_emulator"] if stage.emulated else sorted(
        name[:-5] for name in os.listdir(os.path.join(BUILD, "tests")) if re.fullmatch(r"(backend|cuda_\w+)_test", name)
        and not re.fullmatch(r"cuda_(fp32|narrow|llama|table|matrix)_test", name))
    stage.programs(*names)


def kernels(stage):
    seed = 1 if stage.emulated else random.randrange(1, 1 << 30)
    stage.figures["seed"] = seed
    stage.programs(*(["cuda_llama"] if stage.emulated else ["cuda_fp32", "cuda_llama", "cuda_narrow"]), ZR_TEST_SEED=str(seed))


def trainings(stage):
    small = dict(layers=1, hidden=12, heads=2, seq=4, batch=1, steps=1, data=text_file(size=3000))
    large = dict(layers=4, hidden=256, heads=4, seq=128, batch=4, steps=10, data=text_file(size=200000))
    for precision, tolerance in (("fp32", FP32), ("bf16", BF16)):
        for ranks in ((2,) if stage.emulated else (1, 2, 4)):
            flags = dict(ranks=ranks, precision=precision, eval_every=0, threads=1, timeout=LIMIT, **(small if stage.emulated else large))
            host, first = train(**flags), None
            for level in ((1, 3) if stage.emulated else (0, 1, 2, 3)):
                if stage.emulated and precision == "bf16" or time.monotonic() > stage.until:
                    continue
                run = train(environment_of(stage.emulated), backend="cuda", stage=level, **flags)
                words = f"{precision}, {ranks} ranks, stage {level}"
                if not stage.check(run.code == 0, f"{words}: trains{'' if run.code == 0 else ': ' + run.err[-300:]}"):
                    continue
                worst = max(abs(a - b) / abs(b) for a, b in zip(run.report["loss"], host.report["loss"]))
                stage.check(worst <= tolerance, f"{words}: losses within {tolerance:g} of the processor's ({worst:.1e})")
                stage.check(first in (None, run.losses), f"{words}: the bits of the first stage")
                first = run.losses
                planned = [rank["planned_bytes"][tag] for rank in run.report["ranks"] for tag in ("param", "grad", "activation", "comm")]
                measured = [rank["peak_bytes"][tag] for rank in run.report["ranks"] for tag in ("param", "grad", "activation", "comm")]
                stage.check(planned == measured, f"{words}: measured as planned")
    if card(stage.emulated)["cards"] > 1:
        run = train(environment_of(stage.emulated), backend="cuda", comm="nccl", ranks=2, stage=1, eval_every=0, timeout=LIMIT,
                    **(small if stage.emulated else large))
        stage.check(run.code == 0, f"NCCL on two cards{'' if run.code == 0 else ': ' + run.err[-300:]}")


def graphs(stage):
    small = dict(layers=1, hidden=12, heads=2, seq=4, batch=1, steps=4, data=text_file(size=3000))
    large = dict(layers=4, hidden=256, heads=4, seq=128, batch=4, steps=20, data=text_file(size=200000))
    for precision in ("fp32",) if stage.emulated else ("fp32", "bf16", "fp16"):
        for ranks, level in ((1, 0), (2, 3)) if stage.emulated else [(ranks, level) for ranks in (1, 2, 4) for level in range(4)]:
            if time.monotonic() > stage.until:
                continue
            flags = dict(backend="cuda", ranks=ranks, stage=level, precision=precision, eval_every=0, threads=1, timeout=LIMIT,
                         **(small if stage.emulated else large))
            runs = [train(environment_of(stage.emulated), **flags, **more) for more in ({}, {"cuda_graph": True})]
            words = f"{precision}, {ranks} ranks, stage {level}"
            wrong = next((run for run in runs if run.code), None)
            if not stage.check(not wrong, f"{words}: trains{': ' + wrong.err[-300:] if wrong else ''}"):
                continue
            stage.check(runs[0].losses == runs[1].losses, f"{words}: equal bits as graphs")
            steps = [rank["graph_steps"] for rank in runs[1].report["ranks"]]
            stage.check(min(steps) > 0, f"{words}: steps that were graphs: {steps}")
            stage.figures[words] = dict(zip(("plain_seconds", "graph_seconds"), (min(run.report["step_seconds"]) for run in runs)))


# In a process of its own, which has the driver by its name: (call, nanoseconds) in the order of a granule's life.
CALLS = r"""
import ctypes, json, statistics, sys, time
cuda, rounds = ctypes.CDLL("libcuda.so.1"), int(sys.argv[1])
class Location(ctypes.Structure): _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]
class Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("exported", ctypes.c_int), ("location", Location), ("windows", ctypes.c_void_p),
                ("flags", ctypes.c_ubyte * 8)]
class Access(ctypes.Structure): _fields_ = [("location", Location), ("flags", ctypes.c_int)]
context, size, taken = ctypes.c_void_p(), ctypes.c_size_t(), {}
def call(name, *arguments):
    start = time.perf_counter_ns()
    code = getattr(cuda, name)(*arguments)
    taken.setdefault(name, []).append(time.perf_counter_ns() - start)
    assert code == 0, (name, code)
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxPushCurrent_v2(context) == 0
properties, access = Properties(1, 1, Location(1, 0)), Access(Location(1, 0), 3)
assert cuda.cuMemGetAllocationGranularity(ctypes.byref(size), ctypes.byref(properties), 0) == 0
for _ in range(rounds):
    address, memory, again, fd, event = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_int(), ctypes.c_void_p()
    call("cuMemAddressReserve", ctypes.byref(address), size, ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0))
    call("cuMemCreate", ctypes.byref(memory), size, ctypes.byref(properties), ctypes.c_uint64(0))
    call("cuMemMap", address, size, ctypes.c_size_t(0), memory, ctypes.c_uint64(0))
    call("cuMemSetAccess", address, size, ctypes.byref(access), ctypes.c_size_t(1))
    call("cuMemExportToShareableHandle", ctypes.byref(fd), memory, 1, ctypes.c_uint64(0))
    call("cuMemImportFromShareableHandle", ctypes.byref(again), ctypes.c_void_p(fd.value), 1)
    call("cuEventCreate", ctypes.byref(event), 2)
    call("cuEventRecord", event, None)
    call("cuEventQuery", event) if cuda.cuEventSynchronize(event) == 0 else None
    call("cuEventDestroy_v2", event)
    call("cuMemUnmap", address, size)
    call("cuMemRelease", again)
    call("cuMemRelease", memory)
    call("cuMemAddressFree", address, size)
    __import__("os").close(fd.value)
print(json.dumps({"granule_bytes": size.value, **{name: statistics.median(ns) for name, ns in taken.items()}}))
"""


def latency(stage):
    code, output = stage.run(sys.executable, "-c", CALLS, "3" if stage.emulated else "300")
    if not stage.check(code == 0, f"each call works{'' if code == 0 else ': ' + output[-500:]}"):
        return
    stage.figures = json.loads(output.splitlines()[-1])
    for name, ns in stage.figures.items():
        print(f"    {name:32} {ns:12,.0f}{'' if name == 'granule_bytes' else ' ns'}")


def fragmentation(stage):
    for name in ("gpu_pytorch.py", "gpu_train.py"):
        code, output = stage.run(sys.executable, os.path.join(HERE, name))
        last = (output.strip().splitlines() or ["it said nothing"])[-1]
        stage.check(code in (0, ABSENT), f"{name}: {'not run: ' if code == ABSENT else ''}{last[-200:]}")
        stage.figures[name] = output[-4000:]


def speed(stage):
    figures = path("speed.json")
    code, output = stage.run(sys.executable, "tests/bench/bench_gpu.py", "--json", figures, "--steps", "1" if stage.emulated else "10",
                             *(["--emulated", "--only", "124M"] if stage.emulated else []))
    print(output[-3000:])
    if stage.check(code == 0, "each model trains"):
        with open(figures, encoding="utf-8") as file:
            stage.figures = json.load(file)


STAGES = {"verdicts": verdicts, "kernels": kernels, "train": trainings, "graphs": graphs, "latency": latency, "fragmentation": fragmentation,
          "speed": speed}


def keep(name, found, stage, seconds):
    folder = os.environ.get("GPU_RESULTS", os.path.join(BUILD if stage.emulated else os.path.join(ROOT, "tests"), "gpu-results"))
    os.makedirs(folder, exist_ok=True)
    now = datetime.datetime.now(datetime.timezone.utc)
    where = os.path.join(folder, f"{now:%Y-%m-%d}-{re.sub('[^A-Za-z0-9]+', '-', found['name']).strip('-')}-{name}.json")
    with open(where, "w", encoding="utf-8") as file:
        json.dump({"version": 1, "stage": name, "date": now.isoformat(timespec="seconds"), "card": found["name"], "driver": found["driver"],
                   "cuda": found["cuda"], "well": bool(stage.rows) and all(good for good, _ in stage.rows), "seconds": round(seconds, 1),
                   "rows": stage.rows, "figures": stage.figures}, file, indent=1)
    return where


def main():
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--emulated", action="store_true")
    asked.add_argument("stages", nargs="*", choices=[*STAGES, []], metavar="STAGE")
    asked = asked.parse_args()
    found = card(asked.emulated)
    if not found:
        print("gpu-check: there is no card here (no CUDA driver, or no device); nothing was checked on one")
        return ABSENT
    well = True
    for name in asked.stages or STAGES:
        print(f"{name}, on {found['name']}, driver {found['driver']}", flush=True)
        stage, began = Stage(asked.emulated), time.monotonic()
        STAGES[name](stage)
        where = keep(name, found, stage, time.monotonic() - began)
        good = bool(stage.rows) and all(good for good, _ in stage.rows)
        well &= good
        print(f"{name}: {'all well' if good else 'NOT WELL'}; kept in {os.path.relpath(where)}", flush=True)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
