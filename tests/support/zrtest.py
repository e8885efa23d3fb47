"""zrtest.py: TAP 13 and zr-train for the test scripts (tests/*.t), which are Python with its standard library alone.

BUILD names the build folder. Everything a test writes lies in one temporary folder that goes with the test."""
import array
import atexit
import contextlib
import ctypes
import json
import os
import random
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

BUILD = os.environ.get("BUILD", "build")
ZR_TRAIN = os.path.abspath(os.path.join(BUILD, "bin", "zr-train"))
TAGS = ["param", "grad", "optimizer", "master", "gathered", "checkpoint", "activation", "comm", "workspace", "offload",
        "other"]
SEED = int(os.environ.get("ZR_TEST_SEED", "1"), 0)  # of all draws, as in tests/support/seed.h
HANG = 600  # seconds by the clock, after which a small program hangs: busy machines take ten times as long as idle ones
DEAD = 300  # by when a run has ended that knows of a death: a half of --comm-timeout, by which it would hear of it anyhow
SILENT = 10  # --comm-timeout of a run whose rank stands still: longer than a busy machine takes the others' processor away
LONG_HANG = 1200  # the same for a step of a long script: all of CI is cut off at 90 minutes, and says nothing then
PLANNED_TAGS = [tag for tag in TAGS if tag != "other"]

_count = _failed = 0
_attempt = None  # in settles(): what was checked, as calls that print it
FOLDER = tempfile.mkdtemp(prefix="zr-test-")
atexit.register(shutil.rmtree, FOLDER, True)


def ok(good, words):
    """One check. Returns whether it held."""
    global _count, _failed
    if _attempt is not None:
        _attempt.append((ok, good, words))
        return bool(good)
    if _count == 0:
        print("TAP version 13")
    _count += 1
    _failed += not good
    print(f"{'' if good else 'not '}ok {_count} - {words}", flush=True)
    return bool(good)


def same(got, want, words):
    if not ok(got == want, words):
        note(f"got  {got!r:.300}")
        note(f"want {want!r:.300}")
    return got == want


def skip(reason):
    global _count
    if _count == 0:
        print("TAP version 13")
    _count += 1
    print(f"ok {_count} # SKIP {reason}", flush=True)


# What Open MPI requires where it runs as root, or with more ranks than cores.
MPI_SETTINGS = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
                "OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_mpi_yield_when_idle": "1"}


def mpi_missing():
    """Why nothing can run under mpirun here; "" where it can."""
    if not shutil.which("mpirun"):
        return "mpirun is not installed (openmpi-bin)"
    if not os.path.exists(os.path.join(os.path.dirname(ZR_TRAIN), "libzr_comm_mpi.so")):
        return "the module is not built: no mpicc (libopenmpi-dev)"
    words = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, errors="replace").stdout
    return "" if "Open MPI" in words else "this mpirun is not Open MPI's, and the settings of the test are"


def note(words):
    if _attempt is not None:
        _attempt.append((note, words))
        return
    for line in str(words).splitlines():
        print("# " + line, flush=True)


def done():
    print(f"1..{_count}")
    sys.exit(1 if _failed or not _count else 0)


def path(name):
    return os.path.join(FOLDER, name)


def text_file(name="text.txt", size=16000, seed=7):
    """A file of made-up words, the same for the same seed; short, as a run validates on a twentieth of it."""
    where = path(name)
    if not os.path.exists(where):
        rng = random.Random(seed)
        words = ["".join(rng.choice("abcdefghijklmnop") for _ in range(rng.randint(1, 8))) for _ in range(300)]
        text = ""
        while len(text) < size:
            text += rng.choice(words) + rng.choice([" ", " ", " ", ", ", ".\n"])
        with open(f"{where}.{threading.get_ident()}", "w") as file:  # whole when it has its name: runs start side by side
            file.write(text[:size])
        os.replace(file.name, where)
    return where


def token_shard(tokens, name="tokens.bin"):
    """A file of tokens as llm.c writes it."""
    with open(path(name), "wb") as file:
        file.write(array.array("i", [20240520, 1, len(tokens)] + [0] * 253).tobytes() + array.array("H", tokens).tobytes())
    return path(name)


class Run:
    """A finished zr-train: exit code (negative: the signal), words, and the --json report if there is one."""

    def __init__(self, code, out, err, report):
        self.code, self.out, self.err, self.report = code, out, err, report

    @property
    def losses(self):
        return self.report["loss_hex"] if self.report else None


def arguments(**flags):
    """stage=1, bucket_bytes=4096 -> ["--stage", "1", "--bucket-bytes", "4096"]; True is a flag without a value, a list a flag for
    each of its values."""
    line = []
    for name, values in flags.items():
        for value in values if isinstance(values, list) else [values]:
            if value is None:
                continue
            line.append("--" + name.replace("_", "-"))
            if value is not True:
                line.append(str(value))
    return line


PLAIN = {"ZR_CONF": "isa:plain"}
_plain_fp32 = False


def start_quickly(fp32_alone=False):
    """From here on runs have the plain instruction set, for scripts that are not about what is computed: in fp32 the
    processor's takes longer to begin (oneDNN makes its kernels at each start) than a small run does, and train_bits.t is
    about it. Of fp32 alone: train()'s runs, where others compute so much that the processor's set is quicker. ZR_CONF of a run's
    own stands instead; with ZR_TEST_ROWS=all every run has the processor's."""
    global _plain_fp32
    if os.environ.get("ZR_TEST_ROWS") != "all":
        _plain_fp32 = fp32_alone
        os.environ.update({} if fp32_alone or "ZR_CONF" in os.environ else PLAIN)


def train(environment=None, timeout=HANG, prefix=(), program=None, **flags):
    """Runs zr-train, or a program that is like it, to its end. Flags not given have small values; json is written and read back."""
    report = path(f"report-{random.getrandbits(64):x}.json")
    settings = dict(steps=3, layers=2, hidden=32, heads=2, seq=16, batch=2, ranks=1, stage=0, seed=11, json=report)
    if "data" not in flags:
        settings["data"] = text_file()
    settings.update(flags)
    if settings["ranks"] == 1:  # threads that wait spin: train_bits.t and the runs that are started otherwise have several
        settings.setdefault("threads", 1)
    if _plain_fp32 and settings.get("precision") in (None, "fp32"):
        environment = {**PLAIN, **(environment or {})}
    environment = {**os.environ, **(environment or {})}
    if "ZR_FAULT" in environment:  # a run outlives what fails as it shows itself to zr ps, and the fault is spent
        environment["ZR_CONF"] = ",".join(filter(None, [environment.get("ZR_CONF"), "publish:off"]))
    command = list(prefix) + [program or ZR_TRAIN] + arguments(**settings)
    got = subprocess.run(command, capture_output=True, timeout=timeout, text=True, errors="replace",
                         env=environment, stdin=subprocess.DEVNULL)
    parsed = None
    if os.path.exists(report):
        with open(report) as file:
            parsed = json.load(file)
        os.unlink(report)
    return Run(got.returncode, got.stdout, got.stderr, parsed)


def of_session(leader):
    """The processes of its session that run, whatever their groups: mpirun gives each rank a group of its own."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                state, _, _, session = file.read().rsplit(")", 1)[1].split()[:4]
        except OSError:
            continue
        if int(session) == leader and state not in "ZX":
            found.append(int(pid))
    return found


def kill_session(process):
    """Kills it, not waited for as yet, and all that it has started. Whoever forks meanwhile is found by the next look."""
    os.killpg(process.pid, signal.SIGKILL)
    limit = time.monotonic() + 120
    while (found := of_session(process.pid)) and time.monotonic() < limit:
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.01)


def run_limited(command, timeout=LONG_HANG, **settings):
    """A command of a long script, to its end: a CompletedProcess, with text. Where the time is over, a check fails with
    the command's name, and the test ends: whatever comes next would wait as long."""
    def leave(number, _):  # what ends this test does not reach another session by itself
        sys.exit(128 + number)
    ends = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, leave) for number in ends]
    late, out, err = False, "", ""
    process = None
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, errors="replace", start_new_session=True, **settings)
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        late = True
    finally:
        if process and process.returncode is None:
            kill_session(process)
        for number, handler in zip(ends, before):
            signal.signal(number, handler)
    if late:
        ok(False, f"{shlex.join(command):.200}: over within {timeout} seconds")
        try:
            note("".join(process.communicate(timeout=30))[-3000:])
        except subprocess.TimeoutExpired:
            note("what it wrote is not at its end: a process in a session of its own stays")
        done()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@contextlib.contextmanager
def made_in(folder):
    """The names that are made in the folder meanwhile, however short they last: a list that is filled at the end."""
    libc, names = ctypes.CDLL(None), []
    watch = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert watch >= 0 and libc.inotify_add_watch(watch, os.fsencode(folder), 0x100) >= 0  # IN_CREATE
    yield names
    with contextlib.suppress(BlockingIOError):
        while data := os.read(watch, 1 << 16):
            while data:
                length = struct.unpack_from("iIII", data)[3]
                names.append(os.fsdecode(data[16:16 + length].rstrip(b"\0")))
                data = data[16 + length:]
    os.close(watch)


def wait_for(condition, seconds=120):
    """What it was when it came true: it is not asked again, it may pass. The time is for what never does. The pauses between two
    looks grow, since a look may start a program."""
    limit, pause = time.monotonic() + seconds, 0.005
    while True:
        late, value = time.monotonic() >= limit, condition()
        if value or late:
            return value
        time.sleep(pause)
        pause = min(0.1, 1.3 * pause)


def settles(check, seconds=120):
    """Runs check(), whose checks are of what another process draws, lists or says, until all of them hold at once: on a busy
    host it may not have come to that. They are printed once, as they were at last. check() reads anew each time."""
    global _attempt
    limit, pause = time.monotonic() + seconds, 0.02
    while True:
        late, calls, failure = time.monotonic() >= limit, [], None
        _attempt = calls
        try:
            check()
        except (LookupError, OSError, StopIteration, TypeError, ValueError) as error:  # what it looks for is not there yet
            failure = error
        finally:
            _attempt = None
        if late or (failure is None and all(call[1] for call in calls if call[0] is ok)):
            break
        time.sleep(pause)
        pause = min(0.1, 1.3 * pause)
    for call, *words in calls:
        call(*words)
    if failure is not None:
        raise failure


def in_steps(log):
    """Waits until the run that writes it is in its steps."""
    return wait_for(lambda: os.path.exists(log) and os.path.getsize(log) >= 200)


def children(pid):
    """The pids of a process's children, in the order of their start; none of a process that has ended."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def finish(process, seconds=HANG):
    """Its exit code (None: it did not end, and was killed) and its words on stderr."""
    try:
        words = process.communicate(timeout=seconds)[1]
        return process.returncode, words or ""
    except subprocess.TimeoutExpired:
        process.kill()
    try:
        words = process.communicate(timeout=60)[1]
    except subprocess.TimeoutExpired:  # another process holds its stderr
        words = ""
    return None, (words or "") + "\n[did not end]"


def leftovers():
    """Processes of ours that stay: every zr-train whose arguments name this test's folder. Who is dying has a moment:
    what mpirun has killed may outlive it."""
    last = []

    def none():
        last[:] = running()
        return not last
    wait_for(none)
    return list(last)


def running():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                line = file.read()
            with open(f"/proc/{pid}/stat") as file:
                state = file.read().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if FOLDER.encode() in line and b"zr-train" in line.split(b"\0")[0] and state != "Z":
            found.append(int(pid))
    return found
