#!/usr/bin/env python3
"""The mpi communicator, under the mpirun that is here: every operation against plain sums, the same losses as local to
the bit, and a rank that is killed at any moment ends the run, with its number."""
import os
import random
import re
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, "tests/support")
from pairs import ALL_ROWS
from zrtest import (BUILD, DEAD, HANG, MPI_SETTINGS, SEED, SILENT, ZR_TRAIN, arguments, done, finish, in_steps, leftovers, mpi_missing, note, ok,
                    path, same, skip, start_quickly, text_file, train, wait_for)

start_quickly()

RANKS = os.path.abspath(os.path.join(BUILD, "tests", "mpi_ranks"))


def mpirun(ranks, *command, flags=(), timeout=HANG):
    return subprocess.run(["mpirun", *flags, "-n", str(ranks), *map(str, command)], capture_output=True, text=True,
                          errors="replace", timeout=timeout, env={**os.environ, **MPI_SETTINGS}, stdin=subprocess.DEVNULL)


def check_operations():
    for ranks in (1, 2, 3, 4, 8) if ALL_ROWS else (1, 2, 3):
        for bucket, way in ((4096, "direct"), (65536, "ring")) if ranks > 1 else ((4096, "auto"),):
            got = mpirun(ranks, RANKS, "operations", bucket, way, SEED)
            if not same(got.returncode, 0, f"{ranks} ranks, {way}: every operation, in fp32, bf16 and fp16"):
                note(got.stderr[-800:])
    # What is longer than an MPI count goes in pieces, here of 1000 bytes; soak_mpi.t has shards of more than 2 GiB.
    for ranks, way in ((2, "direct"), (3, "ring"), (5, "direct"))[:3 if ALL_ROWS else 2]:
        got = mpirun(ranks, RANKS, "operations", 65536, way, SEED, 1000)
        if not same(got.returncode, 0, f"{ranks} ranks, {way}: every operation in messages of 1000 bytes at most"):
            note(got.stderr[-800:])


def check_circle():
    """Ranks that wait for one another in three groups tell each other what they are in. The first that sees the circle
    says so and ends; mpirun may end the others before they have written a line, or they see its exit before the circle."""
    got = mpirun(4, RANKS, "circle", 65536)
    said = [line for line in got.stderr.splitlines() if line.startswith("# rank ")]
    named = [line for line in said if "wrong: " not in line]
    late = re.compile(r"# rank \d: wrong: rank \d \(pid \d+\) has exited while others still wait for it$")
    ok(got.returncode == 1 and named and all(line in named or late.match(line) for line in said),
       "4 ranks, 3 of which wait in a circle: all end, with the ranks' names") or note(got.stderr[-800:])


def check_losses():
    for ranks, mesh in ((2, {}), (3, {}), (4, {}), (4, dict(cp=2, eos=10, mask_documents=True))):  # 10: a line's end
        precision = {2: "fp32", 3: "bf16", 4: "fp16"}[ranks]
        flags = dict(ranks=ranks, stage=ranks - 1, bucket_bytes=4096, precision=precision, accumulate=5 - ranks,
                     layers=6 if ranks == 4 else 2, **mesh)  # as many as it takes for stage 3 to gather
        local = train(**flags)
        report = path("mpi.json")
        got = mpirun(ranks, ZR_TRAIN, *arguments(**dict(steps=3, layers=2, hidden=32, heads=2, seq=16, batch=2, seed=11,
                                                      data=text_file(), comm="mpi", json=report, stage=1,
                                                      bucket_bytes=4096, **mesh)))
        if not same(got.returncode, 0, f"mpirun -n {ranks} zr-train --comm mpi {mesh}"):
            note(got.stderr[-800:])
        by_itself = train(environment={"TERM": "xterm"}, **flags, comm="mpi")
        same(by_itself.code, 0, f"zr-train --ranks {ranks} --comm mpi starts mpirun by itself")
        ok("Byte plan" in by_itself.out and "\x1b" not in by_itself.out + by_itself.err, "off a terminal: no colour")
        same(by_itself.losses, local.losses, f"{ranks} ranks, {precision} {mesh}: --comm mpi has the losses of --comm local, to the bit")
        if by_itself.report and local.report:
            for key in ("sent_elements_per_step", "planned_bytes"):
                same([rank[key] for rank in by_itself.report["ranks"]], [rank[key] for rank in local.report["ranks"]],
                     f"{ranks} ranks: and its {key}")
            same(by_itself.report["ranks"][0]["peak_bytes"]["comm"], local.report["ranks"][0]["peak_bytes"]["comm"],
                 f"{ranks} ranks: and its bytes of ring")
            if flags["stage"] == 3:
                gathered = [rank["peak_bytes"]["gathered"] for rank in by_itself.report["ranks"]]
                ok(min(gathered) > 0, f"{ranks} ranks gather parameters at stage 3: {gathered} bytes")


def ranks_of(pid):
    """The processes that mpirun has started, by rank."""
    found = {}
    for child in open(f"/proc/{pid}/task/{pid}/children", encoding="ascii").read().split():
        try:
            with open(f"/proc/{child}/environ", "rb") as file:
                number = re.search(rb"OMPI_COMM_WORLD_RANK=(\d+)", file.read())
        except OSError:
            continue
        if number:
            found[int(number[1])] = int(child)
    return found


def has_joined(pid):
    """It has said hello to mpirun: the memory that it shares with the other ranks is there. Open MPI 4.1's mpirun itself
    never ends where a rank dies during that hello ("PMIX ERROR: UNREACHABLE"), all its ranks being gone."""
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            maps = file.read()
    except OSError:
        return False
    return any(name in maps for name in ("/vader_segment.", "/sm_segment."))


def kill_one(words, flags, size, rng, sign=signal.SIGKILL, ranks=3):
    """Kills a rank when the log has so many bytes; None: as soon as the rank has joined."""
    log = path("log.jsonl")
    if os.path.exists(log):
        os.unlink(log)
    command = [ZR_TRAIN] + arguments(data=text_file(), steps=100000, layers=2, hidden=64, heads=2, seq=32, batch=4,
                                     comm="mpi", log=log,
                                     comm_timeout=600 if sign == signal.SIGKILL else SILENT)
    process = subprocess.Popen(["mpirun", *flags, "-n", str(ranks), *command], stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True, errors="replace", env={**os.environ, **MPI_SETTINGS})
    pids = {}
    wait_for(lambda: pids.update(ranks_of(process.pid)) or len(pids) == ranks)
    victim = rng.randrange(ranks)
    wait_for(lambda: has_joined(pids[victim]) if size is None else os.path.exists(log) and os.path.getsize(log) >= size)
    os.kill(pids[victim], sign)
    code, err = finish(process, DEAD)
    good = ok(code is not None, f"{words}: rank {victim} got {sign.name}, and the run ended")
    if not flags:  # with --enable-recovery a job counts as good while one of its ranks is
        good &= ok(code != 0, f"{words}: exit {code}")
    if sign == signal.SIGSTOP:  # the ranks wait for one another too, and it is none of those
        silent = re.findall(r"rank (\d+) has not answered for (\d+) s", err)
        good &= ok(silent and all(int(seconds) >= SILENT for _, seconds in silent),
                   f"{words}: somebody is named, after {SILENT} s")
        named = {int(rank) for rank, _ in silent}
        named |= {int(rank) for rank in re.findall(r"rank (\d+) \(pid \d+\) has ended", err)}
        good &= same(named, {victim}, f"{words}: and it is rank {victim} alone")
    else:
        good &= ok(re.search(rf"rank {victim}\b", err), f"{words}: the words name rank {victim}")
    good &= same(leftovers(), [], f"{words}: no process stays")
    if not good:
        note(err[-1200:])


def check_deaths():
    rng = random.Random(SEED)
    for size in (200, rng.randrange(200, 4000)):
        kill_one("in the steps", [], size, rng)
    for size in (None, 0):
        kill_one("as it starts", [], size, rng)
    kill_one("an mpirun that lets the others live", ["--enable-recovery"], 200, rng)
    for _ in range(2 if ALL_ROWS else 1):  # the others use processors as they wait
        kill_one(f"a rank of 4 that stands still, --comm-timeout {SILENT}", [], 200, rng, signal.SIGSTOP, 4)


def check_requests():
    """zr-train that starts mpirun by itself: a step is ended and saved, though this mpirun gives its ranks no time at SIGTERM.
    (An mpirun of one's own passes SIGUSR2 on.)"""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup's, which the trainer would go by
    flags = dict(steps=100000, layers=4, hidden=64, heads=8, seq=32, batch=2, ranks=2, comm="mpi", data=text_file())

    def asked(sign, saved):
        if os.path.exists(log):
            os.unlink(log)
        process = subprocess.Popen([ZR_TRAIN] + arguments(log=log, save=saved, **flags), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
                                   env={**os.environ, "OMPI_MCA_odls_base_sigkill_timeout": "0"})
        in_steps(log)
        process.send_signal(sign)
        return finish(process, HANG)

    log = path("asked.jsonl")
    for sign in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        saved = path(f"asked-{sign.name}")
        code, err = asked(sign, saved)
        good = same(code, 128 + sign, f"{sign.name} to a zr-train that has started mpirun: exit {128 + sign}")
        good &= ok(re.search(r"ended by SIG[A-Z]+ after step", err), f"{sign.name}: the words say so")
        names = [name for name in os.listdir(saved) if name.startswith("step-")] if os.path.isdir(saved) else []
        good &= same(len(names), 1, f"{sign.name}: saved")
        good &= same(leftovers(), [], f"{sign.name}: no process stays")
        if not good:
            note(err[-800:])
    os.unlink(log)
    process = subprocess.Popen([ZR_TRAIN] + arguments(log=log, **flags), stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)
    in_steps(log)
    process.kill()
    finish(process, HANG)
    same(leftovers(), [], "zr-train that has started mpirun killed by -9: no process stays")
    small = dict(steps=3, layers=2, hidden=32, heads=2, seq=16, batch=2, ranks=2, comm="mpi", data=text_file())
    got = subprocess.run([ZR_TRAIN] + arguments(**small), capture_output=True, text=True, timeout=HANG,
                         preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    same(got.returncode, 0, "started with SIGCHLD ignored: it still learns how mpirun ended") or note(got.stderr[-800:])
    os.unlink(log)
    process = subprocess.Popen([ZR_TRAIN] + arguments(log=log, **{**small, "steps": 100000}), stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)
    in_steps(log)
    with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as file:
        os.kill(int(file.read().split()[0]), signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    code, _ = finish(process, HANG)
    same((code, leftovers()), (128 + signal.SIGTERM, []), "an mpirun that stands still is ended, and its ranks")


def check_words():
    alone = subprocess.run([ZR_TRAIN, "--data", text_file(), "--comm", "mpi", "--ranks", "2"], capture_output=True,
                           text=True, env={**os.environ, "PATH": "/nonexistent"}, timeout=HANG)
    same(alone.returncode, 2, "without mpirun on PATH: exit 2")
    ok("mpirun" in alone.stderr and "PATH" in alone.stderr, "and words that name it")
    lonely = path("bin")
    os.mkdir(lonely)
    shutil.copy(ZR_TRAIN, lonely)
    got = mpirun(2, os.path.join(lonely, "zr-train"), "--data", text_file(), "--comm", "mpi")
    ok(got.returncode == 2 and "libzr_comm_mpi.so" in got.stderr, "without its module: exit 2, and its name")
    rank = subprocess.run([ZR_TRAIN, "--data", text_file(), "--comm", "mpi"], capture_output=True, text=True, timeout=HANG,
                          env={**os.environ, "RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "29400"})
    ok(rank.returncode == 2 and "mpirun" in rank.stderr, "started one by one without MPI: exit 2, and the way out")
    more = mpirun(2, ZR_TRAIN, "--data", text_file(), "--comm", "mpi", "--ranks", "3")
    ok(more.returncode == 2 and "--ranks 3" in more.stderr, "other --ranks than mpirun's: exit 2, and both numbers")
    listed = subprocess.run(["readelf", "--dynamic", ZR_TRAIN], capture_output=True, text=True, check=True).stdout
    ok("libmpi" not in listed, "zr-train itself needs no MPI")


why = mpi_missing()
if why:
    skip(why)
else:
    check_operations()
    check_circle()
    check_losses()
    check_deaths()
    check_requests()
    check_words()
done()
