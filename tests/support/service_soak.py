"""service_soak.py: clients of zrd that take and give at random: tests/long/long_service.t, soak_service.t. soak(): kill -9 of
clients and of zrd; in each round every byte is accounted for, none twice, and nobody but the killed sees an error. rough():
stops, removed folders and full disks, too; a round ends with all of it mended, and then the same must hold."""
import collections
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import time

from zrd_client import ENVIRONMENT, MIB, RUNTIME, SOCKET, ZRD, Program, Zrd, lent, status, use, zr
from zrtest import HANG, SEED, ok, path, same, settles, skip, wait_for

CLIENTS = 8
OPTIONS = ("--capacity", 384 * MIB, "--within", 300000)


def start(number):
    return Program(ZR_GROUP=f"group{number % 3}")


def play(zrd, clients, draws, counts, most):
    """One round; zrd, and what was wrong."""
    for client in clients:
        client.say(f"churn {draws.randint(most // 6, most)} {draws.randint(4, 20)}")
    time.sleep(draws.random() / 10)
    if draws.random() < 0.5:
        zrd.end(kill=True)
        zrd = Zrd(*OPTIONS)
        counts["restarts"] += 1
    if draws.random() < 0.7:
        clients.pop(draws.randrange(len(clients))).end(kill=True)
        counts["deaths"] += 1
    bad = [words for words in (client.hear() for client in clients) if words]
    if not wait_for(lambda: {one["pid"] for one in status()["clients"]} == {client.pid for client in clients}):
        bad.append("zrd's clients are not those that live")
    now = wait_for(lambda: found if (found := status())["lent_bytes"] == sum(one["held_bytes"] for one in found["clients"]) else None) or status()
    if now["lent_bytes"] != sum(one["held_bytes"] for one in now["clients"]):
        bad.append("what is lent is not what is held")
    bad += [f"{one} takes more than it holds" for one in now["clients"] if one["resident_bytes"] > one["held_bytes"]]
    while len(clients) < CLIENTS:
        clients.append(start(len(clients)))
        bad += [clients[-1].words] if clients[-1].words else []
    return zrd, bad


def soak(kind, seconds):
    use(kind, ZR_EMULATOR_MEMORY=str(384 * MIB))  # no more than zrd lends: what is lost is missed
    draws = random.Random(SEED)
    zrd, clients = Zrd(*OPTIONS), [start(i) for i in range(CLIENTS)]
    counts = {"rounds": 0, "deaths": 0, "restarts": 0}
    bad, end = [], time.monotonic() + seconds
    while time.monotonic() < end and not bad:
        counts["rounds"] += 1
        zrd, bad = play(zrd, clients, draws, counts, 300 if kind == "host" else 60)
    same(bad, [], f"{kind}: {counts['rounds']} rounds, {counts['deaths']} clients killed, {counts['restarts']} times zrd: all is accounted for")
    ok(counts["rounds"] > 2 and counts["deaths"] > 0 and counts["restarts"] > 0, "and there was something to see")
    same([client.command("look") + client.command("give") + client.command("trim") for client in clients], [""] * len(clients),
         "no byte was changed by another")
    settles(lambda: same(lent(), 0, "at the end all is back"))
    same([client.end() for client in clients], [0] * len(clients), "they end well")
    same(zrd.end(), 0, "and so does zrd")


# ---- Everything that can go wrong, in any order -----------------------------------------------------------------------

ROUGH = 96 * MIB
ROUGH_OPTIONS = ("--capacity", ROUGH, "--within", 3000)
# What clients, tools and the log may say; all else is wrong.
KNOWN = [re.compile(words) for words in (
    r"^$", r"within \d+ ms: its leases end", r"zrd has ", r"hard quota of ", r"zrd does not answer; ZR_CONF=service:required", r"[Nn]o zrd (listens|serves)",
    r"the zrd of '.*' has ended: type", r"zrd at '.*' does not answer", r"zrd has not answered within", r"is not a folder of this user with mode 0700",
    r"an earlier zrd ended this process's leases", r"zrd runs already, as process \d+", r"zrd is process \d+; its log is", r"draining", r"the limit is set, but '.*' cannot be written",
    r"another zrd serves this user there, process \d+", r"folder '.*' does not exist", r"the peer closed the service's socket",
    r"holds .*, more than the .*: it keeps the memory in use")]
LOGGED = [re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d zrd: (" + words + ")$") for words in (
    r"lends .* at .*", r"ends", r"is stopped by pid \d+", r"drains", r"lends again", r"the socket was removed; listens at '.*' again",
    r"the socket was removed and cannot be created again: .*", r"pid \d+ \(service_client\): .*within \d+ ms: its leases end.*",
    r"pid \d+ \(service_client\): an earlier zrd ended this process's leases and took its memory.*",
    r"\d+ similar lines were omitted: .*", r"the limits: .*", r"a limit was set: .*")] + [re.compile(r"^\d+ lines could not be written here$")]


def strange(said, known):
    return [line for line in said.splitlines() or [""] if not any(one.search(line) for one in known)]


class Rough:
    """Clients that need zrd, and what happens to them and to it."""

    def __init__(self, draws):
        self.draws, self.counts, self.bad = draws, collections.Counter(), []
        self.folder, self.full = os.path.dirname(SOCKET), os.path.join(RUNTIME, "full")
        self.log = path("zrd.log")  # by any zrd
        self.logged = 0
        self.zrd, self.clients, self.paused = Zrd(*ROUGH_OPTIONS), [], False

    def find(self, words, known=KNOWN):
        self.bad += strange(words, known)

    def signal(self, pid, number):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    def restart(self):
        """Memory that the last zrd has lent is counted as its clients come back: until then more may be lent."""
        self.counts["zrds"] += 1
        self.strict = False
        self.zrd.end(kill=self.draws.random() < 0.7)
        self.zrd = Zrd(*ROUGH_OPTIONS)

    def disturb(self):
        act = self.draws.choice(("kill", "stop", "continue", "zrd", "pause", "folder", "socket", "lock", "mode", "full", "second", "tool", "limit"))
        victim = self.draws.choice(self.clients)
        self.counts[act] += 1
        if act == "kill":
            victim.process.kill()
        elif act in ("stop", "continue"):
            self.signal(victim.pid, signal.SIGSTOP if act == "stop" else signal.SIGCONT)
        elif act == "zrd":
            self.signal(self.zrd.pid, signal.SIGCONT)
            self.paused = False
            self.mend_folder()
            self.restart()
        elif act == "pause":
            self.paused = not self.paused
            self.signal(self.zrd.pid, signal.SIGSTOP if self.paused else signal.SIGCONT)
        elif act == "folder":
            shutil.rmtree(self.folder, ignore_errors=True)
        elif act in ("socket", "lock") and os.path.exists(SOCKET + (".lock" if act == "lock" else "")):
            os.unlink(SOCKET + (".lock" if act == "lock" else ""))
        elif act == "mode" and os.path.exists(self.folder):
            os.chmod(self.folder, self.draws.choice((0o700, 0o755)))
        elif act == "full":
            self.fill()
        elif act == "second" and os.path.exists(self.folder):
            got = subprocess.run([ZRD, "--capacity", str(ROUGH)], env=ENVIRONMENT, capture_output=True, text=True, timeout=HANG, stdin=subprocess.DEVNULL)
            self.find(got.stderr)
            self.bad += [f"a second zrd: {got.returncode}"] if got.returncode != 3 else []
        elif act == "tool" and not self.paused:
            self.find(zr(self.draws.choice(("status", "start"))).stderr)
        elif act == "limit" and not self.paused:
            self.find(zr("limit", "--group", "group1", "--hard", ROUGH).stderr)

    def fill(self):
        """The file system of the folder and the log."""
        with contextlib.suppress(OSError), open(self.full, "wb", buffering=0) as file:
            while file.write(bytes(1 << 12)):
                pass

    def mend_folder(self):
        with contextlib.suppress(FileNotFoundError):
            os.chmod(self.folder, 0o700)

    def mend(self):
        """All goes on; a client that has lost its leases ends, and others take its place."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.full)
        self.mend_folder()
        self.paused = False
        for pid in (self.zrd.pid, *(client.pid for client in self.clients)):
            self.signal(pid, signal.SIGCONT)
        if self.zrd.process.poll() is not None:
            self.bad.append(f"zrd has ended: {self.zrd.process.returncode}")
            self.restart()

    def command(self, order=None):
        """All say what they were told, or are told now; those that have lost their leases or their lives are not clients any more."""
        for client in self.clients if order else ():
            with contextlib.suppress(BrokenPipeError):
                client.say(order)
        gone = [client for client in self.clients if not self.hear(client)]
        self.clients = [client for client in self.clients if client not in gone]
        for client in gone:
            with contextlib.suppress(BrokenPipeError):
                client.end(kill=True)
            client.process.wait(timeout=HANG)

    def hear(self, client):
        words = client.hear()
        if "it has ended" in words:
            code = client.process.wait(timeout=HANG)
            self.bad += [f"a client has ended: {code}"] if code not in (-signal.SIGKILL, -signal.SIGBUS) else []
        else:
            self.find(words)
        return not ("it has ended" in words or "leases end" in words or "earlier zrd" in words)

    def round(self):
        self.strict = True
        while len(self.clients) < 5:
            self.clients.append(Program("service:required", ZR_GROUP=f"group{len(self.clients) % 3}"))
            self.find(self.clients[-1].words)
        self.clients = [client for client in self.clients if not client.words or client.end() is None]
        for client in self.clients:
            client.say(f"churn {self.draws.randint(10, 200)} {self.draws.randint(4, 20)}")
        for _ in range(self.draws.randint(1, 8)):
            time.sleep(self.draws.random() / 10)
            self.disturb()
            self.look()
        time.sleep(self.draws.choice((0, 0, 0, 4)))
        self.mend()
        self.command()
        self.command("take 1")
        if not wait_for(lambda: {one["pid"] for one in (status() or {"clients": []})["clients"]} == {client.pid for client in self.clients}):
            self.bad.append(f"zrd's clients are not those that live: {status()}")
        now = self.look()
        if now["lent_bytes"] != sum(one["held_bytes"] for one in now["clients"]):
            self.bad.append(f"what is lent is not what is held: {now}")
        if now["pid"] != self.zrd.pid:
            self.bad.append(f"zrd {now['pid']} serves in place of {self.zrd.pid}")
        self.bad += [f"{one} takes more than it holds" for one in now["clients"] if one["resident_bytes"] > one["held_bytes"]]
        for client in self.clients:
            for order in ("look", "give", "trim"):
                words = client.command(order)
                self.bad += [f"{order}: {words}"] if words else []
        self.bad += [] if wait_for(lambda: (status() or {"lent_bytes": -1})["lent_bytes"] == 0) else [f"some is lent still: {status()}"]
        with open(self.log, encoding="utf-8") as file:
            file.seek(self.logged if self.logged <= os.path.getsize(self.log) else 0)
            self.find(file.read() or "2000-01-01 00:00:00 zrd: ends", LOGGED)
            self.logged = file.tell()

    def look(self):
        now = None if self.paused else status()
        if now and self.strict and now["lent_bytes"] > ROUGH:
            self.bad.append(f"more is lent than there is: {now}")
        return now


def rough(seconds):
    """Clients and zrd are killed, stopped and continued, the folder, its files and its mode go, and its disk is full."""
    use("host")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k,mode=700", "tmpfs", RUNTIME], capture_output=True, check=False).returncode == 0
    if not mounted:
        skip("a full disk below the folder: needs the right to mount")
    rough = Rough(random.Random(SEED))
    try:
        rough.fill = rough.fill if mounted else lambda: None
        end, rounds = time.monotonic() + seconds, 0
        while time.monotonic() < end and not rough.bad:
            rough.round()
            rounds += 1
        same(rough.bad, [], f"{rounds} rounds, {dict(sorted(rough.counts.items()))}: all is accounted for, and nothing strange is said")
        for client in rough.clients:
            same(client.end(), 0, "a client ends well")
        same(rough.zrd.end(), 0, "and so does zrd")
    finally:
        for client in rough.clients:  # a stopped one does not hear that its orders end
            client.process.kill()
        if mounted:
            subprocess.run(["umount", "-l", RUNTIME], check=False)
