#!/usr/bin/env python3
"""Ten minutes of zrd with eight clients, ten of a device's zrd, and ten in which clients and zrd are killed and stopped, and
their folder and disk taken away: tests/support/service_soak.py."""
import sys

sys.path.insert(0, "tests/support")
from service_soak import rough, soak
from zrtest import done

for kind in ("host", "cuda"):
    soak(kind, 600)
rough(600)
done()
