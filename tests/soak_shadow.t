#!/usr/bin/env python3
"""A million random operations of shadow_test.c: as built, and under AddressSanitizer, UndefinedBehaviorSanitizer and
ThreadSanitizer from the same sources; fewer under Valgrind, which runs one thread at a time."""
import os
import subprocess
import time

from zrtest import BUILD, done, note, ok, same

OPERATIONS = {"": 1000000, "address,undefined": 1000000, "thread": 1000000, "valgrind": 20000}
FOLDERS = {"address,undefined": "both-sanitizers", "thread": "thread"}  # shared with the other long tests


def tail(got):
    note((got.stdout + got.stderr)[-3000:])


for name, operations in OPERATIONS.items():
    folder = os.path.join(BUILD, FOLDERS[name]) if name in FOLDERS else BUILD
    program = os.path.join(folder, "tests", "shadow_test")
    made = subprocess.run(["make", "--silent", f"-j{os.cpu_count()}", f"BUILD={folder}",
                           f"SANITIZE={name if folder != BUILD else ''}", program], capture_output=True, text=True,
                          timeout=1500)
    words = f"{operations} operations{' under ' + name if name else ''}"
    if not same(made.returncode, 0, f"{words}: built"):
        tail(made)
        continue
    prefix = ["valgrind", "--quiet", "--fair-sched=yes", "--error-exitcode=9"] if name == "valgrind" else []
    began = time.time()
    try:
        got = subprocess.run(prefix + [program, str(operations)], capture_output=True, text=True, timeout=900)
    except subprocess.TimeoutExpired as late:
        ok(False, f"{words}: over within {late.timeout} seconds")
        continue
    clean = not any(mark in got.stderr for mark in ("Sanitizer", "runtime error", "=="))
    if not ok(got.returncode == 0 and clean, f"{words}: nothing is wrong, nothing reported ({time.time() - began:.0f} s)"):
        tail(got)

# The walk of failures_test.c without strides: each driver call, each record.
program = os.path.join(BUILD, "tests", "failures_test")
made = subprocess.run(["make", "--silent", f"BUILD={BUILD}", program], capture_output=True, text=True, timeout=1500)
got = subprocess.run([program, "all"], capture_output=True, text=True, timeout=1500)
if not same(got.returncode, 0, "each driver call and each record failing in turn"):
    tail(got)
done()
