#!/usr/bin/env python3
"""Fifty deaths by -9 at random moments while a run saves: the newest complete checkpoint always loads."""
import random
import sys

from saves import kill_while_saving
from zrtest import done, note

seed = int(sys.argv[1]) if len(sys.argv) > 1 else random.randrange(1 << 30)
note(f"seed {seed}")
kill_while_saving(50, seed)
done()
