#!/usr/bin/env python3
"""The traces of ../shared/traces, where they are: what policy zr and zr pack have to reach on each. A replay counts work
and no time, so that its figures are the same on every machine; only zr pack goes by the clock."""
import json
import math
import os
import resource
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, LONG_HANG, done, note, ok, run_limited, same, skip

ZR = os.path.abspath(os.path.join(BUILD, "bin", "zr"))
FOLDER = "../shared/traces"
GRANULE = 2 << 20
MINIMALLOC_UNIT, MINIMALLOC_CAPACITY = 65536, 1048576
REPEATS = 10
PACK_SECONDS = 240  # for a second attempt, where the machine does much else: it ends as soon as it has found

# Name, the most that a replay's whole run may reserve over the lower bound, and the most that zr pack's height may be.
TRACES = [("torch_medium_128_training.pickle", 1.015, 1.001), ("torch_medium_512_training.pickle", 1.015, 1.001),
          ("pangu_2.6B.csv", 1.015, 1.006), ("iopddl_S_1.csv", 1.015, 1.003),
          *((f"minimalloc_{letter}.csv", 1.001, None) for letter in "ABCDEF")]


def zr(words, subcommand, name, *options):
    """The one result of a run, or None where there is none, which is a failed check."""
    got = run_limited([ZR, subcommand, os.path.join(FOLDER, name), *options, "--json"], timeout=LONG_HANG)
    try:
        result, = json.loads(got.stdout)["results"]
    except (ValueError, KeyError) as error:
        ok(False, f"{name}, {words}: exit {got.returncode}, and no result ({error})")
        note(got.stderr)
        return None
    failed = result.get("verdict", "found") != "found" or result.get("failed_at") is not None
    if not ok(got.stderr == "" and got.returncode == failed, f"{name}, {words}: exit {got.returncode}"):
        note(got.stderr)
    return result


def pack(name, bar):
    """zr pack as it comes; where it has missed the bar, the machine may be busy: within the bar, with time to spare."""
    if bar is None:
        return zr(f"pack within {MINIMALLOC_CAPACITY}", "pack", name, "--capacity", str(MINIMALLOC_CAPACITY), "--time",
                  str(PACK_SECONDS))
    first = zr("pack", "pack", name)
    if first is None or first["height"] <= bar * first["lower_bound"]:
        return first
    note(f"{name}: {first['ratio']:.6f} in {first['seconds']:.1f} s; again, with {PACK_SECONDS} s for {bar}")
    return zr(f"pack within {bar} x the lower bound", "pack", name, "--capacity", str(int(bar * first["lower_bound"])),
              "--time", str(PACK_SECONDS))


def check_pack(name, bar):
    """Returns what zr pack says, or None."""
    packed = pack(name, bar)
    if packed is None:
        return None
    limit = MINIMALLOC_CAPACITY if bar is None else bar * packed["lower_bound"]
    wanted = f"a capacity of {MINIMALLOC_CAPACITY}" if bar is None else f"{bar} x the lower bound"
    ok(packed["verdict"] == "found" and packed["height"] <= limit,
       f"{name}: pack is within {wanted}: {packed['height']}, a ratio of {packed['ratio']:.6f}")
    note(f"{name}: pack took {packed['seconds']:.2f} s")
    return packed


def replay(name, unit, words, *options):
    """A run of policy zr, of which the last repeat calls no driver; or None."""
    units = () if unit == 1 else ("--unit", str(unit))
    run = zr(words, "replay", name, "--policy", "zr", "--granule", str(GRANULE), *units, *options)
    if run is not None:
        same((run["failed_at"], run["driver_calls_last_repeat"]), (None, 0),
             f"{name}, {words}: served to the end, and no driver call in the last repeat")
    return run


def check_whole_run(name, unit, bar, packed):
    run = replay(name, unit, f"{REPEATS} repeats", "--repeat", str(REPEATS))
    if run is None:
        return
    bound = run["lower_bound_bytes"]
    ok(0 < bound <= run["peak_reserved_bytes"] <= bar * bound,
       f"{name}: {run['peak_reserved_bytes'] / bound:.6f} x the lower bound over the whole run, of {bar} at most")
    if packed is None:
        return
    same(bound, packed["lower_bound"] * unit, f"{name}: replay and pack have one lower bound")
    last, most = round(run["ratio_last_repeat"] * bound / GRANULE), math.ceil(packed["height"] * unit / GRANULE) + 1
    ok(last <= most, f"{name}: {last} granules in the last repeat, of {most} at most: zr pack's height and one")


def check_trace(name, replay_bar, pack_bar):
    if not os.path.exists(os.path.join(FOLDER, name)):
        skip(f"{FOLDER}/{name} is not there")
        return
    unit = MINIMALLOC_UNIT if pack_bar is None else 1
    check_whole_run(name, unit, replay_bar, check_pack(name, pack_bar))


if os.path.isdir(FOLDER):
    for trace in TRACES:
        check_trace(*trace)
    got = run_limited(["tests/system/readme.t", "results"])
    same(got.returncode, 0, "the figures of tests/bench/RESULTS.md are what the programs print") or note(got.stdout)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    note(f"{used.ru_utime + used.ru_stime:.0f} s of processor time")
else:
    skip(f"no traces here: {FOLDER} is not there")
done()
