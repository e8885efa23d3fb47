#!/usr/bin/env python3
"""Runs that are saved, evaluated, ended by signals at any moment and taken up again, at random settings: none hangs, and
none loses a save that it has announced. `long_ends.t COUNT [FIRST]` tries COUNT of them, from number FIRST on: soak_ends.t
400."""
import os
import random
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, "tests/support")
from zrtest import (SEED, ZR_TRAIN, arguments, done, kill_session, mpi_missing, note, of_session, ok, path, start_quickly, text_file,
                    token_shard, wait_for)

COUNT, FIRST = int(sys.argv[1]) if len(sys.argv) > 1 else 40, int(sys.argv[2]) if len(sys.argv) > 2 else 0
LIMIT = 240  # seconds for one run of a second or two
ENDS = {"SIGINT": [signal.SIGINT], "SIGTERM": [signal.SIGTERM], "SIGHUP": [signal.SIGHUP], "SIGUSR1": [signal.SIGUSR1],
        "SIGQUIT": [signal.SIGQUIT], "SIGINT twice": [signal.SIGINT, signal.SIGINT], "SIGKILL": [signal.SIGKILL], "nothing": []}
MPI = not mpi_missing()
start_quickly()
os.mkdir(path("disk"))
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup's, which the trainer would go by


def draw_data(rng):
    """As many tokens as leave few windows for the validation, of every remainder."""
    size = rng.randrange(3000, 14000)
    if rng.random() < 0.5:
        return dict(data=text_file(f"text-{size}", size, size))
    vocabulary = rng.choice((100, 700, 5000))
    tokens = random.Random(size)
    return dict(data=token_shard([tokens.randrange(vocabulary) for _ in range(size)], f"tokens-{size}-{vocabulary}"),
                vocab=vocabulary)


def draw_model(rng):
    llama = rng.random() < 0.3
    return dict(layers=rng.choice((2, 4)), hidden=rng.choice((16, 32)), heads=2, seq=rng.choice((4, 8, 16)), seed=rng.randrange(1, 99),
                warmup=1, **(dict(arch="llama", kv_heads=2, ffn=48) if llama else {}), **draw_data(rng))


def draw_mesh(rng):
    """What a run may have otherwise when it is taken up."""
    data, tp, pp = rng.choice(((1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 1, 1), (1, 2, 1), (2, 2, 1), (1, 1, 2), (2, 1, 2), (1, 2, 2), (3, 1, 2)))
    flags = dict(ranks=data * tp * pp, tp=tp, pp=pp, stage=rng.randrange(4) if data > 1 else 0, batch=rng.randrange(1, 6),
                 accumulate=rng.choice((1, 2, 4)), recompute=rng.choice(("none", "none", "full")))
    if pp > 1:
        flags.update(schedule=rng.choice(("1f1b", "gpipe", "naive")), pipeline_cut=rng.choice(("memory", "equal")))
    if flags["ranks"] == 1:
        flags["threads"] = 1
    elif MPI and rng.random() < 0.1:
        flags["comm"] = "mpi"
    if rng.random() < 0.2:
        flags["offload_optimizer"] = rng.choice(("cpu", f"nvme:{path('disk')}"))
        if rng.random() < 0.3:
            flags["delayed_update"] = True
    return flags


def draw_saves(rng):
    return dict(save_every=rng.choice((None, 0, 1, 2, 3, 7, "1s")), keep=rng.choice((None, 0, 1, 2)),
                eval_every=rng.choice((0, 1, 1, 2, 3, 5)), sample=rng.choice((None, None, 3)), precision=rng.choice(("fp32", "bf16", "fp16")))


def lines_of(log):
    try:
        with open(log, "rb") as file:
            return file.read().count(b"\n")
    except OSError:
        return 0


class Leg:
    """One run, to its end or to what `ends` does to it after `line` more lines of its log."""

    def __init__(self, folder, flags, ends, line, delay):
        self.log, self.folder, self.ends = folder + ".jsonl", folder, ends
        before = lines_of(self.log)
        self.command = [ZR_TRAIN] + arguments(log=self.log, save=folder, **flags)
        with open(folder + ".err", "w+", encoding="utf-8", errors="replace") as words:  # no pipe that a rank that stays would hold
            process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=words,
                                       start_new_session=True)
            limit = time.monotonic() + LIMIT
            while lines_of(self.log) < before + line and process.poll() is None and time.monotonic() < limit:
                time.sleep(0.002)
            time.sleep(delay)
            for number in ENDS[ends]:
                if process.poll() is None:
                    process.send_signal(number)
                time.sleep(0.3 if ends == "SIGINT twice" else 0)
            try:
                self.code = process.wait(max(1, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                kill_session(process)
                process.wait()
                self.code = None
            self.stays = bool(not wait_for(lambda: not of_session(process.pid), 60))
            if self.stays:
                kill_session(process)
            words.seek(0)
            self.err = words.read()
        self.steps = lines_of(self.log) - before
        self.announced = [int(step) for step in re.findall(r"saved step (\d+) in ", self.err)]
        found = re.search(r"resumed after step (\d+)", self.err)
        self.resumed, self.last = int(found[1]) if found else 0, flags["steps"]
        self.refused = self.code == 2 or (self.code == 3 and "--data" in self.err)  # what does not go together; too little text

    def codes(self):
        """What it may end with: 0 where all was done before the signal came."""
        numbers = ENDS[self.ends]
        if not numbers or self.ends == "SIGUSR1":
            return (0,) if self.steps else (0, -signal.SIGUSR1)
        return (0, 128 + numbers[0], -numbers[0])  # a program that has not begun dies of it

    def fault(self):
        """What is wrong with it by itself; "": nothing."""
        if self.code is None:
            return "it hangs"
        if self.stays:
            return "a process stays"
        if self.code not in self.codes():
            return f"exit {self.code}, and not one of {self.codes()}"
        if self.code < 0 and self.ends != "SIGKILL" and self.steps:
            return f"it died of the signal after {self.steps} steps"
        if self.code == 0 and self.last not in self.announced + [self.resumed]:
            return "it came to its end, and has not saved it"
        followed = re.search(r"ended by SIG[A-Z]+ after step (\d+)", self.err)
        if followed and (self.code < 128 or int(followed[1]) not in self.announced + [self.resumed]):
            return f"it ended after step {followed[1]} without a save, or with exit {self.code}"
        return ""


def try_one(number):
    """One model, saved, ended and taken up until a run comes to its end. What went wrong, "" if nothing did, and how many
    runs, and of these ended by a signal, there were."""
    rng = random.Random(SEED * 1000003 + number)
    model, folder = draw_model(rng), path(f"run-{number}")
    saved, legs, signals, steps = 0, 0, 0, rng.randrange(3, 25)
    while legs < 4:
        ends = rng.choice([*ENDS, "SIGINT", "SIGTERM"]) if legs < 3 else "nothing"
        flags = {**model, **draw_mesh(rng), **draw_saves(rng), "steps": saved + steps, "resume": folder if saved else None}
        run = Leg(folder, flags, ends, rng.randrange(steps + 1), rng.choice((0, 0, rng.random() * 0.3)))
        if run.refused:
            continue
        legs += 1
        fault = run.fault()
        if not fault and saved and run.steps and run.resumed < saved:
            fault = f"step {saved} was announced, and {run.resumed} resumed"
        if fault:
            return f"number {number}, run {legs} ({ends}): {fault}\n{' '.join(run.command)}\n{run.err[-1200:]}", legs, signals
        signals += run.code != 0
        saved = max([saved, *run.announced])
    return "", legs, signals


faults, legs, signals, began = [], 0, 0, time.monotonic()
for which in range(FIRST, FIRST + COUNT):
    fault, more, ended = try_one(which)
    faults += [fault] if fault else []
    legs, signals = legs + more, signals + ended
    if fault:
        note(fault)
note(f"{legs} runs in {time.monotonic() - began:.0f} s, {signals} of them ended by a signal; ZR_TEST_SEED={SEED}")
ok(not faults, f"{COUNT} runs that are saved, evaluated, ended and taken up again: none hangs or loses an announced save")
ok(signals >= COUNT // 3, f"and {signals} were ended by a signal")
done()
