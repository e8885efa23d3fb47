#!/usr/bin/env python3
"""zr replay's models of PyTorch's two allocators beside PyTorch itself, on a card: `make gpu-check` runs it.

Each sequence of allocations goes through torch.cuda.caching_allocator_alloc and caching_allocator_delete, and through
`zr replay --policy caching` or `expandable`. What is compared after every allocation is the most that was reserved up
to there; then the operation at which memory ran out, and the most that was requested at once. memory_allocated() is
not: zr replay does not say it. Of free blocks of one size PyTorch takes the one at the lowest address, and the driver's
addresses are not ours: a trace that differs where they do not rise is called undecided.

    tests/support/gpu_pytorch.py [--traces FOLDER] [--only WORDS] [--record FILE | --recorded FILE]

--record writes PyTorch's answers for the sequences below to a table; --recorded compares with such a table where there
is no PyTorch, as tests/long/long_gpu_pytorch.t does with gpu_pytorch_peaks.json.

Exit code 0: all that can be compared is equal; 1: some differ, or nothing was compared; 2: no trace; 77: there is no PyTorch
here, or no card."""
import argparse
import csv
import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
from collections import namedtuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gpu_card import environment_of

KIB, MIB = 1 << 10, 1 << 20
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ZR = os.path.abspath(os.path.join(os.environ.get("BUILD", os.path.join(ROOT, "build")), "bin", "zr"))
POLICIES = ("caching", "expandable")
ABSENT = 77
EVERY = 64  # a sequence of so many allocations is compared after each of them; of a longer one, so many at a time

# ---- Sequences -------------------------------------------------------------------------------------------------------

# capacity_bytes: of zr's simulated device. PyTorch is held to the same (limited), or has no limit and is told to empty
# its cache where zr's model has to: before the next allocation of the sequence.
Sequence = namedtuple("Sequence", "name steps policies capacity_bytes limited is_trace")


def of(name, *steps, policies=POLICIES, capacity_bytes=None, limited=False, is_trace=False):
    return Sequence(name, list(steps), policies, capacity_bytes, limited, is_trace)


def A(size, stream=0):
    """An allocation; blocks are numbered in their order."""
    return ["alloc", size, stream]


def F(block, stream=None):
    """A free, while `stream` is the current one."""
    return ["free", block, stream]


E = ["empty"]  # torch.cuda.empty_cache()


def drawn(seed, operations=240, streams=3):
    """At random, mostly of sizes that differ: among equal ones the address decides, and that is the driver's."""
    rng = random.Random(seed)
    steps, live, count = [], [], 0
    while len(steps) < operations:
        if live and rng.random() < 0.45:
            steps.append(F(live.pop(rng.randrange(len(live))), rng.choice([None, *range(streams)])))
        else:
            most = rng.choice([4 * KIB, MIB, 10 * MIB, 40 * MIB])
            steps.append(A(rng.randint(1, most), rng.randrange(streams)))
            live.append(count)
            count += 1
    return steps


def limited(name, policy, capacity_bytes, *steps):
    return of(name, *steps, policies=(policy,), capacity_bytes=capacity_bytes, limited=True)


def emptied(name, policy, capacity_bytes, *steps):
    return of(name, *steps, policies=(policy,), capacity_bytes=capacity_bytes)


SEQUENCES = [
    of("a byte", A(1)),
    of("1 MiB is small", A(MIB), A(MIB), A(MIB)),
    of("a byte more is large", A(MIB + 1), A(MIB + 1), A(4 * KIB)),
    of("sizes are rounded to 512", A(MIB - 511), A(MIB - 511), A(MIB - 511)),
    of("pieces of 513 bytes", A(MIB), A(MIB - 2 * KIB), A(513), A(513), A(512)),
    of("up to the end of the small pool", A(MIB - 1), A(MIB - 511), A(2 * MIB)),
    of("segments of 20 MiB below 10 MiB", A(10 * MIB - 512), A(10 * MIB - 512), A(10 * MIB - 512)),
    of("10 MiB and more in multiples of 2 MiB", A(10 * MIB), A(10 * MIB + 1), A(13 * MIB), A(33 * MIB + 5)),
    of("a rest of 1 MiB in the large pool", A(20 * MIB), F(0), A(19 * MIB), A(MIB + 512)),
    of("a rest of 1 MiB that does not join", A(5 * MIB), A(6 * MIB), A(9 * MIB), F(1), A(5 * MIB), F(2), A(10 * MIB)),
    of("a rest of 512 bytes more", A(20 * MIB), F(0), A(19 * MIB - 512), A(MIB + 512)),
    of("a rest of 512 bytes in the small pool", A(MIB), A(MIB - 512), A(512), A(512)),
    of("what remains of small pieces", *[A(700 * KIB)] * 4, F(1), A(300 * KIB), A(400 * KIB), A(400 * KIB)),
    of("streams keep what is theirs", A(20 * MIB, 1), F(0), A(20 * MIB, 2), F(1), A(20 * MIB, 1), A(20 * MIB, 2)),
    of("small pieces of two streams", A(KIB, 1), A(KIB, 2), F(0), A(KIB, 2), A(2 * MIB - 8 * KIB, 0)),
    of("freed on another stream", A(20 * MIB, 1), F(0, 2), A(20 * MIB, 2), A(20 * MIB, 1), A(20 * MIB, 1)),
    of("the smallest that fits", A(30 * MIB), A(24 * MIB), F(0), F(1), A(22 * MIB), A(30 * MIB)),
    of("two pools", A(20 * MIB), F(0), A(MIB), F(1), A(2 * MIB), A(4 * KIB)),
    of("neighbours join", A(6 * MIB), A(6 * MIB), A(6 * MIB), F(0), F(2), F(1), A(20 * MIB)),
    of("small neighbours join", *[A(512 * KIB)] * 4, F(3), F(1), F(2), F(0), A(MIB), A(MIB)),
    of("segments never join", A(10 * MIB), A(10 * MIB), F(0), F(1), A(20 * MIB)),
    of("growing from the free end", A(15 * MIB), A(10 * MIB), A(15 * MIB)),
    of("growing from a rest", A(20 * MIB), F(0), A(19 * MIB), A(21 * MIB), A(21 * MIB)),
    of("a hole before the end", A(10 * MIB), A(10 * MIB), F(0), A(12 * MIB), A(8 * MIB), A(10 * MIB)),
    of("a step, three times", *[step for i in range(0, 24, 8) for step in (
        A(5 * MIB), A(3 * MIB), A(600 * KIB), F(i), A(11 * MIB), F(i + 1), A(26 * MIB, 1), F(i + 2), A(MIB), F(i + 3),
        A(7 * MIB), A(2 * MIB), F(i + 4), F(i + 5), F(i + 6), F(i + 7))]),
    *(of(f"drawn, {seed}", *drawn(seed)) for seed in (1, 2, 3)),
    limited("a refusal gives the cache back", "caching", 40 * MIB, A(20 * MIB), F(0), A(30 * MIB), A(10 * MIB), A(1)),
    limited("small segments go too", "caching", 40 * MIB, A(1), F(0), A(40 * MIB), F(1), A(1), A(38 * MIB)),
    limited("another stream's go too", "caching", 40 * MIB, A(20 * MIB, 1), F(0), A(30 * MIB, 2)),
    limited("a segment in use stays", "caching", 40 * MIB, A(6 * MIB), A(6 * MIB), F(0), A(30 * MIB)),
    limited("whole handles are unmapped", "expandable", 60 * MIB, A(30 * MIB, 1), F(0), A(30 * MIB, 2)),
    limited("a part of a handle stays", "expandable", 40 * MIB, A(19 * MIB), A(19 * MIB), F(0), A(20 * MIB, 2)),
    limited("gaps are mapped first", "expandable", 100 * MIB, A(40 * MIB), A(20 * MIB), F(0), A(80 * MIB, 2), F(2),
            A(30 * MIB), A(15 * MIB), A(15 * MIB), A(20 * MIB, 1)),
    emptied("an emptied cache", "caching", 40 * MIB, A(20 * MIB), F(0), E, A(30 * MIB)),
    emptied("emptied beside what is in use", "caching", 60 * MIB, A(6 * MIB), A(6 * MIB), A(20 * MIB), F(0), F(2), E,
            A(30 * MIB), A(6 * MIB)),
    emptied("emptied, of small segments", "caching", 42 * MIB, *[A(MIB)] * 6, *[F(block) for block in range(5)], E,
            A(40 * MIB), A(MIB)),
    emptied("emptied handles", "expandable", 60 * MIB, A(40 * MIB), A(20 * MIB), F(0), E, A(20 * MIB, 2), F(2), E,
            A(40 * MIB)),
    emptied("an emptied segment", "expandable", 60 * MIB, A(50 * MIB), F(0), E, A(50 * MIB, 1), A(8 * MIB, 1)),
]

# ---- Traces ----------------------------------------------------------------------------------------------------------

UNITS = 4 * KIB  # of a CSV whose sizes come to less than SMALL_BYTES at once: problems in units, not bytes
SMALL_BYTES = 256 * MIB


class Plain(pickle.Unpickler):
    """Numbers, words, lists and dictionaries: a pickle is a program, and nothing of it is run."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def snapshot_steps(path):
    """A snapshot's window: first what was live before it, by address, then its events."""
    with open(path, "rb") as file:
        snapshot = Plain(file).load()
    device = max(range(len(snapshot["device_traces"])), key=lambda number: len(snapshot["device_traces"][number]))
    events = [event for event in snapshot["device_traces"][device] if event["action"] in ("alloc", "free_completed")]
    before, live = [], set()  # before: address, bytes, stream
    for event in events:
        if event["action"] == "alloc":
            live.add(event["addr"])
        elif event["addr"] in live:
            live.remove(event["addr"])
        else:
            before.append((event["addr"], event["size"], event["stream"]))
    for segment in snapshot["segments"]:
        address = segment["address"]
        for block in segment["blocks"] if segment.get("device", 0) == device else ():
            if block["state"] != "inactive" and block.get("address", address) not in live:
                before.append((block.get("address", address), block.get("requested_size", block["size"]),
                               segment["stream"]))
            address += block["size"]
    steps, numbers, streams, count = [], {}, {0: 0}, 0
    for action, address, size, stream in [("alloc", *block) for block in sorted(before)] + \
            [(event["action"], event["addr"], event["size"], event["stream"]) for event in events]:
        if action == "alloc":
            numbers[address] = count
            count += 1
            steps.append(A(size, streams.setdefault(stream, len(streams))))
        else:
            steps.append(F(numbers.pop(address)))
    return steps


def lifetime_steps(path):
    """id,lower,upper,size: at each moment frees come first."""
    with open(path, newline="") as file:
        rows = [(int(row["lower"]), int(row["upper"]), int(row["size"])) for row in csv.DictReader(file)]
    moments = sorted([(lower, 1, i) for i, (lower, _, _) in enumerate(rows)] +
                     [(upper, 0, i) for i, (_, upper, _) in enumerate(rows)])
    steps, numbers = [], {}
    for _, begins, i in moments:
        if begins:
            numbers[i] = len(numbers)
            steps.append(A(rows[i][2]))
        else:
            steps.append(F(numbers[i]))
    if requested_peak(steps) < SMALL_BYTES:
        steps = [A(step[1] * UNITS) if step[0] == "alloc" else step for step in steps]
    return steps


def requested_peak(steps):
    sizes, now, most = [], 0, 0
    for step in steps:
        if step[0] == "alloc":
            sizes.append(step[1])
            now += step[1]
        elif step[0] == "free":
            now -= sizes[step[1]]
        most = max(most, now)
    return most


def traces(folder):
    found = []
    for name in sorted(os.listdir(folder)):
        read = {".csv": lifetime_steps, ".pickle": snapshot_steps}.get(os.path.splitext(name)[1])
        if read:
            found.append(of(name, *read(os.path.join(folder, name)), is_trace=True))
    return found


# ---- PyTorch's side: a process of its own for each policy, since its settings are read once -------------------------


def run_in_torch(torch, sequence):
    """What PyTorch reserves at most up to each step, where it ran out of memory, and the requested bytes."""
    cuda = torch.cuda
    numbers = {step[2] for step in sequence["steps"] if step[0] != "empty"} - {0, None}
    streams = {0: cuda.default_stream(), **{number: cuda.Stream() for number in numbers}}
    total = cuda.get_device_properties(0).total_memory
    limit = sequence["capacity_bytes"] if sequence["limited"] else None
    cuda.set_per_process_memory_fraction((limit + MIB) / total if limit else 1.0)
    cuda.reset_peak_memory_stats()
    blocks, peaks, out_of_memory = [], [], None
    segment, rising = 0, True  # its address; whether each was above those before it
    for step in sequence["steps"]:
        if step[0] == "empty":
            cuda.empty_cache()
            continue
        if step[0] == "free":
            with cuda.stream(streams.get(step[2])):
                cuda.caching_allocator_delete(blocks[step[1]])
            blocks[step[1]] = None
        else:
            try:
                blocks.append(cuda.caching_allocator_alloc(step[1], 0, streams[step[2]].cuda_stream))
            except RuntimeError as error:
                if "out of memory" not in str(error):
                    raise
                out_of_memory = len(peaks)
                break
        peaks.append(cuda.max_memory_reserved())
        if peaks[-1] > max(peaks[-2:-1], default=0) and step[0] == "alloc":
            rising &= blocks[-1] > segment
            segment = blocks[-1]
    stats = cuda.memory_stats()
    answer = {"peaks": peaks, "failed_at": out_of_memory, "rising": rising, "reserved": cuda.max_memory_reserved(),
              "allocated": cuda.max_memory_allocated(), "requested": stats.get("requested_bytes.all.peak")}
    for block in filter(None, blocks):
        cuda.caching_allocator_delete(block)
    cuda.empty_cache()
    answer["left"] = cuda.memory_reserved()
    return answer


def absence():
    """Why PyTorch cannot be compared with here, and the module if it can."""
    try:
        import torch
    except ImportError as error:
        return f"PyTorch is not installed ({error})", None
    if not torch.cuda.is_available():
        return f"PyTorch {torch.__version__} finds no card", None
    return None, torch


def drive():
    """The process on PyTorch's side: sequences come on stdin, an answer for each goes to stdout."""
    reason, torch = absence()
    if reason:
        json.dump({"absent": reason}, sys.stdout)
        return
    answers = []
    for sequence in json.load(sys.stdin):
        answers.append(run_in_torch(torch, sequence))
        if answers[-1]["left"]:  # what comes next would begin with that
            break
    json.dump({"torch": torch.__version__, "card": torch.cuda.get_device_name(0), "answers": answers}, sys.stdout)


def ask_torch(sequences, policy):
    """Its version, its card and its answers; or why there are none, as "absent"."""
    settings = f"expandable_segments:{policy == 'expandable'}"
    answers = []
    while True:
        rest = [sequence._asdict() for sequence in sequences[len(answers):]]
        got = subprocess.run([sys.executable, os.path.abspath(__file__), "--drive"], stdout=subprocess.PIPE, text=True,
                             input=json.dumps(rest), env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": settings,
                                                          "PYTORCH_ALLOC_CONF": settings})
        if got.returncode != 0:
            raise SystemExit(f"gpu_pytorch: PyTorch's side ended with exit code {got.returncode}")
        told = json.loads(got.stdout)
        if "absent" in told:
            return told
        answers += told["answers"]
        if len(answers) == len(sequences):
            return {**told, "answers": answers}


# ---- Its answers in a table: [policy, sequence, operations, failed_at, requested, [[operation, peak], ..]] -------------


def to_row(policy, sequence, answer):
    peaks = [[i, peak] for i, peak in enumerate(answer["peaks"]) if peak > max(answer["peaks"][:i], default=0)]
    return [policy, sequence.name, len(answer["peaks"]), answer["failed_at"], answer["requested"], peaks]


def of_row(row):
    _, _, count, failed_at, requested, growth = row
    peaks = [max((peak for at, peak in growth if at <= i), default=0) for i in range(count)]
    return {"peaks": peaks, "failed_at": failed_at, "requested": requested, "rising": True, "left": 0,
            "reserved": max(peaks, default=0), "allocated": requested}


def write_table(path, provenance, rows):
    with open(path, "w") as file:
        file.write(f'{{"provenance": {json.dumps(provenance)}, "rows": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]}\n")


def ask_table(table, sequences, policy):
    """What ask_torch() answers, from the table; sequences that it has not are left out."""
    rows = {row[1]: row for row in table["rows"] if row[0] == policy}
    known = [sequence for sequence in sequences if sequence.name in rows]
    return known, {"from": table["provenance"], "answers": [of_row(rows[sequence.name]) for sequence in known]}


# ---- zr's side -------------------------------------------------------------------------------------------------------


def write_log(path, steps):
    """As RAPIDS' memory manager logs it, which zr reads."""
    with open(path, "w") as file:
        file.write("Thread,Time,Action,Pointer,Size,Stream\n")
        made = []
        for step in steps:
            if step[0] == "alloc":
                made.append(step)
                file.write(f"0,0,allocate,{len(made)},{step[1]},{step[2]}\n")
            else:
                _, size, stream = made[step[1]]
                file.write(f"0,0,free,{1 + step[1]},{size},{stream if step[2] is None else step[2]}\n")


class Replay:
    """zr replay's answers for the beginnings of one sequence, under one policy."""

    def __init__(self, sequence, policy, folder):
        self.steps = [step for step in sequence.steps if step[0] != "empty"]
        self.capacity_bytes, self.policy, self.folder = sequence.capacity_bytes, policy, folder
        self.known = {}

    def ask(self, lengths):
        """The results for these beginnings, so many steps each."""
        new = [length for length in lengths if length not in self.known]
        if new:
            paths = [os.path.join(self.folder, f"{length}.log") for length in new]
            for path, length in zip(paths, new):
                write_log(path, self.steps[:length])
            command = [ZR, "replay", *paths, "--policy", self.policy, "--granule", str(2 * MIB), "--json"]
            if self.capacity_bytes:
                command += ["--capacity", str(self.capacity_bytes)]
            got = subprocess.run(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment_of(False)})
            if got.returncode not in (0, 1):
                raise SystemExit(f"gpu_pytorch: zr replay ended with exit code {got.returncode}")
            self.known.update(zip(new, json.loads(got.stdout)["results"]))
            for path in paths:
                os.unlink(path)
        return {length: self.known[length] for length in lengths}


# ---- Side by side ----------------------------------------------------------------------------------------------------


def allocations(steps):
    """The lengths of the beginnings that end with an allocation: no other step reserves anything."""
    return [i + 1 for i, step in enumerate(steps) if step[0] == "alloc"]


def spread(lengths):
    """EVERY of them at most, evenly, the last one included."""
    if len(lengths) <= EVERY:
        return lengths
    return [lengths[(i + 1) * len(lengths) // EVERY - 1] for i in range(EVERY)]


def first_difference(replay, answer):
    """The first of the steps after which the two have reserved different amounts at most, and both amounts; or None.
    Of a long sequence, the first that is found between two of the steps compared."""
    lengths = [length for length in allocations(replay.steps) if length <= len(answer["peaks"])]
    while lengths:
        points = spread(lengths)
        told = replay.ask(points)
        wrong = [point for point in points if told[point]["peak_reserved_bytes"] != answer["peaks"][point - 1]]
        if not wrong:
            return None
        if points == lengths:
            return wrong[0] - 1, told[wrong[0]]["peak_reserved_bytes"], answer["peaks"][wrong[0] - 1]
        good = max((point for point in points if point < wrong[0]), default=0)
        lengths = [length for length in lengths if good < length <= wrong[0]]
    return None


def describe(step):
    words = f"of {step[1]} bytes on stream {step[2]}" if step[0] == "alloc" else f"of block {step[1]}"
    return f"{step[0]} {words}"


def compare(replay, answer):
    """None where they are equal, else the difference in words."""
    length = len(replay.steps)
    if not answer["peaks"]:
        return "PyTorch served nothing"
    whole = replay.ask([length])[length]
    different = first_difference(replay, answer)
    if different:
        at, own, other = different
        return f"operation {at} ({describe(replay.steps[at])}): zr has reserved {own} bytes at most, PyTorch {other}"
    if whole["failed_at"] != answer["failed_at"]:
        return f"out of memory at operation: zr {whole['failed_at']}, PyTorch {answer['failed_at']} (none: nowhere)"
    if answer["requested"] is not None and answer["failed_at"] is None and \
            answer["requested"] != whole["lower_bound_bytes"]:
        return f"requested at most: zr {whole['lower_bound_bytes']} bytes, PyTorch {answer['requested']}"
    if answer["left"]:
        return f"PyTorch still has {answer['left']} bytes after everything was freed and its cache emptied"
    return None


def judge(sequence, policy, answer, folder):
    """The verdict, and what there is to say."""
    if answer["failed_at"] is not None and sequence.is_trace:
        return "not compared", "the card has no memory for it"
    difference = compare(Replay(sequence, policy, folder), answer)
    if difference is None:
        return "equal", f"{len(answer['peaks'])} operations, {answer['reserved']} bytes reserved, " \
                        f"{answer['allocated']} allocated"
    if sequence.is_trace and not answer["rising"]:
        return "undecided", f"the driver's addresses do not rise, and they decide among equals: {difference}"
    return "different", difference


def compare_all(sequences, policy, counts, table, rows):
    """Prints a line for each and counts the verdicts; what PyTorch answers becomes rows. Returns whose answers they are,
    and why there are none, or None."""
    sequences = [sequence for sequence in sequences if policy in sequence.policies]
    if table:
        sequences, told = ask_table(table, sequences, policy)
    else:
        told = ask_torch(sequences, policy)
        if "absent" in told:
            return None, told["absent"]
        told["from"] = f"PyTorch {told['torch']} on {told['card']}"
        rows += [to_row(policy, *pair) for pair in zip(sequences, told["answers"]) if not pair[0].is_trace]
    print(f"# zr replay --policy {policy} beside {told['from']}")
    with tempfile.TemporaryDirectory(prefix="zr-pytorch-") as folder:
        for sequence, answer in zip(sequences, told["answers"], strict=True):
            verdict, words = judge(sequence, policy, answer, folder)
            counts[verdict] += 1
            print(f"{verdict:12} {policy}: {sequence.name}: {words}", flush=True)
    return told["from"], None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", default=os.path.join(ROOT, "..", "shared", "traces"),
                        help="a folder of snapshots and MiniMalloc CSVs, if it is there")
    parser.add_argument("--only", default="", help="sequences whose name has these words")
    parser.add_argument("--record", metavar="FILE", help="write PyTorch's answers to a table")
    parser.add_argument("--recorded", metavar="FILE", help="compare with such a table instead of PyTorch")
    parser.add_argument("--drive", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        drive()
        return 0
    try:
        found = SEQUENCES + (traces(options.traces) if os.path.isdir(options.traces) else [])
    except (OSError, ValueError, KeyError, pickle.UnpicklingError) as error:
        parser.error(f"{options.traces} has a file that is no trace: {error!r}")
    chosen = [sequence for sequence in found if options.only in sequence.name]
    if not chosen:
        parser.error(f"no sequence's name has '{options.only}'")
    counts = dict.fromkeys(("equal", "different", "undecided", "not compared"), 0)
    table, rows = None, []
    if options.recorded:
        with open(options.recorded) as file:
            table = json.load(file)
    for policy in POLICIES:
        provenance, reason = compare_all(chosen, policy, counts, table, rows)
        if reason:
            print(f"zr: the policies of zr replay are not compared with PyTorch: {reason}")
            return ABSENT
    if options.record:
        write_table(options.record, provenance, rows)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return 1 if counts["different"] or not counts["equal"] else 0


if __name__ == "__main__":
    sys.exit(main())
