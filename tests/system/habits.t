#!/usr/bin/env python3
"""The habits of a good tool, of every subcommand of zr: examples first in help; a manual page and a completion that say what
the help and the tables of options say; suggestions; standard input; readers that go away; progress on a terminal alone."""
import os
import pty
import re
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, HANG, done, note, ok, path, same, skip, wait_for

ZR = os.path.abspath(os.path.join(BUILD, "bin", "zr"))
os.makedirs(path("runtime"), 0o700)
ENVIRONMENT = {**os.environ, "XDG_RUNTIME_DIR": path("runtime"), "PATH": os.path.dirname(ZR) + ":" + os.environ["PATH"], "LC_ALL": "C.UTF-8"}
LIFETIMES = "id,lower,upper,size\n0,0,2,4\n1,0,9,2\n2,1,3,4\n3,4,9,8\n"
EVENTS = "event,address,bytes,unit_bytes,tag\nmap,0x200000,2097152,0,\nalloc,0x200000,1048576,,grad\nmark,,,,\nrefused,,9999999,,grad\n"
FILES = {}
for name, content in (("lifetimes.csv", LIFETIMES), ("events.csv", EVENTS)):
    FILES[name] = path(name)
    with open(path(name), "w") as file:
        file.write(content)


def zr(*words, **settings):
    settings = {"capture_output": True, "text": True, "encoding": "utf-8", "errors": "surrogateescape", "timeout": HANG, "env": ENVIRONMENT, "stdin": subprocess.DEVNULL, **settings}
    return subprocess.run([ZR, *words], **settings)


HELPED = ("zr-train", "zrd")  # pages and completion are made of their --help
SCRIPT = zr("completion", "bash").stdout
OPTIONS = {name: options.split() for name, options in re.findall(r"^    (\w+)\) options='(.*)' ;;$", SCRIPT, re.M)}


def test_help():
    main = zr("--help").stdout
    same(sorted(OPTIONS), sorted(re.findall(r"^  (\w+)  ", main.split("Subcommands\n")[1], re.M)), "zr --help lists every subcommand")
    for name, options in OPTIONS.items():
        run = zr(name, "--help")
        lines = run.stdout.splitlines()
        synopsis = next((i for i, line in enumerate(lines) if line.startswith(f"zr {name} ")), 0)
        first = lines.index("Examples") if "Examples" in lines else len(lines)
        ok(run.returncode == 0 and run.stderr == "" and first <= 4 and f"zr {name}" in lines[first + 1] and synopsis > first,
           f"zr {name} --help: examples first, and how it is called")
        same(set(re.findall(r"^  (--?[a-z][\w-]*)", run.stdout, re.M)), set(options) - {"--help"}, f"zr {name}: the options that it takes, and no others")
        ok(max(map(len, lines)) <= 122, f"zr {name} --help: lines fit")


def plain(page):
    """The words of a manual page's text."""
    text = re.sub(r"^\.SH SYNOPSIS\n\.B .*\n.*\n|^\.(TH|SH|nf|fi|TP|PP|br|BR)\b.*\n", "", page.split(".SH SEE ALSO")[0].split("\\- ", 1)[1], flags=re.M)
    return re.sub(r"^\.(B|SS) ", "", text, flags=re.M).replace("\\&", "").replace("\\-", "-").replace("\\e", "\\").split()


def test_pages():
    groff = shutil.which("groff")
    if groff and subprocess.run([groff, "-man", "-Tutf8"], input=b".TH a 1\n", capture_output=True).returncode != 0:
        groff = None  # Debian's groff-base alone is enough
    for name in [None, *OPTIONS]:
        page = zr("manual", *([name] if name else [])).stdout
        said = zr(*([name] if name else []), "--help").stdout
        title = f"zr-{name}" if name else "zr"
        same(sorted(plain(page)), sorted(word for word in said.split() if word not in ("Examples", "Subcommands")), f"man {title} has every word of the help")
        sections = re.findall(r"^\.SH (.*)$", page, re.M)
        ok(page.startswith(f'.TH "{title}" 1 ') and sections[:3] == ["NAME", "SYNOPSIS", "EXAMPLES"], f"its sections: {', '.join(sections)}")
        with open(os.path.join(BUILD, "share", "man1", f"{title}.1")) as built:
            same(built.read() == page, True, "and it is the one that is installed")
        if groff:
            set_page(groff, title, page)
    for title, section, said in others():
        with open(os.path.join(BUILD, "share", f"man{section}", f"{title}.{section}")) as built:
            page = built.read()
        text = set(plain(page))
        same([word for word in said.split() if word not in text and word not in ("Examples", f"{title}.h:")], [], f"man {section} {title} has every word of its source")
        ok(page.startswith(f'.TH "{title}" {section} '), f"its sections: {', '.join(re.findall(r'^.SH (.*)$', page, re.M))}")
        if groff:
            set_page(groff, title, page)
    if not groff:
        skip("groff with its macros for manual pages is not installed: the pages are not set")
    same(zr("manual", "nothing").returncode, 2, "there is no page of what is no subcommand")
    same(zr("manual", "long", "1", stdin=None, input="x" * 70000).returncode, 3, "a help text beyond 64 KiB is refused")


def set_page(groff, title, page):
    got = subprocess.run([groff, "-man", "-ww", "-Tutf8"], input=page, capture_output=True, text=True, env=ENVIRONMENT)
    same((got.returncode, got.stderr), (0, ""), f"groff has no complaint of {title}")


def others():
    """Pages that are not of zr: (name, section, words that they must have)."""
    for name in HELPED:
        yield name, 1, subprocess.run([name, "--help"], capture_output=True, text=True, env=ENVIRONMENT).stdout
    yield "ZR_CONF", 5, zr("ps", env={**ENVIRONMENT, "ZR_CONF": "help"}).stdout
    for name, *headers in ("libzr", "alloc/zr.h", "alloc/keep/zr_keep.h", "defrag/zr_defrag.h"), ("libzr_zero", "zero/zr_zero.h", "zero/comm/zr_comm.h", "zero/launch/zr_launch.h", "zero/ps/zr_ps.h", "zero/table/zr_table.h", "kernels/zr_kernels.h"):
        text = "".join(open(header).read() for header in headers)
        yield name, 3, " ".join(re.findall(r"^ZR_API [^(]*?(\w+\()", text, re.M)).replace("(", "()")


def completed(*words, program="zr"):
    with open(os.path.join(BUILD, "share", "completions", program)) as built:
        script = built.read()
    script += f"\nCOMP_WORDS=(\"$@\")\nCOMP_CWORD=$(($# - 1))\n_{program.replace('-', '_')}\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
    got = subprocess.run(["bash", "-euc", script, "bash", program, *words], capture_output=True, text=True, env=ENVIRONMENT, cwd=path("."), timeout=HANG)
    if got.stderr:
        note(got.stderr)
    return sorted(got.stdout.split("\n")[:-1])


def test_completion():
    same(completed("sn"), ["snapshot"], "a subcommand is completed")
    same(completed("pa"), ["pack"], "and no other")
    same(completed("why", "--c"), ["--capacity"], "an option")
    same(completed("stats", "life"), ["lifetimes.csv"], "a file")
    os.makedirs(path("a folder"))
    same(completed("stats", "a f"), ["a folder"], "with blanks in its name")
    ok("ls" in completed("run", "--", "l"), "a program behind --")
    program = subprocess.Popen([ZR, "run", "--", "sleep", "1000"], env=ENVIRONMENT)
    ok(wait_for(lambda: str(program.pid) in completed("ledger", "")), "processes")
    program.kill()
    program.wait()
    for program in HELPED:
        options = re.findall(r"^  (--[\w-]+)", subprocess.run([program, "--help"], capture_output=True, text=True, env=ENVIRONMENT).stdout, re.M)
        same(completed("--", program=program), sorted({"--help", *options}), f"the options of {program}")
    same(completed("--stage", "a", program="zr-train"), ["auto"], "a choice")
    same(completed("--zero-r", "C", program="zr-train"), ["C1", "C2", "C3", "C4", "C5"], "choices in capitals")
    same(completed("--resume", "life", program="zr-train"), ["lifetimes.csv"], "a file behind an option")
    with open(os.path.join(BUILD, "share", "completions", "zr")) as built:
        same(built.read() == SCRIPT, True, "it is the one that is installed")


def test_suggestions():
    for name, options in OPTIONS.items():
        long = next(option for option in options[1:] if len(option) > 5) if any(len(o) > 5 for o in options[1:]) else None
        if long:
            run = zr(name, long[:-2] + long[-1])
            ok(run.returncode == 2 and f"did you mean {long}?" in run.stderr and run.stdout == "", f"zr {name} {long[:-2] + long[-1]}: {run.stderr.strip()}")
    ok("did you mean zr stats?" in zr("stast").stderr, "a subcommand with letters swapped")
    same([zr("help", *words).stdout for words in ([], ["why"])], [zr(*words, "--help").stdout for words in ([], ["why"])], "zr help, and of a subcommand")
    ok("did you mean zr stats?" in zr("help", "stast").stderr, "of a mistyped one")
    run = zr("why", "--nothing-like-it=5")
    ok(run.returncode == 2 and "did you mean" not in run.stderr and "zr why --help" in run.stderr, "nothing is near: the help is named")


READERS = {"stats": [], "why": ["--size", "1MiB"], "map": [], "export": ["--format", "csv"], "import": [], "replay": ["--policy", "caching", "--no-wait"],
           "pack": ["--time", "1"], "report": ["-o", "-"]}


def lines_of(name, text):
    return re.sub(r"[\d.]+", "#", text) if name in ("replay", "pack") else text


def test_pipes():
    for name, options in READERS.items():
        file = FILES["events.csv"]
        named = zr(name, file, *options)
        with open(file) as data:
            piped = zr(name, "-", *options, stdin=data)
        ok(named.returncode == 0 and piped.returncode == 0 and len(named.stdout) > 0, f"zr {name} -: standard input") or note(named.stderr + piped.stderr)
        if name not in ("report", "pack", "replay"):
            same(piped.stdout.replace("\n-\n", "\n").replace(file, "-"), named.stdout.replace(file, "-"), "with the same answer")
    with open(FILES["events.csv"]) as data:
        run = zr("diff", "-", FILES["events.csv"], stdin=data)
    same((run.returncode, run.stderr), (0, ""), "zr diff - FILE")
    for name, options in READERS.items():
        run = zr(name, "-", *options)
        ok(run.returncode == 3 and run.stderr.startswith("zr: standard input") and "/proc" not in run.stderr, f"zr {name} - with nothing in it: {run.stderr[:60]!r}")


def test_readers_gone():
    """Both where the pipe's signal ends a program and where it was ignored by whoever started it."""
    others = {"ps": [], "top": ["--once"], "serve": ["--once"], "doctor": [], "ledger": ["--json"], "--help": [], "diff": [FILES["events.csv"]] * 2}
    for name, words in {**others, **{name: [FILES["events.csv"], *options] for name, options in READERS.items()}}.items():
        said = []
        for ignored in (False, True):
            reader, writer = os.pipe()
            os.close(reader)
            run = zr(name, *words, capture_output=False, stdout=writer, stderr=subprocess.PIPE, restore_signals=not ignored,
                     preexec_fn=(lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN)) if ignored else None)
            os.close(writer)
            said.append((run.returncode in (-signal.SIGPIPE, 0), run.stderr))
        same(said, [(True, "")] * 2, f"zr {name}: a reader that has gone is nobody's failure")


def on_terminal(*words, **settings):
    main, side = pty.openpty()
    process = subprocess.Popen([ZR, *words], **{"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": side, "env": ENVIRONMENT,
                                                **{name: side for name in settings}})
    os.close(side)
    said = b""
    try:
        while part := os.read(main, 4096):
            said += part
    except OSError:  # the other side is closed
        pass
    os.close(main)
    process.wait(timeout=HANG)
    return said.decode(errors="replace")


def test_progress():
    for name, options in {**READERS, "report": ["-o", path("page.html")]}.items():
        said = on_terminal(name, FILES["events.csv"], *options)
        ok("\r" in said and said.endswith("\r\x1b[K"), f"zr {name} says what it does on a terminal, and wipes it: {said[:60]!r}")
        same(zr(name, FILES["events.csv"], *options).stderr, "", "and nowhere else")
    for words in (["export", "--format", "torch"], ["export", "--format", "pprof"], ["import"]):
        said = on_terminal(*words, FILES["events.csv"], stdout=True)
        ok(said.startswith(f"zr: {words[0]}: ") and "-o FILE" in said, f"zr {' '.join(words)} writes no binary to a terminal")


test_help()
test_pages()
test_completion()
test_suggestions()
test_pipes()
test_readers_gone()
test_progress()
done()
