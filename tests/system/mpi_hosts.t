#!/usr/bin/env python3
"""Hosts as nodes of --compress: two hosts in namespaces of this machine, under mpirun."""
import sys

sys.path.insert(0, "tests/support")
from hosts import become_hosts, train_on_hosts
from zrtest import done, note, ok, same, skip, start_quickly, text_file, train

start_quickly()
SHAPE = dict(layers=2, hidden=48, heads=4, seq=16, batch=2, steps=3, eval_every=0, warmup=1, seed=11, threads=1)


def check_nodes(ranks, same_as, **flags):
    local = train(ranks=sum(ranks), **SHAPE, **flags, **same_as)
    got = train_on_hosts(ranks, data=text_file(), **SHAPE, **flags)
    words = f"{ranks[0]} and {ranks[1]} ranks, {flags}"
    if not ok(got.report, f"{words}: runs") or not ok(local.report, f"{words}: and so on one host {same_as}"):
        return note(got.err[-800:] + local.err[-800:])
    same(got.losses, local.losses, f"{words}: the losses of nodes {same_as}")
    return same(*[[rank["sent_bytes_per_step"] for rank in run["ranks"]] for run in (got.report, local.report)], f"{words}: and their bytes")


def check_refused(words, reason, ranks, flags=(), **more):
    got = train_on_hosts(ranks, flags, data=text_file(), **SHAPE, **more)
    ok(got.report is None and reason in got.err, f"{words}: refused") or note(got.err[-800:])


why = become_hosts()
if why:
    skip(why)
else:
    check_nodes((2, 2), dict(node_size=2), stage=3, compress="qwz,qgz,hpz")
    check_nodes((2, 2), dict(node_size=2), stage=1, compress="qgz")
    check_nodes((1, 1), {}, stage=2, compress="qgz")
    check_nodes((2, 2), {}, stage=1, compress="qgz", tp=2)
    check_refused("hosts of 2 and 1 ranks", "do not divide the data ranks into equal nodes", (2, 1), stage=1, compress="qgz")
    check_refused("ranks in turn on the hosts", "2 consecutive ranks each", (2, 2), ["--map-by", "node"], stage=1, compress="qgz")
    check_refused("hosts of one rank", "--node-size N of 2 or more", (1, 1), stage=3, compress="hpz")
done()
