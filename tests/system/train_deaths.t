#!/usr/bin/env python3
"""However a run ends, it ends whole, with the reason, and nothing of it stays."""
import os
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, "tests/support")
from zrtest import (DEAD, FOLDER, ZR_TRAIN, arguments, done, finish, in_steps, leftovers, note, ok, path, same, start_quickly,
                    text_file, train, wait_for)

start_quickly()
FLAGS = dict(data=text_file(), steps=100000, layers=2, hidden=64, heads=2, seq=32, batch=4, seed=1)


def shared_memory():
    """The files there that this user has made."""
    found = set()
    for entry in os.scandir("/dev/shm"):
        try:
            if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                found.add(entry.name)
        except FileNotFoundError:
            pass
    return found


def left_in_shared_memory():
    """New files that no process has mapped: what others work with meanwhile is theirs."""
    new = shared_memory() - before
    for pid in filter(str.isdigit, os.listdir("/proc") if new else []):
        try:
            with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
                mapped = file.read()
        except OSError:
            continue
        new -= {name for name in new if f"/dev/shm/{name}" in mapped}
    return sorted(new)


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def start(ranks, stdout=subprocess.PIPE, **flags):
    """A run that is in its steps."""
    log = path("log.jsonl")
    if os.path.exists(log):
        os.unlink(log)
    process = subprocess.Popen([ZR_TRAIN] + arguments(**{**FLAGS, "ranks": ranks, "log": log, **flags}),
                               stdout=stdout, stderr=subprocess.PIPE, text=True, start_new_session=True)
    in_steps(log)
    return process, children(process.pid)


def ends(words, process, ranks, names, codes):
    code, err = finish(process, DEAD)
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in ranks))  # whoever inherits them has to look
    good = ok(code in codes, f"{words}: exit {code} is one of {codes}")
    for name in names:
        good &= ok(name in err, f"{words}: the words hold {name!r}")
    good &= same([pid for pid in ranks if os.path.exists(f"/proc/{pid}")], [], f"{words}: no rank stays")
    good &= same(leftovers(), [], f"{words}: no process stays")
    if not good:
        note(err[-1500:])
    return err


before = shared_memory()
for ranks in (1, 2, 4):
    process, pids = start(ranks)
    same(len(pids), ranks, f"{ranks} ranks run")
    os.kill(pids[-1], signal.SIGKILL)
    ends(f"rank {ranks - 1} of {ranks} killed by -9", process, pids, [f"rank {ranks - 1}", "signal 9", "step"], [137])

process, pids = start(2)
os.kill(process.pid, signal.SIGKILL)
ends("the launcher killed by -9", process, pids, ["launcher"], [-9])

for sig in (signal.SIGINT, signal.SIGTERM):
    process, pids = start(2)
    os.killpg(process.pid, sig) if sig == signal.SIGINT else process.send_signal(sig)
    err = ends(f"{sig.name}", process, pids, [f"{sig.name}: "], (128 + sig,))
    ok("nothing was saved" in err.strip().splitlines()[-1], f"{sig.name}: the last line says that nothing was saved") or note(err)

# With a folder both save first; the command that is printed goes on from there, and the clock saves as well.
for sig in (signal.SIGINT, signal.SIGTERM):
    saved, words = path(f"saved-by-{sig.name}"), f"{sig.name} with --save"
    process, pids = start(2, stdout=open(path("out"), "w"), save=saved)
    os.killpg(process.pid, sig) if sig == signal.SIGINT else process.send_signal(sig)
    err = ends(words, process, pids, ["saved step", f"ended by {sig.name} after step", "  saves "], (128 + sig,))
    ok("nothing was saved" not in err, f"{words}: and does not say that nothing was") or note(err)
    steps = os.listdir(saved)
    same(len(steps), 1, f"{words}: one checkpoint")
    with open(path("out")) as file:
        command = re.search(r"go on from where it stands:\n((?:.*\\\n)*.*)", file.read())
    if ok(command, f"{words}: a command goes on from there"):
        size = os.path.getsize(path("log.jsonl"))
        again = subprocess.Popen(["sh", "-c", "exec " + command[1].strip()], cwd=FOLDER, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE, text=True, start_new_session=True)
        ok(wait_for(lambda: os.path.getsize(path("log.jsonl")) > size), f"{words}: which trains")
        again.send_signal(sig)
        code, err = finish(again)
        ok(code == 128 + sig and f"resumed after step {int(steps[0].split('-')[1])} " in err, f"{words}: from the step that was saved") or note(err)
def saved_by_clock():
    folder = path("by-clock")
    return {name for name in os.listdir(folder) if name.startswith("step-")} if os.path.isdir(folder) else set()


for keep, words in (({}, "the last one stays"), ({"keep": 0}, "with --keep 0 all stay")):
    shutil.rmtree(path("by-clock"), ignore_errors=True)
    process, pids = start(2, save=path("by-clock"), save_every="1s", **keep)
    seen = set()
    ok(wait_for(lambda: seen.update(saved_by_clock()) or len(seen) > 2), "--save-every 1s saves again and again")
    process.send_signal(signal.SIGTERM)
    ends("and ends when it is to", process, pids, ["saved step"], (143,))
    left = saved_by_clock()  # the last by the clock, and the one at the end
    ok(left >= seen if keep else len(left) <= 2 and max(seen) <= max(left), f"of those by the clock {words}") or note(f"{sorted(left)}, seen {sorted(seen)}")

# SIGUSR1 saves and goes on; at the end a rank that has saved before and stands still is not waited for.
for still, words in ((False, "Ctrl-C afterwards"), (True, "Ctrl-C while a rank stands still")):
    saved = path(f"saved-{still}")
    process, pids = start(2, save=saved)
    process.send_signal(signal.SIGUSR1)
    ok(wait_for(lambda: os.path.isdir(saved) and len([n for n in os.listdir(saved) if n.startswith("step-")]) == 1), "SIGUSR1 saves")
    size = os.path.getsize(path("log.jsonl"))
    ok(wait_for(lambda: os.path.getsize(path("log.jsonl")) > size) and process.poll() is None, "and the run goes on")
    if still:
        os.kill(pids[1], signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    ends(words, process, pids, ["saved step"], (130,))

# Killed in the middle of saving, by a rank's death and by the launcher's: no temporary file stays.
for victim in ("rank", "launcher"):
    for attempt in range(4):
        saved = path(f"half-{victim}-{attempt}")
        process, pids = start(2, save=saved, save_every=1, hidden=128, layers=3)
        time.sleep(0.05 * attempt)
        limit = time.time() + 120
        while time.time() < limit and not (os.path.isdir(saved) and any(
                n.endswith(".partial") for n in os.listdir(saved))):
            time.sleep(0.0005)
        os.kill(pids[0] if victim == "rank" else process.pid, signal.SIGKILL)
        ends(f"the {victim} killed while saving ({attempt})", process, pids, [victim], (137, -9))
        same([n for n in (os.listdir(saved) if os.path.isdir(saved) else []) if not n.startswith("step-")], [],
             f"the {victim} killed while saving ({attempt}): no temporary file stays")

# Others make theirs, and map them a moment later.
ok(wait_for(lambda: not left_in_shared_memory()), "no shared memory stays") or note(left_in_shared_memory())
same(sorted(n for n in os.listdir(FOLDER) if "partial" in n or "tmp" in n), [], "no temporary file stays")
done()
