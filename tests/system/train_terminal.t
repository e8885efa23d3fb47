#!/usr/bin/env python3
"""What a person sees: at 80 columns no line is wider, the live line says how far, how well, how fast, how large and
how long, words and the bar do not mix, and off a terminal there is neither colour nor animation."""
import fcntl
import os
import pty
import re
import struct
import sys
import termios

sys.path.insert(0, "tests/support")
import zrtest
from zrtest import arguments, done, note, ok, path, same, start_quickly, text_file, train

start_quickly()
FLAGS = dict(data=text_file(), steps=200, layers=1, hidden=16, heads=2, seq=16, batch=1, ranks=2, stage=1, seed=3,
             eval_every=50, sample=300, prompt="word ", save=path("saved"), save_every=100)
ESCAPE = re.compile(r"\x1b\[[0-9;]*[mK]")


def on_terminal(columns, environment, **flags):
    """The exit code and every byte that a terminal of so many columns gets."""
    pid, master = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.execve(zrtest.ZR_TRAIN, [zrtest.ZR_TRAIN] + arguments(**{**FLAGS, **flags}), environment)
    data = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:
            break
        if not piece:
            break
        data += piece
    os.close(master)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), data.decode(errors="replace")


def widest(text):
    """The widest line as it stands on the screen; \\r starts it anew. A path that cannot be broken does not count."""
    lines = [ESCAPE.sub("", part) for line in text.split("\n") for part in line.split("\r")]
    return max((len(line), line) for line in lines if "/zr-t" not in line)


try:
    os.close(pty.openpty()[0])
except OSError as error:
    zrtest.skip(f"no pseudo terminals here ({error})")
    done()
base = {name: value for name, value in os.environ.items() if name not in ("LC_ALL", "LC_CTYPE", "LANG", "NO_COLOR")}
for words, columns, locale, extra in (
        ("80 columns, UTF-8", 80, "C.UTF-8", {}), ("80 columns, ASCII", 80, "C", {}),
        ("80 columns, NO_COLOR", 80, "C.UTF-8", {"NO_COLOR": "1"}), ("200 columns", 200, "C.UTF-8", {})):
    code, text = on_terminal(columns, {**base, "TERM": "xterm", "LC_ALL": locale, **extra})
    same(code, 0, f"{words}: the run ends well") or note(text[-1500:])
    width, line = widest(text)
    ok(width <= columns, f"{words}: the widest line has {width} columns") or note(line)
    live = [ESCAPE.sub("", part) for part in text.split("\r") if "tok/s" in part and "\n" not in part]
    ok(live, f"{words}: there is a live line ({len(live)} drawn)")
    # The last one stands until the run's table takes its place.
    for piece in ("200/200", "loss ", "tok/s", "MiB", " left", "val "):
        ok(live and piece in live[-1], f"{words}: it shows {piece.strip()!r}") or note(live[-1:])
    bar = "#" if locale == "C" else "█"
    ok(live and live[-1].startswith(6 * bar), f"{words}: after a bar")
    same("\x1b[36m" in text, not extra, f"{words}: colour")
    same(text.isascii(), locale == "C", f"{words}: the characters of the locale")
    ok(re.search(r"\r\x1b\[Kzr-train: saved step 100 in ", text), f"{words}: words take the live line's place")

for columns in (1, 10, 39, 40, 41, 79):
    code, text = on_terminal(columns, {**base, "TERM": "xterm", "LC_ALL": "C.UTF-8"}, steps=20, save=None,
                             save_every=None)
    live = [ESCAPE.sub("", part) for part in text.split("\r") if re.search(r"\d+/20", part) and "\n" not in part]
    same(code, 0, f"{columns} columns: the run ends well")
    ok(all(len(line) < max(columns, 2) for line in live), f"{columns} columns: the live line fits") or note(live[-1:])

code, text = on_terminal(80, {**base, "TERM": "dumb", "LC_ALL": "C.UTF-8"}, save=None, save_every=None)
ok("\x1b" not in text and not re.search(r"\r(?!\n)", text), "a dumb terminal: no colour and no animation")
# Under mpirun a rank has a terminal, and what it writes may end in a file.
code, text = on_terminal(80, {**base, "TERM": "xterm", "LC_ALL": "C.UTF-8", "OMPI_COMM_WORLD_RANK": "0",
                              "OMPI_COMM_WORLD_SIZE": "1"}, save=None, save_every=None, ranks=None, stage=0)
ok("Byte plan" in text and "\x1b" not in text and not re.search(r"\r(?!\n)", text),
   "a terminal of mpirun's: no colour and no animation") or note(text[-1500:])
run = train(**{**FLAGS, "save": None, "save_every": None})
ok("\x1b" not in run.out + run.err and "\r" not in run.out + run.err, "off a terminal: no colour and no animation")
same(run.err.count("tok/s"), len(re.findall(r"^zr-train: step \d+/200 ", run.err, re.M)), "off a terminal: plain lines")
done()
