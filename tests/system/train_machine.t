#!/usr/bin/env python3
"""Poor machines: it runs, or says what is missing. Address limits, no huge pages, older instruction sets."""
import ctypes
import os
import resource
import subprocess
import sys
import time

sys.path.insert(0, "tests/support")
import zrtest
from zrtest import HANG, SEED, done, note, ok, same, train

base = train(ranks=2, stage=1)
same(base.code, 0, "an ordinary machine")

enough = 4096
for mib in (64, 96, *range(128, 520, 24), 768, 1536, 4096):
    def limited():
        resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20))
    command = [zrtest.ZR_TRAIN] + zrtest.arguments(data=zrtest.text_file(), steps=2, layers=2, hidden=32, heads=2,
                                                   seq=16, batch=2, threads=1)
    got = subprocess.run(command, capture_output=True, text=True, preexec_fn=limited, timeout=HANG)
    enough = min(enough, mib if got.returncode == 0 else 4096)
    good = got.returncode == 0 or (got.returncode in (1, 4) and
                                   "ulimit -v" in got.stderr)
    # The loader itself gives up when not even the libraries fit: that is the system's word, not ours.
    good = good or (mib <= 192 and got.returncode == 127)
    if not ok(good, f"ulimit -v {mib} MiB: exit {got.returncode}"):
        note(got.stderr)
ok(got.returncode == 0, "4 GiB of addresses are enough for a small model")
mib = enough + 8
got = subprocess.run(command + ["--ranks", "4", "--max-restarts", "1"], capture_output=True, text=True, preexec_fn=limited, timeout=HANG)
same(got.returncode, 0, f"so are {mib} MiB for ranks that are replaced: they map no memory of one another") or note(got.stderr[-900:])

PR_SET_THP_DISABLE = 41
libc = ctypes.CDLL(None)
command = [zrtest.ZR_TRAIN] + zrtest.arguments(data=zrtest.text_file(), steps=2, layers=2, hidden=32, heads=2,
                                               seq=16, batch=2)
got = subprocess.run(command, capture_output=True, text=True, timeout=HANG,
                     preexec_fn=lambda: libc.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
same(got.returncode, 0, "huge pages off for the process") or note(got.stderr)
small = train(ranks=2, stage=1, environment={"ZR_CONF": "huge_pages:false"})
same(small.losses, base.losses, "small pages change no bit")

# Instruction sets: each runs; the values agree as closely as README says, their bits need not.
MOVING = dict(layers=4, hidden=128, heads=4, seq=64, batch=2, warmup=0, eval_every=0, steps=5)
sets = []
for isa in ("plain", "avx2", "avx512", "avx512_bf16", "amx"):
    run = train(environment={"ZR_CONF": f"isa:{isa}"})
    if run.code != 0 and "processor" in run.err:
        zrtest.skip(f"{isa}: this processor has it not")
    elif same(run.code, 0, f"instruction set {isa} runs"):
        sets.append(isa)
    else:
        note(run.err)
for precision, bound in (("fp32", 1e-4), ("bf16", 2e-3), ("fp16", 2e-3)):
    scale = 6 if precision == "fp16" else None  # from which no step is skipped
    runs = [{isa: train(**{**MOVING, "seed": seed}, precision=precision, loss_scale_power=scale,
                        environment={"ZR_CONF": f"isa:{isa}"}) for isa in sets} for seed in (SEED,)]
    for isa in sets[1:]:
        far = [abs(a - b) for run in runs if run[isa].report and run["plain"].report
               for a, b in zip(run[isa].report["loss"], run["plain"].report["loss"])]
        ok(len(far) == 5 and max(far) < bound, f"{precision}, {isa}: agrees with plain to {bound:g}") or note(far)

# A small cgroup, of either version: only where this test may make one.
V2 = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
group = os.path.join("/sys/fs/cgroup" if V2 else "/sys/fs/cgroup/memory", f"zr-test-{os.getpid()}")
limit = os.path.join(group, "memory.max" if V2 else "memory.limit_in_bytes")
try:
    os.mkdir(group)
    with open(limit, "r+") as file:
        file.write(str(192 << 20))
except OSError as error:
    if os.path.isdir(group):
        os.rmdir(group)
    zrtest.skip(f"small cgroup: cannot make one here ({error.strerror})")
else:
    def inside():
        with open(os.path.join(group, "cgroup.procs"), "w") as file:
            file.write(str(os.getpid()))
    try:
        for hidden, layers in ((32, 2), (768, 8)):
            command = [zrtest.ZR_TRAIN] + zrtest.arguments(data=zrtest.text_file(), steps=2, layers=layers,
                                                           hidden=hidden, heads=2, seq=16, batch=2)
            got = subprocess.run(command, capture_output=True, text=True, timeout=HANG, preexec_fn=inside)
            if hidden == 32:
                same(got.returncode, 0, "a small model in a cgroup of 192 MiB runs") or note(got.stderr)
            else:
                good = got.returncode == 4 and "cgroup" in got.stderr
                ok(good, f"a large model there is refused with the reason: exit {got.returncode}") or note(got.stderr)
    finally:
        for _ in range(1200):
            try:
                os.rmdir(group)
                break
            except OSError:
                time.sleep(0.1)
done()
