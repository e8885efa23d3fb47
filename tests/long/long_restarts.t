#!/bin/sh
# Ranks of twenty runs of all kinds are killed at random, some with their kept memory.
export ZR_TEST_SEED=${ZR_TEST_SEED:-$(date +%s)}
echo "# ZR_TEST_SEED=$ZR_TEST_SEED"
exec tests/system/train_restarts.t "${1:-20}"
