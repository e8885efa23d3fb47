#!/usr/bin/env python3
"""Four hundred runs of long_ends.t."""
import re
import sys

sys.path.insert(0, "tests/support")
from zrtest import done, note, ok, run_limited

got = run_limited([sys.executable, "tests/long/long_ends.t", "400"], timeout=3 * 3600)
ok(got.returncode == 0 and re.search(r"^ok 2 ", got.stdout, flags=re.M), "400 runs that are saved, evaluated, ended by signals and taken up again")
note(got.stdout[-6000:] + got.stderr[-2000:])
done()
