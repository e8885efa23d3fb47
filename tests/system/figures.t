#!/usr/bin/env python3
"""One run in all its pictures: zr ps, zr top, a snapshot, the recorded trace, the report's page and the program itself have
the same figures, and two ranks' traces those of the trainer. And the ledger of a process, whose rows close with what the kernel and the device count."""
import atexit
import base64
import collections
import json
import os
import re
import signal
import subprocess
import sys
import zlib

sys.path.insert(0, "tests/support")
from zrtest import BUILD, HANG, TAGS, done, note, ok, path, same, settles, train, wait_for

ZR, LIBRARY = (os.path.abspath(os.path.join(BUILD, name)) for name in ("bin/zr", "lib/libzr.so"))
PYTHON, MIB = "/usr/bin/python3", 1 << 20
os.makedirs(path("runtime"), 0o700)
ENVIRONMENT = {**os.environ, "XDG_RUNTIME_DIR": path("runtime"), "ZR_CONF": "publish:on"}
CAPACITY, BESIDE, CONTEXT = 1100 * MIB, 14 * MIB, 6 * MIB
# A program on the (emulated) driver: 100 and 30 MiB through zr, of which the second is freed, and 14 that it makes itself.
DEVICE = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, (name, code)
class Where(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("place", ctypes.c_int), ("device", ctypes.c_int),
                ("rest", ctypes.c_uint64 * 4)]
context, address, memory = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
for size in (100 << 20, 30 << 20):
    call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
call("cuMemFree_v2", address)
call("cuMemCreate", ctypes.byref(memory), ctypes.c_size_t(%d), ctypes.byref(Where(1, 0, 1, 0)), ctypes.c_uint64(0))
print("there", flush=True)
sys.stdin.readline()
""" % BESIDE


def zr(*words, code=0):
    run = subprocess.run([ZR, *map(str, words)], capture_output=True, text=True, timeout=HANG, stdin=subprocess.DEVNULL,
                         env=ENVIRONMENT)
    if run.returncode != code:
        note(f"zr {words}: {run.returncode} {run.stderr}")
    return run.stdout if run.returncode == code else None


class Program:
    def __init__(self, *command, **environment):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**ENVIRONMENT, **environment})
        atexit.register(self.process.kill)
        self.pid, self.first = self.process.pid, self.process.stdout.readline()

    def command(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def end(self):
        self.process.kill()
        self.process.wait()


KEYS = ["live_bytes", "requested_bytes", "pending_bytes", "stranded_bytes"]


def of_arena(process):
    """Of zr ps or zr top: the large arena, as zr stats names its figures."""
    arena, = (arena for arena in process["arenas"] if arena["name"] == "large")
    return {**{key: arena[key] for key in KEYS}, "reserved_bytes": arena["mapped_bytes"],
            "tags": {tag: figures["live_bytes"] for tag, figures in arena["tags"].items() if figures["live_bytes"]}}


def of_file(file):
    now = json.loads(zr("stats", file, "--json"))["moments"]["now"]
    return {**{key: now[key] for key in KEYS}, "pending_bytes": now["pending_bytes"] or 0, "reserved_bytes": now["reserved_bytes"]}


def of_page(file):
    zr("report", file, "-o", path("page.html"))
    with open(path("page.html"), encoding="utf-8") as page:
        meta = re.search(r'<[^>]*data-column="meta"[^>]*>([^<]*)<', page.read())[1]
    now = json.loads(zlib.decompress(base64.b64decode(meta)))["now"]
    return {**{key: now.get(key) or 0 for key in KEYS}, "reserved_bytes": now["reserved_bytes"]}


def test_same_figures():
    program = Program(PYTHON, "tests/support/live_program.py", LIBRARY)
    zr("record", program.pid, "start", "--arena", 0, "-o", path("run.zrt"))
    program.command("kept += [take(large, 3 * MIB + 5, ACTIVATION) for _ in range(4)]; give(large, kept.pop(0)); give(large, kept.pop(-2))")
    ps, top = (wait_for(lambda: (found := json.loads(zr(*words, program.pid, "--json"))["processes"]) and of_arena(found[0])) for words in (["ps"], ["top", "--once"]))
    zr("snapshot", program.pid, "--arena", 0, "-o", path("now.zrt"))
    zr("record", program.pid, "stop", "--arena", 0)
    blocks = json.loads(program.first)["kept"][1:] + [[0, 3 * MIB + 5, TAGS.index("activation")]] * 3
    by_tag = collections.Counter()
    for _, size, tag in blocks:
        by_tag[TAGS[tag]] += (size + 255) // 256 * 256
    same((ps["tags"], ps["requested_bytes"]), (dict(by_tag), sum(size for _, size, _ in blocks)), "zr ps has what the program holds")
    ok(ps["live_bytes"] == sum(by_tag.values()) and ps["stranded_bytes"] > 0, f"its sum, and {ps['stranded_bytes']} stranded bytes")
    same(top, ps, "zr top has the figures of zr ps")
    del ps["tags"]
    for words, file in (("a snapshot", path("now.zrt")), ("the trace of the run", path("run.zrt"))):
        same(of_file(file), ps, f"zr stats of {words} has them")
        same(of_page(file), ps, f"and the page of {words}")
    attach = subprocess.Popen([ZR, "attach", str(program.pid), "-o", path("all.zrt")], env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    wait_for(lambda: os.path.exists(path("all-large.zrt")) and os.path.exists(path("all-small.zrt")))
    program.command("third = arena(b'third'); take(third, 5 * MIB, GRAD)")
    ok(wait_for(lambda: os.path.exists(path("all-third.zrt"))), "zr attach records an arena that comes meanwhile")
    attach.send_signal(signal.SIGINT)
    same((attach.wait(timeout=HANG), of_file(path("all-third.zrt"))["live_bytes"]), (0, 5 * MIB), "with its blocks")
    program.end()


def test_ranks():
    """zr diff of two ranks' traces has what the trainer itself counted of each: equal ones, and stages of a pipeline."""
    for words, flags, code in (("data ranks", {"stage": 1}, 0), ("pipeline ranks", {"pp": 2}, 1)):
        got = train(ranks=2, accumulate=2, trace=path("ranks.zrt"), **flags)
        report = json.loads(zr("diff", path("ranks.zrt.0"), path("ranks.zrt.1"), "--json", "--fail-if", "peak_live_bytes != 1x", code=code))
        want = [[rank["peak_bytes"][row["of"]] for row in report["growth"]] for rank in got.report["ranks"]]
        same([[row[side] for row in report["growth"]] for side in ("a_bytes", "b_bytes")], want, f"{words}: what is live at each one's peak, by tag")
        ok((want[0] == want[1]) == (code == 0) and len(want[0]) >= 5, f"{words}: zr diff tells whether they are alike")


# ---- The ledger --------------------------------------------------------------------------------------------------------

def ledger(pid):
    process, = json.loads(zr("ledger", pid, "--json"))["processes"]
    for part in [process["host"], *process["devices"]]:
        same(sum(-row["bytes"] if "less" in row else row["bytes"] for row in part["rows"]) + part["residual_bytes"], part["total_bytes"],
             "the rows close with the total")
        ok(min([part["residual_bytes"], *(row["bytes"] for row in part["rows"])]) >= 0, "and none is below 0") or note(part)
    return process


def rows(part, name):
    return {row[name]: row["bytes"] for row in part["rows"] if name in row}


def test_host_ledger():
    program = Program(PYTHON, "tests/support/live_program.py", LIBRARY)
    program.command("import ctypes; ctypes.memset(kept[0][0], 1, 4 * MIB); beside = bytearray(b'x') * (40 * MIB)")

    def check():
        got = ledger(program.pid)["host"]
        by_tag = collections.Counter()
        for _, size, tag in json.loads(program.first)["kept"] + [[0, MIB, TAGS.index("grad")]]:
            by_tag[TAGS[tag]] += size
        same(rows(got, "tag"), dict(by_tag), "a row for each tag, both arenas together")
        named = rows(got, "name")
        with open(f"/proc/{program.pid}/smaps") as file:
            text = file.read()
        resident = [int(kib) * 1024 for kib in re.findall(r"^Rss:\s+(\d+) kB", text, re.M)]
        arenas = sum(int(kib) * 1024 for name, kib in re.findall(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ *(.*)\nSize:.*\n(?:.*\n){2}Rss:\s+(\d+) kB",
                                                                 text, re.M) if name.startswith("/memfd:zr"))
        same(got["total_bytes"] - got["residual_bytes"], sum(resident), "every mapping has a row")
        same(sum(by_tag.values()) + named.get("free in the arenas", 0) - rows(got, "less")["not touched yet"], arenas,
             "what is resident in the arenas is the kernel's count of their mappings")
        ok(arenas >= 4 * MIB and named["other anonymous memory"] + named.get("heap, beside the arenas", 0) >= 40 * MIB,
           "what was touched is there, and what lies beside")
        ok(got["residual_bytes"] <= MIB, f"residual: {got['residual_bytes']} bytes")
    settles(check)
    table = zr("ledger")
    ok(f"process {program.pid}" in table and "live: grad" in table and "residual" in table and re.search(r"less: not touched yet +[\d.]+ MiB", table), "and as a table, of every process")
    program.end()
    same(zr("ledger", program.pid, code=1), "", "a process that has gone: exit 1")
    same(json.loads(zr("ledger", "--json"))["processes"], [], "a process that has gone is in none")


# A program that maps memory right before and behind each anonymous mapping where there is room, which the kernel then joins.
JOINING = """
import ctypes, sys
held, kept = bytearray(b"x") * (80 << 20), [bytes(100 * (i % 100 + 1)) for i in range(40000)]
libc = ctypes.CDLL(None)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]
with open("/proc/self/maps") as file:
    anonymous = [[int(one, 16) for one in line.split()[0].split("-")] for line in file if " rw-p 00000000 00:00 0 \\n" in line]
sum = 0
for first, end in anonymous:
    for size in (2 << 20, 64 << 10):
        for at in (first - size, end):
            if libc.mmap(at, size, 3, 0x104022, -1, 0) == at:  # MAP_FIXED_NOREPLACE, MAP_NORESERVE as an arena has it
                ctypes.memset(at, 1, size)
                sum += size
print(sum, flush=True)
sys.stdin.readline()
"""


def test_joined_mappings():
    """What lies beside an arena in one mapping of the kernel's is counted beside it, and the arena as the arena."""
    program = Program(ZR, "run", "--", PYTHON, "-c", JOINING, PYTHONMALLOC="malloc")

    def check():
        got = ledger(program.pid)["host"]
        named, objects, beside = rows(got, "name"), 80 * MIB + sum(100 * (i % 100 + 1) for i in range(40000)), int(program.first)
        arenas = sum(rows(got, "tag").values()) + named.get("free in the arenas", 0) - rows(got, "less")["not touched yet"]
        ok(beside > 0 and objects <= arenas <= objects + 40 * MIB and beside <= named["other anonymous memory"] <= beside + 16 * MIB,
           f"{beside} bytes beside arenas of {objects} and some: {arenas}, {named}")
    settles(check)
    program.end()


def test_device_ledger():
    """Two processes on one card: each sees the other's bytes, and what was there before it came."""
    emulator = os.path.abspath(os.path.join(BUILD, "tests", "emulator"))
    first, program = (Program(ZR, "run", "--cuda", "--", PYTHON, "-c", DEVICE, LD_LIBRARY_PATH=emulator, ZR_EMULATOR_MEMORY=str(CAPACITY),
                              ZR_EMULATOR_SHARED=path("card"), ZR_EMULATOR_CONTEXT=str(CONTEXT)) for _ in range(2))
    same((first.first, program.first), ("there\n", "there\n"), "two programs on the emulated driver")

    def check():
        zr("ps", first.pid, program.pid)  # figures of now in both files
        for own, other, before in ((program, first, 2 * CONTEXT + BESIDE), (first, program, CONTEXT)):
            device, = ledger(own.pid)["devices"]
            same((device["capacity_bytes"], device["capacity_bytes"] - device["free_bytes"]), (CAPACITY, device["total_bytes"]),
                 "the device's total is what its driver says is used")
            same(rows(device, "tag"), {"other": 100 * MIB}, "what the program has through zr")
            named = rows(device, "name")
            same(named.pop("there before zr: the context, others"), before, "what was there before it, to the byte")
            same(sum(named.values()), 30 * MIB, "what it has freed is kept")
            same([row for row in device["rows"] if "pid" in row], [{"program": "python3", "pid": other.pid, "bytes": 130 * MIB}],
                 "what the other one holds")
            same(device["residual_bytes"], BESIDE + (own == first) * (BESIDE + CONTEXT), "what was made past zr is the residual, to the byte")
    settles(check)
    table = zr("ledger", program.pid)
    ok("residual: libraries" in table and f"process {first.pid}, python3" in table, "and as a table")
    first.end()

    def check_alone():
        device, = ledger(program.pid)["devices"]
        same(([row for row in device["rows"] if "pid" in row or "less" in row], device["residual_bytes"]), ([], 0),
             "of one that was killed there is no row; what it left is not given twice")
    settles(check_alone)
    program.end()


test_same_figures()
test_ranks()
test_host_ledger()
test_joined_mappings()
test_device_ledger()
same(zr("ledger", "init", code=2), "", "a name is no process")
done()
