#!/usr/bin/env python3
"""What a save promises: every sync comes before the rename it stands for, deaths at any moment leave the newest complete
checkpoint loadable, and damage and a full disk are told by name and cost nothing that was there."""
import os
import random
import re
import shutil
import subprocess

import zrtest
from saves import contents, kill_while_saving, read_checkpoint, step_folder, steps_in
from zrtest import HANG, SEED, arguments, done, note, ok, path, same, skip, text_file, train

BASE = dict(data=text_file(), layers=2, hidden=32, heads=2, seq=16, batch=2, ranks=2, stage=1, seed=11, eval_every=0)
CALLS = "openat,open,mkdir,mkdirat,unlinkat,write,pwrite64,ftruncate,fsync,fdatasync,rename,renameat,renameat2"


# ---- The order of system calls
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
        while folder.startswith(zrtest.FOLDER) and folder != zrtest.FOLDER:
            folder = os.path.dirname(folder)
            if folder in self.dirty_names:
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


def records(inject=None, extra=(), **flags):
    log = path("strace.log")
    command = ["strace", "-f", "-y", "-qq", "-s", "200", "-e", "trace=" + CALLS, "-e", "signal=none", "-o", log, *extra]
    command += ["-e", "inject=" + inject] if inject else []
    command += [zrtest.ZR_TRAIN] + arguments(**{**BASE, **flags})
    run = subprocess.run(command, capture_output=True, text=True, timeout=HANG, stdin=subprocess.DEVNULL)
    recording = Recording()
    if run.returncode == 0:
        with open(log, errors="replace") as file:
            recording.read(file)
    return run, recording


def test_order():
    folder, model = path("ordered/by/rank"), path("ordered.safetensors")
    for words, flags in (("new folders, two saves and an export", dict(steps=2, save_every=1, keep=1)),
                         ("a step saved over another", dict(steps=2))):
        run, recording = records(**flags, ranks=3, stage=2, save=folder, export=model)
        if not ok(run.returncode == 0, f"{words}: runs under strace"):
            note(run.stderr[-1000:])
            continue
        named = [target for _, target in recording.renames if re.search(r"/step-\d+$|safetensors$", target)]
        same(named[-2:], [step_folder(folder, 2), model], f"{words}: the renames are there")
        ok(recording.syncs >= 3 + 1 + 2 + 3 + 1, f"{words}: {recording.syncs} syncs")
        same(recording.complaints, [], f"{words}: every sync comes before its rename")
        ours = {name for name in recording.dirty_names | recording.dirty_data
                if name.startswith(folder) or name == model or name == os.path.dirname(model)}
        same(ours, set(), f"{words}: and the new names are synced at the end")
    same(steps_in(folder), [2], "one checkpoint is kept")


# ---- A file system that cannot exchange two names: the step that is there is set aside first
def whole(folder, step):
    return {name: contents(os.path.join(step_folder(folder, step), name)) for name in os.listdir(step_folder(folder, step))}


def test_no_exchange():
    folder, other, aside = path("older"), path("newer"), ".step-00000002.replaced"
    same(train(**BASE, steps=2, save=folder).code, 0, "a step is saved")
    same(train(**BASE, steps=2, lr=2e-3, save=other).code, 0, "and another of that number, elsewhere")
    old, new = whole(folder, 2), whole(other, 2)
    ok(old != new, "they differ")
    for error in ("EINVAL", "ENOSYS"):
        for fails, code, want in ((2, 3, old), (3, 3, old), (None, 0, new)):  # the fault counts the exchange too
            shutil.rmtree(folder)
            train(**BASE, steps=2, save=folder)
            fault = ["-E", f"ZR_FAULT=rename:{fails}"] if fails else []
            run, recording = records(inject=f"renameat2:error={error}", extra=fault, steps=2, lr=2e-3, save=folder)
            words = f"{error} of the exchange" + (f", and rename {fails} fails" if fails else "")
            same((run.returncode, whole(folder, 2) == want, os.listdir(folder)), (code, True, ["step-00000002"]), words) or \
                note(run.stderr[-800:])
            if not fails:
                same(recording.complaints, [], f"{words}: every sync comes before its rename")
    run, _ = records(inject="renameat2:error=EACCES", steps=2, lr=2e-3, save=folder)
    ok(run.returncode == 3 and "Permission denied" in run.stderr, "another error is told in words") or note(run.stderr)

    # Death between the two renames: the step is found where it lies, and has its name again after the next save.
    os.rename(step_folder(folder, 2), os.path.join(folder, aside))
    shutil.copytree(step_folder(other, 2), os.path.join(folder, ".step-00000002.partial"))
    run = train(**BASE, steps=3, resume=folder)
    ok(run.code == 0 and "after step 2" in run.err, "set aside, it is resumed from") or note(run.err)
    same(sorted(os.listdir(folder)), [".step-00000002.partial", aside], "which changes nothing")
    kept = {name: contents(os.path.join(folder, aside, name)) for name in os.listdir(os.path.join(folder, aside))}
    run = train(**BASE, steps=3, resume=folder, save=folder)
    same((run.code, sorted(os.listdir(folder)), whole(folder, 2) == kept),
         (0, ["step-00000002", "step-00000003"], True), "and the next save gives it its name again") or note(run.err)
    # Death after both: the new one stays.
    os.rename(step_folder(folder, 3), os.path.join(folder, ".step-00000002.replaced"))
    run = train(**BASE, steps=3, resume=folder, save=folder)
    same((run.code, sorted(os.listdir(folder)), whole(folder, 2) == kept),
         (0, ["step-00000002", "step-00000003"], True), "one whose place is taken goes") or note(run.err)


if shutil.which("strace") and subprocess.run(["strace", "-qq", "true"], capture_output=True).returncode == 0:
    test_order()
    test_no_exchange()
else:
    skip("strace is not there, or may not trace")

# ---- Deaths
kill_while_saving(6, SEED)

# ---- Damage: told by name, nothing lost, the older step loads
saved = path("damaged")
run = train(**BASE, steps=4, save=saved, save_every=2)
same(run.code, 0, "two steps are saved")
files = sorted(os.listdir(step_folder(saved, 4)))
rng = random.Random(SEED)


def refused(words, name):
    before = {file: contents(os.path.join(step_folder(saved, 2), file)) for file in files}
    run = train(**{**BASE, "ranks": 3, "stage": 3}, steps=6, resume=saved, export=path("never"))
    good = run.code == 3 and name in run.err and "left behind" not in run.err and not os.path.exists(path("never"))
    good = good and {file: contents(os.path.join(step_folder(saved, 2), file)) for file in files} == before
    ok(good, f"{words}: exit 3 with {name}, the older step as it was") or note(f"{run.code} {run.err[-800:]}")


for name in files:
    file = os.path.join(step_folder(saved, 4), name)
    data = contents(file)
    bit = rng.randrange(8 * len(data))
    changes = {"a flipped bit": data[:bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1:],
               "a truncated file": data[:rng.randrange(len(data))]}
    for words, changed in changes.items():
        with open(file, "wb") as out:
            out.write(changed)
        refused(f"{words} (bit {bit})" if "bit" in words else words, name)
    os.unlink(file)
    if name != "manifest.json":
        refused("a missing shard", f"{name}' is missing")
    else:
        run = train(**BASE, steps=2, resume=saved)
        ok(run.code == 0 and "after step 2" in run.err, "without its manifest a step is none: the older one is taken")
        ok("also has step 4" in run.err and "manifest.json is missing" in run.err, "and it is named") or note(run.err)
    with open(file, "wb") as out:
        out.write(data)
run = train(**{**BASE, "ranks": 3, "stage": 3}, steps=5, resume=saved)
ok(run.code == 0 and "after step 4" in run.err and "missing" not in run.err, "put back, the newest loads again") or \
    note(run.err[-800:])
os.rename(os.path.join(step_folder(saved, 2), "manifest.json"), path("manifest.json"))
run = train(**BASE, steps=4, resume=saved)
ok(run.code == 0 and "after step 4" in run.err and "missing" not in run.err, "of an older one nothing is said")
os.rename(path("manifest.json"), os.path.join(step_folder(saved, 2), "manifest.json"))

# ---- No space
small = path("small")
os.mkdir(small)
if os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", "size=900k", "zr-test", small],
                                        capture_output=True).returncode == 0:
    try:
        filler, folder = os.path.join(small, "filler"), os.path.join(small, "run")
        open(filler, "wb").close()
        run = train(**BASE, steps=1, save=folder)
        same(run.code, 0, "one checkpoint fits") or note(run.err[-800:])
        first = {name: contents(os.path.join(step_folder(folder, 1), name)) for name in os.listdir(step_folder(folder, 1))}
        run = train(**BASE, steps=9, resume=folder, save=folder, save_every=1, keep=0)
        ok(run.code == 3 and folder in run.err, "a disk that fills up: exit 3 with the folder's name") or note(run.err[-800:])
        ok("left behind" not in run.err, "no memory is left behind") or note(run.err[-800:])
        failed = re.search(r"after step (\d+): cannot save", run.err)
        whole = [os.path.basename(step_folder(folder, step)) for step in range(1, int(failed[1]) if failed else 1)]
        same(sorted(os.listdir(folder)), whole, "and the steps before the one that it names are all that is there") or \
            note(run.err[-800:])
        for step in steps_in(folder):
            read_checkpoint(step_folder(folder, step))
        same({name: contents(os.path.join(step_folder(folder, 1), name)) for name in first}, first,
             "to the byte what they were")
        last = steps_in(folder)[-1]
        with open(filler, "wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass
        run = train(**BASE, steps=last, resume=folder, export=os.path.join(small, "model"))
        ok(run.code == 3 and "model" in run.err and sorted(os.listdir(small)) == ["filler", "run"],
           "an export that finds no space: exit 3, its name, nothing left") or note(run.err[-800:])
        ok("left behind" not in run.err, "of memory neither") or note(run.err[-800:])
        same(sorted(os.listdir(folder)), whole, "and the steps are still there") or note(run.err[-800:])
        os.unlink(filler)
        run = train(**BASE, steps=last + 1, resume=folder)
        same(run.code, 0, "the last that fitted loads") or note(run.err[-800:])
    finally:
        subprocess.run(["umount", small])
else:
    skip("a small file system cannot be mounted here (needs root)")
done()
