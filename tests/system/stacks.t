#!/usr/bin/env python3
"""Call stacks of zr's own traces, from a preloaded program, a live process and the flight recorder to names in zr why; and
versions of the trace's format."""
import ctypes
import json
import os
import re
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrt import Trace
from zrtest import BUILD, FOLDER, HANG, done, note, ok, path, same

ZR = os.path.abspath(os.path.join(BUILD, "bin", "zr"))
FAILING = os.path.abspath(os.path.join(BUILD, "tests", "failing"))
os.makedirs(path("runtime"), 0o700)
ENVIRONMENT = {**os.environ, "XDG_RUNTIME_DIR": path("runtime"), "TMPDIR": FOLDER}
# Line 4 and line 5 allocate, 40 times each; the weights stay.
PROGRAM = """#include <stdlib.h>
#include <string.h>

__attribute__((noinline)) void *make_weights(size_t n) { void *p = malloc(n); if (p) memset(p, 1, 1); return p; }
__attribute__((noinline)) void *make_temporary(size_t n) { void *p = malloc(n); if (p) memset(p, 1, 1); return p; }

int main(void)
{
    void *weights[40];
    for (int i = 0; i < 40; i++) {
        void *temporary = make_temporary(3 << 20);
        weights[i] = make_weights(100000 + 1000 * (size_t)i);
        free(temporary);
    }
    return !weights[0];
}
"""


def run(*words, **settings):
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, errors="replace", timeout=HANG,
                          stdin=subprocess.DEVNULL, env={**ENVIRONMENT, **settings.pop("env", {})}, **settings)


def zr(*words, **settings):
    return run(ZR, *words, **settings)


def compiled(name, *options):
    with open(path(name + ".c"), "w", encoding="utf-8") as file:
        file.write(PROGRAM.replace("make_weights(", "_ZN3zoo5horseEmi(") if name == "plus" else PROGRAM)
    built = run(os.environ.get("CC", "gcc"), "-g", "-O1", *options, path(name + ".c"), "-o", path(name))
    assert built.returncode == 0, built.stderr
    return path(name)


def pins(trace, *options):
    """{the frames of a pin: how many such pins}, and what was said."""
    got = zr("why", trace, "--json", *options)
    found = {}
    for pin in json.loads(got.stdout)["pins"] if same(got.returncode, 0, f"zr why {os.path.basename(trace)}") else ():
        stack = tuple(pin["stack"])
        found[stack] = found.get(stack, 0) + 1
    return found, got.stderr


def names(stacks, program):
    """The function and line of the program's innermost frame, of each stack."""
    found = set()
    for stack in stacks:
        own = [frame for frame in stack if f"/{program}.c:" in frame]
        found.add(own[0].replace(os.path.join(FOLDER, ""), "") if own else "")
    return found


QUESTION = ("--size", "9MiB", "--at", "60", "--capacity", "12MiB")


def test_preloaded():
    program, trace = compiled("program"), path("program.zrt")
    same(zr("run", "--malloc", "--stacks", 1, "--trace", trace, "--", program).returncode, 0, "a preloaded program with stacks")
    found, said = pins(trace, *QUESTION)
    same(names(found, "program"), {"make_weights (program.c:4)", "make_temporary (program.c:5)"}, "zr why names who allocated the pins")
    same(said, "", "and has nothing to complain of")
    ok(all(any("main (" in frame for frame in stack) for stack in found), "the stacks go up to main") or note(found)
    words = zr("why", trace, *QUESTION).stdout
    ok("make_weights (" in words and "zr_" not in words and "libzr_malloc" not in words, "in words, too: not the allocator's own") or note(words)
    growth = {one["of"].split(" (")[0]: one["a_bytes"] for one in json.loads(zr("diff", trace, trace, "--json").stdout)["growth"]}
    # At the peak 40 weights of 100,000 to 139,000 bytes and one temporary, rounded up to the malloc's classes.
    ok(set(growth) == {"make_weights", "make_temporary"} and growth["make_temporary"] == 3 << 20 and
       4780000 <= growth["make_weights"] <= 4780000 * 5 / 4, "zr diff has growth by stack") or note(growth)
    profile = path("program.pb")
    zr("export", "--format", "pprof", trace, "-o", profile)
    with open(profile, "rb") as file:
        ok(b"make_weights (" in file.read(), "and pprof has the names")
    none = path("none.zrt")
    zr("run", "--malloc", "--trace", none, "--", program)
    found, _ = pins(none, *QUESTION)
    same(set(found), {()}, "without --stacks there are none")
    for change, words in (("stripped", ""), ("changed", "is from another build"), ("missing", "/program' is missing")):
        if change == "stripped":
            run("strip", program)
        elif change == "changed":
            compiled("program", "-DOTHER", "-O0")
        else:
            os.remove(program)
        found, said = pins(trace, *QUESTION)
        ok(all(any(frame.startswith("?? (program+0x") for frame in stack) for stack in found),
           f"{change}: the program's frames are offsets") or note(found)
        ok(words in said, f"{change}: {words or 'nothing'} is said") or note(said)


def test_plus_plus():
    """A name as C++ makes it, of zoo::horse(unsigned long, int)."""
    program, trace = compiled("plus"), path("plus.zrt")
    zr("run", "--malloc", "--stacks", 1, "--trace", trace, "--", program)
    found, _ = pins(trace, *QUESTION)
    try:
        ctypes.CDLL("libstdc++.so.6")
        wanted = "zoo::horse(unsigned long, int) (plus.c:4)"
    except OSError:
        wanted = "_ZN3zoo5horseEmi (plus.c:4)"
    same(names(found, "plus"), {wanted, "make_temporary (plus.c:5)"}, "names of C++ are words")


def test_recorder():
    """The flight recorder's file alone names those who pin."""
    folder = path("recorder")
    os.makedirs(folder)
    run(FAILING, "fragmentation", env={"TMPDIR": folder, "ZR_CONF": "recorder:1m,stacks:1"})
    trace, = (os.path.join(folder, name) for name in os.listdir(folder))
    found, _ = pins(trace)
    ok(found and all(any("failing.c:" in frame and frame.startswith("fragmentation ") for frame in stack) for stack in found),
       "the flight recorder's pins have stacks") or note(found)
    run(FAILING, "leak", env={"TMPDIR": folder, "ZR_CONF": "recorder:1m,stacks:1"})
    trace, = (os.path.join(folder, name) for name in os.listdir(folder) if "leak" in name)
    words = zr("why", trace).stdout.replace("\n  ", " ")
    ok("reason: leak: 113 blocks" in words and ", leak (" in words, "a leak is named by its stack") or note(words)


BODY = """
import sys
held = bytearray(96 << 20)
kept = []
print("there", flush=True)
for line in sys.stdin:
    kept.append(bytearray(1 << 20))
    print("done", flush=True)
"""


def test_attached():
    program = subprocess.Popen([ZR, "run", "--", "/usr/bin/python3", "-c", BODY], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True, env=ENVIRONMENT)
    try:
        program.stdout.readline()
        counts = []
        for turn, stacks in enumerate((0, 1, 0)):
            trace = path(f"attached.{turn}.zrt")
            same(zr("record", program.pid, "start", "--arena", "large", "-o", trace, *(("--stacks", stacks) if stacks else ())).returncode, 0,
                 f"record {'with' if stacks else 'without'} stacks")
            for _ in range(4):
                program.stdin.write("\n")
                program.stdin.flush()
                program.stdout.readline()
            same(zr("record", program.pid, "stop").returncode, 0, "and stop")
            growth = [one["of"] for one in json.loads(zr("diff", trace, trace, "--json").stdout)["growth"]]
            framed = [of for of in growth if "(" in of]
            counts.append(len(framed))
            if stacks:
                ok(any("<string>:" in frame or "Py" in frame for frame in framed), "Python's frames are there, or the interpreter's") or note(growth)
        same((counts[0], counts[1] > 0, counts[2]), (0, True, 0), "stacks last as long as the trace that they were asked for")
        same([zr("record", program.pid, *words).returncode for words in (["start", "--stacks", 1, "-o", path("all.zrt")], ["stop", "--arena", "small"])],
             [0, 0], "of two arenas that are recorded with stacks, one is stopped")
        program.stdin.write("\n")
        program.stdin.flush()
        program.stdout.readline()
        same(zr("record", program.pid, "stop").returncode, 0, "and then the other")
        growth = [one["of"] for one in json.loads(zr("diff", path("all-large.zrt"), path("all-large.zrt"), "--json").stdout)["growth"]]
        ok(any("(" in of for of in growth), "whose stacks went on") or note(growth)
        same(zr("attach", program.pid, "--stacks", 1000000, "-o", path("x")).returncode, 2, "one in a million is too rare")
    finally:
        program.stdin.close()
        program.wait(timeout=HANG)
        program.stdout.close()


# Frames of Python between those of C: sorted() calls key() from C, list() runs gen().
PYTHON_PROGRAM = """import sys
class Holder:
    def keep(self, n):
        self.rows = bytearray(n)
def key(n):
    kept.append(Holder())
    kept[-1].keep(n)
    return n
def gen():
    yield sorted([200000, 300000], key=key)
kept = []
list(gen())
"""


def interpreters():
    """{version: program} of those on the PATH, and of Debian's."""
    found = {}
    for name in ["/usr/bin/python3", "python3"] + [f"python3.{minor}" for minor in range(10, 16)]:
        got = run(name, "-c", "import sys; print(*sys.version_info[:2], sys.executable)") if shutil.which(name) else None
        if got and got.returncode == 0:
            major, minor, program = got.stdout.split()
            found.setdefault((int(major), int(minor)), program)
    return found


def test_python():
    """Frames of Python stand in the place of its evaluator's, between those of C."""
    script, trace = path("rows.py"), path("rows.zrt")
    with open(script, "w", encoding="ascii") as file:
        file.write(PYTHON_PROGRAM)
    wanted = [f"Holder.keep ({script}:4)", f"key ({script}:7)", None, f"gen ({script}:10)", None, f"<module> ({script}:12)"]
    for version, program in sorted(interpreters().items()):
        got = zr("run", "--malloc", "--stacks", 1, "--trace", trace, "--", program, script)
        stacks = {tuple(text for text, _ in stack) for kind, _, size, stack in Trace(trace).events
                  if kind == "alloc" and size // 10 in (20000, 30000) and stack}
        if version < (3, 11):
            ok("no Python frames" in got.stderr and got.returncode == 0, f"Python {version}: one line says that there are no frames") or note(got.stderr)
            continue
        shapes = [shape_of(stack) for stack in stacks]
        same(shapes, [wanted] * len(shapes), f"Python {version}: its frames stand between those of C")
        ok(shapes and not got.stderr, f"Python {version}: each of the blocks has one, and nothing is said") or note(got.stderr)
        growth = {one["of"] for one in json.loads(zr("diff", trace, trace, "--json").stdout)["growth"]}
        ok(wanted[0] in growth, f"Python {version}: zr diff names the function") or note(growth)


def shape_of(stack):
    """The stack's Python frames, with None for one or more of C between them."""
    shape = []
    for text in stack:
        frame = text if text.startswith(("Holder", "key", "gen", "<module>")) else None
        if shape and (frame or shape[-1]) or frame:
            shape.append(frame)
    return shape[:-1] if shape and not shape[-1] else shape


# ---- Versions ----------------------------------------------------------------------------------------------------------

ALLOCATION = bytes([1 | 0x20, 0, 0, 0, 0x80, 0x20])  # tag 0, the first place, 4096 bytes
REFUSED = bytes([6, 1, 0x80, 0x40])


def header(version, body, extra=b""):
    return struct.pack("<4sIIIQQQQQQII32s24x", b"ZRT1", 128 + len(extra), version, 1, len(body), 1 << 21, 1 << 40, 1 << 30, 0, 0, 1, 0,
                       b"test") + extra + body


def varint(number):
    out = b""
    while number >= 128:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def extension(kind, data):
    return bytes([0, 0, kind]) + varint(len(data)) + data


def module(where, at=1 << 20, size=4096):
    return extension(1, varint(at) + varint(size) + b"\0\0" + os.fsencode(where))


def stats_of(name, data):
    with open(path(name), "wb") as file:
        file.write(data)
    return zr("stats", path(name), "--json")


def test_versions():
    body = ALLOCATION + REFUSED
    for name, data in (("version 1", header(1, body)), ("version 2", header(2, body)),
                       ("a header that has grown", header(2, body, b"\xff" * 40)),
                       ("an extension of a later release", header(2, extension(200, b"who knows") + body))):
        got = stats_of("version.zrt", data)
        ok(got.returncode == 0 and json.loads(got.stdout)["moments"]["now"]["live_bytes"] == 4096, f"{name}: is read") or note(got.stderr)
    for name, data, words in (("version 3", header(3, body), "has version 3 of the format, newer than this program reads (2)"),
                              ("version 0", header(0, body), "no version 0"),
                              ("an extension in version 1", header(1, extension(1, b"x") + body), "is invalid"),
                              ("a header that goes on beyond the end", header(2, b"", b"")[:8] + struct.pack("<I", 2) + header(2, b"")[12:100],
                               "less than a header")):
        got = stats_of("version.zrt", data)
        ok(got.returncode == 3 and words in got.stderr, f"{name}: refused, with words") or note(got.stderr)


def test_hostile():
    """What a trace says of files is not believed."""
    os.mkfifo(path("fifo"))
    with open(path("cut.so"), "wb") as file, open("/proc/self/exe", "rb") as whole:
        file.write(whole.read(5000))
    for where in (path("fifo"), "/dev/zero", "/dev/stdin", "/proc/self/mem", FOLDER, "no/path", "", path("cut.so"), "/" + "x" * 800, ZR):
        stack = extension(2, varint(1) + varint(2 * ((1 << 20) + 77)) + varint(2 * (1 << 62)))
        maps = bytes([3, 0, 0, 2])
        with open(path("hostile.zrt"), "wb") as file:
            file.write(header(2, module(where) + stack + maps + extension(3, varint(1)) + ALLOCATION))
        found, _ = pins(path("hostile.zrt"), "--size", "4MiB")
        ok(found and all(len(stack) == 2 for stack in found), f"a module of '{where[:30]}'") or note(found)


def test_many_files():
    """Files that are no programs keep no descriptors: behind more of them than there may be open, a program's names are found."""
    count, modules, frames = 24, b"", b""
    for i in range(count):
        with open(path(f"text-{i}"), "w", encoding="ascii") as file:
            file.write("no program")
        modules += module(path(f"text-{i}"), (i + 1) << 20)
        frames += varint(2 * ((1 << 20) + (77 if i == 0 else 0)))
    symbols = subprocess.run(["nm", ZR], capture_output=True, text=True, check=True).stdout
    place = int(re.search(r"^([0-9a-f]+) T main$", symbols, re.M).group(1), 16) + 4
    modules += module(ZR, 1 << 30, 1 << 24)
    frames += varint(2 * ((1 << 30) + place - ((count << 20) + 77)))
    with open(path("many.zrt"), "wb") as file:
        file.write(header(2, modules + extension(2, varint(1) + frames) + bytes([3, 0, 0, 2]) + extension(3, varint(1)) + ALLOCATION))
    run = subprocess.run(["prlimit", "--nofile=20:20", ZR, "why", path("many.zrt"), "--size", "4MiB", "--json"], capture_output=True, text=True, timeout=HANG)
    found = json.loads(run.stdout)["pins"][0]["stack"] if run.returncode == 0 else []
    ok(len(found) == count + 1 and found[-1].startswith("main"), "files that are no programs keep no descriptors") or note(f"{found} {run.stderr}")


def test_terminal():
    """Names and marks of a file are no commands to a terminal."""
    evil = b"\x1b]0;x\x07\x9b31m\xc2\x9b\n"
    stack = extension(2, varint(1) + varint(2 * ((1 << 20) + 77)))
    mark = bytes([5, 0, len(evil)]) + evil
    with open(path("evil.zrt"), "wb") as file:
        file.write(header(2, module(b"/" + evil) + stack + bytes([3, 0, 0, 2]) + mark + extension(3, varint(1)) + ALLOCATION))
    run = subprocess.run([ZR, "why", path("evil.zrt"), "--size", "4MiB"], capture_output=True, timeout=HANG, stdin=subprocess.DEVNULL)
    ok(run.returncode == 0 and b"?? (?]0;x??31m???+0x4d)" in run.stdout and b" in ?]0;x??31m???" in run.stdout and
       not set(b"\x1b\x07\x9b") & set(run.stdout), "what a file says is plain in zr why") or note(run.stdout + run.stderr)


test_preloaded()
test_terminal()
test_plus_plus()
test_recorder()
test_attached()
test_python()
test_versions()
test_hostile()
test_many_files()
done()
