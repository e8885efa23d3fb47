#!/usr/bin/env python3
"""libzr_cuda.so on the emulated driver: a program that knows nothing of zr (tests/support/cuda/cuda_program.c) finds the same
with it and without, by each way to the driver; limits, processes, calls that fail; what the library shows and needs; every
symbol of the driver's memory API, and what becomes of it; zr run --cuda."""
import glob
import json
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, "tests/support")
from pairs import ALL_ROWS
from zrtest import BUILD, HANG, done, note, ok, path, same, skip

LIBRARY = os.path.abspath(os.path.join(BUILD, "lib", "libzr_cuda.so"))
MALLOC = LIBRARY.replace("libzr_cuda", "libzr_malloc")
ZR = os.path.abspath(os.path.join(BUILD, "bin", "zr"))
TESTS = os.path.abspath(os.path.join(BUILD, "tests"))
DRIVER = os.path.join(TESTS, "emulator")
# On processors of another kind than x86-64 the oldest version of dlsym is another.
DLSYM = {"dlsym"}
WAYS = ("linked", "dlsym", "proc", "proc2")
NAMES = re.findall(r"^\s*f\(\w+, (\w+), (\w*),", re.search(r"#define ZR_CUDA_REPLACED.*?#define ZR_CUDA_USED",
                   open("alloc/preload/cuda/driver_api.h", encoding="utf-8").read(), re.S)[0].replace(" ,", " ,"), re.M)


def run(*command, preload=None, **env):
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG, stdin=subprocess.DEVNULL,
                          env={**os.environ, "LD_LIBRARY_PATH": DRIVER, **({"LD_PRELOAD": preload} if preload else {}), **env})


def program(way):
    return [os.path.join(TESTS, "cuda_program_linked" if way == "linked" else "cuda_program"), way]


plains = {}  # whichever way a program has to the driver, it finds the same there


def differs(way, row, *arguments, **env):
    """What is not the same with the library as without."""
    key = row, *arguments, *env.items()
    plain = plains[key] = plains.get(key) or run(*program(way), row, *arguments, **env)
    ours = run(*program(way), row, *arguments, preload=LIBRARY, **env)
    fine = plain.returncode == ours.returncode == 0 and plain.stdout == ours.stdout and not ours.stderr
    return None if fine else f"{way} {row}: {plain.returncode} {plain.stdout}{plain.stderr}--- with the library\n{ours.returncode} {ours.stdout}{ours.stderr}"


def alike(words, cases):
    bad = [text for case, env in cases if (text := differs(*case, **env))]
    for text in bad[:2]:
        note(text[-1500:])
    ok(not bad, words)


# ---- The same with the library and without

for row, words in (("calls", "calls of a driver-API program: sizes, attributes, NULL, foreign, no context, double"),
                   ("threads", "eight threads"), ("async", "allocation in streams' order, threads' own among them"),
                   ("pools", "pools: attributes, the current one, one with a limit of its own"),
                   ("contexts", "contexts and devices: frees from another context, ends of contexts, resets"),
                   ("peers", "a device's work on another's memory: refused, enabled, and on what is allocated later"),
                   ("neighbours", "copies between devices that enable nothing"), ("full", "until there is no memory"), ("fork", "a child after fork"), ("ipc", "two processes and one block"),
                   ("capture", "frees during a capture"), ("versions", "the version of a function that was asked for")):
    # Every way leads to each function: the rows take two ways in turn.
    ways = WAYS if ALL_ROWS or row in ("calls", "versions") else WAYS[len(row) % 2::2]
    alike(words, [((way, row), {}) for way in ways])
alike("frees while another thread's own default stream works: by its name, by the form of a call, by the form that was asked for",
      [((way, "own", use), {"ZR_EMULATOR_LAZY_FREE": "0"}) for way in ("dlsym", "proc", "proc2") for use in ("name", "form", "asked")])
alike("the same, by a library that is linked with such forms and loaded later",
      [((way, "own", "linked"), {"ZR_EMULATOR_LAZY_FREE": "0", "OWN_STREAM": os.path.join(TESTS, "own_stream.so")}) for way in ("linked", "proc2")])
alike("two processes and one block, each call interrupted in turn",
      [(("dlsym", "ipc"), {"ZR_FAULT": ",".join(f"{site}:eintr:{nth}" for site in ("descriptor", "receive", "send", "wait"))}) for nth in range(1, 6)])
alike("frees while streams work, of random lengths: nothing that is there is written over",
      [(("dlsym", "streams", "150"), {"ZR_EMULATOR_SEED": str(seed), "ZR_EMULATOR_LAZY_FREE": "0"}) for seed in ((1, 4, 6, 8) if ALL_ROWS else (1, 6))])
alike("a driver that forks as it starts", [(("dlsym", "threads"), {"ZR_EMULATOR_FORKS": "1"})])
got = run(*program("dlsym"), "calls", preload=f"{MALLOC}:{LIBRARY}")
ok(got.returncode == 0 and got.stderr == "", "beside libzr_malloc.so, behind it")
got = run(*program("linked"), "calls", preload=f"{LIBRARY}:{MALLOC}")
ok(got.returncode == 0 and got.stderr == "", "and before it")

# ---- Calls of the driver that fail

counted = run(*program("dlsym"), "faults", preload=LIBRARY)
same(counted.stdout, "clean\ndone\n", "a run without faults")
bad, refused = [], 0
for call in ("cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemAddressReserve", "cuEventCreate", "cuEventRecord", "cuStreamCreate",
             "cuCtxPushCurrent", "cuDevicePrimaryCtxRetain", "cuMemGetAllocationGranularity", "cuMemUnmap", "cuMemRelease",
             "cuStreamGetCtx", "cuEventQuery", "cuMemGetInfo", "cuDeviceGetAttribute"):
    clean = 0
    for nth in range(1, 25):
        got = run(*program("dlsym"), "faults", preload=LIBRARY, ZR_EMULATOR_FAULT=f"{call}:{nth}:2")
        refused += "refused" in got.stdout
        if got.returncode != 0 or "done" not in got.stdout and "no start" not in got.stdout:
            bad.append(f"{call}:{nth}: {got.returncode} {got.stdout}{got.stderr}")
        clean = clean + 1 if "clean" in got.stdout else 0
        if clean == 3:
            break
for text in bad[:3]:
    note(text)
ok(not bad and refused > 5, f"out of memory at each call in turn: {refused} times the program was refused something, and all went back")

# ---- A program that caches as PyTorch does

def caching(streams, preload, **env):
    got = run(os.path.join(TESTS, "cuda_caching"), str(streams), preload=preload, **env)
    return [int(x) for x in re.findall(r"\d+", got.stdout)] if got.returncode == 0 and not got.stderr else note(got.stdout + got.stderr)


bad, events = [], []
for streams, costs in ((0, "0"), (1, "0"), (32, "0"), (32, "1")):
    (peak, us, later_us, *_), (own_peak, own_us, own_later_us, recorded, asked) = [caching(streams, way, ZR_EMULATOR_COSTS=costs) for way in (None, LIBRARY)]
    note(f"{streams} streams{', virtual memory at its cost' if costs == '1' else ''}: peak {peak} MiB, {own_peak} with the library; {us / 1000:.1f} ms by the "
         f"emulated clock, {own_us / 1000:.1f}; of these the second half {later_us / 1000:.1f}, {own_later_us / 1000:.1f}; {recorded} events, asked {asked} times")
    events.append(recorded)
    # What virtual memory costs is spent in the first half, while memory grows.
    if own_peak > peak or own_later_us > 1.03 * later_us or (costs == "0" and own_us > 1.03 * us) or asked > 3 * recorded + 64:
        bad.append(streams)
ok(not bad, "run-ahead: no more memory than natively, as fast, and each event is asked a few times at most")
ok(events[0] < 20 and events[2] < 2 * events[1], "no events for one stream, though the runtime asks for the functions of more; none in idle ones")

# ---- How much there is

def info(allocate, **env):
    return [int(x) for x in run(*program("dlsym"), "info", str(allocate << 20), preload=LIBRARY, **env).stdout.split()[:4]]


same(info(100, ZR_EMULATOR_MEMORY=str(1 << 30)), [0, 924, 1024, 1024], "free memory without a limit: idle memory is free")
same(info(100, ZR_CONF="limit:400m"), [0, 300, 400, 400], "under a limit: total and free are the limit's")
same(info(500, ZR_CONF="limit:400m"), [2, 400, 400, 400], "beyond it there is no memory")
both = [subprocess.Popen([*program("dlsym"), "info", str(150 << 20)], stdout=subprocess.PIPE, text=True,
                         env={**os.environ, "LD_LIBRARY_PATH": DRIVER, "LD_PRELOAD": LIBRARY, "ZR_CONF": "limit:400m"}) for _ in range(2)]
same([each.communicate(timeout=HANG)[0].split()[:4] for each in both], 2 * [["0", "250", "400", "400"]], "each of two processes has its own")
got = run(*program("dlsym"), "info", preload=LIBRARY, ZR_CONF="nonsense:1")
ok(got.returncode == 0 and "nonsense" not in got.stdout, "a bad ZR_CONF: the program goes on")
got = run(*program("dlsym"), "calls", preload=LIBRARY, ZR_CONF="nonsense:1")
ok("unknown option `nonsense`" in got.stderr and got.stderr.count("\n") == 1, "with the driver's own memory, and one line that says why")

# ---- The library

shown = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True).stdout
names = {line.split()[2].split("@")[0] for line in shown.splitlines() if line.split()[1] != "A"}
torch = {name for name in names if name.startswith("zr_torch_")}
same(sorted(names - torch), sorted({name + suffix for name, suffix in NAMES} | DLSYM), "it shows the names that it takes, dlsym and PyTorch's")
ok("dlsym@GLIBC_2.34" in shown or "dlsym@@GLIBC_2.34" in shown, "dlsym under the version of today")
needed = subprocess.run(["readelf", "-d", LIBRARY], capture_output=True, text=True, check=True).stdout
ok(set(re.findall(r"NEEDED.*\[(\w+)", needed)) <= {"libc", "ld"}, "it needs the C library alone")
# The unwinder of libgcc that is linked in names malloc for frames that a program registers, which none does here.
objects = glob.glob(f"{BUILD}/obj/alloc/preload/cuda/*.o")
wanted = subprocess.run(["nm", "--undefined-only", *objects], capture_output=True, text=True, check=True).stdout
ok(len(objects) > 5 and not re.search(r" (malloc|calloc|realloc|free|posix_memalign|strdup)$", wanted, re.M), "it never allocates by malloc")
tls = re.search(r"TLS\s+\S+\s+\S+\s+\S+\s+\S+\s+0x(\w+)", subprocess.run(["readelf", "-lW", LIBRARY], capture_output=True, text=True, check=True).stdout)
ok(tls is None or int(tls[1], 16) <= 64, "a few dozen bytes of each thread's own")
ok(run(sys.executable, "-c", f"import ctypes; ctypes.CDLL({LIBRARY!r})").returncode == 0, "it can be loaded late")
got = run(sys.executable, "-c", "import ctypes; print(hasattr(ctypes.CDLL(None), 'cuMemAlloc_v2'))", preload=LIBRARY, LD_LIBRARY_PATH="/nowhere")
same(got.stdout, "False\n", "where there is no driver, a program that looks for its functions finds none")

# ---- Every path to memory

got = run(*program("linked"), "info", preload=LIBRARY, ZR_CONF="verbose:true")
listed = dict(re.findall(r"^zr: (cu\w+): (replaced|passed on: .+|missed.*)$", got.stderr, re.M))
replaced = {name for name, what in listed.items() if what == "replaced"}
same(sorted(replaced), sorted({name for name, _ in NAMES}), "all calls that the library replaces are listed as replaced, and no others")
driver = subprocess.run(["nm", "-D", "--defined-only", os.path.join(DRIVER, "libcuda.so.1")], capture_output=True, text=True, check=True).stdout
base = {re.sub(r"(_v\d)?(_pt[sd][sz])?$", "", line.split()[2]) for line in driver.splitlines()}
api = {name for name in base if re.match(r"cuMem|cuPointer|cuIpc|cuArray", name) and not re.match(r"cuMemcpy|cuMemset", name)}
same(sorted(api - listed.keys()), [], f"each of the {len(api)} names of the driver's memory API: replaced, or passed on and why")
ok("calls replaced, 0 missed" in got.stderr, "none is missed")
got = run(*program("linked"), "info", preload=LIBRARY, ZR_STRICT="1")
ok(got.returncode == 0 and got.stderr == "", "--strict lets it pass")
shadow = path("shadow.c")
with open(shadow, "w", encoding="utf-8") as file:
    file.write("unsigned cuMemAlloc_v2(unsigned long long *out, unsigned long bytes) { return *out = 0, bytes > 0; }\n")
subprocess.run([os.environ.get("CC", "gcc"), "-shared", "-fPIC", shadow, "-o", path("shadow.so")], check=True)
got = run(*program("linked"), "info", preload=f"{path('shadow.so')}:{LIBRARY}", ZR_STRICT="1")
ok(got.returncode == 2 and "preload it first" in got.stderr, "and ends where another library has the driver's names first")

# ---- zr doctor: the same of files, before anything runs

def build(name, text, *flags, language="c"):
    subprocess.run([*(os.environ.get("CC", "gcc").split() if language == "c" else ["g++"]), "-w", "-x", language, "-", "-o", path(name), f"-L{path('')}", f"-Wl,-rpath,{path('')}", *flags], input=text,
                   text=True, check=True)


SHARED, MAIN = ("-shared", "-fPIC"), "int main(void) { return 0; }"
build("libcudart.so.12", "int cudaMalloc(void **p, long n) { return 0; } int cudaHostAlloc() { return 0; }", *SHARED)
build("libc10_cuda.so", "int cudaMalloc(), cudaHostAlloc(); int own(void) { return cudaMalloc() + cudaHostAlloc(); }", *SHARED, "-l:libcudart.so.12")
build("xla_extension.so", "int cuMemAlloc_v2(); int xla(void) { return cuMemAlloc_v2(); }", *SHARED)
build("libnew.so", "int cuMemAlloc_v9(), cuMemAllocAsync_ptsz(); int own(void) { return cuMemAlloc_v9() + cuMemAllocAsync_ptsz(); }", *SHARED)
build("libfront.so", "int cuMemAlloc_v2(void) { return 0; }", *SHARED)
build("framework", "int own(), xla(); int main(void) { return own() + xla(); }", "-l:libc10_cuda.so", "-l:xla_extension.so", "-l:libcudart.so.12", "-Wl,--allow-shlib-undefined")
build("too-new", "int own(); " + MAIN, "-Wl,--no-as-needed", "-l:libnew.so", "-Wl,--allow-shlib-undefined")
build("in-front", MAIN, "-Wl,--no-as-needed", "-l:libfront.so")
build("own-driver", "int cuMemAlloc_v2(void) { return 0; } " + MAIN, "-rdynamic")
for name, code, rows in (
        (path("framework"), 0, [r"fine  libc10_cuda.so +replaced: cudaMalloc, by a CUDA runtime$", r"fine  libc10_cuda.so +passed on to the driver: cudaHostAlloc \(host memory\)$",
                                r"note  libc10_cuda.so +PyTorch .*\n +type: PYTORCH_NO_CUDA_MEMORY_CACHING=1 zr run", r"fine  libcudart.so.12 +replaced: a CUDA runtime",
                                r"fine  xla_extension.so +replaced: cuMemAlloc_v2$", r"note  xla_extension.so +XLA .*\n +type: XLA_PYTHON_CLIENT_ALLOCATOR=platform "]),
        (path("too-new"), 2, [r"bad   libnew.so +missed: cuMemAlloc_v9, of a version", r"fine  libnew.so +replaced: cuMemAllocAsync_ptsz$"]),
        (path("in-front"), 0, [r"note  libfront.so +it defines the driver's cuMemAlloc_v2: "]),
        (path("own-driver"), 2, [r"bad   own-driver +missed: the program defines cuMemAlloc_v2 itself"]),
        (program("linked")[0], 0, [r"fine  cuda_program_linked +replaced: cu", r"fine  cuda_program_linked +passed on to the driver: .*cuMemAllocHost, cuMemHostAlloc, ", r"fine  libcuda.so.1 +the CUDA driver"]),
        (program("dlsym")[0], 0, [r"fine  cuda_program +replaced: it looks up driver functions by name"])):
    got = run(ZR, "doctor", "--", name)
    missing = [row for row in rows if not re.search("^" + row, got.stdout, re.M)]
    ok(not missing, f"zr doctor -- {os.path.basename(name)}") or note(f"{missing}\n{got.stdout[-1500:]}")
    if os.path.dirname(name) == path("")[:-1]:
        same([run(ZR, "run", *kind, "--strict", "--", name).returncode == 2 for kind in (["--cuda"], [], ["--malloc"])], 2 * [code == 2] + [False],
             f"zr run --strict {'ends' if code else 'goes on'}; with --malloc alone it does not ask")
got = run(sys.executable, "-c", f"import ctypes; ctypes.CDLL({path('libc10_cuda.so')!r}); cuda=ctypes.CDLL('libcuda.so.1'); cuda.cuMemAlloc_v2", preload=LIBRARY, ZR_CONF="verbose:true")
ok(re.search(r"^zr: libc10_cuda.so: PyTorch .* PYTORCH_NO_CUDA_MEMORY_CACHING=1 turns that off$", got.stderr, re.M), "ZR_CONF=verbose names what a process has that caches")

# ---- PyTorch's entry points, as a plug-in that is not preloaded

plugin = r"""
import ctypes, pickle, sys
class Id(ctypes.Structure): _fields_ = [("first", ctypes.c_uint64), ("second", ctypes.c_uint64)]
cuda, zr = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(sys.argv[1])
zr.zr_torch_alloc.restype = zr.zr_torch_base_alloc.restype = ctypes.c_void_p
size, stream, context = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
worker = stream()
assert cuda.cuStreamCreate(ctypes.byref(worker), 1) == 0
def alloc(bytes): return zr.zr_torch_alloc(size(bytes), 0, stream(0))
def free(block, bytes): zr.zr_torch_free(stream(block), size(bytes), 0, stream(0))
assert alloc(0) is None
one, two = alloc(1000), alloc(3 << 20)
assert cuda.cuMemsetD8Async(ctypes.c_uint64(two), 0x55, size(3 << 20), worker) == 0
zr.zr_torch_record_stream(stream(two), worker)
free(two, 3 << 20)
again = alloc(3 << 20)
assert again != two, "a stream works on it still"
zr.zr_torch_begin_allocate_to_pool(0, Id(7, 1), None)
inside = alloc(5000)
zr.zr_torch_end_allocate_to_pool(0, Id(7, 1))
outside = alloc(5000)
assert abs(inside - one) > 1 << 32 and abs(outside - one) < 1 << 32, (inside, outside, one)
found = size()
assert zr.zr_torch_base_alloc(stream(again + 77), ctypes.byref(found)) == again and found.value == 3 << 20
assert zr.zr_torch_snapshot(sys.argv[2].encode()) == 0
segments = pickle.load(open(sys.argv[2], "rb"))["segments"]
live = sorted(b["requested_size"] for s in segments for b in s["blocks"] if b["state"] == "active_allocated")
assert live == [1000, 5000, 5000, 3 << 20], live
assert all(s["address"] + s["total_size"] == s["blocks"][-1]["address"] + s["blocks"][-1]["size"] for s in segments)
zr.zr_torch_release_pool(0, Id(7, 1))
free(inside, 5000)
zr.zr_torch_memory_fraction(ctypes.c_double(0.001), 0)
assert alloc(64 << 20) is None
zr.zr_torch_memory_fraction(ctypes.c_double(1), 0)
def stat(name):
    value = ctypes.c_uint64()
    assert zr.zr_torch_stat(0, name, ctypes.byref(value)) == 0, name
    return value.value
assert stat(b"requested_bytes") == (3 << 20) + 6000 and stat(b"blocks_count") == 3 and stat(b"refused_count") == 1
assert zr.zr_torch_tag(b"kv") == 0
tagged = alloc(7 << 20)
assert zr.zr_torch_tag(b"param") == 0
known = alloc(1 << 20)
assert zr.zr_torch_tag(b"x" * 32) != 0 and zr.zr_torch_tag(b"") != 0 and zr.zr_torch_stat(0, b"nothing", ctypes.byref(found)) != 0
assert zr.zr_torch_tag(None) == 0
plain = alloc(1 << 20)
assert [stat(b"tag.%s.live_bytes" % name) for name in (b"kv", b"param", b"v", b"other")] == [7 << 20, 1 << 20, 0, 0]
assert stat(b"tag.param.peak_bytes") >= 1 << 20
for block, bytes in ((tagged, 7 << 20), (known, 1 << 20), (plain, 1 << 20)): free(block, bytes)
assert stat(b"tag.kv.live_bytes") == 0 and stat(b"allocated_bytes") == (15 << 20) + 11000 and stat(b"peak_live_bytes") > stat(b"live_bytes")
zr.zr_torch_reset_peaks(0)
assert stat(b"peak_live_bytes") == stat(b"live_bytes")
# A graph uses the memory of blocks that were freed during its capture: a later capture in its pool does not take it.
captured, other, graph, kind = stream(), stream(), stream(), ctypes.c_uint()
assert cuda.cuStreamCreate(ctypes.byref(captured), 1) == 0 and cuda.cuStreamCreate(ctypes.byref(other), 1) == 0
def take(bytes): return zr.zr_torch_alloc(size(bytes), 0, captured)
def drop(block): zr.zr_torch_free(stream(block), size(1), 0, captured)
def capture(program):
    zr.zr_torch_begin_allocate_to_pool(0, Id(8, 1), None)
    assert cuda.cuStreamBeginCapture_v2(captured, 0) == 0
    blocks = program()
    zr.zr_torch_end_allocate_to_pool(0, Id(8, 1))
    assert cuda.cuStreamEndCapture(captured, ctypes.byref(graph)) == 0 and cuda.cuCtxSynchronize() == 0
    return blocks
def first():
    block, pin = take(32 << 20), take(2 << 20)
    drop(block)
    again = take(32 << 20)
    drop(again)
    assert again == block, "the graph itself uses it again"
    return block, pin
small, pin = capture(first)
captured = other
large = capture(lambda: [take(64 << 20) for _ in range(4)])
assert cuda.cuPointerGetAttribute(ctypes.byref(kind), 2, ctypes.c_uint64(small)) == 0 and kind.value == 2, "its memory is elsewhere"
for block in pin, *large: drop(block)
zr.zr_torch_release_pool(0, Id(8, 1))
for block, bytes in ((one, 1000), (again, 3 << 20), (outside, 5000)): free(block, bytes)
assert cuda.cuCtxSynchronize() == 0
zr.zr_torch_reset()
bytes, total = size(), size()
assert cuda.cuMemGetInfo_v2(ctypes.byref(bytes), ctypes.byref(total)) == 0 and total.value - bytes.value <= 4 << 20, total.value - bytes.value
"""
snapshot = path("snapshot.pickle")
got = run(sys.executable, "-c", plugin, LIBRARY, snapshot, ZR_EMULATOR_TICKS="1000")
ok(got.returncode == 0, "the plug-in's functions: streams, pools, fractions, a snapshot")
if got.returncode != 0:
    note(got.stderr[-800:])
got = run(ZR, "replay", snapshot, "--policy", "zr")
ok(got.returncode == 0, "the snapshot is read by zr replay")

# PyTorch's exceptions, with stand-ins of its libraries: a class with a constructor, one that inherits it, none, and no way to throw.
shared = r"""
#include <exception>
#include <string>
namespace c10 {
struct SourceLocation { const char *function, *file; unsigned line; };
struct Error : std::exception {
    std::string text, context[4];
    Error(SourceLocation, std::string);
    const char *what() const noexcept override;
};
}
"""
c10 = shared + r"""
namespace c10 {
Error::Error(SourceLocation, std::string words) : text(std::move(words)) {}
const char *Error::what() const noexcept { return text.c_str(); }
#ifndef NO_CLASS
struct OutOfMemoryError : Error {
#ifdef OWN
    OutOfMemoryError(SourceLocation, std::string);
#endif
    ~OutOfMemoryError() override;
};
OutOfMemoryError::~OutOfMemoryError() {}
#endif
#ifdef OWN
OutOfMemoryError::OutOfMemoryError(SourceLocation where, std::string words) : Error(where, std::move(words)) {}
#endif
#ifndef NO_THROW
namespace detail {
void torchCheckFail(const char *function, const char *file, unsigned line, const char *words) { throw Error({function, file, line}, words); }
}
#endif
}
"""
callback = "namespace torch { bool (*collect)(); bool CudaIPCCollect() { return collect(); } }"
catching = shared + r"""
#include <cstdio>
#include <dlfcn.h>
#include <typeinfo>
namespace torch { extern bool (*collect)(); }
static void *(*take)(ssize_t, int, void *);
static void (*give)(void *, ssize_t, int, void *);
static void *held;
static bool give_held() { void *block = held; held = nullptr; give(block, 40 << 20, 0, nullptr); return block != nullptr; }
int main(int, char **arguments) {
    void *zr = dlopen(arguments[1], RTLD_NOW);
    ((int (*)(unsigned))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuInit"))(0);
    take = (void *(*)(ssize_t, int, void *))dlsym(zr, "zr_torch_alloc");
    give = (void (*)(void *, ssize_t, int, void *))dlsym(zr, "zr_torch_free");
    torch::collect = give_held;
    held = take(40 << 20, 0, nullptr);
    if (!take(40 << 20, 0, nullptr)) return 1;
    try { std::puts(take(40 << 20, 0, nullptr) ? "memory" : "nothing"); }
    catch (const c10::Error &error) { std::printf("%s: %s\n", typeid(error).name(), error.what()); }
    return !take(1 << 20, 0, nullptr);
}
"""
compiler = shutil.which("g++")
if not compiler:
    skip("g++ is not installed: nothing catches an exception of C++")
for flags, caught in ((["-DOWN"], "N3c1016OutOfMemoryErrorE: CUDA out of memory. zr: arena .*"), ([], "N3c1016OutOfMemoryErrorE: CUDA out of memory. zr: arena .*"),
                      (["-DNO_CLASS"], "N3c105ErrorE: CUDA out of memory. zr: arena .*"), (["-DNO_CLASS", "-DNO_THROW"], "nothing")) if compiler else ():
    build("libc10.so", c10, *SHARED, *flags, language="c++")
    if not os.path.exists(path("torch-like")):
        build("libtorch_cuda.so", callback, *SHARED, language="c++")
        build("torch-like", catching, "-l:libc10.so", "-l:libtorch_cuda.so", "-lstdc++", "-ldl", language="c++")
    got = run(path("torch-like"), LIBRARY, ZR_CONF="limit:64m")
    ok(got.returncode == 0 and re.fullmatch(caught + "\n", got.stdout) and ("no exception that zr can throw" in got.stderr) == (caught == "nothing"),
       f"out of memory: PyTorch's callback, then {caught.split(':')[0]}") or note(f"{got.returncode} {got.stdout}{got.stderr}")

# The driver's table of controls has functions alone: the third injects faults.
threads = r"""
import ctypes, sys, threading
class Fault(ctypes.Structure): _fields_ = [("call", ctypes.c_char_p), ("nth", ctypes.c_uint64), ("count", ctypes.c_uint64), ("code", ctypes.c_uint)]
cuda, zr = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(sys.argv[1])
fail = ctypes.CFUNCTYPE(None, ctypes.POINTER(Fault))((ctypes.c_void_p * 3).in_dll(cuda, "zr_emulator")[2])
def faults(call, code): fail(ctypes.byref(Fault(call, 1 if call else 0, 1 << 40, code)))
zr.zr_torch_alloc.restype = ctypes.c_void_p
size, pointer, address, BYTES = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint64, 3 << 20
def alloc(bytes, device=0, stream=0): return zr.zr_torch_alloc(size(bytes), device, pointer(stream))
def free(block, device=0, stream=0): zr.zr_torch_free(pointer(block), size(BYTES), device, pointer(stream))
def current():
    context = pointer()
    assert cuda.cuCtxGetCurrent(ctypes.byref(context)) == 0
    return context.value
def device_of(block):
    ordinal = ctypes.c_int(-1)
    assert cuda.cuPointerGetAttribute(ctypes.byref(ordinal), 9, address(block)) == 0
    return ordinal.value
def fill(block, stream=0): assert cuda.cuMemsetD8Async(address(block), 0x55, size(BYTES), pointer(stream)) == 0
contexts = []
assert cuda.cuInit(0) == 0
for device in (0, 1):
    contexts.append(pointer())
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(contexts[-1]), device) == 0
def bare():
    "A thread that has called nothing of CUDA yet, and one whose device is another."
    for context in (None, contexts[0], contexts[1]):
        assert cuda.cuCtxSetCurrent(context) == 0
        before = current()
        for device in (0, 1):
            block, other = alloc(BYTES, device), alloc(BYTES, device)
            assert block and other and device_of(block) == device and current() == before, (block, device, before)
            assert cuda.cuCtxSetCurrent(contexts[device]) == 0
            worker = pointer()
            assert cuda.cuStreamCreate(ctypes.byref(worker), 1) == 0
            fill(block)
            fill(other, worker.value)
            assert cuda.cuCtxSetCurrent(context) == 0
            zr.zr_torch_record_stream(pointer(block), pointer(0))
            zr.zr_torch_record_stream(pointer(other), worker)
            free(block, device)
            free(other, device)
            assert current() == before
            assert alloc(BYTES, device) == block, "the default stream of the block's device gets it again at once"
            assert alloc(BYTES, device) != other, "and does not get what another stream is at work on"
failed = []
def kept(*arguments):
    try: bare()
    except BaseException as error: failed.append(error)
thread = threading.Thread(target=kept)
thread.start()
thread.join()
if failed: raise failed[0]
# A stream that was destroyed and has left work behind.
assert cuda.cuCtxSetCurrent(contexts[0]) == 0 and cuda.cuCtxSynchronize() == 0
def leave_work():
    gone, block = pointer(), alloc(BYTES)
    assert cuda.cuStreamCreate(ctypes.byref(gone), 1) == 0
    fill(block, gone.value)
    assert cuda.cuStreamDestroy_v2(gone) == 0
    return block, gone.value
block, gone = leave_work()
free(block, 0, gone)
assert alloc(BYTES) == block
done = pointer()
assert cuda.cuMemsetD8Async(address(block), 0xaa, size(BYTES), pointer(0)) == 0 and cuda.cuCtxSynchronize() == 0
copy = (ctypes.c_ubyte * BYTES)()
assert cuda.cuMemcpyDtoH_v2(copy, address(block), size(BYTES)) == 0 and bytes(copy) == b"\xaa" * BYTES, "its work ended before the block was used again"
# The driver does not say how a wait ended: the block stays, until it says so again.
for call, code in ((b"cuCtxSynchronize", 999), (b"cuCtxSynchronize", 2), (b"cuCtxPushCurrent", 999)):
    block, gone = leave_work()
    faults(call, code)
    free(block, 0, gone)
    mine = alloc(BYTES)
    faults(None, 0)
    assert mine != block, call
    assert cuda.cuCtxSynchronize() == 0 and alloc(BYTES) == block, (call, "and is used again later")
# Nothing runs any more where the driver has been shut down.
block, gone = leave_work()
faults(b"cuCtxSynchronize", 4)
free(block, 0, gone)
assert alloc(BYTES) == block
"""
got = run(sys.executable, "-c", threads, LIBRARY, ZR_EMULATOR_TICKS="1000")
ok(got.returncode == 0, "the plug-in in threads without a context, across devices, and behind waits that fail")
same(re.sub(r"\d+", "N", got.stderr), "zr: the driver cannot synchronize a stream: error N; freed memory stays allocated until it can\n", "which is said once")

# ---- zr run

got = run(ZR, "run", "--cuda", "--limit", "400MiB", "--strict", "--", *program("dlsym"), "info", "1048576")
same(got.stdout.split()[:4], ["0", "399", "400", "400"], "zr run --cuda --limit")
got = run(ZR, "run", "--cuda", "--limit", "2047KiB", "--", "true")
ok(got.returncode == 2 and got.stderr.endswith("at least --limit 2MiB\n"), "less than a device's first block is refused, with the least") or note(got.stderr)


def figures(*command, **env):
    """(standard error of zr run --stats, its JSON)"""
    got = run(ZR, "run", *command[:command.index("--")], "--stats", "--json", path("figures.json"), *command[command.index("--"):], **env)
    with open(path("figures.json"), encoding="utf-8") as file:
        return got.stderr, json.load(file)


for kind in [], ["--cuda"]:
    words, report = figures(*kind, "--limit", "400MiB", "--", *program("dlsym"), "info", str(100 << 20))
    device, = report["root"]["devices"]
    good = (device["device"], device["live_at_peak_bytes"], device["limit_bytes"], device["failed_count"]) == (0, 100 << 20, 400 << 20, 0)
    ok(good and 100 << 20 <= device["peak_held_bytes"] <= 104 << 20 and "zr: device 0   peak held 10" in words and "live then 100 MiB" in words,
       f"zr run {' '.join(kind)} --stats: what a device held at its peak, and what of it was live") or note(f"{device} {words}")
    words, report = figures(*kind, "--limit", "400MiB", "--", *program("dlsym"), "info", str(500 << 20))
    device, = report["root"]["devices"]
    same((device["failed_count"] > 0, device["failed_bytes"], device["live_at_failure_bytes"]), (True, 500 << 20, 0), "and what it refused")
    ok("a device refused memory to cuda_program" in report["verdict"] and "it asked device 0 for 500 MiB with 0 live, and its limit is 400 MiB" in report["verdict"], "in the verdict too") or note(report["verdict"])
family = r"""
import ctypes, os
cuda = ctypes.CDLL("libcuda.so.1")
def use(device, *mib):
    context, blocks = ctypes.c_void_p(), [ctypes.c_uint64() for _ in mib]
    assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0 and cuda.cuCtxSetCurrent(context) == 0
    for block, size in zip(blocks, mib): assert cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(size << 20)) == 0
    for block in blocks: assert cuda.cuMemFree_v2(block) == 0
for mib in (30, 20):
    if os.fork() == 0: use(0, mib, mib); os._exit(0)
    assert os.wait()[1] == 0
use(0, 50, 30); use(1, 10); use(0, 8)
if os.fork() == 0: raise SystemExit
assert os.wait()[1] == 0
use(0, 90)
os.kill(os.getpid(), 9)
"""
for kind, count in ([], 4), (["--cuda"], 3):
    words, report = figures(*kind, "--", sys.executable, "-c", family)
    held = [[(d["device"], d["live_at_peak_bytes"] >> 20) for d in p["devices"]] for p in report["processes"]]
    same((report["signal"], report["root"]["state"], sorted(held)), (9, "gone", sorted(([[]] if count == 4 else []) + [[(0, 40)], [(0, 60)], [(0, 90), (1, 10)]])),
         "children before CUDA have figures of their own, a child after it none and ends nobody's, each device its peak")
    same([(d["device"], d["peak_held_bytes"] >> 20 in range(90 if d["device"] == 0 else 10, 96 if d["device"] == 0 else 14)) for d in report["sum"]["devices"]],
         [(0, True), (1, True)], "of all at once: one after the other, none adds up") or note(report["sum"])
trace = path("device.zrt")
got = run(ZR, "run", "--cuda", "--trace", trace, "--", *program("dlsym"), "threads")
ok(got.returncode == 0 and run(ZR, "replay", trace, "--policy", "zr").returncode == 0, "a trace of a device's blocks, which zr replay reads")
done()
