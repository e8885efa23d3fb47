#!/bin/sh
# Twenty ranks are killed at random, in all kinds of runs.
export ZR_TEST_SEED=${ZR_TEST_SEED:-$(date +%s)}
echo "# ZR_TEST_SEED=$ZR_TEST_SEED"
exec tests/system/train_restarts.t "${1:-20}"
