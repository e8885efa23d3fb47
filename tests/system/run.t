#!/usr/bin/env python3
"""zr run beside the program (--stats, --json): figures, signals, what is left behind; zr doctor; and libzr_malloc.so among
other allocators, under a filter of calls, in a memory cgroup at its limit."""
import contextlib
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, "tests/support")
from zrtest import BUILD, HANG, done, finish, note, ok, path, same, skip, wait_for

ZR, CALLS, FORBID = (os.path.abspath(os.path.join(BUILD, *parts)) for parts in
                     (("bin", "zr"), ("tests", "preload_calls"), ("tests", "forbid")))
LIBRARY = os.path.abspath(os.path.join(BUILD, "lib", "libzr_malloc.so"))
PYTHON, MIB = "/usr/bin/python3", 1 << 20
COMPILER = os.environ.get("CC", "gcc")
os.environ["TMPDIR"] = path("figures")
os.mkdir(os.environ["TMPDIR"])


def run(*command, env=None, **settings):
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=HANG, stdin=subprocess.DEVNULL,
                          env={**os.environ, **(env or {})}, **settings)


def figures(*command, options=()):
    """(the finished zr run, its JSON)"""
    file = path("figures.json")
    got = run(ZR, "run", "--stats", "--json", file, *options, "--", *command)
    with open(file, encoding="utf-8") as opened:
        return got, json.load(opened)


def near(got, want, words, off=0.03):
    if not ok(abs(got - want) <= off * want, words):
        note(f"{got}, wanted {want}")


# ---- Figures

HOLD = ("import ctypes,os,sys;m=ctypes.CDLL(None);m.malloc.restype=ctypes.c_void_p;m.malloc.argtypes=[ctypes.c_size_t];"
        "m.memset.argtypes=m.free.argtypes=[ctypes.c_void_p];m.memset.argtypes=[ctypes.c_void_p,ctypes.c_int,ctypes.c_size_t]\n"
        "def take(n,size):\n  p=[m.malloc(size) for _ in range(n)]\n  [m.memset(x,1,size) for x in p]\n  return p\n"
        "def drop(p):\n  for x in p: m.free(x)\n")
got, report = figures(PYTHON, "-c", HOLD + "p=[take(1,40*1000) for _ in range(70)]; os.kill(os.getpid(), 9)")
ok(report["sum"]["peak_held_bytes"] >= report["root"]["peak_held_bytes"] and report["sum"]["live_at_peak_bytes"] >= report["root"]["live_at_peak_bytes"],
   f"the sum is no less than a part of it, where that has grown by little when it is killed: {report['sum']}")
got, report = figures(PYTHON, "-c", HOLD + "p=take(40,3*1000*1000); drop(p[::2])")
same(got.returncode, 0, "a program under --stats and --json")
lines = got.stderr.splitlines()
same([re.match(r"zr: (peak held|live then|saved|verdict|next) +\S", line) is not None for line in lines], [True] * 5,
     "five lines: peak, live, saved, verdict, next")
root = report["root"]
same((report["version"], report["exit_code"], report["signal"], root["state"]), (1, 0, None, "ended"), "the JSON says the same")
near(root["peak_held_bytes"], 120e6 + 4 * MIB, "what it holds at its peak, Python's own objects too", 0.06)
ok(root["live_at_peak_bytes"] <= root["peak_held_bytes"] <= root["peak_resident_bytes"],
   "live, held and resident, each within the next, where all is touched")
near(report["replay"]["lower_bound_bytes"], 120e6, "the trace has its large blocks")
near(report["replay"]["zr_peak_held_bytes"], report["replay"]["lower_bound_bytes"], "held to a hundredth of what was asked for")
same(report["replay"]["saved_bytes"], report["replay"]["caching_peak_reserved_bytes"] - report["replay"]["zr_peak_held_bytes"],
     "what is saved is the difference to the caching model's peak")
trace = path("blocks.zrt")
got, report = figures(PYTHON, "-c", HOLD + "p=take(40,3*1000*1000); drop(p)", options=["--trace", trace])
replayed = json.loads(run(ZR, "replay", trace, "--policy", "caching", "--json").stdout)["results"][0]
same((replayed["lower_bound_bytes"], replayed["peak_reserved_bytes"]),
     (report["replay"]["lower_bound_bytes"], report["replay"]["caching_peak_reserved_bytes"]), "zr replay of the --trace agrees")
same(report["next"], f"zr replay {trace}", "and is the next command: nothing was refused that zr why could explain")

CLOSES = HOLD + ("p=take(3,1000*1000); f=os.open(sys.argv[1],os.O_RDWR|os.O_CREAT); first=f; os.closerange(f+1,4000); os.write(f,b'mine')\n"
                 "for i in range(300): os.dup2(f,600+i)\n"
                 "for i in range(150000): m.free(m.malloc(40000+i%9*1000))\nprint(first,os.path.getsize(sys.argv[1]))")
own = run(PYTHON, "-c", CLOSES, path("mine"))
got, report = figures(PYTHON, "-c", CLOSES, path("mine"))
same((got.returncode, got.stdout), (0, own.stdout), "a program that closes the trace's descriptor and has it for a file of its own: the file is as it wrote it")
ok(report["replay"] and not report["replay"]["whole"], "and the trace ends there")

got, report = figures(PYTHON, "-c", HOLD + "take(30,2*1000*1000); os.kill(os.getpid(),9)")
ok(got.returncode == -9 and report["signal"] == 9 and report["exit_code"] is None, "one killed by a signal: zr dies of the same")
near(report["root"]["peak_held_bytes"], 60e6 + 4 * MIB, "its figures are there", 0.08)
ok(report["replay"] and report["replay"]["whole"], "its trace too")
TREE = (HOLD + "p=take(10,4*1000*1000)\n"
        "for i in range(3):\n  if os.fork()==0:\n    take(20,1000*1000); os._exit(0)\n  os.wait()\n"
        "os.execv(sys.executable,[sys.executable,'-c','x=bytearray(90*1000*1000)'])")
got, report = figures(PYTHON, "-c", TREE)
states = sorted(process["state"] for process in report["processes"])
same((states, report["processes_count"]), (["ended", "gone", "gone", "gone", "replaced"], 4), "three children by fork and an exec: a record for each")
near(max(process["peak_held_bytes"] for process in report["processes"] if process["state"] == "gone"), 64e6,
     "a child counts what it has from its parent", 0.1)
near(report["root"]["peak_held_bytes"], 94e6, "the root's figures are those of the image that held the most", 0.1)
ok(100e6 < report["sum"]["peak_held_bytes"] < 125e6, "the sum is of what was there at once")
note(report["sum"])
got, report = figures(PYTHON, "-c", HOLD + "p=take(10,3*1000*1000); print(m.malloc(200*1000*1000))", options=["--limit", "100MiB"])
ok(got.stdout == "None\n" and "shortage" in report["verdict"] and "its limit is 100 MiB" in report["verdict"],
   "a request beyond --limit: the verdict says so")
same(report["root"]["failed_bytes"], 200000000, "and how much was asked for")
for limit in ("8", "1MB", "4MiB", "8MiB", "15MiB"):
    got = run(ZR, "run", "--limit", limit, "--", "true")
    ok(got.returncode == 2 and got.stderr.count("\n") == 1 and re.search(f"--limit {limit} is .* at least --limit 16MiB$", got.stderr), f"--limit {limit} is refused, with the least")
got = run("/bin/true", env={"LD_PRELOAD": LIBRARY, "ZR_CONF": "limit:4m"})
ok(got.returncode == 2 and "limit:4MiB is too small" in got.stderr and "at least limit:16MiB" in got.stderr, "and ZR_CONF=limit:4m")
got = run(ZR, "run", "--limit", "16MiB", "--", CALLS, "small")
ok(got.returncode == 0 and int(got.stdout) > 500 and got.stderr.count("\n") <= 1, "--limit 16MiB serves a program")
for limit in ("16MiB", "40MiB"):
    got = run(ZR, "run", "--limit", limit, "--", CALLS, "small", "4")
    ok(got.returncode == 0 and len(got.stdout.split()) == 5, f"at --limit {limit} threads that start when all is taken find their caches")
    note(f"{got.returncode} {got.stdout} {got.stderr}")
got, report = figures(CALLS, "small", options=["--limit", "20MiB"])
ok(report["root"]["failed_count"] in (10, 11) and "shortage" in report["verdict"] and "requests were refused" in report["verdict"]
   and report["root"]["live_at_failure_bytes"] > 1000 * int(got.stdout) * 0.95, "small objects that are refused are counted, and explained")

# ---- The next command, each that is printed, as it is typed

SH = {**os.environ, "PATH": os.path.dirname(ZR) + ":" + os.environ["PATH"]}
NEXT = []


def follow(words, command, options=(), env=None, wanted="."):
    """What is printed as the next command, run by sh: its output."""
    file = path("next.json")
    run(ZR, "run", "--stats", "--json", file, *options, "--", *command, env=env, cwd=path("next"))
    with open(file, encoding="utf-8") as opened:
        report = json.load(opened)
    got = run("sh", "-c", report["next"], env={**SH, **(env or {})}, cwd=path("next"))
    if not ok(re.search(wanted, report["next"], re.S) and got.returncode == 0 and "$'" not in report["next"], f"next, {words}: it runs"):
        note(f"{report['next']!r}: {got.returncode} {got.stdout[-500:]} {got.stderr[-1500:]}")
    NEXT.append(report["next"])
    return got


os.mkdir(path("next"))
BIG = [PYTHON, "-c", HOLD + "p=take(20,3*1000*1000); print(sys.argv[1:])"]
REFUSED = [PYTHON, "-c", HOLD + "p=take(10,3*1000*1000); print(m.malloc(200*1000*1000))"]
ODD = ["", "a b", "it's", "100 %d \\n", "x\ny\n\n", "\n", "\x1b[31m\t'", "$HOME `id`", "\xe9", "*", "-x"]
got = follow("a block above 32 KiB, and arguments of all kinds", BIG + ODD, wanted=r"^zr run --trace blocks.zrt -- .* && zr replay blocks.zrt$")
same(got.stdout.splitlines()[0], str(ODD), "and its arguments are the same")
follow("options", BIG, options=["--malloc", "--strict", "--stacks", "5", "--limit", "200MiB"],
       wanted=r"^zr run --malloc --strict --stacks 5 --limit 200MiB --trace blocks.zrt -- ")
follow("a program that fails", [PYTHON, "-c", BIG[2] + "\nsys.exit(7)"], wanted="; zr replay blocks.zrt$")
follow("blocks of other processes", ["sh", "-c", f"{PYTHON} -c 'x=[bytes(3000000)]*2'; {PYTHON} -c 'x=bytes(5000000)'; :"], wanted="; done$")
follow("a block that is refused", REFUSED, options=["--limit", "100MiB"], wanted=r"^zr why .*/zr-\d+-large-1.zrt$")
got = follow("the same without a flight recorder", REFUSED, options=["--limit", "100MiB"], env={"ZR_CONF": "recorder:0"},
             wanted=r"^zr run --limit 100MiB --trace .* && zr replay")
ok(got.stdout.startswith("None\n"), "it is refused again")
follow("a --trace", BIG, options=["--trace", path("next/own.zrt")], wanted="^zr replay .*/own.zrt$")
follow("a --trace with a refused block", REFUSED, options=["--trace", "own.zrt", "--limit", "100MiB"], wanted="^zr why own.zrt$")
follow("a --trace of another process", ["sh", "-c", f"{PYTHON} -c 'x=bytes(3000000)'; :"], options=["--trace", "own.zrt"],
       wanted=r"^zr replay own.zrt.\d+$")
follow("small objects that are refused", [CALLS, "small"], options=["--limit", "20MiB"], wanted="^zr run --stats --limit 42MiB -- ")
follow("no process that was served", ["true"], options=["--cuda"], wanted="^zr doctor -- true$")
for words, options in (("no large block", []), ("nor with --trace", ["--trace", path("next/none.zrt")])):
    got, report = figures("true", options=options)
    same(report["next"], "nothing: there is no block above 32 KiB to look at", f"next, {words}: no command")
got, report = figures(*BIG, "x" * 3000)
ok(report["next"].startswith("the same with --trace FILE"), "next, a long command: words")
# Each form that run_report.c has: one more there needs a line above.
with open("defrag/tool/run/run_report.c", encoding="utf-8") as file:
    forms = set(re.findall(r'"(zr (?:why|replay|run|doctor|[a-z]+))\b', file.read()))
same({form for form in forms if not any(form in line for line in NEXT)}, set(), "each form of the next command was run")

got = run(ZR, "run", "--stats", "--", "sh", "-c", "exit 7")
same(got.returncode, 7, "an exit code passes")
got = run(ZR, "run", "--stats", "--", PYTHON, "-c", "import signal as s; print(s.getsignal(s.SIGCHLD).name)",
          preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
same((got.returncode, got.stdout), (0, "SIG_IGN\n"), "a signal that was ignored is so in the program")
got = run(ZR, "run", "--stats", "--", CALLS, "control")
ok(got.returncode == 0 and got.stderr.count("zr: the program replaces jemalloc's hooks") == 1,
   "a program that makes each call of jemalloc's control interface, beside threads, forks and hooks of its own: none waits for itself")
note(got.stderr)
many = run(ZR, "run", "--stats", "--", CALLS, "threads", "20", "100")
ok(many.returncode == 0 and "by all 21 processes at once" in many.stderr, "threads and twenty forks, counted")
for what in ("true", "./README.md", "nosuchprogram"):
    got = run(ZR, "run", "--stats", "--json", path("no/such.json"), "--", what)
    same((got.returncode, "no/such.json" in got.stderr), {"true": (3, True), "./README.md": (126, False)}.get(what, (127, False)),
         f"--json that cannot be written, of {what}")
same(glob.glob(os.environ["TMPDIR"] + "/zr-run-*"), [], "no folder is left")
got = run(ZR, "run", "--stats", "--", "true", env={"TMPDIR": path("no/folder")})
ok(got.returncode == 3 and "TMPDIR" in got.stderr, "no folder for figures: words, and the way out")
got = run("sh", "-c", f"ulimit -f 100; {ZR} run --stats -- true")
ok(got.returncode == 3 and "File too large" in got.stderr, "under ulimit -f there is none either")
run("sh", "-c", f"ulimit -f 100; for i in $(seq 10); do {ZR} run --stats -- true; done")
same(glob.glob(os.environ["TMPDIR"] + "/zr-run-*"), [], "nor, of ten such runs, a folder of any name")
got, report = figures("sh", "-c", f"ulimit -f 1; {PYTHON} -c 'x=[bytes(range(256))*4000 for i in range(9)]'; echo $?")
ok(got.stdout == "0\n" and report["processes_count"] == 1, "a program under ulimit -f has no record, and runs")

# ---- Signals

WAIT = "import os,time\nprint(os.getpid(),flush=True)\nwhile 1: time.sleep(60)"


def start():
    process = subprocess.Popen([ZR, "run", "--stats", "--", PYTHON, "-c", WAIT], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               stdin=subprocess.DEVNULL, text=True)
    return process, int(process.stdout.readline())


def state(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().rsplit(")", 1)[1].split()[0]
    return "gone"


signal.signal(signal.SIGHUP, signal.SIG_DFL)  # not nohup's, which the programs would inherit
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGRTMIN + 3):
    process, child = start()
    process.send_signal(number)
    code, words = finish(process)
    ok(code == -number and "zr: next" in words, f"signal {int(number)} to zr ends the program, and zr by the same, after its lines")
process, child = start()
os.kill(child, signal.SIGSTOP)
ok(wait_for(lambda: state(process.pid) == "T"), "the program stops: zr stops")
process.send_signal(signal.SIGCONT)
ok(wait_for(lambda: state(child) == "S" and state(process.pid) == "S"), "zr goes on: the program goes on")
os.mkdir(os.environ["TMPDIR"] + "/zr-run-making")
os.utime(os.environ["TMPDIR"] + "/zr-run-making", (time.time() - 100, time.time() - 100))
process.kill()
ok(wait_for(lambda: state(child) in ("gone", "Z")), "zr is killed: so is the program")
process.wait()
process.stdout.close(), process.stderr.close()
same(len(glob.glob(os.environ["TMPDIR"] + "/zr-run-*")), 2, "the folders of killed runs stay, of one that had not made its book, too")


def none_left():
    """After another run. Whoever reads /proc may hold a dead process's memory, and with it the folder's lock, for a moment."""
    run(ZR, "run", "--stats", "--", "true")
    return not glob.glob(os.environ["TMPDIR"] + "/zr-run-*")


ok(wait_for(none_left), "until a later run")

# ---- Other allocators, sanitizers

source = path("empty.c")
with open(source, "w", encoding="utf-8") as file:
    file.write("int main(void) { return 0; }\n")
for name in ("jemalloc", "tcmalloc_minimal", "mimalloc"):
    libraries = [found for folder in ("/usr/lib/*-linux-*", "/usr/lib64") for found in glob.glob(f"{folder}/lib{name}.so.?*")]
    if not libraries:
        skip(f"{name} is not installed")
        continue
    for order, preload in (("before", f"{LIBRARY}:{libraries[0]}"), ("behind", f"{libraries[0]}:{LIBRARY}")):
        got = run(PYTHON, "-c", "import json; print(len(json.dumps([bytes(i).hex() for i in range(3000)])))", env={"LD_PRELOAD": preload})
        ok((got.returncode, got.stdout, got.stderr) == (0, "9009000\n", ""),
           f"preloaded {order} {name}: a program runs")
    linked = path("with-" + name)
    subprocess.run([COMPILER, "-std=gnu11", "-O1", "-fno-builtin", "-pthread", "-w", "tests/support/preload_calls.c", "-o", linked, "-Wl,--no-as-needed",
                    libraries[0]], check=True)
    got = run(ZR, "run", "--", linked, "calls")
    same((got.returncode, got.stderr), (0, ""), f"a program linked with {name}: every call")
    got = run(ZR, "doctor", "--", linked)
    ok(re.search(rf"^fine  lib{name}\S* +replaced", got.stdout, re.M), "zr doctor: its malloc comes behind ours")
own = path("own-malloc")
subprocess.run([COMPILER, "-rdynamic", "-x", "c", "-", "-o", own], input="static char room[9]; void *malloc(unsigned long n) { return n ? room : 0; } "
               "int main(void) { return 0; }", text=True, check=True)
got = run(ZR, "doctor", "--json", "--", own)
found = {finding["name"]: finding for finding in json.loads(got.stdout)["findings"]}
ok(got.returncode == 1 and found["own-malloc"]["verdict"] == "bad" and "comes before" in found["own-malloc"]["found"],
   "zr doctor: a program with a malloc of its own is missed")
same(run(ZR, "run", "--strict", "--", own).returncode, 2, "which zr run --strict does not start")
same(run(ZR, "run", "--", own).returncode, 0, "and zr run does")
got = run(ZR, "run", "--", "true", env={"LD_PRELOAD": "libasan.so.8"})
ok(got.returncode == 2 and "sanitizer" in got.stderr, "a sanitizer in LD_PRELOAD is refused, in words")

# ---- Libraries that come and go, and allocate as they do

PLUGIN = """#include <stdlib.h>
#include <string.h>
static __thread char *own; static char *kept[50];
__attribute__((constructor)) static void begin(void) { for (int i = 0; i < 50; i++) kept[i] = calloc(1, 1000 << i % 10); }
__attribute__((destructor)) static void end(void) { for (int i = 0; i < 50; i++) { if (kept[i][999]) abort(); free(kept[i]); } }
char *give(void) { if (!own) own = strdup("thread"); free(own); own = 0; return malloc(70000); }
void take(void *p) { free(p); }"""
HOST = """#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
static int flags = RTLD_NOW;
static void *work(void *path) { for (int i = 0; i < 40; i++) { void *all = dlopen(path, flags); if (!all) exit(9);
  void (*take)(void *); *(void **)&take = dlsym(all, "take"); take(malloc(100)); take(malloc(100000));
  char *(*give)(void); *(void **)&give = dlsym(all, "give"); char *got = give(); got[69999] = 1; if (dlclose(all)) exit(8); free(got); } return 0; }
int main(int n, char **a) { pthread_t t[4]; if (n > 2) flags |= RTLD_DEEPBIND; for (int i = 0; i < 4; i++) pthread_create(t + i, 0, work, a[1]); for (int i = 0; i < 4; i++) pthread_join(t[i], 0); return 0; }"""
for text, program, flags in (PLUGIN, "plugin.so", ["-shared", "-fPIC"]), (HOST, "host", ["-pthread", "-ldl", "-Wl,-rpath,$ORIGIN"]):
    subprocess.run([COMPILER, "-x", "c", "-", *flags, "-o", path(program)], input=text, text=True, check=True)
got = run(ZR, "run", "--", path("host"), path("plugin.so"))
same((got.returncode, got.stderr), (0, ""), "four threads load and unload a library that allocates as it comes and goes")
got = run(ZR, "run", "--", path("host"), "plugin.so", "deep")
same((got.returncode, got.stderr), (0, ""), "and with RTLD_DEEPBIND, by a name that only the program's own paths lead to")
got = run("sh", "-c", f"ulimit -d 200000; {ZR} run -- {PYTHON} -c 'print(len([bytes(range(256))*4000 for i in range(150)]))'")
same((got.returncode, got.stdout), (0, "150\n"), "under ulimit -d of 200 MB a program has 150")

BOUND = ("import resource,threading\nkeep=[bytes([i])*(i*50000+1) for i in range(60)]\nresource.setrlimit(resource.RLIMIT_AS,(2<<30,2<<30))\n"
         "t=[threading.Thread(target=bytes,args=(1000000,)) for _ in range(8)]\nfor x in t: x.start()\nfor x in t: x.join()\n"
         "import mmap; m=mmap.mmap(-1,100<<20)\nx=[]\ntry:\n  while 1: x.append(b'x'*(5<<20))\nexcept MemoryError: pass\n"
         "print(len(x), all(k==bytes([i])*(i*50000+1) for i,k in enumerate(keep)))")
for forked in ("", "import os\nif os.fork(): sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))\n"):
    got = run(ZR, "run", "--", PYTHON, "-c", "import sys\n" + forked + BOUND)
    count, good = (got.stdout.split() + ["0", ""])[:2]
    if not ok(got.returncode == 0 and not got.stderr and 90 < int(count) < 400 and good == "True",
              f"a {'child' if forked else 'program'} that bounds its own addresses to 2 GiB: threads, maps, and {count} times 5 MiB"):
        note(f"{got.returncode} {got.stdout} {got.stderr[-500:]}")

# ---- zr doctor

NAMES = ["libzr_malloc.so", "zr ps", "kernel", "huge pages", "memory", "overcommit", "cgroup", "vm.max_map_count"]
got = run(ZR, "doctor")
ok(got.returncode in (0, 1) and all(re.search(rf"^(fine|note|bad ) +{re.escape(name)} ", got.stdout, re.M) for name in NAMES),
   "zr doctor looks at the machine")
got = run(ZR, "doctor", "--", PYTHON)
ok("can be preloaded" in got.stdout and "dlopen" in got.stdout, "and at a program; what it cannot see it says")
got = run("sh", "-c", f"ulimit -v 4000000; {ZR} doctor")
ok(got.returncode == 1 and re.search(r"^bad +ulimit -v .*\n +type: ulimit -v unlimited$", got.stdout, re.M), "ulimit -v: bad, and what to type")
for words, folder, mode in (("not a folder of this user with mode 0700", "open/zr", 0o755), ("too long for a socket", "l" * 80 + "/zr", 0o700)):
    os.makedirs(path(folder), mode)
    got, shown = (run(*command, env={"XDG_RUNTIME_DIR": os.path.dirname(path(folder))}) for command in ((ZR, "doctor"), (ZR, "ps")))
    ok(re.search(rf"^note +zr ps .*{words}.*\n +type: export XDG_RUNTIME_DIR", got.stdout, re.M) and words in shown.stderr,
       f"where programs cannot show themselves, zr doctor and zr ps say why: {words}")
same([run(ZR, "doctor", "--", "nosuchprogram").returncode, run(ZR, "doctor", "--nonsense").returncode], [3, 2], "its own exit codes")
subprocess.run([COMPILER, "-static", source, "-o", path("static")], check=True)
got = run(ZR, "doctor", "--", path("static"))
ok(got.returncode == 1 and "statically linked" in got.stdout, "a static program cannot be preloaded")
# Scripts as chromium, Google's Chrome, firefox and pip's venvs have them: the program behind is looked at, and none is run.
os.makedirs(path("lib/app"), exist_ok=True)
shutil.copy(path("static"), path("lib/app/static"))
for number, text in enumerate((
        f"""APPNAME=static\nGDB=/nowhere/gdb\nLIBDIR={path('lib')}/app\ntouch {path('ran')}\nwant_debug=0
if [ $want_debug -eq 1 ] ; then\n  exec $GDB "$LIBDIR/$APPNAME" -x /tmp/x\nelse\n  exec $LIBDIR/$APPNAME $FLAGS "$@"\nfi\n""",
        """export WRAPPER="`readlink -f "$0"`"\nHERE="`dirname "$WRAPPER"`"\nexec < /dev/null\nexec > >(exec cat)
# exec /bin/true\nexec -a "$0" "$HERE/lib/app/static" \\\n  "$@"\n""",
        """cd "${OTHER:-/}" || exit 1\nhere=$(cd "$(dirname "$0")" && pwd); export X='a b'\nX=1 "${here}/lib/app/static" --flag "$@" && exit 0\n""",
        "exec env A=b ./script.1 \"$@\"\n")):
    with open(path(f"script.{number}"), "w", encoding="ascii") as file:
        file.write(f"#!/bin/{'sh' if number else 'bash -e'}\n{text}")
    os.chmod(path(f"script.{number}"), 0o755)
    got = run(ZR, "doctor", "--", path(f"script.{number}"), cwd=path(""))
    ok(got.returncode == 1 and f"{path('lib/app/static')}: it is statically linked" in got.stdout and not os.path.exists(path("ran")), f"nor can it by script {number}") or note(got.stdout)
with open(path("broken"), "wb") as file, open(own, "rb") as whole:
    file.write(whole.read()[:3000])
os.chmod(path("broken"), 0o755)
got = run(ZR, "doctor", "--", path("broken"))
ok(got.returncode in (0, 1) and "the loader does not list them" in got.stdout, "half a program: no crash")

# ---- A filter of calls, from before the start

for forbidden, mode, words in (("madvise,mremap=ENOSYS,mincore", "calls", ["madvise", "mremap"]),
                               ("memfd_create,membarrier,clone3=ENOSYS", "threads", []),
                               ("madvise=ENOSYS,mremap,memfd_create,membarrier=ENOSYS", "calls", ["madvise", "mremap"])):
    got = run(FORBID, forbidden, CALLS, mode, "3", env={"LD_PRELOAD": LIBRARY})
    if got.returncode == 77:
        skip(f"no filter can be set here: {got.stderr.strip()}")
        continue
    said = re.findall(r"^zr: the system forbids (\w+)\(\)", got.stderr, re.M)
    if not ok(got.returncode == 0 and sorted(said) == words and got.stderr.count("\n") == len(words),
              f"{forbidden} refused: it works, and says so once"):
        note(f"{got.returncode}: {got.stderr}")
got = run(FORBID, "madvise,mremap", ZR, "doctor")
ok(all(re.search(rf"^note  {name} +the system refuses it", got.stdout, re.M) for name in ("madvise", "mremap")), "zr doctor finds the filter")

# ---- A memory cgroup at its limit


def memory_group():
    """(its folder, its limit's file), or why there is none."""
    for base, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = f"{base}/zr-test-{os.getpid()}"
        try:
            os.mkdir(group)
            with open(f"{group}/{limit}", "w", encoding="utf-8") as file:
                file.write(str(80 * MIB))
            return group, ""
        except OSError as error:
            with contextlib.suppress(OSError):
                os.rmdir(group)
            reason = str(error)
    return None, reason


group, reason = memory_group()
if group:
    inside = f"echo $$ > {group}/cgroup.procs && exec {PYTHON} -c '{HOLD}\nq=take(10,1000*1000)\nwhile 1: q+=take(1,1000*1000)'"
    got, report = figures("sh", "-c", inside)
    ok(got.returncode == -9 and report["root"]["peak_held_bytes"] > 40 * MIB, "at a cgroup's limit the kernel kills, and the figures are there")
    got = run("sh", "-c", f"echo $$ > {group}/cgroup.procs && exec {ZR} doctor")
    ok(re.search(r"^(fine|note)  cgroup +.* of a limit of 80.0 MiB", got.stdout, re.M), "zr doctor names the limit")
    steady = HOLD + "\nfor i in range(40): drop(take(20,1000*1000+i*100))"
    got = run("sh", "-c", f"echo $$ > {group}/cgroup.procs && exec {ZR} run -- {PYTHON} -c '{steady}'")
    same(got.returncode, 0, "below it, a program that takes and frees ten times as much in all goes on")
    ok(wait_for(lambda: not os.path.exists(group) or not (os.rmdir(group) if not open(f"{group}/cgroup.procs").read() else True)),
       "the group is gone")
else:
    skip(f"no memory cgroup can be made here: {reason}")
done()
