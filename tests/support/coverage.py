#!/usr/bin/env python3
"""coverage.py: lines of each module that tests have run, from the counts that a build with --coverage left in BUILD/obj."""
import collections
import glob
import json
import os
import subprocess
import sys

BUILD = os.environ.get("BUILD", "build")
ROOMS = ("alloc", "defrag", "kernels", "zero")


def module_of(path):
    """alloc/core of alloc/core/core.c; zero/train of zero/train/rank/card.c."""
    return "/".join(path.split("/")[:2 if path.count("/") > 1 else 1])


lines = collections.defaultdict(dict)  # by file: line number -> times run, in every object that has it
notes = [note for room in ROOMS for note in glob.glob(f"{BUILD}/obj/{room}/**/*.gcno", recursive=True)]
for first in range(0, len(notes), 100):
    got = subprocess.run(["gcov", "--json-format", "--stdout", *notes[first:first + 100]], capture_output=True, text=True, check=True)
    for document in got.stdout.splitlines():
        for file in json.loads(document)["files"]:
            name = os.path.relpath(file["file"])
            if name.startswith(ROOMS):
                for line in file["lines"]:
                    lines[name][line["line_number"]] = lines[name].get(line["line_number"], 0) + line["count"]
if not lines:
    sys.exit(f"coverage.py: {BUILD}/obj has no counts: run make coverage")
modules = collections.defaultdict(lambda: [0, 0])
for name, counts in lines.items():
    for total in (module_of(name), "all"):
        modules[total][0] += sum(count > 0 for count in counts.values())
        modules[total][1] += len(counts)
print(f"{'module':<24}{'run':>9}{'lines':>9}{'share':>9}")
for name in sorted(modules, key=lambda name: (name == "all", name)):
    run, total = modules[name]
    print(f"{name:<24}{run:>9}{total:>9}{100 * run / total:>8.1f}%")
