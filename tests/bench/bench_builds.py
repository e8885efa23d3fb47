#!/usr/bin/env python3
"""Compares the speed of two build folders: bench_builds.py [--pairs N] OLD NEW [SUBJECT...]

Each round runs the programs of OLD, of NEW and of a copy of OLD, in an order that rotates. Printed are the medians of the
rounds' ratios NEW / OLD and, as the machine's own noise, copy / OLD, each with the range of the middle half. The arena's programs
report nanoseconds per operation; the others are measured by processor time. Prints; never fails on time."""
import argparse
import os
import shutil
import statistics
import subprocess
import tempfile

from bench_speeds import MACHINE

PROGRAMS = ("bin/zr", "bin/zr-train", "tests/bench_operations")
TRAIN = ["bin/zr-train", "--data", "README.md", "--layers", "4", "--hidden", "128", "--heads", "4", "--seq", "128", "--batch", "4", "--steps", "8"]
# Steps of few tokens, so that reductions and updates are most of the work.
ENGINE = ["bin/zr-train", "--data", "README.md", "--layers", "4", "--hidden", "256", "--heads", "4", "--seq", "16", "--batch", "2", "--steps", "60"]
FILES = ["--offload-optimizer", "nvme:.", "--offload-param", "nvme:.", "--force"]
SUBJECTS = {"arena on sim": ["tests/bench_operations", "zr", "training", "100"],
            "arena on sim, server": ["tests/bench_operations", "zr", "server", "60"],
            "arena on sim, small": ["tests/bench_operations", "zr", "small", "60"],
            "planned small": ["tests/bench_operations", "planned", "small", "60"],
            "arena on host": ["tests/bench_operations", "zr-host", "training", "30", "1", "4"],
            "short training": TRAIN,
            "engine, one rank": ENGINE,
            "engine, stage 0": [*ENGINE, "--ranks", "2", "--stage", "0"],
            "engine, stage 3": [*ENGINE, "--ranks", "2", "--stage", "3", "--precision", "bf16"],
            "engine, state in memory": [*ENGINE, "--ranks", "2", "--stage", "2", "--offload-optimizer", "cpu", "--speculative-update", "none"],
            "engine, delayed": [*ENGINE, "--ranks", "2", "--stage", "2", "--offload-optimizer", "cpu", "--delayed-update"],
            "engine, speculative": [*ENGINE, "--ranks", "2", "--stage", "2", "--offload-optimizer", "cpu", "--speculative-update", "1GiB"],
            "engine, files": [*ENGINE, "--ranks", "2", "--stage", "3", *FILES],
            "dry run": ["bin/zr-train", "--dry-run", "--layers", "96", "--hidden", "12288", "--heads", "96", "--seq", "2048",
                        "--world-size", "1024", "--stage", "3"],
            "replay": ["bin/zr", "replay", "TRACE", "--policy", "zr", "--repeat", "2000"]}


def cost(build, command, trace):
    """Nanoseconds per operation, or seconds of a processor."""
    words = [trace if word == "TRACE" else word for word in command[1:]]
    child = subprocess.Popen([os.path.join(build, command[0]), *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    out = child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{build}: {' '.join(command)} ended with {child.returncode}")
    values = dict(zip(out.split()[::2], out.split()[1::2])) if command[0].startswith("tests/") else {}
    return float(values.get("median_ns", used.ru_utime + used.ru_stime))


def shown(ratios):
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:8.3f} ({low:.3f} to {high:.3f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15, help="rounds of each subject, 15 if not given")
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help="parts of the names: " + ", ".join(SUBJECTS))
    given = parser.parse_args()
    print(f"machine: {MACHINE}\n{'':24}{'pairs':>6}{'new / old':>26}{'own noise':>26}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        copy, trace = os.path.join(folder, "old"), os.path.join(folder, "trace.zrt")
        for program in PROGRAMS:
            os.makedirs(os.path.dirname(os.path.join(copy, program)), exist_ok=True)
            shutil.copy(os.path.join(given.old, program), os.path.join(copy, program))
        subprocess.run([os.path.join(given.old, TRAIN[0]), *TRAIN[1:], "--trace", trace], check=True, capture_output=True)
        for name, command in SUBJECTS.items():
            if given.subjects and not any(part in name for part in given.subjects):
                continue
            order, rounds = [given.old, given.new, copy], []
            for _ in range(given.pairs):
                rounds.append({build: cost(build, command, trace) for build in order})
                order.append(order.pop(0))
            print(f"{name:24}{given.pairs:>6}" + "".join(f"{shown([costs[build] / costs[given.old] for costs in rounds]):>26}"
                                                         for build in (given.new, copy)), flush=True)


main()
