#!/usr/bin/env python3
"""A gibibyte back from who has it idle, and from who does not answer; a minute of zrd with eight clients, and half a minute of a
device's zrd: tests/support/service_soak.py."""
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, "tests/support")
from service_soak import soak
from zrd_client import MIB, Program, Speaker, Zrd
from zrtest import done, ok, same

GIB = 1024 * MIB


def timed(speaker, number_of_bytes):
    start = time.monotonic()
    return speaker.ask("lease", bytes=number_of_bytes)["kind"], time.monotonic() - start


def heard(speaker):
    """The last that its bell said, until the end."""
    last = None
    while (one := speaker.hear(speaker.bell)) is not None:
        last = one
    return last


def check_gibibyte():
    zrd = Zrd("--capacity", GIB + 64 * MIB)
    idle, wants = Program(), Speaker()
    idle.command("take 1024")
    idle.command("give")
    answer, seconds = timed(wants, GIB)
    same((answer, idle.command("take 8"), idle.end()), ("granted", "", 0), f"1 GiB that is idle comes back in {seconds * 1e3:.0f} ms (50 on a machine that does nothing else), from a client that goes on")
    wants.close()
    zrd.end()
    zrd = Zrd("--capacity", GIB + 64 * MIB, "--within", 1000)
    deaf, others = Speaker(), [Speaker() for _ in range(3)]
    same(deaf.ask("lease", bytes=GIB)["kind"], "granted", "a client with 1 GiB in use, which answers nothing")
    deaf.send("file")
    deaf.hear()
    os.posix_fallocate(deaf.fds[0], 0, GIB)
    with ThreadPoolExecutor(len(others)) as pool:
        got = list(pool.map(timed, others, (GIB // 2, GIB // 4, 128 * MIB)))
    same([answer for answer, _ in got], ["granted"] * 3, f"three get it, after {', '.join(f'{seconds:.2f}' for _, seconds in got)} s where the deadline is 1 s")
    ok("within 1000 ms: its leases end" in heard(deaf)["words"] and os.fstat(deaf.fds[0]).st_size == 0, "and it is ended, its memory gone")
    for one in (deaf, *others):
        one.close()
    zrd.end()


check_gibibyte()
for kind, seconds in (("host", 60), ("cuda", 30)):
    soak(kind, seconds)
done()
