#!/usr/bin/env python3
"""A million random operations of shadow_test.c on eight threads, and fewer with every tool: under AddressSanitizer and
UndefinedBehaviorSanitizer together, under ThreadSanitizer, and under Valgrind. Then the walks
through failures without strides.

ThreadSanitizer clears its shadow of every range that is unmapped, and the emulated GPU unmaps all the time: fewer
operations there. Valgrind runs one thread at a time: fair turns, or a thread that waits for another can keep the turn
for minutes."""
import os
import sys
import time

sys.path.insert(0, "tests/support")
from zrtest import BUILD, done, note, ok, run_limited

MILLION = 1000000
VALGRIND = ["valgrind", "--quiet", "--fair-sched=yes", "--error-exitcode=9"]
# What is said, the folder (make built-long has built it), what runs it, operations on host and GPU.
RUNS = [("as built", BUILD, [], MILLION, MILLION),
        ("address,undefined", os.path.join(BUILD, "both-sanitizers"), [], 400000, 200000),
        ("thread", os.path.join(BUILD, "thread"), [], 300000, 50000),
        ("Valgrind", BUILD, VALGRIND, 25000, 25000)]


def tail(got):
    note((got.stdout + got.stderr)[-3000:])


def run(words, command):
    began = time.time()
    got = run_limited(command)
    clean = not any(mark in got.stderr for mark in ("Sanitizer", "runtime error", "=="))
    took = time.time() - began
    if not ok(got.returncode == 0 and clean, f"{words}: nothing is wrong, nothing reported ({took:.0f} s)"):
        tail(got)


for words, folder, prefix, on_host, on_gpu in RUNS:
    run(f"{on_host} operations on the host, {on_gpu} on an emulated GPU, {words}",
        prefix + [os.path.join(folder, "tests", "shadow_test"), str(on_host), str(on_gpu)])
run("each driver call and each record failing in turn", [os.path.join(BUILD, "tests", "failures_test"), "all"])
os.environ["ZR_TEST_LONG"] = "1"
for name in ("contiguous_test", "cuda_arena_test", "cuda_contiguous_test"):
    run(f"each failure in turn, {name}", [os.path.join(BUILD, "tests", name)])
done()
