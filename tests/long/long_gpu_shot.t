#!/usr/bin/env python3
"""tests/gpu_shot without a card: its archive, unpacked where there is no network, no compiler and no checkout, runs each step on the
emulated driver; what it keeps, its limits, what --failed repeats, a step that fails, and what is said where there is no card."""
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile

sys.path.insert(0, "tests/support")
from zrtest import BUILD, FOLDER, HANG, done, note, ok, path, same, wait_for

ROOT, BUILT, SHOT = os.getcwd(), os.path.abspath(BUILD), path("shot")
BARE = {"PATH": path("nowhere"), "HOME": FOLDER, "TMPDIR": FOLDER, "PYTHONPATH": path("frameworks")}


def run(program, *arguments, prefix=(), environment=None, **more):
    return subprocess.run([*prefix, sys.executable, program, *arguments], capture_output=True, text=True, timeout=HANG, cwd=FOLDER,
                          env={**(environment or {**os.environ, "BUILD": BUILT}), **more})


def shot(results, *arguments, **more):
    return run(os.path.join(ROOT, "tests/gpu_shot"), "--emulated", "--results", results, *arguments, **more)


def found(results, kind):
    with open(os.path.join(results, "results.jsonl"), encoding="utf-8") as file:
        return [line for line in map(json.loads, filter(str.strip, file)) if line["kind"] == kind]


def ends(results):
    return {line["step"]: line["end"] for line in found(results, "end")}


def hidden():
    """What starts a program without a network, with an empty folder in place of the checkout, and without the system's libraries that
    a bare machine lacks; nothing where the system refuses that."""
    needed = "".join(subprocess.run(["ldd", f"{BUILT}/bin/{name}"], capture_output=True, text=True).stdout for name in ("zr", "zr-train"))
    mount, lines = shutil.which("mount"), [f'-t tmpfs none "{ROOT}"']
    lines += [f"--bind /dev/null {where}" for where in re.findall(r"=> (/\S+/lib(?:dnnl|dw|jansson|uring)\.\S+)", needed)]
    script = " && ".join([*(f"{mount} {line}" for line in lines), 'exec "$@"'])
    prefix = [shutil.which("unshare"), "-rnm", shutil.which("sh"), "-c", script, "sh"]
    if mount and prefix[0] and subprocess.run([*prefix, "true"], capture_output=True).returncode == 0:
        return prefix
    note("the network and the checkout stay in sight: unshare is not allowed here")
    return []


# The archive, in emptiness.
got = run(os.path.join(ROOT, "tests/gpu_shot"), "--pack", path("shot.tar.gz"), "--emulated")
if not same(got.returncode, 0, "the archive is packed"):
    note(got.stderr)
    done()
packed = json.loads(got.stdout)
ok(packed["bytes"] == os.path.getsize(path("shot.tar.gz")) < 60e6 and re.fullmatch(r"\d\.\d+", packed["glibc"]), f"its size and the glibc it needs: {packed}")
with tarfile.open(path("shot.tar.gz")) as tar:
    tar.extractall(SHOT)
shutil.copytree("tests/support/fake_frameworks", path("frameworks"))
results = path("out")
got = run(f"{SHOT}/tests/gpu_shot", "--emulated", "--results", results, prefix=hidden(), environment=BARE)
same(got.returncode, 0, "every step of it is well on the emulated driver") or note(got.stderr)
same({step: end for step, end in ends(results).items() if end != "well"}, {"eager": "absent", "policies": "absent"}, "but those that need PyTorch")
same([step for step in ends(results)], found(results, "run")[0]["steps"], "each has an end")
with open(os.path.join(results, "results.jsonl"), encoding="utf-8") as file:
    text = file.read()
same(got.stdout, text, "stdout has the lines of the file")
ok(ROOT not in text + got.stderr, "nothing names the checkout")
rows = {(line["step"], line["name"]): line for line in found(results, "row")}
ok(rows["vmm", "cuMemMap 2 MiB busy"]["value"] > 0 and rows["vmm", "cuMemCreate 2 MiB idle"]["expected"]["value"] > 0, "a call's time, and what is expected")
ok(rows["speed", "GPT-2 124M: attention_forward_bf16"]["launches"] == 1, "a kernel's time in a step")
ok(rows["frameworks", "CuPy preload: reserved at most"]["value"] > 0, "the preload of the archive served a framework")
files = [os.path.join(results, name) for name in os.listdir(results)]
ok(len(files) <= 8 and all(os.path.getsize(each) <= 16 << 20 and re.fullmatch(r"[A-Za-z0-9._-]+", os.path.basename(each)) for each in files), f"few small files: {files}")

# Limits, and what is repeated.
results = path("limits")
same(shot(results, "_hang", "attributes").returncode, 1, "a step that hangs fails the run")
same(ends(results), {"_hang": "over its limit", "attributes": "well"}, "it is ended, and the next one runs")
same([line["left"] for line in found(results, "end")], [0, 0], "with all that it had started")
child = found(results, "row")[0]["value"]
ok(wait_for(lambda: not os.path.exists(f"/proc/{child}")), "what it had started in a session of its own is gone")
with open(os.path.join(results, "results.jsonl"), "a", encoding="utf-8") as file:
    file.write('{"kind": "end", "step": "_ha')
shot(path("again"), "--failed", os.path.join(results, "results.jsonl"), "--seconds", "0.5")
same(found(path("again"), "run")[0]["steps"], ["_hang"], "what failed is repeated alone, after a file that was cut off")
shot(path("short"), "_hang", "train", "--seconds", "1.2")
ok(ends(path("short"))["train"].startswith("not run"), "--seconds bounds the whole")
same(shot(path("again"), "train", ZR_EMULATOR_FAULT="cuMemMap:1:2").returncode, 1, "a call that a card refuses fails the run")
same([len(found(path("again"), "run")), ends(path("again"))["train"]], [2, "failed"], "a second run is added to the first")
shot(path("kernels"), "kernels", ZR_EMULATOR_FAULT="cuLaunchKernel:40:719")
same(ends(path("kernels")), {"kernels": "failed"}, "so does a kernel")
for program in ("tests/gpu_shot", "tests/bench/bench_gpu.py"):
    got = run(os.path.join(ROOT, program), LD_LIBRARY_PATH="")
    ok(got.returncode != 77 or "card" in got.stdout + got.stderr, f"{program} says that it needs a card")
done()
