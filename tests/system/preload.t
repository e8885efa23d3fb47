#!/usr/bin/env python3
"""zr run and libzr_malloc.so: every call of malloc's family, threads that fork, a system that refuses, what is written on
standard error, the options of zr run, programs that cannot be preloaded, and programs that people have."""
import glob
import os
import re
import signal
import subprocess
import sys

sys.path.insert(0, "tests/support")
sys.path.insert(0, "tests/system")
from zrtest import BUILD, HANG, done, note, ok, path, same
import programs

ZR = programs.ZR
LIBRARY = os.path.abspath(os.path.join(BUILD, "lib", "libzr_malloc.so"))
CALLS = os.path.abspath(os.path.join(BUILD, "tests", "preload_calls"))
FAMILY = """malloc free calloc realloc reallocarray memalign posix_memalign aligned_alloc valloc pvalloc malloc_usable_size
    malloc_trim mallinfo mallinfo2 mallopt malloc_info malloc_stats cfree free_sized free_aligned_sized
    __libc_malloc __libc_free __libc_cfree __libc_calloc __libc_realloc __libc_reallocarray __libc_memalign __libc_valloc
    __libc_pvalloc __posix_memalign
    setrlimit setrlimit64 prlimit prlimit64 dlopen
    mallocx rallocx xallocx sallocx dallocx sdallocx nallocx mallctl mallctlnametomib mallctlbymib malloc_stats_print
    """.split()


def run(*command, env=None, **settings):
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=HANG, stdin=subprocess.DEVNULL,
                          env={**os.environ, **(env or {})}, **settings)


def preloaded(*command, env=None, **settings):
    return run(*command, env={"LD_PRELOAD": LIBRARY, **(env or {})}, **settings)


def fine(got, words):
    if not ok(got.returncode == 0 and got.stderr == "", words):
        note(f"{got.returncode}: {got.stderr[-1000:]}")


# ---- The library

shown = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True).stdout
names = {line.split()[2].split("@")[0] for line in shown.splitlines() if line.split()[1] != "A"}
plus_plus = {name for name in names if re.match(r"_Z[nd][wal]", name)}
same(sorted(names - plus_plus), sorted(FAMILY), "the library shows malloc's family, what bounds addresses, dlopen, and nothing else")
same(len(plus_plus), 20, "and every form of new and delete")
needed = subprocess.run(["readelf", "-d", LIBRARY], capture_output=True, text=True, check=True).stdout
same(sorted(re.findall(r"NEEDED.*\[(\w+)", needed)), ["libc", "libm"], "it needs the C library, and nothing of the loader that allocates")

# What the library calls of jemalloc, by its objects. The control interface waits for locks: control.c alone calls it.
JEMALLOC = {"control": "mallctl mallctlbymib mallctlnametomib malloc_stats_print",
            "malloc": "calloc free malloc malloc_usable_size mallocx realloc",
            "extras": "dallocx mallocx nallocx rallocx sallocx sdallocx xallocx",
            "start": "free malloc"}


def undefined(file):
    shown = subprocess.run(["nm", "-u", file], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in shown.splitlines() if " U " in line}


objects = {os.path.basename(file)[:-2]: undefined(file) for file in glob.glob(os.path.join(BUILD, "obj/alloc/preload/*.o"))}
called = {name: " ".join(sorted(symbol[6:] for symbol in symbols if symbol.startswith("zr_je_"))) for name, symbols in objects.items()}
same({name: symbols for name, symbols in called.items() if symbols}, JEMALLOC, "each call of jemalloc that the library makes is a known one")
locks = {symbol for symbol in undefined(os.path.join(BUILD, "obj/libzr_jemalloc_preload.a"))
         if re.search(r"pthread_(mutex|rwlock|spin)_.*lock", symbol)}
same(sorted(locks), [f"zr_je_pthread_mutex_{call}" for call in ("lock", "trylock", "unlock")], "and each of jemalloc's locks is counted")
fine(preloaded(CALLS, "control"), "each call of jemalloc's control interface returns, beside threads, forks and a program's own hooks")

fine(preloaded(CALLS, "calls"), "every call: addresses, sizes, contents, errors")
got = preloaded(CALLS, "denied")
ok(got.returncode == 0 and re.fullmatch(r"zr: the system forbids madvise\(\).*\nzr: the system forbids mremap\(\).*\n", got.stderr),
   "the same where seccomp refuses madvise, mremap, memfd_create and membarrier from then on: said once each")
fine(preloaded(CALLS, "threads", "10"), "eight threads allocate while one forks, and its children allocate")
for what, words in (("twice", "freed twice"), ("wild", "not the address of a block")):
    got = preloaded(CALLS, what, "100000")
    ok(got.returncode == -signal.SIGABRT and re.fullmatch(rf"zr: free\(0x[0-9a-f]+\): {words}.*\n", got.stderr),
       f"a large object that is freed {what}: one line, and the end")
got = preloaded(CALLS, "returns")
full, rest = map(int, got.stdout.split())
ok(full > 400 and rest < 70, f"nine tenths of {full} MiB freed: {rest} MiB stay")

# ---- Where there is no arena, jemalloc serves alone

got = run("sh", "-c", f"ulimit -v 3000000; LD_PRELOAD={LIBRARY} {CALLS} threads 5")
ok(got.returncode == 0 and got.stderr.startswith("zr: `ulimit -v` limits") and "jemalloc serves this process without" in got.stderr,
   "under ulimit -v jemalloc serves alone, and it is said")
got = preloaded(CALLS, "threads", "2", env={"ZR_CONF": "nonsense:1"})
ok(got.returncode == 0 and "unknown option `nonsense`" in got.stderr and "jemalloc serves this process without" in got.stderr,
   "a bad ZR_CONF likewise, in words")

# ---- zr run

for words, command, code, name in (
        ("no such program", ["nosuchprogram"], 127, "nosuchprogram"),
        ("nor at a path", ["./no/such"], 127, "./no/such"),
        ("a file that is no program", ["README.md"], 127, "README.md"),
        ("and at its path", ["./README.md"], 126, "./README.md"),
        ("a folder", ["./tests"], 126, "./tests"),
        ("an option that is none", ["--mallok", "--", "true"], 2, "--mallok"),
        ("no program at all", ["--malloc"], 2, "zr run --help"),
        ("a limit that is none", ["--limit", "much", "--", "true"], 2, "--limit")):
    got = run(ZR, "run", *command)
    ok(got.returncode == code and name in got.stderr and got.stderr.count("\n") == 1 and not got.stdout,
       f"{words}: {code}, and a line that names it")
same(run(ZR, "run", "--", "sh", "-c", "exit 7").returncode, 7, "the program's exit code is zr run's")
same(run(ZR, "run", "sh", "-c", "kill -TERM $$").returncode, -signal.SIGTERM, "its death by a signal too")
same(run(ZR, "run", "echo", "--limit", "--", "x").stdout, "--limit -- x\n", "the program's own options are its own")
got = run(ZR, "run", "--", "sh", "-c", "sh -c 'true'; echo $LD_PRELOAD", env={"ZR_CONF": "verbose:true"})
same(len(re.findall(r"^zr: libzr_malloc.so serves process \d+ \(sh\)$", got.stderr, re.M)), 2,
     "the programs that it starts are served too")
CUDA = LIBRARY.replace("libzr_malloc", "libzr_cuda")
same(got.stdout, f"{LIBRARY}:{CUDA}\n", "by two libraries in LD_PRELOAD")
same(run(ZR, "run", "--cuda", "--", "sh", "-c", "echo $LD_PRELOAD").stdout, f"{CUDA}\n", "by one with --cuda")
same(run(ZR, "run", "--malloc", "--", "sh", "-c", "echo $LD_PRELOAD", env={"LD_PRELOAD": "libm.so.6"}).stdout, LIBRARY + ":libm.so.6\n",
     "what was preloaded already stays, behind it")
limited = "x = []\ntry:\n  while True: x.append(bytearray(10 << 20))\nexcept MemoryError: print(len(x))"
count = run(ZR, "run", "--limit", "200MiB", "--", programs.PYTHON, "-c", limited).stdout
ok(count.strip().isdigit() and 12 <= int(count) <= 19, f"under --limit 200MiB a program gets {count.strip()} times 10 MiB")
# Three quarters of a limit, whatever the size: what lies between blocks counts against it.
limited = ("import ctypes,sys; m=ctypes.CDLL(None).malloc; m.restype=ctypes.c_void_p; m.argtypes=[ctypes.c_size_t]; n=0\n"
           "while m(int(sys.argv[1])): n+=1\nprint(n*int(sys.argv[1])>>20)")
got = {size: int(run(ZR, "run", "--malloc", "--limit", "400MiB", "--", programs.PYTHON, "-c", limited, str(size)).stdout or 0)
       for size in (200000, 3 << 20, 5 << 20, 7 << 20)}
ok(all(300 <= mib <= 400 for mib in got.values()), f"under --limit 400MiB, MiB in blocks of a size: {got}")
trace = path("blocks.zrt")
got = run(ZR, "run", "--trace", trace, "--", programs.PYTHON, "-c", "x = [bytes(1000000 + i) for i in range(50)]")
fine(got, "a trace of a program's large blocks")
got = run(ZR, "replay", trace, "--policy", "zr")
ok(got.returncode == 0 and "lower bound" in got.stdout, "which zr replay reads")

# ---- Programs that cannot be preloaded

source = path("empty.c")
with open(source, "w", encoding="utf-8") as file:
    file.write("int main(void) { return 5; }\n")
compiler = os.environ.get("CC", "gcc")
for words, flags, name in (("static", ["-static"], "statically linked"), ("a static-pie", ["-static-pie"], "statically linked"),
                           ("for another C library", ["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"], "not glibc")):
    program = path(words.replace(" ", "-"))
    subprocess.run([compiler, *flags, source, "-o", program], check=True)
    got = run(ZR, "run", "--strict", "--", program)
    ok(got.returncode == 2 and name in got.stderr, f"{words}: refused by --strict, and it is said why")
got = run(ZR, "run", "--", path("static"))
ok(got.returncode == 5 and "its own malloc" in got.stderr, "without --strict it runs as it is, and that is said")
program = path("asan")
if subprocess.run([compiler, "-fsanitize=address", source, "-o", program], capture_output=True).returncode == 0:
    got = run(ZR, "run", "--", program)
    ok(got.returncode == 2 and "sanitizer" in got.stderr, "one with AddressSanitizer is refused, since it would not start")

# ---- Programs that people have

programs.check(programs.FAST, at_once=2, how=programs.WATCH)
done()
