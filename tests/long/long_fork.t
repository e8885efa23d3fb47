#!/bin/sh
# Five hundred forks in the middle of everything, under the address and undefined-behaviour sanitizers.
ZR_TEST_FORKS=500 exec "${BUILD:-build}/both-sanitizers/tests/fork_soak_test"
