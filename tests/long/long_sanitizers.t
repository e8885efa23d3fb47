#!/usr/bin/env python3
"""Every C test program under AddressSanitizer and UndefinedBehaviorSanitizer together, from the same sources: the
engine, the communicators (NCCL's on its emulated library), the CUDA backend on its emulated driver. Then the programs:
zr on every kind of file, zr-train alone, with ranks of its own and under mpirun.

Left out: the other scripts on zr-train (train_*.t), which start it hundreds of times for what the C tests see already;
what limits addresses or counts bytes of memory, because a sanitizer takes terabytes of them (each says so in a SKIP);
Valgrind, whose turn is in long_shadow.t. ThreadSanitizer has its turn there, for every C test program in `make check-tsan`,
and here on zr-train where an update runs beside the step and a disk."""
import glob
import os
import shutil
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, MPI_SETTINGS, arguments, done, note, ok, path, run_limited, same, skip, text_file


def tail(got):
    note((got.stdout + got.stderr)[-3000:])


def run(words, command, env=None):
    """Runs to a good end, and no sanitizer says a word."""
    got = run_limited(command, env={**os.environ, **(env or {})})
    silent = not any(mark in got.stderr for mark in ("Sanitizer", "runtime error", "=="))
    if not (same(got.returncode, 0, words) & ok(silent, f"{words}: nothing is reported")):
        tail(got)


SANITIZE = "address,undefined"
FOLDER = os.path.join(BUILD, "both-sanitizers")  # make built-long has built it
MPIRUN = {**MPI_SETTINGS, "ASAN_OPTIONS": "detect_leaks=0"}  # Open MPI's own


def built(name):
    return os.path.join(FOLDER, *name.split("/"))


ELSEWHERE = ("fork_soak_test", "shadow_test")  # which long_fork.t and long_shadow.t run longer under the same
mpi = shutil.which("mpirun") and shutil.which("mpicc")
got = run_limited(["tests/run", "--jobs", str(max(1, os.cpu_count() // 2)), *sorted(each for each in glob.glob(built("tests/*_test")) if os.path.basename(each) not in ELSEWHERE)], 3000)
lines = got.stdout.splitlines()
counts = [line for line in lines if " passed, " in line]
bad = [line for line in lines if line.startswith(("FAIL", "      ")) and "skipped: " not in line]
first = [line.strip() for line in bad[:2]]
if not ok(got.returncode == 0 and counts, f"the C tests under -fsanitize={SANITIZE}: {' | '.join(counts + first)}"):
    note("\n".join(bad or lines[-40:] + got.stderr.splitlines()[-40:]))

MODEL = dict(data=text_file(), steps=4, layers=2, hidden=36, heads=3, seq=17, batch=3, stage=1)
for ranks in (1, 2):
    run(f"zr-train on {ranks} rank(s)", [built("bin/zr-train")] + arguments(
        ranks=ranks, eval_every=2, sample=20, save=path(f"save-{ranks}"), trace=path("trace.zrt"),
        log=path("log.jsonl"), **MODEL))
    run(f"resumed and exported on {3 - ranks} rank(s)", [built("bin/zr-train")] + arguments(
        ranks=3 - ranks, resume=path(f"save-{ranks}"), export=path("model.safetensors"), **{**MODEL, "stage": 3}))
run("zr, by its own test", [os.path.join("tests", "system", "tool.t")], {"BUILD": FOLDER})
run("zr replay of a trace of zr-train", [built("bin/zr"), "replay", path("trace.zrt"), "--repeat", "3"])
disk = path("disk")
os.mkdir(disk)
for words, flags in (("speculates on fp16", dict(ranks=3, precision="fp16", loss_scale_power=17, loss_scale_hysteresis=1, clip=3, speculative_update="1GiB", offload_buffers=4,
                                                     offload_param="nvme:" + disk)),
                     ("speculates on a part of it", dict(ranks=2, precision="bf16", clip=1.8, accumulate=2, speculative_update="300KiB")),
                     ("is a step late", dict(ranks=2, precision="bf16", offload_param="nvme:" + disk, delayed_update=True)),
                     ("is a step late in fp32", dict(delayed_update=True))):
    run(f"state in a file, and the update {words}", [os.path.join(BUILD, "thread", "bin", "zr-train")] + arguments(
        **{**MODEL, "stage": 3, "heads": 4, "offload_optimizer": "nvme:" + disk, "nvme_depth": 8, "force": True, **flags}))
if mpi:
    for way in ("direct", "ring"):
        run(f"every operation over MPI, {way}",
            ["mpirun", "-n", "3", built("tests/mpi_ranks"), "operations", "4096", way, "7"], MPIRUN)
    run("zr-train under mpirun", ["mpirun", "-n", "2", built("bin/zr-train")] + arguments(comm="mpi", **MODEL), MPIRUN)
else:
    skip("no mpirun or no mpicc (openmpi-bin, libopenmpi-dev)")
done()
