#!/usr/bin/env python3
"""What zr ps, top, stats and why make of a process that shows nonsense: a published file of drawn bytes, a socket that answers
them, a snapshot that is none. Such a process is this one. Nothing crashes, hangs, or sends control characters to a terminal."""
import json
import os
import random
import re
import socket
import struct
import subprocess
import sys
import threading

sys.path.insert(0, "tests/support")
from zrtest import BUILD, HANG, SEED, done, note, ok, path, same, settles

ZR = os.path.abspath(os.path.join(BUILD, "bin", "zr"))
RUNTIME = path("runtime")
FOLDER_OF = os.path.join(RUNTIME, "zr")
os.makedirs(RUNTIME, 0o700)
ENVIRONMENT = {**os.environ, "XDG_RUNTIME_DIR": RUNTIME, "LC_ALL": "C.UTF-8"}
ROUNDS = 24
# alloc/telemetry/publish_format.h: what comes before the arenas, and where things lie there.
VERSION_AT, SEQUENCE_AT, COUNT_AT, PROCESS_AT, PROGRAM_AT, ARENAS_AT = 8, 16, 20, 24, 56, 88
draw = random.Random(SEED)


def zr(*words):
    return subprocess.run([ZR, *map(str, words)], capture_output=True, timeout=HANG, stdin=subprocess.DEVNULL, env=ENVIRONMENT)


def genuine():
    """A published file as a process writes it."""
    program = subprocess.Popen([ZR, "run", "--malloc", "--", "/usr/bin/python3", "-c",
                                "x = bytearray(96 << 20); print('there', flush=True); input()"],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT)
    program.stdout.readline()
    with open(os.path.join(FOLDER_OF, f"{program.pid}.live"), "rb") as file:
        data = file.read()
    program.communicate(b"\n")
    return data


class Liar:
    """A socket that answers whatever `answer` says to a line."""

    def __init__(self):
        self.answer = lambda line: b"ok \n"
        self.path = os.path.join(FOLDER_OF, f"{os.getpid()}.sock")
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(self.path)
        self.socket.listen(20)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            there, _ = self.socket.accept()
            with there:
                there.settimeout(HANG)
                try:
                    line = b""
                    while b"\n" not in line and (part := there.recv(5000)):
                        line += part
                    there.sendall(self.answer(line))
                except OSError:
                    pass


def show(data):
    """A reader that takes the process for gone removes its file and its socket."""
    global liar
    if not os.path.exists(liar.path):
        answer, liar = liar.answer, Liar()
        liar.answer = answer
    where = os.path.join(FOLDER_OF, f"{os.getpid()}.live")
    with open(where + ".new", "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(data)
    os.rename(where + ".new", where)


def own(data):
    """The same as of this process."""
    with open("/proc/self/stat", encoding="utf-8") as file:
        started = int(file.read().rpartition(")")[2].split()[19])
    out = bytearray(data)
    out[PROCESS_AT + 8:PROCESS_AT + 20] = struct.pack("<Qi", started, os.getpid())
    return out


def check(words, *command, parses=False, codes=(0,)):
    run = zr(*command)
    # A terminal acts on what is below a blank, and C1: only zr writes these.
    shown = run.stdout.decode("utf-8", "replace")
    good = run.returncode in codes and not re.search(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]", shown)
    if good and parses:
        try:
            json.loads(run.stdout)
        except ValueError:
            good = False
    if not good:
        ok(False, f"zr {' '.join(map(str, command))}: {words}")
        note(f"exit {run.returncode}: {run.stderr!r:.500} {run.stdout!r:.500}")
    return good


def look(words, wanted=None):
    """Whatever reads what processes show."""
    good = True
    for command in (("ps",), ("top", "--once"), ("stats", os.getpid())):
        good = check(words, *command, codes=(0, 1, 2, 3)) and good
    for command in (("ps", "--json"), ("top", "--once", "--json")):
        good = check(words, *command, parses=True) and good
    if wanted is not None:
        pids = [one["pid"] for one in json.loads(zr("ps", "--json").stdout)["processes"] if one["arenas_count"] is not None]
        good = same(pids, wanted, f"{words}: who is shown") and good
    return good


template = own(genuine())
here = [os.getpid()]
liar = Liar()
show(template)
settles(lambda: ok(look("a good one", here), "a process that shows what another does is believed, as it is this user's own"))

for words, at, value, wanted in (
        ("a sequence that is odd for good", SEQUENCE_AT, b"\x01\0\0\0", []),
        ("more arenas than there is room for", COUNT_AT, b"\xff" * 4, here),
        ("another release", VERSION_AT, b"\x09\0\0\0", []),
        ("a program's name without end, of control characters", PROGRAM_AT, b"\x1b[31m\x9b\"\\\n" * 3 + b"\x1b" * 5, here),
        ("an arena's name of the same", ARENAS_AT, b"\x1b]0;x\x07" * 4 + b"\xff" * 4, here),
        ("figures beyond all memory", ARENAS_AT + 40, b"\xff" * 200, here),
        ("figures about to wrap around", ARENAS_AT + 40, struct.pack("<Q", 1 << 63) * 25, here)):
    data = bytearray(template)
    data[at:at + len(value)] = value
    show(data)
    settles(lambda: ok(look(words, wanted), words))
for mode in (0o640, 0o602):
    show(template)
    os.chmod(os.path.join(FOLDER_OF, f"{os.getpid()}.live"), mode)
    settles(lambda: ok(look(f"mode {mode:o}", []), f"a file of mode {mode:o} is nobody's: others may have written it"))
for cut in (0, 7, 8, 20, len(template) // 2, len(template) - 1):
    show(template[:cut])
    settles(lambda: ok(look(f"cut after {cut} bytes", []), f"a file of {cut} bytes is nobody's"))
good = True
for _ in range(ROUNDS):
    data = bytearray(template)
    for _ in range(draw.randint(1, 400)):
        data[draw.randrange(PROGRAM_AT, len(data))] = draw.choice((0, 0xff, 0x80, draw.randrange(256)))
    data[COUNT_AT] = draw.randrange(20)
    show(data)
    good = look("drawn bytes", here) and good
ok(good, f"{ROUNDS} files of drawn bytes")

# ---- Its answers
show(template)


def writes(content):
    def answer(line):
        where = line.decode().split(" ", 2)[2].rstrip("\n") if line.startswith(b"snapshot") else None
        if where and callable(content):
            content(where)
        elif where:
            with open(where, "wb") as file:
                file.write(content)
        return b"ok \n"
    return answer


for words, answer, codes in (
        ("no with control characters", lambda line: b"no \x1b[31mred\x07\xc2\x9b31m\n", (2, 3)),
        ("an answer without end", lambda line: b"ok " + b"x" * 5000, (1, 2, 3)),
        ("an empty one", lambda line: b"", (1, 2, 3)),
        ("zeros", lambda line: b"\0" * 2000 + b"\n", (2, 3)),
        ("ok, and no file", writes(lambda where: None), (3,)),
        ("a snapshot that is none", writes(b"nonsense" * 100), (3,)),
        ("one of an empty file", writes(b""), (3,)),
        ("a link", writes(lambda where: os.symlink("/etc/passwd", where)), (3,)),
        ("a pipe that nobody writes to", writes(os.mkfifo), (2, 3)),
        ("a folder", writes(os.mkdir), (3,)),
        ("a later format", writes(b"ZRT1" + struct.pack("<III", 128, 3, 1) + bytes(112)), (3,))):
    liar.answer = answer
    run = zr("stats", os.getpid())
    ok(run.returncode in codes and not re.search(rb"\x1b|\xc2[\x80-\x9f]", run.stderr + run.stdout), words) or note(f"exit {run.returncode}: {run.stderr!r:.300}")
    good = all(check(words, *command, codes=(0, 1, 2, 3)) for command in (("why", os.getpid(), "--size", "1GiB"), ("top", "--once")))
    ok(good, f"{words}: why and top")
    for name in os.listdir(FOLDER_OF):
        if name.endswith(".zrt"):
            where = os.path.join(FOLDER_OF, name)
            (os.rmdir if os.path.isdir(where) and not os.path.islink(where) else os.unlink)(where)
    show(template)
done()
