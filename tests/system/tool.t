#!/usr/bin/env python3
"""zr, the program: subcommands, options, exit codes, the table and the JSON; snapshots pickled by Python itself."""
import csv
import glob
import gzip
import json
import os
import pickle
import random
import re
import shutil
import stat
import subprocess
import sys

sys.path.insert(0, "tests/support")
from sizes import size
from zrtest import BUILD, FOLDER, HANG, done, note, ok, path, same, skip

ZR = os.path.abspath(os.path.join(BUILD, "bin", "zr"))
KEYS = ["file", "policy", "lower_bound_bytes", "peak_reserved_bytes", "ratio", "ratio_last_repeat", "driver_calls",
        "driver_calls_last_repeat", "ns_per_operation", "ns_per_operation_mean",
        "ns_per_operation_all", "waited_seconds", "failed_at"]
MIB = 1 << 20


def zr(*arguments, **settings):
    return subprocess.run([ZR, *arguments], capture_output=True, text=True, errors="replace", timeout=HANG,
                          stdin=subprocess.DEVNULL, **settings)


def write(name, data):
    where = path(name)
    with open(where, "wb") as file:
        file.write(data if isinstance(data, bytes) else data.encode())
    return where


def refused(words, code, names, *arguments):
    run = zr(*arguments)
    good = same((run.returncode, run.stdout), (code, ""), f"{words}: exit {code} and no data")
    for name in names:
        good &= ok(name in run.stderr, f"{words}: the message names {name!r}")
    good &= ok(run.stderr.startswith("zr: ") and run.stderr.count("\n") == 1, f"{words}: in one line")
    if not good:
        note(run.stderr)


def results(*arguments, keys=KEYS, code=0):
    run = zr("replay", *arguments, "--json")
    if not ok(run.returncode == code and run.stderr == "",
              f"replay {' '.join(map(os.path.basename, arguments))}: exit {code}"):
        note(run.stderr)
        return []
    report = json.loads(run.stdout)
    same(list(report), ["version", "results"], "the JSON opens with its version")
    same(report["version"], 1, "which is 1")
    ok(all(list(one) == keys for one in report["results"]), "each result has the keys of the design, in order")
    return report["results"]


lifetimes = write("lifetimes.csv", "id,lower,upper,size\n0,0,2,4\n1,0,9,2\n2,1,3,4\n3,4,9,8\n")


def test_usage():
    for flag in ("--help", "-h", "help"):
        run = zr(flag)
        ok(run.returncode == 0 and "Examples" in run.stdout and run.stderr == "", f"{flag}: examples, on stdout")
    run = zr("replay", "--help")
    ok(run.returncode == 0 and run.stdout.index("Examples") < run.stdout.index("--policy"), "replay --help likewise")
    for program in ("zr", "zr-train", "zrd"):
        said = {subprocess.run([f"{BUILD}/bin/{program}", flag], capture_output=True, text=True, timeout=HANG).stdout for flag in ("-V", "--version")}
        ok(len(said) == 1 and re.fullmatch(rf"{program} \d+\.\d+\.\d+\n", said.pop()), f"{program} -V and --version")
        run = subprocess.run([f"{BUILD}/bin/{program}", "--help"], capture_output=True, text=True, timeout=HANG)
        ok("-V" in run.stdout and "1.5GiB" in run.stdout, f"{program} --help names -V, and how sizes are written")
    refused("no subcommand", 2, ["--help"])
    refused("an unknown subcommand", 2, ["there is no subcommand sort"], "sort")
    for name, meant in (("replya", "replay"), ("stat", "stats"), ("wyh", "why"), ("pakc", "pack")):
        refused("a mistyped one", 2, [name, f"zr {meant}?"], name)
    refused("no file", 2, ["file"], "replay")
    refused("an unknown option", 2, ["--polcy"], "replay", lifetimes, "--polcy", "zr")
    refused("an unknown policy", 2, ["'slab'", "expandable"], "replay", lifetimes, "--policy", "zr,slab")
    refused("an empty policy", 2, ["--policy"], "replay", lifetimes, "--policy", "zr,")
    refused("an option without its value", 2, ["--repeat"], "replay", lifetimes, "--repeat")
    refused("a flag with a value", 2, ["--json"], "replay", lifetimes, "--json=yes")
    refused("bytes that are none", 2, ["--capacity", "'12 apples'"], "replay", lifetimes, "--capacity", "12 apples")
    refused("bytes that overflow", 2, ["--capacity"], "replay", lifetimes, "--capacity", "99999999999TB")
    refused("a granule of 3 MiB", 2, ["--granule", "power of two"], "replay", lifetimes, "--granule", "3MiB")
    run = zr("replay", lifetimes, env={**os.environ, "ZR_CONF": "nonsense:1"})
    ok(run.returncode == 2 and "nonsense" in run.stderr, "a mistake in ZR_CONF is not passed over")
    run = zr("replay", env={**os.environ, "ZR_FAULT": "nonsense:1"})
    ok(run.returncode == 2 and "nonsense" in run.stderr, "nor is one in ZR_FAULT") or note(run.stderr)
    os.link(lifetimes, path("--odd"))
    run = zr("replay", "--json", "--", "--odd", cwd=FOLDER)
    ok(run.returncode == 0 and '"--odd"' in run.stdout, "after -- a name may look like an option")


def test_limits():
    """Each option at the least and the most of its values, and beside them."""
    for command, option, words, good, bad in (
            ("replay", "--granule", "4KiB to 1GiB", ("4KiB", "1GiB"), ("2KiB", "2GiB")),
            ("replay", "--capacity", "must be above 0", ("2MiB", str(2 ** 64 - 1)), ("0",)),
            ("replay", "--repeat", "1 to 1000000", ("1",), ("0", "1000001")),
            ("replay", "--unplanned", "0 to 100", ("0", "100"), ("101",)),
            ("replay", "--seed", "below 2^64", ("0", str(2 ** 64 - 1)), (str(2 ** 64),)),
            ("pack", "--threads", "1 to 16", ("1", "16"), ("0", "17")),
            ("pack", "--time", "1 to 1000000", ("1", "1000000"), ("0", "1000001")),
            ("pack", "--capacity", "must be above 0", ("10", str(2 ** 64 - 1)), ("0",)),
            ("top", "--interval-ms", "100 to 60000", ("100", "60000"), ("99", "60001"))):
        arguments = [command, "--once"] if command == "top" else [command, lifetimes]
        for value in good:
            same(zr(*arguments, option, value).returncode, 0, f"{command} {option} {value}")
        for value in bad:
            refused(f"{command} {option} {value}", 2, [option, words], *arguments, option, value)
    where = write("devices.pickle", pickle.dumps(snapshot(), protocol=4))
    same(zr("replay", where, "--device", "0").returncode, 0, "the first device")
    for device in (2, 2 ** 31 - 1, 2 ** 31, 2 ** 32):
        for command in ("replay", "stats"):
            refused(f"{command} --device {device}", 3, ["no device"], command, where, "--device", str(device))


def test_sizes():
    """All programs, their options, ZR_CONF and JSON read sizes alike; Python's scripts print them as the programs do."""
    draw = random.Random(3)
    for bytes_ in (1, 1023, 1024, 10234, 10235, 1047552, 1048575, *(int(2 ** draw.uniform(0, 43)) for _ in range(8))):
        ok(f": {size(bytes_)} on stream" in zr("why", lifetimes, "--size", str(bytes_), "--capacity", "1g").stdout, f"{bytes_} bytes are {size(bytes_)}")
    bytes_of = lambda size: json.loads(zr("why", lifetimes, "--size", size, "--capacity", "1g", "--json").stdout)["size_bytes"]
    plan = lambda **settings: subprocess.run([f"{BUILD}/bin/zr-train", "--dry-run", "--json", "-", "--layers", "1", "--hidden", "16", "--heads", "1",
                                              *settings.pop("more", [])], capture_output=True, text=True, timeout=HANG, **settings)
    forms = {"16k": 1 << 14, "16K": 1 << 14, "16KiB": 1 << 14, "16kib": 1 << 14, "16KB": 16000, "16kb": 16000, "1.5KiB": 1536, "4194304": 1 << 22}
    same({form: bytes_of(form) for form in forms}, forms, "zr's options read each form of a size")
    same(len({plan(more=["--bucket-bytes", form]).stdout for form in ("16k", "16K", "16KiB", "16kib", "16384")}), 1, "zr-train's options too")
    for form, want in (("64k", 0), ("64KiB", 0), ("64kib", 0), ("0.0625MiB", 0), ("64KB", 2), ("64K7", 2), ("1.1KiB", 2)):
        run = plan(env={**os.environ, "ZR_CONF": f"granule:{form}"})
        ok(run.returncode == want and (want == 0 or f"`{form}`" in run.stderr), f"ZR_CONF=granule:{form}") or note(run.stderr)
    config = write("sizes.json", '{"zero_optimization": {"reduce_bucket_size": "16k", "allgather_bucket_size": "16k"}}')
    same(plan(more=["--config", config]).stdout, plan(more=["--bucket-bytes", "16KiB"]).stdout, "and a JSON's string is one")
    for value, words in (('"16x"', "16GB (of 1000)"), ("4096.5", "whole number of elements")):
        run = plan(more=["--config", write("sizes.json", f'{{"bf16": {{"enabled": true}}, "zero_optimization": {{"reduce_bucket_size": {value}}}}}')])
        ok(run.returncode == 2 and words in run.stderr, f"a bucket of {value} is refused") or note(run.stderr)
    for text in ("16X", "-1", "1.1GiB", "99999999999TB"):
        refused(f"--size {text}", 2, [f"'{text}'", "16G or 16GiB (powers of 1024), 16GB (of 1000) or 1.5GiB"], "why", lifetimes, "--size", text)
        for program, option in (("zrd", "--capacity"), ("zrd", "--process-hard"), ("zr-train", "--memory-limit")):
            run = subprocess.run([f"{BUILD}/bin/{program}", option, text], capture_output=True, text=True, timeout=HANG)
            ok(run.returncode == 2 and "16GB (of 1000)" in run.stderr, f"{program} {option} {text} is refused in the same words") or note(run.stderr)


def test_input():
    refused("a file that is not there", 3, ["nowhere.zrt"], "replay", path("nowhere.zrt"))
    refused("a folder", 3, [FOLDER], "replay", FOLDER)
    refused("words", 3, ["words.txt", "RMM", "MiniMalloc"], "replay", write("words.txt", "hello\n"))
    refused("an empty file", 3, ["empty.csv", "empty"], "replay", write("empty.csv", ""))
    refused("a row that is wrong", 3, ["bad.csv", "line 2", "'x'"], "replay",
            write("bad.csv", "id,lower,upper,size\n0,1,2,x\n"))
    refused("a good file and a bad one", 3, ["words.txt"], "replay", lifetimes, path("words.txt"), "--json")

    class Program:
        def __reduce__(self):
            return os.system, (f"touch {path('executed')}",)
    refused("a pickle that would act", 3, ["program.pickle", "opcode"], "replay",
            write("program.pickle", pickle.dumps({"segments": [], "device_traces": [Program()]}, protocol=4)))
    ok(not os.path.exists(path("executed")), "nothing of it was executed")
    with open("/dev/full", "w") as full:
        run = subprocess.run([ZR, "replay", lifetimes, "--json"], stdout=full, stderr=subprocess.PIPE, text=True)
    ok(run.returncode != 0 and "standard output" in run.stderr, "a full disk is a failure with words")
    for words in (["--help"], ["pack", "--help"], ["replay", "--help"]):
        with open("/dev/full", "w") as full:
            run = subprocess.run([ZR, *words], stdout=full, stderr=subprocess.PIPE, text=True)
        ok(run.returncode == 3 and "standard output" in run.stderr, f"{' '.join(words)}: also where it ends in help")


def test_output():
    """What -o must not do, and where it writes in place."""
    with open(lifetimes) as file:
        before = file.read()
    os.symlink(lifetimes, path("alias.csv"))
    for name in (lifetimes, path("alias.csv"), os.path.join(FOLDER, ".", "lifetimes.csv")):
        refused(f"-o {os.path.basename(name)}, the input", 2, ["-o", name], "pack", lifetimes, "-o", name)
    with open(lifetimes) as file:
        same(file.read(), before, "the input is what it was")
    shutil.copy(lifetimes, path("late.csv.partial"))
    refused("-o NAME of the input NAME.partial", 2, ["late.csv.partial", "which is the input"], "pack",
            path("late.csv.partial"), "-o", path("late.csv"))
    ok(os.path.exists(path("late.csv.partial")), "which is still there")
    os.unlink(path("late.csv.partial"))
    refused("-o a folder", 3, [FOLDER, "name a file"], "pack", lifetimes, "-o", FOLDER)
    refused("-o without its folder", 3, ["nowhere", "does not exist"], "pack", lifetimes, "-o", path("nowhere/out.csv"))
    locked = path("locked")
    os.mkdir(locked, 0o555)
    if os.access(locked, os.W_OK):
        skip("nothing is forbidden to root")
    else:
        refused("-o in a folder that is read only", 3, [locked, "permissions"], "pack", lifetimes, "-o",
                os.path.join(locked, "out.csv"))
    where = path("placed.csv")
    same(zr("pack", lifetimes, "-o", where).returncode, 0, "-o a new file")
    with open(where) as file:
        placed = file.read()
    ok(placed.startswith("id,lower,upper,size,offset\n") and placed.count("\n") == 5, "which has a row for each buffer")
    with open(path("real.csv"), "w") as file:
        file.write("older")
    os.symlink("real.csv", path("link.csv"))
    same(zr("pack", lifetimes, "-o", path("link.csv")).returncode, 0, "-o a symbolic link")
    ok(os.path.islink(path("link.csv")), "it stays a link")
    with open(path("real.csv")) as file:
        same(file.read(), placed, "and the rows are where it leads")
    pipe = path("pipe.csv")
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True)
    same(zr("pack", lifetimes, "-o", pipe).returncode, 0, "-o a pipe")
    same(reader.communicate(timeout=HANG)[0], placed, "whose reader gets the rows")
    try:  # a device of our own, so that a mistake costs nobody else's
        os.mknod(path("full"), 0o666 | stat.S_IFCHR, os.makedev(1, 7))
        device = path("full")
        with open(device, "w"):
            pass
    except OSError as error:
        skip(f"no device of one's own here ({error})")
    else:
        refused("-o a full disk", 3, [device, "No space left"], "pack", lifetimes, "-o", device)
        ok(stat.S_ISCHR(os.stat(device).st_mode), "a device stays one")
    run = zr("pack", lifetimes, "-o", path("long.csv"), env={**os.environ, "ZR_FAULT": "write:1"})
    ok(run.returncode == 3 and "long.csv" in run.stderr, f"-o a file for which there is no room: {run.stderr}")
    same([name for name in os.listdir(FOLDER) if "partial" in name], [], "nothing half written stays")


def test_numbers():
    rows = results(lifetimes, "--unit", str(MIB), "--repeat", "3")
    same([row["policy"] for row in rows], ["zr", "caching", "expandable", "bestfit"], "all policies, in order")
    by = {row["policy"]: row for row in rows}
    same({row["lower_bound_bytes"] for row in rows}, {10 * MIB}, "the lower bound, worked out by hand")
    # 4, 2 and 4 MiB live together; then 8 where the two of 4 were, around the one of 2.
    same(by["zr"]["peak_reserved_bytes"], 10 * MIB, "zr: the lower bound")
    same(by["bestfit"]["peak_reserved_bytes"], 14 * MIB, "bestfit: the hole in front is lost")
    same(by["caching"]["peak_reserved_bytes"], 20 * MIB, "caching: one segment of 20 MiB holds all")
    same(by["expandable"]["peak_reserved_bytes"], 20 * MIB, "expandable: one handle")
    ok(all(abs(row["ratio"] - row["peak_reserved_bytes"] / row["lower_bound_bytes"]) < 1e-6 for row in rows),
       "the ratio is of the two")
    ok(all(row["failed_at"] is None for row in rows), "nothing failed")
    ok(all(row["driver_calls_last_repeat"] == 0 for row in rows if row["policy"] != "zr"),
       "the models call no driver in steady state")
    rows = results(lifetimes, "--unit", "1MiB", "--capacity=10MiB", "--policy", "bestfit,zr", code=1)
    same([row["policy"] for row in rows], ["zr", "bestfit"], "a choice of policies")
    same([row["failed_at"] for row in rows], [None, 5], "within 10 MiB zr gets through and best fit does not")
    rows = results(lifetimes, "--unit", "1MiB", "--capacity=10MiB", "--policy", "zr")
    same([row["failed_at"] for row in rows], [None], "who gets through alone is fine")
    run = zr("replay", lifetimes, "--unit", "1MiB", "--capacity=10MiB")
    same((run.returncode, run.stderr), (1, ""), "one policy of several without memory: exit 1, all of them shown")
    table = run.stdout
    ok(re.search(r"\n  zr +10\.0 MiB +1\.0000 +1\.0000 ", table) and re.search(r"\n  bestfit .*MiB  out of memory at event 5\n",
                                                                                table),
       "the table has ratios of who got through alone") or note(table)
    rows = results(lifetimes, lifetimes, "--policy", "zr", "--granule", "64KiB")
    same([(row["file"], row["peak_reserved_bytes"]) for row in rows], [(lifetimes, 65536)] * 2,
         "several files, another granule")
    table = zr("replay", lifetimes, "--unit", "1MiB").stdout
    ok("lower bound 10.0 MiB" in table and "\x1b" not in table and "expandable" in table, "the table is for people")


def test_unplanned():
    """Unplanned allocations under every policy; what repeats are learned, and what is waited for."""
    options = ("--unit", str(MIB), "--granule", "64KiB")
    keys = KEYS + ["unplanned_percent", "seed"]
    much = ("--unplanned", "100", "--repeat", "4", "--seed", "7")
    rows = results(lifetimes, *options, *much, keys=keys)
    same({(row["unplanned_percent"], row["seed"]) for row in rows}, {(100, 7)}, "the JSON says what was asked for")
    # Four allocations of 18 MiB together, and as many unplanned allocations of 2 to 8 MiB each.
    ok(all(12 * MIB <= row["lower_bound_bytes"] <= 50 * MIB for row in rows), "as many unplanned allocations as allocations")
    ok(len({row["lower_bound_bytes"] for row in rows}) == 1, "every policy meets the same unplanned allocations")
    same(results(lifetimes, *options, *much, "--policy", "bestfit", keys=keys)[0]["lower_bound_bytes"],
         rows[0]["lower_bound_bytes"], "the same seed, the same unplanned allocations")
    # 30 layers: each keeps one block until its turn backwards and needs another for a moment.
    layers = [f"{2 * i},{i},{61 - i},{3 + i % 3}\n{2 * i + 1},{i},{i + 1},{2 + i % 2}\n" for i in range(30)]
    step = write("step.csv", "id,lower,upper,size\n" + "".join(layers))
    rows = results(step, "--unit", str(MIB), "--repeat", "8")
    same([row["driver_calls_last_repeat"] for row in rows], [0] * 4, "what repeats is learned")
    same([row["policy"] for row in rows if row["waited_seconds"] > 0], ["zr"], "which is waited for, and that is said")
    timeless = [{key: row[key] for key in KEYS if "ns_per" not in key and key != "waited_seconds"}
                for row in rows]
    again = results(step, "--unit", str(MIB), "--repeat", "8")
    same([{key: row[key] for key in timeless[0]} for row in again], timeless, "the same figures each time, but for the times")
    rows = results(step, "--unit", str(MIB), "--repeat", "8", "--no-wait", "--policy", "zr")
    same([(row["failed_at"], row["waited_seconds"]) for row in rows], [(None, 0)], "--no-wait waits for nothing")
    table = zr("replay", lifetimes, "--unplanned", "1", "--seed", "9").stdout
    ok("1 % of unplanned allocations; seed 9" in table, "the table says it too")


PACK_KEYS = ["file", "buffers", "verdict", "height", "lower_bound", "ratio", "seconds"]
# Full from 0 to 6 with 14 live bytes, and yet no offsets below 14 fit: there_is_room() looks at all of them.
FULL = [(0, 1, 3), (0, 1, 3), (0, 2, 4), (0, 3, 4), (1, 2, 2), (1, 4, 4), (2, 6, 5), (3, 4, 2), (3, 5, 3), (4, 5, 4),
        (4, 6, 2), (5, 6, 5)]


def write_buffers(name, buffers):
    return write(name, "id,lower,upper,size\n" + "".join("%d,%d,%d,%d\n" % (i, *one) for i, one in enumerate(buffers)))


def clash(one, at, other, other_at):
    return (one[0] < other[1] and other[0] < one[1] and at < other_at + other[2] and other_at < at + one[2])


def there_is_room(buffers, capacity, offsets=()):
    """Whether buffers fit, those that have offsets already where they are: every offset of the next one is tried."""
    if len(offsets) == len(buffers):
        return True
    one = buffers[len(offsets)]
    return any(there_is_room(buffers, capacity, (*offsets, at)) for at in range(capacity - one[2] + 1)
               if not any(clash(one, at, *placed) for placed in zip(buffers, offsets)))


def hard_set(alive=40, steps=20, swapped=8, seed=1):
    """Buffers that fill every moment to the byte. Each step ends some of them, and as many of other sizes with the same
    sum begin: to fit at the lower bound, those that end would have to be neighbours every time."""
    rng = random.Random(seed)
    now, over = [(0, 1 + rng.randrange(MIB)) for _ in range(alive)], []
    for step in range(1, steps):
        rng.shuffle(now)
        ended, now = now[:swapped], now[swapped:]
        over += [(began, step, size) for began, size in ended]
        total = sum(size for _, size in ended)
        cuts = sorted(rng.sample(range(1, total), swapped - 1))
        now += [(step, right - left) for left, right in zip([0, *cuts], [*cuts, total])]
    return over + [(began, steps, size) for began, size in now]


def packed(words, buffers, verdict, code, *arguments):
    """zr pack on the buffers, its JSON and its offsets looked at: the one result, or None."""
    where, out = write_buffers("buffers.csv", buffers), path("offsets.csv")
    if os.path.exists(out):
        os.unlink(out)
    run = zr("pack", where, *arguments, "-o", out, "--json")
    if not same((run.returncode, run.stderr), (code, ""), f"pack, {words}: exit {code}"):
        return None
    report = json.loads(run.stdout)
    same((list(report), report["version"], len(report["results"])), (["version", "results"], 1, 1),
         f"pack, {words}: the JSON has its version and one result")
    one = report["results"][0]
    same(list(one), PACK_KEYS, f"pack, {words}: with its keys in order")
    bound = max(sum(size for lower, upper, size in buffers if lower <= at < upper) for at, _, _ in buffers)
    same((one["file"], one["buffers"], one["verdict"], one["lower_bound"]), (where, len(buffers), verdict, bound),
         f"pack, {words}: {verdict}; a lower bound of {bound}")
    ok(abs(one["ratio"] - one["height"] / bound) < 1e-6 and one["height"] >= bound and one["seconds"] >= 0,
       f"pack, {words}: a height of {one['height']}, the ratio is of the two")
    with open(out) as file:
        rows = [tuple(map(int, row)) for row in list(csv.reader(file))[1:]]
    same([row[:4] for row in rows], [(i, *buffer) for i, buffer in enumerate(buffers)],
         f"pack, {words}: -o has the buffers as they came")
    offsets = [row[4] for row in rows]
    clashes = [(i, j) for i, a in enumerate(buffers) for j, b in enumerate(buffers[:i])
               if clash(a, offsets[i], b, offsets[j])]
    same(clashes, [], f"pack, {words}: no two buffers share a byte at one time")
    same(max(at + size for at, (_, _, size) in zip(offsets, buffers)), one["height"],
         f"pack, {words}: and the highest ends at the height")
    return one


def test_pack():
    """--capacity and --json: what fits, what is proved not to, and what time is too short for."""
    easy = [(0, 2, 4), (0, 9, 2), (2, 3, 4), (4, 9, 8)]
    one = packed("no capacity", easy, "found", 0, "--time", "20")
    ok(one and one["height"] == 10, "which is the lower bound, worked out by hand")
    one = packed("a capacity that is exact", easy, "found", 0, "--capacity", "10")
    ok(one and one["height"] <= 10, "which it keeps to")
    one = packed("a capacity with room", easy, "found", 0, "--capacity=4KiB")
    ok(one and one["height"] <= 4096, "which it keeps to")
    packed("a capacity below the live bytes", easy, "impossible", 1, "--capacity", "9")
    same([there_is_room(FULL, capacity) for capacity in (14, 15)], [False, True],
         "of all offsets, none fit within 14 live bytes, and some do within 15")
    one = packed("what has room within 15", FULL, "found", 0, "--capacity", "15", "--time", "60")
    ok(one and one["height"] == 15, "a height of 15")
    one = packed("what has none within 14", FULL, "impossible", 1, "--capacity", "14", "--time", "60")
    ok(one and one["height"] > 14, "the placement shown is one above the capacity")
    table = zr("pack", path("buffers.csv"), "--capacity", "14", "--time", "60")
    ok(table.returncode == 1 and re.search(r" 14 B .* impossible +\S*buffers\.csv\n", table.stdout), "the table has the word")
    hard = hard_set()
    bound = sum(size for lower, _, size in hard if lower == 0)
    one = packed("too little time", hard, "out of time", 1, "--capacity", str(bound), "--time", "1")
    ok(one and one["height"] > bound, "with the best there was")
    ok(one and one["seconds"] >= 1, f"after the second that it had ({one and one['seconds']:.2f} s)")
    table = zr("pack", path("buffers.csv"), "--capacity", str(bound), "--time", "1")
    ok(table.returncode == 1 and " out of time " in table.stdout, "the table has these words too")
    ok(zr("pack", lifetimes, path("buffers.csv"), "--capacity", str(bound), "--time", "1").returncode == 1,
       "of several files one that does not fit is enough for exit 1")
    refused("pack, a capacity of nothing", 2, ["--capacity", "must be above 0"], "pack", lifetimes, "--capacity", "0")


def snapshot():
    """What torch.cuda.memory._snapshot() gives, in small, with shared objects as real ones have."""
    frames = [{"name": "step", "filename": "train.py", "line": 7}]
    block = {"address": 4096, "size": 1024, "requested_size": 1000, "state": "active_allocated", "frames": frames}
    spare = {"address": 5120, "size": 2096128, "requested_size": 0, "state": "inactive", "frames": []}
    segment = {"device": 0, "address": 4096, "total_size": 2 * MIB, "allocated_size": 1024, "active_size": 1024,
               "requested_size": 1000, "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0),
               "is_expandable": False, "frames": frames, "blocks": [block, spare]}
    trace = []
    for i in range(2500):  # more than one batch of APPENDS
        where = 2 ** 47 + 4096 * i
        trace.append({"action": "alloc", "addr": where, "size": 3000 + i, "stream": 0, "time_us": 10 ** 15 + i,
                      "frames": frames, "user_metadata": "", "compile_context": "N/A"})
        if i % 2:
            trace += [{"action": name, "addr": where, "size": 3000 + i, "stream": 0, "time_us": 1, "frames": frames}
                      for name in ("free_requested", "free_completed")]
    return {"segments": [segment], "device_traces": [trace, []],
            "allocator_settings": {"max_split_size": -1, "garbage_collection_threshold": 0.0, "nothing": None,
                                   "expandable_segments": False, "roundup": {"1": 0}, "large": 2 ** 70, "yes": True}}


def test_pickles():
    data = snapshot()
    kept = sum(event["size"] for event in data["device_traces"][0] if event["action"] == "alloc")
    freed = [event["size"] for event in data["device_traces"][0] if event["action"] == "free_completed"]
    lower = 1000 + kept - sum(freed) + freed[-1]
    for protocol in range(2, 6):
        where = write(f"snapshot{protocol}.pickle", pickle.dumps(data, protocol=protocol))
        rows = results(where, "--policy", "zr")
        same([row["lower_bound_bytes"] for row in rows], [lower], f"a snapshot pickled by Python, protocol {protocol}")


def test_private_pools():
    data = snapshot()
    data["segments"][0]["segment_pool_id"] = (0, 1)
    where = write("private.pickle", pickle.dumps(data))
    same([row.get("private_bytes") for row in results(where, "--policy", "caching", keys=[*KEYS, "private_bytes"])], [2 * MIB], "the replay says how much is in private pools")


def zstd(data, size=1000, lines=0):
    """A frame of raw blocks (RFC 8878), which any version of zstd unpacks; behind the first one `lines` empty lines as a run."""
    blocks = [(0, len(data[at:at + size]), data[at:at + size]) for at in range(0, len(data), size)]
    if lines:
        blocks[1:] = [(1, lines, b"\n"), (0, len(data) - size, data[size:])]
    return b"\x28\xb5\x2f\xfd\0\x38" + b"".join(((count << 3) + (kind << 1) + (i == len(blocks) - 1)).to_bytes(3, "little") + part
                                                for i, (kind, count, part) in enumerate(blocks))


def test_compressed():
    """gzip and zstd: the same figures, several members, what is cut, what is damaged."""
    rows = "event,address,bytes\n" + "".join(f"alloc,{i * 64},{i % 64 + 1}\n" for i in range(1, 20000))
    plain = rows.encode()
    want = zr("stats", write("plain.csv", plain), "--json").stdout.replace("plain.csv", "same.csv")
    for words, data in (("gzip", gzip.compress(plain)), ("gzip, two members", gzip.compress(plain[:5000]) + gzip.compress(plain[5000:]) + bytes(100)),
                        ("zstd", zstd(plain)), ("zstd, two frames", zstd(plain[:7000]) + zstd(plain[7000:]))):
        run = zr("stats", write("same.csv", data), "--json")
        ok((run.returncode, run.stdout, run.stderr) == (0, want, ""), f"{words}: the figures are those of the plain file") or note(run)
    short = plain[:plain.rindex(b"\n", 0, 40000)]
    want_short = zr("stats", write("plain.csv", short), "--json").stdout
    first = short.index(b"\n", 900) + 1
    whole = bytearray(zstd(short, first, lines=100000))
    same(zr("stats", write("same.csv", bytes(whole)), "--json").stdout, want_short.replace("plain.csv", "same.csv"), "blocks larger than the output has room for")
    whole[first - len(short) - 3] &= 0xfe  # no longer the last block
    run = zr("stats", write("same.csv", bytes(whole)), "--json")
    same(json.loads(run.stdout)["moments"], json.loads(want_short)["moments"], "cut behind a block: the block is read whole")
    write("same.csv", gzip.compress(plain))
    with open(path("same.csv"), "rb") as file:
        run = subprocess.run([ZR, "stats", "-", "--json"], stdin=file, capture_output=True, text=True, timeout=HANG)
    same(run.stdout.replace('"-"', f'"{path("same.csv")}"'), want, "from standard input too")
    same(zr("pack", write("packed.csv.gz", gzip.compress(open(lifetimes, "rb").read())), "-o", path("packed.csv")).returncode, 0, "zr pack reads it")
    for name, data in (("cut.gz", gzip.compress(plain)), ("cut.zst", zstd(plain))):
        run = zr("stats", write(name, data[:len(data) * 2 // 3]))
        ok(run.returncode == 0 and name in run.stderr and "ends within its compressed data" in run.stderr and "truncated" in run.stdout,
           f"{name}: read up to the cut, and said") or note(run)
        broken = bytearray(data)
        broken[6 + 1003 * 20:6 + 1003 * 20 + 8] = b"\xff" * 8  # where zstd has a block's header
        refused(f"a broken {name}", 3, ["broken", "damaged near byte", "copy it again"], "stats", write("broken." + name, bytes(broken)))
    for name, data, words in (("x.xz", b"\xfd7zXZ\0", "unxz"), ("x.bin", b"memray\0\x0b", "memray's FileReader"), ("lz4.bin", b"\x04\x22\x4d\x18\x40", "memray"), ("x.zst", zstd(b"v 10500 3\nX a\n"), "zr run")):
        refused(name, 3, [name, words], "import", write(name, data))


def test_lists():
    """torch.cuda.memory_snapshot(): segments alone, of one or several devices."""
    segment = snapshot()["segments"][0]
    far = dict(segment, device=3, address=1 << 40, total_size=8 * MIB, blocks=[dict(segment["blocks"][0], address=1 << 40, size=8 * MIB, requested_size=MIB)])
    where = write("list.pickle", pickle.dumps([segment, far]))
    for device, live in (((), 8 * MIB), (("--device", "0"), 1024)):
        run = zr("stats", where, "--json", *device)
        ok(run.returncode == 0 and json.loads(run.stdout)["moments"]["now"]["live_bytes"] == live, f"a list of segments {device}: {live} bytes live") or note(run)
    refused("a device without segments", 3, ["neither segments nor events"], "stats", where, "--device", "2")


def test_columns():
    """MiniMalloc's further columns: names, alignments."""
    rows = [("b1", 0, 3, 4, 8), ("b,2", 3, 9, 3, 4), ('b"3', 0, 9, 4, 1), ("7", 0, 9, 5, 6)]
    with open(path("named.csv"), "w", newline="") as file:
        csv.writer(file).writerows([("id", "lower", "upper", "size", "alignment"), *rows])
    run = zr("pack", path("named.csv"), "-o", path("offsets.csv"), "--time", "5")
    ok(run.returncode == 0 and "multiples of 24" in run.stderr, "alignments that differ: their common multiple is said") or note(run)
    with open(path("offsets.csv"), newline="") as file:
        got = list(csv.reader(file))[1:]
    same([row[:4] for row in got], [[str(part) for part in row[:4]] for row in rows], "names come back, in order")
    same([int(one[4]) % row[4] for one, row in zip(got, rows)], [0] * 4, "each offset is aligned")
    run = zr("pack", path("named.csv"), "--capacity", "40", "--time", "1", "--json")
    same((run.returncode, json.loads(run.stdout)["results"][0]["verdict"]), (1, "out of time"), "and nothing is called impossible that a row's own alignment allows")
    refused("alignments without a multiple", 3, ["2^40"], "pack", write("odd.csv", "id,lower,upper,size,alignment\n1,0,1,1,1000000007\n2,0,1,1,998244353\n"))


def test_objects():
    """Nothing in defrag/ but its program needs the C library's heap or streams."""
    found = sorted(path for path in glob.glob(f"{BUILD}/obj/defrag/**/*.o", recursive=True) if "/tool/" not in path)
    ok(len(found) >= 10, f"defrag/: {len(found)} objects to read")
    heap = {"malloc", "calloc", "realloc", "free", "qsort", "strdup", "asprintf", "fopen", "printf", "puts", "abort", "exit"}
    bad = {}
    for name in found:
        lines = subprocess.run(["nm", "-u", "--format=posix", name], capture_output=True, text=True).stdout.splitlines()
        needs = {line.split()[0].split("@")[0] for line in lines} & heap
        if needs:
            bad[name] = needs
    same(bad, {}, "defrag/ needs nothing of malloc's family and no stream")


test_usage()
test_limits()
test_sizes()
test_input()
test_output()
test_numbers()
test_unplanned()
test_pack()
test_pickles()
test_private_pools()
test_compressed()
test_lists()
test_columns()
test_objects()
done()
