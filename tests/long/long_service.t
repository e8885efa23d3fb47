#!/usr/bin/env python3
"""A minute of zrd with eight clients, and half a minute of a device's zrd: tests/support/service_soak.py."""
import sys

sys.path.insert(0, "tests/support")
from service_soak import soak
from zrtest import done

for kind, seconds in (("host", 60), ("cuda", 30)):
    soak(kind, seconds)
done()
