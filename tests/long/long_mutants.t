#!/bin/sh
# A random sample of the mutants, another one for each commit; all of them are `make check-mutants`.
exec tests/mutants/run --seconds 90
