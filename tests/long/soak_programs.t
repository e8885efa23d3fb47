#!/usr/bin/env python3
"""Programs that take gigabytes of packages, with zr's malloc and without, most of them under zr run --stats --trace; and zr
doctor of one that has its own malloc."""
import subprocess
import sys

sys.path.insert(0, "tests/support")
sys.path.insert(0, "tests/system")
from zrtest import LONG_HANG, done, note, ok, skip
import programs

programs.check(programs.WATCHED, at_once=2, how=programs.WATCH)
has_torch = subprocess.run([programs.PYTHON, "-c", "import torch"], capture_output=True).returncode == 0
if not has_torch:
    skip("PyTorch is not installed (python3-torch)")
programs.check(programs.SOAK if has_torch else programs.SOAK[1:])
chromium = "/usr/lib/chromium/chromium"  # what Debian's script of that name starts
if programs.missing([chromium]):
    skip(f"{chromium} is not there")
else:
    got = subprocess.run([programs.ZR, "doctor", "--", chromium], capture_output=True, text=True, timeout=LONG_HANG)
    if not ok(got.returncode == 1 and "bad   chromium" in got.stdout and "missed" in got.stdout, "zr doctor says that chromium's own malloc comes first"):
        note(got.stdout)
done()
