#!/usr/bin/env python3
"""gpu_pytorch.py, which compares zr replay's policies with PyTorch on a card, beside recorded peaks
(gpu_pytorch_peaks.json says whose): all are equal, and a peak that differs is reported where it differs. And gpu_train.py,
which has frameworks train on zr's memory: all of it but the frameworks."""
import json
import os
import pickle
import re
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, FOLDER, HANG, done, note, ok, path, same

HERE = "tests/support"
TABLE = os.path.join(HERE, "gpu_pytorch_peaks.json")
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True

import gpu_pytorch  # noqa: E402
import gpu_train  # noqa: E402
from gpu_pytorch import A, F, KIB, MIB  # noqa: E402


def run(*options, **environment):
    return subprocess.run([os.path.join(HERE, "gpu_pytorch.py"), "--traces", path("traces"), *options], text=True,
                          capture_output=True, timeout=HANG, env={**os.environ, **environment})


def check_whole(table):
    got = run("--recorded", TABLE)
    wanted = sum(len(sequence.policies) for sequence in gpu_pytorch.SEQUENCES)
    same((got.returncode, got.stdout.splitlines()[-1], got.stderr, len(table["rows"])),
         (0, f"{wanted} equal, 0 different, 0 undecided, 0 not compared", "", wanted),
         f"{wanted} sequences are equal") or note(got.stdout)
    for name, module, words in (("no PyTorch", "raise ImportError('none')", "PyTorch is not installed"),
                                ("no card", "__version__ = '0'\nclass cuda: is_available = lambda: False", "no card")):
        folder = path(name)
        os.mkdir(folder)
        with open(os.path.join(folder, "torch.py"), "w") as file:
            file.write(module)
        got = run(PYTHONPATH=folder)
        ok(got.returncode == 77 and got.stdout.count("\n") == 1 and words in got.stdout and got.stderr == "",
           f"{name}: exit {got.returncode}, and one line that says so") or note(got.stdout + got.stderr)


def check_differences(table):
    """A peak that is another is reported at its operation, and no other sequence is."""
    for policy, name in ("caching", "a step, three times"), ("expandable", "gaps are mapped first"):
        row, = (row for row in table["rows"] if row[:2] == [policy, name])
        row[5][1][1] += 2 * MIB
        with open(path("wrong.json"), "w") as file:
            json.dump(table, file)
        row[5][1][1] -= 2 * MIB
        got = run("--recorded", path("wrong.json"))
        wrong = [line for line in got.stdout.splitlines() if line.startswith("different")]
        ok(got.returncode == 1 and len(wrong) == 1 and f"{policy}: {name}: operation {row[5][1][0]} (alloc" in wrong[0],
           f"{policy}, \"{name}\": seen at operation {row[5][1][0]}") or note(got.stdout + got.stderr)


def snapshot():
    """Two blocks from before the window, of which one is freed in it, on two streams, and the window's own."""
    def event(action, address, size, stream=0):
        return {"action": action, "addr": address, "size": size, "stream": stream, "frames": []}
    events = [event("alloc", 4096, 30 * MIB, 7), event("free_requested", 64, 11 * MIB), event("segment_alloc", 1, 2),
              event("free_completed", 64, 11 * MIB), event("alloc", 64, 7 * MIB),
              event("free_completed", 4096, 30 * MIB, 7)]
    blocks = [{"size": 10 * KIB, "requested_size": 9 * KIB + 1, "state": "active_allocated"},
              {"size": 512, "requested_size": 0, "state": "inactive"},
              {"size": 7 * MIB, "requested_size": 7 * MIB, "state": "active_allocated", "address": 64}]
    return {"segments": [{"device": 0, "address": 1 << 30, "stream": 0, "blocks": blocks}],
            "device_traces": [events, []]}


def check_traces():
    folder = path("traces")
    os.mkdir(folder)
    with open(os.path.join(folder, "a.pickle"), "wb") as file:
        pickle.dump(snapshot(), file, protocol=4)
    same(gpu_pytorch.snapshot_steps(os.path.join(folder, "a.pickle")),
         [A(11 * MIB), A(9 * KIB + 1), A(30 * MIB, 1), F(0), A(7 * MIB), F(2)], "a snapshot as steps")
    with open(os.path.join(folder, "b.csv"), "w") as file:
        file.write("id,lower,upper,size\n0,0,2,40\n1,1,9,20\n2,2,4,41\n3,2,3,10\n")
    same(gpu_pytorch.lifetime_steps(os.path.join(folder, "b.csv")),
         [A(160 * KIB), A(80 * KIB), F(0), A(164 * KIB), A(40 * KIB), F(3), F(2), F(1)], "lifetimes as steps, in pages")
    with open(os.path.join(folder, "e.pickle"), "wb") as file:
        pickle.dump({"device_traces": [[]], "segments": os.system}, file)
    got = run("--recorded", TABLE)
    ok(got.returncode == 2 and "no trace" in got.stderr, "a pickle that names a function is refused") or note(got.stderr)


def check_training():
    """gpu_train.py, on the emulated driver and a CuPy that is a fake: all but the frameworks themselves."""
    folder, emulator = os.path.abspath(os.path.join(HERE, "fake_frameworks")), os.path.abspath(os.path.join(BUILD, "tests", "emulator"))
    for words, code, wanted, environment in (
            ("no driver", 77, [r"zr: .*: not run: no GPU \(.+\)"], {}),
            ("a driver without cards", 77, [r"zr: .*: not run: no GPU \(.+\)"], {"LD_LIBRARY_PATH": emulator, "ZR_EMULATOR_DEVICES": "0"}),
            ("a card, and one framework", 0, [r"zr: PyTorch: not run: PyTorch is not installed .*", r"CuPy 0 on a fake, 30 steps.*",
             r"  native +peak reserved +9\.00 MiB, .* answers .*", r"  preload +peak reserved +[1-9][\d.]+ MiB, .*, the same", r"zr: JAX: not run: JAX is not installed .*"],
             {"LD_LIBRARY_PATH": emulator, "PYTHONPATH": folder}),
            ("answers that differ", 1, [r"  preload .*: DIFFERENT from step 0 on"], {"LD_LIBRARY_PATH": emulator, "PYTHONPATH": folder, "FAKE": "wrong"}),
            ("one that dies", 1, [r"  preload +failed: exit code 5"], {"LD_LIBRARY_PATH": emulator, "PYTHONPATH": folder, "FAKE": "dies"})):
        if words == "no driver" and gpu_train.no_card() is None:
            continue
        got = subprocess.run([os.path.join(HERE, "gpu_train.py"), "--steps", "30"], text=True, capture_output=True, timeout=HANG,
                             env={**os.environ, **environment})
        lines = got.stdout.splitlines()
        found = [any(re.fullmatch(line, each) for each in lines) for line in wanted]
        ok(got.returncode == code and all(found) and (code == 1 or len(lines) == len(wanted)), f"gpu_train.py: {words}") or \
            note(f"{got.returncode} {found}\n{got.stdout}{got.stderr[-1500:]}")
    answer = {"answers": [2.0, 1.0], "rate": 1, "reserved": 0}
    same([gpu_train.judge("preload", each, answer)[0] for each in ({**answer, "reserved": 5}, {**answer, "reserved": None}, answer, {**answer, "answers": [2.0], "reserved": 5},
                                                                  {"failed": "so"})], [True, True, False, False, False], "what is judged to be as it should be")


with open(TABLE) as recorded:
    peaks = json.load(recorded)
check_whole(peaks)
check_differences(peaks)
check_traces()
check_training()
done()
