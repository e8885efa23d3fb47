#!/bin/sh
# A snapshot of 500 MB: its figures, and the memory that zr stats takes for it.
ZR_TEST_SNAPSHOT_BYTES=500000000 exec tests/long/long_snapshot.t
