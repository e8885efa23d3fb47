#!/usr/bin/env python3
"""gpu_pytorch.py, which compares zr replay's policies with PyTorch on a card, beside a PyTorch of numbers
(torch_stand_in/): it finds equal what is equal, and each rule that is broken on purpose where it was broken."""
import os
import pickle
import random
import subprocess
import sys

from zrtest import FOLDER, HANG, done, note, ok, path, same

HERE = os.path.dirname(os.path.abspath(__file__))
STAND_IN = os.path.join(HERE, "torch_stand_in")
os.environ["PYTHONPATH"] = STAND_IN
os.environ.pop("TORCH_STAND_IN_RULE", None)
sys.path.insert(0, HERE)
sys.path.insert(0, STAND_IN)
sys.dont_write_bytecode = True

import gpu_pytorch  # noqa: E402
import torch  # noqa: E402
from gpu_pytorch import A, F, KIB, MIB  # noqa: E402

SEED_OF_EQUALS = 4
NOWHERE = path("no-traces-here")

# Of each rule that the stand-in can break: a sequence that tells, under which policies, and at which operation.
TELLS = {
    "rounding": ("pieces of 513 bytes", gpu_pytorch.POLICIES, 4),
    "small sizes": ("1 MiB is small", gpu_pytorch.POLICIES, 0),
    "small segments": ("a byte", gpu_pytorch.POLICIES, 0),
    "large segments": ("a byte more is large", ["caching"], 0),
    "largest packed": ("10 MiB and more in multiples of 2 MiB", ["caching"], 0),
    "multiples": ("the smallest that fits", ["caching"], 0),
    "large rest": ("a rest of 1 MiB that does not join", ["caching"], 6),
    "large rest stays": ("a rest of 512 bytes more", ["caching"], 3),
    "small rest": ("a rest of 512 bytes in the small pool", gpu_pytorch.POLICIES, 2),
    "streams": ("streams keep what is theirs", gpu_pytorch.POLICIES, 2),
    "free's stream": ("freed on another stream", gpu_pytorch.POLICIES, 2),
    "pools": ("two pools", gpu_pytorch.POLICIES, 2),
    "fit": ("the smallest that fits", ["caching"], 5),
    "joining": ("small neighbours join", gpu_pytorch.POLICIES, 9),
    "joining behind": ("neighbours join", ["caching"], 6),
    "giving back": ("a refusal gives the cache back", ["caching"], None),
    "giving back in use": ("a segment in use stays", ["caching"], 3),
    "giving back small": ("small segments go too", ["caching"], None),
    "handles": ("a byte more is large", ["expandable"], 0),
    "growing": ("growing from a rest", ["expandable"], 3),
    "fit by growth": ("a hole before the end", ["expandable"], 5),
    "unmapping": ("a part of a handle stays", ["expandable"], None),
    "gaps": ("gaps are mapped first", ["expandable"], None),
}


def run(rule="", *options):
    """The script itself, with a rule of the stand-in broken."""
    return subprocess.run([os.path.join(HERE, "gpu_pytorch.py"), *(options or ("--traces", NOWHERE))], text=True,
                          capture_output=True, timeout=HANG, env={**os.environ, "TORCH_STAND_IN_RULE": rule})


def verdicts(run_, word):
    return [line for line in run_.stdout.splitlines() if line.startswith(word)]


def check_whole():
    for rule in "", "falling addresses":
        got = run(rule)
        wanted = sum(len(sequence.policies) for sequence in gpu_pytorch.SEQUENCES)
        same((got.returncode, len(verdicts(got, "equal")), got.stdout.splitlines()[-1], got.stderr),
             (0, wanted, f"{wanted} equal, 0 different, 0 undecided, 0 not compared", ""),
             f"{wanted} sequences are equal, {rule or 'rising addresses'}") or \
            note("\n".join(verdicts(got, "different")) + got.stderr)
    got = run("fit by growth")
    count = len(verdicts(got, "different"))
    ok(got.returncode == 1 and count > 0 and f" {count} different, " in got.stdout.splitlines()[-1],
       f"a broken rule: exit {got.returncode}, {count} differ")
    for rule, words in ("no torch", "PyTorch is not installed"), ("no card", "finds no card"):
        got = run(rule)
        ok(got.returncode == 77 and got.stdout.count("\n") == 1 and words in got.stdout and got.stderr == "",
           f"{rule}: exit {got.returncode}, and one line that says so") or note(got.stdout + got.stderr)


def check_rule(rule, replays):
    name, policies, operation = TELLS[rule]
    sequence, = (one for one in gpu_pytorch.SEQUENCES if one.name == name)
    os.environ["TORCH_STAND_IN_RULE"] = rule
    for policy in policies:
        answer, = gpu_pytorch.ask_torch([sequence], policy)["answers"]
        replay = replays.setdefault((name, policy), gpu_pytorch.Replay(sequence, policy, FOLDER))
        words = str(gpu_pytorch.compare(replay, answer))
        mark = "out of memory at operation: " if operation is None else f"operation {operation} (alloc "
        ok(words.startswith(mark), f"{rule} {torch.BREAKABLE[rule]}: seen, {policy}, \"{name}\"") or note(words)
    del os.environ["TORCH_STAND_IN_RULE"]


def check_first():
    """Of a long sequence the difference that is reported is one, and what comes right before it is none."""
    sequence = gpu_pytorch.of("long", *gpu_pytorch.drawn(5, operations=600))
    os.environ["TORCH_STAND_IN_RULE"] = "large rest stays"
    answer, = gpu_pytorch.ask_torch([sequence], "caching")["answers"]
    del os.environ["TORCH_STAND_IN_RULE"]
    replay = gpu_pytorch.Replay(sequence, "caching", FOLDER)
    lengths = gpu_pytorch.allocations(sequence.steps)
    at, own, other = gpu_pytorch.first_difference(replay, answer)
    asked = len(replay.known)
    told = replay.ask(lengths)
    wrong = [length for length in lengths if told[length]["peak_reserved_bytes"] != answer["peaks"][length - 1]]
    same((at + 1, own, other),
         (wrong[0], told[wrong[0]]["peak_reserved_bytes"], answer["peaks"][wrong[0] - 1]),
         f"of {len(lengths)} allocations, operation {at} is the first that differs")
    ok(asked < len(lengths) // 2, f"found by {asked} replays")


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
    got = run("", "--traces", folder, "--only", ".")
    same((got.returncode, len(verdicts(got, "equal"))), (0, 4), "both are equal under both policies") or note(got.stderr)
    with open(os.path.join(folder, "c.csv"), "w") as file:  # sizes alike: which of two free blocks is taken matters
        rng = random.Random(SEED_OF_EQUALS)
        file.write("id,lower,upper,size\n" + "".join(
            f"{i},{i},{i + rng.randint(1, 60)},{rng.choice([11, 14, 17, 31]) * MIB}\n" for i in range(200)))
    for rule, word in ("", "equal"), ("falling addresses", "undecided"):
        got = run(rule, "--traces", folder, "--only", "c.csv")
        same((got.returncode, len(verdicts(got, word + "    "))), (0, 2 if rule == "" else 1),
             f"a trace in which addresses decide is {word}, {rule or 'rising addresses'}") or note(got.stdout + got.stderr)
    with open(os.path.join(folder, "d.csv"), "w") as file:
        file.write(f"id,lower,upper,size\n0,0,1,{torch.TOTAL + 1}\n")
    got = run("", "--traces", folder, "--only", "d.csv")
    same((got.returncode, len(verdicts(got, "not compared"))), (1, 2), "a trace for which the card is too small") or \
        note(got.stdout)
    with open(os.path.join(folder, "e.pickle"), "wb") as file:
        pickle.dump({"device_traces": [[]], "segments": os.system}, file)
    got = run("", "--traces", folder)
    ok(got.returncode == 2 and "no trace" in got.stderr, "a pickle that names a function is refused") or note(got.stderr)


check_whole()
known = {}
same(sorted(TELLS), sorted(torch.BREAKABLE), "each rule that can be broken is")
for broken in TELLS:
    check_rule(broken, known)
check_first()
check_traces()
done()
