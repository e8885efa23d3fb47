"""cuda_train.py: zr-train --backend cuda on the emulated driver, beside --backend host: tests/system/train_cuda.t, soak_train_cuda.t."""
import atexit
import os
import random
import re
import subprocess

from pairs import logged
from zrtest import BUILD, PLANNED_TAGS, ZR_TRAIN, arguments, note, ok, path, same, token_shard

EMULATOR = os.path.abspath(os.path.join(BUILD, "tests", "emulator"))
VOCABULARY, FP32 = 24, 1e-5  # of the processor's losses
SHAPE = dict(vocab=VOCABULARY, layers=2, hidden=8, heads=2, seq=3, batch=1, steps=3, threads=1, eval_every=0)
LLAMA = dict(arch="llama", heads=4, kv_heads=2, ffn=13)


def tokens():
    """A shard of tokens, of so few kinds that the kernels have little to do."""
    rng, where = random.Random(5), path("tokens.bin")
    return where if os.path.exists(where) else token_shard([rng.randrange(VOCABULARY) for _ in range(1200)])


def on_host(**flags):
    return logged(**{"data": tokens(), **SHAPE, **flags})


def card_of(flags):
    """The environment of a run. Several ranks share the card's bytes by a file. Races are looked for between kernels: those of a
    block in its shared memory do not depend on the run, and are looked for by the tests of the kernels."""
    shared = {"ZR_EMULATOR_SHARED": path("card")} if flags.get("ranks", 1) > 1 else {}
    conf = ",".join(filter(None, [os.environ.get("ZR_CONF"), "kernels:emulated"]))
    return {"LD_LIBRARY_PATH": EMULATOR, "ZR_CONF": conf, "ZR_EMULATOR_LEFT": path("left"),
            "ZR_EMULATOR_RACES": os.environ.get("ZR_EMULATOR_RACES", "1"), **shared}


def on_card(environment=None, **flags):
    open(path("left"), "w", encoding="ascii").close()
    return logged(environment={**card_of(flags), **(environment or {})}, **{"data": tokens(), "backend": "cuda", **SHAPE, **flags})


def begin_on_card(environment=None, **flags):
    """The process of a run."""
    process = subprocess.Popen([ZR_TRAIN, *arguments(**{"data": tokens(), "backend": "cuda", **SHAPE, **flags})], text=True, start_new_session=True,
                               env={**os.environ, **card_of(flags), **(environment or {})}, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    atexit.register(process.terminate)  # where the test breaks off
    return process


def given_back(words, ranks):
    """By the driver: what of the card the last run's processes had when its context ended."""
    with open(path("left"), encoding="ascii") as file:
        left = file.read().splitlines()
    same([line for line in left if re.search("[1-9]", line)], [], f"{words}: all is given back when the card's context ends")
    ok(len(left) >= ranks, f"{words}: and it ends in each process ({len(left)})")


def went_well(run, words, flags=()):
    """Its bytes are the plan's, tag by tag, and its last step called no driver for memory and did not wait for the card."""
    if not same(run.code, 0, f"{words}: trains"):
        note(run.err[-2000:])
        return False
    given_back(words, len(run.report["ranks"]))
    for rank in run.report["ranks"]:
        planned, measured = ([rank[kind][tag] for tag in PLANNED_TAGS] for kind in ("planned_bytes", "peak_bytes"))
        same(measured, planned, f"{words}, rank {rank['rank']}: the bytes of each tag are the plan's")
        same(rank["driver_calls_last_step"], 0, f"{words}, rank {rank['rank']}: no call of the driver in the last step")
        if not {"tp", "pp", "offload_optimizer"} & set(flags) and dict(flags).get("comm") != "mpi":  # these wait for the norm, and for each message
            same(rank["host_waits_last_step"], 0, f"{words}, rank {rank['rank']}: the host did not wait within the last step")
    return True


def near(run, other, tolerance, words):
    """Losses, and the norms of gradients, which may be ten times as far apart."""
    if not run.report or not other.report:
        return ok(False, f"{words}: both report")
    losses, norms = (max((abs(a - b) / abs(b) for a, b in zip(*pairs)), default=1)
                     for pairs in ((run.report["loss"], other.report["loss"]), (run.norms, other.norms)))
    return ok(losses <= tolerance and norms <= 10 * tolerance and len(run.norms) == len(other.norms) > 0,
              f"{words}: losses within {tolerance:g} of the processor's ({losses:.1e}), norms within ten times that ({norms:.1e})")
