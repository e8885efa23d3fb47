#!/usr/bin/env python3
"""The mpi communicator at length: a gather whose shards are beyond what an MPI count can say, and the losses of every
stage on more ranks beside those of --comm local."""
import os
import shutil
import subprocess

from zrtest import BUILD, done, note, ok, same, skip, train

RANKS = os.path.abspath(os.path.join(BUILD, "tests", "mpi_ranks"))
SETTINGS = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}
LARGE = 2_200_000_001  # bytes of a shard, of which every rank holds all


def memory_left():
    with open("/proc/meminfo", encoding="ascii") as file:
        return int(dict(line.split(":") for line in file)["MemAvailable"].split()[0]) * 1024


if not shutil.which("mpirun") or not os.path.exists(RANKS):
    skip("no mpirun, or no mpicc to build with (openmpi-bin, libopenmpi-dev)")
    done()

if memory_left() < 5 * LARGE:
    skip(f"a gather of shards beyond 2 GiB on two ranks takes {4 * LARGE / 1e9:.0f} GB")
else:
    got = subprocess.run(["mpirun", "-n", "2", RANKS, "large", str(LARGE)], capture_output=True, text=True, timeout=600,
                         env={**os.environ, **SETTINGS})
    if not same(got.returncode, 0, f"a gather of shards of {LARGE} bytes"):
        note(got.stderr[-500:])

for stage in (0, 1, 2, 3):
    for ranks in (2, 3, 4, 8):
        flags = dict(stage=stage, ranks=ranks, bucket_bytes=8192, timeout=300)
        local, mpi = train(**flags), train(**flags, comm="mpi")
        if not ok(local.code == 0 and local.losses == mpi.losses, f"stage {stage}, {ranks} ranks: mpi as local, to the bit"):
            note(mpi.err[-500:])
done()
