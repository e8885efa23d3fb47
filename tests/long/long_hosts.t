#!/usr/bin/env python3
"""--comm tcp between two hosts in namespaces of this machine, which meet at a rendezvous: the bits of one host, and a link that is cut."""
import json
import os
import subprocess
import sys

sys.path.insert(0, "tests/support")
from hosts import ADDRESSES, become_hosts, cut, in_second
from zrtest import HANG, ZR_TRAIN, arguments, done, in_steps, note, ok, path, same, skip, start_quickly, text_file, train

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
    log = path("log.jsonl")
    run = [start(rank, 2, steps=1000000, heartbeat=0.5, **({"log": log} if rank == 0 else {})) for rank in range(2)]
    in_steps(log)
    why = cut()
    words = end(run)
    if why:
        return skip(why)
    for rank, names in enumerate(("rank 1 on host zr-second", "rank 0 on host zr-first")):
        ok(run[rank].returncode == 1 and names in words[rank] and "has not answered for 2.5 s" in words[rank], f"a cut link: rank {rank} names the other") \
            or note(words[rank][-600:])
    return None


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
    check_cut()
done()
