#!/bin/sh
# Two hundred ranks are killed at random: see long_restarts.t.
exec tests/long/long_restarts.t 200
