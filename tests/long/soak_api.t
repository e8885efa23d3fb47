#!/usr/bin/env python3
"""Sequences of calls of alloc/zr.h from libFuzzer for half an hour: tests/support/fuzz/fuzz_api.h."""
import os
import sys

os.execv(sys.executable, [sys.executable, "tests/support/fuzz/fuzz_api.py", os.environ.get("FUZZ_SECONDS", "1800")])
