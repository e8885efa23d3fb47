#!/usr/bin/env python3
"""How many places of the project's code one zr_arena_alloc() passes, for a reader: a debugger steps through it on a build
without optimisation and inlining. A visit is an entry into a function of the project or a return into it; the C library is not
counted, and a run of visits to one function counts once. A run of visits to one file counts once, too, in "files in turn".

    tests/bench/visits.py [--list] [FOLDER]    FOLDER: another checkout, to compare with; --list names each visit"""
import os
import subprocess
import sys
import tempfile

KINDS = {"cache": "a size that was just freed", "mapped": "a place in mapped memory", "plan": "a hit of the plan"}
STEPPER = r"""
import gdb, json, os
gdb.execute("set pagination off"); gdb.execute("set confirm off"); gdb.execute("set breakpoint pending on")
gdb.execute("handle SIGSEGV nostop noprint pass")
gdb.execute("break visits_begin"); gdb.execute("run"); gdb.execute("finish", to_string=True)
visits = []
def here():
    frame = gdb.newest_frame()
    at = frame.find_sal()
    file = at.symtab.filename if at.symtab else ""
    return (frame.name() or "?", file)
while True:
    gdb.execute("stepi", to_string=True)
    name, file = here()
    if name == "visits_end":
        break
    inside = file.startswith(("alloc/", "defrag/", "./alloc/", "./defrag/"))
    place = (name, file) if inside else None
    if place and (not visits or visits[-1] != list(place)):
        visits.append(list(place))
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



def visits_of(program, kind):
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(STEPPER)
        script.flush()
        got = subprocess.run(["gdb", "-nx", "-batch", "-x", script.name, "--args", program, kind], capture_output=True, text=True, timeout=300)
    line = next((line for line in got.stdout.splitlines() if line.startswith("@@")), None)
    if not line:
        sys.exit(f"visits: {kind}: the debugger says\n{got.stdout[-800:]}{got.stderr[-800:]}")
    return __import__("json").loads(line[2:])


def report(folder, listed):
    with tempfile.TemporaryDirectory() as out:
        program = build(folder, out)
        for kind, words in KINDS.items():
            visits = visits_of(program, kind)
            turns = [file for i, (_, file) in enumerate(visits) if i == 0 or visits[i - 1][1] != file]
            print(f"{words:28} {len(visits):4} visits, {len({file for _, file in visits}):3} files, {len(turns):4} files in turn")
            for name, file in visits if listed else ():
                print(f"    {name:36} {file}")


words = [word for word in sys.argv[1:] if word != "--list"]
for folder in [".", *words]:
    print(folder)
    report(folder, "--list" in sys.argv)
