#!/bin/sh
# Some of the mutants, about a minute's worth, always the same; all of them are `make check-mutants`.
exec tests/mutants/run --sample 12
