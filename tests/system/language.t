#!/usr/bin/env python3
"""The words of language.txt are in no comment, message or document of the product, and the list can find them."""
import re
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import done, note, ok, same

with open("tests/system/language.txt", encoding="utf-8") as file:
    ROWS = [line.rstrip("\n").split("\t") for line in file if line.strip() and not line.startswith("#")]
WORDS = re.compile(r"\b(?:" + "|".join(row[0].replace(" ", r"[\s*]+") for row in ROWS) + r")\b", re.I)
PROSE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)*"', re.S)


def found_in(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    parts = [(0, text)] if path.endswith(".md") else [(match.start(), match[0]) for match in PROSE.finditer(text)]
    for start, part in parts:
        for match in WORDS.finditer(part):
            yield f"{path}:{text.count(chr(10), 0, start + match.start()) + 1}: {match[0]}"


same([row for row in ROWS if len(row) != 2], [], "each row has an expression and what to write instead")
ok(all(WORDS.search(word) for word in ("Whoever holds it", "in vain", "stands on x.c")), "the expressions find what they are for")
listed = subprocess.run(["git", "ls-files", "alloc", "defrag", "zero", "kernels", "examples", "*.md"], capture_output=True, text=True).stdout.split()
files = [path for path in listed if path.endswith((".c", ".h", ".cu", ".md", ".py", ".js")) and not path.startswith("tests/")]
hits = [hit for path in files if not path.endswith(".py") for hit in found_in(path)]
ok(len(files) > 300, f"{len(files)} files to read")
same(hits, [], "none of the words is in the product's texts") or note("\n".join(hits[:60]))
done()
