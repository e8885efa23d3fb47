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
from pytorch_check import HOME, MIB, install, install_models  # noqa: E402
from zrtest import BUILD, done, note, ok, path, same, skip  # noqa: E402

# Seconds of the processor for the steps of rehearse_models.py: 30 of GPT-2, three of LLaMA.
SECONDS = {"gpt2": 15, "llama": 3}
# Bytes of optimizer state for each of parameter.
STATES = {"gpt2": 2, "llama": 2, "bert": 2, "t5": 2, "vit": 2, "lengths": 2, "generate": 2, "lstm": 2, "resnet": 1, "detection": 1, "graph": 1, "compiled": 2}


# Ways to train on four ranks (rehearse_ranks.py): the share of the optimizer's state, in ranks, that the first one has.
RANKS, WAYS = 4, {"ddp": 1, "fsdp": 4, "fsdp1": 4, "zero": 4}
ONE, ALL = ["rehearse_models.py"], ["-m", "torch.distributed.run", f"--nproc-per-node={RANKS}", "rehearse_ranks.py"]


def rehearse(python, model, *options, program=ONE):
    """The exit code, the JSON, the number of parameters, what the program spent, and the words."""
    answer = path("answer")
    got = subprocess.run([os.path.join(os.path.abspath(BUILD), "bin", "zr"), "rehearse", "--output", path("snapshots"), "--json", answer, *options, "--", python,
                          *program[:-1], os.path.join(HERE, program[-1]), model], capture_output=True, text=True, timeout=900, cwd=os.path.dirname(answer))
    with open(answer, encoding="utf-8") as file:
        said = re.search(rf"{model}: (\d+) parameters(?:, (.*))?", got.stdout)
        return got.returncode, json.load(file), int(said[1]) if said else 0, ast.literal_eval(said[2] or "{}") if said else {}, got.stderr


def check_ranks(python, way):
    code, answer, parameters, _, words = rehearse(python, way, "--devices", str(RANKS), program=ALL)
    if not same((code, answer["verdict"], [each["rank"] for each in answer["ranks"]]), (0, "fits", list(range(RANKS))), f"{way} on {RANKS} ranks"):
        note(words[-3000:])
        return
    note("\n".join(words.splitlines()[-12:]))
    for each in answer["ranks"]:
        same(each["peak_bytes"], answer["context_bytes"] + each["nccl_bytes"] + each["libraries_bytes"] + each["reserved_bytes"],
             f"{way}: the device of rank {each['rank']} has what PyTorch, NCCL and cuBLAS count, and a context")
    # FSDP1 and ZeRO by hand have whole tensors in one rank; FSDP1 counts the parameters of a rank.
    share = WAYS[way] * answer["categories"]["optimizer state"] / (8 * parameters * (RANKS if way == "fsdp1" else 1))
    ok(0.98 < share < 1.25, f"{way}: the optimizer's state of a rank is {share:.3f} times its share")


def main():
    python = install()
    if not python or not install_models(python):
        skip(f"PyTorch and its libraries cannot be installed from PyPI into {HOME}")
        return
    asked = sys.argv[1:] or ["readme", "experts", *WAYS, *STATES]
    if "readme" in asked:
        got = subprocess.run([sys.executable, "tests/system/readme.t"], capture_output=True, text=True, env={**os.environ, "ZR_README_PYTHON": python})
        same((got.returncode, got.stdout.count("\nok ")), (0, 3), "README.md's first example is what the commands print") or note(got.stdout + got.stderr)
    if "experts" in asked:
        experts(python)
    for way in [name for name in asked if name in WAYS]:
        check_ranks(python, way)
    for model in [name for name in asked if name in STATES]:
        code, answer, parameters, spent, words = rehearse(python, model)
        if not same((code, answer["verdict"]), (0, "fits"), f"{model} is trained"):
            note(words[-3000:])
            continue
        note("\n".join(words.splitlines()[-10:]))
        same(answer["peak_bytes"], answer["context_bytes"] + answer["libraries_bytes"] + answer["reserved_bytes"],
             f"{model}: the device has what PyTorch counts, a context and workspaces of libraries")
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


def experts(python):
    """Without --nonzero no expert gets a token, and none has gradients or optimizer state."""
    answers = [rehearse(python, "experts", "--nonzero", share)[1] for share in ("0", "0.25")]
    same([answer["certain"] for answer in answers], [False, False], "experts: sizes follow from results")
    ok(any(read["operator"] == "nonzero" and "mixtral" in read["place"] for read in answers[0]["reads"]), "experts: the line of the router is named")
    state = [answer["categories"].get("optimizer state", 0) / MIB for answer in answers]
    ok(state[0] < 0.5 * state[1], f"experts: {state[0]:.0f} MiB of optimizer state if none is chosen, {state[1]:.0f} MiB if a quarter is")


main()
done()
