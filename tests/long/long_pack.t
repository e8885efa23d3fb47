#!/bin/sh
# Twenty perfect packings, of which make check finds eight; the one that is not found, MiniMalloc's algorithm does
# not find either.
exec "${BUILD:-build}/tests/perfect_test" --twenty
