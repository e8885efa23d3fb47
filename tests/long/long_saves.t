#!/usr/bin/env python3
"""Fifty deaths by -9 at random moments while a run saves: the newest complete checkpoint always loads."""
import sys

sys.path.insert(0, "tests/support")
from saves import kill_while_saving
from zrtest import SEED, done

kill_while_saving(50, SEED)
done()
