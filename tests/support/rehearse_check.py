#!/usr/bin/env python3
"""`make check-rehearse`: zr rehearse with unmodified training programs (rehearse_models.py) on PyTorch's CUDA wheel. Each model's answer is
compared with what follows from its parameters: their bytes, those of the optimizer's state, and a device on which they do not fit."""
import ast
import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from pytorch_check import HOME, MIB, install  # noqa: E402
from zrtest import BUILD, done, note, ok, path, same, skip  # noqa: E402

PACKAGES = (["--no-deps", "torchvision>=0.29,<0.30", "accelerate"], ["transformers>=5,<6", "psutil", "pillow"])
# Seconds of the processor for the steps of rehearse_models.py: 30 of GPT-2, three of LLaMA.
SECONDS = {"gpt2": 15, "llama": 3}
# Bytes of optimizer state for each of parameter.
STATES = {"gpt2": 2, "llama": 2, "bert": 2, "resnet": 1}


def rehearse(python, model, *options):
    """The exit code, the JSON, the number of parameters, what the program spent, and the words."""
    answer = path("answer")
    got = subprocess.run([os.path.join(os.path.abspath(BUILD), "bin", "zr"), "rehearse", "--output", path("snapshots"), "--json", answer, *options, "--", python,
                          os.path.join(HERE, "rehearse_models.py"), model], capture_output=True, text=True, timeout=900, cwd=os.path.dirname(answer))
    with open(answer, encoding="utf-8") as file:
        said = re.search(rf"{model}: (\d+) parameters, (.*)", got.stdout)
        return got.returncode, json.load(file), int(said[1]) if said else 0, ast.literal_eval(said[2]) if said else {}, got.stderr


def main():
    python = install()
    if not python or any(subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages], check=False).returncode
                         for packages in PACKAGES):
        skip(f"PyTorch and its libraries cannot be installed from PyPI into {HOME}")
        return
    models = sys.argv[1:] or ["readme", *STATES]
    if "readme" in models:
        got = subprocess.run([sys.executable, "tests/system/readme.t"], capture_output=True, text=True, env={**os.environ, "ZR_README_PYTHON": python})
        same((got.returncode, got.stdout.count("\nok ")), (0, 3), "README.md's first example is what the commands print") or note(got.stdout + got.stderr)
    for model in [model for model in models if model != "readme"]:
        code, answer, parameters, spent, words = rehearse(python, model)
        if not same((code, answer["verdict"]), (0, "fits"), f"{model} is trained"):
            note(words[-3000:])
            continue
        note("\n".join(words.splitlines()[-10:]))
        same(answer["peak_bytes"], answer["context_bytes"] + answer["reserved_bytes"], f"{model}: the device has what PyTorch counts, and a context")
        state = answer["categories"].get("optimizer state", 0) / (4 * parameters)
        # A step of AdamW holds one copy more for a while, which is the peak where activations are few.
        ok(0.98 < state / STATES[model] < 1.52, f"{model}: the optimizer's state has {state:.3f} times the parameters' bytes")
        ok(0.9 < answer["zr_bytes"] / answer["allocated_bytes"] < 1.1, f"{model}: zr reserves what is allocated, {answer['zr_bytes'] / MIB:.0f} MiB")
        if model in SECONDS:
            more = answer["host_bytes"] - spent["imports"] * 1024 - 4 * parameters
            ok(spent["steps"] <= SECONDS[model] and more <= 200 * MIB, f"{model}: {spent['steps']:.1f} s; imports, weights and {more / MIB:.0f} MiB on the host")
        memory = answer["context_bytes"] + 4 * parameters * (1 + STATES[model])
        code, answer, _, _, words = rehearse(python, model, "--memory", str(memory))
        same((code, answer["verdict"]), (1, "does not fit"), f"{model} does not fit where there is no byte for activations") or note(words[-3000:])
        ok(answer["short_bytes"] > 0 and answer["allocated_bytes"] < memory, f"{model}: short by {answer['short_bytes'] / MIB:.0f} MiB")


main()
done()
