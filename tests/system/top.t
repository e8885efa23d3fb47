#!/usr/bin/env python3
"""zr top: its picture under tmux at 80 x 24 and 200 x 50 beside the figures of zr ps and blocks that are known; keys,
resizing, processes that stop, are killed and come; how it ends; --once and --json; what it refuses."""
import atexit
import base64
import collections
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib

sys.path.insert(0, "tests/support")
from zrtest import BUILD, HANG, TAGS, ZR_TRAIN, arguments, done, made_in, note, ok, path, same, settles, skip, text_file, wait_for

ZR, LIBRARY = (os.path.abspath(os.path.join(BUILD, name)) for name in ("bin/zr", "lib/libzr.so"))
RUNTIME = path("runtime")
os.makedirs(RUNTIME, 0o700)
ENVIRONMENT = {**os.environ, "XDG_RUNTIME_DIR": RUNTIME, "LC_ALL": "C.UTF-8"}
for name in ("TMUX", "NO_COLOR", "ZR_CONF"):
    ENVIRONMENT.pop(name, None)
PYTHON = "/usr/bin/python3"
MIB = 1 << 20
LETTERS = dict(zip(range(11), "pgomGcaCwO#"))
PARTS = {"param": "p", "grad": "g", "activation": "a", "workspace": "w", "stranded": "!", "free": ".", "cached": ":"}


def zr(*words, **environment):
    return subprocess.run([ZR, *map(str, words)], capture_output=True, text=True, errors="replace", timeout=HANG,
                          stdin=subprocess.DEVNULL, env={**ENVIRONMENT, **environment})


class Program:
    """tests/support/live_program.py."""

    def __init__(self, name=PYTHON):
        self.process = subprocess.Popen([name, "tests/support/live_program.py", LIBRARY], executable=PYTHON,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
        atexit.register(self.process.kill)
        self.pid, self.blocks = self.process.pid, json.loads(self.process.stdout.readline())

    def command(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def end(self):
        self.process.kill()
        self.process.wait()


class Screen:
    """zr top in a terminal of tmux."""
    count = 0

    def __init__(self, columns, rows, *words, before="", after=""):
        Screen.count += 1
        self.name, self.socket = f"s{Screen.count}", path("tmux")
        self.tmux("new-session", "-d", "-s", self.name, "-x", str(columns), "-y", str(rows),
                  f"trap : INT; {before} {ZR} top {' '.join(map(str, words))} {after}; echo ended with $?; stty -a; exec sleep 1000")

    def tmux(self, *words):
        got = subprocess.run(["tmux", "-S", self.socket, "-f", "/dev/null", *words], capture_output=True, text=True,
                             env=ENVIRONMENT, timeout=HANG)
        return got.stdout

    def rows(self, *options):
        return self.tmux("capture-pane", "-p", "-t", self.name, *options).split("\n")

    def keys(self, *keys):
        self.tmux("send-keys", "-t", self.name, *keys)

    def resize(self, columns, rows):
        self.tmux("resize-window", "-t", self.name, "-x", str(columns), "-y", str(rows))

    def shows(self, pattern, words):
        """A check that the picture comes to have it."""
        good = wait_for(lambda: re.search(pattern, "\n".join(self.rows()), re.M))
        if not ok(good, words):
            note("\n".join(self.rows()))

    def ends(self, code, words):
        self.shows(rf"^ended with {code}$", words)
        self.shows(r"(?<!-)\bicanon\b", words + ", the terminal as it was")

    def pid(self):
        """Of zr top, the shell's child."""
        shell = int(self.tmux("display-message", "-p", "-t", self.name, "#{pane_pid}"))
        with open(f"/proc/{shell}/task/{shell}/children") as file:
            return int(file.read().split()[0])


def words_of(size):
    """A size as the tool writes it."""
    unit = 0
    while size >= 1023.5:
        size, unit = size / 1024, unit + 1
    digits = 0 if unit == 0 or size >= 99.95 else 1 if size >= 9.995 else 2
    return "0" if size == 0 else f"{size:.{digits}f} {['B', 'KiB', 'MiB'][unit]}"


def figures(pid):
    """Of zr ps: its arenas, by name."""
    return {arena["name"]: arena for arena in json.loads(zr("ps", "--json", pid).stdout)["processes"][0]["arenas"]}


def parts_of(arena):
    """What the arena's memory is, by letter."""
    parts = {tag: arena["tags"][tag]["live_bytes"] for tag in ("param", "grad", "activation", "workspace")}
    parts["stranded"], parts["cached"] = arena["stranded_bytes"], arena["cached_bytes"]
    parts["free"] = arena["reserved_bytes"] - sum(parts.values())
    return {PARTS[name]: size for name, size in parts.items()}


def check_bar(row, arena, words):
    """Each letter has its share of the bar."""
    bar = re.match(r"\[(.*?)\]", row)
    letters, width = collections.Counter(bar[1] if bar else ""), len(bar[1]) if bar else 1
    want = {letter: size / arena["peak_reserved_bytes"] * width for letter, size in parts_of(arena).items()}
    ok(bar and all(abs(letters[letter] - share) <= 1 for letter, share in want.items()), f"{words}: the bar") or \
        note(f"{row}\n{letters}\n{want}")


def cover(blocks, start, end):
    """How much of the addresses is in blocks of each tag, as a share."""
    shares = collections.Counter()
    for at, size, tag in blocks:
        shares[LETTERS[tag]] += max(0, min(end, at + size) - max(start, at)) / (end - start)
    return shares


def check_map(rows, blocks, words):
    """A letter is its tag's where most is live, a dash where little is, a dot where all was freed. Between is not looked
    at, nor what lies after addresses that a row leaves out: it is in no block."""
    lines = [(int(got[1], 16), got[2]) for got in (re.match(r"(0x[0-9a-f]+) +(\S+)", row) for row in rows) if got]
    # Rows that follow one another without addresses left out between them are the nearest.
    cell = min((b[0] - a[0] for a, b in zip(lines, lines[1:])), default=0) / len(lines[0][1]) if lines else 0
    seen, wrong = collections.Counter(), []
    for address, letters in lines:
        for i, letter in enumerate(letters):
            where = address + i * cell, address + (i + 1) * cell
            live, freed = cover(blocks["kept"], *where), sum(cover(blocks["freed"], *where).values())
            share, (tag, most) = sum(live.values()), live.most_common(1)[0]
            want = tag if most > 0.6 else "." if freed > 0.999 else "-" if freed > 0.6 and share > 0.1 else None
            seen[want] += 1
            wrong += [(hex(int(where[0])), letter, want)] if want not in (None, letter) else []
    ok(not wrong and all(seen[letter] > 2 for letter in "pga."), f"{words}: the map has the letters of the blocks there") or \
        note(f"{cell} {seen} {wrong[:5]}\n" + "\n".join(rows))
    return seen


def check_picture(screen, program, columns, rows):
    """One process's details, arena large."""
    size, now = f"{columns} x {rows}", figures(program.pid)
    # Tmux has the new size before the program has drawn it, and a picture may be captured in part: until it stays.
    pictures = [[], []]

    def drawn():
        picture = screen.rows()
        pictures[:] = pictures[1], picture
        return pictures[0] == picture and picture[0].startswith("zr top   2 processes ") and picture[rows - 1].startswith("q end ") and \
            "largest holders" in "\n".join(picture) and not time.sleep(0.3) and screen.rows() == picture
    ok(wait_for(drawn, 10), f"{size}: the holders are there")
    picture = pictures[1][:rows]
    text, large = "\n".join(picture), now["large"]
    ok(picture[0].startswith("zr top   2 processes ") and picture[-1].startswith("q end "), f"{size}: first and last row")
    ok(all(len(row) <= columns for row in picture), f"{size}: no row is longer")
    both = {name: sum(arena[name] for arena in now.values()) for name in ("live_bytes", "reserved_bytes")}
    row = next((row for row in picture if re.match(rf">\s*{program.pid} ", row)), "")
    ok(f" {words_of(both['live_bytes'])} " in row and f" {words_of(both['reserved_bytes'])} " in row and "python3" in row,
       f"{size}: the process's row") or note(row)
    title = next(i for i, row in enumerate(picture) if row.startswith(f"{program.pid} python3   arena 0 large"))
    check_bar(picture[title + 1], large, size)
    legend = dict(re.findall(r"([pgaw!.:]) (?:param|grad|activation|workspace|stranded|free|cached) +([\d.]+ \w+)", text))
    same(legend, {letter: words_of(part) for letter, part in parts_of(large).items() if part}, f"{size}: the legend")
    shown = {name: text_of.strip() for name, text_of in
             re.findall(r"(live|reserved|stranded|peak live|peak res\.|requested|mapped) {2,}([\d.]+(?: \w+)?)", "\n".join(picture[title:]))}
    want = {name.replace("peak reserved", "peak res."): words_of(large[name.replace(" ", "_") + "_bytes"]) for name in
            ("live", "reserved", "peak live", "peak reserved", "requested", "mapped")}
    same({name: shown.get(name) for name in want}, want, f"{size}: the figures")
    ok(re.search(r"40\.0 MiB +10 +4\.00 MiB  p param\b", text) and re.search(r"20\.0 MiB +5 +4\.00 MiB  [ga] ", text),
       f"{size}: the largest holders")
    seen = check_map([row[:columns - 56] if columns >= 120 else row for row in picture], program.blocks, size)
    ok(seen["-"] > 0 or columns < 120, f"{size}: some of it is in part")


def check_screens(first, second):
    """The picture and the keys."""
    screen = Screen(80, 24, "--interval-ms", 200)
    screen.shows(rf"^>\s*{first.pid} python3", "the first process is the chosen one")
    screen.shows(rf"^{first.pid} python3   all 2 arenas", "with all its arenas")
    screen.keys("Tab")
    screen.shows(r"   arena 0 large", "tab: one of them")
    settles(lambda: check_picture(screen, first, 80, 24))
    screen.resize(200, 50)
    screen.shows(r"^ *held .*holders|peak res\.    blocks", "200 x 50: the wider table")
    settles(lambda: check_picture(screen, first, 200, 50))
    ok(wait_for(lambda: re.search(r"\[4(?:8;5;)?", "".join(screen.rows("-e")))), "in colours")
    screen.keys("Down")
    screen.shows(rf"^>\s*{second.pid} ", "down: the next process")
    screen.shows(rf"^{second.pid} python3   all 2 arenas", "down: its details")
    screen.keys("j", "j", "k")
    screen.shows(rf"^>\s*{first.pid} ", "j ends at the last, k goes up")
    screen.keys("p")
    screen.shows(r"^zr top .*paused", "p pauses")
    before = words_of(sum(arena["live_bytes"] for arena in figures(first.pid).values()))
    first.command("more = take(large, 32 * MIB, ACTIVATION)")
    after = words_of(sum(arena["live_bytes"] for arena in figures(first.pid).values()))
    time.sleep(0.5)  # for what should not happen
    screen.keys("s")
    screen.shows(r"order \(reserved\)", "s: another order")
    # A picture may be captured in part: one that has the old figure whole, and not the new.
    ok(before != after and wait_for(lambda: f" {before} " in (text := "\n".join(screen.rows())) and f" {after} " not in text),
       "while it pauses, nothing changes")
    screen.keys("p")
    screen.shows(rf"^>?\s*{first.pid} python3 +{re.escape(after)} ", "and then the figures are of now")
    second.command("more = take(large, 200 * MIB, ACTIVATION)")
    grown = words_of(sum(arena["reserved_bytes"] for arena in figures(second.pid).values()))
    screen.shows(rf"^.\s*{second.pid} python3 .* {re.escape(grown)} ", "another one grows")
    ok(wait_for(lambda: re.match(rf".\s*{second.pid} ", screen.rows()[2])), "and comes first, as it has reserved most")
    second.command("give(large, more)")
    screen.keys("s", "s")
    screen.shows(r"order \(pid\)", "and by number again")

    def rate():
        first.command("for _ in range(1000): give(large, take(large, MIB, GRAD))")
        return re.search(rf"^.\s*{first.pid} python3 .* [1-9]\d*k? \[", "\n".join(screen.rows()), re.M)
    ok(wait_for(rate), "allocations a second")
    screen.keys("-")
    screen.shows(r"every 0\.5 s", "- is slower")
    screen.keys("+", "+")
    screen.shows(r"every 0\.2 s", "+ is faster, to an end")
    screen.keys("m")
    screen.shows(r"memory map: off", "m: no map")
    screen.keys("m")
    screen.shows(r"largest holders", "m: the map again")
    screen.keys("?")
    screen.shows(r"^Keys$", "? has the keys")
    screen.keys("?")
    screen.shows(r"largest holders", "and goes")
    for columns, rows in ((20, 5), (1, 1), (40, 10), (41, 11), (600, 210), (119, 24), (120, 12)):
        screen.resize(columns, rows)
        if columns > 1:  # where nothing can be shown, the next size tells whether it goes on
            screen.shows("zr top: 40 x 10" if columns < 40 else "^zr top   2 processes", f"resized to {columns} x {rows}")
    screen.resize(80, 24)
    screen.shows(r"largest holders", "and back")
    return screen


def once():
    """Of zr top --once, by process."""
    return {process["pid"]: process for process in json.loads(zr("top", "--once", "--json").stdout)["processes"]}


def check_processes(screen, first, second):
    """Some stop, die, and come."""
    second.process.send_signal(signal.SIGSTOP)
    screen.shows(rf"^.\s*{second.pid} .* silent", "one that is stopped is silent")
    screen.keys("Down")
    screen.shows(rf"^{second.pid} python3   silent", "its details say so; keys work")
    screen.keys("Up")
    second.process.send_signal(signal.SIGCONT)
    ok(wait_for(lambda: "silent" not in "\n".join(screen.rows())), "it goes on, and answers")
    third = Program("\x1b[31m\nname\udcff of more than thirty-one letters")
    screen.shows(r"^zr top   3 processes", "one that comes is there")
    screen.shows(rf"^.\s*{third.pid} \?\[31m\?name", "its name is no escape sequence")
    got = wait_for(lambda: found if third.pid in (found := once()) else None)
    same(got[third.pid]["program"][:11], "\x1b[31m\nname\ufffd", "JSON has it escaped")
    screen.keys("Up", "Up", *["Down"] * sorted(got).index(third.pid))
    screen.shows(rf"^>\s*{third.pid} ", "it is chosen")
    screen.shows(r"largest holders", "and looked at")
    third.end()
    screen.shows(rf"^>\s*{third.pid} .* gone", "it is killed, and gone")
    screen.shows(r"^zr top   2 processes .* 1 gone", "and counted")
    screen.keys("x")
    ok(wait_for(lambda: str(third.pid) not in "\n".join(screen.rows())), "x forgets it")
    screen.shows(rf"^>\s*{first.pid} ", "another one is chosen")
    ok(wait_for(lambda: not any(name.startswith(f"{third.pid}.") for name in os.listdir(os.path.join(RUNTIME, "zr")))), "its files are cleaned")


def check_once(first, second):
    with made_in(os.path.join(RUNTIME, "zr")) as names:
        got = json.loads(zr("top", "--once", "--json").stdout)["processes"]
        same(zr("stats", str(first.pid)).returncode, 0, "zr stats of a process")
    listed = [process for process in json.loads(zr("ps", "--json").stdout)["processes"] if process["arenas"]]
    same([[process["pid"], process["arenas"]] for process in got], [[process["pid"], process["arenas"]] for process in listed],
         "--once --json has the figures of zr ps")
    same([name for name in names if name.endswith(".zrt")], [], "what a process writes down for them has no name, which a killed zr would leave behind")
    for process, program in zip(got, (first, second)):
        large = process["arenas"][0]
        same({(holder["tag"], holder["requested_bytes"]): holder["blocks_count"] for holder in process["holders"]},
             collections.Counter((TAGS[tag], size) for _, size, tag in program.blocks["kept"]), "the holders are the blocks")
        same(sum(holder["live_bytes"] for holder in process["holders"]), large["live_bytes"], "the holders add up to what is live")
        live = collections.Counter()
        for cell in process["map"]["cells"]:
            live.update(cell["live"])
        same({tag: live[tag] for tag in large["tags"]}, {tag: part["live_bytes"] for tag, part in large["tags"].items()},
             "and the map, by tag")
        same(sum(cell["free_bytes"] for cell in process["map"]["cells"]) + large["live_bytes"], large["mapped_bytes"],
             "free and live are what is mapped")
    text = zr("top", first.pid, "--once").stdout.split("\n")
    ok(len(text) == 25 and not text[24] and text[1].split() == "pid program live reserved alloc/s by tag".split() and
       re.match(rf">\s*{first.pid} python3", text[2]) and not any(str(second.pid) in row for row in text),
       "--once prints one process's picture in 24 rows") or note("\n".join(text))
    check_map(text, first.blocks, "--once")
    same(len(zr("top", "--once", "--columns", 200, "--rows", 50).stdout.split("\n")), 51, "--rows")


def check_trace(program):
    """One run's figures: of the live view, of its trace and of the report of that."""
    trace, page = path("run.zrt"), path("run.html")
    same(zr("record", program.pid, "start", "--arena", 0, "-o", trace).returncode, 0, "zr record start")
    program.command("some = [take(large, (1 + i % 7) * MIB // 4, i % 11) for i in range(200)]")
    program.command("for one in some[::2]: give(large, one)")
    large = wait_for(lambda: once().get(program.pid))["arenas"][0]
    same([zr("record", program.pid, "stop", "--arena", 0).returncode, zr("report", trace, "-o", page).returncode], [0, 0],
         "and stop, and zr report")
    moments = json.loads(zr("stats", "--json", trace).stdout)["moments"]
    with open(page) as file:
        meta = re.search(r'<[^<>]*data-column="meta"[^<>]*>([^<]*)<', file.read())
    meta = json.loads(zlib.decompress(base64.b64decode(meta[1])))
    names = ("live", "requested", "stranded", "reserved")
    live = [large[f"{name}_bytes"] for name in ("live", "requested", "stranded", "mapped", "peak_live")]
    for words, got in (("trace", moments), ("report", meta)):
        same([got["now"][f"{name}_bytes"] for name in names] + [got["peak"]["live_bytes"]], live,
             f"the {words} has the figures of the live view")
    program.command("for one in some[1::2]: give(large, one)")


def check_refusals(first):
    for words, code, has in [([], 2, "standard output is not a terminal; zr top --once"), (["--json"], 2, "--once"),
                             (["--once", "x"], 2, "'x' is not the number of a process"), (["--once", 1], 1, "process 1 publishes no memory"),
                             (["--interval-ms", 5], 2, "100 to 60000"), (["--once", *range(1, 200)], 2, "at most 128")]:
        got = zr("top", *words)
        ok(got.returncode == code and has in got.stderr and (code == 1 or not got.stdout), f"top {words[:3]}: {has}") or \
            note(f"{got.returncode} {got.stderr}")


def check_ranks():
    """The two ranks of a trainer, side by side; one is killed, and the other ends with it."""
    trainer = subprocess.Popen([ZR_TRAIN, *arguments(data=text_file(), ranks=2, stage=1, steps=10 ** 6, layers=2, hidden=64, heads=2, seq=32,
                                                     batch=2)], env={**ENVIRONMENT, "ZR_CONF": "publish:on"},
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    atexit.register(trainer.kill)

    def training():
        """Of each rank the arena in which it trains, once both have allocated what stays."""
        found = {one["pid"]: arena for one in json.loads(zr("ps", "--json").stdout)["processes"] for arena in one["arenas"]
                 if arena["name"] == "training" and arena["tags"]["optimizer"]["live_bytes"]}
        return found if len(found) == 2 else None
    ranks = wait_for(training)
    screen = Screen(100, 30, "--interval-ms", 200, *sorted(ranks))
    screen.shows(r"^zr top   2 processes", "two ranks")
    for pid, other, key in ((min(ranks), max(ranks), []), (max(ranks), min(ranks), ["Down"])):
        screen.keys(*key)
        screen.shows(rf"^>\s*{pid} zr-train", f"rank {len(key)} is chosen")
        screen.shows(rf"^ \s*{other} zr-train", "the other one beside it")
        param = words_of(ranks[pid]["tags"]["param"]["live_bytes"])
        screen.shows(rf"^{pid} zr-train   all 3 arenas(?:.*\n)*.*\bp param +{re.escape(param)}", f"its parameters: {param}")
    os.kill(max(ranks), signal.SIGKILL)
    screen.shows(r"^zr top   0 processes .* 2 gone", "one is killed, and both are gone")
    trainer.wait(timeout=HANG)
    screen.keys("x", "x", "q")
    screen.ends(0, "q ends it")
    settles(lambda: same([one for one in os.listdir(os.path.join(RUNTIME, "zr")) if one.split(".")[0] in map(str, ranks)], [], "and nothing of them is left"))


def check_ends(screen, first):
    screen.keys("q")
    screen.ends(0, "q ends it")
    screen = Screen(80, 24, first.pid)
    screen.shows(r"^zr top   1 process  ", "zr top PID: that one alone")
    screen.keys("C-c")
    screen.ends(130, "Ctrl-C ends it")
    screen = Screen(80, 24)
    screen.shows(r"^zr top   2 processes", "and again")
    os.kill(screen.pid(), signal.SIGTERM)
    screen.ends(143, "SIGTERM ends it")
    screen = Screen(80, 24)
    screen.shows(r"^zr top   2 processes", "and again")
    pid = screen.pid()
    screen.tmux("kill-session", "-t", screen.name)
    ok(wait_for(lambda: not os.path.exists(f"/proc/{pid}")), "it ends with its terminal")
    Screen(80, 24, after="</dev/null").shows("standard input is not a terminal", "keys need a terminal")
    Screen(80, 24, before="TERM=nothing").shows("'nothing' is unknown", "an unknown terminal is named")
    Screen(80, 24, 1).shows("process 1 publishes no memory", "so is a process that is none")
    screen = Screen(80, 24, before="NO_COLOR=1")
    screen.shows("largest holders", "NO_COLOR")
    settles(lambda: ok("largest holders" in (text := "".join(screen.rows("-e"))) and "[48;5;" not in text, "has no colours"))
    screen.tmux("kill-server")


settles(lambda: ok("No process of this user" in zr("top", "--once").stdout, "no process, and it says so"))
settles(lambda: same(json.loads(zr("top", "--once", "--json").stdout), {"version": 1, "processes": [], "service": None}, "nor is one in the JSON"))
programs = sorted([Program(), Program()], key=lambda program: program.pid)
settles(lambda: check_once(*programs))
check_refusals(programs[0])
check_trace(programs[1])
if shutil.which("tmux"):
    # In this one's group of processes, so that whoever kills that leaves no terminal behind.
    terminals = subprocess.Popen(["tmux", "-S", path("tmux"), "-f", "/dev/null", "-D"], env=ENVIRONMENT)
    atexit.register(terminals.kill)
    wait_for(lambda: subprocess.run(["tmux", "-S", path("tmux"), "-N", "show", "-g", "status"], capture_output=True).returncode == 0)
    window = check_screens(*programs)
    check_processes(window, *programs)
    check_ranks()
    check_ends(window, programs[0])
else:
    skip("the screen: tmux is not installed")
for one in programs:
    one.end()
done()
