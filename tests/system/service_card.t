#!/usr/bin/env python3
"""Two runs on one card, the emulated one, with small granules: their steps do not fit at once, and they take turns there, with
a rank each or two. Where each rank has a card of its own, a card keeps what runs take, and who does not fit there is told."""
import os
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, "tests/support")
from zrd_client import ENVIRONMENT, MIB, Holder, Zrd, lent, rows, use, waits, zr
from cuda_train import on_card
from zrtest import done, note, ok, same, wait_for

pool = ThreadPoolExecutor(8)
shape = {"layers": 1, "hidden": 4, "heads": 1, "seq": 32, "batch": 4, "vocab": 300}
use("host")
host = Zrd()
use("cuda", ZR_EMULATOR_GRANULARITY="4096")
conf = {**ENVIRONMENT, "ZR_CONF": "service:required,kernels:emulated,granule:4k", "ZR_EMULATOR_RACES": "0"} # train_cuda.t looks for them


def start(seed, **flags):
    return pool.submit(lambda: on_card(environment=conf, seed=seed, **{**shape, **flags}))


def planned(**flags):
    """Base and peak of a run's ranks on the card."""
    probe = start(1, steps=20000, **flags)
    ranks = flags.get("ranks", 1)
    there = wait_for(lambda: found if len(found := [one for one in rows() if one["in_turn"] and one["held_bytes"]]) == ranks else None)
    got = [sum(one[name] for one in there) for name in ("plan_base_bytes", "plan_peak_bytes")]
    [os.kill(one["pid"], 9) for one in there]
    probe.result()
    return got


got = on_card(environment={**conf, "ZR_CONF": conf["ZR_CONF"].replace("required", "on")}, **shape)
ok(got.code == 0 and "no zrd listens" in got.err and "continues without zrd" in got.err, f"a card without a zrd, which need not be there: {got.err[:200]}")
# Where a turn lasts for four steps, their graph goes with it.
for flags, turn_steps, steps in (({"ranks": 2, "stage": 1}, 0, (2, 2)), ({"cuda_graph": True}, 4, (6, 12))):
    ranks = flags.get("ranks", 1)
    zrd = Zrd("--capacity", 64 * MIB)
    alone = [start(seed, **flags, steps=steps[seed - 1]).result() for seed in (1, 2)]
    same([one.code for one in alone], [0, 0], f"alone on the emulated card, {flags} {alone[0].err[-300:]}")
    base, peak = planned(**flags)
    zrd.end()
    turn = max(10, int(turn_steps * 1000 * statistics.median(alone[1].report["step_seconds"])))
    zrd = Zrd("--capacity", peak + base, "--turn", turn)
    ok(peak > 2 * base, f"a step takes {peak >> 10} KiB, more than twice the {base >> 10} between steps") # or the first would not wait for the holder
    holder = Holder(peak - base, base=0)
    both = [start(seed, **flags, steps=steps[seed - 1]) for seed in (1, 2)]
    ok(wait_for(lambda: len(waits()) == 2 * ranks), f"two of {peak >> 10} KiB in a step and {base >> 10} between steps are let in, where a card lends {peak + base >> 10}")
    holder.close()
    got = [one.result() for one in both]
    same([(one.code, one.bits) for one in got], [(0, one.bits) for one in alone], "and end with their own losses")
    note("".join(one.err[-400:] if one.code else f"{one.report['ranks'][0]['graph_steps']} steps by a graph; " for one in got))
    ok(wait_for(lambda: lent() == 0), "nothing is left")
    zrd.end()

own = {"ranks": 2, "comm": "nccl", "deterministic": True, "steps": 2}
cards = []
for number in (1, 0):
    use("cuda", number, ZR_EMULATOR_GRANULARITY="4096")
    cards.append(Zrd("--capacity", 64 * MIB))
alone = [start(seed, **own).result() for seed in (1, 2)]
both = [start(seed, **own) for seed in (1, 2)]
got = [one.result() for one in both]
same([(one.code, one.bits) for one in got], [(0, one.bits) for one in alone], "two whose ranks have a card of their own, with a zrd each")
note("".join(one.err[-400:] for one in got if one.code))
first = start(1, **{**own, "steps": 20000})
assert wait_for(lambda: any(one["in_turn"] and one["held_bytes"] for one in rows()))
same(zr("limit", "--capacity", wait_for(rows)[0]["plan_peak_bytes"] * 3 // 2).returncode, 0, "a card with room for one of them")
got = start(2, **own).result()
ok(got.code == 4 and "step 1/" not in got.err and "pid  program" in got.err, f"the other is told before step 1: {got.err[-300:]}")
os.kill(wait_for(rows)[0]["pid"], 9)
ok(first.result().code != 0 and wait_for(lambda: lent() == 0), "nothing is left")
for zrd in cards:
    zrd.end()
use("host")
host.end()
done()
