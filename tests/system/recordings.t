#!/usr/bin/env python3
"""All ways to record see what the program asked for: --trace, zr attach, zr record, the flight recorder and heaptrack have the
same bytes by function between two marks, and the same live bytes at the second mark, of three programs. And samples of small
objects estimate what the program has."""
import bisect
import collections
import functools
import glob
import json
import os
import shlex
import signal
import struct
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrt import Trace
from zrtest import BUILD, FOLDER, HANG, done, note, ok, path, same, skip, wait_for

ZR = os.path.abspath(os.path.join(BUILD, "bin", "zr"))
HEAPTRACK = "/usr/lib/heaptrack/libheaptrack_preload.so"
PYTHON = "/usr/bin/python3"
LARGE, MARK = 32768, 99991  # larger blocks are compared; a block of MARK bytes is a mark
os.makedirs(path("runtime"), 0o700)
# heaptrack brings libstdc++, whose pool lives from the start; in the other ways it is loaded too. Python's own allocator has
# tables whose number depends on the addresses of its mappings.
ENVIRONMENT = {**os.environ, "XDG_RUNTIME_DIR": path("runtime"), "PYTHONHASHSEED": "0", "PYTHONMALLOC": "malloc", "LD_PRELOAD": "libstdc++.so.6"}

# A loop that frees each block reuses blocks that the allocator kept; others grow, shrink, stay, or are aligned.
C = """#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define APART __attribute__((noinline))
static void *kept[64];
APART void mark(void) { void *volatile p = malloc(%(mark)d); free(p); }
APART void *frees_each(size_t n) { void *volatile p = malloc(n); return p; }
APART void *keeps(size_t n) { void *volatile p = calloc(1, n); return p; }
APART void *grows(void *p, size_t n) { p = realloc(p, n); ((char *)p)[0] = 1; return p; }
APART void *aligned(size_t n) { void *volatile p = aligned_alloc(4 << 20, n); return p; }
APART void work(int part)
{
    for (int i = 0; i < 300; i++)
        free(frees_each(40000 + (size_t)i %% 7 * 8));
    for (int i = 0; i < 24; i++)
        kept[part * 24 + i] = keeps(33000 + (size_t)i * 3001);
    for (int i = 0; i < 12; i++)
        kept[part * 24 + i] = grows(kept[part * 24 + i], 300000 - (size_t)i * 21000);
    free(aligned(4 << 20));
    free(kept[part * 24 + 20]);
    kept[part * 24 + 20] = NULL;
}
int main(void)
{
    char line[8];
    work(0);
    puts("ready"), fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return 1;
    mark();
    work(1);
    mark();
    puts("done"), fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return 1;
    void *volatile p = malloc((size_t)1 << 30); /* refused: the flight recorder writes its file */
    return p != NULL;
}
"""
CXX = """#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>
#define APART __attribute__((noinline))
APART void mark() { void *volatile p = std::malloc(%(mark)d); std::free(p); }
APART char *raw(size_t n) { return new char[n]; }
APART void fill(std::vector<double> &v, size_t n) { for (size_t i = 0; i < n; i++) v.push_back(double(i)); }
static std::vector<std::vector<double>> kept(8);
APART void work(int part, int number)
{
    for (int i = 0; i < 100; i++) delete[] raw(50000 + size_t(i %% 5) * 1000);
    fill(kept[part * 4 + number], 30000 + size_t(number) * 9000);
}
APART void threads(int part)
{
    std::vector<std::thread> all;
    for (int number = 0; number < 4; number++) all.emplace_back(work, part, number);
    for (auto &one : all) one.join();
}
int main()
{
    char line[8];
    threads(0);
    std::puts("ready"), std::fflush(stdout);
    if (!std::fgets(line, sizeof line, stdin)) return 1;
    mark();
    threads(1);
    mark();
    std::puts("done"), std::fflush(stdout);
    if (!std::fgets(line, sizeof line, stdin)) return 1;
    void *volatile p = std::malloc((size_t)1 << 30);
    return p != nullptr;
}
"""
PY = """import ctypes, gc, sys, numpy
gc.disable()
malloc, free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free
malloc.restype, malloc.argtypes, free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
kept = []
def work(part):
    for i in range(50):
        numpy.ones(20000 + i %% 4) * 2.0
    kept.append([numpy.arange(10000 + 500 * i) for i in range(10)])
    kept.append(list(range(30000)))
    kept.append(bytearray(70001))
work(0)
print("ready", flush=True)
sys.stdin.readline()
free(malloc(%(mark)d))
work(1)
free(malloc(%(mark)d))
print("done", flush=True)
sys.stdin.readline()
malloc(1 << 30)
"""


# Four threads: nodes of 200 bytes leak; the rest is freed. Small objects of each kind, in bytes.
NODES, NODE, SCRATCH, GROWN = 200000, 200, 1000, (500, 3000)
SMALL = """#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>
#define APART __attribute__((noinline))
struct node { node *next; char rest[%(node)d - sizeof(node *)]; };
static thread_local node *head;
APART node *make_node() { node *n = new node; n->next = head; return head = n; }
APART char *scratch(size_t n) { char *p = (char *)std::malloc(n); p[0] = 1; return p; }
APART char *grow(char *p, size_t n) { p = (char *)std::realloc(p, n); p[0] = 1; return p; }
static void work()
{
    for (int i = 0; i < %(nodes)d / 4; i++) {
        make_node();
        std::free(scratch(%(scratch)d));
        if (i %% 10 == 0) std::free(grow(grow(nullptr, %(short)d), %(long)d));
    }
}
int main()
{
    std::vector<std::thread> all;
    for (int i = 0; i < 4; i++) all.emplace_back(work);
    for (auto &one : all) one.join();
    return 0;
}
""" % {"node": NODE, "nodes": NODES, "scratch": SCRATCH, "short": GROWN[0], "long": GROWN[1], "mark": MARK}


def run(*words, **settings):
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=HANG, **settings)


# ---- What a recording says ---------------------------------------------------------------------------------------------

@functools.lru_cache(None)
def symbols(module):
    found = set()
    for table in ("-a", "-D"):
        for line in run("nm", table, "-C", "--defined-only", module).stdout.splitlines():
            words = line.split(maxsplit=2)
            if len(words) == 3 and words[1] in "TtWwi":
                found.add((int(words[0], 16), words[2].split("@")[0]))
    return sorted(found)


@functools.lru_cache(None)
def segments(module):
    """(offset in the file, size, address) of the parts that are loaded."""
    rows = (line.split() for line in run("readelf", "-lW", module).stdout.splitlines())
    return [(int(row[1], 16), int(row[4], 16), int(row[2], 16)) for row in rows if row[:1] == ["LOAD"]]


def address_in(module, offset):
    return next((address + offset - start for start, size, address in segments(module) if start <= offset < start + size), offset)


def function_of(stack):
    """The innermost function of the stack that is no allocator's."""
    for module, offset in stack or ():
        if not any(name in module for name in ("libzr_malloc", "libheaptrack", "libstdc++", "libc.so")):
            table = symbols(module)
            at = bisect.bisect_right(table, (offset, "\x7f")) - 1
            return table[at][1] if at >= 0 else f"{os.path.basename(module)}+{offset:x}"
    return "?"


def between_marks(events):
    """{function: bytes allocated between the marks}, {function: how often}, and live bytes at the second mark."""
    live, marks, allocated, counts = {}, 0, collections.Counter(), collections.Counter()
    for kind, address, size, stack in events:
        if kind == "alloc" and size == MARK:
            marks += 1
            if marks == 2:
                break
        elif kind == "alloc" and size > LARGE:
            live[address] = size
            if marks == 1:
                allocated[function_of(stack)] += size
                counts[function_of(stack)] += 1
        elif kind == "free":
            live.pop(address, None)
    return dict(allocated), dict(counts), sum(live.values()), marks


def heaptrack_events(where):
    """The events of heaptrack's own file, in hexadecimal: + bytes trace address, - address, t address parent, m - (forget all),
    m length path base (offset size)..; the path of the program is x and then the one of the line x."""
    traces, modules, program, events = [(0, 0)], [], "", []

    def stack_of(number):
        frames = []
        while number:
            address, number = traces[number]
            frames.append(next(((name, address - base) for start, size, base, name in modules if start <= address < start + size), ("", address)))
        return tuple(frames)

    with open(where, encoding="utf-8", errors="replace") as file:
        for line in file:
            kind, _, rest = line.rstrip("\n").partition(" ")
            if kind == "x":
                program = rest.split(" ", 1)[1]
            elif kind == "m":
                length, _, rest = rest.partition(" ")
                name, numbers = rest[:int(length, 16)], [int(word, 16) for word in rest[int(length, 16):].split()]
                modules = modules if numbers else []
                modules += [(numbers[0] + start, size, numbers[0], program if name == "x" else name)
                            for start, size in zip(numbers[1::2], numbers[2::2])]
            elif kind == "t":
                address, parent = rest.split()
                traces.append((int(address, 16), int(parent, 16)))  # of the call, one less than the return address
            elif kind == "+":
                size, trace, address = (int(word, 16) for word in rest.split())
                events.append(("alloc", address, size, stack_of(trace) if size > LARGE else None))
            elif kind == "-":
                events.append(("free", int(rest, 16), 0, None))
    return events


# ---- The ways ----------------------------------------------------------------------------------------------------------

class Running:
    """The program between its two lines: `ready` before the first mark, `done` after the second."""

    def __init__(self, *command, **environment):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env={**ENVIRONMENT, **environment})
        self.process.stdout.readline()

    def work(self):
        self._go()
        self.process.stdout.readline()

    def end(self):
        self._go()
        self.process.communicate(timeout=HANG)

    def _go(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()


def in_memory(trace):
    """A trace has the offsets of addresses in their files."""
    return [(kind, address, size, stack and tuple((module, address_in(module, offset)) for module, offset in stack))
            for kind, address, size, stack in trace.events]


def has_begun(where):
    try:
        return any(kind == "begin" for kind, *_ in Trace(where).events)
    except (OSError, struct.error):  # not there yet, or without its header
        return False


def under_zr(name, command):
    """The events by way: of a run with a trace and zr attach beside it, and of a run that zr record records."""
    folder = path(name + "-tmp")
    os.makedirs(folder)
    traced, attached, recorded = (path(f"{name}-{way}.zrt") for way in ("traced", "attached", "recorded"))
    conf = {"ZR_CONF": "publish:on,recorder:8m", "TMPDIR": folder}
    running = Running(ZR, "run", "--malloc", "--limit", "512MiB", "--stacks", "1", "--trace", traced, "--", *command, **conf)
    attaching = subprocess.Popen([ZR, "attach", str(running.process.pid), "--arena", "large", "--stacks", "1", "-o", attached], env=ENVIRONMENT)
    wait_for(lambda: has_begun(attached))
    running.work()
    attaching.send_signal(signal.SIGINT)
    same(attaching.wait(timeout=HANG), 0, f"{name}: zr attach beside a trace")
    running.end()
    running = Running(ZR, "run", "--malloc", "--", *command, **conf)
    pid = running.process.pid
    same(run(ZR, "record", pid, "start", "--arena", "large", "--stacks", "1", "-o", recorded, env=ENVIRONMENT).returncode, 0, f"{name}: zr record")
    running.work()
    same(run(ZR, "record", pid, "stop", env=ENVIRONMENT).returncode, 0, "and its end")
    running.end()
    flights = [Trace(file) for file in sorted(glob.glob(os.path.join(folder, "zr-*-large-*.zrt")))]
    flight = max(flights, key=lambda one: len([event for event in one.events if event[3]]))  # the run with stacks
    return {"--trace": in_memory(Trace(traced)), "attach": in_memory(Trace(attached)), "record": in_memory(Trace(recorded)),
            "recorder": in_memory(flight)}


def compare(name, command, functions=()):
    ways = under_zr(name, command)
    if os.path.exists(HEAPTRACK):
        running = Running(*command, LD_PRELOAD=HEAPTRACK, DUMP_HEAPTRACK_OUTPUT=path(name + ".heaptrack"))
        running.work()
        running.end()
        ways["heaptrack"] = heaptrack_events(path(name + ".heaptrack"))
    else:
        skip("heaptrack is not installed")
    found = {way: between_marks(events) for way, events in ways.items()}
    want = found["--trace"]
    same(want[3], 2, f"{name}: two marks, and between them {sum(want[0].values())} bytes of {len(want[0])} functions")
    for function, count in functions:
        same(want[1].get(function), count, f"{function} allocates {count} times")
    for way in list(found)[1:]:
        same(found[way][0], want[0], f"{name}: {way} has the bytes of each function") or note(found[way][1])
        same(found[way][1], want[1], f"{name}: {way} has how often each allocates")
        same(found[way][2], want[2], f"{name}: {way} has {want[2]} bytes live at the second mark")


def compiled(name, compiler, text):
    with open(path(name), "w", encoding="ascii") as file:
        file.write(text)
    built = run(*compiler, "-g", "-O1", path(name), "-o", path(name.split(".")[0] + "-program"), "-pthread")
    return path(name.split(".")[0] + "-program") if same(built.returncode, 0, f"{name} is built") else note(built.stderr)


def shown(program):
    """zr ps counts no block as live that the program has freed, and whose memory the allocator keeps."""
    running = Running(ZR, "run", "--malloc", "--", program, ZR_CONF="publish:on")
    before, after = figures(running), None
    running.work()
    after = figures(running)
    same(after["blocks_count"] - before["blocks_count"], 23, "zr ps: 23 of the window's blocks are live")
    ok(after["allocations_count"] - before["allocations_count"] >= 338, "and all of its allocations are counted") or note((before, after))
    running.end()


def near(estimate, wanted, words):
    """Within three standard errors, which are printed. A sampled sum of zero has none."""
    error = 3 * estimate["error_bytes"]
    ok(abs(estimate["bytes"] - wanted) <= error,
       f"{words}: {estimate['bytes']} bytes of {estimate['samples']} samples, {wanted} in truth, 3 standard errors are {error}")


def sampled():
    """zr run --trace --small names the function whose small objects leak."""
    trace = path("small.zrt")
    program = compiled("small.cc", shlex.split(os.environ.get("CXX", "g++")), SMALL)
    same(run(ZR, "run", "--malloc", "--trace", trace, "--small", "--", program).returncode, 0, "zr run --trace --small")
    got = json.loads(run(ZR, "stats", trace + ".small", "--json").stdout)["samples"]
    sites = {site["of"].split("(")[0].strip(): site for site in got["sites"]}
    grown = NODES // 10 * sum(GROWN)
    near(got["live"], NODES * NODE, "what lives")
    near(got["allocated"], NODES * (NODE + SCRATCH) + grown, "what was allocated")
    near(sites["make_node"]["live"], NODES * NODE, "the leak of make_node")
    near(sites["scratch"]["allocated"], NODES * SCRATCH, "what scratch allocated")
    near(sites["grow"]["allocated"], grown, "what grow reallocated")
    same([sites[name]["live"]["samples"] for name in ("scratch", "grow")], [0, 0], "what is freed is no leak")
    words = run(ZR, "stats", trace + ".small").stdout
    ok("+-: the standard error" in words and "make_node" in words, "zr stats prints it") or note(words)
    same(run(ZR, "run", "--small", "--", program).returncode, 2, "--small requires --trace")
    own = path("own.zrt")
    run(ZR, "run", "--malloc", "--trace", own, "--small", "--", PYTHON, "-c", "import os; x = [str(i) for i in range(10**6)]; os.fork() or os._exit(0)",
        env=ENVIRONMENT)
    kept = json.loads(run(ZR, "stats", own + ".small", "--json").stdout)["samples"]["sites"]
    ok(any("<string>:1" in site["of"] for site in kept), "Python's lines are named, and a fork leaves the trace whole") or note(kept)


def figures(running):
    run(ZR, "stats", running.process.pid, env=ENVIRONMENT)
    shown = json.loads(run(ZR, "ps", running.process.pid, "--json", env=ENVIRONMENT).stdout)["processes"][0]
    return next(arena for arena in shown["arenas"] if arena["name"] == "large")


program = compiled("window.c", shlex.split(os.environ.get("CC", "gcc")), C % {"mark": MARK})
compare("C", [program], [("frees_each", 300), ("keeps", 24), ("grows", 12), ("aligned", 1)])
shown(program)
sampled()
compare("C++", [compiled("threads.cc", shlex.split(os.environ.get("CXX", "g++")), CXX % {"mark": MARK})], [("raw(unsigned long)", 400)])
with open(path("arrays.py"), "w", encoding="ascii") as script:
    script.write(PY % {"mark": MARK})
if run(PYTHON, "-c", "import numpy").returncode == 0:
    compare("Python", [PYTHON, path("arrays.py")])
else:
    skip("numpy is not installed (python3-numpy)")
done()
