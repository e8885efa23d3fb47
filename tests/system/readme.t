#!/usr/bin/env python3
"""README.md's commands, run in the documented order in a folder that has the build's programs, and what they print beside
what it shows. Bytes and losses are compared exactly; times, process numbers and addresses are patterns; a line of `..`
or `...` stands for any number of lines, one that ends in `..` for the rest of its line. The tables and the paragraph of
numbers that commands print are compared too; those of tests/bench/RESULTS.md in long_traces.t, by `readme.t results`.

    tests/system/readme.t --write    puts what the programs print now into README.md, and leaves what matches as it is

ZR_README_PYTHON names a Python with PyTorch: then only the blocks that need it are run."""
import difflib
import glob
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, "tests/support")
from zrtest import BUILD, FOLDER, done, note, ok, path, same, skip, text_file, token_shard, train

WRITE, RESULTS_ALONE = "--write" in sys.argv[1:], "results" in sys.argv[1:]
TRACES, SCRATCH = os.path.abspath("../shared/traces"), path("scratch")
PYTHON = os.environ.get("ZR_README_PYTHON")
SECONDS = 600 if PYTHON else 120  # by which a command hangs
with open("README.md", encoding="utf-8") as file:
    README = file.read().splitlines()
with open("tests/bench/RESULTS.md", encoding="utf-8") as file:
    RESULTS = file.read().splitlines()
ELISIONS = ("..", "...")

# What differs from run to run, wherever it stands.
MASKS = [(r"\b\d+(\.\d+)? (ns|us|ms|s)\b", "TIME"), (r"\[\d+\]", "[PID]"), (r"(process|pid) \d+", "process PID"), (r"0x[0-9a-f]{6,}", "ADDRESS"),
         (r"zr-\d+-", "zr-PID-"), (r"[─━═]{3,}", "---")]
NS_COLUMNS = r"( +[\d.]+){3} +TIME$"  # of zr replay: nanoseconds, and the pauses

# Not run, with the reason. The first word of a pair is how the command begins, behind "$ ".
NOT_RUN = [
    ("build/bin/zr doctor -- chromium", "chromium is no package of make check"),
    ("build/bin/zr rehearse", "PyTorch: make check-rehearse runs it"),
    ("build/bin/zr why run1/", "the snapshot is zr rehearse's"),
    ("PYTORCH_CUDA_ALLOC_CONF=", "PyTorch: make check-rehearse runs it"),
    ("build/bin/zr attach 4711", "4711 stands for a process of the reader's: live.t has one"),
]
# Blocks without commands, by their first line.
NO_COMMANDS = {"git clone <this repository> zr && cd zr": "the build and the tests themselves; long_demo.t runs make demo",
               "your program ─── malloc, CUDA memory ─┐        zr-train ─── your trainer (examples/mlp.c)": "a picture"}

def trainers_are_there():
    """Both are let in: each has said its plan."""
    for _ in range(SECONDS * 5):  # a fifth of a second each
        got = subprocess.run([f"{BUILD}/bin/zr", "service", "status", "--json"], env=ENVIRONMENT, capture_output=True, text=True, timeout=SECONDS)
        clients = json.loads(got.stdout or "{}").get("clients", [])
        if sum(client["plan_peak_bytes"] > 0 for client in clients) >= 2:
            return
        time.sleep(0.2)


# How a command is run in another way than it stands: what is put in place of what, what else varies, which lines are left out,
# how far apart numbers may be, its exit code, and what is awaited before.
SIZE = r"(0|[\d.]+ [KMGT]?i?B)"
AS = [
    ("build/bin/zr rehearse", dict(put={"python3": PYTHON}, code=1)),
    ("PYTORCH_CUDA_ALLOC_CONF=", dict(put={"python3": PYTHON})),
    ("build/bin/zr replay", dict(vary=[(NS_COLUMNS, " COLUMNS")])),
    ("build/bin/zr-train --data build/demo/bible.txt", dict(put={"build/demo/bible.txt": "bible.txt", "--steps 900": "--steps 2 --eval-every 0"})),
    # What Python itself holds is another version's elsewhere.
    ("build/bin/zr run --stats -- python3", dict(near=0.15)),
    ("make demo-fragmentation", dict(put={"make ": "make --silent --no-print-directory again=: "})),
    ("build/bin/zr-train --model llama", dict(put={"--seq 256 --steps 200": "--seq 32 --batch 2 --steps 2 --eval-every 0"})),
    ("build/bin/zr-train $small &", dict(put={"$small": "$small --steps 2000"})),
    ("build/bin/zr-train $small --seed", dict(put={"$small": "$small --steps 2000"})),
    # A launcher has no plan, and no row in README; what is lent at a moment is the scheduler's.
    ("build/bin/zr service status", dict(before=trainers_are_there, leave_out=r"KiB +- +0 +- +-$",
                                         vary=[(r"^ *\d+ (zr-train +/ +\d+) .*? " + SIZE + r" +" + SIZE + r" +- +-.*$", r"PID \1 planned \2"), (r"^\S+ \S+ of", "SIZE of")])),
]
ENVIRONMENT = {**os.environ, "PATH": "/usr/bin:" + os.environ["PATH"], "LC_ALL": "C.UTF-8", "BUILD": "build", "XDG_RUNTIME_DIR": path("runtime"), "TMPDIR": path("tmp"), "COLUMNS": "80"}
for name in ("ZR_CONF", "ZR_FAULT", "ZR_GROUP", "LD_PRELOAD", "MAKEFLAGS", "MAKELEVEL"):
    ENVIRONMENT.pop(name, None)

# Use 3's program: activations whose length changes with each step, and blocks of the same size that stay.
TRAIN = """
import random
sizes, kept = random.Random(1), []
for step in range(40):
    tokens = sizes.randrange(64, 512)
    activations = [bytearray(tokens * sizes.choice((4096, 6144, 12288))) for _ in range(24)]
    kept.append(bytearray(700000))
    del activations[::2]
"""


def prepare():
    """A checkout's names, the build's programs, and the small files that the commands read."""
    for folder in ("runtime", "tmp", "scratch"):
        os.makedirs(path(folder), 0o700)
    for name in os.listdir("."):
        if not name.startswith(".") and name != "build":
            os.symlink(os.path.abspath(name), os.path.join(SCRATCH, name))
    os.symlink(os.path.abspath(BUILD), os.path.join(SCRATCH, "build"))
    for trace in glob.glob(TRACES + "/*.pickle") + glob.glob(TRACES + "/*.csv"):
        os.symlink(trace, os.path.join(SCRATCH, os.path.basename(trace)))
    for name in ("t.txt", "bible.txt"):
        os.symlink(text_file("words.txt", 200000), os.path.join(SCRATCH, name))
    for name, text in (("train.py", TRAIN), ("server", "#!/bin/sh\n")):
        with open(os.path.join(SCRATCH, name), "w", encoding="ascii") as out:
            out.write(text)
        os.chmod(os.path.join(SCRATCH, name), 0o700)
    if not PYTHON:
        make_model()


def make_model():
    """The folder llama: a model of two steps with a tokenizer, and notes to tune it on."""
    with open("tests/unit/train/tokenizers.json", encoding="utf-8") as file:
        tokenizer = json.load(file)["tokenizers"]["llama2"]["file"]
    run = train(steps=2, layers=1, arch="llama", vocab=600, data=token_shard(list(range(600)) * 5), export=os.path.join(SCRATCH, "llama/"))
    ok(run.code == 0, "a model with a tokenizer") or note(run.err)
    os.makedirs(os.path.join(SCRATCH, "notes"))
    os.symlink(text_file("words.txt", 200000), os.path.join(SCRATCH, "notes", "words.txt"))
    for name, json_text in (("tokenizer.json", tokenizer), ("tokenizer_config.json", {"eos_token": "</s>", "model_max_length": int(1e30)})):
        with open(os.path.join(SCRATCH, "llama", name), "w", encoding="utf-8") as out:
            json.dump(json_text, out)


class Shell:
    """One for each block, as its commands share variables and jobs. Both streams in one, in order."""

    def __init__(self):
        self.process = subprocess.Popen(["bash"], cwd=SCRATCH, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        start_new_session=True)
        small = re.search(r"\(`\$small` is `(.*?)`", " ".join(README))
        self.run(f"small={shlex.quote(small[1])}; exec 9>/dev/null" if small else ":")

    def run(self, command):
        """(exit code, lines). A job of the background writes elsewhere."""
        if command.endswith("&"):
            command = command[:-1] + ">&9 2>&9 &"
        self.process.stdin.write(f"{{ {command}\n}} </dev/null; code=$?; echo; echo @@readme $code\n")
        self.process.stdin.flush()
        alarm, lines = threading.Timer(SECONDS, os.killpg, (self.process.pid, signal.SIGKILL)), []
        alarm.start()
        for line in self.process.stdout:
            line = line.rstrip("\n").replace(path("tmp"), "/tmp")
            if line.startswith("@@readme "):
                alarm.cancel()
                return int(line.split()[1]), lines
            lines.append(line)
        return -1, lines

    def end(self):
        self.run("kill $(jobs -p) 2>&9; wait 2>&9")
        if os.listdir(path("runtime")):
            self.run("build/bin/zr service stop")
        self.process.stdin.close()
        self.process.wait(SECONDS)


def settings_of(command):
    return next((settings for begin, settings in AS if command.startswith(begin)), {})


def masked(line, settings):
    line = line.strip()
    for pattern, word in MASKS + settings.get("vary", []):
        line = re.sub(pattern, word, line)
    return re.sub(r"\s+", " ", line)


def equal(shown, got, settings):
    shown, got = masked(shown, settings), masked(got, settings)
    if shown.endswith(" .."):
        return got.startswith(shown[:-3])
    near = settings.get("near", 0)
    if shown == got or not near:
        return shown == got
    numbers = r"\d+(?:\.\d+)?(?: [KMGT]iB)?"
    value = lambda text: float(text.split()[0]) * 1024 ** " KMGT".find((text.split() + [" "])[1][0])
    pairs = list(zip(re.findall(numbers, shown), re.findall(numbers, got)))
    return re.sub(numbers, "N", shown) == re.sub(numbers, "N", got) and all(abs(value(a) - value(b)) <= near * value(a) for a, b in pairs)


def first_difference(shown, got, settings):
    """None: what is shown is what there is. Else (the line shown, what came in its place)."""
    at, gap = 0, False
    for line in shown:
        if line.strip() in ELISIONS:
            gap = True
            continue
        where = next((i for i in range(at, len(got)) if equal(line, got[i], settings)), None) if gap else at
        if where is None or where >= len(got) or not equal(line, got[where], settings):
            return line, got[at] if at < len(got) else "(nothing)"
        at, gap = where + 1, False
    return None if gap or at == len(got) else ("(nothing)", got[at])


def refreshed(shown, got, settings):
    """The lines of README, with what matches as it was, what is alike as it is now, what is new between its neighbours."""
    bare = lambda line: re.sub(r"[\d.]+", "0", masked(line, settings))
    at, gap, out = 0, False, []
    indent = next((re.match(r" *", line)[0] for line in shown if line.strip()), "    ")
    for line in shown:
        if not line.strip() or line.strip() in ELISIONS:
            out.append(line)
            gap |= line.strip() != ""
            continue
        alike = [(equal(line, got[i], settings) + difflib.SequenceMatcher(None, bare(line), bare(got[i])).ratio(), -i) for i in range(at, len(got))]
        best, where = max(alike, default=(0, 0))
        if best < 0.6:
            continue
        where = -where
        out += [] if gap else [indent + text for text in got[at:where]]
        if equal(line, got[where], settings):
            out.append(line)
        else:
            tail = line.rstrip().endswith(" ..")
            out.append(re.match(r" *", line)[0] + (" ".join(got[where].split()[:len(line.split()) - 1]) + " .." if tail else got[where].strip()))
        at, gap = where + 1, False
    return out + ([] if gap else [indent + text for text in got[at:]])


def blocks():
    """(number of the first line, lines) of each part that is indented by four, blank lines within it included."""
    start = None
    for number, line in enumerate(README + ["end"]):
        if line.startswith("    ") and start is None and (number == 0 or not README[number - 1].strip()):
            start = number
        elif start is not None and line.strip() and not line.startswith("    "):
            lines = README[start:number]
            while not lines[-1].strip():
                lines.pop()
            yield start, lines
            start = None


def commands(lines):
    """(command, its lines, the lines of its output) in order."""
    found = []
    for line in lines:
        if line.startswith("    $ "):
            found.append([line[6:], [line], []])
        elif found and found[-1][0].endswith("\\") and not found[-1][2]:
            found[-1][0] = found[-1][0][:-1] + line.strip()
            found[-1][1].append(line)
        elif found:
            found[-1][2].append(line)
    return [(re.sub(r"\s+#\s.*", "", command), typed, shown) for command, typed, shown in found]


kept_output = {}


def check_options(command):
    """What is not run is at least no option that there is not."""
    called = re.search(r"build/bin/zr (\w+)(.*?)( -- .*)?$", command)
    if called:
        says = subprocess.run([f"{BUILD}/bin/zr", called[1], "--help"], capture_output=True, text=True, timeout=SECONDS).stdout
        same([option for option in re.findall(r"--[a-z]+[a-z-]*", called[2]) if option not in says], [], f"zr {called[1]} has the options of {command:.60}")


def run_block(number, lines):
    """Checks a block; returns its lines as they are now."""
    all_of_it = commands(lines)
    if not all_of_it:
        reason = NO_COMMANDS.get(lines[0].strip())
        ok(reason is not None, f"line {number + 1}, a block without commands: {reason}") or note(lines[0])
        return lines
    shell, names, out = Shell(), {}, []
    for command, typed, shown in all_of_it:
        reason = next((reason for begin, reason in NOT_RUN if command.startswith(begin) and not PYTHON), None)
        missing = [word for word in command.split() if not PYTHON and word.endswith((".pickle", ".csv")) and not os.path.exists(os.path.join(SCRATCH, word))]
        if reason or missing:
            check_options(command)
            skip(f"{command:.70}: {reason or f'there is no ../shared/traces/{missing[0]}'}")
            out += typed + shown
            continue
        settings, real = settings_of(command), command
        for old, new in [*settings.get("put", {}).items(), *names.items()]:
            real = real.replace(old, new)
        settings.get("before", lambda: None)()
        code, got = shell.run(real.replace("/tmp/", path("tmp") + "/"))
        got = [line for line in got if line.strip() and not re.search(settings.get("leave_out", r"^\b$"), line)]
        kept_output[command] = got
        wrong = first_difference([line for line in shown if line.strip()], got, settings) if any(shown) else None
        if not ok(wrong is None, f"line {number + 1}: {command:.90}"):
            note(f"shown   {wrong[0].strip()}\nprinted {wrong[1].strip()}\nof {len(got)} lines, exit {code}; {sys.argv[0]} --write refreshes README.md")
        if code != settings.get("code", 0):
            same(code, settings.get("code", 0), f"and the exit code of {command:.60}")
        pattern = r"/tmp/zr-\d+-[\w.-]+"
        names.update(zip(re.findall(pattern, "\n".join(shown)), re.findall(pattern, "\n".join(got))))
        out += typed
        if wrong:  # README keeps its name of a file
            for old, new in names.items():
                got = [line.replace(new, old) for line in got]
            shown = refreshed(shown, got, settings)
        out += shown
    shell.end()
    return out


def check_table():
    """The ratios of RESULTS.md: what zr replay prints of each trace."""
    files = {"PyTorch training, context 128": "torch_medium_128_training.pickle", "the same model, context 512": "torch_medium_512_training.pickle",
             "PanGu 2.6B, 18,692 buffers": "pangu_2.6B.csv", "a compiler's 28,526 buffers": "iopddl_S_1.csv"}
    for number, line in enumerate(RESULTS):
        name = files.get(line.split("|")[1].strip()) if line.count("|") == 7 else None
        if not name:
            continue
        command = f"build/bin/zr replay {name} --repeat 10"
        if not os.path.exists(os.path.join(SCRATCH, name)):
            skip(f"the table's {name}: there is no ../shared/traces")
            continue
        if command not in kept_output:
            shell = Shell()
            kept_output[command] = shell.run(command)[1]
            shell.end()
        ratios = {row.split()[0]: row.split()[3:5] for row in kept_output[command] if re.match(r" +(zr|caching|expandable|bestfit) ", row)}
        want = [*ratios["zr"], ratios["caching"][0], ratios["expandable"][0], ratios["bestfit"][0]]
        title = line.split("|")[1]
        if not same([part.strip() for part in line.split("|")[2:7]], want, f"the table's {name}") and WRITE:
            RESULTS[number] = f"|{title}| {' | '.join(want)} |"


def check_text(lines, begin, end, printed):
    """A part of the text, whose numbers are all among those that were printed."""
    text = "\n".join(lines)
    numbers = re.findall(r"\d+(?:\.\d+)?", text[text.index(begin):text.index(end)])
    there = {number.removesuffix(".0") for number in re.findall(r"\d+(?:\.\d+)?", printed)}
    same([number for number in numbers if number.removesuffix(".0") not in there], [], f"{begin} ..: {', '.join(numbers)} are printed") or note(printed)


prepare()
changes = []
for number, lines in [] if RESULTS_ALONE else list(blocks()):
    if not PYTHON or any("zr rehearse" in line for line in lines):
        changes.append((number, len(lines), run_block(number, lines)))
if (WRITE and not PYTHON) or RESULTS_ALONE:
    check_table()
    holes = subprocess.run(["/usr/bin/env", "python3", "tests/bench/bench_holes.py"], capture_output=True, text=True, timeout=SECONDS).stdout
    check_text(RESULTS, "The model of PyTorch's caching allocator reserves", "`tests/bench/bench_holes.py` prints this", holes)
if RESULTS_ALONE:
    done()
if not PYTHON:
    check_text(README, "Two trainers of", "one uses in its forward", "\n".join(kept_output["build/bin/zr service status"]))
if WRITE:
    for number, count, lines in reversed(changes):
        README[number:number + count] = lines
    with open("README.md", "w", encoding="utf-8") as file:
        file.write("\n".join(README) + "\n")
    with open("tests/bench/RESULTS.md", "w", encoding="utf-8") as file:
        file.write("\n".join(RESULTS) + "\n")
done()
