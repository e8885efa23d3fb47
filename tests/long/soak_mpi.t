#!/usr/bin/env python3
"""The mpi communicator at length: every operation on shards beyond what an MPI count can say, and the losses of every
stage on more ranks beside those of --comm local."""
import os
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, LONG_HANG, MPI_SETTINGS, done, mpi_missing, note, ok, same, skip, train

RANKS = os.path.abspath(os.path.join(BUILD, "tests", "mpi_ranks"))
LARGE = 2_200_000_001  # bytes of a shard, of which every rank holds all


def memory_left():
    with open("/proc/meminfo", encoding="ascii") as file:
        return int(dict(line.split(":") for line in file)["MemAvailable"].split()[0]) * 1024


if mpi_missing() or not os.path.exists(RANKS):
    skip(mpi_missing() or "tests/mpi_ranks is not built: no mpicc (libopenmpi-dev)")
    done()

if memory_left() < 5 * LARGE:
    skip(f"shards beyond 2 GiB on two ranks, each with all of them, take {4 * LARGE / 1e9:.0f} GB")
else:
    got = subprocess.run(["mpirun", "-n", "2", RANKS, "large", str(LARGE), "direct"], capture_output=True, text=True,
                         timeout=LONG_HANG, env={**os.environ, **MPI_SETTINGS})
    if not same(got.returncode, 0, f"every operation on shards of {LARGE} bytes"):
        note(got.stderr[-500:])

for stage in (0, 1, 2, 3):
    for ranks in (2, 3, 4, 8):
        flags = dict(stage=stage, ranks=ranks, bucket_bytes=8192, timeout=300)
        local, mpi = train(**flags), train(**flags, comm="mpi")
        if not ok(local.code == 0 and local.losses == mpi.losses, f"stage {stage}, {ranks} ranks: mpi as local, to the bit"):
            note(mpi.err[-500:])
done()
