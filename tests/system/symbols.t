#!/usr/bin/env python3
"""What the objects need and what the library shows, read with nm: zero/ and kernels/ can reach no allocation function
but zr's own, alloc/ none of malloc's family, no library a way to end its process but the known ones, and they export the functions that their public headers declare
and no more."""
import functools
import glob
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, FOLDER, done, note, ok, same, skip

# Never on the whitelist: what allocates, by itself or inside.
FORBIDDEN = set("""
    malloc calloc realloc reallocarray free aligned_alloc posix_memalign memalign valloc pvalloc cfree
    malloc_usable_size mallinfo mallopt malloc_trim mmap mmap64 mremap munmap brk sbrk shmget shmat shm_open memfd_create
    strdup strndup wcsdup asprintf vasprintf __asprintf_chk __vasprintf_chk argz_create envz_add
    fopen fopen64 fdopen freopen tmpfile popen fmemopen open_memstream open_wmemstream fopencookie
    getline getdelim __getdelim getpass getcwd get_current_dir_name realpath canonicalize_file_name tempnam
    opendir fdopendir readdir readdir64 scandir scandir64 ftw nftw fts_open glob glob64 wordexp
    printf fprintf vprintf vfprintf dprintf vdprintf puts fputs putchar fputc putc fwrite fflush perror setvbuf
    __printf_chk __fprintf_chk __vfprintf_chk __dprintf_chk stdout stderr stdin fread fgets fgetc scanf fscanf sscanf
    getaddrinfo gethostbyname getpwnam getpwuid getgrnam setlocale newlocale bindtextdomain gettext iconv_open
    qsort qsort_r hcreate tsearch lsearch regcomp syslog openlog vsyslog error error_at_line warn warnx err errx
    pthread_create thrd_create clone clone3 dlopen dlmopen dlsym syscall atexit on_exit __cxa_atexit setenv putenv
    system posix_spawn posix_spawnp backtrace_symbols strerror psignal localtime mktime tzset strftime
    _Znwm _Znam _ZdlPv _ZdaPv __cxa_allocate_exception
    dnnl_sgemm dnnl_memory_create_v2 dnnl_malloc mkl_malloc GOMP_parallel GOMP_parallel_start numa_alloc
    cudaMalloc cudaMallocHost cudaMallocManaged cudaMallocAsync cudaHostAlloc cuMemAlloc cuMemAlloc_v2 cuMemCreate
    cuMemHostAlloc MPI_Alloc_mem ncclMemAlloc
    json_dumps json_dumpf json_load_file json_loads json_sprintf
""".split())

# What alloc/ itself must not need: it maps memory, and does not malloc (see DESIGN.md, "Whose memory is where").
MALLOC_FAMILY = set("""
    malloc calloc realloc reallocarray aligned_alloc posix_memalign memalign valloc strdup strndup asprintf vasprintf
    fopen fdopen popen open_memstream getline getdelim opendir fdopendir scandir glob realpath qsort getaddrinfo setlocale
    printf fprintf puts dprintf exit _exit quick_exit
    __asprintf_chk __vasprintf_chk __printf_chk __fprintf_chk
""".split())

# Whose names say so all the same: one takes functions, the other reserves a file's space.
NO_ALLOCATION = {"json_set_alloc_funcs", "fallocate"}
ALLOC = re.compile(r"alloc|memdup|strn?dup|^mmap|^new", re.I)


@functools.cache
def nm(*arguments):
    """[(name, letter)] of nm's lines."""
    lines = subprocess.run(["nm", "--format=posix", *arguments], check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in lines.splitlines()]
    return [(row[0].split("@")[0], row[1]) for row in rows if len(row) >= 2]


@functools.cache
def listed():
    """{path: [(name, letter)]} of all objects, by one nm."""
    found = {path: [] for path in glob.glob(f"{BUILD}/obj/**/*.o", recursive=True)}
    lines = subprocess.run(["nm", "--extern-only", "--format=posix", "--print-file-name", *found], check=True, capture_output=True,
                           text=True).stdout
    for path, name, letter, *_ in map(str.split, lines.splitlines()):
        found[path.removesuffix(":")].append((name.split("@")[0], letter))
    return found


def external(path):
    return listed()[path] if path in listed() else nm("--extern-only", path)


def needs(path):
    return {name for name, letter in external(path) if letter in "Uwv"}


def gives(path):
    return {name for name, letter in external(path) if letter not in "Uwv"}


def objects(room):
    """Without those of alloc/preload/, which is a malloc and stands on one (tests/system/preload.t says what it shows), and of
    alloc/rehearse/, which stands for NVIDIA's libraries."""
    return sorted(path for path in glob.glob(f"{BUILD}/obj/{room}/**/*.o", recursive=True)
                  if not path.startswith((f"{BUILD}/obj/alloc/preload/", f"{BUILD}/obj/alloc/rehearse/")))


def refused(path, allowed):
    return sorted(needs(path) - allowed)


def read_whitelist():
    names, group, in_order = set(), [], True
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "symbols.whitelist")
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            line = line.strip()
            if not line or line.startswith("#"):
                group = []
                continue
            in_order = in_order and (not group or group[-1] < line) and line not in names
            group.append(line)
            names.add(line)
    ok(in_order, "the whitelist is sorted in its groups and names nothing twice")
    same(sorted(names & FORBIDDEN), [], "the whitelist holds no function that allocates")
    same(sorted(name for name in names if ALLOC.search(name) and name not in NO_ALLOCATION), [],
         "nor one whose name says so")
    return names


def compile_object(name, source):
    path = os.path.join(FOLDER, name)
    with open(path + ".c", "w", encoding="utf-8") as file:
        file.write(source)
    compiler = os.environ.get("CC", "gcc")
    subprocess.run([compiler, "-O0", "-fPIC", "-c", path + ".c", "-o", path + ".o"], check=True)
    return path + ".o"


def check_rooms(whitelist):
    project = set()
    for path in objects("alloc") + objects("defrag") + objects("kernels") + objects("zero"):
        project |= gives(path)
    same(sorted(project & FORBIDDEN), [], "the project defines no function under a forbidden name")
    allowed = whitelist | project
    for room in ("kernels", "zero"):
        there = objects(room)
        ok(len(there) >= 5, f"{room}/: {len(there)} objects to read")
        bad = {path: names for path in there if (names := refused(path, allowed))}
        for path, names in bad.items():
            note(f"{path} needs {' '.join(names)}")
        ok(not bad, f"{room}/ needs nothing that is not on the whitelist")
    return allowed


# ---- What can end a process ----

# Calls that end the process (or the thread), or may. glibc exits in __tls_get_addr() where it has no memory for a
# library's thread-local data, and aborts in pthread_exit() and pthread_cancel() where it cannot load libgcc_s.
ENDERS = re.compile(r"""abort|v?errx?|error|error_at_line|exit|_exit|_Exit|quick_exit|exit_group|daemon|raise|gsignal|psignal
    |kill|killpg|tkill|tgkill|sigqueue|pthread_kill|pthread_sigqueue|pthread_exit|pthread_cancel|thrd_exit|exec\w+|fexecve|posix_spawnp?
    |__assert\w*|__fortify_fail|__chk_fail|__longjmp_chk|longjmp|siglongjmp|_longjmp|__tls_get_addr|___tls_get_addr|_ZSt9terminatev
    |__cxa_pure_virtual|_Unwind_Resume|__cxa_throw|_ZSt17__throw_bad_allocv|\w*(?:rcu|cds_lfht)\w*""", re.X)

# The ones there are, with their reasons. zr_assert_failed() is the check of zr's own records, of which
# zr_assert_handler_set() makes a value.
ENDS = {
    "alloc/base/error.o": {"abort": "zr_assert_failed(): zr's own records are damaged, and no handler is set"},
    "alloc/keep/segment.o": {"kill": "itself, where ZR_FAULT=kept asks for it"},
    "alloc/preload/start.o": {"_exit": "ZR_CONF=limit is below what malloc needs to start", "abort": "a block of the preloaded malloc is freed twice, or operator new fails without a C++ library that throws"},
    "alloc/preload/usage.o": {"kill": "signal 0: does the process live?"},
    "alloc/preload/cuda/paths.o": {"_exit": "zr run --strict asked for the end"},
    "defrag/trace/live.o": {"kill": "signal 0: does the process live?"},
    "zero/comm/message/tcp/address.o": {"execvp": "its child becomes getent", "_exit": "its child could not become getent"},
    "zero/engine/kept.o": {"kill": "itself, where ZR_FAULT=kept asks for it"},
    "zero/ps/operation.o": {"kill": "itself, where ZR_FAULT=kept asks for it"},
    "zero/ps/peer.o": {"kill": "itself, where ZR_FAULT=ps_message asks for it"},
    "zero/launch/launch.o": {"_exit": "a child that stands in for a launcher of another host", "kill": "ranks that the launcher has started"},
    "zero/launch/mpirun.o": {"kill": "mpirun that it has started, and itself to stop with it", "execvp": "its child becomes mpirun",
                             "_exit": "its child that could not"},
    "zero/table/update.o": {"kill": "itself, where ZR_FAULT=kept asks for it"},
    "zero/launch/rank.o": {"_exit": "a rank that the launcher has started ends", "kill": "wakes its launcher"},
    "zero/launch/threads.o": {"kill": "wakes its launcher; a fatal signal is named and then ends the process"},
}
# What a library has from archives that are not zr's. libgcc's unwinder aborts where its own tables are damaged; jemalloc
# where its options (opt.abort, off) say so or its records are damaged, and its profiler, which is off, exits.
ARCHIVES_END = {"libzr.so": {"abort"}, "libzr_cuda.so": {"abort"}, "libzr_malloc.so": {"abort", "_exit"}, "libzr_zero.so": set()}
# Programs, whose own business it is, and the simulated device, which serves one rehearsal.
PROGRAMS = ("defrag/tool/", "zero/train/", "alloc/service/", "alloc/rehearse/", "tests/", "examples/")


def ends(names):
    return {name for name in names if ENDERS.fullmatch(name)}


def check_ends():
    """A library returns its failures: a call that may end the process is in the tables above, or a fault."""
    found = {}
    for path in sorted(listed()):
        name = os.path.relpath(path, f"{BUILD}/obj")
        if not name.startswith(PROGRAMS) and os.path.exists(name[:-2] + ".c") and ends(needs(path)):
            found[name] = sorted(ends(needs(path)))
    same(found, {path: sorted(why) for path, why in ENDS.items()}, "no object of a library can end its process but for a reason that is known")
    for library, archives in ARCHIVES_END.items():
        own = set().union(*(why for path, why in ENDS.items()))
        undefined = ends(name for name, letter in nm("--dynamic", "--undefined-only", f"{BUILD}/lib/{library}"))
        same(sorted(undefined - own - archives), [], f"nor has {library} another way from an archive")
        flags = subprocess.run(["readelf", "--dynamic", "--wide", f"{BUILD}/lib/{library}"], check=True, capture_output=True, text=True).stdout
        ok("Flags: NOW" in flags, "and a function that it misses is told by dlopen(), instead of by the end at the first call")
    hidden = re.compile(r"SYS_(?:exit|exit_group|t?g?kill|execve\w*|rt_sigqueueinfo)\b|__NR_\w+|__builtin_(?:trap|abort)|\b(?:ud2|int3|hlt)\b")
    sources = [path for room in ("alloc", "defrag", "kernels", "zero") for path in glob.glob(f"{room}/**/*.[ch]", recursive=True)]
    same([path for path in sources if not path.startswith(PROGRAMS) and hidden.search(without_comments(path))], [],
         "and none has one that is no function")
    for name, source in {
        "abort": "#include <stdlib.h>\nvoid f(void) { abort(); }",
        "__assert_fail": "#undef NDEBUG\n#include <assert.h>\nvoid f(int a) { assert(a); }",
        "__tls_get_addr": "__thread int own;\nint f(void) { return own; }",
        "urcu_bp_register": "void urcu_bp_register(void);\nvoid f(void) { urcu_bp_register(); }",
    }.items():
        same(sorted(ends(needs(compile_object("ends" + name, source)))), [name], f"an object that needs {name} is seen")


# What a signal interrupts, or what moves less than it was asked for: alloc/base/system/file.h and socket.h make it again. A file here
# does so by itself, or has a reason not to.
BROKEN_OFF = {"read", "write", "pread", "pread64", "pwrite", "pwrite64", "recv", "recvmsg", "send", "sendmsg", "accept4", "connect"}
BY_THEMSELVES = {
    "alloc/base/error": "write",  # the words of an abort, from any state
    "alloc/base/system/machine": "read", "defrag/tool/run/doctor_program": "read",  # a loop; a pipe, to its end
    "alloc/telemetry/serve": "accept4 recv send", "defrag/trace/live": "connect pread recv sendmsg",  # loops with a deadline
    "alloc/service/server/listener": "read",  # notices, whose number counts for nothing
    "alloc/service/server/log": "write",  # a line as a whole, or none
    "defrag/tool/live/serve": "connect send",  # a socket that does not block and is empty
    "zero/file_io/nvme_threads": "pread pwrite",  # zr_nvme_advance_piece()
    "zero/launch/join": "recv",  # a look, without a wait
    "zero/launch/rank": "write",  # in a signal's handler
}


def check_calls():
    found = {}
    for path in listed():
        room = os.path.relpath(path, f"{BUILD}/obj")[:-2]
        if room.split("/")[0] in ("alloc", "defrag", "kernels", "zero") and not room.startswith("alloc/rehearse/") and os.path.exists(room + ".c") and needs(path) & BROKEN_OFF:
            found[room] = " ".join(sorted(needs(path) & BROKEN_OFF))
    del found["alloc/base/system/file"], found["alloc/base/system/socket"]
    same(found, BY_THEMSELVES, "what reads, writes, sends or receives does so through alloc/base/system/file.h or socket.h")


def check_that_it_can_fail(allowed):
    for name, source in {
        "strdup": "#include <string.h>\nchar *f(const char *s) { return strdup(s); }",
        "calloc": "#include <stdlib.h>\nvoid *f(void) { return calloc(3, 5); }",
        "getline": "#define _GNU_SOURCE\n#include <stdio.h>\n"
                   "long f(char **l, size_t *n) { return getline(l, n, 0); }",
        "syscall": "#define _GNU_SOURCE\n#include <unistd.h>\nlong f(void) { return syscall(9); }",
        "mmap": "#include <sys/mman.h>\nvoid *f(void) { return mmap(0, 1, 0, 0, 0, 0); }",
    }.items():
        same(refused(compile_object(name, source), allowed), [name], f"an object that needs {name} is refused")
    pointer = compile_object("pointer", "extern void *malloc(unsigned long);\nvoid *(*hidden)(unsigned long) = malloc;")
    same(refused(pointer, allowed), ["malloc"], "a pointer to malloc is found like a call")
    weak = compile_object("weak", "__attribute__((weak)) extern void *memalign(unsigned long, unsigned long);\n"
                                  "int f(void) { return memalign != 0; }")
    same(refused(weak, allowed), ["memalign"], "and so is a weak reference")
    fine = compile_object("fine", "#include <string.h>\nunsigned long f(const char *s) { return strlen(s); }")
    same(refused(fine, allowed), [], "an object that needs strlen is not")


def check_alloc():
    there = objects("alloc")
    ok(len(there) >= 10, f"alloc/: {len(there)} objects to read")
    bad = {path: sorted(names) for path in there if (names := needs(path) & MALLOC_FAMILY)}
    for path, names in bad.items():
        note(f"{path} needs {' '.join(names)}")
    ok(not bad, "alloc/ needs nothing of malloc's family, no stream and no exit")


PUBLIC = {"libzr.so": ["alloc/zr.h", "alloc/keep/zr_keep.h", "defrag/zr_defrag.h"],
          "libzr_zero.so": ["zero/zr_zero.h", "zero/comm/zr_comm.h", "zero/launch/zr_launch.h", "zero/ps/zr_ps.h", "zero/table/zr_table.h", "kernels/zr_kernels.h"]}


def without_comments(path):
    with open(path, encoding="utf-8") as file:
        return re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)


def declared(mark, *paths):
    """The functions that headers declare with a mark."""
    return {name for path in paths
            for name in re.findall(rf"^{mark}\b[^;(]*?\b(\w+)\s*\(", without_comments(path), flags=re.M)}


def unmarked(path):
    """Functions of a public header that a user would look for in the library in vain."""
    text = without_comments(path).replace('extern "C" {', "")
    text = re.sub(r"\{[^{}]*\}", "", re.sub(r"\{[^{}]*\}", "", text))
    return [name for line, name in re.findall(r"^((?!ZR_API|#|typedef|static)[a-z][^;(]*?\b(zr_\w+))\(", text, flags=re.M)]


def shown_by(library):
    """{version: names} of a library's dynamic symbols; "" is no version."""
    lines = subprocess.run(["nm", "--format=posix", "--dynamic", "--extern-only", "--defined-only", library], check=True,
                           capture_output=True, text=True).stdout.splitlines()
    shown = {}
    for name, letter in (line.split()[:2] for line in lines):
        if letter != "A" and not name.startswith("_"):
            shown.setdefault(name.partition("@")[2].lstrip("@"), set()).add(name.partition("@")[0])
    return shown


def check_shown():
    with open("alloc/zr.h", encoding="utf-8") as file:
        release = ".".join(re.findall(r"^#define ZR_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", file.read(), flags=re.M))
    for file, headers in PUBLIC.items():
        library = f"{BUILD}/lib/{file}"
        if not ok(os.path.exists(library), f"{library} is built"):
            continue
        names, shown = declared("ZR_API", *headers), shown_by(library)
        family = shown.pop(f"ZR_PRIVATE_{release}", set())
        public = set().union(*shown.values())
        ok(len(names) >= 20, f"{' '.join(headers)}: {len(names)} functions")
        same(sorted(public - names), [], f"{file} exports nothing that is not declared there")
        same(sorted(names - public), [], "and everything that is")
        same([name for path in headers for name in unmarked(path)], [], "no public header forgets the mark ZR_API")
        wanted = declared("ZR_PRIVATE_API", *glob.glob("alloc/**/*.h", recursive=True)) if file == "libzr.so" else set()
        same(sorted(family ^ wanted), [], f"for its family it shows {len(wanted)} functions more, under a release's name")
    said = subprocess.run(["readelf", "--dynamic", "--wide", f"{BUILD}/lib/libzr_zero.so"], capture_output=True,
                          text=True).stdout
    abi = ".".join(release.split(".")[:2 if release.startswith("0.") else 1])
    ok(f"[libzr.so.{abi}]" in said and "(SONAME)" in said and f"[libzr_zero.so.{abi}]" in said,
       f"libzr_zero.so.{abi} stands on libzr.so.{abi} instead of a copy of alloc/")
    used = needs(f"{BUILD}/lib/libzr_zero.so")
    same(sorted(declared("ZR_PRIVATE_API", *glob.glob("alloc/**/*.h", recursive=True)) - used), [], "and nothing has the family's mark for nothing")


def check_library():
    library = f"{BUILD}/lib/libzr.so"
    if not os.path.exists(library):
        return
    every = {name for name, _ in nm(library)}
    same(sorted(name for name in every if "zr_je_" in name or name.startswith("je_") or "mallocx" in name), [],
         "it holds no jemalloc")
    said = subprocess.run(["readelf", "--dynamic", "--program-headers", "--wide", library], check=True,
                          capture_output=True, text=True).stdout
    same([line for line in said.splitlines() if "NEEDED" in line and "jemalloc" in line], [], "nor needs it")
    # Static, so that touching it never allocates; little, so that it fits into what the loader keeps for dlopen.
    local = sum(int(row[5], 16) for row in map(str.split, said.splitlines()) if row[:1] == ["TLS"])
    ok(local <= 64, f"its thread-local state of {local} bytes leaves room for dlopen")
    trainer = f"{BUILD}/bin/zr-train"
    if ok(os.path.exists(trainer), f"{trainer} is built"):
        shown = {name for name, _ in nm("--dynamic", "--extern-only", "--defined-only", trainer)}
        same(sorted(name for name in shown if "je_" in name or name in FORBIDDEN), [],
             "zr-train shows no symbol of its heap to other libraries")


PYTHON = """
import ctypes, sys
zr = ctypes.CDLL(sys.argv[1])
zr.zr_last_error.restype = ctypes.c_char_p
class HostOptions(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("granule", ctypes.c_size_t), ("limit", ctypes.c_size_t), ("small", ctypes.c_bool)]
class ArenaOptions(ctypes.Structure):
    # Without its last field, as a program of an older release has it.
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("backend", ctypes.c_void_p), ("name", ctypes.c_char_p),
                ("reserve", ctypes.c_size_t), ("limit", ctypes.c_size_t)]
class Request(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_size_t), ("alignment", ctypes.c_size_t), ("tag", ctypes.c_int),
                ("stream", ctypes.c_uint64)]
def check(result):
    if result:
        sys.exit(zr.zr_last_error().decode())
backend, arena, block = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
check(zr.zr_backend_host_create(ctypes.byref(backend), ctypes.byref(HostOptions(ctypes.sizeof(HostOptions), 0, 1 << 26, False))))
check(zr.zr_arena_create(ctypes.byref(arena), ctypes.byref(ArenaOptions(ctypes.sizeof(ArenaOptions), backend, b"python", 0, 1 << 26))))
check(zr.zr_arena_alloc(arena, ctypes.byref(Request(1000003, 0, 0, 0)), ctypes.byref(block)))
ctypes.memset(block, 0x5a, 1000003)
print(ctypes.string_at(block.value + 1000002, 1)[0])
check(zr.zr_arena_free(arena, block))
leaked = ctypes.c_size_t(1)
check(zr.zr_arena_destroy(arena, ctypes.byref(leaked)))
check(zr.zr_backend_destroy(backend))
print(leaked.value)
"""

# The error's words of a thread go when it ends: with them, so must the code that frees them still be there.
CLOSED = """
import ctypes, sys, threading
import _ctypes
zr = ctypes.CDLL(sys.argv[1])
closed = threading.Event()
said = threading.Event()
def use():
    zr.zr_arena_create(None, None)
    said.set()
    closed.wait()
thread = threading.Thread(target=use)
thread.start()
said.wait()
_ctypes.dlclose(zr._handle)
closed.set()
thread.join()
print("ended")
"""

ENGINE = """
import ctypes, sys
zero = ctypes.CDLL(sys.argv[1])
zr = ctypes.CDLL(sys.argv[2])
zero.zr_kernels_cpu.restype = ctypes.POINTER(ctypes.c_char_p)
print(zero.zr_kernels_cpu(0)[1].decode())
zr.zr_result_name.restype = zr.zr_last_error.restype = ctypes.c_char_p
print(zr.zr_result_name(zero.zr_engine_save(None, b"nowhere")).decode())
print(b"the engine is NULL" in zr.zr_last_error())
"""


def check_dlopen():
    library = os.path.abspath(f"{BUILD}/lib/libzr.so")
    if not os.path.exists(library):
        ok(False, "there is a library to open")
        return
    run = subprocess.run([sys.executable, "-c", PYTHON, library], capture_output=True, text=True)
    if not same((run.returncode, run.stdout.split()), (0, ["90", "0"]),
                "Python's ctypes opens libzr.so, allocates, writes, reads and frees"):
        note(run.stderr)
    run = subprocess.run([sys.executable, "-c", CLOSED, library], capture_output=True, text=True)
    if not same((run.returncode, run.stdout.split()), (0, ["ended"]),
                "dlclose() leaves it in place for the threads that used it"):
        note(run.stderr)
    run = subprocess.run([sys.executable, "-c", ENGINE, *(os.path.realpath(f"{BUILD}/lib/lib{name}.so") for name in ("zr_zero", "zr"))],
                         capture_output=True, text=True)
    if not same((run.returncode, run.stdout.split()), (0, ["cpu", "invalid", "True"]),
                "and libzr_zero.so, which finds libzr.so beside it; a failure there has its words here"):
        note(run.stderr)


def main():
    if not shutil.which("nm") or not shutil.which("readelf"):
        skip("no nm or readelf here (package binutils)")
        done()
    sanitized = any(name.startswith(("__asan", "__ubsan", "__tsan")) for path in objects("alloc") for name in needs(path))
    if sanitized:
        skip("a sanitizer's build needs the sanitizer's symbols; the plain build is the one that is read")
        done()
    allowed = check_rooms(read_whitelist())
    check_that_it_can_fail(allowed)
    check_alloc()
    check_ends()
    check_calls()
    check_shown()
    check_library()
    check_dlopen()
    done()


main()
