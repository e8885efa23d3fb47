#!/usr/bin/env python3
"""The C tests and a short training run under AddressSanitizer and UndefinedBehaviorSanitizer together, from the same
sources, and a run of the arena under Valgrind."""
import os
import subprocess

from zrtest import BUILD, arguments, done, note, ok, path, same, text_file


def tail(got):
    note((got.stdout + got.stderr)[-3000:])


name = "address,undefined"
folder = os.path.join(BUILD, "both-sanitizers")
got = subprocess.run(["make", f"-j{os.cpu_count()}", f"BUILD={folder}", f"SANITIZE={name}", "check-programs",
                      os.path.join(folder, "bin", "zr-train")], capture_output=True, text=True, timeout=2100)
counts = [line for line in got.stdout.splitlines() if " passed, " in line]
if not ok(got.returncode == 0 and counts, f"the C tests under -fsanitize={name}: {' '.join(counts)}"):
    tail(got)
for ranks in (1, 2):
    got = subprocess.run([os.path.join(folder, "bin", "zr-train")] + arguments(
        data=text_file(), steps=4, layers=2, hidden=36, heads=3, seq=17, batch=3, ranks=ranks, stage=1,
        eval_every=2, sample=20, save=path(f"save-sanitized-{ranks}"), trace=path("trace.zrt"), log=path("log.jsonl")),
        capture_output=True, text=True, errors="replace", timeout=300)
    words = f"zr-train on {ranks} rank(s) under -fsanitize={name}"
    if not (same(got.returncode, 0, words) & ok("Sanitizer" not in got.stderr and "runtime error" not in got.stderr,
                                                f"{words} reports nothing")):
        tail(got)

# The arena's stress under Valgrind. (arena_test shares memory with other processes, whose writes Valgrind cannot see.)
# Valgrind runs one thread at a time: fair turns, or a thread that waits for another can keep the turn for minutes.
try:
    got = subprocess.run(["valgrind", "--quiet", "--fair-sched=yes", "--error-exitcode=9",
                          os.path.join(BUILD, "tests", "stress_test"), "2000"],
                         capture_output=True, text=True, timeout=600)
    if not ok(got.returncode == 0 and "==" not in got.stderr, "the arena's stress under Valgrind"):
        tail(got)
except subprocess.TimeoutExpired as late:
    ok(False, f"the arena's stress under Valgrind ends within {late.timeout} seconds")
done()
