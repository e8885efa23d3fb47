#!/usr/bin/env python3
"""Surroundings that nobody meant well with: closed descriptors, readers that go, pipes for files, folders that are
not ours, runs that cannot go on; each is named, once, and costs no result that was already there."""
import json
import os
import subprocess
import sys

sys.path.insert(0, "tests/support")
import zrtest
from zrtest import HANG, arguments, done, finish, note, ok, path, same, skip, start_quickly, text_file, train, wait_for

start_quickly()
SMALL = dict(data=text_file(), steps=6, layers=2, hidden=32, heads=2, seq=16, batch=2, ranks=2, seed=11)


def start(**flags):
    """Popen's own options, under names that end in an underscore, beside zr-train's flags."""
    special = {name[:-1]: flags.pop(name) for name in list(flags) if name.endswith("_")}
    return subprocess.Popen([zrtest.ZR_TRAIN] + arguments(**{**SMALL, **flags}), **special)


base = train(**SMALL)
same(base.code, 0, "in good surroundings it runs") or note(base.err)

# Closed descriptors: the arena's memory must never take the place of 0, 1 or 2, where words are written.
for closed in ((1,), (2,), (0, 1, 2)):
    report = path("closed.json")

    def close_them():
        for fd in closed:
            os.close(fd)
    process = start(json=report, preexec_fn_=close_them, stdin_=subprocess.DEVNULL, stdout_=subprocess.DEVNULL,
                    stderr_=subprocess.DEVNULL)
    try:
        code = process.wait(HANG)
    except subprocess.TimeoutExpired:
        process.kill()
        code = "no end"
    same(code, 0, f"descriptors {closed} closed: it runs")
    ok(os.path.exists(report), f"descriptors {closed} closed: and writes its report")
    if os.path.exists(report):
        os.unlink(report)

# Readers that go before the first word.
saved = path("unread")
reader, unread = os.pipe()
os.close(reader)
code, err = finish(start(save=saved, stdout_=unread, stderr_=subprocess.PIPE, stdin_=subprocess.DEVNULL, text_=True))
same(code, 3, "nobody reads standard output: exit 3")
ok("standard output" in err and "reader" in err, "nobody reads standard output: the words say so") or note(err)
code, _ = finish(start(save=saved, stdout_=subprocess.DEVNULL, stderr_=unread, stdin_=subprocess.DEVNULL))
same(code, 0, "nobody reads standard error: nothing is lost")
os.close(unread)
same(sorted(os.listdir(saved)), ["step-00000006"], "nobody reads standard error: and the run is saved")

# A pipe where a file is wanted: opening it would wait for ever.
pipe = path("pipe")
os.mkfifo(pipe)
run = train(**{**SMALL, "data": pipe})
same(run.code, 3, "a pipe as the text: exit 3")
ok("pipe" in run.err and "regular file" in run.err, "a pipe as the text: the words name it") or note(run.err)
state = os.path.join(saved, "step-00000006", "state.safetensors")
os.rename(state, state + ".away")
os.mkfifo(state)
run = train(**{**SMALL, "steps": 8}, resume=saved)
same(run.code, 3, "a pipe in the place of the state: exit 3")
ok("state.safetensors" in run.err, "a pipe in the place of the state: the words name it") or note(run.err)
os.rename(state + ".away", state)
for flag in ("data", "resume"):
    for what in (pipe, "/dev/zero"):
        run = train(**{**SMALL, flag: what})
        same(run.code, 3, f"--{flag} {os.path.basename(what)}: exit 3")
        ok(what in run.err, f"--{flag} {os.path.basename(what)}: the words name it") or note(run.err)
manifest = os.path.join(saved, "step-00000006", "manifest.json")
os.rename(manifest, manifest + ".away")
os.mkfifo(manifest)
run = train(**{**SMALL, "steps": 8}, resume=saved)
same(run.code, 3, "a pipe in the place of a manifest: exit 3, nothing is waited for")
os.rename(manifest + ".away", manifest)

# A file that is read or written already is never written over.
victim = text_file("victim.txt")
with open(victim, "rb") as file:
    kept = file.read()
os.symlink(victim, path("alias.txt"))
for flag, where in (("log", victim), ("json", victim), ("trace", victim), ("log", path("alias.txt"))):
    run = train(**{**SMALL, "data": victim, flag: where})
    same(run.code, 2, f"--{flag} on the file of --data: exit 2")
    ok("--data" in run.err and f"--{flag}" in run.err, f"--{flag} on the file of --data: named") or note(run.err)
run = train(**{**SMALL, "log": path("twice"), "json": path("twice")})
same(run.code, 2, "--log and --json on one file: exit 2")
settings = path("settings.json")
with open(settings, "w", encoding="ascii") as file:
    file.write('{"gradient_clipping": 1.0}')
for flags in (dict(json=settings), dict(json=settings, dry_run=True), dict(log=settings)):
    run = train(**{**SMALL, "config": settings, **flags})
    same(run.code, 2, f"{sorted(flags)} on the file of --config: exit 2")
    with open(settings, "rb") as file:
        same(file.read(), b'{"gradient_clipping": 1.0}', "which is what it was")
with open(victim, "rb") as file:
    same(file.read() == kept, True, "and the text is what it was")

# What the numbers of a run cost is refused by name.
run = train(**{**SMALL, "steps": 10**12})
same(run.code, 4, "losses that fit no memory: exit 4")
ok("--steps" in run.err, "losses that fit no memory: the option is named") or note(run.err)

# Fewer steps than the checkpoint has seen: nothing is trained, and nothing gets a wrong number.
older = path("older")
same(train(**SMALL, save=older, save_every=3).code, 0, "saved at 3 and at 6")
before = {name: os.stat(os.path.join(older, name)).st_ino for name in sorted(os.listdir(older))}
run = train(**{**SMALL, "steps": 3}, resume=older, save=older)
same(run.code, 0, "resumed at 6 with --steps 3: nothing to do")
same({name: os.stat(os.path.join(older, name)).st_ino for name in sorted(os.listdir(older))}, before,
     "resumed at 6 with --steps 3: the checkpoint of step 3 is still that of step 3")
run = train(**{**SMALL, "steps": 4}, save=older)
ok(run.code == 0 and "already has a checkpoint of step 6" in run.err, "a new run among later steps is told of them") or \
    note(run.err)
ok("already has" not in train(**SMALL, resume=older, save=older).err, "one that goes on from them is not")
copy = path("copy")
same(train(**{**SMALL, "steps": 3}, resume=older, save=copy).code, 0, "saved to another folder")
same(os.listdir(copy), ["step-00000006"], "saved to another folder: under the step that it is")

# Two runs that would save to one folder: the second is told, and the first never hears of it.
shared = path("shared")
first = start(steps=1000000, save=shared, save_every=50, stdout_=subprocess.DEVNULL, stderr_=subprocess.DEVNULL,
              stdin_=subprocess.DEVNULL)
wait_for(lambda: os.path.isdir(shared) and os.listdir(shared))
run = train(**SMALL, save=shared)
same(run.code, 3, "a second run that saves to the same folder: exit 3")
ok("shared" in run.err and "another run" in run.err, "a second run that saves to the same folder: told why") or \
    note(run.err)
same(first.poll(), None, "and the first goes on")
first.kill()
first.wait(HANG)  # its ranks may be there still for a moment
run = train(**SMALL, save=shared)
same(run.code, 0, "after a kill -9 of the first the folder is free at once") or note(run.err)
run = train(**{**SMALL, "ranks": 4}, save=path("unused"), memory_limit="1MiB")
same((run.code, os.path.exists(path("unused"))), (4, False), "a run that saves nothing leaves no folder behind")

# A rehearsal of what no machine could hold needs addresses, not memory.
run = train(dry_run=True, data=None, steps=None, world_size=300000, stage=1, layers=300, json=None)  # nor 300,000 rows
same(run.code, 0, "300 layers on 300,000 ranks are planned") or note(run.err)

# What all ranks find is said once, and failures of the run are told from bad input.
FOUR = {**SMALL, "ranks": 4}
for words, code, name, flags in (
        ("another seed", 3, "--seed", dict(resume=older, seed=12, steps=9)),
        ("a plan above the limit", 4, "--memory-limit", dict(memory_limit="1MiB")),
        ("no space while saving", 3, "No space", dict(save=path("full"), environment={"ZR_FAULT": "write:2"})),
        ("gradients that overflow", 1, "not finite", dict(steps=300, lr=10, clip=0, weight_decay=10, beta1=0, warmup=0,
                                                          schedule_lr="constant"))):
    run = train(**{**FOUR, **flags})
    lines = [line for line in run.err.splitlines() if name in line]
    same(run.code, code, f"{words}: exit {code}") or note(run.err)
    same(len(lines), 1, f"{words}: said once by 4 ranks") or note(run.err)

# A log on a full disk costs the log, not the run.
if os.path.exists("/dev/full"):
    for ranks in (1, 3):
        whole = train(**{**SMALL, "ranks": ranks})
        run = train(**{**SMALL, "ranks": ranks}, log="/dev/full", save=path(f"full-{ranks}"))
        same(run.code, 3, f"{ranks} ranks, a full disk under --log: exit 3") or note(run.err)
        same(run.losses, whole.losses, "every step is done, and reported")
        same(os.listdir(path(f"full-{ranks}")), [f"step-{len(whole.losses):08}"], "and the run is saved")
        same(["'/dev/full'" in line for line in run.err.splitlines() if "log" in line], [True, True],
             "where the log ends is said at once, and at the end") or note(run.err)
        same("exit code" in run.err, False, "and nothing besides") or note(run.err)
else:
    skip("no /dev/full here")

# What other batches do to a run is said when it is taken up again.
several = path("several")
run = train(**{**SMALL, "steps": 2, "accumulate": 3}, save=several)
with open(os.path.join(several, "step-00000002", "manifest.json")) as file:
    manifest = json.load(file)
tokens = 2 * 3 * 2 * 16
same((manifest["accumulate"], manifest["step_tokens"]), (3, tokens), "a manifest has the batches of its steps")
run = train(**{**SMALL, "steps": 4, "accumulate": 3}, resume=several)
ok(run.code == 0 and "--accumulate" not in run.err, "the same batches: nothing to say") or note(run.err)
run = train(**{**SMALL, "steps": 4, "accumulate": 1}, resume=several)
ok(run.code == 0 and "--accumulate 3" in run.err and f"{tokens} tokens" in run.err and f"{tokens // 3}" in run.err,
   "another --accumulate goes on, and is told") or note(run.err)
run = train(**{**SMALL, "steps": 4, "accumulate": 3, "ranks": 4}, resume=several)
ok(run.code == 0 and "--accumulate" not in run.err and f"{2 * tokens}" in run.err, "other ranks: steps of other tokens") or \
    note(run.err)

# A log of one's own in a folder of somebody else's.
def others_may_run():
    try:
        return subprocess.run([zrtest.ZR_TRAIN, "--version"], preexec_fn=lambda: os.setuid(65534),
                              capture_output=True).returncode == 0
    except PermissionError:
        return False


if os.getuid() == 0 and others_may_run():
    theirs = path("theirs")
    os.mkdir(theirs, 0o755)
    os.chmod(zrtest.FOLDER, 0o755)
    log = os.path.join(theirs, "log.jsonl")
    open(log, "w").close()
    os.chown(log, 65534, 65534)
    run = [start(log=where, preexec_fn_=lambda: os.setuid(65534), stdout_=subprocess.DEVNULL, stderr_=subprocess.PIPE,
                 stdin_=subprocess.DEVNULL, text_=True) for where in (log, os.path.join(theirs, "new.jsonl"))]
    codes, words = zip(*map(finish, run))
    same(codes[0], 0, "a log that may be written in a folder that may not") or note(words[0])
    same(os.path.getsize(log) > 0, True, "and it is written")
    same(codes[1], 3, "a new log there is refused")
    ok("new.jsonl" in words[1] and "theirs" in words[1], "and both names are in the words") or note(words[1])
else:
    skip("folders of somebody else: needs root, and a build that others may run")
done()
