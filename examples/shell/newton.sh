#!/bin/sh
# Newton's iteration for a square root: prints the error after six steps from a given start.
set -eu
awk -v x="$TRIALKEEPER_PARAM_start" -v n="$TRIALKEEPER_PARAM_number" 'BEGIN {
    for (step = 0; step < 6; step++) {
        x = (x + n / x) / 2
        error = x - sqrt(n)
        printf "{\"step\": %d, \"guess\": %.9f, \"error\": %.9f}\n", step, x, error < 0 ? -error : error
    }
}'
