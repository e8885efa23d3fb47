#!/usr/bin/env python3
"""`make check-pytorch`: PyTorch's CUDA wheel on the emulated card, with its own allocator, beside libzr_cuda.so and through the plug-in.

PyTorch comes from PyPI into BUILD/pytorch at the first run: 540 MB, without NVIDIA's packages. Their place take the stand-ins of
alloc/rehearse/. No kernel runs. zr's Python package is installed beside it. It is not in CI.

    pytorch_check.py [SCENARIO..] [--times N] [--library FILE]

The scenario `models` trains the models of rehearse_models.py, each of which is a scenario too, and prints what each way reserves.

--times N runs each way of zr N times, with another libzr_cuda.so if --library names one. `make check-pytorch-asan` gives one that
AddressSanitizer and UndefinedBehaviorSanitizer instrument."""
import argparse
import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from zrtest import BUILD, done, note, ok, same, skip  # noqa: E402

HOME = os.path.abspath(os.path.join(BUILD, "pytorch"))
STAND_INS = os.path.abspath(os.path.join(BUILD, "lib", "zr-rehearse", "libzr_rehearse.so"))
CARD = {"ZR_EMULATOR_CARD": "h100", "ZR_EMULATOR_KEEP": str(1 << 20), "ZR_EMULATOR_TICKS": "0"}
ZR_CUDA = os.path.abspath(os.path.join(BUILD, "lib", "libzr_cuda.so"))
PACKAGES = ["typing_extensions", "filelock", "sympy", "networkx", "jinja2", "fsspec", "numpy", "setuptools>=77"]
MODEL_PACKAGES = (["--no-deps", "torchvision>=0.29,<0.30", "accelerate"], ["transformers>=5,<6", "psutil", "pillow"])
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


def install_models(python):
    """The libraries of rehearse_models.py. False: there is no network."""
    return not any(subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages], check=False).returncode
                   for packages in MODEL_PACKAGES)


def install_zr(python):
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--force-reinstall", "--config-settings",
                    f"built={os.path.abspath(BUILD)}", os.path.dirname(os.path.dirname(HERE))], check=True)


WAYS = {"native": {}, "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "preload": {},
        "preload, caching off": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, "plug-in": {}}
ZR_WAYS = ("preload", "preload, caching off", "plug-in")

SCENARIOS = ("steps", "lengths", "streams", "threads", "graphs")
# Most bytes reserved in a learned step ÷ bytes asked for.
MODELS = {"gpt2": 1.01, "llama": 1.01, "bert": 1.01, "resnet": 1.01}


def run(python, scenario, way, memory, library=None, **environment):
    arguments, before = ["--plug-in", *([library] if library else [])] if way == "plug-in" else [], {"LD_PRELOAD": STAND_INS}
    if way.startswith("preload"):
        before["LD_PRELOAD"] = f"{library or ZR_CUDA}:{STAND_INS}"
    if library:
        before.update(sanitizer(library, before["LD_PRELOAD"]))
    got = subprocess.run([python, os.path.join(HERE, "pytorch_step.py"), *arguments, scenario], capture_output=True, text=True, timeout=600,
                         env={**os.environ, **before, **CARD, "ZR_EMULATOR_MEMORY": str(memory), **WAYS[way], **environment})
    if got.returncode != 0:
        note(f"{scenario}, {way}: exit {got.returncode}\n{(got.stdout + got.stderr)[-1500:]}")
        return None
    return json.loads(got.stdout.splitlines()[-1])


def check_scenario(python, scenario):
    found = {way: run(python, scenario, way, 80 << 30) for way in WAYS}
    same([way for way in found if not found[way]], [], f"{scenario}: every way ends")
    note(f"{scenario}: " + ", ".join(f"{way} {each['card_bytes'] / MIB:,.0f} MiB" for way, each in found.items() if each))
    if not all(found.values()):
        return
    native, preload, plug_in = found["native"], found["preload"], found["plug-in"]
    more = preload["card_bytes"] - native["card_bytes"]
    ok(more <= GRANULE * (1 + preload["segments"]), f"{scenario}: the preload takes {more / MIB:.0f} MiB more than native; "
       f"{preload['segments']} segments of PyTorch, a granule each")
    same([way for way in ("preload, caching off", "plug-in") if found[way]["card_bytes"] > native["card_bytes"]], [],
         f"{scenario}: zr as the allocator takes no more than PyTorch's")
    if "model_bytes" in plug_in:
        same(plug_in["zr"]["tags"], {"model": plug_in["model_bytes"]}, f"{scenario}: zr.tag() names the model's blocks")
    for way in [way for way in found if scenario == "steps" and "zr" in found[way]]:
        held = found[way]["zr"]["peak_reserved_bytes"] / found[way]["zr"]["peak_requested_bytes"]
        ok(held <= 1.01, f"steps, {way}: the last step holds {held:.4f} times what it asks for")


def check_model(python, model):
    found = {way: run(python, model, way, 80 << 30, ZR_EMULATOR_DEVICES="1") for way in WAYS}
    if not same([way for way in found if not found[way]], [], f"{model}: every way ends"):
        return
    note(f"{model:22}{'asked':>8}{'reserved':>10}{'÷ asked':>9}{'at most':>9} MiB, driver calls of each step")
    for way, each in found.items():
        asked, reserved = each["asked_bytes"], each["last_bytes"]
        note(f"  {way:20}{asked / MIB:8,.0f}{reserved / MIB:10,.0f}{reserved / asked:9.4f}{each['most_bytes'] / MIB:9,.0f}     {each['calls']}")
    native, preload = found["native"], found["preload"]
    ok(preload["most_bytes"] <= native["most_bytes"] + GRANULE * preload["segments"],
       f"{model}: the preload takes at most a granule more for each of PyTorch's {preload['segments']} segments")
    for way in ("preload, caching off", "plug-in"):
        each = found[way]
        ok(each["most_bytes"] <= native["most_bytes"], f"{model}, {way}: no step takes more than PyTorch's allocator")
        ok(each["last_bytes"] <= MODELS[model] * each["asked_bytes"], f"{model}, {way}: the last step takes {MODELS[model]} of what it asks for")
        same(each["calls"][-1], 0, f"{model}, {way}: and calls no driver")


def check_full(python):
    for way in WAYS:
        each = run(python, "full", way, 24 << 30) or {"error": ""}
        wanted = {"preload, caching off": "RuntimeError: ", "plug-in": "OutOfMemoryError: CUDA out of memory. zr: arena"}.get(way, "OutOfMemoryError: ")
        ok(each["error"].startswith(wanted), f"full, {way}: a Python exception, and the program goes on")
        note(each["error"][:200])


def check_package(python):
    each = run(python, "package", "plug-in", 80 << 30)
    if not ok(each, "package: it ends"):
        return
    kv, two = 4 * MIB, 8 * MIB
    same(each["zr"]["tags"], {"kv": kv}, "zr.stats() has the bytes of a tag")
    same((each["live"], each["segments"]), ([0, 0, two, two], two), "memory_allocated(), its peak and a snapshot")
    ok("CUDA OOMs: 0" in each["summary"] and "8192 KiB" in each["summary"], "memory_summary()")
    ok("set_per_process_memory_fraction" in each["error"], "beyond the program's own fraction: torch.OutOfMemoryError") or note(each["error"])
    same(each["left"], [0, 1], "empty_cache() leaves nothing; the failure is counted")
    ok("1 to 31 bytes" in each["refused"], "a name that is too long is refused")
    late = subprocess.run([python, "-c", "import torch, zr; x = torch.empty(1, device='cuda'); zr.enable()"], capture_output=True, text=True, timeout=600,
                          env={**os.environ, "LD_PRELOAD": STAND_INS, **CARD})
    ok("call it before the first" in late.stderr, "zr.enable() after a CUDA tensor is refused") or note(late.stderr[-500:])


def sanitizer(library, preloaded):
    """What a library that is instrumented needs of a program that is not."""
    text = subprocess.run(["readelf", "--dynamic", library], capture_output=True, text=True, check=True).stdout
    if "libasan" not in text:
        return {}
    path = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout.strip()
    return {"LD_PRELOAD": f"{os.path.realpath(path)}:{preloaded}", "ASAN_OPTIONS": "detect_leaks=0:protect_shadow_gap=0:detect_odr_violation=0"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("scenarios", nargs="*", default=[*SCENARIOS, "full", "package", "models"])
    parser.add_argument("--times", type=int)
    parser.add_argument("--library", default=ZR_CUDA)
    options = parser.parse_args()
    python = install()
    if not python:
        skip("PyTorch cannot be installed from PyPI")
        return
    install_zr(python)
    scenarios = [each for name in options.scenarios for each in (MODELS if name == "models" else [name])]
    if any(each in MODELS for each in scenarios) and not install_models(python):
        skip("transformers cannot be installed from PyPI")
        return
    for scenario in scenarios:
        if options.times:
            for way in ZR_WAYS:
                ends = [bool(run(python, scenario, way, 80 << 30, os.path.abspath(options.library))) for _ in range(options.times)]
                same(ends, [True] * options.times, f"{scenario}, {way}, {options.library}: all of {options.times} runs end")
        elif scenario in SCENARIOS:
            check_scenario(python, scenario)
        elif scenario in MODELS:
            check_model(python, scenario)
        else:
            {"full": check_full, "package": check_package}[scenario](python)


if __name__ == "__main__":
    main()
    done()
