#!/usr/bin/env python3
"""--max-restarts: a rank that is killed is replaced, the others keep their processes, and the run has the bits of one that was not
interrupted. With --redundancy 2 the rank's kept memory is lost, too.
train_restarts.t N kills ranks of N runs of all kinds at random, twice in each."""
import json
import os
import random
import signal
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import (BUILD, SEED, ZR_TRAIN, arguments, children, done, finish, in_steps, leftovers, note, ok, path, run_limited, same, start_quickly,
                    text_file, train, wait_for)

start_quickly()
FLAGS = dict(data=text_file(), layers=2, hidden=64, heads=2, seq=32, batch=4, seed=1, steps=80, eval_every=0)
RUNS = {"stage 2": dict(ranks=2, stage=2),
        "stage 3, bf16, tp 2": dict(ranks=4, stage=3, tp=2, precision="bf16"),
        "stage 1, pp 2": dict(ranks=4, stage=1, pp=2, accumulate=2, arch="llama"),
        "stage 0": dict(ranks=2, stage=0),
        "stage 3, one replica": dict(ranks=4, stage=3, tp=2, pp=2, accumulate=2, arch="llama"),
        "stage 2, bf16, sums": dict(ranks=3, stage=2, precision="bf16", accumulate=2),
        "stage 3, TCP": dict(ranks=3, stage=3, comm="tcp"),
        "adamw8": dict(ranks=2, stage=1, optimizer="adamw8")}
draws = random.Random(SEED)
wholes = {}


def whole(name):
    """The losses of the run without a kill."""
    if name not in wholes:
        wholes[name] = train(**FLAGS, **RUNS[name]).report
    return wholes[name]


def lines(log):
    try:
        with open(log) as file:
            return [json.loads(line)["step"] for line in file if line.endswith("\n")]
    except FileNotFoundError:
        return []


def last(log):
    return (lines(log) or [0])[-1]


class Restarted:
    """A run that is in its steps, and its kills."""

    def __init__(self, **flags):
        self.log, self.report = path("log.jsonl"), path("report.json")
        for file in (self.log, self.report):
            if os.path.exists(file):
                os.unlink(file)
        self.process = subprocess.Popen([ZR_TRAIN] + arguments(**{**FLAGS, "log": self.log, "json": self.report, **flags}),
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
        in_steps(self.log)

    def damage(self, rank):
        """Overwrites the header of the rank's kept memory, so that its successor has none."""
        for fd in os.scandir(f"/proc/{self.process.pid}/fd"):
            if os.readlink(fd.path).startswith("/memfd:"):
                with open(fd.path, "r+b", buffering=0) as segment:
                    if b"rank-%d.0\0" % rank in segment.read(4096):
                        os.pwrite(segment.fileno(), bytes(8), 0)
                        return True
        return False

    def kill(self, rank, forgets=False):
        """True: the rank has a successor, and the others their processes."""
        before = children(self.process.pid)
        if forgets and not self.damage(rank):
            return False
        os.kill(before[rank], signal.SIGKILL)
        kept = set(before) - {before[rank]}
        return wait_for(lambda: self.process.poll() is not None or
                        (len(after := children(self.process.pid)) == len(before) and before[rank] not in after and kept <= set(after)))

    def end(self):
        code, self.err = finish(self.process)
        with open(self.report if os.path.exists(self.report) else os.devnull) as file:
            return code, json.loads(file.read() or "{}")


def restarted(name, kills, forgets=False, **flags):
    flags.update(dict(redundancy=2) if forgets else {})
    run = Restarted(max_restarts=kills, **RUNS[name], **flags)
    good = True
    for _ in range(kills):
        at = min(max(last(run.log), flags.get("save_every", 0)) + draws.randrange(1, 20), FLAGS["steps"] - 20)
        wait_for(lambda: run.process.poll() is not None or last(run.log) >= at)
        if run.process.poll() is None:
            good &= bool(run.kill(draws.randrange(RUNS[name]["ranks"]), forgets))
    code, report = run.end()
    good &= ok(code == 0 and good, f"{name}: {kills} ranks killed{' with their memory' * forgets}, the others "
               "keep their processes")
    got, want = report.get("loss_hex") or [""], whole(name)["loss_hex"]
    # From a save, the report has the steps since.
    good &= ok(got == (want[-len(got):] if name == "onebit" else want), f"{name}: the losses of a run without a kill")
    steps = lines(run.log)
    good &= ok(steps == sorted(set(steps)) and len(steps) >= FLAGS["steps"] - kills, f"{name}: each step is in the log once")
    if not good:
        note(run.err[-1500:])
    return run, report


if len(sys.argv) > 1:
    for i in range(int(sys.argv[1])):
        name = draws.choice(list(RUNS))
        restarted(name, 2, forgets="one replica" not in name and draws.random() < 0.6)
    got = run_limited([os.path.join(BUILD, "tests", "kept_test"), "11"], timeout=3600)
    ok(got.returncode == 0, "kept_test: kills at every eleventh action of a step") or note(got.stdout[-1500:])
    done()
    sys.exit()

run, report = restarted("stage 2", 2)
ok(run.err.count("from kept memory") == 2 and run.err.count("s after the loss of a rank") == 2, "each restart says from where it continues, "
   "and after which time") or note(run.err)
same([{tag: rank["planned_bytes"][tag] - rank["peak_bytes"][tag] for tag in rank["planned_bytes"] if tag not in ("other", "total")}
      for rank in report["ranks"]], [dict.fromkeys((t for t in report["ranks"][0]["planned_bytes"] if t not in ("other", "total")), 0)] * 2,
     "kept memory is in the byte plan")
restarted("stage 3, bf16, tp 2", 1)
restarted("stage 1, pp 2", 1)
run, report = restarted("stage 2", 2, forgets=True)
ok(run.err.count("continues from the copy") == 2 and all(rank["redundancy"]["planned_bytes"] == rank["redundancy"]["sent_bytes_per_step"] > 0
   for rank in report["ranks"]), "a rank whose memory is damaged takes the copy of its state, of the planned bytes") or note(run.err)

# State that kept memory has no place for: from the last save, or from the start.
for words, flags in (("with a save", dict(save=path("saved"), save_every=10)), ("without one", {})):
    RUNS["onebit"] = dict(ranks=2, stage=1, compress="gradients:onebit", compress_warmup=40, beta2=0.95)
    run, _ = restarted("onebit", 1, **flags)
    ok("so a restart continues from the last save" in run.err and ("resumed after step" in run.err) == bool(flags), f"onebit {words}: the "
       "words") or note(run.err)

run = train(**{**FLAGS, "steps": 1}, ranks=2, stage=1, optimizer="lamb", max_restarts=1)
ok(run.code == 0 and "needs all ranks, so a restart continues from the last save" in run.err, "lamb: the words") or note(run.err)

# A death after the last step: the successor evaluates again.
run = Restarted(max_restarts=1, ranks=2, stage=1, eval_every=80, sample=1000)
wait_for(lambda: last(run.log) == 80)
run.kill(1)
code, report = run.end()
with open(run.log) as file:
    validated = json.loads(file.readlines()[-1]).get("val_loss")
ok(code == 0 and "after step 80" in run.err and report["val_loss"] == validated and validated, "a death after the last step: the loss of "
   "its evaluation") or note(run.err)

# The number of restarts ends; a rank that ends by itself is not replaced.
run = Restarted(max_restarts=1, ranks=2)
run.kill(0)
in_steps(run.log)
wait_for(lambda: lines(run.log))
os.kill(children(run.process.pid)[1], signal.SIGKILL)
code, _ = run.end()
ok(code == 137 and "restart 1 of 1" in run.err and "the run ends" in run.err, "a death after the last restart ends the run") or note(run.err)

for words, environment, flags in (("--comm mpi", {}, dict(comm="mpi")), ("torchrun", dict(RANK="0", WORLD_SIZE="2", MASTER_PORT="29555"), {}),
                                  ("--prove", {}, dict(prove=True))):
    run = train(environment=environment, **FLAGS, **{"ranks": 2, "max_restarts": 1, **flags})
    ok(run.code == 2 and "--max-restarts" in run.err, f"{words} excludes --max-restarts") or note(run.err)
for words, flags in (("requires --max-restarts", dict(max_restarts=0)), ("several data ranks", dict(ranks=1)),
                     ("kept memory, which cannot be combined with --precision fp16", dict(precision="fp16"))):
    run = train(**FLAGS, **{"ranks": 2, "max_restarts": 1, "redundancy": 2, **flags})
    ok(run.code == 2 and words in run.err, f"--redundancy 2: {words}") or note(run.err)
same(leftovers(), [], "no process stays")
done()
