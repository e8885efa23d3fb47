#!/usr/bin/env python3
"""`make check-pytorch`: the models of zr replay beside PyTorch's own allocator on the simulated device.

    allocator_check.py [--count N] [--seed N] [--golden FILE]

Each configuration of PyTorch's allocator gets N random sequences of each kind, and build/tests/policies_test compares its answers with the
models, call by call. The traces of ../shared/traces and programs that zr rehearse records go through zr replay. --golden writes
tests/unit/defrag/torch_answers.txt, whose form and steps are those of tests/unit/defrag/policies_test.c."""
import argparse
import collections
import csv
import glob
import json
import math
import os
import random
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
UNITS = {"": 1, "K": KIB, "M": MIB}
STEP = re.compile(r"(?:s(\d+):)?(\d+)([KM]?)([+-]\d+)?")

# ---- Inside PyTorch ------------------------------------------------------------------------------------------------------------------


def drive(torch):
    """Reads lines "NAME SETTINGS CAPACITY_MIB STEP.." and writes them with the answers of PyTorch's allocator."""
    alloc, free, figures = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete, torch._C._cuda_memoryStats
    torch.cuda.init()
    streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(3))]
    if "garbage" in os.environ["PYTORCH_CUDA_ALLOC_CONF"]:  # which needs a limit of the process below the device's memory
        torch.cuda.set_per_process_memory_fraction(0.5)
    print("#", torch.__version__)
    for line in sys.stdin:
        head, steps = line.split()[:3], line.split()[3:]
        torch.cuda.empty_cache()
        before, blocks, answers = figures(0), [], []
        assert before["reserved_bytes"]["all"]["current"] == 0
        for step in steps:
            failed = ""
            if step[0] == "f":
                if blocks[int(step[1:])]:
                    free(blocks[int(step[1:])])
                blocks[int(step[1:])] = 0
            else:
                stream, count, unit, more = STEP.fullmatch(step).groups()
                try:
                    blocks.append(alloc(int(count) * UNITS[unit] + int(more or 0), streams[int(stream or 0)].cuda_stream))
                except torch.OutOfMemoryError:
                    blocks.append(0)
                    failed = "!"
            now = figures(0)
            answers.append(f"{step}={now['reserved_bytes']['all']['current'] // MIB}/{now['allocated_bytes']['all']['current'] // 512}{failed}")
        if head[2] == "0" and "expandable" not in head[1]:  # no refusal, which PyTorch does not count
            answers.append(f"calls={sum(now[name] - before[name] for name in ('num_device_alloc', 'num_device_free'))}")
        print(*head, *answers)
        for block in filter(None, blocks):
            free(block)


def read_settings(torch):
    """Reads texts of settings and writes what PyTorch makes of each."""
    torch.cuda.init()
    for line in sys.stdin:
        torch._C._accelerator_setAllocatorSettings(line.strip())
        got = torch._C._cuda_memorySnapshot(None)["allocator_settings"]
        print("settings", line.strip(), max(got["max_split_size"], 0), f"{got['garbage_collection_threshold']:g}",
              ",".join(map(str, got["roundup_power2_divisions"].values())))


INSIDE = {"--drive": drive, "--read-settings": read_settings}


def inside(python, what, lines, settings="-", memory=GIB):
    from pytorch_check import CARD, STAND_INS
    if "garbage" in settings:
        memory *= 2
    got = subprocess.run([python, os.path.abspath(__file__), what], input="\n".join(lines), capture_output=True, text=True, timeout=600,
                         env={**os.environ, **CARD, "LD_PRELOAD": STAND_INS, "ZR_EMULATOR_MEMORY": str(memory), "PYTORCH_CUDA_ALLOC_CONF": settings.strip("-")})
    if got.returncode:
        raise RuntimeError(got.stderr[-2000:])
    return got.stdout.splitlines()


# ---- Random sequences ----------------------------------------------------------------------------------------------------------------

DEVICE_MIB, LIMIT_MIB = 64 << 10, 512  # more than any sequence needs, and less
NEAR = 1, 2, 9, 10, 12, 19, 20, 33, 40  # MiB: sizes at which rules change
FEW = 3000, 300 * KIB, 3 * MIB, 7 * MIB, 16 * MIB, 24 * MIB, 50 * MIB


def any_size(rng, most=100 * MIB):
    return int(math.exp(rng.uniform(0, math.log(most))))


# Kind: a size, and the number of streams.
KINDS = {"any": (any_size, 1), "edges": (lambda rng: rng.choice(NEAR) * MIB + rng.choice((0, 0, 1, 512, 700 * KIB, MIB - 512)), 1),
         "small": (lambda rng: rng.choice((any_size(rng, MIB), 512, 4 * KIB, MIB)), 1), "few": (lambda rng: rng.choice(FEW), 1),
         "streams": (any_size, 3), "few, streams": (lambda rng: rng.choice(FEW), 3)}
# Settings, and whether the device is small.
CONFIGURATIONS = [("-", 0), ("-", LIMIT_MIB), ("max_split_size_mb:32", 0), ("max_split_size_mb:32", LIMIT_MIB), ("roundup_power2_divisions:4", 0),
                  ("roundup_power2_divisions:[1:2,4:4,16:8,>:1]", LIMIT_MIB), ("garbage_collection_threshold:0.6", LIMIT_MIB),
                  ("max_split_size_mb:24,garbage_collection_threshold:0.7", LIMIT_MIB), ("expandable_segments:True", 0),
                  ("expandable_segments:True", LIMIT_MIB), ("expandable_segments:True,roundup_power2_divisions:8", LIMIT_MIB),
                  ("expandable_segments:True,max_split_size_mb:32", LIMIT_MIB)]


def draw(rng, kind, most, calls):
    """Allocations up to a target of live bytes, which changes; frees of the first, of the last, or of any block."""
    size, streams = KINDS[kind]
    steps, live, count, target = [], [], 0, most
    while len(steps) < calls:
        if rng.random() < 0.02:
            target = rng.uniform(0.1, 1) * most
        if live and (sum(bytes for _, bytes in live) > target or rng.random() < 0.3):
            steps.append(f"f{live.pop(rng.choice((0, len(live) - 1, rng.randrange(len(live)))))[0]}")
        else:
            live.append((count, size(rng)))
            stream, count = rng.randrange(streams), count + 1
            steps.append(f"s{stream}:{live[-1][1]}" if stream else f"{live[-1][1]}")
    return steps


def drawn(settings, limit_mib, kind, number, seed, calls=0):
    rng = random.Random(f"{seed} {settings} {limit_mib} {kind} {number}")
    most = (limit_mib or 2048) * MIB * rng.uniform(0.5, 1.4) * (0.1 if kind == "small" else 1)
    return f"{kind.replace(', ', '-')}:{number} {settings} {limit_mib} {' '.join(draw(rng, kind, most, calls or rng.randrange(20, 400)))}"


def compared(lines):
    """NAME, PyTorch's peak, the model's, the first call that differs, of each sequence."""
    from zrtest import BUILD, path
    with open(path("answers"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    got = subprocess.run([os.path.join(BUILD, "tests", "policies_test"), path("answers")], capture_output=True, text=True, check=True, timeout=600)
    return [(name, int(peak), int(model), int(differs)) for name, peak, model, differs in map(str.split, got.stdout.splitlines())]


def check_random(python, count, seed):
    """A table: for each kind and configuration how many sequences are equal in each call. The bar is 0.5 % of the peak, because the
    driver decides about the addresses of further expandable segments, and with them about places of growth."""
    from zrtest import note, ok
    note(f"equal call by call, of {count} sequences each:  {'  '.join(KINDS)}  largest difference of a peak")
    for settings, limit_mib in CONFIGURATIONS:
        lines = [drawn(settings, limit_mib, kind, number, seed) for kind in KINDS for number in range(count)]
        rows = compared(inside(python, "--drive", lines, settings, (limit_mib or DEVICE_MIB) * MIB))
        equal = collections.Counter(name.split(":")[0] for name, _, _, differs in rows if differs < 0)
        largest = max(abs(model / peak - 1) for _, peak, model, _ in rows)
        words = f"{settings}, {limit_mib} MiB" if limit_mib else settings
        note("  ".join(f"{equal[kind.replace(', ', '-')]:>{len(kind)}}" for kind in KINDS) + f"  {100 * largest:.2f} %  {words}")
        peaks = sum(peak == model for _, peak, model, _ in rows)
        ok(len(rows) == len(lines) and largest <= 0.005, f"{words}: {peaks} of {len(lines)} peaks are PyTorch's")


# ---- Traces and programs -------------------------------------------------------------------------------------------------------------

def replayed(file, policy):
    from zrtest import BUILD
    got = subprocess.run([os.path.join(BUILD, "bin", "zr"), "replay", file, "--policy", policy, "--json"], capture_output=True, text=True, check=True, timeout=600)
    return json.loads(got.stdout)["results"][0]["peak_reserved_bytes"]


def steps_of(file):
    from zrtest import BUILD
    numbers, steps, streams, count = {}, [], {"0": 0}, 0
    got = subprocess.run([os.path.join(BUILD, "bin", "zr"), "export", "--format", "csv", file], capture_output=True, text=True,
                         check=True, timeout=600)
    for row in csv.DictReader(got.stdout.splitlines()):
        block = row.get("address") or row.get("id")
        if row["event"] == "alloc":
            numbers[block], count = count, count + 1
            steps.append(f"s{streams.setdefault(row['stream'], len(streams))}:{row['bytes']}")
        elif row["event"] == "free":
            steps.append(f"f{numbers[block]}")
    return steps


def check_traces(python):
    from zrtest import skip
    files = sorted(glob.glob("../shared/traces/*.pickle") + glob.glob("../shared/traces/*.csv"))
    if not files:
        skip("there is no ../shared/traces")
        return
    lines = [" ".join(steps_of(file)) for file in files]
    for settings, policy in (("-", "caching"), ("expandable_segments:True", "expandable")):
        got = inside(python, "--drive", [f"{at} {settings} 0 {line}" for at, line in enumerate(lines)], settings, DEVICE_MIB * MIB)
        for file, (_, peak, _, differs) in zip(files, compared(got)):
            report(os.path.basename(file), policy, peak, replayed(file, policy), "" if differs < 0 else f", call {differs} differs")


def report(name, policy, peak, model, words=""):
    from zrtest import ok
    ok(abs(model / peak - 1) <= 0.005, f"{name}: zr replay has {model / peak:.4f} times what PyTorch reserves, {policy}, {peak / MIB:,.0f} MiB{words}")


def check_programs(python):
    """What PyTorch says of a program that was recorded from its start, and the replay of its snapshot."""
    from zrtest import BUILD, path
    for scenario in ("lengths", "streams", "threads"):
        for settings, policy in (("", "caching"), ("expandable_segments:True", "expandable")):
            folder, answer = path(f"{scenario}.{policy}"), path("answer.json")
            program = [python, os.path.join(HERE, "pytorch_step.py"), scenario]
            environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": settings, "PYTHONPATH": os.path.abspath("alloc/preload/python")}
            subprocess.run([os.path.join(BUILD, "bin", "zr"), "rehearse", "--output", folder, "--json", answer, "--", *program],
                           capture_output=True, check=True, timeout=600, env=environment)
            with open(answer, encoding="utf-8") as file:
                report(scenario, policy, json.load(file)["reserved_bytes"], replayed(glob.glob(f"{folder}/*.pickle")[0], policy))


# ---- Goldens -------------------------------------------------------------------------------------------------------------------------

GOLDEN = "tests/unit/defrag/torch_answers.txt"
TEXTS = ("roundup_power2_divisions:4", "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", "roundup_power2_divisions:[1:2,4:4,16:8,>:1]",
         "roundup_power2_divisions:[4:2]",
         "max_split_size_mb:64,roundup_power2_divisions:[64:8,16:4]", "roundup_power2_divisions:[16:4,>:2,64:8],garbage_collection_threshold:0.8",
         "roundup_power2_divisions:[65536:4,>:2]", "roundup_power2_divisions:[8:0,32:4]")
SHORT = {  # settings: name, MiB of the device, steps
    "-": [("sizes-and-pools", 0, "1 512 513 1M 1M+1 10M-512 10M 10M+1 f4 2M"),
          ("splits", 0, "20M f0 19M 1M+512 f2 f1 19M-512 1M+512"),
          ("joins", 0, "6M 6M 6M f0 f2 f1 20M"), ("best-fit", 0, "30M 24M f0 f1 22M 30M f2 21M"), ("streams", 0, "s1:20M f0 s2:20M s1:19M f1 20M")],
    "- ": [("release", 100, "20M 30M f0 f1 90M 20M f2 20M"), ("no-release-of-a-part", 100, "6M 6M f0 30M 70M f1 70M 90M"), ("small-too", 100, "1 f0 100M 1")],
    "max_split_size_mb:32": [("oversize-largest-first", 100, "1M f0 34M 40M f1 f2 62M"), ("oversize-smallest-enough", 100, "1M f0 34M 50M f1 f2 30M"),
                             ("oversize-is-whole", 100, "60M f0 41M f1 30M f2 33M"), ("oversize-of-a-stream", 100, "s1:40M f0 s2:34M f1 s2:36M s1:62M")],
    "roundup_power2_divisions:4": [("divisions", 0, "1M+1 5M 9M 33M 3000 2049 f1 4M+4096")],
    "roundup_power2_divisions:[1:2,4:4,16:8,>:1]": [("list-of-divisions", 0, "3000 1M+1 2M+1 5M 9M 17M 33M+1")],
    "garbage_collection_threshold:0.6": [("collects", 200, "40M 30M f0 f1 50M 60M f2 70M"), ("collects-old", 200, "40M 30M 2M f0 2M 2M 2M f1 60M 61M")],
    "expandable_segments:True": [("grows", 0, "3M 15M f0 20M 4K f1 30M"), ("counts-the-end", 0, "10M 10M f0 12M 8M 10M"), ("divides-all", 0, "20M f0 19M 21M")],
    "expandable_segments:True ": [("unmaps", 60, "s1:30M f0 s2:30M"), ("unmaps-whole-handles", 60, "15M 15M f0 s2:20M 40M"), ("maps-holes", 60, "40M 20M f0 s2:20M f2 40M")],
    "expandable_segments:True,roundup_power2_divisions:8": [("expandable-divisions", 0, "3000 5M 9M 33M+1 f3 36M")],
    "expandable_segments:True,max_split_size_mb:32": [("expandable-oversize", 0, "30M 30M 1M+1 f0 f1 20M 33M")],
}


def golden(python):
    lines = inside(python, "--read-settings", TEXTS)
    version = ""
    for settings, cases in SHORT.items():
        memory = max(mib for _, mib, _ in cases) or DEVICE_MIB
        questions = [f"{name} {settings.strip()} {mib} {steps}" for name, mib, steps in cases]
        version, *got = inside(python, "--drive", questions, settings.strip(), memory * MIB)
        lines += got
    for kind, settings, limit_mib in (("few, streams", "-", 512), ("edges", "max_split_size_mb:32", 512), ("few", "expandable_segments:True", 512)):
        lines += inside(python, "--drive", [drawn(settings, limit_mib, kind, 0, 1, 40)], settings, limit_mib * MIB)[1:]
    return version, [line for line in lines if line[0] != "#"]


def main():
    from pytorch_check import install
    from zrtest import done, same, skip
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=15)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--golden")
    options = parser.parse_args()
    python = install()
    if not python:
        skip("PyTorch cannot be installed from PyPI")
    elif options.golden:
        version, lines = golden(python)
        with open(options.golden, "w", encoding="utf-8") as file:
            file.write(f"# Answers of PyTorch's own CUDA caching allocator, of PyTorch {version[2:]}, on the simulated device of alloc/rehearse:\n"
                       "# tests/support/allocator_check.py --golden made this file; tests/unit/defrag/policies_test.c has its form.\n")
            file.writelines(f"{line}\n" for line in lines)
        return
    else:
        with open(GOLDEN, encoding="utf-8") as file:
            same(golden(python)[1], [line for line in file.read().splitlines() if line[0] != "#"], f"{GOLDEN} has PyTorch's answers")
        check_random(python, options.count, options.seed)
        check_traces(python)
        check_programs(python)
    done()


if __name__ == "__main__":
    what = INSIDE.get(sys.argv[1]) if len(sys.argv) > 1 else None
    if what:
        import torch as pytorch
        what(pytorch)
    else:
        main()
