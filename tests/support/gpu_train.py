#!/usr/bin/env python3
"""Frameworks on zr's memory, on a card: `make gpu-check` runs it.

PyTorch trains a small GPT whose sequence length changes with each step, in a process of its own for each allocator:
its native one, expandable segments, libzr_cuda.so preloaded (PyTorch's own cache off), and libzr_cuda.so as a plug-in
(alloc/preload/python). Told of each: the most that was reserved, steps per second, the losses, which must be the
same to the last bit. CuPy and JAX, where they are there, do a loop of arrays whose sizes change, with and without the
preload, and must find the same.

What PyTorch's own allocators reserve is by its statistics; of ours it is what zr holds of the driver (zr run --json),
which also has what cuBLAS and other libraries allocate by themselves.

    tests/support/gpu_train.py [--steps N]

Exit code 0: all that ran is equal; 1: some differ or failed; 77: not run, since there is no GPU, or no framework."""
import argparse
import ctypes
import json
import os
import random
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gpu_card import LIBRARIES, environment_of
from sizes import size

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(os.environ.get("BUILD", os.path.join(ROOT, "build")))
ZR, LIBRARY = os.path.join(BUILD, "bin", "zr"), os.path.join(BUILD, "lib", "libzr_cuda.so")
ABSENT = 77
WARM = 10  # steps before the clock starts
HANG = 1800  # seconds, after which a run is given up

# How each is started: (name, what zr run is given or None, variables).
CACHING = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"  # the old name and the new one
PYTORCH = [("native", None, {}), ("expandable", None, dict.fromkeys(CACHING, "expandable_segments:True")),
           ("preload", ["--cuda"], {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}), ("plug-in", ["--malloc"], {})]
CUPY = [("native", None, {}), ("preload", ["--cuda"], {})]
SAME_BITS = {"XLA_FLAGS": "--xla_gpu_deterministic_ops=true"}
JAX = [("native", None, {**SAME_BITS, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
       ("preload", ["--cuda"], {**SAME_BITS, "XLA_PYTHON_CLIENT_ALLOCATOR": "platform"})]


class Absent(Exception):
    """A framework is not there, or finds no card."""


# ---- In a process of its own -----------------------------------------------------------------------------------------


def train(mode, steps, device="cuda", width=512, layers=6, batch=8, longest=1024):
    """The losses of a GPT, steps per second, and what PyTorch says it reserved."""
    try:
        import torch
    except ImportError as error:
        raise Absent(f"PyTorch is not installed ({error})") from error
    if device == "cuda" and not torch.cuda.is_available():
        raise Absent(f"PyTorch {torch.__version__} finds no card")
    if mode == "plug-in":
        sys.path.insert(0, os.path.join(ROOT, "alloc", "preload", "python"))
        import zr
        zr.enable(LIBRARY)
    from torch import nn
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(1)
    vocabulary, heads = 4096, 8

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            count, length, _ = x.shape
            q, k, v = (part.view(count, length, heads, -1).transpose(1, 2) for part in self.qkv(self.norms[0](x)).split(width, 2))
            scores = q @ k.transpose(2, 3) * (width // heads) ** -0.5
            hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            weights = scores.masked_fill(hidden, float("-inf")).softmax(3)
            x = x + self.out((weights @ v).transpose(1, 2).reshape(count, length, width))
            return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))

    tokens, places = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
    nn.init.normal_(tokens.weight, std=0.02)
    model = nn.ModuleList([tokens, places, *(Block() for _ in range(layers)), nn.LayerNorm(width)]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    draw, losses, start = random.Random(1), [], None
    for step in range(steps):
        if step == WARM:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        length = draw.randint(longest // 16, longest)
        # Words that follow one another by a rule, so that there is something to learn; drawn on the host.
        first = [[draw.randrange(vocabulary)] for _ in range(batch)]
        words = torch.tensor([[(row[0] + 7 * i) % vocabulary for i in range(length + 1)] for row in first]).to(device)
        x = tokens(words[:, :-1]) + places(torch.arange(length, device=device))
        for layer in model[2:]:
            x = layer(x)
        loss = nn.functional.cross_entropy((x @ tokens.weight.t()).view(-1, vocabulary), words[:, 1:].reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if device == "cuda":
        torch.cuda.synchronize()
    rate = (steps - WARM) / (time.perf_counter() - start) if start else 0
    own = mode in ("native", "expandable") and device == "cuda"
    return {"answers": losses, "rate": rate, "reserved": torch.cuda.max_memory_reserved() if own else None,
            "what": f"PyTorch {torch.__version__} on {torch.cuda.get_device_name(0) if device == 'cuda' else 'the host'}"}


def loop_arrays(xp, card, mode, steps, settle):
    """Sums of products whose sizes change: the same of CuPy and of jax.numpy."""
    draw, answers, kept, start = random.Random(1), [], [], None
    for step in range(steps):
        start = time.perf_counter() if step == WARM else start
        size = draw.randint(64, 2048)
        a = xp.arange(size * size, dtype=xp.float32).reshape(size, size) % 97 / 97
        kept = [*kept[-3:], a @ a.T]
        answers.append(float(sum(each.sum() for each in kept)))
    settle()
    rate = (steps - WARM) / (time.perf_counter() - start) if start else 0
    return {"answers": answers, "rate": rate, "what": card, "reserved": None}


def loop_cupy(mode, steps):
    try:
        import cupy
        name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    except ImportError as error:
        raise Absent(f"CuPy is not installed ({error})") from error
    except Exception as error:  # of CuPy's own, which only an import names
        raise Absent(f"CuPy finds no card ({error})") from error
    if mode == "preload":
        cupy.cuda.set_allocator(None)
    told = loop_arrays(cupy, f"CuPy {cupy.__version__} on {name}", mode, steps, cupy.cuda.Device().synchronize)
    return {**told, "reserved": cupy.get_default_memory_pool().total_bytes() if mode == "native" else None}


def loop_jax(mode, steps):
    try:
        import jax
        cards = jax.devices("gpu")
    except ImportError as error:
        raise Absent(f"JAX is not installed ({error})") from error
    except RuntimeError as error:
        raise Absent(f"JAX finds no card ({error})") from error
    told = loop_arrays(jax.numpy, f"JAX {jax.__version__} on {cards[0].device_kind}", mode, steps, lambda: None)
    stats = cards[0].memory_stats() or {}
    return {**told, "reserved": stats.get("peak_pool_bytes", stats.get("peak_bytes_in_use")) if mode == "native" else None}


FRAMEWORKS = {"PyTorch": (train, PYTORCH), "CuPy": (loop_cupy, CUPY), "JAX": (loop_jax, JAX)}


def drive(framework, mode, steps):
    """Its answer, or why there is none, as one line of JSON on stdout."""
    try:
        answer = FRAMEWORKS[framework][0](mode, steps)
    except Absent as absent:
        answer = {"absent": str(absent)}
    print("\n" + json.dumps(answer))


# ---- Beside them -----------------------------------------------------------------------------------------------------


def no_card():
    """Why there is no GPU here; None: there is one."""
    count = ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA driver"
    code = driver.cuInit(0)
    if code != 0:
        return f"the CUDA driver does not start: error {code}"
    return None if driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0 else "the CUDA driver finds none"


def ask(framework, mode, options, variables, steps, folder):
    """The answer of one run. With "failed" where it has none."""
    command = [sys.executable, os.path.abspath(__file__), "--drive", framework, mode, "--steps", str(steps)]
    figures = os.path.join(folder, "figures.json")
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", **variables}
    if options is not None:
        if os.path.isdir(LIBRARIES):  # they are for zr, and not for Python
            command[:0] = ["/usr/bin/env", f"LD_LIBRARY_PATH={os.environ.get('LD_LIBRARY_PATH', '')}"]
            environment.update(environment_of(False))
        command = [ZR, "run", *options, "--json", figures, "--", *command]
    try:
        got = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment, timeout=HANG)
    except subprocess.TimeoutExpired:
        return {"failed": f"no end in {HANG} seconds"}
    lines = got.stdout.splitlines()
    if got.returncode != 0 or not lines:
        return {"failed": f"exit code {got.returncode}"}
    answer = json.loads(lines[-1])
    if options is not None and "absent" not in answer:
        with open(figures, encoding="utf-8") as file:
            devices = json.load(file)["sum"]["devices"]
        answer["reserved"] = max((device["peak_held_bytes"] for device in devices), default=0)
    return answer


def judge(name, answer, first):
    """(whether it is as it should be, a line about it); first is the native one's answer."""
    if "failed" in answer:
        return False, f"  {name:10} failed: {answer['failed']}"
    words, good = f"answers {answer['answers'][0]:.6g} to {answer['answers'][-1]:.6g}", True
    if "failed" in first:
        good, words = False, f"{words}, and the native one has none to compare with"
    elif answer["answers"] != first["answers"]:
        pairs = list(zip(first["answers"], answer["answers"]))
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        good, words = False, f"{words}: DIFFERENT from step {at} on"
    else:
        words += ", the same" if answer is not first else ""
    if answer["reserved"] == 0:
        good, words = False, f"{words}; NOTHING came from zr's arena"
    reserved = "not told" if answer["reserved"] is None else size(answer['reserved'])
    return good, f"  {name:10} peak reserved {reserved:>10}, {answer['rate']:7.2f} steps/s, {words}"


def compare(framework, steps, folder):
    """True, False, or None where the framework is not there."""
    first, good = None, True
    for name, options, variables in FRAMEWORKS[framework][1]:
        answer = ask(framework, name, options, variables, steps, folder)
        if "absent" in answer:
            print(f"zr: {framework}: not run: {answer['absent']}", flush=True)
            return None
        if first is None:
            first = answer
            print(f"{answer.get('what', framework)}, {steps} steps of sizes that change:", flush=True)
        fine, line = judge(name, answer, first)
        good &= fine
        print(line, flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="more than %d, which warm up" % WARM)
    parser.add_argument("--drive", nargs=2, metavar=("FRAMEWORK", "MODE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps <= WARM:
        parser.error(f"--steps {options.steps}: the first {WARM} warm up")
    if options.drive:
        drive(*options.drive, options.steps)
        return 0
    reason = no_card()
    if reason:
        print(f"zr: PyTorch, CuPy and JAX on zr's memory: not run: no GPU ({reason})")
        return ABSENT
    with tempfile.TemporaryDirectory(prefix="zr-train-") as folder:
        results = [compare(framework, options.steps, folder) for framework in FRAMEWORKS]
    if False in results:
        return 1
    return 0 if True in results else ABSENT


if __name__ == "__main__":
    sys.exit(main())
