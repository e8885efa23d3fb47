#!/usr/bin/env python3
"""A rank of a run whose state is in a file on a disk dies by -9 at fifty random moments: nothing stays in the folder, each
checkpoint by name is whole, and the next run goes on from the newest with the bits of a run that nothing happened to. And a
disk that stalls for ten seconds: the run waits, says so once, and its bits are those of a run without."""
import json
import os
import random
import signal
import subprocess
import sys
import time

sys.path.insert(0, "tests/support")
from pairs import logged
from saves import read_checkpoint, step_folder, steps_in
from zrtest import DEAD, SEED, ZR_TRAIN, arguments, done, finish, in_steps, leftovers, note, ok, path, same, text_file, train

DEATHS = 50
DISK, SAVED, LOG = path("disk"), path("saved"), path("log.jsonl")
os.mkdir(DISK)
NVME = dict(offload_optimizer="nvme:" + DISK, nvme_depth=8, force=True)
SHAPE = dict(layers=3, hidden=16, heads=2, seq=16, batch=1, eval_every=0, ranks=2, precision="bf16", clip=0.5, warmup=0, schedule_lr="constant", seed=3)
random.seed(SEED)


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def remember(losses):
    """Of the steps that the log of a run has, whole lines alone; what was done again came to the same."""
    with open(LOG) as file:
        for line in file.read().split("\n")[:-1]:
            step = json.loads(line)
            if losses.setdefault(step["step"], step["loss"]) != step["loss"]:
                return False
    return True


losses, newest, bad = {}, 0, []
for death in range(DEATHS):
    if os.path.exists(LOG):
        os.unlink(LOG)
    flags = dict(SHAPE, steps=10 ** 6, save=SAVED, save_every=1, keep=2, log=LOG, stage=random.randint(1, 3), resume=SAVED if newest else None)
    process = subprocess.Popen([ZR_TRAIN] + arguments(data=text_file(), **NVME, **flags), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True, start_new_session=True)
    in_steps(LOG)
    time.sleep(random.uniform(0, 0.3))
    victims = children(process.pid)
    if victims:
        os.kill(random.choice(victims), signal.SIGKILL)
    code, err = finish(process, DEAD)
    steps = steps_in(SAVED)
    try:
        for step in steps:
            read_checkpoint(step_folder(SAVED, step))
        whole = ""
    except (OSError, ValueError, KeyError) as error:
        whole = f"step {step}: {error!r}"
    if code != 137 or os.listdir(DISK) or whole or steps[-1:] < [newest] or not remember(losses):
        bad.append((death, flags["stage"], code, os.listdir(DISK), whole, steps, err[-300:]))
    newest = (steps or [0])[-1]
same(bad, [], f"{DEATHS} ranks killed, {newest} steps: exit 137, nothing in the folder, whole checkpoints, the same losses of steps done again")
ok(newest > DEATHS // 2, "the runs got on between their deaths")
end = newest + 2
resumed = train(**{**SHAPE, **NVME, "stage": 2, "steps": end, "resume": SAVED})
straight = train(**{**SHAPE, "stage": 1, "steps": end})
same((resumed.code, resumed.report and resumed.report["loss_hex"]), (0, straight.report["loss_hex"][newest:]), "the last one loads, and goes on as a run without a disk or a death") or note(resumed.err[-600:])
same([losses[step] for step in sorted(losses) if step < end], [float.fromhex(straight.report["loss_hex"][step - 1]) for step in sorted(losses) if step < end], "so did all of them")

# Each rank's fortieth transfer takes ten seconds; the one that speaks of its machine says so once.
stalled = logged(environment={"ZR_FAULT": "disk_stall:40"}, **{**SHAPE, **NVME, "stage": 2, "steps": 8})
same((stalled.code, stalled.bits), (0, logged(**{**SHAPE, "stage": 1, "steps": 8}).bits), "a disk that stalls is waited for") or note(stalled.err[-600:])
same([stalled.err.count(words) for words in ("has transferred nothing for", "responds again after", DISK)], [1, 1, 2], "and the run says so once, and when it goes on") or note(stalled.err[-600:])
same(os.listdir(DISK), [], "the folder shows nothing in the end")
same(leftovers(), [], "no process stays")
done()
