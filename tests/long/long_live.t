#!/usr/bin/env python3
"""A hundred attaches to a trainer that runs, and a hundred to a preloaded python3: neither is disturbed."""
import json
import os
import subprocess
import sys
import time

sys.path.insert(0, "tests/support")
from zrtest import BUILD, LONG_HANG, ZR_TRAIN, arguments, done, note, ok, path, same, text_file

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
    got = subprocess.run(["timeout", "-s", "INT", "--preserve-status", "0.2" if number % 2 else "0", *command], env=ENVIRONMENT,
                         capture_output=True, text=True, timeout=LONG_HANG)
    return got.returncode == 0


def run(command, ends):
    """Attaches to it until that is enough; how often, and the exit code."""
    program = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    count = 0
    while count < ATTACHES and program.poll() is None:
        count += attach(program.pid, count)
        time.sleep(0.01)
    ends()
    out, err = program.communicate(timeout=LONG_HANG)
    return count, program.returncode, out, err


def trainer(name, look):
    report = path(name)
    command = [ZR_TRAIN, *arguments(data=text_file(), steps=1500, layers=2, hidden=128, heads=4, seq=64, batch=4, ranks=1,
                                    seed=11, json=report)]
    started = time.monotonic()
    count, code, _, err = run(command, lambda: None) if look else (0, subprocess.run(
        command, env={**ENVIRONMENT, "ZR_CONF": "publish:off"}, capture_output=True).returncode, "", "")
    note(f"{name}: {count} attaches, {time.monotonic() - started:.0f} s{err[-300:] if code else ''}")
    steps = sorted(json.load(open(report))["step_seconds"])[:-1] if code == 0 else [0]
    note(f"{name}: p99.9 of a step {steps[int(len(steps) * 0.999) - 1] * 1e3:.1f} ms, median {steps[len(steps) // 2] * 1e3:.1f} ms")
    return count, code, json.load(open(report))["loss_hex"] if code == 0 else None


alone, watched = trainer("alone.json", False), trainer("watched.json", True)
ok(watched[0] >= 20, f"{watched[0]} attaches to a trainer")
same((watched[1], watched[2]), (0, alone[2]), "its losses are the same bits")
end = path("end")
count, code, out, err = run([ZR, "run", "--", "/usr/bin/python3", "-c", COUNT % end], lambda: open(end, "w").close())
ok(count == ATTACHES and (code, out) == (0, "whole\n"), f"{count} attaches to a python3, which ends with {code} {out!r} {err[-200:]!r}")
done()
