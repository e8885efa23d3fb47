"""zrd_client.py: zrd and its clients for the test scripts: programs that run commands, and a client in Python that speaks the
protocol of alloc/service/client/protocol.h by itself, well or badly."""
import array
import atexit
import json
import os
import re
import socket
import struct
import subprocess
import threading

from zrtest import BUILD, HANG, path, wait_for

ZR, ZRD = (os.path.abspath(os.path.join(BUILD, "bin", name)) for name in ("zr", "zrd"))
CLIENT = os.path.abspath(os.path.join(BUILD, "tests", "service_client"))
RUNTIME = path("runtime")
os.makedirs(RUNTIME, 0o700)
SOCKET = os.path.join(RUNTIME, "zr", "service-host.sock")
ENVIRONMENT = {**os.environ, "XDG_RUNTIME_DIR": RUNTIME, "TMPDIR": path(""), "ZR_CONF": "service:on"}
MIB = 1 << 20
EMULATOR = os.path.abspath(os.path.join(BUILD, "tests", "emulator"))
# Device 0 of the emulated driver: all processes share its account, and new memory holds what another left there.
CARD = {"LD_LIBRARY_PATH": EMULATOR, "ZR_EMULATOR_SHARED": path("card"), "ZR_EMULATOR_DIRTY": "1"}
UUID = "e0e1e2e3-e4e5-e6e7-e8e9-eaebecedee00"
FORM = struct.Struct("<IHHII14Qi5I16s48s328s")
KINDS = ("none hello file adopt lease return given listen plan turn claim idle status limit drain stop welcome done granted "
         "later refused client reclaim yield inquire ended keep_create keep_open keep_list keep_drop keep_adopt kept").split()
FIELDS = ("magic version kind result flags serial bytes held_bytes peak_bytes resident_bytes hard_bytes soft_bytes count "
          "plan_base_bytes plan_peak_bytes claim_bytes turn idle_bytes reclaim_ns pid shares within_ms files_count run run_count program group words").split()
MAGIC, VERSION, LISTENS = 0x2E64727A, 3, 128


class Memory:
    """What zrd lends in the tests that follow: the host's memory, or an emulated device's."""
    device, number = False, 0


def use(kind, number=0, **card):
    """"host" or "cuda"; `card`: of the emulated driver, for processes from here on."""
    Memory.device, Memory.number = kind == "cuda", number
    for name in list(ENVIRONMENT):
        if name in CARD or name.startswith("ZR_EMULATOR_"):
            del ENVIRONMENT[name]
    ENVIRONMENT.update({**CARD, **card} if Memory.device else {name: os.environ[name] for name in CARD if name in os.environ})


def on_device():
    return ["--device", str(Memory.number)] if Memory.device else []


def zr(*words):
    return subprocess.run([ZR, "service", *map(str, words), *on_device()], capture_output=True, text=True, timeout=HANG, env=ENVIRONMENT,
                          stdin=subprocess.DEVNULL)


def status():
    got = zr("status", "--json")
    return json.loads(got.stdout) if got.returncode == 0 else None


def lent():
    return status()["lent_bytes"]


class Zrd:
    """In the foreground, with what `options` say; `prefix`: a program that starts it."""

    def __init__(self, *options, prefix=(), fault="", **starting):
        self.log = path("zrd.log")
        self.process = subprocess.Popen([*prefix, ZRD, *map(str, options), *on_device(), "--log", self.log], env={**ENVIRONMENT, "ZR_FAULT": fault},
                                        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **starting)
        atexit.register(self.process.kill)  # where the test breaks off
        self.pid = self.process.pid
        assert wait_for(lambda: self.process.poll() is not None or (status() or {}).get("pid") == self.pid)

    def words(self):
        with open(self.log, encoding="utf-8") as file:
            return file.read()

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def at_rest(self):
        """How many descriptors it has when it has heard the ends of all clients: no socket but the two that it listens at, and
        no file of a client's granules."""
        def of_clients():
            links = []
            for name in os.listdir(f"/proc/{self.pid}/fd"):
                try:
                    links.append(os.readlink(f"/proc/{self.pid}/fd/{name}"))
                except FileNotFoundError:
                    pass
            return [link for link in links if link.startswith("socket:") or "pidfd" in link or ("memfd:" in link and not Memory.device)]
        wait_for(lambda: len(of_clients()) == 2)
        return self.descriptors()

    def end(self, kill=False):
        (self.process.kill if kill else self.process.terminate)()
        code = self.process.wait(timeout=HANG)
        self.process.stderr.close()
        return code


class Program:
    """A program on zr's arena that runs commands: tests/support/service_client.c."""

    def __init__(self, conf="service:required", **environment):
        self.process = subprocess.Popen([CLIENT, *on_device()[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**ENVIRONMENT, "ZR_CONF": conf, **environment})
        self.pid = self.process.pid
        self.words = self.hear()

    def say(self, order):
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()

    def hear(self):
        """"" where it is well, else its words."""
        line = self.process.stdout.readline()
        return line[3:].strip() if line[:3] in ("ok ", "no ") else f"it has ended: {line!r}"

    def command(self, order):
        self.say(order)
        return self.hear()

    def end(self, kill=False):
        if kill:
            self.process.kill()
        self.process.stdin.close()
        code = self.process.wait(timeout=HANG)
        self.process.stdout.close()
        return code


def send(line, kind, fds=(), **fields):
    values = {"magic": MAGIC, "version": VERSION, "kind": KINDS.index(kind), "program": b"", "group": b"", "words": b"", **fields}
    beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    line.sendmsg([FORM.pack(*(values.get(name, 0) for name in FIELDS))], beside)


class FakeZrd:
    """Answers each message by `answers` (kind: function of the line, the bell and the number of the connection), in a thread."""

    def __init__(self, **answers):
        self.answers, self.hellos = answers, 0
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.path.exists(SOCKET):
            os.unlink(SOCKET)
        self.socket.bind(SOCKET)
        self.socket.listen(64)
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        while True:
            try:
                line = self.socket.accept()[0]
            except OSError:
                return
            threading.Thread(target=self.talk, args=[line], daemon=True).start()

    def talk(self, line):
        bell, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with line, bell:
            while data := socket.recv_fds(line, FORM.size, 2)[0]:
                kind = KINDS[FORM.unpack(data)[2]]
                if kind == "hello":
                    self.hellos += 1
                    send(line, "welcome", [other.fileno()], within_ms=1000)
                    other.close()
                elif kind == "adopt" and "adopt" not in self.answers:
                    send(line, "done")
                elif kind in self.answers:
                    self.answers[kind](line, bell)
                    return

    def close(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.thread.join()


class Speaker:
    """A connection that says what it is told to."""

    def __init__(self, hello=True, **fields):
        self.line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.line.connect(SOCKET.replace("service-host", f"service-{UUID}") if Memory.device else SOCKET)
        self.line.settimeout(120)
        self.bell, self.fds = None, []
        if hello:
            answer = self.ask("hello", program=b"speaker", **{"flags": LISTENS, **fields})
            self.bell = socket.socket(fileno=self.fds.pop()) if answer["kind"] == "welcome" else None
            if self.bell:
                self.bell.settimeout(120)

    def send(self, kind, fds=(), **fields):
        send(self.line, kind, fds, **fields)

    def hear(self, where=None):
        """A message as a dictionary; None: the other end has hung up."""
        try:
            data, beside, _, _ = (where or self.line).recvmsg(FORM.size, socket.CMSG_SPACE(16))
        except ConnectionError:
            return None
        for _, _, fds in beside:
            self.fds += array.array("i", fds)
        if not data:
            return None
        message = dict(zip(FIELDS, FORM.unpack(data)))
        message["kind"] = KINDS[message["kind"]]
        message["words"] = message["words"].split(b"\0")[0].decode()
        return message

    def ask(self, kind, **fields):
        self.send(kind, **fields)
        return self.hear()

    def close(self):
        for one in filter(None, (self.line, self.bell)):
            one.close()
        for fd in self.fds:
            os.close(fd)


def rows():
    """The clients with a plan, but for this process."""
    return [one for one in (status() or {"clients": []})["clients"] if one["plan_peak_bytes"] and one["pid"] != os.getpid()]


def waits():
    return [one for one in rows() if not one["in_turn"]]


class Holder(Speaker):
    """Has the turn, which goes with nobody else's, until it gives it: who runs meanwhile is let in and waits."""

    def __init__(self, peak, base=2 * MIB):
        super().__init__()
        assert self.ask("plan", plan_base_bytes=base, plan_peak_bytes=peak, run=9, run_count=1)["kind"] == "granted"
        while (answer := self.ask("turn"))["kind"] == "later":
            pass
        assert answer["kind"] == "granted"


def constant(name):
    """A number of the protocol's header, for the form above to be compared with."""
    with open("alloc/service/client/protocol.h", encoding="utf-8") as file:
        return int(re.search(name + r"[ =(]+(\w+)", file.read()).group(1), 0)
