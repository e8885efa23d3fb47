#!/usr/bin/env python3
"""An embedding table of 512 MB in 128 MB of memory, and deaths before more of a table's stores than make check has."""
import os
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, done, note, ok, run_limited

os.environ["ZR_TEST_LONG"] = "1"
for words, command in (("512 MB of rows in 128 MB", ["table_test", "--large"]), ("deaths before a table's stores", ["table_kept_test"])):
    got = run_limited([os.path.join(BUILD, "tests", command[0]), *command[1:]])
    if not ok(got.returncode == 0, words):
        note((got.stdout + got.stderr)[-3000:])
done()
