#!/usr/bin/env python3
"""One name, one thing: a tag, a constant or a macro of the project has one definition, and a guard one header. A name of a
.c file that does not begin with zr is that file's own, and any other file may have the same."""
import collections
import glob
import re
import sys

sys.path.insert(0, "tests/support")
from zrtest import done, note, ok, same

ROOMS = ("alloc", "defrag", "kernels", "zero")
# Set before a body is included, once for each of its versions.
PARAMETERS = {"ZR_LOOPS", "ZR_LOOPS_PRECISION", "ZR_PANELS"}
# Headers of which a source includes one or another: by nvcc or by the processor's compiler, on a card or on a processor.
VERSIONS = [{"kernels/cuda/device.h", "kernels/cuda/device_processor.h"},
            {"kernels/cuda/element.h", "kernels/cpu/loops/loops_body.h"}, {"kernels/cuda/element.h", "kernels/real.h"}]
# Bodies that a source includes where a version of them is made: their names are that source's own.
BODIES = {"kernels/cpu/loops/", "kernels/cpu/products/panels_body.h"}


def defined(text):
    """The names that a text defines."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
    text = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)
    names = set(re.findall(r"\b(?:struct|union|enum)\s+(\w+)\s*\{", text))
    names |= set(re.findall(r"^#\s*define\s+(\w+)", text, flags=re.M))
    for body in re.findall(r"\benum\b(?:\s+\w+)?\s*\{(.*?)\}", text, flags=re.S):
        names |= set(re.findall(r"(?:^|,)\s*(\w+)\s*(?=[,=]|$)", re.sub(r"\([^()]*\)", "", body)))
    return names


def clashes(texts):
    """Names that stand in two files of {path: text} and are of the project, or of two headers."""
    places = collections.defaultdict(set)
    for path, text in texts.items():
        for name in defined(text):
            places[name].add(path)
    found = {}
    for name, paths in places.items():
        if not name.lower().startswith("zr"):
            paths = {path for path in paths if path.endswith(".h") and not path.startswith(tuple(BODIES))}
        if len(paths) > 1 and name not in PARAMETERS and paths not in VERSIONS:
            found[name] = sorted(paths)
    return found


def check_that_it_can_fail():
    two = {"a.h": "#define ZR_A_H\nstruct zr_a { int b; };\nenum zr_c { ZR_C = 1, ZR_D };", "b.c": "struct zr_a {};\nstruct own {};",
           "c.c": "struct own { enum { ZR_D, OWN } e; };", "d.h": "#define ZR_A_H /* struct zr_c { */"}
    same(clashes(two), {"zr_a": ["a.h", "b.c"], "ZR_D": ["a.h", "c.c"], "ZR_A_H": ["a.h", "d.h"]}, "a name of two things is found")


check_that_it_can_fail()
sources = {path: open(path, encoding="utf-8").read() for room in ROOMS for ending in ("[ch]", "cu")
           for path in glob.glob(f"{room}/**/*.{ending}", recursive=True)}
ok(len(sources) > 300, f"{len(sources)} sources to read")
found = clashes(sources)
same(found, {}, "no name has two definitions")
for name, paths in sorted(found.items()):
    note(f"{name}: {', '.join(paths)}")
done()
