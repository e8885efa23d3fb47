#!/usr/bin/env python3
"""How many places of the project's code a request passes, for a reader: a debugger steps through it on a build without
optimisation and inlining. A visit is an entry into a function of the project or a return into it; the C library is not
counted, and a run of visits to one function counts once. A run of visits to one file counts once, too, in "files in turn".

One zr_arena_alloc(); with --engine the gradient of one unit in `zr-train --ranks 2 --stage 2 --layers 2`: its reduction begins,
runs in the communicator's thread, and is waited for; the update finds the shard. The norm, which reads the shard, is left out.

    tests/bench/visits.py [--list] [--engine] [FOLDER]    FOLDER: another checkout, to compare with; --list names each visit"""
import json
import os
import subprocess
import sys
import tempfile

KINDS = {"cache": "a size that was just freed", "mapped": "a place in mapped memory", "plan": "a hit of the plan"}
UNIT = 1
TRAIN = ["--data", "README.md", "--ranks", "2", "--stage", "2", "--layers", "2", "--hidden", "16", "--heads", "2", "--seq", "8",
         "--batch", "2", "--steps", "3", "--threads", "1"]
STEPPER = r"""
import gdb, json
for words in ("pagination off", "confirm off", "breakpoint pending on", "follow-fork-mode child"):
    gdb.execute("set " + words)
gdb.execute("handle SIGSEGV nostop noprint pass")
visits = []
def walk(ends):
    # Steps this thread until ends(frame). Functions outside of the project run to their end: stepping through one that reads a
    # clock never ends.
    gdb.execute("set scheduler-locking " + LOCKING)
    frame = gdb.newest_frame()
    while not ends(frame):
        at = frame.find_sal()
        file = at.symtab.filename.removeprefix("./") if at.symtab else ""
        place = [frame.name() or "?", file]
        inside = file.startswith(("alloc/", "defrag/", "zero/", "kernels/"))
        if inside and (not visits or visits[-1] != place):
            visits.append(place)
        gdb.execute("stepi" if inside or not frame.older() else "finish", to_string=True)
        frame = gdb.newest_frame()
    gdb.execute("set scheduler-locking off")
def call():
    caller = gdb.newest_frame().older()
    walk(lambda frame: frame == caller)
"""
ARENA = r"""
LOCKING = "off"
gdb.execute("break visits_begin"); gdb.execute("run"); gdb.execute("finish", to_string=True)
walk(lambda frame: frame.name() == "visits_end")
"""
ENGINE = r"""
LOCKING = "on"
UNIT = %d
def queue_thread():
    for thread in gdb.selected_inferior().threads():
        thread.switch()
        frame = gdb.newest_frame()
        while frame and frame.name() != "empty_queue":
            frame = frame.older()
        if frame:
            return
gdb.execute(f"break zr_engine_reduce if unit == {UNIT} && !engine->simulated && engine->steps_done == 1"); gdb.execute("run")
gdb.execute("delete"); call()
gdb.execute(f"tbreak run_item if item->kind == ZR_COMM_REDUCE_SCATTER && item->label == {2 * UNIT + 1}")
gdb.execute(f"tbreak zr_engine_end_reduction if unit == {UNIT} && engine->units[{UNIT}].reduce_ticket > 0")
gdb.execute("continue")
waits = gdb.selected_thread() if gdb.newest_frame().name() == "zr_engine_end_reduction" else None
if waits: # the step waits before the communicator's thread has begun
    queue_thread(); gdb.execute("set scheduler-locking on"); gdb.execute("continue")
call()
if waits:
    waits.switch()
else:
    gdb.execute("continue")
call()
gdb.execute(f"tbreak zr_engine_act if action->kind == ZR_ACTION_TAKE && action->index == {UNIT}"); gdb.execute("continue")
walk(lambda frame: frame.name() == "update_adamw")
""" % UNIT
LAST = r"""
print("@@" + json.dumps(visits))
gdb.execute("kill")
"""


def build(folder, out):
    """A program of the arena's sources alone, as they are there."""
    sources = [os.path.join(root, name) for base in ("alloc/base", "alloc/backend", "alloc/core", "alloc/plan", "alloc/telemetry", "alloc/debug",
                                                     "alloc/service/client", "alloc/pool", "alloc/front", "defrag/trace", "defrag/pack", "defrag/learn")
               for root, _, names in os.walk(os.path.join(folder, base)) for name in names if name.endswith(".c") and not name.endswith("_absent.c")]
    sources = [os.path.relpath(path, folder) for path in sources]
    program = os.path.join(out, "visits")
    subprocess.run(["gcc", "-std=gnu11", "-O0", "-g", "-fno-inline", "-fno-math-errno", "-ffp-contract=off", "-pthread", "-I.", "-w", "-o", program,
                    os.path.abspath("tests/bench/visits.c"), *sources, "-lm", "-ldl"], cwd=folder, check=True)
    return program


def build_trainer(folder):
    """zr-train in a build folder of its own, which the next run finds."""
    built = "build/visits"
    subprocess.run(["make", "-s", "-j2", f"BUILD={built}", "OPT=-O0", "CFLAGS=-fno-inline -w", "NVCC=", f"{built}/bin/zr-train"], cwd=folder, check=True,
                   stdout=subprocess.DEVNULL)
    return os.path.join(built, "bin/zr-train")


def visits_of(folder, words, steps):
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(STEPPER + steps + LAST)
        script.flush()
        got = subprocess.run(["gdb", "-nx", "-batch", "-x", script.name, "--args", *words], cwd=folder, capture_output=True, text=True, timeout=300)
    line = next((line for line in got.stdout.splitlines() if line.startswith("@@")), None)
    if not line:
        sys.exit(f"visits: {words[-1]}: the debugger says\n{got.stdout[-800:]}{got.stderr[-800:]}")
    return json.loads(line[2:])


def show(what, visits, listed):
    turns = [file for i, (_, file) in enumerate(visits) if i == 0 or visits[i - 1][1] != file]
    print(f"{what:28} {len(visits):4} visits, {len({file for _, file in visits}):3} files, {len(turns):4} files in turn")
    for name, file in visits if listed else ():
        print(f"    {name:36} {file}")


options = [word for word in sys.argv[1:] if word.startswith("--")]
for folder in [".", *(word for word in sys.argv[1:] if not word.startswith("--"))]:
    print(folder)
    if "--engine" in options:
        show("a gradient", visits_of(folder, [build_trainer(folder), *TRAIN], ENGINE), "--list" in options)
        continue
    with tempfile.TemporaryDirectory() as out:
        program = build(folder, out)
        for kind, words in KINDS.items():
            show(words, visits_of(folder, [program, kind], ARENA), "--list" in options)
