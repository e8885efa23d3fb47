"""gpu_archive.py: tests/gpu_shot --pack: one archive with all that the steps need on a machine that has Python and a driver: programs
without their debugging sections, the libraries they load beside glibc's, scripts, and the processor's losses."""
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile

from gpu_steps import FAST, KERNELS, ROOT, VERDICTS, host_losses, key_of, trainings
from zrtest import BUILD

SIZE_MAX = 60_000_000
SCRIPTS = ("tests/gpu_shot", "tests/bench/bench_gpu.py", "alloc/preload/python/zr/__init__.py",
           *(f"tests/support/{name}" for name in ("gpu_card.py", "gpu_driver.py", "gpu_expected.json", "gpu_pytorch.py", "gpu_pytorch_peaks.json", "gpu_steps.py",
                                                  "gpu_train.py", "sizes.py", "zrtest.py")))


def soname(name):
    """What the link libNAME.so leads to."""
    link = os.path.join(BUILD, "lib", name)
    return os.readlink(link) if os.path.islink(link) else name


BUILT = ("bin/zr-train", "bin/zr", "lib/libzr_cuda.so", "lib/libzr_malloc.so", *(f"lib/{soname(name)}" for name in ("libzr.so", "libzr_zero.so")), "tests/zr-train-times", "tests/bench_pack", "tests/backend_test",
         *(f"tests/cuda_{name}_test" for name in (*KERNELS, *VERDICTS)),
         *(f"tests/emulator/{name}" for name in ("libcuda.so.1", "libcublasLt.so.13", "libnccl.so.2", "kernels.image", "cublaslt.image", "rules.image")))
GLIBC = re.compile(r"(ld-linux.*|lib(c|m|mvec|dl|rt|pthread|util|resolv|anl))\.so.*")


def libraries(files):
    """Where the loader finds what they need beside glibc and zr's own, by name."""
    found = {}
    for file in files:
        text = subprocess.run(["ldd", file], capture_output=True, text=True).stdout
        for name, where in re.findall(r"(\S+) => (not found|/\S+)", text):
            if name == "libcuda.so.1" or name.startswith("libzr") or GLIBC.fullmatch(name):
                continue
            if where == "not found":
                raise SystemExit(f"gpu_shot: {file} needs {name}, which is not here; install it")
            found[name] = where
    return found


def newest_glibc(files):
    """The newest version of glibc that one of them asks for."""
    found = {(0, 0)}
    for file in files:
        with open(file, "rb") as opened:
            found |= {tuple(map(int, version.split(b"."))) for version in re.findall(rb"\0GLIBC_([0-9]+\.[0-9]+)(?=[.0-9]*\0)", opened.read())}
    return ".".join(map(str, max(found)))


def expectations():
    """What gpu_shot is to expect of each row, with the model's times of these kernels where nvdisasm is here."""
    import gpu_model
    known, modelled = gpu_model.kernels(), {}
    if known is None:
        print("gpu_shot: no nvdisasm (NVDISASM, CUDA_HOME, PATH): the archive expects no times of kernels", file=sys.stderr)
    for name in FAST if known else ():
        model = gpu_model.bench_gpu.MODELS[name]
        modelled.update(gpu_model.speeds(name, model, *gpu_model.expected(model, known)))
    return gpu_model.merged(modelled)


def pack(archive, emulated):
    """emulated: the losses of tiny shapes alone. Returns the exit code; one line of JSON says what was packed."""
    build = os.path.abspath(BUILD)
    missing = [name for name in BUILT if not os.path.exists(os.path.join(build, name))]
    if missing:
        raise SystemExit(f"gpu_shot: {build} lacks {', '.join(missing)}; run `make gpu-archive`, which builds them")
    if not emulated and not os.path.exists(os.path.join(build, "device", "images.h")):
        raise SystemExit("gpu_shot: zr was built without nvcc and has no kernels for a card; set CUDA_HOME and build again")
    losses = {key_of(options): host_losses(options, small) for small in {True, emulated} for options in trainings(small)}
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, cwd=ROOT).stdout
    mode = {"xz": "w:xz", "gz": "w:gz", "tar": "w"}.get(archive.rsplit(".", 1)[-1])
    if not mode:
        raise SystemExit(f"gpu_shot: {archive}: the archive's name ends in .tar, .tar.gz or .tar.xz")
    settings = {"w:xz": {"preset": 3}, "w:gz": {"compresslevel": 1}}.get(mode, {})
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive + ".new", mode, **settings) as tar:
        members = {f"build/{name}": os.path.join(build, name) for name in BUILT}
        for name, where in libraries(members.values()).items():
            members[f"build/libraries/{name}"] = where
        stripped = []
        for number, (name, where) in enumerate(members.items()):
            target = os.path.join(folder, str(number))
            subprocess.run(["strip", "-s", "-o", target, where], check=True)
            stripped.append(target)
            tar.add(target, name)
        for name in SCRIPTS:
            tar.add(os.path.join(ROOT, name), name)
        kept = {"losses.json": json.dumps(losses, indent=1).encode(), "commit": commit}
        if not emulated:
            kept["expected.json"] = json.dumps(expectations(), indent=1).encode()
        for name, data in kept.items():
            entry = tarfile.TarInfo(f"build/gpu-shot/{name}")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        glibc = newest_glibc(stripped)
    size = os.path.getsize(archive + ".new")
    if size > SIZE_MAX:
        os.unlink(archive + ".new")
        raise SystemExit(f"gpu_shot: the archive has {size} bytes, more than {SIZE_MAX}")
    os.replace(archive + ".new", archive)
    print(json.dumps({"archive": archive, "bytes": size, "files": len(members) + len(SCRIPTS) + len(kept), "glibc": glibc}))
    print(f"gpu_shot: on the machine with a card: mkdir shot && tar -xf {os.path.basename(archive)} -C shot && shot/tests/gpu_shot --results FOLDER; "
          f"then shot/tests/gpu_shot --seconds 240 --failed FOLDER/results.jsonl --results FOLDER", file=sys.stderr)
    return 0
