#!/usr/bin/env python3
"""gdb prints a real arena, its extents, a placement plan and a trace by alloc/core/gdb.py, which it loads with libzr.so."""
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, HANG, done, note, ok, path, same, skip

PROGRAM = """
import ctypes, sys
zr = ctypes.CDLL(sys.argv[1])
class Options(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("backend", ctypes.c_void_p), ("name", ctypes.c_char_p)]
class LearnerOptions(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("arena", ctypes.c_void_p)]
class Request(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_size_t), ("alignment", ctypes.c_size_t), ("tag", ctypes.c_int), ("stream", ctypes.c_uint64)]
backend, learner = ctypes.c_void_p(), ctypes.c_void_p()
arenas = [ctypes.c_void_p(), ctypes.c_void_p()]
assert zr.zr_backend_host_create(ctypes.byref(backend), None) == 0
for arena, name in zip(arenas, (b"plain", b"learns")):
    options = Options(ctypes.sizeof(Options), backend, name)
    assert zr.zr_arena_create(ctypes.byref(arena), ctypes.byref(options)) == 0
def alloc(arena, size, tag, stream=0):
    block = ctypes.c_void_p()
    assert zr.zr_arena_alloc(arena, ctypes.byref(Request(size, 0, tag, stream)), ctypes.byref(block)) == 0
    return block
kept = alloc(arenas[0], 3000000, 1)
hole = alloc(arenas[0], 1000000, 0)
alloc(arenas[0], 2000000, 6, 7)
zr.zr_arena_free(arenas[0], hole)
assert zr.zr_trace_start(arenas[0], sys.argv[2].encode()) == 0
zr.zr_arena_check(arenas[0])
assert zr.zr_learner_create(ctypes.byref(learner), ctypes.byref(LearnerOptions(ctypes.sizeof(LearnerOptions), arenas[1]))) == 0
for step in range(40):
    for block in [alloc(arenas[1], (i + 1) << 20, 2) for i in range(5)]:
        zr.zr_arena_free(arenas[1], block)
    zr.zr_learner_wait(learner)
alloc(arenas[1], 1 << 20, 2)
zr.zr_arena_check(arenas[1])
"""
COMMANDS = ["set confirm off", "set breakpoint pending on", "set print elements 50", "break zr_arena_check", "run",
            "print *arena", "print *arena->first", "print *arena->traces[0]", "continue", "print *arena", "print *arena->executor->plan", "kill"]


def main():
    if not shutil.which("gdb"):
        skip("gdb is not installed")
        done()
    if "1" not in subprocess.run(["gdb", "-nx", "-batch", "-ex", "python print(1)"], capture_output=True, text=True).stdout:
        skip("this gdb is built without Python")
        done()
    with open(path("program.py"), "w", encoding="ascii") as file:
        file.write(PROGRAM)
    library = os.path.realpath(os.path.join(BUILD, "lib", "libzr.so"))
    command = ["gdb", "-nx", "-batch", "-iex", f"add-auto-load-safe-path {os.path.dirname(library)}"]
    for line in COMMANDS:
        command += ["-ex", line]
    got = subprocess.run([*command, "--args", sys.executable, path("program.py"), library, path("run.zrt")], capture_output=True, text=True, timeout=HANG,
                         env={**os.environ, "LC_ALL": "C"})
    if "ptrace: Operation not permitted" in got.stderr:
        skip("this machine does not permit ptrace")
        done()
    printed = re.split(r"^\$\d+ = ", got.stdout, flags=re.M)[1:]
    if not same(len(printed), 5, "gdb stops twice, and prints five values"):
        note(got.stdout[-2000:] + got.stderr[-2000:])
        done()
    plain, first, trace, learns, plan = printed
    ok(re.match(r"arena 'plain', number 0: \d+ bytes live in 2 blocks, peak \d+, \d+ reserved, \d+ mapped, writes a trace = \{", plain), f"an arena: {plain[:120]!r}")
    ok(re.search(r"0x[0-9a-f]+ = block at offset 0x[0-9a-f]+, 3000064 bytes for 3000000, grad, stream 0", plain), "its blocks, with address, size, tag")
    ok(re.search(r"= block at offset 0x[0-9a-f]+, \d+ bytes for 2000000, activation, stream 7", plain), "and stream")
    ok(re.search(r"= (free|cached) at offset 0x[0-9a-f]+, \d+ bytes[,}]", plain), "and its free extents")
    ok(re.match(r"\w+ at offset 0x0, \d+ bytes", first), f"an extent: {first.strip()!r}")
    ok(re.match(r"trace '.*run\.zrt': \d{3,} bytes\n", trace), f"a trace: {trace.splitlines()[0]!r}")
    ok(re.match(r"arena 'learns', number 1: 1048576 bytes live in 1 blocks, .*, follows a plan", learns), f"an arena that follows a plan: {learns[:120]!r}")
    ok(re.match(r"placement plan in force: \d+ steps in 1 sequences, 1 live, \d+ pages = \{\[0\] = offset 0x[0-9a-f]+, \d+ bytes, optimizer", plan), f"the plan: {plan[:120]!r}")
    same(got.stderr.count("Python Exception"), 0, "no printer fails")
    done()


main()
