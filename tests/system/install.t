#!/usr/bin/env python3
"""What another trainer gets: make install into a folder of the test's own (what it installs is built already: other tests
run it), the example compiled against that with pkg-config and run at every stage, its state saved and taken up
elsewhere; uninstall leaves nothing."""
import glob
import json
import os
import re
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, "tests/support")
from saves import can_trace, record
from zrtest import BUILD, FOLDER, HANG, done, mpi_missing, note, ok, path, same, skip

STAGE = path("stage")  # DESTDIR
PREFIX = "/opt/zr"
ROOT = STAGE + PREFIX
COMPILER = os.environ.get("CC", "gcc")
MLP = path("mlp")
ENVIRONMENT = {**os.environ, "PKG_CONFIG_PATH": ROOT + "/lib/pkgconfig", "PKG_CONFIG_SYSROOT_DIR": STAGE,
               "LD_LIBRARY_PATH": ROOT + "/lib"}


def run(command, cwd=FOLDER, **environment):
    return subprocess.run(command, cwd=cwd, env={**ENVIRONMENT, **environment}, capture_output=True, text=True,
                          timeout=HANG)


def make(goal, stage=STAGE):
    got = run(["make", "--silent", "--no-print-directory", goal, f"BUILD={BUILD}", f"DESTDIR={stage}", f"PREFIX={PREFIX}"],
              cwd=os.getcwd())
    if not same(got.returncode, 0, f"make {goal} into {os.path.basename(stage)}"):
        note(got.stderr[-2000:])
    return got.returncode == 0


def files(root=ROOT):
    return sorted(os.path.join(folder, name)[len(root) + 1:] for folder, _, names in os.walk(root) for name in names)


def check_blanks():
    """rm -rf of two names where one was meant would be the end of somebody's files."""
    blank = path("a  stage")
    with open(path("a"), "w", encoding="ascii"):
        pass
    if make("install-built", blank):
        same(files(blank + PREFIX), files(), "DESTDIR with blanks gets the same files")
        make("uninstall", blank)
        same((files(blank), os.path.exists(path("a"))), ([], True), "and they go again, and nothing beside them")
    refused = [("clean", "BUILD=a b"), ("uninstall", "PREFIX=/a b"), ("install", "LIBDIR=/a b"), ("install", "PREFIX=relative"),
               ("clean", "BUILD=a;b"), ("uninstall", "DOCDIR=/a*"), ("install", "DESTDIR=/a'b")]
    for sign in "'\"`\\&|;<>(){}[]*?~%:#":  # what the shell, make or a .pc file would make something else of
        refused.append(("install", f"PREFIX=/a{sign}b"))
    refused.append(("install", "PREFIX=/a$$b"))
    for goal, setting in refused:
        got = run(["make", "--no-print-directory", "--dry-run", goal, setting], cwd=os.getcwd())
        same((got.returncode, got.stdout), (2, ""), f"make {goal} {setting!r} is refused".replace("#", "hash"))
        ok(setting.split("=")[0] + "=" in got.stderr, "and the words name it")


def check_names():
    """GNU's names of the folders are the same as ours; what would be ignored is refused."""
    def dry(*settings):
        got = run(["make", "--no-print-directory", "--dry-run", "install-built", f"BUILD={BUILD}", f"DESTDIR={STAGE}", *settings], cwd=os.getcwd())
        return got.returncode, got.stdout, got.stderr

    default = dry()
    for ours, theirs in (["PREFIX="], ["prefix="]), (["PREFIX=/usr", "LIBDIR=/usr/lib64", "MANDIR=/m"], ["prefix=/usr", "libdir=/usr/lib64", "mandir=/m"]):
        got = dry(*theirs)
        ok(got[0] == 0 and got == dry(*ours) != default, f"make install {' '.join(theirs)} is {' '.join(ours)}") or note(got[2][-500:])
    ok(f"'{STAGE}/bin'" in dry("prefix=")[1], "an empty prefix is the root, below DESTDIR")
    for settings in (["PREFIX=/a", "prefix=/b"], ["exec_prefix=/a"], ["datarootdir=/a"], ["datadir=/a"]):
        got = dry(*settings)
        ok(got[:2] == (2, "") and settings[-1].split("=")[0] + "=" in got[2], f"make install {' '.join(settings)} is refused by name") or note(got[2][-500:])


def check_files():
    there = [name for name in files() if not name.startswith("share/") and not name.endswith("libzr_comm_mpi.so")]
    pages = [f"share/man/{folder}/{name}" for folder in ("man1", "man3", "man5") for name in os.listdir(os.path.join(BUILD, "share", folder))]
    same(sorted(name for name in files() if name.startswith(("share/man", "share/bash"))),
         sorted(pages + [f"share/bash-completion/completions/{name}" for name in ("zr", "zr-train", "zrd")]), f"{len(pages)} manual pages, and bash's completion")
    wanted = {f"share/man/man{page[-1]}/{page}" for page in ("zr.1", "zr-why.1", "zr-train.1", "zrd.1", "libzr.3", "libzr_zero.3", "ZR_CONF.5")}
    same(sorted(wanted - set(pages)), [], "of the programs, of each subcommand, of the libraries and of ZR_CONF")
    if shutil.which("man"):
        got = run(["man", "-M", ROOT + "/share/man", "zr-why"], MANPAGER="cat", LC_ALL="C.UTF-8")
        ok(got.returncode == 0 and "zr why FILE.. [options]" in got.stdout, "man finds them") or note(got.stderr)
    version = run(["pkg-config", "--modversion", "zr_zero"]).stdout.strip()
    ok(re.fullmatch(r"0\.\d+\.\d+", version), f"pkg-config knows version {version}")
    want = ["bin/zr", "bin/zr-train", "bin/zrd", "lib/systemd/user/zrd.service", "lib/systemd/user/zrd@.service"]
    want += ["include/zr/" + name for name in ("alloc/keep/zr_keep.h", "alloc/zr.h", "defrag/zr_defrag.h", "kernels/zr_kernels.h", "zero/comm/zr_comm.h", "zero/launch/zr_launch.h", "zero/ps/zr_ps.h", "zero/table/zr_table.h", "zero/zr_zero.h")]
    want += [f"lib/lib{name}{end}" for name in ("zr", "zr_zero") for end in (".a", ".so", ".so." + version.rpartition(".")[0], ".so." + version)]
    want += [f"lib/libzr.so.{version}-gdb.py", "lib/libzr_cuda.so", "lib/libzr_malloc.so", "lib/pkgconfig/zr.pc", "lib/pkgconfig/zr_zero.pc"]
    with open("alloc/rehearse/functions.txt", encoding="ascii") as table:
        stand_ins = [line.split()[0] for line in table if ".so" in line]
    want += ["lib/zr-rehearse/" + name for name in ("libcuda.so.1", "libzr_rehearse.so", "sitecustomize.py", "zr_rehearse_ranks.py",
                                                  "zr_rehearse_values.py", *stand_ins)]
    got = run([ROOT + "/bin/zr", "rehearse", "--", os.path.join(os.path.abspath(BUILD), "tests", "rehearse_program"), "1"])
    ok(got.returncode == 0 and "zr: verdict    fits" in got.stderr, "zr rehearse finds its libraries") or note(got.stderr)
    same(there, sorted(want), "the programs, the public headers, the libraries with their links, and nothing else")
    for name in ("zr", "zr_zero"):
        same(os.path.basename(os.path.realpath(f"{ROOT}/lib/lib{name}.so")), f"lib{name}.so.{version}",
             f"lib{name}.so leads to the file with the version")
    got = run([ROOT + "/bin/zr-train", "--dry-run", "--layers", "2", "--hidden", "64", "--heads", "2", "--world-size", "2"])
    same(got.returncode, 0, "the installed zr-train plans")
    with open(ROOT + "/lib/systemd/user/zrd.service", encoding="ascii") as file:
        unit = file.read()
    ok(f"ExecStart={PREFIX}/bin/zrd\n" in unit and "@" not in unit, "systemd's unit starts the installed zrd")
    with open(ROOT + "/lib/systemd/user/zrd@.service", encoding="ascii") as file:
        ok(f"ExecStart={PREFIX}/bin/zrd --device %i\n" in file.read(), "and another one that of a device")
    os.makedirs(path("runtime"), 0o700)
    service = {"XDG_RUNTIME_DIR": path("runtime")}
    got = [run([ROOT + "/bin/zr", "service", word], **service).returncode for word in ("start", "status", "stop")]
    same(got, [0, 0, 0], "the installed zr service starts it, too")
    got = run([ROOT + "/bin/zr", "run", "--", "sh", "-c", "echo $LD_PRELOAD"])
    same(got.stdout, ":".join(os.path.realpath(f"{ROOT}/lib/lib{name}.so") for name in ("zr_malloc", "zr_cuda")) + "\n",
         "the installed zr run finds its libraries")


def check_headers():
    languages = [("C", [COMPILER, "-std=c11", "-x", "c"])]
    if shutil.which("c++"):
        languages.append(("C++", ["c++", "-std=c++17", "-x", "c++"]))
    flags = run(["pkg-config", "--cflags", "zr_zero"]).stdout.split()
    for language, command in languages:
        for header in glob.glob("**/*.h", root_dir=ROOT + "/include/zr", recursive=True):
            got = run(command + ["-Wall", "-Wextra", "-Werror", "-fsyntax-only", *flags, "-include", header, "/dev/null"])
            if not same(got.returncode, 0, f"{header} is enough by itself, in {language}"):
                note(got.stderr[:1000])


LEARNER = """
#include <stdio.h>
#include "defrag/zr_defrag.h"
int main(void)
{
    zr_backend *backend = NULL;
    zr_arena *arena = NULL;
    zr_learner *learner = NULL;
    struct zr_arena_stats before = {0}, after = {0};
    void *blocks[5];
    if (zr_backend_sim_create(&backend, NULL) || zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}) ||
        zr_learner_create(&learner, &(struct zr_learner_options){.arena = arena}))
        return puts(zr_last_error()), 1;
    for (int step = 0; step < 40; step++) {
        for (int i = 0; i < 5; i++)
            if (zr_arena_alloc(arena, &(struct zr_request){.bytes = (size_t)(i + 1) << 20}, &blocks[i]))
                return puts(zr_last_error()), 1;
        for (int i = 0; i < 5; i++)
            zr_arena_free(arena, blocks[i]);
        zr_learner_wait(learner);
        before = after;
        zr_arena_get_stats(arena, &after);
    }
    printf("%d %d\\n", before.backend_calls_count > 0, after.backend_calls_count == before.backend_calls_count);
    zr_learner_destroy(learner);
    return zr_arena_destroy(arena, NULL) || zr_backend_destroy(backend);
}
"""


def check_learner():
    with open(path("learner.c"), "w", encoding="utf-8") as file:
        file.write(LEARNER)
    flags = run(["pkg-config", "--cflags", "--libs", "zr"]).stdout.split()
    got = run([COMPILER, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "learner.c", "-o", "learner", *flags])
    if not same(got.returncode, 0, "a program on libzr alone compiles with pkg-config's words"):
        note(got.stderr)
        return
    got = run([path("learner")])
    same((got.returncode, got.stdout.split()), (0, ["1", "1"]), "and its repeating step is learned")
    needed = re.findall(r"NEEDED.*\[(.*?)\]", run(["readelf", "--dynamic", "--wide", "learner"]).stdout)
    ok(any(re.fullmatch(r"libzr\.so\.0\.\d+", name) for name in needed) and not any("zero" in name or "dnnl" in name for name in needed), f"it needs {needed}")


def compile_example(out, libraries):
    flags = run(["pkg-config", "--cflags", "zr_zero"]).stdout.split()
    return run([COMPILER, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", ROOT + "/share/doc/zr/mlp.c", "-o", out,
                *flags, *libraries, "-lm"])


def check_example():
    with open("examples/mlp.c", encoding="utf-8") as file:
        ok(len(file.readlines()) <= 225, "the example has about 200 lines")
    got = compile_example(MLP, run(["pkg-config", "--libs", "zr_zero"]).stdout.split())
    if not same(got.returncode, 0, "it compiles against what is installed, with pkg-config's words alone"):
        note(got.stderr)
        return False
    private = [word for word in run(["pkg-config", "--static", "--libs", "zr_zero"]).stdout.split()
               if word not in ("-lzr", "-lzr_zero")]
    got = compile_example(MLP + "-static", [f"{ROOT}/lib/libzr_zero.a", f"{ROOT}/lib/libzr.a", *private])
    same(got.returncode, 0, "and against the archives, with the libraries that pkg-config --static names")
    return True


def mlp(ranks, stage, steps, state=None, program=MLP, **environment):
    return run([program, str(ranks), str(stage), str(steps), *([state] if state else [])], **environment)


def read(name):
    with open(name, "rb") as file:
        return file.read()


def check_training():
    for ranks in (1, 2, 3):
        outs, states = [], []
        for stage in range(4):
            state = path(f"{ranks}-{stage}.safetensors")
            got = mlp(ranks, stage, 60, state)
            if got.returncode:
                note(got.stderr)
            outs.append(got.stdout)
            states.append(read(state) if os.path.exists(state) else None)
        losses = [float(line.split()[3]) for line in outs[0].splitlines()]
        ok(len(losses) >= 3 and losses[-1] < 0.1 * losses[0], f"{ranks} ranks learn: losses {losses}")
        ok(outs == outs[:1] * 4 and states == states[:1] * 4 and states[0],
           f"{ranks} ranks: the same norms and the same state, bit for bit, at stages 0 to 3")
    same(mlp(2, 2, 60, program=MLP + "-static").stdout, mlp(2, 0, 60).stdout, "the same from the archives")


def check_launchers():
    """The same program as ranks that others start: as torchrun does, and by mpirun with the module that was installed."""
    alone = mlp(2, 1, 20).stdout
    variables = {"WORLD_SIZE": "2", "MASTER_PORT": str(60000 + os.getpid() % 5000)}
    ranks = [subprocess.Popen([MLP, "2", "1", "20"], env={**ENVIRONMENT, **variables, "RANK": str(rank)}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(2)]
    outs = [rank.communicate(timeout=HANG) for rank in ranks]
    same([rank.returncode for rank in ranks], [0, 0], f"two processes with RANK and WORLD_SIZE: {[out[1] for out in outs]}")
    same(outs[0][0] + outs[1][0], alone, "and the same bits")
    got = run([MLP, "3", "1", "20"], **variables, RANK="0")
    ok(got.returncode == 2 and "WORLD_SIZE" in got.stderr, f"another number of ranks is refused by name: {got.stderr.strip()}")
    if mpi_missing():
        skip("mlp under mpirun", mpi_missing())
        return
    got = run(["mpirun", "-n", "2", MLP, "0", "1", "20"], OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
              OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_mpi_yield_when_idle="1")
    same((got.returncode, got.stdout), (0, alone), "and by mpirun, with the module that is installed")
    if got.returncode:
        note(got.stderr[-800:])


def check_state():
    whole, part, other = path("2-0.safetensors"), path("part.safetensors"), path("other.safetensors")
    mlp(2, 3, 25, part)
    mlp(2, 1, 35, part)
    same(read(part), read(whole), "25 steps at stage 3 and 35 more at stage 1 are 60 steps at stage 0")
    shutil.copy(whole, other)
    for ranks, stage in ((3, 3), (1, 0), (4, 2)):
        same(mlp(ranks, stage, 0, other).returncode, 0, f"{ranks} ranks at stage {stage} take it up and save it")
    same(read(other), read(whole), "and its bytes are the same after all that")
    data = read(whole)
    length, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    same(header.pop("__metadata__")["steps"], f"{60:020}", "the header is JSON and counts 60 steps")
    same(list(header)[:2] + list(header)[-1:], ["layer.0.weight", "layer.0.bias", "optimizer.variance.head.weight"],
         "tensors have the parameters' names")
    end = 0
    for tensor in header.values():
        size = 4
        for extent in tensor["shape"]:
            size *= extent
        if tensor["data_offsets"] != [end, end + size]:
            break
        end += size
    same((end, (8 + length) % 64), (len(data) - 8 - length, 0), "they follow one another without holes, to the file's end")


def check_damage():
    good, bad = read(path("2-0.safetensors")), path("bad.safetensors")
    length, = struct.unpack("<Q", good[:8])
    digit = good.index(b'"steps":"') + 28
    for words, data in {
        "a flipped bit": good[:-5] + bytes([good[-5] ^ 1]) + good[-4:],
        "another number of steps": good[:digit] + b"7" + good[digit + 1:],
        "a file cut short": good[:-4],
        "a longer file": good + b"\0\0\0\0",
        "half a header": good[:length // 2],
        "another shape": good.replace(b"[2,128]", b"[128,2]", 1),
        "no numbers": good.replace(b'"checksum":"', b'"checksum":"x', 1)[:len(good)],
        "an empty file": b"",
    }.items():
        with open(bad, "wb") as file:
            file.write(data)
        got = mlp(2, 1, 3, bad)
        ok(got.returncode == 3 and "bad.safetensors" in got.stderr and read(bad) == data,
           f"{words} is refused with the file's name, and the file stays: {got.stderr.splitlines()[:1]}")


def check_faults():
    good, state = read(path("2-0.safetensors")), path("fault.safetensors")
    shutil.copy(path("2-0.safetensors"), state)
    mlp(2, 2, 1, state)
    new = read(state)
    ok(new != good and len(new) == len(good), "one more step is another state")
    met = []
    for fault in ("write:1", "write:3", "write:40", "sync:1", "sync:2", "sync:3", "rename:1"):
        with open(state, "wb") as file:
            file.write(good)
        got = mlp(2, 2, 1, state, ZR_FAULT=fault)
        met += [fault] if got.returncode else []
        # The last sync is that of the name, when the new file has it.
        want = (0, True, False) if fault == "write:40" else (3, fault == "sync:3", False)
        same((got.returncode, read(state) == new, os.path.exists(state + ".partial")), want,
             f"ZR_FAULT={fault}: exit {want[0]}, nothing half written")
        ok(read(state) in (good, new), f"ZR_FAULT={fault}: the old file as it was, or the new one whole")
    same(met, ["write:1", "write:3", "sync:1", "sync:2", "sync:3", "rename:1"], "all of these were met")


def check_order():
    """A power cut must not leave the new name with old or no bytes under it."""
    if not can_trace():
        skip("strace is not there, or may not trace")
        return
    state = path("ordered.safetensors")
    for words in ("a new file", "one over another"):
        got, recording = record([MLP, "3", "2", "1", state], env=ENVIRONMENT)
        if not same(got.returncode, 0, f"{words}: runs under strace"):
            note(got.stderr[-1000:])
            continue
        same(recording.renames, [(state + ".partial", state)], f"{words}: there is one rename")
        same(recording.complaints, [], f"{words}: every sync comes before it")
        ok(recording.syncs >= 3 + 1 + 1, f"{words}: {recording.syncs} syncs: three ranks, the header, the name")
        ours = {name for name in recording.dirty_names | recording.dirty_data if name.startswith(state) or name == FOLDER}
        same(ours, set(), f"{words}: and the name is synced at the end")


def check_other_systems():
    """Without dpkg nothing is installed, and nothing stops: the packages are named, and the compiler says the rest."""
    tools = path("tools")
    os.mkdir(tools)
    for folder in reversed(os.environ["PATH"].split(":")):
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            where = os.path.join(tools, name)
            if os.path.lexists(where):
                os.unlink(where)
            if not name.startswith(("dpkg", "apt")):
                os.symlink(os.path.join(folder, name), where)
    got = run(["make", "--no-print-directory", "packages-build"], cwd=os.getcwd(), PATH=tools)
    same(got.returncode, 0, "a system without dpkg can build") or note(got.stderr)
    ok("no dpkg" in got.stderr and "libdnnl-dev" in got.stderr and "apt-get" not in got.stderr,
       "and is told what by") or note(got.stderr)


def main():
    check_other_systems()
    if not shutil.which("pkg-config"):
        skip("no pkg-config here (package pkg-config)")
        done()
    if make("install-built"):
        check_files()
        check_blanks()
        check_names()
        check_headers()
        check_learner()
        if check_example():
            check_training()
            check_launchers()
            check_state()
            check_damage()
            check_faults()
            check_order()
        with open(ROOT + "/lib/somebody.else", "w", encoding="utf-8"):
            pass
        if make("uninstall"):
            same(files(), ["lib/somebody.else"], "uninstall leaves no file but somebody else's")
            ok(not os.path.exists(ROOT + "/include/zr") and not os.path.exists(ROOT + "/share/doc/zr"),
               "and none of its own folders")
    done()


main()
