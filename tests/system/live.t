#!/usr/bin/env python3
"""Processes that run: zr ps, snapshot, attach, record; hostile and slow askers; other users; processes that are killed,
fork, exec, or close what is not theirs. And the flight recorder's file under zr run."""
import json
import os
import re
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import time

sys.path.insert(0, "tests/support")
from zrtest import BUILD, FOLDER, HANG, ZR_TRAIN, arguments, done, note, ok, path, same, settles, skip, text_file, train, wait_for

ZR, LIBRARY = (os.path.abspath(os.path.join(BUILD, *parts)) for parts in (("bin", "zr"), ("lib", "libzr.so")))
RUNTIME, FILES = path("runtime"), path("files")
os.makedirs(RUNTIME, 0o700)
os.makedirs(FILES, 0o700)
FOLDER_OF = os.path.join(RUNTIME, "zr")
ENVIRONMENT = {**os.environ, "XDG_RUNTIME_DIR": RUNTIME, "TMPDIR": FILES}
PYTHON = "/usr/bin/python3"
HELD = 96 << 20
# Says that it is there, then runs lines: what a program does beside.
BODY = """
import os, sys
held = bytearray(%d)
print("there", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""
# The same, with an arena that takes no memory from the system, by libzr.so without a preloaded malloc.
WITH_ARENA = """
import ctypes, sys
zr = ctypes.CDLL(sys.argv[1])
backend, arena, block, stats = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), (ctypes.c_size_t * 100)()
assert zr.zr_backend_host_create(ctypes.byref(backend), None) == 0
assert zr.zr_arena_create(ctypes.byref(arena), (ctypes.c_size_t * 6)(48, backend.value)) == 0
assert zr.zr_arena_alloc(arena, (ctypes.c_size_t * 4)(1 << 20), ctypes.byref(block)) == 0
print("there", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


def zr(*words, **settings):
    return subprocess.run([ZR, *map(str, words)], capture_output=True, text=True, errors="replace", timeout=HANG,
                          stdin=subprocess.DEVNULL, env=settings.pop("env", ENVIRONMENT), **settings)


class Program:
    """A python3 under zr run that holds 96 MiB and runs lines."""

    def __init__(self, conf="", held=HELD, env=None, command=None):
        self.process = subprocess.Popen(command or [ZR, "run", "--", PYTHON, "-c", BODY % held], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env={**(env or ENVIRONMENT), "ZR_CONF": conf})
        self.pid = self.process.pid
        assert self.process.stdout.readline() == "there\n"

    def command(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline() == "done\n"

    def end(self):
        self.process.stdin.close()
        code = self.process.wait(timeout=HANG)
        self.process.stdout.close()
        return code

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def listed():
    """What zr ps has, by process: of this whole machine, others' tests among it."""
    got = zr("ps", "--json")
    return {process["pid"]: process for process in json.loads(got.stdout)["processes"]} if got.returncode == 0 else None


def shown():
    """Those that show their arenas, in this test's own folder."""
    return {pid: process for pid, process in listed().items() if process["arenas"]}


def left():
    return sorted(os.listdir(FOLDER_OF)) if os.path.isdir(FOLDER_OF) else []


def connect(pid):
    there = socket.socket(socket.AF_UNIX)  # which waits where the queue is full
    there.connect(os.path.join(FOLDER_OF, f"{pid}.sock"))
    there.settimeout(HANG)
    return there


def ask(pid, data, shut=True):
    """What the process answers to the bytes; b"": it hung up."""
    with connect(pid) as there:
        try:
            there.sendall(data)
            if shut:
                there.shutdown(socket.SHUT_WR)
            return there.recv(2000)
        except (ConnectionResetError, BrokenPipeError):
            return b""


def is_trace(where, least):
    """A .zrt of a record that was stopped, of at least so many bytes."""
    with open(where, "rb") as file:
        data = file.read()
    return data[:4] == b"ZRT1" and struct.unpack_from("<I", data, 12)[0] == 1 and len(data) >= 128 + least


# ---- Processes that do not answer, in a folder of their own: one is stopped, in one's place nobody takes the call. Heard at the end.
os.makedirs(path("still"), 0o700)
STILL = {**ENVIRONMENT, "XDG_RUNTIME_DIR": path("still")}
stopped, mute = Program(env=STILL), Program(env=STILL)
wait_for(lambda: len(json.loads(zr("ps", "--json", env=STILL).stdout)["processes"]) >= 2)
os.kill(stopped.pid, signal.SIGSTOP)
os.unlink(os.path.join(path("still"), "zr", f"{mute.pid}.sock"))
deaf = socket.socket(socket.AF_UNIX)
deaf.bind(os.path.join(path("still"), "zr", f"{mute.pid}.sock"))
deaf.listen()
waiting = [(words, subprocess.Popen([ZR, *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                    text=True, env=STILL))
           for words in (("stats", stopped.pid), ("map", stopped.pid), ("why", stopped.pid, "--size", "1GiB"), ("ledger", stopped.pid),
                         ("attach", stopped.pid, "-o", path("still.zrt")), ("record", stopped.pid, "mark", "words"),
                         ("record", stopped.pid, "start", "-o", path("still.zrt")), ("snapshot", stopped.pid, "-o", path("still.zrt")),
                         ("stats", mute.pid))]

# ---- What is shown
settles(lambda: same(shown(), {}, "no process, and no folder: zr ps shows none"))
program = Program()
now = wait_for(shown)
ok(list(now) == [program.pid], "a process with 96 MiB is shown")
arenas = {arena["name"]: arena for arena in now[program.pid]["arenas"]}
same(sorted(arenas), ["large", "small"], "with its arenas")
ok(HELD <= arenas["large"]["live_bytes"] <= arenas["large"]["reserved_bytes"] <= arenas["large"]["peak_reserved_bytes"],
   "and their figures")
same(arenas["large"]["live_bytes"], sum(tag["live_bytes"] for tag in arenas["large"]["tags"].values()), "live by tag adds up")
settles(lambda: same([(name, stat.S_IMODE(os.stat(os.path.join(FOLDER_OF, name)).st_mode)) for name in left()],
                     [(f"{program.pid}.live", 0o600), (f"{program.pid}.sock", 0o600)], "its file and its socket are its user's alone"))
same(stat.S_IMODE(os.stat(FOLDER_OF).st_mode), 0o700, "in a folder that is, too")
program.command("more = bytearray(64 << 20)")


def check_growth():
    grown = {arena["name"]: arena["live_bytes"] for arena in shown()[program.pid]["arenas"]}["large"] - arenas["large"]["live_bytes"]
    ok(64 << 20 <= grown <= 80 << 20, f"the figures are of now: {grown >> 20} MiB more")  # sizes are rounded up by a quarter at most


settles(check_growth)
settles(lambda: same([zr("ps", program.pid).returncode, zr("ps", 1).returncode, zr("ps", "x").returncode], [0, 1, 2], "zr ps PID"))

# ---- Traces from outside
snapshot, attached, record = path("snap.zrt"), path("attached.zrt"), path("record.zrt")
got = zr("snapshot", program.pid, "--arena", "large", "-o", snapshot)
ok(got.returncode == 0 and is_trace(snapshot, 1), f"zr snapshot: {got.stderr}")
got = json.loads(zr("replay", snapshot, "--policy", "bestfit", "--json").stdout)["results"][0]
ok(got["lower_bound_bytes"] >= HELD + (64 << 20), "the blocks of now are in it")
arena = max(wait_for(lambda: shown().get(program.pid))["arenas"], key=lambda one: one["reserved_bytes"])
large = f"{program.pid}/large"
report = json.loads(zr("stats", large, "--json").stdout)
now, peak = report["moments"]["now"], report["moments"]["peak"]
same([now[key] for key in ("live_bytes", "requested_bytes", "reserved_bytes", "stranded_bytes")],
     [arena["live_bytes"], arena["requested_bytes"], arena["mapped_bytes"], arena["stranded_bytes"]], "zr stats PID has the figures of zr ps")
same([peak[key] for key in ("live_bytes", "reserved_bytes", "stranded_bytes")], [arena["peak_live_bytes"], arena["peak_reserved_bytes"], None],
     "and its peaks; what nobody noted then is null")
same(json.loads(zr("stats", snapshot, "--json").stdout)["moments"]["now"], now, "as a snapshot has them")
got = json.loads(zr("why", large, "--size", HELD, "--capacity", arena["reserved_bytes"], "--json").stdout)
ok(got["verdict"] == "shortage" and got["free_bytes"] < HELD, "zr why PID says whether a request would fit") or note(got)
program.command("import threading, time; kept = []; grow = lambda: [kept.append(bytearray(40000)) or time.sleep(1e-4) for _ in iter(lambda: go, [])]")
program.command("go = [1]; growing = threading.Thread(target=grow); growing.start()")
growing = [json.loads(zr("stats", large, "--json").stdout)["moments"] for _ in range(5)]
program.command("go.clear(); growing.join(); del kept")
ok(all(one["now"]["live_bytes"] <= one["peak"]["live_bytes"] for one in growing) and growing[0]["now"]["live_bytes"] < growing[-1]["now"]["live_bytes"],
   "of one that grows, no peak is below what it holds")
same([zr("stats", one).returncode for one in (1, 999999999, 0)], [1, 1, 3], "a process that shows nothing, and numbers of none")
other = subprocess.Popen(["sleep", "1000"])
for words, said in ((["attach", 999999999], "there is no process 999999999"), (["stats", other.pid], f"process {other.pid} publishes no memory"),
                    (["attach"], "attach: a process number is missing"), (["record", program.pid], "record: a command is missing: PID start -o FILE")):
    ok(zr(*words).stderr.startswith(f"zr: {said}"), f"zr {' '.join(map(str, words))}: {said}")
got = json.loads(zr("stats", snapshot, "--json").stdout)["stranded_ratio"]
ok(got["now"] == got["time_weighted"] > 0, "of one moment, the ratio over time is that moment's")
same([name for name in left() if "input" in name], [], "nothing is left of it")
attaching = subprocess.Popen([ZR, "attach", str(program.pid), "--arena", "0", "-o", attached], env=ENVIRONMENT)
wait_for(lambda: os.path.exists(attached))
for _ in range(50):
    program.command("x = [bytearray(1 << 20) for _ in range(8)]; del x")
ok("attached" in zr("attach", program.pid, "-o", path("second.zrt")).stderr, "a second one to attach is told so")
attaching.send_signal(signal.SIGINT)
same((attaching.wait(timeout=HANG), is_trace(attached, 100)), (0, True), "zr attach until a signal")
got = json.loads(zr("replay", attached, "--policy", "bestfit", "--json").stdout)["results"][0]
ok(got["lower_bound_bytes"] >= HELD + (72 << 20), "what was live before is in it, and what came")
same([zr("record", program.pid, "start", "--arena", 0, "-o", record).returncode, zr("record", program.pid, "mark", "here it is").returncode,
      zr("record", program.pid, "stop").returncode, zr("record", program.pid, "stop").returncode], [0, 0, 0, 2], "zr record")
same([zr("record", program.pid, "start", "--arena", 1, "-o", path("small.zrt")).returncode, zr("record", program.pid, "stop").returncode],
     [0, 0], "zr record stop finds the arena that is recorded, where another one holds most")
ok(is_trace(record, 1) and b"here it is" in open(record, "rb").read(), "it has the mark")

# ---- All arenas, which is what a user gets who names none: the one that allocates need not be the one that holds most
cut = [path("cut-large.zrt"), path("cut-small.zrt")]
before = json.loads(zr("stats", f"{program.pid}/1", "--json").stdout)["moments"]["now"]["live_bytes"]
killed = subprocess.Popen([ZR, "attach", str(program.pid), "-o", path("cut.zrt")], env=ENVIRONMENT)
wait_for(lambda: all(map(os.path.exists, cut)))
program.command("objects = [bytearray(1000) for _ in range(20000)]; del objects")
killed.kill()
killed.wait()
ok(wait_for(lambda: all(is_trace(one, 1) for one in cut)), "a zr attach that is killed ends the records")
got = json.loads(zr("replay", cut[1], "--policy", "bestfit", "--json").stdout)["results"][0]
ok(got["lower_bound_bytes"] >= before + (16 << 20), f"small objects are in the record of their arena: {before}, {got}")
both = [path("both-large.zrt"), path("both-small.zrt")]
got = zr("record", program.pid, "start", "-o", path("both.zrt"), "--stacks", 1)
same([got.returncode, zr("record", program.pid, "stop").returncode, zr("record", program.pid, "stop").returncode], [0, 0, 2], "zr record of all")
ok(all(is_trace(one, 1) for one in both) and all(one in got.stderr for one in both), f"each has a file, which is named: {got.stderr}")
got = zr("snapshot", program.pid, "-o", path("both.zrt"))
ok(got.returncode == 0 and len(json.loads(zr("stats", *both, "--json").stdout)["results"]) == 2, "zr snapshot, too")
names = [large, f"{program.pid}/small"]
for words in (["stats"], ["why", "--size", "1GiB"]):
    got = json.loads(zr(*words, program.pid, "--json").stdout)["results"]
    same([one["file"] for one in got], names, f"zr {words[0]} PID has each arena by name")
got = zr("map", program.pid).stdout
ok(all(f"{one}: zrt after" in got for one in names), "so has zr map PID") or note(got)
got = zr("map", program.pid, "-o", path("map.svg"))
ok(all(os.path.getsize(path(f"map-{one}.svg")) for one in ("large", "small")), f"with a picture each: {got.stderr}")
for words in (["stats", f"{program.pid}/none"], ["export", "--format", "csv", program.pid], ["attach", program.pid, "--arena", "none"]):
    got = zr(*words)
    ok(got.returncode == 2 and "large (0), small (1)" in got.stderr, f"zr {words[0]} names those that there are: {got.stderr.strip()}")
for i in range(10):
    got = zr("snapshot", program.pid, "-o", attached)
    if got.returncode:
        break
same(got.returncode, 0, "ten in a row")

# ---- Hostile askers
for words, data, answers in [
        ("no words", b"\n", b""),
        ("nothing", b"", b""),
        ("an unknown command", b"stat\n", b"no "),
        ("control characters", b"mark \x1b[31m\n", b"no "),
        ("zeros", b"stats\0\n", b"no "),
        ("bytes above ASCII", b"\xff" * 100 + b"\n", b"no "),
        ("a line without end", b"A" * 100000, b""),
        ("a line without its end", b"stats", b""),
        ("a path that is not whole", b"snapshot 0 snap.zrt\n", b"no "),
        ("a path without a folder", b"snapshot 0 /nowhere/of/all/snap.zrt\n", b"no "),
        ("a device", b"snapshot 0 /dev/full\n", b"no "),
        ("an arena that is none", b"snapshot 77 " + path("none.zrt").encode() + b"\n", b"no "),
        ("a number beyond numbers", b"snapshot 99999999999999999999 /x\n", b"no "),
        ("a mark that is too long", b"mark " + b"m" * 64 + b"\n", b"no "),
        ("a stop of nothing", b"stop 0\n", b"no "),
        ("more than there is to say", b"trim now\n", b"no "),
        ("two lines", b"stats\nstats\n", b"ok "),
]:
    answer = ask(program.pid, data)
    ok(answer.startswith(answers) if answers else answer == b"", f"{words}: {answer[:60]!r}")
def crowd():
    """64 who say nothing, or half a line, and stay."""
    there = [connect(program.pid) for _ in range(64)]
    for one in there[::2]:
        try:
            one.send(b"sta")
        except OSError:  # it is closed already
            pass
    return there


def check_crowd():
    there, began = crowd(), time.monotonic()
    answer, seconds = ask(program.pid, b"stats\n"), time.monotonic() - began
    code, _ = zr("stats", program.pid).returncode, [one.close() for one in there]
    ok(answer == b"ok \n" and seconds < 1 and code == 0, f"beside 64 silent ones, the next is answered at once: {seconds:.1f} s")


beside = subprocess.Popen([ZR, "attach", str(program.pid), "--arena", "0", "-o", path("beside.zrt")], stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
wait_for(lambda: os.path.exists(path("beside.zrt")))
settles(check_crowd)
there = crowd()
ok(program.command("y = bytearray(1 << 20)"), "silent askers do not hold up the program")
for one in there:
    one.close()
same((ask(program.pid, b"sta", shut=False), beside.poll()), (b"", None), "one that says half a line is closed; an attached one is not")
beside.send_signal(signal.SIGINT)
same((beside.communicate(timeout=HANG)[1], beside.returncode, is_trace(path("beside.zrt"), 1)), ("", 0, True), "nor do they end a zr attach")
ok(ask(program.pid, b"stats\n") == b"ok \n", "and the next one is answered")
slow = connect(program.pid)
for letter in b"stat":
    slow.send(bytes([letter]))
slow.close()
ok(ask(program.pid, b"trim\n").startswith(b"ok "), "nor does one who leaves in the middle")



def attach_briefly():
    with connect(program.pid) as there:
        there.sendall(b"attach 0 " + path("brief.zrt").encode() + b"\n")
        there.shutdown(socket.SHUT_WR)
        answer = b""
        while part := there.recv(2000):
            answer += part
        return answer


same({attach_briefly() for _ in range(65)}, {b"ok \nok the record is complete\n"}, "who attaches and leaves is forgotten: more in turn than one connection may record")

# ---- Other users
if os.geteuid() == 0 and subprocess.run(["setpriv", "--version"], capture_output=True).returncode == 0:
    os.chmod(RUNTIME, 0o755), os.chmod(FOLDER, 0o755)
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    code = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({os.path.join(FOLDER_OF, f'{program.pid}.sock')!r})"
    got = subprocess.run([*as_nobody, PYTHON, "-c", code], capture_output=True, text=True)
    ok("PermissionError" in got.stderr, "another user does not reach the socket")
    os.chmod(FOLDER_OF, 0o711), os.chmod(os.path.join(FOLDER_OF, f"{program.pid}.sock"), 0o666)
    code += "; s.sendall(b'stats\\n'); print(s.recv(100))"
    got = subprocess.run([*as_nobody, PYTHON, "-c", code], capture_output=True, text=True)
    ok(got.stdout in ("b''\n", "") and "ok" not in got.stdout, "and gets no answer where it could")
    settles(lambda: same(shown(), {}, "a folder that others may enter is not believed"))
    os.chmod(FOLDER_OF, 0o700)
else:
    skip("another user: needs root and setpriv")

# ---- Processes that end
same(program.end(), 0, "the program ends as ever")
settles(lambda: same(left(), [], "and leaves nothing"))
program = Program()
program.kill()
settles(lambda: ok(len(left()) == 2, "one that is killed leaves its file and socket"))
settles(lambda: same((shown(), left()), ({}, []), "until the next zr ps"))
program = Program()
stale = os.path.join(FOLDER_OF, "1.live")
with open(os.path.join(FOLDER_OF, f"{program.pid}.live"), "rb") as file:
    data = file.read()
for name, made_up in [("1.live", data), ("2.live", b"ZRLIVE1\0" + b"\xff" * len(data)), ("3.live", b"short")]:
    with open(os.path.join(FOLDER_OF, name), "wb", opener=lambda where, flags: os.open(where, flags, 0o600)) as file:
        file.write(made_up)
os.symlink("/etc/passwd", os.path.join(FOLDER_OF, "4.live"))
settles(lambda: same(sorted(shown()), [program.pid], "files of nobody, of somebody else, and links are not believed"))
ok(not os.path.exists(stale), "a number that has another process now is cleaned")

os.unlink(os.path.join(FOLDER_OF, "3.live")), os.unlink(os.path.join(FOLDER_OF, "4.live"))

# ---- fork, exec, descriptors
program.command("pid = os.fork() or ([bytearray(3 << 20) for _ in range(9)], __import__('time').sleep(1e4))")
ok(wait_for(lambda: len(now := shown()) == 2 and program.pid in now), "a child is shown beside its parent")
program.command("os.kill(pid, 9); os.waitpid(pid, 0)")
settles(lambda: same(list(shown()), [program.pid], "until it is killed; the parent stays"))
program.command("os.closerange(3, 4096)")
program.command("import socket; mine = socket.socket(); mine.bind(('127.0.0.1', 0)); mine.listen()")
ok(program.command("w = bytearray(1 << 20)"), "a program that closes all descriptors goes on")
settles(lambda: same(shown(), {}, "and is shown no more"))
program.kill()
program = Program()
os.write(program.process.stdin.fileno(), b"os.execv('/bin/sleep', ['sleep', '1000'])\n")
wait_for(lambda: b"sleep" in open(f"/proc/{program.pid}/cmdline", "rb").read()[:8])
settles(lambda: same((shown(), left()), ({}, []), "what became another program by exec is shown no more"))
program.kill()
program = Program("publish:off")
settles(lambda: same((shown(), left()), ({}, []), "publish:off shows nothing"))
one = wait_for(lambda: listed().get(program.pid)) or {}
ok(one.get("program") == "python3" and one["resident_bytes"] > HELD, f"but that it runs on zr, and what is resident: {one}")
settles(lambda: ok(re.search(rf"^ *{program.pid} python3 +- \(resident\) ", zr("ps").stdout, re.M) and zr("ps", program.pid).returncode == 0, "in a line of its own"))
program.end()
settles(lambda: ok(program.pid not in listed(), "until it ends"))

# ---- Processes below 64 MiB: no thread, until one is asked
def threads(program):
    return len(os.listdir(f"/proc/{program.pid}/task"))


def asking(*words):
    """zr that waits for the process to hear."""
    run = subprocess.Popen([ZR, *map(str, words)], stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    while run.poll() is None and not any(name.endswith(".ask") for name in left()):
        time.sleep(0.01)
    return run


program = Program(held=4 << 20)
program.command("kept = []")
settles(lambda: same((shown(), left(), threads(program), program.pid in listed()), ({}, [], 1, True), "a small process shows no figures, has one thread, and is listed"))
for _ in range(5):  # it is given 3 s, which a busy machine may take from it
    run = asking("snapshot", program.pid, "--arena", "small", "-o", path("small.zrt"))
    for _ in range(20):
        program.command("kept.append(bytearray(1 << 20))")
        time.sleep(0.01)
    words = run.communicate(timeout=HANG)[1]
    if "did not take memory" not in words:
        break
ok(re.fullmatch(r"(zr: .*waiting at most.*\n)?", words) and run.returncode == 0 and is_trace(path("small.zrt"), 1), "it hears as it takes memory") or note(words)
settles(lambda: same((list(shown()), left(), threads(program)), ([program.pid], [f"{program.pid}.live", f"{program.pid}.sock"], 2), "and shows itself from then on"))
same(zr("attach", program.pid, "-o", path("small.zrt"), "--seconds", 1).returncode, 0, "as any other")
program.end()
program = Program("publish:on", command=[PYTHON, "-c", WITH_ARENA, LIBRARY], env={**ENVIRONMENT, "ZR_FAULT": "write:1"})
sockets = [name for fd in os.listdir(f"/proc/{program.pid}/fd") if "socket" in (name := os.readlink(f"/proc/{program.pid}/fd/{fd}"))]
same((shown(), left(), sockets), ({}, [], []), "without room for its figures a program is not shown, and keeps no socket")
program.kill()
program = Program(command=["/bin/sh", "-c", '"$@"; exit $?', "sh", PYTHON, "-c", WITH_ARENA, LIBRARY])
for _ in range(5):
    run = asking("snapshot", program.pid, "-o", path("small.zrt"))  # of the shell
    while run.poll() is None:
        program.command("zr.zr_arena_get_stats(arena, stats)")
        time.sleep(0.01)
    words = run.communicate(timeout=HANG)[1]
    if run.returncode == 0:
        break
ok(run.returncode == 0 and is_trace(path("small.zrt"), 1) and "using process" in words, f"the child of a shell, which takes none and asks for its figures, hears, too: {words.strip()}")
program.end()
program = Program(held=4 << 20)
got = zr("attach", program.pid, "-o", path("quiet.zrt"))
ok(got.returncode == 1 and "did not take memory" in got.stderr and "publish:on" in got.stderr, f"one that takes none: {got.stderr}")
settles(lambda: same((left(), threads(program)), ([], 1), "is as it was"))
for _ in range(5):
    run = asking("attach", program.pid, "-o", path("quiet.zrt"))
    program.kill()
    words = run.communicate(timeout=HANG)[1]
    if "did not take memory" not in words:  # else it was not killed within the 3 s
        break
    program = Program(held=4 << 20)
ok("exited" in words and run.returncode == 1 and left() == [], "one that is killed while it is asked") or note(words)
started = time.monotonic()
got = zr("attach", other.pid, "-o", path("quiet.zrt"))
other.kill()
ok(got.returncode == 1 and "does not use zr" in got.stderr, f"a process without zr is told at once: {time.monotonic() - started:.1f} s")
open(os.path.join(FOLDER_OF, f"{program.pid}.ask"), "w").close()
settles(lambda: same((shown(), left()), ({}, []), "what one that asked has left goes with the process"))

# ---- A trainer
settings = dict(steps=300, layers=2, hidden=64, heads=2, seq=32, batch=4, ranks=1)
alone = train(environment={"ZR_CONF": "publish:off"}, **settings)
report = path("attached.json")
trainer = subprocess.Popen([ZR_TRAIN, *arguments(data=text_file(), stage=0, seed=11, json=report, **settings)],
                           env={**ENVIRONMENT, "ZR_CONF": "publish:on,recorder:64k"}, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
attaches = 0
while trainer.poll() is None and attaches < 10:
    attaches += trainer.pid in (shown() or {}) and zr("snapshot", trainer.pid, "-o", snapshot).returncode == 0
    attaches += trainer.poll() is None and zr("attach", trainer.pid, "-o", attached, "--seconds", 1).returncode == 0
ok(trainer.wait(timeout=HANG) == 0 and alone.code == 0 and attaches, f"a trainer, looked at {attaches} times, ends as ever")
same(json.load(open(report))["loss_hex"] if os.path.exists(report) else None, alone.losses, "its losses are the same bits")

for ranks in (1, 2):  # a user knows the number of what was started; what is asked for is its ranks'
    trainer = subprocess.Popen([ZR, "run", "--stats", "--", ZR_TRAIN, *arguments(data=text_file(), **{**settings, "steps": 10 ** 6, "ranks": ranks})],
                               env={**ENVIRONMENT, "ZR_CONF": "publish:on"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # zr-train's first process, too

    def in_training():
        found = {pid for pid, one in shown().items() if "training" in str(one)}
        return found if len(found) == ranks else None
    training = wait_for(in_training)
    words, said = "using process" if ranks == 1 else "choose one of", []

    def attaches_to_ranks():
        """On a busy host a rank may not have heard of it in a second."""
        said.append(zr("attach", trainer.pid, "-o", attached, "--seconds", 1).stderr)
        return words in said[-1] and (ranks == 2 or is_trace(attached.replace(".zrt", "-training.zrt"), 50))

    ok(wait_for(attaches_to_ranks, 60), f"of a launcher, {ranks} rank(s): {said[-1].strip()}")
    for words in (["ps", "--json"], ["ledger", "--json"], ["top", "--once", "--json"]):
        settles(lambda: same({one["pid"] for one in json.loads(zr(*words, trainer.pid).stdout)["processes"]}, training,
                             f"zr {words[0]} of a launcher: {ranks} rank(s)"))
    settles(lambda: same(sorted(set(re.findall(r'pid="(\d+)"', zr("serve", "--once", trainer.pid).stdout))), sorted(map(str, training)), "and zr serve"))
    for asked in (trainer.pid, f"{trainer.pid}/training"):
        got = zr("stats", asked, "--json")
        found = json.loads(got.stdout or "{}")
        ok(any(one["moments"]["peak"]["live_bytes"] > 1 << 20 for one in found.get("results", [found])) if ranks == 1 else "choose one of" in got.stderr,
           f"and zr stats {asked}: {got.stderr.strip()}")
    trainer.terminate()
    trainer.wait()

# A small one in its steps takes no memory from the system: it shows itself from the start.
trainer = subprocess.Popen([ZR_TRAIN, *arguments(data=text_file(), **{**settings, "steps": 10 ** 6})], env=ENVIRONMENT, stdout=subprocess.DEVNULL,
                           stderr=subprocess.PIPE, text=True)
next(line for line in trainer.stderr if "step 1/" in line)
got = zr("attach", trainer.pid, "-o", attached, "--seconds", 1, "--arena", 2)
ok(got.returncode == 0 and "using process" in got.stderr and is_trace(attached, 1), f"a small trainer hears, too: {got.stderr.strip()}")
trainer.kill()
trainer.communicate()

# ---- Those that do not answer
for words, run in waiting:
    said = run.communicate(timeout=HANG)[1]
    reason = r"process \d+ (does not answer \(state|waits in the kernel).*" if words[1] == mute.pid else f"process {stopped.pid} is stopped: `kill -CONT {stopped.pid}` lets it go on"
    gives_up = re.fullmatch(rf"(zr: {reason}; waiting at most 10 s\n)?zr: {reason} \(no answer for (\d+)\.\d s\)\n", said)
    # A machine that stood still for as long has no time left to wait.
    ok(run.returncode == 1 and gives_up and (gives_up[1] or int(gives_up[gives_up.lastindex]) > 11),
       f"zr {words[0]} of one that does not answer says why, and gives up") or note(said)
mute.kill()
deaf.close()
# ---- Processes that start while others are read: the first of them hangs up once a later one shows itself.
os.makedirs(path("rising"), 0o700)
RISING = {**ENVIRONMENT, "XDG_RUNTIME_DIR": path("rising")}
rising = sorted((Program(env=RISING) for _ in range(2)), key=lambda one: one.pid)
early, late = (os.path.join(path("rising"), "zr", f"{one.pid}.") for one in rising)
wait_for(lambda: all(os.path.exists(each + "sock") and os.path.exists(each + "live") for each in (early, late)))
os.unlink(early + "sock")
deaf = socket.socket(socket.AF_UNIX)
deaf.bind(early + "sock")
deaf.listen()
for words in (["ps"], ["top", "--once"]):
    os.rename(late + "live", late + "later")
    with subprocess.Popen([ZR, *words, "--json"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=RISING) as run:
        while run.poll() is None:  # ps asks twice
            if select.select([deaf], [], [], 0.1)[0]:
                if os.path.exists(late + "later"):
                    os.rename(late + "later", late + "live")
                deaf.accept()[0].close()
        pids = {one["pid"] for one in json.load(run.stdout)["processes"] if one["arenas"]}
    same((pids, os.path.exists(late + "live")), ({rising[0].pid}, True), f"zr {words[0]} does not follow those that start meanwhile")
for one in rising:
    one.kill()
for words in (["ps"], ["ledger"]):
    got = zr(*words, "--json", env=STILL)
    ok(got.returncode == 0 and stopped.pid in {one["pid"] for one in json.loads(got.stdout)["processes"]} and
       re.search(r"stopped: `kill -CONT .* \(no answer for 0\.\d s\); its figures are the last", got.stderr), f"zr {words[0]} does not wait for a stopped one") or note(got.stderr)
got = {one["pid"]: one["state"] for one in json.loads(zr("top", "--once", "--json", env=STILL).stdout)["processes"]}
same(got.get(stopped.pid), "silent", "zr top has it as silent")
os.kill(stopped.pid, signal.SIGCONT)
settles(lambda: same(zr("stats", stopped.pid, env=STILL).returncode, 0, "one that goes on answers"))
stopped.kill()

# ---- The flight recorder
got = zr("run", "--limit", "256MiB", "--", PYTHON, "-c", "x = [bytearray(1 << 20) for _ in range(100)]\ny = bytearray(1 << 30)")
named = re.findall(r"zr why (\S+\.zrt)", got.stderr)
ok("MemoryError" in got.stderr and len(named) == 1, "a program that runs out of memory names a file, once")
ok(named and is_trace(named[0], 100) and stat.S_IMODE(os.stat(named[0]).st_mode) == 0o600, "which is whole, and its user's")
replayed = json.loads(zr("replay", named[0], "--policy", "bestfit", "--json").stdout)["results"][0] if named else {}
ok(replayed.get("lower_bound_bytes", 0) >= 100 << 20, "and has what was live")
got = zr("run", "--limit", "256MiB", "--", PYTHON, "-c", "y = bytearray(1 << 30)", env={**ENVIRONMENT, "ZR_CONF": "recorder:0"})
ok("MemoryError" in got.stderr and "zr why" not in got.stderr, "recorder:0 writes none")
tiny = path("tiny")
os.makedirs(tiny)
if os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "zr-test", tiny]).returncode == 0:
    got = zr("run", "--limit", "256MiB", "--", PYTHON, "-c", "y = bytearray(1 << 30)", env={**ENVIRONMENT, "TMPDIR": tiny})
    ok("MemoryError" in got.stderr and "zr why" not in got.stderr and not os.listdir(tiny), "on a full disk: no file, no harm")
    subprocess.run(["umount", tiny])
else:
    skip("a full disk: needs root and mount")
done()
