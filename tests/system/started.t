#!/usr/bin/env python3
"""Ranks that somebody else has started, one process each: by RANK and WORLD_SIZE, by SLURM's variables, by mpirun. They
find each other on this machine, train like forked ones to the bit, end together, and say which variable is wrong."""
import contextlib
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import (DEAD, HANG, SEED, SILENT, ZR_TRAIN, arguments, done, finish, in_steps, leftovers, note, ok, path, same,
                    start_quickly, text_file, train, wait_for)

start_quickly()
SMALL = dict(steps=3, layers=2, hidden=32, heads=2, seq=16, batch=2, seed=11, stage=1, data=text_file())
LONG = dict(steps=100000, layers=2, hidden=64, heads=2, seq=32, batch=4, seed=1, data=text_file())
rng = random.Random(SEED)
CLEAN = {key: value for key, value in os.environ.items()
         if not re.match(r"(OMPI|PMI|PMIX|SLURM|MASTER)_|(LOCAL_)?RANK$|(LOCAL_)?WORLD_SIZE$", key)}


def own_numbers():
    """The first of 64 numbers that no other run of this test on this machine has, and what holds them until this ends."""
    held = socket.socket(socket.AF_UNIX)
    for turn in range(625):
        first = 20000 + (os.getpid() + turn) % 625 * 64
        try:
            held.bind(f"\0zr-test-started-{first}")
            return first, held
        except OSError:
            pass
    raise SystemExit("no 64 numbers are free for MASTER_PORT")


port, held = own_numbers()


def fresh_port():
    global port
    port += 1
    return str(port)


def start(variables, **flags):
    return subprocess.Popen([ZR_TRAIN] + arguments(**flags), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                            errors="replace", env={**CLEAN, **variables})


def like_torchrun(rank, world, key):
    return {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": key}


def like_srun(rank, world, key):
    return {"SLURM_PROCID": str(rank), "SLURM_NTASKS": str(world), "SLURM_LOCALID": str(rank), "SLURM_JOB_ID": key,
            "SLURM_STEP_ID": "0"}


def like_mpirun(rank, world, key):
    return {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(world), "PMIX_NAMESPACE": key,
            "OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_SIZE": str(world)}


def like_mpich(rank, world, key):  # whose PMI_ID is the process's own
    return {"PMI_RANK": str(rank), "PMI_SIZE": str(world), "PMI_ID": str(rank), "MASTER_PORT": key}


def check_losses():
    for how, world in ((like_torchrun, 1), (like_torchrun, 2), (like_torchrun, 4), (like_srun, 3), (like_mpirun, 2),
                       (like_mpich, 2)):
        key, report = fresh_port(), path("report.json")
        order = list(range(world))
        rng.shuffle(order)  # the first may come last
        there = []
        for rank in order:
            there.append(start(how(rank, world, key), json=report, **SMALL))
        ends = [finish(process) for process in there]
        if not same([code for code, _ in ends], [0] * world, f"{how.__name__}: {world} ranks, in the order {order}"):
            note("\n".join(err[-300:] for _, err in ends))
            continue
        with open(report, encoding="utf-8") as file:
            losses = json.load(file)["loss_hex"]
        same(losses, train(**SMALL, ranks=world).losses, f"{how.__name__}: the losses of {world} forked ranks, to the bit")


def check_faults():
    """Each call of the meeting in turn: one that a signal interrupts is made again; one that has no descriptor, twice, ends
    the run with words, or is done without."""
    want, told = train(**SMALL, ranks=3).losses, 0
    for nth in range(1, 6):
        sites = [f"{site}:eintr:{nth}" for site in ("descriptor", "receive", "send", "wait")]
        for faulty, fault in ((range(3), ",".join(sites)), ([nth % 3], f"descriptor:twice:{2 * nth + 5 - nth % 2}")):
            key, report = fresh_port(), path("report.json")
            ends = [finish(process) for process in [
                start({**like_torchrun(rank, 3, key), **({"ZR_FAULT": fault} if rank in faulty else {})}, json=report, comm_timeout=30, **SMALL)
                for rank in range(3)]]
            codes, err = [code for code, _ in ends], "".join(err for _, err in ends)
            if codes == [0, 0, 0]:
                with open(report, encoding="utf-8") as file:
                    same(json.load(file)["loss_hex"], want, f"{fault}: the same losses")
            else:
                told += ok("twice" in fault and 0 not in codes and None not in codes and "ulimit -n" in err, f"{fault}: {codes}, with words") or note(err[-900:]) or 0
    ok(told > 2, f"{told} runs had no descriptor")


def child_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(child) for child in file.read().split()]


def begin(world, **flags):
    """A run that is in its steps: its processes by rank."""
    key, log = fresh_port(), path("log.jsonl")
    if os.path.exists(log):
        os.unlink(log)
    there = [start(like_torchrun(rank, world, key), log=log, **{**LONG, **flags}) for rank in range(world)]
    in_steps(log)
    wait_for(lambda: os.path.getsize(log) >= rng.randrange(200, 4000))
    return there


def all_end(words, there, names, codes=None):
    ends = [finish(process, DEAD) for process in there]
    err = "\n".join(text for _, text in ends)
    good = ok(all(code is not None for code, _ in ends), f"{words}: all ended")
    good &= ok([code for code, _ in ends] == codes if codes else all(code != 0 for code, _ in ends), f"{words}: the exit codes")
    for name in names:
        good &= ok(name in err, f"{words}: the words hold {name!r}")
    good &= same(leftovers(), [], f"{words}: no process stays")
    if not good:
        note(err[-1500:])
    return [text for _, text in ends]


def check_deaths():
    for world in (2, 3):
        victim = rng.randrange(world)
        there = begin(world)
        os.kill(child_of(there[victim].pid)[0], signal.SIGKILL)
        all_end(f"rank {victim} of {world} killed by -9", there, [f"rank {victim}", "signal 9"])
    for victim in (0, 2):
        there = begin(3)
        there[victim].send_signal(signal.SIGKILL)
        all_end(f"the process that was started for rank {victim} killed by -9", there, ["gone", f"rank {victim}"])
    there = begin(3)
    others = [process for process in there if process is not there[1]]
    for process in others:  # so that it is the rank itself that tells what became of its launcher
        process.send_signal(signal.SIGSTOP)
    there[1].send_signal(signal.SIGKILL)
    select.select([there[1].stderr], [], [], 120)
    for process in others:
        process.send_signal(signal.SIGCONT)
    words = "the process that was started for rank 1 killed by -9, and its rank told first"
    told = all_end(words, there, [])[1]  # the others say the same later: what is here the rank itself has written
    ok("rank 1" in told and "gone" in told, f"{words}: by its own words") or note(told)
    there = begin(3)
    family = child_of(there[1].pid) + [there[1].pid]
    for pid in family:
        os.kill(pid, signal.SIGSTOP)
    for pid in family:  # the rank first: its end would not be this test's to wait for, were nobody left to reap it
        os.kill(pid, signal.SIGKILL)
    all_end("both processes of rank 1 killed by -9 at once", there, ["rank 1"])
    there = begin(2, save=path("saved"))
    there[1].send_signal(signal.SIGTERM)
    all_end("SIGTERM to one of them", there, ["saved step", "ended by SIGTERM after step"], codes=[143, 143])


def holds(pid, kind):
    return sum(os.readlink(f"/proc/{pid}/fd/{fd}").startswith(kind) for fd in os.listdir(f"/proc/{pid}/fd"))


def has_sockets(process, count):
    """Waits until it holds so many: one that it listens on, and one for each rank that has come."""
    def there():
        with contextlib.suppress(OSError):  # one that was closed meanwhile
            return holds(process.pid, "socket:") >= count
    assert wait_for(there)


def check_descriptors():
    """What is open in a run under way: nothing of ranks that came and went, and of the meeting no more than connections."""
    key, log = fresh_port(), path("held.jsonl")
    asks = {**LONG, "stage": "auto"}  # in a process of its own, which answers through a pipe
    there = [start(like_torchrun(0, 3, key), log=log, **asks)]
    for _ in range(2):
        early = start(like_torchrun(1, 3, key), **asks)
        has_sockets(there[0], 2)
        early.kill()
        finish(early)
    there += [start(like_torchrun(rank, 3, key), **asks) for rank in (1, 2)]
    in_steps(log)
    same([[holds(process.pid, kind) for kind in ("socket:", "/memfd:", "pipe:")] for process in there],
         [[4, 1, 1], [3, 2, 1], [3, 2, 1]],
         "a launcher holds its connections, both ends for kept memory, the control block and stderr, after two that came and went")
    sockets = [holds(child_of(process.pid)[0], "socket:") for process in there]
    same(sockets, sockets[:1] * 3, "and no rank one of a launcher's connections")
    there[1].send_signal(signal.SIGSTOP)
    os.kill(child_of(there[0].pid)[0], signal.SIGKILL)
    code, _ = finish(there[0], DEAD)
    there[1].send_signal(signal.SIGCONT)
    same(code, 128 + signal.SIGKILL, "rank 0's launcher does not wait for one that stands still after the run has failed")
    all_end("and the others", there[1:], [])


def check_silence():
    """A rank that neither dies nor answers."""
    there = begin(2, comm_timeout=SILENT)
    still = child_of(there[1].pid)[0]
    os.kill(still, signal.SIGSTOP)
    ends = [finish(process) for process in there]
    err = "\n".join(text for _, text in ends)
    good = ok(all(code is not None for code, _ in ends), f"a rank that stands still: the run ended, --comm-timeout was {SILENT}")
    silent = re.search(r"rank 1 \(pid \d+\) has not answered for (\d+) s", err)
    good &= ok(silent and int(silent[1]) >= SILENT, "and the words name it, and for how long it was silent")
    good &= ok(all(code != 0 for code, _ in ends), "and no process says that all was well")
    good &= same(leftovers(), [], "and none stays, the one that stood still included")
    if not good:
        note(err[-1500:])


def check_hostile():
    key = fresh_port()
    cases = [
        ({"RANK": "0"}, ["WORLD_SIZE"]),
        ({"WORLD_SIZE": "2"}, ["RANK"]),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_PORT": key}, ["RANK=2", "0 to 1"]),
        ({"RANK": "-1", "WORLD_SIZE": "2", "MASTER_PORT": key}, ["RANK=-1"]),
        ({"RANK": "x", "WORLD_SIZE": "2", "MASTER_PORT": key}, ["RANK=x"]),
        ({"RANK": "0", "WORLD_SIZE": "99999999999999999999", "MASTER_PORT": key}, ["WORLD_SIZE"]),
        ({"RANK": "0", "WORLD_SIZE": "0", "MASTER_PORT": key}, ["WORLD_SIZE=0"]),
        ({"RANK": "0", "WORLD_SIZE": "1000", "MASTER_PORT": key}, ["1000", "256"]),
        ({"RANK": "0", "WORLD_SIZE": "2"}, ["MASTER_PORT"]),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "0"}, ["MASTER_PORT=0"]),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "70000"}, ["MASTER_PORT=70000"]),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "A" * 100000}, ["MASTER_PORT=AAA"]),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": key, "MASTER_ADDR": "192.0.2.7"}, ["192.0.2.7", "mpi"]),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": key, "MASTER_ADDR": "%n%s"}, ["MASTER_ADDR=%n%s"]),
        ({"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": key}, ["2 of 4", "mpi"]),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "7", "MASTER_PORT": key}, ["LOCAL_RANK=7"]),
        ({"SLURM_PROCID": "0"}, ["SLURM_NTASKS"]),
        ({**like_srun(0, 2, key), "SLURM_NNODES": "2"}, ["2 machines", "SLURM_NNODES", "mpi"]),
        ({**like_srun(0, 2, key), "SLURM_NNODES": "x"}, ["SLURM_NNODES=x"]),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "1"}, ["SLURM_PROCID=1"]),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, ["MASTER_PORT"]),
        ({"OMPI_COMM_WORLD_RANK": "0"}, ["OMPI_COMM_WORLD_SIZE"]),
        ({"PMI_RANK": "abc", "PMI_SIZE": "2"}, ["PMI_RANK=abc"]),
        ({"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_ID": "0"}, ["PMI_RANK", "MASTER_PORT is not"]),
    ]
    for variables, names in cases:
        code, err = finish(start(variables, **SMALL))
        shown = " ".join(f"{name}={value[:12]}" for name, value in variables.items())
        if not ok(code == 2 and all(name in err for name in names), f"{shown}: exit 2, and words with {names}"):
            note(f"exit {code}: {err[-500:]}")
    for variables in ({"RANK": "", "WORLD_SIZE": ""}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "5"},
                      {"SLURM_NTASKS": "4", "SLURM_JOB_ID": "5"}, {"MASTER_PORT": "junk"}):
        code, err = finish(start(variables, ranks=2, **SMALL))
        same(code, 0, f"{variables}: no launch by others, --ranks 2 forks")
    code, err = finish(start({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": key}, ranks=3, **SMALL))
    ok(code == 2 and "--ranks 3" in err and "WORLD_SIZE" in err, "--ranks against WORLD_SIZE: exit 2, and both")


def check_meetings():
    key = fresh_port()
    for rank, missing in ((0, "rank 1"), (1, "rank 0")):
        code, err = finish(start(like_torchrun(rank, 2, key), comm_timeout=1, **SMALL))
        good = ok(code == 2 and missing in err,
                  f"rank {rank} alone gives up after --comm-timeout and says that {missing} is missing")
        if not good:
            note(f"exit {code}: {err[-400:]}")
    half = path("held/.step-00000007.partial")
    os.makedirs(half)
    code, err = finish(start(like_torchrun(1, 2, fresh_port()), comm_timeout=1, save=path("held"), **SMALL))
    ok(code == 2 and os.path.isdir(half), "a rank that found no run leaves another run's half-made save alone")
    key = fresh_port()
    leader = start(like_torchrun(0, 3, key), comm_timeout=HANG, **SMALL)
    has_sockets(leader, 1)
    early = start(like_torchrun(1, 3, key), comm_timeout=HANG, **SMALL)
    has_sockets(leader, 2)
    early.kill()
    finish(early)
    again = [start(like_torchrun(rank, 3, key), comm_timeout=HANG, **SMALL) for rank in (1, 2)]
    same([finish(process)[0] for process in again + [leader]], [0, 0, 0], "a rank killed while it waits comes again")
    key = fresh_port()
    leader = start(like_torchrun(0, 2, key), comm_timeout=HANG, **SMALL)
    has_sockets(leader, 1)
    code, err = finish(start(like_torchrun(1, 3, key), comm_timeout=HANG, **SMALL))
    ok(code == 2 and "WORLD_SIZE=3" in err, "a rank of another WORLD_SIZE is sent away")
    before = len(os.listdir(f"/proc/{leader.pid}/fd"))
    finish(start(like_torchrun(1, 3, key), comm_timeout=HANG, **SMALL))
    ok(wait_for(lambda: len(os.listdir(f"/proc/{leader.pid}/fd")) <= before, 20), "and costs rank 0 no descriptor")
    code, err = finish(start(like_torchrun(0, 2, key), comm_timeout=HANG, **SMALL))
    ok(code == 2 and key in err, "a second rank 0 on one MASTER_PORT is refused, with the key")
    code, err = finish(start(like_torchrun(1, 2, key), comm_timeout=HANG, **SMALL))
    same((code, finish(leader)[0]), (0, 0), "and the run goes on with the right ones")


def check_settings():
    """Ranks that were started with different settings do not train; what is a rank's own may differ."""
    for flag, one, other in (("lr", "1e-2", "1e-4"), ("clip", 1, 2), ("batch", 2, 3), ("bucket-bytes", 4096, 65536),
                             ("hidden", 32, 64), ("eval-every", 0, 2), ("seed", 11, 12)):
        key, saved = fresh_port(), path(f"unlike-{flag}")
        there = [start(like_torchrun(rank, 2, key), save=saved, **{**SMALL, flag.replace("-", "_"): value})
                 for rank, value in enumerate((one, other))]
        ends = [finish(process) for process in there]
        good = same([code for code, _ in ends], [2, 2], f"--{flag} {one} and {other}: exit 2")
        good &= ok(any(f"--{flag} " in err and "rank 1" in err for _, err in ends), "and words that name it")
        good &= ok(not os.path.exists(saved) or not os.listdir(saved), "and nothing is saved")
        if not good:
            note("\n".join(err[-400:] for _, err in ends))
    key = fresh_port()
    there = [start(like_torchrun(rank, 2, key), threads=rank + 1, memory_limit=["1GiB", "2GiB"][rank], comm_timeout=60 + rank,
                   **SMALL) for rank in range(2)]
    same([finish(process)[0] for process in there], [0, 0], "other threads, limits and time-outs: they train")


def check_folders():
    """What a rank finds in its own folder decides for no other."""
    def resumed(words, needle, folders, **flags):
        key = fresh_port()
        there = [start(like_torchrun(rank, 2, key), resume=folder, comm_timeout=SILENT, **{**SMALL, **flags})
                 for rank, folder in enumerate(folders)]
        ends = [finish(process) for process in there]
        good = same([code for code, _ in ends], [3 if needle else 0] * 2, words)
        if not (ok(needle in "".join(err for _, err in ends), f"and words: {needle}") and good):
            note("\n".join(err[-300:] for _, err in ends))
    for folder, steps in (("far", 4), ("near", 2)):
        train(**{**SMALL, "steps": steps}, ranks=2, save=path(folder), export=path(folder + ".safetensors"))
    resumed("two checkpoints of one run: exit 3", "--resume is step 4 on rank 0, but step 2 on rank 1", (path("far"), path("near")))
    resumed("a model and a checkpoint: exit 3", "a file on rank 0, but step 2", (path("far.safetensors"), path("near")))
    same_place = path("near/../near")
    resumed("a folder by two names, with nothing to save", "", (path("near"), same_place), save=path("near"), steps=2)


def check_names():
    """What launchers call this machine, and their jobs."""
    for address in ("a-host-that-nobody-knows.example", "ip6-localhost"):
        key = fresh_port()
        there = [start({**like_torchrun(rank, 2, key), "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": address}, **SMALL)
                 for rank in range(2)]
        same([finish(process)[0] for process in there], [0, 0], f"MASTER_ADDR={address}, and all ranks are here: they train")
    key = "n" * 70 + fresh_port()  # two runs whose names differ at the end alone
    waits = start(like_mpirun(0, 2, key + "a"), **SMALL)
    has_sockets(waits, 1)
    between = [start(like_mpirun(rank, 2, key + "b"), **SMALL) for rank in range(2)]
    ends = [finish(process) for process in between]
    last = start(like_mpirun(1, 2, key + "a"), **SMALL)
    ends += [finish(process) for process in (last, waits)]
    good = same([code for code, _ in ends], [0] * 4, "two runs at a time whose long names differ at the end: both train")
    if not good:
        note("\n".join(err[-300:] for _, err in ends))


check_losses()
check_faults()
check_settings()
check_folders()
check_names()
check_deaths()
check_descriptors()
check_silence()
check_hostile()
check_meetings()
done()
