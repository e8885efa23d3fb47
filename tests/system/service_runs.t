#!/usr/bin/env python3
"""Runs with a byte plan under zrd: two whose steps do not fit at once take turns or compute beside one another, and have their own losses; who does not fit
is told before step 1, with exit code 4 and who holds what; ranks rest together; zrd and clients are killed meanwhile."""
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, "tests/support")
from zrd_client import ENVIRONMENT, MIB, Holder, Program, Speaker, ZR, Zrd, lent, rows, waits, zr
from zrtest import BUILD, done, in_steps, note, ok, path, same, settles, text_file, train, wait_for

REQUIRED = {**ENVIRONMENT, "ZR_CONF": "service:required"}
# Some 60 MiB in a step, of which 4 stay between steps.
SHAPE = {"layers": 4, "hidden": 64, "heads": 4, "seq": 128, "batch": 16, "threads": 1, "steps": 6, "data": text_file()}
BAR = 1.15
pool = ThreadPoolExecutor(8)


def run(**flags):
    """zr-train under the service: what it comes to, and how long it took."""
    def timed():
        start = time.monotonic()
        got = train(environment=REQUIRED, **{**SHAPE, **flags})
        return got, time.monotonic() - start
    return pool.submit(timed)


def check_two(alone):
    zrd = Zrd("--capacity", CAPACITY, "--turn", 100, "--processors", 1)
    holder = Holder(PEAK - BASE + 2 * MIB)
    runs = [run(seed=seed) for seed in alone]
    ok(wait_for(lambda: len(waits()) == 2), "two runs are let in, whose peaks together are beyond the capacity")
    settles(lambda: same(sum(one["plan_peak_bytes"] for one in rows()) > CAPACITY, True, f"their plans: {[one['plan_peak_bytes'] >> 20 for one in rows()]} MiB of {CAPACITY >> 20}"))
    beyond = run(batch=48).result()[0]
    ok(beyond.code == 4 and "step 1/" not in beyond.err, "a third that truly does not fit is refused before step 1")
    table = re.findall(r"^ *(\d+)  zr-train +\S+ +(?:[\d.]+ [KMG]iB|0) +([\d.]+) MiB", beyond.err, re.M)
    ok(len(table) == 2 and "pid  program" in beyond.err and "zrd lends" in beyond.err, "with the table of holders:")
    note(beyond.err.strip())
    start = time.monotonic()
    holder.close()
    got = [one.result() for one in runs]
    together = time.monotonic() - start
    same([(one.code, one.losses) for one, _ in got], [(0, alone[seed][0].losses) for seed in alone], "both end, with their own losses")
    seconds = sum(took for _, took in alone.values())
    note(f"alone {', '.join(f'{took:.2f}' for _, took in alone.values())} s; together {together:.2f} s, "
         f"{together / seconds:.2f} of the sum (the bar, on a machine with room for both at once, is {BAR})")
    ok(wait_for(lambda: lent() == 0), "nothing is left")
    zrd.end()
    rest = CAPACITY - PEAK
    without = train(**{**SHAPE, "memory_limit": rest})
    same((without.code, "step 1/" in without.err), (4, False), f"without the service the second has {rest >> 20} MiB, and fails")


def check_beside(alone):
    """Where there are processors for both, two whose peaks do not fit compute at once: what one's step needs no more the other
    has. Evaluations come between; zrd is killed, and one of them."""
    room = ("--capacity", CAPACITY, "--turn", 600000, "--processors", 2)  # none ends a turn for its time
    zrd = Zrd(*room)
    logs = [path(f"beside{seed}.log") for seed in alone]
    flags = {"steps": 20000, "eval_every": 2, "schedule_lr": "constant", "warmup": 1}
    both = [run(seed=seed, log=log, **flags) for seed, log in zip(alone, logs)]
    ok(wait_for(lambda: [one["in_turn"] for one in rows()] == [True, True]), "two runs have their turns at once")
    ok(wait_for(lambda: min(one["held_bytes"] for one in rows()) > CAPACITY - PEAK + 2 * MIB), "and hold, both, more than there is beside the other's peak")
    same(max(lent() for _ in range(20)) <= CAPACITY, True, "within the capacity")
    turn = max(one["turn"] for one in rows())
    zrd.end(kill=True)
    zrd = Zrd(*room)
    ok(wait_for(lambda: [one["in_turn"] for one in rows()] == [True, True]), "a zrd that starts anew has both in their turns")
    settles(lambda: same(min(one["turn"] for one in rows()) + 1 >= turn, True, "in the same order"))
    last = {log: os.path.getsize(log) for log in logs if in_steps(log)}
    ok(wait_for(lambda: all(os.path.getsize(log) > last[log] + 500 for log in logs)), "and both go on")
    first, second = (one["pid"] for one in wait_for(rows))
    os.kill(first, 9)
    ok(wait_for(lambda: len(rows()) == 1), "one is killed in its step")
    with open(f"/proc/{second}/stat", encoding="utf-8") as file:
        os.kill(int(file.read().rsplit(")", 1)[1].split()[1]), signal.SIGTERM)  # who has started the rank
    got = sorted((one.result()[0] for one in both), key=lambda one: one.code != 143)
    want = [train(**{**SHAPE, **flags, "steps": 6, "seed": seed}).losses for seed in alone]
    took = (got[0].losses or [])[:6] if got[0].code == 143 else []
    ok(len(took) > 2 and took in [losses[:len(took)] for losses in want], f"the other ends when it is to, after {len(took)} steps or more, with its own losses")
    note(got[0].err[-300:] if got[0].code != 143 else "")
    both = [run(seed=seed) for seed in alone]
    got = [one.result()[0] for one in both]
    same([(one.code, one.losses) for one in got], [(0, one.losses) for one, _ in alone.values()], "both end, with their own losses")
    ok(wait_for(lambda: lent() == 0), "nothing is left")
    zrd.end()


def check_followed():
    """What a zrd that starts anew hears of turns and claims holds: who comes second waits for what the first claims."""
    zrd = Zrd("--capacity", 100 * MIB, "--processors", 2)
    plan = {"plan_base_bytes": 10 * MIB, "plan_peak_bytes": 70 * MIB, "run_count": 1, "count": 1, "flags": 128 + 2048}
    def lease(speaker, mib):
        while (answer := speaker.ask("lease", bytes=mib * MIB))["kind"] == "later":
            pass
        return answer["kind"]

    second = Speaker(held_bytes=40 * MIB, claim_bytes=60 * MIB, turn=8, **plan)
    first = Speaker(held_bytes=30 * MIB, claim_bytes=50 * MIB, turn=7, **plan)
    same(lease(second, 10), "granted", "who comes second has what the first does not claim")
    second.send("lease", bytes=2 * MIB)
    same((lease(first, 20), second.hear()["kind"]), ("granted", "later"), "the first has what it claims, and the second waits")
    first.send("return", bytes=20 * MIB)
    first.send("claim", claim_bytes=40 * MIB)
    same(lease(second, 2), "granted", "until that is claimed no more")
    for speaker in (first, second):
        speaker.close()
    zrd.end()


def check_ranks(alone):
    """Two ranks that rest together, beside a run with a tier for its optimizer; zrd is killed while one waits for the other."""
    flags = {"ranks": 2, "stage": 1, "batch": 8, "schedule_lr": "constant", "warmup": 1}
    tier = {"precision": "bf16", "offload_optimizer": "cpu"}
    wanted = [train(**{**SHAPE, **flags}), train(**{**SHAPE, **tier})]
    zrd = Zrd("--capacity", CAPACITY + 24 * MIB, "--turn", 600000)
    first = run(**flags, steps=20000, save=path("ranks"), log=path("ranks.log"))
    ok(in_steps(path("ranks.log")) and wait_for(lambda: [one["in_turn"] for one in rows()] == [True, True]), "a run of two ranks, in its turn")
    second = run(**tier)
    ok(wait_for(lambda: len(rows()) == 3 and len(waits()) == 1), "and one with an offload tier, which waits for it")
    note([(one["plan_base_bytes"] >> 20, one["plan_peak_bytes"] >> 20) for one in rows()])
    zrd.end(kill=True)
    zrd = Zrd("--capacity", CAPACITY + 24 * MIB, "--turn", 50)
    got = second.result()[0]
    same((got.code, got.losses), (0, wanted[1].losses), "zrd is killed and starts anew: who waited ends, with its own losses")
    note(got.err[-300:] if got.code else "")
    with open(f"/proc/{wait_for(rows)[0]['pid']}/stat", encoding="utf-8") as file:
        os.kill(int(file.read().rsplit(")", 1)[1].split()[1]), signal.SIGTERM)  # who has started the ranks
    got = first.result()[0]
    same((got.code, got.losses[:6]), (143, wanted[0].losses), "and who had the turn goes on, until it is to end")
    note(got.err[-300:] if got.code != 143 else "")
    ok(wait_for(lambda: lent() == 0), "nothing is left")
    zrd.end()


def check_number():
    """A run whose turn has the number 2 tells the next zrd so, which would count from 1."""
    arguments = ("--capacity", CAPACITY, "--turn", 600000)
    zrd = Zrd(*arguments)
    Holder(4 * MIB).close()
    first = run(steps=20000)
    ok(wait_for(lambda: any(one["in_turn"] and one["turn"] == 2 for one in rows())), "a run has the second turn")
    zrd.end(kill=True)
    zrd = Zrd(*arguments)
    same(wait_for(lambda: [one["turn"] for one in rows() if one["in_turn"]]), [2], "and keeps its number at a zrd that starts anew")
    os.kill(rows()[0]["pid"], 9)
    first.result()
    zrd.end()


def check_deaths(alone):
    """Of a run that waits to be let in, for its turn, and in its turn."""
    seed = next(iter(alone))
    zrd = Zrd("--capacity", CAPACITY, "--turn", 600000, "--processors", 1)  # longer than the test: who waits does so until the other ends
    half = Speaker()
    same(half.ask("plan", plan_base_bytes=MIB, plan_peak_bytes=2 * MIB, run=9, run_count=2)["kind"], "later", "a run of two of which one has come")
    first = run(seed=seed, steps=20000)
    ok(wait_for(lambda: any(one["in_turn"] and one["held_bytes"] > 32 * MIB for one in rows())), "a run in its turn")
    pid = wait_for(rows)[0]["pid"]
    second = run(seed=seed)
    ok(wait_for(lambda: any(one["pid"] != pid for one in waits())), "and one that waits")
    os.kill(next(one["pid"] for one in rows() if one["pid"] != pid), 9)
    ok(second.result()[0].code != 0 and wait_for(lambda: len(rows()) == 1), "who is killed is gone")
    second = run(seed=seed)
    ok(wait_for(lambda: any(one["pid"] != pid for one in waits())), "another waits")
    os.kill(pid, 9)
    got = second.result()[0]
    same((got.code, got.losses), (0, alone[seed][0].losses), "and ends well, where the first is killed in its turn")
    ok(first.result()[0].code != 0, "which says so")
    half.send("turn")
    heard = [half.hear(half.bell)["kind"]]
    while heard[-1] == "inquire":
        heard.append(half.hear(half.bell)["kind"])
    same((half.hear(), heard[-1]), (None, "ended"), "a turn without having been let in ends a client")
    half.close()
    zrd.end()
    waiting = run(seed=seed)
    waiting.result()
    ok(waiting.result()[0].code == 4 and "zr service start" in waiting.result()[0].err, "without zrd, where it is required, no run begins")


def check_spill():
    """Two runs that keep more between steps than one can have beside the other's step: who rests goes to a file as far as the
    other needs it. The end of zrd, of a run by kill -9 while it is there, and a disk that fails."""
    def start(fault=None, **flags):
        return pool.submit(lambda: train(environment={**REQUIRED, **({"ZR_FAULT": fault} if fault else {})}, **{**shape, **flags}))

    disk = path("disk")
    os.mkdir(disk)
    shape = {**SHAPE, "layers": 8, "hidden": 256, "batch": 1, "seq": 64, "steps": 4, "spill": f"nvme:{disk}", "force": True}
    zrd = Zrd("--capacity", 512 * MIB, "--turn", 10)
    wanted = [start(seed=seed).result() for seed in (1, 2)]
    same([one.report["ranks"][0]["spill"]["spilled_bytes"] for one in wanted], [0, 0], "a run alone spills nothing")
    both = [start(seed=seed, steps=20000) for seed in (1, 2)]
    assert wait_for(lambda: len(rows()) == 2 and all(one["held_bytes"] > 32 * MIB for one in rows()))
    peak, base = (wait_for(rows)[0][name] for name in ("plan_peak_bytes", "plan_base_bytes"))
    for one in rows():
        os.kill(one["pid"], 9)
    [one.result() for one in both]
    zrd.end()

    planned = wanted[0].report["ranks"][0]["spill"]["planned_bytes"]
    room = ("--capacity", peak + base - planned + 8 * MIB, "--turn", 10)
    zrd = Zrd(*room)
    without = [start(seed=1, spill="none", force=None, steps=20000)]
    assert wait_for(lambda: len(rows()) == 1)
    got = start(seed=2, spill="none", force=None).result()
    same((got.code, "step 1/" in got.err), (4, False), f"without --spill {peak >> 20} MiB in a step and {base >> 20} between steps do not fit twice in {room[1] >> 20}")
    os.kill(wait_for(rows)[0]["pid"], 9)
    without[0].result()
    holder = Holder(planned)
    both = [start(seed=seed) for seed in (1, 2)]
    ok(wait_for(lambda: len(waits()) == 2), "with it both are let in")
    holder.close()
    got = [one.result() for one in both]
    same([(one.code, one.losses) for one in got], [(0, one.losses) for one in wanted], "and both end, with their own losses")
    spilled = [one.report["ranks"][0]["spill"] for one in got if one.code == 0]
    note(f"{spilled}")
    ok(any(one["times"] > 0 and 0 < one["most_bytes"] <= one["spilled_bytes"] for one in spilled), "what was in use went to the file and came back")
    ok(all(one["most_bytes"] < one["spilled_bytes"] for one in spilled if one["times"] > 1), "each time into an empty file")
    holder = Holder(planned)
    both = [start("disk_write:1", seed=1), start(seed=2)]
    assert wait_for(lambda: len(waits()) == 2)
    holder.close()
    got = [one.result() for one in both]
    same([(one.code, one.losses) for one in got], [(0, one.losses) for one in wanted], "whose disk takes nothing keeps its memory, and the other waits")
    for fault, words, codes in (("disk_write:9", "nothing is lost and the run continues", (0, 0)), ("disk_read:1", "read ", (3, 0))):
        holder = Holder(planned)
        both = [start(fault, seed=1), start(seed=2)]
        assert wait_for(lambda: len(waits()) == 2)
        holder.close()
        got = [one.result() for one in both]
        same(([one.code for one in got], words in got[0].err), (list(codes), True), f"{fault}, behind what is in the file: {got[0].err.splitlines()[-1]}")
        same([one.losses for one in got if one.code == 0], [one.losses for one, code in zip(wanted, codes) if code == 0], "who ends well has its own losses")
    holder = Holder(planned)
    both = [start("disk_stall:1", seed=1), start(seed=2)]
    assert wait_for(lambda: len(waits()) == 2)
    holder.close()
    got = [one.result() for one in both]
    same([(one.code, one.losses) for one in got], [(0, one.losses) for one in wanted], "whose disk stalls keeps its memory as well, and no lease ends")
    ok(got[0].code or got[0].report["ranks"][0]["spill"]["write_seconds"] > 1, "although it has waited for the disk")
    forbid = (os.path.join(BUILD, "tests", "forbid"), "io_uring_setup")
    if subprocess.run([*forbid, "true"], stderr=subprocess.DEVNULL).returncode == 0:  # by threads: others go on beside the one that stalls
        holder = Holder(planned)
        both = [start("disk_stall:1", seed=1, prefix=forbid), start(seed=2)]
        assert wait_for(lambda: len(waits()) == 2)
        holder.close()
        got = [one.result() for one in both]
        same([(one.code, one.losses) for one in got], [(0, one.losses) for one in wanted], "all that is moved together is waited for") or note(got[0].err[-300:])
    both = [start(seed=seed, steps=20000) for seed in (1, 2)]
    ok(wait_for(lambda: any(one["held_bytes"] < base // 2 < one["peak_bytes"] for one in waits())), "one is in its file")
    for one in rows():
        os.kill(one["pid"], 9)
    settles(lambda: same([one.result().code == 0 for one in both] + [lent(), os.listdir(disk)], [False, False, 0, []], "kill -9 leaves neither memory nor a file"))
    both = [start(seed=seed) for seed in (1, 2)]
    wait_for(lambda: all(one.done() for one in both) or any(one["held_bytes"] < base // 2 and one["peak_bytes"] > base // 2 for one in waits()))
    zrd.end(kill=True)
    zrd = Zrd(*room)
    got = [one.result() for one in both]
    same([(one.code, one.losses) for one in got], [(0, one.losses) for one in wanted], "zrd may be killed while it is there")
    note("".join(one.err[-300:] for one in got if one.code))
    same(os.listdir(disk), [], "and no run leaves a file")
    zrd.end()


def check_wait():
    """A run that waits to be let in: until another ends, or until it is to end itself; by zr run and by zr-train."""
    zrd = Zrd("--capacity", CAPACITY)
    program = Program()
    program.command("take 40")
    for how in ({"wait": True}, {"prefix": (ZR, "run", "--malloc", "--service", "--wait", "--")}):
        log = path("wait.log")
        waiting = run(**how, log=log)
        ok(wait_for(lambda: waiting.done() or waits()), f"a run that does not fit now waits, by {next(iter(how))}")
        same(run().result()[0].code, 4, "another, which does not wait, is refused")
        program.command("look")
        os.kill(program.pid, 9)
        got = waiting.result()[0]
        ok(got.code == 0 and "waits for admission: " in got.err and "pid  program" in got.err and "is admitted" in got.err, f"when there is room it runs, and has said so: {got.err[:600]}")
        program = Program()
        program.command("take 40")
    waiting = run(wait=True)
    assert wait_for(waits)
    with open(f"/proc/{wait_for(waits)[0]['pid']}/stat", encoding="utf-8") as file:
        os.kill(int(file.read().rsplit(")", 1)[1].split()[1]), signal.SIGINT)  # who has started the rank
    got = waiting.result()[0]
    ok(got.code == 130 and "interrupted by a signal" in got.err and "step 1/" not in got.err, f"Ctrl-C ends one that waits, {got.code}: {got.err[-200:]}")
    ok(wait_for(lambda: not rows()), "and nothing is planned any more")
    got = zr("limit", "--capacity", "2MiB")
    same(got.returncode, 0, "without plans a capacity may be small")
    got = run(wait=True).result()[0]
    same(got.code, 4, "who would never fit is refused all the same")
    zr("limit", "--capacity", CAPACITY)
    program.end()
    zrd.end()


def check_others():
    """Memory without a plan: idle it makes way, in use it does not; a quota below the plan."""
    zrd = Zrd("--capacity", CAPACITY)
    program = Program()
    program.command("take 40")
    got = run().result()[0]
    ok(got.code == 4 and f"{program.pid}  service_client" in got.err, "what a program without a plan holds counts")
    program.command("give")
    got = run(steps=2).result()[0]
    same(got.code, 0, "unless it is idle: it is asked for first")
    ok("idle" in (text := zr("status").stdout) and "zrd, process" in text, "zr service status shows what is idle")
    zr("limit", "--group", "small", "--hard", "20MiB")
    os.environ["ZR_GROUP"] = "small"
    got = run().result()[0]
    del os.environ["ZR_GROUP"]
    ok(got.code == 4 and "zr service limit --group small" in got.err, f"a quota below the plan: {got.err.splitlines()[0] if got.err else ''}")
    program.end()
    zrd.end()


single = Zrd("--capacity", 512 * MIB)
ALONE = {seed: run(seed=seed).result() for seed in (1, 2)}
probe = run(steps=1000)
assert wait_for(lambda: len(rows()) == 1)
PEAK, BASE = wait_for(rows)[0]["plan_peak_bytes"], wait_for(rows)[0]["plan_base_bytes"]
os.kill(wait_for(rows)[0]["pid"], 9)
probe.result()
single.end()
CAPACITY = PEAK + BASE + 8 * MIB
note(f"a run's plan: {BASE >> 20} MiB between steps, {PEAK >> 20} in one")
check_two(ALONE)
check_beside(ALONE)
check_followed()
check_ranks(ALONE)
check_number()
check_deaths(ALONE)
check_spill()
check_wait()
check_others()
done()
