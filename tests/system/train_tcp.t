#!/usr/bin/env python3
"""--comm tcp: the bits of --comm local, from ranks that are forked and from ranks that meet at a rendezvous; what is refused; a lost rank."""
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import HANG, PLANNED_TAGS, ZR_TRAIN, arguments, children, done, in_steps, note, ok, path, same, start_quickly, text_file, train, wait_for

start_quickly()
SECRET = path("secret")
with open(SECRET, "w") as file:
    file.write("0123456789abcdef0123456789abcdef\n")
os.chmod(SECRET, 0o600)
FLAGS = dict(data=text_file(), layers=2, hidden=32, heads=2, seq=16, batch=2, seed=11, threads=1)


def free_port(host):
    """A free port of this host, below those that the system gives to connections: none takes it before the ranks do."""
    for port in random.sample(range(10000, 32768), 100):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as one, contextlib.suppress(OSError):
            one.bind((host.strip("[]"), port))
            return f"{host}:{port}"
    return f"{host}:1"


def start_rank(rank, ranks, where, environment=None, **flags):
    line = [ZR_TRAIN, *arguments(**{**FLAGS, "comm": "tcp", "rendezvous": where, "rank": rank, "ranks": ranks, "secret_file": SECRET, **flags})]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})})


def check_bits():
    for stage in range(4):
        want, got = (train(ranks=2, stage=stage, comm=comm, steps=3) for comm in ("local", "tcp"))
        if not ok(want.report and got.report, f"stage {stage}: runs over TCP"):
            note(got.err[-800:])
            continue
        same(got.losses, want.losses, f"stage {stage}: the losses of --comm local")
        same(*[[[[rank["peak_bytes"][tag] for tag in PLANNED_TAGS], rank["sent_bytes_per_step"]] for rank in run.report["ranks"]] for run in (got, want)],
             f"stage {stage}: and its bytes")


def check_rendezvous(host):
    want = train(ranks=2, stage=2, steps=3, **FLAGS)
    report, where = path("rank.json"), free_port(host)
    # The last rank starts first, and takes its number from the environment.
    last = start_rank(None, None, where, {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1", "ZR_SECRET": open(SECRET).read()}, secret_file=None,
                      stage=2, steps=3)
    first = start_rank(0, 2, where, stage=2, steps=3, json=report)
    words = [one.communicate(timeout=HANG)[1] for one in (first, last)]
    if ok(first.returncode == last.returncode == 0, f"ranks meet at {host}") or note("".join(words)[-800:]):
        with open(report) as file:
            same(json.load(file)["loss_hex"], want.report["loss_hex"], "with the losses of --comm local")


def check_lost():
    where, log = free_port("127.0.0.1"), path("log.jsonl")
    ranks = [start_rank(rank, 3, where, steps=100000, heartbeat=0.5, **({"log": log} if rank == 0 else {})) for rank in range(3)]
    in_steps(log)
    os.kill(wait_for(lambda: children(ranks[1].pid))[0], signal.SIGKILL)
    words = [one.communicate(timeout=HANG)[1] for one in ranks]
    same(ranks[1].returncode, 128 + 9, "the launcher of a killed rank says so")
    for rank in (0, 2):
        ok(ranks[rank].returncode == 1 and "rank 1 on host" in words[rank] or "rank 1 (pid" in words[rank], f"rank {rank} names the lost one") \
            or note(words[rank])


def check_restart(lost):
    """A rank that is killed is replaced by its own launcher; the other keeps its process. The rendezvous has a name."""
    steps = 200
    want = train(ranks=2, stage=2, steps=steps, **FLAGS)
    where, log, report = free_port("localhost"), path("log.jsonl"), path("restarted.json")
    if os.path.exists(log):
        os.unlink(log)
    ranks = [start_rank(rank, 2, where, stage=2, steps=steps, max_restarts=1, **({"log": log, "json": report} if rank == 0 else {})) for rank in range(2)]
    in_steps(log)
    before = [children(one.pid) for one in ranks]
    os.kill(before[lost][0], signal.SIGKILL)
    wait_for(lambda: ranks[lost].poll() is not None or children(ranks[lost].pid) not in ([], before[lost]))
    ok(children(ranks[1 - lost].pid) == before[1 - lost], f"rank {1 - lost} keeps its process after rank {lost} is killed")
    words = [one.communicate(timeout=HANG)[1] for one in ranks]
    ok(ranks[0].returncode == ranks[1].returncode == 0 and "restart 1 of 1 replaces it" in words[lost]
       and f"rank {lost} on host" in words[1 - lost] and "restart 1 of 1 waits up to 60 s for it" in words[1 - lost] and "from kept memory" in words[0],
       f"and rank {lost} has a successor") or note("".join(words)[-800:])
    with open(report) as file:
        same(json.load(file)["loss_hex"], want.report["loss_hex"], "with the losses of a run without a kill")


def check_smaller(ranks, steps, lose, **shape):
    """The ranks that lose() takes with their launchers leave the run, whose losses are those of a schedule with its sizes."""
    flags = {**FLAGS, **shape, "stage": 2, "steps": steps, "global_batch": 12, "eval_every": 0}
    where, log, report = free_port("127.0.0.1"), path("elastic.jsonl"), path("elastic.json")
    for file in (log, report):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(file)
    run = [start_rank(rank, ranks, where, elastic=f"2:{ranks}", redundancy=2, max_restarts=1, rejoin_within=0.5, heartbeat=0.5, **flags,
                      **({"log": log, "json": report} if rank == 0 else {})) for rank in range(ranks)]
    name, lost = lose(run, log)
    words = [one.communicate(timeout=HANG)[1] for one in run]
    if not ok(all(one.returncode == 0 or one is lost for one in run) and "stays away: this host takes its place" in words[0]
              and "begins with 2 data replicas" in words[0], f"{name}: the run goes on without it"):
        note("".join(words)[-1500:])
        return
    with open(report) as file:
        got = json.load(file)
    sizes = ",".join(f"{size['step']}:{size['replicas']}" for size in got["sizes"][1:])
    same(got["loss_hex"], train(**flags, ranks=ranks, resize=sizes).report["loss_hex"], f"{name}: with the losses of --resize")


def lose_one(run, log):
    wait_for(lambda: os.path.exists(log) and open(log).read().count("\n") >= 20)  # copies of a step exist two steps later
    run[1].kill()
    return "a host that is lost for good", run[1]


def lose_another(run, log):
    """No step has been copied in the new size when its first ranks meet."""
    in_steps(log)
    os.kill(children(run[3].pid)[0], signal.SIGTERM)
    run[3].wait()
    run[2].kill()
    return "a host that is lost while the run gets smaller", run[2]


def check_refused(reason, **flags):
    got = train(**{**FLAGS, **flags})
    ok(got.code == 2 and reason in got.err and got.err.count("\n") == 1, f"refused: {reason}") or note(got.err[-500:])


check_bits()
check_rendezvous("127.0.0.1")
if socket.has_ipv6 and os.path.exists("/proc/net/if_inet6"):
    check_rendezvous("[::1]")
check_lost()
check_restart(lost=0)
check_smaller(3, 300, lose_one)
check_smaller(4, 30, lose_another, seq=64)
far = dict(comm="tcp", ranks=2, rank=1, secret_file=SECRET)
check_refused("--rendezvous requires --comm tcp", rendezvous="a:1")
check_refused("--heartbeat requires --comm tcp", heartbeat=2)
check_refused("--tcp-streams requires --comm tcp", tcp_streams=2)
check_refused("--rejoin-within requires --max-restarts", comm="tcp", ranks=2, rejoin_within=5)
check_refused("--secret-file requires --rendezvous", comm="tcp", secret_file=SECRET)
check_refused("requires the rank of this process", comm="tcp", ranks=2, rendezvous="a:1")
check_refused("--rank 2 requires --rendezvous, and --ranks N above it", comm="tcp", ranks=2, rank=2, rendezvous="a:1")
check_refused("--elastic over --rendezvous requires --redundancy 2", rendezvous="127.0.0.1:1", elastic="2:3", **{**far, "ranks": 3})
check_refused("requires a MIN of 2 or more", rendezvous="127.0.0.1:1", elastic="1:3", redundancy=2, max_restarts=1, **{**far, "ranks": 3})
check_refused("give HOST:PORT", rendezvous="nowhere", **far)
check_refused("neither an address nor a name that this host knows", rendezvous="nowhere.invalid:1", **far)
check_refused("requires --secret-file", **{**far, "rendezvous": "127.0.0.1:1", "secret_file": None})
os.chmod(SECRET, 0o644)
check_refused("is open to other users; run: chmod 600", rendezvous="127.0.0.1:1", **far)
os.chmod(SECRET, 0o600)
with open(SECRET, "w") as file:
    file.write("short\n")
check_refused("at least 16 are required", rendezvous="127.0.0.1:1", **far)
check_refused("the ranks need a place to meet", comm="tcp", ranks=None, environment={"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "9"})
done()
