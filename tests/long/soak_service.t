#!/usr/bin/env python3
"""Twenty thousand writers of kept memory that are killed; ten minutes of zrd with eight clients, ten of a device's zrd, and ten in which clients and zrd are killed and stopped, and
their folder and disk taken away: tests/support/service_soak.py."""
import os
import subprocess
import sys

sys.path.insert(0, "tests/support")
from service_soak import rough, soak
from zrtest import BUILD, done, same

same(subprocess.run([os.path.join(BUILD, "tests", "keep_test"), "kills", "20000"], stdout=subprocess.DEVNULL).returncode, 0,
     "each killed writer of kept memory leaves a whole generation")
for kind in ("host", "cuda"):
    soak(kind, 600)
rough(600)
done()
