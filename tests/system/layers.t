#!/usr/bin/env python3
"""The order of the rooms, read from the symbols of the objects and from the includes: no file uses a room above its own,
files that use one another in a circle are few, and no file is shorter than a noun. Pointers that a room registers below
are no use of it."""
import fnmatch
import glob
import os
import re
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, done, note, ok, same

# From top to bottom. A file belongs to the longest of these that its path begins with.
ROOMS = ["zero/train", "zero/text", "zero/ps", "zero/table", "zero/checkpoint", "zero/plan", "zero/step", "zero/engine", "zero/file_io", "zero/compress", "zero/model", "zero/comm", "zero/launch",
         "defrag/tool", "defrag/report", "alloc/rehearse", "alloc/preload", "defrag/replay", "defrag/learn", "defrag/pack", "defrag/trace",
         "kernels", "alloc/service/server", "alloc/keep", "alloc/heap", "alloc/pool", "alloc/front", "alloc/service/client", "alloc/telemetry", "alloc/plan",
         "alloc/core", "alloc/backend",
         "alloc/base"]
# The most files of a module that use one another in a circle. A driver's calls are one state under one lock: inside.h has its parts.
CIRCLE_MAX = 4
CIRCLES = {"alloc/rehearse": 19}
# A file is as long as its noun: a shorter file belongs into the header or source that has the noun. Excepted are:
LINES_MIN = 30
EXCEPTED = {
    "kernels/cpu/loops/loops_*_*.c": "a row of a table: an instruction set and a precision",
    "kernels/cpu/products/panels_*.c": "the same",
    "kernels/cuda/images.c": "the kernel images",
    "alloc/base/compiler.h": "attributes of every other header",
    "alloc/base/sort.h": "the whole contract of a noun without another header, as the rest",
    "alloc/heap/heap.h": "",
    "alloc/rehearse/runtime/nccl_sum.h": "",
    "kernels/cuda/cuda.h": "",
    "zero/train/rank/thread_pool.h": "",
}


def room_of(path):
    """None: a public header, which stands above the rooms that it speaks of."""
    return max((room for room in ROOMS if path.startswith(room + "/")), key=len, default=None)


def goes_up(user, used):
    return None not in (room_of(user), room_of(used)) and ROOMS.index(room_of(used)) < ROOMS.index(room_of(user))


def upward(uses):
    """uses: {file: {file: name of a thing of it}}"""
    return sorted(f"{user} uses {name} of {used}" for user, those in uses.items() for used, name in those.items()
                  if goes_up(user, used))


def circles(uses):
    """Sets of files each of which uses each other, by way of others: the largest first (Tarjan, "Depth-first search and
    linear graph algorithms", 1972)."""
    number, low, stack, found = {}, {}, [], []

    def visit(file):
        number[file] = low[file] = len(number)
        stack.append(file)
        for used in uses.get(file, ()):
            if used not in number:
                visit(used)
            if used in stack:
                low[file] = min(low[file], low[used])
        if low[file] == number[file]:
            at = stack.index(file)
            found.append(sorted(stack[at:]))
            del stack[at:]

    for file in list(uses):
        if file not in number:
            visit(file)
    return sorted(found, key=len, reverse=True)


def circle_sizes(uses):
    """The size of each module's largest circle, where it is above CIRCLE_MAX; modules in order."""
    sizes = {room_of(circle[0]): len(circle) for circle in reversed(circles(uses))}
    return {room: sizes[room] for room in sorted(sizes) if sizes[room] > CIRCLES.get(room, CIRCLE_MAX)}


def uses_of_objects(given, needed):
    """given, needed: {file: names}"""
    owner = {name: file for file, names in given.items() for name in names}
    return {file: {owner[name]: name for name in sorted(names) if owner.get(name, file) != file}
            for file, names in needed.items()}


# Functions of libraries under their own names.
STAND_INS = ("dlopen",)


def read_objects():
    given, needed, sources = {}, {}, {}
    for path in glob.glob(f"{BUILD}/obj/**/*.o", recursive=True):
        source = os.path.relpath(path, f"{BUILD}/obj")[:-2] + ".c"
        # A file that no longer exists has no part.
        if room_of(source) and os.path.exists(source):
            sources[path], given[source], needed[source] = source, set(), set()
    listed = subprocess.run(["nm", "--extern-only", "--format=posix", "--print-file-name", *sources], check=True, capture_output=True, text=True)
    for line in listed.stdout.splitlines():
        path, name, letter = line.split()[:3]
        if name in STAND_INS:
            continue
        (needed if letter in "UwvV" else given)[sources[path.removesuffix(":")]].add(name)
    return uses_of_objects(given, needed)


def read_includes():
    uses = {}
    for room in sorted({room.split("/")[0] for room in ROOMS}):
        for path in glob.glob(f"{room}/**/*.[ch]", recursive=True):
            with open(path, encoding="utf-8") as file:
                named = re.findall(r'^#include "([^"]+)"', file.read(), flags=re.M)
            uses[path] = {name: "the header" for name in named if os.path.exists(name)}
    return uses


def short_files(lines):
    """lines: {file: number}. The files that are too short and not excepted, and the exceptions that no short file needs."""
    short = [file for file, number in lines.items() if number < LINES_MIN]
    return (sorted(file for file in short if not any(fnmatch.fnmatch(file, name) for name in EXCEPTED)),
            sorted(name for name in EXCEPTED if not fnmatch.filter(short, name)))


def read_lines():
    lines = {}
    for path in (path for ending in ("c", "h", "cu") for room in ("alloc", "defrag", "kernels", "zero") for path in glob.glob(f"{room}/**/*.{ending}", recursive=True)):
        with open(path, encoding="utf-8") as file:
            lines[path] = sum(1 for _ in file)
    return lines


def check_that_it_can_fail():
    base, core, front = "alloc/base/a.c", "alloc/core/b.c", "alloc/front/c.c"
    uses = uses_of_objects({base: {"a"}, core: {"b"}, front: {"c"}}, {base: {"b"}, core: {"c", "a"}, front: {"b", "malloc"}})
    same(upward(uses), [f"{base} uses b of {core}", f"{core} uses c of {front}"], "a use of a room above is found")
    same(circles(uses)[0], [base, core, front], "and so is a circle")
    same(circles({"a": {"b": "x"}, "b": {"c": "x"}, "c": {}})[0], ["c"], "a line is none")
    ring = [f"alloc/base/{i}.c" for i in range(CIRCLE_MAX + 1)]
    same(circle_sizes({file: {ring[i - 1]: "x"} for i, file in enumerate(ring)}), {"alloc/base": CIRCLE_MAX + 1},
         "a circle of too many files is found")
    same(circle_sizes({file: {ring[i - 1]: "x"} for i, file in enumerate(ring) if i}), {}, "a line has none")
    same(short_files({base: LINES_MIN - 1, core: LINES_MIN, "kernels/cuda/cuda.h": LINES_MIN})[0], [base], "a short file is found")
    ok("kernels/cuda/cuda.h" in short_files({"kernels/cuda/cuda.h": LINES_MIN})[1], "and so is an exception that is not short")


check_that_it_can_fail()
uses = read_objects()
ok(len(uses) >= 100, f"{len(uses)} objects to read")
same(upward(uses), [], "no object uses a symbol of a room above its own")
same(circle_sizes(uses), {}, f"no circle of more than {CIRCLE_MAX} files")
for circle in circles(uses):
    if len(circle) > CIRCLE_MAX:
        note(f"{len(circle)}: {' '.join(circle)}")
modes = subprocess.run([sys.executable, "tests/modes"], capture_output=True, text=True)
same(modes.returncode, 0, f"the engine decides once: {modes.stdout.strip()}")
same(short_files(read_lines()), ([], []), f"no file of less than {LINES_MIN} lines but those excepted")
same(upward(read_includes()), [], "no file includes a header of a room above its own")
done()
