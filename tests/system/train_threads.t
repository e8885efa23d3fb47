#!/usr/bin/env python3
"""--ranks-as threads: one process, the bits of ranks that are processes, parameters in memory once, and ends that name the rank."""
import ctypes
import os
import signal
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, ZR_TRAIN, arguments, done, finish, in_steps, leftovers, note, ok, path, same, start_quickly, text_file, train

start_quickly()
THREADS = dict(ranks=2, ranks_as="threads", eval_every=0)
TGKILL = 234  # of x86-64


def tags(run, which):
    return [{tag: n for tag, n in rank[which].items() if tag not in ("other", "total")} for rank in run.report["ranks"]]


RACES = os.path.basename(BUILD) == "thread"  # a build with ThreadSanitizer, which prints what it finds
processes = train(ranks=2, stage=1, accumulate=2, eval_every=0)
for stage in range(4):
    run = train(**THREADS, stage=stage, accumulate=2)
    if not same((run.code, run.losses), (0, processes.losses), f"stage {stage}: the losses of processes, bit by bit"):
        note(run.err[-800:])
        continue
    ok("ThreadSanitizer" not in run.err, f"stage {stage}: without a race") or note(run.err)
    same(tags(run, "peak_bytes"), tags(run, "planned_bytes"), f"stage {stage}: each tag of each rank takes its plan")
    first, second = tags(run, "peak_bytes")
    same(second["param"] > 0, stage == 3, f"stage {stage}: rank 1 has parameters of its own at stage 3 only")
    if stage < 2:
        same((first["param"], first["optimizer"], second["optimizer"]),
             tuple(tags(processes, "peak_bytes")[0][tag] for tag in ("param", "optimizer", "optimizer")),
             f"stage {stage}: rank 0 keeps them all, and each rank the state of its shard")

run = train(**THREADS, stage=0, accumulate=2, master=True)
if same((run.code, run.losses), (0, processes.losses), "--master: the losses of processes, bit by bit"):
    ok("ThreadSanitizer" not in run.err, "--master: without a race") or note(run.err)
    same(tags(run, "peak_bytes"), tags(run, "planned_bytes"), "--master: each tag of each rank takes its plan")
    first, second = tags(run, "peak_bytes")
    same((first["optimizer"], second["optimizer"], second["param"]), (2 * first["param"], 0, first["param"]),
         "--master: rank 0 has the whole state, and rank 1 parameters of its own")
    copies = {part: run.report["master"][part] for part in ("replicate", "gather")}
    same(({part: copied["bytes_per_step"] for part, copied in copies.items()}, copies["replicate"]["bytes_per_step"]),
         ({part: copied["planned_bytes_per_step"] for part, copied in copies.items()}, first["param"]),
         "--master: copies all parameters in a step, and as many bytes as planned")
    plan = train(**THREADS, stage=0, accumulate=2, master=True, dry_run=True, flops=1e12, bandwidth=1e9).report
    same((round(plan["timeline"]["communication_seconds"] * 1e9), plan["master"]["gather"]["planned_bytes_per_step"]),
         (sum(copied["bytes_per_step"] for copied in copies.values()), copies["gather"]["bytes_per_step"]),
         "--master --dry-run: the plan of the run, and a timeline of what rank 0 sends and receives")

average = dict(stage=0, ema=0.5, precision="bf16", eval_every=1)  # exchanges parameters between steps
numbers = train(ranks=2, **average).report["val_loss"]
for flags in ({}, dict(master=True)):
    run = train(**{**THREADS, **average, **flags})
    same(run.report["val_loss"], numbers, f"--ema, validation {flags}: the numbers of processes")
    ok("ThreadSanitizer" not in run.err, f"--ema {flags}: without a race") or note(run.err)


if RACES:
    done()


def start(**flags):
    """A run that is in its steps, and the process of its ranks."""
    log = path("log.jsonl")
    if os.path.exists(log):
        os.unlink(log)
    flags = dict(data=text_file(), layers=1, hidden=32, heads=2, seq=16, batch=2, steps=1000000, log=log, **THREADS, **flags)
    process = subprocess.Popen([ZR_TRAIN] + arguments(**flags), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                               start_new_session=True)
    in_steps(log)
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        return process, [int(child) for child in file.read().split()]


process, ranks = start(save=path("saved"))
same(len(ranks), 1, "all ranks are in one process")
os.killpg(process.pid, signal.SIGINT)
code, err = finish(process)
ok(code == 130 and "saved step" in err, "one Ctrl-C ends all ranks, and saves") or note(f"{code} {err[-800:]}")
process, ranks = start()
threads = sorted(int(thread) for thread in os.listdir(f"/proc/{ranks[0]}/task"))
ctypes.CDLL(None).syscall(TGKILL, ranks[0], threads[1], signal.SIGSEGV)
code, err = finish(process)
ok(code == 139 and "rank 0 (pid" in err and "signal 11" in err and "step" in err,
   "a fatal signal of a thread ends the run with the name of its rank") or note(f"{code} {err[-800:]}")

os.mkdir(path("trace.1"))
run = train(**THREADS, trace=path("trace"))
ok(run.code == 3 and path("trace.1") in run.err, "a thread that fails ends the others, with its words and exit code") or note(
    f"{run.code} {run.err[-800:]}")
run = train(**THREADS, environment={"ZR_FAULT": "thread:3"})
ok(run.code == 4 and "cannot be started" in run.err, "a thread that the system refuses ends the run") or note(f"{run.code} {run.err}")
same(leftovers(), [], "no process stays")

for flags, words in ((dict(comm="tcp"), "requires --comm local"), (dict(comm="mpi"), "requires --comm local"),
                     (dict(max_restarts=1), "cannot be combined with --max-restarts"), (dict(spill="cpu"), "--spill"),
                     (dict(backend="cuda"), "requires --backend host"), (dict(master=True, stage=1), "--master requires --stage 0"),
                     (dict(master=True, tp=2), "--master cannot be combined with --tp"),
                     (dict(master=True, ranks_as="processes"), "--master requires --ranks-as threads")):
    run = train(**{**THREADS, **flags})
    ok(run.code == 2 and words in run.err, f"{flags}: refused with words") or note(f"{run.code} {run.err}")
done()
