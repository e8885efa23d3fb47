"""saves.py: an independent reader of what zr-train saves and exports, in Python alone; the order of a program's system
calls as it saves; and deaths while zr-train does."""
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import time

import zrtest
from zrtest import arguments, note, ok, path

MASK = (1 << 64) - 1


def checksum(words):
    """The sum of a hash of each 4-byte word and its place."""
    total = 0
    for place, word in enumerate(words):
        z = (place + 1) * 0x9e3779b97f4a7c15 + word & MASK
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9 & MASK
        z = (z ^ z >> 27) * 0x94d049bb133111eb & MASK
        total += z ^ z >> 31
    return total & MASK


def contents(name):
    with open(name, "rb") as file:
        return file.read()


def _once(pairs):
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name is there twice")
    return dict(pairs)


def read_safetensors(name):
    """({name: (dtype, shape, bytes)}, metadata). Raises ValueError where the format's rules are broken, or values do
    not begin at a multiple of 8 bytes."""
    data = contents(name)
    if len(data) < 8:
        raise ValueError("there is no header")
    length = struct.unpack("<Q", data[:8])[0]
    header, rest = data[8:8 + length], data[8 + length:]
    if length > 100_000_000 or len(header) != length or header[:1] != b"{":
        raise ValueError("the header is cut or too long, or does not begin with {")
    if length % 8 != 0:
        raise ValueError("the values are not aligned")
    entries = json.loads(header, object_pairs_hook=_once)
    metadata = entries.pop("__metadata__", {})
    if not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("metadata that is no text")
    if any(set(entry) != {"dtype", "shape", "data_offsets"} for entry in entries.values()):
        raise ValueError("a field that is missing or unknown")
    tensors, end = {}, 0
    for key, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        first, last = entry["data_offsets"]
        count = 1
        for extent in entry["shape"]:
            count *= extent
        size = {"F32": 4, "BF16": 2, "F16": 2, "U8": 1}.get(entry["dtype"])
        if first != end or size is None or last - first != count * size:
            raise ValueError(f"{key}: a hole, or a wrong size")
        tensors[key] = (entry["dtype"], entry["shape"], rest[first:last])
        end = last
    if end != len(rest):
        raise ValueError("bytes that belong to nothing")
    return tensors, metadata


def write_safetensors(name, tensors, metadata=None):
    """The counterpart; tensors come in the dictionary's order."""
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for key, (dtype, shape, values) in tensors.items():
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(name, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def read_state(name):
    """(tensors, metadata) of a file of zr_engine_save(). Raises ValueError where its checksum is wrong."""
    tensors, metadata = read_safetensors(name)
    data = b"".join(values for _, _, values in tensors.values())
    total = checksum(struct.unpack(f"<{len(data) // 4}I", data)) + int(metadata["steps"]) * 0xd6e8feb86659fd93
    for i in range(3):
        total += int(metadata["loss_scale"][16 * i:16 * (i + 1)], 16) * (0x9fb21c651e98df25 + 2 * i)
    if f"{total & MASK:016x}" != metadata["checksum"]:
        raise ValueError(f"{name}: its checksum")
    return tensors, metadata


def read_checkpoint(folder):
    """(manifest, {"parameter", "momentum", "variance": {name: bytes}}). Raises ValueError where a checksum is wrong."""
    text = contents(os.path.join(folder, "manifest.json"))
    mark = text.rindex(b",\n \"manifest_checksum\"")
    manifest = json.loads(text)
    if f"{checksum(text[:mark]):016x}" != manifest["manifest_checksum"]:
        raise ValueError("the manifest's checksum")
    name = os.path.join(folder, manifest["state"]["file"])
    tensors, metadata = read_state(name)
    if metadata["checksum"] != manifest["state"]["checksum"] or os.path.getsize(name) != manifest["state"]["bytes"]:
        raise ValueError("the manifest is of another state")
    kinds = {"parameter": {}, "momentum": {}, "variance": {}}
    for key, (_, _, values) in tensors.items():
        optimizer, kind, rest = (["", "parameter", key], key.split(".", 2))[key.startswith("optimizer.")]
        kinds[kind][rest] = values
    if sum(len(values) for values in kinds["parameter"].values()) != 4 * manifest["parameters"]:
        raise ValueError("it is not the whole model")
    return manifest, kinds


def change_manifest(folder, change):
    """Calls change(manifest) and writes what that has made of it, with its checksum."""
    name = os.path.join(folder, "manifest.json")
    manifest = json.loads(contents(name))
    del manifest["manifest_checksum"]
    change(manifest)
    text = json.dumps(manifest, indent=1).encode()[:-2]
    with open(name, "wb") as file:
        file.write(text + f',\n "manifest_checksum": "{checksum(text):016x}"}}\n'.encode())


def steps_in(folder):
    """The numbers of the steps that are there by name, in order."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return sorted(int(name[5:]) for name in names if re.fullmatch(r"step-\d{8,}", name))


def step_folder(folder, step):
    return os.path.join(folder, f"step-{step:08d}")


# ---- The order of system calls
CALLS = "openat,open,mkdir,mkdirat,unlinkat,write,pwrite64,ftruncate,fsync,fdatasync,rename,renameat,renameat2"


class Recording:
    """Files and folders as the calls leave them: what is not synced would be gone after a power cut."""

    def __init__(self):
        self.dirty_data, self.dirty_names = set(), set()  # files, and folders whose entries changed
        self.complaints, self.renames, self.syncs = [], [], 0
        self.on_disk = {}  # a folder's name now, and the one that a power cut would bring back

    def below(self, folder, names):
        return sorted(name for name in names if name == folder or name.startswith(folder + "/"))

    def rename(self, source, target, exchange=False):
        bad = self.below(source, self.dirty_data) + self.below(source, self.dirty_names)
        if bad:
            self.complaints.append(f"{source} is renamed while {bad} are not synced")
        folder = os.path.dirname(target)
        hidden = re.search(r"/\.[^/]*/", target)  # of what is in a folder that has no name yet nobody asks
        while folder.startswith(zrtest.FOLDER) and folder != zrtest.FOLDER:
            folder = os.path.dirname(folder)
            if folder in self.dirty_names and not hidden:
                self.complaints.append(f"{target} gets its name while that of a folder above, in {folder}, is not synced")
        self.renames.append((source, target))
        if not all(os.path.basename(name).startswith(".") for name in (source, target)):  # of those nobody asks
            self.dirty_names.add(os.path.dirname(target))
        old_source, old_target = self.on_disk.pop(source, source), self.on_disk.pop(target, target)
        self.on_disk[target] = old_source
        if exchange:
            self.on_disk[source] = old_target

    def paths(self, words):
        """Both, whole: with a descriptor before a name, that is where the name lies."""
        return [os.path.join(folder, name) for folder, name in re.findall(r'(?:\d+<([^>]*)>, |)"([^"]*)"', words)][:2]

    def call(self, name, words):
        """`words`: the call's arguments as strace -y prints them."""
        fd = re.match(r"\d+<([^>]*)>", words)
        quoted = re.findall(r'"([^"]*)"', words)
        if name in ("open", "openat") and "O_CREAT" in words and quoted[0].startswith(zrtest.FOLDER):
            self.dirty_names.add(os.path.dirname(quoted[0]))
            self.dirty_data.add(quoted[0])
        elif name in ("mkdir", "mkdirat"):
            self.dirty_names.add(os.path.dirname(quoted[0]))
            self.dirty_names.add(quoted[0])
        elif name in ("write", "pwrite64", "ftruncate") and fd and fd[1].startswith(zrtest.FOLDER):
            self.dirty_data.add(fd[1])
        elif name in ("fsync", "fdatasync") and fd:
            self.syncs += 1
            self.dirty_data.discard(fd[1])
            self.dirty_names.discard(fd[1])
            self.on_disk = {now: old for now, old in self.on_disk.items() if os.path.dirname(now) != fd[1]}
        elif name == "unlinkat" and fd and quoted and re.search(r"/step-\d+$", self.on_disk.get(fd[1], "")):
            self.complaints.append(f"{quoted[0]} is removed while the name of {fd[1]} is not synced: a step by name may be hollow")
        elif name.startswith("rename"):
            self.rename(*self.paths(words), "RENAME_EXCHANGE" in words)

    def read(self, lines):
        """A sync counts from its end, all else from its beginning."""
        open_calls = {}
        for line in lines:
            whole = re.match(r"(\d+) +(\w+)\((.*?)(\) += +(-?\d+)|<unfinished)", line)
            rest = re.match(r"(\d+) +<\.\.\. (\w+) resumed>.*\) += +(-?\d+)", line)
            if whole:
                pid, name, words, _, result = whole.groups()
                late = name in ("fsync", "fdatasync")
                if result is None and late:
                    open_calls[pid] = (name, words)
                elif result is None or int(result) >= 0:
                    self.call(name, words)
            elif rest and rest[1] in open_calls:
                name, words = open_calls.pop(rest[1])
                if int(rest[3]) >= 0:
                    self.call(name, words)


def can_trace():
    return shutil.which("strace") and subprocess.run(["strace", "-qq", "true"], capture_output=True).returncode == 0


def record(command, inject=None, extra=(), env=None):
    """(the run under strace, what it did to files); `inject`: a fault of strace's own."""
    log = path("strace.log")
    strace = ["strace", "-f", "-y", "-qq", "-s", "200", "-e", "trace=" + CALLS, "-e", "signal=none", "-o", log, *extra]
    strace += ["-e", "inject=" + inject] if inject else []
    run = subprocess.run(strace + command, capture_output=True, text=True, timeout=zrtest.HANG,
                         stdin=subprocess.DEVNULL, env=env)
    recording = Recording()
    if run.returncode == 0:
        with open(log, errors="replace") as file:
            recording.read(file)
    return run, recording


# ---- Deaths
def unfinished(folder, since_ns):
    """Whether a save of a run that began then is under way there, or was cut off; not one that an earlier run left."""
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        partial = os.path.join(folder, name)
        try:
            if name.endswith(".partial") and any(file.stat().st_mtime_ns > since_ns for file in os.scandir(partial)):
                return True
        except FileNotFoundError:
            pass
    return False


def kill_it(process, folder, aim, rng):
    """-9 for all of its processes: at a random moment, or, with an aim (when they began, and a step that they save
    first), where they stand in the middle of a save."""
    limit = time.time() + zrtest.HANG
    since_ns, saved_first = aim or (0, 0)
    while aim and process.poll() is None and time.time() < limit:
        if (steps_in(folder)[-1:] or [0])[0] >= saved_first and unfinished(folder, since_ns):
            time.sleep(rng.random() * 0.002)
            os.killpg(process.pid, signal.SIGSTOP)
            if unfinished(folder, since_ns):
                break
            os.killpg(process.pid, signal.SIGCONT)
        time.sleep(0.0005)
    if not aim:
        time.sleep(rng.random() * 0.1)
    early = process.poll()
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    return early, process.communicate()[1]


def kill_while_saving(count, seed):
    """Kills a run, and all its ranks, `count` times with -9 while it saves after each step, at a random moment and in
    the middle of a save in turns; every next run takes up what the one before has left."""
    rng = random.Random(seed)
    folder, log = path("kills"), path("kills.jsonl")
    shape = dict(layers=6, hidden=32, heads=2, seq=16, batch=1, eval_every=0)  # of which stage 3 gathers what it uses
    flags = dict(data=zrtest.text_file(), steps=10**6, seed=3, save=folder, save_every=1, keep=2, log=log, warmup=0,
                 schedule_lr="constant", **shape)
    for ranks in (2, 3):
        plan = zrtest.train(**shape, ranks=ranks, stage=3, dry_run=True).report["ranks"][0]
        ok(plan["planned_most_bytes"]["gathered"] > 0, f"{ranks} ranks: stage 3 gathers")
    met = advanced = 0
    for i in range(count):
        before = steps_in(folder)[-1:] or [0]
        ranks, stage = rng.randint(1, 3), rng.randint(0, 3)
        if os.path.exists(log):
            os.unlink(log)
        command = [zrtest.ZR_TRAIN] + arguments(**flags, ranks=ranks, stage=stage, resume=folder if before[0] else None,
                                                  save_background=i % 3 == 1 or None)
        began_ns = time.time_ns()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True, start_new_session=True)
        limit = time.time() + zrtest.HANG
        while time.time() < limit and process.poll() is None and not (os.path.exists(log) and os.path.getsize(log)):
            time.sleep(0.002)
        if before[0] == 0:  # the first run gets to its first checkpoint
            while time.time() < limit and process.poll() is None and not steps_in(folder):
                time.sleep(0.002)
        early, err = kill_it(process, folder, (began_ns, before[0] + i // 2 % 3) if i % 2 else None, rng)
        there = os.listdir(folder)
        met += unfinished(folder, began_ns)
        steps = steps_in(folder)
        try:
            for step in steps:
                read_checkpoint(step_folder(folder, step))
            whole = ""
        except (OSError, ValueError, KeyError) as error:
            whole = f"step {step}: {error!r}"
        advanced += bool(steps) and steps[-1] > before[0]
        if not ok(early is None and not whole and steps and steps[-1] >= before[0],
                  f"kill {i + 1}, {ranks} ranks at stage {stage}: every step by name is whole, the newest {steps[-1:]}"):
            note(f"{there} {whole} {early}\n{err[-1000:]}")
    ok(met >= count // 3, f"{met} of {count} kills met a save: its unfinished folder stays")
    ok(advanced > 0, f"{advanced} of the runs saved before they died")
    run = zrtest.train(**{**flags, "steps": steps_in(folder)[-1] + 1, "ranks": 2, "stage": 1, "resume": folder})
    ok(run.code == 0 and not [name for name in os.listdir(folder) if name.startswith(".")],
       "the next run resumes from the newest, and clears what the dead have left") or note(run.err[-1500:])
