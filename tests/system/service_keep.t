#!/usr/bin/env python3
"""Kept memory in zrd: a segment outlives its writer's kill -9, its successor continues with the same bytes; it counts, is listed and
dropped; zrd is killed beside a living writer and beside a dead one; a segment that no process writes is dropped in time."""
import json
import sys

sys.path.insert(0, "tests/support")
from zrd_client import MIB, Program, Zrd, lent, zr
from zrtest import done, ok, same, settles, wait_for


def segments():
    got = zr("keep", "list", "--json")
    return json.loads(got.stdout)["segments"] if got.returncode == 0 else None


def shard():
    return (segments() or [{}])[0]


zrd = Zrd("--capacity", 64 * MIB)
first = Program("service:on")
same(first.command("keep"), "", "a program keeps a segment of 8 MiB")
same((shard()["name"], shard()["pid"], shard()["generation"], shard()["written"], lent()), ("run/shard", first.pid, 1, True, 10 * MIB),
     "which is listed, and counts with its table's granule")
got = zr("keep", "drop", "run/shard")
ok(got.returncode != 0 and f"process {first.pid} writes" in got.stderr, f"it is not dropped while that lives: {got.stderr.strip()}")
ok("exists already" in (words := Program("service:on").command("keep")), f"its name is used once: {words}")
ok(f"process {first.pid}," in (words := Program("service:on").command("go on after 1 with 77")), f"there is one writer: {words}")
first.end(kill=True)
same((shard()["written"], shard()["generation"], lent()), (False, 1, 10 * MIB), "after kill -9 of its writer it stays, and counts")
ok("  no writer; dropped in 3" in (said := zr("keep", "list").stdout), f"as the list has it: {said.splitlines()[-1]}")
second = Program("service:on")
ok("and this token" in (words := second.command("go on after 1 with 78")), f"no process opens it without the token: {words}")
same(second.command("go on after 1 with 77"), "", "a successor has the same bytes, and commits")
same((shard()["pid"], shard()["generation"], shard()["lease"]), (second.pid, 2, 2), "as the second writer")
zrd.end(kill=True)
zrd = Zrd("--capacity", 64 * MIB)
same((segments(), second.command("step"), shard()["generation"], lent()), ([], "", 3, 10 * MIB), "the next zrd hears of it at the next generation")
second.end(kill=True)
got = zr("keep", "drop", "run/shard")
settles(lambda: same((got.returncode, segments(), lent()), (0, [], 0), "it is dropped, and counts no more"))
third = Program("service:on")
third.command("keep")
third.end(kill=True)
got = zr("stop")
ok("kept memory that no process writes is lost: segments: 1" in got.stderr, f"zr service stop says what goes with it: {got.stderr.strip()}")
ok("segment 'run/shard' is lost" in zrd.words(), "and so does the log")
zrd.end()
zrd = Zrd("--capacity", 64 * MIB, "--keep-for", 1)
fourth = Program("service:on")
same(fourth.command("keep"), "", "a segment that is kept for a second")
fourth.end(kill=True)
ok(wait_for(lambda: segments() == []) and wait_for(lambda: lent() == 0), "is gone after it")
ok("no process has written it for 1 s" in zrd.words(), "and the log says why")
zrd.end()
done()
