#!/bin/sh
# Twenty perfect packings, of which make check finds eight.
exec "${BUILD:-build}/tests/perfect_test" --twenty
