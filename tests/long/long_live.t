#!/usr/bin/env python3
"""A hundred attaches to trainers that run, and a hundred to a preloaded python3: neither is disturbed. And processes that are
killed in the middle of an attach: their traces are read up to there, and the next zr ps cleans what they leave."""
import glob
import json
import os
import subprocess
import sys
import time

sys.path.insert(0, "tests/support")
from zrtest import BUILD, LONG_HANG, ZR_TRAIN, arguments, done, note, ok, path, same, text_file, wait_for

ZR = os.path.abspath(os.path.join(BUILD, "bin", "zr"))
os.makedirs(path("runtime"), 0o700)
ENVIRONMENT = {**os.environ, "XDG_RUNTIME_DIR": path("runtime"), "ZR_CONF": "publish:on"}
ATTACHES = 100
COUNT = """
held, total = bytearray(96 << 20), 0
import os, time
while not os.path.exists(%r):
    total += sum(len(x) for x in [bytearray(100000 + i) for i in range(50)]) == 50 * 100000 + 1225
print("whole" if total > 0 else "torn")
"""


def attach(pid, number):
    """A snapshot, or an attach that a signal ends."""
    command = [ZR, "attach", str(pid), "-o", path("now.zrt")] if number % 2 else [ZR, "snapshot", str(pid), "-o", path("now.zrt")]
    got = subprocess.run(["timeout", "-s", "INT", "--preserve-status", "0.1" if number % 2 else "0", *command], env=ENVIRONMENT,
                         capture_output=True, text=True, timeout=LONG_HANG)
    return got.returncode == 0


def run(command, ends, most=ATTACHES):
    """Attaches to it until that is enough; how often, and the exit code."""
    program = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    count = 0
    while count < most and program.poll() is None:
        count += attach(program.pid, count)
        time.sleep(0.01)
    ends()
    out, err = program.communicate(timeout=LONG_HANG)
    return count, program.returncode, out, err


def trainer(name, attaches):
    """Attaches, exit code, losses, and the p99.9 of a step."""
    report = path(name)
    command = [ZR_TRAIN, *arguments(data=text_file(), steps=1500, layers=2, hidden=128, heads=4, seq=64, batch=4, ranks=1,
                                    seed=11, json=report)]
    started = time.monotonic()
    count, code, _, err = run(command, lambda: None, attaches) if attaches else (0, subprocess.run(
        command, env={**ENVIRONMENT, "ZR_CONF": "publish:off"}, capture_output=True, timeout=LONG_HANG).returncode, "", "")
    note(f"{name}: {count} attaches, {time.monotonic() - started:.0f} s{err[-300:] if code else ''}")
    if code:
        return count, code, None, 0
    with open(report) as file:
        got = json.load(file)
    steps = sorted(got["step_seconds"])[:-1]
    slow = steps[int(len(steps) * 0.999) - 1]
    note(f"{name}: p99.9 of a step {slow * 1e3:.1f} ms, median {steps[len(steps) // 2] * 1e3:.1f} ms")
    return count, code, got["loss_hex"], slow


def killed(command, again):
    """Killed while somebody is attached: what the attach says, and what is left after the next zr ps."""
    program = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    folder, trace = os.path.join(path("runtime"), "zr"), path(f"killed-{again}.zrt")

    def traces():
        """Of the arenas that there are by then: one has the name itself, of several each its own."""
        return [one for one in glob.glob(path(f"killed-{again}*.zrt")) if os.path.getsize(one) > 0]

    wait_for(lambda: len([name for name in os.listdir(folder) if name.endswith(".sock")]) >= 2)  # the launcher's and the rank's
    attached = None

    def recorded():
        """Attaches, again if the program was not ready for it."""
        nonlocal attached
        if not traces() and (not attached or attached.poll() is not None):
            attached = subprocess.Popen([ZR, "attach", str(program.pid), "-o", trace], env=ENVIRONMENT, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        return traces()

    there = bool(wait_for(recorded))
    time.sleep(0.1 * again)
    program.kill()
    program.wait()
    ended = attached.wait(timeout=LONG_HANG)
    left = len(os.listdir(folder)) > 0

    def shown():
        """Also what the killed one has left is cleaned by this."""
        got = subprocess.run([ZR, "ps", "--json"], env=ENVIRONMENT, capture_output=True, text=True, timeout=LONG_HANG)
        return [one for one in json.loads(got.stdout)["processes"] if one["arenas"]]
    wait_for(lambda: not shown() and not os.listdir(folder))
    read = subprocess.run([ZR, "stats", *traces()], capture_output=True, text=True, timeout=LONG_HANG)
    return there, left, shown(), os.listdir(folder), ended in (0, 1, 2, 3), read.returncode in (0, 3)


alone, attaches, runs = trainer("alone.json", 0), 0, []
while attaches < ATTACHES and len(runs) < 20 and (not runs or runs[-1][0] > 0 and runs[-1][1] == 0):
    runs.append(trainer("watched.json", ATTACHES - attaches))
    attaches += runs[-1][0]
ok(attaches == ATTACHES, f"{attaches} attaches to {len(runs)} runs of a trainer")
same([one[1:3] for one in runs if one[1:3] != (0, alone[2])], [], "its losses are the same bits")
note(f"p99.9 of a step, watched beside alone: {max(one[3] for one in runs) / alone[3]:.2f} (bar on a quiet machine: 1.1)")
for again in range(5):
    same(killed([ZR_TRAIN, *arguments(data=text_file(), steps=10 ** 6, layers=1, hidden=16, heads=1, seq=8, batch=1, ranks=1)], again),
         (True, True, [], [], True, True), "killed by -9 in the middle of an attach: the next zr ps leaves nothing")
end = path("end")
count, code, out, err = run([ZR, "run", "--", "/usr/bin/python3", "-c", COUNT % end], lambda: open(end, "w").close())
ok(count == ATTACHES and (code, out) == (0, "whole\n"), f"{count} attaches to a python3, which ends with {code} {out!r} {err[-200:]!r}")
done()
