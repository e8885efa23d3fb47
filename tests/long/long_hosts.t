#!/usr/bin/env python3
"""--comm tcp between two hosts in namespaces of this machine, which meet at a rendezvous: the bits of one host, a link that is cut for a
while or for good, ranks that are killed, and a host that comes back with new processes."""
import json
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, "tests/support")
from hosts import ADDRESSES, become_hosts, cut, in_second, mend
from zrtest import HANG, ZR_TRAIN, arguments, children, done, in_steps, note, ok, path, same, skip, start_quickly, text_file, train, wait_for

start_quickly()
SHAPE = dict(layers=2, hidden=48, heads=4, seq=16, batch=2, eval_every=0, warmup=1, seed=11, threads=1)
SECRET = path("secret")


def start(rank, ranks, **flags):
    """Ranks of the upper half are on the second host."""
    line = [ZR_TRAIN, *arguments(data=text_file(), comm="tcp", ranks=ranks, rank=rank, rendezvous=f"{ADDRESSES[0]}:29500", secret_file=SECRET,
                                 **SHAPE, **flags)]
    return subprocess.Popen(line if rank < ranks // 2 else in_second(*line), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(ranks):
    return [one.communicate(timeout=HANG)[1] for one in ranks]


def check_bits(ranks, streams=2, **flags):
    report = path("report.json")
    want = train(ranks=ranks, steps=3, **SHAPE, **flags)
    # Those of the second host wait for the first.
    words = end(run := [start(rank, ranks, steps=3, tcp_streams=streams, **flags, **({"json": report} if rank == 0 else {})) for rank in reversed(range(ranks))])
    if not ok(want.report and not any(one.returncode for one in run), f"{ranks} ranks of two hosts, {flags}: run"):
        note("".join(words)[-800:])
        return
    with open(report) as file:
        got = json.load(file)
    same(got["loss_hex"], want.report["loss_hex"], "with the losses of one host")
    same([rank["sent_bytes_per_step"] for rank in got["ranks"]], [rank["sent_bytes_per_step"] for rank in want.report["ranks"]], "and its bytes")


def check_cut():
    log = path("cut.jsonl")
    run = [start(rank, 2, steps=1000000, heartbeat=0.5, **({"log": log} if rank == 0 else {})) for rank in range(2)]
    in_steps(log)
    pids = [children(one.pid)[0] for one in run]
    why = cut()
    words = end(run)
    if why:
        return skip(why)
    for rank, host in enumerate(("zr-second", "zr-first")):
        # The two hosts have one table of processes: the other rank may have noticed the cut before and have ended.
        ok(run[rank].returncode == 1 and (f"rank {1 - rank} on host {host} has not answered for 2.5 s" in words[rank] or
                                          f"rank {1 - rank} (pid {pids[1 - rank]}) has exited" in words[rank]),
           f"a cut link: rank {rank} names the other") or note(words[rank][-600:])
    ok("has not answered for 2.5 s" in "".join(words), "a cut link: after five heartbeats") or note("".join(words)[-1200:])
    return None


def lines(log):
    with open(log) as file:
        return len(file.readlines())


class Restarted:
    """A run of ranks with two on each host, each with its launcher, that is in its steps."""
    HEARTBEAT = 0.2  # a rank is lost after five
    RANKS = 4
    wants = {}

    def __init__(self, steps, **flags):
        self.steps, self.flags = steps, {"stage": 2, "steps": steps, "heartbeat": self.HEARTBEAT, "rejoin_within": 30, "max_restarts": 3, **flags}
        self.log, self.report = path("log.jsonl"), path("restarted.json")
        for file in (self.log, self.report):
            if os.path.exists(file):
                os.unlink(file)
        self.run = [self.start(rank) for rank in range(self.RANKS)]
        in_steps(self.log)

    def start(self, rank):
        saves = {"save": path(f"saved-{rank // 2}"), "save_every": 0} if "elastic" in self.flags else {}
        return start(rank, self.RANKS, **self.flags, **saves, **({"log": self.log, "json": self.report} if rank == 0 else {}))

    def pids(self):
        return [(children(one.pid) or [0])[0] for one in self.run]

    def kill(self, rank):
        """Whether the rank has a successor, and the others their processes."""
        before = self.pids()
        os.kill(before[rank], signal.SIGKILL)
        wait_for(lambda: self.run[rank].poll() is not None or self.pids()[rank] not in (0, before[rank]))
        after = self.pids()
        return [r for r in range(self.RANKS) if before[r] != after[r]] == [rank]

    def more_steps(self):
        done_steps = lines(self.log)
        return wait_for(lambda: any(one.poll() is not None for one in self.run) or lines(self.log) > done_steps + 10)

    def same_bits(self, name):
        """The run ends with the losses of an uninterrupted one."""
        self.words = end(self.run)
        codes = [one.returncode for one in self.run]
        if not ok(not any(codes), f"{name}: the run ends with all its steps"):
            note("".join(self.words)[-1500:])
            return
        if self.steps not in self.wants:
            self.wants[self.steps] = train(ranks=self.RANKS, steps=self.steps, stage=2, **SHAPE).report["loss_hex"]
        want = self.wants[self.steps]
        with open(self.report) as file:
            got = json.load(file)["loss_hex"]
        same(got, want[len(want) - len(got):], f"{name}: with the losses of an uninterrupted one")


def check_kills():
    run = Restarted(400)
    good = True
    for rank in (3, 0, 1):  # the second host; where the ranks meet; beside it
        good &= run.kill(rank) and bool(run.more_steps())
    ok(good, "ranks of both hosts are killed: the others keep their processes")
    run.same_bits("three kills")
    same("".join(run.words).count("replaces it"), 3, "each has a successor of its own launcher")


def check_cuts():
    run = Restarted(400)
    before = run.pids()
    cut()
    time.sleep(run.HEARTBEAT)
    mend()
    run.more_steps()
    waits = [one.poll() for one in run.run]
    cut()
    time.sleep(10 * run.HEARTBEAT)
    mend()
    run.more_steps()
    ok(waits == [None] * run.RANKS and run.pids() == before, "a link that is cut for a while: all ranks keep their processes")
    run.same_bits("two cuts")
    for rank in range(run.RANKS):
        other = "zr-second" if rank < 2 else "zr-first"
        # The short cut has no effect; a rank may see the other ranks of its host leave before it misses the heartbeats.
        same(run.words[rank].count("waits up to 30 s for it"), 1, f"rank {rank} waits once, for the long cut")
    ok(f"on host {other} has not answered for 1 s" in "".join(run.words), "and the words name the host") or note("".join(run.words)[-1500:])


def check_cut_for_good():
    run = Restarted(1000000, rejoin_within=2)
    cut()
    words = end(run.run)
    mend()
    same([one.returncode for one in run.run], [1] * run.RANKS, "a link that is cut for good: both sides end with exit code 1")
    ok(all("was not back within 2 s" in one for one in words) and "on host zr-second" in "".join(words[:2]) and "on host zr-first" in "".join(words[2:]),
       "and name the other host") or note("".join(words)[-1500:])


def lose_second_host(name, **flags):
    """Both launchers of the second host are killed, and started again while the first host waits."""
    run = Restarted(300, **flags)
    wait_for(lambda: lines(run.log) >= 60)
    for rank in (2, 3):
        run.run[rank].kill()
        run.run[rank].communicate()
    before = run.pids()
    for rank in (2, 3):
        run.run[rank] = run.start(rank)
    run.more_steps()
    same(run.pids()[:2], before[:2], f"{name}: the ranks of the first host keep their processes")
    run.same_bits(name)
    return run.words


def check_smaller(cuts):
    """The second host is lost for good, by the death of its launchers or by its link."""
    name = "a link that is cut for good" if cuts else "a host that is lost for good"
    run = Restarted(120, elastic="2:4", redundancy=2, rejoin_within=1, stage=3 - cuts, global_batch=12)
    wait_for(lambda: lines(run.log) >= 20)
    before = run.pids()[:2]
    partial = os.path.join(path("saved-1"), ".step-00000007.partial")  # as of a save that the first host is writing
    os.makedirs(partial, exist_ok=True)
    if cuts:
        cut()
    else:
        for rank in (2, 3):
            run.run[rank].kill()
    run.more_steps()
    after = run.pids()[:2]
    run.words = end(run.run)
    mend()
    same(after, before, f"{name}: the ranks of the first host keep their processes") or note("".join(run.words[:2])[-2500:])
    same([one.returncode for one in run.run], [0, 0] + [1 if cuts else -signal.SIGKILL] * 2, f"{name}: the first host ends with all its steps") or \
        note("".join(run.words)[-2500:])
    with open(run.report) as file:
        got = json.load(file)
    same([size["replicas"] for size in got["sizes"]], [4, 2], "with two replicas")
    ok(os.path.exists(partial), "and the other host has not removed a save in progress")
    schedule = {**run.flags, "resize": f"{got['sizes'][-1]['step']}:2"}
    for key in ("heartbeat", "rejoin_within", "max_restarts", "elastic", "redundancy"):
        del schedule[key]
    same(got["loss_hex"], train(ranks=4, **schedule, **SHAPE).report["loss_hex"], "and the losses of --resize")
    ok(all("was not back within 1 s" in one for one in run.words[2:] if cuts) and "takes its place until its replica has left" in run.words[0],
       "and words") or note("".join(run.words)[-2500:])


def check_new_host():
    words = lose_second_host("a host that comes back with new processes", save=path("saved"), save_every=20)
    ok("resumed after step" in words[0], "from the last save") or note(words[0][-800:])
    words = lose_second_host("the same with copies on the first host", redundancy=2)
    ok("from kept memory" in words[0] and all("continues from the copy of its state" in one for one in words[2:]), "from the copies, without a save") or \
        note("".join(words)[-1500:])


why = become_hosts(mpi=False)
if why:
    skip(why)
else:
    with open(SECRET, "w") as file:
        file.write("0123456789abcdef0123456789abcdef")
    os.chmod(SECRET, 0o600)
    for stage in range(4):
        check_bits(4, stage=stage)
    check_bits(4, stage=1, tp=2, streams=5)
    check_bits(4, stage=0, pp=2, accumulate=2, streams=1)
    check_kills()
    check_cuts()
    check_cut_for_good()
    check_smaller(cuts=False)
    check_smaller(cuts=True)
    check_new_host()
    check_cut()
done()
