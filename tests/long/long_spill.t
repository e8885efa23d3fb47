#!/usr/bin/env python3
"""Two runs that each keep more than 1 GiB between steps, where there is room for one: who rests goes to a file, and both have
the losses that they have alone. How long a gibibyte takes to go is printed."""
import os
import sys

sys.path.insert(0, "tests/support")
from concurrent.futures import ThreadPoolExecutor

from zrd_client import ENVIRONMENT, MIB, Zrd, lent, status
from zrtest import done, note, ok, path, same, settles, text_file, train

SHAPE = {"layers": 24, "hidden": 512, "heads": 8, "seq": 16, "batch": 1, "steps": 4, "data": text_file(), "force": True}
ENVIRONMENT = {**ENVIRONMENT, "ZR_CONF": "service:required"}


def check():
    disk = path("disk")
    os.mkdir(disk)
    with ThreadPoolExecutor(2) as pool:
        def start(seed):
            return pool.submit(lambda: train(environment=ENVIRONMENT, **SHAPE, seed=seed, spill=f"nvme:{disk}"))

        zrd = Zrd("--capacity", 8192 * MIB, "--turn", 100)
        wanted = [start(seed).result() for seed in (1, 2)]
        same([one.code for one in wanted], [0, 0], "alone")
        rank = wanted[0].report["ranks"][0]
        planned = rank["spill"]["planned_bytes"]
        ok(planned > 1024 * MIB, f"a run keeps {planned >> 20} MiB between steps that it can do without")
        zrd.end()
        zrd = Zrd("--capacity", rank["peak_reserved_bytes"] + 96 * MIB, "--turn", 100)
        both = [start(seed) for seed in (1, 2)]
        got = [one.result() for one in both]
        same([(one.code, one.losses) for one in got], [(0, one.losses) for one in wanted], f"both in {status()['capacity_bytes'] >> 20} MiB, with their own losses")
        spilled = [one.report["ranks"][0]["spill"] for one in got if one.code == 0]
        ok(any(one["most_bytes"] > 1000 * MIB for one in spilled), "a gibibyte in use went and came back")
        for one in spilled:
            if one["spilled_bytes"]:
                note(f"{one['times']} times, {one['spilled_bytes'] >> 20} MiB: "
                     f"{one['write_seconds'] / one['spilled_bytes'] * 2**30:.2f} s a GiB to go, {one['read_seconds'] / one['spilled_bytes'] * 2**30:.2f} s back (the deadline is 5 s)")
        settles(lambda: same((lent(), os.listdir(disk), "leases end" in zrd.words()), (0, [], False), "nothing is left, and nobody was late"))
        zrd.end()


check()
done()
