#!/usr/bin/env python3
"""--global-batch, --resize and --elastic: the number of data replicas changes while a run continues. A scheduled change has the bits of
a save and a resume with other ranks, and a run whose size events change has the bits of a schedule. train_elastic.t N sends N events at
random to runs of several kinds."""
import json
import os
import random
import signal
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import (SEED, ZR_TRAIN, arguments, done, finish, in_steps, leftovers, note, ok, path, same, start_quickly, text_file, train,
                    wait_for)

start_quickly()
FLAGS = dict(data=text_file(), layers=1, hidden=32, heads=2, seq=16, batch=2, seed=1, eval_every=0, warmup=2, schedule_lr="constant",
             global_batch=14)
draws = random.Random(SEED)


def children(process):
    try:
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except FileNotFoundError:
        return []


def resumed(sizes, per=1, **flags):
    """The losses of runs of fixed sizes, each from the save of the one before."""
    folder, losses = path("saved"), []
    for i, (steps, replicas) in enumerate(sizes):
        run = train(**{**FLAGS, **flags}, ranks=replicas * per, steps=steps, save=folder, **({"resume": folder} if i else {}))
        losses += run.report["loss_hex"] if run.code == 0 else [run.err]
    subprocess.run(["rm", "-r", folder], check=False)
    return losses


def as_planned(report):
    return [rank["rank"] for rank in report["ranks"] if any(rank["planned_bytes"][tag] != rank["peak_bytes"][tag] for tag in
                                                            rank["planned_bytes"] if tag not in ("other", "total"))] == []


def scheduled(words, per=1, **flags):
    """4 replicas become 3, 2 and 4."""
    log = path("resized.jsonl")
    run = train(**{**FLAGS, **flags}, ranks=4 * per, steps=8, resize="2:3,4:2,6:4", log=log)
    same(run.report.get("loss_hex", run.err), resumed([(2, 4), (4, 3), (6, 2), (8, 4)], per, **flags),
         f"{words}: the bits of saves and resumes with other ranks")
    same(run.report["sizes"], [{"step": s, "replicas": r} for s, r in ((0, 4), (2, 3), (4, 2), (6, 4))], f"{words}: the sizes are in --json")
    with open(log) as file:
        same([json.loads(line)["step"] for line in file], list(range(1, 9)), f"{words}: each step is in the log once")
    ok(as_planned(run.report) and len(run.report["ranks"]) == 4 * per, f"{words}: the last size takes the bytes of its plan")


class Elastic:
    """A run that events resize until it is told to end."""

    def __init__(self, **flags):
        self.log, self.report, self.flags = path("log.jsonl"), path("report.json"), {**FLAGS, "steps": 20000, **flags}
        for file in (self.log, self.report):
            if os.path.exists(file):
                os.unlink(file)
        self.process = subprocess.Popen([ZR_TRAIN] + arguments(log=self.log, json=self.report, **self.flags), stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True, start_new_session=True)
        in_steps(self.log)

    def step(self):
        with open(self.log) as file:
            return sum(line.endswith("\n") for line in file)

    def steps_on(self):
        at = self.step()
        return wait_for(lambda: self.process.poll() is not None or self.step() > at + 1)

    def becomes(self, ranks, gone=()):
        """Waits for a number of ranks: those that had not to leave have kept their processes."""
        kept = set(children(self.process)) - set(gone)
        there = wait_for(lambda: self.process.poll() is not None or
                         (len(now := children(self.process)) == ranks and kept <= set(now) and not set(gone) & set(now)))
        return there and self.steps_on()

    def join(self):
        return subprocess.run([ZR_TRAIN, "--join", str(self.process.pid)], capture_output=True, text=True, check=False)

    def end(self, words, per=1):
        """Ends the run, and compares it with one of the same schedule."""
        os.kill(self.process.pid, signal.SIGTERM)
        code, self.err = finish(self.process)
        with open(self.report if os.path.exists(self.report) else os.devnull) as file:
            report = json.loads(file.read() or "{}")
        sizes, losses = report.get("sizes", []), report.get("loss_hex", [])
        flags = {key: value for key, value in self.flags.items() if key not in ("elastic", "max_restarts")}
        flags.update(ranks=per * ([s["replicas"] for s in sizes if s["step"] == 0] or [0])[-1], steps=len(losses))
        schedule = ",".join(f"{s['step']}:{s['replicas']}" for s in sizes if s["step"] > 0)
        want = train(**flags, resize=schedule or "1:" + str(flags["ranks"] // per)).report
        ok(code == 128 + signal.SIGTERM and losses and losses == want.get("loss_hex"), f"{words}: the bits of --resize {schedule}") or \
            note(f"exit code {code}\n" + self.err[-1500:])
        return report


def at_random(events, per=1, **flags):
    run = Elastic(ranks=3 * per, elastic="1:5", **flags)
    for _ in range(events):
        at = run.step() + draws.randrange(0, 12)
        wait_for(lambda: run.process.poll() is not None or run.step() >= at)
        pids = children(run.process)
        event = draws.choice((signal.SIGTERM, signal.SIGKILL, None, None))
        try:
            run.join() if event is None else os.kill(draws.choice(pids), event)
        except (ProcessLookupError, IndexError):
            pass
    run.end(f"{events} events in {flags}", per)


if len(sys.argv) > 1:
    for stage in range(4):
        scheduled(f"stage {stage}", stage=stage)
        scheduled(f"stage {stage}, tp 2, bf16", per=2, stage=stage, tp=2, precision="bf16")
    for flags in (dict(stage=2, precision="fp16"), dict(stage=1, optimizer="lamb"), dict(stage=1, optimizer="adamw8"),
                  dict(stage=2, optimizer="adafactor"), dict(stage=1, offload_optimizer="cpu"), dict(stage=2, ema=0.9),
                  dict(stage=1, data_order="epochs"), dict(stage=3, dropout=0.1)):
        scheduled(str(flags), **flags)
    scheduled("cp 2", per=2, stage=1, cp=2, arch="llama")
    scheduled("pp 2", per=2, stage=1, layers=2, pp=2)
    for flags in (dict(stage=0), dict(stage=1, per=2, layers=2, pp=2), dict(stage=2, max_restarts=2), dict(stage=3, per=2, tp=2)):
        at_random(int(sys.argv[1]), **flags)
    done()
    sys.exit()

# ---- Rows of a step ------------------------------------------------------------------------------------------
losses = [train(**{**FLAGS, **flags}, steps=3, stage=1).report["loss"] for flags in
          (dict(ranks=1), dict(ranks=3), dict(ranks=1, global_batch=None, accumulate=7))]
same(losses[0], losses[2], "--global-batch in whole rounds is --accumulate")
ok(all(abs(a - b) < 1e-5 for a, b in zip(*losses[:2])), "ranks that divide a step unequally have its losses") or note(losses)

# ---- A schedule ----------------------------------------------------------------------------------------------
scheduled("stage 3", stage=3)

# ---- Events --------------------------------------------------------------------------------------------------
run = Elastic(ranks=4, stage=2, elastic="2:4")
first = children(run.process)
os.kill(first[0], signal.SIGTERM)
ok(run.becomes(3, first[:1]), "SIGTERM to a rank takes its replica, rank 0 included, and the others keep their processes")
second = children(run.process)
os.kill(second[1], signal.SIGKILL)
ok(run.becomes(2, second[1:2]), "so does kill -9")
third = children(run.process)
os.kill(third[1], signal.SIGTERM)
ok(run.steps_on() and children(run.process) == third, "at MIN replicas a rank that gets SIGTERM stays")
os.kill(third[1], signal.SIGKILL)
ok(run.becomes(2, third[1:]), "and a rank that is killed has a successor")
same([run.join().returncode for _ in range(3)], [0, 0, 2], "--join adds replicas up to MAX")
ok(run.becomes(4), "and they join")
report = run.end("events")
ok(as_planned(report) and len(report["ranks"]) == 4, "the last size takes the bytes of its plan")
for words in ("its replica leaves at the end of the step", "once a successor has taken its place", "and stays: 2 replicas have to remain",
              "because its replica has to remain", "a replica joins at the end of the step", "begins with 3 data replicas"):
    ok(words in run.err, f"the words: {words}") or note(run.err)
run = Elastic(ranks=2, elastic="1:2", max_restarts=1)
first = children(run.process)
os.kill(first[1], signal.SIGKILL)
ok(run.becomes(2, first[1:]), "--max-restarts replaces a rank first")
run.end("a restart")

# ---- Refusals ------------------------------------------------------------------------------------------------
for flags, words in ((dict(comm="tcp", elastic="1:2"), "--comm local"), (dict(prove=True, resize="1:2"), "--prove"),
                     (dict(elastic="1:2", resize="1:2"), "--elastic"), (dict(elastic="2:4"), "--ranks"),
                     (dict(resize="3:2,2:1"), "rising steps"), (dict(elastic="0:2"), "MIN:MAX"), (dict(accumulate=2), "--accumulate"),
                     (dict(global_batch=15), "give 16"), (dict(resize="1:8"), "fewer micro-batches"),
                     (dict(ranks=2, compress="gradients:int8", stage=1, resize="1:1"), "--compress")):
    refused = train(**{**FLAGS, "steps": 2, **flags})
    ok(refused.code == 2 and words in refused.err, f"refused: {flags}") or note(refused.err)
refused = subprocess.run([ZR_TRAIN, "--join", str(os.getpid())], capture_output=True, text=True, check=False)
ok(refused.returncode == 2 and "is not the launcher of a run" in refused.stderr, "refused: --join of another process") or note(refused.stderr)
same(leftovers(), [], "no process stays")
done()
