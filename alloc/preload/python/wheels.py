"""wheels.py: the build backend of pyproject.toml (PEP 517): a wheel of zr's programs, libraries and Python package.

It runs make and needs no other package. `pip install . -C built=build` takes what is in build/ and runs nothing."""
import base64
import hashlib
import os
import re
import subprocess
import sysconfig
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
PROGRAMS = ("zr", "zr-train", "zrd")
LIBRARIES = ("libzr.so", "libzr_malloc.so", "libzr_cuda.so")


def version():
    with open(os.path.join(ROOT, "alloc", "zr.h"), encoding="utf-8") as file:
        numbers = dict(re.findall(r"^#define ZR_VERSION_(MAJOR|MINOR|PATCH) (\d+)", file.read(), re.M))
    return f"{numbers['MAJOR']}.{numbers['MINOR']}.{numbers['PATCH']}"


def contents(built, information):
    """{name in the wheel: its bytes}, all but the record."""
    texts = {}
    package = os.path.join(HERE, "zr")
    files = {f"zr/{name}": os.path.join(package, name) for name in sorted(os.listdir(package)) if name.endswith(".py")}
    files.update({f"zr/bin/{name}": os.path.join(built, "bin", name) for name in PROGRAMS})
    files.update({f"zr/lib/{name}": os.path.join(built, "lib", name) for name in LIBRARIES})
    stand_ins = os.path.join(built, "lib", "zr-rehearse")
    files.update({f"zr/lib/zr-rehearse/{name}": os.path.join(stand_ins, name) for name in sorted(os.listdir(stand_ins))})
    files[f"{information}/licenses/LICENSE"] = os.path.join(ROOT, "LICENSE")
    for name, path in files.items():
        with open(path, "rb") as file:
            texts[name] = file.read()
    with open(os.path.join(HERE, "README.md"), encoding="utf-8") as file:
        readme = file.read()
    platform = re.sub(r"\W", "_", sysconfig.get_platform())
    texts[f"{information}/METADATA"] = (f"Metadata-Version: 2.4\nName: zr\nVersion: {version()}\nSummary: memory manager for training\n"
                                        "License-Expression: MIT\nLicense-File: LICENSE\nRequires-Python: >=3.9\n"
                                        f"Description-Content-Type: text/markdown\n\n{readme}").encode()
    texts[f"{information}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: zr\nRoot-Is-Purelib: false\nTag: py3-none-{platform}\n".encode()
    texts[f"{information}/entry_points.txt"] = ("[console_scripts]\n" + "".join(f"{name} = zr.__main__:main\n" for name in PROGRAMS)).encode()
    return texts, f"zr-{version()}-py3-none-{platform}.whl"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Writes the wheel and returns its name."""
    built = (config_settings or {}).get("built")
    if not built:
        subprocess.run(["make", f"-j{os.cpu_count()}"], cwd=ROOT, check=True)
    information = f"zr-{version()}.dist-info"
    texts, name = contents(os.path.join(ROOT, built or os.environ.get("BUILD", "build")), information)
    record = "".join(f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text).digest()).decode().rstrip('=')},{len(text)}\n"
                     for path, text in texts.items())
    texts[f"{information}/RECORD"] = f"{record}{information}/RECORD,,\n".encode()
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, text in texts.items():
            entry = zipfile.ZipInfo(path)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if path.startswith("zr/bin/") else 0o100644) << 16
            wheel.writestr(entry, text)
    return name
