#!/usr/bin/env python3
"""fuzz_socket.py SECONDS [SEED]: hostile askers of a live process, and hostile processes for those who ask.

A zr-train under sanitizers (BUILD's) gets lines from nobody's grammar while it trains; after that `zr ps`, `zr top` and `zr
snapshot` of the same build read mutated .live files and hear mutated answers. Prints TAP. Paths that are sent lie in the
test's own folder, whatever else the lines are."""
import glob
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, "tests/support")
from zrtest import BUILD, HANG, SEED, arguments, done, note, ok, path, same, text_file, wait_for

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 20
rng = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else SEED)
ZR, ZR_TRAIN = (os.path.abspath(os.path.join(BUILD, "bin", name)) for name in ("zr", "zr-train"))
RUNTIME, FILES = path("runtime"), path("files")
os.makedirs(RUNTIME, 0o700)
os.makedirs(FILES)
os.makedirs(os.path.join(FILES, "folder"))
os.mkfifo(os.path.join(FILES, "pipe"))
os.symlink("/dev/full", os.path.join(FILES, "full"))
FOLDER_OF = os.path.join(RUNTIME, "zr")
ENVIRONMENT = {**os.environ, "XDG_RUNTIME_DIR": RUNTIME, "ZR_CONF": "publish:on,recorder:64k"}
NAMES = ["a.zrt", "b.zrt", "folder", "folder/c.zrt", "nowhere/d.zrt", "pipe", "full", "x" * 300, "\u00e4 \u2603.zrt", "%n%s%p", "./../files/e.zrt"]
WORDS = ["stats", "trim", "snapshot", "attach", "record", "stop", "mark", "0", "1", "7", "999999", "1000000", "-1", "0x0", "18446744073709551616",
         " ", "\n", "\0", "\x1b[2J", "/", "%s%n", "a" * 63, "b" * 64, "c" * 4100, "d" * 4300]


def resident(pid):
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"VmRSS:\s+(\d+)", file.read())[1]) * 1024


def some_line():
    """A command, whole, with something wrong, or none at all."""
    kind = rng.randrange(4)
    where = os.path.join(FILES, rng.choice(NAMES)).encode()
    good = rng.choice([b"stats", b"trim", b"snapshot 0 " + where, b"record 0 " + where, b"attach 0 " + where, b"record 1 " + where, b"stop 0",
                       b"stop 1", b"mark here", b"mark " + bytes(rng.randrange(256) for _ in range(rng.randrange(70)))])
    if kind == 0:
        return good + b"\n"
    if kind == 1:  # no path: whatever comes of it leads nowhere
        return "".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 12))).replace("/", "").encode() + rng.choice([b"\n", b""])
    if kind == 2:
        return bytes(rng.choice(range(256)) for _ in range(rng.randrange(200))).replace(b"/", b"") + rng.choice([b"\n", b""])
    line = bytearray(good.split(b"/")[0] if rng.random() < 0.5 else good)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(line.find(b"/") if b"/" in line else len(line) or 1)
        if rng.random() < 0.5:
            line[at:at + 1] = bytes([rng.randrange(256)]).replace(b"/", b".")
        else:
            del line[at:at + rng.randrange(3)]
    return bytes(line) + rng.choice([b"\n", b"\n\n", b"", b"\nstats\n"])


def connect(pid):
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(HANG)
    one.connect(os.path.join(FOLDER_OF, f"{pid}.sock"))
    return one


def ask(pid, kept):
    """One asker. What it heard, which is one line of an answer, or nothing."""
    one = connect(pid)
    data, heard = some_line(), b""
    try:
        if rng.random() < 0.2:
            for begin in range(0, len(data), 7):
                one.sendall(data[begin:begin + 7])
        else:
            one.sendall(data)
        end = rng.random()
        if end < 0.1:
            pass  # leaves before the answer
        elif end < 0.15:
            kept.append(one)  # stays, and says no more
            return None
        else:
            if not data.startswith(b"attach") or end < 0.6:
                one.shutdown(socket.SHUT_WR)
            heard = one.recv(4096) if b"\n" in data or end >= 0.15 and not data.startswith(b"attach") else b""
    except (BrokenPipeError, ConnectionResetError):
        pass
    one.close()
    return heard


def fuzz_server(seconds):
    trainer = subprocess.Popen([ZR_TRAIN, *arguments(data=text_file(), steps=10 ** 7, layers=1, hidden=16, heads=1, seq=8, batch=1, ranks=1, seed=3,
                                                      log=path("log.jsonl"))],
                               env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=open(path("words"), "w"))
    if not ok(wait_for(lambda: os.path.exists(os.path.join(FOLDER_OF, f"{trainer.pid}.sock")) or trainer.poll() is not None) and trainer.poll() is None,
              "a trainer under sanitizers is there"):
        return note(open(path("words")).read())
    time.sleep(1)
    before, count, accepted, strange, kept, end = resident(trainer.pid), 0, 0, [], [], time.monotonic() + seconds
    while time.monotonic() < end and trainer.poll() is None:
        heard = ask(trainer.pid, kept)
        if heard and not (re.fullmatch(rb"(ok|no) [^\x00-\x1f\x7f]*\n(ok|no)?.*", heard, re.S) and len(heard) <= 2200):
            strange.append(heard)
        count += 1
        accepted += bool(heard) and heard.startswith(b"ok ")
        if len(kept) > 12 or (kept and rng.random() < 0.05):
            for one in kept:
                one.close()
            kept.clear()
        for where in glob.glob(os.path.join(FILES, "**", "*.zrt"), recursive=True):
            if count % 50 == 0 and os.path.isfile(where):
                os.unlink(where)
    for one in kept:
        one.close()
    grown = resident(trainer.pid) - before if trainer.poll() is None else 0
    same(strange[:3], [], f"{count} hostile askers: each answer is one line, or none")
    ok(accepted * 50 > count, f"{accepted} of them are accepted")
    answered = b""
    for _ in range(20):  # askers that stay have their second each
        with connect(trainer.pid) as one:
            one.sendall(b"stats\n")
            answered = one.recv(100)
        if answered:
            break
    same(answered, b"ok \n", "after which one who asks is answered")
    ok(grown < 256 << 20, f"and the process has {grown >> 20} MiB more")
    trainer.send_signal(signal.SIGTERM)
    try:
        trainer.wait(timeout=HANG)
    except subprocess.TimeoutExpired:
        trainer.kill()
    words = open(path("words")).read()
    reports = [line for line in words.splitlines() if "Sanitizer" in line or "runtime error" in line]
    same((reports, os.path.exists(os.path.join(FOLDER_OF, f"{trainer.pid}.sock"))), ([], False), "it ends as told, without a report, and leaves nothing")
    if reports or trainer.returncode not in (0, 130, 143, -15):
        note(f"exit {trainer.returncode}: {words[-2000:]}")


class Liar:
    """A process that shows what it likes: this one, by a file made of a real one's."""

    def __init__(self):
        self.real, self.words = subprocess.Popen(
            [ZR_TRAIN, *arguments(data=text_file(), steps=10 ** 7, layers=1, hidden=16, heads=1, seq=8, batch=1, ranks=1, seed=3)],
            env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL), b""
        shown = os.path.join(FOLDER_OF, f"{self.real.pid}.live")
        wait_for(lambda: os.path.exists(shown) and os.path.getsize(shown) > 0)
        time.sleep(0.5)
        with open(shown, "rb") as file:
            self.data = file.read()
        self.real.send_signal(signal.SIGSTOP)  # lives, and says nothing: its socket is ours now
        self.shown, where = shown, shown[:-5] + ".sock"
        os.unlink(where)
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(where)
        self.server.listen(8)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                one, _ = self.server.accept()
            except OSError:
                return
            with one:
                try:
                    one.settimeout(2)
                    one.recv(5000)
                    one.sendall(self.words)
                except OSError:
                    pass

    def show(self):
        data = bytearray(self.data)
        for _ in range(rng.choice([0, 1, 3, 40])):
            at = rng.randrange(16 if rng.random() < 0.3 else len(data))
            size = rng.choice([1, 2, 4, 8])
            data[at:at + size] = rng.choice([b"\xff" * size, b"\0" * size, bytes(rng.randrange(256) for _ in range(size)), b"\x1b[2J\n\"<"[:size]])
        if rng.random() < 0.1:
            data = data[:rng.randrange(len(data))]
        with open(self.shown, "wb") as file:
            file.write(data)
        os.chmod(self.shown, 0o600)
        self.words = rng.choice([b"ok \n", b"ok \n", b"no \x1b[31m\n", b"", b"ok", b"\n", b"x" * 5000, b"ok " + b"y" * 2000 + b"\n", b"\0\0\n",
                                 bytes(rng.randrange(256) for _ in range(30)) + b"\n"])

    def end(self):
        self.server.close()
        self.real.kill()
        self.real.wait()


def fuzz_askers(seconds):
    liar, wrong, count, end = Liar(), [], 0, time.monotonic() + seconds
    while time.monotonic() < end:
        liar.show()
        words = rng.choice([["ps", "--json"], ["ps"], ["top", "--once", "--json"], ["top", "--once"],
                            ["snapshot", str(liar.real.pid), "-o", os.path.join(FILES, "s.zrt")], ["record", str(liar.real.pid), "stop"]])
        run = subprocess.run([ZR, *words], capture_output=True, timeout=HANG, env=ENVIRONMENT, stdin=subprocess.DEVNULL)
        text = run.stdout + run.stderr
        bad = run.returncode not in (0, 1, 2, 3) or b"Sanitizer" in text or b"runtime error" in text or re.search(rb"[\x00-\x08\x0b-\x1f\x7f]", text)
        if words[-1] == "--json" and run.returncode == 0:
            try:
                json.loads(run.stdout)
            except ValueError:
                bad = True
        if bad:
            wrong.append((words, run.returncode, text[-1500:]))
        count += 1
    liar.end()
    if not same(len(wrong), 0, f"{count} times a process that lies: no crash, no hang, no control character, JSON that can be read"):
        for words, code, text in wrong[:3]:
            note(f"{words}: exit {code}\n{text.decode(errors='replace')}")


fuzz_server(SECONDS * 0.6)
fuzz_askers(SECONDS * 0.4)
done()
