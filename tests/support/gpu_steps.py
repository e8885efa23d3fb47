"""gpu_steps.py: the steps of tests/gpu_shot, which runs each as a process: gpu_steps.py STEP [--emulated]. A step prints one line of
JSON per finding ("name", and what there is of "value", "unit", "good", "words"); what its programs print goes to stderr. Exit code
0: the step ran to its end, 77: it has nothing to run on here, else: it broke off. GPU_SHOT_UNTIL is when it is killed, by the
monotonic clock."""
import concurrent.futures
import importlib.util
import json
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "bench")]
import bench_gpu  # noqa: E402
import gpu_driver  # noqa: E402
from gpu_card import ABSENT, card, cublaslt, environment_of  # noqa: E402
from zrtest import BUILD, path, text_file, train  # noqa: E402

UNTIL = float(os.environ.get("GPU_SHOT_UNTIL", "inf"))
KEPT = os.path.join(os.path.abspath(BUILD), "gpu-shot")  # in an archive alone: the processor's losses, the commit
FP32, BF16 = 1e-4, 1e-2  # a card's products may be in other orders than the processor's
LARGE = dict(layers=4, hidden=256, heads=4, seq=128, batch=4, steps=10)
SMALL = dict(layers=1, hidden=12, heads=2, seq=4, batch=1, steps=1)
PLANNED = ("param", "grad", "activation", "comm")


def row(name, value=None, unit="", good=None, words="", **more):
    line = {"name": name, "value": value, "unit": unit, "good": good, "words": str(words)[-2000:], **more}
    print(json.dumps({key: value for key, value in line.items() if value not in (None, "")}), flush=True)
    return good


def over():
    return time.monotonic() > UNTIL - 5


def run(*command, **environment):
    """(exit code, what it printed, on stdout and stderr); the parent ends what is over the step's time."""
    got = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", cwd=ROOT, stdin=subprocess.DEVNULL,
                         env={**os.environ, **environment})
    print(f"$ {' '.join(command)}: exit code {got.returncode}\n{got.stdout}", file=sys.stderr, flush=True)
    return got.returncode, got.stdout


# ---- What the machine is -----------------------------------------------------------------------------------------------


def attributes(emulated):
    gpu_driver.attributes(row)
    row("card", card(emulated))
    row("kernel", platform.release(), words=" ".join(platform.libc_ver()), processors=os.cpu_count(), python=platform.python_version())
    for name in ("/proc/sys/vm/max_map_count", "/proc/meminfo"):
        with open(name, encoding="utf-8") as file:
            row(name, file.readline().strip())
    row("modules", {name: importlib.util.find_spec(name) is not None for name in ("torch", "cupy", "jax")})
    row("programs", {name: shutil.which(name) or "" for name in ("nvcc", "ncu", "nvidia-smi")}, cublaslt=cublaslt())
    if shutil.which("nvidia-smi"):
        row("nvidia-smi", run("nvidia-smi", "-q", "-d", "CLOCK,POWER,ECC")[1][:1500])


def vmm(emulated):
    gpu_driver.latencies(row, emulated)


# ---- Trainings beside the processor's ----------------------------------------------------------------------------------


def text(emulated):
    return text_file(size=3000 if emulated else 200000)


def trainings(emulated):
    """The options of each training whose losses the processor says beforehand."""
    shape = SMALL if emulated else LARGE
    ranks = (1, 2) if emulated else (1, 2, 4)
    return [dict(shape, ranks=count, precision=precision, eval_every=0) for precision in ("fp32", "bf16") for count in ranks]


def key_of(options):
    return json.dumps(options, sort_keys=True)


def host_losses(options, emulated):
    """As the archive brings them, or computed here."""
    where = os.path.join(KEPT, "losses.json")
    if os.path.exists(where):
        with open(where, encoding="utf-8") as file:
            return json.load(file)[key_of(options)]
    return train(environment_of(False), threads=1, data=text(emulated), **options).report["loss"]


def on_card(words, emulated, options, **more):
    """A finished training on the card; None after a row that says why there is none."""
    if over():
        row(words, good=False, words="not run: no time was left")
        return None
    # The emulated driver's search for races is the kernels' own tests'.
    got = train(environment_of(emulated, ZR_EMULATOR_RACES="0"), backend="cuda", threads=1, data=text(emulated), **options, **more)
    if got.code:
        row(words, good=False, words=f"exit code {got.code}: {got.err}")
        return None
    return got


def against_host(emulated, cases):
    first = {}
    for options in trainings(emulated):
        for level in cases.get(options["ranks"], ()):
            words = f"{options['precision']}, {options['ranks']} ranks, stage {level}"
            got = on_card(words, emulated, options, stage=level)
            if not got:
                continue
            kind = options["precision"], options["ranks"]
            host, tolerance = host_losses(options, emulated), FP32 if options["precision"] == "fp32" else BF16
            worst = max(abs(a - b) / abs(b) for a, b in zip(got.report["loss"], host, strict=True))
            row(f"{words}: difference from the processor", worst, good=worst <= tolerance, words=f"at most {tolerance:g}")
            row(f"{words}: the first stage's bits", good=first.setdefault(kind, got.losses) == got.losses)
            sums = [[rank[key][tag] for rank in got.report["ranks"] for tag in PLANNED] for key in ("planned_bytes", "peak_bytes")]
            row(f"{words}: bytes as planned", sum(sums[1]), "bytes", good=sums[0] == sums[1])


def training(emulated):
    against_host(emulated, {1: (0, 3) if emulated else (0, 1, 2, 3)})


def ranks(emulated):
    against_host(emulated, {2: (3,) if emulated else (0, 1, 2, 3), 4: (1, 3)})
    if card(emulated)["cards"] > 1 and on_card("NCCL on two cards", emulated, trainings(emulated)[1], comm="nccl", stage=1):
        row("NCCL on two cards", good=True)


def graphs(emulated):
    shape = dict(SMALL, steps=4) if emulated else dict(LARGE, steps=20)
    for precision in ("fp32",) if emulated else ("fp32", "bf16", "fp16"):
        for count, level in ((2, 3),) if emulated else ((1, 0), (1, 3), (2, 2)):
            options, words = dict(shape, ranks=count, stage=level, precision=precision, eval_every=0), f"{precision}, {count} ranks, stage {level}"
            plain, graph = (on_card(words, emulated, options, **more) for more in ({}, {"cuda_graph": True}))
            if plain and graph:
                row(f"{words}: bits as without graphs", good=plain.losses == graph.losses)
                steps = min(rank["graph_steps"] for rank in graph.report["ranks"])
                row(f"{words}: steps as graphs", steps, good=steps > 0)
                for name, got in (("plain", plain), ("graph", graph)):
                    row(f"{words}: {name} step", min(got.report["step_seconds"]) * 1e3, "ms")


def offload(emulated):
    shape = dict(SMALL, steps=2) if emulated else LARGE
    for precision, level in (("fp32", 0), ("bf16", 3)):
        options, plain = dict(shape, ranks=1, stage=level, precision=precision, eval_every=0), None
        kinds = {"no offload": {}, "optimizer": dict(offload_optimizer="cpu"), "half the optimizer": dict(offload_optimizer="cpu", offload_ratio=0.5)}
        if level == 3:
            kinds["optimizer and parameters"] = dict(offload_optimizer="cpu", offload_param="cpu")
        for name, more in kinds.items():
            words = f"{precision}, stage {level}, {name}"
            got = on_card(words, emulated, options, **more)
            if got:
                plain = plain or got
                row(words, min(got.report["step_seconds"]) * 1e3, "ms", good=got.losses == plain.losses, words="the bits of no offload")
    if not emulated and not over():
        rate("GPT-2 124M, optimizer offloaded", {**bench_gpu.MODELS["GPT-2 124M"], "offload_optimizer": "cpu"}, 2)


# ---- Test programs -----------------------------------------------------------------------------------------------------


def program(name, environment):
    """Rows of a TAP program: what failed, and how many checks passed."""
    code, output = run(os.path.join(os.path.abspath(BUILD), "tests", f"{name}_test"), **environment)
    lines = output.splitlines()
    count = {"passed": 0, "failed": 0, "skipped": 0}
    for i, line in enumerate(lines):
        found = re.match(r"(not )?ok \d+(.*)", line)
        if found:
            kind = "skipped" if "# SKIP" in line else "failed" if found[1] else "passed"
            count[kind] += 1
            notes = [each for each in lines[i + 1:i + 6] if each.startswith("#")] if kind == "failed" else []
            if kind == "failed" and count["failed"] <= 50 or kind == "skipped" and count["skipped"] <= 50:
                row(f"{name}:{found[2]}"[:400], good=False if kind == "failed" else None, words=" ".join(notes)[:600] or kind)
    row(name, count["passed"], "checks", good=code == 0 and count["failed"] == 0, words=f"{count['failed']} failed, {count['skipped']} skipped, exit code {code}")


def programs(emulated, names, **more):
    environment = {**environment_of(emulated), "ZR_TEST_CUDA": "card", **more}
    with concurrent.futures.ThreadPoolExecutor(1 if emulated else 4) as pool:
        for each in [pool.submit(program, name, environment) for name in names]:
            each.result()


KERNELS, VERDICTS = ("fp32", "llama", "narrow", "fp8", "packing"), ("emulator", "processes", "work", "alloc", "pools", "contexts", "capture", "kernels", "arena")


def kernels(emulated):
    seed = 1 if emulated else random.randrange(1, 1 << 30)
    row("seed", seed)
    programs(emulated, [f"cuda_{name}" for name in (("fp8",) if emulated else KERNELS)], ZR_TEST_SEED=str(seed))


def verdicts(emulated):
    programs(emulated, [f"cuda_{name}" for name in (VERDICTS[:2] if emulated else VERDICTS)] + ([] if emulated else ["backend"]))


# ---- Speed -------------------------------------------------------------------------------------------------------------

FAST = {"GPT-2 124M": 6, "GPT-2 1.5B": 3}  # steps that are measured


def rate(name, model, steps, emulated=False):
    got = bench_gpu.zr(model, steps, emulated)
    if isinstance(got, str):
        return row(name, good=False, words=got)
    row(f"{name}: zr", round(got[0], 1), "tokens/s", good=True)
    return row(f"{name}: zr, part of peak", round(got[0] * bench_gpu.operations(got[1], model) / bench_gpu.PEAK, 4), words=f"of {bench_gpu.PEAK / 1e12:g} TFLOP/s")


def models(emulated):
    return {name: (bench_gpu.TINY if emulated else bench_gpu.MODELS)[name] for name in (list(FAST)[:1] if emulated else FAST)}


def kernel_table(name, model, emulated):
    """Microseconds of each kernel in a step, by CUDA events around every launch."""
    times, steps = path("times"), 2
    figures = bench_gpu.zr(model, steps, emulated, program=os.path.join(os.path.abspath(BUILD), "tests", "zr-train-times"), ZR_TEST_TIMES=times)
    if isinstance(figures, str):
        return row(f"{name}: kernels", good=False, words=figures)
    with open(times, encoding="utf-8") as file:
        found = [(float(total), int(launches), float(least), kernel) for kernel, launches, total, least in map(str.split, file)]
    steps += bench_gpu.WARM
    row(f"{name}: all kernels", round(sum(each[0] for each in found) / steps), "us/step", good=bool(found))
    for total, launches, least, kernel in sorted(found, reverse=True)[:60]:
        row(f"{name}: {kernel}", round(total / steps, 1), "us/step", launches=round(launches / steps, 1), least_us=least)
    return True


def packers(emulated):
    """Of each packing beside a copy in the card's memory: parts of the copy's bytes per second."""
    code, out = run(os.path.join(os.path.abspath(BUILD), "tests", "bench_pack"), *(["0"] if emulated else []), **environment_of(emulated))
    rates, copies = [line.split() for line in out.splitlines() if code == 0], {}
    row("packed numbers", len(rates), good=code == 0 and len(rates) == 32, words="" if code == 0 else out[-300:])
    for name, precision, rate in rates:
        copies.setdefault(precision, float(rate))  # it comes first
        row(f"{name}, {precision}", float(rate), "GB/s", of_copy=round(float(rate) / max(copies[precision], 1e-9), 3))


def speed(emulated):
    packers(emulated)
    for name, model in models(emulated).items():
        rate(name, model, 1 if emulated else FAST[name], emulated)
        kernel_table(name, model, emulated)


def eager(emulated):
    if emulated or importlib.util.find_spec("torch") is None:
        print("PyTorch is not here, or has no card", file=sys.stderr)
        return ABSENT
    for name, model in models(emulated).items():
        got = bench_gpu.pytorch(model, 5, "eager")
        row(f"{name}: PyTorch, eager", None if isinstance(got, str) else round(got, 1), "tokens/s", good=not isinstance(got, str), words=got if isinstance(got, str) else "")
    return 0


# ---- Frameworks on zr's memory -----------------------------------------------------------------------------------------


def frameworks(emulated):
    import gpu_train
    some = False
    with tempfile.TemporaryDirectory() as folder:
        for framework, (_, modes) in gpu_train.FRAMEWORKS.items():
            first = None
            for name, options, variables in modes:
                answer = gpu_train.ask(framework, name, options, variables, 30, folder)
                if "absent" in answer:
                    row(framework, words=answer["absent"])
                    break
                some, first = True, first or answer
                good, words = gpu_train.judge(name, answer, first)
                row(f"{framework} {name}: reserved at most", answer.get("reserved"), "bytes", good=good, words=words.strip())
                row(f"{framework} {name}", answer.get("rate"), "steps/s")
    return 0 if some else ABSENT


def policies(emulated):
    code, output = run(sys.executable, os.path.join(HERE, "gpu_pytorch.py"))
    for line in output.splitlines():
        if line.startswith(("different", "undecided")):
            row(line[:300], good=None if line.startswith("undecided") else False)
    if code != ABSENT:
        row("zr replay beside PyTorch's allocators", good=code == 0, words=(output.strip().splitlines() or [""])[-1])
    return code


def hang(emulated):
    """For the test of the limits: a step that never ends, with a child in a session of its own."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
    row("child", child.pid)
    child.wait()


# In the order of what they are worth: (seconds at most, what it is about, the function). A hidden one begins with "_".
STEPS = {
    "attributes": (30, "what the driver says of itself and the card, and which memory can be had", attributes),
    "vmm": (45, "each virtual memory call's latency, idle and busy", vmm),
    "train": (60, "fp32 and bf16, stages 0 to 3: the processor's losses, equal bits, bytes as planned", training),
    "graphs": (45, "steps as CUDA graphs: equal bits", graphs),
    "kernels": (75, "each kernel beside double precision, on shapes drawn anew", kernels),
    "speed": (100, "packed numbers beside a copy; GPT-2 124M and 1.5B: tokens per second, and microseconds of each kernel", speed),
    "eager": (60, "the same in PyTorch", eager),
    "frameworks": (90, "PyTorch, CuPy and JAX on their own memory and on zr's", frameworks),
    "ranks": (60, "2 and 4 ranks that share the card", ranks),
    "offload": (60, "optimizer and parameters in the host's memory: equal bits, seconds", offload),
    "verdicts": (60, "the emulated driver's rules beside the card's, and the backend's tests", verdicts),
    "policies": (60, "zr replay's models beside PyTorch's allocators", policies),
    "_hang": (5, "never ends", hang),
}


if __name__ == "__main__":
    sys.exit(STEPS[sys.argv[1]][2]("--emulated" in sys.argv) or 0)
