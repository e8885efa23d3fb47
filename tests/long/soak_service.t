#!/usr/bin/env python3
"""Ten minutes of zrd with eight clients, and ten of a device's zrd: tests/support/service_soak.py."""
import sys

sys.path.insert(0, "tests/support")
from service_soak import soak
from zrtest import done

for kind in ("host", "cuda"):
    soak(kind, 600)
done()
