#!/bin/sh
# Schedules of sizes at stages 0 to 3, with meshes, precisions and optimizers; ten events at random in runs of four kinds.
export ZR_TEST_SEED=${ZR_TEST_SEED:-$(date +%s)}
echo "# ZR_TEST_SEED=$ZR_TEST_SEED"
exec tests/system/train_elastic.t "${1:-10}"
