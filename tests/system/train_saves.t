#!/usr/bin/env python3
"""What a save promises: every sync comes before the rename it stands for, deaths at any moment leave the newest complete
checkpoint loadable, and damage and a full disk are told by name and cost nothing that was there."""
import os
import random
import re
import shutil
import subprocess
import sys

sys.path.insert(0, "tests/support")
import zrtest
from saves import can_trace, contents, kill_while_saving, read_checkpoint, record, step_folder, steps_in
from zrtest import SEED, arguments, done, note, ok, path, same, skip, start_quickly, text_file, train

start_quickly()
BASE = dict(data=text_file(), layers=2, hidden=32, heads=2, seq=16, batch=2, ranks=2, stage=1, seed=11, eval_every=0)


# ---- The order of system calls
def records(inject=None, extra=(), **flags):
    return record([zrtest.ZR_TRAIN] + arguments(**{**BASE, **flags}), inject, extra)


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


if can_trace():
    test_order()
    test_no_exchange()
else:
    skip("strace is not there, or may not trace")

# ---- In the background
fore, behind = path("fore"), path("behind")
for folder, flags in ((fore, {}), (behind, dict(save_background=True))):
    run = train(**BASE, steps=9, save=folder, save_every=1, keep=0, **flags)
same((run.code, [whole(behind, step) == whole(fore, step) for step in steps_in(behind)], run.err.count("saved step")),
     (0, [True] * 9, 9), "saves in the background have the bytes of others") or note(run.err[-800:])
same([[rank[of]["optimizer"] for of in ("planned_bytes", "peak_bytes")] for rank in run.report["ranks"]],
     [[run.report["ranks"][0]["planned_bytes"]["optimizer"]] * 2] * 2, "the copy of the state is in the byte plan")
run = train(**BASE, steps=10**6, save=path("lost"), save_every=5, save_background=True, environment={"ZR_FAULT": "rename:1"})
same((run.code, os.path.exists(path("lost")), "left behind" in run.err), (3, False, False), "a save that fails in the background ends the run") or \
    note(run.err[-800:])
run = train(**BASE, steps=1, save=path("lost"), save_background=True, offload_optimizer="cpu")
ok(run.code == 2 and "the state that it copies is elsewhere" in run.err, "state elsewhere is refused") or note(run.err[-800:])

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
        refused("a missing file", f"{name}' is missing")
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
        failed = re.search(r"after step (\d+): cannot write", run.err)
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
